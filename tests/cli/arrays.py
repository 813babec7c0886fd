"""Arrays and their files, .npy and .safetensors: f32, f16, bf16, int32, int64, uint8, bool."""

import json
import random
import re
import struct

CODES = {
    "f32": ("f", "<f4", "F32"),
    "f16": ("e", "<f2", "F16"),
    "bf16": ("H", None, "BF16"),
    "i32": ("i", "<i4", "I32"),
    "i64": ("q", "<i8", "I64"),
    "u8": ("B", "|u1", "U8"),
    "bool": ("?", "|b1", "BOOL"),
}


def bf16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def bf16_value(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def rounded(x, dtype):
    if dtype == "bf16":
        return bf16_value(bf16_bits(x))
    code = CODES[dtype][0]
    return struct.unpack("<" + code, struct.pack("<" + code, x))[0]


class Array:
    """shape and flat data in C order; a[i, j, k] reads an element."""

    def __init__(self, shape, data, dtype="f32"):
        self.shape, self.dtype = tuple(shape), dtype
        self.data = [rounded(x, dtype) for x in data]
        count = 1
        for extent in self.shape:
            count *= extent
        assert count == len(self.data), (shape, len(self.data))

    def __getitem__(self, index):
        at = 0
        for i, extent in zip(index, self.shape):
            assert 0 <= i < extent
            at = at * extent + i
        return self.data[at]

    def bytes(self):
        data = [bf16_bits(x) for x in self.data] if self.dtype == "bf16" else self.data
        return struct.pack("<%d%s" % (len(data), CODES[self.dtype][0]), *data)

    def converted(self, dtype):
        return Array(self.shape, self.data, dtype)

    def reshaped(self, *shape):
        return Array(shape, self.data, self.dtype)


def uniform(seed, shape, dtype="f32"):
    generator, count = random.Random(seed), 1
    for extent in shape:
        count *= extent
    return Array(shape, [generator.uniform(-1, 1) for _ in range(count)], dtype)


def npy(array, version=1, header=None, skew=0):
    """The bytes of a file. header: a text in place of the right one; skew: spaces that shift the data."""
    if header is None:
        header = "{'descr': '%s', 'fortran_order': False, 'shape': %r, }" % (CODES[array.dtype][1], array.shape)
    start = 10 if version == 1 else 12
    text = header.encode() + b" " * skew
    text += b" " * (-(start + len(text) + 1 - skew) % 64) + b"\n"
    return (
        b"\x93NUMPY"
        + struct.pack("<BB", version, 0)
        + struct.pack("<H" if version == 1 else "<I", len(text))
        + text
        + (array.bytes() if array else b"")
    )


def read_npy(path):
    with open(path, "rb") as file:
        raw = file.read()
    assert raw[:8] == b"\x93NUMPY\x01\x00"
    end = 10 + struct.unpack("<H", raw[8:10])[0]
    assert end % 64 == 0 and raw[end - 1 : end] == b"\n"
    found = re.fullmatch(
        r"\{'descr': '(.{3})', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n", raw[10:end].decode()
    )
    dtype = {"<f4": "f32", "<f2": "f16"}[found.group(1)]
    shape = [int(x) for x in found.group(2).split(",") if x.strip()]
    return unpack(shape, dtype, raw[end:])


def unpack(shape, dtype, raw):
    size = struct.calcsize("<" + CODES[dtype][0])
    assert len(raw) % size == 0
    data = struct.unpack("<%d%s" % (len(raw) // size, CODES[dtype][0]), raw)
    return Array(shape, [bf16_value(x) for x in data] if dtype == "bf16" else data, dtype)


def safetensors(tensors, header=None, skew=0):
    """tensors: name -> Array. header: a text in place of the right one; skew: spaces that shift the data."""
    entries, data = {}, b""
    for name, array in tensors.items():
        raw = array.bytes()
        entries[name] = {
            "dtype": CODES[array.dtype][2],
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = (json.dumps(entries) if header is None else header).encode("latin-1") + b" " * skew
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    with open(path, "rb") as file:
        raw = file.read()
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    tensors, last = {}, 0
    for name, entry in json.loads(raw[8:end]).items():
        dtype = {code[2]: name for name, code in CODES.items()}[entry["dtype"]]
        begin, stop = entry["data_offsets"]
        tensors[name], last = unpack(entry["shape"], dtype, raw[end + begin : end + stop]), max(last, stop)
    assert last == len(raw) - end
    return tensors
