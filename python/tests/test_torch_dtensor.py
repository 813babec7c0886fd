"""DTensors over two processes on the CPU: forward and backward as without."""
import os
import socket

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo")


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def cases():
    """By name: (tensors, other options, their placements). Placements: dimension by tensor, "" for the others."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    dense = dict(q=leaf(4, 9, 4, 8), k=leaf(4, 13, 2, 8), v=leaf(4, 13, 2, 16))
    packed = dict(q=leaf(12, 4, 8), k=leaf(15, 2, 8), v=leaf(15, 2, 8), cu_lens_q=ints(0, 5, 12),
                  cu_lens_kv=ints(0, 4, 15))
    lens = dict(lens_q=ints(9, 4, 0, 9), lens_kv=ints(13, 1, 5, 7), prefix=ints(2, 0, 3, 1))
    scores = dict(bias=leaf(4, 9, 13), alibi=leaf(4), sink=leaf(4))
    whole = dict(bias=leaf(4, 1, 9, 13), alibi=leaf(4, 4), bits=torch.randint(0, 256, (4, 4, 9, 2), dtype=torch.uint8))
    halves = dict(bits=torch.randint(0, 256, (1, 4, 9, 2), dtype=torch.uint8),
                  intervals=torch.randint(0, 9, (4, 2, 13, 2), dtype=torch.int32).sort(-1).values)
    batch, heads, all_same = [Shard(0)], [Shard(2)], [Replicate()]
    return {
        "batch": (dense, {"causal": True}, batch, batch), "heads": (dense, {}, heads, heads),
        "batch of scores": ({**dense, **scores}, {}, batch, all_same),
        "heads of scores": ({**dense, **scores}, {"softcap": 2.0}, heads, all_same),
        "sharded scores": ({**dense, **whole}, {"out_f32": True}, batch, batch),
        "heads of whole": ({**dense, **whole}, {}, heads, all_same),
        "batch of lengths": ({**dense, **lens}, {"window": (3, 1)}, batch, all_same),
        "heads of lengths": ({**dense, **lens}, {"causal": True}, heads, all_same),
        "batch of halves": ({**dense, **halves}, {}, batch, all_same),
        "heads of halves": ({**dense, **halves}, {}, heads, all_same),
        "keys": (dense, {}, [Shard(1)], all_same), "sums": (dense, {}, [Partial()], all_same),
        "one head of k": (dict(q=leaf(4, 9, 4, 8), k=leaf(4, 13, 1, 8), v=leaf(4, 13, 1, 8)), {}, heads, all_same),
        "uneven heads": (dict(q=leaf(2, 9, 6, 8), k=leaf(2, 13, 3, 8), v=leaf(2, 13, 3, 8)), {}, heads, all_same),
        "uneven batch": (dict(q=leaf(3, 9, 4, 8), k=leaf(3, 13, 4, 8), v=leaf(3, 13, 4, 8), sink=leaf(4)), {}, batch,
                         all_same),
        "a batch of one": (dict(q=leaf(1, 9, 4, 8), k=leaf(1, 13, 4, 8), v=leaf(1, 13, 4, 8), sink=leaf(4)), {}, batch,
                           all_same),
        "packed heads": ({**packed, "sink": leaf(4)}, {"max_len_q": 7, "max_len_kv": 11}, [Shard(1)], all_same),
        "packed rows": (packed, {"max_len_q": 7, "max_len_kv": 11}, [Shard(0)], all_same),
        "mask": ({**dense, "mask": torch.rand(4, 1, 9, 13) > 0.3}, {}, batch, batch),
        "mask by keys": (dict(q=leaf(2, 9, 4, 8), k=leaf(2, 24, 2, 8), v=leaf(2, 24, 2, 8),
                              mask=torch.rand(2, 1, 9, 24) > 0.3), {}, batch, [Shard(3)]),
        "added mask": ({**dense, "mask": torch.zeros(9, 13)}, {}, heads, all_same),
    }


#: Whose results are sharded, and how.
SHARDED = {"batch": 0, "heads": 2, "batch of scores": 0, "heads of scores": 2, "sharded scores": 0, "heads of whole": 2,
           "batch of lengths": 0, "heads of lengths": 2, "batch of halves": 0, "heads of halves": 2, "uneven batch": 0,
           "a batch of one": 0, "packed heads": 1, "mask": 0,
           "mask by keys": 0, "added mask": 2}


def compare(mesh, name, tensors, options, places, others):
    """One case on each process: results, gradients and their placements."""
    import libattn.torch as la
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    function = la.attention_varlen if "cu_lens_q" in tensors else la.attention
    placed = {}
    for key, x in tensors.items():
        at = places if key in ("q", "k", "v") else others
        if any(p.is_partial() for p in at):
            placed[key] = DTensor.from_local(x.detach() / mesh.size(), mesh, at).requires_grad_()
        else:
            fits = [p if not p.is_shard() or p.dim < x.dim() and x.shape[p.dim] > 1 or key in "qkv" else Replicate()
                    for p in at]
            placed[key] = distribute_tensor(x.detach(), mesh, fits).requires_grad_(x.requires_grad)
    wanted = function(**tensors, **options, return_lse=True)
    results = function(**placed, **options, return_lse=True)
    if mesh.ndim == 1:
        expected = Shard(SHARDED[name]) if name in SHARDED else Replicate()
        assert results[0].placements == (expected,), (name, results[0].placements)
    assert [x.shape for x in results] == [x.shape for x in wanted], name
    assert [x.dtype for x in results] == [x.dtype for x in wanted], name
    assert [x.stride() for x in results] == [x.stride() for x in wanted], name
    finite = torch.isfinite(wanted[1])
    for result, of in zip(results, wanted):
        torch.testing.assert_close(result.full_tensor(), of, msg=lambda text: f"{name}: {text}")
    loss = wanted[0].square().sum() + wanted[1][finite].sum()
    mask = distribute_tensor(finite, mesh, [Replicate()] * mesh.ndim)
    other = results[0].square().sum() + torch.where(mask, results[1], torch.zeros_like(results[1])).sum()
    leaves = [key for key, x in tensors.items() if x.requires_grad]
    grads = torch.autograd.grad(other, [placed[key] for key in leaves])
    for key, grad, of in zip(leaves, grads, torch.autograd.grad(loss, [tensors[key] for key in leaves])):
        torch.testing.assert_close(grad.full_tensor(), of, msg=lambda text: f"{name}, grad of {key}: {text}")


def sdpa(mesh):
    import libattn.torch as la
    from torch.distributed.tensor import Shard, distribute_tensor

    for dim in (0, 1):
        q, k, v = leaf(2, 4, 9, 8), leaf(2, 2, 9, 8), leaf(2, 2, 9, 8)
        wanted = la.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        placed = [distribute_tensor(x.detach(), mesh, [Shard(dim)]).requires_grad_() for x in (q, k, v)]
        o = la.scaled_dot_product_attention(*placed, is_causal=True, enable_gqa=True)
        assert o.placements == (Shard(dim),)
        torch.testing.assert_close(o.full_tensor(), wanted)
        grads = torch.autograd.grad(o.sum(), placed)
        for grad, of in zip(grads, torch.autograd.grad(wanted.sum(), (q, k, v))):
            assert grad.placements == (Shard(dim),)
            torch.testing.assert_close(grad.full_tensor(), of)


def refusals(mesh):
    import libattn
    import libattn.torch as la
    from torch.distributed.tensor import Replicate, distribute_tensor

    q = distribute_tensor(torch.randn(2, 9, 4, 8), mesh, [Replicate()])
    plain = torch.randn(2, 9, 4, 8)
    for call, kind, words in (
            (lambda: la.attention(q, plain, q), libattn.InvalidError, "q is a DTensor and k is none"),
            (lambda: la.attention(plain, plain, q), libattn.InvalidError, "v is a DTensor and q is none"),
            (lambda: la.attention(q, q, q, sink=torch.zeros(4)), libattn.InvalidError, "q is a DTensor and sink"),
            (lambda: la.attention(q, q, q, dropout_p=0.5), libattn.InvalidError, "dropout_p is 0.5; with DTensors"),
            (lambda: libattn.attention(q, q, q), TypeError, "q is a torch.distributed.tensor.DTensor"),
            (lambda: la.attention_with_kvcache(q, q, q, cache_seqlens=3), Exception, "DTensor|libattn.with_kvcache"),
            (lambda: torch.ops.libattn.forward(q, q, q), NotImplementedError, "libattn.forward")):
        with pytest.raises(kind, match=words):
            call()


def process(rank, size, port, work):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    from torch.distributed.device_mesh import init_device_mesh

    torch.manual_seed(4)
    if work == "line":
        mesh = init_device_mesh("cpu", (2,))
        for name, case in cases().items():
            compare(mesh, name, *case)
        sdpa(mesh)
        refusals(mesh)
    else:  # two dimensions: of 6 KV heads shared by 2 and 2, none would have as many
        from torch.distributed.tensor import Replicate, Shard

        mesh = init_device_mesh("cpu", (2, 2))
        for heads, places in ((4, (Shard(0), Shard(2))), (6, (Shard(2), Shard(2))), (8, (Shard(2), Shard(2))),
                              (2, (Shard(2), Shard(0)))):
            tensors = dict(q=leaf(4, 9, 2 * heads, 8), k=leaf(4, 13, heads, 8), v=leaf(4, 13, heads, 8),
                           sink=leaf(2 * heads))
            compare(mesh, f"{heads} heads", tensors, {}, places, [Replicate()] * 2)
    dist.barrier()
    os._exit(0)  # at once: while PyTorch takes its threads down, a process now and then aborts


@pytest.mark.long
@pytest.mark.parametrize("work, size", [("line", 2), ("square", 4)])
def test_as_without(work, size):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(process, (size, port, work), nprocs=size)
