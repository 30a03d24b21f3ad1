"""Looks at the processes and files of running sites once a second: steps, alarms, memory, descriptors, what is resent."""
import contextlib
import dataclasses
import json
import os
import pathlib
import struct
import subprocess
import threading
import time

from federation import ISTHMUS

ROLES = {"gateway": "gateway", "train": "rank"}
SECONDS_BETWEEN_STATUS = 10


@dataclasses.dataclass
class Life:
    """One process, as far as it was looked at: what it held at each look."""
    role: str
    pid: int
    rss_mib: list = dataclasses.field(default_factory=list)
    descriptors: list = dataclasses.field(default_factory=list)
    descriptors_hidden: bool = False  # at some time; one who is not root may look at no gateway's


class RecordTail:
    """How many outer steps a site's records have."""

    def __init__(self, path):
        self.path, self.at, self.count = path, 0, 0

    def poll(self):
        with contextlib.suppress(FileNotFoundError):
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.at:  # a torn tail was cut off
                    self.at, self.count = 0, 0
                file.seek(self.at)
                data = file.read()
            place = 0
            while len(data) - place >= 4:
                size = 4 + struct.unpack_from("<I", data, place)[0]
                if len(data) - place < size:
                    break
                place += size
                self.count += 1
            self.at += place
        return self.count


class EventTail:
    """New whole lines of a file of JSON lines."""

    def __init__(self, path):
        self.path, self.at = path, 0

    def poll(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[:data.rfind(b"\n") + 1]
        self.at += len(whole)
        for line in whole.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                yield {"event": "torn_line", "severity": "detail", "text": line.decode(errors="replace")}


class SiteWatch:
    def __init__(self, site):
        self.site, self.name = site, site.name
        self.records = RecordTail(site.run_dir / "outer/records")
        self.events = EventTail(site.run_dir / "events.jsonl")
        self.step, self.looked_at = 0, time.monotonic()
        self.events_kept = []  # warnings and alarms, restarts among them, roots of applied steps, what is torn or lost
        self.lost_tokens = 0
        self.lives = {}  # by number and start
        self.links = {}  # (pid, peer): what the gateway's status last said of the link

    def look(self):
        """Of each event, between which two of our looks it was written: its own time is of a calendar that jumps."""
        self.step = max(self.step, self.records.poll())
        before, self.looked_at = self.looked_at, time.monotonic()
        for event in self.events.poll():
            event["seen"] = (before, time.monotonic())
            if (event["severity"] in ("warning", "alarm") or event["event"] in ("torn_line", "step_applied")
                    or "lines_lost_before" in event):
                self.events_kept.append(event)
            if event["event"] == "tokens_lost":
                self.lost_tokens += event["tokens"]

    def look_at_processes(self):
        for pid in self.site.pids():
            with contextlib.suppress(OSError, IndexError):
                folder = pathlib.Path(f"/proc/{pid}")
                words = (folder / "cmdline").read_bytes().split(b"\0")
                role = ROLES.get(words[1].decode())
                if role is None or not words[0].endswith(b"isthmus"):
                    continue
                # A number is used again: with its start it is one process.
                start = (folder / "stat").read_text().rpartition(")")[2].split()[19]
                life = self.lives.setdefault((pid, start), Life(role, pid))
                pages = int((folder / "statm").read_text().split()[1])
                life.rss_mib.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
                try:
                    life.descriptors.append(len(os.listdir(folder / "fd")))
                except PermissionError:
                    life.descriptors_hidden = True

    def look_at_status(self):
        pid = self.site.pid_of("gateway")
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):  # it may stand still, or be away
            said = subprocess.run([ISTHMUS, "status", self.site.file, "--json"], cwd=self.site.folder, timeout=5,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if said.returncode == 0:
                for link in json.loads(said.stdout).get("links", []):  # none of a run that is complete
                    self.links[pid, link["peer"]] = link

    def bytes_resent(self):
        """About, since chunks of one contribution are about equally long."""
        return sum(link["chunks_resent"] * link["zstd_bytes"] / max(1, link["chunks_sent"]) for link in self.links.values())


class Watch:
    """All sites, on a thread of its own."""

    def __init__(self, sites):
        self.sites = [SiteWatch(site) for site in sites]
        self.lock = threading.Lock()
        self.ending = threading.Event()
        self.looks, self.failure = 0, None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.ending.wait(1):
                self.look()
        except Exception as error:  # the soak must not go on blind
            self.failure = error

    def look(self):
        with self.lock:
            self.looks += 1
            for site in self.sites:
                site.look()
                site.look_at_processes()
        if self.looks % SECONDS_BETWEEN_STATUS == 0:
            for site in self.sites:
                site.look_at_status()

    def steps(self):
        """Of each site, now."""
        if self.failure:
            raise self.failure
        with self.lock:
            for site in self.sites:
                site.look()
            return [site.step for site in self.sites]

    def end(self):
        self.ending.set()
        self.thread.join()
        self.look()
        if self.failure:
            raise self.failure
