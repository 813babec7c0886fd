"""Reports, the other commands, and how a run ends."""

import json
import os
import pty
import re
import resource
import signal
import subprocess

from arrays import Array, npy, read_npy, uniform
from cases_answers import QKV, problem
from cases_grad import GRAD, upstream
from harness import LIMIT, case, check, close, gpu_environment, long_case, skip


@case
def run_reports(place):
    problem(place)
    done = place.run("run", *QKV, "-o", "o.npy", "--causal", "--json")
    report = json.loads(done.out)
    check(report["shape"] == [2, 9, 4, 6] and report["dtype"] == "f32" and report["output_dtype"] == "float32", report)
    check(
        report["seconds"] > 0 and report["gflops"] > 0 and report["workspace_bytes"] >= 0 and report["kernel"], report
    )
    visible = sum(max(0, min(13, i + 13 - 9 + 1)) for i in range(9))
    check(report["pairs"] == visible * 8 and report["flops"] == 2 * visible * 8 * (5 + 6), "work:", report)
    done = place.run("run", *QKV, "-o", "o.npy")
    check(done.err.startswith("o.npy: (2, 9, 4, 6) float32 in ") and "GFLOP/s" in done.err and not done.out, done.err)
    done = place.run("run", *QKV, "-o", "o.npy", "--quiet")
    check(not done.err and not done.out, "--quiet said", done.err)
    name = 'a"\\\n\x01.npy'
    report = json.loads(place.run("run", *QKV, "-o", name, "--json").out)
    check(report["output"] == name and name in place.files(), report)
    report = json.loads(place.run("run", *QKV, "-o", b"\xff.npy", "--json").out)
    check(report["output"] == "\ufffd.npy", report)


@case
def kernels_by_name(place):
    """Kernels and strategies instead of the planner's; for `attn grad` the backward's."""
    upstream(place, problem(place))
    for words, wanted in (
        (["--kernel", "portable_prefill"], {"kernel": "portable_prefill"}),
        (["--kernel", "portable_decode", "--strategy", "form=decode"], {"kernel": "portable_decode"}),
        (["--strategy", "form=prefill", "--isa", "portable"], {"kernel": "portable_prefill"}),
    ):
        report = json.loads(place.run("run", *QKV, "-o", "o.npy", *words, "--json").out)
        check(wanted.items() <= report.items(), words, "gave", report)
    report = json.loads(place.run(*GRAD, "--kernel", "portable_backward", "--strategy", "q-tile=48", "--json").out)
    check(report["kernel"] == "portable_backward" and "q-tile=48" in report["strategy"].split(","), report)
    run, other = ["run", *QKV, "-o", "p.npy"], "it computes the other direction"
    place.refuses([*run, "--kernel", "none"], 1, "kernel = none is no kernel of this library")
    place.refuses([*run, "--kernel", "portable_backward"], 1, "kernel = portable_backward: " + other)
    place.refuses([*run, "--strategy", "q-tile"], 1, "strategy: q-tile")
    place.refuses([*GRAD, "--kernel", "portable_prefill"], 1, "kernel = portable_prefill: " + other)


@case
def helps(place):
    check("Commands" in place.run("help").out and place.run("--help").out == place.run("help").out, "help")
    for words in (["help", "--help"], ["help", "help"], ["help", "-h"], ["--help", "--help"]):
        check(place.run(*words).out == place.run("help").out, words)
    for command in ("run", "grad", "explain", "check", "bench", "info", "machine", "kernels", "napkin"):
        text = place.run(command, "--help").out
        check(text == place.run("help", command).out and text.startswith("attn " + command), command, "help:", text)
        check(command in place.run("help").out, command, "is not listed")
    text = place.run("run", "--help").out
    for option in (
        "q k v tensors output lse causal window chunk prefix softcap scale alibi bias sink intervals block-mask "
        "cu-lens-q cu-lens-kv lens-kv dropout seed deterministic dtype isa threads json quiet"
    ).split():
        check("--" + option + " " in text, "help lacks --" + option)


@case
def wrong_commands(place):
    place.refuses([], 2, "Usage: attn COMMAND", "explain", "attn help COMMAND")
    place.refuses(["rnu"], 2, "unknown command 'rnu'", "did you mean run?")
    place.refuses(["help", "kernel"], 2, "did you mean kernels?")
    place.refuses(["frobnicate"], 2, "unknown command 'frobnicate'")


