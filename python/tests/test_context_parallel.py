"""Attention over processes of torch.distributed (gloo; NCCL on two GPUs), against the same in one process."""
import faulthandler
import importlib.util
import os
import pathlib
import re
import socket
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")

ROOT = pathlib.Path(__file__).parents[2]
FEW = 4.0  # seconds that a group waits for a rank that fails


def qkv(batch=2, rows=100, keys=None, heads=4, kv_heads=2, dim=16, dim_v=None, dtype=torch.float32):
    keys = rows if keys is None else keys
    lead = () if batch is None else (batch,)
    shapes = (rows, heads, dim), (keys, kv_heads, dim), (keys, kv_heads, dim_v or dim)
    return [torch.randn(*lead, *shape).to(dtype) for shape in shapes]


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def cases():
    """By name: q, k, v and options."""
    documents = dict(cu_lens_q=ints(0, 7, 60, 90), cu_lens_kv=ints(0, 20, 61, 90), causal=True)
    intervals = torch.randint(0, 100, (2, 1, 100, 2), dtype=torch.int32).sort(-1).values
    seed = torch.tensor([77, 5])
    return {
        "all pairs": (qkv(), {}),
        "causal": (qkv(), dict(causal=True)),
        "cross": (qkv(rows=70, keys=150, dim_v=24), dict(causal=True)),
        "window": (qkv(rows=200, kv_heads=1), dict(window=(30, 5), softcap=2.0, scale=0.3)),
        "chunk": (qkv(batch=1, heads=2), dict(chunk=33, causal=True)),
        "scores": (qkv(rows=93), dict(causal=True, alibi=torch.rand(4) / 8, sink=torch.randn(4))),
        "alibi of a batch": (qkv(), dict(alibi=torch.rand(2, 4))),
        "lengths": (qkv(), dict(lens_q=ints(100, 30), lens_kv=ints(51, 100), prefix=ints(3, 40), window=(9, 0))),
        "intervals": (qkv(), dict(intervals=intervals)),
        "documents": (qkv(batch=None), dict(documents, sink=torch.randn(4))),
        "one table of documents": (qkv(batch=None), dict(cu_lens_q=ints(0, 50, 50, 100), max_len_q=64, causal=True)),
        "dropout": (qkv(), dict(causal=True, dropout_p=0.25, seed=seed)),
        "a rank without rows": (qkv(rows=16), dict(causal=True, sink=torch.randn(4))),
        "a rank without keys": (qkv(rows=60, keys=10), {}),
        "no rows": (qkv(rows=0), {}),
        "bf16": (qkv(rows=130, dtype=torch.bfloat16), dict(causal=True)),
        "f16, f32 results": (qkv(dtype=torch.float16), dict(out_f32=True, deterministic=True)),
    }


def in_one_process(q, k, v, options):
    import libattn.torch as la

    if "cu_lens_q" not in options:
        return la.attention(q, k, v, **options, return_lse=True)
    options = {"cu_lens_kv": options["cu_lens_q"], "max_len_q": 64, "max_len_kv": 64, **options}
    return la.attention_varlen(q, k, v, **options, return_lse=True)


def leaves(tensors, options):
    """q, k, v and scores, as leaves, and the options with them."""
    scores = {name: options[name].detach().clone().requires_grad_() for name in ("alibi", "sink") if name in options}
    return [x.detach().clone().requires_grad_() for x in tensors], {**options, **scores}, list(scores.values())


