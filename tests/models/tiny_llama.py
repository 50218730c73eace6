"""A tiny Llama with random weights and a tokeniser of its own, as a Hugging Face folder; torch is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = ("Find me a hotel in Paris for 2 nights.", "What will the weather be in 1984?", "user assistant system tool\n")
MARKUP = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tokenizer(markup: tuple[str, ...] = MARKUP) -> Tokenizer:
    made = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(markup), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


def tiny_llama(folder: Path, *, kind: str = "llama", markup: tuple[str, ...] = MARKUP, **changes: Any) -> Any:
    """Write the folder; the model comes back."""
    torch = pytest.importorskip("torch", reason="the oracle needs the extra 'train'")
    transformers = pytest.importorskip("transformers", reason="the oracle needs the extra 'train'")
    made = tokenizer(markup)
    options = {
        "vocab_size": 340,
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "initializer_range": 0.4,
        "eos_token_id": 2,
        **changes,
    }
    config, model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }[kind]
    torch.manual_seed(0)
    network = model(config(**options)).eval()
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "norm" in name or "bias" in name:
                weight.add_(0.2 * torch.randn_like(weight))
    network.save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    return network
