#!/usr/bin/env python3
"""A federation of real processes under random faults for as long as one likes, and then: does everything hold that must?

    tools/soak --minutes 60              # on a terminal a progress bar, else a line each minute; Ctrl-C ends it cleanly
    tools/soak --minutes 5 --seed 7      # these faults again; --first-round N: from round N on
    tools/soak --json soak.json          # the report as JSON as well

As root, with /dev/net/tun, the sites have an emulated wide-area network between them (tests/wan) and a disk each.
Otherwise, or with --loopback, they have loopback, and what needs root is left out. Status: 0 all holds, 1 violations, or
it was broken off and not everything was checked, 2 bad usage.
"""
import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import sys
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from federation import DONE, Federation, ISTHMUS, STOPPED, isthmus
import faults
import injector
import invariants
from progress import Progress
import soak_report
import tokens
import wan
import watch

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta")
OPTIONS = dict(layers=2, hidden=192, ffn=384, inner_steps=4, outer_steps=1_000_000)
SHARED = ("--set", 'sync.outer="nesterov"')
STEPS_AT_END = 3  # more than there are when the time is over
STALL_MAX_S = 180  # launch may wait half a minute with a restart, and a gateway that has learnt no deadline a minute
END_MAX_S = 300
NUMBER_MAX = 2**63 - 1
MINUTES_MAX = 365 * 24 * 60


