"""Opens any encoder by its name: a folder of one of four kinds, or the URL of an embeddings endpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from toolscout.core.option_values import with_settings
from toolscout.errors import BadModel, BadRequest
from toolscout.llm.hosts import HOSTS_VARIABLE, host_of, is_named
from toolscout.llm.options import checked_url
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.sentence_config import STATIC_FOLDER
from toolscout.models.encoders.settings import CARD_FILE, DEFAULT, FAST, RAW, VARIABLE, EncoderSettings, split_name

Kind = Literal["exported", "model2vec", "onnx", "weights"]
EncoderName = str | Path | TextEncoder | None
"""An encoder as a user gives it: PLACE or PLACE?KEY=VALUE&…, an object, or nothing for the default one."""

_SUPPORTED = (
    f"name a folder with {CARD_FILE} (toolscout encoder export), with onnx/*.onnx and tokenizer.json, with "
    "model.safetensors of a BERT, RoBERTa, XLM-R, DistilBERT or MPNet, or of model2vec; or http(s)://HOST/v1?model=NAME"
)


def open_encoder(named: EncoderName = None, threads: int | None = None) -> TextEncoder:
    """Open an encoder; nothing named is the one that $TOOLSCOUT_ENCODER names, else that of the package ("default").

    A folder is one that toolscout exported, a Hugging Face folder with ONNX files, a model2vec folder, or a Hugging
    Face folder with safetensors, which is exported into the user's cache first. "raw" is the published encoder from
    which the package's was trained; "fast" is the package's small one, which otherwise encodes requests alone. A URL is
    an OpenAI-compatible endpoint. `threads`: how many cores to use, by default all. Raises MissingEncoder or BadModel.
    """
    if isinstance(named, TextEncoder):
        return named
    place, given = split_name(str(named or os.environ.get(VARIABLE) or ""))
    if place.lower().startswith(("http://", "https://")):
        from toolscout.models.encoders.endpoint import EndpointEncoder

        return EndpointEncoder.open(place, given)
    # Imported here: a catalogue can be opened and searched by words without ONNX Runtime, which takes a while to load.
    from toolscout.models.encoders.hf_onnx import HfOnnxEncoder
    from toolscout.models.encoders.onnx_encoder import Encoder, package_folder
    from toolscout.models.encoders.static import StaticEncoder

    settings: dict[str, Any] = {"settings": with_settings(EncoderSettings(), "an encoder", given)} if given else {}
    if threads is not None:
        settings["threads"] = threads
    folder = package_folder() if place in ("", DEFAULT) else Path(place)
    if os.path.isfile(folder):
        raise BadModel(f"{folder} is a file; {_SUPPORTED}")
    if place in (RAW, FAST) or not os.path.isdir(folder):
        return Encoder.load(folder, **settings)
    match kind_of(folder):
        case "onnx":
            return HfOnnxEncoder.load(folder, **settings)
        case "model2vec":
            return StaticEncoder.load(folder, **settings)
        case "weights":
            folder = _exported(folder)
    return Encoder.load(folder, **settings)


def check_name(name: str) -> None:
    """Raise MissingEncoder, BadModel or BadRequest where there is no encoder of this name; none is loaded."""
    from toolscout.models.encoders.onnx_encoder import check_raw

    place, given = split_name(name)
    if place.lower().startswith(("http://", "https://")):
        checked_url(place)
        if not any(one.startswith("model=") for one in given):
            raise BadModel(f"the endpoint {place} needs the name of a model: write {place}?model=NAME")
    elif place == RAW:
        check_raw()
    elif place not in ("", DEFAULT, FAST):
        kind_of(Path(place))


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
    except (OSError, ValueError, RecursionError):
        config = {}
    if (isinstance(config, dict) and config.get("model_type") == "model2vec") or (folder / STATIC_FOLDER).is_dir():
        return "model2vec"
    if any(folder.glob("*.onnx")) or any(folder.glob("onnx/*.onnx")):
        return "onnx"
    if any(folder.glob("*.safetensors")):
        return "weights"
    raise BadModel(f"{folder} holds no encoder: {_SUPPORTED}")


def _exported(source: Path) -> Path:
    """The folder in the user's cache into which the weights of a Hugging Face folder were exported; made once."""
    from toolscout.models.encoders.export import export
    from toolscout.models.encoders.settings import encoders_folder
    from toolscout.models.export_cache import exported_once

    return exported_once(source, encoders_folder(), CARD_FILE, export)
