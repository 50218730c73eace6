"""What training changed, kept beside a reference to the base: merged, saved, and refused where it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolscout.errors import BadModel
from toolscout.models.language.architecture import Architecture
from toolscout.models.language.lora import ADAPTER_FILE, SCALE, SOURCES, Adapter, stack_matrices

SMALL = Architecture(
    kind="llama",
    layers=2,
    hidden=6,
    heads=2,
    kv_heads=1,
    head_size=4,
    inner=5,
    vocabulary=9,
    eps=1e-5,
    theta=1e4,
    tied=True,
    context=32,
)
SIZES = {"qkv": (16, 6), "o": (6, 8), "gate_up": (10, 6), "down": (6, 5)}


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weights() -> dict[str, Any]:
    return {name: drawn(*shape, seed=len(name)) for name, shape in SMALL.shapes().items()}


def adapter(rank: int = 3, kinds: tuple[str, ...] = tuple(SIZES)) -> Adapter:
    learned = {}
    for kind in kinds:
        out, into = SIZES[kind]
        learned |= {f"{kind}_a": drawn(2, rank, into, seed=1), f"{kind}_b": drawn(2, out, rank, seed=2)}
    return Adapter(learned)


def test_matrices_that_read_the_same_input_lie_together() -> None:
    base = weights()
    found = stack_matrices(SMALL, base, "qkv")
    assert found.shape == (2, 16, 6)
    np.testing.assert_array_equal(found[1, 8:12], base["model.layers.1.self_attn.k_proj.weight"])


def test_low_rank_products_are_added_to_their_own_matrices() -> None:
    base, low = weights(), adapter()
    found = low.merge_into(SMALL, base)
    for kind, sources in SOURCES.items():
        product = SCALE * np.einsum("lor,lri->loi", low.learned[f"{kind}_b"], low.learned[f"{kind}_a"])
        for layer in range(2):
            whole = np.concatenate([found[f"model.layers.{layer}.{source}.weight"] for source in sources])
            # A sum near 0 has the rounding of its parts.
            np.testing.assert_allclose(
                whole, stack_matrices(SMALL, base, kind)[layer] + product[layer], rtol=1e-5, atol=1e-6
            )
    assert found["model.norm.weight"] is base["model.norm.weight"]
    assert base["model.layers.0.mlp.down_proj.weight"] is not found["model.layers.0.mlp.down_proj.weight"]


def test_what_was_not_learned_stays_and_whole_matrices_take_the_place_of_the_bases() -> None:
    base = weights()
    assert all(found is base[name] for name, found in Adapter({}).merge_into(SMALL, base).items())
    whole = drawn(2, 10, 6)
    found = Adapter({"gate_up": whole}).merge_into(SMALL, base)
    np.testing.assert_array_equal(found["model.layers.1.mlp.up_proj.weight"], whole[1, 5:])
    assert found["model.layers.1.mlp.down_proj.weight"] is base["model.layers.1.mlp.down_proj.weight"]


def test_it_is_saved_in_half_precision(tmp_path: Path) -> None:
    low = adapter()
    low.save(tmp_path)
    loaded = Adapter.load(tmp_path)
    assert loaded.learned.keys() == low.learned.keys()
    for name, array in low.learned.items():
        np.testing.assert_array_equal(loaded.learned[name], array.astype(np.float16))
    np.testing.assert_allclose(
        loaded.merge_into(SMALL, weights())["model.layers.1.self_attn.v_proj.weight"],
        low.merge_into(SMALL, weights())["model.layers.1.self_attn.v_proj.weight"],
        atol=0.02,
    )


@pytest.mark.parametrize(
    "learned",
    [
        {"qkv_a": drawn(2, 3, 6)},
        {"qkv_a": drawn(2, 3, 6), "qkv_b": drawn(2, 16, 4)},
        {"qkv_a": drawn(2, 3, 7), "qkv_b": drawn(2, 16, 3)},
        {"qkv_a": drawn(1, 3, 6), "qkv_b": drawn(1, 16, 3)},
        {"qkv_b": drawn(2, 16, 3)},
        {"qkv": drawn(2, 15, 6)},
        {"qkv": drawn(2, 16)},
        {"nonsense": drawn(2, 16)},
        {"down": np.full((2, 6, 5), np.nan, np.float32)},
    ],
)
def test_one_that_does_not_fit_its_base_is_refused(learned: dict[str, Any]) -> None:
    with pytest.raises(BadModel, match="name the language model it was trained with"):
        Adapter(learned).merge_into(SMALL, weights())


@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"PK\3\4 cut"])
def test_a_damaged_file_says_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / ADAPTER_FILE).write_bytes(content)
    with pytest.raises(BadModel, match="train the model again"):
        Adapter.load(tmp_path)
