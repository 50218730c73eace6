"""The base of all methods that keep a vector for each tool and rank by its cosine to the request's vector."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolscout.core import tracing
from toolscout.core.answer import Allowed, Reason, Similarity
from toolscout.core.arrays import Doubles, Floats, Ints
from toolscout.core.expansion import with_expansion
from toolscout.core.model_files import UNREADABLE
from toolscout.core.scope import EVERYTHING, Endpoints, Scope
from toolscout.core.tool import Searchable
from toolscout.errors import BadModel, EncoderUnavailable, MissingEncoder
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.index.row_ids import RowIds
from toolscout.index.saved_rows import FrozenRows, PendingTools, load_rows
from toolscout.index.vector_table import VectorTable
from toolscout.models.encoders.absent import AbsentEncoder
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.expanded import encode_documents
from toolscout.models.encoders.onnx_encoder import CARD_FILE, Encoder
from toolscout.models.encoders.opening import open_encoder, refusal
from toolscout.retrievers.base import FitProgress, Options, Pairs, Ranking, Retriever, Vectors, check_k

# Folders of a model whose encoder was trained: the encoder as it is served, and its weights as they were trained.
ENCODER_FOLDER, WEIGHTS_FOLDER = "encoder", "weights"
# Rows of removed tools are not reused. The table is rewritten once it has this many more dead rows than live ones.
_DEAD_KEPT = 1024


@dataclass(frozen=True, slots=True)
class EncoderOptions(Options):
    """`encoder`: its folder, "" for the default one. `graph_above`: more tools than this are searched approximately."""

    encoder: str = ""
    graph_above: int = 200_000


def document_vectors(
    encoder: TextEncoder, tools: Sequence[Searchable], progress: FitProgress | None = None
) -> dict[str, Floats]:
    """Encode the documents of tools, with their expansions; the vectors by the documents' digests."""
    texts = list({tool.digest(): with_expansion(tool.document(), tool.expansion) for tool in tools}.items())
    vectors: dict[str, Floats] = {}
    for positions, batch in encode_documents(encoder, [text for _, text in texts]):
        vectors.update((texts[i][0], vector) for i, vector in zip(positions.tolist(), batch, strict=True))
        if progress:
            progress("encoding documents", len(vectors), len(texts))
    return vectors


