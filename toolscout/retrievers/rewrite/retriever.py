"""rewrite: a language model writes queries for a request; their rankings are interleaved with the request's own."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from toolscout.core.answer import SEARCHED_ALONE, Allowed, Cost, Hit, Reason, RewrittenQuery
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.targets import is_address
from toolscout.core.tool import Searchable, Tool
from toolscout.data import metrics
from toolscout.errors import BadDataset, BadModel, BadRequest, MissingEncoder, MissingExtra
from toolscout.llm import LanguageModel
from toolscout.llm.base import Conversation
from toolscout.llm.finetuned import is_finetuned
from toolscout.llm.hosts import HOSTS_VARIABLE, host_of
from toolscout.llm.options import checked_url
from toolscout.models.encoders.base import TextEncoder
from toolscout.retrievers.base import FitProgress, FitReport, Pairs, Ranking, Retriever, Vectors, check_k
from toolscout.retrievers.encoded_requests import Encoding
from toolscout.retrievers.model_folder import read_model, read_options, write_model
from toolscout.retrievers.over_one_part import OverOnePart
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.rewrite import query_text
from toolscout.retrievers.rewrite.alignment import LabelledRequests, RankingSteps, align
from toolscout.retrievers.rewrite.rewriter import (
    RULES,
    TASK,
    RewriteOptions,
    Rewriter,
    WrittenQueries,
    describes,
    owners,
    placed,
)
from toolscout.retrievers.rewrite.router import Router, features

if TYPE_CHECKING:
    from toolscout.training.text_generation import Pair, TrainableWriter

FINETUNED_FOLDER = "generator"
_TEXTS_FILE = "texts.json"
_FIRST = 10  # tools of the request's own ranking that the router looks at
_NO_ROUTER = (
    "nothing was trained that says which requests gain by rewriting, so all are rewritten; run: toolscout train"
)

_K = 5
_DEEP = 100  # length of rankings when the reward is a rank
_MEASURES = ("recall@5", "comp@5", "ndcg@5", "recall@3", "comp@3")
_JUDGED = 500  # most requests of a dev split that are used


class SubRequestHits(NamedTuple):
    """A sub-request and the tools for it; the request itself if it was not split."""

    sub_request: str
    hits: list[Hit]


class QueryRankings(NamedTuple):
    """The rankings behind an interleaved one: the request's own, those of its queries, and the length of each."""

    alone: Ranking
    lists: dict[str, Ranking]
    depth: int