@case
def version(place):
    check(place.run("-V").out == place.run("--version").out, "-V")
    check(
        place.run("--version").out == "attn %s\n" % json.loads(place.run("info", "--json").out)["version"], "version"
    )


@case
def info(place):
    told = json.loads(place.run("info", "--json").out)
    check("portable" in told["isas"] and told["chosen"] in told["isas"], told)
    check(told["cpu"]["processors"] >= 1 and told["cpu"]["model"], told)
    check(set(told["isas"]) <= set(told["built_in"]["isas"]), told)
    text = place.run("info").out
    check(told["cpu"]["model"] in text and "chosen" in text, text)
    forced = json.loads(place.run("info", "--json", env={**os.environ, "ATTN_ISA": "portable"}).out)
    check(forced["chosen"] == "portable", forced)


@long_case
def machine(place):
    text = place.run("machine").out
    told = json.loads(place.run("machine", "--json").out)
    check(text.startswith("machine %s\n" % told["machine"]) and told["kernels"]["avx2_prefill"]["product"] > 0, text)
    check([level["name"] for level in told["levels"]][0] == "memory" and told["clock"] > 1e8, told)
    place.run("machine", "-o", "same.machine")
    again = json.loads(place.run("machine", "--machine", "same.machine", "--json").out)
    check(again == told, again)
    check(json.loads(place.run("machine", "--machine", "h200", "--json").out)["device"] == "cuda", "h200")
    shape = ["explain", "--len", "512", "--dim", "64", "--json"]
    usual = json.loads(place.run(*shape).out)["predicted_seconds"]
    place.write("slow.machine", b"machine slow\nbase cpu\nclock 1e6\n")
    slow = json.loads(place.run(*shape, "--machine", "slow.machine").out)["predicted_seconds"]
    check(slow > 100 * usual, (slow, usual))
    place.write("bad.machine", b"machine bad\nclock fast\n")
    for command in (["machine"], shape):
        place.refuses([*command, "--machine", "bad.machine"], 2, "bad.machine:2:7: takes a number, 0 or more, not 'fast'")
        place.refuses([*command, "--machine", "none.machine"], 2, "none.machine: No such file")
    place.refuses([*shape, "--machine", "h200"], 2, "--machine h200 is of a GPU: it goes with --device cuda")
    place.refuses([*shape, "--machine", "cpu", "--device", "cuda"], 2, "--machine cpu is of a CPU")
    place.refuses(["machine", "--measure", "--machine", "cpu"], 2, "takes no --machine")
    place.refuses(["machine", "--only", "avx2"], 2, "--only needs --measure")
    place.refuses(["machine", "-o", "no/such/place"], 1, "No such file")
    refused = place.run("machine", "--measure", "--only", "portable_decode", "-o", "no/such/place", code=1)
    check("No such file" in refused.err and "points" not in refused.err, "it measured first:", refused.err)
    place.run("machine", "--measure", "--only", "no kernel", "-o", "here.machine")
    here = json.loads(place.run("machine", "--machine", "here.machine", "--json").out)
    check(here["machine"] == "measured" and here["units"]["fma"] > 0, here)


@case
def kernels(place):
    table = json.loads(place.run("kernels", "--json").out)
    told = json.loads(place.run("info", "--json").out)
    check([k["name"] for k in table if k["built_in"]] == told["built_in"]["kernels"], table)
    check({k["isa"] for k in table if k["runs_here"]} == set(told["isas"]), table)
    text, markdown = place.run("kernels").out, place.run("kernels", "--markdown").out
    lines = markdown.splitlines()
    for kernel in table:
        check(kernel["name"] in text and kernel["name"] in lines[0] and "bf16" in kernel["dtypes"], kernel)
        check("causal" in kernel["features"] or "causal" in text, kernel)
    for words in ([], ["--device", "cuda"]):
        lines_of_text = place.run("kernels", *words).out.splitlines()
        first = lines_of_text[0].index(" dtype") + 1
        check(first > max(len(line.split()[0]) for line in lines_of_text), "columns of attn kernels", *words)
        check(all(line[first - 1] == " " != line[first] for line in lines_of_text), "columns of attn kernels", *words)
    check(all(line.count("|") == len(table) + 2 for line in lines), markdown)
    check(any(line.startswith("| causal |") for line in lines), markdown)
    place.refuses(["kernels", "--json", "--markdown"], 2, "exclude each other")
    place.refuses(["kernels", "--support", "--json"], 2, "--support takes no other option")


