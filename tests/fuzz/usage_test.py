#!/usr/bin/env python3
"""What drives fuzz targets without libFuzzer takes no nonsense for "no random inputs", and makes them when it is given time."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

FUZZ = os.environ.get("FUZZ", str(pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/safetensors_fuzz"))
FAULTY = os.environ.get("FAULTY_TARGET", str(pathlib.Path(FUZZ).with_name("faulty_target")))
BAD_USAGE = 2


def run(*arguments, seconds=None):
    environment = {name: value for name, value in os.environ.items() if name != "ISTHMUS_FUZZ_SECONDS"}
    if seconds is not None:
        environment["ISTHMUS_FUZZ_SECONDS"] = seconds
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([FUZZ, *arguments], timeout=30, text=True, env=environment, cwd=folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def made(said):
    return int(re.search(r"inputs, and (\d+) made", said.stdout).group(1))


class Usage(unittest.TestCase):
    def test_numbers_that_are_none_are_refused(self):
        for option, value in (("--runs", "-3"), ("--runs", "abc"), ("--runs", "0"), ("--runs", "3x"), ("--runs", ""),
                              ("--runs", "9" * 30), ("--seed", "-1"), ("--seed", "abc")):
            said = run("--runs", "1", option, value)
            self.assertEqual(said.returncode, BAD_USAGE, (option, value, said.stdout))
            self.assertIn(f"{option} is '{value}': give it a whole number from", said.stdout)
        for value in ("0", "-1", "soon", "", "1.5"):
            said = run(seconds=value)
            self.assertEqual(said.returncode, BAD_USAGE, (value, said.stdout))
            self.assertIn(f"ISTHMUS_FUZZ_SECONDS is '{value}': give it a whole number from", said.stdout)

    def test_an_option_without_its_value_and_a_folder_that_is_not_there(self):
        for option in ("--runs", "--seed", "--write"):
            said = run(option)
            self.assertEqual(said.returncode, BAD_USAGE, said.stdout)
            self.assertIn(f"{option} wants a value", said.stdout)
        said = run("--write", "/nonexistent")
        self.assertEqual(said.returncode, BAD_USAGE, said.stdout)
        self.assertIn("/nonexistent/seed-0: cannot be written", said.stdout)

    def test_so_many_are_made(self):
        said = run("--runs", "7")
        self.assertEqual((said.returncode, made(said)), (0, 7), said.stdout)

    def test_time_is_enough(self):
        said = run(seconds="1")
        self.assertEqual(said.returncode, 0, said.stdout)
        self.assertGreater(made(said), 0)


class Findings(unittest.TestCase):
    """Of a target that has all the faults."""

    def found(self, first):
        """What is left behind of an input that begins so, after one that is harmless."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in (("1", b"harmless"), ("2", first + b" and so on")):
                pathlib.Path(folder, name).write_bytes(content)
            said = subprocess.run([FAULTY, "--limit", "1", "1", "2"], timeout=60, cwd=folder, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertNotEqual(said.returncode, 0, said.stdout)
            return pathlib.Path(folder, "finding").read_bytes()

    def test_each_fault_leaves_its_input_behind(self):
        for first in (b"a", b"b", b"l", b"m"):
            self.assertEqual(self.found(first), first + b" and so on")

    def test_with_time_each_run_makes_others(self):
        seeds = {re.search(r"seed (\d+)", run(seconds="1").stdout).group(1) for _ in range(2)}
        self.assertEqual(len(seeds), 2)
        self.assertIn("seed 1\n", run("--runs", "2").stdout)


if __name__ == "__main__":
    unittest.main()
