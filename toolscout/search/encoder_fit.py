"""Fits the need head and the catalogue fit of any encoder, from texts that come with the package; numpy alone.

The head is a ridge-regularised logistic regression over the vectors of need_texts.jsonl (our own sentences, English).
The curve of catalogue fit is fitted on the bundled dev requests, over catalogues of which some namespaces were left
out: where a request's own tools are gone, nothing fits. The verdict model is calibrated to both. The default encoder
has better ones, made from more data by recipes/need_head.py, recipes/catalogue_fit.py and recipes/verdict.py. What is
fitted lies in the user's cache, by the encoder's fingerprint.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from toolscout.core.arrays import Bools, Doubles, Floats
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.errors import BadModel
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.settings import fitted_folder
from toolscout.models.need_head import NEED_FILE, NeedHead
from toolscout.search import similarity_baseline, verdict, verdict_calibration
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.tool_need import NeedOptions
from toolscout.search.verdict import VerdictModel
from toolscout.search.verdict_calibration import DevRequests

FIT_FILE = "fit.json"
# Fitting is done without being asked for where it takes no longer than this.
SECONDS = 60.0
_TIMED = 16
_RIDGE, _STEPS = 1.0, 30
# The share of the dev requests for tools that must pass. More than with the default encoder's head: a head that was
# fitted on few styles of writing is surer than it should be about others (results/encoder_fit.jsonl).
_PASS = 0.985
_ANSWERED = 0.9
_BETTER_THAN_CHANCE = 0.65
_DRAWS, _KEPT = 12, (0.25, 0.5, 0.75)
Progress = Callable[[str, int, int], None]


class FitReport(NamedTuple):
    """What was fitted, on dev: the share of requests for tools that pass, of talk and of hopeless ones turned away."""

    seconds: float
    need_passed: float
    talk_turned_away: float
    fit_answered: float
    hopeless_turned_away: float
    folder: Path


class _DevTexts(NamedTuple):
    """The bundled dev requests: those that a tool serves, with their tools; talk; and those that nothing serves."""

    served: list[str]
    gold: list[frozenset[str]]
    talk: list[str]
    hopeless: list[str]


def is_fitted(encoder: TextEncoder) -> bool:
    """Whether an encoder has a need head, a curve and a verdict model of its own, shipped or fitted.

    False where an older version, which knew no verdict model, fitted the encoder: then it is fitted again.
    """
    folder = fitted_folder(encoder.fingerprint)
    return _has_shipped_head(encoder) or all((folder / name).is_file() for name in (FIT_FILE, verdict.FILE))


def fit_options_of(encoder: TextEncoder | None) -> FitOptions:
    """The curve of catalogue fit that was fitted for an encoder; that of the default one where none was."""
    if encoder is None or _has_shipped_head(encoder):
        return FitOptions()
    try:
        return FitOptions(**json.loads((fitted_folder(encoder.fingerprint) / FIT_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):  # derived: it can be made again
        return FitOptions()


def verdict_model_of(encoder: TextEncoder | None) -> VerdictModel:
    """Return the verdict model in the encoder's folder, else the one calibrated to it, else the package's.

    A file that cannot be read, or that belongs to another encoder, is passed over.
    """
    folders = [] if encoder is None else [encoder.folder, fitted_folder(encoder.fingerprint)]
    for folder in (one for one in folders if one is not None and (one / verdict.FILE).is_file()):
        with suppress(BadModel):  # it can be made again
            found = VerdictModel.load(folder)
            if encoder is not None and found.encoder == encoder.fingerprint:
                return found
    return verdict.default_model()


def _has_shipped_head(encoder: TextEncoder) -> bool:
    if encoder.folder is None or not (encoder.folder / NEED_FILE).is_file():
        return False
    return NeedHead.load(encoder.folder).encoder == encoder.fingerprint


def seconds_needed(encoder: TextEncoder) -> float:
    """About how long fitting takes: a few texts are timed."""
    texts = [text for text, _ in need_texts()]
    sample = texts[:: max(1, len(texts) // _TIMED)][:_TIMED]
    encoder.encode(sample[:1])  # opens what is needed
    started = time.perf_counter()
    encoder.encode(sample)
    return (time.perf_counter() - started) / len(sample) * (len(texts) + len(similarity_baseline.texts()) + 700)


def need_texts() -> list[tuple[str, bool]]:
    """The texts that the head is fitted on, each with whether it needs a tool."""
    lines = (resources.files("toolscout.search") / "need_texts.jsonl").read_text(encoding="utf-8").splitlines()
    return [(row["text"], row["need"]) for row in map(json.loads, lines)]


def fit(encoder: TextEncoder, progress: Progress | None = None) -> FitReport:
    """Fit the head and the curve, calibrate the verdict model, and save all three in the user's cache.

    An encoder behind an endpoint is sent about 2,500 short texts.

    Raises EncoderUnavailable, or BadModel where the vectors do not tell the texts apart.
    """
    started, encoder = time.perf_counter(), encoder.patient()
    dev, tools = _dev_texts()
    texts, labels = zip(*need_texts(), strict=True)
    parts = [list(texts), dev.served, dev.talk, dev.hopeless, list(similarity_baseline.texts())]
    requests = _encoded(encoder, parts, progress)
    documents = _documents(encoder, [tool.document() for tool in tools])
    head = _need_head(requests[0], np.array(labels), requests[1], encoder.fingerprint)
    options, answered, hopeless = _curve(
        requests[1], dev.gold, requests[3], requests[4], documents, [tool.id for tool in tools]
    )
    gold = [*dev.gold, *([None] * len(dev.talk)), *([frozenset[str]()] * len(dev.hopeless))]
    vectors = np.concatenate(requests[1:4])
    asked = DevRequests(dev.served + dev.talk + dev.hopeless, vectors, head.probabilities(vectors).tolist(), gold)
    about = (asked, tools, documents, requests[4], options, encoder.fingerprint)
    model = verdict_calibration.calibrated(verdict.default_model(), *about)
    threshold = NeedOptions().threshold
    folder = fitted_folder(encoder.fingerprint)
    _publish(folder, head, options, model, encoder, requests[4])
    return FitReport(
        time.perf_counter() - started,
        float((head.probabilities(requests[1]) >= threshold).mean()),
        float((head.probabilities(requests[2]) < threshold).mean()),
        answered,
        hopeless,
        folder,
    )


def _dev_texts() -> tuple[_DevTexts, list[Tool]]:
    bundled = Dataset.load(find_dataset("bundled"), ["dev"])
    split = bundled.split("dev")
    goldless: dict[str, list[str]] = {"no_tool": [], "nothing_fits": []}
    for request, text in bundled.goldless("dev"):
        goldless.setdefault(bundled.kind(request), []).append(text)
    served = [text for _, text in split.requests]
    gold = [frozenset(one) for one in split.gold]
    return _DevTexts(served, gold, goldless["no_tool"], goldless["nothing_fits"]), list(bundled.tools)


def _encoded(encoder: TextEncoder, parts: list[list[str]], progress: Progress | None) -> list[Floats]:
    """The vectors of several lists of requests."""
    found, done, total = [], 0, sum(map(len, parts))
    for texts in parts:
        rows = []
        for start in range(0, len(texts), 256):
            rows.append(encoder.encode(texts[start : start + 256]))
            done += len(rows[-1])
            if progress:
                progress("fitting the encoder's verdicts", done, total)
        found.append(np.concatenate(rows))
    return found


def _documents(encoder: TextEncoder, texts: list[str]) -> Floats:
    rows: Floats | None = None
    for positions, vectors in encoder.encode_documents(texts):
        rows = np.empty((len(texts), vectors.shape[1]), np.float32) if rows is None else rows
        rows[positions] = vectors
    assert rows is not None
    return rows


def _need_head(vectors: Floats, labels: Bools, dev: Floats, fingerprint: str) -> NeedHead:
    """A logistic regression, as a network of two hidden units: relu(wx) - relu(-wx) = wx.

    Its shift is such that the threshold lets the wanted share of the dev requests for tools through.
    """
    centre = vectors.mean(axis=0).astype(np.float64)
    centred = vectors.astype(np.float64) - centre
    # Vectors of one encoder may lie close together: without their scale the penalty would mean another thing for each.
    scale = 1 / max(float(np.sqrt((centred**2).sum(axis=1).mean())), 1e-9)
    weights, bias = _logistic_regression(centred * scale, labels)
    if not (((centred * scale) @ weights + bias > 0) == labels).mean() > _BETTER_THAN_CHANCE:
        raise BadModel("this encoder's vectors do not tell requests for tools from talk; is it a sentence encoder?")
    direction = weights * scale
    offset = bias - float(centre @ direction)
    logits = dev.astype(np.float64) @ direction + offset
    least = float(np.quantile(logits, 1 - _PASS))
    wanted = float(np.log(NeedOptions().threshold / (1 - NeedOptions().threshold)))
    hidden = np.stack([direction, -direction]).astype(np.float32)
    output = np.array([1.0, -1.0], np.float32)
    return NeedHead(hidden, np.zeros(2, np.float32), output, offset, 1.0, wanted - least, fingerprint)


def _logistic_regression(rows: Doubles, labels: Bools) -> tuple[Doubles, float]:
    """Newton's method; both classes weigh the same, and the bias is not penalised."""
    design = np.hstack([rows, np.ones((len(rows), 1))])
    shares = np.where(labels, 0.5 / max(labels.sum(), 1), 0.5 / max((~labels).sum(), 1)) * len(rows)
    penalty = np.full(design.shape[1], _RIDGE)
    penalty[-1] = 1e-6
    found = np.zeros(design.shape[1])
    for _ in range(_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(design @ found, -500, 500)))
        slope = design.T @ (shares * (chances - labels)) + penalty * found
        curve = (design * (shares * chances * (1 - chances))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curve, slope)
        found -= step
        if np.abs(step).max() < 1e-6:
            break
    return found[:-1], float(found[-1])


