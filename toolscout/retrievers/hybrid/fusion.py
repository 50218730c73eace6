"""Learns the fusion weights of a hybrid on dev: one for each part, and separate ones and a bonus for new tools."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.arrays import Bools, Doubles, Floats
from toolscout.core.scope import Scope
from toolscout.data import metrics
from toolscout.errors import BadDataset, BadModel
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.onnx_encoder import CARD_FILE, Encoder
from toolscout.retrievers.base import FitProgress, FitReport, Pairs, Retriever, Vectors
from toolscout.retrievers.document_index import DocumentIndex, document_vectors
from toolscout.retrievers.encoded_requests import dev_sample
from toolscout.retrievers.hybrid.shared_encoder import SharedEncoder
from toolscout.retrievers.model_folder import read_model
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.registry import load_model, method

# How much recall of known tools the bonus of new tools may cost.
_MAY_COST = 0.03
_HIDES_NEW_TOOLS = -1e6  # a bonus with which no new tool comes before a known one
_BONUSES = np.arange(-6.0, 6.01, 0.1)
_RIDGE = 1e-3
_STEPS, _SMALL_STEP = 100, 1e-6
_K = 5
# Refinement multiplies weights by these factors; a step must gain _GAIN and two standard errors.
_FACTORS, _SWEEPS, _GAIN = (0.25, 0.5, 0.8, 1.25, 2.0, 4.0), 4, 1e-3


@dataclass(frozen=True, slots=True)
class FusionWeights:
    """The options of a hybrid that are learned."""

    weights: tuple[float, ...]
    new_weights: tuple[float, ...] = ()
    new_bonus: float = 0.0


@dataclass(frozen=True, slots=True)
class Fusion:
    """Learned weights, their dev scores, and how many numbers were learned (`count`)."""

    weights: FusionWeights
    dev: dict[str, float]
    count: int


@dataclass(frozen=True, slots=True)
class _DevRequest:
    """A dev request: its candidates, a column of relative scores for each part, which are gold, which are new.

    `new_gold`: the gold tools that are new, whether or not a part found them. If new tools have separate weights,
    `scores` has a column for each weight (see `_split_new_columns`).
    """

    ids: list[str]
    scores: Doubles
    gold: tuple[str, ...]
    new_gold: frozenset[str]
    is_gold: Bools
    is_new: Bools


def relative_scores(
    part: Retriever, ranking: Pairs, depth: int, allowed: Allowed | None = None
) -> tuple[dict[str, float], float] | None:
    """Scores relative to the best one, and the score of a tool that is not ranked; None where nothing was found.

    If the ranking is cut or has pending tools, a tool that is missing gets the last score, an upper bound of its own;
    otherwise 0. `allowed`: the tools that the ranking is restricted to.
    """
    own = {tool_id: score % EXACT_BONUS if score > 0 else 0.0 for tool_id, score in ranking}
    best = max(own.values(), default=0.0)
    if best <= 0:
        return None
    partial = len(ranking) >= depth or part.pending(Scope(allowed)) > 0
    last = min(own.values()) if partial else 0.0
    return {tool_id: score / best for tool_id, score in own.items()}, last / best


def check_encoders(parts: Sequence[Retriever], untrained: Sequence[Retriever]) -> None:
    """Raise BadModel if the parts cannot share one encoder. `untrained`: the parts that will be trained."""
    bound: set[str] = set()
    for number, part in enumerate(parts):
        if isinstance(part, DocumentIndex):
            trains = part.trains_encoder and part in untrained
            fingerprint = f"the one that part {number} will train" if trains else part.bound_to()
            bound |= {fingerprint} if fingerprint else set()
    _check_one(bound)


def _check_one(fingerprints: Collection[str]) -> None:
    if len(fingerprints) > 1:
        raise BadModel(
            f"the parts of a hybrid use one encoder, and these are bound to {len(fingerprints)} different ones "
            f"({', '.join(sorted(fingerprints))}); keep one, and have the others trained with it"
        )


def share_encoder(parts: Sequence[Retriever]) -> None:
    """Share one encoder among the parts: that of a part with its own, else of a part that is bound to one."""
    embedded = [part for part in parts if isinstance(part, DocumentIndex)]
    owners = [part for part in embedded if part.has_own_encoder()] or [part for part in embedded if part.bound_to()]
    for owner in owners[:1]:
        encoder = owner.encoder
        shared = encoder if isinstance(encoder, SharedEncoder) else SharedEncoder(encoder)
        for part in embedded:
            if part.bound_to() in (None, shared.fingerprint):
                part.share(shared)


def load_parts(folders: Sequence[Path], encoder: TextEncoder | None = None) -> list[Retriever]:
    """Open saved parts, which share one encoder: this one, where they have none of their own.

    Raises BadModel if they were made with different ones.
    """
    records = [read_model(folder) for folder in folders]
    _check_one({record["encoder"] for record in records if record.get("encoder")})
    home = next((folder / "encoder" for folder in folders if (folder / "encoder" / CARD_FILE).is_file()), None)
    used = encoder if home is None else Encoder.load(home)
    shared = SharedEncoder(used) if used is not None else None
    parts: dict[int, Retriever] = {}
    # A part that names its encoder goes first: the others use it too, but do not know its folder.
    for place in sorted(range(len(folders)), key=lambda i: not records[i].get("options", {}).get("encoder")):
        folder, record = folders[place], records[place]
        kind = method(record["method"])
        if not issubclass(kind, DocumentIndex):
            parts[place] = load_model(folder, shared)
            continue
        part = cast(Any, kind).load(folder, shared)
        if shared is None and record.get("encoder"):
            shared = SharedEncoder(part.encoder)
            part.share(shared)
        parts[place] = part
    return [parts[place] for place in range(len(folders))]


def joined(one: FitReport, other: FitReport) -> FitReport:
    """The report of two fits together, with the dev scores of the later one."""
    device = other.device if one.device == "cpu" else one.device
    seconds, parameters = one.seconds + other.seconds, one.parameters + other.parameters
    return FitReport(seconds, device, parameters, other.dev or one.dev, one.notes + other.notes)


def learn_weights(
    parts: Sequence[Retriever],
    rank: Callable[[Sequence[str]], list[list[Pairs]]],
    data: Sequence[TrainingSet],
    known: frozenset[str],
    depth: int,
    progress: FitProgress | None,
) -> Fusion:
    """Learn weights that rank the gold tools of dev requests before the other candidates.

    `rank` gives each part's ranking of each request; `known`: the digests of documents that training has seen.
    """
    dev_requests: list[_DevRequest] = []
    vectors: dict[str, dict[str, Floats]] = {}
    for one in data:
        if one.dev:
            dev_requests += _dev_requests(parts, rank, one, known, depth, vectors, progress)
    size = len(parts)
    with_new = any((request.is_gold & request.is_new).any() for request in dev_requests)
    if with_new:
        dev_requests = [_split_new_columns(request) for request in dev_requests]
    theta = _refined(dev_requests, _solved(dev_requests, size), size)
    learned = FusionWeights(tuple(theta[:size].round(4).tolist()))
    if with_new:
        learned = replace(learned, new_weights=tuple(theta[size : 2 * size].round(4).tolist()))
        learned = replace(learned, new_bonus=_bonus(dev_requests, theta))
        theta[-1] = learned.new_bonus
    dev = metrics.evaluate(*_ranked(dev_requests, theta), ["recall@3", "recall@5", "comp@3", "comp@5", "ndcg@5"])
    return Fusion(learned, dev, len(theta) if with_new else size)


def _dev_requests(
    parts: Sequence[Retriever],
    rank: Callable[[Sequence[str]], list[list[Pairs]]],
    one: TrainingSet,
    known: frozenset[str],
    depth: int,
    vectors: dict[str, dict[str, Floats]],
    progress: FitProgress | None,
) -> list[_DevRequest]:
    """The dev requests of a set (a sample if there are many), ranked by all parts among the set's own tools."""
    for part in parts:
        part.remove(part.ids())
        part.add(one.dataset.tools, _document_vectors(part, one, vectors, progress))
    new = {tool.id for tool in one.dataset.tools if tool.digest() not in known}
    split = dev_sample(one.dataset.split(one.dev))
    found = []
    for start in range(0, len(split), 256):
        texts = [text for _, text in split.requests[start : start + 256]]
        for rankings, gold in zip(rank(texts), split.gold[start:], strict=False):
            ids = list(dict.fromkeys(tool_id for ranking in rankings for tool_id, _ in ranking))
            scores = np.zeros((len(ids), len(parts)))
            for column, ranking in enumerate(rankings):
                relative = relative_scores(parts[column], ranking, depth)
                if relative is not None:
                    scores[:, column] = [relative[0].get(tool_id, relative[1]) for tool_id in ids]
            is_gold = np.array([tool_id in gold for tool_id in ids], dtype=bool)
            is_new = np.array([tool_id in new for tool_id in ids], dtype=bool)
            found.append(_DevRequest(ids, scores, gold, frozenset(new.intersection(gold)), is_gold, is_new))
        if progress:
            progress("weighing the parts", start + len(texts), len(split))
    return found


