"""Access control for every server: a key identifies a caller, and a caller sees only the tools it is allowed.

A caller cannot tell a tool that it may not see from one that does not exist: errors, counts and versions are the same.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, TypeVar

from toolscout.core.answer import SEARCHED_ALONE, Allowed, Answer, Example, Level
from toolscout.core.permissions import ANONYMOUS, Key, Rules, User, key_digest
from toolscout.core.tool import Tool, clean_text, namespace_of
from toolscout.errors import BadRequest, Forbidden, StoreUnavailable, Unauthorized, UnknownTool
from toolscout.scout import Count, Scout, Search, checked_request
from toolscout.stores.base import Change, Store
from toolscout.stores.listed_by_caller import marked_namespaces

if TYPE_CHECKING:
    from toolscout.serving.sign_in import SignIn

# How long a request waits for a store that says nothing, and how long after that the next one asks it.
_PATIENCE_S, _RETRY_S = 1.0, 5.0
_T = TypeVar("_T")
_WIDEST = 1 << 53  # beyond this, numbers in JSON lose digits in JavaScript
_LONGEST_KEY = 512
MAX_FEEDBACK_TOOLS = 100
"""How many tools one example of feedback may name."""
_TRIES = 5
_log = logging.getLogger("toolscout.serving")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request. `allowed`: the tools it may see, None for all. `tenant`: whose feedback it shares.

    `name`: its principal; `user`: who of those that share it, where the caller signed in. It holds for one request, as
    permissions may change: get a new one from Access for each, which is cheap.
    """

    name: str
    allowed: Allowed | None = None
    admin: bool = False
    tenant: str = ""
    user: User | None = None

    @property
    def identity(self) -> str:
        """A text that no other caller has: limits, sessions and lists of tools are kept by it."""
        return self.name if self.user is None else json.dumps([self.name, self.user.issuer, self.user.subject])


@dataclass(frozen=True, slots=True)
class CallerSearch:
    """One of several searches that are made together: the arguments of `Access.search`."""

    caller: Caller
    text: str
    k: Count = 5
    level: Level | None = None


