"""toolgen: each tool has an id of one or a few tokens, and a language model writes the id for a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.core.model_files import read_arrays
from toolscout.core.option_values import Presets
from toolscout.errors import BadModel
from toolscout.models.decoding.constrained import LogitBonus, Reading, Table
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.tool_ids.token_ids import KINDS, MOST_NAME_TOKENS, IdMaker, maker
from toolscout.retrievers.base import FitProgress, FitReport
from toolscout.retrievers.document_index import EncoderOptions
from toolscout.retrievers.generative.base import SPECIALS, GenerativeRetriever, IdPlan
from toolscout.retrievers.generative.dev_weights import DevTrial, chosen
from toolscout.retrievers.generative.fit import fit
from toolscout.retrievers.generative.token_rows import ExtendedReading, LearnedRows, WideRows, name_rows, name_words
from toolscout.retrievers.generative.training_ids import DocumentTools, FirstTokenScores
from toolscout.retrievers.provenance import TrainingSet
from toolscout.training.encoder_options import IdTrainingOptions

if TYPE_CHECKING:
    from toolscout.training.id_generation import LearnedState

Ids = Literal["atomic", "semantic", "numeric", "hierarchical"]
_IDS_FOLDER, _TRAINED_FILE = "ids", "trained.json"
_MOST_NUMBERS = 20_000_000


# The paper's settings; the batch is that of the released code. Only the model's own score ranks.
_PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "rank": 0,
        "memorise": 8,
        "memorise_all": True,
        "epochs": 1,
        "agent_epochs": 1,
        "trajectory_tokens": 6144,
        "rehearse": 0.0,
        "rate": 4e-5,
        "pace": 1.0,
        "warmup": 0.03,
        "decay": "cosine",
        "batch": 1024,
        "mix": 0.0,
        "absent": 0.0,
        "request_tokens": 1024,
        "similarity": 0.0,
        "new_bonus": 0.0,
        "carry_on": 1.0,
    }
)


@dataclass(frozen=True, slots=True)
class ToolgenOptions(Presets, IdTrainingOptions, EncoderOptions):
    """`ids`: one new token a tool ("atomic"), its name ("semantic"), a number, or a path of clusters.

    The preset "published" has the settings of the paper.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"published": _PUBLISHED})
    ids: Ids = "atomic"

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        IdTrainingOptions.__post_init__(self)
        if self.ids not in get_args(Ids):
            raise BadModel(f"ids must be one of {', '.join(get_args(Ids))}, got {self.ids!r}")


