"""Codes: always different, as near as can be, and those once given stay. scipy is the oracle of the matching."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel
from toolscout.models.tool_ids import quantizer as module
from toolscout.models.tool_ids.assignment import linear_assignment, stable_matching
from toolscout.models.tool_ids.quantizer import QUANTIZER_FILE, CodeOptions, Quantizer, distances

pytestmark = pytest.mark.slow


def made(levels: int = 2, codes: int = 8, wide: int = 5, latent: int = 3, seed: int = 0) -> Quantizer:
    draw = np.random.default_rng(seed)
    sizes = [wide, 4, latent]
    layers = [
        (draw.normal(size=(out, into)).astype(np.float32), draw.normal(size=out).astype(np.float32))
        for into, out in pairwise(sizes)
    ]
    return Quantizer(layers, draw.normal(size=(levels, codes, latent)).astype(np.float32), "print")


def hostile(kind: str, count: int, seed: int = 0) -> Floats:
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(count, 5))
    if kind == "identical":
        vectors[:] = vectors[:1]
    elif kind == "zero":
        vectors[:] = 0
    elif kind == "duplicates":
        vectors = vectors[draw.integers(0, max(1, count // 4), count)]
    elif kind == "clusters":
        vectors = vectors[draw.integers(0, min(3, count), count)] + 1e-4 * draw.normal(size=(count, 5))
    elif kind == "huge":
        vectors *= 1e6
    return vectors.astype(np.float32)


KINDS = ["random", "identical", "zero", "duplicates", "clusters", "huge"]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.sampled_from([(1, 8), (2, 1), (2, 4), (2, 8), (3, 3), (4, 2)]),
    share=st.floats(0, 1),
    held=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_codes_are_different_and_none_is_taken(
    kind: str, shape: tuple[int, int], share: float, held: float, seed: int
) -> None:
    levels, codes = shape
    room = codes**levels
    quantizer = made(levels, codes, seed=seed)
    every = [tuple(int(i) for i in code) for code in np.ndindex(*[codes] * levels)]
    taken = [every[i] for i in np.random.default_rng(seed).permutation(room)[: int(held * room)]]
    count = max(int(share * (room - len(taken))), min(1, room - len(taken)))
    found = quantizer.assign(hostile(kind, count, seed), taken)
    assert len(found) == count
    assert len(set(found) | set(taken)) == count + len(taken)
    assert set(found) <= set(every)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_tree_is_filled_to_the_last_code(kind: str) -> None:
    quantizer = made(2, 8)
    found = quantizer.assign(hostile(kind, 64))
    assert len(set(found)) == 64
    with pytest.raises(BadModel, match="hold 64 tools, there are 65; train with more, as --option codes=16"):
        quantizer.assign(hostile(kind, 65))
    with pytest.raises(BadModel, match="there are 65"):
        quantizer.place(hostile(kind, 1)[0], found)


def test_where_there_is_room_tools_have_their_nearest_codes() -> None:
    quantizer = made(2, 64, seed=3)
    vectors = hostile("random", 40)
    nearest = quantizer.nearest(vectors)
    found = quantizer.assign(vectors)
    assert [code[0] for code in found] == nearest[:, 0].tolist()
    alone = [row for row, code in enumerate(nearest.tolist()) if nearest.tolist().count(code) == 1]
    assert len(alone) > 20
    left = quantizer.encode(vectors) - quantizer.codebooks[0][nearest[:, 0]]
    for first in set(nearest[:, 0].tolist()):  # under each parent the sum of distances is the least there is
        rows = np.flatnonzero(nearest[:, 0] == first)
        costs = distances(left[rows], quantizer.codebooks[1])
        best = costs[linear_sum_assignment(costs)].sum()
        assert sum(costs[i, found[row][1]] for i, row in enumerate(rows)) == pytest.approx(best, rel=1e-5)


def test_a_new_tool_takes_a_free_code_beside_its_like() -> None:
    quantizer = made(2, 16)
    vectors = hostile("random", 30)
    taken = quantizer.assign(vectors)
    for vector, code in zip(vectors, taken, strict=True):
        new = quantizer.place(vector, taken)
        assert new not in taken
        assert new[0] == code[0]  # there is room under the same first code
        free = [i for i in range(16) if (code[0], i) not in taken]
        left = quantizer.encode(vector) - quantizer.codebooks[0][code[0]]
        assert new[1] == free[int(distances(left, quantizer.codebooks[1][free]).argmin())]
    assert quantizer.assign(vectors) == taken
    np.testing.assert_allclose(
        quantizer.vector(taken[:1])[0],
        quantizer.codebooks[0][taken[0][0]] + quantizer.codebooks[1][taken[0][1]],
        rtol=1e-6,
    )


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 20), more=st.integers(0, 15), ties=st.booleans(), seed=st.integers(0, 999))
def test_the_matching_is_the_cheapest(rows: int, more: int, ties: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    costs = draw.integers(0, 4, (rows, rows + more)).astype(float) if ties else draw.normal(size=(rows, rows + more))
    found = linear_assignment(costs)
    assert len(set(found.tolist())) == rows
    assert costs[np.arange(rows), found].sum() == pytest.approx(costs[linear_sum_assignment(costs)].sum())


@settings(max_examples=40, deadline=None)
@given(room=st.lists(st.integers(0, 4), min_size=1, max_size=8), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_the_matching_with_room_is_stable(room: list[int], share: float, seed: int) -> None:
    rows = int(share * sum(room))
    costs = np.random.default_rng(seed).normal(size=(rows, len(room)))
    found = stable_matching(costs, np.array(room))
    held = np.bincount(found, minlength=len(room))
    assert (held <= room).all()
    for row, column in enumerate(found.tolist()):
        for other in np.flatnonzero(costs[row] < costs[row, column]).tolist():  # full of rows that are nearer
            assert held[other] == room[other]
            assert (costs[found == other, other] <= costs[row, other]).all()


def test_large_groups_are_matched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EXACT", 2)
    assert len(set(made(2, 16).assign(hostile("identical", 200)))) == 200


def test_what_was_saved_opens_the_same(tmp_path: Path) -> None:
    quantizer = made()
    quantizer.save(tmp_path)
    opened = Quantizer.load(tmp_path)
    vectors = hostile("random", 20)
    assert opened.assign(vectors) == quantizer.assign(vectors)
    assert (opened.encoder, opened.levels, opened.codes) == ("print", 2, 8)


@pytest.mark.parametrize("damage", ["absent", "cut", "other version", "no weights", "shapes", "not finite"])
def test_a_damaged_file_says_so(tmp_path: Path, damage: str) -> None:
    quantizer, path = made(), tmp_path / QUANTIZER_FILE
    quantizer.save(tmp_path)
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    if damage == "absent":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    else:
        changed = {
            "other version": {"version": np.array(99)},
            "shapes": {"codebooks": arrays["codebooks"][:, :, :2]},
            "not finite": {"codebooks": arrays["codebooks"] * np.nan},
        }
        arrays |= changed.get(damage, {})
        kept = {name: array for name, array in arrays.items() if damage != "no weights" or "weight" not in name}
        np.savez(path, **kept)
    with pytest.raises(BadModel, match="train the model again"):
        Quantizer.load(tmp_path)


def test_bad_input_is_refused() -> None:
    quantizer = made()
    for vectors in (np.zeros((1, 4)), np.full((1, 5), np.nan), np.full((1, 5), np.inf)):
        with pytest.raises(BadModel, match="embed the tools again"):
            quantizer.assign(vectors.astype(np.float32))
    for taken in ([(1,)], [(1, 2, 3)], [(0, 8)], [(-1, 0)], [(1, 2), (1,)]):
        with pytest.raises(BadModel, match="another model"):
            quantizer.assign(np.zeros((1, 5), dtype=np.float32), taken)
    assert quantizer.assign(np.zeros((0, 5), dtype=np.float32)) == []


@pytest.mark.parametrize(
    ("given", "tools", "expected"),
    [
        ({}, 1, (2, 8)),
        ({}, 464, (2, 128)),
        ({}, 46_985, (2, 1024)),
        ({}, 130_000, (2, 2048)),
        ({"levels": 3}, 46_985, (3, 128)),
        ({"codes": 64}, 46_985, (3, 64)),
        ({"levels": 2, "codes": 4}, 16, (2, 4)),
    ],
)
def test_the_shape_follows_the_catalogue(given: dict[str, int], tools: int, expected: tuple[int, int]) -> None:
    assert CodeOptions(**given).shape(tools) == expected


@pytest.mark.parametrize(
    "given", [{"levels": -1}, {"codes": -2}, {"latent": 0}, {"sinkhorn": -0.1}, {"code_rate": 0.0}, {"beta": np.nan}]
)
def test_options_that_make_no_sense_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(BadModel):
        CodeOptions(**given)  # type: ignore[arg-type]
    with pytest.raises(BadModel, match="hold 4 tools, there are 5"):
        CodeOptions(levels=2, codes=2).shape(5)
