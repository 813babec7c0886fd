"""torch.func.vmap over libattn.torch on the CPU: beside each element alone, and beside attention written in PyTorch."""
import pytest

torch = pytest.importorskip("torch")
from torch.func import functional_call, grad, jacrev, stack_module_state, vjp, vmap  # noqa: E402

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402
from libattn import _c, masks  # noqa: E402

N, BATCH, ROWS, KEYS, HEADS, KV, DIM = 3, 2, 5, 7, 4, 2, 8


@pytest.fixture
def runs(monkeypatch):
    """How often the C library ran."""
    made = []
    monkeypatch.setattr(_c, "run", lambda *arguments, run=_c.run: made.append(0) or run(*arguments))
    return made


def rand(*shape):
    return torch.randn(shape, dtype=torch.float64)


def tensors(*lead):
    torch.manual_seed(4)
    return (rand(*lead, BATCH, ROWS, HEADS, DIM), rand(*lead, BATCH, KEYS, KV, DIM), rand(*lead, BATCH, KEYS, KV, 6))


def packed(*lead):
    torch.manual_seed(5)
    return rand(*lead, 9, HEADS, DIM), rand(*lead, 12, KV, DIM), rand(*lead, 12, KV, 6)


def integers(high, *shape):
    return torch.randint(0, high, shape, dtype=torch.int32)


def theirs(q, k, v, bias=0., sink=None, alibi=None, seen=None):
    """Attention in PyTorch's own operations: (o, lse)."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if alibi is not None:
        t = torch.arange(s.shape[2])[:, None] + s.shape[3] - s.shape[2]
        s = s - alibi[..., None, None] * (t - torch.arange(s.shape[3])).abs()
    s = s + bias
    if seen is not None:
        s = s.masked_fill(~seen, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink[:, None, None].expand(*s.shape[:3], 1)], -1)
    p = s.softmax(-1)[..., :k.shape[1]]
    return torch.einsum("bhij,bjhd->bihd", p, v), s.logsumexp(-1)


def blocks(full_count, partial_count, first):
    """Of each row block's two key blocks the first ones full, and partial ones from block `first` on."""
    lists = torch.arange(2, dtype=torch.int32).expand(*first.shape, 2)
    return libattn.Blocks(3, 4, full_count, lists.contiguous(), partial_count,
                          (lists + first[..., None]).clamp(max=1).contiguous())


ONES = torch.ones(1, 1, 2, dtype=torch.int32)
CU = torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([0, 7, 12], dtype=torch.int32)


def varlen(q, k, v, cu_q=CU[0], cu_kv=CU[1], **options):
    return la.attention_varlen(q, k, v, cu_q, cu_kv, 6, 8, return_lse=True, **options)


def with_option(name, function=la.attention):
    if function is varlen:
        return lambda q, k, v, x: varlen(q, k, v, **{name: x})
    return lambda q, k, v, x: function(q, k, v, return_lse=True, **{name: x})


def ours(q, k, v):
    return la.attention(q, k, v, return_lse=True)


def of_lens(function):
    return lambda q, k, v, n, s: function(q, k, v, lens_kv=n, sink=s, return_lse=True)


def seeds():
    return torch.randint(-9, 9, (N, 2))


