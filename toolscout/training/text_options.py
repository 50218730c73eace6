"""The options of fine-tuning a language model to write texts, and of aligning it with a retriever; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from toolscout.errors import BadModel

Reward = Literal["both", "ndcg", "recall", "rank"]
Loss = Literal["dpo", "ranked"]
Preset = Literal["", "qta"]


@dataclass(frozen=True)  # no slots: it is mixed into the options of methods, and two layouts do not mix
class TextTrainingOptions:
    """How a language model is fine-tuned to write texts.

    base: the language model to start from, a Hugging Face folder or a GGUF file; "" for SmolLM2.
    init_from: the folder of a fine-tuned model of that base and `rank`, whose adapters training starts from.
    rank: the rank of the LoRA adapters; 0 trains all of the base's matrices.
    request_tokens: pairs whose prompt is longer are left out.
    max_tokens: the most tokens of the text to write; a longer one is cut.
    patience: epochs without a better dev score before training stops, 0 to never stop early.
    chunk: tokens in memory at once; 0 picks it by device.
    """

    base: str = ""
    init_from: str = ""
    rank: int = 32
    epochs: int = 3
    rate: float = 5e-4
    batch: int = 64
    request_tokens: int = 384
    max_tokens: int = 96
    patience: int = 0
    chunk: int = 0
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        if min(self.rank, self.epochs, self.patience, self.chunk, self.seed) < 0:
            raise BadModel(f"rank, epochs, patience, chunk and seed must be 0 or more, got {self}")
        if min(self.batch, self.request_tokens, self.max_tokens) < 1 or not self.rate > 0:
            raise BadModel(f"batch, request_tokens and max_tokens must be at least 1, rate above 0, got {self}")


@dataclass(frozen=True)
class AlignmentOptions:
    """How a fine-tuned model is aligned with a retriever.

    align: rounds. Each draws `samples` texts at the temperature `spread` for each of `align_requests` requests
        (0: all), and rewards them by the tools that the retriever then finds.
    reward: "ndcg", "recall", "both" (ndcg and comp), or "rank" (minus the mean log rank of the gold tools).
    pairs: the most pairs of samples that are learned from per request, the best against the worst first, where their
        rewards differ by `margin`.
    loss: "dpo" with its `beta`, plus `sft` times the plain loss of the better sample; "ranked" learns the best sample
        of a request alone.
    reset: whether the reference of a round is the model at its own start, not at the start of the first round.
    held_out_share: the share of the tools that the model is not taught to describe before alignment. Alignment then
        uses the requests that need one of these, so that the model learns to write for tools that are new to it.
    align_on: the name of the one dataset whose requests are aligned with, such as synthetic ones for new tools; "" uses
        all, and with `align_evenly` as many of each.
    preset: "qta" is QTA's recipe: one round, rewarded by rank; the request itself is not searched.
    """

    align: int = 0
    samples: int = 8
    spread: float = 0.8
    reward: Reward = "both"
    margin: float = 0.2
    pairs: int = 2
    loss: Loss = "dpo"
    beta: float = 0.1
    sft: float = 0.1
    reset: bool = True
    align_rate: float = 1e-4
    align_requests: int = 2000
    held_out_share: float = 0.0
    align_on: str = ""
    align_evenly: bool = False
    preset: Preset = ""

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        for name, kind in (("reward", Reward), ("loss", Loss), ("preset", Preset)):
            if getattr(self, name) not in get_args(kind):
                known = ", ".join(one or '""' for one in get_args(kind))
                raise BadModel(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        if self.samples < 2 or self.pairs < 1 or min(self.align, self.align_requests) < 0:
            raise BadModel(f"samples must be at least 2, pairs 1, align and align_requests 0 or more, got {self}")
        if not 0 <= self.held_out_share < 1:
            raise BadModel(f"held_out_share must be from 0 to below 1, got {self}")
        if not (0 < self.spread <= 100 and self.beta > 0 and self.align_rate > 0 and min(self.margin, self.sft) >= 0):
            raise BadModel(
                f"spread (at most 100), beta and align_rate must be above 0, margin and sft 0 or more, got {self}"
            )

    def with_preset(self) -> Self:
        """The options with the values that the preset stands for."""
        return replace(self, align=1, reward="rank", loss="dpo") if self.preset == "qta" else self
