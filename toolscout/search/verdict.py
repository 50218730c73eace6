"""The verdict on a request: "use", "no_tool_needed" or "nothing_fits", by one calibrated probability.

Two logistic regressions over a few features (`FEATURES`) answer two questions: does the request need a tool, and if it
does, does a tool of the catalogue fit? The product of the two probabilities is the probability of "use". A level
("lenient", "balanced", "strict") has a threshold for it; below the threshold the verdict is the likelier of
"no_tool_needed" and "nothing_fits".

The features are measured by the encoder's own need head and its own curve of catalogue fit, so the same coefficients
serve any encoder once they are calibrated to it. The coefficients of need, fit, gaps and words are 0 or more: more need
or a better fit never lowers the probability of "use". recipes/verdict.py fits the model of the default encoder,
verdict_calibration.py calibrates it to any other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self, get_args

from toolscout.core.answer import ExactName, Hit, Level, PastRequest, Reranked, Similarity, Verdict
from toolscout.errors import BadModel, BadRequest
from toolscout.search.catalogue_fit import FitOptions, signals
from toolscout.search.tool_need import NeedOptions

LEVELS: tuple[Level, ...] = get_args(Level)
DEFAULT_LEVEL: Level = "balanced"
TARGET_RECALL: Mapping[Level, float] = MappingProxyType({"lenient": 0.97, "balanced": 0.92, "strict": 0.85})
"""The recall of "use" that each level is set to on dev: of the requests that a tool serves, so many get tools."""
FILE = "verdict.json"
_LOOKED_AT = 5
# Log-odds are clipped here: further out the need head and the curve only extrapolate.
_CLIP = 5.0
# The size of a catalogue counts up to so many tools.
_LARGE = math.log(10_000)
FEATURES = (
    *("intercept", "size", "size_squared", "need", "need_high"),
    *("fit_small", "fit_large", "fit_high", "fit_low_small", "fit_low_large"),
    *("next", "fifth", "words", "words_small", "reranked", "has_reranked"),
)
"""The inputs of both regressions, in the order in which `features` computes them.

