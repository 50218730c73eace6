"""Feedback pools by tenant: one that counts for everybody, and one for each tenant, which counts for it alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from toolscout.core.answer import Example, PastRequest, Reason
from toolscout.core.arrays import Floats
from toolscout.index.feedback_pool import Entry, FeedbackPool, Neighbour, merged

_EVERYBODY = ""


class TenantPools:
    """One FeedbackPool for everybody and one for each tenant, so that no tenant changes another's results.

    Each pool keeps up to `keep` requests. `shared`: all requests go into the pool for everybody.
    """

    def __init__(self, keep: int, shared: bool = False) -> None:
        """Start empty."""
        self._keep, self._shared = keep, shared
        self._pools = {_EVERYBODY: FeedbackPool(keep)}

    def __len__(self) -> int:
        """How many requests are stored in all pools."""
        return sum(map(len, self._pools.values()))

    def digests(self) -> list[str]:
        """The digests of their texts."""
        return [digest for _, digest in self.keys()]

    def keys(self) -> list[tuple[str, str]]:
        """The keys (source, digest) of all requests."""
        return list(chain.from_iterable(pool.keys() for pool in self._pools.values()))

    def vector(self, entry: Entry) -> Floats:
        """The vector of a stored request."""
        return self._pools[self._home(entry.tenant)].vector(entry)

    def pools_for(self, tenant: str) -> VisiblePools:
        """The pools that count for a tenant: everybody's and its own."""
        everybody, own = self._pools[_EVERYBODY], self._pools.get(tenant or _EVERYBODY)
        return VisiblePools([everybody] if own is None or own is everybody else [everybody, own])

    def add(self, examples: Sequence[Example], vectors: Floats) -> None:
        """Store requests with their vectors."""
        homes = [self._home(example.tenant) for example in examples]
        for home in dict.fromkeys(homes):
            rows = [row for row, own in enumerate(homes) if own == home]
            pool = self._pools.setdefault(home, FeedbackPool(self._keep))
            pool.add([examples[row] for row in rows], vectors[rows])

    def save(self, folder: Path) -> None:
        """Write all pools as one."""
        together = self._pools[_EVERYBODY]
        if len(self._pools) > 1:
            together = FeedbackPool(sys.maxsize)
            for pool in self._pools.values():
                together.take(pool.entries(), pool.vectors(), pool.newest)
        together.save(folder)

    @classmethod
    def load(cls, folder: Path, keep: int, shared: bool = False) -> TenantPools:
        """Read what `save` wrote, and split it by tenant."""
        pools, together = cls(keep, shared), FeedbackPool.load(folder)
        entries = together.entries()
        homes = [pools._home(entry.tenant) for entry in entries]
        if not any(homes):
            together.limit(keep)
            pools._pools[_EVERYBODY] = together
            return pools
        vectors = together.vectors()
        for home in dict.fromkeys(homes):
            rows = [row for row, other in enumerate(homes) if other == home]
            own = [entries[row] for row in rows]
            pool = pools._pools.setdefault(home, FeedbackPool(keep))
            pool.take(own, vectors[rows], max(entry.time for entry in own))
        return pools

    def _home(self, tenant: str) -> str:
        return _EVERYBODY if self._shared else tenant


class VisiblePools(NamedTuple):
    """The pools that count for one tenant."""

    pools: list[FeedbackPool]

    @property
    def newest(self) -> float:
        """The time of the newest request."""
        return max(pool.newest for pool in self.pools)

    def nearest(
        self, vector: Floats, count: int, share: float, least: float, counts: Callable[[Entry], bool]
    ) -> list[Neighbour]:
        """The nearest requests in all of these pools; see `merged`."""
        return merged(self.pools, vector, count, share, least, counts)


class RecalledRequests(NamedTuple):
    """The nearest past requests of a request, the time of the newest past request, and the caller's tenant."""

    neighbours: list[Neighbour]
    newest: float
    tenant: str = ""


def with_past(
    reasons: Sequence[tuple[Reason, ...]], ids: Sequence[str], recalled: RecalledRequests | None
) -> list[tuple[Reason, ...]]:
    """Add to each tool's reasons the nearest past request that used it, without its text if it is another tenant's."""
    best: dict[str, PastRequest] = {}
    for entry, cosine in recalled.neighbours if recalled else ():
        text = entry.request if recalled and entry.tenant in ("", recalled.tenant) else ""
        for tool_id, sign in entry.tools.items():
            if sign > 0 and tool_id not in best:
                best[tool_id] = PastRequest(text, round(cosine, 6))
    return [(*why, best[tool_id]) if tool_id in best else why for tool_id, why in zip(ids, reasons, strict=True)]
