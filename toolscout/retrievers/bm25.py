"""bm25: ranks by the words that a request and a tool's document share (Tantivy, k1 1.2, b 0.75).

Words in other scripts than Latin have an index of their own (index/script_words.py), so that how they are analysed
changes nothing for all others: neither the words of a document nor how long documents are.
"""

from __future__ import annotations

import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import tantivy

from toolscout.core.answer import Allowed, MatchedWords, Reason
from toolscout.core.model_files import UNREADABLE
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Listing, Searchable, name_of, namespace_of, request_words
from toolscout.errors import BadModel
from toolscout.index.builders import builders
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.index.recent import Recent
from toolscout.index.row_ids import RowIds
from toolscout.index.saved_rows import FrozenRows, load_rows
from toolscout.index.script_words import composed, has_other_scripts, latin_text, other_words
from toolscout.index.spelling import FUNCTION_WORDS, Vocabulary, correctable, edits
from toolscout.index.word_files import Fields, Shard, WordFiles
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import Options, Pairs, Ranking, Retriever, Vectors, check_k
from toolscout.retrievers.model_folder import read_model, read_options, write_model

_LONGEST_WORD = 40
# Beyond this many hits, asking the engine to filter is cheaper than filtering what it returns.
_MOST_FETCHED = 5_000
_WORDS_EXPLAINED = 6
_LOOK_UP_POSTINGS = 20_000
_CORRECTED_FROM = 5
# From _LARGE tools on, the vocabulary for corrections is reused for _KNOWN_S seconds, and up to _DEAD_KEPT removed rows
# wait for the next add: each commit costs as much as a search.
_LARGE, _KNOWN_S, _DEAD_KEPT = 10_000, 60.0, 64
# The engine counts removed documents in word frequencies until it merges them away. Above this share of them, an index
# is rebuilt before it is saved.
_MOST_DEAD = 0.1
# Fewer documents are not worth a shard of their own.
_LEAST_SHARD = 5_000
_STEMS_KEPT, _WORDS_KEPT = 2_048, 20_000
# Words, and queries for them, that are looked up in a commit before all are forgotten.
_COUNTED, _QUERIES = 8_192, 16_384
_FUNCTION_WORDS, _ASCII_TOKEN = frozenset(FUNCTION_WORDS), re.compile("[a-z0-9]+")
# Whether a caller's tools have a word is cached for _CALLERS_KEPT callers and _CALLERS_WORDS words each; for a caller
# with at most _FEW tools, all their words are. A change of more than _MANY tools empties the cache.
_CALLERS_KEPT, _CALLERS_WORDS, _FEW, _MANY = 64, 4_096, 256, 1_024
# How many tools with a word are searched for one that the caller sees, and by which factor that grows.
_LOOKED_AT, _WIDER = 64, 8
# The endings of one language are removed, or of one for each script that a stemmer was measured to help.
_STEMMED, _OTHER_STEMMED = ("english",), ("russian", "arabic")
_SCRIPTS_FOLDER, _ANALYSIS_VERSION = "scripts", 2  # folders of version 1 have no words in other scripts
# Tools of either index that are looked at where a request has words for both.
_BOTH_FETCHED = 50
_PLAIN_WORD = re.compile(r"(?<![\w.@/:-])[a-z]+(?![\w@/-]|\.\w)")


@dataclass(frozen=True, slots=True)
class Bm25Options(Options):
    """Weights of the ways a word can match, and a limit on the work for one request.

    words: the weight of words as written.
    stems: the weight of words with the same stem.
    names: the weight of words in the tool's name.
    expansions: the weight of words in what others wrote about the tool, where anybody did.
    max_postings: only the rarest terms are searched, until their postings add up to this number.
    fuzzy: correct words that no document has.
    """

    words: float = 1.0
    stems: float = 1.0
    names: float = 0.5
    expansions: float = 0.5
    max_postings: int = 400_000
    fuzzy: bool = True


