"""The base class of stores. A store holds the tools; every search index is derived from one and follows its changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from toolscout.core.answer import Allowed, Example
from toolscout.core.arrays import Floats
from toolscout.core.cache_folder import cache_folder
from toolscout.core.expansion import Expansion
from toolscout.core.permissions import Key, Principal, Rules
from toolscout.core.tool import Listing, Tool
from toolscout.stores.approvals import Approvals
from toolscout.stores.line_log import LineFile, LineLog

ChangeKind = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class Change:
    """The last change of one tool. `digest` is that of its searched text, empty once the tool is removed.

    An index treats "added" and "changed" alike, as "insert or replace", and "removed" as "remove if present": since it
    last looked, the tool may have been added and removed, or removed and added again.
    """

    tool_id: str
    kind: ChangeKind
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class AddReport:
    """How many tools one call of `add` changed, and the catalogue version after it.

    unexpanded: how many of the changed tools lost their expansion, which was written for another text.
    """

    added: int
    changed: int
    unchanged: int
    removed: int
    version: int
    unexpanded: int = 0


@dataclass(frozen=True, slots=True)
class ExpansionReport:
    """What one call of `set_expansions` did, and the catalogue version after it.

    outdated: expansions that were written for another text than the tool has now. unknown: those of no stored tool.
    """

    changed: int
    unchanged: int
    outdated: int
    unknown: int
    version: int


@dataclass(frozen=True, slots=True)
class StoredTool:
    """A tool as its source gave it, the label of that source, and beside it the aliases that users added, sorted."""

    tool: Tool
    source: str
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source of tools: how many tools it has in the store, and when it last changed any (None: not known)."""

    source: str
    tools: int
    version: int
    changed: datetime | None


# Prefix of the digests under which vectors of requests are cached; digests of tools have none.
REQUEST_PREFIX = "request:"


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """Cached vectors; row i belongs to digests[i]. Pass `cursor` to vectors_after to get those after these."""

    cursor: int
    digests: tuple[str, ...]
    vectors: Floats


@dataclass(frozen=True, slots=True)
class UsedEncoder:
    """An encoder that the tools were embedded with: its fingerprint, and the name that opens it ("": the default)."""

    fingerprint: str
    name: str


class Lease(ABC):
    """The right to be the only one of all processes that does something, such as running a server.

    It ends when `release` is called, and by itself where the process ends or can reach the store no more.
    """

    @property
    @abstractmethod
    def until(self) -> float:
        """Return the time (of time.monotonic) before which nobody else can hold this lease; it moves on while held.

        It is in the past once the lease is lost, and stays there.
        """

    @property
    @abstractmethod
    def inherited(self) -> bool:
        """Return whether the last holder ended without releasing it: what it did may not have stopped yet."""

    @abstractmethod
    def release(self) -> None:
        """Give the lease back, so that another process can take it at once. It never raises."""


class Leases(ABC):
    """Leases of one store, each with a name of its own. They are thread-safe."""

    @abstractmethod
    def take(self, name: str, holder: str) -> Lease | None:
        """Take a lease without waiting; None where another process, or this one, holds it. `holder` is told to others.

        Raises StoreError where the store cannot be reached.
        """

    @abstractmethod
    def holder(self, name: str) -> str | None:
        """Return what the present holder told when it took the lease; None where nobody holds it.

        Raises StoreError where the store cannot be reached.
        """


class StoreSearch(ABC):
    """Searches made by the store's own engine, for a process whose index does not stand yet.

    Scores are those of the engine, higher is better; ties are broken by id. `allowed`: only these tools are looked at.
    """

    @abstractmethod
    def by_words(self, request: str, k: int, allowed: Allowed | None = None) -> list[tuple[str, float]]:
        """Return the best k tools that share words with a request, with scores above 0."""

    @abstractmethod
    def matched_words(
        self, request: str, ids: Sequence[str], sees: Allowed | None = None
    ) -> dict[str, tuple[tuple[str, ...], float]]:
        """Return the words of a request that each tool has, the rarest first, and their share of all by rarity.

        A word that no tool in `sees` has counts as one that no tool has.
        """

    @abstractmethod
    def by_vector(
        self, fingerprint: str, vector: Floats, k: int, allowed: Allowed | None = None
    ) -> list[tuple[str, float]]:
        """Return the k tools whose cached vectors of this model are nearest to a unit vector, with their cosines."""

    @abstractmethod
    def cosines(self, fingerprint: str, vector: Floats, ids: Sequence[str]) -> dict[str, float]:
        """Return the cosines of these tools to a unit vector; tools without a cached vector are left out."""

    @abstractmethod
    def named(self, names: Sequence[str], allowed: Allowed | None = None) -> dict[str, tuple[str, ...]]:
        """Return the tools that have one of these names or aliases, however they are spelt, with their aliases."""

    @abstractmethod
    def unembedded(self, fingerprint: str, allowed: Allowed | None = None) -> int:
        """Return how many tools have no cached vector of this model."""

    @abstractmethod
    def prepare(self, fingerprint: str) -> None:
        """Build what makes searches among many vectors of this model quick, unless it is there."""

    @abstractmethod
    def recall(self, fingerprint: str, sample: int, k: int) -> float | None:
        """Return which share of the exact k nearest the engine's index finds, over a sample of the cached vectors.

        None where there is no such index: searches are exact then.
        """


