"""Runs agents as published on recorded calls, keeps what they did, and measures it, with a judge or without one."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolscout.agent import judging
from toolscout.agent.checkpoint import ReplayCheckpoint
from toolscout.agent.episode import Episode
from toolscout.agent.model_loading import Models
from toolscout.agent.pickers import FreeIdPicker, IdPicker, Picker, ShortlistPicker, picks_itself
from toolscout.agent.recorded_calls import MEASURES, ReplaySet, gold_search, language_model, scores
from toolscout.core.option_values import with_settings
from toolscout.core.targets import is_address
from toolscout.errors import BadCompletion, BadModel, BadRequest
from toolscout.evaluation.row import RowDict
from toolscout.llm import SCRIPT, EndpointOptions, open_llm
from toolscout.llm.base import LanguageModel, Usage
from toolscout.llm.options import KEY_VARIABLE, checked_url
from toolscout.models.encoders.settings import split_name
from toolscout.papers.experiment import ExperimentContext, scored_row
from toolscout.papers.name_writer import NamePicker
from toolscout.papers.paper import AgentExperiment
from toolscout.papers.toolgen_agent import PublishedAgent, PublishedAgentOptions
from toolscout.retrievers.base import FitProgress

EPISODES = "episodes"
_STUDY = "published-agent"
_AT_ONCE = 64  # requests that go in lockstep


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What may follow the address of a chat model as ?KEY=VALUE&KEY=VALUE.

    model, key_variable: the name of the model, and the environment variable that has the key.
    offline: answer from what was recorded alone.
    """

    model: str = ""
    key_variable: str = KEY_VARIABLE
    offline: bool = False


def check_chat(spec: str) -> None:
    """Raise BadModel or BadRequest where `spec` is no language model that open_chat could open; none is loaded."""
    place, given = _read_chat(spec)
    if is_address(place):
        checked_url(place)
        if not given.model:
            raise BadRequest(f"the endpoint {place} needs the name of a model: write {place}?model=NAME")
    elif place not in ("", "smollm2") and not place.startswith(SCRIPT) and not Path(place).exists():
        raise BadRequest(f"there is no language model at {place}; name https://HOST/v1?model=NAME, or a folder")


def open_chat(spec: str, cache: Path | None = None) -> LanguageModel:
    """Open a language model as open_llm does; an endpoint as URL?model=NAME, its answers recorded in the file `cache`.

    Raises BadModel or BadRequest.
    """
    place, given = _read_chat(spec)
    if not is_address(place):
        return open_llm(spec)
    options = EndpointOptions(key_variable=given.key_variable, cache=cache, offline=given.offline)
    return open_llm(place, model=given.model, options=options)


def _read_chat(spec: str) -> tuple[str, ChatSettings]:
    place, settings = split_name(spec, "a chat model")
    return place, with_settings(ChatSettings(), "a chat model", settings)


def replayed(
    experiment: AgentExperiment,
    place: str,
    trial: ReplaySet,
    folder: Path,
    models: Models,
    progress: FitProgress | None = None,
) -> list[Episode]:
    """Let an agent work on all requests of a split; return its episodes. What it did before is read from `folder`.

    place: the folder of its model, or the name of the chat model; "smollm2" for SmolLM2.

    Raises BadCompletion where the model failed for all requests.
    """
    options = PublishedAgentOptions(thoughts=experiment.thoughts)
    about = {"model": models.fingerprint(place) or place, "options": _options(experiment), "split": trial.split}
    kept = ReplayCheckpoint(folder / EPISODES, about | {"digest": trial.dataset.digest(trial.split)})
    texts = [text for _, text in trial.requests]
    if len(kept.episodes) < len(texts):
        llm, picker = _opened(experiment, place, trial, models)
        tools = {tool.id: tool for tool in trial.dataset.tools}
        agent = PublishedAgent(llm, picker, trial.caller, lambda ids: [tools[one] for one in ids], options)
        while len(kept.episodes) < len(texts):
            started = time.perf_counter()
            batch = agent.run(texts[len(kept.episodes) : len(kept.episodes) + _AT_ONCE])
            if all(one.finish == "model_failed" for one in batch):
                raise BadCompletion(f"the agent's model failed for {len(batch)} requests ({batch[-1].reason})")
            kept.add(batch, time.perf_counter() - started, Usage())
            if progress:
                progress(f"{experiment.name}, {trial.split}", len(kept.episodes), len(texts))
    return kept.episodes


