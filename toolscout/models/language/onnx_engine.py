"""A language model on ONNX Runtime, on the CPU: gives hidden states after prompts and paths, and generates tokens.

The key-value cache of a sequence is an array [2 * layers, heads, tokens, size]. It is reused for the prefix that a
prompt shares with the one before, for the prompts of a reading, and for the paths computed in a reading.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolscout.core.arrays import Bools, Floats, Ints
from toolscout.errors import BadModel, BadRequest
from toolscout.models.decoding.constrained import Allow, LanguageEngine, Reading
from toolscout.models.language.architecture import Architecture
from toolscout.models.language.base import TokenTable
from toolscout.models.language.onnx_graph import Bits, write_graph
from toolscout.models.onnx_runtime import available_cores, ort, session_options

# Tokens of several prompts in one run: enough to keep the cores busy, few enough that the masked attention among
# different prompts stays cheap.
_RUN_TOKENS = 256
# The most cached tokens in one run over paths of several prompts. With _RUN_TOKENS it must be below the graph's ROOM.
_CACHE_TOKENS = 1024
# Tokens of one long prompt in one run, which bounds the attention mask.
_PIECE_TOKENS = 1024
# Tokens of the last prompt whose cache is kept for the next prompt.
_LAST_PROMPT_TOKENS = 1024
# Tokens of paths whose cache a reading keeps.
_PATH_TOKENS = 1024
# Prompts that are continued in one batch, and the most tokens of their caches in all.
_WRITE_BATCH, _WRITE_CACHE_TOKENS = 16, 8192
_MASKED = np.float32(-1e9)
# More threads than this do not make one short request faster.
_THREADS = 4

_Path = tuple[int, tuple[int, ...]]  # the number of a prompt, and the tokens after it


class OnnxEngine(LanguageEngine):
    """A language model on ONNX Runtime. Safe to use from several threads at once."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, Floats],
        table: TokenTable | None = None,
        *,
        bits: Bits = 8,
        threads: int | None = None,
    ) -> None:
        """Build a session from the weights, with any adapters already merged into them.

        `table` has the embeddings of all tokens, by default those among the weights. `bits` 8 quantises the weights,
        32 keeps them exact.
        """
        self.architecture, self.dimension = architecture, architecture.hidden
        self.table = TokenTable.of(weights, half=bits == 8) if table is None else table
        self._session, self._weights = _open_session(
            architecture, weights, bits, threads or min(available_cores(), _THREADS)
        )
        self._names = [f"{part}_{layer}" for layer in range(architecture.layers) for part in ("key", "value")]
        self._lock = threading.Lock()
        self._last: tuple[list[int], Floats] = ([], self._empty_cache())

    def read(self, prompts: Sequence[Sequence[int]]) -> OnnxReading:
        """Read prompts of token ids; a prefix that all share, also with the last prompt read, is not read again."""
        self._check(prompts)
        if not prompts:
            return OnnxReading(self, self._empty_cache(), [], np.zeros((0, self.dimension), np.float32))
        with self._lock:
            tokens, cache = self._last
        # The last token of each prompt is always read, because its state is needed.
        shared = min(_common_prefix(prompts), min(map(len, prompts)) - 1)
        known = min(_common_prefix([tokens, prompts[0]]), shared)
        cache = cache[:, :, :known]
        if len(prompts) > 1 and known < shared:
            _, more = self._continue(cache, prompts[0][known:shared])
            cache = np.concatenate([cache, more], axis=2)
        start = cache.shape[2]
        rests = [list(prompt[start:]) for prompt in prompts]
        ends = np.empty((len(prompts), self.dimension), np.float32)
        own_caches: list[Floats] = [cache[:, :, :0]] * len(prompts)
        for first, last in _pieces([len(rest) for rest in rests], [0] * len(rests), _RUN_TOKENS, 0):
            ends[first:last], own_caches[first:last] = self._read_some(cache, rests[first:last])
        with self._lock:
            self._last = (
                list(prompts[0][:_LAST_PROMPT_TOKENS]),
                np.concatenate([cache, own_caches[0]], axis=2)[:, :, :_LAST_PROMPT_TOKENS],
            )
        return OnnxReading(self, cache, own_caches, ends)

    def _read_some(self, cache: Floats, rests: Sequence[Sequence[int]]) -> tuple[Floats, list[Floats]]:
        """Read what follows the shared cache in each prompt, in one run: the last states, and the new caches."""
        if len(rests) == 1:
            state, found = self._continue(cache, rests[0])
            return state[np.newaxis], [found]
        start, sizes = cache.shape[2], [len(rest) for rest in rests]
        whose = np.repeat(np.arange(len(rests)), sizes)
        places = np.concatenate([np.arange(start, start + size) for size in sizes])
        sees = np.concatenate([np.ones((len(whose), start), bool), whose[:, np.newaxis] == whose], axis=1)
        joined = [token for rest in rests for token in rest]
        states, found = self.run(cache, joined, places, sees, np.cumsum(sizes) - 1)
        return states, np.split(found, np.cumsum(sizes)[:-1], axis=2)

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
        """Generate tokens as `TextWriter.write` says, and no further than the context.

        What is sampled for a prompt depends on its position and the seed, not on the other prompts.
        """
        written: list[list[int]] = [[] for _ in prompts]
        choice = _TokenSampler(self.table, temperature, frozenset(end), allow, seed, written)
        sizes = [len(prompt) + most for prompt in prompts]
        for first, last in _pieces([1] * len(prompts), sizes, _WRITE_BATCH, _WRITE_CACHE_TOKENS):
            self._write(prompts, range(first, last), most, choice)
        return written

    def _write(self, prompts: Sequence[Sequence[int]], group: Sequence[int], most: int, choice: _TokenSampler) -> None:
        """Generate for some prompts in one batch, a token of each at a time; texts that end leave the batch."""
        reading = self.read([prompts[one] for one in group])
        going, states = list(group), reading.ends()
        room = min(max(len(prompts[one]) for one in group) + most, self.architecture.context)
        cache = [ort.OrtValue.ortvalue_from_numpy(part) for part in reading.padded_caches(room)]
        for _ in range(most):
            rows = choice.extend(going, states)
            rows = [row for row in rows if len(prompts[going[row]]) + len(choice.written[going[row]]) < room]
            if not rows:
                return
            if len(rows) < len(going):
                going = [going[row] for row in rows]
                cache = [ort.OrtValue.ortvalue_from_numpy(part.numpy()[rows]) for part in cache]
            last = np.array([[choice.written[one][-1]] for one in going])
            lengths = np.array([len(prompts[one]) + len(choice.written[one]) for one in going])
            states = self._step(cache, last, lengths)

    def _step(self, cache: Sequence[Any], tokens: Ints, lengths: Ints) -> Floats:
        """Run one token [n, 1] of each sequence; changes the cache in place. `lengths` include that token."""
        binding = self._session.io_binding()
        for name, value in self._feed(tokens, lengths[:, np.newaxis] - 1, lengths, np.arange(len(tokens))).items():
            binding.bind_cpu_input(name, value)
        binding.bind_cpu_input("bias", np.zeros((1, 1, 1, int(lengths.max())), np.float32))
        for name, part in zip(self._names, cache, strict=True):
            binding.bind_ortvalue_input(name, part)
            binding.bind_ortvalue_output(f"new_{name}", part)
        binding.bind_output("states", "cpu")
        self._session.run_with_iobinding(binding)
        states: Floats = binding.get_outputs()[-1].numpy()
        return states

    def run(self, cache: Floats, tokens: Sequence[int], places: Ints, sees: Bools, take: Ints) -> tuple[Floats, Floats]:
        """Run new tokens after cached ones, as one row of the batch.

        Token i has the position places[i] and attends to the cached and new tokens, up to itself, at which sees[i] is
        true. Gives back the states of the tokens `take`, and the cache of all new tokens.
        """
        if not cache.shape[2]:
            # With an empty cache, the operator ignores the given positions; so one masked column is put before it.
            cache = np.zeros((*cache.shape[:2], 1, cache.shape[3]), np.float32)
            sees = np.pad(sees, ((0, 0), (1, 0)))
        total = sees.shape[1]
        feed = self._feed(np.array([tokens]), places[np.newaxis], np.array([total]), take)
        feed["bias"] = np.where(sees, np.float32(0), _MASKED)[np.newaxis, np.newaxis]
        feed |= {name: part[np.newaxis] for name, part in zip(self._names, cache, strict=True)}
        states, *found = self._session.run(None, feed)
        return states, np.concatenate(found)[:, :, cache.shape[2] :]

    def _feed(self, tokens: Ints, places: Ints, lengths: Ints, take: Ints) -> dict[str, Any]:
        return {
            "embeddings": self.table.embed(tokens),
            "positions": places,
            "lengths": (lengths - 1).astype(np.int32),
            "total": np.array(lengths.max(), np.int32),
            "take": take,
        }

    def _continue(self, cache: Floats, tokens: Sequence[int]) -> tuple[Floats, Floats]:
        """Run a sequence after cached tokens, in pieces where it is long: its last state, and its cache."""
        start, found = cache.shape[2], cache
        state = np.zeros((1, self.dimension), np.float32)
        for first in range(0, len(tokens), _PIECE_TOKENS):
            piece = tokens[first : first + _PIECE_TOKENS]
            past = found.shape[2]
            sees = np.ones((len(piece), past + len(piece)), bool)
            state, more = self.run(found, piece, np.arange(past, past + len(piece)), sees, np.array([len(piece) - 1]))
            found = np.concatenate([found, more], axis=2)
        return state[0], found[:, :, start:]

    def _empty_cache(self) -> Floats:
        size = self.architecture
        return np.zeros((2 * size.layers, size.kv_heads, 0, size.head_size), np.float32)

    def _check(self, prompts: Sequence[Sequence[int]]) -> None:
        for prompt in prompts:
            if not prompt:
                raise BadRequest("a prompt must have at least one token")
            if len(prompt) > self.architecture.context:
                raise BadRequest(f"a prompt of {len(prompt)} tokens does not fit into {self.architecture.context}")
            if min(prompt) < 0 or max(prompt) >= len(self.table):
                raise BadRequest(f"a prompt has a token outside of the {len(self.table)} that the model knows")