def _document_vectors(
    part: Retriever, one: TrainingSet, known: dict[str, dict[str, Floats]], progress: FitProgress | None
) -> Vectors | None:
    """The vectors of a set's documents, cached in `known` by encoder, so that each document is encoded once."""
    encoder = part.encoder
    if encoder is None:
        return None
    vectors = known.setdefault(encoder.fingerprint, {})
    missing = [tool for tool in one.dataset.tools if tool.digest() not in vectors]
    if missing:
        vectors.update(document_vectors(encoder, missing, progress))
    return vectors


def _split_new_columns(request: _DevRequest) -> _DevRequest:
    """The request with columns for known tools, columns for new tools, and a column for being new."""
    new = request.is_new[:, None]
    return replace(request, scores=np.hstack([request.scores * ~new, request.scores * new, new.astype(np.float64)]))


def _solved(dev_requests: Sequence[_DevRequest], size: int) -> Doubles:
    """Minimise the loss with a ridge penalty by Newton's method; each step is halved until the loss falls.

    Each gold tool competes with all wrong ones, but not with other gold tools: that would favour a part that cannot
    tell them apart. Raises BadDataset if no part finds a gold tool.
    """
    requests = [request for request in dev_requests if request.is_gold.any() and not request.is_gold.all()]
    if not requests:
        raise BadDataset("no part finds any gold tool of the dev requests; there is nothing to learn weights from")
    loss = _Loss([r.scores for r in requests], [r.is_gold for r in requests])
    theta = np.zeros(loss.width)
    theta[: min(len(theta), 2 * size)] = 1.0
    value, slope, curve = loss.at(theta)
    for _ in range(_STEPS):
        step = np.linalg.solve(curve, slope)
        tried = loss.at(theta - step)
        while tried[0] > value and np.abs(step).max() > _SMALL_STEP:
            step = step / 2
            tried = loss.at(theta - step)
        theta = theta - step
        value, slope, curve = tried
        if np.abs(step).max() < _SMALL_STEP:
            break
    return theta


