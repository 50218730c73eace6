"""Measures what language models generate for requests: how often it is right, and how often the id of no tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from toolscout.agent.recorded_calls import indexed
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.errors import BadModel
from toolscout.evaluation import evaluate as evaluation
from toolscout.evaluation import leakage
from toolscout.llm import open_llm
from toolscout.papers import name_writer
from toolscout.papers.experiment import ExperimentContext, ExperimentResult, scored_row
from toolscout.papers.paper import GenerationExperiment
from toolscout.retrievers.base import FitProgress
from toolscout.retrievers.generative.base import SPECIALS, GenerativeRetriever
from toolscout.retrievers.provenance import TrainedOn
from toolscout.retrievers.registry import load_model

_STUDY = "generation"
_AT_ONCE = 64
_RANKED = ("ndcg@1", "toolgen_ndcg@1", "toolgen_ndcg@3", "toolgen_ndcg@5", "recall@3", "recall@5", "comp@5")
_NAMED = ("ndcg@1", "toolgen_ndcg@1")  # of a model that writes one name

Sequences = Sequence[Sequence[str]]
"""For each request what was generated, the likeliest first: ids of tools, and "" for what is the id of no tool."""


def measured(
    experiment: GenerationExperiment,
    place: str,
    seed: int | None,
    dataset: Dataset,
    split: str,
    command: str,
    progress: FitProgress | None = None,
) -> ExperimentResult:
    """Return the row of a split. `place`: the folder of the trained model; "" for SmolLM2 as it is."""
    requests = dataset.split(split).requests
    texts = [text for _, text in requests]
    options: dict[str, object] = {"decoding": experiment.decoding}
    if experiment.names:
        leakage.refuse_seen(dataset, split, TrainedOn.load(Path(place)) if place else TrainedOn())
        names = name_writer.ToolNames(dataset.tools)
        written = name_writer.write_names(open_llm(place), texts, progress)
        generated: Sequences = [[names.find(text)] for text in written]
    else:
        retriever = load_model(Path(place))
        if not isinstance(retriever, GenerativeRetriever):
            raise BadModel(f"{place} is a {retriever.name} model, which generates no ids; name a toolgen or toolweaver")
        leakage.refuse_seen(dataset, split, evaluation.seen_by(place, retriever))
        indexed(dataset, retriever)
        generated = _generated(retriever, experiment, texts, progress)
        options = asdict(retriever.options) | options
    context = ExperimentContext(
        study={"name": _STUDY, "sequences": max(map(len, generated), default=0)},
        variant=experiment.name if seed is None else f"{experiment.name}-s{seed}",
        seed=seed,
        command=command,
    )
    ids = [request_id for request_id, _ in requests]
    found = generation_measures(generated, dataset.split(split).gold, _NAMED if experiment.names else _RANKED)
    return scored_row(dataset, split, ids, found, context, experiment.retriever, options)


def _generated(
    retriever: GenerativeRetriever,
    experiment: GenerationExperiment,
    texts: Sequence[str],
    progress: FitProgress | None,
) -> Sequences:
    generated: list[list[str]] = []
    for start in range(0, len(texts), _AT_ONCE):
        for few in retriever.generate(texts[start : start + _AT_ONCE], experiment.decoding):
            generated.append([one.key for one in few])
        if progress:
            progress(f"generating, {experiment.decoding}", len(generated), len(texts))
    return generated


def generation_measures(
    generated: Sequences, golds: Sequence[Sequence[str]], names: Sequence[str] = _RANKED
) -> dict[str, list[float]]:
    """Return the measures of each request: of rankings, in which what is no tool's id keeps its place, and inventions.

    invented@1: whether the likeliest sequence is the id of no tool. invented: the share of all sequences that are.
    "No tool" and "finish" name no tool, but are not invented.
    """
    rankings = [
        [key if key and key not in SPECIALS else f"\0{place}" for place, key in enumerate(few)] for few in generated
    ]
    return metrics.scores(rankings, golds, names) | {
        "invented@1": [float(not few[0]) if few else 1.0 for few in generated],
        "invented": [sum(not key for key in few) / len(few) if few else 1.0 for few in generated],
    }
