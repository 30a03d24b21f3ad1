#!/usr/bin/env python3
"""The emulator as one uses it: with_wan's sites, real TCP and UDP between them, and nothing left afterwards.

    with_wan_test.py [-v] [Network.test_...]

Needs root and /dev/net/tun; skips loudly without (status 77).
"""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SKIPPED = 77  # ctest: SKIP_RETURN_CODE
WITH_WAN = pathlib.Path(__file__).resolve().parent / "with_wan"
PORT = 4711
DATAGRAM = bytes(range(256)) * 4
DATAGRAMS = 50
STREAM = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(1 << 17))  # 4 MiB


# ---- what runs at the sites: $AT 0 receive_stream, as bash writes it below ----------------------------

def connect(address, timeout="1"):
    """Prints the seconds until a port where nobody listens says so, which is a round trip, or "silence"."""
    probe = socket.socket()
    probe.settimeout(float(timeout))
    begin = time.monotonic()
    try:
        probe.connect((address, PORT))
    except ConnectionRefusedError:
        print(time.monotonic() - begin)
    except TimeoutError:
        print("silence")


def receive_stream():
    with socket.create_server(("", PORT)) as server:
        connection, _ = server.accept()
        received = b""
        while data := connection.recv(1 << 20):
            received += data
    print("equal" if received == STREAM else "different", len(received))


def send_stream(address):
    with socket.create_connection((address, PORT), 5) as connection:
        connection.sendall(STREAM)


def receive_datagrams():
    """Prints how many bits differ in each datagram from what was sent."""
    with socket.socket(type=socket.SOCK_DGRAM) as receiver:
        receiver.bind(("", PORT))
        receiver.settimeout(10)
        for _ in range(DATAGRAMS):
            received = receiver.recv(2000)
            print(sum((a ^ b).bit_count() for a, b in zip(DATAGRAM, received, strict=True)))


def send_datagrams(address):
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for _ in range(DATAGRAMS):
            sender.sendto(DATAGRAM, (address, PORT))


AT_A_SITE = {f.__name__: f for f in (connect, receive_stream, send_stream, receive_datagrams, send_datagrams)}

# at SITE FUNCTION ARGUMENTS...; listening SITE OPTION PORT: until somebody does.
PREAMBLE = f"""
set -euo pipefail
at() {{ local site=$1; shift; $WAN $site {sys.executable} {__file__} "$@"; }}
listening() {{ until $WAN $1 ss -Hn$2 | grep -q ":$3 "; do sleep 0.05; done; }}
"""


def arguments(lines, sites=2):
    return [WITH_WAN, "-n", str(sites), *(word for line in lines for word in ("-l", line))]


def with_wan(script, *lines, sites=2, **environment):
    """What the bash `script` prints between the sites of that network."""
    ran = subprocess.run([*arguments(lines, sites), "--", "bash", "-c", PREAMBLE + script], capture_output=True,
                         text=True, timeout=60, env={**os.environ, **environment})
    assert ran.returncode == 0, (ran.returncode, ran.stdout, ran.stderr)
    return ran.stdout


