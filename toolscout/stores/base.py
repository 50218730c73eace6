"""The contract of a store: the truth about which tools there are. Every index is derived from one and follows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from toolscout.core.answer import Allowed, Example
from toolscout.core.arrays import Floats
from toolscout.core.permissions import Key, Principal, Rules
from toolscout.core.tool import Listing, Tool

ChangeKind = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class Change:
    """What last happened to one tool. `digest` identifies its searched text, and is empty once it is removed.

    A follower takes "added" and "changed" alike as "put this in place of what you have", and "removed" as "drop it
    if you have it": the tool may have come and gone, or gone and come back, since the follower last looked.
    """

    tool_id: str
    kind: ChangeKind
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class AddReport:
    """What one add did, and the catalogue version it left."""

    added: int
    changed: int
    unchanged: int
    removed: int
    version: int


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source that tools came from: how many it has here, and when it last changed any (None: not known)."""

    source: str
    tools: int
    version: int
    changed: datetime | None


# Begins the digest under which the vector of a request is cached, where all others are of documents.
REQUEST_PREFIX = "request:"


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """Cached vectors, row i belonging to digests[i]; `cursor` asks for what comes after them."""

    cursor: int
    digests: tuple[str, ...]
    vectors: Floats


class Store(ABC):
    """Where tools rest. One object serves many threads, and a reader never waits for a writer.

    Each call sees one committed state, an iterator the state at its first step. Each call that writes is one
    transaction: it happens whole or not at all. All raise errors.StoreError or one of its kinds when the store fails.
    A kind of store inherits this class and writes every method; only the `with` block is given.
    """

    @abstractmethod
    def version(self) -> int:
        """The catalogue version: 0 at first, one more for each commit that changes tools."""

    @abstractmethod
    def identity(self) -> str:
        """Tells this store from every other, also from one made later at the same place."""

    @abstractmethod
    def stamp(self) -> int:
        """A number that moves when anything at all is committed, by any process. Cheap enough to ask per request."""

    @abstractmethod
    def add(self, tools: Iterable[Tool], source: str = "", *, replace: bool = False, sync: bool = False) -> AddReport:
        """Add or change tools; those that are already there with equal content cost no write.

        A source may change its own tools. Another source's tool of the same id and different content raises
        DuplicateTool, unless `replace` takes it over. `sync` removes the tools of this source that it no longer
        has. When `tools` raises midway nothing is written.
        """

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> int:
        """Remove tools; UnknownTool, and nothing removed, when one is not there."""

    @abstractmethod
    def get(self, ids: Sequence[str]) -> list[Tool]:
        """The tools with these ids, in this order; UnknownTool when one is not there."""

    @abstractmethod
    def ids(self, namespace: str | None = None) -> list[str]:
        """Every tool id, sorted; or those of one namespace."""

    @abstractmethod
    def count(self, allowed: Allowed | None = None) -> int:
        """How many tools there are, or how many of them a caller may see; quick however many there are."""

    @abstractmethod
    def namespaces(self) -> dict[str, int]:
        """Every namespace, sorted, and how many tools it has."""

    @abstractmethod
    def sources(self) -> list[SourceState]:
        """Every source that has tools here, sorted by its label."""

    @abstractmethod
    def tools(self, namespace: str | None = None, *, offset: int = 0, limit: int | None = None) -> Iterator[Tool]:
        """The tools sorted by id; or one page of them."""

    @abstractmethod
    def changes(self, since: int) -> Iterator[Change]:
        """The last change of each tool that changed after version `since`, sorted by version, then id."""

    @abstractmethod
    def documents(self, since: int) -> Iterator[tuple[Change, Listing | None]]:
        """As changes(), each with the tool as indexes want it; None for those that were removed."""

    @abstractmethod
    def set_alias(self, tool_id: str, alias: str) -> bool:
        """Give a tool one more name, which outlives imports of it; False when it had it. A change of the tool."""

    @abstractmethod
    def remove_alias(self, tool_id: str, alias: str) -> bool:
        """Take back a name that set_alias gave; False when there was none."""

    @abstractmethod
    def vectors(self, fingerprint: str, digests: Sequence[str]) -> dict[str, Floats]:
        """The cached vectors of these texts by this model; texts without one are left out."""

    @abstractmethod
    def vectors_after(self, fingerprint: str, cursor: int = 0, limit: int = 8192) -> VectorBatch:
        """Vectors of this model in the order they were cached, from any process; no digests when there are no more.

        Texts that no tool has any more may be among them.
        """

    @abstractmethod
    def last_vector(self, fingerprint: str) -> int:
        """The cursor after the vectors of this model that are cached now."""

    @abstractmethod
    def put_vectors(self, fingerprint: str, digests: Sequence[str], vectors: Floats) -> None:
        """Cache vectors, kept in half precision. One that is already cached stays as it is."""

    @abstractmethod
    def missing_vectors(self, fingerprint: str, limit: int | None = None, since: int = 0) -> list[tuple[str, str]]:
        """(digest, text) of the distinct texts, of tools changed after `since`, that this model has no vector for."""

    @abstractmethod
    def prune_vectors(self) -> int:
        """Forget the vectors, of any model, of documents that no tool has any more; how many they were."""

    @abstractmethod
    def grant(self, principal: str, allowed: Allowed) -> None:
        """Let a principal see these namespaces and ids besides what it may already see."""

    @abstractmethod
    def revoke(self, principal: str, allowed: Allowed) -> None:
        """Take these grants back, where they were given."""

    @abstractmethod
    def permissions(self, principal: str) -> Allowed:
        """What a principal may see in the catalogue as it is now: nothing, for one that was granted nothing."""

    @abstractmethod
    def principals(self) -> list[str]:
        """Everyone that was granted something or put here, sorted."""

    @abstractmethod
    def put_principal(self, principal: Principal) -> None:
        """Set the patterns, tenant and rights of a principal, in place of those it had. Grants and keys stay."""

    @abstractmethod
    def principal(self, name: str) -> Principal | None:
        """A principal as it was put here; None where it was not."""

    @abstractmethod
    def remove_principal(self, name: str) -> bool:
        """Forget a principal with its patterns and keys; False where it was not put here. Grants stay."""

    @abstractmethod
    def rules(self, name: str) -> Rules:
        """What a principal was granted and its patterns, whatever the catalogue holds."""

    @abstractmethod
    def add_key(self, key: Key) -> None:
        """Give a principal that was put here one more key; UnknownPrincipal where it was not."""

    @abstractmethod
    def api_keys(self) -> list[Key]:
        """Every key, by principal, oldest first."""

    @abstractmethod
    def remove_key(self, digest: str) -> bool:
        """Take one key back; False where there was none."""

    @abstractmethod
    def access(self) -> int:
        """A number that moves with every change of grants, principals and keys, by any process."""

    @abstractmethod
    def add_feedback(self, examples: Iterable[Example]) -> None:
        """Keep what requests really used."""

    @abstractmethod
    def feedback(self, after: int = 0) -> Iterator[tuple[int, Example]]:
        """Feedback in the order it came, numbered; `after` is the last number already seen."""

    @abstractmethod
    def check(self) -> None:
        """Read the whole store and raise CorruptStore where it is damaged."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the store; twice does no harm."""

    def __enter__(self) -> Self:
        """The store itself, closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
