"""Access rules: principals with allow and deny patterns over tool ids, their API keys, and how rules are applied."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import translate
from typing import NamedTuple

from toolscout.core.answer import Allowed
from toolscout.core.tool import clean_text, namespace_of
from toolscout.errors import BadRequest

EVERYTHING = ("*", "*/*")
ANONYMOUS = "anonymous"
KEY_PREFIX = "ts_"  # so that scanners for leaked secrets can tell it


@dataclass(frozen=True, slots=True)
class Principal:
    """A user or program with access: what it may see (`allow`, `deny`), whether it may change things (`admin`), and
    whose feedback it uses besides the shared one (`tenant`).

    A pattern is a glob on the tool id: `mail/*` is a whole namespace, `mail/read*` some of its tools, `*/delete*` tools
    of any namespace, `*` everything. The part before the last slash matches the namespace, the rest the name. Deny
    wins over allow and over grants.
    """

    name: str
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    admin: bool = False
    tenant: str = ""

    def __post_init__(self) -> None:
        """Raise BadRequest for an empty name, or a pattern that is neither NAMESPACE/NAME nor *."""
        if not clean_text(self.name):
            raise BadRequest("a principal needs a name; give it one that its keys can be told by")
        for pattern in (*self.allow, *self.deny):
            namespace, slash, name = pattern.rpartition("/")
            if pattern not in EVERYTHING and not (slash and namespace and name):
                raise BadRequest(
                    f"{pattern!r:.80} is no pattern of tool ids; write NAMESPACE/* for a whole namespace, "
                    "NAMESPACE/NAME* for some of its tools, or * for everything"
                )


@dataclass(frozen=True, slots=True)
class User:
    """A person or program that signed in: the principal whose rights it has, and who it is to which issuer.

    `shown`: what the audit log calls it. `tenant`: that of its token; "" for that of the principal.
    """

    principal: str
    issuer: str
    subject: str
    shown: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """A stored API key of a principal: its digest, never the key itself."""

    digest: str
    principal: str
    created: datetime

    @property
    def id(self) -> str:
        """The first characters of the digest, by which people name the key."""
        return self.digest[:8]


def new_key(principal: str) -> tuple[str, Key]:
    """Return a new API key for a principal, to be shown once, and its stored form."""
    key = new_secret()
    return key, Key(key_digest(key), principal, datetime.now(UTC))


def new_secret() -> str:
    """Return a new random key or token of 32 bytes."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_digest(key: str) -> str:
    """Return the digest of a key. Keys are 32 random bytes, so a fast digest without salt is enough."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


class _Names(NamedTuple):
    """The rules for one namespace: all names or those matching `allow`, without those matching `deny`."""

    everything: bool
    allow: re.Pattern[str] | None
    deny: re.Pattern[str] | None
    nothing: bool

    @property
    def whole(self) -> bool:
        """Whether every tool of the namespace is allowed, tools added later included."""
        return self.everything and self.deny is None and not self.nothing


class Rules:
    """The rules of one principal: its grants and its allow and deny patterns; deny wins."""

    def __init__(self, granted: Allowed, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        """Compile the patterns."""
        self._granted = granted
        self._allow = [_parts(pattern) for pattern in allow]
        self._deny = [_parts(pattern) for pattern in deny]
        self._literal = {pattern.rpartition("/")[0] for pattern in allow}
        self.everything = not self._deny and any(pattern in EVERYTHING for pattern in allow)
        self._known: dict[str, _Names] = {}

    def names(self, namespace: str) -> bool:
        """Return whether a grant or an allow pattern is of this very namespace: `crm/*` names crm, `*` does not."""
        granted = namespace in self._granted.namespaces or any(namespace_of(i) == namespace for i in self._granted.ids)
        return granted or namespace in self._literal

    def permits(self, tool_id: str) -> bool:
        """Return whether the principal may see a tool of this id."""
        return _permits(self._names(namespace_of(tool_id)), tool_id, self._granted)

    def permits_all(self, namespace: str) -> bool:
        """Return whether the principal may see every tool of a namespace, whether there are any or not."""
        return self.everything or self._names(namespace).whole

    def compiled(self, namespaces: Iterable[str], ids_of: Callable[[str], Iterable[str]]) -> Allowed:
        """Apply the rules to a catalogue with these namespaces; `ids_of` returns the tool ids of a namespace.

        A namespace with a deny pattern is listed by its present ids, so that no denied tool slips in later.
        """
        granted, whole, ids = self._granted, set[str](), set[str]()
        for namespace in {*(namespaces if self._allow else ()), *granted.namespaces}:
            names = self._known.get(namespace)
            if names is None:
                names = self._known[namespace] = self._names(namespace)
            if names.whole:
                whole.add(namespace)
            elif not names.nothing and (names.everything or names.allow):
                ids.update(tool_id for tool_id in ids_of(namespace) if _permits(names, tool_id, granted))
        ids.update(tool_id for tool_id in granted.ids if self.permits(tool_id))
        return Allowed.of(whole, ids)

    def _names(self, namespace: str) -> _Names:
        allow = [name for matches, name in self._allow if matches(namespace)]
        deny = [name for matches, name in self._deny if matches(namespace)]
        everything = namespace in self._granted.namespaces or "*" in allow
        return _Names(everything, _any(allow), _any(deny), "*" in deny)


def _parts(pattern: str) -> tuple[Callable[[str], object], str]:
    """Split a pattern into a matcher of the namespace and the glob of the name."""
    namespace, _, name = ("*/*" if pattern in EVERYTHING else pattern).rpartition("/")
    return re.compile(translate(namespace)).match, name


def _any(globs: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(translate, globs))) if globs else None


def _permits(names: _Names, tool_id: str, granted: Allowed) -> bool:
    name = tool_id.rpartition("/")[2]
    if names.nothing or (names.deny and names.deny.match(name)):
        return False
    return names.everything or tool_id in granted.ids or bool(names.allow and names.allow.match(name))