def compare(name, tensors, options, group=None, layout="zigzag", schedule="auto", device="cpu", **more):
    import libattn.torch as la

    tensors = [x.to(device) for x in tensors]
    options = {name: x.to(device) if torch.is_tensor(x) else x for name, x in options.items()}
    packed = "cu_lens_q" in options
    rows = 0 if packed else 1
    grads = [torch.randn(*tensors[0].shape[:-1], tensors[2].shape[-1]),
             torch.randn(tensors[0].shape[1], tensors[0].shape[0]) if packed
             else torch.randn(tensors[0].shape[0], tensors[0].shape[2], tensors[0].shape[1])]
    grads = [grad.to(device) for grad in grads]

    def one(dtype):
        (q, k, v), given, scores = leaves([x.to(dtype) for x in tensors], options)
        results = in_one_process(q, k, v, given)
        finite = torch.isfinite(results[1])
        wanted = [grads[0].to(results[0].dtype), torch.where(finite, grads[1], grads[1].new_zeros(()))]
        return [*results, *torch.autograd.grad(results, [q, k, v, *scores], wanted)], wanted

    def shard(x, dim=rows):
        return la.context_parallel_shard(x, group, layout, dim)

    def whole(x, dim=rows):
        return la.context_parallel_unshard(x.detach(), group, layout, dim)

    alone, wanted = one(tensors[0].dtype)
    exact = one(torch.float32)[0] if tensors[0].dtype != torch.float32 else None
    (q, k, v), given, scores = leaves([shard(x) for x in tensors], options)
    results = la.context_parallel_attention(q, k, v, group, layout, schedule=schedule, return_lse=True, **more,
                                            **given)
    lse_rows = 1 if packed else 2
    found = torch.autograd.grad(results, [q, k, v, *scores], [shard(wanted[0]), shard(wanted[1], lse_rows)])
    for grad in found[3:]:
        dist.all_reduce(grad, group=group)
    together = [whole(results[0]), whole(results[1], lse_rows), *map(whole, found[:3]), *found[3:]]
    for i, (ours, of) in enumerate(zip(together, alone)):
        what = f"{name}, {layout}, {schedule}, result {i}"
        assert (ours.shape, ours.dtype) == (of.shape, of.dtype), what
        if exact is None:
            torch.testing.assert_close(ours, of, rtol=1e-4, atol=1e-4, msg=lambda text: f"{what}: {text}")
        elif torch.isfinite(exact[i]).all():
            error, own = ((x.float() - exact[i].float()).square().mean().sqrt() for x in (ours, of))
            most = 1.2 if ours.numel() > 256 else 3  # of a few sums, as gradients of slopes are, own is a draw
            assert error <= most * own + 1e-6, f"{what}: error {error}, one process's own {own}"
    return together


def same_bits():
    tensors = qkv(rows=200, dtype=torch.bfloat16)
    for schedule in ("ring", "all-gather"):
        results = []
        for _ in range(2):
            torch.manual_seed(2)  # of the gradients
            results.append(compare("bits", tensors, dict(causal=True, deterministic=True), schedule=schedule))
        assert all(map(torch.equal, *results)), schedule


def fails(call, kind, words, others_kind=None, others_words="", on=1):
    """call() raises on rank `on`, and on the others what they are told."""
    mine = dist.get_rank() == on or others_kind is None
    with pytest.raises(kind if mine else others_kind, match=words if mine else others_words) as found:
        call()
    return found.value


def exhausted(*_):
    raise MemoryError("none left")


