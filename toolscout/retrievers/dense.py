"""dense: ranks by the cosine between the request's vector and each tool document's vector."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from toolscout.answer import Allowed, ExactName, Example, Hit, Reason, Similarity
from toolscout.errors import BadModel, MissingEncoder
from toolscout.nn.encoder import Encoder
from toolscout.retrievers._names import EXACT_BONUS, Names
from toolscout.retrievers._rows import Rows
from toolscout.retrievers._vectors import VectorTable
from toolscout.retrievers.base import (
    Floats,
    Options,
    Pairs,
    TextEncoder,
    Vectors,
    check_k,
    hits_of,
    read_model,
    read_options,
    write_model,
)
from toolscout.tool import Listing, Searchable


@dataclass(frozen=True, slots=True)
class DenseOptions(Options):
    """`encoder`: a folder, "" for the default one. `graph_above`: more tools than this are searched approximately."""

    encoder: str = ""
    graph_above: int = 200_000


class Dense:
    """Live vector index. A tool whose vector is not known yet waits: it is not searched, and `waiting` counts it."""

    name: ClassVar[str] = "dense"

    def __init__(self, options: DenseOptions | None = None, encoder: TextEncoder | None = None) -> None:
        """Start empty; the encoder is opened when it is first needed."""
        self.options = options or DenseOptions()
        self._encoder = encoder
        self._rows = Rows()
        self._names = Names()
        self._table = VectorTable()
        self._waiting: dict[str, Searchable] = {}
        self._vectors: dict[str, Floats] = {}
        self._lock = threading.RLock()

    def open_encoder(self) -> TextEncoder:
        """The encoder, opened on first use."""
        if self._encoder is None:
            self._encoder = Encoder.load(Path(self.options.encoder) if self.options.encoder else None)
        return self._encoder

    def waiting(self) -> int:
        """How many tools cannot be found yet, since their vectors are not known."""
        return len(self._waiting)

    def __len__(self) -> int:
        """How many tools can be searched."""
        return len(self._rows)

    def ids(self) -> list[str]:
        """The ids of all tools, those that wait included."""
        return [*filter(None, self._rows.ids), *self._waiting]

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Take tools with the vectors given; None encodes them here, a vector that is missing makes its tool wait."""
        if vectors is None:
            texts = list({tool.digest(): tool.document() for tool in tools}.items())
            vectors = {
                texts[position][0]: vector
                for positions, batch in self.open_encoder().encode_documents([text for _, text in texts])
                for position, vector in zip(positions.tolist(), batch, strict=True)
            }
        with self._lock:
            known = [(tool, vectors[digest]) for tool in tools if (digest := tool.digest()) in vectors]
            self.remove([tool.id for tool in tools])
            self._waiting.update({tool.id: tool for tool in tools if tool.digest() not in vectors})
            if known:
                self._table.append(np.stack([vector for _, vector in known]))
            for tool, _ in known:
                self._rows.add(tool.id)
                self._names.add(tool.id, tool.aliases)

    def arrived(self, vectors: Vectors) -> None:
        """Take in the waiting tools whose vectors are among these."""
        with self._lock:
            self.add([tool for tool in self._waiting.values() if tool.digest() in vectors], vectors)

    def remove(self, ids: Sequence[str]) -> None:
        """Forget tools."""
        with self._lock:
            for tool_id in ids:
                self._waiting.pop(tool_id, None)
                row = self._rows.remove(tool_id)
                if row is not None:
                    self._table.kill(row)
                    self._names.remove(tool_id)

    def learn(self, examples: Sequence[Example]) -> None:
        """The raw encoder learns nothing from feedback."""

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Rank every tool that has a vector."""
        ranked = self.rank(requests, k, allowed)
        return [hits_of(self, request, pairs) for request, pairs in zip(requests, ranked, strict=True)]

    def rank(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """What search ranks, without reasons."""
        check_k(k)
        if not len(self) or not requests:
            return [[] for _ in requests]
        self._encode(requests)
        return [self.nearest(request, self._encoded(request), k, allowed) for request in requests]

    def why(self, request: str, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """Names and similarities."""
        rows = [self._rows.row(tool_id) for tool_id in ids]
        known = np.array([row for row in rows if row is not None], dtype=np.int64)
        scores = iter(self._table.scores(self._encoded(request), known).tolist() if len(known) else ())
        named = self._names.find(request)
        reasons: list[tuple[Reason, ...]] = []
        for tool_id, row in zip(ids, rows, strict=True):
            similarity = () if row is None else (Similarity(round(next(scores), 6)),)
            reasons.append((ExactName(named[tool_id]), *similarity) if tool_id in named else similarity)
        return reasons

    def is_name(self, request: str) -> bool:
        """Whether the request is nothing but the name of a tool."""
        return self._names.is_name(request)

    def _encode(self, requests: Sequence[str]) -> None:
        """Encode requests together, and keep their vectors until the next search: they are asked for again."""
        kept = {request: self._vectors[request] for request in requests if request in self._vectors}
        missing = [request for request in dict.fromkeys(requests) if request not in kept]
        if len(missing) == 1:
            kept[missing[0]] = self.open_encoder().encode_request(missing[0])
        elif missing:
            kept.update(zip(missing, self.open_encoder().encode(missing), strict=True))
        self._vectors = kept

    def _encoded(self, request: str) -> Floats:
        vector = self._vectors.get(request)
        return self.open_encoder().encode_request(request) if vector is None else vector

    def nearest(self, request: str, vector: Floats, k: int, allowed: Allowed | None = None) -> Pairs:
        """Rank for a request whose vector is known."""
        with self._lock:
            among = None if allowed is None else self._rows.allowed(allowed)
            rows, scores = self._table.search(vector, k, among)
            pairs = {self._rows.ids[row]: score for row, score in zip(rows.tolist(), scores.tolist(), strict=True)}
            named = [i for i in self._names.find(request) if allowed is None or allowed.permits(i)]
            absent = [tool_id for tool_id in named if tool_id not in pairs]
            more = np.array([self._rows.row(tool_id) for tool_id in absent], dtype=np.int64)
            pairs |= dict(zip(absent, self._table.scores(vector, more).tolist(), strict=True))
        for tool_id in named:
            pairs[tool_id] += EXACT_BONUS
        return sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0]))[:k]

    def explain(self, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """A similarity is known at once: nothing to add."""
        return list(hits)

    def build_graph(self) -> bool:
        """Link the vectors into a graph where there are enough of them; says whether it did."""
        with self._lock:
            due = len(self) > self.options.graph_above and not self._table.has_graph
            if due:
                self._table.build_graph()
            return due

    def save(self, folder: Path) -> None:
        """Write vectors, ids and the encoder's fingerprint."""
        with self._lock:
            write_model(folder, self, encoder=self._fingerprint())
            self._table.save(folder / "vectors")
            waiting = [
                [t.id, t.namespace, t.name, list(t.aliases), t.document(), t.digest()] for t in self._waiting.values()
            ]
            record = {"ids": self._rows.ids, "aliases": self._names.aliases, "waiting": waiting}
            (folder / "rows.json").write_text(json.dumps(record))

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved index; the encoder must be the one its vectors were made with."""
        model = read_model(folder)
        loaded = cls(read_options(DenseOptions, model), encoder)
        try:
            saved = json.loads((folder / "rows.json").read_text())
            loaded._rows = Rows(saved["ids"])
            for tool_id in filter(None, saved["ids"]):
                loaded._names.add(tool_id, saved["aliases"].get(tool_id, ()))
            for tool_id, namespace, name, aliases, text, digest in saved["waiting"]:
                loaded._waiting[tool_id] = Listing(tool_id, namespace, name, tuple(aliases), text, digest)
        except (OSError, ValueError, KeyError) as error:
            raise BadModel(f"the vector index in {folder} cannot be read ({error}); build it again") from None
        loaded._table = VectorTable.load(folder / "vectors")
        made_with = model.get("encoder")
        if made_with and made_with != loaded._fingerprint():
            raise BadModel(f"{folder} was made with another encoder ({made_with}); build the index again")
        return loaded

    def _fingerprint(self) -> str:
        try:
            return self.open_encoder().fingerprint
        except MissingEncoder:
            return ""
