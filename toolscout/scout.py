"""Scout, the main class for users: it stores tools and finds the right ones for a request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Self, TypedDict, TypeVar

import numpy as np

from toolscout import catalogue
from toolscout.catalogue.base import ReadOptions
from toolscout.catalogue.poisoning import Finding, watched
from toolscout.core import tracing, vendor_formats
from toolscout.core.answer import Allowed, Answer, Example, Level
from toolscout.core.expansion import Expansion, read_expansions
from toolscout.core.garbage import collector_paused
from toolscout.core.scope import Endpoints, Scope
from toolscout.core.tool import Tool, clean_text
from toolscout.errors import (
    BadModel,
    BadRequest,
    EncoderUnavailable,
    MissingEncoder,
    ReadOnlyStore,
    StoreError,
    StoreUnavailable,
    UnknownTool,
)
from toolscout.index.vector_table import BYTES_PER_NUMBER
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.expanded import encode_documents
from toolscout.models.encoders.opening import EncoderName
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.registry import available, load_model, method
from toolscout.search import encoder_fit, index_snapshot
from toolscout.search.async_calls import Workers
from toolscout.search.catalogue_fit import Count as Count
from toolscout.search.catalogue_fit import FitOptions, SearchResult, catalogue_fit_of, find
from toolscout.search.embedding_claims import CLAIMED_AT_ONCE, EmbeddingClaims
from toolscout.search.encoder_choice import EncoderChoice, choose, previous, same_documents
from toolscout.search.live_index import LiveIndex, StoreIndex
from toolscout.search.progress import Encoded, batches, counted, reported
from toolscout.search.progress import Progress as Progress
from toolscout.search.search_span import search_span
from toolscout.search.tool_need import NeedOptions
from toolscout.search.verdict import (
    DEFAULT_LEVEL,
    Judgement,
    checked_level,
    evidence_of,
    judge,
    thresholds_verdict,
)
from toolscout.stores import open_store
from toolscout.stores.base import AddReport, ExpansionReport, Store, UsedEncoder

DEFAULT_RETRIEVER = "hybrid"
MAX_REQUEST_CHARS = 20_000
# Threads that serve coroutines. More of them keep the event loop from running; adds must not keep searches waiting.
_SEARCHING, _CHANGING = 4, 2
# Seconds before an endpoint that failed is asked again to embed in the background; doubled each time.
_RETRY_S, _LONGEST_RETRY_S = 5.0, 300.0
# How often a server looks for changes of others, how long it rests after applying some, and how often it looks whether
# its index should be saved.
_LOOKED_EVERY_S, _REST_S, _SAVED_EVERY_S = 0.03, 0.2, 60.0
# How long nothing has changed when an index is settled.
_QUIET_S = 1.0
_MANY = 1_000
_log = logging.getLogger(__name__)
Expansions = str | Path | Mapping[str, Expansion]
"""A file of expansions, or expansions by tool id."""
# Vectors of another encoder that are copied at a time.
_COPIED = 4096

DocumentEncoding = Callable[[TextEncoder, Sequence[str]], Iterator[Encoded]]
"""Makes vectors of documents with an encoder, as models.encoders.expanded.encode_documents does."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Added:
    """What an add did: counts and version, how many texts were embedded, and what could not be imported.

    embedding_problem: why embedding stopped; the tools are stored, and found by words until they are embedded.
    expansions: what became of the expansions given, None where none were. findings: what looks like poison in them.
    """

    report: AddReport
    embedded: int
    problems: tuple[str, ...]
    embedding_problem: str = ""
    expansions: ExpansionReport | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """One of several searches that are made together; the fields are the arguments of `Scout.search`."""

    text: str
    k: Count = 5
    allowed: Allowed | str | None = None
    tenant: str = ""
    endpoints: Endpoints = "ask"
    level: Level | None = None
    needed: bool = False


class _SearchOptions(TypedDict):
    """The keyword arguments of `Scout.search`."""

    tenant: str
    endpoints: Endpoints
    level: Level | None
    needed: bool


class _Switch(NamedTuple):
    """A change of encoders that is not complete: the new one, its name, and how an index is built with an encoder."""

    encoder: TextEncoder
    name: str | None
    build: Callable[[TextEncoder], LiveIndex]


