"""A larger language model that writes queries: an endpoint whose answers are recorded, or a model by its folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from toolscout.core.option_values import with_settings
from toolscout.core.targets import is_address
from toolscout.errors import BadModel, BadRequest
from toolscout.evaluation.row import RowDict
from toolscout.llm.options import checked_url
from toolscout.models.encoders.settings import split_name

ANSWERS = "answers.db"
_FAILED = 0.02  # the share of requests for which a model may fail


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """What may follow the address of an endpoint as ?KEY=VALUE&KEY=VALUE.

    model: the name of the model. offline: answer from what was recorded alone.
    """

    model: str = ""
    offline: bool = False


class QueryWriterSpec(NamedTuple):
    """A language model as it was passed: its place, and what followed it. `name`: what rows call it."""

    place: str
    given: WriterSettings

    @property
    def name(self) -> str:
        """Return the name of the model, in letters, digits, dots and dashes."""
        said = self.given.model or Path(self.place).name
        return re.sub(r"[^A-Za-z0-9.]+", "-", said).strip("-")

    def settings(self, models: Path) -> list[str]:
        """Return the settings of rewrite; answers of an endpoint are recorded in the folder of models."""
        found = [f"llm={self.place}"]
        if is_address(self.place):
            found += [f"model={self.given.model}", f"cache={models / ANSWERS}", f"offline={self.given.offline}".lower()]
        return found


def read(spec: str) -> QueryWriterSpec:
    """Read URL?model=NAME, or a folder. Raises BadRequest for an endpoint without a model, or for no model at all."""
    place, settings = split_name(spec, "a language model")
    given = with_settings(WriterSettings(), "a language model", settings)
    if is_address(place):
        checked_url(place)
        if not given.model:
            raise BadRequest("an endpoint needs the name of a model: pass --llm https://HOST/v1?model=NAME")
    elif not Path(place).exists():
        raise BadRequest(f"there is no language model at {place}; pass --llm https://HOST/v1?model=NAME, or a folder")
    return QueryWriterSpec(place, given)


def refuse_failures(row: RowDict) -> None:
    """Raise BadModel where a language model failed for many requests, which were then searched alone."""
    failed = row["timing"].get("llm_failed") or 0
    if failed > _FAILED * row["requests"]:
        why = row["timing"].get("llm_problem", "")
        raise BadModel(f"the language model failed for {failed} of {row['requests']} requests: {why}")
