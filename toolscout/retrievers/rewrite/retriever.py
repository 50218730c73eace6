"""rewrite: a language model says in the catalogue's words what a request needs; each of its queries is searched."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from toolscout.core.answer import SEARCHED_ALONE, Allowed, Example, Hit
from toolscout.core.tool import Searchable
from toolscout.data import metrics
from toolscout.errors import BadDataset, BadModel, BadRequest, MissingEncoder, MissingExtra
from toolscout.index.recent import Recent
from toolscout.llm import LanguageModel
from toolscout.llm.base import Conversation
from toolscout.llm.finetuned import is_generator
from toolscout.llm.hosts import HOSTS_VARIABLE, host_of
from toolscout.llm.options import checked_url
from toolscout.retrievers import showing
from toolscout.retrievers.base import (
    Embedded,
    FitProgress,
    FitReport,
    Foresighted,
    Pairs,
    Retriever,
    TrainedOn,
    TrainingSet,
    Vectors,
    check_k,
    read_model,
    read_options,
    write_model,
)
from toolscout.retrievers.encoded_requests import Encoding
from toolscout.retrievers.registry import load_model, method
from toolscout.retrievers.rewrite import query_text
from toolscout.retrievers.rewrite.alignment import Asked, Means, align
from toolscout.retrievers.rewrite.llm_writer import is_url
from toolscout.retrievers.rewrite.rewriter import (
    RULES,
    TASK,
    Asking,
    Placed,
    RewriteOptions,
    Rewriter,
    describes,
    owners,
    placed,
)
from toolscout.retrievers.rewrite.router import Router, features
from toolscout.retrievers.showing import Caller, Costs, Reasons, Told

if TYPE_CHECKING:
    from toolscout.training.text_generation import Pair, Pupil

__all__ = ["GENERATOR_FOLDER", "RULES", "Asking", "Group", "Rewrite", "RewriteOptions"]

GENERATOR_FOLDER = "generator"
_TEXTS_FILE = "texts.json"
_FIRST = 10  # of its own ranking, by which the router judges a request
_RECENT = 64
_NO_ROUTER = (
    "nothing was trained that says which requests gain by rewriting, so all are rewritten; run: toolscout train"
)
# What a part may be able to do beside ranking: then so can this. As attributes of the object, so that one over words
# alone does not pass for one over vectors.
_LENT = (
    "open_encoder",
    "waiting",
    "arrived",
    "build_graph",
    "request_vector",
    "request_vector_for",
    "need",
    "need_for",
    "best_cosines",
    "moved",
)
_K = 5
_DEEP = 100  # of a ranking, where its reward is a rank
_MEASURES = ("recall@5", "comp@5", "ndcg@5", "recall@3", "comp@3")
_JUDGED = 500  # requests of a dev split
_TARGET_WORDS = 16  # of the line for a tool: what is longer takes longer to write, and finds no more


@dataclass(slots=True)
class _Judged:
    """Dev requests searched alone and rewritten: features, what was gained, and the scores of both."""

    rows: list[list[float]] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    scores: list[dict[str, float]] = field(default_factory=list)
    alone: list[dict[str, float]] = field(default_factory=list)


class _Sets:
    """The tools of all sets in the retriever; requests are searched among the tools of their own set."""

    def __init__(
        self, rewrite: Rewrite, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None
    ) -> None:
        self._rewrite, self._data = rewrite, data
        self._encoding: Encoding | None = None
        rewrite.remove(rewrite.ids())
        tools = list({tool.id: tool for one in data for tool in one.dataset.tools}.values())
        with suppress(MissingEncoder):  # without one words alone are searched, as they will be
            if isinstance(rewrite, Embedded):
                self._encoding = Encoding(rewrite.open_encoder(), folder, progress)
        rewrite.add(tools, self._encoding.documents(tools) if self._encoding else {})
        self._among: list[Allowed | None] = [None]
        if len(data) > 1:
            self._among = [Allowed.of(ids=(tool.id for tool in one.dataset.tools)) for one in data]

    def done(self) -> None:
        """The model is complete: nothing is left to go on with."""
        if self._encoding is not None:
            self._encoding.done()

    def asked(self, role: str, needed: frozenset[str] = frozenset(), of: str = "") -> Asked:
        """Requests of train or dev splits with their gold: of one set, or that need one of some tools, where named."""
        requests: list[str] = []
        gold: list[Collection[str]] = []
        homes: list[int] = []
        for number, one in enumerate(self._data):
            name = one.train if role == "train" else one.dev
            if name and (not of or one.dataset.name == of):
                split = one.dataset.split(name)
                for (_, text), tools in zip(split.requests, split.gold, strict=True):
                    if not needed or not needed.isdisjoint(tools):
                        requests.append(text)
                        gold.append(tools)
                        homes.append(number)
        return Asked(requests, gold, homes)

    def ask(self, requests: Sequence[str], queries: Sequence[Sequence[str]], homes: Sequence[int]) -> list[list[str]]:
        """What the retriever finds by these queries, among the tools of the set that each request is of."""
        found: list[list[str]] = [[] for _ in requests]
        k = _DEEP if self._rewrite.options.settled().reward == "rank" else _K
        for number, among in enumerate(self._among):
            places = [i for i, home in enumerate(homes) if len(self._among) == 1 or home == number]
            few, asked = [requests[i] for i in places], [Asking(tuple(queries[i])) for i in places]
            for place, tools in zip(places, self._rewrite.fused(few, asked, k, among), strict=True):
                found[place] = list(tools)
        return found

    def judged(self) -> _Judged:
        """Dev requests, searched alone and as they are rewritten now."""
        found, rewrite = _Judged(), self._rewrite
        for number, one in enumerate(self._data):
            if not one.dev:
                continue
            among, split = self._among[number], one.dataset.split(one.dev)
            step = max(1, len(split.requests) // _JUDGED)
            texts, gold = [text for _, text in split.requests[::step]], split.gold[::step]
            alone = [list(tools) for tools in rewrite.fused(texts, [Asking()] * len(texts), 2 * _K, among)]
            hits = rewrite.search(texts, 2 * _K, among)
            better = [[hit.tool_id for hit in few] for few in hits]
            rankings = rewrite.ranked(texts, 2 * _K, among)
            found.rows += [rewrite.features(text, rankings[text]) for text in texts]
            pairs = zip(better, alone, gold, strict=True)
            found.gains += [metrics.ndcg(b, g, _K) - metrics.ndcg(a, g, _K) for b, a, g in pairs]
            found.scores.append(metrics.evaluate(better, gold, list(_MEASURES)))
            found.alone.append(metrics.evaluate(alone, gold, list(_MEASURES)))
        return found


class Group(NamedTuple):
    """A sub-request, and the tools for it; the request itself where it is one thing."""

    sub_request: str
    hits: list[Hit]


class Rewrite:
    """Searches the request and what a language model made of it with its one part, and interleaves what they find.

    A model that fails costs nothing but its queries: the request alone is searched then, and `asked` says why. Scores
    say the place alone. Rankings are those of the full catalogue, whoever asks; below `depth` tools follow in the order
    of the request's own.
    """

    name: ClassVar[str] = "rewrite"

    def __init__(
        self,
        options: RewriteOptions | None = None,
        parts: Sequence[Retriever] | None = None,
        llm: LanguageModel | None = None,
        *,
        home: Path | None = None,
    ) -> None:
        """Search with this part, hybrid by default; `llm` is for a model that is open already.

        `home`: the model folder that the options come from, where the user did not give them. Such an endpoint is asked
        only if its host is in $TOOLSCOUT_LLM_HOSTS, and `cache` is a file in that folder.
        """
        self._options = options or RewriteOptions()
        self.parts = list(parts) if parts is not None else [method("hybrid")()]
        if len(self.parts) != 1:
            raise BadModel(f"rewrite searches with one part, got {len(self.parts)}; hand it one, such as a hybrid")
        self.rewriter, self._home = Rewriter(self._options, home), home
        if llm is not None:
            self.rewriter.author.use(llm)
        self.router: Router | None = None
        self._rewritten = 0
        self._seen = TrainedOn.load(Path(self._options.llm)) if self.rewriter.taught else TrainedOn()
        self._fit: dict[str, Any] | None = None
        self._generator: Path | None = None
        self._recent: OrderedDict[tuple[str, Allowed | None], Asking] = OrderedDict()
        self._ahead: dict[str, Asking] = {}
        self._found_by: Recent[tuple[str, Allowed | None], dict[str, Placed]] = Recent(_RECENT)
        self._lock = threading.Lock()
        for name in _LENT:
            if hasattr(self.part, name):
                setattr(self, name, getattr(self.part, name))

    @property
    def options(self) -> RewriteOptions:
        """What it was made with."""
        return self._options

    @options.setter
    def options(self, options: RewriteOptions) -> None:
        """Write and fuse otherwise from now on; the language model stays."""
        self._options = self.rewriter.options = options
        self.forget_requests()

    @property
    def part(self) -> Retriever:
        """What it searches with."""
        return self.parts[0]

    def __len__(self) -> int:
        """How many tools its part can find."""
        return len(self.part)

    def ids(self) -> list[str]:
        """The ids of all tools."""
        return self.part.ids()

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Hand tools to the part, and keep a line about each."""
        self.part.add(tools, vectors)
        self.rewriter.add(tools)
        self._forget()

    def remove(self, ids: Sequence[str]) -> None:
        """Forget tools."""
        self.part.remove(ids)
        self.rewriter.remove(ids)
        self._forget()

    def learn(self, examples: Sequence[Example]) -> None:
        """Hand feedback to the part."""
        self.part.learn(examples)

    def _forget(self) -> None:
        with self._lock:
            self._recent, self._ahead, self._found_by = OrderedDict(), {}, Recent(_RECENT)

    def forget_requests(self) -> None:
        """Let go of what was written for recent requests: one that is timed again must be written for again."""
        self._forget()
        getattr(self.part, "forget_requests", lambda: None)()

    @property
    def language_parameters(self) -> int:
        """How many numbers its language model has, and that of its part."""
        return self.rewriter.author.parameters + int(getattr(self.part, "language_parameters", 0))

    def wait_longer(self) -> None:
        """Rather wait for a language model than go on without it: for evaluations."""
        self.rewriter.author.wait_longer()
        showing.wait_longer(self.parts)

    def take_costs(self) -> Costs:
        """What was asked of the language model since this was last called, and of the part's: for a row of results."""
        author, rewritten = self.rewriter.author, self._rewritten
        self._rewritten = 0
        return showing.added(author.take_costs() | {"rewritten": rewritten}, showing.take_costs(self.parts))

    def asked(self, request: str, allowed: Allowed | None = None) -> Asking:
        """What was made of a request that was searched just now."""
        known = self._ahead.get(request) if allowed is None else None
        return known or self._recent.get((request, allowed), Asking())

    def rank_ahead(self, requests: Sequence[str], k: int) -> None:
        """Write for many requests in one batch, and have the part rank all of their queries together if it can."""
        if not len(self) or not requests:
            return
        self._forget()
        asked = self._asking(requests, self.ranked(requests, self._deep(k, None)), Caller())
        if isinstance(self.part, Foresighted):
            queries = [query for one in asked for query in one.queries]
            self.part.rank_ahead(list(dict.fromkeys([*requests, *queries])), self._deep(k, None))
        self._ahead = dict(zip(requests, asked, strict=True))

    def _asking(self, requests: Sequence[str], alone: dict[str, Pairs], caller: Caller) -> list[Asking]:
        """What is asked for each request; for those that are new all is written in one batch."""
        allowed, recent = caller.sees, self._recent
        ahead = self._ahead if allowed is None else {}
        known: dict[str, Asking] = {}
        for request in dict.fromkeys(requests):
            kept = ahead.get(request) or recent.get((request, allowed))
            # One that failed is tried again, but not where all were written for ahead.
            if kept is not None and (kept.queries or not kept.problem or request in ahead or not caller.again):
                known[request] = kept
        new = [request for request in dict.fromkeys(requests) if request not in known]
        due = self._worth([one for one in new if one.strip() and not self.is_name_for(caller, one)], alone, caller)
        with self.rewriter.author.one_search():
            found = dict(zip(due, self.rewriter.asked(due, allowed, self.fused), strict=True))
        with self._lock:
            self._rewritten += sum(bool(one.queries) for one in found.values())
            for request in new:
                known[request] = self._recent[request, allowed] = found.get(request, Asking())
            while len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
        return [known[request] for request in requests]

    def is_name(self, request: str) -> bool:
        """Whether the request is nothing but the name of a tool."""
        return self.is_name_for(Caller(), request)

    def is_name_for(self, caller: Caller, request: str) -> bool:
        """Whether the request is nothing but the name of a tool that the caller sees."""
        return showing.is_name(self.part, caller, request)

    def _worth(self, requests: Sequence[str], alone: dict[str, Pairs], caller: Caller) -> list[str]:
        """The requests that are to be rewritten."""
        share = self.options.share
        if share == 0 or not requests:
            return []
        if share == 1 or self.router is None:
            return list(requests)
        sees = caller.sees
        seen = {text: [one for one in alone[text] if sees is None or sees.permits(one[0])] for text in requests}
        worth = self.router.worth([self.features(request, seen[request]) for request in requests], share)
        return [request for request, chosen in zip(requests, worth, strict=True) if chosen]

    def told(self, request: str, allowed: Allowed | None = None) -> Told:
        """What was asked for a request that was searched just now, and why it was not where a model failed.

        Of what the part made of its queries the notes alone: no hit says that it was found by that.
        """
        asked = self.asked(request, allowed)
        notes = [f"{SEARCHED_ALONE}: {asked.problem}"] if asked.problem else []
        notes += [_NO_ROUTER] if 0 < self.options.share < 1 and self.router is None else []
        of_queries = [((), showing.told(self.part, query, allowed)[1]) for query in asked.queries]
        return showing.all_told([(asked.queries, tuple(notes)), showing.told(self.part, request, allowed), *of_queries])

    def features(self, request: str, ranking: Pairs) -> list[float]:
        """What the router knows of a request, given its own ranking."""
        return features(request, ranking, [self.rewriter.texts.get(tool_id, "") for tool_id, _ in ranking[:_FIRST]])

    def _deep(self, k: int, allowed: Allowed | None) -> int:
        """How far down rankings are needed; a caller who may not see all of them needs more of each."""
        depth = self.options.depth
        return depth if allowed is not None else max(min(k, depth), min(_FIRST, depth))

    def ranked(
        self, texts: Sequence[str], k: int, allowed: Allowed | None = None, caller: Caller | None = None
    ) -> dict[str, Pairs]:
        """The ranking of each text, all searched in one batch; for one who sees what is allowed where none is named."""
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return {}
        rankings = showing.rank(self.part, caller or Caller(allowed), distinct, k, allowed)
        return dict(zip(distinct, rankings, strict=True))

    def fused(
        self, requests: Sequence[str], asked: Sequence[Asking], k: int, allowed: Allowed | None = None
    ) -> list[dict[str, str]]:
        """The best k tools of each request with the query that found each, "" for the request itself."""
        caller = Caller(allowed).later()  # the requests have been searched
        alone = self.ranked(requests, self._deep(k, allowed), None, caller)
        found = self._fused(caller, requests, asked, alone, k, allowed)
        return [{one.tool_id: one.query for one in few} for few in found]

    def _fused(
        self,
        caller: Caller,
        requests: Sequence[str],
        asked: Sequence[Asking],
        alone: dict[str, Pairs],
        k: int,
        allowed: Allowed | None,
    ) -> list[list[Placed]]:
        lists = self.ranked([query for one in asked for query in one.queries], self._deep(k, allowed), None, caller)
        return [
            self._best(caller, request, alone[request], {query: lists[query] for query in one.queries}, k, allowed)
            for request, one in zip(requests, asked, strict=True)
        ]

    def _best(
        self, caller: Caller, request: str, alone: Pairs, lists: dict[str, Pairs], k: int, allowed: Allowed | None
    ) -> list[Placed]:
        """Those that the request names, what was interleaved, and below it the request's own ranking."""
        found = owners(alone, lists, self.options.utterance, k if allowed is None else None)
        if allowed is not None:
            found = {tool_id: query for tool_id, query in found.items() if allowed.permits(tool_id)}
        if len(found) < k:
            for tool_id, _ in self.ranked([request], k, allowed, caller.later())[request]:
                found.setdefault(tool_id, "")
        return placed(found, alone)[:k]

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Interleave the rankings of each request and of its queries."""
        caller = Caller(allowed)
        return [
            self._hits(caller, request, found)
            for request, found in zip(requests, self._found(caller, requests, k, allowed), strict=True)
        ]

    def _hits(self, caller: Caller, request: str, found: Sequence[Placed]) -> list[Hit]:
        reasons = showing.why(self.part, caller, request, [one.tool_id for one in found])
        return [Hit(one.tool_id, one.score, one.reasons(few)) for one, few in zip(found, reasons, strict=True)]

    def rank(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """What search ranks, without reasons."""
        return self.rank_for(Caller(allowed), requests, k, allowed)

    def rank_for(self, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """The same for a caller: what is ranked may be more than what the model is shown."""
        found = self._found(caller, requests, k, allowed)
        for request, few in zip(requests, found, strict=True):
            self._found_by.keep((request, caller.sees), {one.tool_id: one for one in few})
        return [[(one.tool_id, one.score) for one in few] for few in found]

    def why(self, request: str, ids: Sequence[str]) -> Reasons:
        """The reasons of the part, and the query that found each where the request was ranked just now."""
        return self.why_for(Caller(), request, ids)

    def why_for(self, caller: Caller, request: str, ids: Sequence[str]) -> Reasons:
        """The same for a caller for whom they were ranked."""
        found = self._found_by.get((request, caller.sees)) or {}
        reasons = zip(ids, showing.why(self.part, caller, request, ids), strict=True)
        return [found[tool_id].reasons(few) if tool_id in found else few for tool_id, few in reasons]

    def _found(self, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None) -> list[list[Placed]]:
        check_k(k)
        if not len(self) or not requests:
            return [[] for _ in requests]
        alone = self.ranked(requests, self._deep(k, allowed), None, caller)
        asked = self._asking(requests, alone, caller)
        return self._fused(caller, requests, asked, alone, k, allowed)

    def grouped(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Group]]:
        """The best k tools of each sub-request; of the request where it was not split."""
        check_k(k)
        if not len(self) or not requests:
            return [[] for _ in requests]
        caller = Caller(allowed)
        asked = self._asking(requests, self.ranked(requests, self._deep(k, allowed), None, caller), caller)
        queries = [one.queries or (request,) for request, one in zip(requests, asked, strict=True)]
        distinct = list(dict.fromkeys(query for few in queries for query in few))
        hits = dict(zip(distinct, self.part.search(distinct, k, allowed), strict=True))
        return [[Group(query, hits[query]) for query in few] for few in queries]

    def explain(self, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """What the part knows besides."""
        return self.explain_for(Caller(), request, hits)

    def explain_for(self, caller: Caller, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """The same for a caller."""
        return showing.explain(self.part, caller, request, hits)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train a generator to describe gold tools, align it with the part, and learn which requests gain by it."""
        return fit(self, data, folder, progress)

    def teach(self, llm: LanguageModel | Path) -> None:
        """Write with a generator that was trained: one that is open, or the folder of one."""
        self.rewriter.taught = True
        self._forget()
        if isinstance(llm, Path):
            self._generator = llm
            self.rewriter.author.point(llm)
        else:
            self.rewriter.author.use(llm)

    def save(self, folder: Path) -> None:
        """Write the part and the generator into folders of their own."""
        name, home = f"0-{self.part.name}", folder / GENERATOR_FOLDER
        self.part.save(folder / name)
        if self._generator is not None and self._generator.resolve() != home.resolve():
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(self._generator, home)
        if self._seen.splits:
            self._seen.save(folder)
        (folder / _TEXTS_FILE).write_text(json.dumps(self.rewriter.texts))
        extra: dict[str, Any] = {"fit": self._fit} if self._fit else {}
        extra |= {"router": asdict(self.router)} if self.router else {}
        options = asdict(self.options) | {"cache": self._saved_cache(folder)}
        write_model(folder, self, parts={name: self.part.name}, options=options, **extra)

    def _saved_cache(self, folder: Path) -> str:
        """The cache as a saved model names it: from its folder on; "" for a file of the user's that is elsewhere."""
        cache = self.options.cache
        if not cache or self._home is not None:
            return cache
        file, root = Path(cache).resolve(), folder.resolve()
        return str(file.relative_to(root)) if file.is_relative_to(root) else ""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved model; its generator is opened when it is first asked."""
        model = read_model(folder)
        options = read_options(RewriteOptions, model)
        parts = [load_model(folder / name) for name in model.get("parts", {})]
        try:
            loaded = cls(options, parts, home=folder)
        except BadRequest as error:
            raise BadModel(f"{folder} names an endpoint that cannot be used: {error}") from None
        loaded._seen |= TrainedOn.load(folder)
        loaded._fit = model.get("fit")
        loaded.router = Router.read(model["router"]) if model.get("router") else None
        try:
            loaded.rewriter.know(dict(json.loads((folder / _TEXTS_FILE).read_text())))
        except (OSError, ValueError, TypeError) as error:
            raise BadModel(f"{folder / _TEXTS_FILE} cannot be read ({error}); build the index again") from None
        if not loaded.options.llm and is_generator(folder / GENERATOR_FOLDER):
            loaded.teach(folder / GENERATOR_FOLDER)
        return loaded


def fit(rewrite: Rewrite, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None) -> FitReport:
    """Train the generator where there is anything to train, then the router, and leave a complete model."""
    started, wanted = time.perf_counter(), rewrite.options
    _check(data, wanted, trains := bool(wanted.epochs or wanted.settled().align))
    folder.mkdir(parents=True, exist_ok=True)
    sets = _Sets(rewrite, data, folder, progress)
    # While it is fitted all is rewritten; QTA's recipe does without the request.
    served = replace(wanted, utterance=wanted.utterance and wanted.preset != "qta", begin=Path(wanted.begin).name)
    rewrite.options = replace(served, share=1.0, begin=wanted.begin)
    course: dict[str, Any] = {}
    device, parameters = "cpu", 0
    if trains:
        course = _train(rewrite, data, sets, folder / GENERATOR_FOLDER, progress)
        device, parameters = course["supervised"]["device"], course["supervised"]["parameters"]
    dev: dict[str, float] = {}
    if any(one.dev for one in data) and (trains or 0 < wanted.share < 1):
        rewrite.take_costs()
        rewrite.wait_longer()
        judged = sets.judged()
        _refuse_silence(rewrite.take_costs(), len(judged.gains))
        rewrite.router = Router.fitted(judged.rows, judged.gains)
        dev = _mean(judged.scores) | {f"{name}, request alone": value for name, value in _mean(judged.alone).items()}
    if trains:
        rewrite.teach(folder / GENERATOR_FOLDER)
    rewrite.options = served
    problem = "" if wanted.llm == RULES else rewrite.rewriter.author.problem()
    notes = tuple(_notes(problem, dev, wanted.llm))
    report = FitReport(time.perf_counter() - started, device, parameters, dev, notes)
    if trains or rewrite.router:
        seen = TrainedOn.of(data) | (TrainedOn.load(Path(wanted.begin)) if wanted.begin else TrainedOn())
        if not trains:  # the train splits were not looked at
            seen = TrainedOn(tuple(one for one in seen.splits if one.role == "dev"))
        rewrite._seen |= seen
        rewrite._fit = asdict(report) | course
        if trains:
            rewrite._seen.save(folder / GENERATOR_FOLDER)
    rewrite.take_costs()
    rewrite.remove(rewrite.ids())
    rewrite.save(folder)
    sets.done()
    return report


def _refuse_silence(costs: Mapping[str, Any], requests: int) -> None:
    """What a model that failed did not write says nothing about which requests gain."""
    failed = int(costs["llm_failed"] or 0)
    if failed > requests / 2:
        raise BadModel(
            f"the language model failed for {failed} of {requests} dev requests ({costs.get('llm_problem')}), so which "
            "requests gain by rewriting cannot be learned; see to that first, or leave share at 1"
        )


def _notes(problem: str, dev: Mapping[str, float], llm: str = "") -> Iterator[str]:
    if problem:
        yield f"requests will be searched alone: {problem}"
    elif is_url(llm):
        host = host_of(checked_url(llm))
        yield f"whoever opens this model has to allow the host that it asks: {HOSTS_VARIABLE}={host}"
    both, alone = dev.get("recall@5", 0.0), dev.get("recall@5, request alone", 0.0)
    if both < alone:
        yield (
            f"on dev the request alone finds more (recall@5 {alone:.4f}, rewritten {both:.4f}): this part does better "
            "without rewriting; use it as it is, or rewrite only those that gain, with share below 1"
        )


def _check(data: Sequence[TrainingSet], options: RewriteOptions, trains: bool) -> None:
    if not data:
        raise BadModel("name at least one dataset to train on")
    if trains and options.llm:
        raise BadModel(
            "what is trained is a generator of its own: leave llm out, and name what it begins with as base; or set "
            "epochs=0 to use the language model as it is"
        )
    if options.begin and not trains:
        raise BadModel(
            "nothing would be trained of the generator that begin names: set align above 0 to align it, or epochs to "
            "teach it more; to write with it as it is, name it as llm and not as begin"
        )
    describes(options.begin)
    if (options.align_on or options.align_evenly) and not options.settled().align:
        raise BadModel("align_on and align_evenly say what is aligned with: set align above 0, or leave them out")
    names = sorted({one.dataset.name for one in data})
    if options.align_on and options.align_on not in names:
        raise BadModel(
            f"align_on names no dataset that is trained on: {options.align_on!r}; choose from {', '.join(names)}"
        )
    if 0 < options.share < 1 and not any(one.dev for one in data):
        raise BadDataset(
            "which requests gain by rewriting is learned on dev, and no dataset has one; name DATA:TRAIN:DEV"
        )


def _train(
    rewrite: Rewrite, data: Sequence[TrainingSet], sets: _Sets, folder: Path, progress: FitProgress | None
) -> dict[str, Any]:
    """Describe gold tools, then align."""
    try:
        from toolscout.training.text_generation import train_generator
    except ImportError as error:
        raise MissingExtra("training", "train") from error

    options, rewriter = rewrite.options, rewrite.rewriter
    rewriter.taught = True
    held = _held(data, options.held, options.seed)
    pairs = _pairs(rewriter.prompt, data, held)
    about = {"task": TASK, "settings": asdict(options) | {"begin": Path(options.begin).name}}

    def judge(pupil: Pupil) -> Mapping[str, float]:
        rewrite.teach(pupil.local())
        return _mean(sets.judged().scores)

    judges = judge if any(one.dev for one in data) else None
    rounds = options.settled().align
    train = sets.asked("train", held, options.align_on)
    if rounds and not train.requests:
        raise BadDataset("no request is left to align with; hold more tools out (held), or name another set (align_on)")
    taught = train_generator(
        options, lambda epoch: pairs, folder, about=about, judge=judges, progress=progress, keep=rounds > 0
    )
    course: dict[str, Any] = {"supervised": taught.report}
    if rounds:
        means = Means(
            prompts=lambda requests: [rewriter.prompt(request) for request in requests],
            parse=lambda request, text: list(query_text.parsed(text, request, options.queries).queries),
            ask=sets.ask,
            documents=list(rewriter.texts.values()),
        )
        dev = sets.asked("dev")
        course["align"] = align(
            taught.pupil,
            train,
            dev if dev.requests else None,
            means,
            options,
            options,
            folder,
            about=about | {"fit": taught.report},
            progress=progress,
        )
    rewrite.teach(taught.pupil.local())
    return course


def _held(data: Sequence[TrainingSet], share: float, seed: int) -> frozenset[str]:
    """A share of the tools that requests of the train splits need, by chance."""
    used = sorted({tool_id for one in data for gold in one.dataset.split(one.train).gold for tool_id in gold})
    drawn = np.random.default_rng([seed, len(used)]).permutation(len(used))[: round(share * len(used))]
    return frozenset(used[i] for i in drawn.tolist())


def _pairs(
    prompt: Callable[[str], Conversation], data: Sequence[TrainingSet], held: frozenset[str] = frozenset()
) -> list[Pair]:
    """Requests that need no tool that is held out, and a line for each tool that is gold."""
    pairs: list[Pair] = []
    for one in data:
        lines = {tool.id: " ".join(query_text.described(tool).split()[:_TARGET_WORDS]) for tool in one.dataset.tools}
        split = one.dataset.split(one.train)
        for (_, request), gold in zip(split.requests, split.gold, strict=True):
            if not held or held.isdisjoint(gold):
                pairs.append((prompt(request), "\n".join(lines[tool_id] for tool_id in sorted(gold))))
    if not pairs:
        raise BadDataset("the train splits hold no requests to learn from; name others, or hold fewer tools out (held)")
    return pairs


def _mean(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in found])) for name in _MEASURES} if found else {}
