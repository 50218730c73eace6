"""Who sends a request to the gateway, and work for it in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from toolscout.errors import BadRequest, MissingExtra
from toolscout.serving.access import Access, Caller

try:
    from toolscout.serving.limits import Gate
    from toolscout.serving.middleware import key_of
    from toolscout.serving.problems import Problem
except ImportError:
    raise MissingExtra("serving", "serve") from None

_THREADS, _QUEUED, _LONGEST_S = 2, 64, 60.0  # requests that may wait for a thread, and seconds until they fail
_T = TypeVar("_T")


class Callers:
    """Finds out who sends a request: by its key over HTTP, by the one given key over stdio."""

    def __init__(self, access: Access, key: str | None) -> None:
        """`key`: that of the client over stdio."""
        self.access, self._key = access, key
        self._gate = Gate(_THREADS, _QUEUED, _LONGEST_S)

    def key(self, ctx: Any) -> str | None:
        """Return the key that came with a request."""
        return key_of(ctx.request.headers) if ctx.request is not None else self._key

    async def caller(self, ctx: Any) -> Caller:
        """Return who sends a request. Raises Unauthorized."""
        key = self.key(ctx)
        return await self.in_thread(lambda: self.access.caller(key))

    async def in_thread(self, work: Callable[[], _T]) -> _T:
        """Run work in a thread, callers taking turns; raises BadRequest at once where too many wait."""
        try:
            return await self._gate.run(work)
        except Problem:
            raise BadRequest("too many requests at once; wait a second and ask again") from None
