"""Writing with the torch model: token by token the same as reading everything again and scoring in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.models.tiny_llama import tiny_llama
from toolscout.models.language import torch_engine
from toolscout.models.language.base import TokenTable, open_base
from toolscout.models.language.torch_engine import TorchEngine, memory_batches
from toolscout.models.language.torch_network import KeyValueCache, TransformerNetwork

pytestmark = pytest.mark.slow

Allow = Callable[[int, Sequence[int]], NDArray[np.int64] | None]
ADDED = 5
PROMPTS = [[5, 9, 11], [7], [20, 21, 22, 23, 24, 25, 26], [3, 4], [300, 341, 30]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[TorchEngine, TokenTable]:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder)
    base = open_base(str(folder))
    table = base.table(half=False)
    table.grow(np.random.default_rng(0).normal(size=(ADDED, base.architecture.hidden)).astype(np.float32))
    network = TransformerNetwork(base.architecture, base.weights(), 1, torch.device("cpu"))
    return TorchEngine.of(network, table), table


def slowly(made: tuple[TorchEngine, TokenTable], at: int, most: int, end: set[int], allow: Allow | None) -> list[int]:
    (live, table), written = made, list[int]()
    while len(written) < most:
        allowed = allow(at, written) if allow else None
        if allowed is not None and not len(allowed):
            break
        logits = table.logits(live.read([[*PROMPTS[at], *written]]).ends(), allowed)[0]
        token = int(logits.argmax()) if allowed is None else int(allowed[int(logits.argmax())])
        if token in end:
            break
        written.append(token)
    return written


def even(row: int, written: Sequence[int]) -> NDArray[np.int64] | None:
    """Some rows write freely, some under a mask, some are forced, some stop early."""
    if row == 0:
        return None
    if row == 1 and len(written) == 2:
        return np.array([342])
    if row == 2 and len(written) == 4:
        return np.array([], np.int64)
    return EVEN if row == 3 else np.arange(len(written), 330, 3)


EVEN = np.arange(344, 0, -2)


@pytest.mark.parametrize("allow", [None, even])
@pytest.mark.parametrize("room", [1 << 30, 20_000])
def test_the_likeliest_tokens(
    made: tuple[TorchEngine, TokenTable], allow: Allow | None, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, _ = made
    monkeypatch.setitem(torch_engine._CACHE_BYTES, "cpu", room)
    free = live.write(PROMPTS, most=9, allow=allow)
    ends = {free[0][3], free[4][5]}  # so that rows end at different times
    found = live.write(PROMPTS, most=9, end=ends, allow=allow)
    wanted = [slowly(made, at, 9, ends, allow) for at in range(len(PROMPTS))]
    assert found == wanted
    assert len({len(one) for one in found}) > 1


def test_what_goes_together_is_what_memory_there_is_for() -> None:
    rooms = iter([100.0, 35.0, 1.0, 1000.0, 1000.0])
    found = list(memory_batches([5, 10, 10, 20, 20, 30, 30], 3, lambda: next(rooms)))
    assert found == [range(3), range(3, 4), range(4, 5), range(5, 7)]
    assert list(memory_batches([], 3, lambda: 0.0)) == []


def test_memory_is_what_is_free_on_the_device_now(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"mem_get_info": (6 << 30, 80 << 30), "memory_reserved": 5 << 30, "memory_allocated": 3 << 30}
    for name in figures:
        monkeypatch.setattr(torch.cuda, name, lambda device, name=name: figures[name])
    # Half of what is free, and of what it holds unused.
    assert torch_engine.free_memory(torch.device("cuda")) == 4 << 30
    figures["mem_get_info"] = (70 << 30, 80 << 30)
    assert torch_engine.free_memory(torch.device("cuda")) == 24 << 30
    assert torch_engine.free_memory(torch.device("cpu")) == math.inf


def test_little_memory_changes_no_answer(made: tuple[TorchEngine, TokenTable], monkeypatch: pytest.MonkeyPatch) -> None:
    live, _ = made
    owners, paths = [0, 2, 4, 2, 1], [[3], [3, 8], [9], [4], [5, 6, 7]]
    read, after, wanted = (
        live.read(PROMPTS).ends(),
        live.read(PROMPTS).after(owners, paths),
        live.write(PROMPTS, most=9),
    )
    sizes: list[int] = []
    states = live._states

    def counted(sequences: Sequence[Sequence[int]], past: KeyValueCache | None) -> tuple[torch.Tensor, KeyValueCache]:
        sizes.append(len(sequences))
        return states(sequences, past)

    monkeypatch.setattr(live, "_states", counted)
    for room, largest in ((2 * live._read_bytes(7), 4), (live.cache_bytes, 1)):
        monkeypatch.setattr(torch_engine, "free_memory", lambda device, room=room: room)
        np.testing.assert_allclose(live.read(PROMPTS).ends(), read, atol=1e-5)
        np.testing.assert_allclose(live.read(PROMPTS).after(owners, paths), after, atol=1e-5)
        assert live.write(PROMPTS, most=9) == wanted
        assert max(sizes) <= largest
        assert sizes.count(1) < len(sizes) or largest == 1
        sizes.clear()


def test_memory_that_others_took_meanwhile_costs_a_second_try(
    made: tuple[TorchEngine, TokenTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    live, _ = made
    wanted, grown, most = live.write(PROMPTS, most=9), torch_engine.GrowingKeyValueCache.grow, 2

    def grow(notes: torch_engine.GrowingKeyValueCache) -> None:
        grown(notes)
        if notes.keys.shape[1] > most:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(torch_engine.GrowingKeyValueCache, "grow", grow)
    assert live.write(PROMPTS, most=9) == wanted
    most = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        live.write(PROMPTS, most=9)


def test_what_reading_is_said_to_take(made: tuple[TorchEngine, TokenTable]) -> None:
    live, shape = made[0], made[0]._network.architecture
    past = live.read([[5, 9, 11]])._pasts[0][0]
    assert 3 * live.cache_bytes == past.keys.nbytes + past.values.nbytes
    kept = [past.keys.untyped_storage().nbytes(), past.values.untyped_storage().nbytes()]
    assert sum(kept) == 3 * live.cache_bytes  # nothing else is held on to
    # Twice as long: twice the keys and values, four times what all tokens see of all.
    assert live._read_bytes(200) - 2 * live._read_bytes(100) == 2 * 4 * shape.heads * 100 * 100


def test_drawn_tokens_come_again_and_follow_the_odds(made: tuple[TorchEngine, TokenTable]) -> None:
    live, table = made
    prompts = [PROMPTS[0]] * 600
    few = table.logits(live.read([PROMPTS[0]]).ends(), None)[0].argsort()[-3:]
    drawn = live.write(prompts, most=1, temperature=2.0, allow=lambda row, written: few, seed=3)
    assert drawn == live.write(prompts, most=1, temperature=2.0, allow=lambda row, written: few, seed=3)
    odds = np.exp(table.logits(live.read([PROMPTS[0]]).ends(), few)[0] / 2.0)
    shares = np.array([[one[0] for one in drawn].count(token) for token in few]) / len(drawn)
    assert np.abs(shares - odds / odds.sum()).max() < 0.08
    assert live.write([], most=3) == []


def test_rows_that_the_table_gets_later_are_written(made: tuple[TorchEngine, TokenTable]) -> None:
    live, table = made
    (token,) = table.grow(100 * live.read([PROMPTS[0]]).ends())
    assert live.write([PROMPTS[0]], most=2)[0][0] == token
