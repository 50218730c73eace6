"""The command `retrievers`: list the methods that --retriever takes by name."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Annotated, Any

import typer

from toolscout.cli import output
from toolscout.cli.common import Listed
from toolscout.core.option_values import Presets


def retrievers(format: Annotated[Listed, typer.Option(help="How to print it.")] = "table") -> None:
    """List the retrievers that --retriever takes by name, and their options."""
    from toolscout.retrievers.registry import available

    found = [_retriever(name) for name in sorted(available())]
    if format == "json":
        output.print_json(found)
        return
    made = output.table("retriever", "what it does", "options", grow="what it does")
    for row in found:
        options = ", ".join(f"{key}={value!r}" for key, value in row["options"].items())
        options += "".join(f"; preset={name}" for name in row["presets"])
        made.add_row(output.shown(row["name"]), output.shown(row["about"]), output.shown(options))
    output.stdout().print(made)


def _retriever(name: str) -> dict[str, Any]:
    from toolscout.retrievers.registry import method

    try:
        kind = method(name)
        made: Any = kind()
    except Exception as error:  # a plugin may fail in any way; the others are listed all the same
        return {"name": name, "about": f"cannot be opened: {error}", "options": {}, "presets": []}
    about = importlib.import_module(kind.__module__).__doc__ or kind.__doc__ or ""
    options = {field.name: getattr(made.options, field.name) for field in fields(made.options)}
    first = about.strip().partition("\n")[0].removeprefix(f"{name}: ")
    presets = [*kind.preset_methods, *(made.options.presets if isinstance(made.options, Presets) else ())]
    return {"name": name, "about": first, "options": options, "presets": presets}
