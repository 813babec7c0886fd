"""libattn.torch.merge_states on the CPU and its gradients, beside the definition in double precision."""
import pytest

torch = pytest.importorskip("torch")
from torch.func import grad, jacrev, jvp, vjp, vmap  # noqa: E402

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402

SHAPES = {"batches": ((2, 5, 3, 8), (2, 3, 5)), "packed": ((7, 3, 8), (3, 7))}


def parts(count=3, shape="batches", lead=(), dtype=torch.float32):
    torch.manual_seed(6)
    of_o, of_lse = SHAPES[shape]
    return ([torch.randn(*lead, *of_o).to(dtype) for _ in range(count)],
            [2 * torch.randn(*lead, *of_lse) for _ in range(count)])


def theirs(o, lse):
    """As its definition says, of any dtype."""
    whole = torch.stack(lse)
    share = whole.softmax(0).transpose(-1, -2)[..., None]
    return (share * torch.stack(o)).sum(0), whole.logsumexp(0)


def losses():
    return {"both": lambda o, lse: o.double().sin().sum() + lse.double().square().sum(),
            "o": lambda o, lse: o.double().sin().sum(), "lse": lambda o, lse: lse.double().square().sum()}


def gradients(merge, o, lse, loss, dtype=None):
    o, lse = ([x.to(dtype or x.dtype).requires_grad_() for x in listed] for listed in (o, lse))
    return torch.autograd.grad(loss(*merge(o, lse)), [*o, *lse], allow_unused=True)


def close(found, wanted, tolerance=1e-5):
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 5, 64])
@pytest.mark.parametrize("loss", losses())
def test_gradients(shape, count, loss):
    o, lse = parts(count, shape)
    loss = losses()[loss]
    found, wanted = gradients(la.merge_states, o, lse, loss), gradients(theirs, o, lse, loss, torch.float64)
    close(*zip(*((a, b) for a, b in zip(found, wanted) if b is not None)))
    assert all(a is None or not a.any() for a, b in zip(found, wanted) if b is None)


@pytest.mark.parametrize("out_f32", [False, True])
def test_bfloat16(out_f32):
    o, lse = parts(dtype=torch.bfloat16)
    merge = lambda *listed: la.merge_states(*listed, out_f32=out_f32)  # noqa: E731
    assert merge(o, lse)[0].dtype == (torch.float32 if out_f32 else torch.bfloat16)
    found, wanted = gradients(merge, o, lse, losses()["both"]), gradients(theirs, o, lse, losses()["both"],
                                                                          torch.float64)
    assert [x.dtype for x in found] == [torch.bfloat16] * 3 + [torch.float32] * 3
    close(found, wanted, 0.03)


def test_attention_in_parts_has_the_gradients_of_the_whole():
    torch.manual_seed(8)
    inputs = [torch.randn(2, rows, 4, 16, requires_grad=True) for rows in (6, 11, 11)]

    def split(q, k, v):
        found = [la.attention(q, k[:, keys], v[:, keys], return_lse=True) for keys in (slice(0, 4), slice(4, None))]
        return la.merge_states(*zip(*found))

    whole = lambda q, k, v: la.attention(q, k, v, return_lse=True)  # noqa: E731
    close(*(torch.autograd.grad(losses()["both"](*f(*inputs)), inputs) for f in (split, whole)))


def test_empty_parts_have_no_gradients():
    o, lse = parts()
    lse[1][0] = -torch.inf
    o[1][0] = torch.nan
    for x, y in zip(lse, o):
        x[:, 1, 2], y[:, 2, 1] = -torch.inf, torch.nan
    finite = lambda o, lse: o.sin().sum() + lse[lse > -torch.inf].square().sum()  # noqa: E731
    found = gradients(la.merge_states, o, lse, finite)
    for i in range(3):
        is_empty = lse[i] == -torch.inf
        assert not found[3 + i][is_empty].any() and not found[i].transpose(1, 2)[is_empty].any()
    filled = [x.nan_to_num(0) for x in o]
    wanted = gradients(theirs, filled, [x.clamp(min=-1e6) for x in lse], losses()["both"], torch.float64)
    somewhere = (torch.stack(lse) > -torch.inf).any(0)
    close([x[somewhere] for x in found[3:]], [x[somewhere] for x in wanted[3:]])
    close([x.transpose(1, 2)[somewhere] for x in found[:3]], [x.transpose(1, 2)[somewhere] for x in wanted[:3]])


def test_second_derivatives():
    found = []
    for merge, dtype in ((la.merge_states, torch.float32), (theirs, torch.float64)):
        o, lse = ([x.to(dtype).requires_grad_() for x in listed] for listed in parts())
        first = torch.autograd.grad(losses()["both"](*merge(o, lse)), [*o, *lse], create_graph=True)
        found.append(torch.autograd.grad(sum(x.square().sum() for x in first), [*o, *lse]))
    close(*found, 1e-4)


