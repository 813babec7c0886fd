"""The ctypes structs are those of attn.h and attn_parallel.h: the files of tests/abi, which the C tests compare with a
compiler, list each field's offset and size and each value."""
import ctypes
import pathlib
import re

import pytest

from libattn import _c, _parallel

ABI = "".join((pathlib.Path(__file__).parents[2] / "tests" / "abi" / name).read_text()
              for name in ("attn.abi", "attn_parallel.abi"))
STRUCTS = {"attn_desc": _c.Desc, "attn_args": _c.Args, "attn_kv_layout": _c.KvLayout, "attn_plan_info": _c.PlanInfo,
           "attn_pool_desc": _c.PoolDesc, "attn_pool_stats": _c.PoolStats, "attn_seq": _c.Seq,
           "attn_page_copies": _c.PageCopies, "attn_pool_level": _c.PoolLevel,
           "attn_cascade_level": _c.CascadeLevel, "attn_cascade_info": _c.CascadeInfo,
           "attn_cascade_keys": _c.CascadeKeys, "attn_kv_desc": _c.KvDesc, "attn_kv_args": _c.KvArgs,
           "attn_merge_desc": _c.MergeDesc, "attn_merge_args": _c.MergeArgs, "attn_engine": _parallel.Engine,
           "attn_parallel_desc": _parallel.How, "attn_parallel_info": _parallel.Info,
           "attn_quant_desc": _c.QuantDesc, "attn_quant_args": _c.QuantArgs}


@pytest.mark.parametrize("name", STRUCTS)
def test_struct(name):
    text, struct = ABI, STRUCTS[name]
    fields = re.findall(rf"^field {name}\.(\w+) .* at (\d+) size (\d+)$", text, re.M)
    members = [(field, getattr(struct, field)) for field, _ in struct._fields_]
    ours = [(field, str(member.offset), str(member.size)) for field, member in members]
    assert ours == fields
    size, align = re.search(rf"^struct {name} size (\d+) align (\d+)$", text, re.M).groups()
    assert (ctypes.sizeof(struct), ctypes.alignment(struct)) == (int(size), int(align))


def test_values():
    values = dict(re.findall(r"^value ATTN_(\w+) (\d+)$", ABI, re.M))
    for name in _c.FLAGS + _c.KV_FLAGS + _c.QUANT_FLAGS + ("KV_APPEND", "POOL_PREFIX"):
        assert getattr(_c, name) == int(values[name]), name
    for name, code in _c.DTYPES.items():
        assert code == int(values[{"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}[name]])
    assert _c.BYTE_DTYPES == {"float8_e4m3fn": int(values["E4M3"]), "int8": int(values["I8"])}
    for name, code in _c.ISAS.items():
        assert code == int(values["ISA_" + name.upper()])
    assert (_c.CPU, _c.CUDA, _c.FORWARD, _c.BACKWARD) == tuple(
        int(values[name]) for name in ("CPU", "CUDA", "FORWARD", "BACKWARD"))
    assert _parallel.LAYOUTS == {name.lower(): int(values[name]) for name in ("CONTIGUOUS", "ZIGZAG")}
    assert _parallel.SCHEDULES == {"auto": int(values["SCHEDULE_AUTO"]), "ring": int(values["RING"]),
                                   "all-gather": int(values["ALL_GATHER"])}
    statuses = {"INVALID": _c.InvalidError, "UNSUPPORTED": _c.UnsupportedError, "NO_MEMORY": _c.NoMemoryError,
                "DEVICE_FAILED": _c.DeviceError, "POOL_FULL": _c.PoolFullError,
                "RANK_FAILED": _c.RankFailedError}
    assert _c._ERRORS == {int(values[name]): kind for name, kind in statuses.items()}
