"""Finds the tools that a request names outright, and puts them first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from toolscout.core.answer import Allowed
from toolscout.core.tool import name_of, namespace_of, split_words

# A name found in the request outranks every score that words or vectors can give.
EXACT_BONUS = 1000.0

_TOKEN = re.compile(r"[^\s,;!?()\[\]{}<>\"'`“”‘’«»]+")
_QUOTED = re.compile(r"[\"'`“‘«]([^\"'`”’»]{1,200})[\"'`”’»]")
_IDENTIFIER = re.compile(r"[\w%][./:_]+[\w%]|[a-z][A-Z]|\w-\w+-\w")
_HYPHENATED = re.compile(r"\w+-\w+")
_MAX_ALIAS_WORDS = 8
_MAX_NAME_WORDS = 24


def _key(text: str) -> str:
    """createIssue, create_issue and create-issue are one name."""
    return "_".join(split_words(text)).lower()


class ExactNames:
    """Names and aliases of the tools of one index, by their normalised form."""

    def __init__(self) -> None:
        """Start empty."""
        self._ids: dict[str, list[str]] = {}
        self._aliases: dict[str, list[str]] = {}
        self._of: dict[str, tuple[str, ...]] = {}
        # The last words of names: most texts end in none of them, and need not be looked at further.
        self._ends: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many tools are known."""
        return sum(map(len, self._ids.values()))

    def ids(self) -> list[str]:
        """The tools that are known, in no particular order."""
        return [tool_id for same in self._ids.values() for tool_id in same]

    @property
    def aliases(self) -> Mapping[str, Sequence[str]]:
        """The aliases of every tool that has any."""
        return self._of

    def add(self, tool_id: str, aliases: Sequence[str] = ()) -> None:
        """Know a tool by its name and aliases. One that is known already must be removed first."""
        key = _key(name_of(tool_id))
        self._ids.setdefault(key, []).append(tool_id)
        self._ends[_last_word(key)] += 1
        if aliases:
            self._of[tool_id] = tuple(aliases)
        for alias in aliases:
            if key := _key(alias):
                self._aliases.setdefault(key, []).append(tool_id)

    def remove(self, tool_id: str) -> None:
        """Forget a tool; one that is not known is ignored."""
        key = _key(name_of(tool_id))
        if tool_id not in self._ids.get(key, ()):
            return
        _discard(self._ids, key, tool_id)
        self._ends[_last_word(key)] -= 1
        if not self._ends[_last_word(key)]:
            del self._ends[_last_word(key)]
        for alias in self._of.pop(tool_id, ()):
            _discard(self._aliases, _key(alias), tool_id)

    def find(self, request: str, allowed: Allowed | None = None) -> dict[str, str]:
        """The ids of the tools that the request names, of those allowed, each with the words that name it.

        A tool that is not allowed has no name here: it does not even hide another tool that is called alike.
        """
        found: dict[str, str] = {}
        for text in self._mentions(request):
            for tool_id in self._named(text, allowed):
                # English joins two words by a hyphen too: "auto-complete" is a name only where one is spelt so.
                if not _HYPHENATED.fullmatch(text) or name_of(tool_id).lower() == text.lower():
                    found.setdefault(tool_id, text)
        if self._aliases:
            for text, tool_id in self._aliased(request):
                if allowed is None or allowed.permits(tool_id):
                    found.setdefault(tool_id, text)
        return found

    def is_name(self, request: str, allowed: Allowed | None = None) -> bool:
        """Whether the request is nothing but the name of a tool, of those allowed."""
        return bool(self._named(request.strip(), allowed))

    def _named(self, text: str, allowed: Allowed | None) -> Sequence[str]:
        """Tools called `text`, with or without their namespace in front; those spelt just so where there are any."""
        words = [word.lower() for word in split_words(text)]
        if not words or len(words) > _MAX_NAME_WORDS or words[-1] not in self._ends:
            return ()
        for start in range(len(words)):
            ids = self._ids.get("_".join(words[start:]), [])
            if start:
                namespace = "_".join(words[:start])
                ids = [tool_id for tool_id in ids if _key(namespace_of(tool_id)) == namespace]
            if allowed is not None:
                ids = [tool_id for tool_id in ids if allowed.permits(tool_id)]
            if ids:
                spelt = [tool_id for tool_id in ids if text in (tool_id, name_of(tool_id))]
                return spelt or ids
        return ()

    def _mentions(self, request: str) -> Iterator[str]:
        """The pieces of a request that could be a name: all of it, what is quoted, what looks like an identifier.

        A plain word such as "search" is none, nor is it beside "tool" or "use": among many tools there is always one
        that is called by a word of the request.
        """
        yield request.strip()
        yield from _QUOTED.findall(request)
        for token in _TOKEN.findall(request):
            token = token.strip(".:-/")
            if _IDENTIFIER.search(token) or _HYPHENATED.fullmatch(token):
                yield token

    def _aliased(self, request: str) -> Iterator[tuple[str, str]]:
        words = split_words(request)
        for start in range(len(words)):
            for end in range(start + 1, min(start + _MAX_ALIAS_WORDS, len(words)) + 1):
                text = " ".join(words[start:end])
                for tool_id in self._aliases.get("_".join(words[start:end]).lower(), ()):
                    yield text, tool_id


def _last_word(key: str) -> str:
    return key.rpartition("_")[2]


def _discard(table: dict[str, list[str]], key: str, tool_id: str) -> None:
    ids = table.get(key, [])
    if tool_id in ids:
        ids.remove(tool_id)
        if not ids:
            del table[key]


def named_first(pairs: Sequence[tuple[str, float]], named: Collection[str], k: int) -> list[tuple[str, float]]:
    """The first k of ranked tools, those that the request names before all others, in the order of their scores.

    A named tool that was not ranked comes behind those that were, by its id.
    """
    if not named:
        return list(pairs[:k])
    ranked = {tool_id: score + EXACT_BONUS if tool_id in named else score for tool_id, score in pairs}
    scores = dict.fromkeys(named, EXACT_BONUS) | ranked
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
