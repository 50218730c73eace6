"""Measures an agent on recorded tool calls: which gold tools it calls, and with which arguments."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolscout.agent.checkpoint import ReplayCheckpoint
from toolscout.agent.episode import Episode
from toolscout.agent.loop import Agent, AgentOptions
from toolscout.agent.model_loading import Models
from toolscout.agent.pickers import IdPicker, Picker, Search, ShortlistPicker, picks_itself
from toolscout.agent.recorded_calls import MEASURES, ReplaySet, gold_search, indexed, scores
from toolscout.core.tool import Tool
from toolscout.errors import BadRequest, LanguageModelError
from toolscout.evaluation import evaluate, leakage, significance
from toolscout.evaluation.row import Row, provenance
from toolscout.evaluation.vector_cache import encoder_of
from toolscout.llm.base import Completion, Conversation, LanguageModel, Schemas, Usage, complete_each, settled
from toolscout.retrievers.base import Retriever
from toolscout.scout import Progress

GOLD = "gold"
SHORTLIST = "shortlist:"
STUDY = "agent"


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


def retriever_search(trial: ReplaySet, retriever: Retriever, k: int, progress: Progress | None = None) -> Search:
    """Finds what a retriever ranks first among all tools of the dataset; every request is searched at once."""
    tools = {tool.id: tool for tool in trial.dataset.tools}
    texts = [text for _, text in trial.requests]
    indexed(trial.dataset, retriever, progress)
    hits = retriever.search(texts, k)
    found = {text: [tools[hit.tool_id] for hit in few] for text, few in zip(texts, hits, strict=True)}
    return lambda requests, most: [found[request][:most] for request in requests]


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
