"""Recorded tool calls: requests whose gold tools all have recordings, and a caller that answers from them."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolscout.agent.episode import Episode
from toolscout.agent.loop import USED_UP
from toolscout.agent.model_loading import Models, is_own
from toolscout.agent.pickers import Search
from toolscout.calling.dispatch import Arguments, CallResult, ToolCaller
from toolscout.core.tool import Tool
from toolscout.data import beir_files as files
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset
from toolscout.evaluation import evaluate, leakage
from toolscout.evaluation.vector_cache import cached_vectors, encoder_of
from toolscout.llm.base import LanguageModel
from toolscout.retrievers.base import Retriever
from toolscout.scout import Progress, Scout
from toolscout.stores.sqlite.store import SqliteStore

CACHE = "cache.jsonl"
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


def language_model(trial: ReplaySet, spec: str, model: str, models: Models) -> LanguageModel:
    """The agent's language model; one of toolscout's own knows the ids of the trial's tools, and no request of it."""
    opened = models.language_model(spec, model)
    if is_own(spec):
        retriever, _ = models.retriever(spec)
        leakage.refuse_seen(trial.dataset, trial.split, evaluate.seen_by(spec, retriever))
        indexed(trial.dataset, retriever)
    return opened
