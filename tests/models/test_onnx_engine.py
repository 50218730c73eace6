from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.tiny_llama import tiny_llama
from toolscout.errors import BadModel, BadRequest
from toolscout.models.language import onnx_engine
from toolscout.models.language.base import TokenTable, open_base
from toolscout.models.language.onnx_engine import OnnxEngine
from toolscout.models.language.onnx_graph import quantise

pytestmark = pytest.mark.slow

pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

PROMPTS = [[5, 9, 40, 77, 12], [5, 9, 41], [5, 9, 40, 77, 12, 300, 8, 8, 1], [7], [5, 9, 40]]


class Oracle:
    """The same network in torch, run on every sequence alone."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def state(self, tokens: Sequence[int]) -> Any:
        import torch

        with torch.no_grad():
            return self.network.model(torch.tensor([list(tokens)])).last_hidden_state[0, -1].numpy()

    def logits(self, tokens: Sequence[int]) -> Any:
        import torch

        with torch.no_grad():
            return self.network(torch.tensor([list(tokens)])).logits[0, -1].numpy()

    def greedy(self, prompt: Sequence[int], most: int, end: int = -1) -> list[int]:
        written: list[int] = []
        while len(written) < most:
            token = int(self.logits([*prompt, *written]).argmax())
            if token == end:
                break
            written.append(token)
        return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    path = tmp_path_factory.mktemp("tiny")
    return path, Oracle(tiny_llama(path))


@pytest.fixture(scope="module")
def oracle(folder: tuple[Path, Oracle]) -> Oracle:
    return folder[1]


@pytest.fixture
def served(folder: tuple[Path, Oracle]) -> OnnxEngine:
    base = open_base(str(folder[0]))
    return OnnxEngine(base.architecture, base.weights(), bits=32, threads=1)


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)


def test_states_and_logits_are_those_of_torch(served: OnnxEngine, oracle: Oracle) -> None:
    ends = served.read(PROMPTS).ends()
    near(ends, [oracle.state(prompt) for prompt in PROMPTS])
    near(served.table.logits(ends, None), [oracle.logits(prompt) for prompt in PROMPTS])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen2", {}),
        ("llama", {"tie_word_embeddings": False}),
        (
            "llama",
            {
                "num_key_value_heads": 4,
                "head_dim": 32,
                "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
            },
        ),
    ],
)
def test_relatives_are_served_too(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    oracle = Oracle(tiny_llama(tmp_path, kind=kind, **changes))
    base = open_base(str(tmp_path))
    served = OnnxEngine(base.architecture, base.weights(), bits=32, threads=1)
    ends = served.read(PROMPTS).ends()
    near(served.table.logits(ends, None), [oracle.logits(prompt) for prompt in PROMPTS])


def test_what_follows_is_as_if_it_had_been_read(served: OnnxEngine, oracle: Oracle) -> None:
    reading = served.read(PROMPTS)
    owners = [0, 0, 0, 2, 3, 4, 0]
    paths = [[3], [3, 8, 20], [3, 8], [9, 9], [3], [11, 12, 13, 14], [3, 8, 20]]
    wanted = [oracle.state([*PROMPTS[owner], *path]) for owner, path in zip(owners, paths, strict=True)]
    near(reading.after(owners, paths), wanted)
    near(reading.after(owners[::-1], paths[::-1]), wanted[::-1])
    deeper = [[*path, 50, 60] for path in paths]
    wanted = [oracle.state([*PROMPTS[owner], *path]) for owner, path in zip(owners, deeper, strict=True)]
    near(reading.after(owners, deeper), wanted)
    assert reading.after([], []).shape == (0, 32)


def test_prompts_together_may_be_longer_than_the_context(served: OnnxEngine, oracle: Oracle) -> None:
    prompts = [[number, *range(20, 75)] for number in range(3, 9)]  # the context is 64
    reading = served.read(prompts)
    near(reading.ends(), [oracle.state(prompt) for prompt in prompts])
    near(reading.after(range(6), [[7, 8]] * 6), [oracle.state([*prompt, 7, 8]) for prompt in prompts])


def test_what_was_looked_at_stays_as_it_was(folder: tuple[Path, Oracle]) -> None:
    base = open_base(str(folder[0]))
    reading = OnnxEngine(base.architecture, base.weights(), threads=1).read(
        PROMPTS
    )  # 8 bits: rounded a little differently
    first = reading.after([2], [[9, 9]])
    owners, paths = [0, 2, 2, 1], [[3], [9, 9], [9, 9, 4], [9]]
    again = reading.after(owners, paths)
    np.testing.assert_array_equal(again[1], first[0])
    np.testing.assert_array_equal(reading.after(owners[::-1], paths[::-1]), again[::-1])


def test_single_tokens_follow_one_by_one(served: OnnxEngine, oracle: Oracle) -> None:
    reading = served.read(PROMPTS)
    for owner, path in ((1, [3]), (2, [4]), (2, [4, 5]), (2, [4, 5, 6]), (2, [7]), (2, [7, 5]), (2, [4, 9])):
        near(reading.after([owner], [path]), [oracle.state([*PROMPTS[owner], *path])])


def test_small_runs_change_nothing(served: OnnxEngine, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (
        "_RUN_TOKENS",
        "_CACHE_TOKENS",
        "_PIECE_TOKENS",
        "_PATH_TOKENS",
        "_LAST_PROMPT_TOKENS",
        "_WRITE_CACHE_TOKENS",
    ):
        monkeypatch.setattr(onnx_engine, limit, 3)
    reading = served.read(PROMPTS)
    near(reading.ends(), [oracle.state(prompt) for prompt in PROMPTS])
    for paths in ([[3], [3, 4], [5, 6, 7, 8]], [[3, 4, 5], [3], [9]]):
        near(
            reading.after([0, 2, 1], paths),
            [oracle.state([*PROMPTS[at], *path]) for at, path in zip([0, 2, 1], paths, strict=True)],
        )
    assert served.write(PROMPTS, most=4) == [oracle.greedy(prompt, 4) for prompt in PROMPTS]


def test_the_beginning_of_a_prompt_is_read_once(
    served: OnnxEngine, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sizes = served.run, []
    monkeypatch.setattr(
        served, "run", lambda notes, tokens, *rest: (sizes.append(len(tokens)), run(notes, tokens, *rest))[1]
    )
    long = list(range(20, 50))
    near(served.read([[*long, 1]]).ends(), [oracle.state([*long, 1])])
    near(served.read([[*long, 2, 3]]).ends(), [oracle.state([*long, 2, 3])])
    near(served.read([[*long, 2, 3]]).ends(), [oracle.state([*long, 2, 3])])
    assert sizes == [31, 2, 1]
    sizes.clear()
    served.read([[9, *long, 1], [9, *long, 2]])
    assert sizes == [31, 2]


def test_writing_is_what_torch_would_write(served: OnnxEngine, oracle: Oracle) -> None:
    wanted = [oracle.greedy(prompt, 12) for prompt in PROMPTS]
    assert served.write(PROMPTS, most=12) == wanted
    end = wanted[0][3]
    assert served.write(PROMPTS, most=12, end=[end]) == [oracle.greedy(prompt, 12, end) for prompt in PROMPTS]
    assert [len(text) for text in served.write([[1] * 60, [1] * 10], most=20)] == [4, 20]  # the context is 64
    assert served.write([], most=3) == []


def test_what_may_be_written_is_up_to_the_caller(served: OnnxEngine, oracle: Oracle) -> None:
    def allow(one: int, written: Sequence[int]) -> Any:
        if one == 0:
            return np.array([30, 40, 50]) if len(written) < 3 else np.array([], int)
        return np.array([7]) if len(written) == 1 else None

    first, second = served.write(PROMPTS[:2], most=5, allow=allow)
    assert len(first) == 3
    for at, token in enumerate(first):
        assert token == max((30, 40, 50), key=lambda one: oracle.logits([*PROMPTS[0], *first[:at]])[one])
    assert second[1] == 7
    assert second[2:] == oracle.greedy([*PROMPTS[1], *second[:2]], 3)


def test_chance_depends_on_the_seed_alone(served: OnnxEngine) -> None:
    drawn = served.write(PROMPTS, most=6, temperature=1.0, seed=3)
    assert drawn == served.write(PROMPTS, most=6, temperature=1.0, seed=3)
    assert drawn[:2] == served.write(PROMPTS[:2], most=6, temperature=1.0, seed=3)
    assert drawn != served.write(PROMPTS, most=6, temperature=1.0, seed=4)


def test_eight_bits_are_close_and_do_not_depend_on_the_batch(folder: tuple[Path, Oracle], oracle: Oracle) -> None:
    base = open_base(str(folder[0]))
    small = OnnxEngine(base.architecture, base.weights(), threads=1)
    ends = small.read(PROMPTS).ends()
    wanted = np.stack([oracle.state(prompt) for prompt in PROMPTS])
    assert np.linalg.norm(ends - wanted) < 0.05 * np.linalg.norm(wanted)
    for prompt, end in zip(PROMPTS, ends, strict=True):
        alone = OnnxEngine(base.architecture, base.weights(), threads=1).read([prompt]).ends()[0]
        assert np.linalg.norm(alone - end) < 0.005 * np.linalg.norm(end)


def test_added_tokens_are_read_and_written(folder: tuple[Path, Oracle], oracle: Oracle) -> None:
    base = open_base(str(folder[0]))
    weights = base.weights()
    rows = weights["model.embed_tokens.weight"]
    served = OnnxEngine(base.architecture, weights, TokenTable(rows, rows[[12, 77]]), bits=32, threads=1)
    near(served.read([[5, 340, 341]]).ends(), [oracle.state([5, 12, 77])])
    assert list(served.table.grow(rows[[40]])) == [342]
    near(served.read([[5, 342]]).ends(), [oracle.state([5, 40])])


def test_blocks_round_to_the_nearest() -> None:
    weight = np.random.default_rng(0).normal(size=(6, 70)).astype(np.float32)
    weight[3] = 0
    packed, scales = quantise(weight, 32)
    back = ((packed.astype(np.float32) - 128) * scales[..., np.newaxis]).reshape(6, -1)
    assert packed.shape == (6, 3, 32)
    assert np.abs(back[:, :70] - weight).max() <= scales.max() * 0.501
    assert not back[:, 70:].any()
    assert not back[3].any()


def test_bad_input_is_refused(served: OnnxEngine, folder: tuple[Path, Oracle]) -> None:
    for prompts in ([[]], [[1], [340]], [[-1]], [[1] * 65]):
        with pytest.raises(BadRequest):
            served.read(prompts)
    with pytest.raises(BadRequest, match="at least one token"):
        served.read([[1]]).after([0], [[]])
    assert served.read([]).ends().shape == (0, 32)
    base = open_base(str(folder[0]))
    weights = base.weights()
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(BadModel, match=r"lack model.layers.1.mlp.up_proj.weight"):
        OnnxEngine(base.architecture, weights)
