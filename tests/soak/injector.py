"""Does faults to a running federation, and undoes them. What the machine gives says which: `network`, between namespaces
(tests/e2e/wan.py); `disk`, a small file system for each site, where one may mount; `clock`, where clock_shift is built."""
import contextlib
import os
import pathlib
import signal
import struct
import subprocess
import time

from federation import ISTHMUS, STOPPED
from invariants import Kill, LaunchEnd

DISK_BYTES = 192 << 20  # of each site's run_dir
# What the checks read lies outside that disk: what finds no room there would be checked by nobody.
READ_BY_CHECKS = ("events.jsonl", "metrics.jsonl")
# launch kills ranks that do not stop after a minute, and gateways after another (SupervisorOptions::patience).
LEAVE_MAX_S = 150
SAID_MAX = 20_000  # characters that are kept of what a launch said
ROLES = {"gateway": "gateway", "train": "ranks"}  # as launch calls what runs this command
LINE_MBIT = 24
LINES = ("default delay=10ms rate=1gbit queue=1mb",)
CLOCK_SHIFT = pathlib.Path(os.environ.get("ISTHMUS_CLOCK_SHIFT",
                                          pathlib.Path(ISTHMUS).parent / "libclock_shift.so"))


def line_of(site, mbit=LINE_MBIT):
    """Its access line, which all its peers share."""
    return f"uplink {site} rate={mbit:.3f}mbit queue=128kib\ndownlink {site} rate={mbit:.3f}mbit queue=128kib"


