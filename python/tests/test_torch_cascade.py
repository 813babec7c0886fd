"""Cascades in libattn.torch on the CPU: an operator without autograd."""
import pytest

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402
from libattn import _torch_kv  # noqa: E402


def problem(dtype=torch.float32, device="cpu"):
    """Arguments of attention_cascade: four sequences of one root, of 2 rows each but for the third's none."""
    torch.manual_seed(3)
    pool = libattn.Pool(pages=32, page_size=8, sequences=8, width=6)
    root = pool.create()
    pool.append(root, count=24)
    seqs = [pool.fork(root) for _ in range(4)]
    for seq, count in zip(seqs, (2, 9, 3, 12)):
        pool.append(seq, count=count)
    rows = [0, 2, 4, 4, 6]
    levels = [tuple(map(torch.from_numpy, level[:3])) for level in pool.levels(seqs, rows, shared=2)]
    q, k, v = (torch.randn(shape).to(dtype) for shape in ((6, 4, 16), (32, 8, 2, 16), (32, 8, 2, 16)))
    whole = [torch.from_numpy(x) for x in pool.tables(seqs)]
    given = {"q": q, "k_cache": k, "v_cache": v}
    alone = dict(given, cache_seqlens=whole[1], page_table=whole[0], cu_lens_q=torch.tensor(rows).int())
    to = lambda tensors: {name: x.to(device) for name, x in tensors.items()}  # noqa: E731
    return dict(to(given), levels=[tuple(x.to(device) for x in level) for level in levels], max_len_q=2), dict(
        to(alone), max_len_q=2)


CASES = {"plain": {}, "causal": {"causal": True, "scale": 0.3, "softcap": 2.0},
         "sink": {"sink": torch.randn(4).double(), "out_f32": True, "max_len_kv": [24, 24, 12]},
         "bf16": {"dtype": torch.bfloat16, "deterministic": True}}


def case(name):
    options = dict(CASES[name])
    given, alone = problem(**({"dtype": options.pop("dtype")} if "dtype" in options else {}))
    return dict(given, **options), dict(alone, **{key: x for key, x in options.items() if key != "max_len_kv"})


@pytest.mark.parametrize("name", CASES)
def test_operator_compiled_code_and_attention_without_levels(name):
    torch.compiler.reset()
    given, alone = case(name)
    o, lse = la.attention_cascade(**given, return_lse=True)
    wanted = la.attention_with_kvcache(**alone, return_lse=True)
    tolerance = 2e-2 if o.dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(o, wanted[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse, wanted[1], rtol=1e-4, atol=1e-4)
    compiled = torch.compile(lambda given: la.attention_cascade(**given) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(given), o * 2)
    given["q"] = torch.randn_like(given["q"])
    assert torch.equal(compiled(given), la.attention_cascade(**given) * 2)


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name, monkeypatch):
    calls, (given, _) = [], case(name)
    op = _torch_kv._cascade_op
    monkeypatch.setattr(_torch_kv, "_cascade_op", lambda *arguments: calls.append(arguments) or op(*arguments))
    la.attention_cascade(**given)
    torch.library.opcheck(op, calls[0])


def test_mistakes():
    given, _ = problem()
    for name in ("q", "k_cache", "v_cache"):
        wrong = dict(given, **{name: given[name].clone().requires_grad_()})
        for function in (libattn.attention_cascade, la.attention_cascade):
            with pytest.raises(libattn.InvalidError, match=f"{name} requires grad"):
                function(**wrong)
        with torch.no_grad():
            assert not la.attention_cascade(**wrong).requires_grad
    levels = given["levels"]
    for match, kind, wrong in (
            (r"levels\[1\].lens_kv is list", TypeError, [levels[0], (levels[1][0], [1], levels[1][2]), levels[2]]),
            ("levels has 1", libattn.InvalidError, levels[2:]),
            (r"levels\[0\]: lens_kv", libattn.InvalidError, [
                (levels[0][0], levels[0][1] + 99, levels[0][2]), levels[2]])):
        with pytest.raises(kind, match=match):
            la.attention_cascade(**dict(given, levels=wrong))
