#!/usr/bin/env python3
"""However a benchmark of gateways ends, nothing of it goes on or stays: no process, and no file in its --folder.

wan_bench and a full disk need root; without it their tests are skipped.
"""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GATEWAY_BENCH = os.environ.get("GATEWAY_BENCH", str(ROOT / "build/release/bin/gateway_bench"))
WAN_BENCH = os.environ.get("WAN_BENCH", str(ROOT / "build/release/bin/wan_bench"))
WITH_WAN = ROOT / "tests/wan/with_wan"


def processes():
    """Of each process its parent, its start (a number comes again) and its command."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent, *rest = (process / "stat").read_text().rpartition(")")[2].split()[1:]
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        found[int(process.name)] = (int(parent), rest[17], command)
    return found


def below(pid):
    """The processes that descend from this one, and it."""
    found, family = processes(), {pid}
    while more := {child for child, (parent, *_) in found.items() if parent in family} - family:
        family |= more
    return {(process, *found[process][1:]) for process in family if process in found}


def a_gateway_of(pid):
    """Its child that has a vote file open."""
    for child, (parent, *_) in processes().items():
        if parent == pid and any(os.readlink(file).endswith("/vote") for file in pathlib.Path(f"/proc/{child}/fd").iterdir()):
            return child
    raise AssertionError("no gateway")


class Ended(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="isthmus-bench-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *command, stdout=subprocess.DEVNULL):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)

        def clean_up():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self.addCleanup(clean_up)
        return process

    def start_and_wait(self, program, *arguments):
        """With all its processes and files there, in the middle of what it does."""
        process = self.start(program, "--folder", self.folder, *arguments)
        end = time.monotonic() + 20
        while not all(any(self.folder.glob(f"*/{site}/state.*")) for site in (0, 1)):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return process

    def check_ends(self, number, program, *arguments):
        process = self.start_and_wait(program, *arguments)
        family = below(process.pid)
        self.assertGreaterEqual(len(family), 4, family)  # two gateways, and who removes the folder
        process.send_signal(number)
        process.wait(20)
        end = time.monotonic() + 20
        while (left := self.left(family)) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertFalse(left, (number, program))

    def left(self, family):
        there = {(pid, start) for pid, (_, start, _) in processes().items()}
        return {member for member in family if member[:2] in there} or list(self.folder.iterdir())

    def test_gateway_bench_by_a_signal_to_it_alone(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            self.check_ends(number, GATEWAY_BENCH, "--parameters=20000", "--steps=10000")

    def skip_without_wan(self):
        probe = subprocess.run([WITH_WAN, "--", "true"], stderr=subprocess.PIPE, text=True)
        if probe.returncode != 0:
            self.skipTest(probe.stderr)

    def test_wan_bench_by_a_signal_to_it_alone(self):
        self.skip_without_wan()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            self.check_ends(number, WAN_BENCH, "--path=delay=5ms rate=100mbit", "--parameters=20000", "--exchanges=1000",
                            "--iperf-seconds=0")

    def test_what_an_interrupted_wan_bench_measured_is_reported(self):
        self.skip_without_wan()
        for run, reported in ((1, {}), (2, {"runs": 1, "parameters": 20000})):
            process = self.start(WAN_BENCH, "--path=delay=5ms rate=100mbit", "--parameters=20000", "--exchanges=3", "--runs=1000",
                                 "--iperf-seconds=0", "--json", stdout=subprocess.PIPE)
            while not process.stderr.readline().startswith(f"run {run} of 1000: "):
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            figures, said = process.communicate(timeout=20)
            self.assertEqual(process.returncode, 130)
            self.assertIn(f"wan_bench: interrupted: {run - 1} of 1000 runs measured\n", said)
            rows = {row["name"]: row for row in map(json.loads, figures.splitlines())}
            self.assertEqual(bool(rows), bool(reported))
            for key, value in reported.items():
                self.assertEqual(rows["exchange, third and later / ideal"][key], value)

    def test_gateway_bench_when_a_gateway_is_killed(self):
        process = self.start_and_wait(GATEWAY_BENCH, "--parameters=20000", "--steps=10000")
        os.kill(a_gateway_of(process.pid), signal.SIGKILL)
        self.assertEqual(process.wait(20), 1)
        self.assertIn("a gateway did not finish", process.stderr.read())

    def test_a_full_disk(self):
        in_it = f'mount -t tmpfs -o size=3m tmpfs {self.folder} && exec "$0" --folder {self.folder} --parameters 1000000'
        probe = subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.PIPE, text=True)
        if probe.returncode != 0:
            self.skipTest(probe.stderr)
        process = self.start("unshare", "--mount", "bash", "-c", in_it, GATEWAY_BENCH)
        self.assertEqual(process.wait(20), 1)
        said = process.stderr.read()
        self.assertEqual(said.count("if its disk takes no more, free some or name another --folder"), 1, said)
        self.assertIn("No space left on device", said)


if __name__ == "__main__":
    unittest.main()
