"""`attn bench`: that it measures everything, what it keeps, and how it talks to PyTorch. No figure is compared with another."""

import json
import os
import pty
import re
import sys

from harness import case, check, gpu_environment, idle_gpu, long_case, skip

QUICK = "bench --len 40 --dim 16 --heads 2/1 --threads 1 --min-time 0.0001 --repeat 5".split()

COLUMNS = (
    "commit,suite,device,kernel,pass,dtype,head_dim,mask,batch,heads_q,heads_kv,len_q,len_kv,threads,ms,spread,tflops,gbps,"
    "limit_fraction,peer,peer_ms,ratio,predicted_ms,predicted_bytes,peak_bytes,counted_bytes,peer_peak_bytes,"
    "peer_counted_bytes,level1_predicted,level1_counted,level2_predicted,level2_counted,level3_predicted,level3_counted,"
    "dim_v,kv_dtype,page_size,variant,plain_share,rank_share,sent_bytes,error_ratio"
).split(",")

# Stands for a Python that has PyTorch: says which script it is to run, and logs what it is asked.
TORCH = b"""#!%s
import sys
print("ready 0.0-fake", flush=True)
log = open("log", "w")
for line in sys.stdin:
    print(line.strip(), file=log, flush=True)
    print("ok flash" if line.startswith("setup") else "0.25", flush=True)
""" % os.fsencode(sys.executable)

# The same on a GPU, which says no more than "ok"; there are no sinks.
TORCH_GPU = TORCH.replace(b'print("ok flash" if line', b'print("error no" if " sink " in line else "ok" if line')

NO_TORCH = b'#!/bin/sh\necho "error $1"\n'


def results(place, *words, **keywords):
    return json.loads(place.run("bench", "--json", *words, **keywords).out)["results"]


@long_case
def bench_smoke(place):
    """Every suite, with the peer where it is found; --smoke itself looks at each figure."""
    rows = results(place, "--smoke", "--threads", "2")
    suites = {row["suite"] for row in rows}
    wanted = {"prefill", "threads", "decode", "bwd", "fwdbwd", "memory", "window", "paged", "cascade", "append",
              "quant", "ring"}
    check(suites == wanted, "suites:", suites)
    check({row["pass"] for row in rows} == {"fwd", "decode", "bwd", "fwdbwd", "kv"}, "passes")
    check({row["heads_q"] for row in rows if row["suite"] == "threads" and row["pass"] == "bwd"} == {1, 12}, "1 head")
    flops = {(row["suite"], row["len_q"], row["mask"]): row["flops"] for row in rows}
    for mask, pairs in (("full", 96 * 96), ("causal", 96 * 97 / 2)):
        forward = 12 * pairs * 2 * (64 + 64)
        check(flops["prefill", 96, mask] == forward, mask, "prefill:", flops["prefill", 96, mask])
        check(flops["bwd", 96, mask] == 2.5 * forward, mask, "bwd:", flops["bwd", 96, mask])
        check(flops["fwdbwd", 96, mask] == 3.5 * forward, mask, "fwdbwd:", flops["fwdbwd", 96, mask])


@long_case
def bench_ring(place):
    """Ranks that are threads, by either schedule, beside one of them."""
    rows = results(place, "--smoke", "--suite", "ring", "--dtype", "f32", "--ranks", "3")
    check([row["pass"] for row in rows] == ["fwd", "fwd", "fwdbwd", "fwdbwd"], "passes")
    check([row["kernel"] for row in rows] == 2 * ["threads ring", "threads all-gather"], "schedules")
    for row in rows:
        check(row["mask"] == "causal ranks:3" and row["ranks"] == 3 and row["peer"] == "one-rank", "ranks:", row)
        share = row["peer_seconds"] / row["seconds"] / 3
        check(abs(row["rank_share"] / share - 1) < 1e-6, "share", row["rank_share"], share)
    # every other rank gets this one's keys: 32 rows of k and v, 2 heads of 128 floats, and what ranks agree on
    check(0 <= rows[1]["sent_bytes"] - 2 * 2 * 32 * 2 * 128 * 4 < 100, "sent:", rows[1]["sent_bytes"])
    check(rows[0]["sent_bytes"] < rows[1]["sent_bytes"], "the ring leaves out what no row sees")
    place.run(*QUICK, "--suite", "ring", "--csv", "kept.csv")
    with open(place.path("kept.csv")) as file:
        kept = [dict(zip(COLUMNS, line.strip().split(","))) for line in file][1:]
    check(all(float(row[name]) > 0 for row in kept for name in ("rank_share", "sent_bytes", "error_ratio")), kept)
    place.refuses([*QUICK, "--suite", "bwd", "--ranks", "2"], 2, "--ranks 2: goes with --suite ring")
    place.refuses([*QUICK, "--suite", "ring", "--ranks", "1025"], 2, "takes 1 to 1024")
    place.refuses([*QUICK, "--suite", "ring", "--peer-library", "x.so"], 2, "the suite ring has no peer")


