"""Finds the tools that a request names exactly, and puts them first."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from toolscout.core.answer import Allowed
from toolscout.core.tool import name_of, namespace_of, request_words, split_words
from toolscout.index.script_words import has_other_scripts, latin_text, paired_runs
from toolscout.index.tool_table import Kind, ToolTable, last_word, name_key

# A name found in the request outranks every score that words or vectors can give.
EXACT_BONUS = 1000.0

_TOKEN = re.compile(r"[^\s,;!?()\[\]{}<>\"'`“”‘’«»、。，；！？（）「」『』《》〈〉【】；،؟]+")
_QUOTED = re.compile(r"[\"'`“‘«]([^\"'`”’»]{1,200})[\"'`”’»]")
_OTHER_QUOTED = re.compile(r"[「『《〈【„]([^」』》〉】“”]{1,200})[」』》〉】“”]")
_IDENTIFIER = re.compile(r"[\w%][./:_]+[\w%]|[a-z][A-Z]|\w-\w+-\w")
_HYPHENATED = re.compile(r"\w+-\w+")
_MAX_ALIAS_WORDS = 8
_MAX_NAME_WORDS = 24
_RECENT = 64  # texts whose tools are remembered
# In scripts without spaces: the longest alias, how much of a request is looked through for one, and how many letters
# behind an identifier may be particles and verbs.
_MAX_ALIAS_LETTERS, _LETTERS_READ, _MAX_ENDING = 12, 200, 8


class ExactNames:
    """Names and aliases of the tools of an index, normalised: those of a saved table, and those added later."""

    def __init__(self, table: ToolTable | None = None, dead: Iterable[int] = ()) -> None:
        """Start with the tools of a table, without its dead rows."""
        self._table, self._dead = table, set(dead)
        self._ids: dict[str, list[str]] = {}
        self._aliases: dict[str, list[str]] = {}
        self._of: dict[str, tuple[str, ...]] = {}
        # The last words of all names: a text that ends in none of them is no name.
        self._ends: Counter[str] = Counter()
        # What texts name, for the parts of a search that ask for the same text. A change begins a new one, so that a
        # thread that looked before the change cannot put its answer into it.
        self._recent: dict[str, Sequence[str]] = {}

    def __len__(self) -> int:
        """How many tools are known."""
        saved = len(self._table) - len(self._dead) if self._table else 0
        return saved + sum(map(len, self._ids.values()))

    def ids(self) -> list[str]:
        """The tools that are known, in no particular order."""
        saved = self._table.ids() if self._table else []
        living = [tool_id for row, tool_id in enumerate(saved) if row not in self._dead]
        return living + [tool_id for same in self._ids.values() for tool_id in same]

    def aliases(self, tool_id: str) -> tuple[str, ...]:
        """The aliases of a tool."""
        own = self._of.get(tool_id)
        if own is None and self._table is not None and self._table.has_aliases:
            row = self._saved_row(tool_id)
            return () if row is None else self._table.aliases(row)
        return own or ()

    def later_aliases(self) -> dict[str, tuple[str, ...]]:
        """The aliases of the tools that were added after the table, by id; a copy."""
        return self._of.copy()

    def add(self, tool_id: str, aliases: Sequence[str] = ()) -> None:
        """Add a tool by its name and aliases. A tool that is known already must be removed first."""
        key = name_key(name_of(tool_id))
        self._ids.setdefault(key, []).append(tool_id)
        self._ends[last_word(key)] += 1
        if aliases:
            self._of[tool_id] = tuple(aliases)
        for alias in aliases:
            if key := name_key(alias):
                self._aliases.setdefault(key, []).append(tool_id)
        self._recent = {}

    def remove(self, tool_id: str) -> None:
        """Remove a tool; an unknown one is ignored."""
        key = name_key(name_of(tool_id))
        if tool_id not in self._ids.get(key, ()):
            row = self._saved_row(tool_id)
            if row is not None:
                self._dead.add(row)
                self._recent = {}
            return
        _discard(self._ids, key, tool_id)
        self._ends[last_word(key)] -= 1
        if not self._ends[last_word(key)]:
            del self._ends[last_word(key)]
        for alias in self._of.pop(tool_id, ()):
            _discard(self._aliases, name_key(alias), tool_id)
        self._recent = {}

    def _saved_row(self, tool_id: str) -> int | None:
        """The row of a tool in the table, unless it is dead."""
        row = self._table.row(tool_id) if self._table else None
        return None if row in self._dead else row

    def _saved(self, kind: Kind, key: str) -> list[str]:
        """The living tools of the table with a key."""
        if self._table is None:
            return []
        return [self._table.id(row) for row in self._table.rows(kind, key).tolist() if row not in self._dead]

    def find(self, request: str, allowed: Allowed | None = None) -> dict[str, str]:
        """The ids of the allowed tools that the request names, each with the words that name it.

        Tools that are not allowed have no effect: they do not hide an allowed tool with a similar name.
        """
        found: dict[str, str] = {}
        for text in self._mentions(request):
            for tool_id in self._named(text, allowed):
                # English joins two words by a hyphen too: "auto-complete" is a name only where one is spelt so.
                if not _HYPHENATED.fullmatch(text) or name_of(tool_id).lower() == text.lower():
                    found.setdefault(tool_id, text)
        if self._aliases or (self._table and self._table.has_aliases):
            for text, tool_id in self._aliased(request):
                if allowed is None or allowed.permits(tool_id):
                    found.setdefault(tool_id, text)
        return found

    def is_name(self, request: str, allowed: Allowed | None = None) -> bool:
        """Whether the request is nothing but the name of a tool, of those allowed."""
        return bool(self._named(request.strip(), allowed))

    def _named(self, text: str, allowed: Allowed | None) -> Sequence[str]:
        """The tools named `text`, with or without namespace; only those with the exact spelling if there are any."""
        if allowed is not None:
            return self._look_up(text, allowed)
        recent = self._recent
        found = recent.get(text)
        if found is None:
            found = self._look_up(text, None)
            if len(recent) >= _RECENT:
                recent.clear()
            recent[text] = found
        return found

    def _look_up(self, text: str, allowed: Allowed | None) -> Sequence[str]:
        last = split_words(text[text.rfind(" ") + 1 :])  # a long request is not split only for its last word
        if last and not self._is_last_word(last[-1].lower()):
            return ()
        words = [word.lower() for word in request_words(text)]
        if not words or len(words) > _MAX_NAME_WORDS or not (last or self._is_last_word(words[-1])):
            return ()
        for start in range(len(words)):
            key = "_".join(words[start:])
            ids = self._saved("name", key) + self._ids.get(key, [])
            if start:
                namespace = "_".join(words[:start])
                ids = [tool_id for tool_id in ids if name_key(namespace_of(tool_id)) == namespace]
            if allowed is not None:
                ids = [tool_id for tool_id in ids if allowed.permits(tool_id)]
            if ids:
                spelt = [tool_id for tool_id in ids if text in (tool_id, name_of(tool_id))]
                return spelt or ids
        return ()

    def _is_last_word(self, word: str) -> bool:
        return word in self._ends or (self._table is not None and len(self._table.rows("ending", word)) > 0)

    def _mentions(self, request: str) -> Iterator[str]:
        """The parts of a request that could be a name: all of it, quoted text, and identifiers.

        A plain word such as "search" is not: among many tools there is always one named by a word of the request.
        """
        yield request.strip()
        yield from _QUOTED.findall(request)
        yield from _identifiers(request)
        if not request.isascii():
            yield from _other_mentions(request)

    def _aliased(self, request: str) -> Iterator[tuple[str, str]]:
        words = request_words(request)
        spans = _spans(len(words))
        keys = ["_".join(words[start:end]).lower() for start, end in spans]
        saved = set(self._table.known("alias", keys)) if self._table else set()
        for (start, end), key in zip(spans, keys, strict=True):
            ids = self._saved("alias", key) if key in saved else []
            for tool_id in [*ids, *self._aliases.get(key, ())]:
                yield " ".join(words[start:end]), tool_id
        for text in _unspaced_parts(request):
            for tool_id in [*self._saved("alias", name_key(text)), *self._aliases.get(name_key(text), ())]:
                if text.lower() in map(str.lower, self.aliases(tool_id)):
                    yield text, tool_id


def possible_names(request: str) -> list[str]:
    """Every name and alias, normalised, that a tool may have which `ExactNames` would find in a request."""
    words = split_words(request)
    keys = ["_".join(words[start:end]).lower() for start, end in _spans(len(words))]
    for text in ExactNames()._mentions(request):
        parts = [word.lower() for word in split_words(text)]
        if len(parts) <= _MAX_NAME_WORDS:
            keys += ["_".join(parts[start:]) for start in range(len(parts))]
    return list(dict.fromkeys([*keys, *map(name_key, _unspaced_parts(request))]))


def _spans(count: int) -> list[tuple[int, int]]:
    """Where an alias may begin and end among so many words."""
    return [
        (start, end) for start in range(count) for end in range(start + 1, min(start + _MAX_ALIAS_WORDS, count) + 1)
    ]


def _identifiers(text: str) -> Iterator[str]:
    for token in _TOKEN.findall(text):
        token = token.strip(".:-/")
        if token.islower() and token.isalpha():  # most are plain words, which are no identifiers
            continue
        if _IDENTIFIER.search(token) or _HYPHENATED.fullmatch(token):
            yield token


def _other_mentions(request: str) -> Iterator[str]:
    """What could be a name besides in a request that is not plain ASCII: other quotes, other forms of the same letters,
    identifiers that touch words of a script without spaces.
    """
    plain = unicodedata.normalize("NFKC", request)
    if plain != request:
        yield plain.strip()
        yield from _identifiers(plain)
    yield from _OTHER_QUOTED.findall(plain)
    if has_other_scripts(plain):
        yield from _identifiers(latin_text(plain))
    for token in filter(_IDENTIFIER.search, _TOKEN.findall(plain)):
        ending = paired_runs(token)[-1:]
        if ending and token.endswith(ending[0]):
            yield from (token[:-count] for count in range(1, min(len(ending[0]), _MAX_ENDING + 1)))


def _unspaced_parts(request: str) -> Iterator[str]:
    """Every part of a request's words in scripts without spaces that is as long as an alias may be."""
    read = 0
    for run in paired_runs(request):
        run = run[: _LETTERS_READ - read]
        read += len(run)
        for start in range(len(run)):
            for end in range(start + 2, min(start + _MAX_ALIAS_LETTERS, len(run)) + 1):
                yield run[start:end]


def _discard(table: dict[str, list[str]], key: str, tool_id: str) -> None:
    ids = table.get(key, [])
    if tool_id in ids:
        ids.remove(tool_id)
        if not ids:
            del table[key]


def named_first(pairs: Sequence[tuple[str, float]], named: Collection[str], k: int) -> list[tuple[str, float]]:
    """The first k of ranked tools, with those that the request names first, in the order of their scores.

    Named tools that were not ranked follow the named ones that were, by id.
    """
    if not named:
        return list(pairs[:k])
    ranked = {tool_id: score + EXACT_BONUS if tool_id in named else score for tool_id, score in pairs}
    scores = dict.fromkeys(named, EXACT_BONUS) | ranked
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
