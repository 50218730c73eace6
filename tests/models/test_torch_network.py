"""The torch model that learns: equal to transformers, to itself without a cache, and to what ONNX Runtime serves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.models.tiny_llama import tiny_llama
from toolscout.models.language import torch_engine
from toolscout.models.language.base import Base, TokenTable, open_base
from toolscout.models.language.lora import Adapter
from toolscout.models.language.torch_engine import TorchEngine
from toolscout.models.language.torch_network import KeyValueCache, TransformerNetwork, pad

pytestmark = pytest.mark.slow

PROMPTS = [[5, 9, 40, 77, 12], [5, 9, 41], [5, 9, 40, 77, 12, 300, 8, 8, 1], [7], [340, 9, 341]]
OWNERS = [0, 0, 2, 3, 4, 0, 1]
PATHS = [[3], [3, 8, 20], [9, 342], [3], [11, 12, 13, 14], [3, 8, 20], [341]]
CPU = torch.device("cpu")


class Oracle:
    """transformers' own network, run on every sequence alone, over the base's rows and the added ones."""

    def __init__(self, network: Any, added: Any) -> None:
        self.network = network
        self.rows = torch.cat([network.get_input_embeddings().weight.detach(), torch.tensor(added)])
        head = network.get_output_embeddings().weight.detach()
        self.head = torch.cat([head, torch.tensor(added)]).numpy()

    def states(self, tokens: Sequence[int]) -> Any:
        with torch.no_grad():
            return self.network.model(inputs_embeds=self.rows[list(tokens)][None]).last_hidden_state[0].numpy()

    def logits(self, tokens: Sequence[int]) -> Any:
        return self.head @ self.states(tokens)[-1]

    def greedy(self, prompt: Sequence[int], most: int, end: int = -1) -> list[int]:
        written: list[int] = []
        while len(written) < most:
            token = int(self.logits([*prompt, *written]).argmax())
            if token == end:
                break
            written.append(token)
        return written


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Base, Oracle, TransformerNetwork]:
    folder = tmp_path_factory.mktemp("tiny")
    network = tiny_llama(folder)
    base = open_base(str(folder))
    return base, Oracle(network, added()), TransformerNetwork(base.architecture, base.weights(), 2, CPU)


def added() -> Any:
    return (0.4 * np.random.default_rng(1).normal(size=(3, 32))).astype(np.float32)


@pytest.fixture
def live(tiny: tuple[Base, Oracle, TransformerNetwork]) -> TorchEngine:
    base, _, network = tiny
    return TorchEngine.of(network, TokenTable(base.weights()["model.embed_tokens.weight"], added()))


@pytest.fixture
def oracle(tiny: tuple[Base, Oracle, TransformerNetwork]) -> Oracle:
    return tiny[1]


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [("llama", {}), ("llama", {"tie_word_embeddings": False}), ("qwen2", {"num_key_value_heads": 4})],
)
def test_the_network_is_that_of_transformers(tmp_path: Path, kind: str, changes: dict[str, Any], rank: int) -> None:
    oracle = Oracle(tiny_llama(tmp_path, kind=kind, **changes), added())
    base = open_base(str(tmp_path))
    network = TransformerNetwork(base.architecture, base.weights(), rank, CPU)
    with torch.no_grad():
        states = network.states(PROMPTS, torch.tensor(added()), network.merged())
        unlearned = network.states(PROMPTS, torch.tensor(added()), network.base_matrices())
    head = network.head.numpy()
    for row, prompt in enumerate(PROMPTS):
        near(states[row, : len(prompt)].numpy(), oracle.states(prompt))
        near(unlearned[row, : len(prompt)].numpy(), oracle.states(prompt))
        near(states[row, len(prompt) - 1].numpy() @ head.T, oracle.logits(prompt)[: len(head)])


def test_a_past_stands_for_the_tokens_before(tiny: tuple[Base, Oracle, TransformerNetwork]) -> None:
    _, oracle, network = tiny
    rows, merged = torch.tensor(added()), network.merged()
    with torch.no_grad():
        _, past = network(network.embed(pad(PROMPTS, CPU), rows), merged, keep=True)
        past = KeyValueCache(past.keys, past.values, torch.tensor([len(prompt) for prompt in PROMPTS]))
        more = [[8, 342, 30]] * len(PROMPTS)
        states, kept = network(network.embed(pad(more, CPU), rows), merged, past, keep=True)
    for row, prompt in enumerate(PROMPTS):
        near(states[row].numpy(), oracle.states([*prompt, *more[row]])[-3:])
    assert kept.keys.shape == (2, len(PROMPTS), 2, 3, 16)
    assert network(network.embed(pad(more, CPU), rows), merged)[1] is None


def test_cudnn_does_not_plan_every_step_anew(
    tiny: tuple[Base, Oracle, TransformerNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, allowed = functional.scaled_dot_product_attention, []

    def watched(*told: Any, **named: Any) -> torch.Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return plain(*told, **named)

    before = torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    network = tiny[2]
    network.states([[5, 9]], torch.zeros(0, network.architecture.hidden), network.merged())
    assert allowed
    assert not any(allowed)
    assert torch.backends.cuda.cudnn_sdp_enabled() is before


def test_reading_and_looking_ahead_are_what_reading_all_would_be(
    live: TorchEngine, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in (256, 2):
        monkeypatch.setattr(torch_engine, "_PROMPTS", limit)
        monkeypatch.setattr(torch_engine, "_PATHS", limit)
        reading = live.read(PROMPTS)
        near(reading.ends(), [oracle.states(prompt)[-1] for prompt in PROMPTS])
        wanted = [oracle.states([*PROMPTS[owner], *path])[-1] for owner, path in zip(OWNERS, PATHS, strict=True)]
        near(reading.after(OWNERS, PATHS), wanted)
    assert live.read([]).ends().shape == reading.after([], []).shape == (0, 32)


def test_writing_is_what_the_best_token_after_another_would_be(
    live: TorchEngine, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [oracle.greedy(prompt, 8) for prompt in PROMPTS]
    assert live.write(PROMPTS, most=8) == wanted
    monkeypatch.setattr(torch_engine, "_PROMPTS", 2)
    end = wanted[0][3]
    assert live.write(PROMPTS, most=8, end=[end]) == [oracle.greedy(prompt, 8, end) for prompt in PROMPTS]
    assert live.write([], most=3) == []


def test_what_may_be_written_is_up_to_the_caller(live: TorchEngine, oracle: Oracle) -> None:
    def allow(one: int, written: Sequence[int]) -> Any:
        if one == 0:
            return np.array([30, 340, 341]) if len(written) < 3 else np.array([], int)
        return np.array([342]) if len(written) == 1 else None

    first, second = live.write(PROMPTS[:2], most=5, allow=allow)
    assert len(first) == 3
    for at, token in enumerate(first):
        assert token == max((30, 340, 341), key=lambda one: oracle.logits([*PROMPTS[0], *first[:at]])[one])
    assert second[1] == 342
    assert second[2:] == oracle.greedy([*PROMPTS[1], *second[:2]], 3)
    assert live.write(PROMPTS[:1], most=5, end=[342], allow=lambda one, written: np.array([342])) == [[]]


def test_chance_is_up_to_the_seed(live: TorchEngine) -> None:
    drawn = live.write(PROMPTS, most=6, temperature=1.0, seed=3)
    assert drawn == live.write(PROMPTS, most=6, temperature=1.0, seed=3)
    assert drawn != live.write(PROMPTS, most=6, temperature=1.0, seed=4)


def test_it_is_what_onnx_runtime_serves(tiny: tuple[Base, Oracle, TransformerNetwork]) -> None:
    pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")
    from toolscout.models.language.onnx_engine import OnnxEngine

    base, _, _ = tiny
    network = trained(base, 3)
    weights = Adapter(network.trained_arrays()).merge_into(base.architecture, base.weights())
    table = TokenTable(weights["model.embed_tokens.weight"], added())
    live, served = TorchEngine.of(network, table), OnnxEngine(base.architecture, weights, table, bits=32, threads=1)
    near(live.read(PROMPTS).ends(), served.read(PROMPTS).ends())
    near(live.read(PROMPTS).after(OWNERS, PATHS), served.read(PROMPTS).after(OWNERS, PATHS))
    assert live.write(PROMPTS, most=6) == served.write(PROMPTS, most=6)


def trained(base: Base, rank: int) -> TransformerNetwork:
    """A network whose learned numbers are anything."""
    network = TransformerNetwork(base.architecture, base.weights(), rank, CPU)
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return network


@pytest.mark.parametrize("rank", [0, 3])
def test_what_was_learned_is_merged_in_numpy_as_in_torch(
    tiny: tuple[Base, Oracle, TransformerNetwork], rank: int
) -> None:
    base, oracle, _ = tiny
    network = trained(base, rank)
    weights = Adapter(network.trained_arrays()).merge_into(base.architecture, base.weights())
    merged = TransformerNetwork(base.architecture, weights, 0, CPU).merged()
    for kind, matrices in network.merged().items():
        for found, wanted in zip(merged[kind], matrices, strict=True):
            near(found.detach().numpy(), wanted.detach().numpy())
    with torch.no_grad():
        states = network.states([PROMPTS[0]], torch.tensor(added()), network.merged())
        before = network.states([PROMPTS[0]], torch.tensor(added()), network.base_matrices())
    near(before[0].numpy(), oracle.states(PROMPTS[0]))
    assert np.abs(states[0].numpy() - before[0].numpy()).max() > 0.1


def test_rows_that_come_after_the_prompts_were_read_are_known(live: TorchEngine, oracle: Oracle) -> None:
    reading = live.read(PROMPTS[:2])
    table = live._table
    assert table is not None
    (token,) = table.grow(added()[:1])
    near(reading.after([1], [[int(token)]]), [oracle.states([*PROMPTS[1], 340])[-1]])
    near(live.read([[5, int(token)]]).ends(), [oracle.states([5, 340])[-1]])
