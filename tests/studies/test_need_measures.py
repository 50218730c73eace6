"""Is a tool needed: what is tested on what, and the numbers of a forecast."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies import need_measures, report
from studies.need_measures import Collection, Item, NeedTrial, balanced, judged
from tests.evaluation.report_samples import scored, write_rows
from tests.toys import HashedWords
from toolscout.core.tool import Tool
from toolscout.data import metrics
from toolscout.data.dataset import request_digest
from toolscout.errors import BadDataset
from toolscout.evaluation.report import page as methods
from toolscout.evaluation.vector_cache import request_vectors, tool_vectors


def collection(name: str, needs: bool, count: int) -> Collection:
    return Collection(name, needs, (), (), tuple(f"{name} {number}" for number in range(count)))


TOOLS = [collection("a", True, 50), collection("b", True, 10)]
CHAT = [collection("s", False, 12), collection("t", False, 4)]


def test_both_kinds_are_as_many_and_come_evenly_out_of_each_origin() -> None:
    items = balanced(TOOLS, CHAT)
    assert Counter(item.need for item in items) == {True: 16, False: 16}
    assert Counter(item.text[0] for item in items) == {"a": 8, "b": 8, "s": 12, "t": 4}
    assert Counter(item.catalogue for item in items if not item.need) == {"a": 8, "b": 8}
    assert all(item.catalogue == item.text[0] for item in items if item.need)
    assert items == balanced(TOOLS, CHAT)


def test_every_source_that_is_large_enough_and_every_dataset_is_left_out_once() -> None:
    big = [collection("big", False, need_measures.ENOUGH), *CHAT, collection(need_measures.TOOLDET, False, 20)]
    found = list(need_measures.trials(TOOLS, big))
    assert [trial.left_out for trial in found if trial.part == "left out"] == ["big", "a", "b"]
    for trial in found:
        names = {item.text.split()[0] for item in trial.items}
        if trial.part == "tooldet":
            assert names == {trial.dataset, need_measures.TOOLDET}
        elif trial.part in ("left out", "pooled"):
            assert need_measures.TOOLDET not in names
        if trial.left_out == "big":
            assert names == {"a", "b", "big"}
        if trial.left_out == "a":
            assert names == {"a", "big", "s", "t"}
    assert [trial.part for trial in found][-3:] == ["bundled", "pairs", "pooled"]
    assert len({(trial.dataset, trial.split, trial.digest()) for trial in found}) == len(found)


def test_numbers_by_hand() -> None:
    items = [Item(f"x{n}", n < 3, "", f"x{n}") for n in range(5)]
    chances = [0.9, 0.6, 0.3, 0.4, 0.1]
    found = judged(NeedTrial("pooled", "d", "s", tuple(items)), chances, served=0.35)
    truth = [True] * 3 + [False] * 2
    assert found.metrics["need_auroc"] == pytest.approx(5 / 6, abs=1e-6)
    assert found.metrics["need_accuracy"] == 0.8
    assert found.metrics["need_f1"] == pytest.approx(metrics.f1(truth, chances), abs=1e-6)
    assert found.metrics["need_brier"] == pytest.approx((0.01 + 0.16 + 0.49 + 0.16 + 0.01) / 5, abs=1e-6)
    assert found.metrics["need_let_through"] == pytest.approx(2 / 3, abs=1e-6)
    assert found.metrics["need_turned_away"] == 0.5
    for name, (low, high) in found.intervals.items():
        assert low <= found.metrics[name] <= high
    with pytest.raises(BadDataset, match="one kind"):
        judged(NeedTrial("pooled", "d", "s", tuple(items[:3])), chances[:3])


def test_pairs_are_judged_as_pairs() -> None:
    items = [Item(f"{pair}{kind}", kind == "a", "", pair) for pair in "pqr" for kind in "ab"]
    # p: both right; q: in order, but one is wrong; r: a tie, which is half in order.
    found = judged(NeedTrial("pairs", "d", "s", tuple(items)), [0.9, 0.1, 0.8, 0.6, 0.7, 0.7]).metrics
    assert found["need_pair_accuracy"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["need_pair_auroc"] == pytest.approx(2.5 / 3, abs=1e-6)
    assert found["need_accuracy"] == pytest.approx(4 / 6, abs=1e-6)


def test_what_a_model_has_seen_goes_and_of_a_pair_both_go() -> None:
    trial = need_measures.pairs_trial()
    seen = {request_digest(trial.items[0].text.upper())}
    assert len(trial.without(seen).items) == 198
    assert trial.without({"other"}) is trial


def test_a_sample_has_as_many_of_both_kinds() -> None:
    trial = NeedTrial("pooled", "d", "s", balanced(TOOLS, CHAT))
    known = {request_digest(item.text) for item in trial.items if not item.need or item.text.startswith("b")}
    assert Counter(item.need for item in trial.among(known).items) == {True: 8, False: 8}
    assert trial.among({request_digest(item.text) for item in trial.items}) is trial


def test_the_bundled_benchmark_needs_tools_also_where_nothing_fits() -> None:
    items = need_measures.bundled_trial().items
    assert len(items) == 216
    assert sum(item.need for item in items) > 156


def test_nothing_that_is_tested_is_trained_on(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_DATA", str(shared_data))
    found = need_measures.tool_collections(["ultratool", "sealtools"]) + need_measures.prompt_collections(
        shared_data / need_measures.PROMPTS
    )
    tested = {request_digest(text) for one in found for text in one.test}
    assert {one.name for one in found if not one.need and len(one.test) >= need_measures.ENOUGH} == {
        "GPTeacher_roleplay", "TopicalChat_opening", "clinc150_oos", "hh_harmless_test", "mt_bench_101",
        need_measures.TOOLDET,
    }  # fmt: skip
    for one in found:
        assert not tested & {request_digest(text) for text in (*one.train, *one.dev)}
        assert not set(one.train) & set(one.dev)
        assert one.name == need_measures.TOOLDET or one.train
        assert len(one.train) <= need_measures.MOST_TRAIN
        assert len(one.dev) <= need_measures.MOST_DEV


def test_vectors_are_encoded_once_and_stay_the_same(tmp_path: Path) -> None:
    class Counting(HashedWords):
        asked = 0

        def encode(self, texts: Any) -> Any:
            type(self).asked += len(texts)
            return super().encode(texts)

    encoder = Counting()
    texts = ["one two", "three", "one two"]
    first = request_vectors(texts, encoder, tmp_path / "v.db")
    assert np.array_equal(first, request_vectors(texts, encoder, tmp_path / "v.db"))
    assert Counting.asked == 2
    assert np.allclose(first, HashedWords().encode(texts), atol=1e-3)
    tools = [Tool("a", "one", "two"), Tool("b", "three", "four")]
    rows = tool_vectors(tools, encoder, tmp_path / "v.db")
    assert np.array_equal(rows, tool_vectors(tools, encoder, tmp_path / "v.db"))
    assert np.allclose(rows[1], encoder.encode_request(tools[1].document()), atol=1e-3)


def need_row(part: str, value: float, **changes: Any) -> dict[str, Any]:
    options = {"need": part, "left_out": changes.pop("left_out", "")}
    named = dict.fromkeys(("need_auroc", "need_f1", "need_accuracy", "need_brier", "need_ece"), value)
    made = {"retriever": "need-head", "variant": "trained-on-the-rest", "metrics": named, "options": options}
    return scored() | made | {"intervals": {"need_auroc": [value - 0.1, value]}} | changes


def test_the_page_has_the_headline_first_and_the_pooled_figure_last(tmp_path: Path) -> None:
    rows = [
        need_row("pooled", 0.999, dataset="all", split="test+no_tool.test", variant="trained-on-all"),
        need_row("left out", 0.8, left_out="clinc", dataset="all", split="test+no_tool.test.clinc"),
        need_row("left out", 0.6, left_out="toollens", dataset="toollens", split="test+no_tool.test"),
        need_row(
            "left out", 0.5, left_out="toollens", dataset="toollens", split="test+no_tool.test", variant="shipped"
        ),
        scored(),
    ]
    write_rows(tmp_path, *rows)
    page = report.make(tmp_path, with_plots=False).texts[report.PAGE]
    others = methods.make(tmp_path, with_plots=False).texts[methods.PAGE]
    assert page.index("Is a tool needed?") < page.index("one by one") < page.index("for comparison only")
    assert "## mine" in others
    assert "Is a tool needed?" not in others
    assert "| head, trained without it | 2 of 2 | 70.00 | 60.00 |" in page
    assert "| head, trained without it | 1 of 2 | 60.00 | 60.00 |" in page
    assert "| head, as it comes with the package | 1 of 2 | 50.00 | 50.00 |" in page
    assert "| clinc | head, trained without it | 10 | 80.00 | 70.00–80.00 |" in page
    assert "## all" not in others
    assert "## toollens" not in others


def test_a_page_without_such_rows_has_no_such_section(tmp_path: Path) -> None:
    write_rows(tmp_path, scored())
    assert "Is a tool needed?" not in report.make(tmp_path, with_plots=False).texts[report.PAGE]


def test_pairs_are_read_as_they_lie(tmp_path: Path) -> None:
    row = {"id": "1a", "pair": "1", "text": "wake me", "need": True, "domain": "alarms"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    assert need_measures.pairs_trial(tmp_path / "pairs.jsonl").items == (
        Item("wake me", True, need_measures.BUNDLED, "1"),
    )