def refusals():
    import libattn
    import libattn.torch as la
    from libattn import _run
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    attend, rank = la.context_parallel_attention, dist.get_rank()
    q, k, v = (la.context_parallel_shard(x) for x in qkv())
    failed, invalid, unsupported = libattn.RankFailedError, libattn.InvalidError, libattn.UnsupportedError
    here, there = (lambda good, bad: bad if rank else good), "rank 1 of 2 failed"
    fails(lambda: attend(q, k, v, softcap=here(None, "x")), invalid, "softcap is 'x'", failed, there)
    fails(lambda: attend(here(q, q[0]), k, v), invalid, "q has shape", failed, there)
    fails(lambda: attend(q, here(k, k.numpy()), v), TypeError, "k is ndarray", failed, there)
    fails(lambda: attend(q, here(k, k[:, :, :, :8]), v), invalid, "q has dim 16", failed, there)
    fails(lambda: attend(q, k, v, lens_kv=here(ints(100, 1), ints(101, 1))), invalid, "lens_kv", failed, there)
    fails(lambda: attend(q, k, v, layout=here("zigzag", "contiguous")), failed, "different layouts")
    fails(lambda: attend(q, k, v, softcap=here(2.0, 3.0)), failed, "different problems: they differ in softcap$")
    fails(lambda: attend(q, k, v, causal=here(True, False), window=here((9, 0), None)), failed,
          "they differ in causal, window$")
    fails(lambda: attend(q, k, v, alibi=here(None, torch.ones(q.shape[-2]))), failed,
          "they differ in which other tensors are given$")
    fails(lambda: attend(q, k, v, dropout_p=0.5, seed=torch.tensor([rank, 0])), failed, "they differ in seed$")
    fails(lambda: attend(q, k, v, lens_kv=ints(100, 50 + rank)), failed, "they differ in their lengths$")
    fails(lambda: attend(q, k, v, dropout_p=0.5, scale=1.0 + rank), failed, "they differ in scale$")
    fails(lambda: attend(here(q, q[:, :-16]), k, v), invalid, "q has [0-9]+ rows on rank [01] of 2; of 84 in all")
    fails(lambda: attend(q, k, v, layout="ring"), invalid, "layout is 'ring'; it takes 'contiguous', 'zigzag'")
    fails(lambda: attend(q, k, v, schedule=2), invalid, "schedule is 2; it takes 'auto'")
    fails(lambda: attend(q, k, v, transport="tcp"), invalid, "transport is 'tcp'; it takes 'nccl', 'peer'")
    fails(lambda: attend(q, k, v, pieces=-1), invalid, "pieces is -1")
    fails(lambda: attend(q, k, v, memory=1), invalid, "memory = 1: ")
    fails(lambda: attend(q.double(), k.double(), v.double()), unsupported, "q is torch.float64; over ranks")
    fails(lambda: attend(q[0], k[0], v[0], cu_lens_q=ints(0, 100), dropout_p=0.5), unsupported,
          "dropout_p = 0.5 and cu_lens_q: over ranks packed sequences take no dropout")
    fails(lambda: la._check_over_ranks(torch.float16, True, 8, 0.1, {"lens_q": q, "cu_lens_q": k, "cu_lens_kv": k}),
          unsupported, "^lens_q, cu_lens_q, chunk, dropout_p and a q on a GPU: over ranks GPUs take causal")
    la._check_over_ranks(torch.float16, True, None, 0.0, {})
    la._check_over_ranks(torch.float16, False, 8, 0.1, {"lens_q": q})
    fails(lambda: attend(*(x.to("meta") for x in (q, k, v))), unsupported, "q is a Tensor on meta")
    fails(lambda: attend(q, k, v, group=3), TypeError, "group is int")
    fails(lambda: attend(q, k, v, group=dist.GroupMember.NON_GROUP_MEMBER), invalid, "not in it")
    distributed = distribute_tensor(torch.zeros(2, 9, 4, 8), init_device_mesh("cpu", (2,)), [Replicate()])
    fails(lambda: attend(distributed, distributed, distributed), invalid, "q is a DTensor")
    fails(lambda: torch.func.grad(lambda q: attend(q, k, v).sum())(q), unsupported, "no transform of torch.func")
    for name in ("layouts", "workspace"):  # while a plan is made; of memory for a run
        with pytest.MonkeyPatch.context() as patch:
            if rank:
                patch.setattr(_run, name, exhausted)
            fails(lambda: attend(q, k, v, scale=0.1), MemoryError, "none left", failed, there)
        assert attend(q, k, v).shape == q.shape  # the next call
    x = q.clone().requires_grad_()
    fails(lambda: la.context_parallel_unshard(x), invalid, "tensor requires grad")
    wrong = dist.get_rank() == 1
    for name, right, other, kind, words in (
            ("dim", 1, 9, invalid, "dim is 9; tensor has 4"), ("layout", "zigzag", "x", invalid, "layout is 'x'"),
            ("tensor", q, q.numpy(), TypeError, "tensor is ndarray"), ("tensor", q, x, invalid, "tensor requires grad")):
        given = {"tensor": q, name: other if wrong else right}
        fails(lambda: la.context_parallel_unshard(**given), kind, words, failed, "rank 1 of 2 failed")
    for given in ({"tensor": q.double() if wrong else q}, {"tensor": q[:1] if wrong else q},
                  {"tensor": q, "layout": "contiguous" if wrong else "zigzag"}):
        fails(lambda: la.context_parallel_unshard(**given), invalid, "differ")
    fails(lambda: la.context_parallel_shard(q, dim=-5), invalid, "dim is -5")
    fails(lambda: attend(q, k, v, max_len_q=3 if wrong else None), invalid, "go with cu_lens_q", failed,
          "rank 1 of 2 failed")
    (grad,) = torch.autograd.grad(attend(x, k, v).square().sum(), x, create_graph=True)
    fails(lambda: grad.sum().backward(), unsupported, "second derivatives")


