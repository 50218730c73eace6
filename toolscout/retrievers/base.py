"""The contract every retriever keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from toolscout.core.answer import Allowed, Example, Hit, Reason
from toolscout.core.arrays import Floats
from toolscout.core.model_files import malformed, of_another_kind
from toolscout.core.tool import Searchable
from toolscout.data.dataset import Dataset
from toolscout.errors import BadModel, BadRequest

MODEL_FILE = "model.json"
TRAINED_ON_FILE = "trained_on.json"
_NEW_FILE = "new.json"
FORMAT = 1

Role = Literal["train", "dev"]
Vectors = Mapping[str, Floats]
"""Unit vectors of documents by text digest. A tool whose digest is not among them waits for its vector."""


@dataclass(frozen=True, slots=True)
class Options:
    """Base of each method's options: what the command line shows, and what is saved."""


OptionsT = TypeVar("OptionsT", bound=Options)


@runtime_checkable
class Retriever(Protocol):
    """Takes tools live, ranks them for requests. Batch in, batch out; ties break by tool id."""

    name: ClassVar[str]

    @property
    def options(self) -> Options:
        """What it was made with."""

    def __len__(self) -> int:
        """How many tools can be searched."""

    def ids(self) -> list[str]:
        """The ids of all tools that were added, those that still wait for a vector included."""

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Take tools in, or their new versions, without a rebuild."""

    def remove(self, ids: Sequence[str]) -> None:
        """Forget tools; ids that are not there are ignored."""

    def learn(self, examples: Sequence[Example]) -> None:
        """Take feedback; a method that cannot use it ignores it."""

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """The best k tools for each request among those allowed, as in the full ranking without the others."""

    def explain(self, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """The same hits with every reason that takes time to find, such as the words that matched."""

    def save(self, folder: Path) -> None:
        """Write options and index: json, npy and the engine's own files, never pickle."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open what save wrote."""


class TextEncoder(Protocol):
    """What turns texts into unit vectors."""

    @property
    def fingerprint(self) -> str:
        """Identifies the model, so that vectors of two models never mix."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def encode_request(self, text: str) -> Floats:
        """The unit vector of one request."""

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors of several requests."""

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], Floats]]:
        """Unit vectors of documents, batch by batch in any order: positions in `texts` and their vectors."""


@runtime_checkable
class Embedded(Protocol):
    """A retriever over vectors of documents, which may be made after the tools have come."""

    def open_encoder(self) -> TextEncoder:
        """The encoder whose vectors it takes; MissingEncoder where there is none."""

    def waiting(self, allowed: Allowed | None = None) -> int:
        """How many tools, among those allowed, cannot be found yet, since their vectors are not known."""

    def arrived(self, vectors: Vectors) -> None:
        """Take in the waiting tools whose vectors are among these."""

    def build_graph(self) -> bool:
        """Prepare for fast search where there are many vectors; says whether there was something to do."""

    def request_vector(self, request: str) -> Floats:
        """The unit vector of a request; one that was searched just now is not encoded again."""


@runtime_checkable
class Needing(Protocol):
    """A retriever that can tell whether a request needs a tool at all."""

    def need(self, requests: Sequence[str]) -> list[float] | None:
        """How likely each request is to need a tool; None where the model was not taught to tell."""


@runtime_checkable
class Sizing(Protocol):
    """A retriever that can say how many tools a request needs, where its option `sets` is on; see `sizing`."""

    def as_many(self, requests: Sequence[str], allowed: Allowed | None = None) -> list[list[Hit]]:
        """As many of the tools allowed as each request needs; BadModel where the model was not taught to tell."""


@runtime_checkable
class Gauged(Protocol):
    """A retriever whose hits say how similar they are, and that can tell how similar others would be."""

    def open_encoder(self) -> TextEncoder:
        """The encoder whose vectors it takes; MissingEncoder where there is none."""

    def best_cosines(self, vectors: Floats, allowed: Allowed | None = None) -> Floats:
        """For requests with these vectors, as its encoder makes them, the cosine of the most similar tool allowed.

        Empty where the caller may see no tool that has a vector.
        """

    def moved(self) -> int:
        """A count of the tools' vectors that have come, changed and gone: how far it has moved says how stale it is."""


