"""Constrained decoding: a language model ranks or generates tools, limited to the token sequences of a trie of ids.

A tool's score is the sum of the log-probabilities of its id's tokens, each normalised over the tokens that the whole
trie allows at that position. So the scores of all tools form one distribution: a token without an alternative costs
nothing, the length of an id does not matter, and filtering tools changes no score.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Doubles, Floats, Ints
from toolscout.errors import BadModel, BadRequest
from toolscout.models.decoding.best_first import BestFirstSearch, smallest
from toolscout.models.decoding.trie import PrunedTrie, Trie

LogitBonus = Callable[[int, tuple[int, ...], Ints], Floats]
"""A function that returns numbers to add to logits; it takes the number of a prompt, a prefix of an id, and the tokens
that may follow that prefix."""
Allow = Callable[[int, Sequence[int]], Ints | None]
"""Gives the tokens that may come next, None for any; called with the number of a prompt and the tokens written."""
MOST_IN_SET: Final = 8
_BLOCK = 4_000_000  # the most logits in memory at once
_SURE = 1e-12
_FLOOR = -1e30  # the least log-probability, so that scores stay finite


class Reading(ABC):
    """Prompts that a language model has read; continuations are computed without reading them again."""

    @abstractmethod
    def ends(self) -> Floats:
        """[n, d]: the hidden state, after the final norm, at the end of each prompt."""

    @abstractmethod
    def after(self, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
        """[m, d]: the state after prompt number owners[i] and then the tokens paths[i], at least one token each."""


class Engine(ABC):
    """A language model that reads prompts and gives hidden states of length `dimension`."""

    dimension: int

    @abstractmethod
    def read(self, prompts: Sequence[Sequence[int]]) -> Reading:
        """Read prompts of token ids; a prefix that all of them share is computed once."""


class Table(Protocol):
    """The output layer of a language model, with the tokens that were added to its vocabulary."""

    def logits(self, states: Floats, tokens: Ints | None) -> Floats:
        """The logits [m, len(tokens)] of tokens after hidden states [m, d]; None stands for the whole vocabulary."""


class TextWriter(ABC):
    """A language model that generates tokens."""

    @abstractmethod
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
        """Generate at most `most` tokens after each prompt, up to a token of `end`, which is not returned.

        allow(i, written) gives the tokens that may come next for prompt i after the tokens written so far: None for
        any; an empty array ends the text. `temperature` 0 takes the most probable token.
        """


class LanguageEngine(Engine, TextWriter):
    """A language model that both gives hidden states and generates tokens."""


def best(
    reading: Reading,
    table: Table,
    trie: Trie,
    k: int,
    *,
    pruned: PrunedTrie | None = None,
    width: int = 16,
    budget: int = 512,
    temperature: float = 1.0,
    extra: Collection[str] = (),
    logit_bonus: LogitBonus | None = None,
) -> list[list[tuple[str, float]]]:
    """The k best tools of every prompt with their log-probabilities, best first, ties by id. Raises BadRequest.

    The search is exact, because a prefix never scores below its continuations. Each round expands the `width` best
    prefixes of every prompt in one batch, until no prefix could change a ranking. Once a prompt has expanded `budget`
    prefixes and found k tools, it stops early.

    pruned: a view of the trie that leaves tools out; it changes no score.
    extra: ids in the trie that are not tools, such as "no tool". They are ranked among the tools but do not count
        towards k; the caller removes them.
    logit_bonus: numbers to add to the logits.
    """
    _check_positive(k=k, width=width, budget=budget)
    _check_temperature(temperature)
    view = trie if pruned is None else pruned
    count = len(reading.ends())
    if _is_empty(view):
        return [[] for _ in range(count)]
    extra = frozenset(extra)
    searches = [BestFirstSearch(trie, k + sum(key in trie for key in extra)) for _ in range(count)]
    while rows := [(owner, one) for owner, search in enumerate(searches) for one in search.next(width, budget)]:
        states = _states(reading, [owner for owner, _ in rows], [prefix.path for _, prefix in rows])
        branches = [view.branch(prefix.node) for _, prefix in rows]
        for row, logits in _logits(table, states, [branch.tokens for branch in branches]):
            owner, prefix = rows[row]
            if logit_bonus is not None:
                logits = logits + logit_bonus(owner, prefix.path, branches[row].tokens)
            searches[owner].expand(prefix, branches[row], log_softmax(logits, temperature))
        for owner in {owner for owner, _ in rows}:
            searches[owner].tidy()
    return [_ranking(search.found, k, extra) for search in searches]


def sample(
    reading: Reading,
    table: Table,
    trie: Trie,
    *,
    temperature: float,
    rng: np.random.Generator,
    pruned: PrunedTrie | None = None,
) -> list[str]:
    """Sample one permitted tool for each prompt, token by token; temperature 0 takes the best token.

    Raises BadRequest where no tool is permitted.
    """
    if temperature != 0:
        _check_temperature(temperature)
    view = trie if pruned is None else pruned
    if _is_empty(view):
        raise BadRequest("there is no tool to draw: add tools, or permit some of those there are")
    start = trie.settle(Trie.ROOT)
    at = dict.fromkeys(range(len(reading.ends())), start)
    while owners := [owner for owner, (node, _) in at.items() if trie.key(node) is None]:
        states = _states(reading, owners, [at[owner][1] for owner in owners])
        branches = [view.branch(at[owner][0]) for owner in owners]
        for row, logits in _logits(table, states, [branch.tokens for branch in branches]):
            branch, (_, path) = branches[row], at[owners[row]]
            places = np.concatenate([branch.leaves, branch.inner])
            chances = log_softmax(logits, temperature or 1.0)[places]
            if temperature:  # the largest of log-probabilities with Gumbel noise is a draw from them
                chances += rng.gumbel(size=len(places))
            place = places[np.argmax(chances)]
            node, tail = trie.settle(int(branch.nodes[place]))
            at[owners[row]] = (node, (*path, int(branch.tokens[place]), *tail))
    return [str(trie.key(node)) for node, _ in at.values()]


def greedy(reading: Reading, table: Table, end: int, most: int) -> list[list[int]]:
    """Greedy decoding without the trie, for comparison: at most `most` tokens for each prompt, up to `end`."""
    written: list[list[int]] = [[] for _ in reading.ends()]
    live = list(range(len(written)))
    for _ in range(most):
        if not live:
            break
        logits = _finite(table.logits(_states(reading, live, [written[owner] for owner in live]), None))
        tokens = dict(zip(live, np.argmax(logits, axis=1).tolist(), strict=True))
        live = [owner for owner in live if tokens[owner] != end]
        for owner in live:
            written[owner].append(tokens[owner])
    return written


@dataclass(frozen=True, slots=True)
class _SetHypothesis:
    """A hypothesis of the beam search over sets: complete tools, and the trie node and tokens reached so far."""

    score: float = 0.0
    tools: tuple[str, ...] = ()
    node: int = Trie.ROOT
    path: tuple[int, ...] = ()


@dataclass(slots=True)
class _FinishedSets:
    """The finished sets of one prompt: for each, the log-probability of all its orders, and its best order."""

    totals: dict[frozenset[str], float] = field(default_factory=dict)
    orders: dict[frozenset[str], tuple[float, tuple[str, ...]]] = field(default_factory=dict)

    def add(self, score: float, tools: tuple[str, ...]) -> None:
        names = frozenset(tools)
        self.totals[names] = float(np.logaddexp(self.totals.get(names, -np.inf), score))
        self.orders[names] = min(self.orders.get(names, (np.inf, ())), (-score, tools))

    def ranked(self, width: int) -> list[tuple[tuple[str, ...], float]]:
        scored = [(self.orders[names][1], total) for names, total in self.totals.items()]
        return sorted(scored, key=lambda one: (-one[1], one[0]))[:width]


def sets(
    reading: Reading,
    table: Table,
    trie: Trie,
    finish: int,
    *,
    most: int = MOST_IN_SET,
    width: int = 8,
    pruned: PrunedTrie | None = None,
    plain: Callable[[Floats], Floats] | None = None,
) -> list[list[tuple[tuple[str, ...], float]]]:
    """Beam search over sets: the model generates tool after tool until the token `finish`.

    Gives back up to `width` sets for each prompt, best first, with their log-probabilities. `finish` may come wherever
    an id may begin, also at once (the empty set), and a set has at most `most` tools. No tool is generated twice. Each
    step is normalised over what the whole trie allows, so with a wide enough beam the probabilities of all sets add up
    to 1. A set found in several orders is given back once, in its best order. Raises BadModel where an id begins with
    `finish`.

    plain: where something was added to the states of the language model, maps them to the states without it, which
        alone decide when to finish.
    """
    _check_positive(most=most, width=width)
    if trie.step(Trie.ROOT, finish) is not None:
        raise BadModel(
            f"token {finish} both begins an id and says that a set is finished; give one of them another token"
        )
    view, largest = trie if pruned is None else pruned, min(most, len(trie))
    finished = [_FinishedSets() for _ in reading.ends()]
    if not largest:
        return [[((), 0.0)] for _ in finished]
    beams = [[_SetHypothesis()] for _ in finished]
    while rows := [(owner, one) for owner, beam in enumerate(beams) for one in beam]:
        states = _states(reading, [owner for owner, _ in rows], [one.path for _, one in rows])
        plain_states = plain(states) if plain else states
        stops = _finite(table.logits(plain_states, np.array([finish], np.int64)))[:, 0]
        beams = [[] for _ in finished]
        choices = [trie.children(one.node) for _, one in rows]
        plain_logits = dict(_logits(table, plain_states, choices)) if plain else {}
        for row, logits in _logits(table, states, choices):
            owner, one = rows[row]
            stop, grown = _extend(one, logits, plain_logits.get(row, logits), float(stops[row]), trie, view, width)
            if one.node == Trie.ROOT:
                finished[owner].add(stop, one.tools)
            for longer in grown:
                if len(longer.tools) == largest:
                    finished[owner].add(longer.score, longer.tools)
                else:
                    beams[owner].append(longer)
        beams = [_prune_beam(beam, done.ranked(width), width) for beam, done in zip(beams, finished, strict=True)]
    return [done.ranked(width) for done in finished]


def odds_against(reading: Reading, table: Table, others: Ints, tokens: Sequence[int]) -> Doubles:
    """For each prompt, the log odds that the next token is one of `others` and not one of `tokens`."""
    choices = np.concatenate([np.array(tokens, np.int64), others[~np.isin(others, tokens)]])
    logs = [log_softmax(row)[: len(tokens)] for row in table.logits(reading.ends(), choices)]
    chances = np.logaddexp.reduce(np.array(logs), axis=1)
    return np.asarray(np.log1p(-np.minimum(np.exp(chances), 1 - _SURE)) - chances)


def log_softmax(logits: NDArray[np.floating], temperature: float = 1.0) -> Doubles:
    """Log-probabilities of one row of logits, none below a finite least value."""
    with np.errstate(over="ignore"):  # very improbable tokens overflow to -inf on purpose
        scaled = logits.astype(np.float64) - np.float64(logits.max())
        if temperature != 1:
            scaled /= temperature
        total = np.exp(scaled.astype(np.float32)).sum(dtype=np.float64)
    scores: Doubles = np.maximum(scaled - np.log(total), _FLOOR)
    return scores


def _extend(
    one: _SetHypothesis,
    logits: Floats,
    plain_logits: Floats,
    stop: float,
    trie: Trie,
    view: Trie | PrunedTrie,
    width: int,
) -> tuple[float, list[_SetHypothesis]]:
    """The score of finishing the set here, -inf where that is not allowed, and its `width` best extensions.

    `plain_logits` and `stop` decide between finishing and going on; `logits` decide how to go on.
    """
    branch = view.branch(one.node)
    again = np.searchsorted(branch.tokens, trie.exhausted(one.tools).get(one.node, []))
    values = np.append(plain_logits.astype(np.float64), stop if one.node == Trie.ROOT else -np.inf)
    values[again] = -np.inf
    chances = log_softmax(values)
    if plain_logits is not logits:
        nexts = logits.astype(np.float64)
        nexts[again] = -np.inf
        chances[:-1] = log_softmax(nexts) + np.logaddexp.reduce(chances[:-1])
    costs = -one.score - chances
    costs[again] = np.inf
    places = np.concatenate([branch.leaves, branch.inner])
    places = places[smallest(costs[places], width)]
    grown = []
    for place in places[costs[places] < np.inf].tolist():
        node, tail = trie.settle(int(branch.nodes[place]))
        key, path = trie.key(node), (*one.path, int(branch.tokens[place]), *tail)
        tools = one.tools if key is None else (*one.tools, key)
        grown.append(_SetHypothesis(-float(costs[place]), tools, node if key is None else Trie.ROOT, path))
    return -float(costs[-1]), grown


def _prune_beam(
    beam: list[_SetHypothesis], done: list[tuple[tuple[str, ...], float]], width: int
) -> list[_SetHypothesis]:
    """The best hypotheses of a beam that can still beat the finished sets."""
    least = done[-1][1] if len(done) == width else -np.inf
    return sorted((one for one in beam if one.score > least), key=lambda one: (-one.score, one.path))[:width]


def _ranking(found: list[tuple[float, str]], k: int, extra: Collection[str]) -> list[tuple[str, float]]:
    """The ids found with their scores, down to the k-th that is not in `extra`."""
    ranking: list[tuple[str, float]] = []
    tools = 0
    for cost, key in found:
        if tools == k:
            break
        ranking.append((key, 0.0 - cost))
        tools += key not in extra
    return ranking


def _states(reading: Reading, owners: Sequence[int], paths: Sequence[Sequence[int]]) -> Floats:
    """The states after these paths; all searches advance together, so either all paths are empty or none is."""
    return reading.after(owners, paths) if paths[0] else reading.ends()[np.asarray(owners)]


def _logits(table: Table, states: Floats, choices: Sequence[Ints]) -> Iterator[tuple[int, Floats]]:
    """Yield (row, logits of choices[row] after states[row]) in any order, with few products with the table."""
    rows_by_choice: dict[int, list[int]] = {}
    for row, tokens in enumerate(choices):
        rows_by_choice.setdefault(id(tokens), []).append(row)
    groups = list(rows_by_choice.values())
    if len(groups) > 1:
        union = np.unique(np.concatenate([choices[group[0]] for group in groups]))
        if len(union) * len(states) <= _BLOCK:
            logits = _finite(table.logits(states, union))
            for group in groups:
                places = np.searchsorted(union, choices[group[0]])
                yield from ((row, logits[row, places]) for row in group)
            return
    for group in groups:
        tokens = choices[group[0]]
        size = max(1, _BLOCK // len(tokens))
        for start in range(0, len(group), size):
            block = group[start : start + size]
            yield from zip(block, _finite(table.logits(states[block], tokens)), strict=True)


def _finite(logits: Floats) -> Floats:
    if not np.isfinite(logits).all():
        raise BadModel("the model gives scores that are no finite numbers; train it again, at a lower learning rate")
    return logits


def _is_empty(view: Trie | PrunedTrie) -> bool:
    branch = view.branch(Trie.ROOT)
    return not len(branch.leaves) and not len(branch.inner)


def _check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise BadRequest(f"{name} is {number}; it has to be 1 or more")


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise BadRequest(f"the temperature is {temperature}; it has to be above 0")
