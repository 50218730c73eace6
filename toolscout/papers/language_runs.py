"""Measures what a language model can still do beside tools, as it is or after it was trained to generate ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolscout.data.no_tool_prompts import read_prompts
from toolscout.errors import BadModel, MissingExtra
from toolscout.evaluation.row import STUDY, Row, RowDict, provenance
from toolscout.models.language.base import open_base
from toolscout.papers.labelled_texts import read_labelled
from toolscout.papers.paper import LanguageExperiment
from toolscout.retrievers.generative.base import GenerativeRetriever
from toolscout.retrievers.registry import load_model

SPLIT = "test"
"""The split of the prompts that are predicted; nothing is trained on it."""
_STUDY = "language"
Measure = Callable[..., Mapping[str, float]]
"""Takes the module of measures, which needs torch, a network, the rows of its added tokens, and its base."""


def perplexity_row(
    experiment: LanguageExperiment, place: str, prompts: Path, variant: str, seed: int | None, command: str
) -> RowDict:
    """Return the row of the perplexity on prompts; `place`: the folder of the trained model, "" for SmolLM2."""
    texts = [prompt.text for prompt in read_prompts(prompts, SPLIT)]
    found = _measured(place, lambda measures, *model: measures.perplexity(*model, texts))
    return _row(experiment, found, "\n".join(texts), len(texts), variant, seed, command)


def task_row(
    experiment: LanguageExperiment, place: str, task: Path, variant: str, seed: int | None, command: str
) -> RowDict:
    """Return the row of a task of labelled texts: how often the right label is the likeliest behind its text."""
    data = read_labelled(task)
    found = _measured(place, lambda measures, *model: {"task_accuracy": measures.accuracy(*model, data)})
    return _row(
        experiment, found, "\n".join(f"{one.text}\0{one.label}" for one in data), len(data), variant, seed, command
    )


def _measured(place: str, measure: Measure) -> Mapping[str, float]:
    """Load the network of a trained model, or SmolLM2, with the rows of its added tokens, and measure it."""
    try:
        from toolscout.models.language.torch_network import TransformerNetwork
        from toolscout.papers import language_measures
        from toolscout.training.loop import pick_device
    except ImportError as error:
        raise MissingExtra("measuring a language model", "train") from error
    if place:
        retriever = load_model(Path(place))
        if not isinstance(retriever, GenerativeRetriever):
            raise BadModel(
                f"{place} is a {retriever.name} model and has no language model; name a toolgen or toolweaver"
            )
        base, weights, added = retriever.base(), retriever.merged_weights(), retriever.words().added()
    else:
        base = open_base()
        weights, added = base.weights(), np.zeros((0, base.architecture.hidden), np.float32)
    network = TransformerNetwork(base.architecture, weights, 1, pick_device("auto"))
    return measure(language_measures, network, added, base)


def _row(
    experiment: LanguageExperiment,
    found: Mapping[str, float],
    texts: str,
    count: int,
    variant: str,
    seed: int | None,
    command: str,
) -> RowDict:
    options: dict[str, Any] = {}
    row = Row(
        dataset=experiment.dataset,
        digest=hashlib.blake2b(texts.encode(errors="replace"), digest_size=16).hexdigest(),
        split=SPLIT,
        retriever=experiment.retriever,
        variant=variant,
        options=options,
        seed=seed,
        metrics={name: round(value, 6) for name, value in found.items()},
        intervals={},
        timing={},
        params=0,
        encoder=None,
        requests=count,
        failed=0,
        dropped=0,
        new_tools=None,
        **provenance(command),
    ).to_dict()
    row[STUDY] = {"name": _STUDY}
    return row