class Access:
    """Gives callers access to a Scout, each to its own tools. Safe to use from many threads."""

    def __init__(
        self,
        scout: Scout,
        *,
        loopback: bool = True,
        token: str = "",
        sign_in: SignIn | None = None,
        listed_by_caller: Collection[str] = (),
    ) -> None:
        """Control access to a Scout.

        `loopback`: only this machine can connect; while the store has no keys, every caller then sees everything.
        `token`: a caller that sends it as its key may also change the catalogue while there are no keys; without a
        token nobody may. Once the store has had a key, keys are required for the lifetime of this object, even after
        the last one is revoked, and the token is void. `sign_in`: accepts tokens of sign-in services beside keys;
        then every caller needs one or the other from the beginning. `listed_by_caller`: namespaces of servers that list
        their tools for each caller, which whoever uses this object asks what a caller may see. Tools of any other such
        server are seen by admins that see everything, and by principals whose patterns name its namespace.
        """
        self.scout = scout
        self._store = scout.store
        self._loopback, self._token, self._own = loopback, token, frozenset(listed_by_caller)
        self.sign_in = sign_in
        self._keyed = sign_in is not None
        self._lock = threading.RLock()
        self._stamp: int | None = None
        self._retry_at = 0.0
        self._reader = _Reader()
        self._access: int | None = None
        self._keys: dict[str, list[Key]] = {}
        self._rules: dict[str, tuple[Rules, bool, str]] = {}
        self._callers: dict[str, tuple[tuple[int, frozenset[str]], Caller]] = {}
        self._index = _Index(scout.store)
        self._marks = _Marks(scout.store)
        self._rest: tuple[tuple[int, frozenset[str]], Allowed] = ((-1, frozenset()), Allowed())

    def has_keys(self) -> bool:
        """Return whether callers need a key or a token: a server that others can reach must not start otherwise."""
        with self._lock:
            self._follow()
            return bool(self._keys) or self.sign_in is not None

    def caller(self, key: str | None) -> Caller:
        """Return the caller that holds this key or token; raises Unauthorized where nobody does.

        A token also raises what SignIn.user does. No issuer is asked: see Callers in protected_resource.py.
        """
        if self.sign_in is not None and key is not None and self.sign_in.reads(key):
            user = self.sign_in.user(key)
            caller = self.named(user.principal)
            return replace(caller, tenant=user.tenant or caller.tenant, user=user)
        with self._lock:
            self._follow()
            if not self._keyed and self._loopback:
                if self._token and key and _equal(key, self._token):
                    return Caller(ANONYMOUS, admin=True)
                return Caller(ANONYMOUS, self._without_hidden(None, self._hidden()))
            if not key:
                how = "sign in, or send a key" if self.sign_in is not None else "send it"
                raise Unauthorized(f"this server wants a key; {how} as: Authorization: Bearer KEY")
            digest = key_digest(key[:_LONGEST_KEY])
            for known in self._keys.get(digest[:8], ()):
                if hmac.compare_digest(known.digest, digest):
                    return self._named(known.principal)
        raise Unauthorized("this key is not valid, or was revoked; ask for another: toolscout keys add NAME")

    def named(self, principal: str) -> Caller:
        """Return the caller for a principal's name, for faces without keys: the command line, a gateway over stdio.

        A principal without any grant sees nothing.
        """
        with self._lock:
            self._follow()
            return self._named(principal)

    def _named(self, principal: str) -> Caller:
        """Return the caller by what was read when the store was last followed; needs the lock."""
        if principal not in self._rules:
            found = self._store.principal(principal)
            rights = (found.admin, found.tenant) if found else (False, principal)
            self._rules[principal] = (self._store.rules(principal), *rights)
        rules, admin, tenant = self._rules[principal]
        hidden = frozenset() if rules.everything and admin else frozenset(filterfalse(rules.names, self._hidden()))
        if rules.everything:
            return Caller(principal, self._without_hidden(None, hidden), admin, tenant)
        self._index.follow()
        cached = self._callers.get(principal)
        state = (self._index.version, hidden)
        if cached is None or cached[0] != state:
            allowed = self._without_hidden(rules.compiled(self._index.tools, self._index.ids), hidden)
            same = cached is not None and cached[1].allowed == allowed
            caller = cached[1] if cached and same else Caller(principal, allowed, admin, tenant)
            cached = self._callers[principal] = (state, caller)
        return cached[1]

    def sees_all_of(self, caller: Caller, namespace: str) -> bool:
        """Return whether the caller may see every tool of a namespace, whether there are any or not."""
        if caller.allowed is None or namespace in caller.allowed.namespaces:
            return True
        self.named(caller.name)
        with self._lock:
            known = self._rules.get(caller.name)
        return known is not None and known[0].permits_all(namespace)

    def _hidden(self) -> frozenset[str]:
        """Return the namespaces of servers that list their tools for each caller, and that nobody here asks."""
        return self._marks.namespaces(self._stamp) - self._own

    def _without_hidden(self, allowed: Allowed | None, hidden: frozenset[str]) -> Allowed | None:
        """Return what is allowed without these namespaces; None stands for everything."""
        if not hidden:
            return allowed
        if allowed is None:
            self._index.follow()
            key = (self._index.version, hidden)
            if self._rest[0] != key:
                self._rest = (key, Allowed.of(self._index.tools.keys() - hidden))
            return self._rest[1]
        ids = (tool_id for tool_id in allowed.ids if namespace_of(tool_id) not in hidden)
        return Allowed.of(allowed.namespaces - hidden, ids)

    def require_admin(self, caller: Caller) -> None:
        """Raise Forbidden where the caller may not change the catalogue."""
        if not caller.admin:
            how = (
                "send the token that `toolscout serve` printed when it started"
                if caller.name == ANONYMOUS and not self._keyed
                else "make one with: toolscout keys add NAME --admin"
            )
            raise Forbidden(f"only an admin's key may do this; {how}")

    def require_everything(self, caller: Caller) -> None:
        """Raise Forbidden where some tools are hidden from the caller: for figures that count all tools."""
        if caller.allowed is not None:
            raise Forbidden("this is about all tools and all callers; use an admin's key that sees everything")

    def require_own(self, caller: Caller, put: Iterable[str], removed: Sequence[str], sync: bool = False) -> None:
        """Raise where an admin would change tools that it may not see.

        Raises Forbidden for ids in `put` and for `sync`, UnknownTool for ids in `removed`.
        """
        if caller.allowed is None:
            return
        rules = self._store.rules(caller.name)
        if sync or not all(map(rules.permits, put)):
            raise Forbidden("this key may change only tools that it may see; use an admin's key that sees everything")
        self._require(caller, removed)

    def search(self, caller: Caller, text: str, k: Count = 5, level: Level | None = None) -> Answer:
        """Search the caller's tools with its tenant's feedback. `level`: of the verdict; None: that of the Scout.

        Counts, version and notes of the answer speak of the caller's tools alone.
        """
        return self._for_caller(caller, self.scout.search(text, k, caller.allowed, tenant=caller.tenant, level=level))

    def search_together(self, searches: Sequence[CallerSearch]) -> list[Answer | Exception]:
        """Return the answer to each search as `search` does, or the error that it raises."""
        asked = [Search(one.text, one.k, one.caller.allowed, one.caller.tenant, level=one.level) for one in searches]
        found: list[Answer | Exception] = []
        for one, answer in zip(searches, self.scout.search_together(asked), strict=True):
            try:
                found.append(answer if isinstance(answer, Exception) else self._for_caller(one.caller, answer))
            except Exception as error:  # it concerns this caller alone
                found.append(error)
        return found

    def _for_caller(self, caller: Caller, answer: Answer) -> Answer:
        """Return the answer without what the caller may not know."""
        version = answer.version if caller.allowed is None else self.version(caller)
        cost = replace(answer.cost, problem="") if answer.cost else None  # the problem may name an endpoint
        return replace(answer, version=version, notes=tuple(map(_public_note, answer.notes)), cost=cost)

    def describe(self, caller: Caller, tool_id: str) -> Tool:
        """Return one tool. Raises the same UnknownTool, after the same time, where it is missing or hidden."""
        return self.tools(caller, [tool_id])[0]

    def tools(self, caller: Caller, ids: Sequence[str]) -> list[Tool]:
        """Return these tools in this order; raises UnknownTool as `describe` does."""
        self._require(caller, ids)
        try:
            return self._store.get(ids)
        except UnknownTool:
            if len(ids) == 1:
                raise _unknown(ids[0]) from None
            return [self.describe(caller, tool_id) for tool_id in ids]

    def list(self, caller: Caller, namespace: str | None = None, offset: int = 0, limit: int = 100) -> list[Tool]:
        """Return a page of the caller's tools, or of those in one namespace, sorted by id."""
        if caller.allowed is None:
            return [*self._store.tools(namespace, offset=offset, limit=limit)]
        if offset < 0 or limit < 0:
            raise BadRequest(f"offset and limit must be 0 or more, got {offset} and {limit}")
        for _ in range(_TRIES):
            try:
                return self._store.get(self.ids(caller, namespace)[offset : offset + limit])
            except UnknownTool:  # a tool was removed meanwhile: list again
                continue
        return []

    def ids(self, caller: Caller, namespace: str | None = None) -> Sequence[str]:
        """Return the sorted ids of the caller's tools, or of those in one namespace.

        The time this takes depends on the caller's tools alone, so that it reveals nothing of hidden namespaces.
        """
        if caller.allowed is None:
            return self._store.ids(namespace)
        with self._lock:
            self._index.follow()
            ids = self._index.visible(caller.allowed)
        return ids if namespace is None else [tool_id for tool_id in ids if namespace_of(tool_id) == namespace]

    def count(self, caller: Caller, namespace: str | None = None) -> int:
        """Return how many tools the caller may see, in all or in one namespace."""
        if namespace is not None:
            return self.namespaces(caller).get(namespace, 0)
        if caller.allowed is None:
            return self._store.count()
        return sum(self.namespaces(caller).values())

    def namespaces(self, caller: Caller) -> dict[str, int]:
        """Return the sorted namespaces of the caller's tools, with the number of tools in each."""
        if caller.allowed is None:
            return self._store.namespaces()
        with self._lock:
            self._index.follow()
            return self._index.namespaces(caller.allowed)

    def version(self, caller: Caller) -> int:
        """Return the version of the caller's part of the catalogue: it changes when the caller's tools do, only then.

        A caller that sees everything gets the store's version, which counts up. Any other gets a hash of its tools'
        states: a count would reveal how often the hidden tools change.
        """
        if caller.allowed is None:
            return self._store.version()
        with self._lock:
            self._index.follow()
            return self._index.state(caller.allowed)

    def feedback(
        self,
        caller: Caller,
        request: str,
        used: Iterable[str],
        rejected: Iterable[str] = (),
        source: str = "",
        example_id: str = "",
    ) -> None:
        """Record for the caller's tenant which tools a request used; raises UnknownTool for tools it may not see.

        One example is recorded for each `example_id` of a tenant; without one, this is an example of its own.
        """
        took, left = tuple(used), tuple(rejected)
        if not took and not left:
            raise BadRequest("name at least one tool that the request used, or that was turned down")
        if len(took) + len(left) > MAX_FEEDBACK_TOOLS:
            raise BadRequest(f"an example of feedback names {MAX_FEEDBACK_TOOLS} tools at most; name those that matter")
        text = checked_request(request)
        self.tools(caller, [*took, *left])
        example = Example(text, took, left, caller.tenant, source)
        self.scout.feedback(replace(example, id=example_id) if example_id else example)

    def _require(self, caller: Caller, ids: Sequence[str]) -> None:
        """Raise UnknownTool for hidden ids before the store is read: the time of a read would show that they exist."""
        if caller.allowed is None:
            return
        with self._lock:
            self._index.follow()
            for tool_id in ids:
                there, permitted = self._index.has(tool_id), caller.allowed.permits(tool_id)
                if not (there and permitted):
                    raise _unknown(tool_id)

    def _follow(self) -> None:
        """Reload keys, principals and grants where any process has changed them."""
        stamp = self._store.stamp()
        if stamp == self._stamp or (self._stamp is not None and time.monotonic() < self._retry_at):
            return
        try:
            stamp, access, stored = self._read() if self._stamp is None else self._reader.read(self._read)
        except StoreUnavailable:
            if self._stamp is None:
                raise
            # What was known goes on; a change of keys is heard of once the store is back.
            self._retry_at = time.monotonic() + _RETRY_S
            return
        if access != self._access:
            keys: dict[str, list[Key]] = {}
            for key in stored:
                keys.setdefault(key.id, []).append(key)
            self._keys, self._rules, self._callers = keys, {}, {}
            self._keyed = self._keyed or bool(keys)
            self._access = access
        self._stamp = stamp

    def _read(self) -> tuple[int, int, Sequence[Key]]:
        """Return the stamp and the number of the present state of keys, and the keys where they have changed."""
        stamp, access = self._store.stamp(), self._store.access()
        return stamp, access, self._store.api_keys() if access != self._access else []


