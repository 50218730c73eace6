"""Opens any encoder by its name: a folder of one of four kinds, or the URL of an embeddings endpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

from toolscout.core.option_values import with_settings
from toolscout.errors import BadModel, BadRequest
from toolscout.llm.hosts import HOSTS_VARIABLE, host_of, is_named
from toolscout.llm.options import checked_url
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.onnx_encoder import CARD_FILE, RAW, Encoder, package_folder
from toolscout.models.encoders.settings import DEFAULT, VARIABLE, EncoderSettings, split_name

Kind = Literal["exported", "model2vec", "onnx", "weights"]
EncoderName = str | Path | TextEncoder | None
"""An encoder as a user gives it: PLACE or PLACE?KEY=VALUE&…, an object, or nothing for the default one."""


def open_encoder(named: EncoderName = None, threads: int | None = None) -> TextEncoder:
    """Open an encoder; nothing named is the one that $TOOLSCOUT_ENCODER names, else that of the package.

    A folder is one that toolscout exported, a Hugging Face folder with ONNX files, a model2vec folder, or a Hugging
    Face folder with safetensors, which is exported into the user's cache first. A URL is an OpenAI-compatible
    endpoint. `threads`: how many cores to use, by default all. Raises MissingEncoder or BadModel.
    """
    if isinstance(named, TextEncoder):
        return named
    name = str(named or os.environ.get(VARIABLE) or "")
    place, given = split_name(name)
    if place.lower().startswith(("http://", "https://")):
        from toolscout.models.encoders.endpoint import EndpointEncoder

        return EndpointEncoder.open(place, given)
    settings = with_settings(EncoderSettings(), "an encoder", given)
    if place == DEFAULT:
        return Encoder.load(package_folder(), threads, settings)
    if place in ("", RAW) or not os.path.isdir(place):
        return Encoder.load(Path(place) if place else None, threads, settings)
    return Encoder.load(Path(place), threads, settings)


def refusal(name: str) -> str:
    """Why an encoder that a file names, not the user, is not used: its host was not allowed; "" where it may be."""
    place, _ = split_name(name)
    if not place.lower().startswith(("http://", "https://")):
        return ""
    try:
        url = checked_url(place)
    except BadRequest as error:
        return str(error)
    if is_named(url):
        return ""
    return (
        f"the tools were embedded at {host_of(url)}, and requests would be sent there, which nobody here allowed; if "
        f"you trust that host with requests and with your key, name the encoder, or put {host_of(url)} into "
        f"{HOSTS_VARIABLE}"
    )


def kind_of(folder: Path) -> Kind:
    """What kind of encoder a folder holds; raises BadModel where it holds none."""
    if (folder / CARD_FILE).is_file():
        return "exported"
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        config = {}
    if isinstance(config, dict) and config.get("model_type") == "model2vec":
        return "model2vec"
    if any(folder.glob("*.onnx")) or any(folder.glob("onnx/*.onnx")):
        return "onnx"
    if any(folder.glob("*.safetensors")):
        return "weights"
    raise BadModel(
        f"{folder} holds no encoder: name a folder with {CARD_FILE} (toolscout encoder export), with onnx/*.onnx and "
        "tokenizer.json, with model.safetensors of a BERT, RoBERTa, XLM-R, DistilBERT or MPNet, or of model2vec"
    )
