#!/usr/bin/env python3
"""Faults of a wide-area network and of peers, done to real gateways over the emulated network, with the bounds that
docs/reliability.md promises. Beside each federation that suffers another one has peace: both end with the same bits.

    fault_matrix_test.py CASE     one of the cases at the end of this file; alone, for each measures time

Needs root and /dev/net/tun; skips loudly without (status 77).
"""
import contextlib
import json
import os
import pathlib
import re
import resource
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from federation import Case, DONE, isthmus, wait_until
import scripted_rank
import scripted_sites
from scripted_sites import ScriptedSites, go_on, received_bytes, stop
import wan

LINE = "delay=25ms rate=16mbit queue=256kib"
ELEMENTS = 2 << 20  # of a contribution: 2.1 MB in int8, in 8 chunks, about a second on the line
ELEMENTS_OF_CHUNK = 1 << 18  # a byte each
STEPS = 3
FAULTY_STEP = 2

DETECTED_S = 8.0
DETECTED_FAR_S = 10.0  # at 200 ms: where one way is open what was under way on it is still heard
FLOWING_S = 1.5  # up to a round trip of 100 ms, and so many of them beyond
FLOWING_ROUND_TRIPS = 15
REBUILT_S = 10.0
FLOWING_BYTES = 50_000  # beyond the handshakes of all connections: chunks come
# What is on its way at most, far less than the credit window, 64 MiB at least: queues of the wire, the kernel and the line.
IN_FLIGHT_BYTES = 3 << 20


class Row(Case):
    line = LINE  # of each site
    sites = 2
    min_sites = 2

    federations = 1  # that suffer; one more has peace
    elements = ELEMENTS
    seconds = 0.0  # that the ranks compute in each step
    settings = ()  # of the gateways

    def setUp(self):
        self.network = wan.Wan()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        names = ("alpha", "beta", "gamma")[:self.sites]
        *self.suffering, self.calm = [stack.enter_context(ScriptedSites(
            *names, first=place * self.sites, elements=self.elements, seconds=self.seconds,
            settings=self.settings, outer_steps=STEPS, min_sites=self.min_sites))
            for place in range(self.federations + 1)]
        for federation in (*self.suffering, self.calm):
            federation.start_all()
        self.faulty = self.suffering[0]

    def transfer_to(self, site, step=FAULTY_STEP):
        self.faulty.wait_for_transfer(site, step)

    def end_with_equal_bits(self, timeout=60):
        expected = None
        for federation in (self.calm, *self.suffering):
            federation.wait(timeout)
            for site in federation.sites:
                expected = expected or federation.roots(site)
                self.assertEqual(sorted(expected), list(range(1, STEPS + 1)))
                self.assertEqual(federation.roots(site), expected, site.address)

    def events_after(self, site, when, name, **fields):
        """Seconds from `when` (Unix time) of each such event of the site."""
        return [e["time"] - when for e in site.events(name)
                if e["time"] >= when and all(e.get(k) == v for k, v in fields.items())]

    def sessions_cut(self, site):
        """Those that ended before the peer's gateway left, which it says."""
        return [e for e in site.events("session_ended") if e["why"] != "it was stopped"]

    def link(self, site):
        said = isthmus("status", site.file, "--json", cwd=site.folder)
        self.assertEqual(said.returncode, DONE, said.stdout)
        (link,) = json.loads(said.stdout)["links"]
        return link

    def resent(self, site):
        link = self.link(site)
        return link["chunks_resent"], link["chunks_resent"] * link["zstd_bytes"] / max(1, link["chunks_sent"])


