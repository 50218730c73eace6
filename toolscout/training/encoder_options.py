"""The options of training encoders, towers and id generation, in a file of their own that needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from toolscout.errors import BadModel
from toolscout.models.tower import TRANSFERS, Transfer


@dataclass(frozen=True)  # no slots: it is mixed into the options of methods, and two layouts do not mix
class EncoderTrainingOptions:
    """How an encoder is trained.

    loss: "sigmoid" scores each tool on its own, "softmax" lets all tools compete. "mnrl" is the multiple negatives
        ranking loss: a batch has pairs of a request and one of its gold tools, and the tools of a batch compete. Gold
        tools of a request that other pairs bring along count as wrong. It does not use bias, mix, self_queries, unused
        and candidates.
    scale: multiplies cosines.
    bias: the cosine at which the sigmoid is undecided.
    mix: the share of requests that are joined with another one, so that the encoder sees combinations of tools that no
        single request has.
    self_queries: lines of a tool's own document that are used as requests for it, as a multiple of the batch size.
    average: the share of the trained weights in the result; the rest are the initial weights. 0 tries several on dev.
    unused: whether tools that no training request needs count as wrong answers. They are then hardly ever found.
    candidates: the most documents that compete in one step; beyond that they are mined and sampled for each step.
    chunk: texts whose gradients are in memory at once; 0 picks it by device.
    patience: epochs without a better dev score before training stops, 0 to never stop early.
    """

    loss: Literal["sigmoid", "softmax", "mnrl"] = "sigmoid"
    scale: float = 20.0
    bias: float = 0.5
    epochs: int = 6
    rate: float = 1e-4
    batch: int = 128
    mix: float = 0.3
    self_queries: float = 0.0
    average: float = 0.0
    unused: bool = False
    candidates: int = 2000
    chunk: int = 0
    patience: int = 3
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if self.loss not in ("sigmoid", "softmax", "mnrl"):
            raise BadModel(f"loss must be sigmoid, softmax or mnrl, got {self.loss!r}")
        if min(self.epochs, self.batch, self.candidates) < 1:
            raise BadModel(f"epochs, batch and candidates must be at least 1, got {self}")
        if not (self.rate > 0 and self.scale > 0 and 0 <= self.mix <= 1 and 0 <= self.average <= 1):
            raise BadModel(f"rate and scale must be above 0, mix and average from 0 to 1, got {self}")
        if not (self.self_queries >= 0 and min(self.chunk, self.patience, self.seed) >= 0):
            raise BadModel(f"self_queries, chunk, patience and seed must be 0 or more, got {self}")


PublishedTransfer = Literal["gating", "addition", "concatenation", "attention", "none"]
PUBLISHED_TRANSFERS: tuple[str, ...] = get_args(PublishedTransfer)


@dataclass(frozen=True)
class PublishedOptions:
    """How the published MassTool is trained; the defaults are its settings for ToolLens.

    layers: steps of propagation over the graphs (L of the paper); 0 trains without QC-GCN.
    edge_dropout: the share of edges that an epoch leaves out.
    neighbours: past requests that are attended to, 0 to train without SUIM; those whose cosine is below `epsilon` are
        not attended to, and an epsilon of 0 or less is no filter.
    transfer: how AdaKT changes the attended vector s by the detection tower's vector i: "gating" (sigmoid of a linear
        map of i, times s), "addition" (s + i), "concatenation" (a linear map of both), "attention" (s and i attend to
        both, and the two results are added); "none" trains without AdaKT.
    loss: the retrieval loss: "listwise" as published, or "pairwise", which is BPR over all pairs of a gold tool and
        another tool of a list.
    candidates: tools in a list, gold ones included.
    beta, temperature: weight and temperature of the contrastive loss; a weight of 0 leaves it out.
    weight_detection: weight of the detection loss (λ of the paper); 0 leaves it out, and need is not predicted.
    train_share: the share of the training requests to train on; a larger share includes those of a smaller one.
    """

    epochs: int = 200
    rate: float = 1e-3
    batch: int = 2048
    layers: int = 1
    edge_dropout: float = 0.2
    neighbours: int = 10
    epsilon: float = 0.82
    transfer: PublishedTransfer = "gating"
    loss: Literal["listwise", "pairwise"] = "listwise"
    candidates: int = 10
    beta: float = 0.04
    temperature: float = 0.1
    weight_detection: float = 0.1
    train_share: float = 1.0
    patience: int = 20
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if self.transfer not in PUBLISHED_TRANSFERS:
            raise BadModel(f"transfer must be one of {', '.join(PUBLISHED_TRANSFERS)}, got {self.transfer!r}")
        if self.loss not in ("listwise", "pairwise"):
            raise BadModel(f"loss must be listwise or pairwise, got {self.loss!r}")
        if min(self.epochs, self.batch) < 1 or self.candidates < 2:
            raise BadModel(f"epochs and batch must be at least 1, candidates at least 2, got {self}")
        if not (self.rate > 0 and self.temperature > 0 and 0 <= self.edge_dropout < 1):
            raise BadModel(f"rate and temperature must be above 0, edge_dropout from 0 to below 1, got {self}")
        if min(self.layers, self.neighbours, self.patience, self.seed) < 0:
            raise BadModel(f"layers, neighbours, patience and seed must be 0 or more, got {self}")
        if not min(self.beta, self.weight_detection) >= 0:
            raise BadModel(f"beta and weight_detection must be 0 or more, got {self}")
        if not (-1 <= self.epsilon <= 1 and 0 < self.train_share <= 1):
            raise BadModel(f"epsilon must be from -1 to 1, train_share above 0 and at most 1, got {self}")


@dataclass(frozen=True)
class GraphOptions:
    """How the graph of past requests is used, and how a tower over it is trained.

    layers: how many edges a vector travels along; 0 uses no graph.
    edges: the share of the edges that is kept at all.
    edge_dropout: the share of the edges that each step leaves out.
    contrastive: weight of the contrastive loss between the two views, `contrast` its temperature.
    absent: the share of the tools that a step treats as new, so that the tower learns to handle new tools.
    pace: how many times faster than `rate` the tower's own parameters learn.
    """

    layers: int = 1
    edges: float = 1.0
    edge_dropout: float = 0.2
    contrastive: float = 0.04
    contrast: float = 0.1
    absent: float = 0.1
    pace: float = 10.0

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if not (0 <= self.layers <= 3 and 0 < self.edges <= 1):
            raise BadModel(f"layers must be 0 to 3, edges above 0 and at most 1, got {self}")
        if not (0 <= self.edge_dropout < 1 and 0 <= self.absent < 1):
            raise BadModel(f"edge_dropout and absent must be at least 0 and below 1, got {self}")
        if not (self.contrastive >= 0 and self.contrast > 0 and self.pace > 0):
            raise BadModel(f"contrastive must be 0 or more, contrast and pace above 0, got {self}")


@dataclass(frozen=True)
class NeighbourOptions:
    """How past requests like the new one are used, and the detection tower beside them.

    neighbours: how many past requests are attended to, 0 for none; those whose cosine is below `epsilon` are not.
    transfer: how the hidden state of the detection tower changes what neighbours contribute; "none" leaves it out.
    hidden: the length of that state.
    detection: weight of the detection loss.
    """

    neighbours: int = 20
    epsilon: float = 0.5
    transfer: Transfer = "gating"
    hidden: int = 128
    detection: float = 0.1

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if self.transfer not in TRANSFERS:
            raise BadModel(f"transfer must be one of {', '.join(TRANSFERS)}, got {self.transfer!r}")
        if self.neighbours < 0 or self.hidden < 1 or self.detection < 0 or not -1 <= self.epsilon <= 1:
            raise BadModel(
                f"neighbours and detection must be 0 or more, hidden 1 or more, epsilon from -1 to 1, got {self}"
            )


Decoding = Literal["constrained", "free"]


@dataclass(frozen=True)
class IdTrainingOptions:
    """How a language model is trained to generate the ids of tools.

    base: the language model to start from, a Hugging Face folder or a GGUF file; "" for SmolLM2.
    rank: the rank of its LoRA adapters; 0 trains all of its matrices.
    init_from: the folder of a trained model of the same method, such as one trained on other catalogues. Training
        starts from its adapters and its map from documents to token rows.
    memorise: epochs over the tools' documents, before the `epochs` over requests; 0 leaves a stage out.
    memorise_all: whether tools that no request or conversation uses are memorised too. Tools that are added later are
        then at a disadvantage against all of the catalogue.
    trajectories: a file of conversations with tools, trained on for `agent_epochs`; what is behind the first
        `trajectory_tokens` of one is cut.
    rehearse: the share of the request examples that is drawn anew for each of those epochs, so that they are not
        forgotten; 0 is as published.
    rate: the learning rate of the adapters; the ids' token rows learn `pace` times faster.
    warmup: the share of a stage's steps in which the learning rate rises; then it falls to 0 as `decay` says.
    mix: the share of requests that are joined with another one.
    absent: the share of the ids' token rows that a step computes from documents alone, as for tools that come later.
    sets: generate all tools of a request one after another, in the `order` of their ids or in any order. In any order,
        what may come first ranks all tools, as it does without sets.
    no_tool: a folder of prompts that need no tool, to learn when none is needed; in a trained model its name.
    instruct_mix: general texts (those prompts) per example, on which the model has to continue as its base does.
    request_tokens: longer requests are cut.
    chunk: tokens in memory at once; 0 picks it by device.
    patience: epochs without a better dev score before training stops, 0 to never stop early.
    similarity: weight of the encoder's cosine of request and document beside the language model's score.
    new_bonus: added to the score of tools that no training request needed. Of these two, the one that is not given
        is chosen on dev, and is 0 without a dev split.
    carry_on: after its first call, an agent does not finish while a tool that it has not called is needed with this
        probability or more. 0 is chosen on dev where there are trajectories; 1 lets the model decide.
    decoding: "constrained" generates ids under the trie of all ids. "free" generates whatever the language model likes,
        five sequences at most by beam search: what is the id of no tool is dropped, and similarity and new_bonus are
        not added.
    """

    base: str = ""
    rank: int = 32
    init_from: str = ""
    memorise: int = 1
    memorise_all: bool = False
    epochs: int = 6
    trajectories: str = ""
    agent_epochs: int = 1
    trajectory_tokens: int = 1536
    rehearse: float = 1.0
    rate: float = 1e-3
    pace: float = 3.0
    warmup: float = 0.05
    decay: Literal["linear", "cosine"] = "linear"
    batch: int = 64
    mix: float = 0.3
    absent: float = 0.5
    sets: bool = False
    order: Literal["ids", "any"] = "ids"
    no_tool: str = ""
    instruct_mix: float = 0.0
    request_tokens: int = 96
    chunk: int = 0
    patience: int = 0
    similarity: float | None = None
    new_bonus: float | None = None
    carry_on: float = 0.0
    decoding: Decoding = "constrained"
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        similarity, new_bonus = self.similarity or 0.0, self.new_bonus or 0.0
        if not (similarity >= 0 and math.isfinite(similarity) and math.isfinite(new_bonus)):
            raise BadModel(f"similarity must be a finite number of 0 or more, new_bonus a finite number, got {self}")
        if min(self.rank, self.memorise, self.epochs, self.agent_epochs, self.chunk, self.patience, self.seed) < 0:
            raise BadModel(
                f"rank, memorise, epochs, agent_epochs, chunk, patience and seed must be 0 or more, got {self}"
            )
        if self.order not in ("ids", "any"):
            raise BadModel(f"order must be ids or any, got {self.order!r}")
        if min(self.batch, self.request_tokens, self.trajectory_tokens) < 1 or not (self.rate > 0 and self.pace > 0):
            raise BadModel(
                f"batch, request_tokens and trajectory_tokens must be at least 1, rate and pace above 0, got {self}"
            )
        if self.decay not in ("linear", "cosine") or not 0 <= self.warmup < 1:
            raise BadModel(f"decay must be linear or cosine, warmup from 0 to below 1, got {self}")
        if self.decoding not in get_args(Decoding):
            raise BadModel(f"decoding must be one of {', '.join(get_args(Decoding))}, got {self.decoding!r}")
        if self.sets and self.decoding == "free":
            raise BadModel("sets are generated under the trie of ids; leave sets or decoding=free out")
        if self.sets and self.trajectories:
            raise BadModel("sets and trajectories cannot be trained together: both use the same end token; set one")
        shares = (self.mix, self.instruct_mix, self.rehearse, self.carry_on)
        if not (all(0 <= one <= 1 for one in shares) and 0 <= self.absent < 1):
            raise BadModel(
                f"mix, instruct_mix, rehearse and carry_on must be from 0 to 1, absent from 0 to below 1, got {self}"
            )

    @property
    def ranks_by_sets(self) -> bool:
        """Whether tools are ranked by the sets they are in: with a fixed order, the first tool is not the best one."""
        return self.sets and self.order == "ids"
