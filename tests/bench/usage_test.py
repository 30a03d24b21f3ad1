#!/usr/bin/env python3
"""wan_bench refuses at once, with what is allowed, what it could only wait for or would misunderstand; and gateway_bench says
what it measured. No root needed."""
import json
import os
import pathlib
import subprocess
import unittest

BIN = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin"
WAN_BENCH = os.environ.get("WAN_BENCH", str(BIN / "wan_bench"))
GATEWAY_BENCH = os.environ.get("GATEWAY_BENCH", str(BIN / "gateway_bench"))
BAD_USAGE = 2
LINE = "delay=5ms rate=100mbit"


def run(*command):
    return subprocess.run(command, timeout=30, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)


def wan_bench(*arguments):
    return run(WAN_BENCH, *arguments)


class Usage(unittest.TestCase):
    def check_refused(self, says, *arguments):
        said = wan_bench("--exchanges=3", "--runs=1", "--iperf-seconds=0", *arguments)
        self.assertEqual(said.returncode, BAD_USAGE, (arguments, said.stdout))
        self.assertIn(says, said.stdout, arguments)

    def test_output_that_is_lost_is_no_success(self):
        for lost in ([], ["--json"]):
            with open("/dev/full", "w") as full:
                said = subprocess.run([GATEWAY_BENCH, "--parameters=2000", "--steps=1", *lost], timeout=60, text=True,
                                      stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE)
            self.assertEqual(said.returncode, 1)
            self.assertIn("cannot write the output", said.stderr)

    def test_lines_that_say_nothing_too_little_or_too_much(self):
        for line, says in (("", "--path: it says nothing"),
                           (" ", "it sets nothing"),
                           ("rate=1gbit", "--path must say delay="),
                           ("delay=5ms", "--path must say rate="),
                           ("delay=0ms rate=1gbit", "--path: delay= must be above 0"),
                           ("delay=5ms rate=0", "--path must say rate="),
                           (f"{LINE} rate=10mbit", '"rate" is said twice in one line'),
                           (f"{LINE} frob=3", '"frob" is no setting'),
                           (f"{LINE} # loss=5%", "without comments"),
                           (f"{LINE}\nseed 3", "is one line"),
                           ("delay=nanms rate=1gbit", "delay=nanms: no number begins it"),
                           ("delay=-5ms rate=1gbit", "it is out of bounds")):
            self.check_refused(says, "--path", line)
        self.check_refused("--access: it says nothing", "--path", "delay=5ms", "--access", "")
        self.check_refused("--access must say rate=", "--path", "delay=5ms", "--access", "queue=1mb")
        self.check_refused("--folder: it says nothing", "--path", LINE, "--folder", "")

    def test_lines_that_cannot_carry_an_outer_step(self):
        for line, fault in ((f"{LINE} loss=100%", "loss= is above 30%"),
                            (f"{LINE} loss=31%", "loss= is above 30%"),
                            (f"{LINE} corrupt=6%", "corrupt= is above 5%"),
                            (f"{LINE} queue=3kb", "queue= is below 4kb"),
                            (f"{LINE} jitter=600ms", "delay= and jitter= are above 500ms together"),
                            (f"{LINE} down", "it is down"),
                            (f"{LINE} loss=1% burst=1001", "burst= is above 1000"),
                            ("delay=501ms rate=1gbit", "delay= and jitter= are above 500ms together"),
                            ("delay=5ms rate=15kbit", "rate= is below 16kbit"),
                            ("delay=5ms rate=101gbit", "rate= is above 100gbit")):
            self.check_refused(f"--path: {fault}: no outer step", "--path", line)
            self.check_refused("rate= 16kbit to 100gbit, queue= from 4kb, loss= up to 30%", "--path", line)
        self.check_refused("--access: queue= is below 4kb", "--path", "delay=5ms", "--access", "rate=1mbit queue=1b")

    def test_numbers_and_names(self):
        for option, value in (("--parameters", "0"), ("--parameters", "-5"), ("--sites", "1"), ("--sites", "2.5"),
                              ("--cc", "foo"), ("--pause", "nan"), ("--pause", "inf"), ("--runs", "0"), ("--runs", "")):
            self.check_refused(f"wan_bench: {option}: ", "--path", LINE, f"{option}", value)
        with open("/proc/meminfo", encoding="ascii") as memory:
            kib = int(memory.readline().split()[1])
        if kib << 10 < 24 * 2 << 32:
            said = run(GATEWAY_BENCH, "--parameters", str(1 << 32), "--steps=1")
            self.assertEqual(said.returncode, BAD_USAGE, said.stdout)
            self.assertIn(f"gateway_bench: --parameters {1 << 32}: 2 sites need 206 GB at least", said.stdout)
        if kib << 10 < 24 * 8 << 32:
            self.check_refused("8 sites need 824 GB at least", "--path", LINE, "--sites", "8", "--parameters", str(1 << 32))

    def test_folders_in_which_nothing_can_be_made(self):
        for folder, why in (("/nonexistent", "No such file or directory"), (__file__, "Not a directory")):
            self.check_refused(f"{folder}: {why}; name a folder", "--path", LINE, "--folder", folder)
            said = run(GATEWAY_BENCH, "--folder", folder)
            self.assertEqual(said.returncode, BAD_USAGE, said.stdout)
            self.assertIn(f"{folder}: {why}; name a folder", said.stdout)
        said = run(GATEWAY_BENCH, "--folder", "/proc")  # also for root, who may write everywhere
        self.assertEqual(said.returncode, BAD_USAGE, said.stdout)
        self.assertIn("name a folder in which files can be made", said.stdout)

    def test_help_says_what_a_line_needs(self):
        said = wan_bench("--help")
        self.assertEqual(said.returncode, 0)
        words = " ".join(said.stdout.split())
        for part in ("delay= must be there, and rate=, unless --access has it", "delay= above 0",
                     "loss= up to 30%", "77 it cannot run here", "130 interrupted",
                     "loss=0.1, a share, is 10%"):
            self.assertIn(part, words)
        self.assertIn("130 interrupted", run(GATEWAY_BENCH, "--help").stdout)


