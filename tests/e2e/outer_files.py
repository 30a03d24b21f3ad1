"""Reads what a gateway keeps (inter/PROTOCOL.md, "Files"; compress/FORMATS.md), independently of our C++: recomputes
state roots, and an outer step from the bytes of its contributions, in f32 with one rounding per operation.

    python3 tests/e2e/outer_files.py runs/quickstart/alpha runs/quickstart/beta
"""
import array
import ctypes
import ctypes.util
import dataclasses
import hashlib
import math
import pathlib
import struct
import sys

import xxhash

LEAF_ELEMENTS = 1 << 18
SEAL_BYTES = 64 + 8 * 32  # of each chunk: a signature, and the hashes it covers
FRAME_MULTIPLE, FRAME_ELEMENTS_MAX = 256, 1 << 16
BLOCK_ELEMENTS = 256
HEADER_BYTES = 4096
DISK_BLOCK_BYTES = 4096
CODECS = {0: "none", 1: "bf16", 2: "int8"}


def blake2b(data):
    return hashlib.blake2b(data, digest_size=32).digest()


def f32(x):
    """One rounding to nearest even; the operation before it was exact enough in f64 for +, - and *."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def raw(self, count):
        if self.at + count > len(self.data):
            raise ValueError("ends too early")
        self.at += count
        return self.data[self.at - count:self.at]

    def get(self, kind):
        return struct.unpack("<" + kind, self.raw(struct.calcsize("<" + kind)))[0]

    def to_next_disk_block(self):
        self.at = min(-(-self.at // DISK_BLOCK_BYTES) * DISK_BLOCK_BYTES, len(self.data))

    def block(self):
        return self.raw(self.get("I"))

    def string(self):
        return self.raw(self.get("I")).decode()

    def sites(self):
        return [self.get("I") for _ in range(self.get("I"))]

    def view(self):
        view = {"members": self.sites(), "voters": self.sites()}
        view["vote_files"] = {site: self.get("Q") for site in sorted({*view["members"], *view["voters"]})}
        return view

    def left(self):
        return len(self.data) - self.at


def checked(data, what):
    if blake2b(data[:-32]) != data[-32:]:
        raise ValueError(f"{what}: its checksum does not fit")
    return data[:-32]


def read_record(r):
    """A record, with its certificate's ballot and voters."""
    start = r.at
    record = {"run": r.raw(32), "step": r.get("Q"), "parent": r.raw(32), "parent_root": r.raw(32),
              "view": r.view(), "fragment": r.get("I")}
    record["parts"] = [{"site": r.get("I"), "root": r.raw(32), "tokens": r.get("Q"), "base": r.raw(32)}
                       for _ in range(r.get("I"))]
    record["rule"] = {"kind": r.get("B"), "rate": r.get("f"), "momentum": r.get("f")}
    record["next_view"] = r.view()
    record["final"] = bool(r.get("B"))
    record["roster"] = r.raw(32)
    if record["step"] == 0:
        record["fingerprint"], record["initial_root"] = r.raw(32), r.raw(32)
        record["nonce"] = r.get("Q")
    title = b"isthmus record v1"
    record["hash"] = blake2b(struct.pack("<I", len(title)) + title + r.data[start:r.at])
    record["ballot"] = r.get("Q")
    record["accepts"] = [(r.get("I"), r.raw(64))[0] for _ in range(r.get("I"))]
    return record


@dataclasses.dataclass
class Tensor:
    name: str
    fragment: int
    shape: list
    offset: int

    @property
    def elements(self):
        return math.prod(self.shape)


def read_layout(r):
    tensors, offset = [], 0
    for _ in range(r.get("I")):
        tensor = Tensor(r.block().decode(), r.get("I"), [], offset)
        tensor.shape = [r.get("q") for _ in range(r.get("I"))]
        offset += tensor.elements
        tensors.append(tensor)
    r.string()  # what the shapes do not say of the model
    return tensors


@dataclasses.dataclass
class State:
    step: int
    record: bytes
    claimed_root: bytes
    agreed: array.array
    momentum: array.array  # empty when the rule has none

    def root(self, layout):
        """Recomputed from the values: a binary tree of BLAKE2b over XXH3-128 leaves."""
        return state_root(layout, self.agreed, self.momentum)


def state_root(layout, agreed, momentum=()):
    level = []
    for values in (agreed, momentum):
        if not len(values):
            continue
        data = values.tobytes()
        for tensor in layout:
            for first in range(0, tensor.elements, LEAF_ELEMENTS):
                count = min(LEAF_ELEMENTS, tensor.elements - first)
                leaf = data[4 * (tensor.offset + first):4 * (tensor.offset + first + count)]
                value = xxhash.xxh3_128_intdigest(leaf)
                level.append(blake2b(struct.pack("<BQQQ", 0, len(level), value & (1 << 64) - 1, value >> 64)))
    while len(level) > 1:
        level = [blake2b(b"\1" + level[i] + level[i + 1]) if i + 1 < len(level) else level[i]
                 for i in range(0, len(level), 2)]
    return level[0]