class Rewrite(OverOnePart):
    """Searches with its one part for the request and for written queries, and interleaves the rankings.

    If the model fails, only the request is searched, and a note says why. Scores depend on the position alone. For a
    caller with permissions, the order is that of the full catalogue; below `depth`, tools follow the request's own
    ranking.
    """

    name: ClassVar[str] = "rewrite"
    trainable: ClassVar[bool] = True

    def __init__(
        self,
        options: RewriteOptions | None = None,
        parts: Sequence[Retriever] | None = None,
        llm: LanguageModel | None = None,
        *,
        home: Path | None = None,
    ) -> None:
        """Search with this part, a hybrid by default; `llm`: a model that is already open.

        `home`: the model folder, if the options come from one. An endpoint that it names is called only if its host is
        in $TOOLSCOUT_LLM_HOSTS, and `cache` must be a file in that folder.
        """
        own = options or RewriteOptions()
        self.rewriter, self._home = Rewriter(own, home), home
        super().__init__(own, parts)
        if llm is not None:
            self.rewriter.author.use(llm)
        self.router: Router | None = None
        self.trained_on = TrainedOn.load(Path(own.llm)) if self.rewriter.taught else TrainedOn()
        self._generator: Path | None = None

    @property  # type: ignore[override]
    def options(self) -> RewriteOptions:
        """The options, which the rewriter holds."""
        return self.rewriter.options

    @options.setter
    def options(self, options: RewriteOptions) -> None:
        """Replace the options; the language model stays."""
        self.rewriter.options = options

    @property
    def index_part(self) -> None:
        """None: it holds a line about each tool, and a saved one asks no endpoint that only its folder names."""
        return None

    # Tools, which the part holds.

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Hand tools to the part, and keep a one-line description of each."""
        self.part.add(tools, vectors)
        self.rewriter.add(tools)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools."""
        self.part.remove(ids)
        self.rewriter.remove(ids)

    @property
    def rewrites(self) -> bool:
        """Always true."""
        return True

    @property
    def language_parameters(self) -> int:
        """How many parameters its language model and its part's have."""
        return self.rewriter.author.parameters + self.part.language_parameters

    # Search.

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """Interleave the rankings of each request and of its queries."""
        check_k(k)
        if not len(self) or not requests:
            return [Ranking(request, scope, []) for request in requests]
        rankings = self.ranked(requests, self._deep(k, scope), scope)
        asked = self.asked(requests, rankings, k, scope)
        self._search(asked, rankings, k, scope)
        spent = set[int]()
        return [
            self._ranking(request, one, rankings, k, scope, spent) for request, one in zip(requests, asked, strict=True)
        ]

    def _ranking(
        self,
        request: str,
        asked: WrittenQueries,
        rankings: Mapping[str, Ranking],
        k: int,
        scope: Scope,
        spent: set[int],
    ) -> Ranking:
        alone, lists = rankings[request], {query: rankings[query] for query in asked.queries}
        searched = [alone, *lists.values()]
        # Requests in a batch may be equal or share a query: each cost is counted once.
        written = replace(asked.cost, rewritten=int(bool(asked.queries)))
        costs = {id(asked): written, **{id(one): one.cost for one in searched}}
        own = [cost for key, cost in costs.items() if key not in spent]
        spent.update(costs)
        notes = [f"{SEARCHED_ALONE}: {asked.problem}"] if asked.problem else []
        notes += [_NO_ROUTER] if 0 < self.options.share < 1 and self.router is None else []
        return Ranking(
            request,
            scope,
            self._best(alone, lists, k, scope),
            vector=alone.vector,
            need=alone.need,
            queries=tuple(dict.fromkeys([*asked.queries, *alone.queries])),
            notes=tuple(dict.fromkeys([*notes, *(note for one in searched for note in one.notes)])),
            cost=Cost.total([Cost(), *own]),
            named=alone.named,
            evidence=QueryRankings(alone, lists, self._deep(k, scope)),
        )

    def extend(self, ranking: Ranking, k: int, scope: Scope) -> Pairs:
        """The best k of the tools allowed, for a ranked request; for the same caller no queries are written again."""
        if ranking.evidence is None or not scope.same_caller(ranking.scope):
            return super().extend(ranking, k, scope)
        found: QueryRankings = ranking.evidence
        deep = self._deep(k, scope)
        if deep > found.depth:
            for one in (found.alone, *found.lists.values()):
                known = set(one.ids())
                one.pairs += [pair for pair in self.part.extend(one, deep, one.scope) if pair[0] not in known]
            ranking.evidence = found._replace(depth=deep)
        return self._best(found.alone, found.lists, k, scope)

    def explain(self, ranking: Ranking, ids: Sequence[str]) -> list[tuple[Reason, ...]]:
        """The reasons of the part, and the query that found each tool."""
        if ranking.evidence is None:
            return [() for _ in ids]
        found: QueryRankings = ranking.evidence
        lists = {query: one.pairs for query, one in found.lists.items()}
        owner = owners(found.alone.pairs, lists, self.options.utterance)
        reasons = zip([owner.get(tool_id, "") for tool_id in ids], self.part.explain(found.alone, ids), strict=True)
        return [(*why, RewrittenQuery(query)) if query else why for query, why in reasons]

    def ranked(self, texts: Sequence[str], k: int, scope: Scope = EVERYTHING) -> dict[str, Ranking]:
        """The part's full ranking of each text, all searched in one batch."""
        distinct = list(dict.fromkeys(texts))
        rankings = self.part.rank(distinct, k, scope.of_all()) if distinct else []
        for ranking in rankings:
            self.part.put_named_first(ranking, k)
        return dict(zip(distinct, rankings, strict=True))

    def asked(
        self, requests: Sequence[str], rankings: dict[str, Ranking], k: int, scope: Scope = EVERYTHING
    ) -> list[WrittenQueries]:
        """The queries of each request, all written in one batch.

        `rankings`: of the requests; rankings of queries that are searched on the way are added to it.
        """
        distinct = [one for one in dict.fromkeys(requests) if one.strip() and not self.names.is_name(one, scope.sees)]
        due = self._worth(distinct, rankings, scope)
        shown = replace(scope, allowed=scope.sees)  # tools are shown to the model, so only visible ones

        def found(texts: Sequence[str], asked: Sequence[WrittenQueries], few: int) -> list[list[str]]:
            self._search(asked, rankings, k, scope)
            return self.fused(texts, asked, few, shown, rankings)

        written = dict(zip(due, self.rewriter.asked(due, scope, found), strict=True))
        return [written.get(request, WrittenQueries()) for request in requests]

    def fused(
        self,
        requests: Sequence[str],
        asked: Sequence[WrittenQueries],
        k: int,
        scope: Scope = EVERYTHING,
        rankings: dict[str, Ranking] | None = None,
    ) -> list[list[str]]:
        """The best k tools of each request, given its queries; `rankings`: of requests and queries, if known."""
        if rankings is None:
            rankings = self.ranked(requests, self._deep(k, scope), scope)
            self._search(asked, rankings, k, scope)
        found = []
        for text, own in zip(requests, asked, strict=True):
            best = self._best(rankings[text], {query: rankings[query] for query in own.queries}, k, scope)
            found.append([tool_id for tool_id, _ in best])
        return found

    def _search(self, asked: Sequence[WrittenQueries], rankings: dict[str, Ranking], k: int, scope: Scope) -> None:
        """Search the queries that have no ranking yet, and add theirs to `rankings`."""
        queries = [query for one in asked for query in one.queries if query not in rankings]
        rankings.update(self.ranked(queries, self._deep(k, scope), scope))

    def _worth(self, requests: Sequence[str], rankings: Mapping[str, Ranking], scope: Scope) -> list[str]:
        """The requests that are to be rewritten."""
        share = self.options.share
        if share == 0 or not requests:
            return []
        if share == 1 or self.router is None:
            return list(requests)
        sees = scope.sees
        seen = {
            text: [one for one in rankings[text].pairs if sees is None or sees.permits(one[0])] for text in requests
        }
        worth = self.router.worth([self.features(request, seen[request]) for request in requests], share)
        return [request for request, chosen in zip(requests, worth, strict=True) if chosen]

    def features(self, request: str, ranking: Pairs) -> list[float]:
        """The router's features of a request, given its own ranking."""
        return features(request, ranking, [self.rewriter.texts.get(tool_id, "") for tool_id, _ in ranking[:_FIRST]])

    def _deep(self, k: int, scope: Scope) -> int:
        """How long rankings must be; longer for a caller who may not see all of the tools."""
        depth = self.options.depth
        return depth if scope.sees is not None else max(min(k, depth), min(_FIRST, depth))

    def _best(self, alone: Ranking, lists: Mapping[str, Ranking], k: int, scope: Scope) -> Pairs:
        """The tools that the request names, the interleaved rankings, and below them the request's own ranking."""
        rankings = {query: one.pairs for query, one in lists.items()}
        found = owners(alone.pairs, rankings, self.options.utterance, k if scope.allowed is None else None)
        if scope.allowed is not None:
            found = {tool_id: query for tool_id, query in found.items() if scope.permits(tool_id)}
        if len(found) < k:
            for tool_id, _ in self.part.extend(alone, k, scope):
                found.setdefault(tool_id, "")
        return placed(list(found)[:k], alone.pairs)

    def grouped(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[list[SubRequestHits]]:
        """The best k tools of each sub-request, or of the request if it was not split."""
        check_k(k)
        if not len(self) or not requests:
            return [[] for _ in requests]
        asked = self.asked(requests, self.ranked(requests, self._deep(k, scope), scope), k, scope)
        queries = [one.queries or (request,) for request, one in zip(requests, asked, strict=True)]
        distinct = list(dict.fromkeys(query for few in queries for query in few))
        hits = dict(zip(distinct, self.part.search(distinct, k, scope), strict=True))
        return [[SubRequestHits(query, hits[query]) for query in few] for few in queries]

    # Training and files.

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Fine-tune a model to describe gold tools, align it with the part, and learn which requests gain by it."""
        return fit(self, data, folder, progress)

    def teach(self, llm: LanguageModel | Path) -> None:
        """Use a fine-tuned model from now on: an open one, or the folder of one."""
        self.rewriter.taught = True
        if isinstance(llm, Path):
            self._generator = llm
            self.rewriter.author.point(llm)
        else:
            self.rewriter.author.use(llm)

    def save(self, folder: Path) -> None:
        """Write the part and the fine-tuned model into folders of their own."""
        name, home = f"0-{self.part.name}", folder / FINETUNED_FOLDER
        self.part.save(folder / name)
        if self._generator is not None and self._generator.resolve() != home.resolve():
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(self._generator, home)
        if self.trained_on.splits:
            self.trained_on.save(folder)
        (folder / _TEXTS_FILE).write_text(json.dumps(self.rewriter.texts))
        extra: dict[str, Any] = {"router": asdict(self.router)} if self.router else {}
        options = asdict(self.options) | {"cache": self._saved_cache(folder)}
        write_model(folder, self, parts={name: self.part.name}, options=options, **extra)

    def _saved_cache(self, folder: Path) -> str:
        """The cache's path relative to the model folder; "" for a file elsewhere."""
        cache = self.options.cache
        if not cache or self._home is not None:
            return cache
        file, root = Path(cache).resolve(), folder.resolve()
        return str(file.relative_to(root)) if file.is_relative_to(root) else ""

    @classmethod
    def load(cls, folder: Path, encoder: TextEncoder | None = None) -> Self:
        """Open a saved model; its language model is opened on first use."""
        model = read_model(folder)
        options = read_options(RewriteOptions, model)
        parts = [load_model(folder / name, encoder) for name in model.get("parts", {})]
        try:
            loaded = cls(options, parts, home=folder)
        except BadRequest as error:
            raise BadModel(f"{folder} names an endpoint that cannot be used: {error}") from None
        loaded.trained_on |= TrainedOn.load(folder)
        loaded.fit_record = model.get("fit")
        loaded.router = Router.read(model["router"]) if model.get("router") else None
        try:
            loaded.rewriter.know(dict(json.loads((folder / _TEXTS_FILE).read_text())))
        except (OSError, ValueError, TypeError) as error:
            raise BadModel(f"{folder / _TEXTS_FILE} cannot be read ({error}); build the index again") from None
        if not loaded.options.llm and is_finetuned(folder / FINETUNED_FOLDER):
            loaded.teach(folder / FINETUNED_FOLDER)
        return loaded


def fit(rewrite: Rewrite, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None) -> FitReport:
    """Fine-tune the language model if the options say so, fit the router, and save a complete model in the folder."""
    started, wanted = time.perf_counter(), rewrite.options
    _check(data, wanted, trains := bool(wanted.epochs or wanted.with_preset().align))
    folder.mkdir(parents=True, exist_ok=True)
    sets = _DatasetSearch(rewrite, data, folder, progress)
    # All requests are rewritten during the fit; the preset "qta" does not search the request itself.
    served = replace(
        wanted, utterance=wanted.utterance and wanted.preset != "qta", init_from=Path(wanted.init_from).name
    )
    rewrite.options = replace(served, share=1.0, init_from=wanted.init_from)
    course: dict[str, Any] = {}
    device, parameters = "cpu", 0
    if trains:
        course = _train(rewrite, data, sets, folder / FINETUNED_FOLDER, progress)
        device, parameters = course["supervised"]["device"], course["supervised"]["parameters"]
    dev: dict[str, float] = {}
    if any(one.dev for one in data) and (trains or 0 < wanted.share < 1):
        judged = sets.judged()
        _refuse_silence(judged.cost, len(judged.gains))
        rewrite.router = Router.fitted(judged.rows, judged.gains)
        dev = _mean(judged.scores) | {f"{name}, request alone": value for name, value in _mean(judged.alone).items()}
    if trains:
        rewrite.teach(folder / FINETUNED_FOLDER)
    rewrite.options = served
    problem = "" if wanted.llm == RULES else rewrite.rewriter.author.problem()
    notes = tuple(_notes(problem, dev, wanted.llm))
    report = FitReport(time.perf_counter() - started, device, parameters, dev, notes)
    if trains or rewrite.router:
        seen = TrainedOn.of(data) | (TrainedOn.load(Path(wanted.init_from)) if wanted.init_from else TrainedOn())
        if not trains:  # the train splits were not used
            seen = TrainedOn(tuple(one for one in seen.splits if one.role == "dev"))
        rewrite.trained_on |= seen
        rewrite.fit_record = asdict(report) | course
        if trains:
            rewrite.trained_on.save(folder / FINETUNED_FOLDER)
    rewrite.remove(rewrite.ids())
    rewrite.save(folder)
    sets.done()
    return report


def _refuse_silence(cost: Cost, requests: int) -> None:
    """Raise BadModel if the model failed for most requests: then the gains cannot be learned."""
    if cost.failed > requests / 2:
        raise BadModel(
            f"the language model failed for {cost.failed} of {requests} dev requests ({cost.problem}), so which "
            "requests gain by rewriting cannot be learned; see to that first, or leave share at 1"
        )


def _notes(problem: str, dev: Mapping[str, float], llm: str = "") -> Iterator[str]:
    if problem:
        yield f"requests will be searched alone: {problem}"
    elif is_address(llm):
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
            "training fine-tunes a new model: leave llm out, and name the model to start from as base; or set epochs=0 "
            "to use the language model as it is"
        )
    if options.init_from and not trains:
        raise BadModel(
            "the fine-tuned model that init_from names would not be trained: set align above 0 to align it, or epochs "
            "above 0 to fine-tune it further; to use it as it is, name it as llm and not as init_from"
        )
    describes(options.init_from)
    if (options.align_on or options.align_evenly) and not options.with_preset().align:
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
    rewrite: Rewrite, data: Sequence[TrainingSet], sets: _DatasetSearch, folder: Path, progress: FitProgress | None
) -> dict[str, Any]:
    """Fine-tune to describe gold tools, then align; returns the records of both."""
    try:
        from toolscout.training.text_generation import finetune
    except ImportError as error:
        raise MissingExtra("training", "train") from error

    options, rewriter = rewrite.options, rewrite.rewriter
    rewriter.taught = True
    held = _held(data, options.held_out_share, options.seed)
    pairs = _pairs(rewriter.prompt, data, held, options.target_words)
    about = {"task": TASK, "settings": asdict(options) | {"init_from": Path(options.init_from).name}}

    def judge(model: TrainableWriter) -> Mapping[str, float]:
        rewrite.teach(model.local())
        return _mean(sets.judged().scores)

    judges = judge if any(one.dev for one in data) else None
    rounds = options.with_preset().align
    train = sets.asked("train", held, options.align_on)
    if rounds and not train.requests:
        raise BadDataset("no request is left to align with; raise held_out_share, or name another set (align_on)")
    taught = finetune(
        options, lambda epoch: pairs, folder, about=about, judge=judges, progress=progress, keep=rounds > 0
    )
    course: dict[str, Any] = {"supervised": taught.report}
    if rounds:
        means = RankingSteps(
            prompts=lambda requests: [rewriter.prompt(request) for request in requests],
            parse=lambda request, text: list(rewriter.parsed(text, request).queries),
            ask=sets.ask,
            documents=list(rewriter.texts.values()),
        )
        dev = sets.asked("dev")
        course["align"] = align(
            taught.model,
            train,
            dev if dev.requests else None,
            means,
            options,
            options,
            folder,
            about=about | {"fit": taught.report},
            progress=progress,
        )
    rewrite.teach(taught.model.local())
    return course


