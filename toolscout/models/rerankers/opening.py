"""Opens any reranker by its name: the folder of a cross-encoder, the URL of an endpoint, or a chat model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

from toolscout.core.option_values import with_settings
from toolscout.core.targets import is_address
from toolscout.errors import BadModel, EndpointError
from toolscout.llm.hosts import not_named
from toolscout.llm.options import checked_url
from toolscout.models.encoders.settings import split_name
from toolscout.models.rerankers.base import Reranker
from toolscout.models.rerankers.cross_encoder import CrossEncoder, CrossEncoderSettings
from toolscout.models.rerankers.endpoint import EndpointReranker
from toolscout.models.rerankers.listwise import ListwiseReranker

# The reranker where none is named. None comes with the package yet: its folder will be named here.
DEFAULT_RERANKER = ""
_CHAT = "chat:"


def open_reranker(name: str = "", *, from_folder: bool = False) -> Reranker:
    """Open a reranker; settings follow as ?KEY=VALUE&KEY=VALUE.

    name: the folder of an ONNX cross-encoder; the URL of an endpoint with ?model=NAME; or "chat:" and a chat model as
        for open_llm (chat:https://host/v1?model=NAME, chat:FOLDER, chat:smollm2).
    from_folder: the name comes from a model folder, not from the user. An endpoint is then asked only if its host is in
        $TOOLSCOUT_LLM_HOSTS; where it is not, the reranker raises EndpointError when it is used.

    Raises BadModel or BadRequest.
    """
    name = name or DEFAULT_RERANKER
    if not name:
        raise BadModel(
            "rerank has no reranker: name a folder with an ONNX cross-encoder, the URL of an endpoint with "
            "?model=NAME, or chat:MODEL, as --rerank NAME or --option reranker=NAME"
        )
    place, settings = split_name(name, "a reranker")
    chat = place.startswith(_CHAT)
    place = place.removeprefix(_CHAT) if chat else place
    if from_folder and is_address(place):
        if any(one.startswith("key_variable=") for one in settings):
            raise BadModel("a model folder may not say which key is sent; take key_variable out of its reranker")
        if refusal := not_named(checked_url(place)):
            return _Refused(name, refusal)
    if chat:
        return ListwiseReranker.open(place, settings)
    if is_address(place):
        return EndpointReranker.open(place, settings)
    return CrossEncoder(Path(place), with_settings(CrossEncoderSettings(), "a cross-encoder", settings))


class _Refused(Reranker):
    """An endpoint that only a model folder names: nothing is sent to it."""

    visible_only = True

    def __init__(self, name: str, why: str) -> None:
        self.name, self.fingerprint = name, hashlib.sha256(name.encode(errors="replace")).hexdigest()[:32]
        self._why = why

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        raise EndpointError(self._why)
