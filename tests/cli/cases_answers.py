"""What `attn run` computes, against attention from its definition."""

import itertools
import json
import math
import os

from arrays import Array, npy, read_npy, read_safetensors, safetensors, uniform
from attention import attention
from harness import case, check, close, gpu_environment, skip

TOLERANCE = {"f32": 2e-6, "f16": 2e-3, "bf16": 2e-2}


def problem(place, batch=2, rows=9, keys=13, heads=4, heads_kv=2, dim=5, dim_v=6, dtype="f32", rank=4):
    q = uniform(1, (batch, rows, heads, dim), dtype)
    k = uniform(2, (batch, keys, heads_kv, dim), dtype)
    v = uniform(3, (batch, keys, heads_kv, dim_v), dtype)
    for name, array in (("q", q), ("k", k), ("v", v)):
        place.write(name + ".npy", npy(array.reshaped(*array.shape[4 - rank :])))
    return q, k, v


QKV = ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]


def compare(place, qkv, *options, dtype="f32", rank=4, **meaning):
    """Runs the files of qkv with `options`, and their attention with `meaning`."""
    place.run("run", *QKV, "-o", "o.npy", "--lse", "lse.npy", "-q", *options)
    o, lse = attention(*qkv, **meaning)
    got = read_npy(place.path("o.npy"))
    check(got.dtype == ("f16" if dtype == "f16" else "f32"), "o has dtype", got.dtype)
    close(got, o.reshaped(*o.shape[4 - rank :]), TOLERANCE[dtype])
    close(read_npy(place.path("lse.npy")), lse, 2e-5, "lse")
    return got


@case
def plain(place):
    compare(place, problem(place))
    check(place.files() == ["k.npy", "lse.npy", "o.npy", "q.npy", "v.npy"], "left", place.files())


@case
def rank_3(place):
    compare(place, problem(place, batch=1, rank=3), rank=3)


@case
def one_row(place):
    compare(place, problem(place, rows=1, keys=70, heads=8, dim=16, dim_v=16))


@case
def no_rows_and_no_keys(place):
    compare(place, problem(place, rows=0))
    compare(place, problem(place, keys=0))
    compare(place, problem(place, batch=0))


@case
def f16_and_bf16(place):
    q, k, v = problem(place)
    for dtype in ("f16", "bf16"):
        compare(place, [x.converted(dtype) for x in (q, k, v)], "--dtype", dtype, dtype=dtype)
    compare(place, problem(place, dtype="f16"), dtype="f16")
    compare(place, problem(place, dtype="f16"), "--dtype", "f32")


@case
def mixed_dtypes(place):
    q, k, v = problem(place)
    place.write("k.npy", npy(k.converted("f16")))
    place.refuses(["run", *QKV, "-o", "o.npy"], 1, "q is float32, k is float16, v is float32", "--dtype")
    compare(place, (q, k.converted("f16"), v), "--dtype", "f32")


@case
def every_isa_and_threads(place):
    qkv = problem(place)
    for isa in json.loads(place.run("info", "--json").out)["isas"]:
        for threads in ("1", "3"):
            compare(place, qkv, "--isa", isa, "--threads", threads, "--causal", causal=True)


@case
def masks(place):
    qkv, answers = problem(place), []
    ranges = [
        {},
        {"causal": True},
        {"window": (3, 1)},
        {"window": (-1, 2)},
        {"window": (0, -1)},
        {"chunk": 4},
        {"causal": True, "prefix": 6},
        {"window": (2, 0), "prefix": 2},
        {"causal": True, "window": (4, 4), "chunk": 7},
        {"prefix": 0, "causal": True, "window": (1, 0)},
    ]
    for meaning in ranges:
        options = []
        for name, value in meaning.items():
            text = "%d,%d" % value if name == "window" else str(value)
            options += ["--" + name] if name == "causal" else ["--%s=%s" % (name, text)]
        answers.append(compare(place, qkv, *options, **meaning).data)
    for a, b in itertools.combinations(answers[:9], 2):
        check(a != b, "two masks give the same answer")


@case
def rows_without_keys(place):
    o = compare(place, problem(place, batch=1, rows=9, keys=4), "--causal", causal=True)
    check(o.data[0] == 0, "a row without a key is not zero")


