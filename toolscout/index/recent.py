"""A thread-safe least-recently-used cache, bounded by number and bytes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from sys import getsizeof
from typing import Generic, TypeVar

from toolscout.core.answer import Allowed

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_LEAST_KEPT = 64  # however large they are


class Recent(Generic[Key, Value]):
    """Values by key; the least recently used are dropped first. Safe to use from several threads."""

    __slots__ = ("_kept", "_lock", "_most", "_room", "_used")

    def __init__(self, most: int, room: float = math.inf) -> None:
        """Hold at most `most` values, whose sizes, as given to `keep`, add up to at most `room`."""
        self._most, self._room, self._used = most, room, 0
        self._kept: dict[Key, tuple[Value, int]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """The value of a key, or None."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                return None
            # Moved to the end under this very key object: the next look-up compares by identity, not large sets.
            self._kept[key] = found
            return found[0]

    def keep(self, key: Key, value: Value, size: int = 0) -> None:
        """Store a value, and drop the oldest ones if there is no room."""
        with self._lock:
            self._used += size - self._kept.pop(key, (value, 0))[1]
            self._kept[key] = (value, size)
            while len(self._kept) > self._most or (self._used > self._room and len(self._kept) > _LEAST_KEPT):
                self._used -= self._kept.pop(next(iter(self._kept)))[1]

    def drop(self, stale: Callable[[Key], bool]) -> None:
        """Drop the values of all keys for which `stale` is true."""
        with self._lock:
            for key in [key for key in self._kept if stale(key)]:
                self._used -= self._kept.pop(key)[1]


def bytes_of(allowed: Allowed | None) -> int:
    """The approximate size of a caller's permissions as a key, without the strings in them."""
    return 0 if allowed is None else getsizeof(allowed.namespaces) + getsizeof(allowed.ids)
