"""Trains codes of tools: a residual-quantised autoencoder (RQ-VAE) over the vectors of their documents.

A collaborative loss draws tools that are used together to the same first codes. Unlike the published Laplacian term,
which uses the vectors of the assigned codes (`collaborative_on="vectors"`), it uses soft assignments: the negative
log-probability that tools share a code. So its gradient reaches the encoder and can move a tool to another code. It
leaves out the last level, whose codes must separate the tools that share all others.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import combinations, pairwise
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter, functional

from toolscout.core.arrays import Floats, Ints
from toolscout.errors import BadModel, TrainingStopped
from toolscout.models.tool_ids.code_tree import Health, health
from toolscout.models.tool_ids.quantizer import Code, CodeOptions, Quantizer, distances
from toolscout.training.loop import Report, pick_device

_BATCH, _EDGES = 4096, 2048
# The vectors that k-means initialises the codebooks from, and its iterations.
_SAMPLE, _ROUNDS = 8192, 15
_SINKHORN_ROUNDS = 30
_UNRECORDED_STEPS = 3
# The temperature of soft assignments, in units of the mean distance to the nearest code.
_SOFT = 0.5
# The share of steps before quantisation begins, and the share after which unused codes are no longer moved.
_PLAIN, _MOVING = 0.15, 0.85
_REVIVALS = 20
_CLIP = 1.0
_KEPT_FILE = "learned.json"


@dataclass(frozen=True, slots=True)
class LearnedCodes:
    """The trained quantizer, a different code sequence for each vector, and quality figures."""

    quantizer: Quantizer
    codes: list[Code]
    health: Health

    def save(self, folder: Path, made_from: str) -> None:
        """Write it to a folder; `made_from` is a digest of what it was learned from."""
        self.quantizer.save(folder)
        record = {"made_from": made_from, "codes": self.codes, "health": self.health.as_dict()}
        (folder / _KEPT_FILE).write_text(json.dumps(record), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, made_from: str) -> LearnedCodes | None:
        """Read what was learned from the same; None where the folder has nothing of that kind that can be read."""
        try:
            record = json.loads((folder / _KEPT_FILE).read_text(encoding="utf-8"))
            if record["made_from"] != made_from:
                return None
            shares = {name: tuple(record["health"][name]) for name in ("perplexity", "used")}
            codes = [tuple(code) for code in record["codes"]]
            return cls(Quantizer.load(folder), codes, Health(**record["health"] | shares))
        except (OSError, ValueError, KeyError, TypeError, BadModel):
            return None


@dataclass(frozen=True, slots=True)
class UsagePairs:
    """Pairs of tools that are used together, by their rows, each pair once, with its weight."""

    first: Ints
    second: Ints
    weight: Floats

    @classmethod
    def of(cls, uses: Sequence[Sequence[int]]) -> UsagePairs:
        """Count pairs in sets of rows; a weight is count(u, v) / sqrt(count(u) * count(v))."""
        alone: Counter[int] = Counter()
        both: Counter[tuple[int, int]] = Counter()
        for rows in uses:
            distinct = sorted(set(rows))
            alone.update(distinct)
            both.update(combinations(distinct, 2))
        pairs = np.array(sorted(both), dtype=np.int64).reshape(-1, 2)
        weight = [both[u, v] / sqrt(alone[u] * alone[v]) for u, v in sorted(both)]
        return cls(pairs[:, 0], pairs[:, 1], np.array(weight, dtype=np.float32))


class _CodeNetwork:
    """Encoder, decoder and codebooks. Latent vectors are scaled to mean 0 and variance 1, which fixes the losses'
    scale."""

    def __init__(
        self, sizes: Sequence[int], shape: tuple[int, int], device: torch.device, draw: torch.Generator
    ) -> None:
        shapes = [*pairwise(sizes)]
        self.encoder = [_layer(wide, narrow, device, draw) for wide, narrow in shapes]
        self.decoder = [_layer(narrow, wide, device, draw) for wide, narrow in reversed(shapes)]
        self.books = Parameter(torch.zeros(*shape, sizes[-1], device=device))

    def parameters(self) -> list[Parameter]:
        return [*(part for layer in self.encoder + self.decoder for part in layer), self.books]

    def latent(self, vectors: Tensor, counted: int) -> Tensor:
        """Latent vectors, scaled by the mean and variance of the first `counted` of them."""
        states = _apply_layers(self.encoder, vectors)
        centre, spread = _mean_and_deviation(states[:counted])
        return (states - centre) / spread

    def decode(self, latent: Tensor) -> Tensor:
        return _apply_layers(self.decoder, latent)


class _Learner:
    """Trains the encoder, the decoder and the codebooks on the vectors of all tools."""

    def __init__(self, vectors: Floats, together: UsagePairs, options: CodeOptions, device: torch.device) -> None:
        self.options, self.device = options, device
        self.draw = torch.Generator().manual_seed(options.seed)
        self.pick = np.random.default_rng(options.seed)
        centre = vectors.mean(axis=0)
        self.centre, self.scale = centre, float(max(np.sqrt(((vectors - centre) ** 2).mean()), 1e-6))
        self.vectors = torch.from_numpy((vectors - self.centre) / self.scale).to(device)
        self.net = _CodeNetwork(
            _sizes(vectors.shape[1], options.latent), options.shape(len(vectors)), device, self.draw
        )
        self.whole = len(vectors) <= _BATCH
        self.together = together
        self.total = float(together.weight.sum())
        weight = (together.weight if options.collaborative else together.weight[:0]) / len(vectors)
        self.pairs = (
            self.rows(together.first[: len(weight)]),
            self.rows(together.second[: len(weight)]),
            self.rows(weight),
        )

    def loss(self, batch: Tensor, plain: bool) -> Tensor:
        """The loss of a batch of rows: reconstruction, codebooks, and the collaborative loss; `plain` without codes."""
        first, second, weight = self.edges()
        rows = batch if self.whole else torch.cat([batch, first, second])
        latent = self.net.latent(self.vectors[rows], len(batch))
        batch_latent, vectors = latent[: len(batch)], self.vectors[batch]
        if plain:
            return functional.mse_loss(self.net.decode(batch_latent), vectors)
        quantised, loss = self.quantise(batch_latent)
        loss = loss + functional.mse_loss(self.net.decode(quantised), vectors)
        if len(weight):
            apart = self.vector_loss if self.options.collaborative_on == "vectors" else self.pair_loss
            loss = loss + self.options.collaborative * (weight * apart(latent, (first, second))).sum()
        return loss

    def pair_loss(self, latent: Tensor, ends: tuple[Tensor, Tensor]) -> Tensor:
        """The collaborative loss of each pair: 0 where it surely shares all codes but the last, 1 at chance level."""
        left = latent if self.whole else latent[-2 * len(ends[0]) :]
        found = torch.zeros_like(ends[0], dtype=latent.dtype)
        prefixes = self.net.books[:-1]
        for book in prefixes:
            distances = _distances(left, book)
            nearest = distances.detach().min(dim=1)
            likely = torch.log_softmax(-distances / (_SOFT * nearest.values.mean()).clamp(min=1e-6), dim=1)
            first, second = (functional.embedding(end, likely) for end in ends) if self.whole else likely.chunk(2)
            found = found - torch.logsumexp(first + second, dim=1) / (log(len(book)) * len(prefixes))
            left = left - book.detach()[nearest.indices]
        return found

    def vector_loss(self, latent: Tensor, ends: tuple[Tensor, Tensor]) -> Tensor:
        """The published loss of each pair: the squared distance of its summed code vectors; codes are constant."""
        left = (latent if self.whole else latent[-2 * len(ends[0]) :]).detach()
        total = torch.zeros_like(left)
        for book in self.net.books:
            chosen = functional.one_hot(_nearest(left, book.detach()), len(book)).to(book.dtype) @ book
            total, left = total + chosen, left - chosen.detach()
        first, second = (functional.embedding(end, total) for end in ends) if self.whole else total.chunk(2)
        return (first - second).square().sum(dim=1)

    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs used together and their weights: all of them, or a sample drawn by weight."""
        first, second, weight = self.pairs
        if self.whole or len(weight) <= _EDGES:
            return first, second, weight
        drawn = self.rows(self.pick.choice(len(weight), _EDGES, p=self.together.weight / self.total))
        share = self.total / len(self.vectors) / _EDGES
        return first[drawn], second[drawn], weight.new_full((_EDGES,), share)

    def quantise(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Quantised vectors with a straight-through gradient, and the codebook and commitment loss."""
        left, total, loss = latent, torch.zeros_like(latent), latent.new_zeros(())
        for book in self.net.books:
            distances = _distances(left.detach(), book.detach())
            codes = _sinkhorn(distances, self.options.sinkhorn) if self.options.sinkhorn else distances.argmin(dim=1)
            # A product with a one-hot matrix, because its gradient is deterministic, also on a GPU.
            chosen = functional.one_hot(codes, len(book)).to(book.dtype) @ book
            loss = loss + functional.mse_loss(chosen, left.detach())
            loss = loss + self.options.beta * functional.mse_loss(left, chosen.detach())
            total, left = total + chosen.detach(), left - chosen.detach()
        return latent + (total - latent).detach(), loss / len(self.net.books)

    def residuals(self, latent: Tensor, level: int) -> Tensor:
        """Latent vectors minus the vectors of their codes before a level."""
        for book in self.net.books[:level]:
            latent = latent - book[_nearest(latent, book)]
        return latent

    @torch.no_grad()
    def begin_codes(self) -> None:
        """Initialise each codebook by k-means over the residuals of its level."""
        rows = self.pick.permutation(len(self.vectors))[:_SAMPLE]
        latent = self.all_latent()[torch.from_numpy(rows).to(self.device)]
        for level, book in enumerate(self.net.books):
            book.copy_(self.k_means(self.residuals(latent, level), len(book)))

    def k_means(self, points: Tensor, count: int) -> Tensor:
        """k-means centres of points; an empty cluster moves to a point of a large one."""
        picked = self.pick.permutation(len(points))[:count]
        means = self.add_noise(points[torch.from_numpy(np.resize(picked, count)).to(self.device)])
        for _ in range(_ROUNDS):
            codes = _nearest(points, means)
            member = functional.one_hot(codes, count).to(points.dtype)
            sizes = member.sum(dim=0)
            means = torch.where(sizes[:, None] > 0, member.T @ points / sizes.clamp(min=1)[:, None], means)
            self.revive(means, points, codes)
        return means

    def revive(self, book: Tensor, points: Tensor, codes: Tensor) -> Tensor:
        """Move codes that no point has near points whose codes have many points; gives back the codes moved."""
        sizes = torch.bincount(codes, minlength=len(book))
        unused = torch.nonzero(sizes == 0).flatten()
        crowded = (sizes[codes] - 1).double().cpu().numpy()
        count = min(len(unused), int((crowded > 0).sum()))
        if count:
            rows = self.pick.choice(len(points), count, replace=False, p=crowded / crowded.sum())
            book[unused[:count]] = self.add_noise(points[torch.from_numpy(rows).to(self.device)])
        return unused[:count]

    def add_noise(self, points: Tensor) -> Tensor:
        """Points with a little noise, so that equal points get different codes."""
        return points + 0.01 * torch.randn(points.shape, generator=self.draw).to(self.device)

    @torch.no_grad()
    def revive_all(self, adam: torch.optim.Adam) -> None:
        """Move every unused code, and reset its state in the optimiser."""
        latent = self.all_latent()
        for level, book in enumerate(self.net.books):
            left = self.residuals(latent, level)
            moved = self.revive(book, left, _nearest(left, book))
            for name in ("exp_avg", "exp_avg_sq"):
                if self.net.books in adam.state:
                    adam.state[self.net.books][name][level, moved] = 0

    def all_latent(self) -> Tensor:
        with torch.no_grad():
            return self.net.latent(self.vectors, len(self.vectors))

    def run(self, progress: Report | None) -> None:
        steps, rate = self.options.code_steps, self.options.code_rate
        plain, moving = round(_PLAIN * steps), round(_MOVING * steps)
        every = max(1, steps // _REVIVALS)
        recorded = self.whole and self.device.type == "cuda"
        adam = torch.optim.Adam(self.net.parameters(), lr=rate, capturable=recorded)
        all_rows = self.rows(np.arange(len(self.vectors)))
        order, at = np.empty(0, dtype=np.int64), 0
        take_step: Callable[[Tensor], Tensor] = partial(self.step, adam, plain=True)
        if recorded:
            adam.param_groups[0]["lr"] = torch.tensor(rate, device=self.device)
            take_step = _RecordedStep(take_step)
        for step in range(steps):
            if step == plain:
                self.begin_codes()
                take_step = partial(self.step, adam, plain=False)
                take_step = _RecordedStep(take_step) if recorded else take_step
            elif plain < step < moving and step % every == 0:
                self.revive_all(adam)
            batch = all_rows
            if not self.whole:
                if at >= len(order):
                    order, at = self.pick.permutation(len(self.vectors)), 0
                batch, at = self.rows(order[at : at + _BATCH]), at + _BATCH
            _set_rate(adam, rate * min(1.0, 5 * (1 - step / steps)))
            loss = take_step(batch)
            if progress and (step + 1) % every == 0:
                progress(f"learning codes, loss {loss.item():.3f}", step + 1, steps)
        if not torch.isfinite(loss):
            raise TrainingStopped("the loss of the codes is not a finite number; lower --option code_rate")

    def step(self, adam: torch.optim.Adam, batch: Tensor, plain: bool) -> Tensor:
        """Take a step on a batch of rows, and give back its loss."""
        loss = self.loss(batch, plain)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), _CLIP)
        adam.step()
        return loss.detach()

    def rows(self, rows: NDArray[Any]) -> Tensor:
        return torch.from_numpy(rows).to(self.device)

    @torch.no_grad()
    def to_quantizer(self) -> tuple[Quantizer, float]:
        """The quantizer, with all scaling folded into its layers, and the share of variance that quantisation loses."""
        centre, spread = _mean_and_deviation(_apply_layers(self.net.encoder, self.vectors))
        latent = self.all_latent()
        left = self.residuals(latent, len(self.net.books))
        lost = functional.mse_loss(self.net.decode(latent - left), self.vectors)
        layers = [(weight.cpu().numpy().copy(), bias.cpu().numpy().copy()) for weight, bias in self.net.encoder]
        first = layers[0]
        layers[0] = (first[0] / self.scale, first[1] - first[0] @ self.centre / self.scale)
        last = layers[-1]
        layers[-1] = (last[0] / float(spread), (last[1] - centre.cpu().numpy()) / float(spread))
        return Quantizer(layers, self.net.books.detach().cpu().numpy().copy()), float(lost)


def learn(
    vectors: Floats,
    uses: Sequence[Sequence[int]],
    options: CodeOptions | None = None,
    device: str = "auto",
    progress: Report | None = None,
    kept: Path | None = None,
) -> LearnedCodes:
    """Learn codes for tools with these document vectors [tools, d].

    `uses` has sets of tools, by their rows, that training requests used together. The same seed on the same device
    gives the same codes. `kept`: a folder for what was learned; what is there of the same tools, uses and options is
    not learned again. Raises BadModel for vectors or rows that do not fit, TrainingStopped where the loss is not
    finite.
    """
    options = options or CodeOptions()
    if vectors.ndim != 2 or not len(vectors) or not np.isfinite(vectors).all():
        raise BadModel("codes are learned from one vector of finite numbers for each tool; embed the tools again")
    if any(not 0 <= row < len(vectors) for rows in uses for row in rows):
        raise BadModel(f"tools that are used together must be rows from 0 to {len(vectors) - 1}")
    together = UsagePairs.of(uses)
    made_from = _digest(vectors, together, options)
    if kept is not None and (known := LearnedCodes.load(kept, made_from)) is not None:
        return known
    learner = _Learner(vectors.astype(np.float32), together, options, pick_device(device))
    learner.run(progress)
    quantizer, lost = learner.to_quantizer()
    codes = quantizer.assign(vectors)
    if options.code_source == "random":
        codes = [codes[row] for row in np.random.default_rng(options.seed).permutation(len(codes))]
    pairs = np.stack([together.first, together.second], axis=1)
    nearest, published = _collisions(quantizer, vectors.astype(np.float32), options.sinkhorn)
    about = replace(
        health(codes, quantizer.codes, pairs),
        lost=lost,
        error=lost * learner.scale**2,
        nearest_collisions=nearest,
        published_collisions=published,
    )
    learned = LearnedCodes(quantizer, codes, about)
    if kept is not None:
        learned.save(kept, made_from)
    return learned


def _digest(vectors: Floats, together: UsagePairs, options: CodeOptions) -> str:
    """A digest of all that codes are learned from."""
    own = {one.name: getattr(options, one.name) for one in fields(CodeOptions)}
    found = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=16)
    for array in (vectors.astype(np.float32), together.first, together.second, together.weight):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _collisions(quantizer: Quantizer, vectors: Floats, epsilon: float) -> tuple[int, int]:
    """How many tools share a sequence if each has its nearest codes; and after the published pass over those groups.

    That pass assigns the last codes of the tools of one sequence by Sinkhorn-Knopp, whatever other tools have.
    """
    codes, left = quantizer.nearest(vectors), quantizer.encode(vectors)
    for level, book in enumerate(quantizer.codebooks[:-1]):
        left = left - book[codes[:, level]]
    sequences, group, sizes = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    for number in np.flatnonzero(sizes > 1) if epsilon else ():
        rows = np.flatnonzero(group.ravel() == number)
        apart = distances(left[rows], quantizer.codebooks[-1])
        codes[rows, -1] = _sinkhorn(torch.from_numpy(apart), epsilon).numpy()
    return len(codes) - len(sequences), len(codes) - len(np.unique(codes, axis=0))


def _sizes(wide: int, latent: int) -> list[int]:
    """The layer sizes from the input to the latent vector, with powers of two in between."""
    latent = min(latent, wide)
    between = [2**power for power in range(12, 0, -1) if latent < 2**power < wide]
    return [wide, *(between or [2 * latent]), latent]


def _layer(wide: int, narrow: int, device: torch.device, draw: torch.Generator) -> tuple[Parameter, Parameter]:
    weight = torch.nn.init.xavier_normal_(torch.empty(narrow, wide), generator=draw)
    return Parameter(weight.to(device)), Parameter(torch.zeros(narrow, device=device))


def _apply_layers(layers: Sequence[tuple[Parameter, Parameter]], states: Tensor) -> Tensor:
    for position, (weight, bias) in enumerate(layers):
        states = functional.linear(states, weight, bias)
        states = functional.relu(states) if position < len(layers) - 1 else states
    return states


def _mean_and_deviation(states: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of states, the latter at least large enough to divide by."""
    centre = states.mean(dim=0)
    return centre, ((states - centre) ** 2).mean().clamp(min=1e-8).sqrt()


def _distances(points: Tensor, book: Tensor) -> Tensor:
    return (points**2).sum(dim=1, keepdim=True) + (book**2).sum(dim=1) - 2 * points @ book.T


def _nearest(points: Tensor, book: Tensor) -> Tensor:
    return torch.cat([_distances(part, book).argmin(dim=1) for part in torch.split(points, _BATCH)])


def _sinkhorn(distances: Tensor, epsilon: float) -> Tensor:
    """The code of each row by Sinkhorn-Knopp: a near one, with about the same number of rows for every code."""
    wide = distances.double()
    low, high = wide.min(), wide.max()
    scaled = 2 * (wide - low) / (high - low).clamp(min=1e-5)
    kernel = torch.exp(-(scaled - scaled.min(dim=1, keepdim=True).values) / epsilon)
    share = len(kernel) / kernel.shape[1]
    columns = kernel.new_ones(kernel.shape[1])
    for _ in range(_SINKHORN_ROUNDS):
        rows = 1 / (kernel @ columns)
        columns = share / (kernel.T @ rows).clamp(min=1e-200)
    return (kernel * columns).argmax(dim=1)


def _set_rate(adam: torch.optim.Adam, rate: float) -> None:
    """Set the learning rate; one that lies on a GPU is changed in place, where recorded steps read it."""
    group = adam.param_groups[0]
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


class _RecordedStep:
    """A training step of always the same batch, recorded as a CUDA graph: its many small kernels start at once.

    The first steps are not recorded: libraries and the optimiser allocate what they need.
    """

    def __init__(self, take_step: Callable[[Tensor], Tensor]) -> None:
        self._take_step, self._taken = take_step, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._loss = torch.empty(0)

    def __call__(self, batch: Tensor) -> Tensor:
        self._taken += 1
        if self._graph is not None:
            self._graph.replay()
            return self._loss
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._take_step(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        if self._taken == _UNRECORDED_STEPS:
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._loss = self._take_step(batch)
        return loss
