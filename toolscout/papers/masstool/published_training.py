"""MassTool as its authors released it, for comparison: two graphs, attention over past requests, a gate, six cosines.

Vectors of requests, tools and prompts are parameters that start as the encoder's output, so the model knows these tools
only. Without one of its modules the network has fewer parts: see `PublishedNetwork`. `published.KEPT_FAULTS` lists the
faults of the released code that are kept, `published.DIFFERENCES` what differs from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from toolscout.core.arrays import Floats, Ints
from toolscout.data import metrics
from toolscout.training.checkpoint import Checkpoints
from toolscout.training.encoder_options import PublishedOptions
from toolscout.training.loop import Report, Schedule, TrainingRecord, TrainingTask, hardware_name, pick_device, run
from toolscout.training.tower import nearest

# The authors stop on recall and COMP at 3; here the first of these selects the epoch.
_MEASURES = ("recall@3", "recall@5", "ndcg@3", "ndcg@5", "comp@3", "comp@5")
VIEWS = 2
_TINY = 1e-8  # as published: nodes without edges do not divide by zero
_DETECTION_DROPOUT, _INFO_DROPOUT = 0.1, 0.3


@dataclass(frozen=True, slots=True)
class PublishedTrainingData:
    """The encoder's vectors, the gold tools (rows of `tools`) of each request, and the scene of each request.

    `negatives`: vectors of prompts that need no tool. `dev` and `dev_gold` select the best epoch; they may be empty.
    """

    requests: Floats
    gold: Sequence[Ints]
    scenes: Ints
    tools: Floats
    negatives: Floats
    dev: Floats
    dev_gold: Sequence[Ints]


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """The result of a training; `weights` are those of PublishedNetwork.serving_weights.

    The caller removes `checkpoints` once it has saved the model.
    """

    trained: TrainingRecord
    checkpoints: Checkpoints
    parameters: int
    device: str
    weights: dict[str, Floats]


def learn(
    data: PublishedTrainingData,
    options: PublishedOptions,
    folder: Path,
    identity: str,
    report: Report | None = None,
) -> PublishedModel:
    """Train, or resume from the checkpoints of the training `identity` in `folder`/training.

    Raises BadModel where the device cannot be used, TrainingStopped where the loss is not a number.
    """
    device = pick_device(options.device)
    torch.manual_seed(options.seed)
    task = PublishedTask(data, options, device)
    checkpoints = Checkpoints(folder / "training", identity)
    schedule = Schedule(
        options.epochs, options.rate, decay=0.0, warmup=0.0, patience=options.patience, seed=options.seed
    )
    trained = run(task, schedule, checkpoints, report)
    weights = {name: tensor.numpy() for name, tensor in checkpoints.read_best().items()}
    size = sum(parameter.numel() for parameter in task.parameters().values())
    return PublishedModel(trained, checkpoints, size, hardware_name(device), weights)


class PublishedEdges:
    """The edges of a bipartite graph in both directions; nodes of the first kind have the lower numbers."""

    def __init__(self, pairs: Ints, first: int, second: int, device: torch.device) -> None:
        """Take `pairs` [edges, 2] of a node of the first and one of the second kind, and the numbers of nodes."""
        forward = np.stack([pairs[:, 0], pairs[:, 1] + first])
        both = np.concatenate([forward, forward[::-1]], axis=1)
        self._places = torch.from_numpy(both[:, np.lexsort(both[::-1])].copy()).to(device)
        self._size = first + second

    def normalised(self, dropped: float = 0.0) -> Tensor:
        """Return the matrix D^-1/2 M D^-1/2; each direction of an edge is dropped with probability `dropped`."""
        places = _drop_edges(self._places, dropped)
        ones = torch.ones(places.shape[1], device=places.device)
        roots = [
            torch.zeros(self._size, device=places.device).index_add(0, ends, ones).sqrt() + _TINY for ends in places
        ]
        return _sparse(places, ones / roots[0][places[0]] / roots[1][places[1]], (self._size, self._size))


def mean_over(pairs: Tensor, size: tuple[int, int], dropped: float = 0.0) -> Tensor:
    """Return the sparse matrix that averages over linked columns; `pairs` [2, edges] are sorted by row."""
    places = _drop_edges(pairs, dropped)
    ones = torch.ones(places.shape[1], device=places.device)
    counts = torch.zeros(size[0], device=places.device).index_add(0, places[0], ones)
    return _sparse(places, ones / (counts[places[0]] + _TINY), size)


def _drop_edges(places: Tensor, dropped: float) -> Tensor:
    return places[:, torch.rand(places.shape[1]).to(places.device) >= dropped] if dropped else places


def _sparse(places: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.sparse_coo_tensor(places, values, size, is_coalesced=True, check_invariants=False)


def propagate(graph: Tensor, start: Tensor, layers: int) -> Tensor:
    """Return the nodes' vectors plus, for each layer of propagation over the graph, the normalised result."""
    total, layer = start, start
    for _ in range(layers):
        layer = torch.sparse.mm(graph, layer)
        total = total + functional.normalize(layer, dim=1)
    return total


