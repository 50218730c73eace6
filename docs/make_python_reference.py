"""Writes docs/reference/python.md from the docstrings of the package: python docs/make_python_reference.py"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import toolscout
from toolscout.retrievers import registry

TARGET = Path(__file__).parent / "reference" / "python.md"
HEAD = """\
# Python

Generated from docstrings by `python docs/make_python_reference.py`; a test fails where it is stale. What stands first
is imported from `toolscout` itself; names with a leading underscore are nobody's to use.
"""
# What is used or extended besides `toolscout` itself, by module.
BESIDES = {
    "Language models and calls": {
        "toolscout.llm": ["open_llm"],
        "toolscout.calling.dispatch": ["CallOptions", "OriginCaller"],
        "toolscout.integrations": ["Choice"],
    },
    "To extend it": {
        "toolscout.core.scope": ["Scope"],
        "toolscout.retrievers.base": ["Retriever", "Ranking"],
        "toolscout.catalogue.base": ["Importer"],
        "toolscout.stores.base": ["Store"],
        "toolscout.models.encoders.base": ["TextEncoder"],
        "toolscout.llm.base": ["LanguageModel"],
    },
}
_SHOWN_DUNDERS = ("__call__",)


def reference() -> str:
    """The whole page."""
    return HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    named = [name for name in toolscout.__all__ if not name.startswith("__") and name != "errors"]
    first = [name for name in ("Scout", "Tool", "Answer", "Hit", "Allowed", "Example") if name in named]
    yield "\n## toolscout\n"
    for name in [*first, *(name for name in named if name not in first)]:
        yield from _entry(name, getattr(toolscout, name))
    yield "\n## toolscout.errors\n\n| | |\n|---|---|\n"
    for name, error in vars(toolscout.errors).items():
        if inspect.isclass(error) and issubclass(error, Exception) and error.__module__ == "toolscout.errors":
            yield f"| `{name}` | {_first_line(error)} |\n"
    for title, modules in BESIDES.items():
        yield f"\n## {title}\n"
        for module, names in modules.items():
            for name in names:
                yield from _entry(name, getattr(import_module(module), name), module)
    yield "\n## Options of the methods\n\nSet in the shell with `--option NAME=VALUE`, in Python with the class.\n"
    for name in sorted(registry.BUILT_IN):
        yield from _options(name, registry.method(name))


def _entry(name: str, thing: Any, module: str = "") -> Iterator[str]:
    yield f"\n### {name}\n\n"
    if module:
        yield f"`from {module} import {name}`\n\n"
    if isinstance(thing, types.UnionType):
        yield "One of " + ", ".join(f"`{one.__name__}`" for one in get_args(thing)) + ".\n"
        return
    if not inspect.isclass(thing):
        yield f"```text\n{_signature(name, thing)}\n```\n\n{_text(thing)}\n"
        return
    if not inspect.isabstract(thing):
        yield f"```text\n{_signature(name, thing)}\n```\n\n"
    yield f"{_text(thing)}\n"
    for member, raw in vars(thing).items():
        if member.startswith("_") and member not in _SHOWN_DUNDERS:
            continue
        value = getattr(thing, member)
        if isinstance(raw, property):
            yield f"\n**`{member}`** {_text(raw)}\n"
        elif inspect.isfunction(value) or inspect.ismethod(value):
            wanted = ", has to be written" if getattr(value, "__isabstractmethod__", False) else ""
            awaited = "await " if inspect.iscoroutinefunction(value) else ""
            yield f"\n**`{awaited}{_signature(member, value)}`**{wanted}\n\n{_text(value)}\n"


def _options(name: str, retriever: Any) -> Iterator[str]:
    kind = next(filter(dataclasses.is_dataclass, map(_named_class, _annotations(retriever))), None)
    if kind is None:
        return
    yield f"\n### {name}: {kind.__name__}\n\n{_text(kind)}\n\n| option | default |\n|---|---|\n"
    for field in dataclasses.fields(kind):
        default = field.default
        if default is dataclasses.MISSING:
            default = "" if field.default_factory is dataclasses.MISSING else field.default_factory()
        yield f"| `{field.name}` | `{default!r}` |\n"


def _annotations(retriever: Any) -> Iterator[tuple[Any, str]]:
    for base in retriever.__mro__:
        if "options" in vars(base).get("__annotations__", {}):
            yield base, vars(base)["__annotations__"]["options"]


def _named_class(found: tuple[Any, str]) -> Any:
    owner, name = found
    return getattr(import_module(owner.__module__), name, None)


def _signature(name: str, thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    kept = [one for one in signature.parameters.values() if one.name not in ("self", "cls") and one.name[0] != "_"]
    bare = [one.replace(annotation=_Bare(one.annotation), default=_default(one.default)) for one in kept]
    returned = signature.return_annotation
    ends = "" if returned in (inspect.Signature.empty, None, "None") else f" -> {_Bare(returned)!r}"
    return name + str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)) + ends


class _Bare:
    """An annotation or default that is shown as it is written, without quotes or modules."""

    def __init__(self, thing: Any) -> None:
        shown = thing if isinstance(thing, str) else inspect.formatannotation(thing)
        self._shown = re.sub(r"(?:\w+\.)+(?=[A-Z])", "", shown)

    def __repr__(self) -> str:
        return self._shown


def _default(value: Any) -> Any:
    """A default as it is shown; what has an address in it is not."""
    return _Bare("…") if re.search(r"<.*>", repr(value)) and value is not inspect.Parameter.empty else value


def _text(thing: Any) -> str:
    """A docstring as Markdown; a dataclass without one of its own says nothing."""
    about = inspect.cleandoc(thing.__doc__ or "")
    return "" if about.startswith(f"{getattr(thing, '__name__', '')}(") else about.replace("<", "\\<")


def _first_line(thing: Any) -> str:
    return _text(thing).splitlines()[0] if _text(thing) else ""


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
