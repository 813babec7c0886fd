"""libattn_parallel by ctypes: its structs and functions as include/attn_parallel.h declares them, and its layouts.

The library lies beside libattn and is loaded when it is first used. The structs' layouts are compared with a C
compiler's by python/tests/test_layout.py.
"""
from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, List, Optional, Tuple

from . import _c, _problem

_void, _i32, _i64, _f64, _size = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_size_t
_two = _i64 * 2

LAYOUTS = {"contiguous": 0, "zigzag": 1}
SCHEDULES = {"auto": 0, "all-gather": 1, "ring": 2}
TRANSPORTS = {"nccl": 0, "peer": 1}


class Engine(ctypes.Structure):
    """attn_engine: what carries bytes between ranks."""

    _fields_ = [
        ("context", _void), ("rank", _i32), ("ranks", _i32),
        ("exchange", ctypes.CFUNCTYPE(ctypes.c_int, _void, _i32, _void, _size, _i32, _void, _size, _void)),
        ("wait", ctypes.CFUNCTYPE(ctypes.c_int, _void, _void)),
        ("all_gather", ctypes.CFUNCTYPE(ctypes.c_int, _void, _void, _void, _size, _void)),
        ("reduce_scatter", ctypes.CFUNCTYPE(ctypes.c_int, _void, _void, _void, _size, _void)),
        ("abort", ctypes.CFUNCTYPE(None, _void)), ("device", ctypes.c_int),
        ("tell", ctypes.CFUNCTYPE(ctypes.c_int, _void, _void, _void, _size)),
        ("window", ctypes.CFUNCTYPE(ctypes.c_int, _void, _size, _void)),
        ("put", ctypes.CFUNCTYPE(ctypes.c_int, _void, _i32, _size, _void, _size, _void)),
    ]


class How(ctypes.Structure):
    """attn_parallel_desc: ranks, layout and schedule."""

    _fields_ = [("ranks", _i32), ("rank", _i32), ("layout", ctypes.c_int), ("schedule", ctypes.c_int),
                ("memory", ctypes.c_uint64), ("link", _f64), ("pieces", _i32)]


class Info(ctypes.Structure):
    """attn_parallel_info: a plan in numbers."""

    _fields_ = [
        ("schedule", ctypes.c_int), ("why", ctypes.c_char_p), ("chunks", _i32), ("ranks", _i32), ("rank", _i32),
        ("row_begin", _two), ("row_end", _two), ("key_begin", _two), ("key_end", _two), ("rows", _i64), ("keys", _i64),
        ("workspace_bytes", ctypes.c_uint64), ("sent_bytes", _f64), ("pairs", _f64), ("seconds", _f64),
    ]


class _Library:
    """The functions of libattn_parallel."""

    def __init__(self, path: str):
        try:
            function = functools.partial(_c.declared, ctypes.CDLL(path), ctypes.PyDLL(path))
        except OSError as problem:
            raise _c.UnsupportedError(
                f"{path} does not load here: {problem}. Attention over ranks is in libattn_parallel.so, which is built "
                "and installed with libattn.so and is looked for in the same folder") from None
        status, struct = ctypes.c_int, ctypes.POINTER
        self.plan_create = function("attn_parallel_plan_create_sized", status, struct(_void), struct(_c.Desc), _size,
                                    struct(How), _size, struct(Engine), _size)
        self.plan_destroy = function("attn_parallel_plan_destroy", None, _void)
        self.plan_describe = function("attn_parallel_plan_describe", _size, _void, _void, _size)
        self.plan_get_info = function("attn_parallel_plan_get_info_sized", status, _void, struct(Info), _size)
        self.run = function("attn_parallel_run_sized", status, _void, struct(_c.Args), _size, _void, _void)
        self.nccl_id = function("attn_nccl_id", status, _void)
        made = struct(struct(Engine))
        self.nccl_engine_join = function("attn_nccl_engine_join", status, made, _void, _i32, _i32, _f64)
        self.peer_engine_create = function("attn_peer_engine_create", status, made, struct(Engine), _f64)


@functools.lru_cache(maxsize=None)
def library() -> _Library:
    """libattn_parallel; raises UnsupportedError where it is missing."""
    return _Library(os.path.join(os.path.dirname(_c.library_path), "libattn_parallel.so"))


NCCL_ID_BYTES = 128


def nccl_id() -> bytes:
    """What one rank makes for all that join."""
    made = ctypes.create_string_buffer(NCCL_ID_BYTES)
    _c.check(library().nccl_id(made))
    return made.raw


def nccl_engine(unique: bytes, rank: int, ranks: int, timeout: float) -> Engine:
    """An engine over NCCL with a communicator of its own, for the current device: a call of all ranks. It stays until
    the process ends, for nobody can say when the others are done with it."""
    engine = ctypes.POINTER(Engine)()
    _c.check(library().nccl_engine_join(ctypes.byref(engine), unique, rank, ranks, timeout))
    return engine.contents


def peer_engine(by: Engine, timeout: float) -> Engine:
    """An engine into other GPUs' memory: likewise."""
    engine = ctypes.POINTER(Engine)()
    _c.check(library().peer_engine_create(ctypes.byref(engine), by, timeout))
    return engine.contents


class Plan(_problem.Handle):
    """How the ranks compute one problem. Making one with an engine is a call of all ranks."""

    def __init__(self, desc: _c.Desc, how: How, engine: Optional[Engine] = None):
        functions, self._engine = library(), engine  # the engine's functions live as long as the plan
        super().__init__(desc, lambda *given: functions.plan_create(*given, *_sized(how), *_sized(engine)),
                         functions.plan_destroy)
        #: Of this rank.
        self.workspace_bytes: int = self.info.workspace_bytes

    @property
    def info(self) -> Info:
        info = Info()
        _c.check(library().plan_get_info(self._handle, info, ctypes.sizeof(info)))
        return info


def refuse(how: How, engine: Engine) -> None:
    """Takes part in making a plan, as a rank that has no problem: raises, as it does for all ranks."""
    _c.check(library().plan_create(_void(), None, 0, *_sized(how), *_sized(engine)))


def _sized(struct: Optional[ctypes.Structure]) -> Tuple[Any, int]:
    return struct, 0 if struct is None else ctypes.sizeof(struct)


@functools.lru_cache(maxsize=1024)
def parts(length: int, ranks: int, layout: str) -> List[Tuple[Tuple[int, int], ...]]:
    """Of each rank the (begin, end) of the rows that it holds, of `length`: one or two, which may be empty."""
    desc = _c.Desc(dtype=_c.DTYPES["float32"], batch=1, heads_q=1, heads_kv=1, len_q=length, len_kv=length, dim_qk=1)
    held = []
    for rank in range(ranks):
        how = How(ranks=ranks, rank=rank, layout=LAYOUTS[layout], schedule=SCHEDULES["all-gather"])
        info = Plan(desc, how).info
        held.append(tuple((info.row_begin[i], info.row_end[i]) for i in range(info.chunks)))
    return held
