"""Tool ids made of the base language model's own tokens: names, numbers, or paths in a tree of clustered documents.

Every id ends with the base model's end token and has it nowhere else, so no id is a prefix of another. The id of a tool
does not change; the id of a removed tool may be given to another one.
"""

from __future__ import annotations

import heapq
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.core.model_files import UNREADABLE
from toolscout.core.tool import clean_text, split_words
from toolscout.errors import BadModel, DuplicateTool
from toolscout.models.language.base import Base
from toolscout.models.tool_ids.cluster_tree import WAYS, Tree

Id = tuple[int, ...]

IDS_FILE, CLUSTERS_FILE = "ids.json", "clusters.npz"
MOST_NAME_TOKENS: Final = 24
_VERSION = 1
_LEAST_DIGITS, _MOST_DIGITS = 5, 7


def maker(kind: str, base: Base, seed: int = 0) -> IdMaker:
    """An empty IdMaker of this kind; raises BadModel for an unknown kind."""
    if kind not in KINDS:
        raise BadModel(f"there are no tool ids of kind {kind!r}; choose one of: {', '.join(KINDS)}")
    return KINDS[kind](base, seed)


def name_in_words(name: str, namespace: str = "") -> str:
    """A tool's name, and namespace where there is one, as lower-case words: "get forecast for open meteo"."""
    parts = [" ".join(split_words(part)).lower() or clean_text(part) for part in (name, namespace)]
    return " for ".join(part for part in parts if part)