class Toolgen(GenerativeRetriever):
    """ToolGen, extended to tools added after training: a new token's row is made of the tool's name and document."""

    name: ClassVar[str] = "toolgen"
    options_kind: ClassVar[type[Any]] = ToolgenOptions

    def __init__(self, options: ToolgenOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start empty and untrained."""
        super().__init__(options or ToolgenOptions(), encoder)
        self._learned_rows = LearnedRows(np.zeros((1, 1), np.float32), np.zeros(1, np.float32))
        self._wide: WideRows | None = None
        self._free: list[int] = []
        self._maker: IdMaker | None = None
        self._trained: frozenset[str] = frozenset()
        self._training_tools: DocumentTools | None = None  # with one-token ids: what "no tool" is compared with

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train the language model on documents, requests and conversations; choose on dev."""
        return fit(self, data, folder, progress)

    @property
    def atomic(self) -> bool:
        """Whether an id is one token."""
        return bool(self.options.ids == "atomic")

    def plan(
        self,
        tools: Mapping[str, Floats],
        gold: Sequence[Sequence[str]],
        kept: Path | None = None,
        progress: FitProgress | None = None,
    ) -> IdPlan:
        """Make ids and rows for a training on these tools; `gold`: the tools that each request needs."""
        first, table = self.base().architecture.vocabulary, self.base().table()
        specials = np.repeat(name_rows(self.base(), table, ["none"]), len(SPECIALS), axis=0)
        if not self.atomic:
            self._maker, self._trained = maker(self.options.ids, self.base(), self.options.seed), frozenset(tools)
            vectors = np.stack(list(tools.values()))
            paths = self._maker.make([(tool_id, name_words(tool_id)) for tool_id in tools], vectors)
            return IdPlan(paths, specials, np.zeros((len(SPECIALS), 1), np.float32))
        used = sorted(tools if self.options.memorise_all else {tool_id for few in gold for tool_id in few})
        start = np.concatenate([specials, name_rows(self.base(), table, used)])
        none = np.zeros((len(SPECIALS), len(next(iter(tools.values())))), np.float32)
        vectors = np.concatenate([none, np.stack([tools[tool_id] for tool_id in used])])
        paths = {tool_id: (first + len(SPECIALS) + place,) for place, tool_id in enumerate(used)}
        return IdPlan(paths, start, vectors)

    def initial_map(self, earlier: GenerativeRetriever) -> tuple[Floats, Floats] | None:
        """The map and bias of the earlier model, if both have atomic ids."""
        if not (isinstance(earlier, Toolgen) and self.atomic and earlier.atomic):
            return None
        return earlier._learned_rows.map, earlier._learned_rows.bias

    def choose(self, data: Sequence[TrainingSet]) -> None:
        """Choose on dev the weight of similarity and the bonus of new tools, as far as they were not given."""
        given = (self.options.similarity, self.options.new_bonus)
        if not self.atomic:
            super().choose(data)
        elif not self.options.ranks_by_sets and None in given and any(one.dev for one in data):
            found = [trial(self, self._wide_rows(), one) for one in data if one.dev]
            similarity, bonus = chosen(found, *given)
            self.options = replace(self.options, similarity=similarity, new_bonus=bonus)

    def _apply_state(self, plan: IdPlan, state: LearnedState) -> None:
        self._training_tools = None
        if self.atomic:
            own = dict(zip(plan.paths, state.free[len(SPECIALS) :], strict=True))
            self._learned_rows = LearnedRows(state.map, state.bias, own)
        self._special_rows = plan.start[: len(SPECIALS)] + state.free[: len(SPECIALS)]

    def _assign_ids(self, tools: Mapping[str, Floats]) -> dict[str, tuple[int, ...]]:
        ids = list(tools)
        if self._maker is not None:
            return {tool_id: self._maker.add(tool_id, name_words(tool_id), tools[tool_id]) for tool_id in ids}
        vectors, table = np.stack([tools[tool_id] for tool_id in ids]).astype(np.float32), self.words()
        wide = self._wide_of(ids, vectors)
        tokens = self._tokens_for(wide[:, : table.dimension])
        self._wide_rows().put(tokens, wide)
        return {tool_id: (int(token),) for tool_id, token in zip(ids, tokens, strict=True)}

    def _wide_of(self, ids: Sequence[str], vectors: Floats) -> Floats:
        """The rows of tools, each followed by the document's vector and whether the tool is new."""
        rows = self._learned_rows.rows(name_rows(self.base(), self.words(), ids), ids, vectors)
        trained = self.needed if self.options.memorise_all else self._learned_rows.own
        new = np.array([[float(tool_id not in trained)] for tool_id in ids], dtype=np.float32)
        return np.concatenate([rows, vectors, new], axis=1)

    def _longest_id(self) -> int:
        return 1 if self.atomic else MOST_NAME_TOKENS + 1

    def _find_training_tokens(self) -> FirstTokenScores | None:
        if self._maker is not None:
            return FirstTokenScores.of(self.words(), (self._maker.ids[tool_id][0] for tool_id in self._trained))
        first, known, here = self.token(SPECIALS[0]), self._training_tools, self._indexed()
        if known is None and not (here.ids and self.needed <= set(here.ids)):
            return None  # an old model, saved with another catalogue and without the tools of training
        ids, wide = (known or here).ids, self._wide_rows()
        if known is None:
            rows = wide.of(np.array([self._paths[tool_id][0] for tool_id in ids]))
        else:
            rows = self._wide_of(ids, known.vectors)
        rows = np.concatenate([wide.of(first + np.arange(len(SPECIALS))), rows])
        self._training_tools = DocumentTools(
            ids, rows[len(SPECIALS) :, -1 - len(self._learned_rows.map) : -1]
        )  # not a second copy
        return FirstTokenScores.of(WideRows(first, rows), range(first + len(SPECIALS), first + len(rows)))

    def _indexed(self) -> DocumentTools:
        alive = self._rows.alive()
        vectors = self._table.rows(alive) if len(alive) else np.zeros((0, 1), np.float32)
        return DocumentTools([self._rows.ids[row] for row in alive], vectors.astype(np.float32))

    def _tokens_for(self, rows: Floats) -> Ints:
        """Tokens that get these rows: first those freed by removed tools, then new ones."""
        count = min(len(self._free), len(rows))
        old = np.array([self._free.pop() for _ in range(count)], dtype=np.int64)
        self.words().put(old, rows[:count])
        return np.concatenate([old, self.words().grow(rows[count:])])

    def _wide_rows(self) -> WideRows:
        if self._wide is None:
            more = np.zeros((len(SPECIALS), self._learned_rows.map.shape[0] + 1), np.float32)
            rows = np.concatenate([self._added_rows(), more], axis=1)
            self._wide = WideRows(self.base().architecture.vocabulary, rows)
        return self._wide

    def _reset(self) -> None:
        super()._reset()
        self._wide, self._free = None, []

    def _forget(self, tool_id: str, tokens: tuple[int, ...]) -> None:
        """Free the id of a removed tool. A longer id from training stays reserved for its tool."""
        if self._maker is None:
            self._free += tokens
        elif tool_id not in self._trained:
            self._maker.remove(tool_id)

    def _scoring(self) -> Table:
        return self._wide_rows() if self._maker is None else self.words()

    def _similarity_logits(self, vectors: Floats | None, count: int) -> LogitBonus | None:
        return None if self.atomic else super()._similarity_logits(vectors, count)

    def _extended(self, reading: Reading, vectors: Floats | None) -> Reading:
        if self._maker is not None:
            return reading
        # Without vectors (a conversation may have no request) no tool is similar.
        more = np.zeros((len(reading.ends()), self._learned_rows.map.shape[0] + 1), np.float32)
        more[:, -1] = self.options.new_bonus or 0.0
        if vectors is not None:
            more[:, :-1] = (self.options.similarity or 0.0) * vectors
        return ExtendedReading(reading, more)

    def given_ids(self) -> dict[str, tuple[int, ...]]:
        """The ids of tools added after training; empty for one-token ids, which need not stay the same."""
        later = self._paths.keys() - self._trained if self._maker else ()
        return {tool_id: self._paths[tool_id] for tool_id in sorted(later)}

    def recall_ids(self, ids: Mapping[str, tuple[int, ...]]) -> None:
        """Reserve ids for tools that will be added again; an id that is invalid or taken is left out."""
        if self._maker is not None:
            self._maker.reserve_ids(ids)

    def _save_ids(self, folder: Path) -> None:
        if self._maker is not None:
            self._maker.save(folder / _IDS_FOLDER)
            (folder / _IDS_FOLDER / _TRAINED_FILE).write_text(json.dumps(sorted(self._trained)))
            return
        ids = list(self._learned_rows.own)
        free = (
            np.stack(list(self._learned_rows.own.values()))
            if ids
            else np.zeros((0, len(self._learned_rows.bias)), np.float32)
        )
        halves = {"free": free, "map": self._learned_rows.map, "bias": self._learned_rows.bias}
        arrays: dict[str, Any] = {name: array.astype(np.float16) for name, array in halves.items()}
        np.savez(folder / "rows.npz", ids=np.array(ids, dtype=np.str_), **arrays)
        if self._training_tools is None or self._training_tools.same(self._indexed()):
            DocumentTools.drop(folder)
        else:
            self._training_tools.save(folder)

    def _load_ids(self, folder: Path) -> None:
        if not self.atomic:
            self._maker = KINDS[self.options.ids].load(folder / _IDS_FOLDER, self.base())
            self._trained = frozenset(json.loads((folder / _IDS_FOLDER / _TRAINED_FILE).read_text()))
            if not self._trained <= self._maker.ids.keys():
                raise ValueError("a tool that was trained has no id")
            return
        arrays = read_arrays(folder / "rows.npz")
        ids, mapped = arrays["ids"].tolist(), arrays["map"]
        free, bias = self.base().rows(arrays["free"], len(ids)), self.base().rows(arrays["bias"][None], 1)[0]
        self._learned_rows = LearnedRows(self.base().rows(mapped, len(mapped)), bias, dict(zip(ids, free, strict=True)))
        self._training_tools = DocumentTools.load(folder, len(mapped))


def trial(retriever: Toolgen, rows: WideRows, one: TrainingSet) -> DevTrial:
    """Score a dev split, sampled if it is large, with the language model and with the encoder."""
    split = one.dataset.split(one.dev)
    ids = [tool.id for tool in one.dataset.tools]
    step = max(1, len(split.requests) * len(ids) // _MOST_NUMBERS)
    texts = [text for _, text in split.requests[::step]]
    states = retriever.reading(texts).ends()
    wide = rows.of(np.array([retriever.path(tool_id)[0] for tool_id in ids]))
    size = states.shape[1]
    vectors = retriever.encoder.encode(texts)
    said = np.asarray(states @ wide[:, :size].T, dtype=np.float32)
    cosines = np.asarray(vectors @ wide[:, size:-1].T, dtype=np.float32)
    return DevTrial(said, cosines, wide[:, -1] > 0, ids, split.gold[::step])
