#!/usr/bin/env python3
"""Every listening socket of a running site, found from outside, refuses whoever has no listed key."""
import base64
import contextlib
import os
import pathlib
import re
import socket
import ssl
import stat
import subprocess
import tempfile
import time
import unittest

import zmq
import zmq.utils.z85
from zmq.utils.monitor import recv_monitor_message

from federation import ISTHMUS, Case, Federation, wait_until

PATIENCE_S = 3.0


def listening(pids):
    """(host, port) of each listening TCP socket, and the path of each Unix one, of these processes."""
    inodes = set()
    for pid in pids:
        for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
            except OSError:
                continue
            if match:
                inodes.add(match.group(1))
    tcp, unix = set(), set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            host, port = fields[1].split(":")
            tcp.add((socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(port, 16)))
    for line in pathlib.Path("/proc/net/tcp6").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            tcp.add((fields[1], int(fields[1].split(":")[1], 16)))
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[6] in inodes and int(fields[3], 16) & 0x10000:  # accepts connections
            unix.add(fields[7])
    return tcp, unix


class Probe:
    """A stranger's socket: what its handshake came to, and whether anything was ever said to it."""

    def __init__(self, address, setup):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        setup(self.socket)
        monitor = self.socket.get_monitor_socket()
        self.socket.connect(f"tcp://{address[0]}:{address[1]}")
        with contextlib.suppress(zmq.Again):  # refused already: there is no connection left to wait for
            self.socket.send_multipart([b"hello", b"x" * 100], zmq.NOBLOCK)
        self.events = []
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self.ended():
            if monitor.poll(100):
                self.events.append(recv_monitor_message(monitor)["event"])
        self.answered = bool(self.socket.poll(100))
        self.socket.disable_monitor()
        self.context.destroy(0)

    def ended(self):
        return self.admitted or any(e in self.events for e in (
            zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_DISCONNECTED))

    @property
    def admitted(self):
        return zmq.EVENT_HANDSHAKE_SUCCEEDED in self.events

    @property
    def refused(self):
        return not self.admitted and not self.answered and self.ended()


def null(_):
    pass


def plain(probe):
    probe.plain_username, probe.plain_password = b"admin", b"admin"


def curve(server_key, public=None, secret=None):
    def setup(probe):
        probe.curve_serverkey = server_key
        mine = (public, secret) if public else zmq.curve_keypair()
        probe.curve_publickey, probe.curve_secretkey = mine
    return setup


def der(tag, *contents):
    content = b"".join(contents)
    size = len(content)
    return bytes([tag, size] if size < 128 else [tag, 0x81, size]) + content


def pem(kind, content):
    return f"-----BEGIN {kind}-----\n{base64.b64encode(content).decode()}\n-----END {kind}-----\n"


def credentials(key):
    """A certificate with the identity of a key file, and its key, as PEM. Nobody reads the signature."""
    seed = bytes.fromhex(key.read_text().split()[-2])
    public = bytes.fromhex(re.search(r'identity = "([0-9a-f]{64})"',
                                     key.with_name(key.name + ".pub").read_text()).group(1))
    ed25519 = der(0x30, der(6, bytes([0x2b, 0x65, 0x70])))
    name = der(0x30)
    times = der(0x30, der(0x17, b"700101000000Z"), der(0x17, b"491231235959Z"))
    tbs = der(0x30, der(0xa0, der(2, b"\2")), der(2, b"\1"), ed25519, name, times, name,
              der(0x30, ed25519, der(3, b"\0", public)))
    certificate = der(0x30, tbs, ed25519, der(3, b"\0", bytes(64)))
    return (pem("CERTIFICATE", certificate)
            + pem("PRIVATE KEY", der(0x30, der(2, b"\0"), ed25519, der(4, der(4, seed)))))