class OnnxReading(Reading):
    """Prompts that an OnnxEngine has read. Not safe to use from several threads at once."""

    def __init__(self, engine: OnnxEngine, shared: Floats, own_caches: list[Floats], ends: Floats) -> None:
        """Take the cache of the prefix that all prompts share, those of the rest of each, and the last states."""
        self._engine, self._shared, self._own_caches, self._ends = engine, shared, own_caches, ends
        self._known: dict[_Path, Floats] = {}
        self._states: dict[_Path, Floats] = {}

    def ends(self) -> Floats:
        """[n, d]: the hidden state, after the final norm, at the end of each prompt."""
        return self._ends

    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """[m, d]: the state after prompt number owners[i] and then the tokens paths[i], at least one token each.

        A prefix that several paths share is run once, and not again in a later call. The state of a path is kept, as
        with 8-bit activations it would differ a little when it is run together with other paths.
        """
        wanted = [(owner, tuple(path)) for owner, path in zip(owners, paths, strict=True)]
        if any(not path for _, path in wanted):
            raise BadRequest("a path must have at least one token")
        if len(self._known) > _PATH_TOKENS:
            self._known.clear()
            self._states.clear()
        missing = sorted(set(wanted) - self._states.keys())
        sizes = [self._size(owner) for owner, _ in missing]
        for first, last in _pieces([len(path) for _, path in missing], sizes, _RUN_TOKENS, _CACHE_TOKENS):
            self._states |= self._run_paths(missing[first:last])
        states = [self._states[one] for one in wanted]
        return np.stack(states) if states else np.zeros((0, self._engine.dimension), np.float32)

    def padded_caches(self, room: int) -> Floats:
        """The caches of all prompts as [2 * layers, n, heads, room, size]; tokens are generated in place."""
        parts, heads, shared, size = self._shared.shape
        found = np.zeros((parts, len(self._own_caches), heads, room, size), np.float32)
        found[:, :, :, :shared] = self._shared[:, np.newaxis]
        for row, cache in enumerate(self._own_caches):
            found[:, row, :, shared : shared + cache.shape[2]] = cache
        return found

    def _size(self, owner: int) -> int:
        return int(self._own_caches[owner].shape[2])

    def _run_paths(self, wanted: Sequence[_Path]) -> dict[_Path, Floats]:
        """Run the last tokens of some paths, and those of their prefixes that are not cached, in one run."""
        needed = {(owner, path[:end]): None for owner, path in wanted for end in range(1, len(path) + 1)}
        again = set(wanted)
        new = [node for node in needed if node not in self._known or node in again]
        old = [node for node in needed if node in self._known and node not in again]
        owners = list(dict.fromkeys(owner for owner, _ in wanted))
        parts = [self._shared, *(self._own_caches[owner] for owner in owners), *(self._known[node] for node in old)]
        cache = np.concatenate(parts, axis=2)
        column = {node: cache.shape[2] - len(old) + at for at, node in enumerate([*old, *new])}
        starts = np.cumsum([self._shared.shape[2], *(self._size(owner) for owner in owners)])
        place = {owner: slice(starts[at], starts[at + 1]) for at, owner in enumerate(owners)}
        sees = np.zeros((len(new), cache.shape[2] + len(new)), bool)
        sees[:, : starts[0]] = True
        for row, (owner, path) in enumerate(new):
            sees[row, place[owner]] = True
            sees[row, [column[owner, path[:end]] for end in range(1, len(path) + 1)]] = True
        ends = [self._shared.shape[2] + self._size(owner) for owner, _ in new]
        places = np.array([end + len(path) - 1 for end, (_, path) in zip(ends, new, strict=True)])
        row_of = {node: row for row, node in enumerate(new)}
        take = np.array([row_of[node] for node in wanted])
        states, found = self._engine.run(cache, [path[-1] for _, path in new], places, sees, take)
        self._known |= {node: found[:, :, row : row + 1].copy() for row, node in enumerate(new)}
        return dict(zip(wanted, states, strict=True))


