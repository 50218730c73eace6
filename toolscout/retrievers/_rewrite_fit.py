"""Trains what rewrite writes with: gold tools described, alignment with the part, and which requests gain by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolscout import metrics
from toolscout.answer import Allowed
from toolscout.errors import BadDataset, BadModel, MissingEncoder, MissingExtra
from toolscout.llm._options import checked_url
from toolscout.llm.base import Conversation
from toolscout.llm.hosts import HOSTS_VARIABLE, host_of
from toolscout.retrievers import _queries
from toolscout.retrievers._aligning import Asked, Means, align
from toolscout.retrievers._author import is_url
from toolscout.retrievers._requests import Encoding
from toolscout.retrievers._rewriting import RULES, TASK, Asking, RewriteOptions, describes
from toolscout.retrievers._router import Router
from toolscout.retrievers.base import Embedded, FitProgress, FitReport, TrainedOn, TrainingSet

if TYPE_CHECKING:
    from toolscout.retrievers.rewrite import Rewrite
    from toolscout.training.generating import Pair, Pupil

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


def fit(rewrite: Rewrite, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None) -> FitReport:
    """Train the generator where there is anything to train, then the router, and leave a complete model."""
    from toolscout.retrievers.rewrite import GENERATOR_FOLDER

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
        from toolscout.training.generating import train_generator
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
            parse=lambda request, text: list(_queries.parsed(text, request, options.queries).queries),
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
        lines = {tool.id: " ".join(_queries.described(tool).split()[:_TARGET_WORDS]) for tool in one.dataset.tools}
        split = one.dataset.split(one.train)
        for (_, request), gold in zip(split.requests, split.gold, strict=True):
            if not held or held.isdisjoint(gold):
                pairs.append((prompt(request), "\n".join(lines[tool_id] for tool_id in sorted(gold))))
    if not pairs:
        raise BadDataset("the train splits hold no requests to learn from; name others, or hold fewer tools out (held)")
    return pairs


def _mean(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in found])) for name in _MEASURES} if found else {}


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