class _Index:
    """The ids of a store's tools by namespace, each with a number for its present state; follows the store.

    The state of several tools is the sum of their numbers: it is updated one change at a time, and reveals nothing of
    tools outside the sum.
    """

    def __init__(self, store: Store) -> None:
        """Take the store; the first `follow` reads it."""
        self._store = store
        self._key = b""
        self._stamp: int | None = None
        self._retry_at = 0.0
        self._reader = _Reader()
        self.version = 0
        self.tools: dict[str, dict[str, int]] = {}
        self._sums: Counter[str] = Counter()
        self._visible: dict[Allowed, list[str]] = {}
        self._states: dict[Allowed, int] = {}

    def follow(self) -> None:
        """Read what has changed in the store since the last time."""
        stamp = self._store.stamp()
        if stamp == self._stamp or (self._stamp is not None and time.monotonic() < self._retry_at):
            return
        self._key = self._key or self._store.identity().encode()
        before = self.version
        try:
            read = partial(_listed, self._store, before)
            stamp, changes = read() if self._stamp is None else self._reader.read(read)
        except StoreUnavailable:
            if self._stamp is None:
                raise
            self._retry_at = time.monotonic() + _RETRY_S
            return
        for change in changes:
            namespace = namespace_of(change.tool_id)
            ids = self.tools.setdefault(namespace, {})
            self._sums[namespace] -= ids.pop(change.tool_id, 0)
            if change.kind != "removed":
                ids[change.tool_id] = number = self._number(change.tool_id, change.version)
                self._sums[namespace] += number
            elif not ids:
                del self.tools[namespace], self._sums[namespace]
            self.version = change.version
        if self.version != before:
            self._visible, self._states = {}, {}
        self._stamp = stamp

    def ids(self, namespace: str) -> Iterable[str]:
        """Return the ids of a namespace's tools."""
        return self.tools.get(namespace, {})

    def has(self, tool_id: str) -> bool:
        """Return whether a tool has this id."""
        return tool_id in self.tools.get(namespace_of(tool_id), {})

    def visible(self, allowed: Allowed) -> list[str]:
        """Return the sorted ids of the tools allowed."""
        if allowed not in self._visible:
            whole = (i for namespace in allowed.namespaces for i in self.ids(namespace))
            self._visible[allowed] = sorted({*whole, *filter(self.has, allowed.ids)})
        return self._visible[allowed]

    def namespaces(self, allowed: Allowed) -> dict[str, int]:
        """Return the sorted namespaces of the tools allowed, with the number of tools in each."""
        counts = Counter(map(namespace_of, self._single(allowed)))
        counts.update({namespace: len(self.tools[namespace]) for namespace in allowed.namespaces & self.tools.keys()})
        return dict(sorted(counts.items()))

    def state(self, allowed: Allowed) -> int:
        """Return a number that stands for the present state of the tools allowed."""
        if allowed not in self._states:
            single = sum(self.tools[namespace_of(tool_id)][tool_id] for tool_id in self._single(allowed))
            total = single + sum(self._sums[namespace] for namespace in allowed.namespaces)
            self._states[allowed] = total % _WIDEST
        return self._states[allowed]

    def _single(self, allowed: Allowed) -> Iterable[str]:
        return (i for i in allowed.ids if namespace_of(i) not in allowed.namespaces and self.has(i))

    def _number(self, tool_id: str, version: int) -> int:
        text = f"{version} {tool_id}".encode(errors="replace")
        return int.from_bytes(blake2b(text, digest_size=8, key=self._key).digest(), "big")


