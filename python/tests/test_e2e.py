"""bench.e2e: each part runs at its tiny sizes and keeps rows that mean what they say; its data are what they claim."""
import csv
import json
import math
import pathlib
import random
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = str(pathlib.Path(__file__).parents[2])
sys.path.insert(0, ROOT)
from bench.e2e import length, measure, train  # noqa: E402
from bench.e2e.__main__ import main  # noqa: E402
from bench.lra import listops, pathfinder  # noqa: E402

sys.path.remove(ROOT)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows_of(part, folder):
    path = folder / "rows.csv"
    assert main([part, "--quick", "--quiet", "--rounds", "2", "--device", "cpu", "--csv", str(path)]) == 0
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and all(row["part"] == part and row["device"] and row["torch"] for row in rows)
    for row in rows:
        if row["ratio"]:
            assert float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"])
    return rows


@pytest.mark.long
def test_train(tmp_path):
    rows = rows_of("train", tmp_path)
    timed = [row for row in rows if row["ms"]]
    assert {row["subject"] for row in timed} == {"eager", "sdpa", "libattn"} and len(timed) == 9
    for row in timed:
        assert 0 < float(row["attention_ms"]) < 1e4 and float(row["tokens_per_s"]) > 0
        assert row["figure"] == "copies within attention"
        assert row["subject"] != "libattn" or row["value"] == "0", row  # layouts as they are, packed ones too
        assert bool(row["ratio"]) == (row["subject"] != "libattn")
        assert bool(row["backend"]) == (row["subject"] == "sdpa")
    for task in ("book, 20 steps", "copying, 20 steps"):
        losses = {row["subject"]: float(row["value"]) for row in rows if row["case"] == task}
        assert len(losses) == 3 and max(losses.values()) - min(losses.values()) < 1e-3
    assert float(next(row for row in rows if row["case"] == "book, 20 steps")["value"]) < 4  # of ln 256 = 5.5


def test_a_model_that_fits_alone(tmp_path, monkeypatch):
    """One whose step lacks memory once the other models are there is a row that says so; the others are measured."""
    made = train.step_of

    def step_of(run, model, given, sdpa):
        step, calls = made(run, model, given, sdpa), []

        def limited():
            calls.append(0)
            if model.config._attn_implementation == "eager" and len(calls) > 2:
                raise MemoryError
            return step()

        return limited

    monkeypatch.setattr(train, "step_of", step_of)
    path = tmp_path / "rows.csv"
    assert main(["train", "--quick", "--quiet", "--device", "cpu", "--only", "gpt2", "--csv", str(path)]) == 0
    with open(path, encoding="utf-8", newline="") as file:
        rows = {row["subject"]: row for row in csv.DictReader(file)}
    assert rows["eager"]["note"].endswith("beside the other models") and not rows["eager"]["ms"]
    assert rows["sdpa"]["ms"] and rows["libattn"]["ms"]


def test_copying_needs_attention():
    """Half of each row repeats the other; a model whose rows saw nothing but themselves could not know it."""
    draw = train.copying(type("Run", (), {"device": "cpu"}), 32, 4)
    tokens = draw(3)
    assert torch.equal(tokens[:, :16], tokens[:, 16:]) and not torch.equal(tokens, draw(4))


@pytest.mark.long
def test_generate(tmp_path):
    rows = rows_of("generate", tmp_path)
    cases = {(row["case"], row["subject"]) for row in rows if row["ms"]}
    assert {("dynamic 1 x 60", name) for name in ("eager", "sdpa", "libattn", "libattn paged")} <= cases
    assert [row["subject"] for row in rows if row["case"] == "static 1 x 60, 4 layers"] == ["libattn", "sdpa", "eager"]
    error = {row["subject"]: float(row["value"]) for row in rows if row["figure"].startswith("RMS")}
    assert error["libattn"] <= 2 * error["sdpa"] + 1e-7
    assert sum(row["figure"] == "us per call" for row in rows) == 4


def test_the_paged_loop_writes_what_the_cache_writes():
    """Greedy tokens of pages with a shared prompt are those of a DynamicCache, over the ends of pages."""
    from bench.e2e import generate, models

    generate.register()
    config = models.config_of("llama-0.5b", True, 256, False)
    prompt = torch.randint(0, config.vocab_size, (1, 60), generator=torch.Generator().manual_seed(1)).expand(2, 60)
    with torch.no_grad():
        plain, pages = (models.build(config, name, torch.device("cpu")).eval() for name in ("eager", "libattn_paged"))
        for steps in (1, 9, 70):
            cache = generate.grown(config, generate.prefill(plain, prompt[:1]), 2)
            wanted = generate.dynamic(plain, cache, prompt, steps, None)
            found = generate.paged(pages, prompt, steps)
            assert torch.equal(found(), wanted()) and torch.equal(found(), wanted())  # each begins anew


