"""toolweaver: each tool has a short code, learned from its document and from co-use; a language model writes it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.core.option_values import Presets
from toolscout.errors import BadModel, MissingExtra
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.tool_ids.quantizer import Code, CodeOptions, Quantizer
from toolscout.retrievers.base import FitProgress, FitReport
from toolscout.retrievers.document_index import EncoderOptions
from toolscout.retrievers.generative.base import SPECIALS, GenerativeRetriever, IdPlan
from toolscout.retrievers.generative.fit import fit
from toolscout.retrievers.generative.token_rows import name_rows
from toolscout.retrievers.generative.training_ids import FirstTokenScores
from toolscout.retrievers.provenance import TrainingSet
from toolscout.training.encoder_options import IdTrainingOptions

if TYPE_CHECKING:
    from toolscout.training.id_generation import LearnedState

_CODES_FILE, _ROWS_FILE = "codes.json", "rows.npy"
_RIDGE = 1.0
# How many pairs of tools used together, the most frequent ones, are kept for plots.
_USES_KEPT = 5_000


# The paper's settings. Its 5,000 epochs over 46,985 tools, 5,096 a step, are about 50,000 steps. It names no batch for
# the language model. Only the model's own score ranks.
_PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "levels": 2,
        "codes": 1024,
        "latent": 64,
        "collaborative": 1.0,
        "collaborative_on": "vectors",
        "beta": 0.25,
        "sinkhorn": 0.01,
        "code_steps": 50_000,
        "code_rate": 1e-5,
        "start": "random",
        "rank": 0,
        "memorise": 0,
        "epochs": 5,
        "agent_epochs": 2,
        "trajectory_tokens": 6144,
        "rehearse": 0.0,
        "rate": 4e-5,
        "pace": 1.0,
        "warmup": 0.03,
        "decay": "cosine",
        "mix": 0.0,
        "absent": 0.0,
        "request_tokens": 6144,
        "similarity": 0.0,
        "new_bonus": 0.0,
        "carry_on": 1.0,
    }
)


@dataclass(frozen=True, slots=True)
class ToolweaverOptions(Presets, IdTrainingOptions, CodeOptions, EncoderOptions):
    """`start`: where the rows of code tokens begin: "codebooks" through a projection, or "random".

    The published method does not memorise documents; `memorise` says for how many epochs it is done here. The preset
    "published" has the settings of the paper.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"published": _PUBLISHED})
    start: Literal["codebooks", "random"] = "codebooks"
    absent: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        IdTrainingOptions.__post_init__(self)
        CodeOptions.__post_init__(self)
        if self.start not in ("codebooks", "random"):
            raise BadModel(f"start must be codebooks or random, got {self.start!r}")