def _opened(experiment: AgentExperiment, place: str, trial: ReplaySet, models: Models) -> tuple[LanguageModel, Picker]:
    if experiment.names:
        llm = open_llm(place)
        return llm, NamePicker(llm, trial.dataset.tools)
    if experiment.model is None:
        llm = open_chat(place)
        return llm, ShortlistPicker(gold_search(trial), llm)
    llm = language_model(trial, place, "", models)
    retriever, _ = models.retriever(place)
    if not picks_itself(retriever):
        raise BadModel(f"{place} has learned no trajectories; train it with --option trajectories=FILE")
    return llm, FreeIdPicker(retriever) if experiment.decoding == "free" else IdPicker(retriever)


def call_measures(trial: ReplaySet, episodes: Sequence[Episode]) -> dict[str, list[float]]:
    """Return what is measured without a judge, of each request: which gold tools were called, and with what."""
    found = [scores(episode, gold) for episode, gold in zip(episodes, trial.gold, strict=True)]
    return {name: [one[name] for one in found] for name in MEASURES} | {"invented": [*map(_invented, episodes)]}


def _invented(episode: Episode) -> float:
    """Return the share of the tools named by an agent that there are not; NaN where it named none."""
    return sum(step.invented for step in episode.steps) / len(episode.steps) if episode.steps else math.nan


def judged_measures(
    experiment: AgentExperiment, judge: LanguageModel, episodes: Sequence[Episode], reference: Sequence[Episode]
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return SoPR or SoWR of each request, and what has to be known of the judgements."""
    passed = judging.pass_rate(judge, episodes)
    about = {"judge": judge.name, "times": judging.TIMES, "unjudged": passed.unjudged}
    if experiment.judged == "sopr":
        return {"sopr": passed.scores}, about | {"deviation": round(passed.deviation, 6)}
    won = judging.win_rate(judge, episodes, reference, passed, judging.pass_rate(judge, reference))
    values = {
        "sowr": [float(one == "first") for one in won.verdicts],
        "ties": [float(one == "tie") for one in won.verdicts],
    }
    return values, about | {"against": experiment.reference.name if experiment.reference else ""}


def make_row(
    experiment: AgentExperiment,
    seed: int | None,
    trial: ReplaySet,
    measured: Mapping[str, Sequence[float]],
    about: Mapping[str, Any],
    command: str,
) -> tuple[RowDict, list[dict[str, Any]]]:
    """Return the row of a split, and a line for each of its requests. NaN leaves a request out of a mean."""
    context = ExperimentContext(
        study={"name": _STUDY, "recorded": trial.recorded, "of": trial.of, **about},
        variant=experiment.name if seed is None else f"{experiment.name}-s{seed}",
        seed=seed,
        command=command,
    )
    ids = [request_id for request_id, _ in trial.requests]
    options = _options(experiment)
    found = scored_row(trial.dataset, trial.split, ids, measured, context, experiment.retriever, options)
    return found.row, found.lines


def _options(experiment: AgentExperiment) -> dict[str, Any]:
    """Return the options of an agent, as rows and kept episodes have them; decoding where it is not the usual one."""
    free = {} if experiment.decoding == "constrained" else {"decoding": experiment.decoding}
    return asdict(PublishedAgentOptions(thoughts=experiment.thoughts)) | free