class DocumentIndex(Retriever):
    """Live index of the tools' vectors. A tool whose document has no vector yet is pending: it is not searched.

    A subclass may override `_tool_vector` (the vector that represents a tool), `_evidence` (what else it knows of a
    request) and `_bonuses` (what is added to a tool's cosine).
    """

    options: EncoderOptions

    def __init__(self, options: EncoderOptions, encoder: TextEncoder | None) -> None:
        """Start empty; the encoder is opened when it is first needed."""
        super().__init__(options)
        self._encoder_name, self._graph_above = options.encoder, options.graph_above
        self._encoder = encoder
        self._own_encoder: Path | None = None
        self._rows = RowIds()
        self._table = VectorTable()
        self._pending = PendingTools()
        self._change_count = 0
        self._lock = threading.RLock()

    # What a subclass may override.

    def _tool_vector(self, tool: Searchable, document: Floats) -> Floats:
        """The vector that represents a tool with this document vector; called when a tool is added or changes."""
        return document

    def _request_vector(self, vector: Floats) -> Floats:
        """The vector that represents a request in similarities, given the encoder's vector."""
        return vector

    def _evidence(self, vector: Floats, scope: Scope) -> Any:
        """What the method knows of a request besides its vector, kept in its Ranking. Called with the lock held."""
        return None

    def _search_vector(self, vector: Floats, evidence: Any) -> Floats:
        """The unit vector that tools are compared with, given the request's vector and evidence."""
        return vector

    def _bonuses(
        self, vector: Floats, evidence: Any, k: int, allowed: Allowed | None, named: Sequence[str]
    ) -> Mapping[str, float]:
        """What is added to the cosines of tools, by tool id. The bonus of a tool must not depend on k.

        A tool that cannot reach the first k allowed ones with its bonus may be left out, unless the request names it:
        named tools come first in any case, in the order of their scores.
        """
        return {}

    def _searched_rows(self, allowed: Allowed | None) -> tuple[Ints | None, Ints]:
        """The rows that a search looks at (None: all), and the rows that it skips. Called with the lock held.

        A tool in another row is only found through its bonus.
        """
        return None if allowed is None else self._rows.allowed(allowed), self._table.skipped()

    def _similarities(self, vector: Floats, rows: Ints) -> Doubles:
        """The cosines of a request with this encoder's vector to the tools in some rows. Called with the lock held."""
        return self._table.scores(self._request_vector(vector), rows)

    def _predicts_need(self) -> bool:
        """Whether the model was trained to predict if a request needs a tool at all."""
        return False

    def _need(self, vectors: Floats) -> list[float]:
        """The probability that each request with these vectors needs a tool."""
        raise NotImplementedError

    # Encoder.

    @property
    def encoder(self) -> TextEncoder:
        """The encoder, opened on first use. Raises MissingEncoder where it is not installed."""
        if self._encoder is None:
            self._encoder = open_encoder(self._encoder_name)
        return self._encoder

    def use_encoder(self, encoder: TextEncoder) -> None:
        """Use this encoder for all vectors from now on; raises BadModel where the model is bound to another one."""
        bound = self.bound_to()
        if bound not in (None, encoder.fingerprint):
            raise BadModel(
                f"{self.name} has vectors or a model of another encoder ({bound}): leave the encoder out, or train or "
                "build it again with that one"
            )
        self.share(encoder)

    def has_own_encoder(self) -> bool:
        """Whether the encoder was trained for this model and is saved in its folder."""
        return self._own_encoder is not None

    def _save_encoder(self, folder: Path) -> None:
        """Copy the encoder into a model folder, if it is this model's own and not there already."""
        target = folder / ENCODER_FOLDER
        if self._own_encoder is not None and self._own_encoder.resolve() != target.resolve():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(self._own_encoder, target)

    def _load_encoder(self, folder: Path, encoder: TextEncoder | None) -> None:
        """Open the encoder that a model folder holds, if it holds one; `encoder` is used instead where it is given."""
        if (folder / ENCODER_FOLDER / CARD_FILE).is_file():
            self._own_encoder = folder / ENCODER_FOLDER
            self._encoder = encoder or Encoder.load(self._own_encoder)

    def names_encoder(self) -> bool:
        """Whether the options name an encoder."""
        return bool(self._encoder_name)

    def bound_to(self) -> str | None:
        """The fingerprint of the only encoder it can use (its own, the one named, that of its vectors), or None."""
        bound = self.has_own_encoder() or self.names_encoder() or self.learned() > 0 or len(self) > 0
        return self._fingerprint() if bound else None

    def share(self, encoder: TextEncoder) -> None:
        """Use this encoder from now on. If the index holds vectors, it must be the one they were made with."""
        self._encoder = encoder

    def _fingerprint(self) -> str:
        try:
            return self.encoder.fingerprint
        except MissingEncoder:
            return ""

    # Tools.

    def pending(self, scope: Scope = EVERYTHING) -> int:
        """How many of the allowed tools cannot be found yet, since they have no vector."""
        if scope.allowed is None:
            return len(self._pending)
        with self._lock:
            return self._pending.count(scope.allowed)

    def __len__(self) -> int:
        """How many tools can be searched."""
        return len(self._rows)

    def ids(self) -> list[str]:
        """The ids of all tools, those that are pending included."""
        return [*filter(None, self._rows.ids), *self._pending]

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Add tools with the vectors given, or encode them (None). A tool whose vector is missing is pending."""
        if vectors is None:
            vectors = document_vectors(self.encoder, tools)
        with self._lock:
            latest = {tool.id: tool for tool in tools}
            known = {tool_id: digest for tool_id, tool in latest.items() if (digest := tool.digest()) in vectors}
            self._replace(list(latest))
            served = {tool_id: self._tool_vector(latest[tool_id], vectors[digest]) for tool_id, digest in known.items()}
            insertable = self._insertable(served)
            self._pending.update({tool_id: tool for tool_id, tool in latest.items() if tool_id not in insertable})
            for tool_id in [tool_id for tool_id in served if tool_id not in insertable]:
                self.names.add(tool_id, latest[tool_id].aliases)
            try:
                self._place(insertable)
            except BaseException:
                self._pending.update(
                    {tool_id: latest[tool_id] for tool_id in insertable}
                )  # they are added next time, not lost
                raise
            for tool_id in insertable:
                self.names.add(tool_id, latest[tool_id].aliases)

    def take_vectors(self, vectors: Vectors) -> None:
        """Add the pending tools whose vectors are among these."""
        with self._lock:
            self.add(self._pending.with_digests(vectors), vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools."""
        with self._lock:
            for tool_id in ids:
                self._pending.pop(tool_id, None)
                row = self._rows.remove(tool_id)
                if row is not None:
                    self._table.kill(row)
                    self.names.remove(tool_id)
                    self._change_count += 1
            if not len(self._rows):  # empty: the next encoder may have another dimension
                self._rows, self._table = RowIds(), VectorTable()

    def _replace(self, ids: Sequence[str]) -> None:
        """Remove tools of which new versions are added right after."""
        self.remove(ids)

    def _insertable(self, vectors: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Those of the tools with these vectors that can be added now; the others stay pending, found by name only."""
        return vectors

    def _place(self, vectors: Mapping[str, Floats]) -> None:
        """Set the vectors of tools, replacing those they had."""
        if not vectors:
            return
        for tool_id in vectors:
            row = self._rows.remove(tool_id)
            if row is not None:
                self._table.kill(row)
        if len(self._table) > 2 * len(self._rows) + _DEAD_KEPT:
            alive = self._rows.alive()
            rows, table = RowIds(self._rows.ids.some(alive.tolist())), VectorTable()
            if len(alive):
                table.append(self._table.rows(alive))
            self._rows, self._table = rows, table
        self._table.append(np.stack(list(vectors.values())))
        for tool_id in vectors:
            self._rows.add(tool_id)
        self._change_count += len(vectors)

    def changes(self) -> int:
        """How many vectors were added and removed so far."""
        return self._change_count

    def optimise(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Build the search graph if there are enough vectors for one, and none yet; returns whether it was built."""
        with self._lock:
            if len(self) <= self._graph_above or self._table.has_graph:
                return False
            table, now = self._table, self._table.frozen()
        linked = now.linked(stopped)  # minutes for a million
        with self._lock:
            if linked is None or self._table is not table:  # it was written anew: next time
                return False
            linked.follow(table)
            self._table = linked
            return True

    # Search.

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """Rank every tool that has a vector."""
        check_k(k)
        if not requests or not (len(self) or self._predicts_need()):
            return [Ranking(request, scope, []) for request in requests]
        try:
            vectors = self.encode(requests, scope.endpoints)
        except EncoderUnavailable as error:
            if scope.endpoints == "wait":
                raise
            note = "" if scope.endpoints == "skip" else f"words alone were searched: {error}"
            return [Ranking(request, scope, [], notes=(note,) if note else ()) for request in requests]
        return self.rank_encoded(requests, vectors, k, scope)

    @property
    def ranks_together(self) -> bool:
        """True unless the encoder is behind a URL: the vectors of all tools are read once for several requests."""
        try:
            return not self.encoder.remote
        except MissingEncoder:
            return True

    def encode(self, requests: Sequence[str], endpoints: Endpoints = "wait") -> Floats:
        """The unit vectors of requests, one a row. Equal texts are encoded once.

        `endpoints`: whether an encoder behind a URL is skipped, asked within its time, or waited for. Raises
        EncoderUnavailable where it is skipped or does not answer.
        """
        encoder = self.encoder.patient() if endpoints == "wait" else self.encoder
        if encoder.remote and endpoints == "skip":
            raise EncoderUnavailable("the encoder is not asked for this search")
        distinct = list(dict.fromkeys(requests))
        if len(distinct) == 1:
            with tracing.span("embeddings request", gen_ai__operation__name="embeddings"):
                return np.repeat(encoder.encode_request(distinct[0])[None], len(requests), axis=0)
        with tracing.span("embeddings requests", gen_ai__operation__name="embeddings"):
            vectors = encoder.encode(distinct)
        places = {request: place for place, request in enumerate(distinct)}
        return vectors[[places[request] for request in requests]]

    def rank_encoded(
        self, requests: Sequence[str], vectors: Floats, k: int, scope: Scope = EVERYTHING
    ) -> list[Ranking]:
        """Like `rank`, for requests whose vectors are known."""
        needed = self._need(vectors) if self._predicts_need() else [None] * len(requests)
        if not len(self):
            pairs = zip(requests, vectors, needed, strict=True)
            return [Ranking(request, scope, [], vector, need) for request, vector, need in pairs]
        return self._rankings(requests, vectors, needed, k, scope)

    def _rankings(
        self, requests: Sequence[str], vectors: Floats, needed: Sequence[float | None], k: int, scope: Scope
    ) -> list[Ranking]:
        with self._lock:
            evidence = [self._evidence(vector, scope) for vector in vectors]
        named = [self.names.find(request, scope.sees) for request in requests]
        permitted = [list(filter(scope.permits, one)) for one in named]
        found = self._nearest(vectors, evidence, k, scope.allowed, permitted)
        each = zip(requests, found, vectors, needed, evidence, named, strict=True)
        return [
            Ranking(request, scope, pairs, vector, need, evidence=known, named=names)
            for request, pairs, vector, need, known, names in each
        ]

    def _nearest(
        self,
        vectors: Floats,
        evidence: Sequence[Any],
        k: int,
        allowed: Allowed | None,
        named: Sequence[Sequence[str]],
    ) -> list[Pairs]:
        """The k best tools of each request by cosine plus bonus, given the tools that it names.

        Bonuses do not depend on the caller; `allowed` only filters.
        """
        searched = np.stack([self._search_vector(*pair) for pair in zip(vectors, evidence, strict=True)])
        with self._lock:
            bonuses = [
                {
                    i: bonus
                    for i, bonus in self._bonuses(vector, known, k, allowed, names).items()
                    if allowed is None or allowed.permits(i)
                }
                for vector, known, names in zip(searched, evidence, named, strict=True)
            ]
            table, rows = self._table, self._rows
            among, skipped = self._searched_rows(allowed)
        # Without the lock, so that others can go on. Tools with a negative bonus may drop out: search for more.
        counts = [k + sum(bonus < 0 for bonus in one.values()) for one in bonuses]
        nearest = table.search_each(searched, counts, among, skipped)
        found = []
        for vector, (places, scores), bonus, names in zip(searched, nearest, bonuses, named, strict=True):
            pairs = self._with_absent(table, rows, vector, places, scores, [*names, *bonus])
            for tool_id, more in bonus.items():
                if tool_id in pairs:
                    pairs[tool_id] += more
            for tool_id in names:
                if tool_id in pairs:
                    pairs[tool_id] += EXACT_BONUS
            found.append(sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0]))[:k])
        return found

    def _with_absent(
        self, table: VectorTable, rows: RowIds, vector: Floats, found: Ints, scores: Doubles, sought: Sequence[str]
    ) -> dict[str, float]:
        """The tools in the rows found, with their scores, and the tools sought that are not among them."""
        with self._lock:
            pairs = dict(zip(rows.ids.some(found.tolist()), scores.tolist(), strict=True))
            pairs.pop("", None)  # removed meanwhile
            places = {i: rows.row(i) for i in dict.fromkeys(sought) if i not in pairs}
            absent = {i: row for i, row in places.items() if row is not None}
            if absent:
                more = table.scores(vector, np.array(list(absent.values()), dtype=np.int64))
                pairs |= dict(zip(absent, more.tolist(), strict=True))
        return pairs

    def need(self, requests: Sequence[str]) -> list[float] | None:
        """The probability that each request needs a tool, whatever the catalogue; None where the model cannot tell."""
        if not self._predicts_need():
            return None
        return self._need(self.encode(requests)) if requests else []

    def extend(self, ranking: Ranking, k: int, scope: Scope) -> Pairs:
        """The best k of the tools allowed, for a request that was ranked; it is not encoded again."""
        if ranking.vector is None or not len(self):
            return super().extend(ranking, k, scope)
        return self._rankings([ranking.request], ranking.vector[None], [None], k, scope)[0].pairs

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """The cosine of each tool to the request."""
        if not any(row is not None for row in map(self._rows.row, ids)):
            return [() for _ in ids]
        try:
            vector = self.vector_of(ranking)
        except EncoderUnavailable:
            return [() for _ in ids]
        with self._lock:
            rows = [self._rows.row(tool_id) for tool_id in ids]
            known = np.array([row for row in rows if row is not None], dtype=np.int64)
            # None is known if all were removed meanwhile.
            scores = iter(self._similarities(vector, known).tolist() if len(known) else ())
        return [() if row is None else (Similarity(round(next(scores), 6)),) for row in rows]

    def vector_of(self, ranking: Ranking) -> Floats:
        """The unit vector of a ranked request; it is encoded now if it was not. Raises EncoderUnavailable."""
        if ranking.vector is None:
            ranking.vector = self.encode([ranking.request], ranking.scope.endpoints)[0]
        return ranking.vector

    def best_similarities(self, vectors: Floats, scope: Scope = EVERYTHING) -> Floats:
        """For each request vector, the cosine of the most similar allowed tool; empty where there is none."""
        with self._lock:
            rows = self._rows.alive() if scope.allowed is None else self._rows.allowed(scope.allowed)
            table = self._table.frozen()
        # Without the lock: in a large catalogue this takes long, and searches go on meanwhile.
        return table.best_scores(self._request_vector(vectors), rows) if len(rows) else np.empty(0, dtype=np.float32)

    # Files.

    def _save_documents(self, folder: Path) -> None:
        """Write the vectors, the ids and the pending tools."""
        self._frozen_documents()(folder)

    def _frozen_documents(self) -> Callable[[Path], None]:
        """Take the vectors, the ids and the pending tools as they are now; what is returned writes them to a folder."""
        table, rows = self._table.frozen(), FrozenRows(self._rows, self.names, self._pending)

        def save(folder: Path) -> None:
            table.save(folder / "vectors")
            rows.save(folder)

        return save

    def _load_documents(self, folder: Path, model: Mapping[str, Any]) -> None:
        """Read what `_save_documents` wrote. Raises BadModel if it is damaged or was made with another encoder."""
        if self._encoder is None and (refused := refusal(self._encoder_name)):
            self._encoder = AbsentEncoder(model.get("encoder") or "", refused)
        try:
            self._rows, self._names, record = load_rows(folder)
            self._pending = PendingTools.load(folder, record)
        except UNREADABLE as error:
            raise BadModel(f"the vector index in {folder} cannot be read ({error}); build it again") from None
        self._table = VectorTable.load(folder / "vectors")
        if len(self._table) != len(self._rows.ids):
            raise BadModel(f"the vector index in {folder} has not one vector for each tool; build it again")
        made_with = model.get("encoder")
        if made_with and made_with != (own := self._fingerprint()):
            if not own:
                raise BadModel(
                    f"{folder} needs the encoder {self._encoder_name or 'of the package'}, which is not there: put "
                    "it back (raw: toolscout encoder export), or start where the model was trained for a relative path"
                )
            raise BadModel(
                f"{folder} was made with another encoder ({made_with}): name that one (TOOLSCOUT_ENCODER=FOLDER; what "
                "the package had before: toolscout/default_model/README.md), or train or build it again"
            )
