"""Filters for synthetic requests: each rejected request gets a reason."""

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
    """The request in a model's answer: its first paragraph in one line, without a label and quotes around it."""
    text = clean_text(text.strip().split("\n\n")[0])
    text = _LABEL.sub("", text).strip()
    while len(text) > 1 and text[0] + text[-1] in ('""', "''", "“”", "``", "**"):
        text = text[1:-1].strip()
    return text


class Filter:
    """Checks requests one after the other; of near duplicates, the first is kept."""

    def __init__(self, tools: Sequence[Tool], known: Iterable[str] = (), seen: Iterable[str] = ()) -> None:
        """Take a catalogue, and existing requests to reject: their texts (`known`) or digests (`seen`)."""
        self._tools = {tool.id: tool for tool in tools}
        spelled = Counter(word for tool in tools for word in set(_WORD.findall(tool.description)) if word.islower())
        self._ordinary = {word for word, count in spelled.items() if count > 1 or len(tools) < _ROWS}
        self._names: dict[str, list[str]] = {}
        self._documents: dict[str, str] = {}
        self._digests = {request_digest(text) for text in known}.union(seen)
        self._grams: dict[str, list[frozenset[str]]] = {}

    def problem(self, text: str, tool_ids: Sequence[str], whole: bool = True) -> str:
        """The reason to reject a request, "" for none; `whole` says whether the model finished the text."""
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
        """The reason to reject a request as a duplicate, "" for none; then later duplicates of it are rejected."""
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
        """Phrases that name a tool or its service; a single common word is not one."""
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
    """The round trip: for each request, whether a retriever ranks its anchor tool among the first results.

    For a request that needs m tools, the first m * `first` results count.
    """
    found = []
    for start in range(0, len(requests), _ROWS):
        few = slice(start, start + _ROWS)
        texts, depth = list(requests[few]), first * max(sizes[few])
        rankings = [ranking.ids() for ranking in retriever.rank(texts, depth)]
        rows = zip(rankings, anchors[few], sizes[few], strict=True)
        found += [anchor in ranking[: first * size] for ranking, anchor, size in rows]
        if progress:
            progress("round trip", len(found), len(requests))
    return found


def _runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[place : place + _GRAM]) for place in range(max(1, len(words) - _GRAM + 1))]


def _repeats(words: Sequence[str]) -> bool:
    """Whether some four words in a row come three times: the model was in a loop."""
    return max(Counter(zip(words, words[1:], words[2:], words[3:], strict=False)).values(), default=0) >= 3


def _copied(words: Sequence[str], document: Sequence[str]) -> tuple[float, int]:
    """The share of the words in trigrams that the document has too, and the longest run of such words."""
    there, hit = set(_runs(document)), [False] * len(words)
    for place, run in enumerate(_runs(words)):
        if run in there:
            hit[place : place + _GRAM] = [True] * len(run)
    longest = max(len(run) for run in "".join(" x"[one] for one in hit).split(" "))
    return sum(hit) / len(words), longest


def _same_language(text: str, document: str) -> bool:
    """Whether a text has the script of the document: Latin letters, and mostly ASCII where the document is."""
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
    """The scripts with a tenth of the letters or more; some languages have several."""
    return {script for script, count in _named_scripts(letters).items() if count >= (1 - _LATIN) * len(letters)}


def counted(problems: Iterable[str]) -> Mapping[str, int]:
    """How often each problem came up, the most frequent first."""
    return dict(Counter(filter(None, problems)).most_common())
