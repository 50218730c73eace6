"""Scores of single requests say what the row says, are found by any handy name, and are compared only in pairs."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluation.made_up import dataset
from toolscout.data import metrics
from toolscout.errors import BadDataset, BadRequest
from toolscout.evaluation import row as rows
from toolscout.evaluation.evaluate import Evaluation, evaluate
from toolscout.evaluation.measures import MEASURES, NEW_TOOL_MEASURES, VERDICTS
from toolscout.evaluation.request_result import RequestResult, scoring_ranking
from toolscout.evaluation.scores import RowFilter, Scores, by_gold, compare, find, worst
from toolscout.retrievers.bm25 import Bm25, Bm25Options
from toolscout.retrievers.provenance import TrainedOn


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Evaluation, Evaluation]:
    """Two variants on the same requests, to which every other tool is new; the one ranks 20 tools."""
    data, cache = dataset(), tmp_path_factory.mktemp("cache") / "vectors.db"
    seen = TrainedOn(tools=frozenset(tool.digest() for tool in data.tools[::2]))
    one = evaluate(data, "test", Bm25(), seen=seen, measures=["recall@20"], cache=cache)
    other = evaluate(data, "test", Bm25(Bm25Options(names=0.0)), seen=seen, cache=cache)
    return one, other


@pytest.fixture
def written(runs: tuple[Evaluation, Evaluation], tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    for done in runs:
        rows.append(path, done.row.to_dict())
        rows.write_scores(rows.scores_path(path, done.row), done.lines())
    return path


@given(
    tools=st.permutations([f"t{number}" for number in range(14)]),
    gold=st.sets(st.integers(0, 13), min_size=1, max_size=6),
    new=st.sets(st.integers(0, 13)),
    returned=st.integers(0, 14),
    failed=st.booleans(),
)
def test_a_line_scores_as_its_request_did(
    tools: list[str], gold: set[int], new: set[int], returned: int, failed: bool
) -> None:
    golds, fresh = tuple(f"t{number}" for number in sorted(gold)), frozenset(f"t{number}" for number in new)
    ranking = None if failed else tuple(tools[:returned])
    one = RequestResult("r", "s", "use", golds, ranking, 0.5, None, 0.0)
    line = one.to_dict(fresh, depth=14)
    again, placeholders = scoring_ranking(line)
    named = frozenset(name for name in placeholders if name.startswith("new "))
    names = [*MEASURES, *NEW_TOOL_MEASURES, "recall@12", "precision@7"]
    expected = [values[0] for values in metrics.scores([ranking], [golds], names, fresh).values()]
    found = [values[0] for values in metrics.scores([again], [placeholders], names, named).values()]
    assert found == pytest.approx(expected, nan_ok=True)


def test_the_means_are_those_of_the_row(runs: tuple[Evaluation, Evaluation], written: Path) -> None:
    for number, done in enumerate(runs, 1):
        found = find(f"{written}#{number}")
        names = [*MEASURES, *NEW_TOOL_MEASURES, *VERDICTS]
        means = dict(zip(names, np.nanmean(found.values(names), axis=0), strict=True))
        assert means == pytest.approx({name: done.row.metrics[name] for name in names}, abs=1e-6)


def test_runs_are_found_by_file_by_number_and_by_name(written: Path) -> None:
    plain = find(str(written.with_name("rows.scores") / "made-up.test.bm25.jsonl.gz"))
    assert (plain.row, plain.label) == (None, "made-up.test.bm25")
    for name in (f"{written}#1", f"{written}#bm25.default"):
        assert find(name).lines == plain.lines
    assert find(str(written), RowFilter(variant="names-0.0")).label == "made-up test bm25.names-0.0"
    assert find(f"{written}#bm25.names-0.0", RowFilter("made-up", "test")).lines != plain.lines


@pytest.mark.parametrize(
    ("selector", "narrow", "expected"),
    [
        ("nowhere.jsonl", RowFilter(), "there is no file nowhere.jsonl"),
        (
            "ROWS",
            RowFilter(),
            r"2 rows of .* are meant; name one.*#1 made-up test bm25; #2 made-up test bm25.names-0.0",
        ),
        ("ROWS#bm25", RowFilter(), "2 rows of"),
        ("ROWS#3", RowFilter(), "has rows 1 to 2, got #3"),
        ("ROWS#dense", RowFilter(), "no row of .* is meant"),
        ("ROWS", RowFilter(dataset="other"), "no row of .* is meant"),
    ],
)
def test_what_is_not_one_run_is_refused(written: Path, selector: str, narrow: RowFilter, expected: str) -> None:
    with pytest.raises((BadRequest, BadDataset), match=expected):
        find(selector.replace("ROWS", str(written)), narrow)


def test_files_that_hold_no_scores_are_refused(written: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl.gz"
    for content, expected in (
        (b"plain text", "cannot be read as scores"),
        (gzip.compress(b'{"id": "a"}\n'), "line 1 is not the score of a request"),
        (gzip.compress(b""), "holds no requests"),
    ):
        broken.write_bytes(content)
        with pytest.raises(BadDataset, match=expected):
            find(str(broken))
    (tmp_path / "bench.jsonl").write_text('{"bench": "query"}\n')
    with pytest.raises(BadDataset, match="no file of rows that toolscout evaluate wrote"):
        find(str(tmp_path / "bench.jsonl"))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(BadDataset, match=r"name a \.jsonl file"):
        find(str(tmp_path / "binary.jsonl"))
    rows.scores_path(written, rows.read_rows(written)[0]).unlink()
    with pytest.raises(BadDataset, match="are not at"):
        find(f"{written}#1")


def test_scores_that_a_later_run_has_replaced_do_not_pass_for_a_rows_own(written: Path) -> None:
    first = rows.read_rows(written)[0]
    rows.append(written, first | {"metrics": {**first["metrics"], "recall@5": 0.123}})
    with pytest.raises(BadDataset, match="a later run has replaced them"):
        find(f"{written}#3")
    assert find(f"{written}#1").lines


def test_a_comparison_is_that_of_the_paired_scores(runs: tuple[Evaluation, Evaluation], written: Path) -> None:
    a, b = find(f"{written}#1"), find(f"{written}#2")
    shuffled = Scores(b.path, list(reversed(b.lines)), b.row)
    names = ["recall@5", "new_recall@5", "fit_use"]
    for found, name in zip(compare(a, shuffled, names), names, strict=True):
        assert found.measure == name
        assert found.result.mean_a == pytest.approx(runs[0].row.metrics[name], abs=1e-6)
        assert found.result.mean_b == pytest.approx(runs[1].row.metrics[name], abs=1e-6)
        assert found.result.low <= found.result.difference <= found.result.high
    assert compare(a, a, ["ndcg@5"])[0].result.p == 1


def test_only_the_same_requests_can_be_compared(written: Path) -> None:
    a, b = find(f"{written}#1"), find(f"{written}#2")
    fewer = Scores(b.path, [line for line in b.lines if line["id"] not in ("r0", "r1")], b.row)
    with pytest.raises(BadDataset, match=r"2 only in made-up test bm25, 0 only in .*, 45 in both.*--common"):
        compare(a, fewer, ["recall@5"])
    assert compare(a, fewer, ["recall@5"], common=True)[0].result.requests == 38
    strangers = Scores(b.path, [{**line, "id": f"x{line['id']}"} for line in b.lines])
    with pytest.raises(BadDataset, match=r"0 in both; evaluate both on the same split$"):
        compare(a, strangers, ["recall@5"], common=True)
    regraded = Scores(b.path, [{**line, "gold": line["gold"] + 1} for line in b.lines])
    with pytest.raises(BadDataset, match="another kind, scene or number of gold tools"):
        compare(a, regraded, ["recall@5"])
    assert b.row is not None
    with pytest.raises(BadDataset, match="other tools, requests or gold"):
        compare(a, Scores(b.path, b.lines, {**b.row, "digest": "another"}), ["recall@5"])
    renewed: list[dict[str, Any]] = [{**line, "new": 0, "new_ranks": []} for line in b.lines]
    with pytest.raises(BadRequest, match="have different new tools"):
        compare(a, Scores(b.path, renewed), ["new_recall@5"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("recall@11", "ranks 10 tools; for recall@11 evaluate again with --measure recall@11"),
        ("fit_auroc", "no mean over requests"),
        ("nonsense@5", "unknown measure"),
    ],
)
def test_what_the_lines_cannot_tell_is_refused(written: Path, name: str, expected: str) -> None:
    with pytest.raises(BadRequest, match=expected):
        find(f"{written}#2").values([name])


def test_deeper_rankings_and_lines_of_earlier_versions_are_read(written: Path) -> None:
    deep = find(f"{written}#1")
    assert np.nanmean(deep.values(["recall@20"])) == pytest.approx(deep.row["metrics"]["recall@20"], abs=1e-6)  # type: ignore[index]
    old = [{"id": "a", "scene": "x", "kind": "use", "gold": 2, "ranks": [1, 9], "fit": 0.5, "verdict": "use"}]
    assert Scores(Path("old"), old).values(["recall@5", "mrr"]).tolist() == [[0.5, 1.0]]
    with pytest.raises(BadRequest, match="does not tell new tools from others"):
        Scores(Path("old"), old).values(["new_recall@5"])


def test_the_worst_come_first_failed_ones_before_all() -> None:
    def line(name: str, gold: int, ranks: list[int] | None) -> dict[str, Any]:
        return {"id": name, "scene": name, "kind": "use" if gold else "no_tool", "gold": gold, "ranks": ranks}

    made = [
        line("good", 1, [1]),
        line("half", 2, [2]),
        line("none", 3, []),
        line("late", 3, [7, 8]),
        line("failed", 1, None),
        line("goldless", 0, []),
    ]
    found = Scores(Path("made"), made)
    assert [one["id"] for one, _ in worst(found, "recall@5", 9)] == ["failed", "none", "late", "half", "good"]
    assert [score for _, score in worst(found, "recall@5", 4)] == [0, 0, 0, 0.5]
    assert by_gold(found, "recall@5") == [(1, 2, 0.5), (2, 1, 0.5), (3, 2, 0.0)]


def test_an_empty_file_of_rows_says_so(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(BadDataset, match="has no rows"):
        find(f"{tmp_path / 'rows.jsonl'}#1")