class Toolweaver(GenerativeRetriever):
    """ToolWeaver with unique codes. A new tool gets a free code near its document's; no other code changes."""

    name: ClassVar[str] = "toolweaver"
    options_kind: ClassVar[type[Any]] = ToolweaverOptions

    def __init__(self, options: ToolweaverOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start empty and untrained."""
        super().__init__(options or ToolweaverOptions(), encoder)
        self._quantizer: Quantizer | None = None
        self._codes: dict[str, Code] = {}
        self._taken: Ints | None = None  # all codes as an array; None after a code was freed
        self._trained: set[str] = set()
        self._uses: list[tuple[str, str, int]] = []
        self._health: dict[str, Any] = {}
        self._code_rows: Floats = np.zeros((0, 1), np.float32)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Learn codes, then train the language model to write them; choose weights on dev."""
        return fit(self, data, folder, progress)

    def codes(self) -> dict[str, Code]:
        """The code of every indexed tool."""
        return {tool_id: self._codes[tool_id] for tool_id in self._paths}

    def health(self) -> dict[str, Any]:
        """How evenly codes are used, measured when they were learned."""
        return self._health

    def uses(self) -> list[tuple[str, str, int]]:
        """Pairs of tools that training requests used together, and how many requests did."""
        return self._uses

    def plan(
        self,
        tools: Mapping[str, Floats],
        gold: Sequence[Sequence[str]],
        kept: Path | None = None,
        progress: FitProgress | None = None,
    ) -> IdPlan:
        """Learn codes from the tools' documents and from which tools requests use together."""
        try:
            from toolscout.training.code_learning import learn
        except ImportError as error:
            raise MissingExtra("training", "train") from error
        ids = list(tools)
        place = {tool_id: row for row, tool_id in enumerate(ids)}
        uses = [[place[tool_id] for tool_id in few] for few in gold]
        vectors = np.stack(list(tools.values()))
        learned = learn(vectors, uses, self.options, self.options.device, progress, kept)
        self._quantizer = learned.quantizer
        self._quantizer.encoder = self._fingerprint()
        self._codes, self._taken = dict(zip(ids, learned.codes, strict=True)), None
        self._trained = set(ids)
        self._health = learned.health.as_dict()
        pairs = Counter(pair for few in gold for pair in combinations(sorted(set(few)), 2))
        self._uses = [(one, other, count) for (one, other), count in pairs.most_common(_USES_KEPT)]
        start, latents = self._start(), self._latents()
        return IdPlan({tool_id: self._tokens(code) for tool_id, code in self._codes.items()}, start, latents)

    def _tokens(self, code: Code) -> tuple[int, ...]:
        """A code as tokens: each level has a range of its own behind the special tokens."""
        assert self._quantizer is not None
        first = self.base().architecture.vocabulary + len(SPECIALS)
        return tuple(first + level * self._quantizer.codes + one for level, one in enumerate(code))

    def _start(self) -> Floats:
        """The initial rows of code tokens: the mean name rows of a code's tools, projected from the codebooks."""
        assert self._quantizer is not None
        base, table = self.base(), self.base().table()
        names = name_rows(base, table, list(self._codes))
        books = self._quantizer.codebooks
        count = books.shape[0] * books.shape[1]
        specials = np.repeat(name_rows(base, table, ["none"]), len(SPECIALS), axis=0)
        if self.options.start == "random":
            drawn = np.random.default_rng(self.options.seed).normal(size=(count, names.shape[1]))
            return np.concatenate([specials, drawn * names.std()], dtype=np.float32)
        rows = []
        codes = np.array(list(self._codes.values()), dtype=np.int64)
        for level, book in enumerate(books):
            used, where = np.unique(codes[:, level], return_inverse=True)
            means = np.zeros((len(used), names.shape[1]))
            np.add.at(means, where, names)
            means /= np.bincount(where)[:, None]
            rows.append(_projected(book[used], means, book))
        return np.concatenate([specials, *rows], dtype=np.float32)

    def _latents(self) -> Floats:
        """The input vectors of the learned map: the codebooks, block-diagonal by level."""
        assert self._quantizer is not None
        levels, codes, latent = self._quantizer.codebooks.shape
        found = np.zeros((len(SPECIALS) + levels * codes, levels * latent), np.float32)
        for level, book in enumerate(self._quantizer.codebooks):
            rows = slice(len(SPECIALS) + level * codes, len(SPECIALS) + (level + 1) * codes)
            scale = np.maximum(np.linalg.norm(book, axis=1).mean(), 1e-6)
            found[rows, level * latent : (level + 1) * latent] = book / scale
        return found

    def _apply_state(self, plan: IdPlan, state: LearnedState) -> None:
        mapped = (plan.vectors != 0).any(1, keepdims=True)
        rows = plan.start + mapped * (plan.vectors @ state.map + state.bias) + state.free
        self._special_rows, self._code_rows = rows[: len(SPECIALS)], rows[len(SPECIALS) :].astype(np.float32)

    def _added_rows(self) -> Floats:
        return np.concatenate([self._special_rows, self._code_rows])

    def _assign_ids(self, tools: Mapping[str, Floats]) -> dict[str, tuple[int, ...]]:
        assert self._quantizer is not None
        new = [tool_id for tool_id in tools if tool_id not in self._codes]
        if new:
            vectors = np.stack([tools[tool_id] for tool_id in new]).astype(np.float32)
            if self._taken is None:
                self._taken = np.array(sorted(set(self._codes.values())), np.int64).reshape(-1, self._quantizer.levels)
            found = self._quantizer.assign(vectors, self._taken)
            self._codes.update(zip(new, found, strict=True))
            self._taken = np.concatenate([self._taken, np.array(found, np.int64)])
        return {tool_id: self._tokens(self._codes[tool_id]) for tool_id in tools}

    def _longest_id(self) -> int:
        return self._quantizer.levels if self._quantizer else 1

    def _find_training_tokens(self) -> FirstTokenScores | None:
        return FirstTokenScores.of(self.words(), (self._tokens(self._codes[tool_id])[0] for tool_id in self._trained))

    def _room(self) -> float:
        assert self._quantizer is not None
        return float(self._quantizer.codes**self._quantizer.levels - len(self._codes))

    def _keeps_id(self, tool_id: str) -> bool:
        return tool_id in self._codes

    def _full(self) -> str:
        assert self._quantizer is not None
        most, away = self._quantizer.codes**self._quantizer.levels, len(self._trained - self._paths.keys())
        gone = f", {away:,} of them kept for tools that it was trained with and that are not here" if away else ""
        return f"all {most:,} codes of the model are taken{gone}"

    def _forget(self, tool_id: str, tokens: tuple[int, ...]) -> None:
        """Free the code of a removed tool; a code from training stays reserved for its tool."""
        if tool_id not in self._trained:
            self._codes.pop(tool_id, None)
            self._taken = None

    def given_ids(self) -> dict[str, tuple[int, ...]]:
        """The codes of tools added after training."""
        return {tool_id: self._codes[tool_id] for tool_id in self._paths if tool_id not in self._trained}

    def recall_ids(self, ids: Mapping[str, tuple[int, ...]]) -> None:
        """Reserve codes for tools that will be added again; a code that is invalid or taken is left out."""
        if self._quantizer is None:
            return
        levels, taken = self._quantizer.levels, set(self._codes.values())
        for tool_id, code in ids.items():
            fits = len(code) == levels and all(0 <= one < self._quantizer.codes for one in code)
            if fits and tool_id not in self._codes and code not in taken:
                self._codes[tool_id] = code
                taken.add(code)
        self._taken = None

    def _save_ids(self, folder: Path) -> None:
        assert self._quantizer is not None
        self._quantizer.save(folder)
        np.save(folder / _ROWS_FILE, self._code_rows.astype(np.float16))
        record = {"codes": self._codes, "woven": sorted(self._trained), "uses": self._uses, "health": self._health}
        (folder / _CODES_FILE).write_text(json.dumps(record))

    def _load_ids(self, folder: Path) -> None:
        self._quantizer = Quantizer.load(folder)
        count = self._quantizer.levels * self._quantizer.codes
        self._code_rows = self.base().rows(np.load(folder / _ROWS_FILE, allow_pickle=False), count)
        record = json.loads((folder / _CODES_FILE).read_text())
        self._codes = {tool_id: tuple(code) for tool_id, code in record["codes"].items()}
        self._quantizer.vector(list(self._codes.values()))  # refuses codes that the quantizer does not have
        self._trained = set(record["woven"])
        if not self._trained <= self._codes.keys():
            raise ValueError("a tool that was trained has no code")
        self._uses = [(one, other, count) for one, other, count in record["uses"]]
        self._health = record["health"]


def _projected(known: Floats, rows: Any, book: Floats) -> Floats:
    """The rows of a whole codebook, by a ridge regression from the codes whose rows are known."""
    middle, centre = known.mean(0), rows.mean(0)
    left = known - middle
    weights = np.linalg.solve(left.T @ left + _RIDGE * np.eye(left.shape[1]), left.T @ (rows - centre))
    return np.asarray((book - middle) @ weights + centre, dtype=np.float32)
