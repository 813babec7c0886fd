"""The cases that the package onnx has for its operator Attention, on libattn.

Each case comes twice, as the operator and, "_expanded", as a graph of simpler ones with outputs of its own; the second's
inputs are given to libattn as the first's node says.

As they are: layouts (4D: by strides; 3D is libattn's own), scale, softcap, shared heads, a float mask (a bias), a boolean
mask (bits), nonpad_kv_seqlen (lens_kv), sliding windows and is_causal at the keys' end. Composed: past and new keys are
put together here, and so are present_key and present_value; masks shorter than the keys are extended; where row i stands
at i + offset in another way than at the keys' end, as causal_from() says or, with a window, by bits. qk_matmul_output: of
probabilities, o with one-hot values; of scores, the LSE of keys that are sequences of their own.
"""

import sys
import warnings

import numpy as np

from library import Refused, causal_from, from_bits, packed_bits, poisoned, to_bits

VERSION = "1.23.1"


def testcases():
    """(onnx's version, [(name, attributes, inputs by name, outputs by name, rtol, atol)]), or None without onnx."""
    try:
        import onnx
        from onnx.backend.test.case.node import collect_testcases
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collected = {case.name: case for case in collect_testcases("Attention") if "attention" in case.name}
    found, inputs_of = [], ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
    outputs_of = ("Y", "present_key", "present_value", "qk_matmul_output")
    for case in collected.values():
        node = collected[case.name.replace("_expanded", "")].model.graph.node[0]
        assert node.op_type == "Attention", node.op_type
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        for given, wanted in case.data_sets:
            inputs = dict(zip([n for n, there in zip(inputs_of, node.input) if there], given, strict=True))
            outputs = dict(zip([n for n, there in zip(outputs_of, node.output) if there], wanted, strict=True))
            found.append((case.name, attributes, inputs, outputs, case.rtol, case.atol))
    return onnx.__version__, found