@case
def kernels_of_gpus(place):
    """What a kernel does to scores is said as it is: some change them always, whatever is asked for."""
    lines = place.run("kernels", "--device", "cuda").out.splitlines()
    said = {line.split()[0]: line for line in lines}
    if len(lines) < 2:
        return skip("built without CUDA")
    for name, words in (("d64_128x128", "causal, window; sink"), ("d64_256x64_softcap", "causal, window; softcap always, sink"),
                        ("d64_256x64_alibi", "causal, window; causal and ALiBi always, sink"),
                        ("d64_128x128_dropout", "causal, window; dropout always, sink"),
                        ("d64_128x128_bias", "causal, window; bias always, sink"),
                        ("d64_128x128_softcap_dropout", "causal, window; softcap and dropout always, sink"),
                        ("d64_128x128_ranges_alibi", "all but bit mask; ALiBi always, sink"),
                        ("d64_256x64_spans", "all but block lists, bit mask, packed sequences; sink"),
                        ("d64_128x64_score_mod_paged", "all; all; paged keys alone")):
        check(said["sm90_bf16_" + name].endswith("  " + words), said["sm90_bf16_" + name])
    for kernel in json.loads(place.run("kernels", "--device", "cuda", "--json").out):
        changes = {"softcap", "ALiBi", "bias", "dropout"} & set(kernel["needs"])
        words = {word for word in ("softcap", "alibi", "bias", "dropout") if "_" + word in kernel["name"]}
        check({change.lower() for change in changes} == words, kernel)
        check(set(kernel["needs"]) <= set(kernel["features"]), kernel)
        alone = len(words) < 2 and not any("_" + mask + "_" in kernel["name"] for mask in ("spans", "ranges", "bits", "masks"))
        bytes_of_rest = "e4m3" == kernel["dtype"] and kernel["name"].endswith(("_paged", "_block_scales", "_transposed"))
        check(kernel["asked"] <= ("f16" == kernel["dtype"] or bytes_of_rest or not alone), kernel)


@long_case
def support(place):
    """docs/SUPPORT.md's cells against what plans take, where a driver stands for a GPU's."""
    env = gpu_environment()
    if not env:
        return skip("no driver that stands for a GPU's: ATTN_TEST_CUDA is not set")
    tables = {}
    for section in place.run("kernels", "--support").out.split("\n## ")[1:]:
        title, *lines = section.splitlines()
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
        tables[title] = {name: cells for name, *cells in rows[1:]}
    for title, rows in tables.items():
        arch, _, dtypes = title.partition(": ")
        if arch != "sm_90a":
            continue
        for name, words in ("none", []), ("chunk", ["--chunk", "64"]), ("softcap", ["--softcap", "30"]):
            cell = rows.get(name, rows["none"])[0]
            fast = re.search(r"fast(?: ¹)? to (\d+)", cell)
            for dtype in set(dtypes.split(", ")) - {"f64"}:  # which the command does not explain
                for dim in 64, 256, 264, 512:
                    done = place.run("explain", "--device", "cuda", "--dtype", dtype, "--heads", "4", "--len", "512", "--dim",
                                     str(dim), *words, "--json", env=env, code=cell == "refused")
                    if cell != "refused":
                        slow = "fallback" in json.loads(done.out)["kernel"]
                        check(slow == (not fast or dim > int(fast.group(1))), title, name, dim, cell, done.out)


@case
def elements_of_a_byte(place):
    problem = ["explain", "--len-q", "1", "--len-kv", "4096", "--heads", "8/2", "--dim", "64"]
    text = place.run(*problem, "--dtype", "bf16", "--kv-dtype", "i8", "--out-dtype", "f16", "--measure").out
    check("bf16 over i8, batch 1" in text and ", o in f16" in text and "measured" in text, text)
    check("forward, e4m3, batch 1" in place.run(*problem, "--dtype", "e4m3").out)
    bytes_ = [json.loads(place.run(*problem, *words, "--json").out)["predicted_memory_bytes"]
              for words in ([], ["--kv-dtype", "e4m3"])]
    check(bytes_[1] < 0.3 * bytes_[0], bytes_)
    place.refuses([*problem, "--backward", "--kv-dtype", "i8"], 1, "k and v of i8 are computed forward only")
    place.refuses([*problem, "--kv-dtype", "bf16"], 2, "--kv-dtype bf16: takes e4m3 or i8")
    place.refuses(["bench", "--suite", "prefill", "--kv-dtype", "i8"], 2, "--kv-dtype i8: goes with --suite decode")
    kernels = {k["name"]: k for k in json.loads(place.run("kernels", "--json").out)}
    check(kernels["portable_decode"]["kv_dtypes"] == ["e4m3", "i8"] and not kernels["portable_backward"]["kv_dtypes"], kernels)


