"""The base of toolgen and toolweaver: a language model writes the id of a tool, constrained to a trie of all ids.

Tools can be added and removed at any time. A tool's score is the eighth root of its id's probability: probabilities
themselves are so peaked that, added to other scores, all tools but the first would look the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Doubles, Floats
from toolscout.core.model_files import UNREADABLE
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Searchable
from toolscout.data import metrics
from toolscout.data.conversations import FINISH, Spent, Talks, request_of
from toolscout.errors import BadModel, EncoderUnavailable, NeedsTraining
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.models.decoding.constrained import (
    MOST_IN_SET,
    LanguageEngine,
    LogitBonus,
    Reading,
    Table,
    best,
    odds_against,
    sets,
)
from toolscout.models.decoding.free import beam_search
from toolscout.models.decoding.trie import Trie
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.language.base import Base, TokenTable, find_base, open_base
from toolscout.models.language.lora import ADAPTER_FILE, Adapter
from toolscout.models.language.open import open_engine
from toolscout.models.language.prompts import ChatTurn, Prompter, contents
from toolscout.retrievers.base import FitProgress, Pairs, Ranking, Vectors, check_k
from toolscout.retrievers.generative.dev_weights import BONUSES, MAY_COST, SIMILARITIES
from toolscout.retrievers.generative.id_pool import IdPoolIndex
from toolscout.retrievers.generative.reading import (
    CallerTries,
    GeneratedId,
    ReadRequest,
    chance,
    flattened,
    included,
    relative,
    several,
)
from toolscout.retrievers.generative.similarity_logits import CachedReading, IdOrder, SimilarityLogits
from toolscout.retrievers.generative.token_rows import ExtendedReading
from toolscout.retrievers.generative.training_ids import FirstTokenScores
from toolscout.retrievers.model_folder import read_model, read_options, write_model
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.training.encoder_options import Decoding

if TYPE_CHECKING:
    from toolscout.models.language.torch_network import TransformerNetwork
    from toolscout.training.id_generation import LearnedState

_SPECIALS_FILE = "specials.npy"
NO_TOOL = "\0no tool"
STOP = "\0finish"
SPECIALS = (NO_TOOL, STOP)
_COMMAND = "toolscout train DATA --retriever {} --out FOLDER"
Path_ = tuple[int, ...]
_SETS = 8  # the beam width when sets of tools are written
Written = list[tuple[tuple[str, ...], float]]
"""The sets of tools written for one request with their log-probabilities, the likeliest first."""

_DEV_REQUESTS = 300  # most requests of a dev split on which weights are chosen
_HIDES_NEW_TOOLS = -1e6  # a bonus that puts every new tool behind all known ones
_K = 5
_BEAMS = 5  # sequences that free decoding generates for a request, as published
_FREE_TOKENS = 16  # after which a freely generated sequence is cut, unless ids are longer
_CONVERSATIONS_AT_ONCE = 64  # conversations read in one batch; bounded, since their states stay in GPU memory


class _DevTrial:
    """The dev requests of one dataset, read by the model once and ranked with several weights."""

    def __init__(self, retriever: GenerativeRetriever, one: TrainingSet) -> None:
        split = one.dataset.split(one.dev)
        step = max(1, len(split.requests) // _DEV_REQUESTS)
        self._retriever = retriever
        self._texts = [text for _, text in split.requests[::step]]
        self._gold = split.gold[::step]
        self._reading = CachedReading(retriever.reading(self._texts))
        self._scope = Scope(Allowed.of(ids=(tool.id for tool in one.dataset.tools)))
        self._vectors = retriever.encode(self._texts)
        self._new = {tool.id for tool in one.dataset.tools} - retriever.needed

    def measured(self, similarity: float, bonus: float) -> dict[str, float]:
        """Recall@5 of all tools and of known tools with this weight and bonus."""
        retriever = self._retriever
        retriever.options = replace(retriever.options, similarity=similarity, new_bonus=bonus)
        ranked = retriever.ranked(self._reading, self._texts, self._vectors, _K, self._scope)
        rankings = [[tool_id for tool_id, _ in pairs] for pairs, _ in ranked]
        return metrics.evaluate(rankings, self._gold, ["recall@5", "known_recall@5"], self._new)

    def has_new_and_known(self) -> bool:
        """Whether the dev requests need both new and known tools; only then can a bonus be chosen."""
        needed = [tool_id in self._new for few in self._gold for tool_id in few]
        return any(needed) and not all(needed)


@dataclass(frozen=True, slots=True)
class IdPlan:
    """The ids of tools for a training, the initial rows of added tokens, and the vectors that a learned map adds to."""

    paths: Mapping[str, Path_]
    start: Floats
    vectors: Floats


class GenerativeRetriever(IdPoolIndex):
    """Holds the ids of tools in a trie, the rows of their tokens in a table, and a language model that reads requests.

    A subclass decides what a tool's id is (`_assign_ids`) and what the rows of its tokens are. A model that was not
    trained accepts no tools.
    """

    name: ClassVar[str]
    trainable: ClassVar[bool] = True
    options_kind: ClassVar[type[Any]]

    def __init__(self, options: Any, encoder: TextEncoder | None) -> None:
        """Start empty and untrained."""
        super().__init__(options, encoder)
        self.options: Any = options
        self._base: Base | None = None
        self._adapter: Adapter | None = None
        self._engine: LanguageEngine | None = None
        self._words: TokenTable | None = None
        self._trie = Trie()
        self._prompter: Prompter | None = None
        self._views = CallerTries(self._trie, SPECIALS)
        self._paths: dict[str, tuple[int, ...]] = {}
        self._special_rows: Floats = np.zeros((len(SPECIALS), 1), np.float32)
        self._platt: tuple[float, float] | None = (1.0, 0.0)  # None: on dev its need was inverted, so it predicts none
        self._training_tokens: FirstTokenScores | None = None  # what "no tool" is compared with
        self._order: IdOrder | None = None
        self.needed: frozenset[str] = frozenset()  # the tools that training requests needed
        # Called after each training stage with the model as it stands.
        self.watch: Callable[[str, TransformerNetwork], None] | None = None

    # What a subclass implements.

    def _assign_ids(self, tools: Mapping[str, Floats]) -> dict[str, tuple[int, ...]]:
        """Assign ids, as tokens, to tools that are added; `tools` gives the vectors of their documents."""
        raise NotImplementedError

    def _find_training_tokens(self) -> FirstTokenScores | None:
        """The first tokens of the ids of training, computed while those tools are indexed; None where unknown."""
        raise NotImplementedError

    def _longest_id(self) -> int:
        """The most tokens that an id may have."""
        raise NotImplementedError

    def _added_rows(self) -> Floats:
        """The rows added to the base model's vocabulary before any tool, those of `SPECIALS` first."""
        return self._special_rows

    def plan(
        self,
        tools: Mapping[str, Floats],
        gold: Sequence[Sequence[str]],
        kept: Path | None = None,
        progress: FitProgress | None = None,
    ) -> IdPlan:
        """Make ids and rows for a training on these tools; `gold`: the tools that each request needs.

        `kept`: a folder for ids that take long to make; an interrupted training finds them there.
        """
        raise NotImplementedError

    def initial_map(self, earlier: GenerativeRetriever) -> tuple[Floats, Floats] | None:
        """The map from vectors to rows and its bias, to continue training from an earlier model; None without a map."""
        return None

    def choose(self, data: Sequence[TrainingSet]) -> None:
        """Choose on dev the weight of similarity and the bonus of new tools, as far as they were not given.

        Neither is chosen where tools are ranked by sets.
        """
        if not self.options.ranks_by_sets:
            choose(self, data)

    def _save_ids(self, folder: Path) -> None:
        """Write what ids and their rows are made from."""
        raise NotImplementedError

    def _load_ids(self, folder: Path) -> None:
        """Read what `_save_ids` wrote."""
        raise NotImplementedError

    def _scoring(self) -> Table:
        """The table that scores tokens."""
        return self.words()

    def _request_vectors(self, requests: Sequence[str]) -> Floats | None:
        """The vectors of requests, zeros for empty ones.

        None where similarity has no weight, all are empty, or the encoder does not answer.
        """
        if not self.options.similarity or not any(requests):
            return None
        nonempty = [place for place, request in enumerate(requests) if request]
        try:
            encoded = self.encode([requests[place] for place in nonempty], "ask")
        except EncoderUnavailable:
            return None
        vectors = np.zeros((len(requests), encoded.shape[1]), np.float32)
        vectors[nonempty] = encoded
        return vectors

    def _extended(self, reading: Reading, vectors: Floats | None) -> Reading:
        """The reading, its states extended by features of the requests (`vectors`) where a subclass scores those."""
        return reading

    def _similarity_logits(self, vectors: Floats | None, count: int) -> LogitBonus | None:
        """What similarity and new-tool bonus add to the logits of `count` requests; None where that is nothing."""
        return similarity_logits(self, vectors, count) if self.options.similarity or self.options.new_bonus else None

    def _apply_state(self, plan: IdPlan, state: LearnedState) -> None:
        """Take over the rows that training has learned so far."""
        raise NotImplementedError

    # The language model.

    def base(self) -> Base:
        """The language model that training started from, opened on first use."""
        self._base = self._base or open_base(self.options.base)
        return self._base

    def prompter(self) -> Prompter:
        """What turns requests into prompts."""
        if self._prompter is None:
            behind = self._longest_id() * (MOST_IN_SET if self.options.sets else 1)
            self._prompter = Prompter(self.base(), self.options.request_tokens, behind)
        return self._prompter

    @property
    def language_parameters(self) -> int:
        """How many parameters its language model has, rows of ids included; adapters are merged into its matrices."""
        return sum(map(math.prod, self.base().architecture.shapes().values())) + self.words().added().size

    def token(self, special: str) -> int:
        """The token of "no tool" or of "finish"."""
        return self.base().architecture.vocabulary + SPECIALS.index(special)

    def words(self) -> TokenTable:
        """The embedding rows of all tokens: the base model's, and those added for ids."""
        if self._words is None:
            self._words = self.base().table()
            self._words.grow(self._added_rows())
        return self._words

    def engine(self) -> LanguageEngine:
        """The trained model: on ONNX Runtime, or in torch on the device that $TOOLSCOUT_DEVICE names."""
        if self._engine is None:
            self._engine = open_engine(self.base().architecture, self.merged_weights(), self.words())
        return self._engine

    def merged_weights(self) -> dict[str, Floats]:
        """The weights of the trained language model, by their Hugging Face names. Raises NeedsTraining."""
        if self._adapter is None:
            raise NeedsTraining([], _COMMAND.format(self.name))
        return self._adapter.merge_into(self.base().architecture, self.base().weights())

    # The index.

    def apply_state(self, plan: IdPlan, state: LearnedState) -> None:
        """Take over what training has learned so far, and assign the indexed tools their ids and rows again."""
        with self._lock:
            self._adapter = Adapter(state.adapter)
            self._apply_state(plan, state)
            self._rebuild_ids()

    def _rebuild_ids(self) -> None:
        """Assign ids and rows to the tools in the index, which are those of training."""
        self._reset()
        self._assign_all_ids()
        self._training_tokens = self._find_training_tokens() if self.options.no_tool else None

    def _reset(self) -> None:
        """Drop all ids and rows."""
        self._trie, self._words, self._engine = Trie(), None, None
        self._views = CallerTries(self._trie, SPECIALS)
        if self.options.no_tool:
            self._trie.insert(NO_TOOL, (self.token(NO_TOOL),))
        if self.options.trajectories:
            self._trie.insert(STOP, (self.token(STOP),))

    def _assign_all_ids(self) -> None:
        if len(alive := self._rows.alive()):
            ids, vectors = [self._rows.ids[row] for row in alive], self._table.rows(alive).astype(np.float32)
            self._insert_paths(self._assign_ids(dict(zip(ids, vectors, strict=True))))

    def _insert_paths(self, paths: Mapping[str, tuple[int, ...]]) -> None:
        for tool_id, tokens in paths.items():
            self._trie.insert(tool_id, tokens)
            self._paths[tool_id] = tokens

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Add tools. Their ids are made from their documents, without training. Raises NeedsTraining if untrained."""
        if tools and self._adapter is None:
            raise NeedsTraining([tool.id for tool in tools], _COMMAND.format(self.name))
        super().add(tools, vectors)

    def _place(self, vectors: Mapping[str, Floats]) -> None:
        # Rounded as they are saved, so that a reopened index assigns the same ids and rows.
        rounded = {tool_id: one.astype(np.float16).astype(np.float32) for tool_id, one in vectors.items()}
        paths = self._assign_ids(rounded) if rounded else {}  # first: if it fails, nothing has changed
        super()._place(vectors)
        self._insert_paths(paths)

    def _drop(self, ids: Sequence[str]) -> None:
        for tool_id in ids:
            if tool_id in self._trie and tool_id not in SPECIALS:
                self._trie.remove(tool_id)
                self._forget(tool_id, self._paths.pop(tool_id, ()))
        super()._drop(ids)

    def bound_to(self) -> str | None:
        """The fingerprint of the only encoder it can use: a trained model is bound to the encoder of its training."""
        return self._fingerprint() if self._adapter is not None else super().bound_to()

    @property
    def gives_ids(self) -> bool:
        """Always true: every tool gets an id of this method's own."""
        return True

    @property
    def ids_version(self) -> int:
        """A number that changes whenever a tool gets an id or loses it."""
        return self._trie.version

    def path(self, tool_id: str) -> tuple[int, ...]:
        """The tokens of a tool's id."""
        return self._paths[tool_id]

    # Search.

    def reading(self, requests: Sequence[str]) -> Reading:
        """Have the model read the requests, all in one batch."""
        prompter = self.prompter()
        return self.engine().read([prompter.ask(request) for request in requests])

    @property
    def ranks_together(self) -> bool:
        """Always false: decoding takes long for each request."""
        return False

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """Rank every tool that has an id. A tool that the request names comes first."""
        check_k(k)
        notes = self.notes(scope)
        if not requests or not (len(self) or self._predicts_need()):
            named = [self.names.find(request, scope.sees) for request in requests]
            return [
                Ranking(request, scope, _named_first([], few, k, scope), notes=notes, named=few)
                for request, few in zip(requests, named, strict=True)
            ]
        reading, vectors = self.reading(requests), self._request_vectors(requests)
        found = self.ranked(reading, requests, vectors, k, scope)
        needed = self._needed(reading, vectors) if self._predicts_need() else [None] * len(requests)
        return [
            Ranking(
                request,
                scope,
                pairs,
                None if vectors is None else vectors[place],
                needed[place],
                notes=notes,
                named=named,
                evidence=ReadRequest(reading, place),
            )
            for place, (request, (pairs, named)) in enumerate(zip(requests, found, strict=True))
        ]

    def ranked(
        self, reading: Reading, requests: Sequence[str], vectors: Floats | None, k: int, scope: Scope
    ) -> list[tuple[Pairs, dict[str, str]]]:
        """For each request read: its best k tools, those it names first; and the tools it names, with the words."""
        extended = self._extended(reading, vectors)
        with self._lock:
            some = self._ranked(extended, vectors, len(requests), k, scope.allowed) if len(self) else []
            rankings = some or [[] for _ in requests]
            named = [self.names.find(request, scope.sees) for request in requests]
        return [(_named_first(ranking, few, k, scope), few) for ranking, few in zip(rankings, named, strict=True)]

    def extend(self, ranking: Ranking, k: int, scope: Scope) -> Pairs:
        """The best k of the tools allowed, for a request that was ranked; it is not read again."""
        if ranking.evidence is None:
            return super().extend(ranking, k, scope)
        reading, vectors = several([ranking.evidence]), None if ranking.vector is None else ranking.vector[None]
        return self.ranked(reading, [ranking.request], vectors, k, scope)[0][0]

    def shown(self, pairs: Pairs, scope: Scope) -> Pairs:
        """Where not all tools are allowed, scores are relative to the best of those that are."""
        return pairs if scope.allowed is None else relative(pairs)

    def _ranked(
        self, reading: Reading, vectors: Floats | None, count: int, k: int, allowed: Allowed | None
    ) -> list[Pairs]:
        if self.options.decoding == "free":
            permitted = Scope(allowed).permits
            written_ids = free_ids(self, reading, _BEAMS)
            return [
                [
                    (one.key, flattened(one.score))
                    for one in few
                    if one.key not in ("", *SPECIALS) and permitted(one.key)
                ][:k]
                for few in written_ids
            ]
        # Sets are written over all tools, whoever the caller: a set's probability must not depend on permissions.
        sets_of = written(self, reading) if self.options.ranks_by_sets else []
        # As many more tools as may fall behind those of the sets.
        more = max((len({tool_id for tools, _ in few for tool_id in tools}) for few in sets_of), default=0)
        view, bonus = None if allowed is None else self._views.of(allowed), self._similarity_logits(vectors, count)
        found = best(reading, self._scoring(), self._trie, k + more, pruned=view, extra=SPECIALS, logit_bonus=bonus)
        rankings = [[(key, score) for key, score in ranking if key not in SPECIALS] for ranking in found]
        if self.options.ranks_by_sets:
            rankings = [included(ranking, few, allowed) for ranking, few in zip(rankings, sets_of, strict=True)]
        return [[(key, flattened(score)) for key, score in ranking[:k]] for ranking in rankings]

    def generate(self, requests: Sequence[str], decoding: Decoding, count: int = _BEAMS) -> list[list[GeneratedId]]:
        """The likeliest `count` ids of each request by the language model alone, whatever tools the request names.

        Constrained ones are the ids of tools, or "no tool" and "finish"; free ones may be the id of no tool.
        """
        reading = self.reading(requests)
        with self._lock:
            if decoding == "free":
                return free_ids(self, reading, count)
            alone = self._extended(reading, None)
            ranked = best(alone, self._scoring(), self._trie, count, extra=SPECIALS)
        return [[GeneratedId(key, key, score) for key, score in few[:count]] for few in ranked]

    def as_many(self, rankings: Sequence[Ranking]) -> list[Pairs] | None:
        """As many tools as each request needs: those it names, and the allowed ones of its likeliest set."""
        return as_many(self, rankings) if self.options.sets else None

    def _predicts_need(self) -> bool:
        trained = self.options.no_tool and NO_TOOL in self._trie
        return bool(trained) and self._platt is not None and self._training_tokens is not None

    def _needed(self, reading: Reading, vectors: Floats | None) -> list[float]:
        """The probability that each request that was read needs a tool."""
        assert self._platt is not None
        assert self._training_tokens is not None
        odds = np.clip(
            self._platt[0] * against(self, self._training_tokens, reading, vectors) + self._platt[1], -60, 60
        )
        return [float(one) for one in 1 / (1 + np.exp(-odds))]

    def need(self, requests: Sequence[str]) -> list[float] | None:
        """The probability that each request needs a tool, whatever the catalogue; None where the model cannot tell."""
        if not self._predicts_need():
            return None
        return self._needed(self.reading(requests), self._request_vectors(requests)) if requests else []

    def against_none(self, requests: Sequence[str]) -> Doubles | None:
        """The log-odds of any tool of training against "no tool", for each request; None where those are not known."""
        if self._training_tokens is None:
            return None
        return against(self, self._training_tokens, self.reading(requests), self._request_vectors(requests))

    def pick(self, conversations: Talks, allowed: Allowed | None = None, without: Spent = ()) -> list[str | None]:
        """The next action of each conversation: an allowed tool of this index, or Finish; None where it is too long.

        `without`: for each conversation, tools that must not be chosen.
        """
        pick = _free_picks if self.options.decoding == "free" else next_actions
        return pick(self, conversations, allowed, without)

    # Files.

    def save(self, folder: Path) -> None:
        """Write the adapter, the ids and rows, and the vectors of tools; the base model is only referred to."""
        folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._save_documents(folder)
            if self._adapter is not None:
                self._adapter.save(folder)
                np.save(folder / _SPECIALS_FILE, self._special_rows)
                self._save_ids(folder)
            if self.trained_on.splits:
                self.trained_on.save(folder)
            write_model(
                folder,
                self,
                encoder=self._fingerprint(),
                language=self._base.fingerprint if self._base else "",
                needed=sorted(self.needed),
                platt=self._platt,
            )

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved model; its language model must be the one it was trained from."""
        model = read_model(folder)
        loaded = cls(read_options(cls.options_kind, model), encoder)
        loaded.trained_on, loaded.fit_record = TrainedOn.load(folder), model.get("fit")
        loaded._load_documents(folder, model)
        if not model.get("fit") and not (folder / ADAPTER_FILE).is_file():
            return loaded
        loaded._base = find_base(folder, loaded.options.base, model.get("language", ""))
        loaded.options = replace(
            loaded.options, base=loaded._base.reference
        )  # where it was found, so that a saved copy finds it too
        loaded._adapter = Adapter.load(folder)
        loaded._adapter.check(loaded.base().architecture)
        try:
            specials = np.load(folder / _SPECIALS_FILE, allow_pickle=False)
            loaded._special_rows = loaded.base().rows(specials, len(SPECIALS))
            loaded._platt = (float(model["platt"][0]), float(model["platt"][1])) if model["platt"] else None
            loaded.needed = frozenset(model["needed"])
            loaded._load_ids(folder)
        except BadModel:
            raise
        except UNREADABLE as error:
            raise BadModel(f"the ids in {folder} cannot be read ({error}); train the model again") from None
        loaded._rebuild_ids()
        return loaded


def written(retriever: GenerativeRetriever, reading: Reading) -> list[Written]:
    """The likeliest sets of tools for each request, without the empty set; `need` tells whether any is needed."""
    stop, plain = retriever.token(STOP), reading.plain if isinstance(reading, ExtendedReading) else None
    found = sets(reading, retriever._scoring(), retriever._trie, stop, width=_SETS, plain=plain)
    return [[one for one in few if one[0] and NO_TOOL not in one[0]] for few in found]


def as_many(retriever: GenerativeRetriever, rankings: Sequence[Ranking]) -> list[Pairs]:
    """For each ranking: the tools that the request names, then the allowed ones of its likeliest set."""
    found, most = [], len(retriever) + retriever.without_id()
    for ranking, few in zip(rankings, _sets(retriever, rankings), strict=True):
        chance = dict(included([], few, ranking.scope.allowed))
        tools = sorted(chance.keys() & set(few[0][0] if few else ()), key=lambda one: (-chance[one], one))
        pairs = [(tool_id, flattened(chance[tool_id])) for tool_id in tools]
        found.append(_named_first(pairs, ranking.named or {}, most, ranking.scope))
    return found


def _sets(retriever: GenerativeRetriever, rankings: Sequence[Ranking]) -> list[Written]:
    """The likeliest sets of each ranked request; requests that were read in one batch are processed together."""
    found: list[Written] = [[] for _ in rankings]
    batches: dict[int, list[int]] = {}
    for place, ranking in enumerate(rankings):
        if ranking.evidence is not None:
            batches.setdefault(id(ranking.evidence.reading), []).append(place)
    for places in batches.values():
        few = [rankings[place] for place in places]
        vectors = [one.vector for one in few if one.vector is not None]
        reading = several([one.evidence for one in few])
        extended = retriever._extended(reading, np.stack(vectors) if len(vectors) == len(few) else None)
        with retriever._lock:
            for place, sets_of in zip(places, written(retriever, extended), strict=True):
                found[place] = sets_of
    return found


def against(
    retriever: GenerativeRetriever, training: FirstTokenScores, reading: Reading, vectors: Floats | None
) -> Doubles:
    """The log-odds of the ids of training against "no tool", for each request that was read."""
    stop = [retriever.token(STOP)] if retriever.options.trajectories else []
    others = np.concatenate([np.array(stop, dtype=np.int64), training.tokens])
    return odds_against(retriever._extended(reading, vectors), training.table, others, [retriever.token(NO_TOOL)])


def similarity_logits(retriever: GenerativeRetriever, vectors: Floats | None, count: int) -> SimilarityLogits:
    """What to add to the logits of `count` requests, for the tools that are indexed now."""
    order, trie = retriever._order, retriever._trie
    if order is None or order.version != trie.version:
        rows = retriever._rows.alive()
        ids = [retriever._rows.ids[row] for row in rows]
        documents = dict(zip(ids, retriever._table.rows(rows), strict=True))
        order = retriever._order = IdOrder(retriever._paths, documents, retriever.needed, trie.version)
    if vectors is None:  # only the bonus of new tools counts
        vectors = np.zeros((count, order.dimension), np.float32)
    return order.logits(vectors, retriever.options)


def choose(retriever: GenerativeRetriever, data: Sequence[TrainingSet]) -> None:
    """Choose the weight of similarity with the highest dev recall@5, then the bonus of new tools.

    A bonus is taken only if it raises recall and costs known tools little. What was given, and everything where there
    is no dev split, stays as it is.
    """
    given, bonus = retriever.options.similarity, retriever.options.new_bonus
    trials = [_DevTrial(retriever, one) for one in data if one.dev] if given is None or bonus is None else []
    if not trials:
        return
    weights = SIMILARITIES if given is None else (given,)
    found = {one: float(np.mean([t.measured(one, bonus or 0.0)["recall@5"] for t in trials])) for one in weights}
    similarity = max(weights, key=lambda one: (found[one], -one))
    if bonus is None:
        bonus = _chosen_bonus(trials, similarity, found[similarity])
    retriever.options = replace(retriever.options, similarity=similarity, new_bonus=bonus)


def _chosen_bonus(trials: Sequence[_DevTrial], similarity: float, best: float) -> float:
    """Return the bonus of new tools whose dev recall@5 is highest; it must be above `best`, that without a bonus."""
    mixed, bonus = [trial for trial in trials if trial.has_new_and_known()], 0.0
    alone = [trial.measured(similarity, _HIDES_NEW_TOOLS)["known_recall@5"] for trial in mixed]
    for one in BONUSES[1:] if mixed else ():
        measured = [trial.measured(similarity, one) for trial in trials]
        known = [m["known_recall@5"] for trial, m in zip(trials, measured, strict=True) if trial in mixed]
        recall = float(np.mean([m["recall@5"] for m in measured]))
        if recall > best and all(k >= a - MAY_COST for k, a in zip(known, alone, strict=True)):
            best, bonus = recall, one
    return bonus


def free_ids(retriever: GenerativeRetriever, reading: Reading, count: int) -> list[list[GeneratedId]]:
    """The likeliest `count` sequences of each prompt without the trie, each with the key whose id it is.

    A sequence ends with a whole id, with the token that ends a turn, or when it is long, and longer than any id.
    """
    plain = reading.language_model if isinstance(reading, ExtendedReading) else reading
    trie, ends = retriever._trie, retriever.base().ends

    def key_of(tokens: Sequence[int]) -> str | None:
        node: int | None = Trie.ROOT
        for token in tokens:
            node = trie.step(node, token) if node is not None else None
        return trie.key(node) if node is not None else None

    found = beam_search(
        plain,
        retriever.words(),
        count,
        max(retriever._longest_id() + 1, _FREE_TOKENS),
        lambda tokens: tokens[-1] in ends or key_of(tokens) is not None,
    )
    return [
        [GeneratedId(key_of(one.tokens) or "", _text(retriever, one.tokens), one.score) for one in few] for few in found
    ]


def _text(retriever: GenerativeRetriever, tokens: Sequence[int]) -> str:
    """Generated tokens as text: a token that was added for tools is written as <tool>."""
    vocabulary, ends = retriever.base().architecture.vocabulary, retriever.base().ends
    words = retriever.base().decode([token for token in tokens if token not in ends])
    return " ".join([*([words.strip()] if words.strip() else []), *("<tool>" for one in tokens if one >= vocabulary)])


def free_actions(retriever: GenerativeRetriever, conversations: Talks) -> list[GeneratedId | None]:
    """The next action of each conversation without the trie; None for one that is too long for the model."""
    found: list[GeneratedId | None] = [None] * len(conversations)
    for few, prompts in _short_conversations(retriever, conversations):
        with retriever._lock:
            written_ids = free_ids(retriever, retriever.engine().read(prompts), 1)
        for at, (one,) in zip(few, written_ids, strict=True):
            found[at] = one
    return found


def _free_picks(
    retriever: GenerativeRetriever, conversations: Talks, allowed: Allowed | None, without: Spent
) -> list[str | None]:
    """The next actions without the trie; None where the model names no tool that may be chosen."""
    permitted, found = Scope(allowed).permits, list[str | None]()
    spent = without or [()] * len(conversations)
    for action, few in zip(free_actions(retriever, conversations), spent, strict=True):
        key = action.key if action else ""
        if key in SPECIALS:
            found.append(FINISH)
        else:
            found.append(key if key and permitted(key) and key not in few else None)
    return found


def _short_conversations(
    retriever: GenerativeRetriever, conversations: Talks
) -> Iterator[tuple[list[int], list[list[int]]]]:
    """Yield places and prompts of the conversations that are short enough for the model, some at a time."""
    prompts = [prompt(retriever, turns) for turns in conversations]
    short = [at for at, one in enumerate(prompts) if len(one) < retriever.base().architecture.context]
    short.sort(key=lambda at: len(prompts[at]))
    for first in range(0, len(short), _CONVERSATIONS_AT_ONCE):
        few = short[first : first + _CONVERSATIONS_AT_ONCE]
        yield few, [prompts[at] for at in few]


def prompt(retriever: GenerativeRetriever, turns: Iterable[ChatTurn]) -> list[int]:
    """A conversation as tokens, up to the assistant's next turn. Calls of tools that have ids are written as ids."""
    return retriever.base().chat(contents(turns, lambda action: _action_tokens(retriever, action, retriever._paths)))