class Scout:
    """A store of tools and a retriever that follows its changes. One Scout serves many threads; close it when done.

    encode_documents: what tools are embedded with; another one may spread the work over processes or machines.
    """

    def __init__(
        self,
        store: Store,
        retriever: Retriever,
        fit_options: FitOptions | None = None,
        need_options: NeedOptions | None = None,
        level: Level | None = None,
    ) -> None:
        """Take a store and an empty retriever; Scout.open makes both."""
        self.store = store
        self._fit_options, self._need_options = fit_options, need_options
        self._level = None if level is None else checked_level(level)
        self._index = LiveIndex(store, retriever)
        self._switch: _Switch | None = None
        self._encoder_name: str | None = None
        self._embedding_problem = ""
        self._embedding = threading.Lock()
        self._background: threading.Thread | None = None
        self._builder: threading.Thread | None = None
        self._follower: threading.Thread | None = None
        self._keeper: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closing = threading.Event()
        # Replaced where many machines embed: how documents are encoded, and how many are claimed at a time.
        self.encode_documents: DocumentEncoding = encode_documents
        self.claimed_at_once = CLAIMED_AT_ONCE
        self._searchers = Workers(_SEARCHING, "toolscout-search")
        self._changers = Workers(_CHANGING, "toolscout-change")

    @property
    def fit_options(self) -> FitOptions:
        """How catalogue fit is computed: as was set, else as it was fitted to the encoder in use."""
        return self._fit_options or self._index.fit_options

    @fit_options.setter
    def fit_options(self, options: FitOptions) -> None:
        self._fit_options = options

    @property
    def need_options(self) -> NeedOptions:
        """How tool need is compared with its threshold: as was set, else the defaults of NeedOptions."""
        return self._need_options or NeedOptions()

    @need_options.setter
    def need_options(self, options: NeedOptions) -> None:
        self._need_options = options

    @property
    def level(self) -> Level | None:
        """How sure the verdict must be before tools are offered: lenient, balanced or strict.

        None where `fit_options` or `need_options` were set and no level was: then their thresholds decide.
        """
        own = self._fit_options is not None or self._need_options is not None
        return self._level or (None if own else DEFAULT_LEVEL)

    @level.setter
    def level(self, level: Level | None) -> None:
        self._level = None if level is None else checked_level(level)

    def use_threshold(self, level: Level, need_known: bool = True) -> float:
        """The probability of "use" (`Answer.use`) from which on a level offers tools.

        `need_known`: False for answers without `need`, and for those of `search(…, needed=True)`.
        """
        return self._index.verdict_model.threshold(checked_level(level), need_known)

    @property
    def retriever(self) -> Retriever:
        """The retriever that answers."""
        return self._index.retriever

    @classmethod
    def open(
        cls,
        path: str | Path,
        retriever: str | Path | Retriever | Callable[[], Retriever] = DEFAULT_RETRIEVER,
        fit_options: FitOptions | None = None,
        need_options: NeedOptions | None = None,
        *,
        encoder: EncoderName = None,
        durable: bool | None = None,
        level: Level | None = None,
        wait: bool = True,
    ) -> Self:
        """Open the catalogue at a path or a postgresql:// URL, made where it is not there yet.

        `retriever`: a method's name, a model folder, or an object. An object is an empty retriever with options
        of one's own; its index is not kept. That of a function is, which makes such a retriever, untrained and
        without an encoder: the next that has the same options and parts opens it. `encoder`: a folder, the URL
        of an embeddings endpoint, or an object; None: as $TOOLSCOUT_ENCODER says, else the one that the tools
        were embedded with, else that of the package. Until all tools are embedded with another encoder than
        before (see `embed`), the one before answers. `durable`: what is committed survives a loss of power, at
        the price of a sync for each commit; None: as $TOOLSCOUT_DURABLE says, else False for a file and True
        for a database. `level`: how sure the verdict must be before tools are offered (lenient, balanced or
        strict); None: balanced, or the thresholds of `fit_options` and `need_options` where one of them is
        given. `wait`: False opens a store that can search by itself (PostgreSQL) at once, and builds the index in the
        background; until it stands the database answers (see `searches_store`).
        """
        if level is not None:
            checked_level(level)
        store = open_store(path, durable=durable)
        try:
            choice = choose(store, encoder)
            if isinstance(retriever, Retriever):
                scout = cls(store, retriever, fit_options, need_options, level)
                scout._apply_choice(choice, strict=encoder is not None)
            elif isinstance(retriever, str | Path) and _is_model(retriever):
                scout = cls(store, load_model(Path(retriever)), fit_options, need_options, level)
                scout.retriever.remove(scout.retriever.ids())  # a model may have been saved with another catalogue
                scout._apply_choice(choice, strict=encoder is not None)
                scout._index.assign_ids(Path(retriever))
            else:
                make = method(str(retriever)) if isinstance(retriever, str | Path) else retriever
                build = partial(_kept_index, store, make)
                cold = None if wait else _store_index(store, make(), choice.encoder)
                index = cold or build(choice.encoder)
                scout = cls(store, index.retriever, fit_options, need_options, level)
                scout._index, scout._encoder_name = index, choice.name
                if cold is None:
                    scout._begin_switch(choice, build)
                else:
                    scout._build_in_background(partial(build, choice.encoder))
            scout.refresh()
            scout._index.save_snapshot()
        except BaseException:
            store.close()
            raise
        return scout

    def _apply_choice(self, choice: EncoderChoice, strict: bool) -> None:
        """Have a retriever use the chosen encoder; one that is bound to another keeps it, unless that is an error."""
        if choice.encoder is not None:
            with nullcontext() if strict else suppress(BadModel):
                self.retriever.use_encoder(choice.encoder)
                self._encoder_name = choice.name

    def _begin_switch(self, choice: EncoderChoice, build: Callable[[TextEncoder], LiveIndex]) -> None:
        """Have the encoder before answer, if the tools are not embedded with the chosen one yet."""
        chosen = self._index.encoder()
        before = previous(self.store, chosen.fingerprint) if chosen is not None else None
        if chosen is not None and before is not None:
            self._switch = _Switch(chosen, choice.name, build)
            self._index = build(before)
            if not self.store.encoders():
                self._record_encoder(before.fingerprint, "")

    def _build_in_background(self, build: Callable[[], LiveIndex]) -> None:
        """Build the index in a thread while the store answers; what fails is tried again."""

        def run() -> None:
            while not self._closing.is_set():
                try:
                    index = build()
                    index.refresh()
                    index.baseline.baseline(None, index.count())  # which the first search would wait for
                    while not index.current:
                        index.refresh()
                    self._index = index
                    index.save_snapshot()  # before the search graph, which takes longer than all else
                    self._keep_in_background()
                    return
                except StoreUnavailable as error:
                    _log.warning("the index is not built yet: %s", error)
                except Exception:  # the store goes on answering
                    _log.exception("the index could not be built")
                self._closing.wait(_RETRY_S)

        self._builder = threading.Thread(target=run, name="toolscout-build", daemon=True)
        self._builder.start()

    @property
    def searches_store(self) -> bool:
        """Whether the store's own engine answers, since the index of this process is still being built."""
        return isinstance(self._index, StoreIndex)

    def follow(self) -> None:
        """Apply what other processes commit in a thread from now on: no search waits until a large change is applied.

        A change is found within a fraction of a second, whether anybody searches or not.
        """
        if self._follower is None:
            self._follower = threading.Thread(target=self._run_follower, name="toolscout-follow", daemon=True)
            self._follower.start()

    def _run_follower(self) -> None:
        save_at, quiet_at = time.monotonic() + _SAVED_EVERY_S, 0.0
        while not self._closing.wait(_LOOKED_EVERY_S):
            try:
                if not self._index.current:
                    self.refresh()
                    self._closing.wait(_REST_S)  # one change costs the index about as much as ten
                    quiet_at = time.monotonic() + _QUIET_S
                elif time.monotonic() >= quiet_at:
                    self._index.settle()
                if time.monotonic() >= save_at:
                    self._keep_in_background()
                    save_at = time.monotonic() + _SAVED_EVERY_S
            except StoreUnavailable as error:
                _log.warning("changes are not followed: %s", error)
                self._closing.wait(_RETRY_S)
            except Exception:
                if self._closing.is_set():
                    return
                _log.exception("changes are not followed")
                self._closing.wait(_RETRY_S)

    def _keep_in_background(self) -> None:
        """Build the search graph if there are many vectors, and save a snapshot, in a thread of its own."""

        def run() -> None:
            try:
                self._index.optimise(self._closing.is_set)
            except Exception:
                if not self._closing.is_set():
                    _log.exception("the index could not be kept")

        if self._keeper is None or not self._keeper.is_alive():
            self._keeper = threading.Thread(target=run, name="toolscout-keep", daemon=True)
            self._keeper.start()

    def _catch_up(self) -> None:
        """Apply what was committed before a search, unless a thread does so."""
        if self._follower is None:
            self.refresh(wait=False)

    @property
    def encoder_name(self) -> str | None:
        """The name that opens the encoder chosen for the tools; "" for that of the package, None where it has none."""
        return self._encoder_name

    @property
    def switching(self) -> bool:
        """Whether the tools are not all embedded with the chosen encoder, and the one before answers until then."""
        return self._switch is not None

    def vector_memory(self) -> int:
        """About how many bytes of memory the vectors of all tools take, by the length of the encoder's vectors.

        0 where no encoder is there, or none that can say.
        """
        encoder = self._switch.encoder if self._switch else self._index.encoder()
        try:
            return self.count() * encoder.dimension * BYTES_PER_NUMBER if encoder is not None else 0
        except EncoderUnavailable:
            return 0

    @property
    def embedding_problem(self) -> str:
        """Why the last embedding stopped; "" where it did not."""
        return self._embedding_problem

    def add(
        self,
        source: Any,
        *,
        options: ReadOptions | None = None,
        replace: bool = False,
        sync: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
        label: str | None = None,
        expansions: Expansions | None = None,
    ) -> Added:
        """Import a source: a path, URL, MCP command line, Python function or module, or an iterable of Tools.

        The tools are stored in one step and found by their words at once. Then they are embedded, before this returns
        or, with wait=False, in the background. `sync` removes the tools that the source no longer has; `replace`
        lets it take over tools that another source brought. `label`: what to call the source,
        where it is no lasting one. `expansions`: as `expand` takes them, for these tools or any others here.
        """
        return self._add(source, options, replace, sync, wait, progress, label, expansions)

    def expand(self, expansions: Expansions, *, progress: Progress | None = None) -> ExpansionReport:
        """Put expansions beside tools that are here: a file that `toolscout synth --expand` wrote, or by tool id.

        They are searched by words and by meaning, and never shown. An empty one removes what the tool had. Raises
        BadSource, and changes nothing, where the file cannot be read, and EncoderUnavailable where the encoder's
        endpoint fails: the expansions are stored then, and `embed` does the rest.
        """
        report = self.store.set_expansions(_expansions(expansions))
        self.refresh()
        self._embed(progress, 0)
        return report

    def _add(
        self,
        source: Any,
        options: ReadOptions | None,
        replace: bool,
        sync: bool,
        wait: bool,
        progress: Progress | None,
        label: str | None,
        expansions: Expansions | None,
        stopped: Callable[[], bool] | None = None,
    ) -> Added:
        """Like `add`. Once `stopped` is true, nothing is stored, or after that nothing more is embedded."""
        options = options or ReadOptions()
        given = None if expansions is None else _expansions(expansions)  # read first: a bad file stores nothing
        findings: list[Finding] = []
        tools = watched(counted(catalogue.read(source, options), progress, stopped), findings)
        waited, before = self.not_embedded(), self._index.version
        with collector_paused():  # collections would take a fifth of the time
            report = self.store.add(tools, label or catalogue.describe(source), replace=replace, sync=sync)
            expanded = None if given is None else self.store.set_expansions(given)
            self.refresh()
        embedded, problem = 0, ""
        if wait:
            try:
                # Looking through all tools takes time.
                embedded = self._embed(progress, 0 if waited else before, stopped)
            except EncoderUnavailable as error:
                problem = str(error)
        else:
            self._embed_in_background()
        return Added(report, embedded, tuple(options.problems), problem, expanded, tuple(findings))

    def embed(self, progress: Progress | None = None, since: int = 0) -> int:
        """Embed tools changed after version `since` without a vector; returns how many, 0 without an encoder.

        Raises EncoderUnavailable where the encoder's endpoint fails; what was embedded until then is kept.
        """
        return self._embed(progress, since)

    def _embed(self, progress: Progress | None, since: int, stopped: Callable[[], bool] | None = None) -> int:
        done = 0
        with self._embedding:
            switch = self._switch
            encoder = switch.encoder if switch else self._index.encoder()
            if encoder is None:
                self._index.save_snapshot()
                return 0
            if switch:
                self._copy_vectors(switch.encoder)
            estimate = self.count() if switch else self.not_embedded()

            def ended() -> bool:
                return self._closing.is_set() or (stopped is not None and stopped())

            since = 0 if switch else since
            claims = EmbeddingClaims(self.store, encoder.fingerprint, since, ended, self.claimed_at_once)
            try:
                for missing in claims:
                    total = max(done + len(missing), estimate if len(missing) == self.claimed_at_once else 0)
                    if progress:
                        progress("embedding", done, total)
                    encoded = claims.alive(self.encode_documents(encoder, [text for _, text in missing]))
                    encoded = tracing.spanned(encoded, "embeddings documents", gen_ai__operation__name="embeddings")
                    for positions, vectors in batches(reported(encoded, total, progress, done)):
                        claims.put([missing[i][0] for i in positions], vectors)
                        done += len(positions)
                        self.refresh()
                        if ended():
                            return done
                if ended():
                    return done
            except EncoderUnavailable as error:
                self._embedding_problem = str(error)
                raise
            finally:
                claims.close()
            self._embedding_problem = ""
            if switch:
                self._finish_switch(switch)
            if self._encoder_name is not None:
                self._record_encoder(encoder.fingerprint, self._encoder_name)
            self._fit_verdicts(encoder, progress)
        if (search := self.store.own_search()) is not None and (not since or done >= _MANY):
            try:
                search.prepare(encoder.fingerprint)
            except StoreError as error:  # searches by the store are slower without
                _log.warning("the store's vectors have no index: %s", error)
        self._index.baseline.prepare()
        self._prepare(progress)
        return done

    def _copy_vectors(self, encoder: TextEncoder) -> None:
        """Take the vectors of another encoder that differs from this one for requests alone, where there is one."""
        for other in same_documents(self.store, encoder):
            digests = [digest for digest, _ in self.store.missing_vectors(encoder.fingerprint)]
            for start in range(0, len(digests), _COPIED):
                found = self.store.vectors(other, digests[start : start + _COPIED])
                if found:
                    self.store.put_vectors(encoder.fingerprint, list(found), np.stack(list(found.values())))

    def _fit_verdicts(self, encoder: TextEncoder, progress: Progress | None) -> None:
        """Fit the need head and catalogue fit of an encoder that a user named, if that is quick and was not done."""
        if not self._encoder_name or encoder_fit.is_fitted(encoder):
            return
        with suppress(EncoderUnavailable, BadModel):  # then the answers say so
            if encoder_fit.seconds_needed(encoder) <= encoder_fit.SECONDS:
                encoder_fit.fit(encoder, progress)
                self._index.read_verdicts()

    def _finish_switch(self, switch: _Switch) -> None:
        """Answer with the new encoder from now on: all tools are embedded with it."""
        index = switch.build(switch.encoder)
        index.refresh()
        self._index, self._switch = index, None

    def _record_encoder(self, fingerprint: str, name: str) -> None:
        """Have the store name the encoder in use, if it does not."""
        used = UsedEncoder(fingerprint, name)
        if used not in self.store.encoders()[:1]:
            with suppress(ReadOnlyStore):
                self.store.use_encoder(used)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the embedding that add(wait=False) started; returns whether it is done, or raises its error."""
        if self._background is not None:
            self._background.join(timeout)
            if self._background.is_alive():
                return False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return True

    def search(
        self,
        text: str,
        k: Count = 5,
        allowed: Allowed | str | None = None,
        *,
        tenant: str = "",
        endpoints: Endpoints = "ask",
        level: Level | None = None,
        needed: bool = False,
    ) -> Answer:
        """The tools for a request. `allowed`: what the caller may see, or the principal the store knows it by.

        `k`: at most so many; "auto" as many as the model says are needed, for models trained to say so. `tenant`: whose
        feedback is heard besides everybody's. `endpoints`: whether language models behind a URL are skipped, asked
        within their time, or waited for. `level`: how sure the verdict must be before tools are offered (lenient,
        balanced or strict); None: `self.level`. `needed`: True where the caller knows that a tool is needed, as a model
        does that searches for one; the verdict is then "use" or "nothing_fits". Raises BadRequest for an empty request
        and for a k or a level that is none.
        """
        about: _SearchOptions = {"tenant": tenant, "endpoints": endpoints, "level": level, "needed": needed}
        return self.search_many([text], k, allowed, **about)[0]

    def search_many(
        self,
        texts: Sequence[str],
        k: Count = 5,
        allowed: Allowed | str | None = None,
        *,
        tenant: str = "",
        endpoints: Endpoints = "ask",
        level: Level | None = None,
        needed: bool = False,
    ) -> list[Answer]:
        """An answer for each request, as `search` gives it; ranked together, which is faster where a model is large."""
        requests = list(map(checked_request, texts))
        chosen = self.level if level is None else checked_level(level)
        with search_span(k) as span:
            with span.timed("refresh"):
                self._catch_up()
            index = self._index  # one and the same for the whole search
            scope = Scope(index.permitted(allowed), tenant=tenant, endpoints=endpoints)
            with span.timed("rank"):
                found = find(index.retriever, requests, k, scope)
            with span.timed("verdict"):
                answers = [self._answer(index, one, scope, chosen, needed) for one in found]
            span.answered(answers, self.store)
        return [_noted(one, text) for one, text in zip(answers, texts, strict=True)]

    def search_together(self, searches: Sequence[Search]) -> list[Answer | Exception]:
        """The answer to each search as `search` gives it, or the error that it raises, which concerns no other search.

        Searches of the same scope are ranked together, which is faster where `ranks_together` is true.
        """
        self._catch_up()
        index = self._index  # one and the same for all
        found: dict[int, Answer | Exception] = {}
        groups: dict[tuple[Count, Scope], list[tuple[int, str]]] = {}
        for place, one in enumerate(searches):
            try:
                request = checked_request(one.text)
                scope = Scope(index.permitted(one.allowed), tenant=one.tenant, endpoints=one.endpoints)
                groups.setdefault((one.k, scope), []).append((place, request))
            except Exception as error:
                found[place] = error
        for (k, scope), group in groups.items():
            with search_span(k) as span:
                with span.timed("rank"):
                    results = _find_each(index.retriever, [request for _, request in group], k, scope)
                with span.timed("verdict"):
                    for (place, _), result in zip(group, results, strict=True):
                        found[place] = self._judged(index, result, scope, searches[place])
                answered = [answer for place, _ in group if isinstance(answer := found[place], Answer)]
                span.answered(answered, self.store)
        return [found[place] for place in range(len(searches))]

    def _judged(
        self, index: LiveIndex, result: SearchResult | Exception, scope: Scope, search: Search
    ) -> Answer | Exception:
        """The answer to one of several searches, or its error."""
        try:
            if isinstance(result, Exception):
                raise result
            level = self.level if search.level is None else checked_level(search.level)
            return _noted(self._answer(index, result, scope, level, search.needed), search.text)
        except Exception as error:
            return error

    @property
    def ranks_together(self) -> bool:
        """Whether several requests are ranked in less time together than one after the other."""
        return self._index.retriever.ranks_together

    # The same for coroutines.

    async def asearch(
        self,
        text: str,
        k: Count = 5,
        allowed: Allowed | str | None = None,
        *,
        tenant: str = "",
        endpoints: Endpoints = "ask",
        level: Level | None = None,
        needed: bool = False,
    ) -> Answer:
        """As search, for coroutines on asyncio: the event loop goes on meanwhile.

        A few threads of this Scout search at a time and further requests wait. A task that is cancelled returns at
        once; a request that waited is then never searched.
        """
        about: _SearchOptions = {"tenant": tenant, "endpoints": endpoints, "level": level, "needed": needed}
        return await self.arun(self.search, text, k, allowed, **about)

    async def aadd(
        self,
        source: Any,
        *,
        options: ReadOptions | None = None,
        replace: bool = False,
        sync: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
        label: str | None = None,
        expansions: Expansions | None = None,
    ) -> Added:
        """As add, for coroutines on asyncio. `progress` is called, and an iterable is read, in another thread.

        A task that is cancelled returns at once. Of an add whose tools are not stored yet none is stored then; one
        that has stored them has stored all, and embeds no more after its current batch: `embed` does the rest.
        """
        left = threading.Event()

        def stopped() -> bool:
            return left.is_set() or self._closing.is_set()

        work = partial(self._add, source, options, replace, sync, wait, progress, label, expansions, stopped)
        try:
            return await self._changers.run(work)
        finally:
            left.set()

    async def afeedback(self, example: Example) -> None:
        """As feedback, for coroutines on asyncio. Once it has begun it is recorded, though the task be cancelled."""
        await self._changers.run(partial(self.feedback, example))

    async def arun(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run short work that uses this Scout, such as a search and what is made of it, where asearch searches."""
        return await self._searchers.run(partial(work, *args, **kwargs))

    def _answer(self, index: LiveIndex, found: SearchResult, scope: Scope, level: Level | None, needed: bool) -> Answer:
        permitted, ranking = scope.allowed, found.ranking
        need = index.need_estimator.need_of(ranking, found.hits, self.need_options)
        baseline = index.baseline.baseline(permitted, index.count(permitted))
        fit_options = self._fit_options or index.fit_options
        fit = catalogue_fit_of(found.hits, fit_options, baseline)
        language = index.need_estimator.unknown_language(ranking) if need is None else ""
        considered = tuple(found.hits[: found.count])
        counted = None if needed else need
        judged = Judgement(thresholds_verdict(counted, fit, bool(considered), self.need_options, fit_options))
        if level is not None and considered:
            about = (counted, baseline, index.count(permitted), fit_options)
            evidence = evidence_of(found.hits, *about, reranked=index.knows_reranker)
            judged = judge(index.verdict_model, evidence, found.hits, level, judged.verdict)
        return Answer(
            request=ranking.request,
            verdict=judged.verdict,
            hits=considered if judged.verdict == "use" else (),
            considered=considered,
            searched=index.count(permitted),
            version=index.version,
            need=need,
            fit=fit,
            use=judged.probability,
            verdict_level=judged.level,
            words_only=index.words_only(permitted),
            notes=(*index.notes(permitted), *self._notes(), *([language] if language else []), *ranking.notes),
            asked=ranking.queries,
            cost=ranking.cost,
        )

    def _notes(self) -> Iterator[str]:
        if self._switch is not None:
            name = self._switch.name or "that was chosen"
            yield f"not all tools are embedded with the encoder {name}: the one before answers; run: toolscout embed"
        encoder = self._index.encoder() if self._encoder_name else None
        if encoder is not None and not self._index.fitted:
            yield "need is not predicted, and fit is by another encoder's curve; run: toolscout encoder fit"
        if self._embedding_problem:
            yield f"embedding stopped: {self._embedding_problem}"

    def warm_up(self) -> None:
        """Open everything that the first search needs, so that it is fast; no endpoint is called."""
        self.refresh()
        if self.count():
            self.search("hello", endpoints="skip")

    def need(self, text: str, allowed: Allowed | str | None = None) -> float | None:
        """The tool need of a request, from 0 to 1, as in its answer; None where no model can tell."""
        return self.search(text, 1, allowed).need

    def tools(self, ids: Iterable[str] | Answer) -> list[Tool]:
        """The tools with these ids, or those of an answer, in order."""
        return self.store.get([hit.tool_id for hit in ids.hits] if isinstance(ids, Answer) else list(ids))

    def render(
        self, answer: Answer, format: vendor_formats.Format = "openai", budget: int | None = None
    ) -> vendor_formats.Rendered:
        """The tools of an answer as a vendor's API takes them, as full as the token budget allows."""
        return vendor_formats.render(self.tools(answer), format, budget)

    def remove(self, ids: str | Sequence[str]) -> int:
        """Remove tools and return how many. Raises UnknownTool, and removes nothing, if one is not there."""
        removed = self.store.remove([ids] if isinstance(ids, str) else ids)
        self.refresh()
        return removed

    def feedback(self, example: Example) -> None:
        """Record which tools a request really used; a retriever that learns from use has learned it on return."""
        self._index.feedback.record(example)
        self.refresh()

    def count(self, allowed: Allowed | None = None) -> int:
        """How many tools there are, or how many of them a caller may see."""
        return self._index.count(allowed)

    def words_only(self, allowed: Allowed | None = None) -> int:
        """How many tools, of those a caller may see, have no vector yet and are found by their words alone."""
        return self._index.words_only(allowed)

    def not_embedded(self, allowed: Allowed | None = None) -> int:
        """How many of those have no vector yet; the others have no id, since a model has none left for them."""
        return self._index.not_embedded(allowed)

    def refresh(self, wait: bool = True) -> None:
        """Apply what this or any other process has committed; cheap if that is nothing.

        `wait`: if another thread is doing so already, wait for it; otherwise go on with the state before.
        """
        self._index.refresh(wait)

    def pack_index(self, target: str | Path) -> int:
        """Write the index into one archive, which other machines with this store open instead of building their own.

        Returns the version of the catalogue that it holds; what changes later is applied to it where it is opened.
        Raises BadModel where no index is kept beside the store, as of a small catalogue.
        """
        return self._index.pack(Path(target)).version

    def close(self) -> None:
        """Stop embedding after the current batch and close the store; what is committed stays.

        Waits for work that coroutines have started; work that is still queued raises StoreError.
        """
        self._closing.set()
        self._searchers.close()
        self._changers.close()
        for thread in (self._background, self._builder, self._follower):
            if thread is not None:
                thread.join()
        if self._keeper is not None:  # which the others may have started
            self._keeper.join()
        self.store.close()

    def __enter__(self) -> Self:
        """The Scout itself, closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _embed_in_background(self) -> None:
        self.wait()

        def run() -> None:
            pause = _RETRY_S
            while not self._closing.is_set():
                try:
                    self.embed()
                    return
                except EncoderUnavailable:  # it is tried again: the tools are stored, and found by words
                    self._closing.wait(pause)
                    pause = min(2 * pause, _LONGEST_RETRY_S)
                except BaseException as error:
                    self._failure = error
                    return

        self._background = threading.Thread(target=run, name="toolscout-embed", daemon=True)
        self._background.start()

    def _prepare(self, progress: Progress | None) -> None:
        """Build the search graph if there are many vectors, and save a snapshot of the index."""
        if progress and self.words_only() == 0:
            progress("linking", 0, 0)
        self._index.optimise(self._closing.is_set)


def _is_model(retriever: str | Path) -> bool:
    return Path(retriever).is_dir() and str(retriever) not in available()


def _kept_index(store: Store, make: Callable[[], Retriever], encoder: TextEncoder | None = None) -> LiveIndex:
    """An index over a store, opened from its snapshot if there is one. `encoder`: None for the default one.

    A retriever that reads documents in a search reads them from the store.
    """
    made = make()
    held = made.index_part
    name = index_snapshot.index_name(held) if held is not None else ""
    kept = folder = None
    if name:
        folder = index_snapshot.folder(store.index_folder(), name, encoder.fingerprint if encoder else "")
        kept = index_snapshot.read(folder, store, encoder)
    if kept is not None:
        made = made.with_index(kept[0])
    elif encoder is not None:
        made.use_encoder(encoder)
    made.read_documents(partial(_documents, store))
    index = LiveIndex(store, made)
    if folder is not None:
        index.keep_in(folder, kept[1] if kept else None)
    return index


def _store_index(store: Store, made: Retriever, encoder: TextEncoder | None) -> StoreIndex | None:
    """An index that is the store itself, for a process whose own is not built yet.

    None where the store has no engine, or while the tools are being embedded with another encoder.
    """
    with suppress(MissingEncoder):
        encoder = encoder or made.encoder
    if encoder is not None and previous(store, encoder.fingerprint) is not None:
        return None
    from toolscout.search.cold_search import cold_retriever  # which imports the encoders' engine

    cold = cold_retriever(store, encoder, made.name)
    return None if cold is None else StoreIndex(store, cold)


def _documents(store: Store, ids: Sequence[str]) -> list[str | None]:
    """The documents of tools as they are stored; None for one that was removed."""
    try:
        return [tool.document() for tool in store.get(ids)]
    except UnknownTool:
        if len(ids) == 1:
            return [None]
        return [text for tool_id in ids for text in _documents(store, [tool_id])]


def _find_each(
    retriever: Retriever, requests: Sequence[str], k: Count, scope: Scope
) -> Sequence[SearchResult | Exception]:
    """The result for each request, or the error that it raises when it is searched alone."""
    try:
        return find(retriever, requests, k, scope)
    except Exception as error:
        if len(requests) == 1:
            return [error]
    return [one for request in requests for one in _find_each(retriever, [request], k, scope)]


def _expansions(given: Expansions) -> Mapping[str, Expansion]:
    return read_expansions(given) if isinstance(given, str | Path) else given


def _noted(answer: Answer, text: str) -> Answer:
    """The answer; with a note where not all of its request was searched."""
    if len(text) <= MAX_REQUEST_CHARS:
        return answer
    note = f"the request has {len(text):,} characters; the first {MAX_REQUEST_CHARS:,} were searched"
    return replace(answer, notes=(*answer.notes, note))


def checked_request(text: str) -> str:
    """The request as it is searched: cleaned and cut; BadRequest where nothing is left of it."""
    if not isinstance(text, str) or not clean_text(text):
        raise BadRequest("the request is empty; say in words what should be done")
    return clean_text(text[:MAX_REQUEST_CHARS])
