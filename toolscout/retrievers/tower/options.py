"""The options of colt and masstool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from toolscout.errors import BadModel
from toolscout.retrievers.document_index import EncoderOptions
from toolscout.training.encoder_options import EncoderTrainingOptions, GraphOptions, NeighbourOptions


@dataclass(frozen=True, slots=True)
class ColtOptions(EncoderTrainingOptions, GraphOptions, EncoderOptions):
    """How the graph is trained and used; see also the options of training.

    train_encoder: whether the encoder is trained too, starting from the Hugging Face folder `start` ("" for the
        published one); otherwise `encoder` stays as it is.
    graph: weight of a tool's past requests beside its document. Chosen on dev, as are
    new_bonus: added to the score of tools that were there in training and that no training request used, and
    added_bonus: added to the encoder's cosine of tools that came after training.
    keep: how many past requests are kept.
    """

    loss: Literal["sigmoid", "softmax"] = "softmax"
    train_encoder: bool = False
    start: str = ""
    graph: float = 0.3
    new_bonus: float = 0.0
    added_bonus: float = 0.0
    keep: int = 100_000
    # COLT looks up no neighbouring requests and has no detection tower.
    neighbours: ClassVar[int] = 0
    neighbour_weight: ClassVar[float] = 0.0
    votes: ClassVar[float] = 0.0
    share_feedback: ClassVar[bool] = False
    no_tool: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        EncoderTrainingOptions.__post_init__(self)
        GraphOptions.__post_init__(self)
        _check(self)


@dataclass(frozen=True, slots=True)
class MasstoolOptions(NeighbourOptions, EncoderTrainingOptions, GraphOptions, EncoderOptions):
    """As ColtOptions, and how neighbours and the detection tower are used.

    no_tool: a folder of prompts that need no tool, which the detection tower learns from. Without it the model cannot
        tell whether a tool is needed.
    neighbour_weight: weight of the neighbours in the vector that is searched with. Chosen on dev, as is
    votes: what is added to the score of the tools that neighbours used.
    share: the most of the neighbours that may come from one source, where others have some too.
    share_feedback: whether tenants use each other's requests.
    """

    loss: Literal["sigmoid", "softmax"] = "softmax"
    train_encoder: bool = False
    start: str = ""
    no_tool: str = ""
    graph: float = 0.3
    neighbour_weight: float = 1.0
    votes: float = 0.1
    new_bonus: float = 0.0
    added_bonus: float = 0.0
    share: float = 0.5
    keep: int = 100_000
    share_feedback: bool = False

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        EncoderTrainingOptions.__post_init__(self)
        GraphOptions.__post_init__(self)
        NeighbourOptions.__post_init__(self)
        _check(self)
        if not (self.neighbour_weight >= 0 and self.votes >= 0 and 0 < self.share <= 1):
            raise BadModel(f"neighbour_weight and votes must be 0 or more, share above 0 and at most 1, got {self}")


def _check(options: ColtOptions | MasstoolOptions) -> None:
    """Raise BadModel for values that both kinds of options refuse."""
    if options.loss not in ("sigmoid", "softmax"):
        raise BadModel(f"loss must be sigmoid or softmax, got {options.loss!r}: a tower is not trained on pairs")
    if not (options.graph >= 0 and options.new_bonus >= 0 and options.added_bonus >= 0 and options.keep >= 1):
        raise BadModel(f"graph, new_bonus and added_bonus must be 0 or more, keep at least 1, got {options}")
    if options.self_queries:
        raise BadModel("lines of documents have no place in a graph of requests; leave self_queries at 0")
    if options.start and not options.train_encoder:
        raise BadModel("start names weights to train; set train_encoder=true as well")
    if options.train_encoder and options.encoder:
        raise BadModel("encoder names one that stays as it is; to train through one, name its weights by start")