def plans():
    """Ranks plan together: where one has another layout in memory, or has forgotten."""
    import libattn
    import libattn.torch as la
    from libattn import _torch_parallel

    ranks = _torch_parallel.ranks_of(dist.group.WORLD)
    q, k, v = (la.context_parallel_shard(x) for x in qkv())

    def made(*tensors, **options):
        before = ranks.plans
        o = la.context_parallel_attention(*tensors, causal=True, **options)
        torch.testing.assert_close(o, wanted)
        return ranks.plans - before

    wanted = la.context_parallel_attention(q, k, v, causal=True)
    other = q.transpose(1, 2).contiguous().transpose(1, 2) if dist.get_rank() else q
    assert [made(q, k, v), made(other, k, v), made(other, k, v), made(q, k, v)] == [0, 1, 0, 1]
    assert made(q, k, v) == 0
    if dist.get_rank():
        libattn.clear_plans()
    assert [made(q, k, v), made(q, k, v)] == [1, 0]
    assert la.context_parallel_positions(100).tolist() == la.context_parallel_shard(torch.arange(100), dim=0).tolist()
    compiled = torch.compile(lambda q, k, v: la.context_parallel_attention(2 * q, k, v, causal=True), backend="eager")
    torch.testing.assert_close(compiled(q / 2, k, v), wanted)


def drawn():
    """Without a seed: what rank 0's generator draws, on all ranks, and again where a checkpoint computes it again."""
    import libattn.torch as la
    from torch.utils.checkpoint import checkpoint

    whole = qkv()
    torch.manual_seed(5)
    wanted = la.attention(*whole, dropout_p=0.5)
    torch.manual_seed(5 + dist.get_rank())
    mine = [la.context_parallel_shard(x).requires_grad_() for x in whole]
    o = la.context_parallel_attention(*mine, dropout_p=0.5)
    torch.testing.assert_close(la.context_parallel_unshard(o.detach()), wanted)
    torch.manual_seed(5 + dist.get_rank())
    again = checkpoint(lambda *x: la.context_parallel_attention(*x, dropout_p=0.5), *mine, use_reentrant=False)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), mine) for x in (o, again))):
        assert torch.equal(a, b)


def train(attend, shard, positions, sum_up):
    """Losses of 5 steps of a small model, of which this process has some rows."""
    torch.manual_seed(1)
    words, places = torch.nn.Embedding(30, 32), torch.nn.Embedding(77, 32)
    qkv, out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 30)
    sink = torch.nn.Parameter(torch.zeros(2))
    parameters = [*words.parameters(), *places.parameters(), *qkv.parameters(), *out.parameters(), sink]
    optimizer = torch.optim.AdamW(parameters, 0.01)
    tokens, losses = torch.randint(30, (2, 78)), []
    for _ in range(5):
        optimizer.zero_grad()
        x = words(shard(tokens[:, :-1])) + places(positions)
        x = x + attend(*qkv(x).unflatten(-1, (3, 2, 16)).unbind(2), sink=sink).flatten(2)
        loss = torch.nn.functional.cross_entropy(out(x).flatten(0, 1), shard(tokens[:, 1:]).flatten(), reduction="sum")
        loss = loss / tokens[:, 1:].numel()
        loss.backward()
        for parameter in parameters:
            sum_up(parameter.grad)
        optimizer.step()
        losses.append(sum_up(loss.detach()).item())
    return losses


def training():
    import libattn.torch as la

    def sum_up(x):
        dist.all_reduce(x)
        return x

    one = train(lambda *x, sink: la.attention(*x, causal=True, sink=sink), lambda x: x, torch.arange(77), lambda x: x)
    two = train(lambda *x, sink: la.context_parallel_attention(*x, causal=True, sink=sink),
                la.context_parallel_shard, la.context_parallel_positions(77), sum_up)
    assert one[-1] < one[0] - 0.5 and max(abs(a - b) for a, b in zip(one, two)) < 1e-5, (one, two)


