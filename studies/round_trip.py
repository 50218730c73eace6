"""What the round trip of written requests asks in studies/synthetic.py: the published encoder, many requests at
once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from studies.rewriting_models import dense_raw, raw
from toolscout.core.arrays import Floats
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Tool
from toolscout.evaluation.vector_cache import cache_path, tool_vectors
from toolscout.models.language.open import device_name
from toolscout.retrievers.base import Ranking
from toolscout.retrievers.dense import Dense

if TYPE_CHECKING:
    from toolscout.models.encoders.trainable import TrainableEncoder

_AT_ONCE = 2048


class Batched(Dense):
    """dense that ranks many requests by one product: for a round trip over a large catalogue."""

    def hold(self, tools: Sequence[Tool], vectors: Floats) -> None:
        """Take all tools there are, a row each."""
        from torch import from_numpy

        self._held, self._rows_held = [tool.id for tool in tools], from_numpy(vectors).to(device_name() or "cpu")

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        """The nearest k of each request."""
        found: list[Ranking] = []
        for start in range(0, len(requests), _AT_ONCE):
            texts = requests[start : start + _AT_ONCE]
            asked = self._rows_held.new_tensor(request_vectors(texts, device_name()))
            best = (asked @ self._rows_held.T).topk(min(k, len(self._held)))
            for text, places, scores in zip(texts, best.indices.tolist(), best.values.tolist(), strict=True):
                pairs = zip([self._held[place] for place in places], scores, strict=True)
                found.append(Ranking(text, scope, list(pairs)))
        return found


def request_vectors(texts: Sequence[str], device: str) -> Floats:
    """Those of the published encoder; on a device by the network itself."""
    if not device:
        return raw().encode(texts)
    network = _on_device(device)
    return np.asarray(network.encode(network.tokenise_requests(texts), _AT_ONCE).cpu())


@lru_cache(maxsize=1)
def _on_device(device: str) -> TrainableEncoder:
    import torch

    from toolscout.models.encoders.trainable import TrainableEncoder

    return TrainableEncoder(None, torch.device(device))


def judge(tools: Sequence[Tool]) -> Batched:
    """What the round trip asks: it has seen no request of any set."""
    made = Batched(dense_raw().options, raw())
    made.hold(tools, tool_vectors(tools, raw(), cache_path()))
    return made
