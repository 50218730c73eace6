"""Exported cross-encoders against transformers, and folders that hold none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import tiny_bert, tiny_families
from toolscout.errors import BadModel
from toolscout.models.rerankers import cross_encoder
from toolscout.models.rerankers import export as exporting
from toolscout.models.rerankers.cross_encoder import CrossEncoder, CrossEncoderSettings
from toolscout.models.rerankers.export import export_cross_encoder
from toolscout.models.rerankers.opening import open_reranker

REQUEST = "w1 w2 w3"
DOCUMENTS = ["w4 w5", "w1 w2 w3", "w9 w8 w7 w6 w5 w4 w3 w2 w1", "", " ".join(f"w{n % 60}" for n in range(20))]
MODELS = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "distilbert": "DistilBertForSequenceClassification",
}


def write_source(folder: Path, family: str, labels: int) -> tuple[Path, Any]:
    """A folder of a random model with a head, and the model."""
    import torch
    import transformers

    source = tiny_families.write_folder(folder, family)
    config = transformers.AutoConfig.from_pretrained(source, num_labels=labels)
    torch.manual_seed(7)
    model = getattr(transformers, MODELS[family])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # not the scales of a LayerNorm
                parameter.normal_(std=0.3)
    model.save_pretrained(source)
    return source, model


def expected(source: Path, model: Any, request: str, document: str) -> float:
    import tokenizers
    import torch

    encoded = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json")).encode(request, document)
    given = {"input_ids": torch.tensor([encoded.ids])}
    if model.config.model_type == "bert":
        given["token_type_ids"] = torch.tensor([encoded.type_ids])
    with torch.no_grad():
        logits = model(**given).logits[0]
    return float(logits[0] if len(logits) == 1 else logits[1] - logits[0])


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("labels", [1, 2])
def test_a_score_is_that_of_transformers(tmp_path: Path, family: str, labels: int) -> None:
    source, model = write_source(tmp_path / "tiny", family, labels)
    right = [expected(source, model, REQUEST, document) for document in DOCUMENTS]
    exact = CrossEncoder(export_cross_encoder(source, tmp_path / "fp32", "fp32"))
    assert exact.score(REQUEST, DOCUMENTS) == pytest.approx(right, abs=1e-4)
    spread = max(right) - min(right)
    quantised = CrossEncoder(export_cross_encoder(source, tmp_path / "int8"))
    assert quantised.score(REQUEST, DOCUMENTS) == pytest.approx(right, abs=0.1 * spread)


@pytest.mark.slow
def test_a_model_of_several_classes_is_refused(tmp_path: Path) -> None:
    source, _ = write_source(tmp_path / "tiny", "bert", 3)
    with pytest.raises(BadModel, match="tells 3 classes apart; a reranker gives one score, or two logits"):
        export_cross_encoder(source, tmp_path / "out")


def test_an_encoder_is_no_cross_encoder(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "bert")
    with pytest.raises(BadModel, match="it is an encoder, not a cross-encoder; name one that was trained"):
        export_cross_encoder(source, tmp_path / "out")
    source = tiny_families.write_folder(tmp_path / "mpnet", "mpnet")
    with pytest.raises(BadModel, match="cross-encoders of the family mpnet are not exported, only: bert"):
        export_cross_encoder(source, tmp_path / "out")


def test_another_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("Dear")
    with pytest.raises(BadModel, match="is not an exported cross-encoder; name a new folder"):
        export_cross_encoder(tiny_families.write_folder(tmp_path / "tiny", "bert"), tmp_path / "out")


@pytest.fixture
def headed(tmp_path: Path) -> Path:
    """The weights of a random cross-encoder, without its graph."""
    random, hidden = np.random.default_rng(3), tiny_bert.CONFIG["hidden_size"]
    weights = {f"bert.{name}": value for name, value in tiny_bert.random_weights().items()}
    weights |= {"bert.pooler.dense.bias": random.normal(0, 1, hidden), "classifier.bias": np.zeros(1)}
    weights["classifier.weight"] = random.normal(0, 1, (1, hidden))
    return tiny_bert.write_folder(tmp_path / "headed", {name: one.astype("f4") for name, one in weights.items()})


def test_weights_are_exported_into_the_cache_once(
    headed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    first = open_reranker(str(headed))
    assert isinstance(first, CrossEncoder)
    assert first.folder.parent == tmp_path / "cache" / "rerankers"
    monkeypatch.setattr(exporting, "export_cross_encoder", lambda *_: pytest.fail("exported again"))
    again = open_reranker(f"{headed}?max_tokens=32")
    assert isinstance(again, CrossEncoder)
    assert again.folder == first.folder
    assert again.score(REQUEST, DOCUMENTS) == first.score(REQUEST, DOCUMENTS)


def test_a_tokeniser_may_be_that_of_the_package(headed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "tokenizer.json").write_bytes((headed / "tokenizer.json").read_bytes())
    for module in (exporting, cross_encoder):
        monkeypatch.setattr(module, "package_folder", lambda: package)
    alone = CrossEncoder(export_cross_encoder(headed, tmp_path / "alone", max_tokens=24))
    shared = CrossEncoder(export_cross_encoder(headed, tmp_path / "shared", max_tokens=24, share_tokenizer=True))
    assert not (shared.folder / "tokenizer.json").exists()
    assert shared.score(REQUEST, DOCUMENTS[:3]) == alone.score(REQUEST, DOCUMENTS[:3])
    assert shared.fingerprint == alone.fingerprint
    (package / "tokenizer.json").write_text(tiny_bert.tokenizer().to_str(pretty=True))
    with pytest.raises(BadModel, match="exported for another tokeniser"):
        CrossEncoder(shared.folder)
    with pytest.raises(BadModel, match="has another tokeniser than the package's encoder"):
        export_cross_encoder(headed, tmp_path / "new", share_tokenizer=True)


def test_tokens_that_are_never_read_are_left_out(headed: Path, tmp_path: Path) -> None:
    whole = CrossEncoder(export_cross_encoder(headed, tmp_path / "whole"))
    few = CrossEncoder(export_cross_encoder(headed, tmp_path / "few", max_tokens=20))
    size = [(one.folder / "model.onnx").stat().st_size for one in (whole, few)]
    assert size[0] - size[1] >= 20 * tiny_bert.CONFIG["hidden_size"] * 4
    at_most = CrossEncoder(whole.folder, CrossEncoderSettings(max_tokens=20))
    assert few.score(REQUEST, DOCUMENTS) == at_most.score(REQUEST, DOCUMENTS)
    asked = CrossEncoder(few.folder, CrossEncoderSettings(max_tokens=40))  # more than the model reads
    assert asked.score(REQUEST, DOCUMENTS) == few.score(REQUEST, DOCUMENTS)