class Network(unittest.TestCase):
    def test_the_round_trip_is_as_set(self):
        said = with_wan("for i in 1 2 3 4 5; do at 0 connect 10.77.0.2; at 1 connect 10.77.0.1; done",
                        "path 0 1 delay=30ms", "path 1 0 delay=50ms jitter=100us")
        times = [float(line) for line in said.split()]
        self.assertEqual(len(times), 10)
        self.assertGreaterEqual(min(times), 0.080)
        self.assertLess(min(times), 0.090)

    def test_tcp_takes_the_rate_and_no_more(self):
        probe = subprocess.run([WITH_WAN, "--", "true"], env={**os.environ, "WAN_CC": "bbr"}, stderr=subprocess.PIPE,
                               text=True)
        if probe.returncode != 0:
            self.skipTest(probe.stderr)
        said = with_wan("$WAN 0 iperf3 -s -1 >/dev/null & listening 0 tl 5201\n"
                        "$WAN 1 iperf3 -c 10.77.0.1 -t 6 -O 2 -J; wait",
                        "default delay=50ms rate=100mbit", WAN_CC="bbr")
        rate = json.loads(said)["end"]["sum_received"]["bits_per_second"]
        print(f"TCP on 100 Mbit/s: {rate / 1e6:.1f} Mbit/s")
        self.assertGreater(rate, 80e6)
        self.assertLess(rate, 100e6)

    def test_udp_loses_what_is_set(self):
        said = with_wan("$WAN 0 iperf3 -s -1 >/dev/null & listening 0 tl 5201\n"
                        "$WAN 1 iperf3 -c 10.77.0.1 -u -b 10M -l 1000 -t 4 -J; wait",
                        "default delay=5ms", "path 1 0 loss=5%")
        end = json.loads(said)["end"]["sum"]
        print(f"UDP at 5 % loss: {end['lost_packets']} of {end['packets']} packets lost")
        self.assertGreater(end["packets"], 3000)
        # Five standard deviations of 3000 packets.
        self.assertGreater(end["lost_percent"], 3)
        self.assertLess(end["lost_percent"], 7)

    def test_a_link_goes_down_and_comes_back(self):
        said = with_wan("at 0 connect 10.77.0.2 0.5\n"
                        "$WAN conf 'link 0 1 down'; at 0 connect 10.77.0.2 0.5; at 0 connect 10.77.0.3 0.5\n"
                        "$WAN conf 'link 0 1 up'; at 0 connect 10.77.0.2 0.5", sites=3).split()
        self.assertEqual(said[1], "silence")
        for other in (said[0], said[2], said[3]):
            self.assertLess(float(other), 0.1)

    def test_a_stream_survives_loss_reordering_and_duplicates(self):
        said = with_wan("at 0 receive_stream & listening 0 tl 4711\nat 1 send_stream 10.77.0.1; wait; $WAN stats",
                        "default delay=2ms jitter=1ms reorder rate=500mbit loss=1% dup=2%")
        self.assertEqual(said.splitlines()[0], f"equal {len(STREAM)}")
        header, *rows = [line.split("\t") for line in said.splitlines()[1:]]
        path = dict(zip(header, next(row for row in rows if row[0] == "1->0")))
        self.assertGreater(int(path["bytes"]), len(STREAM))
        self.assertGreater(int(path["lost"]), 0)
        self.assertGreater(int(path["duplicated"]), 0)

    def test_corruption_is_what_tcp_and_udp_do_not_notice(self):
        said = with_wan("at 0 receive_stream & listening 0 tl 4711\nat 1 send_stream 10.77.0.1; wait",
                        "path 1 0 corrupt=5%")
        self.assertEqual(said.split(), ["different", str(len(STREAM))])
        said = with_wan("at 0 receive_datagrams & listening 0 ul 4711\nat 1 send_datagrams 10.77.0.1; wait",
                        "path 1 0 corrupt=100%")
        self.assertEqual(said.split(), ["1"] * DATAGRAMS)

    def test_a_bad_line_is_refused_and_forgotten(self):
        said = with_wan("$WAN conf 'link 0 1 fast' 2>&1 || echo status $?\n"
                        "$WAN conf 'default delay=20ms'; at 0 connect 10.77.0.2").splitlines()
        self.assertIn('"fast" is no setting; there are delay=', said[0])
        self.assertEqual(said[1], "status 2")
        self.assertGreaterEqual(float(said[2]), 0.040)