def _analyzer(stemmed: Sequence[str] = ()) -> Any:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    steps = [tantivy.Filter.remove_long(_LONGEST_WORD), tantivy.Filter.lowercase(), tantivy.Filter.ascii_fold()]
    steps.append(tantivy.Filter.custom_stopword(FUNCTION_WORDS))
    for step in [*steps, *map(tantivy.Filter.stemmer, stemmed)]:
        builder = builder.filter(step)
    return builder.build()


def _schema(expanded: bool = False) -> Any:
    """The fields of a document. That of expansions stands last: without it the others are the same."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("words", stored=True, tokenizer_name="words", index_option="freq")
    builder.add_text_field("stems", tokenizer_name="stems", index_option="freq")
    builder.add_text_field("names", tokenizer_name="stems", index_option="freq")
    builder.add_unsigned_field("row", indexed=True, fast=True)
    if expanded:
        builder.add_text_field("expansion", stored=True, tokenizer_name="stems", index_option="freq")
    return builder.build()


class _Term(NamedTuple):
    """A word of a request as written, the stems that match it, and its weight (idf)."""

    word: str
    stems: frozenset[str]
    weight: float


class _Committed:
    """The last commit as searches see it: the engine's searcher, and what was looked up in it.

    Requests repeat the same words, and asking the engine about one takes several times as long as a dictionary.
    `terms`: terms of a request for a caller who sees all tools, by word and number of documents. `corrections`: the
    words that such a caller's word is corrected to.
    """

    def __init__(self, searcher: Any, schema: Any) -> None:
        """Begin with nothing looked up."""
        self.searcher, self._schema = searcher, schema
        self.forget_corrections()
        self._counts: dict[str, dict[str, int]] = {}
        self._queries: dict[tuple[str, str, float], Any] = {}

    def forget_corrections(self) -> None:
        """Forget what depends on the words that others are corrected to."""
        self.terms: dict[tuple[str, int], tuple[tuple[str, _Term], ...]] = {}
        self.corrections: dict[str, list[tuple[int, str]]] = {}

    def frequencies(self, field: str, terms: Iterable[str]) -> list[tuple[int, str]]:
        """The number of documents that hold each term."""
        known = self._known(field)
        return [(self._count(field, term) if (count := known.get(term)) is None else count, term) for term in terms]

    def frequency(self, field: str, term: str) -> int:
        """The number of documents that hold a term."""
        count = self._known(field).get(term)
        return self._count(field, term) if count is None else count

    def query(self, field: str, term: str, boost: float) -> Any | None:
        """The query for a term, its score multiplied by `boost`; None where no document has it."""
        queries = self._queries
        try:
            return queries[field, term, boost]
        except KeyError:
            query = None
            if self.frequency(field, term):
                query = tantivy.Query.term_query(self._schema, field, term, "freq")
                query = query if boost == 1.0 else tantivy.Query.boost_query(query, boost)
            if len(queries) >= _QUERIES:
                queries.clear()
            queries[field, term, boost] = query
            return query

    def _known(self, field: str) -> dict[str, int]:
        return self._counts.get(field) or self._counts.setdefault(field, {})

    def _count(self, field: str, term: str) -> int:
        known, count = self._known(field), int(self.searcher.doc_freq(field, term))
        if len(known) >= _COUNTED:
            known.clear()
        known[term] = count
        return count


class _VisibleWords(NamedTuple):
    """A cache for one caller: whether its tools have a term in a field, and corrections of words.

    `terms`: all terms of a field, for a caller who sees few tools.
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


