"""How often the rules of `toolscout scan` alarm on real tools, and how many poisoned copies of them they find.

python -m studies.poisoning [--only SET,…] [--copies 20] [--out FILE] [--show]

Needs $TOOLSCOUT_DATA; minutes on two cores. Writes all rows anew. --show prints each alarm on a real tool instead.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from studies import poisoned_tools
from studies.poisoning_report import NAME
from studies.running import RESULTS, say
from toolscout.catalogue.poisoning import Finding, level_reached, scan, scan_result, scan_tool
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation import row as rows

OUT = RESULTS / f"{NAME}.jsonl"
MCP_TOOLS = "mcp_tools"
SETS = (MCP_TOOLS, "toolbench", "ultratool", "sealtools")
HIDDEN = frozenset({"hidden-character", "hidden-text", "tag-characters", "bidi-override"})


def real_tools(name: str) -> Sequence[Tool]:
    """Return the tools of a set."""
    if name != MCP_TOOLS:
        return Dataset.load(find_dataset(name), []).tools
    with gzip.open(find_dataset(name) / "tools.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [Tool.from_record(json.loads(line)) for line in lines]


def alarms(name: str, tools: Sequence[Tool]) -> tuple[dict[str, Any], list[Finding]]:
    """Return the row of a set of real tools, and all that was found in it."""
    began = time.process_time()
    found = scan(tools)
    seconds = time.process_time() - began
    by_tool: dict[str, list[Finding]] = defaultdict(list)
    for finding in found:
        by_tool[finding.tool_id].append(finding)
    values = {
        "flagged": sum(level_reached(few, "medium") for few in by_tool.values()),
        "high": sum(level_reached(few, "high") for few in by_tool.values()),
        "low": sum(not level_reached(few, "medium") for few in by_tool.values()),
        "hidden": len({finding.tool_id for finding in found if finding.rule in HIDDEN}),
        "ms": float(f"{1000 * seconds / max(1, len(tools)):.3g}"),
    }
    rules = dict(sorted(Counter(finding.rule for finding in found).items()))
    return {"requests": f"real: {name}", "tools": len(tools), "set": name, "rules": rules, "values": values}, found


def attacks(tools: Sequence[Tool], copies: int, held_out: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of attack, and one for results of calls."""
    made, found = Counter[str](), Counter[str]()
    for kind, tool in poisoned_tools.poisoned(tools, copies, held_out):
        made[kind] += 1
        found[kind] += level_reached(scan_tool(tool), "medium")
    results = poisoned_tools.poisoned_results(held_out)
    made["results"] = len(results)
    found["results"] = sum(level_reached(scan_result(text, "a/b"), "medium") for text in results)
    for kind, count in made.items():
        wordings = len(results) if kind == "results" else count // copies
        values = {"wordings": wordings, "copies": count, "found": found[kind]}
        label = f"{kind}, {'held out' if held_out else 'seen'}"
        yield {"requests": label, "tools": len(tools), "kind": kind, "held_out": held_out, "values": values}


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(SETS), help="names of sets of real tools, with commas between them")
    parser.add_argument("--copies", type=int, default=20, help="of each wording of an attack")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--show", action="store_true", help="print each finding in a real tool, and write nothing")
    given = parser.parse_args()
    made = []
    for name in given.only.split(","):
        tools = real_tools(name)
        row, found = alarms(name, tools)
        made.append(row)
        say(f"{row['requests']}: {row['values']} {row['rules']}")
        if given.show:
            sys.stdout.writelines(f"{finding.line()}\n" for finding in found)
        elif name == MCP_TOOLS:
            clean = {tool.id for tool in tools} - {finding.tool_id for finding in found}
            for held_out in (False, True):
                made += attacks([tool for tool in tools if tool.id in clean], given.copies, held_out)
    if not given.show:
        given.out.unlink(missing_ok=True)
        for row in made:
            rows.append(given.out, {"bench": NAME, **row, **rows.provenance("python -m studies.poisoning")})


if __name__ == "__main__":
    main()
