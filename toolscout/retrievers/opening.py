"""Creates a retriever from a method's name, options as "key=value", and parts; or opens a model folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from toolscout.core.option_values import PRESET
from toolscout.errors import BadModel
from toolscout.models.encoders.opening import open_encoder
from toolscout.models.language.base import BASE_VARIABLE
from toolscout.retrievers.base import Options, Retriever
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.registry import available, load_model, method

# Methods that combine others; PART.KEY=VALUE sets an option of a part.
COMPOSED = ("hybrid", "rerank", "rewrite")
_ENCODER = "encoder="


def made(retriever: str, parts: Sequence[str] = (), settings: Sequence[str] = ()) -> Retriever:
    """Create an untrained retriever with these options and parts (methods or model folders).

    A method that combines others takes encoder=NAME too: its parts share that encoder. Raises BadModel for an unknown
    method, part or option.
    """
    if retriever not in available():
        raise BadModel(f"there is no retriever called {retriever!r}; choose one of {', '.join(sorted(available()))}")
    if retriever in COMPOSED and (named := [one for one in settings if one.startswith(_ENCODER)]):
        found = made(retriever, parts, [one for one in settings if one not in named])
        found.use_encoder(open_encoder(named[-1].removeprefix(_ENCODER)))
        return found
    if not parts:
        return _made(retriever, settings)
    if retriever not in COMPOSED:
        raise BadModel(f"{retriever} has no parts; leave --part out, or name one of {', '.join(COMPOSED)}")
    own = [setting for setting in settings if "." not in setting.partition("=")[0]]
    theirs: dict[str, list[str]] = {}
    for setting in settings:
        name, dot, rest = setting.partition(".")
        if setting not in own and dot:
            theirs.setdefault(name, []).append(rest)
    unknown = set(theirs) - {part for part in parts if part in available()}
    if unknown:
        raise BadModel(f"no part is called {', '.join(sorted(unknown))}; the parts are: {', '.join(parts)}")
    opened = [_made(part, theirs.get(part, [])) if part in available() else _opened(part) for part in parts]
    kind = cast(Callable[..., Retriever], method(retriever))
    default = cast(Any, method(retriever))().options if own else None
    return kind(with_settings(default, retriever, own) if default else None, opened)


def _opened(part: str) -> Retriever:
    if not Path(part).is_dir():
        raise BadModel(f"there is no part {part!r}; name one of {', '.join(sorted(available()))}, or a model folder")
    return load_model(Path(part))


def resolved(name: str, settings: Sequence[str]) -> tuple[str, list[str]]:
    """Return the method and settings that are opened: a preset may name a method with a network of its own."""
    for setting in settings:
        key, _, value = setting.partition("=")
        if key == PRESET and value in (others := method(name).preset_methods):
            opened, own = others[value]
            return opened, [*own, *(one for one in settings if one != setting)]
    return name, list(settings)


def _made(name: str, settings: Sequence[str]) -> Retriever:
    name, settings = resolved(name, settings)
    empty = method(name)()
    if not settings:
        return empty
    return cast(Callable[..., Retriever], type(empty))(with_settings(empty.options, name, settings))


def variant_of(options: Options) -> str:
    """A slug of the options that differ from the defaults; "default" where none does."""
    default = type(options)()
    changed = [
        f"{field.name}-{_slug(getattr(options, field.name))}"
        for field in fields(options)
        if getattr(options, field.name) != getattr(default, field.name)
    ]
    return "_".join(changed) or "default"


def _slug(value: object) -> str:
    # Only the last part of a path: the rest is private to this machine.
    text = str(value).lower() if isinstance(value, bool) else str(value).rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-") or "none"


def open_retriever(
    name: str, settings: Sequence[str] = (), parts: Sequence[str] = (), encoder: str | None = None
) -> tuple[Retriever, str]:
    """A retriever by a method's name, with options as "key=value" and parts, or out of a model folder; its variant.

    `encoder`: the name of an encoder for all its vectors; raises BadModel where the model is bound to another one.
    """
    found, variant = _with_variant(name, settings, parts)
    named = encoder or next((one.removeprefix(_ENCODER) for one in settings if one.startswith(_ENCODER)), None)
    if encoder:
        found.use_encoder(open_encoder(encoder))
    if named and (encoder or name in COMPOSED):
        return found, "_".join([*([variant] if variant != "default" else []), f"encoder-{_slug(named)}"])
    return found, variant


def _with_variant(name: str, settings: Sequence[str], parts: Sequence[str]) -> tuple[Retriever, str]:
    if Path(name).is_dir():
        if settings or parts:
            wrong = "--option" if settings else "--part"
            moved = any(one.startswith("base=") for one in settings)
            hint = f", and name a language model that was moved with {BASE_VARIABLE}=PLACE" if moved else ""
            raise BadModel(f"{name} is a model folder and has its options and parts in it; leave {wrong} out{hint}")
        loaded = load_model(Path(name))
        return loaded, Path(name).resolve().name  # what it was made with stands in the row
    found = made(name, parts, settings)
    own = variant_of(found.options)
    over = [Path(part).resolve().name if Path(part).is_dir() else part for part in parts]
    return found, "_".join([*over, own] if own != "default" or not over else over)
