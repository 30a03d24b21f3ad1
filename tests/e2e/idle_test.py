#!/usr/bin/env python3
"""Gateways that have nothing to do use next to nothing: no busy waiting, whatever they wait for."""
import contextlib
import os
import pathlib
import subprocess
import sys
import time
import unittest

from federation import Case, Federation, ISTHMUS, wait_until

RANK = pathlib.Path(__file__).resolve().parents[1] / "wan/scripted_rank.py"
ELEMENTS = 1 << 20
SHARE_MAX = 0.005  # of a core
MEASURED_S = 12.0


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
            before = {name: cpu_seconds(process.pid) for name, process in gateways.items()}
            time.sleep(MEASURED_S)
            for name, process in gateways.items():
                self.assertIsNone(process.poll(), said())
                share = (cpu_seconds(process.pid) - before[name]) / MEASURED_S
                print(f"{name}: {100 * share:.2f} % of a core")
                self.assertLess(share, SHARE_MAX, name)


if __name__ == "__main__":
    unittest.main()