class Soak:
    def __init__(self, options, network, no_network=""):
        """`no_network`: why there is none, as a part of a sentence."""
        self.options, self.network, self.no_network = options, network, no_network
        self.stopping = threading.Event()
        self.report = soak_report.Report(options.seed, options.minutes, options.sites, "emulated" if network else "loopback",
                                         first_round=options.first_round)
        self.report.version = isthmus("--version").stdout.strip()
        self.suffered = [[] for _ in range(options.sites)]  # by place

    def stop(self):
        """At the first wish it comes to its end, at the second at once."""
        if self.stopping.is_set():
            raise KeyboardInterrupt
        self.stopping.set()

    def run(self):
        kind = wan.WanFederation if self.network else Federation
        names = NAMES[:self.options.sites]
        began = time.monotonic()
        with self.breaking_off():
            with kind(*names, min_sites=self.options.sites // 2 + 1, **OPTIONS) as self.federation:
                self.federation.arguments = SHARED
                self.injector = injector.Injector(self.federation, self.network)
                with contextlib.closing(self.injector):
                    self.run_sites(began)
        self.report.seconds = time.monotonic() - began
        return self.report

    @contextlib.contextmanager
    def breaking_off(self):
        """Whatever ends a part of the soak before its time, there is a report, which says so."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            self.report.broken_off.append("".join(traceback.format_exception(error)).strip())

    def run_sites(self, began):
        self.kinds = faults.possible(self.injector.means)
        self.report.left_out = faults.left_out(self.injector.missing(self.no_network))
        for place in range(len(self.federation.sites)):
            self.injector.launch(place, *SHARED)
        self.watch = watch.Watch(self.federation.sites)
        self.progress = Progress(self.options.minutes, self.report, self.watch)
        with self.breaking_off():
            self.trouble(began)
            self.finish()
        for site in self.federation.sites:  # in health none runs any more
            site.kill_tree()
        with self.breaking_off():
            self.watch.end()
        self.progress.end()
        with self.breaking_off():
            self.take_stock()
        if self.options.keep:
            self.keep_files()

    def keep_files(self):
        """The sites' disks go with the namespaces. What cannot be copied takes no report along."""
        def neither_file_nor_folder(folder, names):
            return [name for name in names if not os.path.isfile(f"{folder}/{name}") and not os.path.isdir(f"{folder}/{name}")]
        try:
            shutil.copytree(self.federation.folder, self.options.keep, ignore=neither_file_nor_folder)
        except (OSError, shutil.Error) as error:
            self.report.not_seen.append(f"the sites' files, which could not be kept: {error}")

    def trouble(self, began):
        """Rounds of faults until the time is over. The first steps are in peace, for what processes hold in health."""
        self.wait_for_steps("at the beginning", 3)
        self.watch.look()  # a short run may be over before the next time
        number = self.options.first_round
        while not self.stopping.is_set() and time.monotonic() - began < 60 * self.options.minutes:
            self.round(number)
            self.report.rounds += 1
            number += 1
            self.stopping.wait(1)

    def round(self, number):
        drawn = faults.draw_round(self.options.seed, number, len(self.federation.sites), self.kinds)
        changes = sorted([(f.at, 0, f) for f in drawn] + [(f.at + f.length, 1, f) for f in drawn],
                         key=lambda change: change[:2])
        began = time.monotonic()
        names = [site.name for site in self.federation.sites]
        suffered = {}
        for when, heals, fault in changes:
            while (left := began + when - time.monotonic()) > 0 and not self.stopping.is_set():
                time.sleep(min(left, 0.3))
                self.injector.tick()
                self.watch.steps()
                self.progress.show()
            if heals:
                self.injector.heal(fault)
                suffered[fault].end = time.monotonic()
                continue
            self.progress.say(f"round {number}: {fault.text(names)}")
            self.report.faults[fault.kind] = self.report.faults.get(fault.kind, 0) + 1
            self.look_after_launches()
            suffered[fault] = invariants.Suffered(fault.kind, time.monotonic())
            self.suffered[fault.site].append(suffered[fault])
            self.injector.begin(fault)
        self.wait_for_steps(f"round {number}", 1, number)

    def look_after_launches(self):
        """A launch that has given up is a violation; it is launched again, so that the others go on."""
        for place, site in enumerate(self.federation.sites):
            code = site.process.poll()
            if code is not None and place not in self.injector.away:
                self.injector.note_end(place, "asked by nobody", None, code)
                self.injector.launch(place, *self.federation.arguments)

    def wait_for_steps(self, when, count, number=None):
        """Everything is healed: each site applies another step. The stall counts once all have their processes again."""
        deadline = time.monotonic() + STALL_MAX_S
        if missing := self.injector.wait_for_processes(STALL_MAX_S / 2):
            self.violation(f"{when}: {STALL_MAX_S / 2:.0f} s after all was healed {', '.join(missing)} had no gateway or "
                           "rank")
        healed, goal = time.monotonic(), max(self.watch.steps()) + count
        while min(self.watch.steps()) < goal:
            self.look_after_launches()
            self.progress.show()
            if self.stopping.is_set() and number is None:
                return
            if time.monotonic() > deadline:
                self.violation(f"{when}: {STALL_MAX_S:g} s after all was healed the sites have applied {self.watch.steps()} "
                               f"steps, and should have {goal}")
                return
            time.sleep(0.1)
        if number is not None:
            self.report.stalls.append(soak_report.Stall(time.monotonic() - healed, number))

    def violation(self, text):
        self.report.violations.append(text)
        self.progress.say(text)

    def finish(self):
        """All sites stop, are given a last step, and get there."""
        self.report.stopped = self.stopping.is_set()
        self.progress.say("all is healed; the run comes to its end")
        self.look_after_launches()
        places = range(len(self.federation.sites))
        for place in places:
            self.injector.ask_to_stop(place)
        for place in places:
            self.injector.wait_for_launch(place, "asked to stop", STOPPED, injector.LEAVE_MAX_S)
        last = max(self.watch.steps()) + STEPS_AT_END
        self.federation.arguments = (*SHARED, "--set", f"sync.outer_steps={last}")
        for place in places:
            self.injector.launch(place, *self.federation.arguments)
        deadline = time.monotonic() + END_MAX_S
        for place in places:
            self.injector.wait_for_launch(place, "at the end", DONE, max(1, deadline - time.monotonic()))

    def take_stock(self):
        report, stock = self.report, []
        for place, (site, seen) in enumerate(zip(self.federation.sites, self.watch.sites)):
            try:
                facts = invariants.read_site(site, place + 1)
            except Exception as error:  # whatever is in them: the other sites are looked at all the same
                report.violations.append(f"{site.name}: its files cannot be read: {error!r}")
                continue
            facts.events, facts.faults = seen.events_kept, self.suffered[place]
            facts.kills, facts.ends = self.injector.kills[place], self.injector.ends[place]
            facts.lives = list(seen.lives.values())
            named = [r["step"] for r in facts.records if any(part["site"] == facts.number for part in r["parts"])]
            lines = watch.EventTail(site.run_dir / "metrics.jsonl").poll()
            facts.tokens_trained, facts.tokens_open = tokens.trained_and_open(lines, named[-1] if named else 0)
            report.named[site.name] = len(named)
            facts.tokens_lost = seen.lost_tokens
            stock.append(facts)
            self.describe(site, seen, facts)
        if stock:
            report.outer_steps = max(len(facts.records) for facts in stock)
            check = invariants.violations_before_the_end if report.broken_off else invariants.violations
            report.violations += check(stock)
            report.not_seen += invariants.no_long_lives(stock)

    def describe(self, site, seen, facts):
        report = self.report
        report.bytes_resent[site.name] = seen.bytes_resent()
        report.tokens[site.name] = dict(trained=facts.tokens_trained, lost=facts.tokens_lost, open=facts.tokens_open)
        report.restarts += sum(event["event"] == "process_restarted" for event in facts.events)
        for event in facts.events:
            if event["severity"] == "alarm":
                report.alarms[event["event"]] = report.alarms.get(event["event"], 0) + 1
        for life in facts.lives:
            if life.descriptors_hidden:
                hidden = f"descriptors of a {life.role}, which only root may look at"
                report.not_seen += [hidden] if hidden not in report.not_seen else []
                life.descriptors.clear()
            for peaks, values in ((report.rss_peak_mib, life.rss_mib), (report.descriptors_peak, life.descriptors)):
                if values:
                    peaks[life.role] = max(peaks.get(life.role, 0), max(values))


def whole_number(text):
    """From 0: int() takes "-1", "1_000" and digits of other scripts as well, and a seed is to be typed again."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= NUMBER_MAX):
        raise argparse.ArgumentTypeError(f'"{text}" is no whole number from 0 to {NUMBER_MAX}')
    return int(text)


def arguments_of(words):
    parser = argparse.ArgumentParser(prog="tools/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="of faults; the end comes on top (60)")
    parser.add_argument("--seed", type=whole_number, default=1, help="of the faults (1)")
    parser.add_argument("--sites", type=whole_number, default=3, help=f"3 to {len(NAMES)} (3)")
    parser.add_argument("--first-round", type=whole_number, default=0, help="begins with this round of the seed (0)")
    parser.add_argument("--json", type=pathlib.Path, help="writes the report there as well")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--loopback", action="store_true", help="no emulated network, though it could be had")
    where.add_argument("--emulated", action="store_true", help="nothing else: status 77 where it cannot be had")
    parser.add_argument("--keep", type=pathlib.Path, help="copies the sites' files into this new folder at the end")
    options = parser.parse_args(words)
    if not 3 <= options.sites <= len(NAMES):
        parser.error(f"--sites {options.sites}: there can be 3 to {len(NAMES)}")
    if not 0 < options.minutes <= MINUTES_MAX:
        parser.error(f"--minutes {options.minutes}: there can be above 0 to {MINUTES_MAX}, a year")
    if options.json:
        try:
            options.json.open("a").close()
        except OSError as error:
            parser.error(f"--json {options.json}: {error.strerror}")
    if options.keep and options.keep.exists():
        parser.error(f"--keep {options.keep}: it is there already; name a new folder")
    if options.keep and not options.keep.absolute().parent.is_dir():
        parser.error(f"--keep {options.keep}: there is no folder {options.keep.parent} to make it in")
    if not shutil.which(ISTHMUS):
        parser.error(f"there is no {ISTHMUS}: build it first (cmake --preset release && cmake --build --preset release)")
    return options


def main():
    options = arguments_of(sys.argv[1:])
    no_network = "because of --loopback"
    if not wan.between_sites() and not options.loopback:
        reason = wan.reason_against()
        if not reason:
            return wan.run_between(options.sites, injector.LINES, [__file__, *sys.argv[1:]])
        if options.emulated:
            print(f"SKIPPED: {reason}")
            return wan.CANNOT
        print(f"{reason}; going on over loopback, without faults of network and disk", file=sys.stderr)
        no_network = f"as there is no emulated network ({reason})"
    soak = Soak(options, wan.Wan() if wan.between_sites() else None, no_network)
    if wan.between_sites():
        def wait_for_wish():
            while os.read(0, 1):  # sys.stdin would be locked at the end
                pass
            soak.stopping.set()
        threading.Thread(target=wait_for_wish, daemon=True).start()
    else:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: soak.stop())
    report = soak.run()
    print(report.text())
    if options.json:
        options.json.write_text(report.json() + "\n")
    return 1 if report.violations or report.broken_off else 0


if __name__ == "__main__":
    sys.exit(main())