def attend(query: Tensor, near: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """Return the mean of neighbours [requests, neighbours, d] weighted by bilinear attention.

    Neighbours outside `mask` have weight 0; where all are outside, the result is 0.
    """
    logits = products(query @ weight, near)
    shares = logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(1) * mask
    return (shares[:, :, None] * near).sum(1)


def products(vectors: Tensor, lists: Tensor) -> Tensor:
    """Return the dot products of each vector with its own list [vectors, length, d]; on a CPU faster than bmm."""
    return (vectors[:, None] * lists).sum(2)


def list_wise(scores: Tensor, gold: Tensor) -> Tensor:
    """Return the binary cross-entropy between the softmax over each list and the uniform distribution on its gold."""
    return functional.binary_cross_entropy(scores.softmax(1), gold / gold.sum(1, keepdim=True))


def pairwise(scores: Tensor, gold: Tensor) -> Tensor:
    """Return the BPR loss: the mean of -log sigmoid(gold score - other score) over all such pairs of all lists.

    A list of gold tools alone has no pair.
    """
    pairs = gold[:, :, None] * (1 - gold[:, None, :])
    losses = -functional.logsigmoid(scores[:, :, None] - scores[:, None, :])
    return (losses * pairs).sum() / pairs.sum().clamp(min=1)


def contrast(anchors: Tensor, others: Tensor, temperature: float, counts: Tensor | None = None) -> Tensor:
    """Return the one-way InfoNCE loss: the positive of each anchor is the same row of `others`.

    `counts`: how often each row occurs in the batch; its repetitions are negatives too, as published.
    """
    logits = functional.normalize(anchors, dim=1) @ functional.normalize(others, dim=1).T / temperature
    if counts is None:
        return (logits.logsumexp(1) - logits.diagonal()).mean()
    return ((logits + counts.log()).logsumexp(1) - logits.diagonal()) @ counts / counts.sum()


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs of an epoch as sparse matrices: request–tool, request–scene, and the mean of a scene's tools."""

    tool: Tensor
    scene: Tensor
    members: Tensor


@dataclass(frozen=True, slots=True)
class PropagatedViews:
    """The nodes' vectors after propagation; `requests` and `scenes` once for each of the two graphs."""

    requests: tuple[Tensor, Tensor]
    scenes: tuple[Tensor, Tensor]
    tools: Tensor


class PublishedNetwork(nn.Module):
    """The detection and the retrieval tower, with trainable vectors of requests, tools and prompts.

    It has only the parameters that the options use. Without SUIM, AdaKT changes the request's own vector instead of the
    attended one. Without AdaKT and without detection there is no detection tower.
    """

    def __init__(self, data: PublishedTrainingData, members: Tensor, options: PublishedOptions) -> None:
        """Start with the encoder's vectors; a scene starts as the mean of its tools, which `members` computes."""
        super().__init__()
        self.attends, self.transfer = options.neighbours > 0, options.transfer
        self.detects = options.weight_detection > 0 and len(data.negatives) > 0
        self.has_tower = self.detects or self.transfer != "none"
        width = data.tools.shape[1]
        requests, tools = torch.from_numpy(data.requests), torch.from_numpy(data.tools)
        self.requests = nn.Parameter(requests.clone())
        self.tools = nn.Parameter(tools.clone())
        # Drawn in a fixed order, also where the options leave a part out, so that variants of one seed start alike.
        attention = nn.ParameterList([torch.randn(width, width) for _ in range(VIEWS)])
        hidden, classes, info = nn.Linear(width, width), nn.Linear(width, 2), nn.Linear(width, width)
        gates = nn.ModuleList([nn.Linear(width, width) for _ in range(VIEWS)])
        if self.attends:
            self.attention = attention
        if self.has_tower:
            self.aware, self.hidden = nn.Parameter(requests.clone()), hidden
        if self.detects:
            self.negatives, self.classes = nn.Parameter(torch.from_numpy(data.negatives).clone()), classes
        if self.transfer != "none":
            self.info = info
        if self.transfer == "gating":
            self.gates = gates
        elif self.transfer == "concatenation":
            self.joins = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(VIEWS)])
        elif self.transfer == "attention":
            self.mixes = nn.ParameterList([torch.randn(width, width) for _ in range(VIEWS)])
        self._members = members
        self._scenes = torch.sparse.mm(members.cpu(), tools).to(members.device)

    def views(self, graphs: Graphs, layers: int) -> PropagatedViews:
        """Propagate over both graphs. The vectors of scenes are constant, but pass gradients on to their tools."""
        count = len(self.requests)
        means = torch.sparse.mm(self._members, self.tools)
        scenes = self._scenes + means - means.detach()
        by_tool = propagate(graphs.tool, torch.cat([self.requests, self.tools]), layers)
        by_scene = propagate(graphs.scene, torch.cat([self.requests, scenes]), layers)
        tools = by_tool[count:]
        return PropagatedViews(
            (by_tool[:count], by_scene[:count]), (torch.sparse.mm(graphs.members, tools), by_scene[count:]), tools
        )

    def state(self, vectors: Tensor) -> Tensor | None:
        """Return the hidden state of detection; None without a detection tower."""
        if not self.has_tower:
            return None
        return functional.dropout(self.hidden(vectors).relu(), _DETECTION_DROPOUT, self.training)

    def shares(self, state: Tensor) -> Tensor:
        """Return the probabilities of "no tool" and "tool"; only a network that detects has them."""
        found: Tensor = self.classes(state).softmax(1)
        return found

    def joint(
        self, own: Sequence[Tensor], near: Sequence[Tensor] | None, mask: Tensor | None, state: Tensor | None
    ) -> Tensor:
        """Return the sum of a request's unit vectors; its product with a tool's unit vector sums their cosines.

        `own` and `near`: the vectors of the request and of its neighbours in each view; `mask`: the neighbours that are
        near enough; `state`: the hidden state of detection. In each view there are the request's own vector, with SUIM
        the attended vector, and with AdaKT the transferred vector: six in all.
        """
        info = None
        if self.transfer != "none":
            info = functional.dropout(self.info(state).relu(), _INFO_DROPOUT, self.training)
        parts = []
        for view in range(VIEWS):
            found = own[view]
            parts.append(found)
            if near is not None and mask is not None:
                found = attend(found, near[view], mask, self.attention[view])
                parts.append(found)
            if info is not None:
                parts.append(self._transferred(view, found, info))
        return torch.stack([functional.normalize(part, dim=1) for part in parts]).sum(0)

    def _transferred(self, view: int, found: Tensor, info: Tensor) -> Tensor:
        """Return AdaKT's vector: `found`, changed by what the detection tower knows."""
        if self.transfer == "addition":
            return found + info
        if self.transfer == "concatenation":
            joined: Tensor = self.joins[view](torch.cat([found, info], dim=1))
            return joined
        if self.transfer == "attention":
            pair = torch.stack([found, info], dim=1)
            mixed: Tensor = ((pair @ self.mixes[view] @ pair.mT).softmax(2) @ pair).sum(1)
            return mixed
        gated: Tensor = self.gates[view](info).sigmoid() * found
        return gated

    def serving_weights(self, views: PropagatedViews) -> dict[str, Tensor]:
        """Return what ranks a new request: past requests in both views, the tools' unit vectors, and the layers."""
        pools = {f"pool.{view}": views.requests[view] for view in range(VIEWS)} if self.attends else {}
        tables = ("requests", "aware", "tools", "negatives")  # used in training only
        layers = {name: parameter for name, parameter in self.named_parameters() if name not in tables}
        return {**pools, "tools": functional.normalize(views.tools, dim=1), **layers}


