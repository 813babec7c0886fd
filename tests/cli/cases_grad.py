"""What `attn grad` computes, against gradients from their definition; and what it does not take."""

import json

from arrays import Array, npy, read_npy, read_safetensors, safetensors, uniform
from attention import attention, gradients
from cases_answers import QKV, problem
from harness import case, check, close

TOLERANCE = {"f32": 5e-6, "f16": 4e-3, "bf16": 3e-2}
DQ = ["--do", "do.npy", "--dq", "dq.npy", "--dk", "dk.npy", "--dv", "dv.npy"]
GRAD = ["grad", *QKV, *DQ]


def upstream(place, qkv, dtype="f32", rank=4):
    """Writes the gradients of o and of the LSE."""
    q, _, v = qkv
    do = uniform(11, (*q.shape[:3], v.shape[3]), dtype)
    dlse = uniform(12, (q.shape[0], q.shape[2], q.shape[1]))
    place.write("do.npy", npy(do.reshaped(*do.shape[4 - rank :])))
    place.write("dlse.npy", npy(dlse))
    return do, dlse


def summed(terms, shape, ones):
    """An array of the terms, added up along axes of extent 1."""
    data = [0.0] * len(uniform(0, shape).data)
    for at, x in terms.items():
        index = 0
        for i, extent, one in zip(at if isinstance(at, tuple) else (at,), shape, ones):
            index = index * extent + (0 if one else i)
        data[index] += x
    return Array(shape, data)


def compare(place, qkv, *options, dtype="f32", rank=4, with_dlse=False, **meaning):
    """Runs the files of qkv with `options`, and their gradients with `meaning`."""
    do, dlse = upstream(place, qkv, dtype if dtype == "f16" else "f32", rank)
    if dtype == "bf16":
        do = do.converted("f32")
    place.run(*GRAD, "-q", *(["--dlse", "dlse.npy"] if with_dlse else []), *options)
    wanted = gradients(*qkv, do, dlse if with_dlse else None, **meaning)
    for name, array in zip(("dq", "dk", "dv"), wanted):
        got = read_npy(place.path(name + ".npy"))
        check(got.dtype == ("f16" if dtype == "f16" else "f32"), name, "has dtype", got.dtype)
        close(got, array.reshaped(*array.shape[4 - rank :]), TOLERANCE[dtype], name)
    return wanted


@case
def gradients_plain(place):
    compare(place, problem(place))
    files = ["dk.npy", "dlse.npy", "do.npy", "dq.npy", "dv.npy", "k.npy", "q.npy", "v.npy"]
    check(place.files() == files, "left", place.files())
    compare(place, problem(place), with_dlse=True)
    compare(place, problem(place, batch=1, rank=3), rank=3)
    compare(place, problem(place, rows=1, keys=70, heads=8, dim=16, dim_v=16))


@case
def gradients_of_nothing(place):
    for nothing in ({"rows": 0}, {"keys": 0}, {"batch": 0}):
        compare(place, problem(place, **nothing))
    _, dk, dv, *_ = compare(place, problem(place, batch=1, rows=9, keys=4), "--causal", causal=True)
    check(any(dk.data) and any(dv.data), "no key is seen")


@case
def gradients_by_dtype(place):
    q, k, v = problem(place)
    for dtype in ("f16", "bf16"):
        qkv = [x.converted(dtype) for x in (q, k, v)]
        compare(place, qkv, "--dtype", dtype, dtype=dtype)
    compare(place, problem(place, dtype="f16"), dtype="f16")
    problem(place, dtype="f16")
    place.refuses(GRAD[:7] + ["--do", "dlse.npy", *DQ[2:]], 1, "do has shape (2, 4, 9)")
    upstream(place, (q, k, v))
    place.refuses(GRAD, 1, "q is float16, k is float16, v is float16, do is float32: say --dtype")


@case
def gradients_by_isa_and_threads(place):
    qkv = problem(place)
    for isa in json.loads(place.run("info", "--json").out)["isas"]:
        for threads in ("1", "3"):
            compare(place, qkv, "--isa", isa, "--threads", threads, "--causal", causal=True)


