"""The section about agents: what stands in front of one, and what that is worth end to end (studies/agent.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from studies.agent_replay import STUDY as AGENT
from studies.study_rows import StudyRows
from toolscout.core.tool import clean_text
from toolscout.evaluation.report.rows import ResultLine, group_by, percent
from toolscout.evaluation.report.tables import table
from toolscout.evaluation.row import STUDY

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


def section(rows: StudyRows, _pictures: Mapping[str, str]) -> Iterator[str]:
    """A table for each split, language model and settings of the agent; nothing where there are no rows."""
    groups = group_by(rows.study(AGENT), _setting)
    if groups:
        yield _HEAD
    for (dataset, split, _, llm, k, way), lines in groups.items():
        told = lines[0].newest[STUDY]
        denominator = f"{told['recorded']:,} of {told['of']:,} requests have all recordings"
        yield f"\n**{dataset} {split}**, language model {clean_text(str(llm))}, {_way(dict(way), k)}; {denominator}\n"
        yield table(_COLUMNS, [_cells(line) for line in lines])


def _setting(line: ResultLine) -> tuple[Any, ...]:
    told = line.newest[STUDY]
    return *line.split, told.get("llm"), told.get("k"), tuple(sorted((told.get("agent") or {}).items()))


def _way(agent: Mapping[str, Any], k: Any) -> str:
    parts = [f"k {k}", f"at most {agent.get('steps')} steps"]
    parts += ["with thoughts" if agent.get("thoughts") else "without thoughts"]
    return ", ".join([*parts, "arguments under the schema" if agent.get("constrain") else "arguments written freely"])


def _cells(line: ResultLine) -> dict[str, str]:
    told = line.newest[STUDY]
    cells = {head: percent(line.values(name)) for head, name in _SHARES.items()}
    if (steps := line.mean("steps")) is not None:
        cells["steps"] = f"{steps:.2f}"
    if "against" in told and cells["win rate"]:
        cells["win rate"] += f" (against {clean_text(str(told['against']))})"
    return cells | {
        "all called, 95 %": line.interval_text("all_called"),
        "front": _front(line, str(told.get("llm"))),
        "picks": str(told.get("picks", "")),
        "n": f"{max(row['requests'] for row in line.rows):,}",
        "seeds": str(len(line.rows)),
        "commit": line.commits,
    }


def _front(line: ResultLine, llm: str) -> str:
    """The method without the language model, which the heading names."""
    llm = clean_text(llm)
    return line.method.replace(f" ({llm})", "").replace(f"({llm}_", "(")
