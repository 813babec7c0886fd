"""Files that change, end nowhere or are in the way, whatever they hold: inputs and outputs by their paths."""

import glob
import os
import resource
import shutil
import signal
import stat
import subprocess
import threading
import time

from arrays import Array, npy, read_npy, read_safetensors, safetensors, uniform
from cases_answers import QKV, problem
from harness import LIMIT, case, check, close, skip

RUN = ["run", *QKV, "-o", "o.npy", "-q"]


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def limited(place):
    """For place.run: little memory, so that reading without an end fails soon. Sanitizers need more than there is."""
    done = subprocess.run([place.attn, "--version"], preexec_fn=limit, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return {} if done.returncode else {"preexec_fn": limit}


def feed(place, name, content, ends=True):
    """Writes into a FIFO as long as somebody reads; without an end, if asked to."""

    def write():
        try:
            with open(place.path(name), "wb", buffering=0) as file:
                file.write(content)
                while not ends:
                    file.write(bytes(1 << 16))
        except BrokenPipeError:
            pass

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


@case
def inputs_without_an_end(place):
    problem(place)
    little = limited(place)
    for path in "/dev/zero", "/dev/urandom":
        if os.path.exists(path):
            words = ["run", "--q", path, *QKV[2:], "-o", "o.npy"]
            place.refuses(words, 1, "--q " + path, "not a .npy file", **little)
    place.refuses(["run", "--tensors", "/dev/zero", "-o", "o.safetensors"], 1, "not start with '{'", **little)
    part = "/dev/zero: takes at most 64 MiB from what is no regular file"
    place.refuses(["napkin", "/dev/zero"], 1, part, **little)
    place.refuses(["machine", "--machine", "/dev/zero"], 2, "longer than a machine's text may be", **little)


@case
def pipes(place):
    """What a pipe's header says is read, and nothing may follow."""
    q, k, v = problem(place)
    place.run("run", *QKV, "-o", "want.npy", "-q")
    want, little = read_npy(place.path("want.npy")), limited(place)
    os.mkfifo(place.path("pipe"))
    words = ["run", "--q", "pipe", *QKV[2:], "-o", "o.npy", "-q"]
    for content in npy(q), npy(q, version=3):
        writer = feed(place, "pipe", content)
        place.run(*words)
        writer.join()
        close(read_npy(place.path("o.npy")), want, 0)
    os.remove(place.path("o.npy"))
    for content, ends, part in (
        (npy(q)[:-1], True, "truncated: float32 shape (2, 9, 4, 5) needs 1440 bytes of data and has 1439"),
        (npy(q)[:9], True, "not a .npy file"),
        (npy(q) + b"x", True, "goes on after the %d bytes that its header announces" % len(npy(q))),
        (npy(q), False, "goes on after the %d bytes that its header announces" % len(npy(q))),
        (b"", False, "not a .npy file"),
        (npy(q, header="{'descr': '<f4', 'fortran_order': False, 'shape': (%d,)}" % 2**60), True, "no memory for its"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", False, "a header of 4294967295 bytes: at most 1048576 are read"),
    ):
        writer = feed(place, "pipe", content, ends)
        place.refuses(words, 1, "--q pipe: ", part, **little)
        writer.join()
    tensors = safetensors({"q": q, "k": k, "v": v})
    words = ["run", "--tensors", "pipe", "-o", "o.safetensors", "-q"]
    feed(place, "pipe", tensors).join(0)
    place.run(*words)
    close(read_safetensors(place.path("o.safetensors"))["o"], want, 0)
    writer = feed(place, "pipe", tensors, ends=False)
    place.refuses(words, 1, "goes on after the %d bytes" % len(tensors), **little)
    writer.join()


@case
def process_substitution(place):
    problem(place)
    place.run("run", *QKV, "-o", "want.npy", "-q")
    if not shutil.which("bash"):
        return skip("no bash")
    line = '"%s" run --q <(cat q.npy) --k <(cat k.npy) --v <(cat v.npy) -o o.npy -q' % place.attn
    done = subprocess.run(["bash", "-c", line], cwd=place.directory, stderr=subprocess.PIPE, timeout=LIMIT)
    check(done.returncode == 0, done.stderr)
    close(read_npy(place.path("o.npy")), read_npy(place.path("want.npy")), 0)


@case
def larger_than_memory(place):
    """A sparse file whose header is right."""
    problem(place)
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (%d,)}" % 2**42
    place.write("q.npy", npy(None, header=text))
    try:
        os.truncate(place.path("q.npy"), os.path.getsize(place.path("q.npy")) + 2**42)
    except OSError as error:
        return skip("no sparse files of 4 TiB: %s" % error)
    place.refuses(RUN, 1, "--q q.npy: no memory for its 4398046511")


@case
def inputs_are_not_replaced(place):
    """Whatever name an output has: by which file it is. Any other file that exists is replaced."""
    problem(place)
    os.symlink("q.npy", place.path("link.npy"))
    os.link(place.path("q.npy"), place.path("hard.npy"))
    with open(place.path("q.npy"), "rb") as file:
        before = file.read()
    for name in "q.npy", "./q.npy", "link.npy", "hard.npy":
        place.refuses(["run", *QKV, "-o", name], 1, "-o %s: is an input, too" % name)
        place.refuses(["run", *QKV, "-o", "o.npy", "--lse", name], 1, "--lse %s: is an input, too" % name)
        check(not os.path.exists(place.path("o.npy")), "something was written")
    with open(place.path("q.npy"), "rb") as file:
        check(file.read() == before, "q.npy was overwritten")
    place.run("run", *QKV, "-o", "o.npy", "-q")
    place.run("run", *QKV, "-o", "o.npy", "-q")
    q = uniform(1, (1, 4, 2, 8))
    place.write("t.safetensors", safetensors({"q": q, "k": q, "v": q}))
    place.refuses(["run", "--tensors", "t.safetensors", "-o", "t.safetensors"], 1, "-o t.safetensors: is an input, too")
    place.refuses(["run", "--tensors", "q.npy", "-o", "o.npy"], 2, "--tensors q.npy: takes one .safetensors file")


def long_run(place):
    """A run of seconds that has opened its files."""
    array = Array((8192, 1, 64), [0.0] * (8192 * 64))
    for name in "qkv":
        place.write(name + ".npy", npy(array))
    before = place.files()
    words = [place.attn, *RUN, "--isa", "portable", "--threads", "1", "--softcap", "1"]
    process = subprocess.Popen(words, cwd=place.directory, stderr=subprocess.PIPE)
    for _ in range(1000):
        if place.files() != before or process.poll() is not None:
            break
        time.sleep(0.01)
    check(process.poll() is None and place.files() != before, "the run did not begin")
    return process


@case
def inputs_changed_meanwhile(place):
    """Shortened by somebody else, the inputs are those that were read."""
    process = long_run(place)
    for name in "qkv":
        os.truncate(place.path(name + ".npy"), 0)
    said = process.communicate(timeout=LIMIT)[1]
    check(process.returncode == 0 and not said, "ended with", process.returncode, said)
    got = read_npy(place.path("o.npy"))
    check(got.shape == (8192, 1, 64) and not any(got.data), "another answer")


@case
def killed_runs(place):
    """What a killed run left is in nobody's way, even with the process number that made it."""
    process = long_run(place)
    process.kill()
    process.wait()
    left = [name for name in place.files() if name.endswith(".tmp")]
    check(len(left) == 1, "left", place.files())
    problem(place)
    for name in ".$$.tmp", ".$$-0.tmp":
        line = 'echo >o.npy%s; exec "$@"' % name
        done = subprocess.run(
            ["sh", "-c", line, "sh", place.attn, *RUN], cwd=place.directory, stderr=subprocess.PIPE, timeout=LIMIT
        )
        check(done.returncode == 0, done.stderr.decode())
    check(read_npy(place.path("o.npy")).shape == (2, 9, 4, 6), "another answer")


@case
def one_process_number(place):
    """In containers all runs may have the same number: they write one file at once, and each ends whole."""
    alone = ["unshare", "-rpf", "--mount-proc"]
    if subprocess.run([*alone, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        return skip("no process numbers of their own: unshare -rpf")
    problem(place)
    array = uniform(1, (1, 2000, 1, 8))
    place.write("big.npy", npy(array))
    words = [*alone, place.attn, "run", "--q", "big.npy", "--k", "big.npy", "--v", "big.npy", "-o", "o.npy", "-q"]
    started = [subprocess.Popen(words, cwd=place.directory) for _ in range(8)]
    codes = [process.wait(timeout=LIMIT) for process in started]
    check(codes == [0] * 8, "ended with", codes)
    check(read_npy(place.path("o.npy")).shape == array.shape, "not whole")
    check([name for name in place.files() if "tmp" in name] == [], "left", place.files())


@case
def modes_stay(place):
    problem(place)
    umask = os.umask(0o027)
    os.umask(umask)
    place.run(*RUN)

    def mode(name):
        return stat.S_IMODE(os.stat(place.path(name)).st_mode)

    check(mode("o.npy") == 0o666 & ~umask, "a new file has mode %o" % mode("o.npy"))
    os.chmod(place.path("o.npy"), 0o640)
    place.run(*RUN)
    check(mode("o.npy") == 0o640, "the mode became %o" % mode("o.npy"))
    os.symlink("o.npy", place.path("link.npy"))
    os.chmod(place.path("o.npy"), 0o600)
    place.run("run", *QKV, "-o", "link.npy", "-q")
    check(mode("o.npy") == 0o600, "through a link, the mode became %o" % mode("o.npy"))
    if os.geteuid() == 0:
        os.chown(place.path("o.npy"), 1234, 4321)
        place.run(*RUN)
        info = os.stat(place.path("o.npy"))
        check((info.st_uid, info.st_gid) == (1234, 4321), "the owner became", info.st_uid, info.st_gid)
        check(mode("o.npy") == 0o600, "with an owner, the mode became %o" % mode("o.npy"))
    place.run("machine", "-o", "m.machine")
    os.chmod(place.path("m.machine"), 0o604)
    place.run("machine", "-o", "m.machine")
    check(mode("m.machine") == 0o604, "the machine's mode became %o" % mode("m.machine"))


@case
def links_to_nothing(place):
    """A link is written through, also where there is no file yet."""
    problem(place)
    os.mkdir(place.path("there"))
    os.symlink("there/o.npy", place.path("a.npy"))
    os.symlink("a.npy", place.path("b.npy"))
    place.run("run", *QKV, "-o", "b.npy", "-q")
    check(os.path.islink(place.path("a.npy")) and os.path.islink(place.path("b.npy")), "a link is gone")
    check(os.listdir(place.path("there")) == ["o.npy"], "there is", os.listdir(place.path("there")))
    os.symlink("loop.npy", place.path("loop.npy"))
    place.refuses(["run", *QKV, "-o", "loop.npy"], 1, "-o loop.npy: cannot write", "symbolic links")
    os.symlink("/dev/full", place.path("full.npy"))
    place.refuses(["run", *QKV, "-o", "full.npy"], 1, "-o full.npy: cannot be replaced: it is not a regular file")


@case
def outputs_that_meet(place):
    """One file, called by two names."""
    q, k, v = problem(place)
    os.symlink(".", place.path("here"))
    os.symlink("o.npy", place.path("l.npy"))
    for lse in "./o.npy", "here/o.npy", "l.npy", place.path("o.npy"):
        place.refuses(["run", *QKV, "-o", "o.npy", "--lse", lse], 1, "-o and --lse name the same file, as o.npy and")
    place.refuses(["run", *QKV, "-o", "o.npy", "--lse", "o.npy"], 2, "-o and --lse name the same file, o.npy")
    place.write("t.safetensors", safetensors({"q": q, "k": k, "v": v}))
    words = ["run", "--tensors", "t.safetensors", "-o", "o.safetensors", "--lse"]
    place.refuses([*words, "./o.safetensors"], 1, "-o and --lse name the same file")
    place.run(*words, "o.safetensors", "-q")
    check(sorted(read_safetensors(place.path("o.safetensors"))) == ["lse", "o"], "not both")


@case
def long_names(place):
    problem(place)
    name = "x" * 251 + ".npy"
    place.run("run", *QKV, "-o", name, "-q")
    check(name in place.files(), "there is no such file")
    place.refuses(["run", *QKV, "-o", "x" + name], 1, "cannot write: File name too long")
    place.refuses(["run", *QKV, "-o", "/".join(["x" * 200] * 40) + ".npy"], 1, "cannot write: ")
    place.refuses(["machine", "-o", "x" * 256], 1, "-o x", "File name too long")
    place.refuses(["machine", "-o", "new/"], 1, "'new/' names no file")


@case
def full_disk(place):
    """The disk holds the first output and not the second: neither is written."""
    problem(place)
    os.mkdir(place.path("disk"))
    array = uniform(1, (1, 2000, 1, 1))
    place.write("q.npy", npy(array))
    inner = 'mount -t tmpfs -o size=12k none disk && cd disk && { "$@"; echo $?; ls -A; }'
    words = [place.attn, "run", *[w.replace("k.", "q.").replace("v.", "q.").replace("q.npy", "../q.npy") for w in QKV]]
    mount = ["unshare", "-rm", "sh", "-c"]
    if subprocess.run([*mount, "mount -t tmpfs none disk"], cwd=place.directory, stderr=subprocess.DEVNULL).returncode:
        return skip("no disk of its own: unshare -rm, mount -t tmpfs")
    done = subprocess.run(
        [*mount, inner, "sh", *words, "-o", "o.npy", "--lse", "lse.npy"],
        cwd=place.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=LIMIT,
    )
    check(done.stdout == b"1\n" and b"--lse lse.npy: cannot write: No space left" in done.stderr, done)


@case
def forbidden_folders(place):
    problem(place)
    place.run(*RUN)
    os.chmod(place.path("o.npy"), 0o444)
    if os.geteuid() == 0:
        for path in glob.glob("/sys/kernel"):  # where even root makes no files
            place.refuses(["run", *QKV, "-o", path + "/o.npy"], 1, "cannot write in its folder: ")
        return
    place.refuses(RUN, 1, "-o o.npy: cannot replace it: Permission denied")
    os.mkdir(place.path("shut"), 0o555)
    place.refuses(["run", *QKV, "-o", "shut/o.npy"], 1, "cannot write in its folder: Permission denied")


@case
def nobody_listens(place):
    """A report that no one reads ends the run after its files are whole."""
    problem(place)
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen([place.attn, *RUN, "--json"], cwd=place.directory, stdout=writer)
    os.close(writer)
    check(process.wait(timeout=LIMIT) == -signal.SIGPIPE, "ended with", process.returncode)
    check(place.files() == ["k.npy", "o.npy", "q.npy", "v.npy"], "left", place.files())
    check(read_npy(place.path("o.npy")).shape == (2, 9, 4, 6), "not whole")


@case
def wide_numbers(place):
    """NumPy's own int64 and bool serve wherever they fit."""
    q, _, _ = problem(place)

    def answers(option, table, other, *options):
        place.write("t.npy", npy(table))
        place.run(*RUN, "--" + option, "t.npy", *options)
        want = read_npy(place.path("o.npy"))
        place.write("t.npy", npy(table.converted(other)))
        place.run(*RUN, "--" + option, "t.npy", *options)
        close(read_npy(place.path("o.npy")), want, 0)

    answers("lens-kv", Array((2,), [5, 13], "i32"), "i64")
    answers("intervals", Array((2, 1, 13, 1), [i % 9 for i in range(26)], "i32"), "i64", "--causal")
    answers("block-mask", Array((1, 1, 3, 3), [1, 0, 1, 1, 1, 0, 0, 1, 1], "u8"), "bool")
    for value in 2**31, -(2**31) - 1, 2**32 + 5, 2**63 - 1:
        place.write("t.npy", npy(Array((2,), [5, value], "i64")))
        part = "--lens-kv: element 1 is %d: takes what fits int32, -2147483648 to 2147483647" % value
        place.refuses([*RUN, "--lens-kv", "t.npy"], 1, part)
    place.write("t.npy", npy(uniform(1, (2,))))
    place.refuses([*RUN, "--lens-kv", "t.npy"], 1, "--lens-kv has dtype float32: takes int32 or int64")
    place.refuses([*RUN, "--block-mask", "t.npy"], 1, "--block-mask has dtype float32: takes uint8 or bool")
    place.write("t.npy", npy(Array((4,), [1, 2, 3, 4], "i64")))
    place.refuses([*RUN, "--sink", "t.npy"], 1, "--sink has dtype int64: takes float32")
    place.refuses([*RUN, "--bias", "t.npy"], 1, "--bias has dtype int64: takes float32 or float16")
    place.write("q.npy", npy(Array(q.shape, [0] * 360, "i64")))
    place.refuses(RUN, 1, "q has dtype int64: takes float32 or float16")
    problem(place, batch=1)
    starts = Array((2,), [0, 9], "i32"), Array((2,), [0, 13], "i32")
    place.write("b.npy", npy(starts[1].converted("i64")))
    answers("cu-lens-q", starts[0], "i64", "--cu-lens-kv", "b.npy")


@case
def unknown_machines(place):
    for words in ["machine"], ["explain", "--len", "8", "--dim", "8"]:
        place.refuses(
            [*words, "--machine", "tpu"], 2, "tpu: No such file", "built in are cpu, zen3,", "h200, h100, a100"
        )
