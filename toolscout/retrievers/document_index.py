"""Tools with a vector each: what the methods share that rank by the cosine to a request's vector."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolscout.core.answer import Allowed, ExactName, Hit, Similarity
from toolscout.core.arrays import Floats
from toolscout.core.tool import Listing, Searchable
from toolscout.errors import BadModel, MissingEncoder
from toolscout.index.exact_names import EXACT_BONUS, Names
from toolscout.index.row_ids import Rows
from toolscout.index.vector_table import VectorTable
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.retrievers.base import FitProgress, Learner, Options, Pairs, TextEncoder, Vectors, check_k, hits_of
from toolscout.retrievers.showing import Caller, Reasons

# Rows are never used again; where more than this beside the living ones are dead, the table is written anew.
_DEAD_KEPT = 1024
# Vectors of requests that are kept: of the threads that search at once, each asks for its request's again.
_KEPT = 8


@dataclass(frozen=True, slots=True)
class EncoderOptions(Options):
    """`encoder`: a folder, "" for the default one. `graph_above`: more tools than this are searched approximately."""

    encoder: str = ""
    graph_above: int = 200_000


def document_vectors(
    encoder: TextEncoder, tools: Sequence[Searchable], progress: FitProgress | None = None
) -> dict[str, Floats]:
    """The vectors of the tools' documents, by their digest."""
    texts = list({tool.digest(): tool.document() for tool in tools}.items())
    vectors: dict[str, Floats] = {}
    for positions, batch in encoder.encode_documents([text for _, text in texts]):
        vectors.update((texts[i][0], vector) for i, vector in zip(positions.tolist(), batch, strict=True))
        if progress:
            progress("encoding documents", len(vectors), len(texts))
    return vectors


