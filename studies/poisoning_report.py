"""The section about the rules that find poison in tools (studies/poisoning.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from studies.study_rows import StudyRows
from toolscout.evaluation.report.rows import commits
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import RowDict

NAME = "poisoning"
_HEAD = """
## Poison in tools: false alarms, and what is found

The rules of `toolscout scan` (`python -m studies.poisoning`). *Flagged*: real tools with a finding at medium or high.
The rules were adjusted on the tools of public MCP servers (`mcp_tools`) and on ToolBench; the other sets were only
counted. *Hidden*: tools with invisible characters, which are true findings wherever they come from. *ms*: of the
processor.
"""
_FOUND = """
Poisoned copies of tools of `mcp_tools`, by kind of attack (`studies/poisoned_tools.py`): the share with a finding at
medium or high. Rules were written with one half of the wordings of each kind; the other half was held out. It was
measured three times, and rules were added after the first two: without reading it, but knowing the shares that were
found, and of concealment also which sorts were missed, since the guide named them. So these shares flatter the rules,
that of concealment most. Both halves, and the rules, come from the same authors: a stranger's attacks are found less
often. *Results*: texts that a call gives back.
"""


def section(rows: StudyRows, _pictures: Mapping[str, str]) -> Iterator[str]:
    """A table of real tools and one of attacks; nothing where there are no rows."""
    found = rows.bench(NAME)
    if not found:
        return
    yield _HEAD + "\n"
    real = [row for row in found if "flagged" in row["values"]]
    yield table(
        ("set", "tools", "flagged", "flagged %", "high", "low", "hidden", "ms a tool", "commit"), map(_real, real)
    )
    yield _FOUND + "\n"
    kinds: dict[str, dict[bool, RowDict]] = {}
    for row in found:
        if "found" in row["values"]:
            kinds.setdefault(row["kind"], {})[row["held_out"]] = row
    yield table(
        ("kind", "wordings", "found %", "held out", "found % of these", "commit"),
        [_kind(item) for item in kinds.items()],
    )


def _real(row: RowDict) -> dict[str, str]:
    values = row["values"]
    return {
        "set": row["set"],
        "tools": f"{row['tools']:,}",
        "flagged": f"{values['flagged']:,}",
        "flagged %": f"{100 * values['flagged'] / row['tools']:.2f}",
        **{key: f"{values[key]:,}" for key in ("high", "low", "hidden")},
        "ms a tool": f"{values['ms']:.2f}",
        "commit": commits([row]),
    }


def _kind(item: tuple[str, Mapping[bool, RowDict]]) -> dict[str, str]:
    kind, halves = item
    cells = {"kind": kind, "commit": commits(list(halves.values()))}
    names: Sequence[tuple[bool, str, str]] = ((False, "wordings", "found %"), (True, "held out", "found % of these"))
    for held_out, wordings, share in names:
        if held_out in halves:
            values = halves[held_out]["values"]
            cells |= {wordings: f"{values['wordings']}", share: f"{100 * values['found'] / values['copies']:.1f}"}
    return cells