class BitFlips(Row):
    """Row 1: what TCP does not notice the lanes do; they are rebuilt, and what was lost is sent again."""

    def test(self):
        alpha, beta = self.faulty.sites
        self.transfer_to(alpha)
        began = time.time()
        self.network.conf("link 0 1 corrupt=0.3%")
        for site in (alpha, beta):
            wait_until(lambda: self.events_after(site, began, "wire_down", lane="bulk"), 20, self.faulty.said)
        self.network.conf("link 0 1 corrupt=0")
        ended = time.time()
        self.end_with_equal_bits()
        for site in (alpha, beta):
            downs, ups = (self.events_after(site, began, name, lane="bulk") for name in ("wire_down", "wire_up"))
            downs = [down for down in downs if down < ended - began]  # not those of the end of the run
            healed = [up for up in ups if up > ended - began] or ups[-1:]
            self.assertTrue(healed)
            print(f"{site.name}: bulk lane down {len(downs)} times, up for good {healed[0] - (ended - began):.2f} s after the last flip")
            for down in downs:
                nearest = min((up - down for up in ups if up >= down), default=None)
                self.assertIsNotNone(nearest)
                self.assertLessEqual(nearest, REBUILT_S)
            self.assertLessEqual(healed[0] - (ended - began), REBUILT_S)


class Cut(Row):
    """Row 2: connections are cut in the middle of a transfer: it goes on at the gaps."""
    elements = 3 * ELEMENTS

    def test(self):
        alpha, beta = self.faulty.sites
        self.transfer_to(alpha)
        began = time.time()
        subprocess.run([*alpha.at, "ss", "--kill", "--tcp", "dst", "10.77.0.2"], stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: self.events_after(alpha, began, "wire_down", lane="bulk"), 1, "")
        except AssertionError:  # this kernel cannot: silence does it as well, and takes longer
            self.network.conf("link 0 1 down")
            wait_until(lambda: self.events_after(alpha, began, "wire_down", lane="bulk"), 20, self.faulty.said)
            self.network.conf("link 0 1 up")
        alpha.wait_for_event("step_applied", 30, outer_step=FAULTY_STEP)
        for site in (alpha, beta):
            chunks, size = self.resent(site)
            print(f"{site.name}: {chunks} chunks resent, {size / 1e6:.2f} MB")
            self.assertLess(size, IN_FLIGHT_BYTES)
        self.end_with_equal_bits()


class Restart(Row):
    """Row 2, and 7 where nobody can do without the peer: a gateway is killed in the middle of a transfer and started again.
    What it had of the other's contribution is on its disk."""
    elements = 3 * ELEMENTS
    seconds = 2.0  # in which no chunks of the next step leave

    def restart(self, victim, other):
        self.faulty.wait_for_transfer(victim, FAULTY_STEP, share=0.75)
        self.faulty.kill(victim, "gateway")
        arrived = self.faulty.transferred(other, FAULTY_STEP)
        self.faulty.start(victim, "gateway")
        victim.wait_for_event("contribution_restored", 20, outer_step=FAULTY_STEP, signer=other.number)
        other.wait_for_event("step_applied", 30, outer_step=FAULTY_STEP)
        sent, sent_since = (self.link(site)["chunks_sent"] for site in (other, victim))
        (restored,) = victim.events("contribution_restored")[-1:]
        chunks, on_their_way = self.elements // ELEMENTS_OF_CHUNK, IN_FLIGHT_BYTES // ELEMENTS_OF_CHUNK
        once = FAULTY_STEP * chunks
        print(f"{victim.name} restored {restored['bytes'] / 1e6:.2f} MB; to it {sent} chunks were sent, of {once}; since "
              f"its start it has sent {sent_since}, of {chunks}, of which {arrived * chunks:.1f} had arrived")
        self.assertGreater(restored["bytes"], 0.7 * self.elements)
        # Each contribution once, and what was on its way; that of the faulty step again would be twice as much.
        self.assertGreaterEqual(sent, once)
        self.assertLessEqual(sent, once + on_their_way)
        self.assertGreater(arrived, 0.5)
        self.assertLessEqual(sent_since, (1 - arrived) * chunks + on_their_way)
        self.end_with_equal_bits()

    def test_of_the_higher_site(self):
        alpha, beta = self.faulty.sites
        self.restart(beta, alpha)

    def test_of_the_lower_site(self):
        alpha, beta = self.faulty.sites
        self.restart(alpha, beta)