class Store(ABC):
    """Stores tools, vectors, permissions and feedback. It is thread-safe, and a reader never waits for a writer.

    Each call sees one committed state; an iterator, the state at its first step. Each call that writes is one
    transaction. All methods raise errors.StoreError or a subclass when the store fails. A subclass implements every
    abstract method.
    """

    @abstractmethod
    def version(self) -> int:
        """Return the catalogue version: 0 for a new store, one more after each commit that changes tools."""

    @abstractmethod
    def identity(self) -> str:
        """Return a unique id of this store; a store created later at the same path has another one."""

    @abstractmethod
    def stamp(self) -> int:
        """Return a number that changes with every commit of any process; fast enough to call for each request."""

    @abstractmethod
    def add(
        self,
        tools: Iterable[Tool],
        source: str = "",
        *,
        replace: bool = False,
        sync: bool = False,
        remove: Sequence[str] = (),
    ) -> AddReport:
        """Add or change tools; a tool that is stored with equal content is not written.

        `source` is the label of where the tools come from. It may change its own tools; a tool of another source with
        the same id and different content raises DuplicateTool, or is overwritten with `replace`. `sync` removes the
        stored tools of this source that are not among `tools`. `remove` are ids of tools to remove, of whatever source,
        in the same transaction. Raises UnknownTool, and writes nothing, where one of these was not stored before. Where
        iterating over `tools` raises, nothing is written. Raises BadTool for a tool that cannot be written as JSON.
        """

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> int:
        """Remove tools and return how many. Raises UnknownTool, and removes none, where one is not stored."""

    @abstractmethod
    def get(self, ids: Sequence[str]) -> list[Tool]:
        """Return the tools with these ids, in this order. Raises UnknownTool where one is not stored."""

    @abstractmethod
    def ids(self, namespace: str | None = None) -> list[str]:
        """Return all tool ids, or those of one namespace, sorted."""

    @abstractmethod
    def count(self, allowed: Allowed | None = None) -> int:
        """Return how many tools there are, or how many of them a caller may see; fast for any number of tools."""

    @abstractmethod
    def namespaces(self) -> dict[str, int]:
        """Return all namespaces, sorted, each with its number of tools."""

    @abstractmethod
    def sources(self) -> list[SourceState]:
        """Return all sources that have tools here, sorted by label."""

    def source_labels(self, beginning: str) -> list[str]:
        """Return the labels of sources that have tools here and begin so, sorted. Override it where that is quicker."""
        return [state.source for state in self.sources() if state.source.startswith(beginning)]

    @abstractmethod
    def tools(self, namespace: str | None = None, *, offset: int = 0, limit: int | None = None) -> Iterator[Tool]:
        """Yield the tools, or one page of them, sorted by id. Raises BadRequest for a negative offset or limit."""

    @abstractmethod
    def entries(self) -> Iterator[StoredTool]:
        """Yield all tools as they are stored, sorted by id."""

    @abstractmethod
    def changes(self, since: int) -> Iterator[Change]:
        """Yield the last change of each tool that changed after version `since`, sorted by version, then id."""

    @abstractmethod
    def documents(self, since: int) -> Iterator[tuple[Change, Listing | None]]:
        """Yield what changes() yields, each with the tool's Listing, or None for a removed tool."""

    @abstractmethod
    def set_alias(self, tool_id: str, alias: str) -> bool:
        """Add an alias that later imports keep; return False if the tool has it already. The tool counts as changed."""

    @abstractmethod
    def remove_alias(self, tool_id: str, alias: str) -> bool:
        """Remove an alias that set_alias added; return False if there is none."""

    @abstractmethod
    def set_expansions(self, expansions: Mapping[str, Expansion]) -> ExpansionReport:
        """Put expansions beside tools, by tool id, in place of those they had; an empty one removes it.

        Those written for another text, and those of tools that are not stored, are left out and counted. A tool whose
        expansion changes counts as changed. It is removed with its tool, and when the tool's own text changes.
        """

    @abstractmethod
    def expansions(self, ids: Sequence[str] | None = None) -> dict[str, Expansion]:
        """Return the expansions of these tools, or of all, by tool id; tools without one are left out."""

    @abstractmethod
    def vectors(self, fingerprint: str, digests: Sequence[str]) -> dict[str, Floats]:
        """Return the cached vectors of this model by the digest of their text; texts without one are left out."""

    @abstractmethod
    def vectors_after(self, fingerprint: str, cursor: int = 0, limit: int = 8192) -> VectorBatch:
        """Return the next vectors of this model in the order they were cached; no digests when there are no more.

        Vectors of texts that no tool has any more may be among them.
        """

    @abstractmethod
    def last_vector(self, fingerprint: str) -> int:
        """Return the cursor after the last cached vector of this model."""

    @abstractmethod
    def models(self) -> list[str]:
        """Return the fingerprints of the models that vectors are cached of, sorted."""

    @abstractmethod
    def put_vectors(self, fingerprint: str, digests: Sequence[str], vectors: Floats) -> None:
        """Cache vectors in half precision. A vector that is cached already is not replaced."""

    @abstractmethod
    def missing_vectors(self, fingerprint: str, limit: int | None = None, since: int = 0) -> list[tuple[str, str]]:
        """Return (digest, text) of each text that this model has no vector for, of tools changed after `since`.

        The text of a tool with an expansion is as core.expansion.with_expansion joins both.
        """

    @abstractmethod
    def prune_vectors(self) -> int:
        """Delete the vectors of texts that no tool has any more, of all models; return their number."""

    @abstractmethod
    def encoders(self) -> list[UsedEncoder]:
        """Return the encoders that the tools were embedded with; the first is in use, the others were before."""

    @abstractmethod
    def use_encoder(self, encoder: UsedEncoder) -> None:
        """Record that this encoder is in use from now on."""

    @abstractmethod
    def grant(self, principal: str, allowed: Allowed) -> None:
        """Allow a principal to see these namespaces and ids besides those it may already see."""

    @abstractmethod
    def revoke(self, principal: str, allowed: Allowed) -> None:
        """Remove these grants of a principal; those it does not have are ignored."""

    @abstractmethod
    def grants(self, principal: str) -> Allowed:
        """Return the grants of a principal as they were given, whatever tools there are."""

    @abstractmethod
    def permissions(self, principal: str) -> Allowed:
        """Return what a principal may see of the present catalogue; one without grants and patterns sees nothing."""

    @abstractmethod
    def principals(self) -> list[str]:
        """Return the names of all principals that are stored or have grants, sorted."""

    @abstractmethod
    def put_principal(self, principal: Principal) -> None:
        """Store a principal's patterns, tenant and rights in place of those it had. Its grants and keys stay."""

    @abstractmethod
    def principal(self, name: str) -> Principal | None:
        """Return a stored principal; None if there is none of this name."""

    @abstractmethod
    def remove_principal(self, name: str) -> bool:
        """Remove a principal and its keys; return False if it was not stored. Its grants stay."""

    @abstractmethod
    def rules(self, name: str) -> Rules:
        """Return the rules of a principal: its grants and patterns, independent of the catalogue."""

    @abstractmethod
    def add_key(self, key: Key) -> None:
        """Add an API key of a stored principal. Raises UnknownPrincipal if it is not stored."""

    @abstractmethod
    def api_keys(self) -> list[Key]:
        """Return all API keys, sorted by principal, then oldest first."""

    @abstractmethod
    def remove_key(self, digest: str) -> bool:
        """Remove the API key with this digest; return False if there is none."""

    @abstractmethod
    def access(self) -> int:
        """Return a number that changes with every change of grants, principals or keys by any process."""

    @abstractmethod
    def add_feedback(self, examples: Iterable[Example]) -> None:
        """Store feedback; examples whose id is stored already for their tenant are left out."""

    @abstractmethod
    def feedback(self, after: int = 0) -> Iterator[tuple[int, Example]]:
        """Yield number and feedback in order of arrival; `after` is the last number already read."""

    def leases(self) -> Leases | None:
        """Return the leases of this store; None for a store that processes of one machine share without any."""
        return None

    def own_search(self) -> StoreSearch | None:
        """Return the search of the store's own engine; None where it has none."""
        return None

    def index_folder(self) -> Path:
        """Return the folder of this machine for what is derived from this store, such as built indexes."""
        return cache_folder() / "indexes" / self.identity()

    def line_log(self, name: str) -> LineLog:
        """Return a log that all who use this store share; the name is one of a file."""
        return LineFile(self.index_folder() / f"{name}.jsonl")

    def claim_missing(self, fingerprint: str, limit: int, seconds: float, since: int = 0) -> list[tuple[str, str]]:
        """Return what missing_vectors does, to be embedded by this process alone.

        A store that several machines share returns at most `limit` texts that nobody else is embedding, and gives them
        to others after so many seconds, unless `renew_claims` is called before. Others return all.
        """
        return self.missing_vectors(fingerprint, since=since)

    def claimed_elsewhere(self, fingerprint: str, since: int = 0) -> bool:
        """Return whether texts lack a vector that claim_missing did not give because others are embedding them."""
        return False

    def renew_claims(self, fingerprint: str, digests: Sequence[str], seconds: float) -> None:
        """Keep claimed texts for so many seconds from now; with 0 give them back."""

    @abstractmethod
    def approvals(self) -> Approvals:
        """Open the record of approved tool definitions that belongs to this store."""

    @abstractmethod
    def has_approvals(self) -> bool:
        """Return whether there is such a record."""

    @abstractmethod
    def size(self) -> int:
        """Return how many bytes the store takes on its disk, without what is built from it."""

    @abstractmethod
    def check(self) -> None:
        """Read the whole store. Raises CorruptStore where it is damaged."""

    @abstractmethod
    def close(self) -> None:
        """Close the store; a second call does nothing."""

    def __enter__(self) -> Self:
        """Return the store itself, which is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
