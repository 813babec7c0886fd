"""Runs the command in a fresh directory a case, and counts."""

import math
import os
import subprocess
import sys
import tempfile
import traceback

CASES = []
LONG = []  # names of cases that take seconds
LIMIT = 600  # seconds: ends what hangs, not what is slow


def case(function):
    CASES.append((function.__name__, function))
    return function


def long_case(function):
    """ATTN_TEST_SHARE=n ATTN_TEST_TURN=i: of these each n-th alone, from the i-th on."""
    LONG.append(function.__name__)
    return case(function)


def is_left_out(name):
    share, turn = (int(os.environ.get("ATTN_TEST_" + word, default)) for word, default in (("SHARE", 1), ("TURN", 0)))
    return name in LONG and (LONG.index(name) - turn) % share != 0


class Failed(Exception):
    pass


def check(condition, *what):
    if not condition:
        raise Failed(" ".join(str(w) for w in what))


def skip(why):
    """Of a case, or the rest of one, that this machine has no means for."""
    print("SKIPPED %s: %s" % (sys._getframe(1).f_code.co_name, why))


class Place:
    """A directory, and the command run in it."""

    def __init__(self, attn, directory):
        self.attn, self.directory = attn, directory

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)

    def files(self):
        return sorted(os.listdir(self.directory))

    def run(self, *words, code=0, stderr=subprocess.PIPE, **keywords):
        done = subprocess.run(
            [self.attn, *words],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=LIMIT,
            **keywords
        )
        done.out, done.err = done.stdout.decode(), (done.stderr or b"").decode()
        check(
            done.returncode == code, "attn", *words, "ended with", done.returncode, "not", code, "and said:", done.err
        )
        return done

    def refuses(self, words, code, *parts, **keywords):
        """The command fails with one message that holds all of `parts`, and leaves the directory as it was."""
        before = self.files()
        done = self.run(*words, code=code, **keywords)
        for part in parts:
            check(part in done.err, "message of attn", *words, "lacks", repr(part) + ":", done.err)
        check(done.out == "", "printed to stdout:", done.out)
        check(done.err.startswith("attn"), "said:", done.err)
        check(self.files() == before, "left", self.files(), "where", before, "was")


def gpu_environment(variable="ATTN_TEST_CUDA", **more):
    """With the driver that stands for a GPU's, or None. ATTN_TEST_EMULATED: that whose kernels are their own source."""
    cuda = os.environ.get(variable)
    return cuda and {**os.environ, "LD_LIBRARY_PATH": cuda, "ATTN_NVRTC": "", **more}


def idle_gpu():
    """The same with kernels that check what they are launched with and compute nothing."""
    return gpu_environment(FAKE_CUDA_COMPUTES="0")


def close(got, wanted, tolerance, what="o"):
    check(got.shape == wanted.shape, what, "has shape", got.shape, "not", wanted.shape)
    for i, (x, y) in enumerate(zip(got.data, wanted.data)):
        same = x == y or abs(x - y) <= tolerance * max(1, abs(y))
        check(same and not math.isnan(x), what, "element", i, "is", x, "not", y)


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: run.py ATTN [CASE ...]")
    attn, wanted, passed, failed = os.path.abspath(sys.argv[1]), sys.argv[2:], 0, 0
    if not os.access(attn, os.X_OK):
        sys.exit("%s cannot be run" % attn)
    for name, function in CASES:
        if (wanted and name not in wanted) or is_left_out(name):
            continue
        with tempfile.TemporaryDirectory() as directory:
            try:
                function(Place(attn, directory))
                passed += 1
            except Exception as error:  # a case that breaks is a case that fails
                failed += 1
                print("FAILED %s: %s" % (name, error if isinstance(error, Failed) else traceback.format_exc()))
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed or not passed else 0)
