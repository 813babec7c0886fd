"""Every option of every function takes its own types and names itself where it is given others."""
import inspect

import numpy as np
import pytest

import libattn
from libattn import _options, masks

# What is no option: tensors, tables, and what says itself what it takes.
ARRAYS = set("""q k v o lse grad_o grad_lse cu_lens cu_lens_q cu_lens_kv prefix lens_q lens_kv mask bits intervals blocks
    alibi bias sink seed seed_offset out out_lse stream k_cache v_cache cache_seqlens page_table rotary_cos rotary_sin
    q_scale k_scale v_scale o_scale x k_mean dot group tensor rotary_positions position_q position_kv levels first_kv fault
    device query key value attn_mask block_mask len_q len_kv""".split())


def functions():
    found = [getattr(libattn, name) for name in libattn.__all__]
    found = [one for one in found if inspect.isfunction(one)]
    try:
        from libattn import torch
    except ImportError:
        return found
    return found + [getattr(torch, name) for name in torch.__all__]


def right(function, make):
    """Arguments that the function takes."""
    q, k, v = make()
    lens = np.array([0, 9]), np.array([0, 13])
    o, lse = libattn.attention(q, k, v, return_lse=True)
    cache = {"k_cache": k.copy(), "v_cache": v.copy(), "k": k[:, :3].copy(), "v": v[:, :3].copy(), "cache_seqlens": 1}
    named = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "grad_o": o, "alibi": None, "x": q, "dot": lse,
             "tensor": q, "rows": 9}
    named.update({"attention_varlen": {"q": q[0], "k": k[0], "v": v[0], "cu_lens_q": lens[0], "cu_lens_kv": lens[1],
                                       "max_len_q": 9, "max_len_kv": 13},
                  "append_kvcache": cache, "attention_with_kvcache": {**cache, "q": q[:, :3]},
                  "merge_states": {"o": [o, o], "lse": [lse, lse]},
                  "correct_lse": {"lse": lse, "dot": lse, "scale": 0.5}}.get(function.__name__, {}))
    if function.__name__ == "scaled_dot_product_attention":
        named = {name: named[other][:, :, :2].transpose(0, 2, 1, 3) for name, other in
                 (("query", "q"), ("key", "k"), ("value", "v"))}
    given = {name: named[name] for name, one in inspect.signature(function).parameters.items()
             if name in named and (one.default is inspect.Parameter.empty or name.startswith("max_len")
                                   or function.__name__ == "correct_lse")}
    if "levels" in inspect.signature(function).parameters:
        pages = np.array([[0], [1]])
        levels = [(np.array([0, 4]), np.array([3]), pages[:1]), (np.array([0, 2, 4]), np.array([5, 2]), pages)]
        given.update(q=q[0, :4].copy(), k_cache=k, v_cache=v, levels=levels, max_len_q=2)
    if "kvcache" in function.__name__:
        given.update(k=named["k"], v=named["v"])
    if function.__module__.startswith(("libattn.torch", "libattn._torch")):
        import torch

        def tensors(value):
            if isinstance(value, (list, tuple)):
                return type(value)(map(tensors, value))
            return torch.from_numpy(np.ascontiguousarray(value, value.dtype if value.dtype.kind == "f" else "i4")) if (
                isinstance(value, np.ndarray)) else value

        given = {name: tensors(value) for name, value in given.items()}
    return given


def wrong(kind):
    values = ["no", b"x", 1, 0, 1.5, True, np.float32(2), np.int8(1), np.array([1, 0]), np.array(1), [1, 2], {}, 2j,
              np.timedelta64(3), lambda: 0, None, object()]
    return [value for value in values if type(value) in (dict, np.timedelta64) or not kind.takes(value)]


@pytest.fixture
def group(function):
    """What functions over ranks need: a group, here of this process alone."""
    if not function.__name__.startswith("context_parallel"):
        yield
        return
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("function", functions(), ids=lambda one: f"{one.__module__}.{one.__name__}")
def test_every_option_takes_its_types(make, function, group):
    parameters = inspect.signature(function).parameters
    assert set(parameters) - ARRAYS <= set(_options.KINDS), "an option without a kind"
    given = right(function, make) if len(set(parameters) & ARRAYS) > 1 and "mask" not in function.__name__ else {}
    if given:
        function(**given)
    for name in set(parameters) - ARRAYS - ({"max_len_kv"} if "levels" in parameters else set()):  # of each level
        for value in wrong(_options.KINDS[name]):
            if value is None and parameters[name].default is None:
                continue
            with pytest.raises(libattn.InvalidError, match=f"^{name} is "):
                function(**{**given, name: value})
                pytest.fail(f"{name}={value!r} went through")


