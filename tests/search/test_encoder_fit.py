"""The need head and the catalogue fit of any encoder, fitted from the texts that ship."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.toys import HashedWords
from toolscout.core.arrays import Floats
from toolscout.data.dataset import request_digest
from toolscout.data.locate import find_dataset
from toolscout.errors import BadModel
from toolscout.search import encoder_fit
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.tool_need import open_head


class Constant(HashedWords):
    """An encoder that gives every text the same vector."""

    fingerprint = "constant"

    def encode_request(self, text: str) -> Floats:
        return np.eye(1, self.dimension, dtype=np.float32)[0]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path))


def test_an_encoder_is_fitted_from_texts_and_what_is_fitted_is_found_again(tmp_path: Path) -> None:
    encoder = HashedWords()
    assert not encoder_fit.is_fitted(encoder)
    assert open_head(encoder) is None
    assert encoder_fit.fit_options_of(encoder) == FitOptions()
    steps: list[tuple[str, int, int]] = []
    report = encoder_fit.fit(encoder, lambda *step: steps.append(step))
    assert report.need_passed >= 0.95
    assert report.talk_turned_away > 0.2
    assert report.fit_answered >= 0.89
    assert steps[-1][1] == steps[-1][2]
    assert encoder_fit.is_fitted(encoder)
    head, options = open_head(encoder), encoder_fit.fit_options_of(encoder)
    assert head is not None
    asked, talked = head.probabilities(encoder.encode(["please send the report to Anna", "what is a dividend?"]))
    assert asked > talked
    assert options != FitOptions()
    assert options.similarity > 0
    assert 0 < options.threshold < 1
    assert report.folder.is_relative_to(tmp_path)
    files = ["background.npz", "fit.json", "need.npz", "verdict.json"]
    assert sorted(path.name for path in report.folder.iterdir()) == files


def test_an_encoder_that_tells_nothing_apart_is_refused() -> None:
    with pytest.raises(BadModel, match="is it a sentence encoder"):
        encoder_fit.fit(Constant())
    assert not encoder_fit.is_fitted(Constant())


def test_a_damaged_curve_is_not_used() -> None:
    encoder = HashedWords()
    report = encoder_fit.fit(encoder)
    (report.folder / encoder_fit.FIT_FILE).write_text("{")
    assert encoder_fit.fit_options_of(encoder) == FitOptions()


def test_what_need_is_measured_on_is_not_among_the_texts() -> None:
    lines = (find_dataset("bundled") / "need_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {request_digest(json.loads(line)["text"]) for line in lines}
    queries = (find_dataset("bundled") / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    measured |= {request_digest(json.loads(line)["text"]) for line in queries}
    texts = encoder_fit.need_texts()
    assert len(texts) == len({text for text, _ in texts}) > 1_000
    assert not measured & {request_digest(text) for text, _ in texts}
