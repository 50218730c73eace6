"""Measures an agent on recorded tool calls: which gold tools it calls, and with which arguments."""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from studies.agent_checkpoint import ReplayCheckpoint
from toolscout.agent.episode import Episode
from toolscout.agent.loop import USED_UP, Agent, AgentOptions
from toolscout.agent.model_loading import Models, is_own
from toolscout.agent.pickers import IdPicker, Picker, Search, ShortlistPicker, picks_itself
from toolscout.calling.dispatch import Arguments, CallResult, ToolCaller
from toolscout.core.tool import Tool
from toolscout.data import beir_files as files
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset, BadRequest, LanguageModelError
from toolscout.evaluation import evaluate, leakage, significance
from toolscout.evaluation.row import Row, provenance
from toolscout.evaluation.vector_cache import cached_vectors, encoder_of
from toolscout.llm.base import Completion, Conversation, LanguageModel, Schemas, Usage, complete_each, settled
from toolscout.retrievers.base import Retriever
from toolscout.scout import Progress, Scout
from toolscout.stores.sqlite.store import SqliteStore

CACHE = "cache.jsonl"
GOLD = "gold"
SHORTLIST = "shortlist:"
STUDY = "agent"
# Means over requests; those of arguments leave out requests that called nothing.
MEASURES = ("all_called", "gold_recall", "valid_arguments", "refused", "exact", "steps", "finished")


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded call: the tool, its arguments, and the response or error."""

    tool_id: str
    arguments: Arguments
    response: str
    error: str = ""


class RecordedCaller(ToolCaller):
    """Answers calls from recordings: the one with the same arguments, else the nearest of that tool (not exact).

    Names of arguments are compared as ToolBench's servers wrote them ("User-ID" is "user_id", "from" is "is_from"),
    values as text (5 is "5"). The nearest shares most names with their values, then most names, then most words of
    values; of equals the one that was recorded first.
    """

    def __init__(self, recordings: Iterable[Recording]) -> None:
        """Index them by tool and arguments."""
        self._by_tool: dict[str, list[tuple[dict[str, str], Recording]]] = {}
        self._exact: dict[tuple[str, str], Recording] = {}
        for one in recordings:
            plain = _plain(one.arguments)
            self._by_tool.setdefault(one.tool_id, []).append((plain, one))
            self._exact.setdefault((one.tool_id, json.dumps(plain, sort_keys=True)), one)

    def tool_ids(self) -> frozenset[str]:
        """The tools that have recordings."""
        return frozenset(self._by_tool)

    def call(self, calls: Sequence[tuple[Tool, Arguments]]) -> list[CallResult]:
        """The recorded result of each call."""
        return [self._call(tool.id, arguments) for tool, arguments in calls]

    def _call(self, tool_id: str, arguments: Arguments) -> CallResult:
        known = self._by_tool.get(tool_id)
        if known is None:
            return CallResult(False, "", "this tool does not answer: no call of it is recorded", exact=False)
        plain = _plain(arguments)
        exact = self._exact.get((tool_id, json.dumps(plain, sort_keys=True)))
        found = exact or max(known, key=lambda pair: _overlap(plain, pair[0]))[1]
        return CallResult(not found.error, found.response, found.error, exact=exact is not None)


_RESERVED = frozenset({"from", "class", "return", "false", "true", "id", "and"})


def _plain(arguments: Arguments) -> dict[str, str]:
    """Arguments by the names that the recording server knew, values as text."""
    found = {}
    for name, value in arguments.items():
        word = re.sub(r"_+", "_", re.sub(r"[^0-9A-Za-z\u4e00-\u9fa5]", "_", name)).strip("_").lower()
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        found[f"is_{word}" if word in _RESERVED else word] = text.strip()
    return found


def _overlap(asked: Mapping[str, str], recorded: Mapping[str, str]) -> tuple[int, int, int, int]:
    """How alike two calls are: equal arguments, shared names, words shared by values, and few names besides."""
    shared = asked.keys() & recorded.keys()
    words = sum(len({*asked[key].lower().split()} & {*recorded[key].lower().split()}) for key in shared)
    equal = sum(asked[key] == recorded[key] for key in shared)
    return equal, len(shared), words, -len(recorded.keys() ^ asked.keys())


class MeteredModel(LanguageModel):
    """Wraps a language model and sums up its use in `usage`."""

    def __init__(self, llm: LanguageModel) -> None:
        """Start with no use."""
        self.name, self.usage = llm.name, Usage()
        self._llm = llm

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        n: int = 1,
        temperature: float = 0.0,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        schema: Schemas = None,
    ) -> list[list[Completion]]:
        """Return the completions of the wrapped model and add their usage."""
        settings: dict[str, Any] = {"n": n, "temperature": temperature, "max_tokens": max_tokens}
        try:
            outcomes = complete_each(self._llm, conversations, **settings, stop=stop, schema=schema)
        except LanguageModelError as error:
            self.usage.add([one for one in error.each(len(conversations)) if isinstance(one, list)])
            raise
        self.usage.add([one for one in outcomes if not isinstance(one, LanguageModelError)])
        return settled(outcomes)


@dataclass(frozen=True, slots=True)
class ReplaySet:
    """The requests of a split whose gold tools all have recordings, and a caller that answers from the recordings.

    `of`: how many requests the split has; `recorded`: how many of them have all recordings.
    """

    dataset: Dataset
    split: str
    requests: tuple[tuple[str, str], ...]
    gold: tuple[tuple[str, ...], ...]
    of: int
    recorded: int
    caller: RecordedCaller

    def first(self, count: int | None) -> ReplaySet:
        """The first so many requests."""
        chosen = slice(None if count is None else count)
        return replace(self, requests=self.requests[chosen], gold=self.gold[chosen])


def read_recordings(folder: Path, tool_ids: Mapping[str, str]) -> list[Recording]:
    """The calls of cache.jsonl (or .gz): tool_id, arguments, response, error. `tool_ids`: by the ids used there."""
    path = files.find(folder, CACHE)
    if path is None:
        raise BadDataset(f"{folder} has no {CACHE} (or .gz) with recorded calls; name a folder such as stabletoolbench")
    found = []
    for number, text in files.lines(path):
        try:
            row = json.loads(text)
            tool_id, arguments, response = tool_ids[row["tool_id"]], row["arguments"], row["response"]
            error = row.get("error") or ""
        except (ValueError, KeyError, TypeError) as error_:
            raise BadDataset(f"{path} line {number}: no recording of a tool of corpus.jsonl ({error_!r:.80})") from None
        if not isinstance(arguments, dict) or not isinstance(response, str):
            raise BadDataset(f"{path} line {number}: arguments must be an object and response text")
        found.append(Recording(tool_id, arguments, response, str(error)))
    return found


def read_trial(folder: Path, split: str = "test") -> ReplaySet:
    """Open a folder with recorded calls."""
    dataset = evaluate.load_split(folder, split)
    known = {corpus_id: tool_id for tool_id, corpus_id in dataset.corpus_ids().items()}
    caller = RecordedCaller(read_recordings(folder, known))
    part, recorded = dataset.split(split), caller.tool_ids()
    chosen = [at for at, gold in enumerate(part.gold) if recorded.issuperset(gold)]
    requests, gold = tuple(part.requests[at] for at in chosen), tuple(part.gold[at] for at in chosen)
    return ReplaySet(dataset, split, requests, gold, len(part), len(chosen), caller)


def gold_search(trial: ReplaySet) -> Search:
    """Finds for each request just the tools that it needs."""
    tools = {tool.id: tool for tool in trial.dataset.tools}
    gold: dict[str, dict[str, None]] = {}
    for (_, text), ids in zip(trial.requests, trial.gold, strict=True):  # some requests are asked twice
        gold.setdefault(text, {}).update(dict.fromkeys(ids))
    return lambda requests, k: [[tools[tool_id] for tool_id in gold[request]] for request in requests]


def retriever_search(trial: ReplaySet, retriever: Retriever, k: int, progress: Progress | None = None) -> Search:
    """Finds what a retriever ranks first among all tools of the dataset; every request is searched at once."""
    tools = {tool.id: tool for tool in trial.dataset.tools}
    texts = [text for _, text in trial.requests]
    indexed(trial.dataset, retriever, progress)
    hits = retriever.search(texts, k)
    found = {text: [tools[hit.tool_id] for hit in few] for text, few in zip(texts, hits, strict=True)}
    return lambda requests, most: [found[request][:most] for request in requests]


def indexed(dataset: Dataset, retriever: Retriever, progress: Progress | None = None) -> None:
    """Let a retriever know all tools of a dataset; vectors come from the cache where it has them."""
    retriever.remove(sorted(set(retriever.ids()) - {tool.id for tool in dataset.tools}))
    encoder = encoder_of(retriever)
    digests = [tool.digest() for tool in dataset.tools] if encoder else []
    with (
        tempfile.TemporaryDirectory(prefix="toolscout-agent-") as folder,
        SqliteStore(Path(folder) / "store.db") as store,
        Scout(store, retriever) as scout,
        cached_vectors(store, encoder.fingerprint if encoder else "", digests),
    ):
        store.add(dataset.tools, dataset.name)
        scout.refresh()
        scout.embed(progress)


def scores(episode: Episode, gold: Sequence[str]) -> dict[str, float]:
    """Return the measures of one episode; those of arguments are NaN where no tool was picked."""
    called, steps = set(episode.called), episode.steps
    hit = len(called & set(gold))
    made = [step for step in steps if step.called]
    return {
        "all_called": float(hit == len(set(gold))),
        "gold_recall": hit / len(set(gold)),
        "valid_arguments": sum(step.valid for step in steps) / len(steps) if steps else math.nan,
        "refused": sum(not step.called for step in steps) / len(steps) if steps else math.nan,
        "exact": sum(step.exact for step in made) / len(made) if made else math.nan,
        "steps": float(len(steps)),
        "finished": float(episode.finish in ("answered", "gave_up") and episode.reason != USED_UP),
    }


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result row, the episodes behind it, and the scores of each request, which are written beside the row."""

    row: dict[str, Any]
    episodes: tuple[Episode, ...]
    lines: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Front:
    """The retrieval in front of an agent: its picker, and its name, variant and options for the result row.

    `picks`: "itself" for a model that generates tool ids, "shortlist" for a search whose results the agent is shown.
    """

    name: str
    picker: Picker
    variant: str = "default"
    options: Mapping[str, Any] | None = None
    encoder: str | None = None
    params: int = 0
    picks: str = "shortlist"


