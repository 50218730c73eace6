"""studies/need.py in miniature: what is left out is left out, and every forecast becomes a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch")

from studies import need as run
from studies import need_llm
from studies import need_measures as need
from studies.need_measures import Collection, Item
from studies.need_report import is_need
from tests.toys import HashedWords
from toolscout.data.dataset import request_digest
from toolscout.evaluation.report.rows import merge_seeds
from toolscout.training import need_head
from toolscout.training.need_head import DetectionOptions

pytestmark = pytest.mark.slow


def texts(name: str, verb: str, part: str, count: int) -> tuple[str, ...]:
    return tuple(f"{verb} {name} {part}{number}" for number in range(count))


def collection(name: str, needs: bool) -> Collection:
    verb = "fetch my" if needs else "poem about"
    return Collection(
        name, needs, *(texts(name, verb, part, count) for part, count in (("x", 40), ("d", 12), ("t", 30)))
    )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> run.Bench:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    tools, prompts = [collection(n, True) for n in "ab"], [collection(n, False) for n in ("s", "t", "u")]
    answers = {request_digest(text): float(one.need) for one in tools + prompts for text in one.dev + one.test[:7]}
    encoder = HashedWords()
    options = DetectionOptions(hidden=8, epochs=4, batch=32, patience=0)
    made = run.Bench(cast(Any, encoder), tools, prompts, answers=answers, options=options)
    for name in "ab":
        made.catalogues[name] = encoder.encode([f"fetch {name}", f"my {name}"])
    return made


@pytest.fixture
def trials(bench: run.Bench, monkeypatch: pytest.MonkeyPatch) -> list[need.NeedTrial]:
    monkeypatch.setattr(need, "ENOUGH", 20)
    return [trial for trial in need.trials(bench.tools, bench.prompts) if trial.part in ("left out", "pooled")]


def test_what_is_left_out_is_neither_trained_nor_selected_on(
    bench: run.Bench, trials: list[need.NeedTrial], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[set[str], set[str]]] = []
    real = need_head.learn

    def learn(train: need_head.Examples, dev: need_head.Examples, *rest: Any) -> Any:
        seen.append(({*train.needed, *train.unneeded}, {*dev.needed, *dev.unneeded}))
        return real(train, dev, *rest)

    monkeypatch.setattr(need_head, "learn", learn)
    assert [trial.left_out for trial in trials] == ["s", "t", "u", "a", "b", ""]
    for trial in (trials[0], trials[3], trials[5]):
        told = [*run.trained(bench, trial), *run.cosine(bench, trial), *run.answers(bench, trial)]
        everything = {"a", "b", "s", "t", "u"} - {trial.left_out}
        assert seen.pop() == (everything, everything)
        assert not seen
        assert {item.text.split()[2] for item in bench.dev_items(trial.left_out)} == everything
        rows = [run.row_of(one, trial, "f", "python studies/need.py").to_dict() for one in told]
        assert [row["retriever"] for row in rows] == [run.HEAD, run.COSINE, run.MODEL]
        assert rows[0]["variant"] == (run.REST if trial.left_out else run.ALL)
        assert rows[0]["metrics"]["need_auroc"] > 0.9
        assert rows[0]["requests"] == rows[1]["requests"] == len(trial.items)
        assert rows[2]["requests"] <= len(trial.items)  # a sample
        assert rows[2]["metrics"]["need_accuracy"] == 1
        assert [run.method_of(row) for row in rows] == ["trained", "cosine", "llm"]
        assert all(map(is_need, merge_seeds(rows)))


def test_a_head_is_trained_once_for_all_trials_and_seeds_join_in_one_line(
    bench: run.Bench, trials: list[need.NeedTrial]
) -> None:
    bench.seeds = (0, 1)
    rows = [run.row_of(one, trials[5], "f", "c").to_dict() for one in run.trained(bench, trials[5])]
    assert set(bench.heads) == {("", 0), ("", 1)}
    line = merge_seeds(rows)[0]
    assert len(line.rows) == 2
    list(run.trained(bench, trials[5]))
    assert len(bench.heads) == 2
    assert {run.method_of(row) for row in rows} == {"trained"}
    assert list(run.shipped(bench, trials[5])) == []  # this encoder has no head beside it


def test_values_become_probabilities_with_one_half_between_the_kinds() -> None:
    items = [Item(f"{n}", n >= 50, "", f"{n}") for n in range(60)]
    values = np.array([0.2 + 0.002 * n if n < 50 else 0.5 + 0.01 * (n - 50) for n in range(60)])
    chances, half = run.calibrated(values, items, np.array([0.0, half_way := 0.4, 1.0]))
    assert chances[0] < 0.05
    assert chances[2] > 0.95
    assert half == pytest.approx(half_way, abs=0.06)


def test_where_no_curve_fits_the_best_place_is_taken() -> None:
    items = [Item(f"{n}", need, "", f"{n}") for n, need in enumerate([True, False, False, True, True])]
    assert run.best_place(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), items) == 0.4


def test_answers_of_the_language_model_are_read_by_text(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    assert need_llm.read(path) == {}
    path.write_text(f'{{"digest": "{request_digest("Hello  you")}", "logit": -1.5}}\n')
    assert need_llm.read(path)[request_digest("hello you")] == -1.5