class Said(unittest.TestCase):
    ARGUMENTS = ("--parameters=10007", "--steps=1", "--codec=bf16", "--outer=nesterov")

    def test_what_was_measured_is_in_every_line_for_programs(self):
        said = run(GATEWAY_BENCH, "--json", *self.ARGUMENTS)
        self.assertEqual(said.returncode, 0, said.stdout)
        lines = [json.loads(line) for line in said.stdout.splitlines()]
        names = [line["name"] for line in lines]
        self.assertIn("CPU of both gateways, of one core", names)
        for synced in ("write feedback, synced", "write state, synced"):  # CPU-seconds say nothing of a disk
            self.assertIn(f"{synced}: CPU alone", names)
            self.assertIn(f"{synced}: bytes / second", names)
            self.assertNotIn(synced, names)
        for line in lines:
            self.assertEqual((line["parameters"], line["codec"], line["outer"], line["steps"]), (10007, "bf16", "nesterov", 1))

    def test_what_people_read(self):
        said = run(GATEWAY_BENCH, *self.ARGUMENTS)
        self.assertIn("10007 parameters, codec bf16, outer nesterov, 1 step after 2", said.stdout)
        rows = [line for line in said.stdout.splitlines() if line.startswith("  ") and line.endswith(("/s", " s", " B"))]
        self.assertGreater(len(rows), 9)
        self.assertEqual({len(row.removesuffix(" " + row.split()[-1])) for row in rows}, {63}, "one column")
        self.assertNotRegex(said.stdout, r"(?m) 1$")


if __name__ == "__main__":
    unittest.main()
