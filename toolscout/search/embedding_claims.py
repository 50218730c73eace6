"""Shares the texts that have no vector yet among all processes that embed them, so that none is embedded twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from toolscout.core.arrays import Floats
from toolscout.search.progress import Encoded
from toolscout.stores.base import Store

CLAIMED_AT_ONCE = 2048
# How long others leave claimed texts alone after the last sign of life: what a killed process had is then theirs.
LEASE_S = 60.0
_POLL_S = 0.25


class EmbeddingClaims:
    """The texts that this process embeds, claimed a few at a time. Close it: what was not embedded is given back."""

    def __init__(self, store: Store, fingerprint: str, since: int, stopped: Callable[[], bool]) -> None:
        """Claim nothing yet. `since`: as in Store.missing_vectors; `stopped`: whether to stop waiting for others."""
        self._store, self._fingerprint, self._since, self._stopped = store, fingerprint, since, stopped
        self._mine: set[str] = set()
        self._renewed = 0.0

    def __iter__(self) -> Iterator[list[tuple[str, str]]]:
        """Yield claimed (digest, text) until all texts have a vector; where others embed the rest, wait for them."""
        tried: set[str] = set()
        while not self._stopped():
            found = self._store.claim_missing(self._fingerprint, CLAIMED_AT_ONCE, LEASE_S, self._since)
            self._mine, self._renewed = {digest for digest, _ in found}, time.monotonic()
            if claimed := [one for one in found if one[0] not in tried]:
                tried |= self._mine
                yield claimed
            elif found or not self._store.claimed_elsewhere(self._fingerprint, self._since):
                return
            else:
                time.sleep(_POLL_S)

    def alive(self, encoded: Iterable[Encoded]) -> Iterator[Encoded]:
        """Pass batches on, and keep the claims while they are made."""
        for batch in encoded:
            if self._mine and time.monotonic() - self._renewed > LEASE_S / 4:
                self._store.renew_claims(self._fingerprint, sorted(self._mine), LEASE_S)
                self._renewed = time.monotonic()
            yield batch

    def put(self, digests: Sequence[str], vectors: Floats) -> None:
        """Store vectors; their claims end with that."""
        self._store.put_vectors(self._fingerprint, digests, vectors)
        self._mine.difference_update(digests)

    def close(self) -> None:
        """Give back what was claimed and not embedded."""
        if self._mine:
            self._store.renew_claims(self._fingerprint, sorted(self._mine), 0)
            self._mine = set()
