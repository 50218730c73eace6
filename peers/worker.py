"""Runs one adapter in the environment of its peer and writes what was measured. Standard library only.

python -m peers.worker TASK reads a JSON file: `adapter`, `options`, `phase`, `data` (the folder with tools.jsonl and
requests.jsonl), `folder` (where the peer keeps its files), `k`, `rounds`, `started` (the clock as the parent began),
`out` (the file to write). Phase "build" indexes the tools, asks every request and saves; "reopen" opens what was saved,
asks some requests, and adds and removes a tool. Each phase is a process of its own, as memory is measured too.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Found = dict[str, Any]

REOPENED = 20
"""How many requests are asked again after reopening."""
_LONG_ROUND_S = 10.0
# A tool that no catalogue has, and a request for it that shares its words and its meaning.
NEW_TOOL = {
    "name": "harpsichord_tune_strings",
    "namespace": "harpsichord",
    "title": "tune_strings",
    "description": "Tunes the strings of a harpsichord to a temperament, such as meantone.",
    "parameters": {
        "type": "object",
        "properties": {"temperament": {"type": "string", "description": "The temperament to tune to."}},
    },
}
NEW_REQUEST = "tune the strings of the harpsichord to a meantone temperament"


class Clock(NamedTuple):
    """A moment: by the wall, and in seconds of processor time of this process and its children."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Clock:
        """Read both clocks."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime)

    def since(self, name: str) -> Found:
        """Return the seconds from this moment until now."""
        now = Clock.now()
        return {f"{name}_s": now.wall - self.wall, f"{name}_cpu_s": now.cpu - self.cpu}


def run(task: Mapping[str, Any]) -> Found:
    """Run one phase of a task and return what was measured."""
    tools = list(_rows(Path(task["data"]) / "tools.jsonl"))
    requests = [row["text"] for row in _rows(Path(task["data"]) / "requests.jsonl")]
    began = Clock.now()
    peer = importlib.import_module(f"peers.adapters.{task['adapter']}").Peer
    found = began.since("import")
    return found | (_build if task["phase"] == "build" else _reopen)(peer, tools, requests, task)


def _build(peer: Any, tools: Sequence[Found], requests: Sequence[str], task: Mapping[str, Any]) -> Found:
    began = Clock.now()
    opened = peer(tools, Path(task["folder"]), **task["options"])
    opened.search(requests[0], task["k"])
    found = began.since("index")
    found["embedded"] = opened.embedded
    if task["rounds"]:
        found |= _ask(opened, requests, task)
    began = Clock.now()
    opened.save()
    saved = began.since("index")
    found |= {name: found[name] + seconds for name, seconds in saved.items()}
    return found | {"index_peak_mb": peak_mb()}


def _ask(opened: Any, requests: Sequence[str], task: Mapping[str, Any]) -> Found:
    """Ask every request in rounds: the first is timed too, and one that takes long is the only one."""
    rounds: list[dict[str, float]] = []
    searched: list[list[str]] = []
    while len(rounds) < task["rounds"]:
        began, times, searched = Clock.now(), [], []
        for request in requests:
            started = time.perf_counter()
            searched.append(opened.search(request, task["k"]))
            times.append((time.perf_counter() - started) * 1000)
        spent = began.since("round")
        cuts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
        rounds.append({"p50_ms": cuts[49], "p95_ms": cuts[94], "cpu_ms": spent["round_cpu_s"] * 1000 / len(requests)})
        if spent["round_s"] > _LONG_ROUND_S:
            break
    ranked = [opened.rank(request, task["k"]) for request in requests] if _ranks_apart(opened) else searched
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return medians | {"rounds": len(rounds), "searched": searched, "ranked": ranked}


def _ranks_apart(opened: Any) -> bool:
    from peers.adapters.base import Adapter

    return type(opened).rank is not Adapter.rank


def _reopen(peer: Any, tools: Sequence[Found], requests: Sequence[str], task: Mapping[str, Any]) -> Found:
    began = Clock.now()
    opened = peer.reopen(tools, Path(task["folder"]), **task["options"])
    first = opened.search(requests[0], task["k"])
    found = began.since("reopen")
    found |= {"cold_start_s": time.time() - task["started"], "cold_start_cpu_s": Clock.now().cpu}
    found["reopen_embedded"] = opened.embedded
    asked = [first, *(opened.search(request, task["k"]) for request in requests[1:REOPENED])]
    return found | {"reopened": asked, "reopen_peak_mb": peak_mb(), "live": live(opened, task["k"])}


def live(opened: Any, k: int) -> str:
    """Add a tool and remove it again: "yes" where it is found in between and at no other time."""
    before = opened.search(NEW_REQUEST, k)
    try:
        opened.add(NEW_TOOL)
        between = opened.search(NEW_REQUEST, k)
        opened.remove(NEW_TOOL["name"])
    except NotImplementedError:
        return "no"
    after = opened.search(NEW_REQUEST, k)
    name = NEW_TOOL["name"]
    if name not in between:
        return "an added tool is not found"
    return "yes" if name not in [*before, *after] else "a removed tool is still found"


def peak_mb() -> float:
    """Return the peak resident memory of this process in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    return 0.0


def _rows(path: Path) -> Iterator[Found]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines)


def main(arguments: Sequence[str]) -> None:
    """Run the task of a file and write what was measured."""
    task = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    load = os.getloadavg()[0]
    Path(task["out"]).write_text(json.dumps(run(task) | {"load": [load, os.getloadavg()[0]]}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