@long_case
def checks(place):
    for word in ("forward", "backward"):
        told = json.loads(place.run("check", "--pass", word, "--case", "0", "--json").out)
        names = [k["kernel"] for k in told["kernels"]]
        check("planner" in names and len(names) > 1, names)
        check(all(("backward" in name) == (word == "backward") for name in names if name != "planner"), names)
        # The case, and the same in bf16; each by up to six strategies besides.
        check(told["failed"] == 0 and all(k["cases"] <= 14 for k in told["kernels"]), told)
    nowhere = {"env": {**os.environ, "CUDA_VISIBLE_DEVICES": ""}}
    for words, cases in (["--part", "2/100"], 5), (["--case", "3"], 1):
        done = place.run("check", "--device", "cuda", *words, **nowhere)
        check(done.out == "%d cases, seed 1; all SKIPPED\n" % cases, done.out)
        check(done.err.count("SKIPPED: ") == 1, done.err)
        told = json.loads(place.run("check", "--device", "cuda", *words, "--json", **nowhere).out)
        check(told["cases"] == cases and told["skipped"] == len(told["kernels"]) > 0, told)
    # Where nothing ran, "0 failed" alone would read as a success.
    alone = ["check", "--kernel", "portable_prefill", "--quick", "--case"]
    ran = {n: place.run(*alone, str(n)).out for n in range(12)}
    for n, text in ran.items():
        said = "no case of portable_prefill is in case %d with --quick\n" % n
        check(text.endswith(said) == ("\n0 cases, seed 1" in text), text)
        check(("no case" in text) == text.endswith(said) and (" ok\n" in text) != text.endswith(said), text)
    check(any("no case" in text for text in ran.values()) and any(" ok\n" in text for text in ran.values()), ran)
    place.refuses(["check", "--pass", "both"], 2, "--pass both: takes forward or backward")
    place.refuses(["check", "--pass", "backward", "--kernel", "avx2_decode"], 2, "--pass backward: attn kernels lists no")


@long_case
def random_checks(place):
    text = place.run("check", "--random", "0.5", "--pairs", "2000", "--seed", "3").out
    last = text.splitlines()[-1]
    check("problems, seed 3, reference by the CPU" in last and "; 0 wrong" in last, last)
    told = json.loads(place.run("check", "--random", "0.5", "--pairs", "2000", "--first", "7", "--part", "2/3", "--json").out)
    check(told["problems"] > 0 and told["wrong"] == 0, told)
    check(told["next"] == 8 + 3 * told["problems"], told)
    check(sum(k["problems"] for k in told["kernels"]) == told["problems"], told)
    text = place.run("check", "--random", "0.5", "--pairs", "2000", "--kv-dtype", "i8").out
    check("backward" not in text and "; 0 wrong" in text, text)
    place.refuses(["check", "--kv-dtype", "i8"], 2, "--kv-dtype: goes with --random")
    place.refuses(["check", "--random", "1", "--kv-dtype", "f16"], 2, "--kv-dtype f16: takes e4m3 or i8")
    place.refuses(["check", "--random", "1", "--kv-dtype", "i8", "--pass", "backward"], 2, "--kv-dtype: not with --pass backward")
    one = ["check", "--random", "1", "--pairs", "2000", "--seed", "3", "--case", "11"]
    told = place.run(*one).out
    check(told == place.run(*one).out and " ".join(one) in told, told)
    smaller = place.run(*one, "--shrunk", "13").out
    check("--shrunk 13" in smaller and smaller != told, smaller)
    place.refuses([*one, "--shrunk", "13,999"], 2, "--shrunk 13,999: takes the numbers that")
    place.refuses([*one, "--json"], 2, "--json: not with --random --case")
    place.refuses([*one, "--quick"], 2, "--quick: not with --random")
    place.refuses(["check", "--random", "0"], 2, "--random 0")
    place.refuses(["check", "--first", "3"], 2, "--first: goes with --random")
    place.refuses(["check", "--random", "1", "--shrunk", "1"], 2, "--shrunk: goes with --case")
    place.refuses(["check", "--random", "1", "--kernel", "none"], 2, "--kernel none")


