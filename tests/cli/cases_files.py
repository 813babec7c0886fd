"""Files that `attn run` does not take: each with its own message, and nothing left behind."""

import os
import struct

from arrays import Array, npy, safetensors, uniform
from cases_answers import QKV, problem
from harness import case, check

RUN = ["run", *QKV, "-o", "o.npy", "--lse", "lse.npy"]


@case
def npy_versions(place):
    q, _, _ = problem(place)
    place.run(*RUN[:-4], "-o", "want.npy")
    with open(place.path("want.npy"), "rb") as file:
        want = file.read()
    text = "{'fortran_order':False,\"shape\": (2,9, 4, 5,) , 'descr': '<f4'}"
    for content in (
        npy(q, version=2),
        npy(q, version=3),
        npy(q, skew=1),
        npy(q, skew=2, version=2),
        npy(q, header=text),
    ):
        place.write("q.npy", content)
        place.run(*RUN)
        with open(place.path("o.npy"), "rb") as file:
            check(file.read() == want, "another answer")


@case
def npy_headers(place):
    q, _, _ = problem(place)
    good = npy(q)
    shape = "'shape': (2, 9, 4, 5), "
    start = "{'descr': '<f4', 'fortran_order': False, "

    def header(text):
        return npy(q, header=text)

    def descr(text):
        return header("{'descr': %s, 'fortran_order': False, %s}" % (text, shape))

    for content, part in (
        (b"", "not a .npy file"),
        (b"\x93NUMPY", "not a .npy file"),
        (b"PK\x03\x04" + good, "not a .npy file"),
        (good[:6] + b"\x04\x00" + good[8:], "version 4.0"),
        (good[:6] + b"\x01\x01" + good[8:], "version 1.1"),
        (good[:6] + b"\x02\x00\x76\x00", "truncated within its header"),
        (good[:50], "truncated: a header of"),
        (good[:-1], "truncated: float32 shape (2, 9, 4, 5) needs 1440 bytes"),
        (good + b"\0\0\0", "3 bytes too many after the data"),
        (good[:6] + b"\x02\x00\xff\xff\xff\xff" + good[12:], "a header of 4294967295 bytes: at most 1048576"),
        (header("[1]"), "not a dict"),
        (header(""), "not a dict"),
        (header("{"), "key is not a short text"),
        (header("{}"), "is missing"),
        (header(start + "}"), "descr, fortran_order or shape is missing"),
        (header(start + shape + "} x"), "something follows the dict"),
        (header(start + shape + "'extra': 1}"), "unknown key 'extra'"),
        (header(start + shape + shape + "}"), "key 'shape' is there twice"),
        (header(start[:-2] + shape + "}"), "a comma is missing"),
        (header(start + "'shape'= ()}"), "a key is not"),
        (header(start + "'shape': [2]}"), "shape is not a tuple"),
        (header(start + "'shape': (2)}"), "shape is not a tuple"),
        (header(start + "'shape': (2 3)}"), "shape lacks a comma"),
        (header(start + "'shape': (2, -3)}"), "negative"),
        (header(start + "'shape': (2, x)}"), "not a tuple of whole numbers"),
        (header(start + "'shape': (1,1,1,1,1,1,1,1,1)}"), "more than 8 axes"),
        (header(start + "'shape': (99999999999999999999,)}"), "above 2^63 - 1"),
        (header(start + "'shape': (4294967296, 4294967296, 4, 5)}"), "holds more than 2^63 - 1 bytes"),
        (header(start + "'shape': (0, 4611686018427387904, 4, 5)}"), "holds more than 2^63 - 1 bytes"),
        (header("{'descr': '<f4', 'fortran_order': 1, " + shape + "}"), "neither True nor False"),
        (
            header("{'descr': '<f4', 'fortran_order': True, " + shape + "}"),
            "Fortran order: save numpy.ascontiguousarray",
        ),
        (header("{'descr': '<f4\\'', 'fortran_order': False, " + shape + "}"), "descr is not a short text"),
        (descr("'>f4'"), "big-endian"),
        (descr("'<f8'"), "dtype '<f8' (float64) is not read: save floats with x.astype('float32')"),
        (descr("'<i8'"), "truncated: int64 shape"),
        (descr("'|V2'"), "no bfloat16"),
        (descr("'<V2'"), "no bfloat16"),
        (descr("'<u2'"), "no bfloat16"),
        (descr("'<c8'"), "dtype '<c8' is not read"),
        (descr("[('a', '<f4')]"), "structured"),
        (descr("'%s'" % ("f" * 100)), "descr is not a short text"),
        (descr("None"), "descr is not a short text"),
    ):
        place.write("q.npy", content)
        place.refuses(RUN, 1, "--q q.npy: ", part)


