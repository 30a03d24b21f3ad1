#!/usr/bin/env python3
"""`rate_limit` holds on the wire: counted by a relay between the sites, which knows nothing of isthmus."""
import json
import selectors
import socket
import threading
import time
import unittest

from federation import Case, Federation, PORT, isthmus

CAP_MBIT = 2
WINDOW = 0.5  # seconds
PIECE_BYTES = 1 << 14  # which leave at once (rate_limit.h)
SEGMENT_BYTES = 1400  # as on a wide-area link


class Relay:
    """Passes TCP connections on, and notes when how many bytes went from the caller to the listener, and back."""

    def __init__(self, listen, target):
        self.listener = socket.create_server(listen)
        self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        self.target = target
        self.forth, self.back = [], []  # (seconds, bytes)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            caller, _ = self.listener.accept()
            listener = socket.socket()
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
            try:
                listener.connect(self.target)
            except OSError:
                caller.close()
                continue
            threading.Thread(target=self.pass_on, args=(caller, listener), daemon=True).start()

    def pass_on(self, caller, listener):
        selector = selectors.DefaultSelector()
        selector.register(caller, selectors.EVENT_READ, (listener, self.forth))
        selector.register(listener, selectors.EVENT_READ, (caller, self.back))
        try:
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    key.data[1].append((time.monotonic(), len(data)))
                    key.data[0].sendall(data)
        except OSError:
            pass
        finally:
            caller.close()
            listener.close()


def exchange_of(notes):
    """Of all that was noted: the exchange's seconds from its first byte to its last, its bytes, and the most in a WINDOW."""
    def within(begin, seconds):
        return sum(size for when, size in notes if 0 <= when - begin < seconds)
    begin = next(when for when, _ in notes if within(when, 0.05) > 0.7 * PIECE_BYTES)  # before that: handshakes
    exchange = [(when, size) for when, size in notes if when >= begin]
    return exchange[-1][0] - begin, sum(size for _, size in exchange), max(within(when, WINDOW) for when, _ in exchange)


class RateLimit(Case):
    def test_an_exchange_takes_what_the_cap_says(self):
        # One exchange of 0.8 million parameters: about as many bytes in int8, more than two seconds at the cap.
        with Federation("alpha", "beta", relayed=["alpha"], layers=2, hidden=192, ffn=512, outer_steps=1,
                        inner_steps=6) as federation:
            host = federation["alpha"].address.split(":")[0]
            Relay((federation.relay_host, PORT), (host, PORT))
            bulk = Relay((federation.relay_host, PORT + 1), (host, PORT + 1))
            federation.launch("--set", f'gateway.rate_limit="{CAP_MBIT} Mbit/s"', "--set", "train.warmup_steps=0")
            federation.wait(100)
            said = isthmus("report", "alpha.toml", "beta.toml", "--json", cwd=federation.folder).stdout
            report = {site["site"]: next(iter(site["links"].values())) for site in json.loads(said)["sites"]}
        for direction, notes in (("beta to alpha", bulk.forth), ("alpha to beta", bulk.back)):
            seconds, size, burst = exchange_of(notes)
            at_cap, burst_at_cap = size * 8 / (CAP_MBIT * 1e6), WINDOW * CAP_MBIT * 1e6 / 8
            print(f"{direction}: {size} bytes in {seconds:.2f} s, {at_cap:.2f} s at the cap; "
                  f"at most {burst} in {WINDOW} s, {burst_at_cap:.0f} at the cap")
            seconds += PIECE_BYTES * 8 / (CAP_MBIT * 1e6)  # the clock starts when the first one has left
            self.assertGreater(size, 500_000, direction)
            self.assertGreaterEqual(seconds, at_cap, direction)
            self.assertLessEqual(seconds, 1.15 * at_cap, direction)
            self.assertLessEqual(burst, burst_at_cap + 4 * PIECE_BYTES, direction)  # no whole chunk at once
        for site, link in report.items():  # the same, as the sites have measured it
            self.assertLessEqual(link["achieved_mbit_s"], CAP_MBIT, site)
            self.assertGreaterEqual(link["achieved_mbit_s"], 0.7 * CAP_MBIT, site)


if __name__ == "__main__":
    unittest.main()