class IdMaker(ABC):
    """Gives tools their ids; each subclass makes ids of one kind. Built by `maker`, or read by `KINDS[kind].load`."""

    kind: ClassVar[str]

    def __init__(self, base: Base, seed: int = 0) -> None:
        """Begin without tools; raises BadModel where the base model has no token for each digit."""
        self._base, self._seed = base, seed
        self._ids: dict[str, Id] = {}
        # The last token: some tokenisers put a start-of-word token before a lone digit.
        self._digits = [token for digit in range(WAYS) for token in self._text(str(digit))[-1:]]
        self._digit_of = {token: str(digit) for digit, token in enumerate(self._digits)}
        if not len(self._digits) == len(self._digit_of) == WAYS:
            raise BadModel(f"{base.name} has no token for each digit; choose another base model or atomic ids")

    @property
    def ids(self) -> Mapping[str, Id]:
        """The id of every tool that has one; a live view, which must not be changed."""
        return self._ids

    def make(self, tools: Sequence[tuple[str, str]], vectors: Floats | None) -> dict[str, Id]:
        """Make ids for all tools, in place of all ids so far, and return them by tool id.

        Takes (tool id, name in words) for each tool, and the vectors of their documents [tools, d], which only
        hierarchical ids need. Raises DuplicateTool where a tool id comes twice.
        """
        if len({key for key, _ in tools}) < len(tools):
            raise DuplicateTool("a tool is there twice; give each tool one id")
        self._ids = self._make(tools, vectors)
        return dict(self._ids)

    def add(self, tool_id: str, name: str, vector: Floats | None) -> Id:
        """Give a new tool a free id, and return it; a tool that has an id keeps it.

        Raises BadModel where hierarchical ids get no vector.
        """
        if tool_id in self._ids:
            self._set_vector(self._ids[tool_id], vector)
        else:
            self._ids[tool_id] = self._new_id(name, vector)
        return self._ids[tool_id]

    def remove(self, tool_id: str) -> None:
        """Free the id of a tool; unknown ones are ignored."""
        if tool_id in self._ids:
            self._release(self._ids.pop(tool_id))

    def reserve_ids(self, ids: Mapping[str, Id]) -> None:
        """Reserve for these tools the ids they had before; invalid ids and ids in use are left out."""
        taken = set(self._ids.values())
        for tool_id, tokens in ids.items():
            if tool_id not in self._ids and tokens not in taken and self._is_id(tokens) and self._reserve(tokens):
                self._ids[tool_id] = tokens
                taken.add(tokens)

    def save(self, folder: Path) -> None:
        """Write ids.json, and all other files that are needed to add tools later."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"version": _VERSION, "kind": self.kind, "base": self._base.fingerprint, "seed": self._seed}
        (folder / IDS_FILE).write_text(json.dumps({**about, **self._settings(), "ids": self._ids}))

    @classmethod
    def load(cls, folder: Path, base: Base) -> Self:
        """Read what `save` wrote; raises BadModel where it cannot be read or belongs to another base model."""
        path = folder / IDS_FILE
        try:
            found = json.loads(path.read_bytes())
            about = {"version": _VERSION, "kind": cls.kind, "base": base.fingerprint}
            wrong = [name for name, value in about.items() if found[name] != value]
            if wrong:
                raise BadModel(f"the ids in {path} are of another {' and '.join(wrong)}; train the model again")
            made = cls(base, int(found["seed"]))
            made._ids = {str(key): tuple(int(token) for token in tokens) for key, tokens in found["ids"].items()}
            made._check()
            made._restore(found, folder)
        except UNREADABLE as error:
            if isinstance(error, BadModel):
                raise
            raise BadModel(f"the ids in {folder} cannot be read ({error!r}); train the model again") from None
        return made

    def _check(self) -> None:
        if len(set(self._ids.values())) < len(self._ids):
            raise ValueError("two tools have the same id")
        for tokens in self._ids.values():
            if not self._is_id(tokens):
                raise ValueError(f"{tokens} is no id")

    def _is_id(self, tokens: Id) -> bool:
        ends = self._base.end in tokens and tokens.index(self._base.end) + 1 == len(tokens)
        return ends and min(tokens) >= 0 and max(tokens) < self._base.architecture.vocabulary

    def _text(self, text: str) -> list[int]:
        return [token for token in self._base.encode(text) if token != self._base.end]

    def _digit_tokens(self, digits: str) -> list[int]:
        return [self._digits[int(digit)] for digit in digits]

    def _digits_in(self, tokens: Id) -> str:
        """The digits of an id that consists of them."""
        return "".join(self._digit_of[token] for token in tokens[:-1])

    @abstractmethod
    def _make(self, tools: Sequence[tuple[str, str]], vectors: Floats | None) -> dict[str, Id]:
        """Ids for all tools, as for `make`."""

    @abstractmethod
    def _new_id(self, name: str, vector: Floats | None) -> Id:
        """A free id for one tool, marked as used."""

    @abstractmethod
    def _release(self, tokens: Id) -> None:
        """Mark an id as free."""

    @abstractmethod
    def _reserve(self, tokens: Id) -> bool:
        """Mark a free id as used; False where it is not an id of this kind."""

    def _set_vector(self, tokens: Id, vector: Floats | None) -> None:
        """Use the vector of a tool whose id was reserved by `reserve_ids`; most kinds do not depend on vectors."""
        return

    def _settings(self) -> dict[str, Any]:
        """What `save` writes into ids.json beside the ids."""
        return {}

    @abstractmethod
    def _restore(self, found: Mapping[str, Any], folder: Path) -> None:
        """Restore all but the ids, from the content of ids.json and the other files in the folder."""


class Semantic(IdMaker):
    """The id is the tool's name, cut after 24 tokens; a number follows where another tool has that id."""

    kind = "semantic"

    def __init__(self, base: Base, seed: int = 0) -> None:
        """Begin without tools; the seed changes nothing."""
        super().__init__(base, seed)
        self._space = self._text(" ")
        self._taken: set[Id] = set()

    def _make(self, tools: Sequence[tuple[str, str]], vectors: Floats | None) -> dict[str, Id]:
        self._taken = set()
        return {key: self._new_id(name, None) for key, name in tools}

    def _new_id(self, name: str, vector: Floats | None) -> Id:
        words = self._text(clean_text(name)) or self._text("tool")
        tokens = self._numbered(words, 1)
        if tokens in self._taken:
            tokens = self._numbered(words, self._free_number(words))
        self._taken.add(tokens)
        return tokens

    def _free_number(self, words: list[int]) -> int:
        """A free number whose predecessor is taken; by bisection, as thousands of tools may have one name."""
        taken, free = 1, 2
        while self._numbered(words, free) in self._taken:
            taken, free = free, 2 * free
        while free - taken > 1:
            middle = (taken + free) // 2
            if self._numbered(words, middle) in self._taken:
                taken = middle
            else:
                free = middle
        return free

    def _numbered(self, words: list[int], number: int) -> Id:
        suffix = [*self._space, *self._digit_tokens(str(number))] if number > 1 else []
        return (*words[: MOST_NAME_TOKENS - len(suffix)], *suffix, self._base.end)

    def _release(self, tokens: Id) -> None:
        self._taken.discard(tokens)

    def _reserve(self, tokens: Id) -> bool:
        self._taken.add(tokens)
        return True

    def _restore(self, found: Mapping[str, Any], folder: Path) -> None:
        self._taken = set(self._ids.values())


