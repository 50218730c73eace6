"""Markdown of the agent: what stands in front of it, and what that is worth end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from toolscout.core.tool import clean_text
from toolscout.evaluation.report.rows import Line, percent
from toolscout.evaluation.study import STUDY

Table = Callable[[Sequence[str], Iterable[Mapping[str, str]]], str]
AGENT = "agent"
_HEAD = """
## Agent: what retrieval is worth end to end

The same agent and language model behind each front, on recorded calls: a call brings the recording with the same
arguments, or the nearest of that tool. *Shortlist*: it is shown the first k tools that the front finds and names one of
them, or finishes; *itself*: the front is a model that writes tool ids, and picks among all tools. *Gold* shows it just
the tools that are needed, the most that retrieval can give. Only requests whose gold tools all have recordings are
asked. *All gold called* is the share of requests whose gold tools were all called, *gold recall* the share of gold
tools that were; *valid arguments* the share of calls whose arguments fitted the tool's schema as they were first
written, *refused* that of calls which were not made, because they could not be repaired either or had been made
before, both over requests that picked a tool; *finished* is the share of requests that ended by themselves. *Steps* are
all that it picks, calls too that it had made before: those do not count where steps are bounded, but it picks at most
twice as often. A request that fails counts as 0. Pass rate and win rate stand here only where a language model judged
them.
"""
_SHARES = MappingProxyType(
    {
        "all gold called": "all_called",
        "gold recall": "gold_recall",
        "valid arguments": "valid_arguments",
        "refused": "refused",
        "finished": "finished",
        "pass rate": "pass_rate",
        "win rate": "win_rate",
    }
)
_COLUMNS = ("front", "picks", *_SHARES, "all called, 95 %", "steps", "n", "seeds", "commit")


def section(studies: Sequence[Line], table: Table) -> Iterator[str]:
    """A table for each split, language model and way of the agent; nothing where none was measured."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in studies:
        told = line.newest[STUDY]
        if told.get("name") == AGENT:
            way = tuple(sorted((told.get("agent") or {}).items()))
            groups.setdefault((*line.split, told.get("llm"), told.get("k"), way), []).append(line)
    if groups:
        yield _HEAD
    for (dataset, split, _, llm, k, way), lines in groups.items():
        told = lines[0].newest[STUDY]
        denominator = f"{told['recorded']:,} of {told['of']:,} requests have all recordings"
        yield f"\n**{dataset} {split}**, language model {clean_text(str(llm))}, {_way(dict(way), k)}; {denominator}\n"
        yield table(_COLUMNS, [_cells(line) for line in lines])


def _way(agent: Mapping[str, Any], k: Any) -> str:
    parts = [f"k {k}", f"at most {agent.get('steps')} steps"]
    parts += ["with thoughts" if agent.get("thoughts") else "without thoughts"]
    return ", ".join([*parts, "arguments under the schema" if agent.get("constrain") else "arguments written freely"])


def _cells(line: Line) -> dict[str, str]:
    told = line.newest[STUDY]
    cells = {head: percent(line.values(name)) for head, name in _SHARES.items()}
    if between := line.interval("all_called"):
        cells["all called, 95 %"] = "–".join(f"{100 * end:.2f}" for end in between)
    if (steps := line.mean("steps")) is not None:
        cells["steps"] = f"{steps:.2f}"
    if "against" in told and cells["win rate"]:
        cells["win rate"] += f" (against {clean_text(str(told['against']))})"
    commits = dict.fromkeys(str(row.get("commit") or "") for row in line.rows)
    return cells | {
        "front": _front(line, str(told.get("llm"))),
        "picks": str(told.get("picks", "")),
        "n": f"{max(row['requests'] for row in line.rows):,}",
        "seeds": str(len(line.rows)),
        "commit": ", ".join(filter(None, commits)),
    }


def _front(line: Line, llm: str) -> str:
    """The method without the language model, which the heading names."""
    llm = clean_text(llm)
    return line.method.replace(f" ({llm})", "").replace(f"({llm}_", "(")
