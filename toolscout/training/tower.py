"""The retrieval and detection towers in torch with their losses, for training; models/tower.py is the inference part.

A scene is the set of tools that a request needs; requests that need the same tools share a scene.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter, functional

from toolscout.core.arrays import Floats, Ints
from toolscout.models.light_gcn import BipartiteEdges, propagate
from toolscout.models.tower import VIEWS, Transfer
from toolscout.training import losses
from toolscout.training.encoder_options import EncoderTrainingOptions, GraphOptions, NeighbourOptions

# Initial values: the scale of attention, and the weights of neighbours, graph and votes.
_SHARP, _SEARCH, _GRAPH, _VOTES = 10.0, 0.2, 0.3, 0.1
_FILTERED = -1e9


@dataclass(frozen=True, slots=True)
class TrainingRequests:
    """For each training request, the rows of its gold tools and its scene; `tools` is the number of tools."""

    gold: list[Ints]
    scenes: Ints
    tools: int

    @property
    def used(self) -> Ints:
        """The rows of the tools that at least one training request needs."""
        return np.unique(np.concatenate(self.gold))


@dataclass(frozen=True, slots=True)
class TowerOptions:
    """All options of a tower: for training, for the graph, and for neighbours."""

    learning: EncoderTrainingOptions
    graph: GraphOptions
    around: NeighbourOptions


class TowerNetwork:
    """The parameters of both towers.

    maps: whether to learn maps of the encoder's vectors, for an encoder that is frozen.
    attends: whether to learn the attention to neighbours; otherwise it follows their cosines.
    """

    def __init__(
        self, dimension: int, options: TowerOptions, device: torch.device, maps: bool, attends: bool = True
    ) -> None:
        """Initialise so that a request's own vector counts most, its neighbours and the graph less.

        There are only the parameters that these options need.
        """
        self.transfer: Transfer = options.around.transfer
        hidden, d = options.around.hidden, dimension
        listens = options.around.neighbours > 0
        numbers = {
            "graph": torch.tensor(_inverse_softplus(_GRAPH)),
            "temperature": torch.tensor(math.log(options.learning.scale)),
            "undecided": torch.tensor(options.learning.bias),
            "new_bonus": torch.tensor(0.0),
        }
        if listens:
            numbers |= {
                "attend": _SHARP * torch.eye(d).expand(VIEWS, d, d).clone(),
                "own": torch.zeros(VIEWS),
                "search": torch.full((VIEWS,), _inverse_softplus(_SEARCH)),
                "votes": torch.tensor(_inverse_softplus(_VOTES)),
            }
        if listens and self.transfer != "none":
            wide = d + hidden if self.transfer == "concatenation" else hidden
            open_gate = 2.0 if self.transfer in ("gating", "residual") else 0.0
            numbers |= {
                "joint": torch.full((VIEWS,), _inverse_softplus(_SEARCH)),
                "transfer": torch.randn(VIEWS, d, wide) * 0.5 / math.sqrt(wide),
                "transfer_bias": torch.full((VIEWS, d), open_gate),
            }
        if "joint" in numbers or options.around.detection:
            numbers |= {"hidden": torch.randn(hidden, d) / math.sqrt(d), "hidden_bias": torch.zeros(hidden)}
        if options.around.detection:
            numbers |= {"output": torch.randn(hidden) / math.sqrt(hidden), "output_bias": torch.tensor(0.0)}
        if maps:
            numbers |= {"request_map": torch.zeros(d, d), "tool_map": torch.zeros(d, d)}
        fixed = () if attends else ("attend", "own")
        self.numbers = {name: Parameter(value.to(device), name not in fixed) for name, value in numbers.items()}

    def positive(self, name: str) -> Tensor:
        """A parameter as it is used, through softplus, so that it stays above 0."""
        return functional.softplus(self.numbers[name])

    def apply_map(self, vectors: Tensor, name: str) -> Tensor:
        """Vectors mapped by the learned map of this name; unchanged where there is no such map."""
        if name not in self.numbers:
            return vectors
        return functional.normalize(vectors + vectors @ self.numbers[name], dim=1)

    def states(self, vectors: Tensor) -> Tensor:
        """The hidden states of the detection tower; of length 0 without that tower."""
        if "hidden" not in self.numbers:
            return vectors[:, :0]
        return functional.relu(vectors @ self.numbers["hidden"].T + self.numbers["hidden_bias"])

    def needs(self, states: Tensor) -> Tensor:
        """The detection tower's logits."""
        return states @ self.numbers["output"] + self.numbers["output_bias"]

    def attend(self, requests: Tensor, states: Tensor, neighbours: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """Query vectors of requests, and the attention to each neighbour.

        `neighbours` [views, requests, k, d] are attended to where `near` [requests, k] is true.
        """
        total, attention = requests, torch.zeros_like(near, dtype=requests.dtype)
        always = torch.ones((len(requests), 1), dtype=torch.bool, device=requests.device)
        for view in range(VIEWS if near.shape[1] else 0):
            keys = torch.cat([requests[:, None], neighbours[view]], dim=1)
            logits = torch.einsum("bd,bkd->bk", requests @ self.numbers["attend"][view], keys)
            logits = torch.cat([logits[:, :1] + self.numbers["own"][view], logits[:, 1:]], dim=1)
            weights = logits.masked_fill(~torch.cat([always, near], dim=1), _FILTERED).softmax(1)
            found = torch.einsum("bk,bkd->bd", weights, keys)
            part = self.positive("search")[view] * functional.normalize(found, dim=1)
            if self.transfer != "none":
                transferred = self._transfer(view, found, states, keys, near)
                part = part + self.positive("joint")[view] * functional.normalize(transferred, dim=1)
            # Without a neighbour that is near enough, the query vector is the request's own.
            total = total + part * near.any(1, keepdim=True)
            attention = weights[:, 1:] if view == 0 else attention
        return total, attention

    def _transfer(self, view: int, found: Tensor, states: Tensor, keys: Tensor, near: Tensor) -> Tensor:
        """MassTool's adaptive knowledge transfer: the attended vectors, changed by the detection tower's states."""
        weight, bias = self.numbers["transfer"][view], self.numbers["transfer_bias"][view]
        if self.transfer == "concatenation":
            return torch.cat([found, states], dim=1) @ weight.T + bias
        knowledge = states @ weight.T + bias
        if self.transfer == "addition":
            return found + knowledge
        if self.transfer == "attention":
            both = torch.stack([found, knowledge], dim=1)
            return torch.einsum("bv,bvd->bd", torch.einsum("bvd,bd->bv", both, found).softmax(1), both)
        if self.transfer == "cross_attention":
            logits = torch.einsum("bkd,bd->bk", keys, knowledge)
            away = torch.cat([torch.zeros_like(near[:, :1]), ~near], dim=1)
            return torch.einsum("bk,bkd->bd", logits.masked_fill(away, _FILTERED).softmax(1), keys)
        gate = torch.sigmoid(knowledge)
        return gate * found if self.transfer == "gating" else found + gate * found


def _inverse_softplus(value: float) -> float:
    return math.log(math.expm1(value))


@dataclass(slots=True)
class PropagatedVectors:
    """The sums that graph propagation gives to each node: requests from tools and from scenes, tools, and scenes."""

    by_tools: Tensor
    by_scenes: Tensor
    tools: Tensor
    scenes: Tensor


class RequestGraph:
    """The graph of training requests, tools and scenes, with the vectors and neighbours of the last `refresh`."""

    def __init__(self, known: TrainingRequests, options: TowerOptions, device: torch.device) -> None:
        """Build the edges from the training requests alone."""
        self.known, self.options, self.device = known, options, device
        count = len(known.gold)
        sizes = [len(gold) for gold in known.gold]
        left = torch.from_numpy(np.repeat(np.arange(count), sizes)).to(device)
        right = torch.from_numpy(np.concatenate(known.gold)).to(device)
        self.scene = torch.from_numpy(known.scenes).to(device)
        scenes = int(known.scenes.max()) + 1
        self.tool_edges = BipartiteEdges(left, right, count, known.tools)
        everyone = torch.arange(count, device=device)
        self.scene_edges = BipartiteEdges(everyone, self.scene, count, scenes)
        pairs = torch.unique(torch.stack([self.scene[left], right]), dim=1)
        share = 1 / torch.bincount(pairs[0], minlength=scenes).float()
        self.scene_tools = torch.sparse_coo_tensor(
            pairs, share[pairs[0]], (scenes, known.tools), check_invariants=False
        ).coalesce()
        if options.graph.edges < 1:
            chance = torch.Generator().manual_seed(options.learning.seed)
            tool_mask = (torch.rand(len(left), generator=chance) < options.graph.edges).to(device)
            self.tool_edges = self.tool_edges.where(tool_mask)
            scene_mask = (torch.rand(count, generator=chance) < options.graph.edges).to(device)
            self.scene_edges = self.scene_edges.where(scene_mask)
        longest = max(sizes)
        padded = np.full((count, longest), known.tools, dtype=np.int64)
        for row, gold in enumerate(known.gold):
            padded[row, : len(gold)] = gold
        self.gold = torch.from_numpy(padded).to(device)
        empty = torch.empty(0, device=device)
        self.requests, self.tools, self._encoded = empty, empty, empty
        self.nearest, self.cosines = empty.long(), empty
        self.whole = PropagatedVectors(empty, empty, empty, empty)

    def refresh(self, encoded: Tensor, requests: Tensor, tools: Tensor, dropout: float) -> None:
        """Set the current vectors, find the neighbours again, and propagate.

        Neighbours are found by the encoder's own vectors `encoded`; `requests` and `tools` are the mapped vectors.
        """
        self.requests, self.tools = requests.detach(), tools.detach()
        if not torch.equal(encoded, self._encoded):
            self._encoded = encoded.detach().clone()
            self.nearest, self.cosines = nearest(encoded, encoded, self.options.around.neighbours, itself=False)
        tool_mask = torch.rand(len(self.tool_edges.left), device=self.device) >= dropout
        scene_mask = torch.rand(len(self.scene_edges.left), device=self.device) >= dropout
        self.whole = self.gather(tool_mask, scene_mask)

    @torch.no_grad()
    def gather(self, tool_edges: Tensor | None = None, scene_edges: Tensor | None = None) -> PropagatedVectors:
        """Propagate along the edges at which the masks are true; along all edges where a mask is None."""
        layers = self.options.graph.layers
        edges = self.tool_edges if tool_edges is None else self.tool_edges.where(tool_edges)
        by_tools, tools = propagate(edges, self.requests, self.tools, layers)
        edges = self.scene_edges if scene_edges is None else self.scene_edges.where(scene_edges)
        means = torch.sparse.mm(self.scene_tools, self.tools)
        by_scenes, scenes = propagate(edges, self.requests, means, layers)
        return PropagatedVectors(by_tools, by_scenes, tools, scenes)

    def keys(self, gathered: PropagatedVectors, rows: Tensor) -> Tensor:
        """Both views of requests as unit vectors [views, *rows, d]."""
        own = self.requests[rows]
        views = (own + gathered.by_tools[rows], own + gathered.by_scenes[rows])
        return torch.stack([functional.normalize(view, dim=-1) for view in views])


def whole(
    known: TrainingRequests, options: TowerOptions, requests: Floats, tools: Floats
) -> tuple[Floats, Floats, Floats]:
    """Propagation over all edges: what requests get from tools, what they get from scenes, and what tools get."""
    around = RequestGraph(known, options, torch.device("cpu"))
    around.requests, around.tools = torch.from_numpy(requests), torch.from_numpy(tools)
    found = around.gather()
    return found.by_tools.numpy(), found.by_scenes.numpy(), found.tools.numpy()


@torch.no_grad()
def nearest(vectors: Tensor, pool: Tensor, count: int, itself: bool = True) -> tuple[Tensor, Tensor]:
    """For each vector, the rows of the `count` nearest vectors of a pool, and their cosines.

    With `itself` False, `vectors` is the pool, and no vector finds itself.
    """
    count = min(count, len(pool) - (not itself))
    rows, cosines = [], []
    for start in range(0, len(vectors), 1024):
        near = vectors[start : start + 1024] @ pool.T
        if not itself:
            near[torch.arange(len(near)), torch.arange(start, start + len(near))] = -2.0
        best = near.topk(max(0, count), dim=1)
        rows.append(best.indices)
        cosines.append(best.values)
    return torch.cat(rows), torch.cat(cosines)


@dataclass(slots=True)
class Batch:
    """One step: the numbers of its requests, the rows of its candidate tools, and which of these each request needs.

    `alone` marks requests that were joined from two, whose neighbours are not used.
    """

    picked: Tensor
    rows: Tensor
    wanted: Tensor
    alone: Tensor | None = None


class Objective:
    """The joint loss: retrieval, contrastive between the two views, and detection of whether a tool is needed."""

    def __init__(self, net: TowerNetwork, around: RequestGraph) -> None:
        """Use these parameters and this graph."""
        self.net, self.around, self.options = net, around, around.options
        self.device = around.device
        self._column = torch.full((around.known.tools + 1,), -1, dtype=torch.long, device=self.device)

    def __call__(self, batch: Batch, encoded: Tensor, requests: Tensor, tools: Tensor, prompts: Tensor) -> Tensor:
        """The loss of a batch, given the vectors of its requests (the encoder's and the mapped ones), of its tools,
        and of some prompts that need no tool.

        The edges of the batch's requests are left out of the graph, so that each is scored like a new request.
        """
        around, net = self.around, self.net
        absent = self._draw_absent_tools()
        mine = torch.zeros(len(around.requests), dtype=torch.bool, device=self.device)
        mine[batch.picked] = True
        unknown = mine | self._requests_using(absent)
        edges, scene_edges = around.tool_edges, around.scene_edges
        tool_mask = ~mine[edges.left] & ~absent[edges.right] & self._draw_edges(len(edges.left))
        scene_mask = ~unknown[scene_edges.left] & self._draw_edges(len(scene_edges.left))
        gathered = around.gather(tool_mask, scene_mask)
        rows, cosines = around.nearest[batch.picked], around.cosines[batch.picked]
        near = (cosines >= self.options.around.epsilon) & ~unknown[rows]
        if batch.alone is not None:
            near &= ~batch.alone[:, None]
        states = net.states(encoded)
        queries, attention = net.attend(requests, states, around.keys(gathered, rows), near)
        documents = functional.normalize(tools + net.positive("graph") * gathered.tools[batch.rows], dim=1)
        scores = queries @ documents.T + net.numbers["new_bonus"] * absent[batch.rows]
        if near.shape[1]:
            scores = scores + net.positive("votes") * self._votes(rows, attention * near, batch.rows, absent)
        loss = self._retrieval(scores, batch.wanted)
        if self.options.graph.contrastive:
            loss = loss + self.options.graph.contrastive * self._contrast(batch, requests, tools)
        if self.options.around.detection and len(prompts):
            loss = loss + self.options.around.detection * self._detection(net.needs(states), prompts)
        return loss

    def _retrieval(self, scores: Tensor, wanted: Tensor) -> Tensor:
        sharp = self.net.numbers["temperature"].exp()
        if self.options.learning.loss == "softmax":
            return losses.multi_gold_softmax(sharp * scores, wanted)
        return losses.sigmoid(sharp * (scores - self.net.numbers["undecided"]), wanted)

    def _detection(self, logits: Tensor, prompts: Tensor) -> Tensor:
        others = self.net.needs(self.net.states(prompts))
        return 0.5 * (functional.softplus(-logits).mean() + functional.softplus(others).mean())

    def _contrast(self, batch: Batch, requests: Tensor, tools: Tensor) -> Tensor:
        """The contrastive loss: a request, or a scene, should be nearest to itself in the other view.

        Other requests of the same scene are not used as negatives.
        """
        around, whole = self.around, self.around.whole
        picked, wanted = batch.picked, batch.wanted
        if batch.alone is not None:  # joined requests have no scene
            picked, wanted, requests = picked[~batch.alone], wanted[~batch.alone], requests[~batch.alone]
        if not len(picked):
            return requests.new_zeros(())
        scene = around.scene[picked]
        by_tools = functional.normalize(requests + whole.by_tools[picked], dim=1)
        by_scenes = functional.normalize(requests + whole.by_scenes[picked], dim=1)
        same = scene[:, None] == scene[None]
        first = _info_nce(by_tools, by_scenes, same, self.options.graph.contrast)
        scenes, where = torch.unique(scene, return_inverse=True)
        share = torch.zeros((len(scenes), len(batch.rows)), device=self.device)
        share[where] = wanted  # the requests of a scene need the same tools
        share = share / share.sum(1, keepdim=True)
        means = share @ tools
        gathered = share @ whole.tools[batch.rows]
        by_tools = functional.normalize(means + gathered, dim=1)
        by_scenes = functional.normalize(means + whole.scenes[scenes], dim=1)
        same = torch.eye(len(scenes), dtype=torch.bool, device=self.device)
        return 0.5 * (first + _info_nce(by_tools, by_scenes, same, self.options.graph.contrast))

    def _votes(self, rows: Tensor, attention: Tensor, candidates: Tensor, absent: Tensor) -> Tensor:
        """For each candidate, the attention to the neighbours that used it: [requests, candidates]."""
        return neighbour_votes(self.around.gold[rows], attention, candidates, self._column) * ~absent[candidates]

    def _draw_absent_tools(self) -> Tensor:
        """A random mask of tools that this step treats as new."""
        absent = torch.zeros(self.around.known.tools, dtype=torch.bool, device=self.device)
        if self.options.graph.absent:
            used = torch.from_numpy(self.around.known.used).to(self.device)
            absent[used[torch.rand(len(used), device=self.device) < self.options.graph.absent]] = True
        return absent

    def _requests_using(self, tools: Tensor) -> Tensor:
        """A mask of the requests that use one of the tools of a mask."""
        edges = self.around.tool_edges
        using = torch.zeros(edges.lefts, dtype=torch.bool, device=self.device)
        using[edges.left[tools[edges.right]]] = True
        return using

    def _draw_edges(self, count: int) -> Tensor:
        """A random mask of the edges that this step uses."""
        return torch.rand(count, device=self.device) >= self.options.graph.edge_dropout


def neighbour_votes(gold: Tensor, attention: Tensor, candidates: Tensor, column: Tensor) -> Tensor:
    """For each candidate tool, the summed attention to the neighbours that used it: [requests, candidates].

    `gold` [requests, k, most] has the rows of the tools that neighbours used, padded with a row beyond the last.
    `column` is a buffer with an entry for each row.
    """
    column.fill_(-1)
    column[candidates] = torch.arange(len(candidates), device=candidates.device)
    places = column[gold].flatten(1)
    weights = attention[:, :, None].expand(gold.shape).flatten(1)
    votes = torch.zeros((len(gold), len(candidates) + 1), device=attention.device)
    places = torch.where(places < 0, len(candidates), places)
    return votes.scatter_add(1, places, weights)[:, :-1]


def _info_nce(first: Tensor, second: Tensor, same: Tensor, temperature: float) -> Tensor:
    """InfoNCE from `first` to `second`, row by row; `same` marks pairs that are not used as negatives."""
    logits = first @ second.T / temperature
    itself = torch.eye(len(first), dtype=torch.bool, device=first.device)
    return functional.cross_entropy(
        logits.masked_fill(same & ~itself, _FILTERED), torch.arange(len(first), device=first.device)
    )