def _action_tokens(
    retriever: GenerativeRetriever, action: str, paths: Mapping[str, tuple[int, ...]]
) -> Sequence[int] | None:
    return (retriever.token(STOP),) if action == FINISH else paths.get(action)


def next_actions(
    retriever: GenerativeRetriever, conversations: Talks, allowed: Allowed | None, without: Spent
) -> list[str | None]:
    """The likeliest allowed next action of each conversation; None for one that is too long for the model."""
    found: list[str | None] = [None] * len(conversations)
    for few, prompts in _short_conversations(retriever, conversations):
        requests = [request_of(conversations[at]) for at in few]
        spent = [without[at] if without else () for at in few]
        actions = _actions(retriever, prompts, requests, allowed, spent)
        called = [{turn.action for turn in conversations[at]} - {""} for at in few]
        for at, action in zip(few, _continued(retriever, actions, requests, allowed, called, spent), strict=True):
            found[at] = action
    return found


def _actions(
    retriever: GenerativeRetriever,
    prompts: Sequence[Sequence[int]],
    requests: Sequence[str],
    allowed: Allowed | None,
    without: Spent,
) -> list[str]:
    """The next action of each prompt: Finish, or the tool that search ranks first.

    A tool is called if all tools together are likelier than Finish: where many tools would do, none alone is likely.
    """
    reading = retriever.engine().read(prompts)
    alone = retriever._extended(reading, None)
    ends = [retriever.token(one) for one in SPECIALS if one in retriever._trie]
    with retriever._lock:
        others = retriever._trie.children(Trie.ROOT)
        acts = odds_against(alone, retriever._scoring(), others, ends) > 0
    k = 1 + max(map(len, without), default=0)
    if not acts.any():
        return [FINISH for _ in prompts]
    tools = retriever.ranked(reading, requests, retriever._request_vectors(requests), k, Scope(allowed))
    left = [[i for i, _ in pairs if i not in spent] for (pairs, _), spent in zip(tools, without, strict=True)]
    return [ids[0] if act and ids else FINISH for act, ids in zip(acts, left, strict=True)]