@dataclass(slots=True)
class _TokenSampler:
    """Chooses the next token of each prompt and appends it to `written`."""

    table: TokenTable
    temperature: float
    end: frozenset[int]
    allow: Allow | None
    seed: int
    written: list[list[int]]

    def extend(self, going: Sequence[int], states: Floats) -> list[int]:
        """Append the next token of each prompt; gives back the rows of the prompts that have not ended."""
        allowed = [self.allow(one, self.written[one]) if self.allow else None for one in going]
        free = [row for row, tokens in enumerate(allowed) if tokens is None]
        logits = dict(zip(free, self.table.logits(states[free], None), strict=True)) if free else {}
        rows = []
        for row, (one, tokens) in enumerate(zip(going, allowed, strict=True)):
            if tokens is None:
                token = self._pick(logits[row], one)
            elif not len(tokens):
                continue
            elif len(tokens) == 1:
                token = int(tokens[0])
            else:
                token = int(tokens[self._pick(self.table.logits(states[row : row + 1], tokens)[0], one)])
            if token not in self.end:
                self.written[one].append(token)
                rows.append(row)
        return rows

    def _pick(self, logits: Floats, one: int) -> int:
        if not np.isfinite(logits).all():
            raise BadModel("the model computes numbers that are not finite; train it again")
        if self.temperature <= 0:
            return int(logits.argmax())
        weights = np.exp((logits.astype(np.float64) - logits.max()) / self.temperature)
        rng = np.random.default_rng((self.seed, one, len(self.written[one])))
        return int(rng.choice(len(weights), p=weights / weights.sum()))