class PublishedTask(TrainingTask):
    """The training task of MassTool as published."""

    def __init__(self, data: PublishedTrainingData, options: PublishedOptions, device: torch.device) -> None:
        """Build the graphs and find the neighbours."""
        self._data, self._options, self._device = data, options, device
        count, tools, scenes = len(data.requests), len(data.tools), int(data.scenes.max()) + 1
        places = np.repeat(np.arange(count), [len(few) for few in data.gold])
        used = np.stack([places, np.concatenate(data.gold)], axis=1)
        self._tool_edges = PublishedEdges(used, count, tools, device)
        in_scene = np.stack([np.arange(count), data.scenes], axis=1)
        self._scene_edges = PublishedEdges(in_scene, count, scenes, device)
        members = np.unique(np.stack([data.scenes[places], used[:, 1]], axis=1), axis=0)
        self._members, self._members_size = torch.from_numpy(members.T.copy()).to(device), (scenes, tools)
        self._clean = self._graphs(0.0)
        self._epoch = self._clean
        self.network = PublishedNetwork(data, self._clean.members, options).to(device)
        self._gold = np.zeros((count, tools), dtype=bool)
        self._gold[used[:, 0], used[:, 1]] = True
        self._near = self._neighbours(data.requests, itself=False)
        self._dev_near = self._neighbours(data.dev, itself=True) if len(data.dev) else None
        self._batch = min(options.batch, count)
        self._order, self._negatives = np.arange(count), np.arange(len(data.negatives))

    def _graphs(self, dropped: float) -> Graphs:
        members = mean_over(self._members, self._members_size, dropped)
        return Graphs(self._tool_edges.normalised(dropped), self._scene_edges.normalised(dropped), members)

    def _neighbours(self, vectors: Floats, *, itself: bool) -> tuple[Tensor, Tensor] | None:
        """Return the rows of the nearest training requests, and which of them are near enough; None without SUIM."""
        if not self._options.neighbours:
            return None
        pool = torch.from_numpy(self._data.requests)
        rows, cosines = nearest(torch.from_numpy(vectors), pool, self._options.neighbours, itself)
        return rows.to(self._device), (cosines >= self._options.epsilon).to(self._device)

    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Return all parameters of the network."""
        return dict(self.network.named_parameters())

    def steps(self) -> int:
        """Return the number of full batches."""
        return len(self._order) // self._batch

    def begin(self, epoch: int, saved: Mapping[str, Tensor] | None = None) -> None:
        """Shuffle the requests, and draw the edges of the epoch."""
        rng = np.random.default_rng([self._options.seed, epoch])
        torch.manual_seed(int(rng.integers(2**31)))
        self._order = rng.permutation(len(self._data.requests))
        self._negatives = rng.permutation(len(self._data.negatives))
        self._epoch = self._graphs(self._options.edge_dropout)

    def epoch_state(self) -> Mapping[str, Tensor]:
        """Return {}: `begin` depends on the epoch alone."""
        return {}

    def step(self, epoch: int, step: int) -> Tensor:
        """Compute the loss of one batch and its gradients."""
        weights = {"retrieval": 1.0, "contrastive": self._options.beta, "detection": self._options.weight_detection}
        losses = [weights[name] * loss for name, loss in self.losses(epoch, step).items()]
        loss = torch.stack(losses).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def losses(self, epoch: int, step: int) -> dict[str, Tensor]:
        """Return the losses of one batch before they are weighted: "retrieval", "contrastive" and "detection".

        Those that the options leave out are missing.
        """
        self.network.train()
        rng = np.random.default_rng([self._options.seed, epoch, step])
        picked = self._order[step * self._batch : (step + 1) * self._batch]
        lists, gold = self._candidates(picked, rng)
        rows = torch.from_numpy(picked).to(self._device)
        views = self.network.views(self._epoch, self._options.layers)
        own = [functional.embedding(rows, view) for view in views.requests]
        near, mask = self._gather(views, None if self._near is None else (self._near[0][rows], self._near[1][rows]))
        state = None
        if self.network.has_tower:
            state = self.network.state(functional.embedding(rows, self.network.aware))
        joint = self.network.joint(own, near, mask, state)
        tools = functional.embedding(lists, functional.normalize(views.tools, dim=1))
        retrieval = pairwise if self._options.loss == "pairwise" else list_wise
        found = {"retrieval": retrieval(products(joint, tools), gold)}
        if self._options.beta:
            found["contrastive"] = self._contrastive(picked, views, own) / 2
        if self.network.detects and state is not None:
            found["detection"] = self._detection(self.network.shares(state), step)
        return found

    def _gather(
        self, views: PropagatedViews, near: tuple[Tensor, Tensor] | None
    ) -> tuple[list[Tensor] | None, Tensor | None]:
        """Return the vectors of neighbours in each view, and which of them are near enough; (None, None) for none."""
        if near is None:
            return None, None
        return [functional.embedding(near[0], view) for view in views.requests], near[1]

    def _contrastive(self, picked: Ints, views: PropagatedViews, own: Sequence[Tensor]) -> Tensor:
        """Return the contrastive losses of the batch's requests and of their scenes."""
        found = np.unique(self._data.scenes[picked], return_counts=True)
        scenes, counts = (torch.from_numpy(numbers).to(self._device) for numbers in found)
        tool, scene = (functional.embedding(scenes, view) for view in views.scenes)
        temperature = self._options.temperature
        return contrast(own[0], own[1], temperature) + contrast(tool, scene, temperature, counts.float())

    def _candidates(self, picked: Ints, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return, for each request, all its gold tools and random others, and which of them are gold."""
        gold = self._gold[picked]
        order = np.where(gold, np.float32(-1), rng.random(gold.shape, dtype=np.float32))
        length = min(self._options.candidates, gold.shape[1])
        lists = np.argpartition(order, length - 1, axis=1)[:, :length]
        wanted = np.take_along_axis(gold, lists, axis=1).astype(np.float32)
        return torch.from_numpy(lists).to(self._device), torch.from_numpy(wanted).to(self._device)

    def _detection(self, shares: Tensor, step: int) -> Tensor:
        """Return the cross-entropy of `shares`, which are a softmax already (as published)."""
        count = max(1, len(self._negatives) * self._batch // len(self._order))
        rows = torch.from_numpy(self._negatives[step * count : (step + 1) * count]).to(self._device)
        state = self.network.state(functional.embedding(rows, self.network.negatives))
        assert state is not None  # a network that detects has the tower
        others = self.network.shares(state)
        labels = torch.cat([torch.ones(len(shares)), torch.zeros(len(others))]).long().to(self._device)
        return functional.cross_entropy(torch.cat([shares, others]), labels)

    def validate(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Return the dev scores and the weights to serve; dev requests have no edges in the graphs."""
        self.network.eval()
        with torch.no_grad():
            views = self.network.views(self._clean, self._options.layers)
            weights = self.network.serving_weights(views)
            if not len(self._data.dev):
                return {}, weights
            scores = self.joint(self._data.dev, views, self._dev_near) @ weights["tools"].T
        best = scores.topk(min(5, scores.shape[1]), dim=1).indices.cpu().numpy()
        golds = [list(map(str, few.tolist())) for few in self._data.dev_gold]
        return metrics.evaluate([list(map(str, row.tolist())) for row in best], golds, _MEASURES), weights

    def joint(self, vectors: Floats, views: PropagatedViews, near: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return the vectors to search with for new requests, whose vectors are the encoder's in both views.

        `near`: the rows of their neighbours, and which of them are near enough; None without SUIM.
        """
        own = torch.from_numpy(vectors).to(self._device)
        found, mask = self._gather(views, near)
        return self.network.joint([own, own], found, mask, self.network.state(own))