class Bm25(Retriever):
    """A word index that changes at any time. The engine's files are in a temporary folder that goes with the object."""

    name: ClassVar[str] = "bm25"
    options: Bm25Options
    _stemmed_languages: ClassVar[Sequence[str]] = _STEMMED

    def __init__(self, options: Bm25Options | None = None) -> None:
        """Start empty."""
        super().__init__(options or Bm25Options())
        self._open(RowIds())

    def _open(self, rows: RowIds, saved: Path | None = None, expanded: bool = False) -> None:
        self._schema = _schema(expanded)
        self._expanded = expanded  # whether there is a field for expansions: from the first tool with one on
        self._analyzers = self.analyzers()
        self._files = WordFiles(self._schema, self._analyzers, saved)
        self._committed = _Committed(self._files.searcher, self._schema)
        self._vocabulary = Vocabulary()
        self._stemmed: dict[str, list[str]] = {}
        self._stems: dict[int, frozenset[str]] = {}
        self._dead: list[int] = []
        self._deleted_count = 0  # removed documents that the engine may still count in word frequencies
        self._known: Recent[Allowed, _VisibleWords] = Recent(_CALLERS_KEPT)
        self._rows = rows
        self._scripts: _OtherScripts | None = None  # made with the first tool that has words in another script
        self._lock = threading.Lock()

    @classmethod
    def analyzers(cls) -> dict[str, Any]:
        """The engine's analyzers of the fields, by name."""
        return {"words": _analyzer(), "stems": _analyzer(cls._stemmed_languages)}

    def __len__(self) -> int:
        """How many tools can be searched."""
        return len(self._rows)

    def ids(self) -> list[str]:
        """The ids of all tools."""
        return [tool_id for tool_id in self._rows.ids if tool_id]

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Add documents to the index; vectors are ignored."""
        with self._lock:
            if not self._expanded and any(tool.expansion for tool in tools):
                self._begin_expansions()
            rows = []
            for tool in tools:
                self._forget(tool.id)
                rows.append(self._rows.add(tool.id))
                self.names.add(tool.id, tool.aliases)
            other: dict[str, Searchable] = {}
            self._commit(lambda: (self._fields(tool, row, other) for tool, row in zip(tools, rows, strict=True)), rows)
            ids = [tool.id for tool in tools]
            self._forget_words(ids)
            self._change_scripts(ids, list(other.values()))

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools."""
        with self._lock:
            for tool_id in ids:
                self._forget(tool_id)
            if self._dead and (len(self._rows) < _LARGE or len(self._dead) > _DEAD_KEPT):
                self._commit()
            self._forget_words(ids)
            self._change_scripts(ids)

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """Rank the tools that share a word with the request, or are named in it.

        Names and words count only if a tool that the caller sees has them, whichever tools are ranked.
        """
        check_k(k)
        return [self._ranking(request, k, scope) for request in requests]

    @property
    def ranks_together(self) -> bool:
        """Always true: it is quick, and no slower."""
        return True

    def corrected(self, request: str, scope: Scope) -> str:
        """The request with misspelt words corrected, for an encoder: lower-case words that no tool has, one edit off.

        Only words of tools that the caller sees count. Words with a capital may be names and are left alone.
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
        """The words of the request that each tool's document has, the rarest first.

        A word that only tools hidden from the caller have counts as one that no tool has.
        """
        request, scripts = composed(ranking.request), self._scripts_of(ranking.request)
        terms = self._request_terms(latin_text(request) if scripts else request, ranking.scope.sees)
        terms += scripts._request_terms(request, ranking.scope.sees) if scripts else []
        if not terms:
            return [()] * len(ids)
        rarest = sorted(terms, key=lambda term: -term.weight)
        found = self._stems_of(ids)
        if scripts:
            found = [own | other for own, other in zip(found, scripts._stems_of(ids), strict=True)]
        total = sum(term.weight for term in rarest)
        return [_matched(stems, rarest, total) for stems in found]

    def _request_terms(self, request: str, sees: Allowed | None) -> list[_Term]:
        """The words of a request, one for each stem."""
        terms: dict[str, _Term] = {}
        documents, known = self._counted_documents(), self._committed.terms if sees is None else {}
        for word in dict.fromkeys(self._split(request)):
            found = known.get((word, documents))
            if found is None:
                found = tuple((stem, self._term(word, stem, documents, sees)) for stem in self._stems_in(word))
                if len(known) >= _COUNTED:
                    known.clear()
                known[word, documents] = found
            for stem, term in found:
                terms.setdefault(stem, term)
        return list(terms.values())

    def _term(self, word: str, stem: str, documents: int, sees: Allowed | None) -> _Term:
        """A word of a request with its weight; one that no document has matches the words it is corrected to."""
        stems = frozenset([stem])
        frequency = self._committed.frequency("stems", stem) if self._occurs("stems", stem, sees) else 0
        if not frequency and self.options.fuzzy and correctable(stem) and not self._in_expansions(stem, sees):
            near = self._near(word.lower(), sees)
            frequency = max((count for _, count in near), default=0)
            stems = frozenset(s for term, _ in near for s in self._stems_in(term)) or stems
        return _Term(word, stems, _idf(frequency, documents))

    def settle(self) -> None:
        """Index the documents again if removed ones may still count in word frequencies."""
        with self._lock:
            if self._dead:
                self._commit()
            if self._deleted_count:
                self._renew()
        if self._scripts is not None:
            self._scripts.settle()

    def save(self, folder: Path) -> None:
        """Write the engine's files, which never change once written, and the rows."""
        self.begin_save(folder)()

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Link the engine's files and take the rows as they are now; what is returned writes the rows."""
        with self._lock:
            if self._dead:
                self._commit()
            if self._deleted_count > _MOST_DEAD * len(self._rows) + _DEAD_KEPT:
                self._renew()
            more: dict[str, Any] = {"expanded": True} if self._expanded else {}
            write_model(folder, self, dead=self._deleted_count, analysis=_ANALYSIS_VERSION, **more)
            self._files.save(folder / "words")
            if self._scripts is None:
                shutil.rmtree(folder / _SCRIPTS_FOLDER, ignore_errors=True)
                finish_scripts = None
            else:
                finish_scripts = self._scripts.begin_save(folder / _SCRIPTS_FOLDER)
            rows = FrozenRows(self._rows, self.names)

        def finish() -> None:
            if finish_scripts is not None:
                finish_scripts()
            rows.save(folder)

        return finish

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved index in place; what is added later goes to a temporary folder."""
        loaded = cls.__new__(cls)
        model = read_model(folder)
        Retriever.__init__(loaded, read_options(Bm25Options, model))
        try:
            rows, loaded._names, _ = load_rows(folder)
            loaded._open(rows, folder / "words", bool(model.get("expanded")))
            loaded._deleted_count = int(model.get("dead", 0))
            if (folder / _SCRIPTS_FOLDER).is_dir():
                loaded._scripts = _OtherScripts.load(folder / _SCRIPTS_FOLDER)
                loaded._scripts.total = len(rows)
            elif int(model.get("analysis", 1)) < _ANALYSIS_VERSION:
                loaded._find_scripts()
        except UNREADABLE as error:
            raise BadModel(f"the word index in {folder} cannot be read ({error}); build it again") from None
        return loaded

    # Words in other scripts than Latin.

    def _change_scripts(self, ids: Sequence[str], tools: Sequence[Searchable] = ()) -> None:
        """Remove tools from the index of other scripts and add others, which have words in one."""
        if self._scripts is None and tools:
            self._scripts = _OtherScripts(self.options)
        if self._scripts is not None:
            self._scripts.remove(ids)
            if tools:  # else a commit of nothing, which costs as much as a search
                self._scripts.add(tools)
            self._scripts.total = len(self._rows)

    def _find_scripts(self) -> None:
        """Index the words in other scripts of an index that was saved without them."""
        self.outdated = True
        if not any(has_other_scripts(word) for word, _ in self._committed.searcher.terms_with_prefix("words", "")):
            return
        living = ((tool_id, self._text_of(row)) for row, tool_id in enumerate(self._rows.ids) if tool_id)
        tools = [Listing(i, namespace_of(i), name_of(i), (), text, "") for i, text in living if has_other_scripts(text)]
        self._change_scripts((), tools)

    def _scripts_of(self, request: str) -> _OtherScripts | None:
        """The index of other scripts if the request, and a tool, has words in one."""
        return self._scripts if self._scripts and has_other_scripts(request) else None

    # Overridden by the index of other scripts.

    def _text(self, document: str) -> str:
        """The text of a document that is indexed."""
        return composed(document)

    def _split(self, text: str) -> Sequence[str]:
        """The words of a request or a name, split as identifiers are."""
        return request_words(text)

    def _counted_documents(self) -> int:
        """The number of documents that the rarity of words is judged by."""
        return len(self._rows)

    def _rarity(self, frequency: int) -> float:
        """By how much a word that so many documents have is rarer than the engine thinks."""
        return 1.0

    def _fields(self, tool: Searchable, row: int, other: dict[str, Searchable]) -> dict[str, Any]:
        """A tool as the engine takes it; one with words in other scripts is put into `other`."""
        document = tool.document()
        if has_other_scripts(document) or has_other_scripts(tool.expansion):
            other[tool.id] = tool
        return self._document(self._text(document), tool.namespace, tool.name, row, self._text(tool.expansion))

    def _document(self, text: str, namespace: str, name: str, row: int, expansion: str = "") -> dict[str, Any]:
        names = " ".join([*self._split(composed(namespace)), *self._split(composed(name))])
        fields = {"words": text, "stems": text, "names": names, "row": row}
        return fields | {"expansion": expansion} if expansion else fields

    def _commit(self, documents: Callable[[], Iterable[dict[str, Any]]] = tuple, rows: Sequence[int] = ()) -> None:
        elsewhere = builders()
        if elsewhere is not None and len(rows) >= 2 * _LEAST_SHARD:
            fields, kind = list(documents()), type(self)
            begun = [
                elsewhere.executor.submit(_shard, kind, self._expanded, documents=fields[some.start : some.stop])
                for some in elsewhere.shards(len(rows), _LEAST_SHARD)
            ]
            for shard in begun:
                self._files.add_shard(shard.result())
            self._files.commit(tuple, 0, self._dead)  # which has the engine merge small segments
        else:
            self._files.commit(documents, len(rows), self._dead)
        self._committed = _Committed(self._files.searcher, self._schema)
        self._deleted_count += len(self._dead)
        self._dead = []  # last: until then, searches ask for enough extra hits
        # The index itself tells whether a word is known; only the vocabulary for corrections may be out of date.
        if len(self._rows) < _LARGE or time.monotonic() - self._vocabulary.since > _KNOWN_S:
            self._vocabulary = Vocabulary()
            self._committed.forget_corrections()  # a search that ran meanwhile may have used the one before

    def _renew(self) -> None:
        """Index the live documents again in the same rows, in new files; searches in the old files can finish."""
        alive = [(row, tool_id) for row, tool_id in enumerate(self._rows.ids) if tool_id]
        living = [(self._text_of(row), namespace_of(i), name_of(i), row, self._expansion_of(row)) for row, i in alive]
        files = WordFiles(self._schema, self._analyzers)
        files.commit(lambda: (self._document(*one) for one in living), len(living), ())
        self._files, self._committed, self._deleted_count = files, _Committed(files.searcher, self._schema), 0

    def _begin_expansions(self) -> None:
        """Make room for expansions: index the documents again with a field for them."""
        self._schema = _schema(expanded=True)
        self._renew()
        self._expanded = True  # last: until then, searches ask for no expansions

    def _forget(self, tool_id: str) -> None:
        """Take the id from a tool's row, so that no search returns it; the next commit deletes it from the engine."""
        row = self._rows.remove(tool_id)
        if row is not None:
            self._dead.append(row)
            self.names.remove(tool_id)

    def _words_of(self, request: str) -> tuple[Iterable[str], Iterable[str]]:
        """The words and the stems that are searched for a request, each once; words in its identifiers are among them.

        The analyzers would find the same in any text. In one that is all ASCII most words are looked up instead.
        """
        text, split = self._text(request), self._split(request)
        if text.isascii():
            found = dict.fromkeys([*_ASCII_TOKEN.findall(text.lower()), *map(str.lower, split)])
            words = [word for word in found if len(word) < _LONGEST_WORD and word not in _FUNCTION_WORDS]
            return words, dict.fromkeys(chain.from_iterable(map(self._stems_in, words)))
        text = f"{text} {' '.join(split)}"
        analysed = [dict.fromkeys(self._analyzers[field].analyze(text)) for field in ("words", "stems")]
        return analysed[0], analysed[1]

    def _query(self, request: str, named: Iterable[str], max_postings: int, sees: Allowed | None) -> Any | None:
        """The rarest words of the request, corrected where no document has them, and the tools it names."""
        committed, (found, stemmed) = self._committed, self._words_of(request)
        words, stems = sorted(committed.frequencies("words", found)), sorted(committed.frequencies("stems", stemmed))
        parts = self._terms("words", words, self.options.words, max_postings)
        parts += self._terms("stems", stems, self.options.stems, max_postings)
        parts += self._terms("names", stems, self.options.names, max_postings)
        parts += self._expansion_terms(stems, max_postings)
        if self.options.fuzzy:
            for count, term in words:
                if (not count or sees is not None) and (near := self._corrections(term, sees)):
                    parts += self._terms("words", near, self.options.words, max_postings)
        known = (self._rows.row(tool_id) for tool_id in named)
        for row in (row for row in known if row is not None):  # a tool that was just removed has none
            called = tantivy.Query.term_query(self._schema, "row", row)
            parts.append(tantivy.Query.const_score_query(called, EXACT_BONUS))
        if not parts:
            return None
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, part) for part in parts])

    def _terms(self, field: str, counted: Sequence[tuple[int, str]], weight: float, max_postings: int) -> list[Any]:
        """The queries for terms, given rarest first, of which the first and all within `max_postings` are searched."""
        if not weight:
            return []
        committed, parts = self._committed, list[Any]()
        postings = 0
        for frequency, term in counted:
            if postings and postings + frequency > max_postings:
                break
            postings += frequency
            if frequency:
                query = committed.query(field, term, weight * self._rarity(frequency))
                if query is not None:  # a stem of documents need not be one of names
                    parts.append(query)
        return parts

    def _corrections(self, term: str, sees: Allowed | None) -> list[tuple[int, str]]:
        """The words that a word which no tool has is corrected to, with the number of documents; else none."""
        known = self._committed.corrections if sees is None else {}
        found = known.get(term)
        if found is None:
            found = []
            if correctable(term) and not self._is_known(term, sees):
                found = [(count, word) for word, count in self._near(term, sees)]
            if len(known) >= _COUNTED:
                known.clear()
            known[term] = found
        return found

    def _expansion_terms(self, stems: Sequence[tuple[int, str]], max_postings: int) -> list[Any]:
        """The words of a request that expansions have. A word is as rare as it is in documents or expansions.

        Otherwise each word would count as rare where few tools have an expansion, and put these before the others.
        """
        if not self._expanded or not self.options.expansions:
            return []
        total, parts = max(self._counted_documents(), 1), list[Any]()
        own = {term: frequency for frequency, term in stems}
        for frequency, term in sorted(self._committed.frequencies("expansion", own)):
            rarity = _idf(max(frequency, own[term]), total) / _idf(frequency, total)
            parts += self._terms("expansion", [(frequency, term)], self.options.expansions * rarity, max_postings)
        return parts

    def _in_expansions(self, stem: str, sees: Allowed | None) -> bool:
        """Whether an expansion of a tool that a caller sees has the stem."""
        return self._expanded and self._occurs("expansion", stem, sees)

    def _is_known(self, word: str, sees: Allowed | None) -> bool:
        """Whether a tool that a caller sees, or its expansion, has the word, or one of the same stem."""
        if self._occurs("words", word, sees):
            return True
        stems = self._stems_in(word)
        return any(self._occurs("stems", stem, sees) or self._in_expansions(stem, sees) for stem in stems)

    def _occurs(self, field: str, term: str, sees: Allowed | None) -> bool:
        """Whether a document that a caller sees has the term."""
        if not self._committed.frequency(field, term):
            return False
        if sees is None:
            return True
        known = self._words_seen_by(sees)
        found = known.occurring.get((field, term))
        if found is None:
            found = known.occurring[field, term] = self._is_seen(field, term, sees, known)
        return found

    def _is_seen(self, field: str, term: str, sees: Allowed, known: _VisibleWords) -> bool:
        rows = self._rows.allowed(sees)
        if len(rows) <= _FEW:
            if field not in known.terms:
                expanded = field == "expansion"
                analyze, read = self._analyzers["stems" if expanded else field].analyze, self._text_of
                read = self._expansion_of if expanded else read
                known.terms[field] = frozenset(one for row in rows.tolist() for one in analyze(read(row)))
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
        """Drop the cached words of all callers who see any of these tools, which were added or removed."""
        self._known.drop(lambda sees: len(ids) > _MANY or any(map(sees.permits, ids)))

    def _words_seen_by(self, sees: Allowed) -> _VisibleWords:
        """The cache of a caller's words. Take it before searching: a change of tools replaces it."""
        known = self._known.get(sees)
        if known is None or known.full:
            self._known.keep(sees, known := _VisibleWords({}, {}, {}))
        return known

    def _stems_in(self, word: str) -> list[str]:
        """The stem of a word in a list, empty for function words; cached, since requests repeat the same words."""
        stems = self._stemmed.get(word)
        if stems is None:
            if len(self._stemmed) >= _WORDS_KEPT:
                self._stemmed = {}
            stems = self._stemmed[word] = self._analyzers["stems"].analyze(word)
        return stems

    def _near(self, term: str, sees: Allowed | None) -> list[tuple[str, int]]:
        """The words closest to one that no document has, with frequencies; only words that the caller's tools have."""
        known = None if sees is None else self._words_seen_by(sees)
        found = known.near.get(term) if known else None
        if found is None:
            found = self._vocabulary.near(
                term,
                lambda prefix: self._committed.searcher.terms_with_prefix("words", prefix),
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
            pairs = self._search(request, named, k, self.options.max_postings, scope.allowed, scope.sees)
        return Ranking(request, scope, pairs, named=named)

    def _look_up(
        self, request: str, named: Iterable[str], k: int, allowed: Allowed | None, sees: Allowed | None
    ) -> Pairs:
        """For a request that is only a name: the tools of that name by id, then tools that share its rarest words."""
        here = [tool_id for tool_id in named if tool_id in self._rows]  # without tools that were just removed
        called = sorted(tool_id for tool_id in here if allowed is None or allowed.permits(tool_id))
        others = self._search(request, (), k + len(called), _LOOK_UP_POSTINGS, allowed, sees)
        exact = set(called)
        return [*((i, EXACT_BONUS) for i in called), *(pair for pair in others if pair[0] not in exact)][:k]

    def _search(
        self,
        request: str,
        named: Iterable[str],
        k: int,
        max_postings: int,
        allowed: Allowed | None,
        sees: Allowed | None,
    ) -> Pairs:
        """The tools that share words with the request, those in other scripts included, or are named in it."""
        request, scripts = composed(request), self._scripts_of(request)
        query = self._query(latin_text(request) if scripts else request, named, max_postings, sees)
        other = scripts._query(request, (), max_postings, sees) if scripts else None
        if scripts is None or other is None:
            return self._found(query, k, allowed)
        if query is None:
            return scripts._found(other, k, allowed)
        first = self._found(query, k + _BOTH_FETCHED, allowed) + scripts._found(other, k + _BOTH_FETCHED, allowed)
        ids = Allowed.of(ids=(tool_id for tool_id, _ in first))
        scores: dict[str, float] = {}
        for tool_id, score in self._found(query, len(first), ids) + scripts._found(other, len(first), ids):
            scores[tool_id] = scores.get(tool_id, 0.0) + score
        return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]

    def _found(self, query: Any | None, k: int, allowed: Allowed | None) -> Pairs:
        if query is None or not len(self._rows):
            return []
        pairs = self._fetch(query, k) if allowed is None else self._fetch_allowed(query, k, allowed)
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]

    def _fetch(self, query: Any, k: int) -> Pairs:
        """At least the k best, with every tie of the last one, so that ties can break by id."""
        sought = k + len(self._dead)
        limit, searcher = sought + 16, self._committed.searcher  # keep this one: a commit replaces the attribute
        while True:
            hits = searcher.search(query, limit, count=False).hits
            if len(hits) < limit or hits[-1][0] < hits[sought - 1][0]:
                rows = searcher.fast_field_values("row", [address for _, address in hits])
                ids = self._rows.ids.some([int(row or 0) for row in rows])
                # A tool that was removed has no id.
                return [(tool_id, score) for tool_id, (score, _) in zip(ids, hits, strict=True) if tool_id]
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

    def _stems_of(self, ids: Sequence[str]) -> list[frozenset[str]]:
        """The stems of the documents of some tools, cached by row: the document of a row never changes."""
        rows = [self._rows.row(tool_id) for tool_id in ids]
        found = {row: self._stems.get(row) for row in rows if row is not None}
        texts = self._stored([row for row, stems in found.items() if stems is None], "words")
        made = {row: frozenset(self._analyzers["stems"].analyze(text)) for row, text in texts.items() if text}
        if len(self._stems) + len(made) > _STEMS_KEPT:
            self._stems = {}
        self._stems.update(made)
        return [frozenset() if row is None else made.get(row) or found[row] or frozenset() for row in rows]

    def _text_of(self, row: int) -> str:
        """The document in a row; "" if it was removed."""
        return self._stored([row], "words").get(row, "")

    def _expansion_of(self, row: int) -> str:
        """The expansion of the tool in a row; "" without one."""
        return self._stored([row], "expansion").get(row, "") if self._expanded else ""

    def _stored(self, rows: Sequence[int], field: str) -> dict[int, str]:
        """What is stored in a field of some rows, read in one search; rows that were removed are left out."""
        if not rows:
            return {}
        searcher = self._committed.searcher
        each = [(tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "row", row)) for row in rows]
        places = [place for _, place in searcher.search(tantivy.Query.boolean_query(each), len(rows), count=False).hits]
        found = zip(searcher.fast_field_values("row", places), places, strict=True)
        values = ((int(row or 0), searcher.doc(place)[field]) for row, place in found)
        return {row: str(value[0]) for row, value in values if value}


