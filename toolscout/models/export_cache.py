"""Exports a Hugging Face folder with safetensors into the user's cache, once."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from toolscout.errors import BadModel
from toolscout.models.encoders.file_digests import file_digest
from toolscout.models.encoders.sentence_config import folder_name
from toolscout.models.encoders.settings import encoders_folder

_KINDS = ("*.safetensors", "*.json", "*_*/*.json", "*_*/*.safetensors")


def exported_once(source: Path, cache: Path, marker: str, export: Callable[[Path, Path], Path]) -> Path:
    """The folder in `cache` into which a source was exported; its name has a digest of the source's files.

    `marker`: a file that a complete export has; `export`: writes a source into a folder and returns it. Two processes
    may do so at once: the folder of the first that is done stays. Raises BadModel where it cannot be read or written.
    """
    files = sorted(path for kind in _KINDS for path in source.glob(kind))
    try:
        digests = [(path.relative_to(source).as_posix(), file_digest(path, encoders_folder())) for path in files]
    except OSError as error:
        raise BadModel(f"{error.filename} cannot be read ({error.strerror}); get the folder again") from error
    short = hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:8]
    out = cache / f"{folder_name(source)}-{short}-int8"
    if (out / marker).is_file():
        return out
    made = export(source, out.with_name(f".{out.name}-{secrets.token_hex(4)}"))
    try:
        os.rename(made, out)
    except OSError as error:
        with suppress(OSError):
            shutil.rmtree(made)
        if not (out / marker).is_file():
            raise BadModel(f"cannot write {out} ({error.strerror}); make room, or set TOOLSCOUT_CACHE") from error
    return out