def tls_answer(address, key=None, version=ssl.TLSVersion.TLSv1_3):
    """What the bulk port says to a TLS client: bytes, or the error."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    if key is not None:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(credentials(key))
            file.flush()
            context.load_cert_chain(file.name)
    with socket.create_connection(address, PATIENCE_S) as connection:
        try:
            with context.wrap_socket(connection) as stream:
                stream.sendall(b"hello")
                return stream.recv(100) or "closed"
        except (ssl.SSLError, ConnectionError) as error:
            return str(error)


def plain_answer(address):
    with socket.create_connection(address, PATIENCE_S) as connection:
        connection.sendall(b"\5\0\0\0hello")
        try:
            return connection.recv(100) or "closed"
        except ConnectionError as error:
            return str(error)


def z85(hexadecimal):
    return zmq.utils.z85.encode(bytes.fromhex(hexadecimal))


def public_key(path):
    return z85(re.search(r'curve_key = "([0-9a-f]{64})"', path.read_text()).group(1))


class Sockets(Case):
    def test_each_refuses_every_stranger(self):
        with Federation("alpha", "beta", outer_steps=10_000) as federation:
            alpha, beta = federation.sites
            alpha.launch()
            host, port = alpha.address.split(":")
            expected = {(host, int(port)), (host, int(port) + 1)}
            wait_until(lambda: listening(alpha.pids())[0] >= expected, 30,
                       lambda: f"no listening sockets; alpha said:\n{alpha.output()}")
            server_key = public_key(federation.folder / "alpha.key.pub")

            # The probe can succeed: beta's own keys, while beta is not running, are let in.
            secret = z85((federation.folder / "beta.key").read_text().split()[-1])
            known = curve(server_key, public_key(federation.folder / "beta.key.pub"), secret)
            self.assertTrue(Probe((host, int(port)), known).admitted)
            bulk = (host, int(port) + 1)
            self.assertEqual(tls_answer(bulk, federation.folder / "beta.key"), b"\1" + bytes(7), "alpha is gateway 1/0")

            beta.launch()
            alpha.wait_for_event("step_applied", 60)
            tcp, unix = listening(alpha.pids())
            self.assertEqual(tcp, expected, "a listening socket that nobody expects")
            for address in tcp:
                # The bulk lane's does not speak ZeroMQ at all.
                for name, stranger in (("NULL", null), ("PLAIN", plain), ("CURVE, unlisted key", curve(server_key)),
                                       ("CURVE, wrong server key", curve(zmq.curve_keypair()[0]))):
                    probe = Probe(address, stranger)
                    self.assertTrue(probe.refused, f"{address}, {name}: {probe.events}, answered {probe.answered}")
            probe = Probe((host, int(port)), curve(server_key))
            self.assertIn(zmq.EVENT_HANDSHAKE_FAILED_AUTH, probe.events)
            stranger = federation.folder / "stranger.key"
            subprocess.run([ISTHMUS, "keys", "generate", str(stranger)], check=True, capture_output=True)
            for name, answer in (("unlisted key", tls_answer(bulk, stranger)), ("no key", tls_answer(bulk)),
                                 ("TLS 1.2", tls_answer(bulk, stranger, ssl.TLSVersion.TLSv1_2)),
                                 ("plaintext", plain_answer(bulk))):
                self.assertIsInstance(answer, str, name)
            self.assertIn("BAD_CERTIFICATE", tls_answer(bulk, stranger))

            # The one for ranks and for status; it is bound under another name and renamed when it serves.
            self.assertEqual({re.sub(r"\.new$", "", path) for path in unix}, {str(alpha.run_dir / "gateway.sock")})
            self.assertEqual(stat.S_IMODE(os.stat(alpha.run_dir / "gateway.sock").st_mode), 0o600)

            # And the run has not noticed.
            seen = len(alpha.events("step_applied"))
            alpha.wait_for_event("step_applied", 30, count=seen + 2)
            self.assertIsNone(alpha.process.poll())


if __name__ == "__main__":
    unittest.main()