def _continued(
    retriever: GenerativeRetriever,
    actions: Sequence[str],
    requests: Sequence[str],
    allowed: Allowed | None,
    called: Sequence[Collection[str]],
    without: Spent,
) -> list[str]:
    """The actions, with Finish replaced by the likeliest tool not called yet, if its probability reaches `carry_on`.

    Conversations in training are short, so a model tends to finish longer ones too early. A conversation that has
    called no tool so far stays finished.
    """
    found, least = list(actions), retriever.options.carry_on
    ends = [at for at, action in enumerate(actions) if action == FINISH and called[at]] if 0 < least < 1 else []
    if ends:
        k = 1 + max(len({*called[at], *without[at]}) for at in ends)
        for at, ranking in zip(ends, retriever.rank([requests[at] for at in ends], k, Scope(allowed)), strict=True):
            due = [
                i
                for i, score in ranking.pairs
                if chance(score) >= least and i not in called[at] and i not in without[at]
            ]
            found[at] = due[0] if due else FINISH
    return found


def _named_first(ranking: Pairs, named: Mapping[str, str], k: int, scope: Scope) -> Pairs:
    """The k best tools: those that the request names, in the order of their ids, then the others."""
    first = [(tool_id, EXACT_BONUS) for tool_id in sorted(filter(scope.permits, named))]
    return [*first, *(pair for pair in ranking if pair[0] not in named)][:k]