def test_transforms():
    loss = losses()["both"]
    many, one = parts(lead=(4,)), parts()

    def each(merge, cast):
        o, lse, o_one, lse_one = ([cast(x) for x in listed] for listed in (*many, *one))
        of = lambda o, lse: loss(*merge(o, lse))  # noqa: E731
        moved = [x.movedim(0, -1) for x in o]
        small = lambda o, lse: [x.sum((-1, -2)) for x in merge(o, lse)]  # noqa: E731
        yield grad(of, (0, 1))(o_one, lse_one)
        yield vjp(merge, o_one, lse_one)[1]((o_one[0], lse_one[0]))
        yield vmap(merge)(o, lse)
        yield vmap(merge, ([-1, -1, None], 0))([*moved[:2], o_one[2]], lse)
        yield vmap(merge, (None, 0))(o_one, lse)
        yield vmap(grad(of, (0, 1)))(o, lse)
        yield grad(lambda o, lse: sum(x.square().sum() for x in vmap(merge)(o, lse)), (0, 1))(o, lse)
        yield jacrev(small, (0, 1))(o_one, lse_one)
        yield vmap(jacrev(small))(o, lse)
        yield grad(lambda o: sum(x.square().sum() for x in grad(of)(o, lse_one)))(o_one)
        packed = [x[:, 0] for x in o], [x[:, 0] for x in lse]
        yield vmap(merge)(*packed)

    for found, wanted in zip(each(la.merge_states, lambda x: x), each(theirs, torch.Tensor.double)):
        close(*map(torch.utils._pytree.tree_leaves, (found, wanted)), 1e-4)
    with pytest.raises(libattn.UnsupportedError, match="forward-mode"):
        jvp(lambda o: la.merge_states([o, o], one[1][:2]), (one[0][0],), (one[0][0],))


def test_compiled_and_as_an_operator():
    o, lse = parts()

    def step(o, lse):
        o, lse = la.merge_states(o, lse, out_f32=True)
        return o.sin().sum() + lse.square().sum()

    found = []
    for f in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        listed = [[x.clone().requires_grad_() for x in each] for each in (o, lse)]
        f(*listed).backward()
        found.append([x.grad for each in listed for x in each])
    assert all(map(torch.equal, *found))
    wanting = [[x.clone().requires_grad_() for x in each] for each in (o, lse)]
    torch.library.opcheck(torch.ops.libattn.merge.default, (*wanting, False, 1))


def test_results_are_those_of_libattn():
    o, lse = parts()
    for a, b in zip(la.merge_states(o, lse), libattn.merge_states(o, lse)):
        assert torch.equal(a, b)
    for a in la.merge_states([x.to("meta") for x in o], [x.to("meta") for x in lse], out_f32=True):
        assert a.is_meta and a.dtype == torch.float32


def test_refusals():
    o, lse = parts()
    wanting = [x.requires_grad_() for x in parts()[0]]
    for listed, options, says in (((wanting, lse[:2]), {}, "o has 3 parts and lse 2"), (([], []), {}, "o has 0 parts"),
                                  ((wanting, [x[:1] for x in lse]), {}, r"lse\[0\] has shape"),
                                  ((o, [x.double() for x in lse]), {}, r"lse\[0\] is float64"),
                                  ((o, lse), {"threads": True}, "threads is True"),
                                  ((o, lse), {"out_f32": "no"}, "out_f32 is 'no'")):
        with pytest.raises(libattn.InvalidError, match=says):
            la.merge_states(*listed, **options)
    for listed, says in (((o[0], lse), "o is Tensor"), ((o, [x.numpy() for x in lse]), r"lse\[0\] is ndarray")):
        with pytest.raises(TypeError, match=says):
            la.merge_states(*listed)
    with pytest.raises(libattn.InvalidError, match=r"o\[0\] requires grad.*merge_states of libattn.torch"):
        libattn.merge_states(wanting, lse)
    for call, says in ((lambda: vmap(la.merge_states)([torch.randn(3, 3, 8)] * 2, [torch.randn(3, 3)] * 2),
                        r"o\[0\] has shape \(3, 8\)"),
                       (lambda: vmap(la.merge_states)([o[0], o[1][:, None]], lse[:2]),
                        r"o\[1\] has shape \(1, 5, 3, 8\)"),
                       (lambda: vmap(la.merge_states)(o, [x[:, :1] for x in lse]), r"lse\[0\] has shape \(1, 5\)")):
        with pytest.raises(libattn.InvalidError, match=says):
            call()
