"""The base of masstool and colt: tool vectors with graph terms, pools of past requests, and a trained tower."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from toolscout.core.answer import Allowed, Example, Reason
from toolscout.core.arrays import Floats
from toolscout.core.model_files import UNREADABLE
from toolscout.core.scope import Scope
from toolscout.core.tool import Searchable
from toolscout.errors import BadModel
from toolscout.index.feedback_pool import Entry, Neighbour
from toolscout.index.tenant_pools import RecalledRequests, TenantPools, with_past
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.need_head import NEED_FILE, NeedHead
from toolscout.models.tower import TOWER_FILE, VIEWS, AttendedRequest, Tower, unit
from toolscout.retrievers.base import Ranking
from toolscout.retrievers.encoded_requests import vectors_of, with_digests
from toolscout.retrievers.model_folder import read_model, read_new, read_options, write_model, write_new
from toolscout.retrievers.new_tool_bonus import NewToolBonusIndex
from toolscout.retrievers.provenance import TrainedOn
from toolscout.retrievers.tower.options import ColtOptions, MasstoolOptions

_REQUESTS, _VIEWS, _TERMS, _TERM_IDS = "requests", "views.npy", "terms.npy", "terms.json"
# An untrained tower treats the request as a neighbour with cosine one half, so that others get attention too.
_UNLEARNED_SHARPNESS, _UNLEARNED_OWN, _UNLEARNED_SEARCH = 10.0, -5.0, 0.2

Key = tuple[str, str]


class SearchVector(NamedTuple):
    """What a request is searched with: its vector after attention to neighbours, its length, and their votes."""

    vector: Floats
    length: float
    votes: dict[str, float]
    recalled: RecalledRequests


class TowerRetriever(NewToolBonusIndex):
    """Ranks tools by cosine to a vector made of the request and of its nearest past requests, plus their votes.

    The vector of a tool is its document's, plus a graph term if training requests used the tool; the term stays with
    the tool's id when its document changes. The tools that neighbouring requests used get the attention weights of
    those as votes. Tools and past requests can be added at any time.
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
        return super()._is_new(tool) and tool.id not in self._terms

    def _tool_vector(self, tool_id: str, document: Floats) -> Floats:
        moved = self._tower.tool(document) if self._tower else document
        term = self._terms.get(tool_id)
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
        return SearchVector(attended.vector, length, votes, RecalledRequests(neighbours, 0.0, scope.tenant))

    def _search_vector(self, vector: Floats, evidence: SearchVector) -> Floats:
        return (evidence.vector / evidence.length).astype(np.float32)

    def _bonuses(
        self, vector: Floats, evidence: SearchVector, k: int, allowed: Allowed | None, named: Sequence[str]
    ) -> Mapping[str, float]:
        weight, length = float(self.options.votes), evidence.length
        votes = {i: weight * vote / length for i, vote in evidence.votes.items() if weight}
        k += sum(vote < 0 for vote in votes.values())  # votes may push so many new tools down: look at more of them
        new_bonuses = {i: bonus / length for i, bonus in super()._bonuses(vector, evidence, k, allowed, named).items()}
        extra = self._new_bonus() / length if new_bonuses else 0.0
        voted = {i: vote + (extra if i in self._new else 0.0) for i, vote in votes.items()}
        return {**new_bonuses, **voted}

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
        view = unit(own + unit(self._table.rows(rows).sum(0))) if len(rows) else own
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
            (folder / _TERM_IDS).write_text(json.dumps({"ids": list(self._terms), "views": list(stored)}))
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