def _shard(kind: type[Bm25], expanded: bool, documents: Sequence[Fields]) -> Shard:
    """Index documents by themselves, for an index of this kind; runs where shards are built."""
    files = WordFiles(_schema(expanded), kind.analyzers())
    files.commit(lambda: documents, len(documents), ())
    return files.shard()


def _matched(stems: frozenset[str], terms: Sequence[_Term], total: float) -> tuple[Reason, ...]:
    """The words of a request that a document with these stems has, and their share of the request's weight `total`."""
    lacks = stems.isdisjoint
    matched = [term for term in terms if not lacks(term.stems)]
    if not matched:
        return ()
    share = sum(term.weight for term in matched) / total
    return (MatchedWords(tuple(term.word for term in matched[:_WORDS_EXPLAINED]), round(share, 4)),)


class _OtherScripts(Bm25):
    """The words in other scripts than Latin of the tools that have any. `total`: how many tools there are in all."""

    _stemmed_languages = _OTHER_STEMMED
    total = 0

    def _text(self, document: str) -> str:
        return " ".join(other_words(document))

    def _split(self, text: str) -> list[str]:
        return other_words(text)

    def _counted_documents(self) -> int:
        return max(self.total, len(self._rows))

    def _rarity(self, frequency: int) -> float:
        return _idf(frequency, self._counted_documents()) / _idf(frequency, len(self._rows))

    def _change_scripts(self, ids: Sequence[str], tools: Sequence[Searchable] = ()) -> None:
        """Do nothing: this is the index of other scripts."""

    def _scripts_of(self, request: str) -> None:
        return None