# What runs, on what, where the elements lie, how many problems the C library has then: 1 for all elements, or N.
CASES = {
    "plain": (ours, lambda: tensors(N), 0, 1),
    "q alone": (ours, lambda: (*tensors(N)[:1], *tensors()[1:]), (0, None, None), 1),
    "k alone": (ours, lambda: (*tensors()[:1], tensors(N)[1], tensors()[2]), (None, 0, None), 1),
    "other dims": (ours, lambda: (tensors(N)[0].movedim(0, 2), tensors(N)[1].movedim(0, -1), tensors(N)[2]),
                   (2, -1, 0), 1),
    "no rows": (ours, lambda: (tensors(N)[0][:, :, :0], *tensors(N)[1:]), 0, 1),
    "bias": (with_option("bias"), lambda: (*tensors(N), rand(N, BATCH, HEADS, ROWS, KEYS)), 0, 1),
    "bias of pairs": (with_option("bias"), lambda: (*tensors(N), rand(N, ROWS, KEYS)), 0, 1),
    "bias of heads": (with_option("bias"), lambda: (*tensors(N), rand(HEADS, 1, KEYS, N)), (0, 0, 0, 3), 1),
    "bias alone": (with_option("bias"), lambda: (*tensors(), rand(N, 1, HEADS, 1, KEYS)), (None, None, None, 0), 1),
    "one bias": (with_option("bias"), lambda: (*tensors(N), rand(1, 1, ROWS, KEYS)), (0, 0, 0, None), 1),
    "one bias of the batch": (with_option("bias"), lambda: (*tensors(N), rand(BATCH, 1, 1, KEYS)), (0, 0, 0, None), 1),
    "alibi": (with_option("alibi"), lambda: (*tensors(N), rand(N, HEADS)), 0, 1),
    "alibi of the batch": (with_option("alibi"), lambda: (*tensors(N), rand(BATCH, N, HEADS)), (0, 0, 0, 1), 1),
    "one alibi": (with_option("alibi"), lambda: (*tensors(N), rand(HEADS)), (0, 0, 0, None), 1),
    "slopes and sinks of one head": (
        lambda q, k, v, a, s: la.attention(*(x[..., :1, :] for x in (q, k, v)), alibi=a, sink=s, return_lse=True),
        lambda: (*tensors(N), rand(1), rand(N, 1)), (0, 0, 0, None, 0), 1),
    "sink": (with_option("sink"), lambda: (*tensors(N), rand(N, HEADS)), 0, 1),
    "one sink": (with_option("sink"), lambda: (*tensors(N), rand(HEADS)), (0, 0, 0, None), 1),
    "lens_q": (with_option("lens_q"), lambda: (*tensors(N), integers(ROWS + 1, N, BATCH)), 0, 1),
    "lens_kv": (with_option("lens_kv"), lambda: (*tensors(), integers(KEYS + 1, BATCH, N)), (None, None, None, 1), 1),
    "prefix": (lambda q, k, v, n: la.attention(q, k, v, causal=True, prefix=n, return_lse=True),
               lambda: (*tensors(N), integers(KEYS, N, BATCH)), 0, 1),
    "lens and sinks": (of_lens(la.attention), lambda: (*tensors(N), integers(KEYS, N, BATCH), rand(N, HEADS)), 0, N),
    "lens of all, sinks": (of_lens(la.attention), lambda: (*tensors(N), integers(KEYS, BATCH), rand(N, HEADS)),
                           (0, 0, 0, None, 0), 1),
    "bits": (with_option("bits"), lambda: (*tensors(N), torch.randint(1, 128, (N, 1, 1, ROWS, 1)).byte()), 0, 1),
    "bits of heads": (with_option("bits"), lambda: (*tensors(N), torch.randint(1, 128, (BATCH, HEADS, ROWS, 1)).byte()),
                      (0, 0, 0, None), 1),
    "bits and sinks": (lambda q, k, v, x, s: la.attention(q, k, v, bits=x, sink=s, return_lse=True),
                       lambda: (*tensors(N), torch.randint(1, 128, (N, BATCH, 1, ROWS, 1)).byte(), rand(HEADS, N)),
                       (0, 0, 0, 0, 1), 1),
    "intervals": (with_option("intervals"), lambda: (*tensors(N), integers(ROWS + 1, N, BATCH, 1, KEYS, 2)), 0, 1),
    "intervals and sinks": (lambda q, k, v, x, s: la.attention(q, k, v, intervals=x, sink=s, return_lse=True),
                            lambda: (*tensors(N), integers(ROWS, N, BATCH, 1, KEYS, 2), rand(N, HEADS)), 0, 1),
    "mask": (with_option("mask"), lambda: (*tensors(N), torch.rand(N, ROWS, KEYS) > 0.3), 0, 1),
    "mask of numbers": (with_option("mask"), lambda: (
        *tensors(N), torch.where(torch.rand(N, 1, KEYS) > 0.3, 0., -torch.inf)), 0, 1),
    "documents": (lambda q, k, v, ids: la.attention(q, k, v, mask=masks.documents(ids), return_lse=True),
                  lambda: (*tensors(N), integers(2, N, BATCH, KEYS).sort(-1).values), 0, 1),
    "blocks": (lambda q, k, v, n: la.attention(q, k, v, blocks=blocks(n, 2 - n, n), return_lse=True),
               lambda: (*tensors(N), integers(3, N, 1, 1, 2)), 0, 1),
    "some of the blocks": (
        lambda q, k, v, n: la.attention(q, k, v, blocks=blocks(n, ONES, ONES), return_lse=True),
        lambda: (*tensors(N), integers(2, N, 1, 1, 2)), 0, 1),
    "varlen": (varlen, lambda: packed(N), 0, 1),
    "varlen, k alone": (varlen, lambda: (packed()[0], packed(N)[1], packed()[2]), (None, 0, None), 1),
    "varlen, bias": (with_option("bias", varlen), lambda: (*packed(N), rand(2, HEADS, 6, 8)), (0, 0, 0, None), 1),
    "varlen, sink": (with_option("sink", varlen), lambda: (*packed(N), rand(N, HEADS)), 0, 1),
    "varlen, alibi": (with_option("alibi", varlen), lambda: (*packed(N), rand(N, 2, HEADS)), 0, 1),
    "varlen, lens": (with_option("lens_kv", varlen), lambda: (*packed(N), integers(5, N, 2)), 0, N),
    "varlen, cu_lens": (with_option("cu_q", varlen),
                        lambda: (*packed(N), torch.tensor([[0, 4, 9], [0, 3, 8], [0, 5, 6]]).int()), 0, N),
    "dropout": (lambda q, k, v, s: la.attention(q, k, v, dropout_p=0.4, seed=s, return_lse=True),
                lambda: (*tensors(N), seeds()), 0, N),
    "one dropout": (lambda q, k, v, s: la.attention(q, k, v, dropout_p=0.4, seed=s, return_lse=True),
                    lambda: (*tensors(N), seeds()[0]), (0, 0, 0, None), N),
}


