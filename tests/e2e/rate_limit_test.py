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


class Relay:
    """Passes TCP connections on, and notes when how many bytes went from the caller to the listener, and back."""

    def __init__(self, listen, target):
        self.listener = socket.create_server(listen)
        self.target = target
        self.forth, self.back = [], []  # (seconds, bytes)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            caller, _ = self.listener.accept()
            try:
                listener = socket.create_connection(self.target, 5)
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


def duration(notes):
    """The exchange among all that was noted: seconds from its first byte to its last, its bytes, and those of its first
    chunk, which left all at once when its time had come: the clock starts behind it."""
    def at_once(begin):
        return sum(size for when, size in notes if 0 <= when - begin < 0.05)
    begin = next(when for when, _ in notes if at_once(when) > 20_000)  # before that: handshakes
    exchange = [(when, size) for when, size in notes if when >= begin]
    return exchange[-1][0] - begin, sum(size for _, size in exchange), at_once(begin)


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
            seconds, size, first_chunk = duration(notes)
            at_cap = size * 8 / (CAP_MBIT * 1e6)
            seconds += first_chunk * 8 / (CAP_MBIT * 1e6)  # which it had waited for before it left
            print(f"{direction}: {size} bytes in {seconds:.2f} s, {at_cap:.2f} s at the cap")
            self.assertGreater(size, 500_000, direction)
            self.assertGreaterEqual(seconds, at_cap, direction)
            self.assertLessEqual(seconds, 1.15 * at_cap, direction)
        for site, link in report.items():  # the same, as the sites have measured it
            self.assertLessEqual(link["achieved_mbit_s"], CAP_MBIT, site)
            self.assertGreaterEqual(link["achieved_mbit_s"], 0.7 * CAP_MBIT, site)


if __name__ == "__main__":
    unittest.main()