@case
def explains(place):
    words = ["explain", "--len", "300", "--heads", "8/2", "--dim", "64", "--causal", "--threads", "1"]
    told = json.loads(place.run(*words, "--json").out)
    check(told["pairs"] == 8 * 300 * 301 / 2 and told["flops"] == told["pairs"] * 256 and told["threads"] == 1, told)
    check(told["predicted_seconds"] > 0 and "measured_seconds" not in told, told)
    check(told["kernel"] in place.run(*words).out, "kernel is not in the words")
    check("heads 8/2," in place.run(*words).out, "heads are not spelt as --heads takes them")
    check(json.loads(place.run(*words, "--json", "--measure").out)["measured_seconds"] > 0, "not measured")
    check(
        "measured"
        in place.run(
            *words,
            "--measure",
            "--dtype",
            "bf16",
            "--alibi",
            "--bias",
            "--sink",
            "--prefix",
            "4",
            "--dropout",
            "0.1",
            "--softcap",
            "3",
            "--window",
            "9,9"
        ).out,
        "not measured",
    )
    told = json.loads(place.run(*words, "--json", "--backward", "--measure").out)
    check(told["flops"] == 2.5 * told["pairs"] * 256 and told["measured_seconds"] > 0, told)
    check("backward" in place.run(*words, "--backward").out, "the words do not say backward")
    place.run("explain", "--len-q", "1", "--len-kv", "0", "--dim", "8", "--measure")
    units = (("1", "100", "us"), ("1", "1m", "ms"), ("1", "256m", "s"), ("256k", "256k", "min"), ("16m", "16m", "days"))
    for len_q, len_kv, unit in (*units, ("4m", "4m", "h")):
        shape = ["--len-q", len_q, "--len-kv", len_kv, "--dim", "64", "--threads", "1", "--machine", "cpu"]
        line = place.run("explain", *shape).out.splitlines()[-1]
        check(re.match(r"predicted  [\d.]+ %s\b" % unit, line), shape, line)
    told = json.loads(place.run(*words, "--json", "--isa", "portable").out)
    check(told["isa"] == "portable" and told["kernel"].startswith("portable"), told)
    place.refuses(["explain", "--dim", "8"], 2, "--len")
    place.refuses(["explain", "--len", "8"], 2, "--dim is missing")
    place.refuses(["explain", "--len", "8", "--dim", "8", "--prefix", "9"], 2, "--prefix 9", "8 keys")
    place.refuses(
        ["explain", "--len", "8", "--dim", "8", "--heads", "3/2"], 1, "heads_q = 3", "heads_kv = 2"
    )
    place.refuses(["explain", "--len", "8", "--dim", "513"], 1, "dim_qk = 513")
    place.refuses(["explain", "--len", str(2**62), "--dim", "8"], 1, "attn explain: ")


@case
def explains_ranks(place):
    words = ["explain", "--len", "4k", "--heads", "8/2", "--dim", "64", "--causal", "--threads", "1", "--ranks", "4"]
    told = json.loads(place.run(*words, "--json").out)
    check(told["ranks"] == 4 and told["rank"] == 0 and told["layout"] == "zigzag", told)
    check(told["rows"] == told["keys"] == 1024 and abs(told["pairs"] / (8 * 4096 * 4097 / 2 / 4) - 1) < 1e-3, told)
    check(0.5 < told["predicted_share"] <= 1.01, told)
    last = json.loads(place.run(*words, "--rank", "3", "--layout", "contiguous", "--json").out)
    check(last["rank"] == 3 and last["layout"] == "contiguous" and last["pairs"] > 1.6 * told["pairs"], last)
    slow = json.loads(place.run(*words, "--schedule", "ring", "--link", "0.001", "--json").out)
    check(slow["schedule"] == "ring" and slow["predicted_share"] < 0.5 * told["predicted_share"], slow)
    check(re.search(r"^rank +0 of 4, zigzag: .*^share +0\.\d+ of", place.run(*words).out, re.M | re.S), "words")
    place.refuses(["explain", "--len", "8", "--dim", "8", "--layout", "zigzag"], 2, "--layout: goes with --ranks")
    place.refuses([*words, "--rank", "4"], 2, "--rank 4: of 4 ranks it takes 0 to 3")
    place.refuses([*words, "--layout", "striped"], 2, "takes contiguous or zigzag")
    place.refuses([*words, "--schedule", "tree"], 2, "takes auto, all-gather or ring")
    place.refuses([*words, "--measure"], 2, "--ranks predicts alone")
    place.refuses([*words[:-1], "1025"], 2, "--ranks 1025: takes 1 to 1024")
    place.refuses([*words, "--bias"], 1, "over ranks")