def _refined(dev_requests: Sequence[_DevRequest], theta: Doubles, size: int) -> Doubles:
    """Search around the solved weights, and single parts, for weights that are significantly better on dev.

    Better means recall@5 plus NDCG@5, which the loss only approximates.
    """

    def worth(tried: Doubles) -> Doubles:
        """Recall@5 plus NDCG@5 of each request."""
        found = [
            metrics.recall(ranking, gold, _K) + metrics.ndcg(ranking, gold, _K)
            for ranking, gold in zip(*_ranked(dev_requests, tried), strict=True)
        ]
        return np.array(found)

    def surely_more(found: Doubles) -> bool:
        gain = found - best
        return bool(gain.mean() > max(_GAIN, 2 * gain.std() / np.sqrt(len(gain))))

    columns = [[place, size + place] if len(theta) > size else [place] for place in range(size)]
    best = worth(theta)
    for few in columns:
        alone = np.isin(np.arange(len(theta)), few).astype(np.float64)
        if surely_more(found := worth(alone)):
            best, theta = found, alone
    for _ in range(_SWEEPS):
        before = best
        for few in columns:
            for factor in _FACTORS:
                tried = theta.copy()
                tried[few] = theta[few] * factor if theta[few].any() else np.abs(theta[:size]).mean() * factor
                if surely_more(found := worth(tried)):
                    best, theta = found, tried
        if best is before:
            break
    return theta