def elements(inputs, in_dims):
    dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(inputs)
    return [[x if dim is None else x.select(dim, i) for x, dim in zip(inputs, dims)] for i in range(N)]


def gradients(function, inputs):
    """Of a weighted sum of o and lse, with respect to all inputs that have one; rows that see nothing have no part."""
    places = tuple(i for i, x in enumerate(inputs) if x.dtype == torch.float64)

    def loss(*inputs):
        o, lse = function(*inputs)
        return (o * torch.arange(o.numel()).view(o.shape).cos()).sum() + torch.where(lse == -torch.inf, 0, lse).sum()

    return grad(loss, places)(*inputs)


def assert_same(found, wanted):
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_elements_are_as_alone(runs, name):
    function, make, in_dims, calls = CASES[name]
    inputs = make()
    alone = [(function(*x), gradients(function, x)) for x in elements(inputs, in_dims)]
    runs.clear()
    found = vmap(function, in_dims)(*inputs)
    assert len(runs) == calls
    assert_same(found, [torch.stack(parts) for parts in zip(*(one[0] for one in alone))])
    runs.clear()
    found = vmap(lambda *x: gradients(function, x), in_dims)(*inputs)
    assert len(runs) == 2 * calls
    assert_same(found, [torch.stack(parts) for parts in zip(*(one[1] for one in alone))])


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_all_elements(name):
    """grad of vmap: what all elements share has the sum of their gradients."""
    function, make, in_dims, _ = CASES[name]
    inputs = make()

    def loop(*inputs):
        return tuple(map(torch.stack, zip(*(function(*x) for x in elements(inputs, in_dims)))))

    assert_same(gradients(vmap(function, in_dims), inputs), gradients(loop, inputs))


PLAIN = ("bias", "alibi", "sink")


@pytest.mark.parametrize("option", PLAIN)
@pytest.mark.parametrize("transform", ["vmap", "vmap_grad", "grad_vmap", "jacrev", "jacrev_vmap", "vmap_jacrev",
                                       "nested", "vmap_vjp", "chunks"])