class _Reader:
    """Reads the store in a thread of its own, and no longer than a moment."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="toolscout-access")
        self._running: Future[Any] | None = None

    def read(self, read: Callable[[], _T]) -> _T:
        """Return what `read` returns. Raises what it raises, and StoreUnavailable where it takes too long.

        A database behind a network that stalls says nothing for seconds, and no search may wait for it. What took too
        long goes on, and the next call with the same question gets its result.
        """
        running: Future[_T] = self._running or self._pool.submit(read)
        self._running = running
        try:
            found = running.result(_PATIENCE_S)
        except TimeoutError:
            if not running.done():
                raise StoreUnavailable("the store does not answer; what was known is used") from None
            raise
        finally:
            if running.done():
                self._running = None
        return found


def _listed(store: Store, since: int) -> tuple[int, list[Change]]:
    return store.stamp(), list(store.changes(since))


class _Marks:
    """The namespaces of servers that list their tools for each caller; follows the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stamp: int | None = None
        self._retry_at = 0.0
        self._reader = _Reader()
        self._namespaces = frozenset[str]()

    def namespaces(self, stamp: int | None) -> frozenset[str]:
        """Return them as they are at this stamp of the store, or as last known while the store is away."""
        if self._stamp is not None and (stamp == self._stamp or time.monotonic() < self._retry_at):
            return self._namespaces
        try:
            read = self._read if self._stamp is None else partial(self._reader.read, self._read)
            self._stamp, self._namespaces = read()
        except StoreUnavailable:
            if self._stamp is None:
                raise
            self._retry_at = time.monotonic() + _RETRY_S
        return self._namespaces

    def _read(self) -> tuple[int, frozenset[str]]:
        return self._store.stamp(), marked_namespaces(self._store)


def _public_note(note: str) -> str:
    """Return a note without the reason a language model failed: it may name an address or a path of this machine."""
    if not note.startswith(f"{SEARCHED_ALONE}:"):
        return note
    _log.warning("%s", note)
    return f"{SEARCHED_ALONE}: the language model did not answer; the log of the server says why"


def _equal(given: str, secret: str) -> bool:
    """Return whether two keys are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(key_digest(given[:_LONGEST_KEY]), key_digest(secret))


def _unknown(tool_id: str) -> UnknownTool:
    return UnknownTool(f"there is no tool {clean_text(tool_id[:200])}; search for one, or list those that there are")