class Attention:
    """The operator: what attributes and inputs mean, tensors as (batch, head, row, dim)."""

    def __init__(self, attributes, inputs):
        self.flat = inputs["Q"].ndim == 3
        self.dtype = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[inputs["Q"].dtype.name]
        q, k, v = (self.stored(inputs[name]) for name in ("Q", "K", "V"))
        if self.flat:
            heads = {"Q": attributes["q_num_heads"], "K": attributes["kv_num_heads"]}
            q = q.reshape(*q.shape[:2], heads["Q"], -1).swapaxes(1, 2)
            k, v = (x.reshape(*x.shape[:2], heads["K"], -1).swapaxes(1, 2) for x in (k, v))
        past = 0
        if "past_key" in inputs:
            past = inputs["past_key"].shape[2]
            k = np.concatenate([self.stored(inputs["past_key"]), k], axis=2)
            v = np.concatenate([self.stored(inputs["past_value"]), v], axis=2)
        self.q, self.k, self.v = q, k, v
        self.batch, self.heads, self.len_q, self.dim = q.shape
        self.heads_kv, self.len_kv, self.dim_v = k.shape[1], k.shape[2], v.shape[3]
        self.used = inputs.get("nonpad_kv_seqlen")
        self.offset = past if self.used is None else self.used - self.len_q
        self.causal = bool(attributes.get("is_causal", 0))
        self.window = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
        self.scale, self.softcap = attributes.get("scale", 0.0), attributes.get("softcap", 0.0)
        self.mode = attributes.get("qk_matmul_output_mode", 0)
        self.mask = self.extended(inputs["attn_mask"]) if "attn_mask" in inputs else None

    @staticmethod
    def stored(x):
        return x.view(np.uint16) if x.dtype.name == "bfloat16" else x

    def extended(self, mask):
        """Of rank 4, with as many keys as there are: those that it lacks are hidden."""
        if mask.dtype.name == "bfloat16":
            mask = mask.astype(np.float32)
        hidden = False if mask.dtype == bool else -np.inf
        missing = [(0, 0)] * (mask.ndim - 1) + [(0, self.len_kv - mask.shape[-1])]
        mask = np.pad(mask, missing, constant_values=hidden)
        return mask.reshape((1,) * (4 - mask.ndim) + mask.shape)

    def seen(self):
        """What position lets each row see: (1 or batch, 1, row, key)."""
        offset = np.reshape(self.offset, (-1, 1, 1, 1))
        t, j = np.arange(self.len_q)[:, None] + offset, np.arange(self.len_kv)[None, :]
        seen = np.ones(np.broadcast_shapes(t.shape, j.shape), bool)
        if self.causal:
            seen &= j <= t
        if self.window[0] >= 0:
            seen &= j >= t - self.window[0]
        if self.window[1] >= 0:
            seen &= j <= t + self.window[1]
        if self.used is not None:
            seen &= j < np.reshape(self.used, (-1, 1, 1, 1))
        return seen

    def strides(self, x):
        """Of an array (batch, head, row, dim) for libattn's order of axes; of 3D tensors packed."""
        _, heads, rows, dim = x.shape
        return (rows * heads * dim, heads * dim, dim, 1) if self.flat else (heads * rows * dim, dim, rows * dim, 1)

    def memory(self, x):
        return np.ascontiguousarray(x.swapaxes(1, 2) if self.flat else x)

    def describe(self):
        desc = {
            "dtype": self.dtype.upper(),
            "flags": set(),
            "batch": self.batch,
            "heads_q": self.heads,
            "heads_kv": self.heads_kv,
            "len_q": self.len_q,
            "len_kv": self.len_kv,
            "dim_qk": self.dim,
            "dim_v": self.dim_v,
            "scale": self.scale,
            "q_stride": self.strides(self.q),
            "k_stride": self.strides(self.k),
            "v_stride": self.strides(self.v),
        }
        inputs = {name: self.memory(getattr(self, name)) for name in ("q", "k", "v")}
        if self.softcap:
            desc["flags"].add("SOFTCAP")
            desc["softcap"] = self.softcap
        return desc, inputs

    def add_bias(self, desc, inputs, bias):
        """bias: a float array of rank 4 with extents that are 1 or whole."""
        desc["flags"].add("BIAS")
        desc["bias_dtype"] = "F16" if bias.dtype == np.float16 else "F32"
        desc["bias_extent"] = bias.shape
        inputs["bias"] = np.ascontiguousarray(bias)

    def add_bits(self, desc, inputs, visible):
        """visible: booleans of rank 4 with extents that are 1 or whole."""
        batch, heads = visible.shape[:2]
        desc["flags"].add("BITS")
        desc.update(bits_batch=batch, bits_heads=heads)
        whole = np.broadcast_to(visible, (batch, heads, self.len_q, self.len_kv))
        inputs["bits"] = packed_bits(whole)

    def positions(self, desc, inputs):
        """is_causal, windows and lengths; returns what remains for bits, or None."""
        flags, used = desc["flags"], self.len_kv
        windowed = max(self.window) >= 0
        if self.used is not None:
            flags.add("LENS_KV")
            inputs["lens_kv"] = self.used.astype(np.int32)
        elif windowed and self.offset != self.len_kv - self.len_q:
            return self.seen()
        elif self.causal:
            more, fields, used = causal_from(self.offset, self.len_q, self.len_kv)
            flags |= more
            desc.update(fields)
            if used < self.len_kv:
                flags.add("LENS_KV")
                inputs["lens_kv"] = np.full(self.batch, used, np.int32)
        if self.used is not None and self.causal:
            flags.add("CAUSAL")
        if windowed:
            flags.add("WINDOW")
            desc.update(window_left=self.window[0], window_right=self.window[1])
        return None

    def output(self, library, desc, inputs, dim_v):
        o = poisoned((self.batch, self.heads, self.len_q, dim_v), self.dtype)
        desc["o_stride"] = self.strides(o)
        memory = self.memory(o)
        library.run(desc, inputs, {"o": memory})
        o = from_bits(memory, self.dtype)
        return o.swapaxes(1, 2) if self.flat else o

    def masked(self):
        desc, inputs = self.describe()
        visible = self.positions(desc, inputs)
        if self.mask is not None and self.mask.dtype == bool:
            visible = self.mask if visible is None else self.mask & visible
        elif self.mask is not None:
            self.add_bias(desc, inputs, self.mask)
        if visible is not None:
            self.add_bits(desc, inputs, visible)
        return desc, inputs

    def run(self, library):
        o = self.output(library, *self.masked(), self.dim_v)
        if self.flat:
            o = o.swapaxes(1, 2).reshape(self.batch, self.len_q, -1)
        return o

    def probabilities(self, library):
        """o with one-hot values."""
        desc, inputs = self.masked()
        whole = (self.batch, self.heads_kv, self.len_kv, self.len_kv)
        ones = np.broadcast_to(np.eye(self.len_kv), whole)
        values = to_bits(ones, self.dtype)
        desc.update(dim_v=self.len_kv, v_stride=self.strides(values))
        inputs["v"] = self.memory(values)
        return self.output(library, desc, inputs, self.len_kv)

    def scores(self, library):
        """The LSE of each key alone: keys as sequences, all of q's rows with each."""
        desc, inputs = self.describe()
        sequences = self.batch * self.len_kv
        shape = (self.batch, self.len_kv, self.heads, self.len_q, self.dim)
        desc.update(batch=sequences, len_kv=1, q_stride=(0, 0, 0, 0), k_stride=(0, 0, 0, 0), v_stride=(0, 0, 0, 0))
        inputs["q"] = np.ascontiguousarray(np.broadcast_to(self.q[:, None], shape).swapaxes(2, 3))
        for name in ("k", "v"):
            inputs[name] = np.ascontiguousarray(getattr(self, name).swapaxes(1, 2))
        if self.mode == 0:
            desc["flags"].discard("SOFTCAP")
        if self.mode == 2:
            bias = np.where(self.seen(), 0, -np.inf).astype(np.float32)
            if self.mask is not None:
                hidden = np.where(self.mask, 0, -np.inf) if self.mask.dtype == bool else self.mask
                bias = bias + hidden.astype(np.float32)
            bias = np.broadcast_to(bias, (self.batch, self.heads, self.len_q, self.len_kv))
            self.add_bias(desc, inputs, np.moveaxis(bias, 3, 1).reshape(sequences, self.heads, self.len_q, 1))
        o = poisoned((sequences, self.len_q, self.heads, self.dim_v), self.dtype)
        lse = np.full((sequences, self.heads, self.len_q), np.nan, np.float32)
        library.run(desc, inputs, {"o": o, "lse": lse})
        return np.moveaxis(lse.reshape(self.batch, self.len_kv, self.heads, self.len_q), 1, 3)

    def outputs(self, library, names):
        made = {}
        for name in names:
            if name == "Y":
                made[name] = self.run(library)
            elif name == "qk_matmul_output":
                made[name] = self.probabilities(library) if self.mode == 3 else self.scores(library)
            else:
                made[name] = from_bits(self.k if name == "present_key" else self.v, self.dtype)
        return made


