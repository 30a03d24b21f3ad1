#!/usr/bin/env python3
"""What commands say to do next works as it stands, and a mistake at the command line is named."""
import pathlib
import shlex
import socket
import subprocess
import tempfile
import time
import unittest

from federation import BAD_USAGE, Case, DONE, FAILED, Federation, HOPELESS, ISTHMUS, isthmus


class Commands(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="isthmus-e2e-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_it(self, *arguments, code=DONE):
        result = isthmus(*arguments, cwd=self.folder)
        self.assertEqual(result.returncode, code, f"{arguments}: {result.stdout}")
        return result.stdout

    def hints(self, output):
        return [shlex.split(line)[1:] for line in output.splitlines() if line.startswith("  isthmus ")]

    def test_hints_can_be_pasted(self):
        (self.folder / "data").mkdir()
        for name in ("en", "de", "en.held"):
            (self.folder / "data" / f"{name}.bin").write_text("some text " * 100)
        said = self.hints(self.run_it("init", "alpha"))
        self.assertEqual([words[:2] for words in said[:3]], [["keys", "generate"], ["roster", "add"], ["roster", "sign"]])
        made = self.run_it(*said[0])
        self.assertIn("operator.key.pub", made)
        added = self.hints(self.run_it(*(word.replace("HOST", "alpha.example") for word in said[1])))
        beta = self.hints(self.run_it("keys", "generate", "beta.key"))[0]
        self.run_it(*(word.replace("NAME", "beta") for word in beta))
        self.assertEqual(added, [said[2]])
        self.run_it(*added[0])
        self.assertEqual(said[3], ["check", "alpha.toml"])
        self.run_it(*said[3])

    def test_the_hint_names_a_key_that_is_there(self):
        (self.folder / "keys").mkdir()
        self.run_it("keys", "generate", "alpha.key")
        add = ("roster", "add", "keys/roster.toml", "--name", "alpha", "--public", "alpha.key.pub")
        self.assertIn("OPERATOR_KEY being", self.run_it(*add))
        (self.folder / "keys/roster.toml").unlink()
        self.run_it("keys", "generate", "--operator", "keys/operator.key")
        self.run_it(*self.hints(self.run_it(*add))[0])

    def test_mistakes_are_named(self):
        self.run_it("keys", "generate", "alpha.key")
        self.run_it("keys", "generate", "--operator", "operator.key")
        add = ("roster", "add", "roster.toml", "--name", "alpha", "--public", "alpha.key.pub")
        self.assertIn("which is past", self.run_it(*add, "--expires", "2020-01-01", code=BAD_USAGE))
        self.assertIn("--expires: ", self.run_it(*add, "--expires", "soon", code=BAD_USAGE))
        self.run_it(*add)
        roster = self.folder / "roster.toml"
        roster.write_text("".join("expires = 2020-01-01\n" if line.startswith("expires") else line
                                  for line in roster.read_text().splitlines(keepends=True)))
        self.assertIn("which is past", self.run_it("roster", "sign", roster, "--key", "operator.key", code=BAD_USAGE))
        self.run_it("roster", "add", "roster.toml", "--name", "beta", "--public", "alpha.key.pub", code=BAD_USAGE)
        roster.unlink()
        self.run_it(*add)
        recover = ("roster", "recover", "roster.toml", "--key", "operator.key", "--step", "1", "--voter", "alpha")
        self.assertIn("--run must be the run", self.run_it(*recover, "--run", "zz", "--root", "zz", code=BAD_USAGE))
        self.assertIn("--root must be the state root",
                      self.run_it(*recover, "--run", "00" * 32, "--root", "zz", code=BAD_USAGE))

    def test_an_id_is_never_given_again(self):
        def ids():
            return [int(line.split("=")[1]) for line in roster.read_text().splitlines() if line.startswith("id =")]
        for name in ("a", "b", "c", "d"):
            self.run_it("keys", "generate", f"{name}.key")
        roster = self.folder / "roster.toml"
        for name in ("a", "b"):
            self.run_it("roster", "add", roster, "--name", name, "--public", f"{name}.key.pub")
        roster.write_text(roster.read_text()[:roster.read_text().rindex("[[site]]")])  # b, by hand
        self.run_it("roster", "add", roster, "--name", "c", "--public", "c.key.pub")
        self.assertEqual(ids(), [1, 3])
        # A roster of an older version knows no next_id.
        roster.write_text("".join(line for line in roster.read_text().splitlines(keepends=True)
                                  if not line.startswith("next_id")))
        self.run_it("roster", "remove", roster, "--name", "c")
        self.run_it("roster", "add", roster, "--name", "d", "--public", "d.key.pub")
        self.assertEqual(ids(), [1, 4, 3])

    def test_a_typo_is_named_where_it_stands(self):
        for typed, said in ((("roster", "sgn"), "isthmus roster: there is no command \"sgn\"; did you mean \"sign\"?"),
                            (("keys", "foo"), "isthmus keys: there is no command \"foo\""),
                            (("lanch", "a.toml"), "isthmus: there is no command \"lanch\"; did you mean \"launch\"?"),
                            (("-v",), "there is no option \"-v\""),
                            (("roster", "recover", "r.toml"), "isthmus roster recover --help says how"),
                            (("simulate", "pair", "--seed", "-1"), "no whole number"),
                            (("simulate", "pair", "--seed", "9" * 23), "no whole number"),
                            (("simulate", "pair", "--faults", ""), "places in the list"),
                            (("simulate", "pair", "--faults", "1,1"), "each once"),
                            (("simulate", "calm", "--faults", "0"), "this run has none"),
                            (("link", "test", "beta", "--time", "4"), '--time must be "1 s" to "30 s", not "4"'),
                            (("link", "test", "beta", "--bytes", "5"), '--bytes must be "100 kB" to "1 GiB", not "5"'),
                            (("simulate", "pair", "--seeds", "3", "--first-seed", "9223372036854775806"),
                             "the last that there is"),
                            (("init", "."), "begins with neither")):
            self.assertIn(said, self.run_it(*typed, code=BAD_USAGE))
        self.assertIn("recover", self.run_it("roster", "--help"))

    def test_a_simulated_run_shows_its_faults_and_its_counts(self):
        whole = self.run_it("simulate", "storm", "--seed", "7")
        listed = self.run_it("simulate", "storm", "--seed", "7", "--faults", "all")
        self.assertEqual(whole.splitlines()[-1], "all invariants held")
        faults = [line for line in listed.splitlines() if line not in whole.splitlines()]
        self.assertGreater(len(faults), 3)
        for fault in faults:
            self.assertRegex(fault, r"^ *\d+  .+: ")
        counts = [line for line in whole.splitlines() if line.startswith("  ") and line.split()[-1].isdigit()]
        self.assertEqual(len({len(line) - len(line.split()[-1]) for line in counts}), 1, "one column")

    def test_who_reads_no_further_hears_no_complaint(self):
        said = subprocess.run(["bash", "-c", f"{ISTHMUS} simulate storm --seed 7 --log | head -1"], cwd=self.folder, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertTrue(said.stdout)
        self.assertEqual(said.stderr, "")

    def test_a_model_that_was_trained_alone_is_exported_and_read_again(self):
        (self.folder / "text.txt").write_text("The narrow strip joins two lands.\n" * 200)
        site = """[site]
name = "alone"
run_dir = "{run_dir}"
[model]
{model}
[data]
train = [{{ path = "text.txt" }}]
held_out = [{{ name = "text", path = "text.txt" }}]
[train]
micro_batch = 2
sequence = 32
[sync]
inner_steps = 2
outer_steps = 2
"""
        new = 'family = "qwen3"\nlayers = 1\nhidden = 20\nheads = 3\nkv_heads = 1\nhead_dim = 8\nffn = 24'
        (self.folder / "new.toml").write_text(site.format(run_dir="new", model=new))
        self.run_it("export", "new.toml", "--to", "out", code=HOPELESS)  # there is nothing yet
        self.run_it("launch", "new.toml")
        self.run_it("export", "new.toml", "--to", "out/", "--dtype", "bf16", "--file-size", "4 kB")
        files = sorted(path.name for path in (self.folder / "out").iterdir())
        self.assertIn("model.safetensors.index.json", files)
        self.assertGreater(len(files), 4)
        self.assertIn("is there already", self.run_it("export", "new.toml", "--to", "out", code=FAILED))
        (self.folder / "next.toml").write_text(site.format(run_dir="next", model='from = "out"'))
        self.assertIn("qwen3", self.run_it("check", "next.toml"))
        self.run_it("launch", "next.toml")
        self.assertIn("bits per byte", self.run_it("eval", "next.toml"))
        (self.folder / "out" / files[1]).unlink()
        self.assertIn(files[1], self.run_it("check", "next.toml", "--set", "site.run_dir=other", code=BAD_USAGE))

    def test_preparing_a_text_overwrites_nothing_else(self):
        text = self.folder / "text.txt"
        text.write_text("\n\n".join(f"paragraph {i}" for i in range(40)))
        before = text.read_text()
        self.assertIn("must be three files", self.run_it("data", "prepare", "text.txt", "--train", "data/x",
                                                         "--held-out", "data/x", code=BAD_USAGE))
        self.run_it("data", "prepare", "text.txt", "--train", "text.txt", "--held-out", "y", code=BAD_USAGE)
        self.assertEqual(text.read_text(), before)
        (self.folder / "one.txt").write_text("one paragraph")
        self.assertIn("data.train", self.run_it("data", "prepare", "one.txt", "--train", "x", "--held-out", "y",
                                                code=BAD_USAGE))
        self.assertEqual([path.name for path in self.folder.rglob("*.new")], [])

    def test_the_exit_code_says_it_where_the_disk_is_full(self):
        with open("/dev/full", "w") as full:
            code = subprocess.run([ISTHMUS, "check", "none.toml"], cwd=self.folder, stdout=full, stderr=full).returncode
        self.assertEqual(code, BAD_USAGE)
        self.run_it("keys", "generate", "alpha.key")
        for words in (("keys", "show", "alpha.key.pub"), ("--help",), ("simulate", "--help")):
            with open("/dev/full", "w") as full:
                code = subprocess.run([ISTHMUS, *words], cwd=self.folder, stdout=full, stderr=subprocess.DEVNULL).returncode
            self.assertEqual(code, FAILED, words)

    def test_public_parts_are_shown_whatever_their_mode(self):
        self.run_it("keys", "generate", "alpha.key")
        self.run_it("keys", "generate", "--operator", "operator.key")
        self.assertEqual(self.run_it("keys", "show", "alpha.key.pub"), self.run_it("keys", "show", "alpha.key"))
        self.assertEqual(self.run_it("keys", "show", "--operator", "operator.key.pub"),
                         self.run_it("keys", "show", "--operator", "operator.key"))
        (self.folder / "alpha.key").chmod(0o644)
        self.assertIn("chmod 600 alpha.key", self.run_it("keys", "show", "alpha.key", code=BAD_USAGE))


class TakenPort(Case):
    def test_it_ends_the_launch_at_once_with_the_address(self):
        with Federation("alpha", "beta") as federation, socket.socket() as other:
            alpha = federation["alpha"]
            host, port = alpha.address.split(":")
            other.bind((host, int(port)))
            other.listen()
            began = time.monotonic()
            alpha.launch()
            self.assertEqual(alpha.wait(30), HOPELESS, alpha.output())
            self.assertLess(time.monotonic() - began, 15)
            self.assertIn(alpha.address, alpha.output())
            self.assertIn("ss -ltnp", alpha.output())
            self.assertNotIn("started again", alpha.output())


if __name__ == "__main__":
    unittest.main()