def _held(data: Sequence[TrainingSet], share: float, seed: int) -> frozenset[str]:
    """A random share of the tools that train requests need."""
    used = sorted({tool_id for one in data for gold in one.dataset.split(one.train).gold for tool_id in gold})
    drawn = np.random.default_rng([seed, len(used)]).permutation(len(used))[: round(share * len(used))]
    return frozenset(used[i] for i in drawn.tolist())


def _pairs(
    prompt: Callable[[str], Conversation],
    data: Sequence[TrainingSet],
    held: frozenset[str] = frozenset(),
    target_words: int = 16,
) -> list[Pair]:
    """Training pairs: the prompt of a request, and a line for each gold tool; without requests of held-out tools."""
    pairs: list[Pair] = []
    for one in data:
        lines = {tool.id: _target(tool, target_words) for tool in one.dataset.tools}
        split = one.dataset.split(one.train)
        for (_, request), gold in zip(split.requests, split.gold, strict=True):
            if not held or held.isdisjoint(gold):
                pairs.append((prompt(request), "\n".join(lines[tool_id] for tool_id in sorted(gold))))
    if not pairs:
        raise BadDataset("the train splits hold no requests to learn from; name others, or lower held_out_share")
    return pairs


def _target(tool: Tool, words: int) -> str:
    """The line about a gold tool that is learned: so many words, or all; long ones are slow to write."""
    whole = query_text.described(tool).split()[:words] if words else [query_text.whole_description(tool)]
    return " ".join(whole)


