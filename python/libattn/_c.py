"""The C library by ctypes: its structs and functions as include/attn.h declares them, and its statuses as exceptions.

Everything else in this package goes through here. The layouts are compared with a C compiler's by
python/tests/test_layout.py.
"""
from __future__ import annotations

import ctypes
import functools
import os
import re
from typing import Any, NoReturn

_void, _i32, _i64, _f32, _f64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_double
_four = _i64 * 4

DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4}
BYTE_DTYPES = {"float8_e4m3fn": 5, "int8": 7}
ANY_DTYPES = {**DTYPES, **BYTE_DTYPES}
CPU, CUDA = 0, 1
FORWARD, BACKWARD = 0, 1
ISAS = {"auto": 0, "portable": 1, "avx2": 2, "avx512": 3, "avx512bf16": 4, "amx": 5, "neon": 6}

# attn_desc.flags
FLAGS = ("CAUSAL", "WINDOW", "CHUNK", "PREFIX", "INTERVALS", "BLOCKS", "BITS", "VARLEN", "LENS_Q", "LENS_KV", "SOFTCAP",
         "ALIBI", "BIAS", "SINK", "DROPOUT", "OUT_F32", "DETERMINISTIC", "PAGED",
         "FIRST_KV", "POSITIONS", "SCALES_KV", "SCALES_Q", "DROPOUT_BASES", "DELTA", "ADD")
(CAUSAL, WINDOW, CHUNK, PREFIX, INTERVALS, BLOCKS, BITS, VARLEN, LENS_Q, LENS_KV, SOFTCAP, ALIBI, BIAS, SINK, DROPOUT,
 OUT_F32, DETERMINISTIC, PAGED, FIRST_KV, POSITIONS, SCALES_KV, SCALES_Q, DROPOUT_BASES, DELTA, ADD) = (
     1 << bit for bit in range(len(FLAGS)))


class Desc(ctypes.Structure):
    """attn_desc: what is wanted and how large it may get."""

    _fields_ = [
        ("dtype", ctypes.c_int), ("direction", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_uint32),
        ("batch", _i64), ("heads_q", _i64), ("heads_kv", _i64), ("len_q", _i64), ("len_kv", _i64),
        ("total_q", _i64), ("total_kv", _i64), ("dim_qk", _i64), ("dim_v", _i64),
        ("scale", _f32), ("softcap", _f32), ("dropout_p", _f32),
        ("window_left", _i64), ("window_right", _i64), ("chunk", _i64),
        ("interval_vectors", _i64), ("interval_heads", _i64), ("block_rows", _i64), ("block_keys", _i64),
        ("block_batch", _i64), ("block_heads", _i64), ("bits_batch", _i64), ("bits_heads", _i64),
        ("alibi_batch", _i64), ("bias_dtype", ctypes.c_int), ("bias_extent", _four), ("bias_stride", _four),
        ("q_stride", _four), ("k_stride", _four), ("v_stride", _four), ("o_stride", _four),
        ("threads", _i32), ("isa", ctypes.c_int), ("kernel", ctypes.c_char_p),
        ("parallel_for", _void), ("parallel_context", _void),
        ("grad_o_stride", _four), ("grad_q_stride", _four), ("grad_k_stride", _four), ("grad_v_stride", _four),
        ("visible_share", _f64), ("strategy", ctypes.c_char_p),
        ("pages", _i64), ("page_size", _i64), ("table_width", _i64), ("table_total", _i64), ("bits_keys", _i64),
        ("scale_f64", _f64), ("kv_dtype", ctypes.c_int), ("out_dtype", ctypes.c_int),
        ("q_scale_rows", _i64), ("k_scale_rows", _i64), ("v_scale_rows", _i64), ("q_scale_heads", _i64),
        ("q_scale_stride", _four), ("k_scale_stride", _four), ("v_scale_stride", _four),
        ("grad_dtype", ctypes.c_int), ("alignment", _i64),
    ]