def _curve(
    served: Floats,
    gold: list[frozenset[str]],
    hopeless: Floats,
    background: Floats,
    documents: Floats,
    ids: list[str],
) -> tuple[FitOptions, float, float]:
    """The curve over how far the best cosine is above the baseline, its threshold, and how it does on dev."""
    random = np.random.default_rng(0)
    spaces = np.array([tool_id.partition("/")[0] for tool_id in ids])
    names = np.unique(spaces)
    scores, usual = served @ documents.T, float(np.quantile((background @ documents.T).max(axis=1), 0.1))
    above: list[float] = list((hopeless @ documents.T).max(axis=1) - usual)
    truth: list[bool] = [False] * len(above)
    for share in (*(_KEPT * (_DRAWS // len(_KEPT))), 1.0):
        kept = np.isin(spaces, random.permutation(names)[: max(1, round(share * len(names)))])
        level = float(np.quantile((background @ documents[kept].T).max(axis=1), 0.1))
        left = {tool_id for tool_id, stays in zip(ids, kept, strict=True) if stays}
        for row, needed in zip(scores[:, kept], gold, strict=True):
            if needed <= left or not needed & left:
                above.append(float(row.max()) - level)
                truth.append(needed <= left)
    values, labels = np.array(above), np.array(truth)
    weights, bias = _logistic_regression_of_one(values, labels)
    options = replace(FitOptions(), bias=round(bias, 3), similarity=round(weights, 3), usual=round(usual, 4))
    fits = 1 / (1 + np.exp(-(options.bias + options.similarity * values)))
    options = replace(options, threshold=round(float(np.quantile(fits[labels], 1 - _ANSWERED)), 3))
    return options, float((fits[labels] >= options.threshold).mean()), float((fits[~labels] < options.threshold).mean())


def _logistic_regression_of_one(values: Doubles, labels: Bools) -> tuple[float, float]:
    """Slope and bias of a logistic curve; raises BadModel where the slope is not above 0."""
    scale = max(float(values.std()), 1e-9)
    weights, bias = _logistic_regression(values[:, None] / scale, labels)
    if not weights[0] > 0:
        raise BadModel("this encoder's cosines do not rise with how well a tool fits; is it a sentence encoder?")
    return float(weights[0] / scale), bias


def _publish(
    folder: Path, head: NeedHead, options: FitOptions, model: VerdictModel, encoder: TextEncoder, background: Floats
) -> None:
    """Write all files beside the folder, then move them there: a reader never sees half of them."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fitting-") as beside:
            head.save(Path(beside))
            model.save(Path(beside))
            similarity_baseline.save(Path(beside), encoder.fingerprint, background)
            (Path(beside) / FIT_FILE).write_text(json.dumps(asdict(options), indent=2) + "\n")
            folder.mkdir(exist_ok=True)
            # The last one says that all are there.
            for name in (NEED_FILE, similarity_baseline.FILE, verdict.FILE, FIT_FILE):
                os.replace(Path(beside) / name, folder / name)
    except OSError as error:
        raise BadModel(
            f"cannot write {folder} ({error}); make room, or name another cache in TOOLSCOUT_CACHE"
        ) from None