class Injector:
    def __init__(self, federation, wan):
        self.federation, self.wan = federation, wan
        self.means = [what for what, there in (("network", wan), ("disk", wan), ("clock", CLOCK_SHIFT.exists())) if there]
        self.environment = {}
        self.full, self.away = set(), set()  # places of sites
        self.kills = [[] for _ in federation.sites]  # by place
        self.ends = [[] for _ in federation.sites]  # of launch, by place
        for place, site in enumerate(federation.sites):
            if "disk" in self.means:  # with_wan has given us mounts of our own
                site.run_dir.mkdir()
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=755,size={DISK_BYTES}", "soak", site.run_dir], check=True)
                for name in READ_BY_CHECKS:
                    (site.run_dir / name).symlink_to(federation.folder / f"{site.name}.{name}")
            if "clock" in self.means:
                self.shift(place, 0)
            if wan:
                wan.conf(line_of(place))

    def missing(self, no_network):
        """The means that are not there, each with the reason; `no_network`: that of the network's, and so of the disks'."""
        why = {"network": no_network, "disk": no_network, "clock": f"as {CLOCK_SHIFT.name} is not built"}
        return {means: reason for means, reason in why.items() if means not in self.means}

    def close(self):
        """Gives mounts back; nothing at the sites runs any more."""
        if "disk" in self.means:
            for site in self.federation.sites:
                site.kill_tree()
                subprocess.run(["umount", "--lazy", site.run_dir], check=True)

    def launch(self, place, *arguments):
        environment = {}
        if "clock" in self.means:
            environment = {"LD_PRELOAD": str(CLOCK_SHIFT), "CLOCK_SHIFT_FILE": str(self.clock_file(place))}
        self.federation.sites[place].launch(*arguments, environment=environment)

    def begin(self, fault):
        getattr(self, "begin_" + fault.kind)(fault)

    def heal(self, fault):
        heal = getattr(self, "heal_" + fault.kind, None)
        if heal:
            heal(fault)

    def tick(self):
        """Now and then: what a full disk gives back is taken again."""
        for place in self.full:
            self.fill(place)

    # ---- processes

    def signal(self, place, command, number):
        """To the process of the site that runs `isthmus COMMAND`; None: to all of them."""
        site = self.federation.sites[place]
        pids = site.pids() if command is None else [site.pid_of(command)]
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                if number == signal.SIGKILL:
                    self.kills[place].append(Kill(ROLES[command], time.monotonic()))

    def begin_kill_gateway(self, fault):
        self.signal(fault.site, "gateway", signal.SIGKILL)

    def begin_kill_rank(self, fault):
        self.signal(fault.site, "train", signal.SIGKILL)

    def come_back(self, place):
        self.away.discard(place)
        self.launch(place, *self.federation.arguments)

    def begin_crash(self, fault):
        # Nobody has a last word, or starts another: as when the machine fails.
        self.away.add(fault.site)
        self.signal(fault.site, None, signal.SIGSTOP)
        self.federation.sites[fault.site].kill_tree()

    def heal_crash(self, fault):
        self.come_back(fault.site)

    def ask_to_stop(self, place):
        with contextlib.suppress(ProcessLookupError):  # it ended in this moment, by itself
            self.federation.sites[place].interrupt()

    def wait_for_launch(self, place, when, wanted, timeout):
        """What it ends with is noted. What does not end is killed, so that the others go on, and noted as that."""
        site = self.federation.sites[place]
        try:
            code = site.process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        self.note_end(place, when, wanted, code, timeout)
        if code is None:
            site.kill_tree()

    def note_end(self, place, when, wanted, code, waited=0):
        said = self.federation.sites[place].output()[-SAID_MAX:]
        self.ends[place].append(LaunchEnd(when, wanted, code, said, waited))

    def begin_leave(self, fault):
        self.away.add(fault.site)
        self.ask_to_stop(fault.site)

    def heal_leave(self, fault):
        self.wait_for_launch(fault.site, "asked to stop", STOPPED, LEAVE_MAX_S)
        self.come_back(fault.site)

    def begin_stop_gateway(self, fault):
        self.signal(fault.site, "gateway", signal.SIGSTOP)

    def heal_stop_gateway(self, fault):
        self.signal(fault.site, None, signal.SIGCONT)

    def begin_stop_rank(self, fault):
        self.signal(fault.site, "train", signal.SIGSTOP)

    heal_stop_rank = heal_stop_gateway

    def begin_stop_site(self, fault):
        self.signal(fault.site, None, signal.SIGSTOP)

    heal_stop_site = heal_stop_gateway

    # ---- the network

    def set_paths(self, fault, settings):
        self.wan.conf("\n".join(f"path {a} {b} {settings}" for other in range(len(self.federation.sites))
                                if other != fault.site for a, b in ((fault.site, other), (other, fault.site))))

    def begin_partition(self, fault):
        self.wan.conf(f"link {fault.site} {fault.other} down")

    def heal_partition(self, fault):
        self.wan.conf(f"link {fault.site} {fault.other} up")

    def begin_one_way(self, fault):
        self.wan.conf(f"path {fault.site} {fault.other} down")

    def heal_one_way(self, fault):
        self.wan.conf(f"path {fault.site} {fault.other} up")

    def begin_isolate(self, fault):
        self.wan.conf(f"uplink {fault.site} down\ndownlink {fault.site} down")

    def heal_isolate(self, fault):
        self.wan.conf(f"uplink {fault.site} up\ndownlink {fault.site} up")

    def begin_slow_line(self, fault):
        self.wan.conf(line_of(fault.site, LINE_MBIT / fault.factor))

    def heal_slow_line(self, fault):
        self.wan.conf(line_of(fault.site))

    def begin_loss(self, fault):
        self.set_paths(fault, f"loss={fault.factor:.2f}% burst=8")

    def heal_loss(self, fault):
        self.set_paths(fault, "loss=0 burst=1")

    def begin_corrupt(self, fault):
        self.set_paths(fault, f"corrupt={fault.factor:.2f}%")

    def heal_corrupt(self, fault):
        self.set_paths(fault, "corrupt=0")

    # ---- the disk

    def ballast(self, place):
        return self.federation.sites[place].run_dir / "ballast"

    def fill(self, place):
        with open(self.ballast(place), "ab") as file:
            free = os.statvfs(file.name)
            size = os.fstat(file.fileno()).st_size
            with contextlib.suppress(OSError):  # somebody was quicker
                if free.f_bavail:
                    os.posix_fallocate(file.fileno(), size, free.f_bavail * free.f_frsize)

    def begin_disk_full(self, fault):
        self.full.add(fault.site)
        self.fill(fault.site)

    def heal_disk_full(self, fault):
        self.full.discard(fault.site)
        self.ballast(fault.site).unlink()

    # ---- the calendar

    def clock_file(self, place):
        return self.federation.folder / f"{self.federation.sites[place].name}.clock"

    def shift(self, place, seconds):
        if not self.clock_file(place).exists():
            self.clock_file(place).write_bytes(bytes(8))
        with open(self.clock_file(place), "r+b") as file:  # in place: it is mapped
            file.write(struct.pack("<q", int(seconds * 1e9)))

    def begin_clock_jump(self, fault):
        self.shift(fault.site, fault.factor)

    def heal_clock_jump(self, fault):
        self.shift(fault.site, 0)

    def wait_for_processes(self, timeout):
        """Until each site has its gateway and its rank again; the names of those that have not."""
        deadline = time.monotonic() + timeout
        while True:
            missing = [site.name for site in self.federation.sites
                       if not (site.pid_of("gateway") and site.pid_of("train")) and site.process.poll() is None]
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(0.1)