def test_the_static_loop_writes_what_the_cache_writes():
    """And again when it is called again: each call begins after the prompt."""
    from bench.e2e import generate, models

    run = measure.Run("generate", "cpu", True, 1, None, True)
    config = models.config_of("llama-0.5b", True, 256, False)
    prompt = generate.prompt_of(run, config, 2, 30)
    with torch.no_grad():
        plain, ours = (models.build(config, name, run.device).eval() for name in ("eager", "libattn"))
        filled = generate.prefill(plain, prompt[:1])
        wanted = generate.dynamic(plain, generate.grown(config, filled, 2), prompt, 9, None)()
        torch._dynamo.reset()
        found = generate.static(run, ours, generate.fixed(config, filled, 2, 9), prompt, 9, None)
        assert torch.equal(found(), wanted) and torch.equal(found(), wanted)


def test_a_step_that_does_not_compile(monkeypatch):
    """Is a row that says so; what else there is is measured."""
    from bench.e2e import generate

    made, run = generate.static, measure.Run("generate", "cpu", True, 1, None, True, only="static")

    def static(run, model, *arguments):
        if model.config._attn_implementation == "sdpa":
            def fail():
                raise RuntimeError("no\nway")
            return fail
        return made(run, model, *arguments)

    monkeypatch.setattr(generate, "static", static)
    generate.main(run)
    rows = {row["subject"]: row for row in run.rows}
    assert list(rows) == ["libattn", "sdpa", "eager"] and rows["sdpa"]["note"] == "not compiled: no way"
    assert "ms" in rows["libattn"] and rows["eager"]["ratio"]


def test_lra(tmp_path):
    rows = rows_of("lra", tmp_path)
    ours = ["libattn", "libattn blocks"]
    for task in ("ListOps", "Pathfinder"):
        for case in (f"{task}, a step", f"{task}, attention of a step"):
            assert [row["subject"] for row in rows if row["case"] == case] == [*ours, "standard"]
        for case in (f"{task}, 2 steps", f"{task}, 4 steps"):  # after so many steps, and at the end
            found = [row for row in rows if row["case"] == case]
            assert [row["subject"] for row in found] == [*ours, "without attention", "standard"]
            for row in found:
                share = float(row["value"])
                assert row["figure"] == "accuracy" and 0 <= share <= 1
                assert row["note"].startswith(f"standard error {math.sqrt(share * (1 - share) / 8):.4f}, of 8 examples")


def test_a_training_ends_with_the_time(tmp_path, monkeypatch):
    """Between two steps, with the accuracy so far; nothing after it is begun, and only what is named measured."""
    from bench.e2e import lra

    made, run = lra.learner, measure.Run("lra", "cpu", True, 2, None, True, steps=9,
                                         only="ListOps, accuracy, libattn")

    def learner(*arguments):
        model, step = made(*arguments)

        def ending(i):
            run.seconds = 1e-9 if i == 4 else None
            return step(i)

        return model, ending

    monkeypatch.setattr(lra, "learner", learner)
    lra.main(run)
    assert [(row["case"], row["subject"]) for row in run.rows] == [
        (f"ListOps, {steps} steps", "libattn") for steps in (2, 4, 5)]


def test_a_learner_is_the_same_whatever_it_attends_with():
    """Three steps with libattn, over the blocks that are there, and with standard attention give the same losses; with
    no attention others."""
    from bench.e2e import lra

    run = measure.Run("lra", "cpu", True, 2, None, True)
    task = lra.tasks(run)["ListOps"]
    data = [[torch.as_tensor(x) for x in batch] for batch in lra.drawn(task, range(3), False)]
    losses = {}
    for name, attend in {**lra.attends(task, run.device), lra.WITHOUT: lambda q, k, v, lens: v * 0}.items():
        _, step = lra.learner(run, task, attend, data)
        losses[name] = torch.stack([step(i) for i in range(3)])
    for name in ("libattn blocks", "standard"):  # 128 keys are one block
        torch.testing.assert_close(losses[name], losses["libattn"], rtol=1e-4, atol=1e-5)
    assert (losses[lra.WITHOUT] - losses["libattn"]).abs().max() > 1e-3


def test_length(tmp_path):
    rows = rows_of("length", tmp_path)
    for keys in (128, 256, 512):
        timed = {row["subject"] for row in rows if row["case"] == f"{keys} rows" and row["ms"]}
        assert {"libattn", "standard", "sdpa flash", "libattn causal", "libattn window 256"} <= timed
    assert main(["plot", "--csv", str(tmp_path / "rows.csv"), "--out", str(tmp_path)]) == 0
    assert "libattn causal" in (tmp_path / "rows-length.svg").read_text()


