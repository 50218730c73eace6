"""Which of the written requests are worth training on, and why the others are not."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from toolscout.core.tool import Tool, clean_text, split_words
from toolscout.data.dataset import request_digest
from toolscout.retrievers.base import Retriever
from toolscout.search.progress import Progress
from toolscout.synth.prompts import facts

SHORT, LONG = 3, 80
NEAR = 0.8
COPIED, COPIED_RUN = 0.8, 7
_GRAM = 3
_LATIN, _ASCII = 0.9, 0.85
_ROWS = 1024
_WORD = re.compile(r"\w+")
_LABEL = re.compile(r"^\s*(?:[-*•\d.)\s]*)(?:(?:user(?:'s)?\s+)?request|user|answer|query)\s*:\s*", re.IGNORECASE)
_GARBAGE = re.compile(
    r"<[^>]{0,40}>|\{[^{}]*\}|\[[^\[\]]*\]|```|\brequest: |style of the request|\bas an ai\b|\bsure, here|"
    r"\bi cannot (?:help|assist|provide)\b|\bendpoint\b|\b(?:this|the|following) (?:tools?|apis?|functions?)\b|"
    r"\btakes \"",
    re.IGNORECASE,
)


def cleaned(text: str) -> str:
    """What a model wrote as a request: its first paragraph in one line, without a label and quotes around it."""
    text = clean_text(text.strip().split("\n\n")[0])
    text = _LABEL.sub("", text).strip()
    while len(text) > 1 and text[0] + text[-1] in ('""', "''", "“”", "``", "**"):
        text = text[1:-1].strip()
    return text


class Filter:
    """Judges requests one after the other; of those that are alike the first is kept."""

    def __init__(self, tools: Sequence[Tool], known: Iterable[str] = (), seen: Iterable[str] = ()) -> None:
        """Over a catalogue; `known` are requests that must not be written again, `seen` digests of more of them."""
        self._tools = {tool.id: tool for tool in tools}
        spelled = Counter(word for tool in tools for word in set(_WORD.findall(tool.description)) if word.islower())
        self._ordinary = {word for word, count in spelled.items() if count > 1 or len(tools) < _ROWS}
        self._names: dict[str, list[str]] = {}
        self._documents: dict[str, str] = {}
        self._digests = {request_digest(text) for text in known}.union(seen)
        self._grams: dict[str, list[frozenset[str]]] = {}

    def problem(self, text: str, tool_ids: Sequence[str], whole: bool = True) -> str:
        """Why a request is not kept, "" where it may be; `whole`: whether the model came to an end by itself."""
        words = _WORD.findall(text.lower())
        if not words:
            return "empty"
        if len(words) < SHORT:
            return "too short"
        if not whole:
            return "cut off"
        if len(words) > LONG:
            return "too long"
        if _GARBAGE.search(text) or _repeats(words):
            return "garbage"
        if self._named(words, text, tool_ids):
            return "names a tool"
        document = " ".join(map(self._document, tool_ids))
        if not _same_language(text, document):
            return "other language"
        share, longest = _copied(words, _WORD.findall(document.lower()))
        if share >= COPIED or longest >= COPIED_RUN:
            return "copied"
        return ""

    def repeated(self, text: str, anchor: str) -> str:
        """Whether a request was there before, or one much like it for the same tool; if not, it is from now on."""
        digest = request_digest(text)
        if digest in self._digests:
            return "duplicate"
        grams = frozenset(map(" ".join, _runs(_WORD.findall(text.lower()))))
        others = self._grams.setdefault(anchor, [])
        if any(len(grams & other) >= NEAR * len(grams | other) for other in others):
            return "near duplicate"
        self._digests.add(digest)
        others.append(grams)
        return ""

    def _named(self, words: Sequence[str], text: str, tool_ids: Sequence[str]) -> bool:
        spoken = f" {' '.join(words)} "
        for tool_id in tool_ids:
            if tool_id not in self._names:
                self._names[tool_id] = self._phrases(self._tools[tool_id])
            if any(f" {phrase} " in spoken for phrase in self._names[tool_id]):
                return True
            if "_" in self._tools[tool_id].name and self._tools[tool_id].name.lower() in text.lower():
                return True
        return False

    def _phrases(self, tool: Tool) -> list[str]:
        """What would name a tool or its service; an everyday word by itself does not."""
        found = []
        for name in (tool.name, tool.namespace, tool.title, *tool.aliases):
            for words in ([word.lower() for word in split_words(name)], _WORD.findall(name.lower())):
                if len(words) > 1 or (words and words[0] not in self._ordinary and len(words[0]) > 2):
                    found.append(" ".join(words))
        return list(dict.fromkeys(found))

    def _document(self, tool_id: str) -> str:
        if tool_id not in self._documents:
            tool = self._tools[tool_id]
            self._documents[tool_id] = f"{facts([tool])} {tool.description}"
        return self._documents[tool_id]


def found_again(
    retriever: Retriever,
    requests: Sequence[str],
    anchors: Sequence[str],
    sizes: Sequence[int],
    first: int,
    progress: Progress | None = None,
) -> list[bool]:
    """Whether a retriever that has the tools finds the one each request is for among its first so many.

    A request that needs m tools may have it among m times as many: the others stand before it.
    """
    kept = []
    for start in range(0, len(requests), _ROWS):
        few = slice(start, start + _ROWS)
        texts, depth = list(requests[few]), first * max(sizes[few])
        rankings = [ranking.ids() for ranking in retriever.rank(texts, depth)]
        rows = zip(rankings, anchors[few], sizes[few], strict=True)
        kept += [anchor in ranking[: first * size] for ranking, anchor, size in rows]
        if progress:
            progress("round trip", len(kept), len(requests))
    return kept


def _runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[place : place + _GRAM]) for place in range(max(1, len(words) - _GRAM + 1))]


def _repeats(words: Sequence[str]) -> bool:
    """Whether the same four words come three times: a model that turns in circles."""
    return max(Counter(zip(words, words[1:], words[2:], words[3:], strict=False)).values(), default=0) >= 3


def _copied(words: Sequence[str], document: Sequence[str]) -> tuple[float, int]:
    """The share of the words that stand, with two beside them, in the document; and how many do in one go."""
    there, hit = set(_runs(document)), [False] * len(words)
    for place, run in enumerate(_runs(words)):
        if run in there:
            hit[place : place + _GRAM] = [True] * len(run)
    longest = max(len(run) for run in "".join(" x"[one] for one in hit).split(" "))
    return sum(hit) / len(words), longest


def _same_language(text: str, document: str) -> bool:
    """By the script alone: Latin where the document is, plain letters where it has no others."""
    letters, others = ([sign for sign in one if sign.isalpha()] for one in (text, document))
    if not letters or not others:
        return bool(letters)
    if _share(others, _is_latin) < _LATIN:
        return _script(letters) in _scripts(others) | {"LATIN"}
    ascii_only = _share(others, str.isascii) >= _LATIN
    return _share(letters, _is_latin) >= _LATIN and (not ascii_only or _share(letters, str.isascii) >= _ASCII)


def _share(letters: Sequence[str], fits: Callable[[str], bool]) -> float:
    return sum(map(fits, letters)) / len(letters)


def _is_latin(sign: str) -> bool:
    return sign.isascii() or unicodedata.name(sign, "").startswith("LATIN")


def _named_scripts(letters: Sequence[str]) -> Counter[str]:
    return Counter(unicodedata.name(sign, "?").split()[0] for sign in letters)


def _script(letters: Sequence[str]) -> str:
    """The script of most letters."""
    return _named_scripts(letters).most_common(1)[0][0]


def _scripts(letters: Sequence[str]) -> set[str]:
    """The scripts that are more than a word here and there: some languages have several."""
    return {script for script, count in _named_scripts(letters).items() if count >= (1 - _LATIN) * len(letters)}


def counted(problems: Iterable[str]) -> Mapping[str, int]:
    """How often each problem came up, the most frequent first."""
    return dict(Counter(filter(None, problems)).most_common())