class Numeric(IdMaker):
    """The id is a number, counted up from 0: five digits, or as many as twice the number of tools has, or more."""

    kind = "numeric"

    def __init__(self, base: Base, seed: int = 0) -> None:
        """Begin without tools; the seed changes nothing."""
        super().__init__(base, seed)
        self._width, self._next = _LEAST_DIGITS, 0
        self._free: list[int] = []  # a heap of the free numbers below the next

    def _make(self, tools: Sequence[tuple[str, str]], vectors: Floats | None) -> dict[str, Id]:
        self._width, self._next, self._free = max(_LEAST_DIGITS, len(str(2 * len(tools)))), 0, []
        return {key: self._new_id(name, None) for key, name in tools}

    def _new_id(self, name: str, vector: Floats | None) -> Id:
        if self._free:
            number = heapq.heappop(self._free)
        else:
            number, self._next = self._next, self._next + 1
        # A number with more digits than the width has no leading zero, so it cannot equal another id.
        return (*self._digit_tokens(f"{number:0{self._width}}"), self._base.end)

    def _release(self, tokens: Id) -> None:
        heapq.heappush(self._free, int(self._digits_in(tokens)))

    def reserve_ids(self, ids: Mapping[str, Id]) -> None:
        """Reserve for these tools the ids they had before; invalid ids and ids in use are left out."""
        super().reserve_ids(ids)
        self._find_free()

    def _reserve(self, tokens: Id) -> bool:
        if (
            not all(token in self._digit_of for token in tokens[:-1])
            or len(tokens) > max(self._width, _MOST_DIGITS) + 1
        ):
            return False
        digits = self._digits_in(tokens)
        return bool(digits) and digits == f"{int(digits):0{self._width}}"  # the only spelling of its number

    def _settings(self) -> dict[str, Any]:
        return {"width": self._width}

    def _restore(self, found: Mapping[str, Any], folder: Path) -> None:
        self._width = int(found["width"])
        self._find_free()

    def _find_free(self) -> None:
        """Compute the free numbers from the ids in use."""
        used = {int(self._digits_in(tokens)) for tokens in self._ids.values()}
        self._next = max(used, default=-1) + 1
        self._free = sorted(set(range(self._next)) - used)


class Hierarchical(IdMaker):
    """The id is the path of the tool's document in a tree of clusters (models/tool_ids/cluster_tree.py)."""

    kind = "hierarchical"

    def __init__(self, base: Base, seed: int = 0) -> None:
        """Begin without tools; the seed is that of the clustering."""
        super().__init__(base, seed)
        self._tree = Tree()

    def _make(self, tools: Sequence[tuple[str, str]], vectors: Floats | None) -> dict[str, Id]:
        vectors = _check_vectors(vectors) if tools else np.zeros((0, 0), np.float32)
        if len(vectors) != len(tools):
            raise BadModel(f"there are {len(tools)} tools and {len(vectors)} vectors; give one for each")
        self._tree, paths = Tree.of(vectors, self._seed)
        return {key: self._id(path) for (key, _), path in zip(tools, paths, strict=True)}

    def _new_id(self, name: str, vector: Floats | None) -> Id:
        return self._id(self._tree.add(_check_vectors(vector)))

    def _id(self, path: str) -> Id:
        return (*self._digit_tokens(path), self._base.end)

    def _release(self, tokens: Id) -> None:
        self._tree.release(self._digits_in(tokens))

    def _reserve(self, tokens: Id) -> bool:
        digits = len(tokens) > 1 and all(token in self._digit_of for token in tokens[:-1])
        return digits and self._tree.reserve(self._digits_in(tokens))

    def _set_vector(self, tokens: Id, vector: Floats | None) -> None:
        if vector is not None:
            self._tree.set_vector(self._digits_in(tokens), vector)

    def save(self, folder: Path) -> None:
        """Write ids.json, and the clusters as clusters.npz."""
        super().save(folder)
        self._tree.save(folder / CLUSTERS_FILE)

    def _restore(self, found: Mapping[str, Any], folder: Path) -> None:
        self._tree = Tree.load(folder / CLUSTERS_FILE, [self._digits_in(tokens) for tokens in self._ids.values()])


def _check_vectors(vectors: Floats | None) -> Floats:
    if vectors is None:
        raise BadModel("hierarchical ids are made from the vectors of documents; give them, or choose another kind")
    return vectors


KINDS: Final[Mapping[str, type[Semantic] | type[Numeric] | type[Hierarchical]]] = {
    one.kind: one for one in (Semantic, Numeric, Hierarchical)
}