@long_case
def bench_kv(place):
    """The pool is one thread's; append is held beside memcpy."""
    rows = results(place, "--smoke", "--suite", "pool,append", "--threads", "1,2")
    check([row["mask"] for row in rows if row["suite"] == "pool"] == ["page", "fork", "append", "lookup"], "pool")
    for row in (row for row in rows if row["suite"] == "append"):
        check(row["peer"] == "memcpy" and row["ratio"] > 0 and row["read_bytes_per_second"] > 0, "append:", row)
    if gpu := gpu_environment("ATTN_TEST_EMULATED"):
        rows = results(place, "--smoke", "--suite", "append", "--device", "cuda", "--heads", "2/1", env=gpu)
        check([row["mask"] for row in rows] == ["halves", "neighbours", "plain", "halves:64", "halves and q"], rows)
        check(all(row["peer"] == "copy" and row["ratio"] > 0 for row in rows), rows)
        check([row["kv_bytes"] // (64 * 128 * 8) for row in rows] == [1, 1, 1, 1, 2], "2 heads of q are as many bytes")
    place.refuses([*QUICK, "--suite", "pool", "--peer-library", "x.so"], 2, "the suite pool has no peer")


@long_case
def bench_quant(place):
    """Each way to quantise beside a copy of the bytes that x and its bytes have."""
    forms = ["block:64 rotated", "block:128 rotated", "block:64", "row rotated", "block:64 rotated mean",
             "block:64 rotated dot", "channel", "head rotated", "tensor rotated"]
    rows = results(place, "--smoke", "--suite", "quant", "--threads", "1")
    check([row["mask"] for row in rows] == forms and {row["kv_dtype"] for row in rows} == {"e4m3"}, rows)
    for row in rows:
        check(row["peer"] == "memcpy" and row["ratio"] > 0 and row["kv_bytes"] == 160 * 8 * 128 * 3, "quant:", row)
    if gpu := gpu_environment("ATTN_TEST_EMULATED"):
        rows = results(place, "--smoke", "--suite", "quant", "--device", "cuda", "--heads", "2/2", env=gpu)
        check([row["mask"] for row in rows] == forms and all(row["peer"] == "copy" for row in rows), rows)
        check({row["kv_bytes"] for row in rows} == {160 * 2 * 64 * 3}, rows)
    place.refuses([*QUICK, "--suite", "quant", "--peer-library", "x.so"], 2, "the suite quant has no peer")


@long_case
def bench_paged(place):
    """Pages in order and in none beside the same keys without pages, on the CPU and on a GPU."""
    kinds, gpu = ["pages:16", "mixed:16", "pages:64", "mixed:64", "mixed:12"], idle_gpu()
    words = ("--smoke", "--suite", "paged", "--dtype", "bf16", "--repeat", "1", "--min-time", "1e-9")
    on_cpu, on_gpu = (("--threads", "1"), None), (("--device", "cuda", "--heads", "2/1"), gpu)
    for more, env in (on_cpu, on_gpu) if gpu else (on_cpu,):
        rows = results(place, *words, *more, env=env)
        for step in ("fwd", "decode"):
            check([row["mask"] for row in rows if row["pass"] == step] == kinds, rows)
        check(all(row["peer"] == "contiguous" and row["ratio"] > 0 for row in rows), rows)
    if not gpu:
        return skip("no driver that stands for a GPU's: ATTN_TEST_CUDA is not set")


@long_case
def bench_cascade(place):
    """Shared keys once beside all keys for each sequence."""
    rows = results(place, "--smoke", "--suite", "cascade", "--heads", "2/1", "--threads", "1")
    check([row["mask"] for row in rows] == ["batch:4", "batch:16", "batch:64"], rows)
    check(all(row["peer"] == "alone" and row["ratio"] > 0 for row in rows), rows)
    if gpu := gpu_environment("ATTN_TEST_EMULATED"):
        place.write("python", TORCH_GPU)
        os.chmod(place.path("python"), 0o755)
        words = "--device cuda --smoke --suite cascade --heads 2/1 --python ./python --peer flashinfer".split()
        rows = results(place, *words, env={**gpu, "FAKE_CUDA_MULTIPROCESSORS": "4"})
        check(all(row["peer"] == "flashinfer" and row["peer_seconds"] == 0.25 for row in rows), rows)
        with open(place.path("log")) as file:
            setup = f"setup flashinfer decode bf16 4 2 1 1 128 128 128 full 0 - cascade:64{4 * ' 256'}\n"
            check(setup in file, setup)
        words = "--device cuda --suite cascade --len 100 --dim 64 --heads 2/1 --peer none --repeat 1 --min-time 1e-9"
        rows = results(place, *words.split(), env={**gpu, "FAKE_CUDA_MULTIPROCESSORS": "4"})
        check([(row["len_kv"], row["dim_qk"]) for row in rows] == 3 * [(128, 64)], rows)
    place.refuses([*QUICK, "--suite", "cascade", "--peer-library", "x.so"], 2, "the suite cascade has no peer")
    place.refuses(["bench", "--device", "cuda", "--suite", "cascade,paged", "--len", "64"], 2, "--len: the suite paged")
    place.refuses(["bench", "--device", "cuda", "--suite", "window", "--dim", "64"], 2, "--dim: the suite window")


@long_case
def bench_decode(place):
    """The shapes of serving: as many keys in ragged and uniform sequences, those of a window alone where there is one."""
    words = ("--smoke", "--suite", "decode", "--dtype", "bf16", "--threads", "1", "--peer", "none", "--repeat", "1")
    rows = results(place, *words)
    kinds = "full", "batch:3 rows:4", "batch:3 pages:16", "batch:3 pages:64", "batch:3 ragged", "batch:3 uniform"
    check({row["mask"] for row in rows} == {*kinds, "batch:3", "batch:3 window:127"}, rows)
    check({row["heads_q"] for row in rows} >= {4, 7, 12} and {row["dim_qk"] for row in rows} == {64, 128, 256}, rows)
    of = {row["mask"]: row for row in rows}
    ragged, uniform, window = of["batch:3 ragged"], of["batch:3 uniform"], of["batch:3 window:127"]
    check(ragged["len_kv"] > uniform["len_kv"], ragged, uniform)
    for key in "flops", "kv_bytes":
        check(ragged[key] == uniform[key] and ragged[key] < 3 * ragged["len_kv"] * 4 * 512, key, ragged, uniform)
    check(window["kv_bytes"] == 3 * 128 * (64 + 64) * 2, window)
    check(all(row["peer"] == "contiguous" for row in rows if "pages" in row["mask"]), rows)
    rows = results(place, *words[:3], "--len", "40,80", "--dim", "16", *words[5:], "--dtype", "f32", "--kernel", "portable_decode")
    check([row["len_kv"] for row in rows] == [40, 80] and {row["kernel"] for row in rows} == {"portable_decode"}, rows)
    rows = results(place, *words, "--kv-dtype", "i8")
    check(rows and all(row["kv_dtype"] == "i8" and row["kv_bytes"] == row["len_kv"] * 8 * 256 for row in rows), rows)
    place.refuses([*QUICK, "--suite", "bwd", "--kernel", "portable_decode"], 2, "the suite bwd is not of forwards alone")


@long_case
def bench_decode_gpu(place):
    """On a GPU as a graph, beside its launch and its floor; peers are asked for decode."""
    gpu = idle_gpu()
    if not gpu:
        return skip("no driver that stands for a GPU's: ATTN_TEST_CUDA is not set")
    place.write("python", TORCH_GPU)
    os.chmod(place.path("python"), 0o755)
    words = "--device cuda --suite decode --repeat 1 --min-time 1e-9 --python ./python --peer flashinfer".split()
    row = results(place, *words, "--len", "64", "--heads", "2/1", env=gpu)[0]
    bytes = 64 * 256 * 2
    check(row["pass"] == "decode" and row["kv_bytes"] == bytes and row["seconds"] == row["launch_seconds"] == 1e-3, row)
    check(abs(row["limit_seconds"] * row["read_bytes_per_second"] / bytes - 1) < 1e-6, row)
    check(row["peer"] == "flashinfer" and row["peer_seconds"] == 0.25, row)
    rows = results(place, *words, "--smoke", env=gpu)
    with open(place.path("log")) as file:
        log = file.read().split("\n")
    setups = [line for line in log if line.startswith("setup flashinfer decode bf16 ")]
    shapes = [line.partition("bf16 ")[2] for line in setups]
    check("3 4 1 1 160 128 128 full 0 - apart" in shapes and "3 4 1 4 160 128 128 causal 0 - apart" in shapes, shapes)
    ragged = [row for row in rows if row["mask"] == "batch:3 ragged"][0]
    asked = [shape.split() for shape in shapes if " pages:64 " in shape]
    check(len(asked) == 2 and all(len(words[11:]) == 3 for words in asked), shapes)
    check(sum(map(int, asked[0][11:])) * 256 * 2 == ragged["kv_bytes"], asked, ragged)
    check([row["peer"] for row in rows if "window" in row["mask"]] == [None], rows)


@case
def bench_memory(place):
    rows = results(place, "--suite", "memory", "--len", "512", "--heads", "2/1", "--dtype", "f32,bf16", "--peer", "none")
    check(len([row for row in rows if row["pass"] == "fwd"]) == len(rows) / 2, "passes")
    for row in rows:
        size, lse = {"f32": 4, "bf16": 2}[row["dtype"]], 2 * 512 * 4
        tensors = 2 * (2 * 512 * 2 + 512 * 2) * 64 * size + lse
        if row["pass"] == "fwd":
            check(row["workspace_bytes"] > 0 and row["peak_bytes"] is None, row)
            continue
        check(row["counted_bytes"] == tensors + row["workspace_bytes"], "ours:", row)
        check(row["peer_counted_bytes"] == tensors + 2 * 2 * 512 * 512 * size, "standard:", row)
        check(row["peak_bytes"] > tensors / 2 and row["peer_peak_bytes"] is None, "measured:", row)


@long_case
def bench_keeps(place):
    """--csv replaces rows of the same measurement, keeps others, and fills up those of older files."""

    def lines():
        with open(place.path("kept.csv")) as file:
            return [line.split(",") for line in file.read().splitlines()]

    place.run(*QUICK, "--peer", "none", "--csv", "kept.csv")
    first = lines()
    check(first[0] == COLUMNS and len(first) == 3 and all(len(line) == len(COLUMNS) for line in first), first)
    place.run(*QUICK, "--peer", "none", "--suite", "prefill,bwd", "--csv", "kept.csv")
    check([line[4] for line in lines()] == ["pass", "fwd", "fwd", "bwd", "bwd"], lines())
    place.write("kept.csv", "".join(",".join(line[:24]) + "\n" for line in lines()).encode())
    place.run(*QUICK, "--peer", "none", "--csv", "kept.csv")
    check([line[4] for line in lines()] == ["pass", "bwd", "bwd", "fwd", "fwd"], lines())
    check(all(len(line) == len(COLUMNS) for line in lines()), lines())
    # Of rows that differ in a later column alone, the new one replaces the same, and an older version's, whose is empty.
    kept = [dict(zip(COLUMNS, line)) for line in lines()[1:]]
    check(all(row["dim_v"] in ("", row["head_dim"]) and row["page_size"] in ("", "0") for row in kept), kept)
    new = next(row for row in kept if row["pass"] == "fwd")
    check((new["kv_dtype"], new["variant"]) == (new["dtype"], ""), new)
    others = [{**new, "commit": "other", **change} for change in
              ({"dim_v": "8"}, {"kv_dtype": "e4m3"}, {"page_size": "16"}, {"variant": "softcap"})]
    older = {**new, "commit": "older", **dict.fromkeys(COLUMNS[COLUMNS.index("dim_v"):], "")}
    text = "\n".join(",".join(row.values()) for row in (dict(zip(COLUMNS, COLUMNS)), older, new, *others))
    place.write("kept.csv", text.encode() + b"\n")
    place.run(*QUICK, "--peer", "none", "--csv", "kept.csv")
    commits = [line[0] for line in lines()[1:] if line[COLUMNS.index("mask")] == new["mask"]]
    check(commits == ["other"] * 4 + [new["commit"]], commits)


@long_case
def bench_peers(place):
    """Each peer takes its turn beside each case; one that computes nothing leaves no second row."""
    gpu = idle_gpu()
    for words, text in ((["--peer", "none,torch"], "takes no other beside it"), (["--peer", "torch,torch"], "names torch twice"),
                        (["--peer", "torch,cudnn"], "--peer cudnn needs --device cuda"), (["--peer", "torch,"], "--peer")):
        place.refuses(["bench", *words], 2, text)
    if not gpu:
        return skip("no driver that stands for a GPU's: ATTN_TEST_CUDA is not set")
    place.write("python", TORCH_GPU)
    os.chmod(place.path("python"), 0o755)
    words = "--device cuda --suite prefill --len 64 --dim 64 --heads 2/1 --repeat 5 --min-time 1e-9 --python ./python".split()
    rows = results(place, *words, "--peer", "cudnn,flex", env=gpu)
    check([(row["mask"], row["peer"]) for row in rows] == [(m, p) for m in ("full", "causal") for p in ("cudnn", "flex")], rows)
    with open(place.path("log")) as file:
        log = file.read()
    check(all(log.count("setup " + peer) == 2 for peer in ("cudnn", "flex")), log)
    place.run("bench", *words, "--peer", "cudnn,flex", "--csv", "gpu.csv", env=gpu)
    with open(place.path("gpu.csv")) as file:
        check(sum(",cudnn," in line for line in file) == 2, "rows of each peer")


@case
def bench_refuses(place):
    place.refuses(["bench", "--suite", "prefil"], 2, "--suite prefil", "bwd, fwdbwd, memory")
    place.refuses(["bench", "--repeat", "3", "--csv", "kept.csv"], 2, "--repeat 3", "at least 5")
    place.refuses(["bench", "--smoke", "--csv", "kept.csv"], 2, "--smoke")
    place.refuses(["bench", "--suite", "threads", "--threads", "1"], 1, "nothing to measure")
    place.refuses([*QUICK, "--csv", "missing/kept.csv"], 1, "missing/kept.csv", "No such file")
    place.write("notes.csv", b"something else\n")
    place.refuses([*QUICK, "--csv", "notes.csv"], 1, "notes.csv", "not that of a results file")


@long_case
def bench_torch(place):
    """The peer's process is asked for the pass and the problem, and its seconds are taken."""
    place.write("python", TORCH)
    os.chmod(place.path("python"), 0o755)
    words = [*QUICK[1:], "--peer", "torch", "--python", "./python", "--dtype", "bf16", "--suite"]
    for suite, asked in (("prefill", "fwd"), ("bwd", "bwd"), ("fwdbwd", "fwdbwd")):
        for row, causal in zip(results(place, *words, suite), "01"):
            check(row["peer"] == "torch" and row["peer_form"] == "flash" and row["peer_seconds"] == 0.25, row)
            with open(place.path("log")) as file:
                log = file.read().split("\n")
            check("setup %s bf16 1 2 1 40 40 16 16 %s 1" % (asked, causal) in log, log)
            check("run 1" in log, log)
    place.write("python", NO_TORCH)
    done = place.run("bench", *words, "prefill")
    told = [line for line in done.out.splitlines() if line.startswith("no peer: ./python: error /")]
    check(len(told) == 1 and told[0].endswith("/bench/peers/torch_sdpa.py"), done.out)
    check(os.access(told[0].split("error ")[1], os.R_OK), "the script that was named is not there:", told)


def read_terminal(end):
    """All that was written to it: one read may return a part."""
    shown = b""
    try:
        while more := os.read(end, 10000):
            shown += more
    except OSError:  # nobody has the other end, and nothing is left
        pass
    os.close(end)
    return shown.decode()


@case
def bench_time_left(place):
    """On a terminal: which case of how many, and how long it will take."""
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        return skip("no terminal: %s" % error)
    done = place.run("bench", *QUICK[1:], "--peer", "none", "--suite", "prefill", stderr=theirs)
    os.close(theirs)
    shown = read_terminal(ours)
    check(re.search(r"prefill 1/2, about \d+ m?s left", shown), shown)
    check(shown.endswith("\r\033[K") and "prefill" in done.out, shown)


@case
def bench_counts(place):
    """Bytes: predicted beside counted, close to each other. The theorem: bytes fall as the memory grows, and with the
    blocks that are left."""
    words = ["bench", "--json", "--threads", "1", "--dim", "64", "--min-time", "0.001"]
    for row in json.loads(place.run(*words, "--suite", "bytes", "--len", "512").out)["results"]:
        check(len(row["levels"]) == 3, row)
        for level in row["levels"]:
            check(0.7 < level["predicted_bytes"] / level["counted_bytes"] < 1.4, row)
    rows = json.loads(place.run(*words, "--suite", "theorem", "--len", "8192", "--dtype", "f32").out)["results"]
    whole = [row["levels"][1]["counted_bytes"] for row in rows if "kept" not in row["mask"]]
    blocks = [row["levels"][1]["counted_bytes"] for row in rows if "kept" in row["mask"]]
    check(len(whole) == 6 and all(a > 1.4 * b for a, b in zip(whole[:4], whole[1:])), whole)
    check(len(blocks) == 4 and all(a > 1.4 * b for a, b in zip(blocks, blocks[1:])), blocks)
    half = json.loads(place.run(*words, "--suite", "theorem", "--len", "8192", "--dtype", "bf16").out)["results"]
    check(3.6 < whole[0] / half[0]["levels"][1]["counted_bytes"] < 4.4, "a quarter at half the precision", half[0])
    for row in rows:
        check(abs(row["levels"][1]["predicted_bytes"] / row["levels"][1]["counted_bytes"] - 1) < 0.05, row)


@case
def bench_sweeps(place):
    """The planner's choice against all others: none of them is slower than the best."""
    words = ["bench", "--suite", "tiles", "--json", "--threads", "1", "--dtype", "f32", "--dim", "64", "--len", "96"]
    rows = json.loads(place.run(*words, "--min-time", "0.001", "--repeat", "1").out)["results"]
    check({row["pass"] for row in rows} == {"fwd", "bwd", "decode"}, rows)
    check(all(row["peer"] == "best-tiles" and 0 < row["ratio"] <= 1 for row in rows), rows)


@long_case
def bench_library(place):
    """Another build of the library takes its turns in every suite that has a peer, on the CPU and on a GPU."""
    library, gpu = os.environ.get("ATTN_TEST_LIBRARY"), idle_gpu()
    if not library:
        return skip("no shared library: ATTN_TEST_LIBRARY is not set")
    with open(library, "rb") as file:
        place.write("before.so", file.read())
    beside = ["--peer-library", "./before.so"]
    quick = "--len 40 --dim 16 --heads 2/1 --threads 2 --min-time 0.0001 --repeat 5".split()
    rows = results(place, *quick, *beside, "--suite", "prefill,threads,decode,bwd,fwdbwd,window")
    check({row["pass"] for row in rows} == {"fwd", "decode", "bwd", "fwdbwd"}, "passes")
    check(all(row["peer"] == "before.so" and row["peer_seconds"] > 0 for row in rows), rows)
    place.refuses(["bench", *beside, "--suite", "prefill,memory"], 2, "--peer-library", "the suite memory")
    place.refuses(["bench", *beside, "--peer", "torch"], 2, "--peer-library", "one peer")
    place.refuses(["bench", "--peer-library", "missing.so"], 1, "missing.so", "No such file")
    place.write("no.so", 100 * b"text")
    place.refuses(["bench", "--peer-library", "no.so"], 1, "no.so", "invalid ELF header")
    if not gpu:
        return skip("no driver that stands for a GPU's: ATTN_TEST_CUDA is not set")
    words = "--device cuda --suite prefill,bwd,fwdbwd,order --len 64 --dim 64 --heads 2/1 --repeat 1 --min-time 1e-9".split()
    rows = results(place, *words, *beside, env=gpu)
    check(len(rows) == 8 and all(row["peer"] == "before.so" and row["ratio"] == 1 for row in rows), rows)


def causal_pairs(length, left):
    return sum(min(row, left) + 1 for row in range(length))


@case
def bench_only(place):
    """--only keeps the cases that have a text in their pass, mask and changes, and says where none has it."""
    words = "--suite features --len 40 --heads 2 --dim 16 --threads 1 --min-time 1e-6 --pause 1e-6 --repeat 1 --dtype f32 --peer none".split()
    kept = [(row["pass"], row["mask"], row["variant"]) for row in results(place, *words, "--only", "fwd full bias:bf16")]
    check(kept and all(row[:2] == ("fwd", "full") and row[2].startswith("bias:bf16") for row in kept), kept)
    place.refuses(["bench", *words, "--only", "nothing"], 1, "nothing to measure: --only nothing")


@long_case
def bench_features(place):
    """Each feature, forward and backward, beside plain; FLOPs of exactly the visible pairs; what is refused is said."""
    words = "--suite features --len 40 --heads 8 --threads 1 --min-time 1e-6 --pause 1e-6 --repeat 1 --dtype bf16".split()
    rows = results(place, *words, "--dim", "16", "--peer", "none")
    check(all(row["plain_share"] > 0 and row["plain_seconds"] > 0 and row["peer"] is None for row in rows), rows)
    flops = {(row["pass"], row["mask"], row["variant"]): row["flops"] for row in rows if row["heads_kv"] == 8 and row["dim_qk"] == 16}
    causal, documents = causal_pairs(40, 40), 6 * causal_pairs(6, 6) + causal_pairs(4, 4)
    prefix = causal + sum(range(9))
    pairs = {
        "full": 1600, "causal": causal, "causal window:5": causal_pairs(40, 5), "causal chunk:10": 4 * causal_pairs(10, 10),
        "causal prefix:9": prefix, "causal documents:6": documents, "causal packed:6": documents, "full bits:100%": 1600,
        "full lens": 900, "full blocks:128:25%": 1600, "causal window:5 documents:6": 6 * causal_pairs(6, 5) + causal_pairs(4, 5),
    }
    for what, passes in (("fwd", 1), ("bwd", 2.5)):
        for mask, count in pairs.items():
            check(flops[what, mask, ""] == passes * 8 * count * 2 * 32, what, mask, flops[what, mask, ""])
        first = causal_pairs(38, 38)
        check(flops[what, "causal", "first"] == passes * 8 * first * 2 * 32, what, "first keys")
    check(0.4 < flops["fwd", "full bits:50%", ""] / flops["fwd", "full", ""] < 0.6, "half of the bits")
    check(("bwd", "full", "bias:bf16+gradient") in flops and ("fwd", "full", "bias:bf16+gradient") not in flops, "gradients")
    variants = {row["variant"] for row in rows}
    check(variants >= {"softcap", "alibi", "bias:bf16", "bias:f32", "bias:bf16:keys", "sink", "dropout", "positions"}, variants)
    done = place.run("bench", *words, "--dim", "1", "--peer", "none")
    refused = [line for line in done.out.splitlines() if "refused:" in line]
    check(len(refused) == 2 and all("dim_qk = 0" in line for line in refused), done.out)
    check(done.out.count("plain takes") == len(rows) - 2, "as many rows as before")
    last = done.out.splitlines()[-11:]
    shares = [float(line.split()[0]) for line in last[1:]]
    check(last[0].startswith("the slowest of %d," % (len(rows) - 2)) and shares == sorted(shares), last)
    place.run("bench", *words[:-4], "--repeat", "5", "--dtype", "bf16", "--dim", "16", "--peer", "none", "--csv", "kept.csv")
    with open(place.path("kept.csv")) as file:
        kept = [line.rstrip("\n").split(",") for line in file]
    check(kept[0] == COLUMNS and len(kept) == 1 + len(rows), "rows:", len(kept), len(rows))
    check(all(float(line[COLUMNS.index("plain_share")]) > 0 for line in kept[1:]), "shares")


@long_case
def bench_features_peers(place):
    """PyTorch is asked for the feature, on a GPU and on the CPU, there only for what it has."""
    gpu = idle_gpu()
    words = "--suite features --heads 8 --min-time 1e-9 --pause 1e-6 --repeat 1 --dtype bf16 --python ./python".split()
    place.write("python", TORCH)
    os.chmod(place.path("python"), 0o755)
    rows = results(place, *words, "--len", "40", "--dim", "16", "--threads", "1", "--peer", "torch")
    asked = {(row["mask"], row["variant"]) for row in rows if row["peer"] == "torch"}
    check(asked >= {("full", "bias:bf16"), ("causal", "dropout"), ("full bits:50%", ""), ("causal window:5", "")}, asked)
    check(not any("lens" in mask or "packed" in mask or "softcap" in variant for mask, variant in asked), asked)
    with open(place.path("log")) as file:
        log = file.read()
    start = "setup fwd bf16 1 8 8 40 40 16 16 "
    for end in ("0 1 full=1 bias=bf16:1:8:40:40:0", "1 1 documents=6", "1 1 places=1 first=2", "1 1 places=1 position=9",
                "1 1 window=5 documents=6", "0 1 full=1 blocks=64:0.25", "1 1 alibi=1"):
        check(start + end + " clock=processor\n" in log, end, log)
    if not gpu:
        return skip("no driver that stands for a GPU's: ATTN_TEST_CUDA is not set")
    place.write("python", TORCH_GPU)
    rows = results(place, "--device", "cuda", *words, "--len", "128", "--dim", "64", "--peer", "efficient,flex", env=gpu)
    check({row["peer"] for row in rows} == {"efficient", "flex", None}, {row["peer"] for row in rows})
    check(all(" " in row["refused"] for row in rows if row["seconds"] is None), "why")
    for row in rows:
        if row["seconds"] is None:
            continue
        share = row["plain_seconds"] / row["plain_flops"] * row["flops"] / row["seconds"]
        check(abs(row["plain_share"] / share - 1) < 1e-6, row)
    check({"off:2", "dropout", "bias:bf16:batch+gradient"} <= {row["variant"] for row in rows}, "variants")
    with open(place.path("log")) as file:
        log = file.read()
    start = "setup flex bwd bf16 2 8 8 128 128 64 64 "
    for end in ("window 16 - apart window=16", "documents 16 - apart 21 21 21 21 21 21 2 window=16", "causal 0 - apart softcap=30",
                "full 0 - apart full=1 blocks=64:0.125", "full 0 - apart full=1 bits=1:2:8", "causal 0 - apart places=1"):
        check(start + end + "\n" in log, end, log)


@long_case
def bench_strategies(place):
    """Each strategy that a plan takes is switched off: words that `attn explain` names, kernels that exist; once each."""
    gpu = idle_gpu()
    if not gpu:
        return skip("no driver that stands for a GPU's: ATTN_TEST_CUDA is not set")
    words = "--device cuda --suite strategies --peer none --len 64 --heads 2/1 --repeat 1 --min-time 1e-9".split()
    found = {}
    for dim in ("64", "256"):
        for row in results(place, *words, "--dim", dim, env=gpu):
            key = dim, row["pass"], row["mask"]
            check(row["ratio"] == 1 and row["suite"] == "strategies", row)
            check(row["peer"] not in found.setdefault(key, set()), "twice:", row)
            found[key].add(row["peer"])
    for (dim, direction, mask), peers in found.items():
        shape = ["--batch", "256", "--heads", "2/1", "--len", "64", "--dim", dim, "--dtype", "bf16"]
        shape += ["--backward"] * (direction == "bwd") + ["--causal"] * (mask == "causal")
        plan = json.loads(place.run("explain", "--json", "--device", "cuda", *shape, env=gpu).out)
        taken = dict(word.split("=") if "=" in word else (word, "") for word in plan["strategy"].split(","))
        for peer in peers - {"no-cluster", "no-finalised-dq"}:
            word, value = peer.split("=") if "=" in peer else (peer[len("no-") :], None)
            check(word in taken and taken[word] != value, peer, "is not switched off in", plan["strategy"])
        check(("no-cluster" in peers) == ("_2cta" in plan["kernel"]), peers, plan["kernel"])
    check({peer for peers in found.values() for peer in peers} >= {"no-cluster", "no-pack-gqa", "scheduler=static"}, found)
