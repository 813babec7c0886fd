"""Runs the cases of cases.py on libattn and holds the results against reference.py."""

import time

import numpy as np

import cases
import reference
from library import Refused, causal_from, from_bits, poisoned, to_bits

LSE = 2e-5  # as check/compare.h


def describe(case):
    """desc, inputs without the tensors, rows of q and of k in the tensors."""
    dense = case.layout in ("dense", "qkvpacked", "kvpacked", "transposed", "cache")
    desc = {
        "dtype": case.dtype.upper(),
        "flags": set(),
        "batch": case.batch,
        "heads_q": case.heads,
        "heads_kv": case.heads_kv,
        "len_q": case.len_q,
        "len_kv": case.len_kv,
        "dim_qk": case.dim,
        "dim_v": case.dim_v,
        "scale": case.scale,
    }
    flags, inputs = desc["flags"], {}
    if not dense:
        flags.add("VARLEN")
        desc.update(total_q=case.cu_q[-1], total_kv=case.cu_kv[-1])
        inputs.update(cu_lens_q=np.array(case.cu_q, np.int32), cu_lens_kv=np.array(case.cu_kv, np.int32))
    if case.layout in ("used", "cache", "cache_q"):
        flags.add("LENS_KV")
        inputs["lens_kv"] = np.array([s[3] for s in case.sequences], np.int32)
    if case.layout == "used":
        flags.add("LENS_Q")
        inputs["lens_q"] = np.array([s[1] for s in case.sequences], np.int32)
    if case.causal == "bottom":
        flags.add("CAUSAL")
    elif case.causal == "top":
        more, fields, used = causal_from(0, case.len_q, case.len_kv)
        flags |= more
        desc.update(fields)
        if used < case.len_kv:
            flags.add("LENS_KV")
            inputs["lens_kv"] = np.full(case.batch, used, np.int32)
    if case.window:
        flags.add("WINDOW")
        desc.update(window_left=case.window[0], window_right=case.window[1])
    for flag, field in (("CHUNK", "chunk"), ("SOFTCAP", "softcap"), ("DROPOUT", "dropout")):
        if getattr(case, field):
            flags.add(flag)
            desc["dropout_p" if field == "dropout" else field] = getattr(case, field)
    if case.deterministic:
        flags.add("DETERMINISTIC")
    if case.alibi:
        flags.add("ALIBI")
        desc["alibi_batch"] = case.batch
    if case.mask:
        flags.add("BIAS")
        desc.update(bias_dtype=case.dtype.upper(), bias_extent=(1, 1, case.len_q, case.len_kv))
    return desc, inputs


def interleave(names, tensors, case, desc, inputs):
    """Puts the tensors back to back in each row, and says so by strides."""
    parts = [tensors[name].reshape(tensors[name].shape[0], -1) for name in names]
    whole = to_bits(np.concatenate(parts, axis=1), case.dtype)
    row, before = whole.shape[1], 0
    for name, part in zip(names, parts):
        length = case.len_q if name == "q" else case.len_kv
        desc[name + "_stride"] = (length * row, row, tensors[name].shape[2], 1)
        inputs[name] = (whole, before * whole.itemsize)
        before += part.shape[1]


def lay_out(case, tensors, desc, inputs):
    """Adds the tensors to inputs."""
    if case.layout == "qkvpacked":
        interleave(("q", "k", "v"), tensors, case, desc, inputs)
    elif case.layout == "kvpacked":
        interleave(("k", "v"), tensors, case, desc, inputs)
    for name in ("q", "k", "v"):
        if name not in inputs:
            inputs[name] = to_bits(tensors[name], case.dtype)
    if case.alibi:
        inputs["alibi"] = tensors["alibi"]
    if case.mask:
        inputs["bias"] = to_bits(tensors["bias"], case.dtype)


def inside(case):
    """Which rows of q and of k belong to a sequence."""
    rows, keys = np.zeros(case.cu_q[-1], bool), np.zeros(case.cu_kv[-1], bool)
    for start_q, len_q, start_kv, len_kv in case.sequences:
        rows[start_q : start_q + len_q] = True
        keys[start_kv : start_kv + len_kv] = True
    return rows, keys