def _common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """The length of the longest common prefix."""
    shortest = min(map(len, prompts))
    for at in range(shortest):
        if any(prompt[at] != prompts[0][at] for prompt in prompts):
            return at
    return shortest


def _pieces(runs: Sequence[int], seen: Sequence[int], most: int, most_seen: int) -> Iterator[tuple[int, int]]:
    """Cut a list into ranges in which neither sum exceeds its limit; one item alone may exceed it."""
    first = 0
    for last in range(1, len(runs) + 1):
        if last == len(runs) or sum(runs[first : last + 1]) > most or sum(seen[first : last + 1]) > most_seen:
            yield first, last
            first = last


def _open_session(
    architecture: Architecture, weights: Mapping[str, Floats], bits: Bits, threads: int
) -> tuple[ort.InferenceSession, list[Any]]:
    """The session, and the weights, which it does not copy: they must live as long as the session."""
    model = write_graph(architecture, weights, bits)
    values = [ort.OrtValue.ortvalue_from_numpy(array) for array in model.weights.values()]
    options = session_options(threads)
    options.add_external_initializers(list(model.weights), values)
    try:
        return ort.InferenceSession(model.graph, options, providers=["CPUExecutionProvider"]), values
    except Exception as error:  # the runtime's exceptions share no narrower base
        raise BadModel(f"the language model cannot be run: {error}") from error
