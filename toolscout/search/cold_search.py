"""Searches a catalogue by its store's own engine, until the index of this process stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NoReturn, Self

from toolscout.core.answer import Allowed, MatchedWords, Reason, Similarity
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Searchable
from toolscout.errors import BadModel, EncoderUnavailable
from toolscout.index.exact_names import ExactNames, possible_names
from toolscout.index.recent import Recent
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.opening import open_encoder
from toolscout.retrievers.base import Ranking, Retriever, Vectors, check_k
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.stores.base import Store, StoreSearch

NOTE = "the database was searched: the index of this server is still being built"
_WORDS_EXPLAINED = 6
_REMEMBERED = 256
_DENSE_WEIGHT = 1.32  # that of `dense` in a hybrid


def cold_retriever(store: Store, encoder: TextEncoder | None, name: str = "hybrid") -> Retriever | None:
    """Return a retriever over the store's own engine; None where the store has none.

    It ranks by words alone in place of bm25, by vectors alone in place of dense, and fuses both as hybrid does in place
    of any other method.
    """
    search = store.own_search()
    if search is None:
        return None
    words, vectors = _Words(store, search), _Vectors(store, search, encoder)
    if name in ("bm25", "dense"):
        return words if name == "bm25" else vectors
    return Hybrid(HybridOptions(weights=(1.0, _DENSE_WEIGHT)), [words, vectors])


class _Names(ExactNames):
    """The names of the tools in a store, looked up for each request."""

    def __init__(self, store: Store, search: StoreSearch) -> None:
        super().__init__()
        self._store, self._search = store, search
        self._known: Recent[tuple[str, Allowed | None], tuple[int, ExactNames]] = Recent(_REMEMBERED)

    def __len__(self) -> int:
        return self._store.count()

    def ids(self) -> list[str]:
        return self._store.ids()

    def find(self, request: str, allowed: Allowed | None = None) -> dict[str, str]:
        return self._names_in(request, allowed).find(request, allowed)

    def is_name(self, request: str, allowed: Allowed | None = None) -> bool:
        return self._names_in(request, allowed).is_name(request, allowed)

    def _names_in(self, request: str, allowed: Allowed | None) -> ExactNames:
        """The names of the tools that the request may name, looked up once for each state of the store."""
        stamp = self._store.stamp()
        known = self._known.get((request, allowed))
        if known is None or known[0] != stamp:
            names = ExactNames()
            for tool_id, aliases in self._search.named(possible_names(request), allowed).items():
                names.add(tool_id, aliases)
            known = stamp, names
            self._known.keep((request, allowed), known)
        return known[1]


class _Part(Retriever):
    """A retriever that holds no tools: the store does."""

    def __init__(self, store: Store, search: StoreSearch) -> None:
        super().__init__()
        self._store, self._search = store, search
        self._names = _Names(store, search)

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Do nothing: the tools are in the store."""

    def remove(self, ids: Sequence[str]) -> None:
        """Do nothing."""

    @property
    def index_part(self) -> None:
        """None: nothing here can be saved."""
        return None

    def notes(self, scope: Scope = EVERYTHING) -> tuple[str, ...]:
        """That the database was searched."""
        return (NOTE,)

    def save(self, folder: Path) -> NoReturn:
        """Refuse: nothing here can be saved."""
        raise BadModel("what the database searches is not saved as a model")

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Refuse."""
        raise BadModel("what the database searches is not saved as a model")


class _Words(_Part):
    """Full text in place of bm25."""

    name: ClassVar[str] = "bm25"

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        check_k(k)
        return [Ranking(one, scope, self._search.by_words(one, k, scope.allowed), notes=(NOTE,)) for one in requests]

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        found = self._search.matched_words(ranking.request, ids, ranking.scope.sees)
        return [
            (MatchedWords(found[one][0][:_WORDS_EXPLAINED], round(found[one][1], 4)),) if one in found else ()
            for one in ids
        ]


class _Vectors(_Part):
    """Vectors in the database in place of dense."""

    name: ClassVar[str] = "dense"

    def __init__(self, store: Store, search: StoreSearch, encoder: TextEncoder | None) -> None:
        super().__init__(store, search)
        self._encoder = encoder
        self._pending: Recent[Allowed | None, tuple[int, int]] = Recent(_REMEMBERED)

    @property
    def encoder(self) -> TextEncoder:
        if self._encoder is None:
            self._encoder = open_encoder("")
        return self._encoder

    def use_encoder(self, encoder: TextEncoder) -> None:
        self._encoder = encoder

    def pending(self, scope: Scope = EVERYTHING) -> int:
        stamp = self._store.stamp()
        known = self._pending.get(scope.allowed)
        if known is None or known[0] != stamp:
            known = stamp, self._search.unembedded(self.encoder.fingerprint, scope.allowed)
            self._pending.keep(scope.allowed, known)
        return known[1]

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        check_k(k)
        return [self._ranking(request, k, scope) for request in requests]

    def _ranking(self, request: str, k: int, scope: Scope) -> Ranking:
        if self.encoder.remote and scope.endpoints == "skip":
            return Ranking(request, scope, [], notes=(NOTE,))
        try:
            vector = self.encoder.encode_request(request)
        except EncoderUnavailable as error:
            if scope.endpoints == "wait":
                raise
            return Ranking(request, scope, [], notes=(NOTE, f"words alone were searched: {error}"))
        pairs = self._search.by_vector(self.encoder.fingerprint, vector, k, scope.allowed)
        return Ranking(request, scope, pairs, vector, notes=(NOTE,))

    def extend(self, ranking: Ranking, k: int, scope: Scope) -> list[tuple[str, float]]:
        if ranking.vector is None:
            return super().extend(ranking, k, scope)
        return self._search.by_vector(self.encoder.fingerprint, ranking.vector, k, scope.allowed)

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        if ranking.vector is None:
            return [() for _ in ids]
        found = self._search.cosines(self.encoder.fingerprint, ranking.vector, ids)
        return [(Similarity(round(found[one], 6)),) if one in found else () for one in ids]
