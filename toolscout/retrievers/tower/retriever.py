"""The base of masstool and colt: tool vectors with graph terms, pools of past requests, and a trained tower."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from toolscout.core.answer import Allowed, Example, Reason
from toolscout.core.arrays import Doubles, Floats, Ints
from toolscout.core.model_files import UNREADABLE
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Searchable
from toolscout.errors import BadModel
from toolscout.index.feedback_pool import Entry, Neighbour
from toolscout.index.recent import Recent
from toolscout.index.tenant_pools import RecalledRequests, TenantPools, with_past
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.need_head import NEED_FILE, NeedHead
from toolscout.models.tower import TOWER_FILE, VIEWS, AttendedRequest, Tower, unit
from toolscout.retrievers.base import Ranking, Vectors
from toolscout.retrievers.encoded_requests import vectors_of, with_digests
from toolscout.retrievers.model_folder import read_model, read_new, read_options, write_model, write_new
from toolscout.retrievers.new_tool_bonus import NewToolBonusIndex
from toolscout.retrievers.provenance import TrainedOn
from toolscout.retrievers.tower.options import ColtOptions, MasstoolOptions

_REQUESTS, _VIEWS, _TERMS, _TERM_IDS = "requests", "views.npy", "terms.npy", "terms.json"
# An untrained tower treats the request as a neighbour with cosine one half, so that others get attention too.
_UNLEARNED_SHARPNESS, _UNLEARNED_OWN, _UNLEARNED_SEARCH = 10.0, -5.0, 0.2

_CALLERS_KEPT = 64

Key = tuple[str, str]


class SearchVector(NamedTuple):
    """What a request is searched with: its vector after attention to neighbours, its length, and their votes.

    `encoded`: the encoder's vector of the request, which tools that came after training are compared with.
    """

    encoded: Floats
    vector: Floats
    length: float
    votes: dict[str, float]
    recalled: RecalledRequests


class TowerRetriever(NewToolBonusIndex):
    """Ranks tools by cosine to a vector made of the request and of its nearest past requests, plus their votes.

    The vector of a tool is its document's, plus a graph term if training requests used the tool; the term stays with
    the tool's id when its document changes. The tools that neighbouring requests used get the attention weights of
    those as votes. Tools and past requests can be added at any time.

    What training learned holds for the catalogue that it learned from. A tool that came later (an added tool) is
    therefore scored by the encoder's cosine, as dense scores it, plus `added_bonus`, plus votes if it has any.
    """

    name: ClassVar[str]
    trainable: ClassVar[bool] = True
    options_kind: ClassVar[type[MasstoolOptions | ColtOptions]]

    def __init__(self, options: MasstoolOptions | ColtOptions, encoder: TextEncoder | None) -> None:
        """Start empty and untrained; the encoder is opened when it is first needed."""
        super().__init__(options, encoder)
        self.options: Any = options
        self._tower: Tower | None = None
        self._head: NeedHead | None = None
        self._terms: dict[str, Floats] = {}
        self._pools = self._empty_pools()
        self._views: dict[Key, Floats] = {}
        self._catalogue: frozenset[str] | None = None  # ids of the tools that were there in training; None: unknown
        self._added: set[str] = set()
        self._forget_rows()

    @property
    def trains_encoder(self) -> bool:
        """Whether `fit` trains the encoder too."""
        return bool(self.options.train_encoder)

    @property
    def learns(self) -> bool:
        """Whether past requests are used."""
        return bool(self.options.neighbours)

    def bound_to(self) -> str | None:
        """The fingerprint of the only encoder it can use: a trained tower is bound to one."""
        return self._fingerprint() if self._tower is not None else super().bound_to()

    def _new_bonus(self) -> float:
        return float(self.options.new_bonus)

    def _is_new(self, tool: Searchable) -> bool:
        # A tool whose document was edited keeps its graph term.
        return super()._is_new(tool) and tool.id not in self._terms and not self._is_added(tool)

    def _is_added(self, tool: Searchable) -> bool:
        """Whether the tool came after training."""
        known = self._catalogue is None or tool.id in self._catalogue
        return not known and tool.digest() not in self.trained_on.tools

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Add tools with the vectors given, or encode them (None). A tool whose vector is missing is pending."""
        with self._lock:
            super().add(tools, vectors)
            self._added |= {tool.id for tool in tools if self._is_added(tool)}
            self._forget_rows()

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools."""
        with self._lock:
            super().remove(ids)
            self._added.difference_update(ids)
            self._forget_rows()

    def _forget_rows(self) -> None:
        self._added_rows: Recent[Allowed | None, Ints] = Recent(_CALLERS_KEPT)
        self._other_rows: Recent[Allowed, Ints] = Recent(_CALLERS_KEPT)

    def _tool_vector(self, tool: Searchable, document: Floats) -> Floats:
        if self._tower is None or self._is_added(tool):
            return document
        moved, term = self._tower.tool(document), self._terms.get(tool.id)
        return moved if term is None else unit(moved + self.options.graph * term)

    def _request_vector(self, vector: Floats) -> Floats:
        return self._tower.request(vector) if self._tower else vector

    def learn(self, examples: Sequence[Example], vectors: Mapping[str, Floats] | None = None) -> None:
        """Add requests to the pools, with the tools they used and rejected."""
        if examples and self.learns:
            rows = vectors_of(examples, vectors, self.encoder)
            with self._lock:
                self._pools.add(examples, rows)

    def learned(self) -> int:
        """How many requests are in the pools."""
        return len(self._pools)

    def forget(self) -> None:
        """Empty the pools. Views that training computed are used again if the same requests are learned again."""
        with self._lock:
            self._pools = self._empty_pools()

    def _empty_pools(self) -> TenantPools:
        return TenantPools(self.options.keep, self.options.share_feedback)

    @property
    def tower(self) -> Tower | None:
        """The trained tower; None before training."""
        return self._tower

    def retune(self, weights: Mapping[str, float], tower: Tower | None = None) -> None:
        """Replace the weights chosen on dev, or the tower. All tools are removed and must be added again."""
        with self._lock:
            self.remove(self.ids())
            self.options = replace(self.options, **weights)
            self._tower = tower or self._tower

    def _evidence(self, vector: Floats, scope: Scope) -> SearchVector:
        """The vector and votes to search with, and the past requests behind them."""
        neighbours = self._neighbours(vector, scope.tenant, self._has_live_tool)
        attended = self._attend(vector, neighbours, self.options.neighbour_weight)
        votes: dict[str, float] = {}
        for (entry, _), weight in zip(neighbours, attended.attention.tolist(), strict=True):
            for tool_id, sign in entry.tools.items():
                votes[tool_id] = votes.get(tool_id, 0.0) + sign * weight
        length = max(float(np.linalg.norm(attended.vector)), 1e-12)
        return SearchVector(vector, attended.vector, length, votes, RecalledRequests(neighbours, 0.0, scope.tenant))

    def _search_vector(self, vector: Floats, evidence: SearchVector) -> Floats:
        return (evidence.vector / evidence.length).astype(np.float32)

    def _bonuses(
        self, vector: Floats, evidence: SearchVector, k: int, allowed: Allowed | None, named: Sequence[str]
    ) -> Mapping[str, float]:
        weight, length = float(self.options.votes), evidence.length
        votes = {i: weight * vote / length for i, vote in evidence.votes.items() if weight}
        k += sum(vote < 0 for vote in votes.values())  # votes may push so many new tools down: look at more of them
        bonuses = {i: bonus / length for i, bonus in super()._bonuses(vector, evidence, k, allowed, named).items()}
        extra = self._new_bonus() / length if bonuses else 0.0
        bonuses |= {i: extra for i in votes if i in self._new}
        bonuses |= self._added_bonuses(vector, evidence, k, allowed, [*named, *votes])
        return {**bonuses, **{i: vote + bonuses.get(i, 0.0) for i, vote in votes.items()}}

    def _added_bonuses(
        self, vector: Floats, evidence: SearchVector, k: int, allowed: Allowed | None, others: Sequence[str]
    ) -> dict[str, float]:
        """The bonuses of the k added tools nearest to the request, and of added tools among the others.

        A bonus comes on top of the product with the search vector, and leaves the encoder's cosine and `added_bonus`.
        """
        permitted = self._added_among(allowed)
        if not len(permitted):
            return {}
        nearest, _ = self._table.search(evidence.encoded, k, permitted)
        named = [self._rows.row(tool_id) for tool_id in self._added.intersection(others)]
        rows = np.array(sorted({*nearest.tolist(), *(row for row in named if row is not None)}), dtype=np.int64)
        cosines, products = (self._table.scores(one, rows) for one in (evidence.encoded, vector))
        bonus = float(self.options.added_bonus) if len(self._added_among(None)) < len(self._rows) else 0.0
        found = (cosines + bonus) / evidence.length - products
        return dict(zip(self._rows.ids.some(rows.tolist()), found.tolist(), strict=True))

    def _added_among(self, allowed: Allowed | None) -> Ints:
        """The rows of the added tools that a caller may see."""
        rows = self._added_rows.get(allowed)
        if rows is None:
            found = [self._rows.row(i) for i in self._added if allowed is None or allowed.permits(i)]
            rows = np.sort(np.array([row for row in found if row is not None], dtype=np.int64))
            self._added_rows.keep(allowed, rows)
        return rows

    def _searched_rows(self, allowed: Allowed | None) -> tuple[Ints | None, Ints]:
        """All rows but those of added tools, which are found through their bonuses."""
        among, skipped = super()._searched_rows(allowed)
        added = self._added_among(None)
        if not len(added):
            return among, skipped
        if allowed is None or among is None:
            return None, np.concatenate([skipped, added])
        others = self._other_rows.get(allowed)
        if others is None:
            others = among[~np.isin(among, added)]
            self._other_rows.keep(allowed, others)
        return others, skipped

    def _similarities(self, vector: Floats, rows: Ints) -> Doubles:
        added = np.isin(rows, self._added_among(None))
        return np.where(added, self._table.scores(vector, rows), super()._similarities(vector, rows))

    def best_similarities(self, vectors: Floats, scope: Scope = EVERYTHING) -> Floats:
        """For each request vector, the cosine of the most similar allowed tool; empty where there is none."""
        with self._lock:
            rows = self._rows.alive() if scope.allowed is None else self._rows.allowed(scope.allowed)
            added, table = np.isin(rows, self._added_among(None)), self._table.frozen()
        # Without the lock: in a large catalogue this takes long, and searches go on meanwhile.
        parts = [(self._request_vector(vectors), rows[~added]), (vectors, rows[added])]
        found = [table.best_scores(queries, some) for queries, some in parts if len(some)]
        return np.max(found, axis=0) if found else np.empty(0, dtype=np.float32)

    def _attend(self, vector: Floats, neighbours: Sequence[Neighbour], neighbour_weight: float) -> AttendedRequest:
        request = self._request_vector(vector)
        tower = self._tower or _untrained_tower(len(request))
        states = tower.states(vector[None])
        keys = np.array([self._view(one.entry) for one in neighbours], dtype=np.float32)
        keys = keys.reshape(len(neighbours), VIEWS, len(request)).swapaxes(0, 1)
        return tower.attend(request, None if states is None else states[0], keys, neighbour_weight)

    def _neighbours(self, vector: Floats, tenant: str, counts: Callable[[Entry], bool]) -> list[Neighbour]:
        count = self.options.neighbours
        if not count:
            return []
        # `nearest` wants more than the limit; a cosine of exactly epsilon counts.
        least = float(np.nextafter(np.float32(self.options.epsilon), np.float32(-2)))
        return self._pools.pools_for(tenant).nearest(vector, count, self.options.share, least, counts)

    def _has_live_tool(self, entry: Entry) -> bool:
        return any(tool_id in self._rows for tool_id in entry.tools)

    def _view(self, entry: Entry) -> Floats:
        """The two views of a past request: by its tools and by its scene. After training, both are by its tools."""
        known = self._views.get(entry.key)
        if known is not None:
            return known.astype(np.float32)
        own = self._request_vector(self._pools.vector(entry))
        used = [self._rows.row(i) for i, sign in entry.tools.items() if sign > 0 and self.options.layers]
        rows = np.array([row for row in used if row is not None], dtype=np.int64)
        vectors = self._table.rows(rows) if len(rows) else np.empty((0, len(own)), dtype=np.float32)
        if self._tower is not None:  # the rows of added tools hold the encoder's vectors
            added = np.isin(rows, self._added_among(None))
            vectors[added] = self._tower.tool(vectors[added])
        view = unit(own + unit(vectors.sum(0))) if len(rows) else own
        return np.stack([view] * VIEWS)

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """Similarities, and the nearest past request that used each tool."""
        return with_past(super().explain(ranking, ids), ids, ranking.evidence and ranking.evidence.recalled)

    def _predicts_need(self) -> bool:
        return self._head is not None

    def _need(self, vectors: Floats) -> list[float]:
        assert self._head is not None
        found: list[float] = self._head.probabilities(vectors).tolist()
        return found

    def save(self, folder: Path) -> None:
        """Write the towers, the pools, the graph terms, the tools, and the encoder if it is this model's own."""
        with self._lock:
            self._save_encoder(folder)
            self._save_documents(folder)
            self._pools.save(folder / _REQUESTS)
            entries = self._pools.keys()
            stored = {key: self._views[key] for key in entries if key in self._views}
            np.save(folder / _VIEWS, np.array(list(stored.values()), dtype=np.float16))
            np.save(folder / _TERMS, np.array(list(self._terms.values()), dtype=np.float16))
            catalogue = None if self._catalogue is None else sorted(self._catalogue)
            record = {"ids": list(self._terms), "views": list(stored), "catalogue": catalogue}
            (folder / _TERM_IDS).write_text(json.dumps(record | {"added": sorted(self._added)}))
            for part, name in ((self._tower, TOWER_FILE), (self._head, NEED_FILE)):
                if part is None:
                    (folder / name).unlink(missing_ok=True)
                else:
                    part.save(folder)
            with_digests(self.trained_on, self._pools.digests()).save(folder)
            write_new(folder, self._new)
            write_model(folder, self, encoder=self._fingerprint())

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved model; the encoder must be the one its vectors were made with."""
        model = read_model(folder)
        loaded = cls(read_options(cls.options_kind, model), encoder)
        loaded._load_encoder(folder, encoder)
        loaded._load_documents(folder, model)
        loaded._pools = TenantPools.load(folder / _REQUESTS, loaded.options.keep, loaded.options.share_feedback)
        trained = bool(model.get("fit"))
        loaded._tower = Tower.load(folder) if trained else None
        loaded._head = NeedHead.load(folder) if trained and loaded.options.no_tool else None
        try:
            record = json.loads((folder / _TERM_IDS).read_text())
            terms, views = np.load(folder / _TERMS), np.load(folder / _VIEWS)
            loaded._terms = dict(zip(record["ids"], terms.astype(np.float32), strict=True))
            loaded._views = dict(zip(map(tuple, record["views"]), views, strict=True))
            # A model that was saved before tools were told apart by when they came has neither.
            loaded._catalogue = None if (ids := record.get("catalogue")) is None else frozenset(ids)
            loaded._added = set(record.get("added", ()))
        except UNREADABLE as error:
            raise BadModel(f"what tools gathered in {folder} cannot be read ({error}); train the model again") from None
        loaded.trained_on, loaded.fit_record = TrainedOn.load(folder), model.get("fit")
        loaded._new = read_new(folder)
        return loaded


def _untrained_tower(dimension: int) -> Tower:
    """An untrained tower: attention to neighbours follows their cosine."""
    if dimension not in _UNTRAINED_TOWERS:
        attend = np.broadcast_to(
            _UNLEARNED_SHARPNESS * np.eye(dimension, dtype=np.float32), (VIEWS,) + (dimension,) * 2
        )
        search = np.full(VIEWS, _UNLEARNED_SEARCH, dtype=np.float32)
        own = np.full(VIEWS, _UNLEARNED_OWN, dtype=np.float32)
        numbers = {"attend": attend, "own": own, "search": search}
        _UNTRAINED_TOWERS[dimension] = Tower(numbers, "none")
    return _UNTRAINED_TOWERS[dimension]


_UNTRAINED_TOWERS: dict[int, Tower] = {}
