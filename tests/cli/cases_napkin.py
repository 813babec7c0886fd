"""`attn napkin`: what it prints and draws, and what it says of diagrams that are none."""

import json
import xml.dom.minidom

from harness import case, check

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
    drawing = xml.dom.minidom.parse(place.path("a.svg"))
    check(drawing.documentElement.tagName == "svg" and len(drawing.getElementsByTagName("path")) > 20, "drawing")
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