@case
def shapes(place):
    def put(**arrays):
        problem(place)
        for name, array in arrays.items():
            place.write(name + ".npy", npy(array))

    for arrays, parts in (
        ({"q": uniform(1, (9, 5))}, ("q has shape (9, 5)", "(batch, row, head, dim) or (row, head, dim)")),
        ({"q": uniform(1, (4,))}, ("q has shape (4,)",)),
        ({"q": uniform(1, ())}, ("q has shape ()",)),
        ({"q": uniform(1, (1, 1, 2, 9, 5))}, ("q has shape (1, 1, 2, 9, 5)",)),
        ({"k": uniform(1, (13, 2, 5))}, ("k has shape (13, 2, 5)", "q has rank 4")),
        ({"v": uniform(1, (2, 13, 2, 0))}, ("v has shape (2, 13, 2, 0)", "no dim")),
        ({"k": uniform(1, (2, 13, 0, 5))}, ("k has shape (2, 13, 0, 5)", "no head")),
        ({"k": uniform(1, (3, 13, 2, 5))}, ("k has 3 sequences", "q has 2")),
        ({"v": uniform(1, (1, 13, 2, 5))}, ("v has 1 sequences", "q has 2")),
        ({"v": uniform(1, (2, 12, 2, 5))}, ("v has 12 rows", "k has 13")),
        ({"v": uniform(1, (2, 13, 4, 5))}, ("v has 4 heads", "k has 2")),
        ({"k": uniform(1, (2, 13, 2, 6))}, ("k has 6 dims", "q has 5")),
        ({"k": uniform(1, (2, 13, 3, 5)), "v": uniform(1, (2, 13, 3, 5))}, ("heads_q = 4", "heads_kv = 3")),
        (
            {"q": uniform(1, (1, 1, 1, 600)), "k": uniform(1, (1, 1, 1, 600)), "v": uniform(1, (1, 1, 1, 1))},
            ("dim_qk = 600",),
        ),
        ({"q": Array((2, 9, 4, 5), [0] * 360, "i32")}, ("q has dtype int32", "float32 or float16")),
        ({"v": Array((2, 13, 2, 5), [0] * 260, "u8")}, ("v has dtype uint8",)),
    ):
        put(**arrays)
        place.refuses(RUN, 1, *parts)