class PlanInfo(ctypes.Structure):
    """attn_plan_info: a plan in numbers."""

    _fields_ = [
        ("kernel", ctypes.c_char_p), ("isa", ctypes.c_char_p), ("why", ctypes.c_char_p),
        ("threads", _i32), ("splits", _i32), ("q_tile", _i64), ("kv_tile", _i64), ("packed_kv_heads", _i64),
        ("workspace_bytes", ctypes.c_uint64), ("packed_kv_bytes", ctypes.c_uint64), ("pairs", _f64), ("flops", _f64),
        ("memory_bytes", _f64), ("cache_bytes", _f64), ("seconds", _f64), ("strategy", ctypes.c_char_p),
    ]


class KvLayout(ctypes.Structure):
    """attn_kv_layout: where k and v of one run lie."""

    _fields_ = [("len_kv", _i64), ("k_stride", _four), ("v_stride", _four)]


class Args(ctypes.Structure):
    """attn_args: the tensors of a run, by address."""

    _fields_ = [(name, _void) for name in (
        "q", "k", "v", "o", "lse", "cu_lens_q", "cu_lens_kv", "lens_q", "lens_kv", "prefix", "intervals",
        "block_full_count", "block_full", "block_partial_count", "block_partial", "bits", "alibi", "bias", "sink",
    )] + [("seed", ctypes.c_uint64), ("seed_offset", ctypes.c_uint32)] + [(name, _void) for name in (
        "grad_o", "grad_lse", "grad_q", "grad_k", "grad_v", "grad_bias", "grad_alibi", "grad_sink",
        "seed_at", "seed_offset_at", "page_table", "page_starts", "first_kv", "position_q", "position_kv", "fault",
        "q_scale", "k_scale", "v_scale", "o_scale",
        "dropout_row", "dropout_key", "dropout_head", "delta",
    )] + [("kv_layout", _void)]


class MergeDesc(ctypes.Structure):
    """attn_merge_desc: which partial results are merged."""

    _fields_ = [
        ("dtype", ctypes.c_int), ("out_dtype", ctypes.c_int), ("device", ctypes.c_int), ("parts", _i32),
        ("batch", _i64), ("rows", _i64), ("heads", _i64), ("dim", _i64), ("part_stride", _four), ("o_stride", _four),
        ("threads", _i32), ("parallel_for", _void), ("parallel_context", _void), ("first_dtype", ctypes.c_int),
        ("first_stride", _four), ("sums", _i32),
    ]


class MergeArgs(ctypes.Structure):
    """attn_merge_args: arrays of the parts' addresses, and the outputs."""

    _fields_ = [(name, _void) for name in ("part_o", "part_lse", "o", "lse")]


# attn_quant_desc.flags
QUANT_FLAGS = ("QUANT_VARLEN", "QUANT_MEAN", "QUANT_DOT")
QUANT_VARLEN, QUANT_MEAN, QUANT_DOT = 1, 2, 4


class QuantDesc(ctypes.Structure):
    """attn_quant_desc: how a tensor becomes bytes and scales."""

    _fields_ = [
        ("dtype", ctypes.c_int), ("out_dtype", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_uint32),
        ("batch", _i64), ("heads", _i64), ("dim", _i64), ("rows", _i64), ("total", _i64), ("rotate", _i64),
        ("seed", ctypes.c_uint64), ("x_stride", _four), ("out_stride", _four),
        ("scale_rows", _i64), ("scale_heads", _i64), ("scale_stride", _four), ("mean_heads", _i64),
        ("threads", _i32), ("parallel_for", _void), ("parallel_context", _void),
    ]


class QuantArgs(ctypes.Structure):
    """attn_quant_args: the arrays, by address."""

    _fields_ = [(name, _void) for name in ("x", "out", "scale", "cu_lens", "mean", "dot")]


class KvDesc(ctypes.Structure):
    """attn_kv_desc: an operation on pages of a KV cache."""

    _fields_ = [("op", ctypes.c_int), ("dtype", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_uint32)] + [
        (name, _i64) for name in ("pages", "page_size", "heads_kv", "dim_qk", "dim_v", "tokens", "batch", "table_width",
                                  "table_total", "len_kv", "pages_from", "copies", "heads_q", "rotary_dim", "positions")
    ] + [(name + "_stride", _four) for name in ("k_pages", "v_pages", "k_from", "v_from", "k", "v", "q", "q_out")] + [
        ("threads", _i32), ("parallel_for", _void), ("parallel_context", _void),
        ("pages_dtype", ctypes.c_int), ("k_scale_rows", _i64), ("v_scale_rows", _i64)] + [
        (name + "_stride", _four) for name in ("k_scale", "v_scale", "k_scale_from", "v_scale_from")]


