"""Command lines that `attn run` does not take."""

from arrays import read_npy, safetensors, uniform
from cases_answers import QKV, problem
from harness import case, check, close

RUN = ["run", *QKV, "-o", "o.npy"]


@case
def missing_files(place):
    problem(place)
    place.refuses(["run"], 2, "--q is missing")
    place.refuses(["run", "--q", "q.npy"], 2, "--k is missing")
    place.refuses(["run", "--q", "q.npy", "--k", "k.npy"], 2, "--v is missing")
    place.refuses(["run", *QKV], 2, "-o is missing")
    place.refuses(
        ["run", "--q", "none.npy", *QKV[2:], "-o", "o.npy"], 1, "--q none.npy", "cannot open", "No such file"
    )
    place.refuses(["run", "--q", ".", *QKV[2:], "-o", "o.npy"], 1, "--q .", "directory")


@case
def wrong_names(place):
    problem(place)
    place.write("t.safetensors", safetensors({name: uniform(1, (2, 3, 4)) for name in "qkv"}))
    place.refuses(["run", *QKV, "-o", "o.safetensors"], 2, "-o o.safetensors", "ends in .npy")
    place.refuses(["run", "--tensors", "t.safetensors", "-o", "o.npy"], 2, "-o o.npy", "ends in .safetensors")
    place.refuses(["run", "--tensors", "t.safetensors", *QKV, "-o", "o.safetensors"], 2, "leave out --q")
    place.refuses(["run", *QKV, "-o", ".npy"], 2, "ends in .npy")
    place.refuses([*RUN, "--lse", "lse.txt"], 2, "--lse lse.txt", "ends in .npy")
    place.refuses([*RUN, "--lse", "o.npy"], 2, "same file")
    place.refuses(
        ["run", "--tensors", "t.safetensors", "-o", "o.safetensors", "--lse", "lse.txt"],
        2,
        "--lse lse.txt",
        "ends in .safetensors or .npy",
    )


@case
def unknown_options(place):
    problem(place)
    place.refuses([*RUN, "--casual"], 2, "unknown option --casual", "did you mean --causal?")
    place.refuses([*RUN, "--o", "x.npy"], 2, "unknown option --o; did you mean --output?")
    place.refuses([*RUN, "--windows=1,2"], 2, "unknown option --windows=1,2", "did you mean --window?")
    place.refuses([*RUN, "--frobnicate"], 2, "unknown option --frobnicate")
    place.refuses([*RUN, "-x"], 2, "unknown option -x")
    place.refuses([*RUN, "-"], 2, "unknown option -")
    place.refuses([*RUN, "q.npy"], 2, "'q.npy' is not an option")
    place.refuses([*RUN, ""], 2, "'' is not an option")
    place.refuses([*RUN, "--causal=yes"], 2, "--causal takes no value")
    place.refuses([*RUN, "--window"], 2, "--window needs a value: L,R")
    place.refuses([*RUN, "--causal", "--causal"], 2, "--causal is given twice")
    place.refuses([*RUN, "--q", "k.npy"], 2, "--q is given twice")
    place.refuses([*RUN, "--cu-lens-q", "x.npy"], 2, "--cu-lens-q and --cu-lens-kv need each other")
    place.refuses([*RUN, "--seed", "1"], 2, "--seed needs --dropout")


@case
def wrong_values(place):
    problem(place)
    wrong = {
        "window": ("1", "1,", ",1", "1,2,3", "-2,0", "0,-2", "a,b", "k,1", "-1k,0", "1 ,2", "9223372036854775808,0", "")
        + ("8589934592g,0",),
        "chunk": ("0", "-1", "1.5", "12x", " 3", "0x10", "99999999999999999999", "", "+1", "k", "4kk", "4ki", "1.5k", "4 k", "8589934592g", "0k"),
        "prefix": ("-1", "x", "1e3", "4b", "9007199254740992k"),
        "softcap": ("0", "-1", "nan", "inf", "1e999", "1e39", "1e-60", "0x1p3", "", "1,5", "--causal"),
        "scale": ("0", "-0.5", "NaN", "infinity", "1e", "e5", ".", "1..2", "1_0", " 1"),
        "dropout": ("1", "-0.1", "nan", "1e0", "0.1p"),
        "seed": ("-1", "18446744073709551616", "0x", "0x10000000000000000", "1.0", ""),
        "dtype": ("f64", "float32", "F32", ""),
        "isa": ("avx", "AVX2", "sse", ""),
        "threads": ("0", "-1", "1025", "1k", "two", "4294967297"),
        "bias": ("",),
    }
    takes = {
        "window": "takes L,R",
        "chunk": "whole number, 1 or more",
        "prefix": "whole number, 0 or more",
        "softcap": "finite number above 0",
        "scale": "finite number above 0",
        "dropout": "less than, 1",
        "seed": "64 bits",
        "dtype": "f32, f16 or bf16",
        "isa": "auto, portable, avx2, avx512, avx512bf16, amx or neon",
        "threads": "1 to 1024",
        "bias": "is empty",
    }
    for name, values in wrong.items():
        for value in values:
            place.refuses([*RUN, "--" + name, value], 2, "--%s %s" % (name, value), takes[name])
    for value in ("", "/", "8/", "/2", "8/0", "0/2", "8/2/1", "8 / 2", "-8", "8," + "1" * 40):
        words = ["explain", "--len", "8", "--dim", "8", "--heads", value]
        place.refuses(words, 2, "--heads %s" % value, "takes Q or Q/KV", "32/8")
    place.refuses([*RUN, "--isa", "avx51"], 2, "did you mean avx512?")


@case
def sizes(place):
    """k, m and g, in either case, wherever a length or a count is taken; the same as the number that they stand for."""

    def explained(*words):
        return place.run("explain", "--batch", "1k", "--dim", "16", "--causal", *words).out

    for short, long in (("1k", "1024"), ("3K", "3072"), ("2m", "2097152"), ("1M", "1048576"), ("1g", "1073741824")):
        check(explained("--len", short) == explained("--len", long), short, "is not", long)
    check(" rows x 5120 keys" in explained("--len-q", "2", "--len-kv", "5k"), "--len-kv 5k")
    check(
        explained("--len", "8k", "--window", "1k,-1", "--heads", "1k/1")
        == explained("--len", "8192", "--window", "1024,-1", "--heads", "1024/1"),
        "--window 1k,-1",
    )
    problem(place)
    place.run(*RUN, "--chunk", "1k")
    whole = read_npy(place.path("o.npy"))
    place.run(*RUN, "--chunk", "1024")
    close(read_npy(place.path("o.npy")), whole, 0)


@case
def machine_limits(place):
    problem(place)
    place.refuses([*RUN, "--prefix", "14"], 1, "--prefix 14", "13 keys")
    place.refuses([*RUN, "--prefix", "4294967297"], 1, "--prefix 4294967297", "13 keys")
