"""Tool need: does a request need a tool at all? From 0 to 1, by its vector and words, whatever tools there are.

The head's outputs are fitted to dev texts, but other people's requests are not those: it is no probability there
(docs/verdicts.md). The verdict model (verdict.py) takes it as one of its features; it is compared with a threshold of
its own only where thresholds decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolscout.core.answer import OTHER_LANGUAGE, ExactName, Hit, PastRequest
from toolscout.errors import BadModel, BadRequest, MissingEncoder
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.settings import fitted_folder
from toolscout.models.need_head import ENGLISH_ALONE, NEED_FILE, NeedHead
from toolscout.retrievers.base import Ranking, Retriever
from toolscout.search import request_language

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
        """Raise BadRequest for values out of range."""
        if not 0 <= self.threshold <= 1 or not self.past >= 0:
            raise BadRequest(f"the threshold of need must be from 0 to 1 and past not below 0, got {self}")


def open_head(encoder: TextEncoder) -> NeedHead | None:
    """The need head in an encoder's folder, else the one that was fitted to it.

    None if there is none, or it was trained for another encoder.
    """
    heads = []
    for folder in (encoder.folder, fitted_folder(encoder.fingerprint)):
        if folder is not None and (folder / NEED_FILE).exists():
            heads.append((folder, NeedHead.load(folder)))
    folder, head = next(((folder, one) for folder, one in heads if one.encoder == encoder.fingerprint), (None, None))
    if head is None:
        return None
    if head.hidden.shape[1] != encoder.dimension:
        raise BadModel(f"the need head in {folder} reads vectors of another length; train it again")
    return head


class NeedEstimator:
    """Predicts whether a request needs a tool: by the retriever's own model, else by the head beside its encoder."""

    def __init__(self, retriever: Retriever) -> None:
        """The head is opened on first use."""
        self._retriever = retriever
        self._opened: tuple[str, NeedHead | None] | None = None

    def need(self, requests: Sequence[str]) -> list[float | None] | None:
        """The tool need of each request, from 0 to 1; None where nothing can tell.

        A request in a language that the head does not know has None.
        """
        rankings = self._retriever.rank(requests, 1) if requests else []
        if rankings and all(ranking.need is not None for ranking in rankings):
            return [ranking.need for ranking in rankings]
        head = self._head()
        encoder = self._retriever.encoder if head else None
        if head is None or encoder is None:
            return None
        found: list[float] = head.probabilities(encoder.encode(requests), requests).tolist() if requests else []
        return [
            need if request_language.knows(head.languages, text) else None
            for text, need in zip(requests, found, strict=True)
        ]

    def need_of(self, ranking: Ranking, hits: Sequence[Hit], options: NeedOptions) -> float | None:
        """The need of a request that was ranked. One that names a tool, or repeats one that used a tool, needs it."""
        if hits and any(isinstance(reason, ExactName) for reason in hits[0].reasons):
            return 1.0
        past = [reason.cosine for hit in hits[:_LOOKED_AT] for reason in hit.reasons if isinstance(reason, PastRequest)]
        repeats = [cosine for cosine in past if cosine >= options.past]
        if self.unknown_language(ranking):
            return min(1.0, max(repeats)) if repeats else None
        found = self._predicted(ranking)
        return None if found is None else min(1.0, max([found, *repeats]))

    def unknown_language(self, ranking: Ranking) -> str:
        """Why the need of a request cannot be told: it is in a language that the head does not know. Else ""."""
        head = self._head() if ranking.need is None else None
        if head is None or request_language.knows(head.languages, ranking.request):
            return ""
        if head.languages == ENGLISH_ALONE:
            return f"{OTHER_LANGUAGE} English, the only language that the need head knows: it was searched"
        known = ", ".join(head.languages)
        return f"{OTHER_LANGUAGE} a language that the need head knows ({known}): it was searched"

    def _predicted(self, ranking: Ranking) -> float | None:
        """The need predicted by the model, else by the head beside its encoder; None without either."""
        if ranking.need is not None:
            return ranking.need
        head = self._head()
        encoder = self._retriever.encoder if head else None
        if head is None or encoder is None:
            return None
        if ranking.vector is None and encoder.remote:  # it was not asked, or did not answer
            return None
        vector = encoder.encode_request(ranking.request) if ranking.vector is None else ranking.vector
        return float(head.probabilities(vector[None], [ranking.request])[0])

    def _head(self) -> NeedHead | None:
        try:
            encoder = self._retriever.encoder
        except MissingEncoder:
            return None
        if encoder is None:
            return None
        if self._opened is None or self._opened[0] != encoder.fingerprint:
            self._opened = (encoder.fingerprint, open_head(encoder))
        return self._opened[1]