def program():
    """examples/python/context_parallel.py."""
    spec = importlib.util.spec_from_file_location("example", ROOT / "examples" / "python" / "context_parallel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example():
    """The program's losses, with a group of two and with one of one."""
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    one, two = program().train(4, alone), program().train(4)
    assert one[-1] < one[0] and max(abs(a - b) for a, b in zip(one, two)) < 1e-3, (one, two)


def pair():
    for number, (name, case) in enumerate(cases().items()):
        layouts = ("zigzag", "contiguous") if number % 2 else ("contiguous", "zigzag")
        compare(name, *case, layout=layouts[0], schedule="ring")
        compare(name, *case, layout=layouts[1], schedule="all-gather")
    same_bits()
    refusals()
    plans()
    drawn()
    training()
    example()


def square():
    compare("four", *cases()["scores"])
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [3, 1])]
    group = groups[dist.get_rank() % 2]
    torch.manual_seed(6 + dist.get_rank() % 2)
    compare("a group", *cases()["scores"], group=group, schedule="ring")
    compare("a group", *cases()["causal"], group=group, schedule="all-gather")


def failures():
    """A rank that raises, hangs or ends in the middle of a run: the other ends with an error."""
    import libattn
    import libattn.torch as la

    group, frozen = (dist.new_group(timeout=timedelta(seconds=FEW)) for _ in range(2))
    q, k, v = (la.context_parallel_shard(x) for x in qkv())

    def attend(group):
        begin = time.monotonic()
        with pytest.raises(libattn.RankFailedError) as found:
            la.context_parallel_attention(q, k, v, group, schedule="ring")
        assert time.monotonic() - begin < 60  # the group of all waits five minutes
        return found.value.__cause__

    def refuse(*_, **__):
        raise ValueError("no message today")

    own, rank = dist.isend, dist.get_rank()
    if rank == 1:
        dist.isend = refuse
    cause = attend(group)
    assert isinstance(cause, ValueError if rank else RuntimeError), cause
    assert isinstance(attend(group), RuntimeError)  # the group is of no more use
    dist.isend = own
    if rank == 1:
        dist.isend = lambda *_, **__: time.sleep(3 * FEW)
    begin = time.monotonic()
    attend(frozen)
    assert (time.monotonic() - begin < 3 * FEW) != rank  # the other does not wait for it
    if rank == 1:
        dist.isend = lambda *_, **__: os._exit(0)
    attend(None)
    os._exit(0)


