"""What toolgen and toolweaver share: a language model writes a tool's id, and can write nothing else.

The trie of all ids is live. A tool's score is its id's probability among all ids, flattened so that those behind the
first can still be told apart where scores are added up.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from toolscout.answer import Allowed, Example, Hit
from toolscout.conversations import Spent, Talks
from toolscout.errors import BadModel, NeedsTraining
from toolscout.nn.adapters import ADAPTER_FILE, Adapter
from toolscout.nn.decoding import MOST_IN_SET, Nearer, Reading, Table, best
from toolscout.nn.engine import Model, open_engine
from toolscout.nn.language import Base, TokenTable, find_base, open_base
from toolscout.nn.prompting import Prompter
from toolscout.nn.trie import Trie
from toolscout.retrievers._generative_scarce import Scarce
from toolscout.retrievers._generative_sets import as_many, written
from toolscout.retrievers._generative_weighed import Weighed, against
from toolscout.retrievers._names import EXACT_BONUS
from toolscout.retrievers._nearness import Order, choose, near
from toolscout.retrievers._reading import Ahead, OneOf, Views, flattened, included, relative
from toolscout.retrievers._saved import UNREADABLE
from toolscout.retrievers._showing import Caller
from toolscout.retrievers.base import (
    Floats,
    Pairs,
    TextEncoder,
    TrainedOn,
    TrainingSet,
    Vectors,
    check_k,
    read_model,
    read_options,
    write_model,
)
from toolscout.tool import Searchable

if TYPE_CHECKING:
    from toolscout.nn.causal import Network
    from toolscout.retrievers._generative_fit import Plan
    from toolscout.training.generative import State

_SPECIALS_FILE = "specials.npy"
NO_TOOL = "\0no tool"
STOP = "\0finish"
SPECIALS = (NO_TOOL, STOP)
_READINGS_KEPT = 4
_COMMAND = "toolscout train DATA --retriever {} --out FOLDER"


class Generative(Scarce):
    """Ids of tools in a trie, rows of tokens in a table, a language model that reads requests.

    A method says what a tool's id is (`_identify`) and what its tokens' rows are. Untrained it takes no tool.
    """

    name: ClassVar[str]
    options_kind: ClassVar[type[Any]]

    def __init__(self, options: Any, encoder: TextEncoder | None) -> None:
        """Start empty and untrained."""
        self.options: Any = options
        super().__init__(options, encoder)
        self._base: Base | None = None
        self._adapter: Adapter | None = None
        self._engine: Model | None = None
        self._words: TokenTable | None = None
        self._trie = Trie()
        self._prompter: Prompter | None = None
        self._views = Views(self._trie, SPECIALS)
        self._readings: OrderedDict[tuple[str, ...], Reading] = OrderedDict()
        self._paths: dict[str, tuple[int, ...]] = {}
        self._special_rows: Floats = np.zeros((len(SPECIALS), 1), np.float32)
        self._ahead = Ahead()
        self._platt: tuple[float, float] | None = (1.0, 0.0)  # none where dev says that it says the opposite
        self._weighed: Weighed | None = None  # what "no tool" stands against
        self._order: Order | None = None
        self.needed: frozenset[str] = frozenset()  # the tools that training requests needed
        self._seen = TrainedOn()
        self._fit: dict[str, Any] | None = None
        # Told of each stage of a training that is over, when this is the model as it is then.
        self.watch: Callable[[str, Network], None] | None = None

    # What a method says.

    def _identify(self, tools: Mapping[str, Floats]) -> dict[str, tuple[int, ...]]:
        """The ids, as tokens, of tools that come, whose documents have these vectors."""
        raise NotImplementedError

    def _weigh(self) -> Weighed | None:
        """The ids of its training, asked for while its tools are here; None where they are not known."""
        raise NotImplementedError

    def _longest_id(self) -> int:
        """The most tokens that an id has."""
        raise NotImplementedError

    def _added_rows(self) -> Floats:
        """The rows behind the base's vocabulary that are there before any tool: first those of `SPECIALS`."""
        return self._special_rows

    def plan(self, tools: Mapping[str, Floats], gold: Sequence[Sequence[str]]) -> Plan:
        """Ids and rows for a training on these tools, of which requests need those in `gold`."""
        raise NotImplementedError

    def begun_map(self, earlier: Generative) -> tuple[Floats, Floats] | None:
        """The map from vectors to rows, and its bias, that a training goes on from; None where it has none."""
        return None

    def choose(self, data: Sequence[TrainingSet]) -> None:
        """Choose on dev what similarity counts beside the language model."""
        if not self.options.ranks_by_sets:
            choose(self, data)

    def _save_ids(self, folder: Path) -> None:
        """Write what makes ids and their rows."""
        raise NotImplementedError

    def _load_ids(self, folder: Path) -> None:
        """Open what `_save_ids` wrote."""
        raise NotImplementedError

    def _scoring(self) -> Table:
        """What scores tokens."""
        return self.words()

    def _aware(self, reading: Reading, requests: Sequence[str]) -> Reading:
        """The reading, with what else is known of the requests."""
        return reading

    def _nearer(self, requests: Sequence[str]) -> Nearer | None:
        """What documents say beside the language model; None where it is told by _aware, or nothing."""
        return near(self, requests) if self.options.similarity or self.options.new_bonus else None

    def _restate(self, plan: Plan, state: State) -> None:
        """Take over what was learned until now."""
        raise NotImplementedError

    def learn(self, examples: Sequence[Example]) -> None:
        """It learns by training (`fit`), not from single requests."""

    # The language model.

    def base(self) -> Base:
        """The language model it began with, opened on first use."""
        self._base = self._base or open_base(self.options.base)
        return self._base

    def prompter(self) -> Prompter:
        """What makes prompts of requests."""
        if self._prompter is None:
            behind = self._longest_id() * (MOST_IN_SET if self.options.sets else 1)
            self._prompter = Prompter(self.base(), self.options.request_tokens, behind)
        return self._prompter

    @property
    def language_parameters(self) -> int:
        """How many numbers its language model has, the rows of ids included; adapters are part of its matrices."""
        return sum(map(math.prod, self.base().architecture.shapes().values())) + self.words().added().size

    def token(self, special: str) -> int:
        """The token of "no tool" or of "finish"."""
        return self.base().architecture.vocabulary + SPECIALS.index(special)

    def words(self) -> TokenTable:
        """The rows of every token: the base's, and those added for ids."""
        if self._words is None:
            self._words = self.base().table()
            self._words.grow(self._added_rows())
        return self._words

    def engine(self) -> Model:
        """The trained model: on ONNX Runtime, or in torch on the device that $TOOLSCOUT_DEVICE names."""
        if self._engine is None:
            if self._adapter is None:
                raise NeedsTraining([], _COMMAND.format(self.name))
            architecture = self.base().architecture
            weights = self._adapter.applied(architecture, self.base().weights())
            self._engine = open_engine(architecture, weights, self.words())
        return self._engine

    # The index.

    def restate(self, plan: Plan, state: State) -> None:
        """Take over what was learned until now; the tools that are here get their ids and rows anew."""
        with self._lock:
            self._adapter = Adapter(state.adapter)
            self._restate(plan, state)
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Give the tools that are here, those of its training, their ids and rows."""
        self._reset()
        self._identify_all()
        self._weighed = self._weigh() if self.options.no_tool else None

    def _reset(self) -> None:
        """Forget ids and rows."""
        self._trie, self._words, self._engine = Trie(), None, None
        self._views, self._readings, self._ahead = Views(self._trie, SPECIALS), OrderedDict(), Ahead()
        if self.options.no_tool:
            self._trie.insert(NO_TOOL, (self.token(NO_TOOL),))
        if self.options.trajectories:
            self._trie.insert(STOP, (self.token(STOP),))

    def _identify_all(self) -> None:
        if len(alive := self._rows.alive()):
            ids, vectors = [self._rows.ids[row] for row in alive], self._table.rows(alive).astype(np.float32)
            self._take(self._identify(dict(zip(ids, vectors, strict=True))))

    def _take(self, paths: Mapping[str, tuple[int, ...]]) -> None:
        for tool_id, tokens in paths.items():
            self._trie.insert(tool_id, tokens)
            self._paths[tool_id] = tokens

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Take tools: their ids come from their documents, nothing is trained."""
        if tools and self._adapter is None:
            raise NeedsTraining([tool.id for tool in tools], _COMMAND.format(self.name))
        super().add(tools, vectors)

    def _place(self, vectors: Mapping[str, Floats]) -> None:
        # As precise as they are kept: a saved index gives the same ids and rows.
        kept = {tool_id: one.astype(np.float16).astype(np.float32) for tool_id, one in vectors.items()}
        paths = self._identify(kept) if kept else {}  # first: where it fails, nothing has changed
        super()._place(vectors)
        self._take(paths)

    def _drop(self, ids: Sequence[str]) -> None:
        for tool_id in ids:
            if tool_id in self._trie and tool_id not in SPECIALS:
                self._trie.remove(tool_id)
                self._forget(tool_id, self._paths.pop(tool_id, ()))
        super()._drop(ids)

    def bound_to(self) -> str | None:
        """The fingerprint of the only encoder it can use: what was learned reads the vectors of one alone."""
        return self._fingerprint() if self._adapter is not None else super().bound_to()

    def path(self, tool_id: str) -> tuple[int, ...]:
        """The tokens of a tool's id."""
        return self._paths[tool_id]

    # Search.

    def reading(self, requests: Sequence[str]) -> Reading:
        """The requests as the model has read them; one that was read just now is not read again."""
        key = tuple(requests)
        ahead = self._ahead
        if ahead.reading is not None and len(key) == 1 and key[0] in ahead.places:
            return OneOf(ahead.reading, ahead.places[key[0]])
        found = self._readings.get(key)
        if found is None:
            prompter = self.prompter()
            found = self.engine().read([prompter.ask(request) for request in requests])
            if len(requests) == 1:
                # Another dict, not a changed one: other threads read it meanwhile.
                latest = list(self._readings.items())[-_READINGS_KEPT:]
                self._readings = OrderedDict([*latest, (key, found)])
        return found

    def forget_requests(self) -> None:
        """Let go of what was read of recent requests: one that is timed again must be read again."""
        super().forget_requests()
        self._readings, self._ahead = OrderedDict(), Ahead()

    def rank_ahead(self, requests: Sequence[str], k: int) -> None:
        """Read and rank requests together that will be asked one by one: on a GPU that is far faster."""
        distinct = list(dict.fromkeys(requests))
        self._ahead = Ahead()
        if distinct and len(self):
            reading = self.engine().read([self.prompter().ask(request) for request in distinct])
            rankings = self._rank(reading, distinct, k, None)
            places = {request: place for place, request in enumerate(distinct)}
            self._ahead = Ahead(places, reading, rankings, k, self._trie.version)

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Rank every tool that has an id; where not all are allowed, scores are relative to the best of those."""
        found = super().search(requests, k, allowed)
        return found if allowed is None else list(map(relative, found))

    def rank_for(self, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """What search ranks for a caller, without reasons. A tool that the request names, and it sees, comes first."""
        check_k(k)
        sees = caller.sees
        if not len(self) or not requests:
            return [self._named_first(request, [], k, allowed, sees) for request in requests]
        known = self._ahead.ranked(requests, k, self._trie.version) if allowed is None and sees is None else None
        return self._rank(self.reading(requests), requests, k, allowed, sees) if known is None else known

    def _rank(
        self,
        reading: Reading,
        requests: Sequence[str],
        k: int,
        allowed: Allowed | None,
        sees: Allowed | None = None,
    ) -> list[Pairs]:
        aware = self._aware(reading, requests)
        with self._lock:
            rankings = self._ranked(aware, requests, k, allowed)
            return [
                self._named_first(request, ranking, k, allowed, sees)
                for request, ranking in zip(requests, rankings, strict=True)
            ]

    def _ranked(self, reading: Reading, requests: Sequence[str], k: int, allowed: Allowed | None) -> list[Pairs]:
        # Sets of all tools, whoever asks: what a set counts must not depend on who may see a part of it.
        sets_of = written(self, reading) if self.options.ranks_by_sets else []
        # As many more as may fall behind the tools of sets.
        more = max((len({tool_id for tools, _ in few for tool_id in tools}) for few in sets_of), default=0)
        view, nearer = None if allowed is None else self._views.of(allowed), self._nearer(requests)
        found = best(reading, self._scoring(), self._trie, k + more, pruned=view, extra=SPECIALS, nearer=nearer)
        rankings = [[(key, score) for key, score in ranking if key not in SPECIALS] for ranking in found]
        if self.options.ranks_by_sets:
            rankings = [included(ranking, few, allowed) for ranking, few in zip(rankings, sets_of, strict=True)]
        return [[(key, flattened(score)) for key, score in ranking[:k]] for ranking in rankings]

    def _named_first(
        self, request: str, ranking: Pairs, k: int, allowed: Allowed | None, sees: Allowed | None = None
    ) -> Pairs:
        named = self._named(request, allowed, sees)
        first = [(tool_id, EXACT_BONUS) for tool_id in sorted(named)]
        return [*first, *(pair for pair in ranking if pair[0] not in named)][:k]

    def as_many(self, requests: Sequence[str], allowed: Allowed | None = None) -> list[list[Hit]]:
        """As many tools as each request needs: those it names, and what a caller may see of the likeliest set."""
        if not self.options.sets:
            raise BadModel(f"this {self.name} ranks tools one by one; train it with --option sets=true for k=auto")
        return as_many(self, requests, allowed)

    def need(self, requests: Sequence[str]) -> list[float] | None:
        """How likely each request is to need a tool; None where the model was not taught when none is needed."""
        if not self.options.no_tool or NO_TOOL not in self._trie or not requests or self._platt is None:
            return None
        found = self.against_none(requests)
        if found is None:
            return None
        odds = np.clip(self._platt[0] * found + self._platt[1], -60, 60)
        return [float(one) for one in 1 / (1 + np.exp(-odds))]

    def against_none(self, requests: Sequence[str]) -> NDArray[np.float64] | None:
        """The log of the odds of any tool of its training against "no tool"; None where those are not known."""
        return None if self._weighed is None else against(self, self._weighed, requests)

    def pick(self, conversations: Talks, allowed: Allowed | None = None, without: Spent = ()) -> list[str | None]:
        """The next action of each conversation: a tool of this index that is allowed, or Finish; nothing else."""
        from toolscout.retrievers._generative_talk import picked

        return picked(self, conversations, allowed, without)

    # Files.

    def save(self, folder: Path) -> None:
        """Write the adapter, what makes ids and rows, and the vectors of tools; of the base a reference alone."""
        folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._save_documents(folder)
            if self._adapter is not None:
                self._adapter.save(folder)
                np.save(folder / _SPECIALS_FILE, self._special_rows)
                self._save_ids(folder)
            if self._seen.splits:
                self._seen.save(folder)
            extra: dict[str, Any] = {"fit": self._fit} if self._fit else {}
            extra |= {"language": self._base.fingerprint if self._base else "", "needed": sorted(self.needed)}
            extra |= {"platt": self._platt}
            write_model(folder, self, encoder=self._fingerprint(), **extra)

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved model; its language model must be the one it was trained from."""
        model = read_model(folder)
        loaded = cls(read_options(cls.options_kind, model), encoder)
        loaded._seen, loaded._fit = TrainedOn.load(folder), model.get("fit")
        loaded._load_documents(folder, model)
        if not model.get("fit") and not (folder / ADAPTER_FILE).is_file():
            return loaded
        loaded._base = find_base(folder, loaded.options.base, model.get("language", ""))
        loaded.options = replace(loaded.options, base=loaded._base.reference)  # a copy of it finds it too
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
        loaded._begin_anew()
        return loaded
