"""Past requests kept apart: those that everybody hears, and those of each tenant, which it hears alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from toolscout.core.answer import Example
from toolscout.core.arrays import Floats
from toolscout.core.tenants import asker
from toolscout.index.feedback_pool import Entry, Neighbour, Past, merged

_EVERYBODY = ""


class Voices:
    """One Past for everybody and one for each tenant, so that no tenant changes, or crowds out, what another hears.

    Each remembers up to `keep` requests. `shared`: tenants hear each other, as they hear everybody.
    """

    def __init__(self, keep: int, shared: bool = False) -> None:
        """Start empty."""
        self._keep, self._shared = keep, shared
        self._pasts = {_EVERYBODY: Past(keep)}

    def __len__(self) -> int:
        """How many requests are remembered, of all."""
        return sum(map(len, self._pasts.values()))

    def digests(self) -> list[str]:
        """The digests of their texts."""
        return [digest for _, digest in self.keys()]

    def keys(self) -> list[tuple[str, str]]:
        """What tells the requests apart: their source and digest."""
        return list(chain.from_iterable(past.keys() for past in self._pasts.values()))

    def vector(self, entry: Entry) -> Floats:
        """The vector of a request that is remembered."""
        return self._pasts[self._home(entry.tenant)].vector(entry)

    @property
    def newest(self) -> float:
        """When the newest request was made that the asking tenant hears."""
        return max(past.newest for past in self._heard())

    def add(self, examples: Sequence[Example], vectors: Floats) -> None:
        """Remember requests, given their vectors."""
        homes = [self._home(example.tenant) for example in examples]
        for home in dict.fromkeys(homes):
            rows = [row for row, own in enumerate(homes) if own == home]
            past = self._pasts.setdefault(home, Past(self._keep))
            past.add([examples[row] for row in rows], vectors[rows])

    def nearest(
        self, vector: Floats, count: int, share: float, least: float, counts: Callable[[Entry], bool]
    ) -> list[Neighbour]:
        """As Past.nearest, among the requests that the asking tenant hears."""
        return merged(self._heard(), vector, count, share, least, counts)

    def save(self, folder: Path) -> None:
        """Write all of them as one."""
        together = self._pasts[_EVERYBODY]
        if len(self._pasts) > 1:
            together = Past(sys.maxsize)
            for past in self._pasts.values():
                together.take(past.entries(), past.vectors(), past.newest)
        together.save(folder)

    @classmethod
    def load(cls, folder: Path, keep: int, shared: bool = False) -> Voices:
        """Open what save wrote, also what was written before tenants were kept apart."""
        voices, together = cls(keep, shared), Past.load(folder)
        entries = together.entries()
        homes = [voices._home(entry.tenant) for entry in entries]
        if not any(homes):
            together.limit(keep)
            voices._pasts[_EVERYBODY] = together
            return voices
        vectors = together.vectors()
        for home in dict.fromkeys(homes):
            rows = [row for row, other in enumerate(homes) if other == home]
            own = [entries[row] for row in rows]
            past = voices._pasts.setdefault(home, Past(keep))
            past.take(own, vectors[rows], max(entry.time for entry in own))
        return voices

    def _home(self, tenant: str) -> str:
        return _EVERYBODY if self._shared else tenant

    def _heard(self) -> list[Past]:
        everybody, own = self._pasts[_EVERYBODY], self._pasts.get(asker() or _EVERYBODY)
        return [everybody] if own is None or own is everybody else [everybody, own]


def readable(entry: Entry) -> str:
    """The text of a past request as the asking tenant may read it: another tenant's is empty."""
    return entry.request if entry.tenant in ("", asker()) else ""