def gpus():
    """What GPUs take: the cases above, and what other ranks are told."""
    import libattn
    import libattn.torch as la

    device = torch.device("cuda", dist.get_rank())
    window = qkv(rows=200, kv_heads=1, dtype=torch.bfloat16), dict(window=(30, 0), softcap=2.0, scale=0.3)
    long = qkv(batch=1, rows=3000, heads=8, kv_heads=4, dim=128, dtype=torch.bfloat16), dict(causal=True)
    names = ("all pairs", "causal", "cross", "scores", "a rank without rows", "a rank without keys", "no rows", "bf16",
             "f16, f32 results")
    for number, (name, case) in enumerate([("window", window), ("long", long), *((n, cases()[n]) for n in names)]):
        for layout in ("zigzag", "contiguous"):
            compare(name, *case, layout=layout, device=device, pieces=number % 3)
            compare(name, *case, layout=layout, device=device, pieces=number % 3, transport="peer")
    for number, kv_heads in enumerate((1, 2, 3, 5, 7, 8)):  # pieces of several sizes, given and chosen
        scores = dict(alibi=torch.rand(2 * kv_heads) / 8, sink=torch.randn(2 * kv_heads)) if number % 2 else {}
        tensors = qkv(1, 700, heads=2 * kv_heads, kv_heads=kv_heads, dim=64, dtype=torch.bfloat16)
        for transport in ("nccl", "peer"):
            for pieces in (0, 2, 3, 4, 9):
                compare(f"{kv_heads} KV heads, {pieces} pieces, {transport}", tensors, dict(causal=True, **scores),
                        device=device, pieces=pieces, transport=transport)
    chosen = qkv(1, 16384, heads=32, kv_heads=8, dim=128, dtype=torch.bfloat16)  # 2 pieces, and 3
    for pieces in (0, 4):
        results = []
        for _ in range(2):
            torch.manual_seed(3)  # of the gradients
            results.append(compare("bits", chosen, dict(causal=True, deterministic=True), device=device, pieces=pieces))
        assert all(map(torch.equal, *results))
    q, k, v = (la.context_parallel_shard(x.to(device)) for x in qkv())
    fails(lambda: la.context_parallel_attention(q, k, v, softcap="x" if dist.get_rank() else None),
          libattn.InvalidError, "softcap is 'x'", libattn.RankFailedError, "rank 1 of 2 failed")
    fails(lambda: la.context_parallel_attention(q, k, v, softcap=2.0 + dist.get_rank()), libattn.RankFailedError,
          "different problems")
    fails(lambda: la.context_parallel_attention(q, k, v, schedule="ring"), libattn.UnsupportedError, "ATTN_RING")
    fails(lambda: la.context_parallel_attention(q, k, v, chunk=9), libattn.UnsupportedError, "over ranks GPUs take")
    fails(lambda: la.context_parallel_attention(*(x.cpu() for x in (q, k, v))), libattn.UnsupportedError,
          "none for cpu, where q is")
    assert la.context_parallel_attention(q, k, v).shape == q.shape
    if (ROOT / "demo" / "alice.txt").exists():
        alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
        one, two = program().train(4, alone, device), program().train(4, None, device)
        assert one[-1] < one[0] and max(abs(a - b) for a, b in zip(one, two)) < 1e-3, (one, two)


def gpu_failures():
    """A rank that ends while others wait for its keys: their GPUs end with the time-out, and their next call fails."""
    import libattn
    import libattn.torch as la
    from libattn import _run

    group = dist.new_group(timeout=timedelta(seconds=FEW), backend="nccl")
    q, k, v = (la.context_parallel_shard(x.to(torch.device("cuda", dist.get_rank()))) for x in qkv())
    la.context_parallel_attention(q, k, v, group)
    torch.cuda.synchronize()
    if dist.get_rank():
        _run.workspace = lambda *_: os._exit(0)
    begin = time.monotonic()
    la.context_parallel_attention(q, k, v, group)
    torch.cuda.synchronize()
    with pytest.raises(libattn.RankFailedError):
        la.context_parallel_attention(q, k, v, group)
    assert time.monotonic() - begin < 60
    os._exit(0)


def test_without_a_group():
    import libattn
    import libattn.torch as la

    for call in (lambda: la.context_parallel_attention(*qkv()), lambda: la.context_parallel_shard(qkv()[0])):
        with pytest.raises(libattn.InvalidError, match="init_process_group makes it"):
            call()


def test_without_the_library(monkeypatch, tmp_path):
    import libattn
    from libattn import _c, _parallel

    monkeypatch.setattr(_c, "library_path", str(tmp_path / "libattn.so"))
    _parallel.library.cache_clear()
    with pytest.raises(libattn.UnsupportedError, match=f"{tmp_path}/libattn_parallel.so does not load here"):
        _parallel.library()


def test_example(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["context_parallel.py", "--steps", "2"])
    program().main()
    assert re.fullmatch(r"step 1: loss 5\.\d+\nstep 2: loss \d\.\d+\n", capsys.readouterr().out)
    assert not dist.is_initialized()


def process(rank, size, port, works, backend="gloo"):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    faulthandler.enable()  # a process that a signal ends says where it was
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(minutes=5))
    torch.manual_seed(4)
    for work in works:
        work()
    dist.barrier()
    os._exit(0)  # at once: while PyTorch takes its threads down, a process now and then aborts


def run(size, works, backend="gloo"):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(process, (size, port, works, backend), nprocs=size)


@pytest.mark.parametrize("size, works", [(2, (pair, failures)), (4, (square,))], ids=["two", "four"])
def test_as_in_one_process(size, works):
    run(size, works)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"{torch.cuda.device_count()} GPUs here; it takes 2")
def test_as_on_one_gpu():
    run(2, (gpus, gpu_failures), "nccl")
