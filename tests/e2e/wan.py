"""Real `isthmus` processes at the sites of an emulated wide-area network (tests/wan/with_wan).

A program calls run_between() first: it starts itself again between the sites, and there it has Wan().
"""
import os
import pathlib
import signal
import subprocess
import sys

from federation import Federation

CANNOT = 77  # of with_wan, and what ctest takes for skipped
WITH_WAN = pathlib.Path(__file__).resolve().parents[1] / "wan/with_wan"


def between_sites():
    return "WAN_NAMESPACES" in os.environ


def reason_against():
    """Why there can be no emulated network here; "": there can."""
    probe = subprocess.run([WITH_WAN, "--", "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
    return "" if probe.returncode == 0 else probe.stderr.strip()


def run_between(sites, lines, arguments):
    """This program with `arguments` between the sites of a network; its exit status. Ctrl-C and SIGTERM reach it as the
    end of its standard input, and so does the end of this process: with_wan would end the sites first."""
    command = [WITH_WAN, "-n", str(sites), *(word for line in lines for word in ("-l", line)), "--",
               sys.executable, *arguments]
    process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: process.stdin.close())
    return process.wait()


class Wan:
    """The network that this program runs between."""

    def __init__(self):
        self.command = os.environ["WAN"]

    def conf(self, line):
        """In force when this returns."""
        subprocess.run([self.command, "conf", line], check=True, stdin=subprocess.DEVNULL)

    def statistics(self):
        """Of each path, "0->1": what its columns say."""
        said = subprocess.run([self.command, "stats"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True).stdout
        header, *rows = [line.split("\t") for line in said.splitlines()]
        return {row[0]: dict(zip(header, row)) for row in rows}


class WanFederation(Federation):
    """As Federation, with each site in a namespace of its own: the first is the network's site 0."""

    def choose_network(self):
        self.network, self.relay_host = "10.77.0", None

    def at(self, number):
        return (os.environ["WAN"], str(number - 1))