@case
def tables(place):
    problem(place)

    def i32(shape, *data):
        return Array(shape, data, "i32")

    for option, array, parts in (
        ("alibi", uniform(1, (3,)), ("--alibi has shape (3,): takes (4)",)),
        ("alibi", uniform(1, (2, 3)), ("--alibi has shape (2, 3): takes (1 or 2, 4)",)),
        ("alibi", uniform(1, (4,), "f16"), ("--alibi has dtype float16: takes float32",)),
        ("sink", uniform(1, (1, 4)), ("--sink has shape (1, 4): takes (4)",)),
        (
            "bias",
            uniform(1, (2, 4, 9, 12)),
            ("--bias has shape (2, 4, 9, 12): takes (1 or 2, 1 or 4, 1 or 9, 1 or 13)",),
        ),
        ("bias", uniform(1, (9, 13)), ("--bias has shape (9, 13)",)),
        ("bias", Array((1, 1, 1, 1), [0], "u8"), ("--bias has dtype uint8: takes float32",)),
        ("lens-kv", i32((3,), 1, 2, 3), ("--lens-kv has shape (3,): takes (2)",)),
        ("lens-kv", uniform(1, (2,)), ("--lens-kv has dtype float32: takes int32",)),
        ("lens-kv", i32((2,), 1, 14), ("lens_kv[1] = 14",)),
        ("lens-kv", i32((2,), -1, 1), ("lens_kv[0] = -1",)),
        ("lens-q", i32((3,), 1, 2, 3), ("--lens-q has shape (3,): takes (2)",)),
        ("lens-q", uniform(1, (2,)), ("--lens-q has dtype float32: takes int32",)),
        ("lens-q", i32((2,), 1, 10), ("lens_q[1] = 10",)),
        ("mask", uniform(1, (1, 1, 9, 13)), ("--mask has dtype float32: takes uint8 or bool",)),
        ("mask", Array((9, 12), [1] * 108, "bool"), ("--mask has shape (9, 12): takes (9, 13)",)),
        ("mask", Array((1, 9, 13), [1] * 117, "bool"), ("--mask has shape (1, 9, 13): takes (1 or 2, 1 or 4, 9, 13)",)),
        ("mask", Array((9, 13), [1] * 117, "u8"), ("a bit per key", "has shape (9, 13): takes (9, 2)")),
        (
            "intervals",
            i32((2, 1, 13, 3), *[0] * 78),
            ("--intervals has 3 vectors", "1 or 2 with --causal, 2 or 4 without"),
        ),
        (
            "intervals",
            i32((1, 1, 13, 2), *[0] * 26),
            ("--intervals has shape (1, 1, 13, 2): takes (2, 1 or 2, 13, 1 or more)",),
        ),
        ("intervals", i32((13,), *[0] * 13), ("--intervals has shape (13,): takes (2, 1 or 2, 13, 1 or more)",)),
        ("intervals", i32((2, 1, 13, 1), *[0] * 26), ("interval_vectors = 1",)),
        ("intervals", i32((2, 1, 13, 2), *[0] * 51, 10), ("intervals", "10")),
        (
            "block-mask",
            Array((1, 1, 7, 1), [1] * 7, "u8"),
            ("--block-mask has 7 blocks for 9 rows: blocks of 2 make 5",),
        ),
        (
            "block-mask",
            Array((1, 1, 1, 8), [1] * 8, "u8"),
            ("--block-mask has 8 blocks for 13 keys: blocks of 2 make 7",),
        ),
        ("block-mask", Array((1, 1, 14, 0), [], "u8"), ("--block-mask has 14 blocks for 9 rows",)),
        ("block-mask", Array((3, 1, 3, 3), [1] * 27, "u8"), ("--block-mask has shape (3, 1, 3, 3): takes (1 or 2,",)),
        ("block-mask", uniform(1, (1, 1, 1, 1)), ("--block-mask has dtype float32: takes uint8",)),
        ("block-mask", Array((3,), [1] * 3, "u8"), ("--block-mask has shape (3,): takes (1 or 2, 1 or 4, 0 or more, 0 or more)",)),
    ):
        place.write("t.npy", npy(array))
        place.refuses([*RUN, "--" + option, "t.npy"], 1, *parts)
        place.write("t.npy", npy(array) + b"x")
        place.refuses([*RUN, "--" + option, "t.npy"], 1, "--%s t.npy: 1 bytes too many" % option)


@case
def page_tables(place):
    def i32(shape, *data):
        return Array(shape, data, "i32")

    words = [*RUN, "--page-table", "t.npy", "--lens-kv", "l.npy"]
    good = {"t": i32((2, 3), 0, 1, 2, 3, 4, 5), "l": i32((2,), 9, 7)}
    good["k"] = good["v"] = uniform(2, (6, 3, 2, 5))
    huge = {"q": uniform(1, (2, 9, 4, 1)), "k": uniform(2, (0, 2**60, 1, 1)), "v": uniform(2, (0, 2**60, 1, 1))}
    for wrong, parts in (
        ({"t": i32((6,), 0, 1, 2, 3, 4, 5)}, ("--page-table has shape (6,): takes (2, 1 or more)",)),
        ({"t": i32((3, 2), 0, 1, 2, 3, 4, 5)}, ("--page-table has shape (3, 2): takes (2, 1 or more)",)),
        ({"t": i32((2, 0))}, ("--page-table has shape (2, 0): takes (2, 1 or more)",)),
        ({"t": uniform(1, (2, 3))}, ("--page-table has dtype float32: takes int32",)),
        ({"t": i32((2, 3), 0, 1, 6, 3, 4, 5)}, ("page_table: sequence 0, entry 2 = 6", "0 to 5")),
        ({"t": i32((2, 3), 0, 1, 2, 3, -1, 5)}, ("page_table: sequence 1, entry 1 = -1",)),
        ({"t": Array((2, 3), [0, 1, 2, 3, 2**31, 5], "i64")}, ("--page-table: element 4 is 2147483648",)),
        ({"l": i32((2,), 9, 10)}, ("--lens-kv: lens_kv[1] = 10, and a sequence's 3 pages in --page-table hold 9 keys",)),
        ({"k": uniform(2, (18, 2, 5))}, ("k has shape (18, 2, 5): with --page-table it takes (page, slot, head, dim)",)),
        ({"v": uniform(2, (5, 3, 2, 5))}, ("v has 5 pages, but k has 6",)),
        ({"v": uniform(2, (6, 2, 2, 5))}, ("v has 2 slots, but k has 3",)),
        ({"v": uniform(2, (6, 3, 1, 5))}, ("v has 1 heads, but k has 2",)),
        ({"k": uniform(2, (6, 0, 2, 5)), "v": uniform(2, (6, 0, 2, 5))}, ("page_size = 0",)),
        (huge, ("len_kv = 3458764513820540928",)),
        ({**huge, "t": i32((2, 16), *[0] * 32)}, ("--page-table has shape (2, 16): with 1152921504606846976 slots",)),
    ):
        problem(place)
        for name, array in {**good, **wrong}.items():
            place.write(name + ".npy", npy(array))
        place.refuses(words, 1, *parts)
    place.refuses(words[:-2], 2, "--page-table needs --lens-kv")
    place.refuses([*words, "--cu-lens-q", "t.npy", "--cu-lens-kv", "t.npy"], 2, "leave out --cu-lens-kv")
    place.refuses([*words, "--page-table", "t.npy"], 2, "--page-table is given twice")
    place.refuses(["grad", *words[1:]], 2, "unknown option --page-table")