def test_slow_lengths_have_an_interval(monkeypatch):
    """However long a length takes, it has the rounds of an interval of 95 %."""
    rounds = []
    monkeypatch.setattr(measure, "turns", lambda run, subjects, rounds=None: {name: [1e9] for name in subjects})
    monkeypatch.setattr(measure, "compare", lambda *_, **of: rounds.append(of["rounds"]))
    length.main(measure.Run("length", "cpu", True, 20, None, True, only="^128 rows"))
    assert rounds == [measure.LEAST]


def test_shares(tmp_path):
    """Time against the kept share is drawn where three shares or more were measured."""
    path = tmp_path / "rows.csv"
    rows = [{"part": "length", "case": "512 rows", "subject": f"libattn blocks {share} %", "length": 512, "ratio": ratio,
             "device": "some GPU"} for share, ratio in ((100, 1.1), (12.5, 0.2), (50, 0.5))]
    measure.write_csv(str(path), rows)
    assert main(["plot", "--csv", str(path), "--out", str(tmp_path)]) == 0
    assert "512 rows" in (tmp_path / "rows-shares.svg").read_text()
    path.unlink()
    measure.write_csv(str(path), rows[:2])
    assert main(["plot", "--csv", str(path), "--out", str(tmp_path)]) == 2


# ---- what the figures stand on -----------------------------------------------------------------


def test_interval():
    """Of 20 values the 6th and the 15th: fewer than 5 % of samples have a median outside."""
    assert measure.interval(range(20)) == (9.5, 5, 14)
    assert measure.interval([3, 1, 2]) == (2, 1, 3)
    for n in range(6, 60):
        _, low, high = measure.interval(range(n))
        outside = 2 * sum(math.comb(n, i) for i in range(low + 1)) / 2 ** n
        tighter = 2 * sum(math.comb(n, i) for i in range(low + 2)) / 2 ** n
        assert outside <= 0.05 < tighter and high == n - 1 - low, n


def test_only_and_seconds(tmp_path, capsys):
    """Cases by name; when the time is over none begins, and one that runs ends with the rounds of an interval."""
    path = tmp_path / "rows.csv"
    words = ["length", "--quick", "--quiet", "--device", "cpu", "--csv", str(path), "--commit", "abc"]
    assert main(["all", *words[1:], "--only", "^128 rows"]) == 0
    assert main([*words, "--only", "^256 rows", "--rounds", "2"]) == 0
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["case"], row["commit"]) for row in rows} == {("128 rows", "abc"), ("256 rows", "abc")}
    assert {row["rounds"] for row in rows if row["case"] == "256 rows"} == {"2", ""}
    assert main([*words, "--only", "none"]) == 2 and "--only none: no case" in capsys.readouterr().err
    assert main([*words, "--seconds", "1e-9", "--only", "^128 rows"]) == 2
    assert "--seconds 1e-09: no case was begun" in capsys.readouterr().err
    assert main(["train", *words[1:], "--only", "^copying, 20 steps$"]) == 0
    run = measure.Run("x", "cpu", True, 20, None, True, seconds=1e-9)
    times = measure.turns(run, dict.fromkeys("ab", lambda: None))
    assert [len(taken) for taken in times.values()] == [measure.LEAST] * 2
    times = measure.turns(measure.Run("x", "cpu", True, 20, None, True), dict.fromkeys(("eager", "b"), lambda: None))
    assert [len(taken) for taken in times.values()] == [measure.LEAST, 20]


@pytest.mark.parametrize("words", [["train", "--steps", "9"], ["length", "--rate", "1"], ["plot", "--quick"],
                                   ["all", "--out", "x"]], ids=lambda words: " ".join(words[:2]))
def test_options_of_other_parts(words, capsys):
    assert main(words) == 2 and f"{words[1]}: {words[0]} does not take it" in capsys.readouterr().err


def test_turns_rotate():
    run, called = measure.Run("x", "cpu", True, 3, None, True), []
    measure.turns(run, {name: lambda name=name: called.append(name) for name in "abc"})
    assert called == list("abc" "bca" "cab")
    called.clear()  # and when a slow one has left
    measure.turns(run, {name: lambda name=name: called.append(name) for name in ("eager", "a", "b")}, 10)
    assert called[18:] == list("ab" "ba" "ab" "ba")


def test_what_lacks_memory_or_a_kernel():
    """Says so in PyTorch's words; no other error is taken for it, though CUDA's speak of memory and kernels."""
    run = measure.Run("x", "cpu", True, 3, None, True)

    def fail(text):
        raise RuntimeError(text)

    assert not measure.fits(run, lambda: torch.empty(1 << 50))
    assert not measure.fits(run, lambda: fail("CUDA error: out of memory"))
    q = torch.zeros(1, 1, 2, 8)
    call = lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)  # noqa: E731
    assert measure.best_backend(run, call) == "math"
    text = "CUDA error: an illegal memory access was encountered. CUDA kernel errors might be reported later."
    for call in (measure.fits, measure.best_backend):
        with pytest.raises(RuntimeError, match="illegal memory access"):
            call(run, lambda: fail(text))


