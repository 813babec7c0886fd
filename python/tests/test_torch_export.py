"""libattn.torch where PyTorch writes down what a function does: torch.jit.trace, torch.export, AOTInductor."""
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import libattn.torch as la  # noqa: E402


class Module(torch.nn.Module):
    def forward(self, q, k, v, mask=None):
        return la.attention(q, k, v, mask=mask, causal=mask is None)


class Packed(torch.nn.Module):
    def forward(self, q, k, v, cu_lens):
        return la.attention_varlen(q, k, v, cu_lens, cu_lens, 5, 5, window=(2, 0))


def inputs(rows=9, keys=13, masked=False):
    torch.manual_seed(1)
    made = [torch.randn(2, rows, 4, 16), torch.randn(2, keys, 2, 16), torch.randn(2, keys, 2, 16)]
    return (*made, torch.rand(2, 1, rows, keys) < 0.6) if masked else tuple(made)


def packed():
    return (*(torch.randn(9, heads, 16) for heads in (4, 2, 2)), torch.tensor([0, 4, 9], dtype=torch.int32))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("masked", [False, True])
def test_trace(masked):
    traced = torch.jit.trace(Module(), inputs(masked=masked))
    given = inputs(masked=masked)
    assert torch.equal(traced(*given), Module()(*given))


@pytest.mark.filterwarnings("ignore")
def test_trace_of_what_records():
    given = [x.requires_grad_() for x in inputs()]
    traced = torch.jit.trace(Module(), given)
    assert "libattn::forward" in str(traced.graph)
    found, wanted = (torch.autograd.grad(f(*given).sum(), given) for f in (traced, Module()))
    assert all(map(torch.equal, found, wanted))


@pytest.mark.filterwarnings("ignore")
def test_trace_of_packed_rows():
    assert torch.equal(torch.jit.trace(Packed(), packed())(*(given := packed())), Packed()(*given))


@pytest.mark.parametrize("masked", [False, True])
def test_export_with_dynamic_lengths(masked):
    rows = torch.export.Dim("rows", min=2, max=100)
    keys = torch.export.Dim("keys", min=9 if masked else 2, max=100)  # a mask of one byte for a row is another program
    shapes = [{1: rows}, {1: keys}, {1: keys}, {2: rows, 3: keys} if masked else None]
    program = torch.export.export(Module(), inputs(masked=masked), dynamic_shapes=shapes[:4 if masked else 3])
    for lens in ((9, 13), (40, 16), (3, 9), (100, 99)):
        given = inputs(*lens, masked)
        assert torch.equal(program.module()(*given), Module()(*given))


AOT_INDUCTOR = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
if sys.argv[1] == "none":
    class Module(torch.nn.Module):
        def forward(self, x):
            return x.sin()
    given = (torch.randn(3),)
else:
    from test_torch_export import Module, inputs
    given = inputs(masked=sys.argv[1] == "masked")
program = torch.export.export(Module(), given)
path = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[2])
torch.testing.assert_close(torch._inductor.aoti_load_package(path)(*given), Module()(*given))
"""


def aot_inductor(what, tmp_path):
    """Of a process of its own, since some builds of PyTorch crash when they load what they compiled."""
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, os.path.dirname(os.path.dirname(libattn.__file__))])
    return subprocess.run([sys.executable, "-c", AOT_INDUCTOR, what, str(tmp_path / f"{what}.pt2")], timeout=300,
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.long
@pytest.mark.parametrize("what", ["plain", "masked"])
def test_aot_inductor(what, tmp_path):
    done = aot_inductor(what, tmp_path)
    if done.returncode < 0 and aot_inductor("none", tmp_path).returncode < 0:
        pytest.skip("this PyTorch crashes when it loads what AOTInductor made of a module without libattn")
    assert done.returncode == 0, done.stderr
