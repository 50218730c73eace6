"""Opens any reranker by its name: the folder of a cross-encoder, the URL of an endpoint, or a chat model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolscout.core.option_values import with_settings
from toolscout.core.targets import is_address
from toolscout.errors import BadModel, EndpointError
from toolscout.llm.hosts import not_named
from toolscout.llm.options import checked_url
from toolscout.models.encoders.onnx_encoder import MODEL_FILE
from toolscout.models.encoders.sentence_config import CONFIG_FILE, read_json_object
from toolscout.models.encoders.settings import encoders_folder, split_name
from toolscout.models.rerankers.base import Reranker
from toolscout.models.rerankers.cross_encoder import CrossEncoder, CrossEncoderSettings
from toolscout.models.rerankers.endpoint import EndpointReranker
from toolscout.models.rerankers.listwise import ListwiseReranker

# Names the reranker that comes with the package, which is also the one where none is named.
DEFAULT = "default"
# What config.json of the package's reranker may say: options of rerank.
OPTIONS_KEY = "rerank"
_CHAT = "chat:"


def open_reranker(name: str = DEFAULT, *, from_folder: bool = False) -> Reranker:
    """Open a reranker; settings follow as ?KEY=VALUE&KEY=VALUE.

    name: "default" for the one of the package; the folder of a cross-encoder, with an ONNX graph or with safetensors,
        which are exported into the user's cache first; the URL of an endpoint with ?model=NAME; or "chat:" and a chat
        model as for open_llm (chat:https://host/v1?model=NAME, chat:FOLDER, chat:smollm2).
    from_folder: the name comes from a model folder, not from the user. An endpoint is then asked only if its host is in
        $TOOLSCOUT_LLM_HOSTS; where it is not, the reranker raises EndpointError when it is used.

    Raises BadModel or BadRequest.
    """
    place, settings = split_name(name or DEFAULT, "a reranker")
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
    folder = package_folder() if place == DEFAULT else Path(place)
    if _has_weights_alone(folder):
        folder = _exported(folder)
    return CrossEncoder(folder, with_settings(CrossEncoderSettings(), "a cross-encoder", settings))


def package_folder() -> Path:
    """The folder of the reranker that comes with the package."""
    return Path(__file__).resolve().parents[2] / "default_reranker"


def default_options() -> dict[str, Any]:
    """The options of rerank that the package's reranker was measured with, such as first and weight."""
    said = read_json_object(package_folder() / CONFIG_FILE).get(OPTIONS_KEY)
    return said if isinstance(said, dict) else {}


def _has_weights_alone(folder: Path) -> bool:
    if not folder.is_dir() or any(folder.glob("*.onnx")) or any(folder.glob("onnx/*.onnx")):
        return False
    return any(folder.glob("*.safetensors"))


def _exported(source: Path) -> Path:
    """The folder in the user's cache into which the weights of a cross-encoder were exported; made once."""
    # Imported here: only exporting needs them.
    from toolscout.models.export_cache import exported_once
    from toolscout.models.rerankers.export import export_cross_encoder

    return exported_once(source, encoders_folder().with_name("rerankers"), MODEL_FILE, export_cross_encoder)


class _Refused(Reranker):
    """An endpoint that only a model folder names: nothing is sent to it."""

    visible_only = True

    def __init__(self, name: str, why: str) -> None:
        self.name, self.fingerprint = name, hashlib.sha256(name.encode(errors="replace")).hexdigest()[:32]
        self._why = why

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        raise EndpointError(self._why)