size: the logarithm of the number of tools, from 0 to 1. `_high`, `_low`: the positive or the negative part of a value.
`_small`, `_large`: a value times 1 - size, or times size. has_reranked: 1 where a reranker scored the tools, else 0.
"""
ANY_SIGN = frozenset(("intercept", "size", "size_squared", "has_reranked"))
"""The features whose coefficients may be negative; all others are 0 or more."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the verdict on a request is computed from.

    need: its tool need, None where it is not known. fit: the log-odds of the catalogue fit, by the best cosine or by
    the nearest past request, whichever is higher. next, fifth: by how much the best cosine exceeds the second and the
    fifth, multiplied by the slope of the fit curve; 0 where there are fewer tools. words: the largest share of the
    request's words that one tool matches. tools: how many the caller may see. reranked: the best score of a reranker,
    None without one.
    """

    need: float | None
    fit: float
    next: float
    fifth: float
    words: float
    tools: int
    reranked: float | None = None


def evidence_of(
    hits: Sequence[Hit],
    need: float | None,
    baseline: float | None,
    tools: int,
    options: FitOptions,
    reranked: bool = True,
) -> Evidence | None:
    """Return the evidence for a request with these hits; None where no vectors were searched.

    `need`: the tool need, None where it is not known or does not count. `baseline`: the cosine that an unrelated
    request reaches, None where it is not known. `tools`: how many the caller may see. `reranked`: whether a
    reranker's scores count.
    """
    best, words = signals(hits)
    if best is None:
        return None
    reasons = [reason for hit in hits[:_LOOKED_AT] for reason in hit.reasons]
    cosines = sorted((reason.cosine for reason in reasons if isinstance(reason, Similarity)), reverse=True)
    gaps = [options.similarity * (best - cosine) for cosine in cosines]
    fit = options.bias + options.similarity * (best - (options.usual if baseline is None else baseline))
    past = [options.steepness * (one.cosine - options.past) for one in reasons if isinstance(one, PastRequest)]
    scores = [reason.score for reason in reasons if isinstance(reason, Reranked) and reranked]
    return Evidence(
        need,
        max([fit, *past]),
        gaps[1] if len(gaps) > 1 else 0.0,
        gaps[_LOOKED_AT - 1] if len(gaps) >= _LOOKED_AT else 0.0,
        words,
        tools,
        max(scores) if scores else None,
    )


def features(evidence: Evidence) -> list[float]:
    """Return the features of a request, in the order of FEATURES."""
    size = min(math.log(max(evidence.tools, 1)) / _LARGE, 1.0)
    fit, words = _clipped(evidence.fit), min(max(evidence.words, 0.0), 1.0)
    need = 0.0 if evidence.need is None else _clipped(logit(evidence.need))
    score = None if evidence.reranked is None else math.tanh(evidence.reranked / _CLIP)
    return [
        *(1.0, size, size * size, need, max(need, 0.0)),
        *(fit * (1 - size), fit * size, max(fit, 0.0), min(fit, 0.0) * (1 - size), min(fit, 0.0) * size),
        *(min(max(evidence.next, 0.0), _CLIP), min(max(evidence.fifth, 0.0), _CLIP)),
        *(words, words * (1 - size), score or 0.0, 0.0 if score is None else 1.0),
    ]


@dataclass(frozen=True, slots=True)
class Weights:
    """A logistic regression over FEATURES: its coefficients, in their order."""

    values: tuple[float, ...]

    def logit(self, found: Sequence[float]) -> float:
        """Return the log-odds for the features of a request."""
        return sum(map(float.__mul__, self.values, found))

    def probability(self, found: Sequence[float]) -> float:
        """Return the probability for the features of a request."""
        return _logistic(self.logit(found))

    def to_dict(self) -> dict[str, float]:
        """Return the JSON form: coefficients by the name of their feature, without zeros."""
        return {name: round(value, 5) for name, value in zip(FEATURES, self.values, strict=True) if value}

    @classmethod
    def of(cls, named: Mapping[str, float]) -> Self:
        """Read what `to_dict` wrote. Raises AttributeError, TypeError or ValueError for anything else."""
        if unknown := set(named) - set(FEATURES):
            raise ValueError(f"it has a feature {min(unknown)!r} that is not known here")
        values = tuple(float(named.get(name, 0.0)) for name in FEATURES)
        if not all(map(math.isfinite, values)):
            raise ValueError("a coefficient is not a finite number")
        if any(value < 0 and name not in ANY_SIGN for name, value in zip(FEATURES, values, strict=True)):
            raise ValueError("a coefficient is negative that must not be")
        return cls(values)


class LevelThresholds(NamedTuple):
    """From which probability on a level says "use": `use` where need is known, `alone` where fit alone is judged."""

    use: float
    alone: float


@dataclass(frozen=True, slots=True)
class VerdictModel:
    """The verdict model.

    need: predicts whether the request needs a tool. fit: predicts whether a tool of the catalogue fits. levels: the
    thresholds of each level. encoder: the fingerprint of the encoder that the model was fitted or calibrated to.
    reranker: the fingerprint of the reranker whose scores it was fitted with, "" without one; scores of any other
    reranker are on a scale that it does not know, and do not count.
    """

    need: Weights
    fit: Weights
    levels: Mapping[Level, LevelThresholds]
    encoder: str = ""
    reranker: str = ""

    def probability(self, evidence: Evidence) -> float:
        """Return the probability that a tool should be used; where need is not known, that a tool fits."""
        found = features(evidence)
        fits = self.fit.probability(found)
        return fits if evidence.need is None else self.need.probability(found) * fits

    def threshold(self, level: Level, need_known: bool) -> float:
        """Return the probability from which on a level says "use"."""
        return self.levels[level].use if need_known else self.levels[level].alone

    def verdict(self, evidence: Evidence, level: Level, probability: float) -> Verdict:
        """Return the verdict at a level. `probability`: of "use". It is "no_tool_needed" only where need is known."""
        if probability >= self.threshold(level, evidence.need is not None):
            return "use"
        needed = 1.0 if evidence.need is None else self.need.probability(features(evidence))
        return "no_tool_needed" if 1 - needed > needed - probability else "nothing_fits"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        levels = {level: thresholds._asdict() for level, thresholds in self.levels.items()}
        known = {"encoder": self.encoder, "reranker": self.reranker}
        return known | {"need": self.need.to_dict(), "fit": self.fit.to_dict(), "levels": levels}

    def save(self, folder: Path) -> None:
        """Write verdict.json."""
        (folder / FILE).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote. Raises BadModel where the file is missing or broken."""
        try:
            record = json.loads((folder / FILE).read_text(encoding="utf-8"))
            return cls._of(record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadModel(f"the verdict model in {folder / FILE} cannot be read ({error}); fit it again") from None

    @classmethod
    def _of(cls, record: Mapping[str, Any]) -> Self:
        levels: dict[Level, LevelThresholds] = {}
        for level in LEVELS:
            levels[level] = LevelThresholds(*(float(record["levels"][level][name]) for name in LevelThresholds._fields))
        for column in zip(*levels.values(), strict=True):
            if not all(0 <= threshold <= 1 for threshold in column):
                raise ValueError("a threshold of a level is not from 0 to 1")
            if list(column) != sorted(column):
                raise ValueError("the thresholds of its levels are not in order")
        known = (str(record["encoder"]), str(record.get("reranker", "")))
        return cls(Weights.of(record["need"]), Weights.of(record["fit"]), levels, *known)


@cache
def default_model() -> VerdictModel:
    """Return the model that comes with the package."""
    return VerdictModel.load(Path(__file__).resolve().parent.parent / "default_model")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, the probability that a tool should be used, and the level whose threshold it was compared with.

    probability, level: None where not the model decided but the thresholds of need and fit.
    """

    verdict: Verdict
    probability: float | None = None
    level: Level | None = None


def judge(
    model: VerdictModel, evidence: Evidence | None, hits: Sequence[Hit], level: Level, by_thresholds: Verdict
) -> Judgement:
    """Return the judgement of a request with these hits.

    A request that names the first tool gets "use". `by_thresholds` is the verdict where the model cannot be asked:
    nothing was found, no vectors were searched, or the evidence is not a number.
    """
    if not hits or evidence is None:
        return Judgement(by_thresholds)
    if any(isinstance(reason, ExactName) for reason in hits[0].reasons):
        return Judgement("use", 1.0, level)
    probability = model.probability(evidence)
    if math.isnan(probability):
        return Judgement(by_thresholds)
    return Judgement(model.verdict(evidence, level, probability), probability, level)


def thresholds_verdict(
    need: float | None, fit: float, found: bool, need_options: NeedOptions, fit_options: FitOptions
) -> Verdict:
    """Return the verdict by two thresholds: need is compared first, then catalogue fit. `found`: whether any tool was.

    `need`: None where it is not known or does not count.
    """
    if need is not None and need < need_options.threshold:
        return "no_tool_needed"
    return "use" if found and fit >= fit_options.threshold else "nothing_fits"


def checked_level(level: Any) -> Level:
    """Return the level of this name. Raises BadRequest for any other value."""
    if isinstance(level, str) and level in LEVELS:
        return next(one for one in LEVELS if one == level)
    raise BadRequest(f"there is no level {level!r:.80}; choose lenient, balanced or strict")


def logit(probability: float) -> float:
    """Return the log-odds of a probability; those of 0 and 1 are finite."""
    clipped = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(clipped / (1 - clipped))


def _clipped(value: float) -> float:
    return min(max(value, -_CLIP), _CLIP)


def _logistic(value: float) -> float:
    return 0.5 + 0.5 * math.tanh(0.5 * value)  # cannot overflow
