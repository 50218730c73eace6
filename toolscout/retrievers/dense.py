"""dense: ranks by the cosine between the request's vector and each tool document's vector."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from toolscout.answer import Allowed, ExactName, Example, Hit, Similarity
from toolscout.errors import BadModel, MissingEncoder
from toolscout.nn.encoder import Encoder
from toolscout.retrievers._names import EXACT_BONUS, Names
from toolscout.retrievers._rows import Rows
from toolscout.retrievers._vectors import VectorTable
from toolscout.retrievers.base import (
    Floats,
    Options,
    TextEncoder,
    Vectors,
    check_k,
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
        self._last: tuple[str, Floats] | None = None
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
        check_k(k)
        if not len(self) or not requests:
            return [[] for _ in requests]
        vectors = self.open_encoder().encode(requests) if len(requests) > 1 else [self._encoded(requests[0])]
        return [self.nearest(request, vector, k, allowed) for request, vector in zip(requests, vectors, strict=True)]

    def _encoded(self, request: str) -> Floats:
        """The vector of a request; the last one is kept, since hybrid may ask twice."""
        last = self._last
        if last is None or last[0] != request:
            self._last = last = (request, self.open_encoder().encode_request(request))
        return last[1]

    def nearest(self, request: str, vector: Floats, k: int, allowed: Allowed | None = None) -> list[Hit]:
        """Rank for a request whose vector is known."""
        with self._lock:
            among = None if allowed is None else self._rows.allowed(allowed)
            rows, scores = self._table.search(vector, k, among)
            pairs = {self._rows.ids[row]: score for row, score in zip(rows.tolist(), scores.tolist(), strict=True)}
            named = {
                tool_id: words
                for tool_id, words in self._names.find(request).items()
                if allowed is None or allowed.permits(tool_id)
            }
            absent = [tool_id for tool_id in named if tool_id not in pairs]
            more = np.array([self._rows.row(tool_id) for tool_id in absent], dtype=np.int64)
            pairs |= dict(zip(absent, self._table.scores(vector, more).tolist(), strict=True))
        boosted = [(score + EXACT_BONUS if tool_id in named else score, tool_id) for tool_id, score in pairs.items()]
        ranked = sorted(boosted, key=lambda pair: (-pair[0], pair[1]))[:k]
        return [_hit(tool_id, score, pairs[tool_id], named.get(tool_id)) for score, tool_id in ranked]

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


def _hit(tool_id: str, score: float, cosine: float, named: str | None) -> Hit:
    similarity = Similarity(round(cosine, 6))
    return Hit(tool_id, score, (ExactName(named), similarity) if named is not None else (similarity,))
