"""Minimums that the measures of an evaluation must reach, for checks in continuous integration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolscout.errors import BadRequest
from toolscout.evaluation.measures import FORECASTS, SMALLER_IS_BETTER, check_names


@dataclass(frozen=True, slots=True)
class Minimum:
    """A measure and its least allowed value."""

    measure: str
    least: float

    def failure(self, metrics: Mapping[str, float]) -> str:
        """Return why the metrics of a run fail, or "" where they pass; a measure that they lack fails."""
        found = metrics.get(self.measure)
        if found is None:
            return f"{self.measure} was not measured: this split has nothing to measure it on"
        return "" if found >= self.least else f"{self.measure} is {found:g}, below {self.least:g}"


def read_minimums(texts: Sequence[str]) -> list[Minimum]:
    """Parse minimums such as "recall@5=0.8"; raises BadRequest for a text that is none."""
    return [_read_minimum(text) for text in texts]


def _read_minimum(text: str) -> Minimum:
    name, equals, number = (part.strip() for part in text.partition("="))
    try:
        least = float(number)
    except ValueError:
        least = -1.0
    if not equals or not name or not 0 <= least <= 1:
        raise BadRequest(f"{text!r:.80} is no minimum; give a measure and a number from 0 to 1, as recall@5=0.8")
    if name in SMALLER_IS_BETTER:
        raise BadRequest(f"of {name} less is better, so a minimum says nothing; set one for another measure")
    if name not in FORECASTS:
        check_names([name])
    return Minimum(name, least)