class _Loss:
    """The loss over all dev requests; their wrong candidates are stacked in one table."""

    def __init__(self, tables: Sequence[Doubles], golds: Sequence[Bools]) -> None:
        wrong = [table[~gold] for table, gold in zip(tables, golds, strict=True)]
        right = [table[gold] for table, gold in zip(tables, golds, strict=True)]
        self._wrong, self._right = np.concatenate(wrong), np.concatenate(right)
        self.width = self._wrong.shape[1]
        sizes = [len(table) for table in wrong]
        self._starts, self._owner = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(wrong)), sizes)
        counts = np.array([len(table) for table in right])
        self._gold_owner = np.repeat(np.arange(len(right)), counts)
        self._counts = 1 / (len(right) * counts[self._gold_owner])

    def at(self, theta: Doubles) -> tuple[float, Doubles, Doubles]:
        """The loss, its slope and its curvature."""
        logits = self._wrong @ theta
        highest = np.maximum.reduceat(logits, self._starts)
        shares = np.exp(logits - highest[self._owner])
        totals = np.add.reduceat(shares, self._starts)
        shares /= totals[self._owner]
        means = np.add.reduceat(self._wrong * shares[:, None], self._starts, axis=0)
        behind = (highest + np.log(totals))[self._gold_owner] - self._right @ theta
        lost = 1 / (1 + np.exp(-np.clip(behind, -500, 500)))
        apart = means[self._gold_owner] - self._right
        value = float(self._counts @ np.logaddexp(0, behind)) + _RIDGE / 2 * float(theta @ theta)
        slope = (self._counts * lost) @ apart + _RIDGE * theta
        # The Hessian: the covariance of the wrong candidates, and the outer product of gold minus their mean.
        weight = np.bincount(self._gold_owner, self._counts * lost, len(self._starts))
        among = (self._wrong * (shares * weight[self._owner])[:, None]).T @ self._wrong - (
            means * weight[:, None]
        ).T @ means
        between = (apart * (self._counts * lost * (1 - lost))[:, None]).T @ apart
        return value, slope, among + between + _RIDGE * np.eye(self.width)


def _ranked(dev_requests: Sequence[_DevRequest], theta: Doubles) -> tuple[list[list[str]], list[tuple[str, ...]]]:
    rankings = []
    for request in dev_requests:
        best = np.argsort(-(request.scores @ theta), kind="stable")[:_K]
        rankings.append([request.ids[i] for i in best])
    return rankings, [request.gold for request in dev_requests]


def _bonus(dev_requests: Sequence[_DevRequest], theta: Doubles) -> float:
    """The new-tool bonus with the highest recall@5 among those that cost the known tools little.

    In a dev split of unseen tools every request needs a new one: without the bound the bonus would be far too high.
    """
    bonuses = [_HIDES_NEW_TOOLS, *_BONUSES.tolist()]
    (_, without), *found = _recalls(dev_requests, [np.append(theta[:-1], bonus) for bonus in bonuses])
    least = without - _MAY_COST
    allowed = [(of_all, -bonus) for (of_all, known), bonus in zip(found, bonuses[1:], strict=True) if known >= least]
    return round(-max(allowed)[1], 2) if allowed else 0.0


def _recalls(dev_requests: Sequence[_DevRequest], thetas: Sequence[Doubles]) -> list[tuple[float, float]]:
    """For each set of weights, the recall@5 of all gold tools and of the known ones: as in `metrics`, but faster.

    A gold tool is among the first five where fewer than five candidates have a higher score or, before it, the same.
    """
    new = frozenset[str]().union(*(request.new_gold for request in dev_requests))
    of_all, of_known = [], []
    for request in dev_requests:
        scores = np.stack([request.scores @ theta for theta in thetas])
        places = np.flatnonzero(request.is_gold)
        found = np.zeros((len(thetas), len(places)), dtype=bool)
        for column, place in enumerate(places.tolist()):
            own = scores[:, place, None]
            found[:, column] = (scores > own).sum(axis=1) + (scores[:, :place] == own).sum(axis=1) < _K
        gold = frozenset(request.gold)
        of_all.append(found.sum(axis=1) / len(gold))
        if known := gold - new:
            of_known.append(found[:, [request.ids[place] in known for place in places]].sum(axis=1) / len(known))
    return list(zip(_means(of_all, len(thetas)), _means(of_known, len(thetas)), strict=True))


def _means(rows: Sequence[Doubles], size: int) -> list[float]:
    """The mean of each column, rounded once as metrics does; 0 where there are no rows."""
    return [math.fsum(column) / len(rows) for column in np.array(rows).T] if rows else [0.0] * size
