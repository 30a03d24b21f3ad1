"""Sites of an emulated network: real gateways, and ranks whose contributions follow from site and step alone
(scripted_rank.py), so that federations with and without faults can be compared bit for bit."""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

E2E = pathlib.Path(__file__).resolve().parents[1] / "e2e"
sys.path.insert(0, str(E2E))

from federation import ISTHMUS, wait_until
from wan import Wan, WanFederation
import outer_files

RANK = pathlib.Path(__file__).resolve().parent / "scripted_rank.py"


class ScriptedSites(WanFederation):
    """`first`: which site of the network is this federation's first; two federations share no site."""

    def __init__(self, *names, first=0, elements=1 << 20, seconds=0.0, settings=(), **options):
        super().__init__(*names, **options)
        self.first, self.elements, self.seconds = first, elements, seconds
        self.settings = [f"--set={setting}" for setting in settings]  # of the gateways
        self.processes = {}  # (site name, "gateway" or "rank") → Popen

    def choose_network(self):
        super().choose_network()
        self.network = f"10.77.0"

    def host(self, number):
        return f"{self.network}.{self.first + number}"

    def at(self, number):
        return (os.environ["WAN"], str(self.first + number - 1))

    def __exit__(self, *error):
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        super().__exit__(*error)

    def start(self, site, *roles):
        for role in roles or ("gateway", "rank"):
            command = [ISTHMUS, "gateway", site.file, *self.settings] if role == "gateway" else [
                sys.executable, RANK, site.run_dir / "gateway.sock", site.number, self.elements, self.seconds]
            with open(self.folder / f"{site.name}.{role}.log", "ab") as log:
                self.processes[site.name, role] = subprocess.Popen(
                    list(map(str, [*site.at, *command])), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT)

    def start_all(self):
        for site in self.sites:
            self.start(site)
        return self

    def process(self, site, role="gateway"):
        return self.processes[site.name, role]

    def kill(self, site, *roles):
        for role in roles:
            self.process(site, role).kill()
            self.process(site, role).wait()

    def said(self):
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in self.folder.glob("*.log"))

    def wait(self, timeout=60):
        deadline = time.monotonic() + timeout
        for (name, role), process in self.processes.items():
            try:
                code = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name}'s {role} still runs after {timeout} s\n{self.said()}") from None
            assert code == 0, f"{name}'s {role} ended with {code}\n{self.said()}"

    def roots(self, site):
        """Of each step: as the gateway applied it, and as the file of the last one gives it."""
        roots = {event["outer_step"]: event["root"] for event in site.events("step_applied")}
        newest = outer_files.Site(site.run_dir).states()[0]
        assert roots[newest.step] == newest.claimed_root.hex()
        return roots

    def transferred(self, site, step):
        """The share of each other site's contribution to `step` that is on the site's disk, at least."""
        files = [p for p in (site.run_dir / "outer/contributions").glob(f"{step:08}-*")
                 if not p.name.endswith(f"-{site.number}")]
        if len(files) < len(self.sites) - 1:
            return 0
        with contextlib.suppress(OSError):
            return min((p.stat().st_blocks * 512 / self.elements for p in files), default=0)
        return 0

    def wait_for_transfer(self, site, step, share=0.25, timeout=60):
        wait_until(lambda: self.transferred(site, step) >= share, timeout,
                   lambda: f"no transfer to {site.name} in step {step}\n{self.said()}")


def received_bytes(process):
    """What came in from the network where a process is."""
    text = pathlib.Path(f"/proc/{process.pid}/net/dev").read_text()
    return int(re.search(r"wan0: *(\d+)", text).group(1))


def stop(*processes):
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)


def go_on(*processes):
    for process in processes:
        os.kill(process.pid, signal.SIGCONT)
