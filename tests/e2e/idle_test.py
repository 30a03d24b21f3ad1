#!/usr/bin/env python3
"""Gateways that have nothing to do use next to nothing: no busy waiting, whatever they wait for.

CPU time of processes that wake up for a moment depends on what else a machine does, by half and more: the promise is
held against the quietest of a few stretches, and no stretch may be far from it."""
import contextlib
import pathlib
import subprocess
import sys
import time
import unittest

from federation import Case, Federation, ISTHMUS, wait_until

RANK = pathlib.Path(__file__).resolve().parents[1] / "wan/scripted_rank.py"
ELEMENTS = 1 << 20
SHARE_MAX = 0.005  # of a core
SHARE_ONCE_MAX = 4 * SHARE_MAX
STRETCH_S = 12.0
STRETCHES_MAX = 3


def cpu_seconds(pid):
    """Of all its threads, those that ended included, to the nanosecond: a tick is a sixth of the bound."""
    return time.clock_gettime((~pid << 3) | 2)  # the CPU clock of a process (clock_getcpuclockid)


class Idle(Case):
    def test_gateways_that_wait(self):
        """Two have a session and ranks that compute for a long time, one of them politely; the third has no ranks yet."""
        with Federation("alpha", "beta", "gamma", min_sites=2) as f, contextlib.ExitStack() as stack:
            def start(name, *command):
                log = stack.enter_context(open(f.folder / f"{name}.log", "ab"))
                process = stack.enter_context(subprocess.Popen(
                    list(map(str, command)), cwd=f.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT))
                stack.callback(process.kill)
                return process

            polite = {"beta": ["--set=gateway.polite=true"]}
            gateways = {site.name: start(site.name, ISTHMUS, "gateway", site.file, *polite.get(site.name, ()))
                        for site in f.sites}
            for site in f.sites[:2]:
                start(site.name, sys.executable, RANK, site.run_dir / "gateway.sock", site.number, ELEMENTS, 1000)
            said = lambda: "\n".join(path.read_text(errors="replace") for path in f.folder.glob("*.log"))
            for site in f.sites[:2]:
                wait_until(lambda: site.events("session_began"), 60, said)
            time.sleep(3)
            least = dict.fromkeys(gateways, float("inf"))
            for _ in range(STRETCHES_MAX):
                before = {name: cpu_seconds(process.pid) for name, process in gateways.items()}
                time.sleep(STRETCH_S)
                for name, process in gateways.items():
                    self.assertIsNone(process.poll(), said())
                    share = (cpu_seconds(process.pid) - before[name]) / STRETCH_S
                    print(f"{name}: {100 * share:.2f} % of a core")
                    self.assertLess(share, SHARE_ONCE_MAX, name)
                    least[name] = min(least[name], share)
                if max(least.values()) < SHARE_MAX:
                    break
            for name, share in least.items():
                self.assertLess(share, SHARE_MAX, name)


if __name__ == "__main__":
    unittest.main()
