"""FlopCounterMode counts libattn's operators by the pairs that their masks leave."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402
import test_torch_cascade  # noqa: E402
import test_torch_kv  # noqa: E402
from conftest import visible_pairs  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402


def counted(function, *arguments, **options):
    with FlopCounterMode(display=False) as counter:
        result = function(*arguments, **options)
    return result, counter.get_total_flops()


@pytest.mark.parametrize("options", [
    {}, {"causal": True}, {"window": (5, 2)}, {"causal": True, "window": (6, None)}, {"chunk": 4},
    {"causal": True, "chunk": 8}, {"sink": torch.zeros(4), "softcap": 2.0},
    {"bits": torch.full((1, 1, 33, 6), 255, dtype=torch.uint8)},
], ids=str)
def test_as_the_plan(make, options):
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in make(rows=33, keys=47, dim=24, dim_v=16))
    o, flops = counted(la.attention, q, k, v, **options)
    given = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    plan = libattn.plan(*(x.detach() for x in (q, k, v)), **given)
    assert flops == plan.info["flops"] > 0
    _, flops = counted(o.sum().backward)
    assert flops == 2.5 * plan.info["flops"]


def test_lengths_and_prefix(make):
    q, k, v = map(torch.from_numpy, make(batch=3, rows=9, keys=13, dim=24, dim_v=16))
    lens_q, lens_kv, prefix = ([9, 4, 0], [13, 6, 2], [0, 5, 1])
    tables = {name: torch.tensor(x).int() for name, x in (("lens_q", lens_q), ("lens_kv", lens_kv), ("prefix", prefix))}
    _, flops = counted(la.attention, q, k, v, causal=True, window=(3, None), **tables)
    seen = [visible_pairs(n, m, True, (3, None)) | (np.arange(m) < p) for n, m, p in zip(lens_q, lens_kv, prefix)]
    assert flops == 2 * 4 * (24 + 16) * sum(x.sum() for x in seen)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"chunk": 3}, {"window": (2, 1)}], ids=str)
def test_packed(options):
    q, k, v = torch.randn(12, 4, 8, requires_grad=True), torch.randn(15, 2, 8), torch.randn(15, 2, 8)
    cu_q, cu_kv = (torch.tensor(x, dtype=torch.int32) for x in ([0, 5, 5, 12], [0, 4, 8, 15]))
    seen = [visible_pairs(n, m, **options).sum() for n, m in ((5, 4), (0, 4), (7, 7))]
    o, flops = counted(la.attention_varlen, q, k, v, cu_q, cu_kv, 7, 100, **options)
    assert flops == 2 * 4 * 16 * sum(seen)
    assert counted(o.sum().backward)[1] == 2.5 * flops
    if not options:  # nothing tells lengths of tensors without values: each sequence counts as the longest
        meta = [x.to("meta") for x in (q, k, v, cu_q, cu_kv)]
        assert counted(la.attention_varlen, *meta, 7, 7)[1] == 2 * 4 * 16 * 3 * 49


def test_sdpa_counts_what_its_causal_mask_leaves():
    q, k, v = (torch.randn(2, 4, n, 8) for n in (5, 9, 9))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # of products that torch counts
        flops = counted(torch.nn.functional.scaled_dot_product_attention, q, k, v)[1]
    assert counted(la.scaled_dot_product_attention, q, k, v)[1] == flops
    assert counted(la.scaled_dot_product_attention, q, k, v, is_causal=True)[1] == 2 * 2 * 4 * 16 * 15


@pytest.mark.parametrize("name, pairs", [
    ("plain", 2 * 15 + 2 * 5), ("causal", 29 + 9), ("packed", 6 + 5 + 5 + 5), ("read", 2 * 13 + 2 * 3),
    ("scores", 40), ("tree", 20), ("bits", 29 + 9), ("positions", 11 + 12 + 5 + 5), ("bf16", 2 * 13 + 2 * 5)])
def test_caches(name, pairs):
    given = test_torch_kv.case(name)
    assert counted(la.attention_with_kvcache, **given)[1] == 2 * 4 * (16 + 16) * pairs


def test_caches_without_values():
    given = test_torch_kv.case("plain")
    meta = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    assert counted(la.attention_with_kvcache, **meta)[1] == 2 * 4 * 32 * 2 * 2 * 24
    assert counted(la.attention_with_kvcache, **meta, max_len_kv=20)[1] == 2 * 4 * 32 * 2 * 2 * 20


@pytest.mark.parametrize("causal", [False, True])
def test_cascades_count_as_attention_to_all_keys(causal):
    given, alone = test_torch_cascade.problem()
    _, flops = counted(la.attention_cascade, **given, causal=causal)
    assert flops == counted(la.attention_with_kvcache, **alone, causal=causal)[1] > 0