def language_model(trial: ReplaySet, spec: str, model: str, models: Models) -> LanguageModel:
    """The agent's language model; one of toolscout's own knows the ids of the trial's tools, and no request of it."""
    opened = models.language_model(spec, model)
    if is_own(spec):
        retriever, _ = models.retriever(spec)
        leakage.refuse_seen(trial.dataset, trial.split, evaluate.seen_by(spec, retriever))
        indexed(trial.dataset, retriever)
    return opened


def front(
    trial: ReplaySet,
    name: str,
    llm: LanguageModel,
    k: int = 5,
    *,
    models: Models | None = None,
    progress: Progress | None = None,
) -> Front:
    """A method by name, a model folder, or "gold".

    A model that writes tool ids and was trained on conversations picks by itself, unless the name begins with
    "shortlist:": then it is searched as any other. One that has seen requests of the split is refused (Leak).
    """
    if name == GOLD:
        return Front(GOLD, ShortlistPicker(gold_search(trial), llm, k))
    place = name.removeprefix(SHORTLIST)
    opened, variant = (models or Models()).retriever(place)
    leakage.refuse_seen(trial.dataset, trial.split, evaluate.seen_by(place, opened))
    encoder = encoder_of(opened)
    about = (asdict(opened.options), encoder.fingerprint if encoder else None, encoder.parameters if encoder else 0)
    if place == name and picks_itself(opened):
        indexed(trial.dataset, opened, progress)
        return Front(opened.name, IdPicker(opened), variant, *about, picks="itself")
    search = retriever_search(trial, opened, k, progress)
    if place != name:
        variant = "shortlist" if variant == "default" else f"shortlist_{variant}"
    return Front(opened.name, ShortlistPicker(search, llm, k), variant, *about)


