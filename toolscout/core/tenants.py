"""On whose behalf a search is made: feedback of a tenant is heard by that tenant alone.

It goes with the thread, or the task, that searches, through retrievers that know nothing of it to the few that learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ASKING = ContextVar("toolscout_tenant", default="")


@contextmanager
def asking(tenant: str) -> Iterator[None]:
    """Search for this tenant inside the block: what it has used is heard besides what is everybody's."""
    token = _ASKING.set(tenant)
    try:
        yield
    finally:
        _ASKING.reset(token)


def asker() -> str:
    """The tenant a search is made for; empty where it is nobody's."""
    return _ASKING.get()