class KvArgs(ctypes.Structure):
    """attn_kv_args: the tensors of such an operation, by address."""

    _fields_ = [(name, _void) for name in ("k", "v", "k_pages", "v_pages", "q", "q_out", "k_out", "v_out", "k_from",
                                           "v_from")] + [("count", _i64)] + [
        (name, _void) for name in ("slots", "positions", "cu_lens", "lens_kv", "page_table", "page_starts", "pairs",
                                   "cos", "sin", "fault", "k_scale", "v_scale", "k_scale_from", "v_scale_from")]


class PoolDesc(ctypes.Structure):
    """attn_pool_desc: what a pool of KV pages holds."""

    _fields_ = [(name, _i64) for name in ("pages", "page_size", "sequences", "width")] + [
        ("flags", ctypes.c_uint32), ("seed", ctypes.c_uint64 * 2)]


class PoolStats(ctypes.Structure):
    """attn_pool_stats."""

    _fields_ = [(name, _i64) for name in ("pages", "free", "cached", "used", "shared", "indexed", "evicted", "sequences",
                                          "tokens", "waste")]


class Seq(ctypes.Structure):
    """attn_seq: a sequence of a pool."""

    _fields_ = [("generation", ctypes.c_uint64), ("index", ctypes.c_uint32)]


class PoolLevel(ctypes.Structure):
    """attn_pool_level: a level of a batch, as a pool writes it."""

    _fields_ = [(name, _void) for name in ("cu_lens_q", "lens_kv", "table")] + [("groups", _i64), ("saved", _i64)]


class CascadeLevel(ctypes.Structure):
    """attn_cascade_level: a shared level's limits."""

    _fields_ = [(name, _i64) for name in ("groups", "len_q", "len_kv", "table_width", "table_total")] + [
        ("kernel", ctypes.c_char_p), ("strategy", ctypes.c_char_p)]


class CascadeInfo(ctypes.Structure):
    """attn_cascade_info: a cascade's plan in numbers."""

    _fields_ = [("seconds", _f64), ("seconds_alone", _f64), ("workspace_bytes", ctypes.c_uint64), ("saved_least", _i64),
                ("seconds_captured", _f64)]


class CascadeKeys(ctypes.Structure):
    """attn_cascade_keys: a shared level's tables."""

    _fields_ = [(name, _void) for name in ("cu_lens_q", "lens_kv", "page_table", "page_starts")]


class PageCopies(ctypes.Structure):
    """attn_page_copies: pairs of pages to be copied."""

    _fields_ = [("pairs", _void), ("room", _i64), ("count", _i64), ("id", ctypes.c_uint64), ("from", _void),
                ("to", _void)]


POOL_PREFIX = 1
KV_APPEND = 1  # attn_kv_op
KV_FLAGS = ("KV_SLOTS", "KV_ROTARY", "KV_ROTARY_Q", "KV_INTERLEAVED", "KV_POSITIONS", "KV_PACKED", "KV_SCALES",
            "KV_TOKEN_SCALES")
(KV_SLOTS, KV_ROTARY, KV_ROTARY_Q, KV_INTERLEAVED, KV_POSITIONS, KV_PACKED, KV_SCALES, KV_TOKEN_SCALES) = (
    1 << bit for bit in range(len(KV_FLAGS)))


class Error(RuntimeError):
    """A call of the C library failed; the message is the library's own and names the field and its value."""


class InvalidError(Error, ValueError):
    """ATTN_INVALID: an argument is out of range or contradicts another."""


class UnsupportedError(Error, NotImplementedError):
    """ATTN_UNSUPPORTED: valid, but not built into this library or not run by this machine."""


class NoMemoryError(Error, MemoryError):
    """ATTN_NO_MEMORY: the system gave no memory or no thread."""


class DeviceError(Error):
    """ATTN_DEVICE_FAILED: the GPU's driver or compiler reported an error."""


class PoolFullError(Error):
    """ATTN_POOL_FULL: a pool of KV pages has no page or no sequence left."""


class RankFailedError(Error):
    """ATTN_RANK_FAILED: another rank failed, or what connects the ranks."""