@case
def packed_tables(place):
    problem(place, batch=1)
    good_q, good_kv = Array((2,), [0, 9], "i32"), Array((2,), [0, 13], "i32")
    words = [*RUN, "--cu-lens-q", "a.npy", "--cu-lens-kv", "b.npy"]
    for a, b, parts in (
        (Array((3,), [0, 5, 9], "i32"), good_kv, ("--cu-lens-kv has shape (2,): takes (3)",)),
        (Array((1,), [0], "i32"), good_kv, ("--cu-lens-q has shape (1,): takes (2 or more)",)),
        (Array((1, 2), [0, 9], "i32"), good_kv, ("--cu-lens-q has shape (1, 2): takes (2 or more)",)),
        (uniform(1, (2,)), good_kv, ("--cu-lens-q has dtype float32: takes int32",)),
        (Array((4,), [0, 6, 4, 9], "i32"), Array((4,), [0, 1, 2, 13], "i32"), ("cu_lens_q[2] = 4",)),
        (Array((2,), [1, 9], "i32"), good_kv, ("cu_lens_q[0] = 1",)),
        (good_q, Array((2,), [0, 14], "i32"), ("cu_lens_kv[1] = 14 exceeds total_kv = 13",)),
        (good_q, Array((2,), [-(2**31), 2**31 - 1], "i32"), ("cu_lens_kv[0] = -2147483648",)),
    ):
        place.write("a.npy", npy(a))
        place.write("b.npy", npy(b))
        place.refuses(words, 1, *parts)
    problem(place, batch=2)
    place.refuses(words, 1, "q has a batch of 2", "(1, row, head, dim)")


