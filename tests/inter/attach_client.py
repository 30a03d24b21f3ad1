#!/usr/bin/env python3
"""A rank that is no C++: written after inter/ATTACH.md alone, with Python's standard library alone.

    attach_client.py SOCKET --steps 3              trains (adds 1 to every value) for 3 outer steps
    attach_client.py SOCKET --steps 3 --tell       and says when a contribution was answered
    attach_client.py SOCKET --stop-at state        goes as far as that, says so, and waits to be killed

The gateway it is tested with answers a contribution with half of it.
"""
import argparse
import array
import mmap
import os
import socket
import struct
import sys
import time

ATTACH, INITIAL, CONTRIBUTE, TOOK, PROGRESS, LEAVING = 1, 2, 3, 4, 5, 6
MEMORY, STATE, TAKEN, REFUSED = 129, 130, 131, 132

NAME, SHAPE = "weight", (4, 6)
ELEMENTS = SHAPE[0] * SHAPE[1]
PHASES = ["connected", "half", "attached", "initial", "half_contribution", "state", "contributed", "flood"]


def text(value):
    value = value.encode()
    return struct.pack("<I", len(value)) + value


def frame(kind, body=b""):
    return struct.pack("<IB", len(body), kind) + body


def attach_body():
    body = struct.pack("<IIIq", 1, 0, 1, os.getpid()) + text("a model of one tensor")
    body += struct.pack("<I", 1) + text(NAME) + struct.pack("<Bqq", 2, *SHAPE) + struct.pack("<I", 0)
    # One box: all of tensor 0.
    body += struct.pack("<I", 1) + struct.pack("<IB", 0, 2) + struct.pack("<qq", 0, 0) + struct.pack("<qq", *SHAPE)
    return body


class Gateway:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(path)
        self.bytes = b""
        self.descriptors = []

    def attach(self):
        self.send(ATTACH, attach_body())
        memory_bytes, contribution_offset, state_offset, elements = struct.unpack("<QQQQ", self.expect(MEMORY))
        check(elements == ELEMENTS, "elements")
        (descriptor,) = self.descriptors
        for change in (lambda: os.ftruncate(descriptor, 0), lambda: os.ftruncate(descriptor, 2 * memory_bytes)):
            try:
                change()
            except PermissionError:
                continue
            sys.exit("the memory is not sealed")
        memory = memoryview(mmap.mmap(descriptor, memory_bytes))
        self.contribution = memory[contribution_offset:contribution_offset + 4 * elements].cast("f")
        self.state = memory[state_offset:state_offset + 4 * elements].cast("f")

    def send(self, kind, body=b""):
        self.socket.sendall(frame(kind, body))

    def receive(self):
        while len(self.bytes) < 5 or len(self.bytes) < 5 + struct.unpack_from("<I", self.bytes)[0]:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 4)
            if not data:
                raise ConnectionError("the gateway is gone")
            self.bytes += data
            self.descriptors += descriptors
        length, kind = struct.unpack_from("<IB", self.bytes)
        body, self.bytes = self.bytes[5:5 + length], self.bytes[5 + length:]
        if kind == REFUSED:
            (code_bytes,) = struct.unpack_from("<I", body)
            sys.exit(f"refused: {body[4:4 + code_bytes].decode()}: {body[8 + code_bytes:].decode()}")
        return kind, body

    def expect(self, kind):
        got, body = self.receive()
        if got != kind:
            sys.exit(f"expected message {kind}, got {got}")
        return body


def stop_at(phase, wanted):
    if phase == wanted:
        print(phase, flush=True)
        time.sleep(600)


def check(condition, what):
    if not condition:
        sys.exit(f"wrong: {what}")


# The gateway is gone: connects until it is back, and puts x_c into the new memory.
def attach_again(path, contributed):
    for _ in range(600):
        try:
            gateway = Gateway(path)
            gateway.attach()
        except OSError:
            time.sleep(0.05)
            continue
        if contributed is not None:
            gateway.contribution[:] = array.array("f", contributed)
        return gateway
    sys.exit("the gateway did not come back")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tell", action="store_true")
    parser.add_argument("--stop-at", choices=PHASES)
    wanted = parser.parse_args()

    gateway = Gateway(wanted.socket)
    stop_at("connected", wanted.stop_at)
    if wanted.stop_at == "half":
        gateway.socket.sendall(frame(ATTACH, attach_body())[:40])
        stop_at("half", "half")
    gateway.attach()
    stop_at("attached", wanted.stop_at)

    gateway.contribution[:] = array.array("f", range(ELEMENTS))
    gateway.send(INITIAL)
    stop_at("initial", wanted.stop_at)

    parameters = contributed = base = None
    steps = 0
    while True:
        try:
            kind, body = gateway.receive()
        except ConnectionError:
            gateway = attach_again(wanted.socket, contributed)
            continue
        if kind == TAKEN:
            if wanted.tell and struct.unpack("<Q", body)[0] == steps + 1:
                print("taken", flush=True)
            continue
        check(kind == STATE, f"message {kind}")
        publication, step, record, _, merge, final, is_open, kept = struct.unpack("<QQ32s32sBBBQ", body)
        check(merge == 0 and not is_open, "state")
        stop_at("state", wanted.stop_at)
        if parameters is not None and step == steps:
            # Of a gateway that came back without what it had taken: the same again.
            gateway.send(TOOK, struct.pack("<Q", publication))
            gateway.send(CONTRIBUTE, struct.pack("<QQQ", publication, step + 1, 640))
            continue
        values = list(gateway.state)
        if parameters is None:
            parameters = values
        else:
            check(step > steps, f"step {step} after {steps}")
            used = kept >= steps + 1
            check(not used or values == [x / 2 for x in contributed], "the state is half of the contribution")
            start = contributed if used else base
            parameters = [s + (x - f) for s, x, f in zip(values, parameters, start)]
        base, steps = values, step
        gateway.send(TOOK, struct.pack("<Q", publication))
        if final or (wanted.steps <= steps and not wanted.stop_at):
            break
        parameters = [x + 1 for x in parameters]
        gateway.send(PROGRESS, struct.pack("<Qdd", 10 * steps, 2.5, 1000.0) + text("computing"))
        contributed = parameters
        gateway.contribution[:] = array.array("f", contributed)
        message = struct.pack("<QQQ", publication, step + 1, 640)
        if wanted.stop_at == "half_contribution":
            gateway.socket.sendall(frame(CONTRIBUTE, message)[:11])
            stop_at("half_contribution", "half_contribution")
        gateway.send(CONTRIBUTE, message)
        stop_at("contributed", wanted.stop_at)
        if wanted.stop_at == "flood":
            print("flood", flush=True)
            while True:
                gateway.send(PROGRESS, struct.pack("<Qdd", 1, 2.5, 1000.0) + text("flood"))
                gateway.contribution[0] += 1
    gateway.send(LEAVING)
    print(f"done {steps} {parameters[0]} {parameters[-1]}", flush=True)


if __name__ == "__main__":
    main()
