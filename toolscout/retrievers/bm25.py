"""bm25: ranks by the words that a request and a tool's document share (Tantivy, k1 1.2, b 0.75)."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import tantivy

from toolscout.core.answer import Allowed, MatchedWords, Reason
from toolscout.core.model_files import UNREADABLE
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Searchable, name_of, namespace_of, split_words
from toolscout.errors import BadModel
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.index.recent import Recent
from toolscout.index.row_ids import RowIds
from toolscout.index.saved_rows import load_rows, save_rows
from toolscout.index.spelling import FUNCTION_WORDS, Vocabulary, correctable, edits
from toolscout.index.word_files import WordFiles
from toolscout.retrievers.base import Options, Pairs, Ranking, Retriever, Vectors, check_k
from toolscout.retrievers.model_folder import read_model, read_options, write_model

_LONGEST_WORD = 40
# Beyond this many hits, asking the engine to filter is cheaper than filtering what it returns.
_MOST_FETCHED = 5_000
_WORDS_EXPLAINED = 6
_LOOK_UP_POSTINGS = 20_000
_CORRECTED_FROM = 5
# A catalogue of so many tools keeps the words it corrects to for so long, and so many dead rows until the next add:
# each commit costs as much as a search.
_LARGE, _KNOWN_S, _DEAD_KEPT = 10_000, 60.0, 64
# The engine counts dead documents in the frequency of words until it merges them away. Where they are more than this
# share, an index is saved without them.
_MOST_DEAD = 0.1
_STEMS_KEPT, _WORDS_KEPT = 2_048, 20_000
# Of so many callers it is remembered whether their tools have a word, of so many words each; of one who sees few tools
# all of its words. Where many tools come at once, all of that is forgotten.
_CALLERS_KEPT, _CALLERS_WORDS, _FEW, _MANY = 64, 4_096, 256, 1_024
# Of the tools that have a word so many are looked at for one that a caller sees, then so many times as many.
_LOOKED_AT, _WIDER = 64, 8
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


class _VisibleWords(NamedTuple):
    """What was found of one caller's words: whether its tools have a term of a field, and the words near others.

    `terms`: all of a field's, of one who sees few tools.
    """

    occurring: dict[tuple[str, str], bool]
    near: dict[str, list[tuple[str, int]]]
    terms: dict[str, frozenset[str]]

    @property
    def full(self) -> bool:
        """Whether there is no room for more."""
        return max(len(self.occurring), len(self.near)) >= _CALLERS_WORDS


def _idf(frequency: int, documents: int) -> float:
    return math.log(1 + (documents - min(frequency, documents) + 0.5) / (frequency + 0.5))


def _fields(tool: Searchable, row: int) -> dict[str, Any]:
    return _document(tool.document(), tool.namespace, tool.name, row)


def _document(text: str, namespace: str, name: str, row: int) -> dict[str, Any]:
    names = " ".join(split_words(namespace) + split_words(name))
    return {"words": text, "stems": text, "names": names, "row": row}


class Bm25(Retriever):
    """Live lexical index. The engine's files lie in a private temporary folder for as long as the object lives."""

    name: ClassVar[str] = "bm25"
    options: Bm25Options

    def __init__(self, options: Bm25Options | None = None) -> None:
        """Start empty."""
        super().__init__(options or Bm25Options())
        self._open(RowIds())

    def _open(self, rows: RowIds, saved: Path | None = None) -> None:
        self._schema = _schema()
        self._analyzers = {"words": _analyzer(stem=False), "stems": _analyzer(stem=True)}
        self._files = WordFiles(self._schema, self._analyzers, saved)
        self._searcher = self._files.searcher
        self._vocabulary = Vocabulary()
        self._stemmed: dict[str, list[str]] = {}
        self._stems: dict[int, frozenset[str]] = {}
        self._dead: list[int] = []
        self._deleted_count = 0  # how many documents the engine was told to forget, and may count still
        self._known: Recent[Allowed, _VisibleWords] = Recent(_CALLERS_KEPT)
        self._rows = rows
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
                self.names.add(tool.id, tool.aliases)
            self._commit(tools, rows)
            self._forget_words([tool.id for tool in tools])

    def remove(self, ids: Sequence[str]) -> None:
        """Forget tools."""
        with self._lock:
            for tool_id in ids:
                self._forget(tool_id)
            if self._dead and (len(self._rows) < _LARGE or len(self._dead) > _DEAD_KEPT):
                self._commit()
            self._forget_words(ids)

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """Rank the tools that share a word with the request, or are named in it.

        The names and words that count are those of tools that the caller sees, whichever tools are ranked.
        """
        check_k(k)
        return [self._ranking(request, k, scope) for request in requests]

    def corrected(self, request: str, scope: Scope) -> str:
        """The request with its slips of the pen mended: plain words that no tool has, one letter off one that tools do.

        An encoder makes little of a misspelt word. Names begin with a capital and are left alone. Words of
        tools that the caller does not see count as words that nobody has.
        """
        if not self.options.fuzzy:
            return request
        return _PLAIN_WORD.sub(lambda match: self._corrected_word(match.group(), scope.sees), request)

    def _corrected_word(self, word: str, sees: Allowed | None) -> str:
        if len(word) < _CORRECTED_FROM or self._is_known(word, sees):
            return word
        near = self._near(word, sees)
        return near[0][0] if near and edits(word, near[0][0], 1) == 1 else word

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """The words of the request that stand in each tool's document, the rarest first.

        A word that none of the caller's tools has is as rare as one that no tool has.
        """
        terms: dict[str, _Term] = {}
        for word in split_words(ranking.request):
            for stem in self._stems_in(word):
                if stem not in terms:
                    terms[stem] = self._term(word, stem, ranking.scope.sees)
        rarest = sorted(terms.values(), key=lambda term: -term.weight)
        return [self._matched(tool_id, rarest) for tool_id in ids]

    def _term(self, word: str, stem: str, sees: Allowed | None) -> _Term:
        """A word of a request; one that no document has stands for the words it was corrected to."""
        stems = frozenset([stem])
        frequency = self._searcher.doc_freq("stems", stem) if self._occurs("stems", stem, sees) else 0
        if not frequency and self.options.fuzzy and correctable(stem):
            near = self._near(word.lower(), sees)
            frequency = max((count for _, count in near), default=0)
            stems = frozenset(s for term, _ in near for s in self._stems_in(term)) or stems
        return _Term(word, stems, _idf(frequency, len(self._rows)))

    def save(self, folder: Path) -> None:
        """Write the engine's files, which never change once written, and the rows."""
        with self._lock:
            if self._dead:
                self._commit()
            if self._deleted_count > _MOST_DEAD * len(self._rows) + _DEAD_KEPT:
                self._renew()
            write_model(folder, self, dead=self._deleted_count)
            self._files.save(folder / "words")
            save_rows(folder, self._rows, self.names)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved index where it lies; what is added later goes to a private folder."""
        loaded = cls.__new__(cls)
        model = read_model(folder)
        Retriever.__init__(loaded, read_options(Bm25Options, model))
        try:
            rows, loaded._names, _ = load_rows(folder)
            loaded._open(rows, folder / "words")
            loaded._deleted_count = int(model.get("dead", 0))
        except UNREADABLE as error:
            raise BadModel(f"the word index in {folder} cannot be read ({error}); build it again") from None
        return loaded

    def _commit(self, tools: Sequence[Searchable] = (), rows: Sequence[int] = ()) -> None:
        self._files.commit(lambda: map(_fields, tools, rows), len(tools), self._dead)
        self._searcher = self._files.searcher
        self._deleted_count += len(self._dead)
        self._dead = []  # only now: whoever counts them before taking the searcher asks for enough hits
        # Whether a word is known is asked of the index itself; the words of a large one to correct it to may be older.
        if len(self._rows) < _LARGE or time.monotonic() - self._vocabulary.since > _KNOWN_S:
            self._vocabulary = Vocabulary()

    def _renew(self) -> None:
        """Index the living documents anew, each in the row it has: whoever searches the old files goes on."""
        living = [(row, tool_id, self._text_of(row)) for row, tool_id in enumerate(self._rows.ids) if tool_id]
        files = WordFiles(self._schema, self._analyzers)
        files.commit(
            lambda: (_document(text, namespace_of(i), name_of(i), row) for row, i, text in living), len(living), ()
        )
        self._files, self._searcher, self._deleted_count = files, files.searcher, 0

    def _forget(self, tool_id: str) -> None:
        """From now on a row without an id, which no search returns; the engine forgets it with the next commit."""
        row = self._rows.remove(tool_id)
        if row is not None:
            self._dead.append(row)
            self.names.remove(tool_id)

    def _frequencies(self, field: str, terms: Sequence[str]) -> list[tuple[str, int]]:
        """Terms with the number of documents that hold them, rarest first."""
        counted = [(term, self._searcher.doc_freq(field, term)) for term in dict.fromkeys(terms)]
        return sorted(counted, key=lambda pair: (pair[1], pair[0]))

    def _query(self, request: str, named: Iterable[str], max_postings: int, sees: Allowed | None) -> Any | None:
        """The rarest words of the request, corrected where no document has them, and the tools it names."""
        text = f"{request} {' '.join(split_words(request))}"
        words = self._frequencies("words", self._analyzers["words"].analyze(text))
        stems = self._frequencies("stems", self._analyzers["stems"].analyze(text))
        parts = self._terms("words", words, self.options.words, max_postings)
        parts += self._terms("stems", stems, self.options.stems, max_postings)
        parts += self._terms("names", stems, self.options.names, max_postings)
        if self.options.fuzzy:
            for term, _ in words:
                if correctable(term) and not self._is_known(term, sees):
                    parts += self._terms("words", self._near(term, sees), self.options.words, max_postings)
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

    def _is_known(self, word: str, sees: Allowed | None) -> bool:
        """Whether a tool that a caller sees has the word, or one of the same stem."""
        if self._occurs("words", word, sees):
            return True
        return any(self._occurs("stems", stem, sees) for stem in self._stems_in(word))

    def _occurs(self, field: str, term: str, sees: Allowed | None) -> bool:
        """Whether a document that a caller sees has the term."""
        if sees is None or not self._searcher.doc_freq(field, term):
            return bool(self._searcher.doc_freq(field, term))
        known = self._words_seen_by(sees)
        found = known.occurring.get((field, term))
        if found is None:
            found = known.occurring[field, term] = self._is_seen(field, term, sees, known)
        return found

    def _is_seen(self, field: str, term: str, sees: Allowed, known: _VisibleWords) -> bool:
        rows = self._rows.allowed(sees)
        if len(rows) <= _FEW:
            if field not in known.terms:
                analyze = self._analyzers[field].analyze
                known.terms[field] = frozenset(one for row in rows.tolist() for one in analyze(self._text_of(row)))
            return term in known.terms[field]
        query, limit = tantivy.Query.term_query(self._schema, field, term), _LOOKED_AT
        while True:
            pairs = self._fetch(query, limit)
            if any(sees.permits(tool_id) for tool_id, _ in pairs):
                return True
            if len(pairs) < limit:
                return False
            limit *= _WIDER

    def _forget_words(self, ids: Sequence[str]) -> None:
        """These tools came or went: forget which words those callers know who see any of them."""
        self._known.drop(lambda sees: len(ids) > _MANY or any(map(sees.permits, ids)))

    def _words_seen_by(self, sees: Allowed) -> _VisibleWords:
        """What is known of a caller's words; asked for before any is searched, since a change puts another here."""
        known = self._known.get(sees)
        if known is None or known.full:
            self._known.keep(sees, known := _VisibleWords({}, {}, {}))
        return known

    def _stems_in(self, word: str) -> list[str]:
        """The stems of one word: one, or none where it tells nothing. Requests are made of the same words mostly."""
        stems = self._stemmed.get(word)
        if stems is None:
            if len(self._stemmed) >= _WORDS_KEPT:
                self._stemmed = {}
            stems = self._stemmed[word] = self._analyzers["stems"].analyze(word)
        return stems

    def _near(self, term: str, sees: Allowed | None) -> list[tuple[str, int]]:
        """The words closest to one that no document has, with their frequencies; of documents that a caller sees."""
        known = None if sees is None else self._words_seen_by(sees)
        found = known.near.get(term) if known else None
        if found is None:
            found = self._vocabulary.near(
                term,
                lambda prefix: self._searcher.terms_with_prefix("words", prefix),
                lambda word: sees is None or known is None or self._is_seen("words", word, sees, known),
            )
            if known:
                known.near[term] = found
        return found

    def _ranking(self, request: str, k: int, scope: Scope) -> Ranking:
        named = self.names.find(request, scope.sees)
        if named and self.names.is_name(request, scope.sees):
            pairs = self._look_up(request, named, k, scope.allowed, scope.sees)
        else:
            pairs = self._found(self._query(request, named, self.options.max_postings, scope.sees), k, scope.allowed)
        return Ranking(request, scope, pairs, named=named)

    def _look_up(
        self, request: str, named: Iterable[str], k: int, allowed: Allowed | None, sees: Allowed | None
    ) -> Pairs:
        """A bare name: the tools called so, by id, then what shares its rarest words. Quick whatever the size."""
        here = [tool_id for tool_id in named if tool_id in self._rows]  # none that was removed just now
        called = sorted(tool_id for tool_id in here if allowed is None or allowed.permits(tool_id))
        others = self._found(self._query(request, (), _LOOK_UP_POSTINGS, sees), k + len(called), allowed)
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

    def _matched(self, tool_id: str, terms: Sequence[_Term]) -> tuple[Reason, ...]:
        row = self._rows.row(tool_id)
        if row is None or not terms:
            return ()
        here = self._stems.get(row) or self._stems_of(row)
        matched = [term for term in terms if term.stems & here]
        if not matched:
            return ()
        share = sum(term.weight for term in matched) / sum(term.weight for term in terms)
        return (MatchedWords(tuple(term.word for term in matched)[:_WORDS_EXPLAINED], round(share, 4)),)

    def _stems_of(self, row: int) -> frozenset[str]:
        """The stems of a row's document, which never changes; those of rows that were shown lately are kept."""
        stems = frozenset(self._analyzers["stems"].analyze(self._text_of(row)))
        if not stems:
            return stems
        if len(self._stems) >= _STEMS_KEPT:
            self._stems = {}
        self._stems[row] = stems
        return stems

    def _text_of(self, row: int) -> str:
        """The document of a row; nothing where it has gone."""
        searcher = self._searcher
        found = searcher.search(tantivy.Query.term_query(self._schema, "row", row), 1, count=False).hits
        return str(searcher.doc(found[0][1])["words"][0]) if found else ""