def shown(name: str) -> str:
    """A front as rows and commands name it: without the path of one machine."""
    place = name.removeprefix(SHORTLIST)
    return name.removesuffix(place) + (Path(place).name if "/" in place else place)


def about(
    trial: ReplaySet,
    name: str,
    llm: LanguageModel,
    options: AgentOptions,
    k: int,
    trained: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the "study" field of a row: everything that the result depends on.

    `trained`: fingerprints of the front and of the language model where they are folders, which share names.
    """
    study: dict[str, Any] = {"name": STUDY, "front": shown(name), "llm": llm.name, "k": k}
    study |= {"requests": len(trial.requests), "recorded": trial.recorded, "of": trial.of}
    return study | {"agent": asdict(options), "models": dict(trained or {})}


def replay(
    trial: ReplaySet,
    before: Front,
    llm: MeteredModel,
    options: AgentOptions,
    *,
    told: Mapping[str, Any] | None = None,
    command: str = "",
    at_once: int = 64,
    kept: ReplayCheckpoint | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> ReplayResult | None:
    """Run the agent over all requests, so many at once, and sum up. One that fails scores 0, it is not skipped.

    `kept` has what an earlier run did and gets what this one does. None comes back where `stop` says so.
    """
    if not trial.requests:
        raise BadRequest("no request is left to replay: none has recordings of all tools that it needs")
    tools: dict[str, Tool] = {tool.id: tool for tool in trial.dataset.tools}
    agent = Agent(llm, before.picker, trial.caller, lambda ids: [tools[tool_id] for tool_id in ids], options)
    texts = [text for _, text in trial.requests]
    episodes, seconds = (list(kept.episodes), kept.seconds) if kept else ([], 0.0)
    llm.usage = kept.usage if kept else llm.usage
    while len(episodes) < len(texts):
        if stop():
            return None
        started = time.perf_counter()
        batch = agent.run(texts[len(episodes) : len(episodes) + at_once])
        took = time.perf_counter() - started
        episodes, seconds = [*episodes, *batch], seconds + took
        if kept:
            kept.add(batch, took, llm.usage)
    found = [scores(episode, gold) for episode, gold in zip(episodes, trial.gold, strict=True)]
    row = _row(trial, before, llm, found, seconds, command)
    lines = [
        {"id": request_id, "scene": trial.dataset.scene(request_id), "finish": episode.finish, **_numbers(one)}
        | {"gold": list(gold), "called": list(episode.called)}
        for (request_id, _), gold, episode, one in zip(trial.requests, trial.gold, episodes, found, strict=True)
    ]
    study = dict(told or about(trial, before.name, llm, options, 0)) | {"picks": before.picks}
    return ReplayResult(row | {"study": study}, tuple(episodes), tuple(lines))


def _row(
    trial: ReplaySet,
    before: Front,
    llm: MeteredModel,
    found: Sequence[Mapping[str, float]],
    seconds: float,
    command: str,
) -> dict[str, Any]:
    """Its variant names the language model first: the same front is measured with several."""
    values = np.array([[one[name] for name in MEASURES] for one in found])
    scenes = [trial.dataset.scene(request_id) for request_id, _ in trial.requests]
    counted = [at for at in range(len(MEASURES)) if not np.isnan(values[:, at]).all()]
    ends = significance.intervals(values[:, counted], scenes)
    names = [MEASURES[at] for at in counted]
    means = [round(float(np.nanmean(values[:, at])), 6) for at in counted]
    return Row(
        dataset=trial.dataset.name,
        digest=trial.dataset.digest(trial.split),
        split=trial.split,
        retriever=before.name,
        variant="_".join([llm.name, *([] if before.variant == "default" else [before.variant])]),
        options=dict(before.options or {}),
        seed=(before.options or {}).get("seed"),
        metrics=dict(zip(names, means, strict=True)),
        intervals=dict(zip(names, np.round(ends, 6).tolist(), strict=True)),
        timing={"seconds": round(seconds, 2), **llm.usage.row()},
        params=before.params,
        encoder=before.encoder,
        requests=len(found),
        failed=0,
        dropped=0,
        new_tools=None,
        **provenance(command),
    ).to_dict()


def _numbers(one: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else round(value, 6) for name, value in one.items()}
