"""`attn napkin`: what it prints and draws, and what it says of diagrams that are none."""

import json
import os

from geometry import Drawing
from harness import case, check, long_case

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
EXAMPLES, DOCS = os.path.join(ROOT, "examples", "napkin"), os.path.join(ROOT, "docs")

ATTENTION = b"""axis h = 4, q = 4096 by 16, k = 4096 by 16, d = 32, v = d
input Q[h, q, d], K[h, k, d], V[h, k, v] : f16
S[h, q, k] = sum[d] Q[h, q, d] * K[h, k, d] / sqrt(size(d))
P[h, q, k] = softmax[k] S[h, q, k]
O[h, q, v] = sum[k] P[h, q, k] * V[h, k, v]
output O : f16
"""


@case
def napkin(place):
    place.write("attention.nap", ATTENTION)
    text = place.run("napkin", "attention.nap", "--machine", "h200", "--draw", "a.svg").out
    for part in ("rescaling lemma", "Kernel 1, along k", "B(f(x), y) = f(x + y)", "M^-1", "each chunk of", "bound by"):
        check(part in text, part, "is missing in", text)
    drawn = [text for text, _ in Drawing(place.path("a.svg")).texts]
    for part in ("attention, as defined", "rescale by shift_1", "where S = sum_3 / sqrt(size(d))"):
        check(part in drawn, part, "is missing in", drawn)
    told = json.loads(place.run("napkin", "attention.nap", "--machine", "h200", "--json").out)
    (kernel,) = told["kernels"]
    check(kernel["stream"] == "k" and kernel["groups"] == ["h", "q"] and kernel["passes"] == 1, kernel)
    check(kernel["levels"][-1]["name"] == "shared" and kernel["levels"][-1]["tiles"]["h"] == 1, kernel)
    moved = 4 * 4096 * 32 * 2
    check(kernel["levels"][0]["bytes_moved"] == 4 * moved, "each array once into l2:", kernel)
    check(abs(told["bytes_unfused"] / (4 * moved + 4 * 4 * 4 * 4096 * 4096) - 1) < 1e-8, told)
    code = place.run("napkin", "attention.nap", "--emit", "c").out
    check("int napkin_attention(long n_h, long n_q, long n_k, long n_d, const float *in_Q" in code, code)
    loops = place.run("napkin", "attention.nap", "--emit=pseudocode").out
    check(loops in place.run("napkin", "attention.nap").out and "load K[h, k, d]" in loops, loops)


@case
def napkin_recomputes_or_stores(place):
    """The gradient on a machine whose memory is fast beside its units stores S and dP, and names the bandwidth below
    which computing them again is faster; where memory is slower than that, the derivation does so."""
    words = ["napkin", os.path.join(EXAMPLES, "attention_backward.nap"), "--machine"]
    told = json.loads(place.run(*words, "zen4", "--json").out)["recomputation"]
    check(told["stored"] and abs(told["stored_bytes"] - 2**32) < 100, told)
    check(told["seconds_stored"] < told["seconds_computed_again"], told)
    text = place.run(*words, "zen4").out
    check("Stored for later kernels: dP, sum_1, 4 GiB of memory" in text and "or moves less than about" in text, text)
    pays = told["pays_below_bytes_per_second"]
    for share, stored in ((0.5, False), (2, True)):
        level = "level l3 bytes 33554432 count 1 one %g all %g" % (share * pays, share * pays)
        place.write("slower.machine", b"machine slower\nbase zen4\n" + level.encode() + b"\n")
        told = json.loads(place.run(*words, "slower.machine", "--json").out)["recomputation"]
        check(told["stored"] == stored, "memory at", share, "of that bandwidth:", told)
        check((told["seconds_stored"] < told["seconds_computed_again"]) == stored, told)
    told = json.loads(place.run(*words, "h200", "--json").out)["recomputation"]
    check(not told["stored"] and told["seconds_stored"] > told["seconds_computed_again"], told)
    check("No sum that is greater than every array leaves its kernel" in place.run(*words, "h200").out, "h200")


