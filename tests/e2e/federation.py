"""A small federation of real `isthmus` processes in a temporary folder, for the end-to-end tests.

Each site is its own tree of processes (a process group of `isthmus launch`). Tests may run side by side: every
federation has loopback addresses of its own. Nothing of it is left when the `with` block ends.
"""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ISTHMUS = os.environ.get("ISTHMUS", str(ROOT / "build/release/bin/isthmus"))
PORT = 7700

# Exit codes of isthmus (docs/configuration.md).
DONE, FAILED, BAD_USAGE, STOPPED, UNAVAILABLE, BROKEN, HOPELESS = range(7)

SITE_FILE = """
[site]
name = "{name}"
run_dir = "{name}"
roster = "roster.toml"
operator_key = "operator.key.pub"
identity = "{name}.key"

[model]
layers = {layers}
hidden = {hidden}
heads = 4
kv_heads = 2
ffn = {ffn}

[data]
train = [{{ path = "{name}.txt" }}]
held_out = [{{ name = "text", path = "held.txt" }}]

[train]
micro_batch = 2
sequence = 48
precision = "f32"
learning_rate = 0.01
warmup_steps = 2
threads = 1
seed = {id}

[sync]
inner_steps = {inner_steps}
outer_steps = {outer_steps}
codec = "int8"
min_sites = {min_sites}

[gateway]
listen = "{address}"
"""


def isthmus(*arguments, cwd=None, timeout=60):
    """Runs a command that ends by itself; its exit code and output are in the result."""
    return subprocess.run([ISTHMUS, *map(str, arguments)], cwd=cwd, timeout=timeout, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def some_text(seed, size=20000):
    """Text in which there is something to learn: words of a small vocabulary, which the seed chooses."""
    rng = random.Random(seed)
    words = ["".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(2, 7))) for _ in range(40)]
    text = []
    while sum(map(len, text)) + len(text) < size:
        text.append(rng.choice(words))
    return " ".join(text)


class Site:
    """One site: its files, and its tree of processes while it runs."""

    def __init__(self, folder, name, number, address, advertised, at=()):
        self.folder, self.name, self.number, self.address = folder, name, number, address
        self.advertised = advertised
        self.at = list(at)  # the words before a command that run it where this site is
        self.file = folder / f"{name}.toml"
        self.run_dir = folder / name
        self.process = None
        self.launches = 0

    def launch(self, *arguments, environment=None):
        assert self.process is None or self.process.poll() is not None
        self.launches += 1
        self.log = self.folder / f"{self.name}.launch-{self.launches}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*self.at, ISTHMUS, "launch", str(self.file), *arguments], cwd=self.folder,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                            start_new_session=True, env={**os.environ, **(environment or {})})
        return self

    def wait(self, timeout=60):
        """The exit code of launch; on a timeout the test fails with what the site said."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout} s; it said:\n{self.output()}") from None

    def output(self):
        return self.log.read_text(errors="replace")

    def pids(self):
        """Every process of the site's tree."""
        if self.process is None:
            return []
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                    if int(fields[3]) == self.process.pid and fields[0] != "Z":  # session
                        found.append(int(entry.name))
        return sorted(found)

    def pid_of(self, command):
        """The process of this tree that runs `isthmus COMMAND`, or nothing."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if len(words) > 1 and words[0].endswith(b"isthmus") and words[1].decode() == command:
                    return pid
        return None

    def interrupt(self):
        """What Ctrl-C does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill_tree(self):
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait()

    def events(self, name=None):
        """The event log so far; a line that is being written is left out."""
        path = self.run_dir / "events.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [e for e in events if name is None or e["event"] == name]

    def wait_for_event(self, name, timeout=60, count=1, **fields):
        def seen():
            found = [e for e in self.events(name) if all(e.get(k) == v for k, v in fields.items())]
            return found if len(found) >= count else None
        return wait_until(seen, timeout, lambda: f"{self.name}: no event {name} {fields}; it said:\n{self.output()}")

    def status(self):
        result = isthmus("status", self.file, "--json", cwd=self.folder)
        assert result.returncode == DONE, result.stdout
        return json.loads(result.stdout)


def wait_until(condition, timeout, message):
    """The first true value of condition()."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(message() if callable(message) else message)


class Federation:
    """with Federation("alpha", "beta", outer_steps=4) as f: f.launch(); f.wait()"""

    def __init__(self, *names, voters=None, expires=None, relayed=(), dialing=(), **options):
        self.names = names or ("alpha", "beta")
        self.voters, self.expires = voters or self.names, expires
        self.relayed = relayed  # sites whose address in the roster is `relay_host`, not where they listen
        self.dialing = dialing  # sites that only dial: they listen nowhere, and have no address in the roster
        self.options = dict(layers=1, hidden=32, ffn=48, inner_steps=2, outer_steps=4, min_sites=len(self.names))
        self.options.update(options)

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-e2e-"))
        self.choose_network()
        self.sites = []
        for number, name in enumerate(self.names, 1):
            address = f"{self.host(number)}:{PORT}"
            self.sites.append(Site(self.folder, name, number, address,
                                   f"{self.relay_host}:{PORT}" if name in self.relayed else address, self.at(number)))
        (self.folder / "held.txt").write_text(some_text(99, 4000))
        self.run("keys", "generate", "--operator", "operator.key")
        for site in self.sites:
            (self.folder / f"{site.name}.txt").write_text(some_text(site.number))
            self.run("keys", "generate", f"{site.name}.key")
            text = SITE_FILE.format(name=site.name, id=site.number, address=site.address, **self.options)
            if site.name in self.dialing:
                text = text.replace(f'listen = "{site.address}"\n', "")
            site.file.write_text(text)
            self.add_to_roster(site)
        self.sign_roster()
        return self

    def choose_network(self):
        """All of 127/8 is loopback: a network of its own for each test."""
        network = random.SystemRandom().randrange(1 << 16, (1 << 24) - 256, 256)
        self.network = f"127.{network >> 16}.{network >> 8 & 255}"
        self.relay_host = f"{self.network}.200"

    def host(self, number):
        return f"{self.network}.{number}"

    def at(self, number):
        return ()

    def __exit__(self, error, *_):
        for site in self.sites:
            site.kill_tree()
        if error is not None and os.environ.get("ISTHMUS_E2E_KEEP"):
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __getitem__(self, name):
        return next(s for s in self.sites if s.name == name)

    def run(self, *arguments):
        result = isthmus(*arguments, cwd=self.folder)
        assert result.returncode == DONE, f"{arguments}: {result.stdout}"
        return result.stdout

    def add_to_roster(self, site, roster="roster.toml"):
        self.run("roster", "add", roster, "--name", site.name, "--public", f"{site.name}.key.pub",
                 *([] if site.name in self.dialing else ["--address", site.advertised]),
                 *([] if site.name in self.voters else ["--no-vote"]),
                 *(["--expires", self.expires] if self.expires else []))

    def sign_roster(self, roster="roster.toml"):
        self.run("roster", "sign", roster, "--key", "operator.key")

    def launch(self, *arguments, environment=None):
        for site in self.sites:
            site.launch(*arguments, environment=environment)

    def wait(self, timeout=60):
        """All sites end as planned."""
        deadline = time.monotonic() + timeout
        for site in self.sites:
            code = site.wait(max(0.1, deadline - time.monotonic()))
            assert code == DONE, f"{site.name} ended with {code}; it said:\n{site.output()}"


class Case(unittest.TestCase):
    """A test that shows what the sites said when it fails."""

    longMessage = True
    maxDiff = None
