"""toolscout evaluate and toolscout bench."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.evaluation.made_up import dataset
from toolscout.cli.main import app
from toolscout.data.dataset import Dataset
from toolscout.errors import BadModel
from toolscout.evaluation.bench import speed
from toolscout.retrievers import opening
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25, Bm25Options
from toolscout.retrievers.provenance import TrainedOn, TrainingSet


@pytest.fixture(autouse=True)
def _no_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "no-encoder"))
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    dataset().save(tmp_path / "made-up")
    return tmp_path / "made-up"


def test_evaluate_prints_the_measures_and_appends_a_row(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    for option in ("names=0.5", "names=0"):
        done = run("evaluate", data, "--retriever", "bm25", "--option", option, "--json", out)
        assert done.exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["variant"] for row in rows] == ["default", "names-0.0"]
    assert rows[0]["command"].startswith("toolscout evaluate made-up --split test --retriever bm25")
    for name, label in (("recall", "Recall"), ("ndcg", "NDCG"), ("comp", "COMP")):
        line = next(line for line in done.stdout.splitlines() if line.startswith(label))
        assert line.split()[1::2] == [f"{rows[1]['metrics'][f'{name}@{k}']:.4f}" for k in (1, 3, 5, 10)]
        low, high = rows[1]["intervals"][f"{name}@1"]
        assert line.split()[2] == f"±{(high - low) / 2:.4f}"
    assert "those that need no tool" in done.stdout
    files = sorted(path.name for path in (tmp_path / "rows.scores").iterdir())
    assert files == ["made-up.test.bm25.jsonl.gz", "made-up.test.bm25.names-0.0.jsonl.gz"]


def test_verdicts_are_given_at_the_level_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLSCOUT_ENCODER")
    out, rows = tmp_path / "rows.jsonl", []
    for level in ("lenient", "strict"):
        done = run("evaluate", "bundled", "--retriever", "dense", "--level", level, "--json", out)
        assert done.exit_code == 0, done.output
        rows.append(json.loads(out.read_text().splitlines()[-1]))
    assert [row["variant"] for row in rows] == ["lenient", "strict"]
    assert rows[1]["command"].endswith("--level strict")
    lenient, strict = (row["metrics"] for row in rows)
    assert strict["recall@5"] == lenient["recall@5"]
    assert strict["fit_use"] < lenient["fit_use"]
    assert strict["fit_nothing"] > lenient["fit_nothing"]


def test_every_combination_is_run_and_shown_in_one_table(data: Path, tmp_path: Path) -> None:
    halves = dataset()
    qrels = halves.qrels["test"]
    splits = {"test": qrels, "unseen_tool.test": dict(list(qrels.items())[:20])}
    splits["unseen_tool.train"] = dict(list(qrels.items())[20:25])
    Dataset("other", halves.tools, halves.requests, splits).save(tmp_path / "other")
    Bm25(Bm25Options(names=0.0)).save(tmp_path / "model")
    out, model = tmp_path / "rows.jsonl", tmp_path / "model"
    words = (data, tmp_path / "other:unseen_tool.test", "--retriever", "bm25", "--retriever", model)
    done = run("evaluate", *words, "--split", "test", "--measure", "recall@7", "--json", out)
    assert done.exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["dataset"], row["split"], row["variant"]) for row in rows] == [
        ("made-up", "test", "default"),
        ("made-up", "test", "model"),
        ("other", "unseen_tool.test", "default"),
        ("other", "unseen_tool.test", "model"),
    ]
    assert f"{rows[0]['metrics']['recall@5']:.3f}" in done.stdout
    assert "4 of 4: other unseen_tool.test, bm25 (model): recall@5" in done.stderr
    assert "4 rows added" in done.stderr
    assert rows[3]["command"].endswith("other --split unseen_tool.test --retriever model --measure recall@7")
    assert len(list((tmp_path / "rows.scores").iterdir())) == 4


def test_only_the_tools_of_a_split_or_a_file_are_ranked(data: Path, tmp_path: Path) -> None:
    loaded, out, ids = Dataset.load(data), tmp_path / "rows.jsonl", tmp_path / "ids.txt"
    gold = sorted({tool_id for gold in loaded.qrels["test"].values() for tool_id in gold})
    ids.write_text("\n".join(gold))
    words = ("evaluate", f"{data}:test", "--retriever", "bm25", "--json", out, "--rankings")
    for among in ("test", ids):
        done = run(*words, "--among", among)
        assert done.exit_code == 0, done.output
        assert f"made-up test: 47 requests among {len(gold)} tools, bm25 (among-{Path(among).name})" in done.stdout
    by_split, by_file = (json.loads(line) for line in out.read_text().splitlines())
    assert by_split["metrics"] == by_file["metrics"]
    assert by_split["among"] == {"names": ["test"], "tools": len(gold)}
    assert by_split["command"].endswith("--among test")
    assert by_file["command"].endswith("--among ids.txt")  # without a path of this machine


@pytest.mark.parametrize(
    ("among", "said"),
    [
        ("tset", "'tset' is neither a split of made-up nor a file"),
        ("empty.txt", "lists no tools"),
        ("unknown.txt", "lists 1 ids that made-up has no tool of: 'no/such'"),
        ("folder", "is neither a split of made-up nor a file"),
        ("binary.txt", "cannot be read"),
        ("few.txt", "gold tools of made-up test are not among the 1 tools of few.txt"),
    ],
)
def test_candidates_that_cannot_be_ranked_are_refused_before_anything_runs(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, among: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    first = Dataset.load(data).tools[0].id
    for name, text in (("empty.txt", " \n\n"), ("unknown.txt", f"{first}\nno/such\n"), ("few.txt", first)):
        Path(name).write_text(text)
    Path("binary.txt").write_bytes(b"\xff\xfe\x00")
    Path("folder").mkdir()
    done = run("evaluate", data, "--retriever", "bm25", "--among", among, "--json", "rows.jsonl")
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert Path("rows.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("minimum", "code", "said"),
    [
        (["recall@5=0.01", "comp@7=0"], 0, "passed: 2 minimums met by 2 runs"),
        (["recall@5=0.01", "ndcg@5=1"], 1, "made-up test, bm25 (default): ndcg@5 is 0."),
        (["need_auroc=0"], 1, "need_auroc was not measured"),
    ],
)
def test_a_minimum_is_a_gate(data: Path, tmp_path: Path, minimum: list[str], code: int, said: str) -> None:
    words = [word for one in minimum for word in ("--min", one)]
    models = ("--retriever", "bm25", "--retriever", tmp_path / "model")
    Bm25().save(tmp_path / "model")
    done = run("evaluate", data, *models, *words, "--json", tmp_path / "rows.jsonl")
    assert (done.exit_code, said in done.stderr) == (code, True)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2  # rows are written either way


def test_a_model_is_not_judged_on_what_it_has_seen(data: Path, tmp_path: Path) -> None:
    loaded = Dataset.load(data)
    few = {"mine": dict(list(loaded.qrels["test"].items())[:4])}
    Bm25().save(tmp_path / "model")
    seen = Dataset("mine", loaded.tools, loaded.requests, few)
    TrainedOn.of([TrainingSet(seen, train="mine", dev="")]).save(tmp_path / "model")
    out = tmp_path / "rows.jsonl"
    words = ("evaluate", data, "--retriever", "bm25", "--retriever", tmp_path / "model", "--json", out)
    refused = run(*words)
    assert refused.exit_code == 2
    assert "made-up test shares 4 of its 47 requests" in refused.stderr
    assert "4 of mine mine (trained on)" in refused.stderr
    assert out.read_text() == ""  # nothing has run, not even what would have been allowed
    assert run(*words, "--drop-seen").exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["variant"], row["dropped"], row["requests"]) for row in rows] == [
        ("default", 0, 47),
        ("model_drop-seen", 4, 43),
    ]
    assert rows[1]["new_tools"] > 0
    assert rows[1]["command"].endswith("--drop-seen")


def test_rows_that_were_done_before_an_error_are_kept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Bm25().save(tmp_path / "model")
    opened = opening.open_retriever
    calls: list[str] = []

    def failing(
        name: str, settings: Sequence[str] = (), parts: Sequence[str] = (), encoder: str | None = None
    ) -> tuple[Retriever, str]:
        calls.append(name)
        if len(calls) > 3:
            raise BadModel("the model has gone")
        return opened(name, settings, parts, encoder)

    monkeypatch.setattr(opening, "open_retriever", failing)
    out = tmp_path / "rows.jsonl"
    done = run("evaluate", data, "--retriever", "bm25", "--retriever", tmp_path / "model", "--json", out)
    assert (done.exit_code, "the model has gone" in done.stderr) == (2, True)
    assert len(out.read_text().splitlines()) == 1
    assert "1 row added" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere"], "no dataset 'nowhere'"),
        (["DATA", "--split", "nonsense"], "no split nonsense"),
        (["DATA:nonsense"], "no split nonsense"),
        (["DATA", "nowhere:test"], "no dataset 'nowhere'"),
        (["DATA:test", "--split", "dev"], "every DATA names its own :SPLIT"),
        (["DATA", "--measure", "recall"], "unknown measure 'recall'"),
        (["DATA", "--min", "recall@5"], "as recall@5=0.8"),
        (["DATA", "--min", "recal@5=1"], "unknown measure 'recal@5'"),
        (["DATA", "--rankings"], "needs --json OUT"),
        (["DATA", "--retriever", "bm25", "--retriever", "dense", "--option", "a=1"], "options are those of one method"),
        (["DATA", "--retriever", "nonsense"], "no retriever called 'nonsense'"),
        (["DATA", "--retriever", "bm25", "--option", "nonsense=1"], "no option of bm25"),
        (["DATA", "--retriever", "dense"], "no sentence encoder"),
        (["DATA", "--retriever", "bm25", "--json", "."], "name another file"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_one_line(data: Path, words: list[str], expected: str) -> None:
    done = run("evaluate", *(word.replace("DATA", str(data)) for word in words))
    assert done.exit_code == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_writes_rows_and_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"p50_ms": 7.0, "searches_ms": 5.0}
    row = {"bench": "query", "requests": "toollens", "tools": 46587, "values": values}
    plans: list[speed.BenchPlan] = []

    def bench(plan: speed.BenchPlan, *_: object) -> list[dict[str, object]]:
        plans.append(plan)
        return [row]

    monkeypatch.setattr(speed, "bench", bench)
    words = ("--sizes", "464,46587", "--repeats", 2, "--work", tmp_path, "--no-embed-timing")
    done = run("bench", *words, "--json", tmp_path / "bench.jsonl")
    assert done.exit_code == 0
    assert plans == [speed.BenchPlan((464, 46587), 2, tmp_path, embed_timing=False)]
    assert json.loads((tmp_path / "bench.jsonl").read_text()) == row
    assert "≤ 8 met" in done.stdout
    assert "≤ 4 missed" in done.stdout


def test_bench_refuses_sizes_that_are_none() -> None:
    done = run("bench", "--sizes", "many")
    assert (done.exit_code, "numbers of tools" in done.stderr) == (2, True)