class Documents:
    """Live index of the tools' vectors. A tool whose document has no vector yet waits: it is not searched.

    A method says in `_served` which vector stands for a tool, and in `_bonuses` what a tool's score is besides its
    cosine.
    """

    def __init__(self, options: EncoderOptions, encoder: TextEncoder | None) -> None:
        """Start empty; the encoder is opened when it is first needed."""
        self._encoder_folder, self._graph_above = options.encoder, options.graph_above
        self._encoder = encoder
        self._rows = Rows()
        self._names = Names()
        self._table = VectorTable()
        self._waiting: dict[str, Searchable] = {}
        self._vectors: dict[str, Floats] = {}
        self._moved = 0
        self._lock = threading.RLock()

    def _served(self, tool_id: str, document: Floats) -> Floats:
        """The vector that stands for a tool with this document; called when a tool comes or changes."""
        return document

    def _asking(self, vector: Floats) -> Floats:
        """What stands for a request whose vector the encoder made this; similarities are to it."""
        return vector

    def _bonuses(self, vector: Floats, k: int, allowed: Allowed | None, named: Sequence[str]) -> Mapping[str, float]:
        """What tools' scores are besides their cosine, for a request with this vector; a bonus does not depend on k.

        Tools that no bonus can bring among the first k of those allowed may be left out, save those that the request
        names: they come first in any case, in the order of their scores.
        """
        return {}

    def open_encoder(self) -> TextEncoder:
        """The encoder, opened on first use."""
        if self._encoder is None:
            self._encoder = Encoder.load(Path(self._encoder_folder) if self._encoder_folder else None)
        return self._encoder

    trains_encoder: bool = False

    def has_own_encoder(self) -> bool:
        """Whether its encoder is its own: trained for it and kept in its folder."""
        return False

    def names_encoder(self) -> bool:
        """Whether its options name an encoder."""
        return bool(self._encoder_folder)

    def bound_to(self) -> str | None:
        """The fingerprint of the only encoder it can use: its own, the one named, or that of the vectors it holds."""
        learned = isinstance(self, Learner) and self.learned() > 0
        bound = self.has_own_encoder() or self.names_encoder() or learned or len(self) > 0
        return self._fingerprint() if bound else None

    def share(self, encoder: TextEncoder) -> None:
        """Use this encoder from now on; where vectors are held, it must be the one they were made with."""
        self._encoder, self._vectors = encoder, {}

    def waiting(self, allowed: Allowed | None = None) -> int:
        """How many tools, among those allowed, cannot be found yet, since their vectors are not known."""
        if allowed is None:
            return len(self._waiting)
        with self._lock:
            return sum(map(allowed.permits, self._waiting))

    def __len__(self) -> int:
        """How many tools can be searched."""
        return len(self._rows)

    def ids(self) -> list[str]:
        """The ids of all tools, those that wait included."""
        return [*filter(None, self._rows.ids), *self._waiting]

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Take tools with the vectors given; None encodes them here, a vector that is missing makes its tool wait."""
        if vectors is None:
            vectors = document_vectors(self.open_encoder(), tools)
        with self._lock:
            latest = {tool.id: tool for tool in tools}
            known = {tool_id: digest for tool_id, tool in latest.items() if (digest := tool.digest()) in vectors}
            self._replace(list(latest))
            served = {tool_id: self._served(tool_id, vectors[digest]) for tool_id, digest in known.items()}
            fitting = self._fitting(served)
            self._waiting.update({tool_id: tool for tool_id, tool in latest.items() if tool_id not in fitting})
            for tool_id in [tool_id for tool_id in served if tool_id not in fitting]:
                self._names.add(tool_id, latest[tool_id].aliases)
            try:
                self._place(fitting)
            except BaseException:
                self._waiting.update({tool_id: latest[tool_id] for tool_id in fitting})  # taken next time, not lost
                raise
            for tool_id in fitting:
                self._names.add(tool_id, latest[tool_id].aliases)

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
                    self._moved += 1
            if not len(self._rows):  # nothing of an encoder is left: the next one may have another dimension
                self._rows, self._table = Rows(), VectorTable()

    def _replace(self, ids: Sequence[str]) -> None:
        """Forget tools that come again at once."""
        self.remove(ids)

    def _fitting(self, vectors: Mapping[str, Floats]) -> Mapping[str, Floats]:
        """Those of the tools with these vectors that can be taken in now; the others wait, known by their names."""
        return vectors

    def _place(self, vectors: Mapping[str, Floats]) -> None:
        """Give tools these vectors in place of those they had."""
        if not vectors:
            return
        for tool_id in vectors:
            row = self._rows.remove(tool_id)
            if row is not None:
                self._table.kill(row)
        if len(self._table) > 2 * len(self._rows) + _DEAD_KEPT:
            alive = self._rows.alive()
            rows, table = Rows([self._rows.ids[row] for row in alive]), VectorTable()
            if len(alive):
                table.append(self._table.rows(alive))
            self._rows, self._table = rows, table
        self._table.append(np.stack(list(vectors.values())))
        for tool_id in vectors:
            self._rows.add(tool_id)
        self._moved += len(vectors)

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Rank every tool that has a vector."""
        caller = Caller(allowed)
        ranked = zip(requests, self.rank_for(caller, requests, k, allowed), strict=True)
        return [hits_of(pairs, self.why_for(caller, request, [i for i, _ in pairs])) for request, pairs in ranked]

    def rank(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """What search ranks, without reasons."""
        return self.rank_for(Caller(allowed), requests, k, allowed)

    def rank_for(self, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """The same for a caller: a request names what it sees, whichever tools are ranked."""
        check_k(k)
        if not len(self) or not requests:
            return [[] for _ in requests]
        self._encode(requests)
        return [self.nearest(request, self._encoded(request), k, allowed, caller.sees) for request in requests]

    def why(self, request: str, ids: Sequence[str]) -> Reasons:
        """Names and similarities."""
        return self.why_for(Caller(), request, ids)

    def why_for(self, caller: Caller, request: str, ids: Sequence[str]) -> Reasons:
        """The same for a caller for whom they were ranked."""
        vector = self._asking(self._encoded(request)) if any(tool_id in self._rows for tool_id in ids) else None
        with self._lock:
            rows = [None if vector is None else self._rows.row(tool_id) for tool_id in ids]
            known = np.array([row for row in rows if row is not None], dtype=np.int64)
            scores = iter(() if vector is None else self._table.scores(vector, known).tolist())
            named = self._names.find(request, caller.sees)
        reasons: Reasons = []
        for tool_id, row in zip(ids, rows, strict=True):
            similarity = () if row is None else (Similarity(round(next(scores), 6)),)
            reasons.append((ExactName(named[tool_id]), *similarity) if tool_id in named else similarity)
        return reasons

    def is_name(self, request: str) -> bool:
        """Whether the request is nothing but the name of a tool."""
        return self._names.is_name(request)

    def is_name_for(self, caller: Caller, request: str) -> bool:
        """Whether the request is nothing but the name of a tool that the caller sees."""
        return self._names.is_name(request, caller.sees)

    def explain(self, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """All reasons are known at once: nothing to add."""
        return list(hits)

    def request_vector(self, request: str) -> Floats:
        """The unit vector of a request; one that was searched just now is not encoded again."""
        return self._encoded(request)

    def forget_requests(self) -> None:
        """Let go of the vectors of recent requests: one that is timed again must be encoded again."""
        self._vectors = {}

    def _encode(self, requests: Sequence[str]) -> None:
        """Encode requests together, and keep the vectors of the latest: they are asked for again."""
        kept = self._vectors
        missing = [request for request in dict.fromkeys(requests) if request not in kept]
        if not missing:
            return
        if len(kept) + len(missing) > _KEPT:
            kept = {request: kept[request] for request in requests if request in kept}
        encoder = self.open_encoder()
        vectors = encoder.encode(missing) if len(missing) > 1 else [encoder.encode_request(missing[0])]
        # Another dict, not a changed one: other threads read it meanwhile.
        self._vectors = {**kept, **dict(zip(missing, vectors, strict=True))}

    def _encoded(self, request: str) -> Floats:
        vector = self._vectors.get(request)
        return self.open_encoder().encode_request(request) if vector is None else vector

    def nearest(
        self, request: str, vector: Floats, k: int, allowed: Allowed | None = None, sees: Allowed | None = None
    ) -> Pairs:
        """The best by cosine plus bonus; a bonus is the same whoever asks, so `allowed` only leaves tools out.

        The request names tools that the caller `sees`: those allowed, where nothing else is said.
        """
        with self._lock:
            named = self._named(request, allowed, sees)
            bonuses = {
                i: bonus
                for i, bonus in self._bonuses(vector, k, allowed, named).items()
                if allowed is None or allowed.permits(i)
            }
            table, rows = self._table, self._rows
            among = None if allowed is None else rows.allowed(allowed)
            skipped = table.skipped()
        # Not under the lock: other searches and changes go on. As many more as may fall behind.
        found, scores = table.search(vector, k + sum(bonus < 0 for bonus in bonuses.values()), among, skipped)
        with self._lock:
            pairs = {rows.ids[row]: score for row, score in zip(found.tolist(), scores.tolist(), strict=True)}
            pairs.pop("", None)  # removed meanwhile
            places = {i: rows.row(i) for i in dict.fromkeys([*named, *bonuses]) if i not in pairs}
            absent = {i: row for i, row in places.items() if row is not None}
            if absent:
                more = table.scores(vector, np.array(list(absent.values()), dtype=np.int64))
                pairs |= dict(zip(absent, more.tolist(), strict=True))
        for tool_id, bonus in bonuses.items():
            if tool_id in pairs:
                pairs[tool_id] += bonus
        for tool_id in named:
            if tool_id in pairs:
                pairs[tool_id] += EXACT_BONUS
        return sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0]))[:k]

    def _named(self, request: str, allowed: Allowed | None, sees: Allowed | None) -> list[str]:
        """The tools that a request names for one who sees these, of those allowed."""
        found = self._names.find(request, allowed if sees is None else sees)
        return [tool_id for tool_id in found if allowed is None or allowed.permits(tool_id)]

    def best_cosines(self, vectors: Floats, allowed: Allowed | None = None) -> Floats:
        """How near each of many requests comes to the nearest tool among those allowed; empty where there is none."""
        with self._lock:
            rows = self._rows.alive() if allowed is None else self._rows.allowed(allowed)
            return self._table.best_scores(vectors, rows) if len(rows) else np.empty(0, dtype=np.float32)

    def moved(self) -> int:
        """How many vectors have come and gone until now."""
        return self._moved

    def build_graph(self) -> bool:
        """Link the vectors into a graph where there are enough of them; says whether it did."""
        with self._lock:
            due = len(self) > self._graph_above and not self._table.has_graph
            if due:
                self._table = self._table.linked()
            return due

    def _save_documents(self, folder: Path) -> None:
        """Write vectors, ids and the tools that wait."""
        self._table.save(folder / "vectors")
        waiting = [
            [t.id, t.namespace, t.name, list(t.aliases), t.document(), t.digest()] for t in self._waiting.values()
        ]
        record = {"ids": self._rows.ids, "aliases": self._names.aliases, "waiting": waiting}
        (folder / "rows.json").write_text(json.dumps(record))

    def _load_documents(self, folder: Path, model: Mapping[str, Any]) -> None:
        """Open what was saved; the encoder must be the one the vectors were made with."""
        try:
            saved = json.loads((folder / "rows.json").read_text())
            self._rows = Rows(saved["ids"])
            for tool_id in filter(None, saved["ids"]):
                self._names.add(tool_id, saved["aliases"].get(tool_id, ()))
            for tool_id, namespace, name, aliases, text, digest in saved["waiting"]:
                self._waiting[tool_id] = Listing(tool_id, namespace, name, tuple(aliases), text, digest)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadModel(f"the vector index in {folder} cannot be read ({error}); build it again") from None
        self._table = VectorTable.load(folder / "vectors")
        if len(self._table) != len(self._rows.ids):
            raise BadModel(f"the vector index in {folder} has not one vector for each tool; build it again")
        made_with = model.get("encoder")
        if made_with and made_with != (own := self._fingerprint()):
            if not own:
                raise BadModel(
                    f"{folder} needs the encoder {self._encoder_folder or 'of the package'}, which is not there: put "
                    "it back (raw: toolscout encoder export), or start where the model was trained for a relative path"
                )
            raise BadModel(
                f"{folder} was made with another encoder ({made_with}): name that one (TOOLSCOUT_ENCODER=FOLDER; what "
                "the package had before: toolscout/default_model/README.md), or train or build it again"
            )

    def _fingerprint(self) -> str:
        try:
            return self.open_encoder().fingerprint
        except MissingEncoder:
            return ""