def test_numbers_of_numpy(make):
    q, k, v = make()
    plain = libattn.attention(q, k, v, causal=True, window=(3, None), scale=0.5, chunk=4, threads=1, softcap=2.0)
    taken = libattn.attention(q, k, v, causal=np.bool_(True), window=[np.int64(3), None], scale=np.float32(0.5),
                              chunk=np.uint8(4), threads=np.int32(1), softcap=2, return_lse=np.bool_(False))
    np.testing.assert_array_equal(plain, taken)


def test_equal_values_of_other_types_are_refused_where_a_plan_is_kept(make):
    q, k, v = make()
    libattn.attention(q, k, v, causal=True, chunk=8, threads=1, window=(1, 0))
    for name, value in (("causal", 1), ("chunk", 8.0), ("threads", True), ("window", (1.0, 0))):
        with pytest.raises(libattn.InvalidError, match=name):
            libattn.attention(q, k, v, **{"causal": True, "chunk": 8, "threads": 1, "window": (1, 0), name: value})


def test_texts_end_where_they_end(make):
    q, k, v = make()
    for name in ("strategy", "kernel"):
        with pytest.raises(libattn.InvalidError, match=f"{name} is .*NUL"):
            libattn.attention(q, k, v, **{name: "auto\0x"})
    with pytest.raises(libattn.InvalidError, match="path is .*NUL"):
        libattn.machine_use("a\0b")


def test_seeds_without_dropout(make):
    q, k, v = make()
    for name in ("seed", "seed_offset"):
        for value in ("1", 1.5, True, None):
            with pytest.raises(libattn.InvalidError, match=f"{name} is"):
                libattn.attention(q, k, v, **{name: value})


def test_plan_takes_type_and_device_of_shapes_alone(make):
    q, k, v = make()
    for options in ({"dtype": "nonsense"}, {"dtype": "float32"}, {"device": "cuda"}, {"device": "cpu"},
                    {"alignment": 2}):
        with pytest.raises(libattn.InvalidError, match=f"{list(options)[0]} is .* beside tensors"):
            libattn.plan(q, k, v, **options)
    for dtype in ("nonsense", "", np.float32):
        with pytest.raises(libattn.InvalidError, match="dtype is"):
            libattn.plan(q.shape, k.shape, dtype=dtype)
    with pytest.raises(libattn.InvalidError, match="q's shape is 9.5"):
        libattn.plan((1, 9.5, 4, 8), k.shape)
    for alignment in (0, 3, 32, 2.0, True):
        with pytest.raises(libattn.InvalidError, match=f"alignment is {alignment}; it takes"):
            libattn.plan(q.shape, k.shape, alignment=alignment)
    assert libattn.plan(q.shape, k.shape, dtype="float16", device="cpu").info["kernel"]
    for name in ("max_len_q", "max_len_kv"):
        with pytest.raises(libattn.InvalidError, match=f"{name} is given without"):
            libattn.plan(q, k, v, **{name: 9})


def test_masks_are_neither_true_nor_false():
    for combine in (lambda: masks.causal and masks.window(10), lambda: masks.causal or masks.window(10),
                    lambda: not masks.causal, lambda: bool(masks.prefix([1]))):
        with pytest.raises(libattn.InvalidError, match="&.*|"):
            combine()
    for name, make_it in (("window", lambda: masks.window("3")), ("window", lambda: masks.window(1, 2.5)),
                          ("window", lambda: masks.window(True)), ("chunk", lambda: masks.chunk(1.5))):
        with pytest.raises(libattn.InvalidError, match=f"{name} is"):
            make_it()


def test_pools(make):
    for name in ("pages", "page_size", "sequences", "width", "prefix"):
        for value in ("4", 2.0, None):
            with pytest.raises(libattn.InvalidError, match=f"{name} is"):
                libattn.Pool(**{"pages": 4, "page_size": 2, "sequences": 2, "width": 2, name: value})
