"""The recipe of the verdict model, on rows that the test makes: the fit, its bounds, levels, measures and files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recipes import verdict, verdict_data, verdict_fit
from recipes.verdict_data import NO_TOOL, NOTHING_FITS, USE, Catalogues, LabelledSet, Rows
from toolscout.core.tool import Tool
from toolscout.data import metrics
from toolscout.models.encoders.onnx_encoder import Encoder, default_folder
from toolscout.models.rerankers.base import Reranker
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.verdict import ANY_SIGN, FEATURES, LEVELS, Evidence, VerdictModel


def made(count: int = 600, seed: int = 0, shift: float = 0.0) -> Rows:
    """Requests of which need and fit tell the kind, with noise."""
    random, rows = np.random.default_rng(seed), Rows()
    for at in range(count):
        kind, size = (USE, USE, NOTHING_FITS, NO_TOOL)[at % 4], at % 3
        need = 1 / (1 + np.exp(-random.normal(-2 if kind == NO_TOOL else 2, 1.5)))
        fit = random.normal(1.5 if kind == USE else -1.5, 1.2) + shift
        tools = (5, 100, 2_000)[size]
        rows.add(Evidence(float(need), float(fit), 0.5, 1.0, 0.2, tools), kind, size, "bundled")
    return rows


def test_the_fit_tells_the_kinds_apart_and_keeps_its_bounds() -> None:
    table = verdict_fit.joined({"bundled": made(), "clinc150": made(seed=1)})
    parts = verdict_fit.fitted(table)
    for part in parts:
        assert all(value >= 0 or name in ANY_SIGN for name, value in zip(FEATURES, part.values, strict=True))
    said = verdict_fit.Predictions.by(parts, table)
    found = verdict_fit.measured(said, table, verdict.levels_of(said, table))
    assert found["use_auroc"] > 0.9
    assert found["use_ece"] < 0.06
    for level, share in zip(LEVELS, (0.97, 0.92, 0.85), strict=True):
        assert found[f"{level}_recall"] == pytest.approx(share, abs=0.03)
    precisions = [found[f"{level}_precision"] for level in LEVELS]
    assert precisions == sorted(precisions)


def test_where_need_is_not_known_fit_alone_decides() -> None:
    rows = made()
    rows.evidence = [replace(one, need=None) if at % 5 == 0 else one for at, one in enumerate(rows.evidence)]
    table = verdict_fit.joined({"bundled": rows})
    said = verdict_fit.Predictions.by(verdict_fit.fitted(table), table)
    assert (said.use[~table.known] == said.fit[~table.known]).all()
    assert (said.use[table.known] < said.fit[table.known]).all()
    levels = verdict.levels_of(said, table)
    assert all(levels[level].alone > levels[level].use for level in LEVELS)


def test_a_term_that_speaks_against_the_truth_gets_no_weight() -> None:
    random = np.random.default_rng(0)
    truth = random.random(400) < 0.5
    found = np.zeros((400, len(FEATURES)))
    found[:, 0], found[:, 3], found[:, 5] = 1, truth + random.normal(0, 1, 400), -1.0 * truth
    bounds = np.array([name not in ANY_SIGN for name in FEATURES])
    no = np.zeros(len(FEATURES), dtype=bool)
    value = verdict_fit.logistic_regression(found, truth, np.ones(400), bounds, no, ~no)
    assert value[3] > 0
    assert value[5] == 0


def test_levels_answer_their_share_of_people_too() -> None:
    table = verdict_fit.joined({"bundled": made(shift=-1.5), "clinc150": made(seed=1, shift=1.5)})
    said = verdict_fit.Predictions.by(verdict_fit.fitted(table), table)
    thresholds = verdict.levels_of(said, table)
    people = np.array([name == "bundled" for name in table.sets]) & (table.size == verdict_data.WHOLE)
    served = people & (table.kind == USE)
    for level, share in zip(LEVELS, (0.97, 0.92, 0.85), strict=True):
        assert (said.use[served] >= thresholds[level].use - 1e-4).mean() >= share - 0.02


def test_a_set_is_measured_by_a_model_that_never_saw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    fitted = verdict_fit.fitted

    def watched(table: verdict_fit.Table) -> object:
        seen.append(set(table.sets))
        return fitted(table)

    monkeypatch.setattr(verdict_fit, "fitted", watched)
    rows = {name: made(240, seed) for seed, name in enumerate(("bundled", "toollens", "toolbench-g3", "hwu64"))}
    trials = verdict.left_out(rows)
    assert list(trials) == list(rows)
    assert seen == [
        {"toollens", "toolbench-g3", "hwu64"},
        {"bundled", "hwu64"},
        {"bundled", "hwu64"},
        {"bundled", "toollens", "toolbench-g3"},
    ]
    found = list(verdict.measures(trials, "dev", verdict.LEFT_OUT))
    assert [one.dataset for one in found[4:6]] == [verdict.MEAN, verdict.POOLED]
    model = VerdictModel(*fitted(verdict_fit.joined(rows)), verdict.levels_of(*_said(rows)), "toy")
    record = verdict.row_of(found[0], model, "python -m recipes.verdict")
    assert record["study"] == {"name": "verdict", "part": verdict.LEFT_OUT}
    assert record["encoder"] == "toy"


def _said(rows: dict[str, Rows]) -> tuple[verdict_fit.Predictions, verdict_fit.Table]:
    table = verdict_fit.joined(rows)
    return verdict_fit.Predictions.by(verdict_fit.fitted(table), table), table


def test_the_weighted_auroc_is_the_plain_one_where_all_weigh_the_same() -> None:
    random = np.random.default_rng(0)
    chance, truth = np.round(random.random(300), 1), random.random(300) < 0.4
    assert verdict_fit.auroc(chance, truth, np.ones(300)) == pytest.approx(metrics.auroc(truth, chance))
    assert np.isnan(verdict_fit.auroc(chance, np.ones(300, dtype=bool), np.ones(300)))


def test_rows_are_kept_in_a_file(tmp_path: Path) -> None:
    rows = made(20)
    rows.add(Evidence(None, 0.5, 0, 0, 0, 3, 1.5), NO_TOOL, 0, "own")
    rows.add(None, USE, 0, "own")
    verdict_data.save(tmp_path / "rows.npz", rows)
    assert verdict_data.load(tmp_path / "rows.npz") == rows


class Likes(Reranker):
    """A reranker that prefers one document."""

    name, fingerprint, parameters = "likes", "likes", 0

    def __init__(self, word: str) -> None:
        self._word = word

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        return [3.0 if self._word in one else -2.0 for one in documents]


def test_with_a_reranker_every_question_gives_a_row_with_its_score_and_one_without() -> None:
    tools = [Tool("shop", f"get_{one}", f"Returns the {one} of an order.") for one in ("price", "weight", "colour")]
    source = LabelledSet("toy", "dev", tools, [], [])
    catalogues = Catalogues(source, Encoder.load(default_folder()), None, FitOptions(), Likes("colour"))
    asked = "what does it weigh?"
    catalogues.encode([asked])
    catalogues.put(range(3), [(asked, USE, "toy", frozenset())], verdict_data.SMALL)
    alone, reranked = catalogues.rows.evidence
    assert (alone.reranked, reranked.reranked) == (None, 3.0)
    assert (alone.fit, alone.tools) == (reranked.fit, reranked.tools)
    assert catalogues.rows.kind == [USE, USE]


def test_a_reranker_that_tells_the_kinds_apart_gets_a_weight_and_rows_of_its_own() -> None:
    rows, random = made(), np.random.default_rng(3)
    for at, one in enumerate(list(rows.evidence)):
        score = random.normal(3 if rows.kind[at] == USE else -3, 1)
        rows.add(replace(one, reranked=float(score)), rows.kind[at], rows.size[at], rows.source[at])
    table = verdict_fit.joined({"bundled": rows})
    parts = verdict_fit.fitted(table)
    assert parts[1].values[FEATURES.index("reranked")] > 0.5
    said = verdict_fit.Predictions.by(parts, table)
    trials = {"bundled": verdict.Trial(said, table, verdict.levels_of(said, table))}
    found = {
        more: next(iter(verdict.measures(some, "dev", "x"))) for more, some in verdict.searched_and_reranked(trials)
    }
    assert [one.requests for one in found.values()] == [600, 600]
    assert found[verdict.RERANKED].metrics["fit_auroc"] > found[""].metrics["fit_auroc"]


def test_every_set_has_talk_that_is_left_out_with_it() -> None:
    assert all(verdict_data.TALK_OF.values())
    assert verdict_data.is_kin("toollens", "toolbench")
    assert not verdict_data.is_kin("toollens", "tldr")