@case
def napkin_refuses(place):
    def refuses(text, *parts):
        place.write("bad.nap", text)
        place.refuses(["napkin", "bad.nap"], 1, "attn napkin: bad.nap:", *parts)

    refuses(b"", "1:1: expected an output, not the end")
    refuses(b"axis q = 4\ninput Q[q, k]", "2:12: expected an axis, not 'k'")
    refuses(ATTENTION.replace(b"softmax[k] S", b"softmax[d] S"), "4:14: what is reduced does not span")
    refuses(ATTENTION.replace(b"K[h, k, d] /", b"K[h, q, d] /"), "3:39: K has k here", "declared to be as long")
    refuses(ATTENTION.replace(b"S[h, q, k] =", b"S[h, q] ="), "3:1: the term spans k")
    refuses(ATTENTION.replace(b"/ sqrt", b"/ sqr"), "3:47: expected a number", "not 'sqr'")
    refuses(ATTENTION.replace(b"sum[d]", b"sum[d"), "3:20: expected ']'")
    refuses(ATTENTION.replace(b"4096 by 16, k", b"40.5, k"), "1:17: expected a size")
    refuses(ATTENTION.replace(b"O : f16", b"O : f17"), "6:12: expected a type")
    refuses(b"axis q = 4\xff", "1:11: ")
    place.write("attention.nap", ATTENTION)
    place.refuses(["napkin"], 2, "FILE is missing")
    place.refuses(["napkin", "none.nap"], 1, "none.nap: cannot open: No such file")
    place.refuses(["napkin", "attention.nap", "attention.nap"], 2, "--file is given twice")
    place.refuses(["napkin", "attention.nap", "--emit", "fortran"], 2, "--emit fortran: takes c or pseudocode")
    place.refuses(["napkin", "attention.nap", "--emit", "c", "--json"], 2, "exclude each other")
    place.refuses(["napkin", "attention.nap", "--machine", "none"], 1, "none: No such file")
    place.refuses(["napkin", "attention.nap", "--draw", "no/such/place"], 1, "no/such/place: ")
    place.write("small.machine", b"machine small\nbase h200\nlevel shared bytes 64 count 132 all 4e12\n")
    place.refuses(["napkin", "attention.nap", "--machine", "small.machine"], 1, "no tiles", "fit into shared of small")


def draw(place, *words):
    place.run("napkin", *words, "--draw", "a.svg")
    drawing = Drawing(place.path("a.svg"))
    faults = list(drawing.faults())
    check(not faults, *words, "is drawn with", len(faults), "faults:", "; ".join(faults[:5]))
    check(drawing.width <= 1400, *words, "is drawn", drawing.width, "wide")
    return drawing


@long_case
def napkin_drawings_are_tidy(place):
    examples = sorted(name for name in os.listdir(EXAMPLES) if name.endswith(".nap"))
    check(len(examples) >= 8, examples)
    for name in examples:
        for machine in ("h200", "zen4"):
            drawing = draw(place, os.path.join(EXAMPLES, name), "--machine", machine)
            check(len(drawing.strokes) > 10 and len(drawing.texts) > 20, name, "is drawn without what it is made of")
            check(not any("..." in text for text, _ in drawing.texts), name, "on", machine, "has formulas that are cut")
            check(drawing.empty() <= 0.4, name, "on", machine, "leaves %.0f %% of the page" % (100 * drawing.empty()))


@long_case
def napkin_draws_any_diagram(place):
    axes = "abcdefghijkl"
    some, rest = ", ".join(axes[:6]), ", ".join(axes[6:])
    long_name = "a_name_of_23_characters"
    many = ["axis x = 64\ninput A0[x]"] + ["input A%d[x]" % i for i in range(1, 20)]
    every = " + ".join("A%d[x] * A%d[x]" % (i, (7 * i + 3) % 20) for i in range(20))
    crowd = many + ["B%d[x] = %s" % (i, every.replace("A%d[x]" % i, "exp(A%d[x])" % i)) for i in range(9)]
    chain = ["axis x = 64, y = 32\ninput A[x, y]\nC0[x] = sum[y] A[x, y]"]
    for i in range(1, 18):
        chain.append("C%d[x] = exp(C%d[x]) + C%d[x]" % (i, i - 1, i // 3))
    diagrams = {
        "scalar": "axis x = 64\ninput A[x]\nS = sum[x] A[x]\nM = max[x] A[x]\nR = S / (M + 1)\noutput S, M, R",
        "axes": "axis %s\ninput A[%s], B[%s]\nC[%s] = A[%s] * 2\nD[g] = sum[h, i, j, k, l] B[%s]\noutput C, D"
        % (", ".join(a + " = 2" for a in axes), some, rest, some, some, rest),
        "names": "axis nx = 64, ny = 32\ninput %s[nx, ny], W[ny]\n%s[nx] = sum[ny] %s[nx, ny] * W[ny]\noutput %s"
        % (long_name, long_name[:-1], long_name, long_name[:-1]),
        "less": "axis x = 64\ninput A[x], B[x]\nC[x] = (A[x] < B[x]) * A[x] + (A[x] <= 2) * x\noutput C",
        "crowd": "\n".join(crowd + ["output " + ", ".join("B%d" % i for i in range(8))]),
        "chain": "\n".join(chain + ["output C17, C9"]),
    }
    for name, text in diagrams.items():
        place.write(name + ".nap", text.encode())
        draw(place, name + ".nap", "--machine", "h200")


@case
def pictures_in_docs_are_tidy(place):
    pictures = sorted(name for name in os.listdir(DOCS) if name.endswith(".svg"))
    check(len(pictures) >= 8, pictures)
    for name in pictures:
        faults = list(Drawing(os.path.join(DOCS, name)).faults())
        check(not faults, name, "has", len(faults), "faults:", "; ".join(faults[:5]))
