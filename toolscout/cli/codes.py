"""The command `codes`: show the codes of a trained model's tools, and how evenly the codes are used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from toolscout.cli import output
from toolscout.cli.common import plural
from toolscout.errors import BadModel

_SHOWN = 3


def codes(
    model: Annotated[Path, typer.Argument(metavar="FOLDER", help="A trained model whose tools have codes.")],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the tree of codes, for any browser.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all codes and their health as JSON.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="First codes to list, those with the most tools first.")] = 20,
) -> None:
    """Show the codes that a model gives its tools: how evenly they are used, and what shares its first code."""
    from toolscout.retrievers.model_folder import read_model
    from toolscout.retrievers.registry import load_model
    from toolscout.retrievers.toolweaver import Toolweaver

    opened = load_model(model)
    if not isinstance(opened, Toolweaver):
        record = read_model(model)
        parts = "".join(f"; for one of its parts name {model / part}" for part in record.get("parts", {}))
        raise BadModel(
            f"the model in {model} ({record['method']}) gives its tools no codes; "
            f"train one that does: toolscout train --retriever toolweaver{parts}"
        )
    found, health = dict(opened.codes()), dict(opened.health())
    if html is not None:
        from toolscout.models.tool_ids.code_tree import tree_html

        html.write_text(tree_html(found, opened.uses(), f"Codes of {model.name}"), encoding="utf-8")
        output.note(f"{html}", label="written")
    if as_json:
        output.print_json({"health": health, "codes": {tool_id: list(found[tool_id]) for tool_id in sorted(found)}})
    else:
        _show(found, health, limit)


def _show(found: Mapping[str, tuple[int, ...]], health: Mapping[str, Any], limit: int) -> None:
    about = output.table("health", "value", grow="value")
    for name, value in health.items():
        values = value if isinstance(value, list | tuple) else [value]
        about.add_row(output.shown(name), output.shown(", ".join(_number(one) for one in values)))
    groups: dict[int, list[str]] = {}
    for tool_id in sorted(found):
        groups.setdefault(found[tool_id][0], []).append(tool_id)
    made = output.table("first code", "tools", "such as", grow="such as")
    for code, tools in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))[:limit]:
        made.add_row(str(code), f"{len(tools):,}", output.shown(", ".join(tools[:_SHOWN])))
    console = output.stdout()
    console.print(about)
    console.print()
    console.print(made)
    if len(groups) > limit:
        output.note(f"{plural(len(groups) - limit, 'first code')} more; --limit shows them, --html all tools")


def _number(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
