"""Training of the need head: against torch, against a minimiser, by seed, and what it makes of sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from toolscout.errors import BadModel
from toolscout.models.need_head import NeedHead
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.need_head import (
    DetectionOptions,
    Examples,
    average_heads,
    calibrate,
    frequent_phrases,
    learn,
    platt,
)

pytestmark = pytest.mark.slow

QUICK = DetectionOptions(hidden=8, epochs=8, batch=64, rate=0.01)


def units(count: int, seed: int, towards: float) -> NDArray[np.float32]:
    """Unit vectors whose first number leans one way."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 12))
    rows[:, 0] += towards
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def examples(seed: int, size: int = 300) -> Examples:
    needed = {"a": units(size, seed, 2), "b": units(size // 10, seed + 1, 2)}
    return Examples(needed, {"c": units(size, seed + 2, -2)})


def test_it_learns_to_tell_them_apart(tmp_path: Path) -> None:
    head, report = learn(examples(0), examples(10), "toy", tmp_path / "work", QUICK)
    assert report.dev["auroc"] > 0.97
    assert report.dev["accuracy"] > 0.9
    assert 1 <= report.epochs <= 8
    assert head.encoder == "toy"
    assert head.probabilities(units(200, 50, 2)).mean() > 0.85 > 0.15 > head.probabilities(units(200, 51, -2)).mean()
    assert not (tmp_path / "work").exists()


def test_the_same_seed_gives_the_same_head(tmp_path: Path) -> None:
    heads = [
        learn(examples(0), examples(10), "toy", tmp_path / "x", replace(QUICK, seed=seed))[0] for seed in (3, 3, 4)
    ]
    assert np.array_equal(heads[0].hidden, heads[1].hidden)
    assert (heads[0].scale, heads[0].shift) == (heads[1].scale, heads[1].shift)
    assert not np.array_equal(heads[0].hidden, heads[2].hidden)


def test_the_served_head_is_what_torch_computes(tmp_path: Path) -> None:
    head, _ = learn(examples(0), examples(10), "toy", tmp_path / "x", QUICK)
    hidden, output = torch.nn.Linear(12, 8), torch.nn.Linear(8, 1)
    with torch.no_grad():
        hidden.weight.copy_(torch.from_numpy(head.hidden))
        hidden.bias.copy_(torch.from_numpy(head.hidden_bias))
        output.weight.copy_(torch.from_numpy(head.output)[None])
        output.bias.fill_(head.output_bias)
        vectors = units(40, 5, 0)
        logits = output(torch.relu(hidden(torch.from_numpy(vectors))))[:, 0]
        wanted = torch.sigmoid(head.scale * logits + head.shift).numpy()
    assert np.allclose(head.probabilities(vectors), wanted, atol=1e-6)


def test_sources_count_by_the_root_of_their_size_and_classes_the_same() -> None:
    made = Examples({"big": units(400, 0, 1), "small": units(100, 1, 1)}, {"one": units(50, 2, -1)})
    weights = made.weights()
    assert weights.mean() == pytest.approx(1)
    assert weights[:500].sum() == pytest.approx(weights[500:].sum())
    assert weights[:400].sum() == pytest.approx(2 * weights[400:500].sum())
    assert made.labels().tolist() == [True] * 500 + [False] * 50
    assert len(made.vectors()) == 550


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_platt_finds_the_likeliest_curve(spread: float) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(2, 4, 500)
    labels = rng.uniform(size=500) < 1 / (1 + np.exp(-(spread * logits - 1)))
    weights = rng.uniform(0.5, 2, 500)
    up, down = labels.sum(), (~labels).sum()
    targets = np.where(labels, (up + 1) / (up + 2), 1 / (down + 2))

    def loss(curve: NDArray[np.float64]) -> float:
        values = curve[0] * logits + curve[1]
        return float(weights @ (np.logaddexp(0, values) - targets * values))

    wanted = minimize(loss, np.array([1.0, 0.0]), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert platt(logits, labels, weights) == pytest.approx(tuple(wanted.x), abs=1e-4)


def test_platt_stays_finite_where_the_classes_are_apart() -> None:
    logits, labels = np.array([-30.0, -20.0, 20.0, 30.0]), np.array([False, False, True, True])
    scale, shift = platt(logits, labels, np.ones(4))
    chances = 1 / (1 + np.exp(-(scale * logits + shift)))
    assert (chances[:2] < 0.4).all()
    assert (chances[2:] > 0.6).all()
    assert 0 < scale < 1


def test_a_head_that_says_the_opposite_is_refused() -> None:
    with pytest.raises(BadModel, match="worse than chance"):
        platt(np.array([1.0, 2.0, -1.0, -2.0]), np.array([False, False, True, True]), np.ones(4))


def test_calibration_repairs_forecasts_that_are_too_sure(tmp_path: Path) -> None:
    head, _ = learn(examples(0), examples(10), "toy", tmp_path / "x", QUICK)
    dev = Examples({"a": units(2000, 20, 0.5)}, {"c": units(2000, 21, -0.5)})
    repaired, scores = calibrate(replace(head, scale=50.0, shift=3.0), dev)
    chances = repaired.probabilities(dev.vectors())
    assert abs(chances.mean() - 0.5) < 0.01
    assert (
        abs(chances[(chances > 0.6) & (chances < 0.8)].mean() - dev.labels()[(chances > 0.6) & (chances < 0.8)].mean())
        < 0.07
    )
    assert scores["brier"] < 0.25


def test_averaged_heads_speak_with_one_voice(tmp_path: Path) -> None:
    heads = [learn(examples(0), examples(10), "toy", tmp_path / "x", replace(QUICK, seed=s))[0] for s in range(3)]
    vectors = units(30, 8, 0)
    each = np.stack([np.log(p / (1 - p)) for p in (head.probabilities(vectors).astype(np.float64) for head in heads)])
    joint = average_heads(heads).probabilities(vectors)
    assert np.allclose(np.log(joint / (1 - joint)), each.mean(axis=0), atol=1e-3)
    with pytest.raises(BadModel, match="same encoder"):
        average_heads([heads[0], replace(heads[1], encoder="other")])
    with pytest.raises(BadModel, match="same encoder"):
        average_heads([])


def test_an_interrupted_training_ends_where_it_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = learn(examples(0), examples(10), "toy", tmp_path / "whole", QUICK)
    written, original = [], Checkpoints.write

    def stopping(self: Checkpoints, state: object, tensors: object) -> None:
        original(self, state, tensors)  # type: ignore[arg-type]
        written.append(1)
        if len(written) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "write", stopping)
    with pytest.raises(KeyboardInterrupt):
        learn(examples(0), examples(10), "toy", tmp_path / "cut", QUICK)
    monkeypatch.undo()
    resumed, _ = learn(examples(0), examples(10), "toy", tmp_path / "cut", QUICK)
    assert np.array_equal(whole.hidden, resumed.hidden)


@pytest.mark.parametrize("empty", [{}, {"a": np.zeros((0, 12), dtype=np.float32)}])
def test_nothing_to_learn_from_is_refused(tmp_path: Path, empty: dict[str, NDArray[np.float32]]) -> None:
    with pytest.raises(BadModel, match="nothing to train on"):
        learn(Examples(empty, examples(0).unneeded), examples(1), "toy", tmp_path)
    with pytest.raises(BadModel, match="nothing to select on"):
        learn(examples(0), Examples(examples(1).needed, empty), "toy", tmp_path)


@pytest.mark.parametrize("wrong", [{"hidden": 0}, {"dropout": 1.0}, {"rate": 0.0}, {"smoothing": -0.1}, {"batch": 0}])
def test_options_that_cannot_be_trained_with(wrong: dict[str, float]) -> None:
    with pytest.raises(BadModel):
        DetectionOptions(**wrong)  # type: ignore[arg-type]


def test_it_is_saved_as_it_is_served(tmp_path: Path) -> None:
    head, _ = learn(examples(0), examples(10), "toy", tmp_path / "x", QUICK)
    head.save(tmp_path / "kept")
    again = NeedHead.load(tmp_path / "kept")
    vectors = units(20, 9, 0)
    assert np.allclose(again.probabilities(vectors), head.probabilities(vectors), atol=1e-6)


def test_words_tell_apart_what_vectors_do_not(tmp_path: Path) -> None:
    def told(seed: int) -> Examples:
        rows = units(120, seed, 0)
        asked, talked = [f"please send {n} mails" for n in range(30)], [f"what is mail {n}?" for n in range(30)]
        return Examples(
            {"a": rows[:30], "b": rows[30:60]},
            {"c": rows[60:90], "d": rows[90:]},
            {"a": asked, "b": asked},
            {"c": talked, "d": talked},
        )

    without, _ = learn(Examples(told(0).needed, told(0).unneeded), told(1), "toy", tmp_path / "x", QUICK)
    assert not without.phrases
    head, report = learn(told(0), told(1), "toy", tmp_path / "x", replace(QUICK, phrases=40))
    assert report.dev["auroc"] > 0.97
    assert head.phrases["please"] > 0 > head.phrases["what"]


def test_phrases_of_one_source_get_no_weight() -> None:
    found = frequent_phrases([["play it", "play that"], ["play this"], ["stop it"]], most=3)
    assert found == ["$", "^", "^ play"]  # in all three sources; then, by how often, those of two
    assert "that" not in frequent_phrases([["play it", "play that"], ["play this"]], most=99)