def compute(library, case, tensors):
    """Arrays as reference.attention gives them, of libattn; NaN where it wrote nothing."""
    desc, inputs = describe(case)
    lay_out(case, tensors, desc, inputs)
    varlen = "VARLEN" in desc["flags"]
    shape = tensors["grad_o"].shape
    lse_shape = (case.heads, case.cu_q[-1]) if varlen else (case.batch, case.heads, case.len_q)
    o, lse = poisoned(shape, case.dtype), np.full(lse_shape, np.nan, np.float32)
    library.run(desc, inputs, {"o": o, "lse": lse}, seed=case.seed)
    made = {"o": from_bits(o, case.dtype)}
    if case.backward:
        grad_o = tensors["grad_o"]
        if case.layout == "transposed":
            heads, dim = grad_o.shape[1:]
            grad_o = np.ascontiguousarray(grad_o.reshape(case.batch, case.len_q, heads, dim).swapaxes(0, 1))
            desc["grad_o_stride"] = (heads * dim, case.batch * heads * dim, dim, 1)
        desc["direction"] = "BACKWARD"
        inputs.update(o=o, lse=lse, grad_o=to_bits(grad_o, case.dtype))
        outputs = {"grad_" + name: poisoned(tensors[name].shape, case.dtype) for name in ("q", "k", "v")}
        if case.mask:
            outputs["grad_bias"] = np.full(tensors["bias"].shape, np.nan, np.float32)
        library.run(desc, inputs, outputs, seed=case.seed)
        made.update({name: from_bits(x, "f32" if name == "grad_bias" else case.dtype) for name, x in outputs.items()})
    made["lse"] = lse if varlen else lse.swapaxes(0, 1).reshape(case.heads, -1)
    if case.causal == "top" and case.len_kv > case.len_q:  # keys that were left out
        for name in ("grad_k", "grad_v"):
            made[name].reshape(case.batch, case.len_kv, -1)[:, case.len_q :] = 0
    return made


def check(library, case):
    """None, or what is wrong."""
    tensors = case.tensors()
    first = compute(library, case, tensors)
    for _ in range(case.repeat - 1):
        for name, x in compute(library, case, tensors).items():
            if x.tobytes() != first[name].tobytes():
                return f"{name} has other bits in a second run"
    rows, keys = inside(case)
    parts = {"grad_k": keys, "grad_v": keys, "grad_bias": slice(None)}
    if any(not np.isfinite(x[parts.get(name, rows)]).all() for name, x in first.items() if name != "lse"):
        return "NaN or infinity in " + ", ".join(
            name for name, x in first.items() if name != "lse" and not np.isfinite(x[parts.get(name, rows)]).all()
        )
    if case.rule is None:
        return None
    wanted = reference.attention(case, tensors, backward=case.backward)
    naive = reference.attention(case, tensors, case.dtype, case.backward)
    lse, true = first["lse"][:, rows].astype(np.float64), wanted.pop("lse")[:, rows]
    finite = np.isfinite(true)
    if not (np.isneginf(lse) == np.isneginf(true)).all() or np.isnan(lse).any():
        return "the LSE is not -inf where no key is seen, or is elsewhere"
    if (abs(lse[finite] - true[finite]) > LSE * np.maximum(1, abs(true[finite]))).any():
        return f"the LSE is off by {abs(lse[finite] - true[finite]).max():.3g}"
    for name, true in wanted.items():
        part = parts.get(name, rows)
        excess = case.rule.excess(name, first[name][part].astype(np.float64), true[part], naive[name][part], case)
        if not excess <= 1:
            return f"the error of {name} is {excess:.3g} times what the rule allows"
    return None


def small_cases():
    """For the references: one of each feature."""
    common = {"lengths": (5, 7), "dim": 6, "dim_v": 3, "dtype": "f32", "sharing": "gqa", "batch": 2}
    for number, more in enumerate([
        {"causal": True, "dropout": 0.17},
        {"window": True, "softcap": 2.0, "alibi": True},
        {"chunk": True, "mask": True, "lengths": (17, 35)},
        {"layout": "varlen", "causal": True, "dropout": 0.3, "lengths": (19, 37)},
    ]):
        yield cases.Case("the harness", "references", None, {**common, **more}, number)


def run(library, quick, only, say):
    """Prints failures; returns lines (suite, cases, passed)."""
    for case in small_cases():
        reference.hold(case, case.tensors())
    counts, begin = {}, time.time()
    for number, case in enumerate(cases.all_cases()):
        if quick and (number % 16 or case.scores() > 1 << 18) or only not in case.name():
            continue
        ran, passed = counts.get((case.suite, case.test), (0, 0))
        try:
            wrong = check(library, case)
        except Refused as refusal:
            wrong = str(refusal)
        if wrong:
            print(f"FAILED {case.name()}: {wrong} ({case.words()})", flush=True)
        counts[case.suite, case.test] = ran + 1, passed + (not wrong)
        if say and time.time() - begin > 30:
            print(f"... {case.name()}", flush=True)
            begin = time.time()
    return [(f"{suite} {test}", ran, passed) for (suite, test), (ran, passed) in counts.items()]