def test_beside_attention_in_pytorch(option, transform):
    extra = {"bias": (HEADS, 1, KEYS), "alibi": (HEADS,), "sink": (HEADS,)}[option]
    lead = (N, 2) if transform == "nested" else () if transform == "jacrev" else (N,)
    inputs = (*tensors(*lead), rand(*lead, *extra))
    weights = tensors(*lead)[0][..., :6].contiguous()

    def results(attend):
        def f(q, k, v, x):
            o, lse = attend(q, k, v, **{option: x})
            return o.sin() + lse.transpose(1, 2)[..., None]

        def loss(*x):
            return f(*x).square().sum()

        where = (0, 1, 2, 3)
        return {
            "vmap": lambda: vmap(f, out_dims=-2)(*inputs),
            "vmap_grad": lambda: vmap(grad(loss, where))(*inputs),
            "grad_vmap": lambda: grad(lambda *x: vmap(f)(*x).square().sum(), where)(*inputs),
            "jacrev": lambda: jacrev(f, where)(*inputs),
            "jacrev_vmap": lambda: jacrev(lambda *x: vmap(f)(*x).sum((1, 2)), where)(*inputs),
            "vmap_jacrev": lambda: vmap(jacrev(lambda *x: f(*x).sum((0, 3)), where))(*inputs),
            "nested": lambda: vmap(vmap(grad(loss, where), in_dims=(0, 0, None, 0)), in_dims=(0, 0, 0, 0))(
                inputs[0], inputs[1], inputs[2][:, 0], inputs[3]),
            "vmap_vjp": lambda: vmap(lambda w, *x: vjp(f, *x)[1](w))(weights, *inputs),
            "chunks": lambda: vmap(f, chunk_size=2)(*inputs),
        }[transform]()

    found = results(lambda *x, **options: la.attention(*x, return_lse=True, **options))
    wanted = results(theirs)
    assert_same(*((x,) if isinstance(x, torch.Tensor) else x for x in (found, wanted)))


def test_sdpa_and_its_masks():
    torch.manual_seed(1)
    q, k, v = (torch.randn(N, 2, 3, 6, 8) for _ in range(3))
    for mask in (torch.rand(N, 6, 6) > 0.3, torch.randn(N, 3, 6, 6)):
        mask[..., 0] = True if mask.dtype == torch.bool else 0
        found, wanted = (vmap(grad(lambda *x, f=f: f(*x).square().sum(), (0, 1, 2)))(q, k, v, mask) for f in (
            la.scaled_dot_product_attention, torch.nn.functional.scaled_dot_product_attention))
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_of_many_weights():
    """torch.autograd's own batch of vectors, as functional.jacobian(vectorize=True) takes them."""
    q, k, v = tensors()
    assert_same(*(torch.autograd.functional.jacobian(lambda *x, f=f: f(*x).sum(0), (q, k, v), vectorize=True)
                  for f in (la.attention, lambda *x: theirs(*x)[0])))


def test_ensembles():
    """Parameters of several modules, and gradients of each sample."""
    torch.manual_seed(3)

    class Layer(torch.nn.Module):
        def __init__(self, attend):
            super().__init__()
            self.project, self.sink, self.attend = torch.nn.Linear(8, 24), torch.nn.Parameter(torch.randn(2)), attend

        def forward(self, x):
            q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).unbind(-3)
            return self.attend(q, k, v, sink=self.sink)

    layers = [Layer(la.attention).double() for _ in range(N)]
    state, x = stack_module_state(layers), rand(4, ROWS, 8)

    def of_samples(layer):
        of_one = grad(lambda p, x: functional_call(layer, (p, {}), (x[None],)).square().sum())
        return vmap(vmap(of_one, in_dims=(None, 0)), in_dims=(0, None))(state[0], x)

    found, wanted = map(of_samples, (layers[0], Layer(lambda *x, **options: theirs(*x, **options)[0]).double()))
    assert_same(found.values(), wanted.values())


def test_randomness():
    q, k, v = (x[None].expand(N, *x.shape) for x in tensors())
    drop = lambda q, k, v: la.attention(q, k, v, dropout_p=0.5)  # noqa: E731
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(drop)(q, k, v)
    same, different = (vmap(drop, randomness=how)(q, k, v) for how in ("same", "different"))
    assert torch.equal(same[0], same[1]) and torch.equal(same[0], same[2])
    assert not torch.equal(different[0], different[1]) and not torch.equal(different[0], different[2])
    torch.manual_seed(0)
    one = drop(q[0], k[0], v[0])
    torch.manual_seed(0)
    assert torch.equal(vmap(drop, randomness="same")(q, k, v)[1], one)


