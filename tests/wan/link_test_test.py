#!/usr/bin/env python3
"""`isthmus link test` over an emulated line, which it must measure as it is set; and what a polite gateway leaves to others:

    tests/wan/link_test_test.py           # the test: 100 Mbit/s, 40 ms; then 100 ms, on connections that know the line
    tests/wan/link_test_test.py polite    # figures: iperf3 alone and beside bulk, polite or not, and bulk alone; of what
                                          # it has alone it must keep four fifths beside polite bulk

Needs root and /dev/net/tun; skips loudly without (status 77).
"""
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from federation import DONE, ISTHMUS
import wan

LINES = ("default delay=20ms rate=100mbit",)


class Gateways:
    """The gateways of alpha and beta alone, at the sites 0 and 1: no ranks, no run."""

    def __init__(self, *arguments):
        self.arguments, self.federation, self.processes = arguments, wan.WanFederation("alpha", "beta"), []

    def __enter__(self):
        self.federation.__enter__()
        for number, site in enumerate(self.federation.sites, 1):
            site.log = self.federation.folder / f"{site.name}.gateway.log"
            with open(site.log, "wb") as log:
                self.processes.append(subprocess.Popen(
                    [*self.federation.at(number), ISTHMUS, "gateway", site.file, *self.arguments], cwd=self.federation.folder,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT))
        for site in self.federation.sites:
            for lane in ("control", "bulk"):
                site.wait_for_event("wire_up", 30, lane=lane)
        return self

    def __exit__(self, *error):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(30)
        self.federation.__exit__(*error)

    def start_test(self, peer, here, *arguments):
        return subprocess.Popen([ISTHMUS, "link", "test", peer, self.federation[here].file, "--json", *arguments],
                                cwd=self.federation.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    @staticmethod
    def result_of(test):
        said, _ = test.communicate(timeout=150)
        assert test.returncode == DONE, said
        return json.loads(said)


# Of 1500 bytes that the wire carries TCP has 1448.
MOST_MBIT_S = 100 * 1448 / 1500


def check_directions(report, least_mbit_s):
    for direction in ("to_peer", "from_peer"):
        measured = report[direction]
        bbr = measured["congestion_control"] == "bbr"
        assert least_mbit_s <= measured["mbit_s"] <= MOST_MBIT_S + 0.5, (direction, measured)
        assert measured["connections"] == (4 if bbr else 8), measured
        # The line loses nothing; others than bbr make their own losses for as long as they send.
        assert measured["loss"] < (0.001 if bbr else 0.05) and measured["segments"] > 1000, (direction, measured)


def measure():
    with Gateways() as gateways:
        report = gateways.result_of(gateways.start_test("beta", "alpha"))
        print(json.dumps(report, indent=1))
        round_trip = report["round_trip_ms"]
        assert 40 <= round_trip["min"] <= 44 and round_trip["min"] <= round_trip["median"] <= 48, round_trip
        check_directions(report, 90)
        for direction in ("to_peer", "from_peer"):
            assert 450_000 <= report[direction]["bandwidth_delay_bytes"] <= 550_000, report
        wan.Wan().conf("default delay=50ms")
        for _ in range(3):
            report = gateways.result_of(gateways.start_test("beta", "alpha"))
            print(json.dumps(report))
            check_directions(report, 80)  # bbr sends next to nothing for 0.2 s in ten


def iperf3(congestion_control, seconds):
    """Mbit/s from site 1 to site 0."""
    at = [(wan.Wan().command, str(site)) for site in (0, 1)]
    server = subprocess.Popen([*at[0], "iperf3", "-s", "-1"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    time.sleep(1)
    said = subprocess.run([*at[1], "iperf3", "-c", "10.77.0.1", "-C", congestion_control, "-t", str(seconds), "-O", "2",
                           "-J"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout
    server.wait(30)
    return json.loads(said)["end"]["sum_received"]["bits_per_second"] / 1e6


POLITE_LEAVES = 0.8  # of what others have alone


def measure_politeness():
    for others in ("cubic", "bbr"):
        had = iperf3(others, 12)
        for polite in ("true", "false"):
            with Gateways("--set", f"gateway.polite={polite}") as gateways:
                def start(seconds):
                    return gateways.start_test("alpha", "beta", "--time", f"{seconds} s", "--bytes", "1 GiB")
                alone = gateways.result_of(start(10))["to_peer"]
                bulk = start(28)
                time.sleep(8)
                left = iperf3(others, 15)
                gateways.result_of(bulk)
            print(f"bulk under {alone['congestion_control']}, polite = {polite}: alone {alone['mbit_s']:.1f} Mbit/s; iperf3 "
                  f"under {others}: alone {had:.1f}, beside it {left:.1f} Mbit/s ({100 * left / had:.0f} %)", flush=True)
            if polite == "true":
                assert alone["mbit_s"] >= 0.7 * MOST_MBIT_S, "alone it takes what there is"
                assert left >= POLITE_LEAVES * had, (left, had)


def main():
    if wan.between_sites():
        (measure_politeness if sys.argv[1:] == ["polite"] else measure)()
        return 0
    if reason := wan.reason_against():
        print(f"skipped: {reason}")
        return wan.CANNOT
    return wan.run_between(2, LINES, [pathlib.Path(__file__).resolve(), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