def _mean(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in found])) for name in _MEASURES} if found else {}


@dataclass(slots=True)
class _DevComparison:
    """Dev requests searched alone and rewritten: features, gains in NDCG@5, and the scores of both."""

    rows: list[list[float]] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    scores: list[dict[str, float]] = field(default_factory=list)
    alone: list[dict[str, float]] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)


class _DatasetSearch:
    """Indexes the tools of all datasets, and searches requests among the tools of their own dataset."""

    def __init__(
        self, rewrite: Rewrite, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None
    ) -> None:
        self._rewrite, self._data = rewrite, data
        self._encoding: Encoding | None = None
        rewrite.remove(rewrite.ids())
        tools = list({tool.id: tool for one in data for tool in one.dataset.tools}.values())
        with suppress(MissingEncoder):  # without an encoder only words are searched, as later in use
            if (encoder := rewrite.encoder) is not None:
                self._encoding = Encoding(encoder, folder, progress)
        rewrite.add(tools, self._encoding.documents(tools) if self._encoding else {})
        self._among = [Scope(endpoints="wait")]
        if len(data) > 1:
            each = [Allowed.of(ids=(tool.id for tool in one.dataset.tools)) for one in data]
            self._among = [Scope(among, endpoints="wait") for among in each]

    def done(self) -> None:
        """Remove cached vectors: the model is complete."""
        if self._encoding is not None:
            self._encoding.done()

    def asked(self, role: str, needed: frozenset[str] = frozenset(), of: str = "") -> LabelledRequests:
        """Labelled requests of the train or dev splits: of one dataset (`of`), or that need a tool of `needed`."""
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
        return LabelledRequests(requests, gold, homes)

    def ask(self, requests: Sequence[str], queries: Sequence[Sequence[str]], homes: Sequence[int]) -> list[list[str]]:
        """The tools found with these queries, each request among the tools of its dataset."""
        found: list[list[str]] = [[] for _ in requests]
        k = _DEEP if self._rewrite.options.with_preset().reward == "rank" else _K
        for number, among in enumerate(self._among):
            places = [i for i, home in enumerate(homes) if len(self._among) == 1 or home == number]
            few, asked = [requests[i] for i in places], [WrittenQueries(tuple(queries[i])) for i in places]
            for place, tools in zip(places, self._rewrite.fused(few, asked, k, among), strict=True):
                found[place] = list(tools)
        return found

    def judged(self) -> _DevComparison:
        """Search dev requests alone and rewritten by the current model."""
        found, rewrite = _DevComparison(), self._rewrite
        for number, one in enumerate(self._data):
            if not one.dev:
                continue
            among, split = self._among[number], one.dataset.split(one.dev)
            step = max(1, len(split.requests) // _JUDGED)
            texts, gold = [text for _, text in split.requests[::step]], split.gold[::step]
            alone = rewrite.fused(texts, [WrittenQueries()] * len(texts), 2 * _K, among)
            rewritten = rewrite.rank(texts, 2 * _K, among)
            found.cost += Cost.total(one.cost for one in rewritten) or Cost()
            better = [one.ids() for one in rewritten]
            rankings = rewrite.part.rank(texts, 2 * _K, among)
            found.rows += [rewrite.features(one.request, one.pairs) for one in rankings]
            pairs = zip(better, alone, gold, strict=True)
            found.gains += [metrics.ndcg(b, g, _K) - metrics.ndcg(a, g, _K) for b, a, g in pairs]
            found.scores.append(metrics.evaluate(better, gold, list(_MEASURES)))
            found.alone.append(metrics.evaluate(alone, gold, list(_MEASURES)))
        return found
