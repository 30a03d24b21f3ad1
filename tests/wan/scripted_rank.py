#!/usr/bin/env python3
"""A rank whose contributions follow from its site and the step alone, whatever the state and the time: runs with and
without faults must end with the same bits.

    scripted_rank.py SOCKET SITE_NUMBER ELEMENTS [SECONDS]     SECONDS of work before each contribution

It attaches again when its gateway is gone, and ends with the run.
"""
import array
import pathlib
import random
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "inter"))

import attach_client

TOKENS = 100


def contribution(site, step, elements):
    """Noise, which no codec makes smaller than its own bits."""
    noise = array.array("h", random.Random(f"{site} {step}").randbytes(2 * elements))
    return array.array("f", noise).tobytes()


class Rank:
    def __init__(self, path, site, elements, seconds):
        self.path, self.site, self.seconds, self.elements = path, site, seconds, elements
        self.made = (0, b"")  # the newest contribution, by step

    def attach(self):
        while True:
            try:
                self.gateway = attach_client.Gateway(self.path)
                self.gateway.socket.settimeout(None)
                self.gateway.attach()
                self.put(bytes(4 * self.elements))
                self.gateway.send(attach_client.INITIAL)
                return
            except OSError:
                time.sleep(0.05)

    def put(self, values):
        self.gateway.contribution.cast("B")[:] = values

    def progress(self, step, what):
        self.gateway.send(attach_client.PROGRESS, struct.pack("<Qdd", step, 1.0, 1.0) + attach_client.text(what))

    def contribute(self, publication, step):
        if self.made[0] != step:
            self.progress(step, "computing")
            time.sleep(self.seconds)
            self.made = (step, contribution(self.site, step, self.elements))
        self.put(self.made[1])
        self.gateway.send(attach_client.CONTRIBUTE, struct.pack("<QQQ", publication, step, TOKENS))

    def run(self):
        self.attach()
        while True:
            try:
                if self.serve():
                    return
            except OSError:
                self.attach()

    def serve(self):
        """What the gateway says next; true: the run is over."""
        kind, body = self.gateway.receive()
        if kind != attach_client.STATE:
            return False
        publication, step, _, _, _, final, is_open, _ = struct.unpack("<QQ32s32sBBBQ", body)
        self.gateway.send(attach_client.TOOK, struct.pack("<Q", publication))
        if final:
            self.gateway.send(attach_client.LEAVING)
        elif not is_open:
            self.contribute(publication, step + 1)
        return final


def main():
    path, site, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    attach_client.ELEMENTS, attach_client.SHAPE = elements, (elements // 64, 64)
    Rank(path, site, elements, float(sys.argv[4]) if len(sys.argv) > 4 else 0.0).run()


if __name__ == "__main__":
    main()