class Outages(Row):
    """Rows 3 and 4: lines that are silent for 20 s, one both ways and one each way: noticed soon, used again at once."""
    federations = 3
    elements = 2 * ELEMENTS
    detected, flowing = DETECTED_S, FLOWING_S

    def faulty_lines(self, state):
        return "\n".join((f"link 0 1 {state}", f"path 2 3 {state}", f"path 5 4 {state}"))

    def test(self):
        gateways = {site: federation.process(site) for federation in self.suffering for site in federation.sites}
        for federation in self.suffering:
            federation.wait_for_transfer(federation.sites[0], FAULTY_STEP)
        cut = time.time()
        self.network.conf(self.faulty_lines("down"))
        time.sleep(max(0, cut + 20 - time.time()))
        # What came to them on the way that was open all the time came.
        waiting = {site for federation in self.suffering for site in federation.sites
                   if federation.transferred(site, FAULTY_STEP) < 0.9}
        before = {site: received_bytes(gateways[site]) for site in waiting}
        self.network.conf(self.faulty_lines("up"))
        repaired = time.time()
        flowing = {}
        while len(flowing) < len(waiting) and time.time() < repaired + 15:
            for site in waiting - set(flowing):
                if received_bytes(gateways[site]) - before[site] >= FLOWING_BYTES:
                    flowing[site] = time.time() - repaired
            time.sleep(0.01)
        self.end_with_equal_bits()
        self.assertTrue(waiting, "all had come before the lines were cut")
        for site in gateways:
            ended = self.events_after(site, cut, "session_ended") + self.events_after(site, cut, "wire_down")
            back = [self.events_after(site, repaired, name, **fields)[:1]
                    for name, fields in (("session_began", {}), ("wire_up", {"lane": "bulk"}))]
            back += [[flowing.get(site, 99)]] if site in waiting else []
            print(f"{site.address}: noticed after {min(ended):.2f} s; session, bulk lane and, where they waited, chunks after {back}")
            self.assertLessEqual(min(ended), self.detected, site.address)
            for found in back:
                self.assertTrue(found, site.address)
                self.assertLessEqual(found[0], self.flowing, site.address)


class FarOutages(Outages):
    """Rows 3 and 4 with a round trip of 200 ms, of which the handshakes take several."""
    line = "delay=100ms rate=16mbit queue=256kib"
    detected, flowing = DETECTED_FAR_S, FLOWING_ROUND_TRIPS * 0.2


class BadLine(Row):
    """Row 5: 1 % of the packets are lost, 1 % come twice, all overtake each other."""

    def test(self):
        self.network.conf("link 0 1 loss=1% dup=1% jitter=5ms reorder")
        self.end_with_equal_bits()
        paths = [self.network.statistics()[name] for name in ("0->1", "1->0")]
        self.assertGreater(sum(int(path["lost"]) for path in paths), 10)
        self.assertGreater(sum(int(path["duplicated"]) for path in paths), 10)
        for site in self.faulty.sites:
            self.assertEqual(self.sessions_cut(site), [])


class SlowLine(Row):
    """Row 6: a hundredth of the rate for a while: slow is not dead."""

    def test(self):
        alpha, beta = self.faulty.sites
        self.transfer_to(alpha)
        began = time.time()
        self.network.conf("link 0 1 rate=160kbit queue=64kib")
        time.sleep(10)
        self.network.conf("link 0 1 rate=16mbit queue=256kib")
        ended = time.time()
        self.end_with_equal_bits()
        for site in (alpha, beta):
            self.assertEqual([e for e in site.events("session_ended") if began < e["time"] < ended + 1], [])
            # What the line's queue held takes longer now than the control lane waits for a word, but that bulk comes.
            self.assertEqual([e for e in site.events("wire_down") if began < e["time"] < ended], [])
            for record in scripted_sites.outer_files.Site(site.run_dir).records():
                self.assertEqual([part["site"] for part in record["parts"]], [1, 2])


