"""libattn through ctypes, on the CPU or a GPU, for NumPy arrays: as much as these tests need of it.

Structs and values are read from include/attn.h by tests/abi/abi.py, and their layout is the compiler's."""

import ctypes
import os
import re
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "abi"))
import abi

C_TYPES = {
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "const char *": ctypes.c_char_p,
    "attn_parallel_for": ctypes.c_void_p,
}


class Refused(Exception):
    """libattn returned a status other than ATTN_OK."""


def c_type(kind, array):
    if kind in C_TYPES:
        base = C_TYPES[kind]
    elif kind.endswith("*"):
        base = ctypes.c_void_p
    else:
        base = ctypes.c_int  # an enum: its size is checked below
    count = re.fullmatch(r"\[(\d+)\]", array)
    return base * int(count.group(1)) if count else base


def read_header(cc):
    """Values by name, ctypes structs by name; ends if ctypes lays a struct out in another way than the compiler."""
    _, names, structs = abi.parse(abi.public_text(cc))
    values, types = {}, {}
    for name in ("attn_desc", "attn_args"):
        fields = [(field, c_type(kind, array)) for kind, field, array in structs[name]]
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    for line in abi.lay_out(cc, names, {name: structs[name] for name in types}):
        part = line.split()
        if part[0] == "value":
            values[part[1]] = int(part[2])
        elif part[0] == "struct" and ctypes.sizeof(types[part[1]]) != int(part[3]):
            sys.exit(f"{part[1]} has {part[3]} bytes, as ctypes lays it out {ctypes.sizeof(types[part[1]])}")
        elif part[0] == "field":
            struct, field = part[1].split(".")
            mine = getattr(types[struct], field)
            if (mine.offset, mine.size) != (int(part[-3]), int(part[-1])):
                sys.exit(f"{part[1]} lies at {part[-3]} of size {part[-1]}, as ctypes lays it out at {mine.offset}")
    return values, types


class Host:
    """Arrays stay where they are."""

    def place(self, array):
        return array.ctypes.data if array.size else 0

    def bytes(self, count):
        self.workspace = np.full(count, 0xFF, np.uint8)
        return self.place(self.workspace)

    def finish(self, placed):
        pass


class Cuda:
    """Copies of arrays in the memory of the first GPU, through libcuda alone."""

    def __init__(self):
        try:
            self.driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            sys.exit(f"--device cuda: {error}")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.held = []

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorString(status, ctypes.byref(text))
            sys.exit(f"{name}: {text.value.decode() if text.value else status}")

    def bytes(self, count):
        if not count:
            return 0
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(count))
        self.held.append(at)
        return at.value

    def place(self, array):
        at = self.bytes(array.nbytes)
        if at:
            data = ctypes.c_void_p(array.ctypes.data)
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(at), data, ctypes.c_size_t(array.nbytes))
        return at

    def finish(self, placed):
        """Waits, copies (address, array) pairs back, frees everything."""
        self.call("cuCtxSynchronize")
        for at, array in placed:
            if at:
                data = ctypes.c_void_p(array.ctypes.data)
                self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(at), ctypes.c_size_t(array.nbytes))
        self.release()

    def release(self):
        for at in self.held:
            self.call("cuMemFree_v2", at)
        self.held = []


class Library:
    def __init__(self, path, device, cc, threads=0):
        self.values, self.types = read_header(cc)
        self.device, self.threads = device, threads
        self.memory = Cuda() if device == "cuda" else Host()
        self.attn = ctypes.CDLL(os.path.abspath(path))
        self.attn.attn_error.restype = self.attn.attn_version.restype = ctypes.c_char_p
        self.attn.attn_status_name.restype = ctypes.c_char_p
        self.attn.attn_plan_workspace.restype = ctypes.c_size_t
        self.attn.attn_plan_workspace.argtypes = self.attn.attn_plan_destroy.argtypes = [ctypes.c_void_p]

    def version(self):
        return self.attn.attn_version().decode()

    def check(self, status):
        if status != self.values["ATTN_OK"]:
            name = self.attn.attn_status_name(status).decode()
            raise Refused(f"{name}: {self.attn.attn_error().decode()}")

    def run(self, desc, inputs, outputs, seed=0):
        """desc: fields by name, values and flags (a set) without ATTN_; inputs, outputs: arrays by the names of
        attn_args, an input maybe with the bytes before its first element. Outputs are written in place."""
        fields = dict(desc, device=self.device.upper())
        if self.device == "cpu":
            fields["threads"] = self.threads
        described = self.types["attn_desc"]()
        for name, value in fields.items():
            if name == "flags":
                value = sum(self.values["ATTN_" + flag] for flag in value)
            elif isinstance(value, str):
                value = self.values["ATTN_" + value]
            elif isinstance(value, (tuple, list)):
                value = (ctypes.c_int64 * 4)(*value)
            if not hasattr(described, name):
                raise KeyError(f"attn_desc has no field {name}")
            setattr(described, name, value)
        plan = ctypes.c_void_p()
        size = ctypes.c_size_t(ctypes.sizeof(described))
        self.check(self.attn.attn_plan_create_sized(ctypes.byref(plan), ctypes.byref(described), size))
        try:
            workspace = self.memory.bytes(self.attn.attn_plan_workspace(plan))
            given, placed = self.types["attn_args"](seed=seed), []
            for name, array in {**inputs, **outputs}.items():
                array, before = array if isinstance(array, tuple) else (array, 0)
                if not hasattr(given, name):
                    raise KeyError(f"attn_args has no field {name}")
                if not array.flags.c_contiguous:
                    raise ValueError(f"{name} is not contiguous")
                at = self.memory.place(array)
                setattr(given, name, at + before)
                if name in outputs:
                    placed.append((at, array))
            size = ctypes.c_size_t(ctypes.sizeof(given))
            status = self.attn.attn_run_sized(plan, ctypes.byref(given), size, ctypes.c_void_p(workspace), None)
            if status != self.values["ATTN_OK"] and self.device == "cuda":
                self.memory.release()
            self.check(status)
            self.memory.finish(placed)
        finally:
            self.attn.attn_plan_destroy(plan)


def to_bits(x, dtype):
    """x rounded to "f32", "f16" or "bf16", as libattn stores it."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    if dtype == "f32":
        return x
    if dtype == "f16":
        return x.astype(np.float16)
    bits = x.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def from_bits(stored, dtype):
    """What libattn stored, as f32."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def rounded(x, dtype):
    return from_bits(to_bits(x, dtype), dtype)


def poisoned(shape, dtype):
    """An array full of NaN: what a run does not write shows."""
    return to_bits(np.full(shape, np.nan), dtype)


def packed_bits(visible):
    """Booleans (batch, head, row, key) as attn_args.bits."""
    return np.packbits(visible, axis=-1, bitorder="little")


def causal_from(offset, len_q, len_kv):
    """How libattn says "row i sees keys j <= i + offset" (0 <= offset): flags, fields, keys that are used.

    libattn's row i is at i + len_kv - len_q. Keys that no row sees are left out; where there are fewer keys than
    that, the rows' places lie before i + offset, by as much as a window's right edge then gives."""
    used = min(len_kv, len_q + offset)
    if used == len_q + offset:
        return {"CAUSAL"}, {}, used
    return {"WINDOW"}, {"window_left": -1, "window_right": len_q + offset - used}, used