@runtime_checkable
class Learner(Protocol):
    """A retriever that uses feedback at once. What it learned of a tool rests while the tool is not in the index."""

    def learn(self, examples: Sequence[Example], vectors: Mapping[str, Floats] | None = None) -> None:
        """Take feedback; the vectors of requests, by their text, spare encoding them."""

    def learned(self) -> int:
        """How many requests it has learned from and still holds."""


@runtime_checkable
class Foresighted(Protocol):
    """A retriever that is far faster when it ranks many requests together than when it is asked them one by one."""

    def rank_ahead(self, requests: Sequence[str], k: int) -> None:
        """Rank these requests together; who then asks one of them for k tools or fewer gets what was found."""


@runtime_checkable
class Speller(Protocol):
    """A retriever that knows the words of the catalogue and can tell when a request misspells one."""

    def corrected(self, request: str, allowed: Allowed | None = None) -> str:
        """The request with words that no tool, of those allowed, has replaced by the one that was surely meant."""


Pairs = list[tuple[str, float]]
"""Tool ids with their scores, best first."""


@runtime_checkable
class Ranker(Protocol):
    """A retriever that can rank without saying why, and say why for the few that matter; search is both together.

    Hybrid asks for a hundred ranked tools and returns five: reasons for the others would cost more than ranking them.
    """

    def rank(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """What search ranks, without reasons."""

    def why(self, request: str, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """The reasons that search gives for these tools."""

    def is_name(self, request: str) -> bool:
        """Whether the request is nothing but the name of a tool."""


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """A dataset to train on: one of its splits, and one to select on ("" where there is none).

    `history`: what the model has seen that wrote the requests, where one did.
    """

    dataset: Dataset
    train: str = "train"
    dev: str = "dev"
    history: TrainedOn = field(default_factory=lambda: TrainedOn())


@dataclass(frozen=True, slots=True)
class SeenSplit:
    """A split that a model was trained on ("train") or selected on ("dev"), and the digests of its requests."""

    dataset: str
    digest: str
    split: str
    role: Role
    requests: frozenset[str]


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """All that a model has seen: splits with their requests, and digests of the documents that were gold in training.

    A tool whose document is not among `tools` is new to the model. `written` are those of them that only requests
    needed which a language model wrote: nobody has asked for them.
    """

    splits: tuple[SeenSplit, ...] = ()
    tools: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()

    @classmethod
    def of(cls, sets: Sequence[TrainingSet]) -> TrainedOn:
        """What training on these sets shows a model."""
        seen = cls()
        for one in sets:
            data = one.dataset
            roles: list[tuple[Role, str]] = [("train", one.train), ("dev", one.dev)]
            splits = [SeenSplit(data.name, data.digest(s), s, role, data.request_digests(s)) for role, s in roles if s]
            asked, written = (data.gold_tools(one.train, written=by) for by in (False, True))
            needed = asked | written
            digests = {tool.id: tool.digest() for tool in data.tools if tool.id in needed}
            tools = frozenset(digests.values())
            seen |= cls(tuple(splits), tools, tools - {digests[tool_id] for tool_id in asked}) | one.history
        return seen

    @classmethod
    def load(cls, folder: Path) -> TrainedOn:
        """What save wrote into a folder; nothing where it holds no trained_on.json."""
        path = folder / TRAINED_ON_FILE
        if not path.is_file():
            return cls()
        try:
            record = json.loads(path.read_text())
            splits = [SeenSplit(**{**split, "requests": frozenset(split["requests"])}) for split in record["splits"]]
            return cls(tuple(splits), frozenset(record["tools"]), frozenset(record.get("written", ())))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadModel(f"{path} cannot be read ({error}); train the model again") from None

    def __or__(self, other: TrainedOn) -> TrainedOn:
        """What two models together have seen."""
        tools, asked = self.tools | other.tools, (self.tools - self.written) | (other.tools - other.written)
        return TrainedOn(tuple(dict.fromkeys(self.splits + other.splits)), tools, tools - asked)

    def save(self, folder: Path) -> None:
        """Write trained_on.json into a model folder."""
        splits = [asdict(split) | {"requests": sorted(split.requests)} for split in self.splits]
        record = {"splits": splits, "tools": sorted(self.tools), "written": sorted(self.written)}
        (folder / TRAINED_ON_FILE).write_text(json.dumps(record) + "\n")


@dataclass(frozen=True, slots=True)
class FitReport:
    """What a fit took and what it reached: seconds, the device, numbers learned, the best scores on dev; and notes."""

    seconds: float
    device: str
    parameters: int
    dev: Mapping[str, float]
    notes: tuple[str, ...] = ()


FitProgress = Callable[[str, int, int], None]
"""Called with what is going on (as "epoch 2, loss 0.31, dev recall@5 0.87"), how much is done, and of how much."""


@runtime_checkable
class Trainable(Protocol):
    """A retriever that can be fitted to requests whose tools are known."""

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train on the train splits, select on the dev splits, and leave a complete model in the folder.

        The folder keeps what is needed to go on after an interruption. No other split is ever read.
        """


def hits_of(pairs: Pairs, reasons: Sequence[tuple[Reason, ...]]) -> list[Hit]:
    """Ranked tools with their reasons."""
    return [Hit(tool_id, score, why) for (tool_id, score), why in zip(pairs, reasons, strict=True)]


def sizing(retriever: Retriever) -> Sizing | None:
    """The retriever itself where it can say how many tools a request needs; None where it cannot."""
    return retriever if isinstance(retriever, Sizing) and getattr(retriever.options, "sets", False) else None


def check_k(k: int) -> None:
    """Refuse a k that asks for nothing."""
    if k < 1:
        raise BadRequest(f"k must be at least 1, got {k}")


def write_new(folder: Path, ids: Iterable[str]) -> None:
    """Keep which tools of an index are new to its model."""
    (folder / _NEW_FILE).write_text(json.dumps(sorted(ids)))


def read_new(folder: Path) -> set[str]:
    """What write_new kept."""
    try:
        return set(json.loads((folder / _NEW_FILE).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BadModel(f"the index in {folder} cannot be read ({error}); build it again") from None


def write_model(folder: Path, retriever: Retriever, parts: Mapping[str, str] | None = None, **extra: Any) -> None:
    """Write model.json, which names the method, its options and its parts (folders inside this one)."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"format": FORMAT, "method": retriever.name, "options": asdict(retriever.options)}
    record |= {"parts": dict(parts or {}), **extra}
    (folder / MODEL_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def read_model(folder: Path) -> dict[str, Any]:
    """Read model.json, checked."""
    path = folder / MODEL_FILE
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadModel(f"{folder} is not a model folder: it has no {MODEL_FILE}") from None
    except (OSError, ValueError) as error:
        raise BadModel(f"{path} cannot be read ({error}); write the model again") from None
    if wrong := malformed(record):
        raise BadModel(f"{path} {wrong}; write the model again")
    if record.get("format") != FORMAT:
        raise BadModel(f"{path} has format {record.get('format')!r}, this version reads {FORMAT}; upgrade toolscout")
    return record


def read_options(kind: type[OptionsT], record: Mapping[str, Any]) -> OptionsT:
    """The options a model was saved with; unknown ones are an error, not a silent default."""
    saved = record.get("options", {})
    unknown = set(saved) - {field.name for field in fields(kind)}
    if unknown:
        raise BadModel(f"options that this version does not know: {', '.join(sorted(unknown))}; upgrade toolscout")
    if wrong := of_another_kind(kind, saved):
        raise BadModel(f"the model has an option of the wrong kind ({', '.join(wrong)}); write the model again")
    return kind(**saved)


def trained_on(folder: Path) -> TrainedOn:
    """What a saved model and its parts have seen; nothing where nothing was learned."""
    seen = TrainedOn.load(folder)
    for part in read_model(folder).get("parts", {}):
        seen |= trained_on(folder / part)
    return seen
