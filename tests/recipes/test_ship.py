"""Trained weights, put into the package's folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from recipes.default_encoder import ship
from tests.models import tiny_bert
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.encoders.settings import EncoderSettings
from toolscout.models.rerankers import cross_encoder, opening
from toolscout.models.rerankers import export as exporting

HIDDEN = tiny_bert.CONFIG["hidden_size"]


def write(path: Path, layers: int, prefix: str = "", seed: int = 0) -> Path:
    """The weights of a random network with so many layers."""
    wanted = [f"encoder.layer.{layer}." for layer in range(layers)]
    kept = {
        prefix + name: value
        for name, value in tiny_bert.random_weights(seed).items()
        if "layer." not in name or any(one in name for one in wanted)
    }
    if prefix:
        kept |= {f"{prefix}pooler.dense.bias": np.zeros(HIDDEN, np.float32), "classifier.bias": np.zeros(1, np.float32)}
        kept["classifier.weight"] = np.ones((1, HIDDEN), np.float32)
    path.write_bytes(tiny_bert.safetensors(kept, "F16"))
    return path


def test_encoder_and_reranker_are_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = tiny_bert.write_folder(tmp_path / "published", tiny_bert.random_weights())
    monkeypatch.setattr(ship, "default_source", lambda: published)
    monkeypatch.setattr(ship, "PAIR_TOKENS", 24)
    monkeypatch.setattr(ship, "RERANKING", {"first": 7, "weight": 0.5})
    (tmp_path / "tokenizer.json").write_text(tiny_bert.tokenizer().to_str(pretty=True))  # not the published one
    write(tmp_path / "languages.safetensors", 2)
    write(tmp_path / "fast3.safetensors", 1)
    write(tmp_path / "cross3.safetensors", 2, "bert.")
    out = tmp_path / "model"
    both = ship.ship_encoder(tmp_path, out)
    assert "request_file" not in both.details()
    fast = Encoder.load(out, settings=EncoderSettings(file="request.onnx"))
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert not np.array_equal(both.encode_request("w1 w2"), fast.encode_request("w1 w2"))
    assert json.loads((out / "encoder.json").read_text())["name"] == ship.NAME

    for module in (exporting, cross_encoder):
        monkeypatch.setattr(module, "package_folder", lambda: out)
    made = ship.ship_reranker(tmp_path, tmp_path / "reranker")
    assert sorted(path.name for path in made.folder.iterdir()) == ["config.json", "model.onnx"]
    monkeypatch.setattr(opening, "package_folder", lambda: made.folder)
    assert opening.default_options() == {"first": 7, "weight": 0.5}
    assert opening.open_reranker("default").fingerprint == made.fingerprint

    (tmp_path / "fast3.safetensors").unlink()
    alone = ship.ship_encoder(tmp_path, out)  # files of the one before do not stay
    assert sorted(path.name for path in out.iterdir()) == ["encoder.json", "model.onnx", "tokenizer.json"]
    assert (
        alone.fingerprint == Encoder.load(out).fingerprint == both.fingerprint
    )  # by default the small one is not used


def test_what_was_measured_becomes_a_page(tmp_path: Path) -> None:
    from recipes.default_encoder.rows import measure_row
    from studies import default_encoder_report
    from studies.study_rows import StudyRows

    found = {"bundled/dev": (0.25, 0.5, 0.375), "toollens/dev": (0.125, 0.25, 0.25), "es": (0.5, 0.75, 0.75)}
    rows = [measure_row("averaged", name, 3, values, {"machine": "m"}) for name, values in found.items()]
    (tmp_path / "measures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "results").mkdir()
    ship.ship_measures(tmp_path, tmp_path / "results" / "default_encoder.jsonl")
    text = "".join(default_encoder_report.section(StudyRows.read(tmp_path / "results"), {}))
    assert "0.250 / 0.500" in text
    assert "0.3750" in text  # the mean of recall@5 of the English sets
    assert "| 0.750 |" in text