@case
def tensor_headers(place):
    words = ["run", "--tensors", "t.safetensors", "-o", "o.safetensors"]
    qkv = {name: Array((1, 1, 2), [0, 0]) for name in "qkv"}
    good = safetensors(qkv)

    def entry(name, begin, end, dtype="F32", shape="[1,1,2]"):
        return '"%s":{"dtype":"%s","shape":%s,"data_offsets":[%s,%s]}' % (name, dtype, shape, begin, end)

    qk, v = entry("q", 0, 8) + "," + entry("k", 8, 16), entry("v", 16, 24)

    def header(text):
        return safetensors(qkv, header=text)

    place.write("t.safetensors", header('{"__metadata__":{"a":"b\\u0041\\ud83d\\ude00"},%s,%s}  ' % (qk, v)))
    place.run(*words, "-q")
    os.remove(place.path("o.safetensors"))
    for content, part in (
        (b"", "shorter than 8 bytes"),
        (good[:7], "shorter than 8 bytes"),
        (good[:20], "truncated: a header of"),
        (struct.pack("<Q", 100000001) + good[8:], "a header of 100000001 bytes"),
        (struct.pack("<Q", 2**64 - 1) + good[8:], "a header of 18446744073709551615 bytes"),
        (struct.pack("<Q", 0), "does not start with '{'"),
        (header(" {}"), "does not start with '{'"),
        (header("{}"), "24 bytes too many after the last tensor"),
        (good[:-1], "leave the 23 bytes of data"),
        (good + b"x", "1 bytes too many"),
        (header("{%s,%s}x" % (qk, v)), "something follows the object"),
        (header("{%s,%s" % (qk, v)), "is missing"),
        (header("{%s %s}" % (qk, v)), "comma is missing"),
        (header("{%s,%s,}" % (qk, v)), "a comma before '}'"),
        (header("{%s,%s,%s}" % (qk, v, v)), '"v" is there twice'),
        (header('{%s,%s,"__metadata__":{"a":"b","a":"c"}}' % (qk, v)), '"a" is there twice'),
        (header('{%s,%s,"__metadata__":{"a":1}}' % (qk, v)), "no string"),
        (header('{%s,%s,"__metadata__":{},"__metadata__":{}}' % (qk, v)), "is there twice"),
        (header('{%s,%s,"__metadata__":[]}' % (qk, v)), "an object is missing"),
        (header('{%s,%s,"x":[[[[[[[[[[[[]]]]]]]]]]]]}' % (qk, v)), "an object is missing"),
        (header("{%s,%s}" % (qk, v.replace('"shape"', '"size"'))), 'unknown key "size"'),
        (header("{%s,%s}" % (qk, v.replace('"F32"', "32"))), "dtype is not a string"),
        (header('{%s,"v":{"dtype":"F32","dtype":"F32"}}' % qk), 'key "dtype" is there twice'),
        (header('{%s,"v":{"dtype":"F32"}}' % qk), "tensor v lacks dtype, shape or data_offsets"),
        (header("{%s,%s}" % (qk, entry("v", 15, 23))), "tensor v overlaps another"),
        (header("{%s}" % qk), "8 bytes too many"),
        (header("{%s,%s}" % (qk, entry("w", 16, 24))), "holds no tensor v"),
        (header("{%s,%s}" % (qk, entry("v", 16, 28, shape="[1,1,3]"))), "leave the 24 bytes of data"),
        (header("{%s,%s}" % (qk, entry("v", 24, 16))), "data_offsets [24, 16] end before they begin"),
        (header("{%s,%s}" % (qk, entry("v", 20, 24, shape="[1,1,1]"))), "bytes before tensor v belong to none"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, shape="[1,1,3]"))), "8 bytes, but dtype and shape need 12"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, shape="[4294967296,4294967296,9]"))), "overflows"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, shape="[1,-2]"))), "shape is not an array of whole numbers"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, shape="[1.0,2]"))), "shape is not an array of whole numbers"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, shape="[01,1,2]"))), "shape is not an array of whole numbers"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, shape="[1,1,2,]"))), "a comma before ']'"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, shape="2"))), "shape is not an array"),
        (header("{%s,%s}" % (qk, entry("v", 16, "1e1"))), "data_offsets is not"),
        (header("{%s,%s}" % (qk, entry("v", 16, 2**63))), "data_offsets is not"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, "F128"))), 'unknown dtype "F128"'),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, "F64", "[1,1,1]"))), "tensor v has dtype F64"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, "I32"))), "v has dtype int32"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, shape="[1,1,1,1,1,1,1,1,2]"))), "tensor v has rank 9"),
        (header("{%s,%s}" % (qk, entry("v", 16, 24, shape="[1,2]"))), "v has shape (1, 2)"),
        (header("{%s,%s}" % (qk, entry("\\q", 16, 24))), "missing"),
        (header("{%s,%s}" % (qk, entry("\\ud800", 16, 24))), "missing"),
        (header("{%s,%s}" % (qk, entry("\\u0000", 16, 24))), "missing"),
        (header("{%s,%s}" % (qk, entry("\xff", 16, 24))), "bad UTF-8"),
        (header("{%s,%s}" % (qk, entry("\n", 16, 24))), "missing"),
    ):
        place.write("t.safetensors", content)
        place.refuses(words, 1, "attn run: ", part)


@case
def escaped_names(place):
    """A name is what its escapes say."""
    text = ",".join(
        '"\\u00%02x":{"shape":[1,1,2],"dtype":"F32","data_offsets":[%d,%d]}' % (ord(name), 8 * i, 8 * i + 8)
        for i, name in enumerate("qkv")
    )
    qkv = {name: Array((1, 1, 2), [0, 0]) for name in "qkv"}
    place.write("t.safetensors", safetensors(qkv, header="{%s}" % text))
    place.run("run", "--tensors", "t.safetensors", "-o", "o.safetensors")
    place.write("t.safetensors", safetensors(qkv, header='{%s,"q":{}}' % text))
    place.refuses(["run", "--tensors", "t.safetensors", "-o", "p.safetensors"], 1, "tensor q lacks")