@case
def score_changes(place):
    qkv, plain_o = problem(place), None
    slopes, both, sink = uniform(4, (4,)), uniform(5, (2, 4)), uniform(6, (4,))
    for name, array in (("slopes", slopes), ("both", both), ("sink", sink)):
        place.write(name + ".npy", npy(array))
    plain_o = compare(place, qkv).data
    for options, meaning in (
        (["--scale", "0.25"], {"scale": 0.25}),
        (["--scale=1.5e0", "--softcap", ".5"], {"scale": 1.5, "softcap": 0.5}),
        (["--alibi", "slopes.npy"], {"alibi": lambda n, h: slopes[h,]}),
        (["--alibi", "both.npy", "--causal"], {"alibi": lambda n, h: both[n, h], "causal": True}),
        (["--sink", "sink.npy"], {"sink": sink.data}),
    ):
        check(compare(place, qkv, *options, **meaning).data != plain_o, *options, "changes nothing")


@case
def bias_shapes(place):
    qkv = problem(place)
    for ones in ((0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 1, 0), (0, 1, 0, 1), (1, 1, 1, 1)):
        shape = [1 if one else extent for one, extent in zip(ones, (2, 4, 9, 13))]
        for dtype in ("f32", "f16"):
            bias = uniform(7, shape, dtype)
            place.write("bias.npy", npy(bias))
            compare(
                place,
                qkv,
                "--bias",
                "bias.npy",
                bias=lambda *at: bias[tuple(0 if one else i for one, i in zip(ones, at))],
            )


def hidden(vectors, rows, causal):
    if len(vectors) == 1:
        ranges = [(vectors[0], rows)]
    elif len(vectors) == 2:
        ranges = [(vectors[0], vectors[1])] if causal else [(vectors[0], rows), (0, vectors[1])]
    else:
        ranges = [(vectors[0], vectors[1]), (vectors[2], vectors[3])]
    return lambda i: any(begin <= i < end for begin, end in ranges)


