"""Remembers what was worked out for those who asked last."""

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
    """Values by key, at most so many, and of at most so many bytes; what nobody asked for the longest goes first.

    Several threads may ask at once.
    """

    __slots__ = ("_kept", "_lock", "_most", "_room", "_used")

    def __init__(self, most: int, room: float = math.inf) -> None:
        """`room` counts the sizes that `keep` is told."""
        self._most, self._room, self._used = most, room, 0
        self._kept: dict[Key, tuple[Value, int]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """What is kept under the key."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                return None
            # Last again, and under the very object of this call: the next look-up with it compares no large sets.
            self._kept[key] = found
            return found[0]

    def keep(self, key: Key, value: Value, size: int = 0) -> None:
        """Remember a value, and forget what there is no more room for."""
        with self._lock:
            self._used += size - self._kept.pop(key, (value, 0))[1]
            self._kept[key] = (value, size)
            while len(self._kept) > self._most or (self._used > self._room and len(self._kept) > _LEAST_KEPT):
                self._used -= self._kept.pop(next(iter(self._kept)))[1]

    def drop(self, stale: Callable[[Key], bool]) -> None:
        """Forget the values of keys that are stale."""
        with self._lock:
            for key in [key for key in self._kept if stale(key)]:
                self._used -= self._kept.pop(key)[1]


def bytes_of(allowed: Allowed | None) -> int:
    """About what it takes to remember a caller: its sets, not counting the texts of the ids in them."""
    return 0 if allowed is None else getsizeof(allowed.namespaces) + getsizeof(allowed.ids)