def unzstd(data, size):
    library = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    out = ctypes.create_string_buffer(size)
    done = library.ZSTD_decompress(out, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    if done != size:
        raise ValueError("zstd: another size")
    return out.raw


def coded_bytes(codec, count):
    return {"none": 4 * count, "bf16": 2 * count, "int8": count + 4 * -(-count // BLOCK_ELEMENTS)}[codec]


def decode(codec, data, count):
    """`count` values of one frame."""
    if codec == "none":
        return array.array("f", data)
    if codec == "bf16":
        return array.array("f", b"".join(bytes((0, 0, data[count + i], data[i])) for i in range(count)))
    blocks = -(-count // BLOCK_ELEMENTS)
    scales = struct.unpack(f"<{blocks}f", data[:4 * blocks])
    codes = array.array("b", data[4 * blocks:])
    return array.array("f", (f32(code * scales[i // BLOCK_ELEMENTS]) for i, code in enumerate(codes)))


class Site:
    """The outer state of one site on disk."""

    def __init__(self, run_dir):
        self.folder = pathlib.Path(run_dir, "outer")
        r = Reader(checked((self.folder / "run").read_bytes(), "run"))
        self.genesis = read_record(r)
        self.layout = read_layout(r)
        self.elements = sum(t.elements for t in self.layout)
        self.fingerprint = {r.string(): r.string() for _ in range(r.get("I"))}
        if r.left():
            raise ValueError("run: bytes are left over")

    def records(self):
        r, records = Reader((self.folder / "records").read_bytes()), []
        while r.left():
            records.append(read_record(Reader(checked(r.block(), "a record"))))
        return records

    def states(self):
        """Both slots that check, the newest first."""
        found = []
        for slot in (0, 1):
            path = self.folder / f"state.{slot}"
            if not path.exists():
                continue
            data = path.read_bytes()
            r = Reader(data)
            magic, version, has_momentum = r.raw(8), r.get("I"), r.get("I")
            state = State(r.get("Q"), r.raw(32), r.raw(32), array.array("f"), array.array("f"))
            elements = r.get("Q")
            checked(data[:r.at + 32], path.name)
            if magic != b"imstate\0" or version != 2 or elements != self.elements:
                raise ValueError(f"{path}: not a state of this model")
            body = data[HEADER_BYTES:]
            state.agreed.frombytes(body[:4 * elements])
            if has_momentum:
                first = -(-4 * elements // DISK_BLOCK_BYTES) * DISK_BLOCK_BYTES
                state.momentum.frombytes(body[first:first + 4 * elements])
            if state.root(self.layout) != state.claimed_root:
                raise ValueError(f"{path}: its values do not have the root it claims")
            found.append(state)
        return sorted(found, key=lambda s: -s.step)

    def contribution(self, step, site):
        """The decoded pseudo-gradient that a site contributed, in layout order; None when it is not kept any more."""
        path = self.folder / "contributions" / f"{step:08}-{site}"
        if not path.exists():
            return None
        r = Reader(path.read_bytes())
        r.raw(8)
        announcement = Reader(r.block())
        r.to_next_disk_block()
        announcement.raw(1 + 4 + 64)  # type, signer, signature
        opened = Reader(announcement.block())
        opened.raw(32 + 32 + 8 + 4)  # run, view, step, fragment
        codec, first, elements, chunk_elements = CODECS[opened.get("B")], opened.get("Q"), opened.get("Q"), opened.get("Q")
        if (first, elements) != (0, self.elements):
            raise ValueError(f"{path}: of {elements} elements from {first}, the model has {self.elements}")
        chunks = self.chunks(chunk_elements)
        values = array.array("f", bytes(4 * self.elements))
        seen = set()
        while r.left():
            index, body = r.get("I"), r.block()
            r.to_next_disk_block()
            if not body:
                continue  # never written
            if index == 0xFFFFFFFF:
                break
            seen.add(index)
            size = sum(coded_bytes(codec, count) for _, count in chunks[index])
            tag, coded = body[SEAL_BYTES], body[SEAL_BYTES + 1:]
            coded = Reader(unzstd(coded, size) if tag else coded)
            for first, count in chunks[index]:
                values[first:first + count] = decode(codec, coded.raw(coded_bytes(codec, count)), count)
        if seen != set(range(len(chunks))):
            raise ValueError(f"{path}: chunks are missing")
        return values

    def chunks(self, elements_max):
        """(first element in layout order, count) of each frame of each chunk."""
        frame = min(max(elements_max // FRAME_MULTIPLE, 1) * FRAME_MULTIPLE, FRAME_ELEMENTS_MAX)
        chunks, filled = [], elements_max
        for tensor in self.layout:
            for first in range(0, tensor.elements, frame):
                count = min(frame, tensor.elements - first)
                if filled + count > elements_max:
                    chunks.append([])
                    filled = 0
                chunks[-1].append((tensor.offset + first, count))
                filled += count
        return chunks

    def outer_step(self, before, record):
        """State k from state k-1 and the contributions that record k names: an independent computation."""
        tokens = sum(part["tokens"] for part in record["parts"])
        parts = [(f32(part["tokens"] / tokens), self.contribution(record["step"], part["site"]))
                 for part in record["parts"]]
        agreed, momentum = array.array("f", before.agreed), array.array("f", before.momentum)
        rule = record["rule"]
        for i in range(self.elements):
            mean = 0.0
            for place, (weight, values) in enumerate(parts):
                weighted = f32(weight * values[i])
                mean = weighted if place == 0 else f32(mean + weighted)
            if rule["kind"] == 0:
                agreed[i] = f32(agreed[i] - mean)
            else:
                momentum[i] = f32(f32(rule["momentum"] * momentum[i]) + mean)
                ahead = f32(mean + f32(rule["momentum"] * momentum[i]))
                agreed[i] = f32(agreed[i] - f32(rule["rate"] * ahead))
        return agreed, momentum


def main():
    roots = set()
    for run_dir in sys.argv[1:]:
        site = Site(run_dir)
        for state in site.states():
            print(f"{run_dir}: step {state.step}, state root {state.claimed_root.hex()} recomputed")
        roots.add((site.states()[0].step, site.states()[0].claimed_root))
    print("all agree" if len(roots) == 1 else "they differ")
    return 0 if len(roots) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