UNSUPPORTED = 2
_ERRORS = {1: InvalidError, UNSUPPORTED: UnsupportedError, 3: NoMemoryError, 4: DeviceError, 5: PoolFullError,
           6: RankFailedError}


def _path() -> str:
    """The library: LIBATTN_LIBRARY, or the one in this package, or (in a source tree) the one in build/."""
    named = os.environ.get("LIBATTN_LIBRARY")
    if named:
        return named
    package = os.path.dirname(os.path.realpath(__file__))
    for folder in (package, os.path.join(os.path.dirname(os.path.dirname(package)), "build")):
        path = os.path.join(folder, "libattn.so")
        if os.path.exists(path):
            return path
    raise ImportError(f"libattn.so is neither in {package} nor in build/ of its source tree; pip install . puts it "
                      "there, and the environment variable LIBATTN_LIBRARY can name another")


library_path = _path()
try:
    _lib = ctypes.CDLL(library_path)
    _lib.attn_version
except (OSError, AttributeError) as problem:
    raise ImportError(f"{library_path} is no libattn.so that loads here: {problem}. The library in the package, or in "
                      "build/ of its source tree, is taken unless the environment variable LIBATTN_LIBRARY names "
                      "another") from None
# What ends a handle keeps the GIL: it may run while an interpreter ends, when a GIL once given up never comes back.
_ending = ctypes.PyDLL(library_path)


def declared(library: ctypes.CDLL, ending: ctypes.PyDLL, name: str, result: Any, *arguments: Any) -> Any:
    """A function of a library, which is loaded in both ways, with its types."""
    function = getattr(ending if name.endswith("_destroy") else library, name)
    function.restype, function.argtypes = result, arguments
    return function


_function = functools.partial(declared, _lib, _ending)
error = _function("attn_error", ctypes.c_char_p)
status_name = _function("attn_status_name", ctypes.c_char_p, ctypes.c_int)
version = _function("attn_version", ctypes.c_char_p)
plan_create = _function("attn_plan_create_sized", ctypes.c_int, ctypes.POINTER(_void), ctypes.POINTER(Desc),
                        ctypes.c_size_t)
plan_destroy = _function("attn_plan_destroy", None, _void)
plan_workspace = _function("attn_plan_workspace", ctypes.c_size_t, _void)
plan_describe = _function("attn_plan_describe", ctypes.c_size_t, _void, _void, ctypes.c_size_t)
plan_get_info = _function("attn_plan_get_info_sized", ctypes.c_int, _void, ctypes.POINTER(PlanInfo), ctypes.c_size_t)
run = _function("attn_run_sized", ctypes.c_int, _void, ctypes.POINTER(Args), ctypes.c_size_t, _void, _void)
check_args = _function("attn_check_sized", ctypes.c_int, _void, ctypes.POINTER(Args), ctypes.c_size_t)
merge_plan_create = _function("attn_merge_plan_create_sized", ctypes.c_int, ctypes.POINTER(_void),
                              ctypes.POINTER(MergeDesc), ctypes.c_size_t)
merge_plan_destroy = _function("attn_merge_plan_destroy", None, _void)
merge_run = _function("attn_merge_run_sized", ctypes.c_int, _void, ctypes.POINTER(MergeArgs), ctypes.c_size_t, _void)
quant_plan_create = _function("attn_quant_plan_create_sized", ctypes.c_int, ctypes.POINTER(_void),
                              ctypes.POINTER(QuantDesc), ctypes.c_size_t)
quant_plan_destroy = _function("attn_quant_plan_destroy", None, _void)
quant_run = _function("attn_quant_run_sized", ctypes.c_int, _void, ctypes.POINTER(QuantArgs), ctypes.c_size_t, _void)
kv_plan_create = _function("attn_kv_plan_create_sized", ctypes.c_int, ctypes.POINTER(_void), ctypes.POINTER(KvDesc),
                           ctypes.c_size_t)
kv_plan_destroy = _function("attn_kv_plan_destroy", None, _void)
kv_run = _function("attn_kv_run_sized", ctypes.c_int, _void, ctypes.POINTER(KvArgs), ctypes.c_size_t, _void)
cascade_plan_create = _function("attn_cascade_plan_create_sized", ctypes.c_int, ctypes.POINTER(_void),
                                ctypes.POINTER(Desc), ctypes.c_size_t, _void, ctypes.c_size_t, _i32)
