"""Stores past requests with the tools they used, and turns the nearest ones into votes for tools."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolscout.core.answer import Example
from toolscout.core.arrays import Floats
from toolscout.data.dataset import request_digest
from toolscout.errors import BadModel
from toolscout.index.vector_table import VectorTable

_FILE = "requests.json"
_TENANT = "tenant "
_DEAD_KEPT = 1024
# If some of the nearest do not count, _WIDER times as many are searched, up to _LOOKED_AT.
_WIDER = 4
_LOOKED_AT = 10_000
_SECONDS_A_DAY = 86_400
# The total weight of one source is at most this many times that of its nearest request.
_SOURCE_CAP = 1.5
# Longer requests are cut; an encoder reads far less.
MAX_REQUEST_CHARS = 4_000


@dataclass(slots=True)
class Entry:
    """A request of one source: whether each tool was used (1) or rejected (-1), and the time of the last feedback."""

    request: str
    source: str
    tools: dict[str, int]
    time: float
    row: int = field(default=-1, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """The source and the digest of the request, which ignores case and spacing."""
        return (self.source, request_digest(self.request))

    @property
    def tenant(self) -> str:
        """The tenant of the request; "" if it has none."""
        return self.source.removeprefix(_TENANT) if self.source.startswith(_TENANT) else ""


class Neighbour(NamedTuple):
    """A past request and its cosine to the new one."""

    entry: Entry
    cosine: float


class FeedbackPool:
    """Keeps up to `keep` past requests with their feedback; the one without feedback for longest is dropped first.

    The same request of the same source is one entry, with the latest feedback on each tool. If a request has a tenant,
    the tenant is its source. A time in the future is taken as now, so that a wrong clock does not age all others.
    """

    def __init__(self, keep: int) -> None:
        """Start empty."""
        self._keep = keep
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()
        self._rows: list[Entry | None] = []
        self._table = VectorTable()
        self._sources: Counter[str] = Counter()
        self.newest = -math.inf

    def __len__(self) -> int:
        """How many requests are stored."""
        return len(self._entries)

    def digests(self) -> list[str]:
        """The digests of their texts."""
        return [digest for _, digest in self._entries]

    def keys(self) -> list[tuple[str, str]]:
        """The keys (source, digest) of the entries, the next to be dropped first."""
        return list(self._entries)

    def vector(self, entry: Entry) -> Floats:
        """The vector of a stored request."""
        vector: Floats = self._table.rows(np.array([entry.row]))[0]
        return vector

    def entries(self) -> list[Entry]:
        """The entries, the next to be dropped first."""
        return list(self._entries.values())

    def vectors(self) -> Floats:
        """The vectors of the entries, in the same order."""
        rows = np.array([entry.row for entry in self._entries.values()], dtype=np.int64)
        vectors: Floats = self._table.rows(rows) if len(rows) else np.empty((0, 0), dtype=np.float32)
        return vectors

    def take(self, entries: Sequence[Entry], vectors: Floats, newest: float) -> None:
        """Add the entries of another pool, whose sources have no entries here yet."""
        for row, entry in enumerate(entries, len(self._table)):
            self._entries[entry.key] = own = replace(entry, row=row)
            self._rows.append(own)
            self._sources[own.source] += 1
        if entries:
            self._table.append(vectors)
            self.newest = max(self.newest, newest)
        self._shrink()

    def add(self, examples: Sequence[Example], vectors: Floats) -> None:
        """Store requests with their vectors; one without feedback on any tool is left out."""
        new: list[Entry] = []
        rows: list[Floats] = []
        now = datetime.now(UTC).timestamp()
        for example, vector in zip(examples, vectors, strict=True):
            entry = _entry(example, now)
            if not entry.tools or not entry.request.strip():
                continue
            key = entry.key
            known = self._entries.pop(key, None)
            if known is None:
                new.append(entry)
                rows.append(vector)
                self._sources[entry.source] += 1
            else:
                older, newer = (known, entry) if known.time <= entry.time else (entry, known)
                known.tools, known.time = older.tools | newer.tools, newer.time
            self._entries[key] = entry if known is None else known
            self.newest = max(self.newest, entry.time)
        for row, entry in enumerate(new, len(self._table)):
            entry.row = row
        self._rows += new
        if rows:
            self._table.append(np.stack(rows))
        self._shrink()

    def limit(self, keep: int) -> None:
        """Keep at most so many requests from now on."""
        self._keep = keep
        self._shrink()

    def _shrink(self) -> None:
        while len(self._entries) > self._keep:
            _, entry = self._entries.popitem(last=False)
            self._sources[entry.source] -= 1
            if not self._sources[entry.source]:
                del self._sources[entry.source]
            self._rows[entry.row] = None
            self._table.kill(entry.row)
        if len(self._table) > 2 * len(self._entries) + _DEAD_KEPT:
            self._compact()

    def _compact(self) -> None:
        """Rewrite the table without dead rows, in the order of the entries."""
        table, entries = VectorTable(), list(self._entries.values())
        if entries:
            table.append(self._table.rows(np.array([entry.row for entry in entries], dtype=np.int64)))
        for row, entry in enumerate(entries):
            entry.row = row
        self._table, self._rows = table, list(entries)

    def sources(self) -> set[str]:
        """The sources of the requests."""
        return set(self._sources)

    def nearest(
        self, vector: Floats, count: int, places: int, least: float, counts: Callable[[Entry], bool]
    ) -> list[Neighbour]:
        """The `count` nearest requests with a cosine above `least` for which `counts` is true, best first.

        One source gets at most `places` of them, unless the other sources cannot fill the rest.
        """
        wanted = count if places == count else count * _WIDER
        while self._entries:
            rows, cosines = self._table.search(vector, wanted)
            near = cosines > least
            found = [
                Neighbour(entry, cosine)
                for row, cosine in zip(rows[near].tolist(), cosines[near].tolist(), strict=True)
                if (entry := self._rows[row]) is not None and counts(entry)
            ]
            picked, left = _picked(sorted(found, key=_order), count, places)
            # All other rows are farther away than those searched.
            if len(picked) == count or not near.all() or wanted >= min(len(self._entries), _LOOKED_AT):
                return sorted([*picked, *left[: count - len(picked)]], key=_order)
            wanted *= _WIDER
        return []

    def save(self, folder: Path) -> None:
        """Write the requests as json and their vectors as npy, in one order."""
        self._compact()
        folder.mkdir(parents=True, exist_ok=True)
        self._table.save(folder)
        entries = [[entry.request, entry.source, entry.tools, entry.time] for entry in self._entries.values()]
        (folder / _FILE).write_text(json.dumps({"newest": self.newest if entries else None, "entries": entries}))

    @classmethod
    def load(cls, folder: Path) -> FeedbackPool:
        """Read what `save` wrote, without a limit. Raises BadModel where it cannot be read."""
        past = cls(sys.maxsize)
        try:
            saved = json.loads((folder / _FILE).read_text())
            for row, (request, source, tools, time) in enumerate(saved["entries"]):
                entry = Entry(request, source, tools, time, row)
                past._entries[entry.key] = entry
                past._rows.append(entry)
                past._sources[entry.source] += 1
            past.newest = float(saved["newest"]) if past._rows else past.newest
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadModel(f"the requests in {folder} cannot be read ({error}); train the model again") from None
        past._table = VectorTable.load(folder)
        if not len(past._table) == len(past._rows) == len(past._entries):
            raise BadModel(f"{folder} has {len(past._rows)} requests but {len(past._table)} vectors; train it again")
        return past


def merged(
    pools: Sequence[FeedbackPool],
    vector: Floats,
    count: int,
    share: float,
    least: float,
    counts: Callable[[Entry], bool],
) -> list[Neighbour]:
    """The nearest requests of several pools, which have no source in common.

    If there are several sources, one gets at most this share of them, unless the others cannot fill the rest.
    """
    several = len(set[str]().union(*(past.sources() for past in pools))) > 1
    places = max(1, math.floor(share * count)) if several else count
    found = [one for past in pools for one in past.nearest(vector, count, places, least, counts)]
    if len(pools) == 1:
        return found
    picked, left = _picked(sorted(found, key=_order), count, places)
    return sorted([*picked, *left[: count - len(picked)]], key=_order)


def votes(neighbours: Sequence[Neighbour], newest: float, power: float, half_life: float) -> dict[str, float]:
    """The votes of the neighbours, best first, for each tool: towards 1 if it was used, towards -1 if rejected.

    The weight of a neighbour is its cosine to the `power`, halved for every `half_life` days that it is older than the
    newest request, and divided by its rank among the neighbours of its source. All neighbours of one source together
    have at most one and a half times the weight of its best one, so that two other sources with equally near requests
    outvote it. Weights are scaled to the sum that they would have with one source. A tool whose signed weights add up
    to x has x / (1 + |x|) votes.
    """
    base = [one.cosine**power * 0.5 ** ((newest - one.entry.time) / _SECONDS_A_DAY / half_life) for one in neighbours]
    weights, places = [], Counter[str]()
    best: dict[str, float] = {}
    total: dict[str, float] = {}
    for (entry, _), weight in zip(neighbours, base, strict=True):
        places[entry.source] += 1
        weights.append(weight / places[entry.source])
        best[entry.source] = max(best.get(entry.source, 0.0), weight)
        total[entry.source] = total.get(entry.source, 0.0) + weights[-1]
    caps = {source: min(1.0, _SOURCE_CAP * best[source] / total[source]) for source in total if total[source] > 0}
    capped_total = sum(total[source] * cap for source, cap in caps.items())
    scale = sum(weight / place for place, weight in enumerate(base, 1)) / capped_total if capped_total else 0.0
    summed: dict[str, float] = {}
    for (entry, _), weight in zip(neighbours, weights, strict=True):
        for tool_id, sign in entry.tools.items():
            summed[tool_id] = summed.get(tool_id, 0.0) + sign * scale * caps.get(entry.source, 0.0) * weight
    return {tool_id: x / (1 + abs(x)) for tool_id, x in summed.items()}


def _order(one: Neighbour) -> tuple[float, float, str, str]:
    """A sort key: nearest first, of equals the latest, then by text and source, so that searches are deterministic."""
    return (-one.cosine, -one.entry.time, one.entry.request, one.entry.source)


def _picked(found: Sequence[Neighbour], count: int, places: int) -> tuple[list[Neighbour], list[Neighbour]]:
    """The first `count` with at most `places` for each source; and those that were passed over."""
    picked: list[Neighbour] = []
    left: list[Neighbour] = []
    filled: Counter[str] = Counter()
    for one in found:
        fits = len(picked) < count and filled[one.entry.source] < places
        (picked if fits else left).append(one)
        filled[one.entry.source] += fits
    return picked, left


def _entry(example: Example, now: float) -> Entry:
    time = example.time if example.time.tzinfo else example.time.replace(tzinfo=UTC)
    tools = dict.fromkeys(example.rejected, -1) | dict.fromkeys(example.used, 1)
    source = f"{_TENANT}{example.tenant}" if example.tenant else f"source {example.source}"
    return Entry(example.request[:MAX_REQUEST_CHARS], source, tools, min(time.timestamp(), now))
