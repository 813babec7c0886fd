"""torch.func over libattn.torch on the CPU, beside SDPA's math under the same transforms."""
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch.func import grad, hessian, jacfwd, jvp, vjp  # noqa: E402

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402


def tensors():
    torch.manual_seed(2)
    return tuple(torch.randn(2, 4, rows, 8) for rows in (5, 6, 6))


def ours(q, k, v):
    return la.scaled_dot_product_attention(q, k, v, is_causal=True)


def theirs(q, k, v):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def close(found, wanted):
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def squares(function):
    return lambda *inputs: function(*inputs).square().sum()


def test_grad():
    close(*(grad(squares(f), (0, 1, 2))(*tensors()) for f in (ours, theirs)))


def test_grad_of_tensors_that_require_grad():
    """torch.func's transform and autograd's own graph at once, as with a module's parameters."""
    found = []
    for f in (ours, theirs):
        inputs = [x.requires_grad_() for x in tensors()]
        found.append((*grad(squares(f), (0, 1, 2))(*inputs), torch.autograd.grad(squares(f)(*inputs), inputs)[0]))
    close(*found)


def test_vjp_after_the_transform_has_ended():
    weight = torch.randn(2, 4, 5, 8)
    close(*(vjp(f, *tensors())[1](weight) for f in (ours, theirs)))


def test_lse_and_scores_under_grad():
    q, k, v = (x.transpose(1, 2) for x in tensors())
    bias, sink = torch.randn(1, 4, 5, 6), torch.randn(4)

    def function(q, bias, sink):
        o, lse = la.attention(q, k, v, bias=bias, sink=sink, return_lse=True)
        return o.square().sum() + lse.sum()

    inputs = [x.clone().requires_grad_() for x in (q, bias, sink)]
    close(grad(function, (0, 1, 2))(q, bias, sink), torch.autograd.grad(function(*inputs), inputs))


def test_second_and_forward_derivatives_are_refused():
    q, k, v = tensors()
    f = squares(ours)
    for call, says in ((lambda: grad(lambda x: grad(f)(x, k, v).sum())(q), "second derivatives"),
                       (lambda: jvp(lambda x: f(x, k, v), (q,), (q,)), "forward-mode"),
                       (lambda: jacfwd(f)(q, k, v), "forward-mode"), (lambda: hessian(f)(q, k, v), "forward-mode")):
        with pytest.raises(libattn.UnsupportedError, match=says):
            call()
