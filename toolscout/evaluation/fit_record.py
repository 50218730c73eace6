"""Reads how a model was trained from its folder: the seconds of the fit, the device and the seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolscout.errors import BadModel
from toolscout.retrievers.model_folder import MODEL_FILE, read_model


@dataclass(frozen=True, slots=True)
class FitRecord:
    """How a model was trained, summed over its parts; all None for a method without training."""

    seconds: float | None = None
    device: str | None = None
    parameters: int | None = None
    seed: int | None = None


def read_fit_record(retriever: str | Path) -> FitRecord:
    """Return how the model in a folder was trained; an empty record for the name of a method.

    Raises BadModel where the folder's record is malformed.
    """
    folder = Path(retriever)
    if not folder.is_dir():
        return FitRecord()
    fits, seeds = _fits(folder)
    if not fits:
        return FitRecord(seed=next(iter(seeds), None))
    return FitRecord(
        seconds=round(sum(fit["seconds"] for fit in fits), 3),
        device=", ".join(dict.fromkeys(fit["device"] for fit in fits)),
        parameters=sum(fit["parameters"] for fit in fits),
        seed=next(iter(seeds), None),
    )


def _fits(folder: Path) -> tuple[list[Mapping[str, Any]], list[int]]:
    """Return the fit reports and the seeds of a model and its parts, the model's own first."""
    model = read_model(folder)
    fit = model.get("fit")
    if fit is not None and not _is_report(fit):
        raise BadModel(f'{folder / MODEL_FILE}: "fit" needs seconds, device and parameters; train the model again')
    options = model.get("options", {})
    seeds_found = (
        model.get("seed"),
        (fit or {}).get("seed"),
        options.get("seed") if isinstance(options, Mapping) else None,
    )
    fits, seeds = [fit] if fit else [], [seed for seed in seeds_found if isinstance(seed, int)]
    for part in model.get("parts", {}):
        more_fits, more_seeds = _fits(folder / part)
        fits, seeds = fits + more_fits, seeds + more_seeds
    return fits, seeds


def _is_report(fit: Any) -> bool:
    return (
        isinstance(fit, Mapping)
        and isinstance(fit.get("seconds"), int | float)
        and isinstance(fit.get("device"), str)
        and isinstance(fit.get("parameters"), int)
    )