def test_blocks_keep_their_share():
    import libattn.torch

    for share in (0.125, 0.5, 1.0):
        listed = length.blocks_of(2048, share, torch.device("cpu"))
        kept = int(listed.full_count.sum()) / 256
        assert kept == share
        for i in range(16):
            row = listed.full[0, 0, i, :int(listed.full_count[0, 0, i])].tolist()
            assert row == sorted(set(row)) and i in row
    q = torch.randn(1, 2048, 1, 8)
    torch.testing.assert_close(libattn.torch.attention(q, q, q, blocks=listed), length.standard(q, q, q), rtol=1e-4,
                               atol=1e-4)


def test_listops():
    draw = random.Random(5)
    for _ in range(20):
        words, value = listops.expression(draw, 50, 300)
        assert 50 <= len(words) <= 300 and listops.value_of(words) == value and 0 <= value <= 9
    assert listops.value_of("[MAX 2 9 [MIN 4 7 ] 0 ]".split()) == 9
    assert listops.value_of("[SM 9 8 [MED 1 5 3 ] ]".split()) == 0
    tokens, lens, values = listops.batch(1, 2, 2048)
    again = listops.batch(1, 2, 2048)
    assert ((lens >= 500) & (lens <= 2000)).all() and all(map(np.array_equal, (tokens, lens, values), again))
    words = [listops.WORDS[token] for token in tokens[0, :lens[0]]]
    assert listops.value_of(words) == values[0] and not tokens[0, lens[0]:].any()


def test_pathfinder():
    tokens, lens, labels = pathfinder.batch(3, 40, 32)
    assert tokens.shape == (40, 1024) and (lens == 1024).all() and 8 < labels.sum() < 32
    assert set(np.unique(tokens)) == {0, 160, 255} and not np.array_equal(tokens[0], tokens[1])
    assert all(9 < (picture == 255).sum() <= 18 for picture in tokens)  # two dots


# ---- mistakes ----------------------------------------------------------------------------------


def test_mistakes(tmp_path, capsys, monkeypatch):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    kept = tmp_path / "kept.csv"
    measure.write_csv(str(kept), [])
    calls = [(["length", "--rounds", "0"], "--rounds 0: it takes 1 or more"), (["plot"], "plot needs --csv"),
             (["length", "--seconds", "0"], "--seconds 0: it takes more than 0"),
             (["length", "--only", "("], "--only (: "), (["lra", "--steps", "0"], "--steps 0: it takes 1 or more"),
             (["lra", "--rate", "0"], "--rate 0: it takes more than 0"),
             (["plot", "--csv", str(tmp_path / "none")], "No such file"),
             (["plot", "--csv", str(other)], "columns are not those"),
             (["plot", "--csv", str(kept), "--out", str(tmp_path / "none")], "no such folder"),
             (["length", "--device", "meta"], "--device meta: it takes cpu, or cuda"),
             (["length", "--device", "gpu"], "--device gpu: it takes cpu, or cuda")]
    monkeypatch.setattr(length, "main", lambda run: pytest.fail("measured before its file was looked at"))
    calls += [(["length", "--csv", str(other)], "columns are not those"),
              (["length", "--csv", str(tmp_path / "none" / "rows.csv")], "no such folder")]
    if not torch.cuda.is_available():
        calls.append((["train", "--device", "cuda"], "finds no CUDA GPU"))
    for words, text in calls:
        assert main(words) == 2
        assert text in capsys.readouterr().err
    assert other.read_text() == "a,b\n1,2\n"


def test_rows_of_other_parts_stay(tmp_path, capsys):
    path = str(tmp_path / "kept.csv")
    (tmp_path / "kept.csv").touch()  # an empty file is a new one
    one, two = ({"part": part, "case": "c", "subject": "s", "ms": 1.5} for part in ("train", "length"))
    measure.write_csv(path, [one])
    measure.write_csv(path, [two])
    measure.write_csv(path, [dict(two, ms=2.5)])
    with open(path, encoding="utf-8", newline="") as file:
        assert [(row["part"], row["ms"]) for row in csv.DictReader(file)] == [("train", "1.5"), ("length", "2.5")]
    with pytest.raises(ValueError):  # one that is ended while it writes keeps what there was
        measure.write_csv(path, [dict(two, unknown=1)])
    assert len(measure.read_csv(path)) == 2
    measure.print_json([one])
    assert json.loads(capsys.readouterr().out) == [one]
