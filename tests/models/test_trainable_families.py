"""Encoders of each family learn, are saved, and are served as they were trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.models import tiny_bert, tiny_families
from tests.training.learnable import learnable, options, recall
from toolscout.errors import BadModel
from toolscout.models.encoders.export import export
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.encoders.sentence_config import read_sentence_config
from toolscout.models.encoders.trainable import TrainableEncoder
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.masstool import Masstool, MasstoolOptions
from toolscout.retrievers.provenance import TrainingSet

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
FAMILIES = [family for family in tiny_families.FAMILIES if family != "camembert"]
TEXTS = [" ".join(f"w{(n * k) % 60}" for n in range(k % 50)) for k in range(1, 60)]
NO_DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"), 0.0)
DATA = learnable()


def put(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def requests(encoder: TrainableEncoder, texts: list[str]) -> NDArray[np.float32]:
    return encoder.encode(encoder.tokenise_requests(texts), 7).numpy()


def documents(encoder: Encoder, texts: list[str]) -> NDArray[np.float32]:
    found = np.empty((len(texts), encoder.dimension), np.float32)
    for positions, rows in encoder.encode_documents(texts):
        found[positions] = rows
    return found


def agree(trainable: TrainableEncoder, served: Encoder) -> None:
    np.testing.assert_allclose(requests(trainable, TEXTS), served.encode(TEXTS), atol=2e-5)
    found = trainable.encode(trainable.tokenise_documents(TEXTS), 7).numpy()
    np.testing.assert_allclose(found, documents(served, TEXTS), atol=2e-5)


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "lasttoken"])
@pytest.mark.parametrize("family", FAMILIES)
def test_batches_give_the_vectors_that_are_served(tmp_path: Path, family: str, pooling: str) -> None:
    source = tiny_families.write_folder(tmp_path / "source", family)
    put(source, "1_Pooling/config.json", {f"pooling_mode_{pooling}": True})
    agree(TrainableEncoder(source, CPU), Encoder.load(export(source, tmp_path / "out", "fp32")))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_that_learns_shapes_the_vector(tmp_path: Path, family: str) -> None:
    encoder = TrainableEncoder(tiny_families.write_folder(tmp_path / "source", family), CPU)
    encoder.embed(encoder.tokenise_requests(TEXTS[:9])).sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in encoder.parameters().values())


@pytest.mark.parametrize("family", FAMILIES)
def test_it_learns_and_is_served_as_it_was_trained(tmp_path: Path, family: str) -> None:
    source = tiny_families.write_folder(tmp_path / "source", family, **NO_DROPOUT)
    put(source, "config_sentence_transformers.json", {"prompts": {"query": "w58 ", "document": "w59 "}})
    model = Dense(options(source, mix=0.2, epochs=4))
    model.fit([TrainingSet(DATA)], tmp_path / "model")
    model.add(DATA.tools)
    assert recall(model, DATA, "test") > 0.5
    served, trained = Encoder.load(tmp_path / "model/encoder"), TrainableEncoder(tmp_path / "model/weights", CPU)
    assert (served.request_prompt, served.document_prompt) == ("w58 ", "w59 ")
    card = json.loads((tmp_path / "model/encoder/encoder.json").read_text())
    assert card["family"] == family
    assert (requests(trained, TEXTS) * served.encode(TEXTS)).sum(axis=1).min() > 0.99
    assert not np.allclose(requests(trained, TEXTS), requests(TrainableEncoder(source, CPU), TEXTS), atol=1e-2)


def test_a_trained_encoder_reads_as_many_tokens_as_it_was_told(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "source", "bert", **NO_DROPOUT)
    put(source, "sentence_bert_config.json", {"max_seq_length": 8})  # the option is stronger than the encoder's files
    model = Dense(options(source, epochs=1, tokens=12))
    model.fit([TrainingSet(DATA)], tmp_path / "model")
    served = Encoder.load(tmp_path / "model/encoder")
    assert (served.request_tokens, served.document_tokens) == (12, 12)
    trained = TrainableEncoder(tmp_path / "model/weights", CPU, tokens=12)
    long = [" ".join(f"w{number}" for number in range(start, start + 20)) for start in (1, 9)]
    assert (requests(trained, long) * served.encode(long)).sum(axis=1).min() > 0.99
    with pytest.raises(BadModel, match="reads at most 40 tokens of a text; set tokens to that or less"):
        TrainableEncoder(source, CPU, tokens=41)
    with pytest.raises(BadModel, match="tokens must be 3 or more"):
        options(source, tokens=2)


def test_layers_behind_the_pooling_learn_and_are_saved(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "source", "roberta")
    tiny_families.add_layers(source)
    put(source, "2_Dense/config.json", {"in_features": 32, "out_features": 24, "activation_function": "x.Tanh"})
    encoder = TrainableEncoder(source, CPU)
    agree(encoder, Encoder.load(export(source, tmp_path / "before", "fp32")))
    encoder.embed(encoder.tokenise_requests(TEXTS[:9])).sum().backward()  # type: ignore[no-untyped-call]
    learned = {name: parameter for name, parameter in encoder.parameters().items() if name[0] in "23"}
    assert {"2_Dense.linear.weight", "2_Dense.linear.bias", "3_LayerNorm.norm.bias"} < learned.keys()
    assert all(parameter.grad is not None for parameter in learned.values())
    changed = {name: parameter * 1.5 for name, parameter in encoder.parameters().items()}
    encoder.save(tmp_path / "saved", changed)
    saved = TrainableEncoder(tmp_path / "saved", CPU)
    for name, parameter in saved.parameters().items():
        assert torch.equal(parameter, changed[name])
    agree(saved, Encoder.load(export(tmp_path / "saved", tmp_path / "after", "fp32")))


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_masstool_trains_its_own_backbones(tmp_path: Path, family: str) -> None:
    source = tiny_families.write_folder(tmp_path / "source", family, **NO_DROPOUT)
    if family == "roberta":  # ANCE
        tiny_families.add_layers(source)
    put(source, "1_Pooling/config.json", {"pooling_mode_cls_token": True})
    chosen = MasstoolOptions(
        train_encoder=True, start=str(source), epochs=2, batch=40, epsilon=0.3, hidden=8, device="cpu"
    )
    model = Masstool(chosen)
    model.fit([TrainingSet(DATA)], tmp_path / "model")
    card = json.loads((tmp_path / "model/encoder/encoder.json").read_text())
    assert (card["family"], card["pooling"], card["dimension"]) == (family, "cls", 24 if family == "roberta" else 32)
    opened = Masstool.load(tmp_path / "model")
    opened.add(DATA.tools)
    assert recall(opened, DATA, "test") > 0.2
    trained = TrainableEncoder(tmp_path / "model/weights", CPU)
    assert (requests(trained, TEXTS) * opened.encoder.encode(TEXTS)).sum(axis=1).min() > 0.99


@pytest.mark.parametrize("prefix", ["roberta.", "model."])
def test_weights_behind_a_prefix_are_those_that_learn(tmp_path: Path, prefix: str) -> None:
    source = tiny_families.write_folder(tmp_path / "source", "roberta")
    plain = requests(TrainableEncoder(source, CPU), TEXTS)
    weights = tiny_families.weights_of("roberta", tiny_bert.random_weights())
    prefixed = tiny_bert.safetensors({f"{prefix}{name}": value for name, value in weights.items()})
    (source / "model.safetensors").write_bytes(prefixed)
    assert np.array_equal(requests(TrainableEncoder(source, CPU), TEXTS), plain)


def test_a_prompt_is_put_before_each_text_once(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "source", "bert")
    plain = TrainableEncoder(source, CPU)
    put(source, "config_sentence_transformers.json", {"prompts": {"query": "w1 w2 ", "document": "w3 "}})
    put(source, "sentence_bert_config.json", {"max_seq_length": 20})
    encoder = TrainableEncoder(source, CPU)
    assert (encoder.request_tokens, encoder.document_tokens, encoder.prompt_length) == (20, 20, 2)
    assert encoder.tokenise_requests(["w9"])[0].tolist() == plain.tokenise_requests(["w1 w2 w9"])[0].tolist()
    assert encoder.tokenise_documents(["w9"])[0].tolist() == plain.tokenise_requests(["w3 w9"])[0].tolist()
    agree(encoder, Encoder.load(export(source, tmp_path / "out", "fp32")))


def test_a_saved_folder_keeps_the_settings_of_its_source(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "e5-tiny", "xlm-roberta")  # the name alone tells the prompts
    put(source, "modules.json", [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}])
    put(source, "1_Pooling/config.json", {"pooling_mode_cls_token": True})
    put(source, "sentence_bert_config.json", {"max_seq_length": 30})
    put(source, "config_sentence_transformers.json", {"similarity_fn_name": "cosine", "truncate_dim": 16})
    encoder = TrainableEncoder(source, CPU)
    encoder.save(tmp_path / "saved", encoder.parameters())
    assert read_sentence_config(tmp_path / "saved") == read_sentence_config(source)
    assert json.loads((tmp_path / "saved/config_sentence_transformers.json").read_text())["truncate_dim"] == 16
    saved = TrainableEncoder(tmp_path / "saved", CPU)
    assert (saved.request_prompt, saved.document_prompt, saved.request_tokens) == ("query: ", "passage: ", 30)
    assert (saved.dimension, saved.pooling) == (16, "cls")
    agree(saved, Encoder.load(export(tmp_path / "saved", tmp_path / "out", "fp32")))


def test_what_cannot_be_exported_is_not_trained(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "source", "mpnet")
    (source / "tokenizer.json").rename(source / "vocab.txt")
    with pytest.raises(BadModel, match=r"it has no tokenizer\.json; .*AutoTokenizer"):
        TrainableEncoder(source, CPU)