class ThinLine(Row):
    """Row 6: bulk fills 1 Mbit/s both ways for many seconds. What control says beside it takes two round trips longer at
    most, though the line's queues hold ten. The first step is for the links, which do not know the line yet, and the second
    for the one connection that is left of four, whose BBR knows a quarter of it."""

    elements = 8 * ELEMENTS_OF_CHUNK
    congestion_control = "bbr"

    def test(self):
        alpha, beta = self.faulty.sites
        self.network.conf("link 0 1 delay=50ms rate=1mbit queue=64kib")
        self.faulty.wait_for_transfer(beta, STEPS, timeout=120)
        receiver = self.faulty.process(beta)
        began, before, links = time.time(), received_bytes(receiver), []
        while time.time() - began < 5:
            links.append(self.link(alpha))
            time.sleep(0.05)
        rate = (received_bytes(receiver) - before) * 8e-6 / (time.time() - began)
        self.network.conf("link 0 1 delay=25ms rate=16mbit queue=256kib")
        self.assertEqual({link["congestion_control"] for link in links}, {self.congestion_control})
        smoothed, slowest = (max(link[field] for link in links) for field in ("round_trip_ms", "round_trip_longest_ms"))
        print(f"{self.congestion_control}: {rate:.2f} of 1 Mbit/s; control's round trip {smoothed:.0f} ms smoothed, "
              f"{slowest:.0f} at most, 100 without bulk")
        self.assertGreater(rate, 0.9)
        queued = max(link["queue_ms"] for link in links)
        print(f"{queued:.0f} ms in queues, as status tells")
        self.assert_control_is_soon(smoothed, slowest)
        self.assert_queue_is_told(queued)
        self.end_with_equal_bits()
        for site in (alpha, beta):
            self.assertEqual(self.sessions_cut(site), [])

    def assert_control_is_soon(self, smoothed, slowest):
        self.assertLess(slowest, 300)

    def assert_queue_is_told(self, queued):
        self.assertLess(queued, 200)


class ThinLineCubic(ThinLine):
    """Cubic fills both queues of the line, and control waits in them: they are the bound."""

    congestion_control = "cubic"
    settings = ('gateway.congestion_control="cubic"',)
    queue_ms = 524  # 64 KiB at 1 Mbit/s

    def assert_control_is_soon(self, smoothed, slowest):
        self.assertLess(smoothed, 100 + 2 * self.queue_ms)

    def assert_queue_is_told(self, queued):
        self.assertGreater(queued, 0.5 * self.queue_ms)
        self.assertLess(queued, 2.2 * self.queue_ms)


class OfThree(Row):
    sites = 3
    min_sites = 2

    def setUp(self):
        super().setUp()
        self.alpha, self.beta, self.gamma = self.faulty.sites

    def goes_on_without(self, bound):
        """The others finish the step without gamma, and soon."""
        began = time.monotonic()
        for site in (self.alpha, self.beta):
            site.wait_for_event("step_applied", 40, outer_step=FAULTY_STEP)
        took = time.monotonic() - began
        print(f"the others' step took {took:.2f} s")
        self.assertLessEqual(took, bound)
        record = scripted_sites.outer_files.Site(self.alpha.run_dir).records()[FAULTY_STEP - 1]
        self.assertEqual([part["site"] for part in record["parts"]], [1, 2])

    def all_agree_and_nothing_is_lost(self):
        self.faulty.wait(90)
        roots = [self.faulty.roots(site) for site in self.faulty.sites]
        for mine in roots[1:]:
            for step, root in mine.items():
                self.assertEqual(root, roots[0][step])
        records = scripted_sites.outer_files.Site(self.alpha.run_dir).records()
        named = [part["tokens"] for record in records for part in record["parts"] if part["site"] == 3]
        # What it had contributed to the faulty step rides in its next contribution.
        self.assertEqual(named, [scripted_rank.TOKENS, 2 * scripted_rank.TOKENS])