def check(library, attributes, inputs, outputs, rtol, atol):
    """None, or what is wrong. onnx's own runner allows bf16 2^-6; f16, whose probabilities a GPU's tensor cores take in
    f16, is allowed two units in the last place, 2^-9, where onnx says 1e-3."""
    operator = Attention(attributes, inputs)
    for name, x in operator.outputs(library, outputs).items():
        wanted = outputs[name].astype(np.float32)
        allowed = max(rtol, {"bf16": 2.0**-6, "f16": 2.0**-9}.get(operator.dtype, 0))
        if x.shape != wanted.shape:
            return f"{name} has the shape {x.shape}, not {wanted.shape}"
        if not np.allclose(x, wanted, rtol=allowed, atol=atol):
            with np.errstate(invalid="ignore"):
                return f"{name} is off by {np.nanmax(abs(x - wanted)):.3g}, {np.isnan(x).sum()} NaN"
    return None


def run(library, only):
    """Prints failures; returns lines (suite, cases, passed)."""
    collected = testcases()
    if collected is None:
        print(f"SKIPPED: onnx's cases: no package onnx for {sys.executable}")
        return []
    version, vectors = collected
    if version != VERSION:
        print(f"onnx is {version}, not {VERSION}, of which docs/TESTING.md speaks")
    counts = {}
    for name, attributes, inputs, outputs, rtol, atol in vectors:
        if only not in name:
            continue
        kind = f"onnx {version} Attention" + (", expanded" if name.endswith("_expanded") else "")
        ran, passed = counts.get(kind, (0, 0))
        try:
            wrong = check(library, attributes, inputs, outputs, rtol, atol)
        except Refused as refusal:
            wrong = str(refusal)
        if wrong:
            print(f"FAILED {name}: {wrong}")
        counts[kind] = ran + 1, passed + (not wrong)
    return [(kind, ran, passed) for kind, (ran, passed) in counts.items()]
