"""The need head as it is served: its arithmetic, its file, and what is wrong with a broken one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from toolscout.errors import BadModel
from toolscout.models.need_head import NEED_FILE, NeedHead
from toolscout.models.phrases import phrases

HEAD = NeedHead(
    hidden=np.array([[1, 0, 0], [0, 2, 0]], dtype=np.float32),
    hidden_bias=np.array([0.5, -1], dtype=np.float32),
    output=np.array([1, -1], dtype=np.float32),
    output_bias=0.25,
    scale=2.0,
    shift=-0.5,
    encoder="toy",
)


def test_its_forecast_by_hand() -> None:
    vectors = np.array([[1, 1, 1], [-1, 0, 0]], dtype=np.float32)
    assert HEAD.states(vectors).tolist() == [[1.5, 1.0], [0.0, 0.0]]
    logits = [2 * (1.5 - 1.0 + 0.25) - 0.5, 2 * 0.25 - 0.5]
    assert HEAD.probabilities(vectors).tolist() == pytest.approx([1 / (1 + math.exp(-logit)) for logit in logits])


def test_words_and_pairs_of_words_add_their_weights() -> None:
    assert phrases("Play 3 songs!") == {
        *("^", "play", "0", "songs", "!", "$"),
        *("^ play", "play 0", "0 songs", "songs !", "! $"),
    }
    worded = replace(HEAD, phrases={"^ play": 1.5, "why": -2.0})
    vectors = np.zeros((3, 3), dtype=np.float32)
    said = worded.logits(vectors, ["play it again", "why play, why?", "hm"])
    assert (said - HEAD.logits(vectors)).tolist() == [1.5, -2.0, 0.0]  # each counts once
    with pytest.raises(ValueError, match="reads the requests"):
        worded.probabilities(vectors)


def test_a_head_that_is_very_sure_does_not_overflow() -> None:
    sure = replace(HEAD, scale=1e4)
    assert sure.probabilities(np.array([[1, 0, 0], [0, 9, 0]], dtype=np.float32)).tolist() == [1.0, 0.0]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    worded = replace(HEAD, phrases={"^ play": 1.5, "' ein": -2.0})
    worded.save(tmp_path / "new" / "folder")
    again = NeedHead.load(tmp_path / "new" / "folder")
    assert again.phrases == worded.phrases
    for name in ("hidden", "hidden_bias", "output"):
        assert np.array_equal(getattr(again, name), getattr(HEAD, name))
    assert (again.output_bias, again.scale, again.shift, again.encoder) == (0.25, 2.0, -0.5, "toy")


def test_a_broken_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="cannot be read"):
        NeedHead.load(tmp_path)
    (tmp_path / NEED_FILE).write_bytes(b"not an archive")
    with pytest.raises(BadModel, match=r"need\.npz cannot be read .* train it again"):
        NeedHead.load(tmp_path)
    HEAD.save(tmp_path)
    half = (tmp_path / NEED_FILE).read_bytes()
    (tmp_path / NEED_FILE).write_bytes(half[: len(half) // 2])
    with pytest.raises(BadModel, match="cannot be read"):
        NeedHead.load(tmp_path)
    np.savez(tmp_path / NEED_FILE, hidden=HEAD.hidden)
    with pytest.raises(BadModel, match="cannot be read"):
        NeedHead.load(tmp_path)


def test_shapes_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    NeedHead(HEAD.hidden, HEAD.hidden_bias, np.ones(3, dtype=np.float32), 0.0, 1.0, 0.0, "toy").save(tmp_path)
    with pytest.raises(BadModel, match="shapes"):
        NeedHead.load(tmp_path)
