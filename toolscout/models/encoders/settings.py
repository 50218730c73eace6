"""How a user names an encoder: PLACE, or PLACE?KEY=VALUE&KEY=VALUE with settings in place of what its files say."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from toolscout.core.cache_folder import cache_folder
from toolscout.errors import BadModel

Pooling = Literal["mean", "cls", "last"]
VARIABLE = "TOOLSCOUT_ENCODER"
# Names the encoder of the package, whatever the environment says.
DEFAULT = "default"
# Names the published encoder from which it was trained.
RAW = "raw"
# Names the package's small encoder, for documents and requests.
FAST = "fast"
# Says what an exported encoder is.
CARD_FILE = "encoder.json"
# How many tokens are read, where nothing else is said. The limit of requests is higher: their last words matter, while
# a document says most at its start.
REQUEST_TOKENS = 128
DOCUMENT_TOKENS = 96


@dataclass(frozen=True, slots=True)
class EncoderSettings:
    """Settings of an encoder on this machine; None leaves what its own files say. The fingerprint covers them.

    pooling: which token vectors make the vector of a text: their mean, the first one (cls), or the last one.
    request_prompt, document_prompt: what is put before a request or a document, such as "query: ".
    request_tokens, document_tokens: how many tokens of a text are read.
    dimensions: how many numbers of a vector are used, for models trained to be cut (Matryoshka).
    file: which ONNX file of the folder is run, such as onnx/model.onnx.
    request_file: which one is run on requests, where an exported encoder has two.
    """

    pooling: Pooling | None = None
    request_prompt: str | None = None
    document_prompt: str | None = None
    request_tokens: int | None = None
    document_tokens: int | None = None
    dimensions: int | None = None
    file: str | None = None
    request_file: str | None = None

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        for name in ("request_tokens", "document_tokens", "dimensions"):
            value = getattr(self, name)
            if value is not None and value < (1 if name == "dimensions" else 3):
                raise BadModel(f"{name} of an encoder is too small: {value}")

    def given(self) -> dict[str, Any]:
        """The settings that are not None."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def token_limits(settings: EncoderSettings, longest: int | None, folder: Path) -> tuple[int, int]:
    """How many tokens of a request and of a document are read; `longest` is what the model can read, None for any.

    Raises BadModel where the settings ask for more.
    """
    for name in ("request_tokens", "document_tokens"):
        if longest and (getattr(settings, name) or 0) > longest:
            raise BadModel(f"{folder} reads at most {longest} tokens of a text; set {name} to that or less")
    usual = (settings.request_tokens or REQUEST_TOKENS, settings.document_tokens or DOCUMENT_TOKENS)
    return min(usual[0], longest or usual[0]), min(usual[1], longest or usual[1])


def trained_limits(tokens: int, positions: int, longest: int | None, folder: Path) -> tuple[int, int]:
    """How many tokens of a request and of a document an encoder reads in training and when it is exported.

    `tokens`: the number of both, 0 for the usual ones. `positions`: what the network can read; `longest`: what its
    files say that it reads, None for no limit. Raises BadModel where `tokens` is more than the network can read.
    """
    if tokens > positions:
        raise BadModel(f"{folder} reads at most {positions} tokens of a text; set tokens to that or less")
    if tokens:
        return tokens, tokens
    return token_limits(EncoderSettings(), min(positions, longest or positions), folder)


def split_name(named: str, kind: str = "an encoder") -> tuple[str, list[str]]:
    """The place in the name of an encoder or the like, and its settings as "key=value"; a path that exists has none.

    Raises BadModel where something after the question mark is no setting.
    """
    place, mark, query = named.partition("?")
    if not mark or os.path.exists(named):
        return named, []
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError as error:
        raise BadModel(f"{named!r:.200} is no name of {kind}: write PLACE?KEY=VALUE&KEY=VALUE ({error})") from None
    return place, [f"{key}={value}" for key, value in pairs]


def encoders_folder() -> Path:
    """The default folder of this user's exported encoders."""
    return cache_folder() / "encoders"


def fitted_folder(fingerprint: str) -> Path:
    """Where what was fitted to the vectors of an encoder lies: its need head, and the curve of its catalogue fit."""
    return encoders_folder().with_name("fitted") / fingerprint
