"""Draws that depend on nothing but what they are for: the same in whatever order they are made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence


def chance(*key: object) -> float:
    """A number from 0 to below 1."""
    text = "\n".join(map(str, key)).encode(errors="replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest()) / 2**56


def drawn(shares: Mapping[str, float], *key: object) -> str:
    """One of the names, each as likely as its share."""
    left = chance(*key) * sum(shares.values())
    for name, share in shares.items():
        left -= share
        if left < 0:
            return name
    return next(name for name in reversed(list(shares)) if shares[name])


def favoured(items: Sequence[str], *key: object) -> str:
    """One of some items, best first: the n-th is as likely as 1/n."""
    return items[int(drawn({str(place): 1 / (1 + place) for place in range(len(items))}, *key))]
