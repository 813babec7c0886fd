"""What holds a handle of the C library ends it once: copies, pickles, threads, and interpreters that end."""
import copy
import gc
import inspect
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import libattn
from libattn import _c, _kv_plans, _pool, _problem, _run


def plans(make):
    q, k, v = make()
    _run.clear_plans()
    libattn.merge_states([q, q], [np.zeros((2, 4, 9), "f")] * 2)
    libattn.append_kvcache(k, v, k.copy(), v.copy(), cache_seqlens=0)
    kept = [part for value in _run._plans.values() for part in value if isinstance(part, _problem.Handle)]
    _run.clear_plans()
    return [libattn.plan(q, k, v), *kept]


def test_copies_share_a_plan(make):
    listed = plans(make)
    assert len(listed) == 3
    explained = listed[0].explain()
    for plan in listed:
        for copied in (copy.copy(plan), copy.deepcopy(plan), copy.deepcopy([plan])[0]):
            assert copied is plan
        with pytest.raises(TypeError, match=f"{type(plan).__name__} of libattn cannot be .*plan again"):
            pickle.dumps(plan)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match="plan again"):
                pickle.dumps(plan, protocol)
    copied = copy.copy(listed[0])
    del plan, listed[1:]
    listed.clear()
    gc.collect()
    assert copied.explain() == explained


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_pools_are_not_copied(way):
    pool = libattn.Pool(pages=4, page_size=2, sequences=2, width=2)
    with pytest.raises(TypeError, match="a Pool of libattn cannot be .*fork copies a sequence"):
        way(pool)
    with pytest.raises(TypeError, match="a PageCopies of libattn cannot be .*`pairs`"):
        way(libattn.PageCopies(2))
    seq = pool.create()  # a sequence is two numbers
    pool.append(copy.deepcopy(pickle.loads(pickle.dumps(seq))), count=3)
    assert pool.length(seq) == 3


def test_every_holder_says_how_it_is_copied():
    held = [kind for module in (_run, _kv_plans, _pool) for kind in vars(module).values()
            if inspect.isclass(kind) and inspect.isfunction(kind.__init__)
            if "_handle" in kind.__init__.__code__.co_names]
    assert {_problem.Handle, _pool.Pool} <= set(held) and all(issubclass(kind, _c.Unpicklable) for kind in held)


CALL = """
import numpy as np, libattn
q = np.ones((1, 256, 4, 64), np.float32)
libattn.attention(q, q, q, causal=True)
plan = libattn.plan(q, q, q)
"""

NUMPY = """
try:
    import numpy
except ImportError as error:
    print(error, flush=True)
"""

THREADS = CALL + """
import atexit, threading, time
def loop():
    while True:
        libattn.attention(q, q, q, causal=True)
        libattn.clear_plans()
class Late:
    def __del__(self):
        print("late", float(libattn.attention(q, q, q).sum()), flush=True)
late = Late()
late.itself = late
atexit.register(lambda: print("exit", float(libattn.attention(q, q, q).sum()), flush=True))
for _ in range(3):
    threading.Thread(target=loop, daemon=True).start()
time.sleep(0.2)
"""

INTERPRETERS = """
import sys
import _xxsubinterpreters as interpreters
one = interpreters.create()
interpreters.run_string(one, "import warnings; warnings.simplefilter('ignore')" + sys.argv[1])
if sys.argv[2] == "destroy":
    interpreters.destroy(one)
print("end", flush=True)
"""


def ends(program, *words):
    """What a new interpreter prints; it must end by itself, and well."""
    done = subprocess.run([sys.executable, "-c", program, *words], timeout=60, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(libattn.__file__))})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_threads_that_compute_when_the_process_ends():
    assert "exit 65536.0" in ends(THREADS)


@pytest.mark.parametrize("way", ["destroy", "leave"])
def test_interpreters_within_one(way):
    pytest.importorskip("_xxsubinterpreters")
    if "does not support loading in subinterpreters" in ends(INTERPRETERS, NUMPY, way):
        pytest.skip("this NumPy takes one interpreter only")
    assert "end" in ends(INTERPRETERS, CALL, way)