@case
def gradients_under_masks(place):
    qkv = problem(place)
    for meaning in (
        {"causal": True},
        {"window": (3, 1)},
        {"chunk": 4},
        {"causal": True, "prefix": 6},
        {"causal": True, "window": (4, 4), "chunk": 7},
    ):
        options = []
        for name, value in meaning.items():
            text = "%d,%d" % value if name == "window" else str(value)
            options += ["--" + name] if name == "causal" else ["--%s=%s" % (name, text)]
        compare(place, qkv, *options, **meaning)
    blocks = Array((2, 1, 3, 4), [x % 3 != 1 for x in range(24)], "u8")
    place.write("blocks.npy", npy(blocks))
    compare(
        place, qkv, "--block-mask", "blocks.npy", visible=lambda n, h, i, j: blocks[n, 0, i // 3, j // 4] != 0
    )
    place.write("table.npy", npy(Array((2, 1, 13, 1), [x * 7 % 10 for x in range(26)], "i32")))
    compare(
        place,
        qkv,
        "--intervals",
        "table.npy",
        "--causal",
        causal=True,
        visible=lambda n, h, i, j: i < (n * 13 + j) * 7 % 10,
    )


@case
def gradients_of_score_changes(place):
    qkv = problem(place)
    slopes, both, sink = uniform(4, (4,)), uniform(5, (2, 4)), uniform(6, (4,))
    for name, array in (("slopes", slopes), ("both", both), ("sink", sink)):
        place.write(name + ".npy", npy(array))
    compare(place, qkv, "--scale=1.5", "--softcap", ".5", scale=1.5, softcap=0.5)
    options = ["--alibi", "slopes.npy", "--dalibi", "dalibi.npy"]
    *_, dalibi, _ = compare(place, qkv, *options, alibi=lambda n, h: slopes[h,], with_dlse=True)
    wanted = summed({(0, h): dalibi[0, h] + dalibi[1, h] for h in range(4)}, (1, 4), (0, 0)).reshaped(4)
    close(read_npy(place.path("dalibi.npy")), wanted, 1e-4, "dalibi")
    options = ["--alibi", "both.npy", "--dalibi", "dalibi.npy", "--causal"]
    *_, dalibi, _ = compare(place, qkv, *options, alibi=lambda n, h: both[n, h], causal=True)
    close(read_npy(place.path("dalibi.npy")), summed(dalibi, (2, 4), (0, 0)), 1e-4, "dalibi")
    options = ["--sink", "sink.npy", "--dsink", "dsink.npy"]
    *_, dsink = compare(place, qkv, *options, sink=sink.data, with_dlse=True)
    close(read_npy(place.path("dsink.npy")), summed(dsink, (4,), (0,)), 1e-5, "dsink")


@case
def gradients_of_bias(place):
    qkv = problem(place)
    for ones in ((0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 1, 0), (0, 1, 0, 1), (1, 1, 1, 1)):
        shape = [1 if one else extent for one, extent in zip(ones, (2, 4, 9, 13))]
        bias = uniform(7, shape, "f16" if ones[0] else "f32")
        place.write("bias.npy", npy(bias))
        *_, dbias, _, _ = compare(
            place,
            qkv,
            *("--bias", "bias.npy", "--dbias", "dbias.npy", "--window", "5,2"),
            bias=lambda *at: bias[tuple(0 if one else i for one, i in zip(ones, at))],
            window=(5, 2),
        )
        got = read_npy(place.path("dbias.npy"))
        check(got.dtype == "f32", "dbias has dtype", got.dtype)
        close(got, summed(dbias, shape, ones), 1e-5, "dbias")


@case
def gradients_of_packed_sequences(place):
    for rank in (3, 4):
        qkv = problem(place, batch=1, rows=10, keys=12, rank=rank)
        place.write("starts_q.npy", npy(Array((4,), [0, 4, 4, 9], "i32")))
        place.write("starts_kv.npy", npy(Array((4,), [0, 5, 7, 12], "i32")))
        words = ["--cu-lens-q", "starts_q.npy", "--cu-lens-kv", "starts_kv.npy", "--causal"]
        spans = [(0, 4, 0, 5), (4, 0, 5, 2), (4, 5, 7, 5)]
        dq, *_ = compare(place, qkv, *words, rank=rank, spans=spans, causal=True, with_dlse=True)
        check(not any(dq.data[9 * 20 :]) and any(dq.data[8 * 20 :]), "rows outside every sequence")


@case
def gradients_of_used_keys(place):
    qkv = problem(place)
    place.write("lens.npy", npy(Array((2,), [13, 6], "i32")))
    compare(place, qkv, "--lens-kv", "lens.npy", "--causal", lens_kv=[13, 6], causal=True)


@case
def gradients_under_dropout(place):
    qkv = problem(place, rows=20, keys=40)
    compare(place, qkv, "--dropout", "0.3", "--seed", "0x123456789", dropout=(0.3, 0x123456789), with_dlse=True)


@case
def gradients_from_a_forward(place):
    """Given o and LSE, nothing is computed anew, and the gradients are the same."""
    qkv = problem(place)
    compare(place, qkv, "-o", "o.npy", "--lse", "lse.npy")
    o, lse = attention(*qkv)
    close(read_npy(place.path("o.npy")), o, 2e-6)
    close(read_npy(place.path("lse.npy")), lse, 2e-5, "lse")
    anew = [read_npy(place.path(name + ".npy")).data for name in ("dq", "dk", "dv")]
    given = ["--o-in", "o.npy", "--lse-in", "lse.npy"]
    compare(place, qkv, *given)
    check([read_npy(place.path(name + ".npy")).data for name in ("dq", "dk", "dv")] == anew, "other bits")
    place.write("lse.npy", npy(Array(lse.shape, [x + 1 for x in lse.data])))
    place.run(*GRAD, *given, "-q")
    check(read_npy(place.path("dv.npy")).data != anew[2], "--lse-in is not read")
    place.write("o.npy", npy(Array(o.shape, [x + 1 for x in o.data])))
    before = read_npy(place.path("dq.npy")).data
    place.run(*GRAD, *given, "-q")
    check(read_npy(place.path("dq.npy")).data != before, "--o-in is not read")
    place.refuses([*GRAD, *given, "-o", "p.npy"], 2, "-o writes what the forward computes")
    place.refuses([*GRAD, *given, "--lse", "p.npy"], 2, "--lse writes what the forward computes")
    place.refuses([*GRAD, *given[:2]], 2, "--o-in and --lse-in need each other")


@case
def gradients_in_tensors(place):
    for dtype in ("f32", "f16", "bf16"):
        q, k, v = (x.converted(dtype) for x in problem(place, rows=3, dim_v=7))
        do, dlse = uniform(11, (2, 3, 4, 7), dtype), uniform(12, (2, 4, 3))
        sink = uniform(6, (4,))
        place.write("sink.npy", npy(sink))
        held = {"do": do, "q": q, "k": k, "v": v, "dlse": dlse}
        place.write("all.safetensors", safetensors(held))
        words = ["grad", "--tensors", "all.safetensors", "-q", "--sink", "sink.npy"]
        words += ["--dq", "g.safetensors", "--dk", "g.safetensors", "--dv", "g.safetensors"]
        place.run(*words, "--dsink", "g.safetensors", "-o", "o.safetensors", "--lse", "lse.npy")
        got, o = read_safetensors(place.path("g.safetensors")), read_safetensors(place.path("o.safetensors"))
        check(sorted(got) == ["dk", "dq", "dsink", "dv"] and list(o) == ["o"], "tensors", got, o)
        *wanted, _, _, dsink = gradients(q, k, v, do, dlse, sink=sink.data)
        for name, array in zip(("dq", "dk", "dv"), wanted):
            check(got[name].dtype == dtype, name, "has dtype", got[name].dtype)
            close(got[name], array, TOLERANCE[dtype], name)
        close(got["dsink"], summed(dsink, (4,), (0,)), TOLERANCE[dtype], "dsink")
        lse = read_npy(place.path("lse.npy"))
        place.write("all.safetensors", safetensors({**held, "o": o["o"], "lse": lse}))
        place.run(*words)
        again = read_safetensors(place.path("g.safetensors"))
        check(all(again[name].data == got[name].data for name in again), "other bits with o and lse given")
        place.refuses([*words, "-o", "p.safetensors"], 1, "-o writes what the forward", "holds o and lse")
        place.write("all.safetensors", safetensors({**held, "o": o["o"]}))
        place.refuses(words, 1, "--tensors all.safetensors", "one of the tensors o and lse")


@case
def gradients_report(place):
    qkv = problem(place)
    upstream(place, qkv)
    report = json.loads(place.run(*GRAD, "--causal", "--json").out)
    visible = sum(max(0, min(13, i + 13 - 9 + 1)) for i in range(9))
    check(report["pairs"] == visible * 8 and report["flops"] == 5 * visible * 8 * (5 + 6), "work:", report)
    check(report["outputs"] == {"dq": "dq.npy", "dk": "dk.npy", "dv": "dv.npy"}, report)
    check(report["dtype"] == "f32" and report["output_dtype"] == "float32" and report["kernel"], report)
    check(report["seconds"] > 0 and report["forward_seconds"] > 0 and report["gflops"] > 0, report)
    done = place.run(*GRAD)
    check(done.err.startswith("forward in ") and "dq.npy: (2, 9, 4, 5) float32" in done.err and not done.out, done.err)
    done = place.run(*GRAD, "--quiet")
    check(not done.err and not done.out, "--quiet said", done.err)
    text = place.run("grad", "--help").out
    for option in (
        "q k v tensors do o-in lse-in dlse dq dk dv dbias dsink dalibi output lse causal window chunk prefix softcap "
        "scale alibi bias sink intervals block-mask cu-lens-q cu-lens-kv lens-kv dropout seed deterministic dtype isa "
        "threads kernel strategy json quiet"
    ).split():
        check("--" + option + " " in text, "help lacks --" + option)


@case
def gradients_wrong_options(place):
    qkv = problem(place)
    upstream(place, qkv)
    place.refuses(["grad"], 2, "--q is missing: takes --q, --k, --v and --do, or --tensors")
    place.refuses(["grad", *QKV], 2, "--do is missing")
    for missing in ("--dq", "--dk", "--dv"):
        at = GRAD.index(missing)
        place.refuses(GRAD[:at] + GRAD[at + 2 :], 2, missing + " is missing: the file to write")
    place.refuses([*GRAD, "--tensors", "t.safetensors"], 2, "leave out --q")
    place.refuses(["grad", "--tensors", "t.safetensors", "--do", "do.npy"], 2, "leave out --do")
    place.refuses(["grad", "--tensors", "t.safetensors", "--dlse", "dlse.npy"], 2, "leave out --dlse")
    for name in ("bias", "sink", "alibi"):
        place.refuses([*GRAD, "--d" + name, "x.npy"], 2, "--d%s needs --%s" % (name, name))
    place.refuses([*GRAD, "-o", "dq.npy"], 2, "--dq and -o name the same file, dq.npy")
    place.refuses([*GRAD[:-1], "dk.npy"], 2, "--dk and --dv name the same file, dk.npy")
    place.refuses([*GRAD[:-1], "dv.safetensors"], 2, "--dv dv.safetensors", "ends in .npy")
    words = ["grad", "--tensors", "t.safetensors", "--dq", "a.safetensors", "--dk", "a.safetensors", "--dv"]
    place.refuses([*words, "dv.npy"], 2, "--dv dv.npy", "ends in .safetensors")
    place.refuses([*words, "a.safetensors", "--lse", "x.txt"], 2, "--lse x.txt", "ends in .safetensors or .npy")
    place.refuses([*GRAD, "--dqq", "x.npy"], 2, "did you mean --dq?")
    place.refuses([*GRAD, "--seed", "1"], 2, "--seed needs --dropout")


@case
def gradients_wrong_files(place):
    qkv = problem(place)
    do, dlse = upstream(place, qkv)
    o, lse = attention(*qkv)
    for array, parts in (
        (uniform(1, (2, 9, 4)), ("do has shape (2, 9, 4), but q has rank 4",)),
        (uniform(1, (1, 9, 4, 6)), ("do has 1 sequences, but q has 2",)),
        (uniform(1, (2, 8, 4, 6)), ("do has 8 rows, but q has 9",)),
        (uniform(1, (2, 9, 2, 6)), ("do has 2 heads, but q has 4",)),
        (uniform(1, (2, 9, 4, 5)), ("do has 5 dims, but v has 6",)),
        (Array((2, 9, 4, 6), [0] * 432, "i32"), ("do has dtype int32",)),
        (do.converted("f16"), ("q is float32, k is float32, v is float32, do is float16",)),
    ):
        place.write("do.npy", npy(array))
        place.refuses(GRAD, 1, *parts)
    for content, part in ((npy(do)[:-1], "truncated"), (b"", "not a .npy file"), (npy(do) + b"x", "1 bytes too many")):
        place.write("do.npy", content)
        place.refuses(GRAD, 1, "--do do.npy: ", part)
    place.write("do.npy", npy(do))
    place.write("o.npy", npy(o))
    given = [*GRAD, "--o-in", "o.npy", "--lse-in", "lse.npy"]
    for array, part in (
        (lse.reshaped(4, 2, 9), "--lse-in has shape (4, 2, 9): takes (2, 4, 9)"),
        (lse.reshaped(72), "--lse-in has shape (72,): takes (2, 4, 9)"),
        (lse.converted("f16"), "--lse-in has dtype float16: takes float32"),
    ):
        place.write("lse.npy", npy(array))
        place.refuses(given, 1, part)
        place.write("dlse.npy", npy(array))
        place.refuses([*GRAD, "--dlse", "dlse.npy"], 1, part.replace("lse-in", "dlse"))
    place.write("lse.npy", npy(lse))
    place.write("o.npy", npy(o.reshaped(2, 9, 2, 12)))
    place.refuses(given, 1, "o has 2 heads, but q has 4")
    place.refuses([*GRAD[:-1], "missing/dv.npy"], 1, "--dv missing/dv.npy", "No such file")
    place.write("t.safetensors", safetensors(dict(zip("qkv", qkv))))
    words = ["grad", "--tensors", "t.safetensors", "--dq", "a.safetensors", "--dk", "b.safetensors"]
    place.refuses([*words, "--dv", "a.safetensors"], 1, "--tensors t.safetensors: holds no tensor do")