def test_a_block_mask_of_mapped_numbers():
    from torch.nn.attention.flex_attention import create_block_mask

    def attend(q, k, v, n):
        mask = create_block_mask(lambda b, h, i, j: j < n, None, None, ROWS, KEYS, device="cpu")
        return la.attention(q, k, v, mask=mask)

    q, k, v = tensors(N)
    n = torch.tensor([1, 4, 7])
    wanted = torch.stack([la.attention(*x, lens_kv=torch.full((BATCH,), int(m), dtype=torch.int32))
                          for *x, m in zip(q, k, v, n)])
    assert_same([vmap(attend)(q, k, v, n)], [wanted])


def test_compiled():
    q, k, v = (x.float() for x in tensors(N))
    sink = torch.randn(N, HEADS)
    f = lambda *x: vmap(grad(lambda q, k, v, s: la.attention(q, k, v, sink=s).square().sum(), (0, 3)))(*x)  # noqa: E731
    found = torch.compile(f, backend="aot_eager", fullgraph=True)(q, k, v, sink)
    for a, b in zip(found, f(q, k, v, sink)):
        torch.testing.assert_close(a, b)


@pytest.mark.long
def test_compiled_masks():
    """What a mask of numbers holds cannot be looked at in compiled vmap: this part runs as it is, or is refused."""
    q, k, v = (x.float() for x in tensors(N))
    seen = torch.rand(N, ROWS, KEYS) > 0.3
    for mask in (seen, torch.where(seen, 0., -torch.inf)):
        f = lambda *x: vmap(lambda *x: la.attention(*x[:3], mask=x[3]))(*x)  # noqa: E731
        torch.testing.assert_close(torch.compile(f, backend="aot_eager")(q, k, v, mask), f(q, k, v, mask))
    torch.compiler.reset()  # it has noted that this function runs as it is
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(f, backend="aot_eager", fullgraph=True)(q, k, v, mask)


@pytest.mark.parametrize("transform", [vmap, lambda f: vmap(grad(lambda *x: f(*x).sum()))])
def test_of_no_elements(transform):
    empty = [x[:0] for x in tensors(N)]
    assert transform(la.attention)(*empty).shape == (0, BATCH, ROWS, HEADS, 6 if transform is vmap else DIM)


def test_errors_name_an_element_and_not_the_whole():
    q, k, v = tensors(N)
    for call, says in (
            (lambda: vmap(la.attention)(q, k[:, :1], v[:, :1]), "q has a batch of 2, k and v of 1"),
            (lambda: vmap(with_option("sink"))(q, k, v, rand(N, 3)), r"sink has shape \(3,\); it takes \(4,\)"),
            (lambda: vmap(with_option("lens_kv"))(q, k, v, integers(3, N, 1)), r"lens_kv has shape \(1,\)"),
            (lambda: vmap(with_option("bits"))(q, k, v, integers(3, N, 1).byte()), r"bits has shape \(1,\)"),
            (lambda: vmap(with_option("bias"))(q, k, v, rand(N, 6, 1, 1, 1)), r"bias has shape \(6, 1, 1, 1\)"),
            (lambda: vmap(la.attention)(q[:, 0], k[:, 0], v[:, 0]), r"q has shape \(5, 4, 8\); it takes"),
            (lambda: vmap(with_option("mask"))(q, k, v, torch.ones(N, ROWS, KEYS)), "mask holds numbers")):
        with pytest.raises(libattn.InvalidError, match=says):
            call()


def test_what_is_not_mapped_is_refused_by_name():
    cache = [torch.randn(N, BATCH, 8, KV, DIM) for _ in range(2)]
    q, k, v = (x.float() for x in tensors(N))
    attend = lambda q, *cache: la.attention_with_kvcache(q, *cache, cache_seqlens=6)  # noqa: E731
    append = lambda k, *cache: la.append_kvcache(k, k, *cache, cache_seqlens=1)  # noqa: E731
    for call, says in ((lambda: vmap(attend)(q, *cache), "with_kvcache.*vmap"),
                       (lambda: vmap(append)(k, *cache), "append_kvcache.*vmap"),
                       (lambda: vmap(libattn.attention)(q, k, v), "q has no memory.*torch.func")):
        with pytest.raises(libattn.UnsupportedError, match=says):
            call()
    beside = vmap(lambda x: x * attend(q[0], cache[0][0], cache[1][0]))(torch.ones(N))  # itself of nothing mapped
    assert torch.equal(beside[1], attend(q[0], cache[0][0], cache[1][0]))
