"""bm25: ranks by the words that a request and a tool's document share (Tantivy, k1 1.2, b 0.75)."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import tantivy

from toolscout.answer import Allowed, ExactName, Example, Hit, MatchedWords, Reason
from toolscout.errors import BadModel
from toolscout.retrievers._names import EXACT_BONUS, Names
from toolscout.retrievers._rows import Rows
from toolscout.retrievers._saved import UNREADABLE
from toolscout.retrievers._spelling import FUNCTION_WORDS, Vocabulary, correctable, edits
from toolscout.retrievers._word_files import WordFiles
from toolscout.retrievers.base import (
    Options,
    Pairs,
    Vectors,
    check_k,
    hits_of,
    read_model,
    read_options,
    write_model,
)
from toolscout.tool import Searchable, split_words

_LONGEST_WORD = 40
# Beyond this many hits, asking the engine to filter is cheaper than filtering what it returns.
_MOST_FETCHED = 5_000
_WORDS_EXPLAINED = 6
_LOOK_UP_POSTINGS = 20_000
_MENDED_FROM = 5
# A catalogue of so many tools keeps the words it corrects to for so long, and so many dead rows until the next add:
# each commit costs as much as a search.
_LARGE, _KNOWN_S, _DEAD_KEPT = 10_000, 60.0, 64
_STEMS_KEPT, _WORDS_KEPT = 2_048, 20_000
_PLAIN_WORD = re.compile(r"(?<![\w.@/:-])[a-z]+(?![\w@/-]|\.\w)")


@dataclass(frozen=True, slots=True)
class Bm25Options(Options):
    """Weights of the three ways a word can match, and limits on what a request may cost.

    `words` as written, `stems` whatever their ending, `names` in the tool's own name. `max_postings`: the rarest terms
    are searched until they stand in so many places together. `fuzzy`: correct words that no document has.
    """

    words: float = 1.0
    stems: float = 1.0
    names: float = 0.5
    max_postings: int = 400_000
    fuzzy: bool = True


def _analyzer(stem: bool) -> Any:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    steps = [tantivy.Filter.remove_long(_LONGEST_WORD), tantivy.Filter.lowercase(), tantivy.Filter.ascii_fold()]
    steps.append(tantivy.Filter.custom_stopword(FUNCTION_WORDS))
    for step in [*steps, tantivy.Filter.stemmer("english")] if stem else steps:
        builder = builder.filter(step)
    return builder.build()


def _schema() -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("words", stored=True, tokenizer_name="words", index_option="freq")
    builder.add_text_field("stems", tokenizer_name="stems", index_option="freq")
    builder.add_text_field("names", tokenizer_name="stems", index_option="freq")
    builder.add_unsigned_field("row", indexed=True, fast=True)
    return builder.build()


class _Term(NamedTuple):
    """A word of a request as people wrote it, the stems that count as it, and how telling it is."""

    word: str
    stems: frozenset[str]
    weight: float


def _idf(frequency: int, documents: int) -> float:
    return math.log(1 + (documents - min(frequency, documents) + 0.5) / (frequency + 0.5))


def _fields(tool: Searchable, row: int) -> dict[str, Any]:
    text, name = tool.document(), " ".join(split_words(tool.namespace) + split_words(tool.name))
    return {"words": text, "stems": text, "names": name, "row": row}


class Bm25:
    """Live lexical index. The engine's files lie in a private temporary folder for as long as the object lives."""

    name: ClassVar[str] = "bm25"

    def __init__(self, options: Bm25Options | None = None) -> None:
        """Start empty."""
        self.options = options or Bm25Options()
        self._open(Rows(), Names())

    def _open(self, rows: Rows, names: Names, saved: Path | None = None) -> None:
        self._schema = _schema()
        self._analyzers = {"words": _analyzer(stem=False), "stems": _analyzer(stem=True)}
        self._files = WordFiles(self._schema, self._analyzers, saved)
        self._searcher = self._files.searcher
        self._vocabulary = Vocabulary()
        self._stemmed: dict[str, list[str]] = {}
        self._stems: dict[int, frozenset[str]] = {}
        self._dead: list[int] = []
        self._rows = rows
        self._names = names
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many tools can be searched."""
        return len(self._rows)

    def ids(self) -> list[str]:
        """The ids of all tools."""
        return [tool_id for tool_id in self._rows.ids if tool_id]

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Index documents; vectors are of no use here."""
        with self._lock:
            rows = []
            for tool in tools:
                self._forget(tool.id)
                rows.append(self._rows.add(tool.id))
                self._names.add(tool.id, tool.aliases)
            self._commit(tools, rows)

    def remove(self, ids: Sequence[str]) -> None:
        """Forget tools."""
        with self._lock:
            for tool_id in ids:
                self._forget(tool_id)
            if self._dead and (len(self._rows) < _LARGE or len(self._dead) > _DEAD_KEPT):
                self._commit()

    def learn(self, examples: Sequence[Example]) -> None:
        """Words learn nothing from feedback."""

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Rank the tools that share a word with the request, or are named in it."""
        ranked = self.rank(requests, k, allowed)
        return [hits_of(self, request, pairs) for request, pairs in zip(requests, ranked, strict=True)]

    def rank(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """What search ranks, without reasons."""
        check_k(k)
        return [self._rank(request, k, allowed) for request in requests]

    def why(self, request: str, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """Names; the words are found by explain."""
        named = self._names.find(request)
        return [(ExactName(named[tool_id]),) if tool_id in named else () for tool_id in ids]

    def is_name(self, request: str) -> bool:
        """Whether the request is nothing but the name of a tool."""
        return self._names.is_name(request)

    def corrected(self, request: str) -> str:
        """The request with its slips of the pen mended: plain words that no tool has, one letter off one that tools do.

        An encoder makes little of a misspelt word. Names begin with a capital and are left alone.
        """
        return _PLAIN_WORD.sub(self._mended, request) if self.options.fuzzy else request

    def _mended(self, match: re.Match[str]) -> str:
        word = match.group()
        if len(word) < _MENDED_FROM or self._searcher.doc_freq("words", word) or self._stem_frequency(word):
            return word
        near = self._near(word)
        return near[0][0] if near and edits(word, near[0][0], 1) == 1 else word

    def explain(self, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """Add the words of the request that stand in each hit's document, the rarest first."""
        terms: dict[str, _Term] = {}
        for word in split_words(request):
            for stem in self._stems_in(word):
                if stem not in terms:
                    terms[stem] = self._term(word, stem)
        rarest = sorted(terms.values(), key=lambda term: -term.weight)
        return [self._explained(hit, rarest) for hit in hits]

    def _term(self, word: str, stem: str) -> _Term:
        """A word of a request; one that no document has stands for the words it was corrected to."""
        frequency, stems = self._searcher.doc_freq("stems", stem), frozenset([stem])
        if not frequency and self.options.fuzzy and correctable(stem):
            near = self._near(word.lower())
            frequency = max((count for _, count in near), default=0)
            stems = frozenset(s for term, _ in near for s in self._stems_in(term)) or stems
        return _Term(word, stems, _idf(frequency, len(self._rows)))

    def save(self, folder: Path) -> None:
        """Write the engine's files, which never change once written, and the rows."""
        with self._lock:
            if self._dead:
                self._commit()
            write_model(folder, self)
            self._files.save(folder / "words")
            (folder / "rows.json").write_text(json.dumps({"ids": self._rows.ids, "aliases": self._names.aliases}))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved index; what is added later goes to a private copy."""
        loaded = cls.__new__(cls)
        loaded.options = read_options(Bm25Options, read_model(folder))
        try:
            saved = json.loads((folder / "rows.json").read_text())
            names = Names()
            for tool_id in filter(None, saved["ids"]):
                names.add(tool_id, saved["aliases"].get(tool_id, ()))
            loaded._open(Rows(saved["ids"]), names, folder / "words")
        except UNREADABLE as error:
            raise BadModel(f"the word index in {folder} cannot be read ({error}); build it again") from None
        return loaded

    def _commit(self, tools: Sequence[Searchable] = (), rows: Sequence[int] = ()) -> None:
        self._files.commit(lambda: map(_fields, tools, rows), len(tools), self._dead)
        self._searcher = self._files.searcher
        self._dead = []  # only now: whoever counts them before taking the searcher asks for enough hits
        # Whether a word is known is asked of the index itself; the words of a large one to correct it to may be older.
        if len(self._rows) < _LARGE or time.monotonic() - self._vocabulary.since > _KNOWN_S:
            self._vocabulary = Vocabulary()

    def _forget(self, tool_id: str) -> None:
        """From now on a row without an id, which no search returns; the engine forgets it with the next commit."""
        row = self._rows.remove(tool_id)
        if row is not None:
            self._dead.append(row)
            self._names.remove(tool_id)

    def _frequencies(self, field: str, terms: Sequence[str]) -> list[tuple[str, int]]:
        """Terms with the number of documents that hold them, rarest first."""
        counted = [(term, self._searcher.doc_freq(field, term)) for term in dict.fromkeys(terms)]
        return sorted(counted, key=lambda pair: (pair[1], pair[0]))

    def _query(self, request: str, named: Iterable[str], max_postings: int) -> Any | None:
        """The rarest words of the request, corrected where no document has them, and the tools it names."""
        text = f"{request} {' '.join(split_words(request))}"
        words = self._frequencies("words", self._analyzers["words"].analyze(text))
        stems = self._frequencies("stems", self._analyzers["stems"].analyze(text))
        parts = self._terms("words", words, self.options.words, max_postings)
        parts += self._terms("stems", stems, self.options.stems, max_postings)
        parts += self._terms("names", stems, self.options.names, max_postings)
        if self.options.fuzzy:
            for term in [term for term, frequency in words if not frequency and correctable(term)]:
                if not self._stem_frequency(term):
                    parts += self._terms("words", self._near(term), self.options.words, max_postings)
        known = (self._rows.row(tool_id) for tool_id in named)
        for row in (row for row in known if row is not None):  # one that was removed just now has none
            called = tantivy.Query.term_query(self._schema, "row", row)
            parts.append(tantivy.Query.const_score_query(called, EXACT_BONUS))
        if not parts:
            return None
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, part) for part in parts])

    def _terms(self, field: str, counted: Sequence[tuple[str, int]], weight: float, max_postings: int) -> list[Any]:
        if not weight:
            return []
        parts: list[Any] = []
        postings = 0
        for term, frequency in counted:
            postings += frequency
            if parts and postings > max_postings:
                break
            if frequency:
                query = tantivy.Query.term_query(self._schema, field, term, "freq")
                parts.append(query if weight == 1.0 else tantivy.Query.boost_query(query, weight))
        return parts

    def _stem_frequency(self, word: str) -> int:
        return sum(frequency for _, frequency in self._frequencies("stems", self._stems_in(word)))

    def _stems_in(self, word: str) -> list[str]:
        """The stems of one word: one, or none where it tells nothing. Requests are made of the same words mostly."""
        stems = self._stemmed.get(word)
        if stems is None:
            if len(self._stemmed) >= _WORDS_KEPT:
                self._stemmed = {}
            stems = self._stemmed[word] = self._analyzers["stems"].analyze(word)
        return stems

    def _near(self, term: str) -> list[tuple[str, int]]:
        """The indexed words closest to one that no document has, with their frequencies."""
        return self._vocabulary.near(term, lambda prefix: self._searcher.terms_with_prefix("words", prefix))

    def _rank(self, request: str, k: int, allowed: Allowed | None) -> Pairs:
        named = self._names.find(request)
        if named and self.is_name(request):
            return self._look_up(request, named, k, allowed)
        return self._found(self._query(request, named, self.options.max_postings), k, allowed)

    def _look_up(self, request: str, named: Iterable[str], k: int, allowed: Allowed | None) -> Pairs:
        """A bare name: the tools called so, by id, then what shares its rarest words. Quick whatever the size."""
        here = [tool_id for tool_id in named if tool_id in self._rows]  # none that was removed just now
        called = sorted(tool_id for tool_id in here if allowed is None or allowed.permits(tool_id))
        others = self._found(self._query(request, (), _LOOK_UP_POSTINGS), k + len(called), allowed)
        exact = set(called)
        return [*((i, EXACT_BONUS) for i in called), *(pair for pair in others if pair[0] not in exact)][:k]

    def _found(self, query: Any | None, k: int, allowed: Allowed | None) -> Pairs:
        if query is None or not len(self._rows):
            return []
        pairs = self._fetch(query, k) if allowed is None else self._fetch_allowed(query, k, allowed)
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]

    def _fetch(self, query: Any, k: int) -> Pairs:
        """At least the k best, with every tie of the last one, so that ties can break by id."""
        sought = k + len(self._dead)
        limit, searcher = sought + 16, self._searcher  # one and the same: a commit puts another in its place
        while True:
            hits = searcher.search(query, limit, count=False).hits
            if len(hits) < limit or hits[-1][0] < hits[sought - 1][0]:
                rows = searcher.fast_field_values("row", [address for _, address in hits])
                pairs = [(self._rows.ids[int(row or 0)], score) for row, (score, _) in zip(rows, hits, strict=True)]
                return [pair for pair in pairs if pair[0]]  # a tool that was removed has no id
            limit *= 4

    def _fetch_allowed(self, query: Any, k: int, allowed: Allowed) -> Pairs:
        rows = self._rows.allowed(allowed)
        if not len(rows):
            return []
        limit = k * len(self._rows) // len(rows) * 2
        while limit < _MOST_FETCHED:
            pairs = self._fetch(query, limit)
            permitted = [pair for pair in pairs if allowed.permits(pair[0])]
            if len(permitted) >= k or len(pairs) < limit:
                return permitted
            limit *= 8
        only = tantivy.Query.const_score_query(tantivy.Query.term_set_query(self._schema, "row", rows.tolist()), 0.0)
        both = [(tantivy.Occur.Must, only), (tantivy.Occur.Must, query)]
        return self._fetch(tantivy.Query.boolean_query(both), k)

    def _explained(self, hit: Hit, terms: Sequence[_Term]) -> Hit:
        row = self._rows.row(hit.tool_id)
        if row is None or not terms:
            return hit
        here = self._stems.get(row) or self._stems_of(row)
        matched = [term for term in terms if term.stems & here]
        if not matched:
            return hit
        share = sum(term.weight for term in matched) / sum(term.weight for term in terms)
        words = tuple(term.word for term in matched)[:_WORDS_EXPLAINED]
        return replace(hit, reasons=(*hit.reasons, MatchedWords(words, round(share, 4))))

    def _stems_of(self, row: int) -> frozenset[str]:
        """The stems of a row's document, which never changes; those of rows that were shown lately are kept."""
        searcher = self._searcher
        found = searcher.search(tantivy.Query.term_query(self._schema, "row", row), 1, count=False).hits
        if not found:
            return frozenset()
        stems = frozenset(self._analyzers["stems"].analyze(searcher.doc(found[0][1])["words"][0]))
        if len(self._stems) >= _STEMS_KEPT:
            self._stems = {}
        self._stems[row] = stems
        return stems
