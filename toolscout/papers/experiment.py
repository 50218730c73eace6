"""For experiments: rank a split with a retriever alone, without a store, and make the row of results.

A row of an experiment has one more key, "study": its name and the data for its section of the report.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from toolscout.data.dataset import Dataset
from toolscout.evaluation import leakage, significance
from toolscout.evaluation.fit_record import FitRecord
from toolscout.evaluation.measures import RIGHT, VERDICTS, compute_measures
from toolscout.evaluation.request_result import DEPTH, RequestResult
from toolscout.evaluation.row import STUDY, Row, provenance
from toolscout.evaluation.vector_cache import encoder_of
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.provenance import TrainedOn


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """A row and the scores of its single requests, ready to be written."""

    row: dict[str, Any]
    lines: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ExperimentContext:
    """The fields of a row that are not measured.

    `study` goes under the key "study"; `command` repeats the experiment; `fitted` says how the model was trained.
    """

    study: Mapping[str, Any]
    variant: str
    seed: int | None
    command: str
    fitted: FitRecord = field(default_factory=FitRecord)


def rank_split(dataset: Dataset, split: str, retriever: Retriever) -> list[RequestResult]:
    """Rank all requests of a split that have gold tools in one batch; the results have no verdicts and no times."""
    part = dataset.split(split)
    ranked = retriever.rank([text for _, text in part.requests], DEPTH)
    return [
        RequestResult(i, dataset.scene(i), "use", gold, tuple(ranking.ids()), 0.0, None, 0.0)
        for (i, _), gold, ranking in zip(part.requests, part.gold, ranked, strict=True)
    ]


def experiment_result(
    dataset: Dataset,
    split: str,
    retriever: Retriever,
    answers: Sequence[RequestResult],
    about: ExperimentContext,
    new_tools: Collection[str] | None = None,
    extra: Mapping[str, float] | None = None,
) -> ExperimentResult:
    """Return the row and the scores of `answers`, the results of a split.

    `new_tools`: the gold tools that are new to the retriever, None where new tools are not distinguished. `extra`:
    further metrics.
    """
    encoder = encoder_of(retriever)
    found = compute_measures(answers, (), new_tools)
    judged = {*VERDICTS, *RIGHT}
    row = Row(
        dataset=dataset.name,
        digest=dataset.digest(split),
        split=split,
        retriever=retriever.name,
        variant=about.variant,
        options=asdict(retriever.options),
        seed=about.seed,
        metrics={name: value for name, value in found.metrics.items() if name not in judged} | dict(extra or {}),
        intervals={name: ends for name, ends in found.intervals.items() if name not in judged},
        timing={
            "fit_s": about.fitted.seconds,
            "fit_device": about.fitted.device,
            "fit_params": about.fitted.parameters,
            "index_s": None,
            "index_cached": None,
            "query_p50_ms": None,
            "query_p95_ms": None,
        },
        params=encoder.parameters if encoder else 0,
        encoder=encoder.fingerprint if encoder else None,
        requests=len(answers),
        failed=0,
        dropped=0,
        new_tools=None if new_tools is None else len(new_tools),
        **provenance(about.command),
    )
    new = frozenset(new_tools) if new_tools is not None else None
    return ExperimentResult(row.to_dict() | {STUDY: dict(about.study)}, [one.to_dict(new) for one in answers])


def scored_row(
    dataset: Dataset,
    split: str,
    request_ids: Sequence[str],
    measured: Mapping[str, Sequence[float]],
    about: ExperimentContext,
    retriever: str,
    options: Mapping[str, Any],
) -> ExperimentResult:
    """Return the row and the scores of what was measured for each request beside rankings; NaN leaves a request out."""
    counted = {name: values for name, values in measured.items() if not all(map(math.isnan, values))}
    scenes = [dataset.scene(request_id) for request_id in request_ids]
    ends = significance.intervals(np.array(list(counted.values())).T, scenes)
    row = Row(
        dataset=dataset.name,
        digest=dataset.digest(split),
        split=split,
        retriever=retriever,
        variant=about.variant,
        options=dict(options),
        seed=about.seed,
        metrics={name: round(float(np.nanmean(values)), 6) for name, values in counted.items()},
        intervals=dict(zip(counted, np.round(ends, 6).tolist(), strict=True)),
        timing={},
        params=0,
        encoder=None,
        requests=len(request_ids),
        failed=0,
        dropped=0,
        new_tools=None,
        **provenance(about.command),
    )
    lines = [
        {"id": request_id, "scene": scene}
        | {name: None if math.isnan(values[at]) else round(values[at], 6) for name, values in counted.items()}
        for at, (request_id, scene) in enumerate(zip(request_ids, scenes, strict=True))
    ]
    return ExperimentResult(row.to_dict() | {STUDY: dict(about.study)}, lines)


def check_unseen(dataset: Dataset, split: str, retriever: Retriever, seen: TrainedOn) -> TrainedOn:
    """Return what a retriever and its encoder were trained on; `seen` is what the retriever was trained on.

    Raises Leak for a split that shares requests with it.
    """
    whole = seen | leakage.encoder_history(encoder_of(retriever))
    leakage.refuse_seen(dataset, split, whole)
    return whole