class KilledInExchange(OfThree):
    """Row 7: the step ends without who is killed in it; who comes back takes part again, with what it had contributed."""
    elements = 4 * ELEMENTS  # more than its kernel has taken from it by then, and goes on sending

    def test(self):
        self.transfer_to(self.alpha)
        self.faulty.kill(self.gamma, "gateway", "rank")
        self.goes_on_without(15)
        self.faulty.start(self.gamma)
        self.all_agree_and_nothing_is_lost()


class StandsStill(OfThree):
    """Row 8: one that stands still is dead at the deadline; what it contributes too late rides in its next contribution."""
    elements = 4 * ELEMENTS  # more than its kernel has taken from it by then, and goes on sending

    def test(self):
        self.transfer_to(self.alpha)
        processes = [self.faulty.process(self.gamma, role) for role in ("gateway", "rank")]
        stop(*processes)
        try:
            self.goes_on_without(20)
        finally:
            go_on(*processes)
        self.all_agree_and_nothing_is_lost()


class SlowReader(Row):
    """Row 20: who reads slowly holds its peer up, and fills nothing but the window: not its peer's memory with what is
    owed to it, which is several times as much as may come to it."""
    line = "delay=25ms rate=100mbit queue=1mib"
    elements = 24 * ELEMENTS
    QUEUED_MIB = 8

    def test(self):
        alpha, beta = self.faulty.sites
        self.transfer_to(beta)
        sender, reader = self.faulty.process(alpha), self.faulty.process(beta)
        before, began, most = rss_mib(sender), time.time(), 0
        for _ in stands_still_mostly(reader, still=1.4, between=0.005):
            most = max(most, rss_mib(sender))
        ended = time.time()
        owed = (1 - self.faulty.transferred(beta, FAULTY_STEP)) * self.elements / 2**20
        print(f"sender: {before:.0f} MiB before, {most:.0f} at most; {owed:.0f} MiB are still owed")
        self.assertGreater(owed, 2 * self.QUEUED_MIB, "it was no slow reader")
        self.assertLess(most, before + self.QUEUED_MIB)
        self.end_with_equal_bits()
        for site in (alpha, beta):
            self.assertEqual([e for e in site.events("session_ended") if began < e["time"] < ended], [])


class NoDescriptors(Row):
    """Row 31: a gateway that gets no more descriptors keeps the round that runs, and refuses what is new."""

    def test(self):
        alpha, beta = self.faulty.sites
        self.transfer_to(beta)
        gateway = self.faulty.process(beta)
        began = time.time()
        limits = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
        opened = len(os.listdir(f"/proc/{gateway.pid}/fd"))
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (opened, limits[1]))
        with self.assertRaises(OSError):  # it is in the backlog, and nobody answers
            with socket.socket(socket.AF_UNIX) as visitor:
                visitor.settimeout(1)
                visitor.connect(str(beta.run_dir / "gateway.sock"))
                visitor.recv(1)
        time.sleep(2)
        opened_since = len(os.listdir(f"/proc/{gateway.pid}/fd")) - opened
        self.assertLessEqual(opened_since, 4, "some may have come just before the limit")
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, limits)
        ended = time.time()
        self.end_with_equal_bits()
        for site in (alpha, beta):
            self.assertEqual([e for e in site.events("session_ended") if began < e["time"] < ended], [])
        self.assertTrue(self.events_after(beta, began, "disk_failed") or self.events_after(beta, began, "state_not_saved"))


