"""Measures against hand-worked cases, against ranx, and against brute force."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolscout.data.dataset import Dataset
from toolscout.data.metrics import (
    OF_SETS,
    accuracy,
    auroc,
    brier,
    ece,
    evaluate,
    exact_set,
    f1,
    measure,
    returned,
    scores,
    set_precision,
    set_recall,
)
from toolscout.errors import BadDataset, BadRequest

SECOND, THIRD = 1 / math.log2(3), 1 / math.log2(4)


@pytest.mark.parametrize(
    ("name", "ranking", "gold", "expected"),
    [
        ("recall@1", "ab", "ab", 0.5),
        ("recall@2", "ab", "ab", 1.0),
        ("recall@3", "xay", "abcd", 0.25),
        ("precision@3", "xay", "abcd", 1 / 3),
        ("precision@3", "a", "abcd", 1 / 3),
        ("hit@2", "xay", "abcd", 1.0),
        ("hit@1", "xay", "abcd", 0.0),
        ("comp@2", "axb", "ab", 0.0),
        ("comp@3", "axb", "ab", 1.0),
        ("mrr", "xxxa", "ab", 0.25),
        ("mrr@3", "xxxa", "ab", 0.0),
        ("mrr@4", "xxxa", "ab", 0.25),
        ("ndcg@1", "a", "ab", 1.0),
        ("ndcg@5", "a", "ab", 1 / (1 + SECOND)),
        ("ndcg@5", "xba", "ab", (SECOND + THIRD) / (1 + SECOND)),
        ("ndcg@2", "xba", "ab", SECOND / (1 + SECOND)),
        ("ndcg@2", "ab", "abcd", 1.0),
        ("toolgen_ndcg@5", "axyz", "abc", 1.0),
        ("toolgen_ndcg@1", "xa", "a", 0.0),
        ("toolgen_ndcg@3", "axxb", "ab", 1 / (1 + SECOND)),
        ("toolgen_ndcg@3", "xxxxxa", "ab", 0.0),
        ("toolgen_ndcg@3", "axxxxb", "ab", 1.0),
        ("recall@3", "aaa", "ab", 0.5),
        ("recall@3", "abc", "aab", 1.0),
        ("comp@3", "aaa", "ab", 0.0),
        ("ndcg@3", "aab", "ab", (1 + THIRD) / (1 + SECOND)),
    ],
)
def test_hand_worked_cases(name: str, ranking: str, gold: str, expected: float) -> None:
    assert measure(name)(list(ranking), list(gold)) == pytest.approx(expected, abs=1e-12)


def test_a_failed_request_scores_nothing_and_is_not_skipped() -> None:
    names = ["recall@5", "ndcg@5", "comp@5", "mrr", "hit@5", "precision@5", "toolgen_ndcg@5"]
    found = evaluate([["a"], None, []], [("a",), ("a",), ("a",)], names)
    assert found == pytest.approx(dict.fromkeys(names, 1 / 3) | {"precision@5": 1 / 15})


def test_new_and_known_recall_leave_out_requests_without_such_gold() -> None:
    rankings, golds, new = [["n", "k"], ["k"], ["x"], None], ["nk", "k", "nm", "n"], {"n", "m"}
    names = ["new_recall@1", "new_recall@2", "known_recall@1", "known_recall@2"]
    each = scores(rankings, golds, names, new)
    assert each["new_recall@2"] == pytest.approx([1.0, math.nan, 0.0, 0.0], nan_ok=True)
    assert each["known_recall@1"] == pytest.approx([0.0, 1.0, math.nan, math.nan], nan_ok=True)
    means = evaluate(rankings, golds, names, new)
    assert means == pytest.approx(dict(zip(names, [1 / 3, 1 / 3, 1 / 2, 1.0], strict=True)))
    assert evaluate([["k"]], ["k"], names, new) == {"known_recall@1": 1.0, "known_recall@2": 1.0}
    json.dumps(evaluate([["k"]], ["k"], names, new), allow_nan=False)


def test_measures_are_values() -> None:
    assert measure("recall@5") == measure("recall@5") != measure("recall@3")
    assert [str(measure(name)) for name in ("mrr", "toolgen_ndcg@10")] == ["mrr", "toolgen_ndcg@10"]


@pytest.mark.parametrize(
    "name", ["", "recall", "recall@", "recall@0", "recall@-1", "Recall@5", "map@5", "ndcg@5 ", "mrr@"]
)
def test_an_unknown_measure_lists_the_known(name: str) -> None:
    with pytest.raises(BadRequest, match=r"unknown measure .*recall@k, ndcg@k, comp@k"):
        measure(name)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(BadDataset, match="without gold"):
        evaluate([["a"]], [()], ["recall@1"])
    with pytest.raises(BadDataset, match="1 rankings for 2 requests"):
        evaluate([["a"]], [("a",), ("b",)], ["recall@1"])
    with pytest.raises(BadDataset, match="no requests"):
        evaluate([], [], ["recall@1"])
    with pytest.raises(BadRequest, match="new_recall@1 needs"):
        evaluate([["a"]], [("a",)], ["new_recall@1"])


RANX = """
import json, sys
from ranx import Qrels, Run, evaluate
golds, rankings, names = json.load(sys.stdin)
qrels = Qrels({str(i): dict.fromkeys(gold, 1) for i, gold in enumerate(golds)})
run = Run({str(i): {tool: 1 / rank for rank, tool in enumerate(tools, 1)} for i, tools in enumerate(rankings)})
json.dump({name: float(value) for name, value in evaluate(qrels, run, names).items()}, sys.stdout)
"""


@pytest.mark.slow
def test_agrees_with_ranx() -> None:
    random = np.random.default_rng(5)
    tools = [f"t{i:02}" for i in range(30)]
    golds = [random.choice(tools, size=random.integers(1, 8), replace=False).tolist() for _ in range(60)]
    rankings = [random.permutation(tools)[: random.integers(1, 25)].tolist() for _ in golds]
    kinds = {"recall": "recall", "ndcg": "ndcg", "mrr": "mrr", "precision": "precision", "hit": "hit_rate"}
    names = {f"{ours}@{k}": f"{theirs}@{k}" for ours, theirs in kinds.items() for k in (1, 3, 10)} | {"mrr": "mrr"}
    # ranx compiles itself for a minute; in a process of its own that can be turned off.
    done = subprocess.run(
        [sys.executable, "-c", RANX],
        input=json.dumps([golds, rankings, list(names.values())]),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = json.loads(done.stdout)
    found = evaluate(rankings, golds, list(names))
    assert found == pytest.approx({ours: expected[theirs] for ours, theirs in names.items()}, abs=1e-9)


def test_published_statements_about_ndcg_hold(shared_data: Path) -> None:
    """One gold tool at rank 1 and nothing else: 1.0 by ToolGen's rule, about half by the true one on G3's tool sets."""
    golds = Dataset.load(shared_data / "toolbench-g3", splits=["train"]).split("train").gold
    found = evaluate([gold[:1] for gold in golds], golds, ["toolgen_ndcg@5", "ndcg@5", "ndcg@1", "toolgen_ndcg@1"])
    assert found["toolgen_ndcg@5"] == found["toolgen_ndcg@1"] == found["ndcg@1"] == 1.0
    assert found["ndcg@5"] == pytest.approx(0.52, abs=0.01)


ids = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(ids, ids.filter(bool), st.integers(1, 10))
def test_measures_keep_their_order(ranking: list[str], gold: list[str], k: int) -> None:
    found = evaluate(
        [ranking], [gold], [f"{kind}@{k}" for kind in ("comp", "recall", "hit", "ndcg", "mrr", "toolgen_ndcg")]
    )
    assert all(0 <= value <= 1 for value in found.values())
    assert found[f"comp@{k}"] <= found[f"recall@{k}"] <= found[f"hit@{k}"]
    assert found[f"mrr@{k}"] <= found[f"hit@{k}"]
    assert found[f"ndcg@{k}"] <= found[f"toolgen_ndcg@{k}"] + 1e-12
    flags = [tool in gold for tool in ranking[:k]]
    assert found[f"recall@{k}"] == sum(flags) / len(gold)


forecasts = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])), min_size=1, max_size=40
)


@settings(deadline=None)
@given(forecasts)
def test_forecast_measures_agree_with_brute_force(forecasts: Sequence[tuple[bool, float]]) -> None:
    labels, values = [yes for yes, _ in forecasts], [value for _, value in forecasts]
    yes = [value for label, value in forecasts if label]
    no = [value for label, value in forecasts if not label]
    if yes and no:
        wins = sum((a > b) + (a == b) / 2 for a in yes for b in no)
        assert auroc(labels, values) == pytest.approx(wins / (len(yes) * len(no)))
    assert brier(labels, values) == pytest.approx(
        sum((value - label) ** 2 for label, value in forecasts) / len(forecasts)
    )
    right = sum((value >= 0.5) == label for label, value in forecasts)
    assert accuracy(labels, values) == pytest.approx(right / len(forecasts))
    true_yes = sum(label and value >= 0.5 for label, value in forecasts)
    said = sum(value >= 0.5 for value in values)
    p, r = (true_yes / said if said else 0), (true_yes / len(yes) if yes else 0)
    assert f1(labels, values) == pytest.approx(2 * p * r / (p + r) if p + r else 0)
    total = 0.0
    for low in range(10):
        held = [
            (label, value) for label, value in forecasts if low <= value * 10 < low + 1 or (low == 9 and value == 1)
        ]
        if held:
            gap = sum(label for label, _ in held) / len(held) - sum(value for _, value in held) / len(held)
            total += abs(gap) * len(held) / len(forecasts)
    assert ece(labels, values) == pytest.approx(total)


def test_hand_worked_forecasts() -> None:
    labels, values = [1, 1, 0, 0], [0.9, 0.4, 0.6, 0.1]
    assert auroc(labels, values) == 0.75
    assert brier(labels, values) == pytest.approx((0.01 + 0.36 + 0.36 + 0.01) / 4)
    assert ece(labels, values) == pytest.approx((0.1 + 0.6 + 0.6 + 0.1) / 4)
    assert ece(labels, values, bins=1) == pytest.approx(0.0)
    assert (accuracy(labels, values), f1(labels, values), f1(labels, values, 0.3)) == (0.5, 0.5, 0.8)
    assert f1([0, 0], [0.1, 0.2]) == 0.0


def test_forecasts_that_cannot_be_measured_are_refused() -> None:
    with pytest.raises(BadDataset, match="both kinds"):
        auroc([1, 1], [0.1, 0.2])
    with pytest.raises(BadDataset, match="as many values as labels"):
        f1([1], [0.1, 0.2])
    with pytest.raises(BadDataset, match="at least one"):
        accuracy([], [])
    with pytest.raises(BadDataset, match="from 0 to 1"):
        brier([1], [1.5])
    with pytest.raises(BadDataset, match="must be a number"):
        auroc([1, 0], [math.nan, 0.5])


TOOLS = st.lists(st.sampled_from("abcdefg"), max_size=9)


@given(tools=st.none() | TOOLS, gold=st.sets(st.sampled_from("abcdefg"), min_size=1))
def test_measures_of_sets_by_counting_tool_by_tool(tools: list[str] | None, gold: set[str]) -> None:
    found = {name: of(tools, gold) for name, of in OF_SETS.items()}
    came = [tool for tool in "abcdefg" if tool in (tools or [])]
    both = sum(tool in gold for tool in came)
    assert found["returned"] == len(came)
    assert found["set_recall"] == both / len(gold)
    assert found["set_precision"] == (both / len(came) if came else 0)
    assert found["exact_set"] == (came == sorted(gold))


def test_hand_worked_sets() -> None:
    cases = {("a", "b"): (1, 1, 1, 2), ("b", "a", "a"): (1, 1, 1, 2), ("a", "c", "d"): (0, 1 / 2, 1 / 3, 3)}
    for tools, expected in cases.items():
        measured = (exact_set, set_recall, set_precision, returned)
        assert tuple(of(tools, ("a", "b")) for of in measured) == expected
    assert [of(None, ("a",)) for of in OF_SETS.values()] == [of((), ("a",)) for of in OF_SETS.values()] == [0] * 4
