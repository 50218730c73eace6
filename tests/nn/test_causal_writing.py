"""Writing with the torch model: token by token the same as reading everything again and scoring in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.nn.tiny_llama import tiny_llama
from toolscout.nn import causal_engine
from toolscout.nn.causal import Network
from toolscout.nn.causal_engine import Live
from toolscout.nn.language import TokenTable, open_base

Allow = Callable[[int, Sequence[int]], NDArray[np.int64] | None]
ADDED = 5
PROMPTS = [[5, 9, 11], [7], [20, 21, 22, 23, 24, 25, 26], [3, 4], [300, 341, 30]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Live, TokenTable]:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder)
    base = open_base(str(folder))
    table = base.table(half=False)
    table.grow(np.random.default_rng(0).normal(size=(ADDED, base.architecture.hidden)).astype(np.float32))
    network = Network(base.architecture, base.weights(), 1, torch.device("cpu"))
    return Live.of(network, table), table


def slowly(made: tuple[Live, TokenTable], at: int, most: int, end: set[int], allow: Allow | None) -> list[int]:
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
    made: tuple[Live, TokenTable], allow: Allow | None, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, _ = made
    monkeypatch.setitem(causal_engine._NOTES, "cpu", room)
    free = live.write(PROMPTS, most=9, allow=allow)
    ends = {free[0][3], free[4][5]}  # so that rows end at different times
    found = live.write(PROMPTS, most=9, end=ends, allow=allow)
    wanted = [slowly(made, at, 9, ends, allow) for at in range(len(PROMPTS))]
    assert found == wanted
    assert len({len(one) for one in found}) > 1


def test_drawn_tokens_come_again_and_follow_the_odds(made: tuple[Live, TokenTable]) -> None:
    live, table = made
    prompts = [PROMPTS[0]] * 600
    few = table.logits(live.read([PROMPTS[0]]).ends(), None)[0].argsort()[-3:]
    drawn = live.write(prompts, most=1, temperature=2.0, allow=lambda row, written: few, seed=3)
    assert drawn == live.write(prompts, most=1, temperature=2.0, allow=lambda row, written: few, seed=3)
    odds = np.exp(table.logits(live.read([PROMPTS[0]]).ends(), few)[0] / 2.0)
    shares = np.array([[one[0] for one in drawn].count(token) for token in few]) / len(drawn)
    assert np.abs(shares - odds / odds.sum()).max() < 0.08
    assert live.write([], most=3) == []


def test_rows_that_the_table_gets_later_are_written(made: tuple[Live, TokenTable]) -> None:
    live, table = made
    (token,) = table.grow(100 * live.read([PROMPTS[0]]).ends())
    assert live.write([PROMPTS[0]], most=2)[0][0] == token
