"""Shared by experiments: rank a split with a retriever alone, without a store, and make the row of results.

A row of an experiment has one more key, "study": its name and the data for its section of the report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolscout.data.dataset import Dataset
from toolscout.evaluation import leakage
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
    """What a row says beside its numbers.

    `study` goes under the key "study"; `command` makes the row again; `fitted` says how the model was trained.
    """

    study: Mapping[str, Any]
    variant: str
    seed: int | None
    command: str
    fitted: FitRecord


def rank_split(dataset: Dataset, split: str, retriever: Retriever) -> list[RequestResult]:
    """The results of all requests of a split that have gold, ranked in one batch: no verdicts, no times."""
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
    """The row and the scores that `answers`, the results of a split, make.

    `new_tools`: the gold tools that are new to the retriever, None where they are not told apart. `extra`: further
    metrics.
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


def refuse_seen(dataset: Dataset, split: str, retriever: Retriever, seen: TrainedOn) -> TrainedOn:
    """All that a model has seen, its encoder's part too; refuses a split that shares requests with it."""
    whole = seen | leakage.encoder_history(encoder_of(retriever))
    leakage.refuse_seen(dataset, split, whole)
    return whole
