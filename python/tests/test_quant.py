"""quantize over NumPy arrays and torch tensors: against the definition, and what it refuses."""
import ml_dtypes
import numpy as np
import pytest

import libattn

RANDOM = np.random.default_rng(46)
E4M3 = ml_dtypes.float8_e4m3fn


def normal(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def values(found, block_rows):
    """data * scale, (batch, rows, heads, dim)."""
    scale = np.asarray(found.scale, np.float64)
    if scale.shape[1] not in (1, found.data.shape[1]):
        scale = np.repeat(scale, block_rows, 1)[:, :found.data.shape[1]]
    return found.data.astype(np.float64) * np.repeat(scale, found.data.shape[2] // scale.shape[2], 2)


def rounded(x, dtype):
    return x.astype(np.float32).astype(E4M3).astype(np.float64) if dtype == "float8_e4m3fn" else np.rint(x)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
@pytest.mark.parametrize("granularity, axes", [("tensor", (0, 1, 2, 3)), ("head", (1, 3)), ("channel", (1,)),
                                               ("token", (3,))])
def test_scale_and_data_are_their_definition(granularity, axes, dtype):
    x = normal(2, 70, 3, 24) * 5
    found = libattn.quantize(x, dtype, granularity=granularity)
    scale = np.abs(x.astype(np.float64)).max(axes, keepdims=True) / (448 if dtype == "float8_e4m3fn" else 127)
    assert found.scale.dtype == np.float32 and found.scale.shape == scale.shape
    assert np.allclose(found.scale, scale, rtol=1e-6)
    assert found.data.shape == x.shape and found.data.dtype == (E4M3 if dtype == "float8_e4m3fn" else np.int8)
    same = found.data.astype(np.float64) == rounded(x / scale, dtype)
    assert same.mean() > 0.999  # ties may fall either way
    assert found.mean is None and found.dot is None


@pytest.mark.parametrize("rows", [64, 128])
def test_blocks_and_groups_of_heads(rows):
    x = normal(2, 200, 4, 32)
    found = libattn.quantize(x, block_rows=rows, scale_heads=2)
    blocks = -(-200 // rows)
    assert found.scale.shape == (2, blocks, 2, 1)
    for block in range(blocks):
        part = np.abs(x[:, block * rows:(block + 1) * rows]).reshape(2, -1, 2, 2, 32)
        assert np.allclose(found.scale[:, block, :, 0], part.max((1, 3, 4)) / 448, rtol=1e-6)
    assert np.abs(values(found, rows) - x).max() < 0.04 * np.abs(x).max()


def test_rotation_keeps_products_and_spreads_outliers():
    q, k = normal(1, 64, 2, 96), normal(1, 64, 2, 96)
    q[..., 5] *= 100
    exact = np.einsum("bihd,bjhd->bhij", q, k)
    errors = []
    for hadamard in (False, True):
        q8, k8 = (libattn.quantize(x, "int8", hadamard=hadamard, seed=3) for x in (q, k))
        errors.append(np.abs(np.einsum("bihd,bjhd->bhij", values(q8, 64), values(k8, 64)) - exact).mean())
    assert errors[1] < 0.5 * errors[0] < 0.1 * np.abs(exact).mean()
    other = libattn.quantize(q, "int8", hadamard=True, seed=4)
    assert not np.array_equal(other.data, libattn.quantize(q, "int8", hadamard=True, seed=3).data)
    assert np.array_equal(libattn.quantize(q, "int8", hadamard=32, seed=4).data, other.data)


def test_mean_is_removed_and_the_lse_corrected():
    q, k, v = normal(2, 33, 4, 32), normal(2, 50, 2, 32) + 3 * normal(2, 1, 2, 32), normal(2, 50, 2, 32)
    k8 = libattn.quantize(k, subtract_mean=True)
    q8 = libattn.quantize(q, k_mean=k8.mean)
    assert np.allclose(k8.mean, k.mean(1), atol=1e-6)
    assert np.allclose(q8.dot, np.einsum("bihd,bhd->bhi", q, np.repeat(k8.mean, 2, 1)), atol=1e-4)
    assert np.abs(values(k8, 64) - (k - k8.mean[:, None])).max() < 0.04 * np.abs(k - k8.mean[:, None]).max()
    o, lse = libattn.attention(q, k, v, return_lse=True)
    found, partial = libattn.attention(q, k - k8.mean[:, None], v, return_lse=True)
    assert np.allclose(found, o, atol=1e-5)
    assert np.allclose(libattn.correct_lse(partial, q8.dot, dim=32), lse, atol=1e-5)
    assert np.allclose(libattn.correct_lse(partial, q8.dot, scale=32 ** -0.5), lse, atol=1e-5)
    for option in ({"softcap": 30.0}, {"sink": np.zeros(4)}):
        with pytest.raises(libattn.UnsupportedError, match=f"{next(iter(option))}: with keys whose mean was removed"):
            libattn.correct_lse(partial, q8.dot, dim=32, **option)
    with pytest.raises(libattn.InvalidError, match="scale and dim are both None"):
        libattn.correct_lse(partial, q8.dot)
    with pytest.raises(libattn.InvalidError, match="must be equal"):
        libattn.correct_lse(partial, q8.dot[:1], dim=32)


def test_packed_sequences_are_each_by_itself():
    cu = [0, 70, 70, 171]
    x = normal(180, 2, 64)
    found = libattn.quantize(x, hadamard=True, subtract_mean=True, cu_lens=cu)
    assert found.scale.shape == (3, 2, 2, 1) and found.mean.shape == (3, 2, 64)
    for i, (a, b) in enumerate(zip(cu, cu[1:])):
        alone = libattn.quantize(x[None, a:b], hadamard=True, subtract_mean=True)
        assert np.array_equal(found.data[a:b].view(np.uint8), alone.data[0].view(np.uint8))
        assert np.array_equal(found.scale[i, :alone.scale.shape[1]], alone.scale[0])
        assert np.array_equal(found.mean[i], alone.mean[0])
    assert np.all(found.data[171:].astype(np.float32) == 0)
    q = libattn.quantize(x, k_mean=found.mean, cu_lens=cu, max_len=101)
    assert q.dot.shape == (2, 180) and np.all(q.dot[:, 171:] == 0)


def test_strides_and_threads_change_nothing():
    x = normal(2, 4, 130, 64, dtype=np.float16).transpose(0, 2, 1, 3)
    wanted = libattn.quantize(np.ascontiguousarray(x), hadamard=True, threads=1)
    found = libattn.quantize(x, hadamard=True, threads=3)
    assert np.array_equal(found.data.view(np.uint8), wanted.data.view(np.uint8))
    assert np.array_equal(found.scale, wanted.scale)


def test_torch():
    torch = pytest.importorskip("torch")
    x = torch.randn(1, 100, 2, 64, dtype=torch.bfloat16)
    k8 = libattn.quantize(x, hadamard=True, subtract_mean=True)
    q8 = libattn.quantize(x, hadamard=True, k_mean=k8.mean)
    v8 = libattn.quantize(x, "int8", granularity="channel")
    assert k8.data.dtype == torch.float8_e4m3fn and v8.data.dtype == torch.int8
    assert all(type(t) is torch.Tensor for t in (*k8[:3], q8.dot))
    array = x.to(torch.float32).numpy().astype(ml_dtypes.bfloat16)
    assert np.array_equal(libattn.quantize(array, "int8", granularity="channel").data, v8.data.numpy())
    with pytest.raises(libattn.InvalidError, match="x requires grad"):
        libattn.quantize(x.requires_grad_())


X = np.zeros((2, 5, 4, 32), np.float32)


@pytest.mark.parametrize("x, options, message", [
    (X, {"dtype": "float8_e5m2"}, "dtype is 'float8_e5m2'; it takes float8_e4m3fn or int8"),
    (X, {"granularity": "row"}, "granularity is 'row'; it takes tensor, head, channel, block, token"),
    (X, {"block_rows": 32}, "block_rows is 32; it takes 64 or 128"),
    (X, {"scale_heads": 3}, "scale_heads = 3 does not divide heads = 4"),
    (X, {"hadamard": 24}, "rotate = 24 is not 0, 16"),
    (X[..., :24], {"hadamard": True}, "hadamard: dim is 24; it takes multiples of 16"),
    (X, {"subtract_mean": True, "k_mean": X[:, 0]}, "subtract_mean and k_mean are both given"),
    (X, {"k_mean": X[:, 0, :, :16]}, "k_mean has shape"),
    (X, {"k_mean": X[:, 0, :3]}, "mean_heads = 3 does not divide heads = 4"),
    (X, {"cu_lens": [0, 5]}, "x has shape"),
    (X[0], {}, "x has shape"),
    (X[0], {"cu_lens": [0, 6]}, "cu_lens"),
    (X[0], {"cu_lens": [0, 5], "max_len": 4}, "cu_lens gives sequence 0 5 rows, which exceeds rows = 4"),
    (X.astype(np.float64), {}, "x is float64; it takes"),
    (X, {"threads": -1}, "threads = -1"),
])
def test_refusals(x, options, message):
    with pytest.raises(libattn.InvalidError, match=message.replace("(", r"\(")):
        libattn.quantize(x, **options)