def processes_that_mention(words):
    """Whose command line, network namespace or mounts have one of these words."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_text() + os.readlink(process / "ns/net")
            text += (process / "mountinfo").read_text()
        except OSError:  # it has ended
            continue
        if any(word in text for word in words):
            found[process.name] = (process / "cmdline").read_text()
    return found


class Leftovers(unittest.TestCase):
    # Its own traces, then it works at a site, and leaves somebody there who does not care for SIGTERM.
    SCRIPT = """
        echo ${WAN%/wan} $WAN_NAMESPACES $($WAN 0 readlink /proc/self/ns/net) $($WAN 1 readlink /proc/self/ns/net)
        $WAN 0 bash -c 'trap "" TERM; while :; do sleep 1; done' >/dev/null 2>&1 &
        read -r _ || true
        exit 5"""

    def start(self):
        # As from a terminal, where nobody ignores Ctrl-C.
        process = subprocess.Popen(["env", "--default-signal=INT", *arguments(["default delay=1ms"]), "--", "bash", "-c",
                                    self.SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   start_new_session=True)
        self.addCleanup(process.communicate)
        traces = process.stdout.readline().split()
        self.assertEqual(len(traces), 5)
        self.assertGreaterEqual(len(processes_that_mention(traces)), 3)  # else the check below proves nothing
        return process, traces

    def assert_nothing_is_left(self, traces):
        end = time.monotonic() + 5
        while (left := processes_that_mention(traces)) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(left, {})
        for name in traces[1:3]:
            self.assertFalse(pathlib.Path("/run/netns", name).exists())

    def test_after_the_command(self):
        process, traces = self.start()
        process.communicate("\n", timeout=10)
        self.assertEqual(process.returncode, 5)
        self.assert_nothing_is_left(traces)
        self.assertFalse(pathlib.Path(traces[0]).exists())

    def test_after_sigterm(self):
        process, traces = self.start()
        process.terminate()
        self.assertEqual(process.wait(10), 128 + signal.SIGTERM)
        self.assert_nothing_is_left(traces)
        self.assertFalse(pathlib.Path(traces[0]).exists())

    def test_after_ctrl_c(self):
        process, traces = self.start()
        os.killpg(process.pid, signal.SIGINT)
        self.assertEqual(process.wait(10), 128 + signal.SIGINT)
        self.assert_nothing_is_left(traces)

    def test_after_sigkill_once_the_command_and_what_it_left_have_ended(self):
        process, traces = self.start()
        self.addCleanup(shutil.rmtree, traces[0], ignore_errors=True)
        process.kill()
        process.communicate("\n", timeout=10)
        stubborn = [pid for pid, line in processes_that_mention(traces).items() if "trap" in line]
        self.assertEqual(len(stubborn), 1)
        os.kill(int(stubborn[0]), signal.SIGKILL)
        self.assert_nothing_is_left(traces)

    def test_when_the_emulator_ends_first(self):
        process, traces = self.start()
        os.kill(int(pathlib.Path(traces[0], "emulator").read_text()), signal.SIGKILL)
        self.assertEqual(process.wait(10), 1)
        self.assert_nothing_is_left(traces)


class WhereItCannotRun(unittest.TestCase):
    def assert_refused(self, status, says, command, **options):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, **options)
        self.assertEqual((ran.returncode, ran.stdout), (status, ""), ran.stderr)
        self.assertIn(says, ran.stderr)

    def test_not_root(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            self.assert_refused(SKIPPED, "needs root", [shutil.copy(WITH_WAN, folder), "--", "true"], user=65534,
                                group=65534, extra_groups=[])

    def test_no_tun(self):
        hidden = f"mount -t tmpfs none /dev/net && exec {WITH_WAN} -- true"
        self.assert_refused(SKIPPED, "modprobe tun", ["unshare", "--mount", "bash", "-c", hidden])

    def test_root_of_a_user_namespace_alone(self):
        alone = ["unshare", "--user", "--map-root-user"]
        if subprocess.run([*alone, "true"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no user namespaces here")
        self.assert_refused(SKIPPED, "no right to make namespaces", [*alone, WITH_WAN, "--", "true"])

    def test_no_emulator(self):
        self.assert_refused(1, "build it with", [WITH_WAN, "--", "true"],
                            env={**os.environ, "ISTHMUS_WAN_EMULATOR": "/nowhere"})

    def test_bad_usage(self):
        self.assert_refused(2, 'line 2, "default delay=5": delay=5: the unit is missing; write it like delay=50ms',
                            [WITH_WAN, "-l", "seed 1", "-l", "default delay=5", "--", "true"])
        self.assert_refused(2, "2 to 254 sites", [WITH_WAN, "-n", "1", "--", "true"])
        self.assert_refused(2, "COMMAND", [WITH_WAN])
        self.assert_refused(1, "nonsense", [WITH_WAN, "--", "true"], env={**os.environ, "WAN_CC": "nonsense"})


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in AT_A_SITE:
        AT_A_SITE[sys.argv[1]](*sys.argv[2:])
        sys.exit()
    probe = subprocess.run([WITH_WAN, "--", "true"], stderr=subprocess.PIPE, text=True)
    if probe.returncode == SKIPPED:
        print(f"SKIPPED: {probe.stderr.strip()}")
        sys.exit(SKIPPED)
    unittest.main()
