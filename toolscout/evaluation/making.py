"""Makes a retriever of a method's name, options as "key=value", and the parts that it fuses or searches with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from toolscout.errors import BadModel
from toolscout.evaluation.settings import with_settings
from toolscout.retrievers.base import Retriever, available, load_model, method

# Those that are made of others; PART.KEY=VALUE sets an option of one of these.
COMPOSED = ("hybrid", "rewrite")


def made(retriever: str, parts: Sequence[str] = (), settings: Sequence[str] = ()) -> Retriever:
    """A retriever with these options, not trained; of these parts, which are methods or model folders."""
    if retriever not in available():
        raise BadModel(f"there is no retriever called {retriever!r}; choose one of {', '.join(sorted(available()))}")
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


def _made(name: str, settings: Sequence[str]) -> Retriever:
    empty = method(name)()
    if not settings:
        return empty
    return cast(Callable[..., Retriever], type(empty))(with_settings(empty.options, name, settings))
