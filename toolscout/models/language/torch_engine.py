"""A language model in torch, for inference: gives hidden states after prompts and paths, and generates tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from toolscout.core.arrays import Floats
from toolscout.models.decoding.constrained import Allow, LanguageEngine, Reading
from toolscout.models.language.base import TokenTable
from toolscout.models.language.sampling import TokenSampler
from toolscout.models.language.torch_network import (
    GrowingKeyValueCache,
    KeyValueCache,
    LayerMatrices,
    TransformerNetwork,
    pad,
)

_PROMPTS = 256  # the most prompts in a batch
_PATHS = 1024  # the most paths in a batch
_CACHE_BYTES = {"cuda": 24 << 30, "cpu": 1 << 30}  # the most bytes of key-value cache of a generated batch
_BATCH_BYTES = 24 << 30  # the most bytes for a batch of prompts or paths
_SHARE = 0.5  # the share of free memory to use: the rest is for copies, and for other users of the device
_PACKED = 0.75  # when fewer than this share of a batch goes on, finished texts are removed from it


def free_memory(device: torch.device) -> float:
    """Bytes of memory that a batch may use now; infinity where the device is not a GPU."""
    if device.type != "cuda":
        return math.inf
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_BATCH_BYTES, _SHARE * (free + cached))


def memory_batches(costs: Sequence[int], most: int, room: Callable[[], float]) -> Iterator[range]:
    """Split rows, in ascending order of cost, into batches of at most `most` rows that fit into memory.

    A batch costs its number of rows times its highest cost. `room` gives the memory, and is called for each batch. A
    row that does not fit is a batch of its own.
    """
    first = 0
    while first < len(costs):
        available, last = room(), first + 1
        while last < min(len(costs), first + most) and costs[last] * (last + 1 - first) <= available:
            last += 1
        yield range(first, last)
        first = last


class TorchEngine(LanguageEngine):
    """A network with the weights that it has when the engine is made."""

    def __init__(self, network: TransformerNetwork, rows: Tensor, table: TokenTable | None = None) -> None:
        """`rows` are the embeddings of the added tokens. `table` has the output embeddings, which `write` needs."""
        self._network, self._rows, self._table = network, rows, table
        self._output_rows: tuple[Tensor, ...] = ()
        self._version = -1 if table is None else table.version
        self._output_version = -1
        self.dimension = network.architecture.hidden
        with torch.no_grad():
            self._merged: LayerMatrices = network.merged()

    @classmethod
    def of(cls, network: TransformerNetwork, table: TokenTable) -> TorchEngine:
        """An engine with the tokens of a table, including those that are added to it later."""
        return cls(network, torch.tensor(table.added(), device=network.device), table)

    def read(self, prompts: Sequence[Sequence[int]]) -> TorchReading:
        """Read prompts of token ids, in batches of similar length."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        ends = np.zeros((len(prompts), self.dimension), np.float32)
        pasts: list[tuple[KeyValueCache, list[int]]] = []
        for rows in self._readable([len(prompts[i]) for i in order]):
            few = [order[row] for row in rows]
            states, past = self._run([prompts[i] for i in few], None)
            ends[few] = states
            pasts.append((past, few))
        return TorchReading(self, ends, pasts)

    def _run(self, sequences: Sequence[Sequence[int]], past: KeyValueCache | None) -> tuple[Floats, KeyValueCache]:
        """The last states of sequences, and their key-value cache."""
        states, kept = self._states(sequences, past)
        return states.float().cpu().numpy(), kept

    @torch.no_grad()
    def _states(self, sequences: Sequence[Sequence[int]], past: KeyValueCache | None) -> tuple[Tensor, KeyValueCache]:
        if self._table is not None and self._version != self._table.version:
            self._version = self._table.version
            self._rows = torch.tensor(self._table.added(), device=self._network.device)
        embedded = self._network.embed(pad(sequences, self._network.device), self._rows)
        states, kept = self._network(embedded, self._merged, past, keep=True)
        lengths = torch.tensor([len(one) for one in sequences], device=self._network.device)
        last = states[torch.arange(len(sequences), device=lengths.device), lengths - 1]
        return last, kept._replace(lengths=lengths)

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        most: int,
        temperature: float = 0.0,
        end: Collection[int] = (),
        allow: Allow | None = None,
        seed: int = 0,
    ) -> list[list[int]]:
        """Generate tokens, as `TextWriter.write` says."""
        assert self._table is not None, "generating needs a table of all tokens"
        written: list[list[int]] = [[] for _ in prompts]
        if most < 1 or not prompts:
            return written
        choice = TokenSampler(self._output_embeddings(self._table), temperature, end, allow, seed)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for few in self._batches([len(prompts[i]) + most for i in order]):
            self._continue_all(prompts, [order[place] for place in few], written, most, choice)
        return written

    def _continue_all(
        self,
        prompts: Sequence[Sequence[int]],
        few: list[int],
        written: list[list[int]],
        most: int,
        choice: TokenSampler,
    ) -> None:
        """Generate for some prompts; in halves where memory has run out since it was measured."""
        try:
            self._continue(prompts, few, written, most, choice)
        except RuntimeError:  # some kernels report missing memory as an error of their own
            if len(few) == 1:
                raise
        else:
            return
        torch.cuda.empty_cache()
        for row in few:
            written[row].clear()
        for half in (few[: len(few) // 2], few[len(few) // 2 :]):
            self._continue_all(prompts, half, written, most, choice)

    def _output_embeddings(self, table: TokenTable) -> tuple[Tensor, ...]:
        """The output embeddings of a table as float32 on the device of the network."""
        if self._output_version != table.version:
            self._output_version = table.version
            parts = (np.ascontiguousarray(part) for part in table.output_embeddings())
            self._output_rows = tuple(torch.from_numpy(part).to(self._network.device).float() for part in parts)
        return self._output_rows

    def _batches(self, lengths: Sequence[int]) -> Iterator[range]:
        """Batches of prompts to generate for, by the memory of caches that are as long as the longest of a batch."""
        most = _CACHE_BYTES.get(self._network.device.type, _CACHE_BYTES["cpu"])
        costs = [length * self.cache_bytes for length in lengths]
        return memory_batches(costs, len(lengths), lambda: min(most, self.free_memory()))

    def _readable(self, lengths: Sequence[int]) -> Iterator[range]:
        """Batches of prompts to read, given their lengths in ascending order."""
        return memory_batches([self._read_bytes(one) for one in lengths], _PROMPTS, self.free_memory)

    def free_memory(self) -> float:
        """Bytes of memory that a batch may use now on the device of the network."""
        return free_memory(self._network.device)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the key-value cache of one token."""
        shape = self._network.architecture
        return 2 * shape.layers * shape.kv_heads * shape.head_size * self._network.kind.itemsize

    def _read_bytes(self, length: int) -> int:
        """The most bytes for reading a prompt: its key-value cache, the activations of one layer, and attention scores.

        The scores, in float32, are what the slowest attention kernel needs; the others need less.
        """
        shape = self._network.architecture
        layer = 6 * shape.hidden + 4 * shape.inner + 4 * (shape.heads + 2 * shape.kv_heads) * shape.head_size
        return length * (self.cache_bytes + layer * self._network.kind.itemsize) + 4 * shape.heads * length * length

    @torch.no_grad()
    def _continue(
        self,
        prompts: Sequence[Sequence[int]],
        few: list[int],
        written: list[list[int]],
        most: int,
        choice: TokenSampler,
    ) -> None:
        """Generate for some prompts in one batch, a token of each at a time.

        Texts that have ended are removed only when they are many, because removing them copies the cache.
        """
        states, cache = self._read_with_room([prompts[i] for i in few], most)
        live = list(range(len(few)))
        for step in range(most):
            tokens = choice.next([few[place] for place in live], states, [written[few[place]] for place in live])
            live = [place for place, token in zip(live, tokens, strict=True) if token is not None]
            for place, token in zip(live, (token for token in tokens if token is not None), strict=True):
                written[few[place]].append(token)
            if not live or step == most - 1:
                return
            if len(live) < _PACKED * len(few):
                cache, few, live = cache.select(live), [few[place] for place in live], list(range(len(live)))
            last = [[written[i][-1]] if written[i] else [0] for i in few]
            embedded = self._network.embed(pad(last, self._network.device), self._rows)
            found, _ = self._network(embedded, self._merged, cache)
            states = found[live, -1].float()
            cache.grow()

    def _read_with_room(self, prompts: Sequence[Sequence[int]], most: int) -> tuple[Tensor, GrowingKeyValueCache]:
        """The last states of prompts, and their cache with room for `most` more tokens."""
        shape, device, longest = self._network.architecture, self._network.device, max(map(len, prompts))
        room = (shape.layers, len(prompts), shape.kv_heads, longest + most, shape.head_size)
        keys, values = (torch.zeros(room, dtype=self._network.kind, device=device) for _ in range(2))
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        ends = []
        for rows in self._readable([len(prompt) for prompt in prompts]):
            states, past = self._states([prompts[row] for row in rows], None)
            width = past.keys.shape[3]
            keys[:, rows.start : rows.stop, :, :width] = past.keys
            values[:, rows.start : rows.stop, :, :width] = past.values
            ends.append(states)
        return torch.cat(ends).float(), GrowingKeyValueCache(keys, values, lengths, longest)


class TorchReading(Reading):
    """Prompts that a TorchEngine has read."""

    def __init__(self, engine: TorchEngine, ends: Floats, pasts: Sequence[tuple[KeyValueCache, Sequence[int]]]) -> None:
        """Take the last state of each prompt, and (key-value cache, numbers of its prompts) of each batch."""
        self._engine, self._ends, self._pasts = engine, ends, pasts
        self._place = {row: (batch, at) for batch, (_, few) in enumerate(pasts) for at, row in enumerate(few)}

    def ends(self) -> Floats:
        """The state at the end of each prompt."""
        return self._ends

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """The states at the ends of paths, each after its prompt."""
        found = np.zeros((len(owners), self._engine.dimension), np.float32)
        batches: dict[int, list[int]] = {}
        for place, owner in enumerate(owners):
            batches.setdefault(self._place[owner][0], []).append(place)
        for batch, places in batches.items():
            whole = self._pasts[batch][0]
            # Each path needs a copy of its prompt's cache.
            costs = [whole.keys.shape[3] * self._engine.cache_bytes] * len(places)
            for rows in memory_batches(costs, _PATHS, self._engine.free_memory):
                few = [places[row] for row in rows]
                past = _select_rows(whole, [self._place[owners[place]][1] for place in few])
                found[few], _ = self._engine._run([paths[place] for place in few], past)
        return found


def _select_rows(past: KeyValueCache, rows: Sequence[int]) -> KeyValueCache:
    picked = torch.tensor(rows, device=past.lengths.device)
    width = int(past.lengths[picked].max())
    return KeyValueCache(past.keys[:, picked, :, :width], past.values[:, picked, :, :width], past.lengths[picked])