@case
def output_replaces(place):
    problem(place)
    place.write("o.npy", b"old")
    place.run("run", *QKV, "-o", "o.npy")
    first = read_npy(place.path("o.npy"))
    os.symlink("o.npy", place.path("link.npy"))
    place.run("run", *QKV, "-o", "link.npy", "--causal")
    check(os.path.islink(place.path("link.npy")) and read_npy(place.path("o.npy")).data != first.data, "link is gone")


@case
def reads_pipes(place):
    problem(place)
    place.run("run", *QKV, "-o", "want.npy")
    os.mkfifo(place.path("pipe"))
    with subprocess.Popen(["sh", "-c", "cat q.npy > pipe"], cwd=place.directory):
        place.run("run", "--q", "pipe", *QKV[2:], "-o", "o.npy")
    close(read_npy(place.path("o.npy")), read_npy(place.path("want.npy")), 0)


@case
def outputs_that_cannot_be(place):
    problem(place)
    os.mkdir(place.path("folder.npy"))
    words = ["run", *QKV, "-o"]
    place.refuses([*words, "folder.npy"], 1, "-o folder.npy", "not a regular file")
    place.refuses([*words, "missing/o.npy"], 1, "-o missing/o.npy", "No such file")
    place.refuses([*words, "o.npy", "--lse", "missing/lse.npy"], 1, "--lse missing/lse.npy", "No such file")
    place.refuses([*words, "x" * 300 + ".npy"], 1, "too long")


@case
def limit_of_file_size(place):
    problem(place)
    before = place.files()
    done = place.run(
        "run", *QKV, "-o", "o.npy", code=1, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))
    )
    check("-o o.npy" in done.err and "large" in done.err and place.files() == before, done.err, place.files())


@case
def full_stdout(place):
    problem(place)
    with open("/dev/full", "w") as full:
        done = subprocess.run([place.attn, "info"], stdout=full, stderr=subprocess.PIPE)
    check(done.returncode == 1 and b"stdout" in done.stderr, "ended with", done.returncode)


@case
def interrupted(place):
    """On a terminal, long work shows its progress; stopped, it leaves nothing."""
    array = Array((16384, 1, 64), [0.0] * (16384 * 64))
    for name in "qkv":
        place.write(name + ".npy", npy(array))
    before = place.files()
    try:
        master, slave = pty.openpty()
    except OSError as error:
        return skip("no terminal: %s" % error)
    words = [
        place.attn,
        "run",
        *QKV,
        "-o",
        "o.npy",
        "--lse",
        "lse.npy",
        "--isa",
        "portable",
        "--threads",
        "1",
        "--softcap",
        "1",
    ]
    process = subprocess.Popen(words, cwd=place.directory, stderr=slave, stdin=subprocess.DEVNULL)
    os.close(slave)
    shown = os.read(master, 1000).decode()
    check("computing... 0.5 s of about" in shown, "the terminal shows", shown)
    check(len(place.files()) == len(before) + 2 and "o.npy" not in place.files(), "files at work:", place.files())
    process.send_signal(signal.SIGINT)
    process.wait(timeout=LIMIT)
    os.close(master)
    check(process.returncode == -signal.SIGINT, "ended with", process.returncode)
    check(place.files() == before, "left", place.files())


@case
def concurrent_runs(place):
    """Runs that write the same file each finish whole."""
    problem(place)
    place.write("big.npy", npy(uniform(1, (1, 2000, 1, 8))))
    words = [place.attn, "run", "--q", "big.npy", "--k", "big.npy", "--v", "big.npy", "-o", "o.npy", "-q"]
    started = [subprocess.Popen(words, cwd=place.directory) for _ in range(3)]
    check([process.wait() for process in started] == [0, 0, 0], "some failed")
    check(read_npy(place.path("o.npy")).shape == (1, 2000, 1, 8), "not whole")
    check([name for name in place.files() if "tmp" in name] == [], "left", place.files())