class BoundedMemory(Case):
    """A gateway takes no more than `isthmus check` says, and some dozens of MB for the process, whatever its peers do: one
    reads slowly over a bad line, another is killed, comes back late and fetches what it missed, and goes again in the
    middle of that."""
    line = "delay=25ms rate=100mbit queue=1mib"
    sites, federations = 3, 0
    PROCESS_MIB = 64  # what is sent in the six steps is several times as much

    def setUp(self):
        self.network = wan.Wan()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.faulty = stack.enter_context(ScriptedSites(
            "alpha", "beta", "gamma", layers=2, hidden=1024, ffn=2816, outer_steps=6, min_sites=2))
        said = isthmus("check", self.faulty.sites[0].file, cwd=self.faulty.folder).stdout
        of_gateway, shared, parameters = (re.search(pattern, said).groups() for pattern in (
            r"([\d.]+) (.?B) for the gateway", r"([\d.]+) (.?B) shared by both", r"([\d.]+) (.?B) of parameters"))
        self.bound_mib = mib(*of_gateway) + mib(*shared) + self.PROCESS_MIB
        # What it says has three digits.
        self.faulty.elements = int(0.99 * mib(*parameters) * 2**20 / 4) // 64 * 64
        self.faulty.start_all()
        self.most = {}
        self.done = threading.Event()
        watch = threading.Thread(target=self.watch)
        watch.start()
        self.addCleanup(watch.join)
        self.addCleanup(self.done.set)

    def watch(self):
        while not self.done.wait(0.05):
            for site in self.faulty.sites:
                with contextlib.suppress(OSError, AttributeError):  # it has ended
                    status = pathlib.Path(f"/proc/{self.faulty.process(site).pid}/status").read_text()
                    peak = int(re.search(r"VmHWM:\s*(\d+) kB", status).group(1)) / 1024
                    self.most[site.name] = max(self.most.get(site.name, 0), peak)

    def test(self):
        alpha, beta, gamma = self.faulty.sites
        self.network.conf("link 0 2 loss=1% dup=1% jitter=5ms reorder")
        self.faulty.wait_for_transfer(alpha, 2)
        self.faulty.kill(beta, "gateway", "rank")
        for _ in stands_still_mostly(self.faulty.process(gamma), still=0.45, between=0.05):
            pass
        self.faulty.start(beta)
        beta.wait_for_event("session_began", 20)
        time.sleep(1)
        self.faulty.kill(beta, "gateway", "rank")
        time.sleep(2)
        self.faulty.start(beta)
        self.faulty.wait(150)
        for name, most in self.most.items():
            print(f"{name}: {most:.0f} MiB at most, of {self.bound_mib:.0f}")
        self.assertEqual(sorted(self.most), ["alpha", "beta", "gamma"])
        self.assertLess(max(self.most.values()), self.bound_mib)
        roots = [self.faulty.roots(site) for site in self.faulty.sites]
        self.assertEqual({found[6] for found in roots}, {roots[0][6]})


def stands_still_mostly(process, still, between):
    """For seven seconds; yields while it stands still."""
    for _ in range(round(7 / (still + between))):
        stop(process)
        time.sleep(still)
        yield
        go_on(process)
        time.sleep(between)


def mib(number, unit):
    """What `isthmus check` prints as MB, GB."""
    return float(number) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit] / 2**20


def rss_mib(process):
    return int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / 2**20


CASES = {"bit_flips": BitFlips, "cut": Cut, "restart": Restart, "outages": Outages,
         "far_outages": FarOutages, "bad_line": BadLine, "slow_line": SlowLine, "thin_line": ThinLine,
         "thin_line_cubic": ThinLineCubic, "killed": KilledInExchange,
         "stands_still": StandsStill, "slow_reader": SlowReader, "no_descriptors": NoDescriptors,
         "bounded_memory": BoundedMemory}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in CASES:
        sys.exit(f"which case? {', '.join(CASES)}")
    case = CASES[sys.argv[1]]
    if not wan.between_sites():
        reason = wan.reason_against()
        if reason:
            print(f"SKIPPED: {reason}")
            sys.exit(wan.CANNOT)
        sys.exit(wan.run_between((case.federations + 1) * case.sites, (f"default {case.line}",), sys.argv))
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())


if __name__ == "__main__":
    main()
