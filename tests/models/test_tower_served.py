"""The tower that serves (numpy) says what the one that learns (torch) says, for every way of listening."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from toolscout.errors import BadModel
from toolscout.models.tower import TOWER_FILE, TRANSFERS, VIEWS, Tower, unit
from toolscout.retrievers.tower.options import MasstoolOptions
from toolscout.training.tower import TowerNetwork, TowerOptions
from toolscout.training.tower_task import to_tower

pytestmark = pytest.mark.slow

torch.set_num_threads(1)
D, K = 12, 6


def net(transfer: str = "gating", maps: bool = True, **changed: Any) -> TowerNetwork:
    """One whose numbers are all far from where they begin."""
    options = MasstoolOptions(transfer=transfer, hidden=7, **changed)  # type: ignore[arg-type]
    torch.manual_seed(5)
    made = TowerNetwork(D, TowerOptions(options, options, options), torch.device("cpu"), maps)
    with torch.no_grad():
        for parameter in made.numbers.values():
            parameter.add_(torch.randn(parameter.shape))
    return made


def rows(count: int, seed: int = 0) -> torch.Tensor:
    found = np.random.default_rng(seed).normal(size=(count, D))
    return torch.from_numpy(unit(found.astype(np.float32)))


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_what_is_served_is_what_was_learned(transfer: str) -> None:
    learned = net(transfer)
    tower = to_tower(learned, learned.numbers)
    encoded, pool = rows(5), rows(VIEWS * 5 * K, 1).reshape(VIEWS, 5, K, D)
    near = torch.tensor([[True] * K, [False] * K, [True] + [False] * (K - 1), [False, True] * 3, [False] * 5 + [True]])
    with torch.no_grad():
        requests, states = learned.apply_map(encoded, "request_map"), learned.states(encoded)
        expected, attention = learned.attend(requests, states, pool, near)
    for row in range(5):
        request = tower.request(encoded[row].numpy())
        np.testing.assert_allclose(request, requests[row], atol=1e-6)
        told = tower.states(encoded[row : row + 1].numpy())
        assert told is not None or transfer == "none"
        state = None if told is None else told[0]
        asked = tower.attend(request, state, pool[:, row][:, near[row]].numpy(), neighbour_weight=1.0)
        np.testing.assert_allclose(asked.vector, expected[row], atol=2e-5)
        np.testing.assert_allclose(asked.attention, attention[row][near[row]], atol=1e-5)
    np.testing.assert_allclose(tower.tool(rows(3).numpy()), learned.apply_map(rows(3), "tool_map").detach(), atol=1e-6)


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_without_neighbours_a_request_is_searched_with_itself(transfer: str) -> None:
    learned = net(transfer)
    nobody, far = torch.zeros(VIEWS, 3, 0, D), rows(VIEWS * 3 * K, 1).reshape(VIEWS, 3, K, D)
    for pool, near in ((nobody, torch.zeros(3, 0, dtype=torch.bool)), (far, torch.zeros(3, K, dtype=torch.bool))):
        asked, attention = learned.attend(rows(3), learned.states(rows(3)), pool, near)
        torch.testing.assert_close(asked, rows(3))
        assert (attention * near).sum() == 0
    own = to_tower(learned, learned.numbers).attend(
        rows(1)[0].numpy(), None, nobody[:, 0].numpy(), neighbour_weight=1.0
    )
    np.testing.assert_array_equal(own.vector, rows(1)[0])
    assert len(own.attention) == 0


def test_kin_scales_what_neighbours_add() -> None:
    tower, request, pool = to_tower(net(), net().numbers), rows(1)[0].numpy(), rows(VIEWS * 3, 1).reshape(VIEWS, 3, D)
    states = tower.states(request[None])
    assert states is not None
    none, one, two = (tower.attend(request, states[0], pool.numpy(), kin) for kin in (0.0, 1.0, 2.0))
    np.testing.assert_allclose(none.vector, request, atol=1e-7)
    np.testing.assert_allclose(two.vector - request, 2 * (one.vector - request), atol=1e-5)
    np.testing.assert_array_equal(none.attention, two.attention)  # votes count whatever kin is


def test_gradients_reach_all_numbers_that_are_used() -> None:
    for transfer in TRANSFERS:
        learned = net(transfer)
        near = torch.ones(4, K, dtype=torch.bool)
        encoded = rows(4)
        asked, attention = learned.attend(
            learned.apply_map(encoded, "request_map"),
            learned.states(encoded),
            rows(VIEWS * 4 * K, 1).reshape(VIEWS, 4, K, D),
            near,
        )
        (asked.sum() + attention[:, 0].sum()).backward()  # type: ignore[no-untyped-call]
        used = {"attend", "own", "search", "request_map"}
        used |= {"joint", "transfer", "transfer_bias", "hidden", "hidden_bias"} if transfer != "none" else set()
        assert used == {name for name, number in learned.numbers.items() if number.grad is not None}


def test_numbers_that_have_no_use_are_not_there() -> None:
    bare = {"graph", "temperature", "undecided", "new_bonus"}
    assert set(net("none", maps=False, neighbours=0, detection=0.0).numbers) == bare
    assert set(net("gating", maps=False, neighbours=0, detection=0.0).numbers) == bare
    detecting = {"hidden", "hidden_bias", "output", "output_bias"}
    assert set(net("gating", maps=False, neighbours=0).numbers) == bare | detecting
    assert set(net("none", neighbours=3, detection=0.0).numbers) == bare | {
        "attend", "own", "search", "votes", "request_map", "tool_map",
    }  # fmt: skip
    colt = net("none", maps=False, neighbours=0, detection=0.0)
    assert to_tower(colt, colt.numbers).states(rows(2).numpy()) is None


def test_a_gate_far_from_zero_does_not_overflow() -> None:
    numbers = {**to_tower(net(), net().numbers).numbers, "transfer_bias": np.full((VIEWS, D), -200, dtype=np.float32)}
    asked = Tower(numbers, "gating").attend(rows(1)[0].numpy(), np.zeros(7, np.float32), rows(2).numpy()[:, None], 1.0)
    assert np.isfinite(asked.vector).all()


def test_a_saved_tower_opens_as_it_was(tmp_path: Path) -> None:
    tower = to_tower(net("residual"), net("residual").numbers)
    tower.save(tmp_path / "new" / "folder")
    opened = Tower.load(tmp_path / "new" / "folder")
    assert opened.transfer == "residual"
    assert opened.numbers.keys() == tower.numbers.keys()
    assert all(np.array_equal(opened.numbers[name], value) for name, value in tower.numbers.items())
    assert math.isclose(float(opened.numbers["graph"]), net("residual").positive("graph").item(), rel_tol=1e-6)


@pytest.mark.parametrize("damage", ["absent", "empty", "no zip", "half", "no version", "newer", "transfer", "numbers"])
def test_a_broken_file_says_what_to_do(tmp_path: Path, damage: str) -> None:
    tower = to_tower(net(), net().numbers)
    tower.save(tmp_path)
    path = tmp_path / TOWER_FILE
    whole = dict(np.load(path))
    if damage == "absent":
        path.unlink()
    elif damage in ("empty", "no zip", "half"):
        content = {"empty": b"", "no zip": b"nonsense", "half": path.read_bytes()[: path.stat().st_size // 2]}
        path.write_bytes(content[damage])
    else:
        changed: dict[str, Any] = {"newer": {"version": 9}, "transfer": {"transfer_kind": "shouting"}}
        left = {"no version": "version", "numbers": "transfer_bias"}.get(damage)
        kept = {name: value for name, value in whole.items() if name != left}
        np.savez(path, **{**kept, **changed.get(damage, {})})
    with pytest.raises(BadModel, match="train the model again"):
        Tower.load(tmp_path)
