"""The options of the methods with a tower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from toolscout.errors import BadModel
from toolscout.retrievers.document_index import EncoderOptions
from toolscout.training.encoder_options import GraphOptions, LearningOptions, NeighbourOptions


@dataclass(frozen=True, slots=True)
class ColtOptions(LearningOptions, GraphOptions, EncoderOptions):
    """How the graph is learned, see the options of training.

    `through`: whether the encoder is trained along, beginning with the Hugging Face folder `start` ("" for the
    published one); otherwise `encoder` stays as it is. Chosen on dev: `graph`, what a tool's past requests count
    beside its document, and `new_bonus`, added to tools that training has not seen. `keep`: how many past requests are
    kept.
    """

    loss: Literal["sigmoid", "softmax"] = "softmax"
    through: bool = False
    start: str = ""
    graph: float = 0.3
    new_bonus: float = 0.0
    keep: int = 100_000
    # It asks no neighbours and has no detection tower.
    neighbours: ClassVar[int] = 0
    kin: ClassVar[float] = 0.0
    votes: ClassVar[float] = 0.0
    share_feedback: ClassVar[bool] = False
    no_tool: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be trained with."""
        LearningOptions.__post_init__(self)
        GraphOptions.__post_init__(self)
        _check(self.graph, self.new_bonus, self.keep, self.own, bool(self.start) and not self.through)
        if self.through and self.encoder:
            raise BadModel("encoder names one that stays as it is; to train through one, name its weights by start")


@dataclass(frozen=True, slots=True)
class MasstoolOptions(NeighbourOptions, LearningOptions, GraphOptions, EncoderOptions):
    """As colt's, and how neighbours and the detection tower are used.

    `no_tool`: a folder of prompts that need no tool, which the detection tower learns from; without it the model cannot
    tell whether a tool is needed. Chosen on dev beside `graph` and `new_bonus`: `kin`, what neighbours count in the
    vector that is searched with, and `votes`, what the tools that they used get. `share`: of the neighbours at most so
    much is of one source, where others have some too. `share_feedback`: tenants hear each other's requests.
    """

    loss: Literal["sigmoid", "softmax"] = "softmax"
    through: bool = False
    start: str = ""
    no_tool: str = ""
    graph: float = 0.3
    kin: float = 1.0
    votes: float = 0.1
    new_bonus: float = 0.0
    share: float = 0.5
    keep: int = 100_000
    share_feedback: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be trained with."""
        LearningOptions.__post_init__(self)
        GraphOptions.__post_init__(self)
        NeighbourOptions.__post_init__(self)
        _check(self.graph, self.new_bonus, self.keep, self.own, bool(self.start) and not self.through)
        if self.through and self.encoder:
            raise BadModel("encoder names one that stays as it is; to train through one, name its weights by start")
        if not (self.kin >= 0 and self.votes >= 0 and 0 < self.share <= 1):
            raise BadModel(f"kin and votes must be 0 or more, share above 0 and at most 1, got {self}")


def _check(graph: float, new_bonus: float, keep: int, own: float, start_alone: bool) -> None:
    if not (graph >= 0 and new_bonus >= 0 and keep >= 1):
        raise BadModel(f"graph and new_bonus must be 0 or more, keep at least 1, got {graph}, {new_bonus}, {keep}")
    if own:
        raise BadModel("own lines of documents have no place in a graph of requests; leave own at 0")
    if start_alone:
        raise BadModel("start names weights to train; set through=true as well")