@case
def intervals(place):
    qkv, rows, keys = problem(place), 9, 13
    for vectors, causal, heads in ((1, True, 2), (2, True, 1), (2, False, 2), (4, False, 1)):
        table = Array(
            (2, heads, keys, vectors), [x * 7 % (rows + 1) for x in range(2 * heads * keys * vectors)], "i32"
        )
        place.write("table.npy", npy(table))

        def visible(n, h, i, j):
            row = [table[n, h // 2 if heads == 2 else 0, j, x] for x in range(vectors)]
            return not hidden(row, rows, causal)(i)

        compare(
            place, qkv, "--intervals", "table.npy", *(["--causal"] if causal else []), causal=causal, visible=visible
        )


@case
def block_mask(place):
    qkv = problem(place)
    for shape in ((1, 1, 3, 4), (2, 4, 9, 13), (2, 1, 1, 7), (1, 4, 5, 5)):
        count = shape[0] * shape[1] * shape[2] * shape[3]
        blocks = Array(shape, [200 * (x % 3 != 1) for x in range(count)], "u8")
        place.write("blocks.npy", npy(blocks))

        def visible(n, h, i, j):
            return blocks[n % shape[0], h % shape[1], i // -(-9 // shape[2]), j // -(-13 // shape[3])] != 0

        compare(place, qkv, "--block-mask", "blocks.npy", "--causal", causal=True, visible=visible)


@case
def pair_mask(place):
    """A bit a pair: as bools, and packed; with any other mask."""
    for keys in (13, 16, 1, 0):
        qkv = problem(place, keys=keys)
        for shape in ((1, 1, 9, keys), (2, 4, 9, keys), (2, 1, 9, keys), (1, 4, 9, keys), (9, keys)):
            full = (1, 1, *shape)[-4:]
            count = full[0] * full[1] * full[2] * full[3]
            mask = Array(full, [x * 7 % 11 < 6 for x in range(count)], "bool")

            def visible(n, h, i, j):
                return mask[n % full[0], h % full[1], i, j]

            place.write("mask.npy", npy(mask.reshaped(*shape)))
            compare(place, qkv, "--mask", "mask.npy", "--causal", causal=True, visible=visible)
            bits = [
                sum(bool(mask.data[row * keys + j]) << j % 8 for j in range(at, min(at + 8, keys)))
                for row in range(full[0] * full[1] * 9)
                for at in range(0, keys, 8)
            ]
            place.write("mask.npy", npy(Array((*shape[:-1], -(-keys // 8)), bits, "u8")))
            compare(place, qkv, "--mask", "mask.npy", "--window", "4,9", window=(4, 9), visible=visible)


@case
def nan_is_told(place):
    """Which result holds how many, on stderr and in JSON; none where an input's NaN is seen by no row."""
    q, k, v = problem(place, batch=1, rows=3, keys=5, heads=2, heads_kv=1, dim=4, dim_v=6)
    done = place.run("run", *QKV, "-o", "o.npy", "--json")
    check(not done.err and json.loads(done.out)["nan_elements"] == 0, done.err)
    broken = Array(q.shape, [math.nan if i in (0, 1) else x for i, x in enumerate(q.data)])  # of row 0 and head 0
    place.write("q.npy", npy(broken))
    for dtype in ("f32", "f16", "bf16"):
        words = ["run", *QKV, "-o", "o.npy", "--lse", "lse.npy", "--dtype", dtype]
        done = place.run(*words, "--json")
        check(json.loads(done.out)["nan_elements"] == 7, done.out)
        check("attn run: warning: -o o.npy: 6 of 36 elements are NaN" in done.err, done.err)
        check("attn run: warning: --lse lse.npy: 1 of 6 elements are NaN" in done.err, done.err)
        check(not place.run(*words, "--quiet").err, "--quiet")
    place.write("lens.npy", npy(Array((1,), [0], "i32")))
    check(" NaN" not in place.run("run", *QKV, "-o", "o.npy", "--lens-q", "lens.npy").err, "of a row not in use")


@case
def packed_sequences(place):
    for rank in (3, 4):
        qkv = problem(place, batch=1, rows=10, keys=12, rank=rank)
        place.write("starts_q.npy", npy(Array((4,), [0, 4, 4, 10], "i32")))
        place.write("starts_kv.npy", npy(Array((4,), [0, 5, 7, 12], "i32")))
        compare(
            place,
            qkv,
            "--cu-lens-q",
            "starts_q.npy",
            "--cu-lens-kv",
            "starts_kv.npy",
            "--causal",
            rank=rank,
            causal=True,
            spans=[(0, 4, 0, 5), (4, 0, 5, 2), (4, 6, 7, 5)],
        )


@case
def used_keys(place):
    qkv = problem(place)
    place.write("lens.npy", npy(Array((2,), [3, 11], "i32")))
    compare(place, qkv, "--lens-kv", "lens.npy", "--causal", causal=True, lens_kv=[3, 11])


@case
def used_rows(place):
    qkv = problem(place)
    for dtype in ("i32", "i64"):
        place.write("rows.npy", npy(Array((2,), [4, 0], dtype)))
        place.write("lens.npy", npy(Array((2,), [7, 11], "i32")))
        words = ("--lens-q", "rows.npy", "--causal")
        o = compare(place, qkv, *words, causal=True, lens_q=[4, 0])
        check(not any(o.data[4 * 24 :]) and all(o.data[: 4 * 24]), "rows not in use are not zero")
        compare(place, qkv, *words, "--lens-kv", "lens.npy", causal=True, lens_q=[4, 0], lens_kv=[7, 11])


def paged(place, batch, pages, size, table, rows=5, heads=4, heads_kv=2, dim=5, rank=4, dtype="f32"):
    """q, and k and v as pools of pages, in files; q, and k and v as the table says, behind one another: what no page
    holds is NaN."""
    q = uniform(1, (batch, rows, heads, dim), dtype)
    k, v = uniform(2, (pages, size, heads_kv, dim), dtype), uniform(3, (pages, size, heads_kv, dim + 1), dtype)
    width, flat = len(table[0]), [page for row in table for page in row]
    place.write("q.npy", npy(q.reshaped(*q.shape[4 - rank :])))
    place.write("table.npy", npy(Array((len(table), width), flat, "i32" if batch == 2 else "i64")))
    contiguous = []
    for name, pool in (("k", k), ("v", v)):
        place.write(name + ".npy", npy(pool))
        step, data = size * heads_kv * pool.shape[3], []
        for page in flat:
            data += pool.data[page * step : (page + 1) * step] if 0 <= page < pages else [math.nan] * step
        contiguous.append(Array((len(table), width * size, heads_kv, pool.shape[3]), data))
    return (q, *contiguous)


@case
def pages(place):
    """Keys in pages in any order, shared, and gone from a window; any score change; one row; dtypes."""
    words = ("--page-table", "table.npy", "--lens-kv", "lens.npy", "--causal")
    for rows, size, lens in ((5, 3, [7, 11]), (1, 3, [12, 1]), (5, 1, [4, 0]), (2, 64, [256, 65])):
        qkv = paged(place, 2, 6, size, [[5, 0, 3, 2], [5, 1, 4, 0]], rows=rows)
        place.write("lens.npy", npy(Array((2,), lens, "i32")))
        compare(place, qkv, *words, causal=True, lens_kv=lens)
        compare(place, qkv, *words, "--softcap", "2", causal=True, lens_kv=lens, softcap=2)
        qkv = paged(place, 2, 6, size, [[5, 0, 3, 2], [5, 1, 4, 0]], rows=rows, dtype="f16")
        compare(place, qkv, *words, dtype="f16", causal=True, lens_kv=lens)
    qkv = paged(place, 2, 6, 3, [[-1, -1, 3, 2], [7, 1, 4, -(2**31)]])
    place.write("lens.npy", npy(Array((2,), [12, 9], "i32")))
    window = ("--window", "1,0")
    compare(place, qkv, *words, *window, causal=True, window=(1, 0), lens_kv=[12, 9])
    place.run("run", *QKV, "-o", "o.npy", *words, code=1)
    bias = uniform(5, (2, 1, 5, 12))
    qkv = paged(place, 2, 6, 3, [[5, 0, 3, 2], [5, 1, 4, 0]])
    place.write("bias.npy", npy(bias))
    meaning = {"bias": lambda n, h, i, j: bias[n, 0, i, j], "causal": True, "lens_kv": [12, 9]}
    compare(place, qkv, *words, "--bias", "bias.npy", **meaning)


@case
def pages_on_a_gpu(place):
    """The same answer; an id that is no page's, and a length, are refused as on the CPU."""
    gpu = gpu_environment()
    if not gpu:
        return skip("no driver that stands for a GPU's: ATTN_TEST_CUDA is not set")
    q, k, v = paged(place, 2, 6, 3, [[5, 0, 3, 2], [5, 1, 4, 0]])
    words = ["run", *QKV, "-o", "o.npy", "--page-table", "table.npy", "--lens-kv", "lens.npy", "--causal", "--device", "cuda"]
    place.write("lens.npy", npy(Array((2,), [12, 8], "i32")))
    place.run(*words, env=gpu)
    close(read_npy(place.path("o.npy")), attention(q, k, v, causal=True, lens_kv=[12, 8])[0], TOLERANCE["f32"])
    os.remove(place.path("o.npy"))
    place.write("table.npy", npy(Array((2, 4), [5, 0, 3, 2, 5, 6, 4, 0], "i32")))
    place.refuses(words, 1, "page_table: sequence 1, entry 1 = 6", env=gpu)
    place.write("lens.npy", npy(Array((2,), [12, 13], "i32")))
    place.refuses(words, 1, "lens_kv[1] = 13", env=gpu)


@case
def packed_rows_over_pages(place):
    for rank in (3, 4):
        q, k, v = paged(place, 1, 6, 4, [[5, 0], [1, 3], [2, 5]], rows=9, rank=rank)
        place.write("starts.npy", npy(Array((4,), [0, 1, 5, 9], "i32")))
        place.write("lens.npy", npy(Array((3,), [8, 5, 6], "i32")))
        words = ("--page-table", "table.npy", "--lens-kv", "lens.npy", "--cu-lens-q", "starts.npy", "--causal")
        k, v = (x.reshaped(1, 24, *x.shape[2:]) for x in (k, v))
        spans = [(0, 1, 0, 8), (1, 4, 8, 5), (5, 4, 16, 6)]
        compare(place, (q, k, v), *words, rank=rank, causal=True, spans=spans)


@case
def dropout(place):
    qkv = problem(place, rows=20, keys=35)
    for p, seed, text in ((0.3, 7, "7"), (0.5, 2**64 - 1, "0xFFFFFFFFFFFFFFFF"), (0, 0, "0")):
        compare(place, qkv, "--dropout", str(p), "--seed", text, dropout=(p, seed))


@case
def deterministic(place):
    problem(place, rows=3, keys=300, heads=8, dim=16)
    answers = set()
    for threads in ("1", "2", "3"):
        place.run("run", *QKV, "-o", "o.npy", "--deterministic", "--threads", threads)
        answers.add(bytes(open(place.path("o.npy"), "rb").read()))
    check(len(answers) == 1, "bits differ between numbers of threads")


@case
def tensors(place):
    for dtype, skew in itertools.product(("f32", "f16", "bf16"), (0, 1)):
        q, k, v = problem(place, dtype="f32" if dtype == "bf16" else dtype, rows=3, dim_v=7)
        q, k, v = (x.converted(dtype) for x in (q, k, v))
        place.write(
            "qkv.safetensors", safetensors({"k": k, "other": uniform(9, (3, 2), "f16"), "v": v, "q": q}, skew=skew)
        )
        place.run("run", "--tensors", "qkv.safetensors", "-o", "o.safetensors", "--lse", "o.safetensors")
        got = read_safetensors(place.path("o.safetensors"))
        o, lse = attention(q, k, v)
        check(sorted(got) == ["lse", "o"] and got["o"].dtype == dtype, "tensors", got)
        close(got["o"], o, TOLERANCE[dtype])
        close(got["lse"], lse, 2e-5)
        place.run("run", "--tensors", "qkv.safetensors", "-o", "o.safetensors", "--lse", "lse.npy")
        check(list(read_safetensors(place.path("o.safetensors"))) == ["o"], "more than o")
        close(read_npy(place.path("lse.npy")), lse, 2e-5)
