"""Does a request need a tool at all? A probability from its vector, whatever the catalogue holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolscout.core.answer import Allowed, ExactName, Hit, PastRequest
from toolscout.errors import BadModel, BadRequest, MissingEncoder
from toolscout.models.need_head import NEED_FILE, NeedHead
from toolscout.retrievers import showing
from toolscout.retrievers.base import Embedded, Retriever, TextEncoder
from toolscout.retrievers.kinds import keeps
from toolscout.retrievers.showing import Caller

_LOOKED_AT = 5


@dataclass(frozen=True, slots=True)
class NeedOptions:
    """`threshold`: below it no tool is needed. `past`: a request as near as this to one that used a tool needs a tool.

    The default lets 97 in 100 requests for tools through: the mean of the dev splits of ToolLens (98), ToolBench-G3
    (95) and the bundled benchmark (98), which the default encoder's head was not trained on. Turning away a request
    that could be served costs more than searching for one that needs nothing. On bundled dev, with as many requests
    that need a tool as not: threshold 0.2 has recall .98 and precision .75, 0.3 .94 and .82, 0.5 .78 and .90.
    """

    threshold: float = 0.2
    past: float = 0.9

    def __post_init__(self) -> None:
        """Refuse what is no probability."""
        if not 0 <= self.threshold <= 1 or not self.past >= 0:
            raise BadRequest(f"the threshold of need must be from 0 to 1 and past not below 0, got {self}")


def open_head(encoder: TextEncoder) -> NeedHead | None:
    """The head that lies beside an encoder's files; None where there is none, or it reads another one's vectors."""
    folder = getattr(encoder, "folder", None)
    if not isinstance(folder, Path) or not (folder / NEED_FILE).exists():
        return None
    head = NeedHead.load(folder)
    if head.encoder != encoder.fingerprint:
        return None
    if head.hidden.shape[1] != encoder.dimension:
        raise BadModel(f"the need head in {folder} reads vectors of another length; train it again")
    return head


class Forecaster:
    """Asks the retriever whether a request needs a tool: its own tower, else the head beside its encoder."""

    def __init__(self, retriever: Retriever) -> None:
        """The head is opened when it is first needed."""
        self._retriever = retriever
        self._opened: tuple[str, NeedHead | None] | None = None

    def need(self, requests: Sequence[str], allowed: Allowed | None = None) -> list[float] | None:
        """How likely each request is to need a tool; None where nothing can tell.

        `allowed`: what the caller may see, since a request is spelt right by the words of its tools.
        """
        caller = Caller(allowed)
        own = showing.need(self._retriever, caller, requests)
        if own is not None or not keeps(self._retriever, Embedded):
            return own
        head = self._head(self._retriever)
        if head is None:
            return None
        if len(requests) == 1:
            vectors = showing.request_vector(self._retriever, caller, requests[0])[None]
        else:
            vectors = self._retriever.open_encoder().encode(requests)
        chances: list[float] = head.probabilities(vectors).tolist()
        return chances

    def need_of(
        self, request: str, hits: Sequence[Hit], options: NeedOptions, allowed: Allowed | None = None
    ) -> float | None:
        """The need of a request that was searched. One that names a tool, or repeats one that used a tool, needs it."""
        if hits and any(isinstance(reason, ExactName) for reason in hits[0].reasons):
            return 1.0
        found = self.need([request], allowed)
        if found is None:
            return None
        past = [reason.cosine for hit in hits[:_LOOKED_AT] for reason in hit.reasons if isinstance(reason, PastRequest)]
        repeats = [cosine for cosine in past if cosine >= options.past]
        return min(1.0, max([found[0], *repeats]))

    def _head(self, retriever: Embedded) -> NeedHead | None:
        try:
            encoder = retriever.open_encoder()
        except MissingEncoder:
            return None
        if self._opened is None or self._opened[0] != encoder.fingerprint:
            self._opened = (encoder.fingerprint, open_head(encoder))
        return self._opened[1]
