"""What a retriever can do beside ranking, asked on every search: isinstance of a protocol would look at each method."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import repeat
from typing import Any, TypeGuard, TypeVar

Kind = TypeVar("Kind")


def keeps(one: object, protocol: Callable[..., Kind]) -> TypeGuard[Kind]:
    """Whether it has what the protocol names; some lend what their part can do, so each object is asked."""
    return all(map(hasattr, repeat(one), _names(protocol)))  # no generator: it is asked some twenty times a search


@cache
def _names(protocol: Any) -> tuple[str, ...]:
    return tuple(name for name in vars(protocol) if not name.startswith("_"))
