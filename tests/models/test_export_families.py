"""Each family's export against an independent forward pass, and the files that its folders come in."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.models import tiny_bert, tiny_families
from toolscout.errors import BadModel
from toolscout.models.encoders import onnx_writer
from toolscout.models.encoders.export import export
from toolscout.models.encoders.onnx_encoder import Encoder

TEXTS = ["", "w1", "w3 w1 w4 w1 w5 w9 w2 w6", " ".join(f"w{n % 60}" for n in range(38)), "unknown w7"]
LONG = " ".join(f"w{n % 60}" for n in range(200))
POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}


def put(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def expected(family: str, texts: list[str], pooling: str = "mean") -> Any:
    tokenizer, weights = tiny_families.tokenizer(family), tiny_bert.random_weights()
    ids = [tokenizer.encode(text).ids for text in texts]
    return np.stack([tiny_families.forward(family, weights, one, pooling) for one in ids])


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_graph_computes_what_the_family_computes(tmp_path: Path, family: str, pooling: str) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", family)
    put(source, "1_Pooling/config.json", {POOLINGS[pooling]: True})
    exact = Encoder.load(export(source, tmp_path / "fp32", "fp32")).encode(TEXTS)
    assert exact == pytest.approx(expected(family, TEXTS, pooling), abs=1e-5)
    quantised = Encoder.load(export(source, tmp_path / "int8")).encode(TEXTS)
    assert (quantised * exact).sum(axis=1).min() > 0.99


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_every_length_up_to_the_last_position(tmp_path: Path, family: str) -> None:
    encoder = Encoder.load(export(tiny_families.write_folder(tmp_path / "tiny", family), tmp_path / "out", "fp32"))
    assert encoder.request_tokens == encoder.document_tokens == 40
    texts = [" ".join(LONG.split()[:count]) for count in range(39)]
    assert encoder.encode(texts) == pytest.approx(expected(family, texts), abs=1e-5)
    cut = expected(family, [" ".join(LONG.split()[:38])])
    assert encoder.encode([LONG]) == pytest.approx(cut, abs=1e-5)


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_the_card_tells_the_family(tmp_path: Path, family: str) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", family)
    card = json.loads((export(source, tmp_path / "out") / "encoder.json").read_text())
    assert (card["family"], card["positions"], card["dimension"]) == (family, 40, 32)
    assert not {"request_prompt", "document_prompt", "dimensions"} & card.keys()


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_export_is_the_same_to_the_byte_and_as_onnx_writes_it(tmp_path: Path, family: str) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", family)
    for precision in ("int8", "fp32"):
        first, second = export(source, tmp_path / "a", precision), export(source, tmp_path / "b", precision)
        content = (first / "model.onnx").read_bytes()
        assert content == (second / "model.onnx").read_bytes()
        assert (first / "encoder.json").read_bytes() == (second / "encoder.json").read_bytes()
        assert onnx.load_from_string(content).SerializeToString(deterministic=True) == content
        onnx.checker.check_model(content)


@pytest.mark.parametrize("prefix", ["roberta.", "model.", "encoder.auto_model."])
def test_any_prefix_is_taken_off(tmp_path: Path, prefix: str) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "roberta")
    weights = tiny_families.weights_of("roberta", tiny_bert.random_weights())
    other = {f"{prefix}{name}": value for name, value in weights.items()} | {"lm_head.bias": np.zeros(64, np.float32)}
    (source / "model.safetensors").write_bytes(tiny_bert.safetensors(other))
    vectors = Encoder.load(export(source, tmp_path / "out", "fp32")).encode(TEXTS)
    assert vectors == pytest.approx(expected("roberta", TEXTS), abs=1e-5)


def test_a_file_with_two_encoders_is_refused(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "roberta")
    weights = tiny_families.weights_of("roberta", tiny_bert.random_weights())
    both = {f"{part}.{name}": value for part in ("query", "passage") for name, value in weights.items()}
    (source / "model.safetensors").write_bytes(tiny_bert.safetensors(both))
    with pytest.raises(BadModel, match=r"holds 2 encoders \(passage\., query\.\)"):
        export(source, tmp_path / "out")


def test_old_names_of_norms_are_read(tmp_path: Path) -> None:
    weights = tiny_bert.random_weights()
    old = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): weights[name] for name in weights
    }
    assert old.keys() != weights.keys()
    source = tiny_bert.write_folder(tmp_path / "tiny", old)
    vectors = Encoder.load(export(source, tmp_path / "out", "fp32")).encode(TEXTS)
    assert vectors == pytest.approx(expected("bert", TEXTS), abs=1e-5)


def test_weights_in_several_files(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "mpnet")
    whole = (export(source, tmp_path / "whole") / "model.onnx").read_bytes()
    weights = tiny_families.weights_of("mpnet", tiny_bert.random_weights(), tiny_families.relative_bias())
    (source / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    for file, few in parts.items():
        (source / file).write_bytes(tiny_bert.safetensors({name: weights[name] for name in few}))
    put(source, "model.safetensors.index.json", {"weight_map": {n: file for file, few in parts.items() for n in few}})
    assert (export(source, tmp_path / "out") / "model.onnx").read_bytes() == whole
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BadModel, match=r"has no model-00002-of-00002\.safetensors, which .* names"):
        export(source, tmp_path / "out")
    put(source, "model.safetensors.index.json", {"weight_map": {names[0]: "../model.safetensors"}})
    with pytest.raises(BadModel, match=r"has no \.\./model\.safetensors"):
        export(source, tmp_path / "out")


def test_what_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "xlm-roberta")
    (source / "tokenizer.json").rename(source / "sentencepiece.bpe.model")
    with pytest.raises(
        BadModel, match=r"it has no tokenizer\.json; .*import AutoTokenizer.*save_pretrained\('.*tiny'\)"
    ):
        export(source, tmp_path / "out")
    (source / "sentencepiece.bpe.model").rename(source / "tokenizer.json")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(
        BadModel, match=r"it has no model\.safetensors; .*import AutoModel as.*save_pretrained\('.*tiny'\)"
    ):
        export(source, tmp_path / "out")


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_a_tokenizer_without_the_tokens_of_the_family_is_refused(tmp_path: Path, family: str) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", family)
    put(source, "tokenizer.json", json.loads(tiny_families.tokenizer(family).to_str()) | {"post_processor": None})
    ends = r"\[CLS\] and \[SEP\]" if family in ("bert", "distilbert") else "<s> and </s>"
    with pytest.raises(BadModel, match=f"between {ends} as encoders of the family {family} expect"):
        export(source, tmp_path / "out")


def test_settings_of_sentence_transformers_are_in_the_card(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "distilbert")
    plain = Encoder.load(export(source, tmp_path / "plain", "fp32"))
    put(source, "config_sentence_transformers.json", {"prompts": {"query": "w1 w2 ", "passage": "w3 "}})
    put(source, "sentence_bert_config.json", {"max_seq_length": 20})
    encoder = Encoder.load(export(source, tmp_path / "out", "fp32"))
    assert (encoder.request_prompt, encoder.document_prompt) == ("w1 w2 ", "w3 ")
    assert encoder.request_tokens == encoder.document_tokens == 20
    assert np.array_equal(encoder.encode_request("w9"), plain.encode_request("w1 w2 w9"))
    (_, documents), *_ = encoder.encode_documents(["w9"])
    assert np.array_equal(documents[0], plain.encode_request("w3 w9"))
    assert encoder.fingerprint != plain.fingerprint


def test_vectors_that_are_cut(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "bert")
    put(source, "config_sentence_transformers.json", {"truncate_dim": 8})
    encoder = Encoder.load(export(source, tmp_path / "out", "fp32"))
    whole = expected("bert", TEXTS)[:, :8]
    assert encoder.dimension == 8
    assert encoder.encode(TEXTS) == pytest.approx(whole / np.linalg.norm(whole, axis=1, keepdims=True), abs=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_layers_behind_the_pooling(tmp_path: Path, precision: Any) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "roberta")
    matrix, shift, scale, centre = tiny_families.add_layers(source)
    plain = Encoder.load(export(tiny_families.write_folder(tmp_path / "plain", "roberta"), tmp_path / "out", "fp32"))
    encoder = Encoder.load(export(source, tmp_path / "layers", precision))
    assert (encoder.dimension, encoder.parameters) == (24, plain.parameters + 24 * 32 + 3 * 24)
    ids = [tiny_families.tokenizer("roberta").encode(text).ids for text in TEXTS]
    whole = np.stack([tiny_families.forward("roberta", tiny_bert.random_weights(), one, unit=False) for one in ids])
    dense = whole @ matrix.T.astype(np.float64) + shift
    normal = (dense - dense.mean(1, keepdims=True)) / np.sqrt(dense.var(1, keepdims=True) + 1e-5) * scale + centre
    found = encoder.encode(TEXTS)
    wanted = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    assert (found * wanted).sum(axis=1).min() > 0.99
    assert precision == "int8" or found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(("name", "onto"), [("Tanh", np.tanh), ("ReLU", lambda x: np.maximum(x, 0))])
def test_activations_of_layers_behind_the_pooling(tmp_path: Path, name: str, onto: Any) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "bert")
    matrix, *_ = tiny_families.add_layers(source)
    put(source, "modules.json", [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}])
    activation = f"torch.nn.modules.activation.{name}"
    sizes = {"in_features": 32, "out_features": 24}
    put(source, "2_Dense/config.json", {**sizes, "bias": False, "activation_function": activation})
    (source / "2_Dense/model.safetensors").write_bytes(tiny_bert.safetensors({"linear.weight": matrix}))
    ids = [tiny_families.tokenizer("bert").encode(text).ids for text in TEXTS]
    whole = np.stack([tiny_families.forward("bert", tiny_bert.random_weights(), one, unit=False) for one in ids])
    wanted = onto(whole @ matrix.T)
    found = Encoder.load(export(source, tmp_path / "out", "fp32")).encode(TEXTS)
    assert found == pytest.approx(wanted / np.linalg.norm(wanted, axis=1, keepdims=True), abs=1e-5)


def test_layers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "bert")
    tiny_families.add_layers(source)
    ones = np.ones(32, np.float32)
    (source / "3_LayerNorm/model.safetensors").write_bytes(
        tiny_bert.safetensors({"norm.weight": ones, "norm.bias": ones})
    )
    with pytest.raises(BadModel, match="3_LayerNorm takes vectors of 32 numbers, and gets 24"):
        export(source, tmp_path / "out")
    (source / "3_LayerNorm/model.safetensors").write_bytes(tiny_bert.safetensors({"norm.weight": ones}))
    with pytest.raises(BadModel, match=r"lacks norm\.weight or norm\.bias"):
        export(source, tmp_path / "out")
    (source / "3_LayerNorm/model.safetensors").unlink()
    with pytest.raises(BadModel, match=r"3_LayerNorm has no model\.safetensors"):
        export(source, tmp_path / "out")


def test_texts_are_put_into_lower_case_where_the_folder_says_so(tmp_path: Path) -> None:
    source = tiny_families.write_folder(tmp_path / "tiny", "bert")
    plain = Encoder.load(export(source, tmp_path / "plain"))
    put(source, "sentence_bert_config.json", {"do_lower_case": True})
    lower = Encoder.load(export(source, tmp_path / "lower"))
    assert np.array_equal(lower.encode_request("W1 w2"), plain.encode_request("w1 w2"))
    assert not np.array_equal(plain.encode_request("W1 w2"), plain.encode_request("w1 w2"))


def test_a_file_that_would_be_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_writer, "_LONGEST", 1000)
    writer = onnx_writer.OnnxWriter()
    writer.result("vector", "Identity", writer.constant(np.zeros(400, np.float32)))
    with pytest.raises(BadModel, match=r"cannot hold .* GB, only 2; export int8"):
        writer.write(io.BytesIO(), [], [])