cascade_plan_destroy = _function("attn_cascade_plan_destroy", None, _void)
cascade_plan_workspace = _function("attn_cascade_plan_workspace", ctypes.c_size_t, _void)
cascade_plan_describe = _function("attn_cascade_plan_describe", ctypes.c_size_t, _void, _void, ctypes.c_size_t)
cascade_plan_get_info = _function("attn_cascade_plan_get_info_sized", ctypes.c_int, _void, ctypes.POINTER(CascadeInfo),
                                  ctypes.c_size_t)
cascade_run = _function("attn_cascade_run_sized", ctypes.c_int, _void, ctypes.POINTER(Args), ctypes.c_size_t, _void,
                        ctypes.c_size_t, _void, _void)
machine_use = _function("attn_machine_use", ctypes.c_int, ctypes.c_char_p)
isa_available = _function("attn_isa_available", ctypes.c_int, ctypes.c_int)

_copies = ctypes.POINTER(PageCopies)
pool_memory = _function("attn_pool_memory_sized", ctypes.c_size_t, ctypes.POINTER(PoolDesc), ctypes.c_size_t)
pool_create = _function("attn_pool_create_sized", ctypes.c_int, ctypes.POINTER(_void), ctypes.POINTER(PoolDesc),
                        ctypes.c_size_t, _void, ctypes.c_size_t)
pool_get_stats = _function("attn_pool_get_stats_sized", ctypes.c_int, _void, ctypes.POINTER(PoolStats), ctypes.c_size_t)
pool_forget = _function("attn_pool_forget", ctypes.c_int, _void)
pool_tables = _function("attn_pool_tables", ctypes.c_int, _void, _void, _i64, _void, _i64, _void)
pool_levels = _function("attn_pool_levels", ctypes.c_int, _void, _void, _i64, _void, _i64, _i64, _void, _i32)
seq_create = _function("attn_seq_create", ctypes.c_int, _void, ctypes.c_uint64, ctypes.POINTER(Seq))
seq_match = _function("attn_seq_match", ctypes.c_int, _void, Seq, _void, _i64, ctypes.POINTER(_i64))
seq_fork = _function("attn_seq_fork", ctypes.c_int, _void, Seq, ctypes.POINTER(Seq))
seq_append = _function("attn_seq_append", ctypes.c_int, _void, Seq, _void, _i64, _copies)
seq_publish = _function("attn_seq_publish", ctypes.c_int, _void, Seq)
seq_truncate = _function("attn_seq_truncate", ctypes.c_int, _void, Seq, _i64)
seq_drop = _function("attn_seq_drop", ctypes.c_int, _void, Seq, _i64)
seq_move = _function("attn_seq_move", ctypes.c_int, _void, Seq, _void, ctypes.POINTER(Seq), _copies)
seq_free = _function("attn_seq_free", ctypes.c_int, _void, Seq)
seq_length = _function("attn_seq_length", _i64, _void, Seq)



class Unpicklable:
    """What lies in this process's memory: no copy of it holds the same, and no other process finds anything there."""

    _instead = ""  # what to do instead

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} of libattn cannot be copied or pickled: {self._instead}")


class Shared(Unpicklable):
    """The same, of what never changes: a copy is the object itself, so that what it holds is ended once."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


ARGS_SIZE, KV_ARGS_SIZE, MERGE_ARGS_SIZE = ctypes.sizeof(Args), ctypes.sizeof(KvArgs), ctypes.sizeof(MergeArgs)


def check(status: int, packed: bool = False) -> None:
    """Raises the exception of a status other than ATTN_OK, with the calling thread's last message. packed: of a call
    whose len_q and len_kv are named max_len_q and max_len_kv, and whose totals are the rows of q and k."""
    if status:
        message = error().decode("utf-8", "replace")
        if packed:
            message = re.sub(r"\b(len_(?:q|kv)) = ", r"max_\1 = ", message)
            message = re.sub(r"\btotal_(q|k)v? = (\d+)", r"the \2 rows of \1", message)
        raise _ERRORS.get(status, Error)(message)
