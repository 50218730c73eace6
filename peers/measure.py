"""Runs a peer over a set, process after process, and makes the row of what was measured."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peers import environments
from peers.environments import HOME, ROOT, NotInstalled, python_of
from peers.table import PeerSpec
from peers.workload import SPLIT, Workload
from toolscout.errors import ToolscoutError
from toolscout.evaluation.measures import compute_measures
from toolscout.evaluation.request_result import RequestResult
from toolscout.evaluation.row import STUDY, provenance

STUDY_NAME = "peers"
K = 5
LIMIT_S = 900.0
ROUNDS = 3
_SHORT_S = 3.0
"""What takes longer is measured once; else three times, in three processes."""
_MEASURES = (
    *(f"{name}@{k}" for name in ("recall", "ndcg", "comp") for k in (1, 5)),
    *("fit_use", "fit_nothing", "fit_nothing.no_tool", "fit_nothing.nothing_fits", "right@5"),
)
# What a worker reports that is no single number.
_OTHER = ("searched", "ranked", "reopened", "load", "live", "rounds", "embedded", "reopen_embedded")


class PeerFailed(ToolscoutError):
    """A peer that could not be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a peer on a set, and the result of each request."""

    values: Mapping[str, Any]
    results: Sequence[RequestResult]


def row_of(peer: PeerSpec, workload: Workload, command: str, python: Path | None = None) -> tuple[dict[str, Any], Any]:
    """Measure a peer on a set; return its row, and the scores of its single requests.

    A peer that is not there, fails or takes too long gets a row that says so. `python` runs it in another environment.
    """
    problem, about, measured = peer.needs, dict[str, Any](), None
    try:
        if not problem and python is None:
            environments.install(peer)
            about = {"versions": environments.versions(peer), "install_mb": environments.size_mb(peer)}
        if not problem:
            measured = measure(peer, workload, python or python_of(peer.requirements))
    except (NotInstalled, PeerFailed) as error:
        problem = str(error)
    row = _row(peer, workload, command, about | {"problem": problem}, measured)
    return row, [one.to_dict() for one in measured.results] if measured else []


def _row(
    peer: PeerSpec, workload: Workload, command: str, about: Mapping[str, Any], measured: Measured | None
) -> dict[str, Any]:
    dataset, metrics, intervals = workload.dataset, dict[str, float](), dict[str, list[float]]()
    values = dict(measured.values) if measured else {}
    if measured:
        found = compute_measures(measured.results)
        metrics = {name: found.metrics[name] for name in _MEASURES if name in found.metrics}
        metrics["offered_recall@5"] = round(values.pop("offered_recall"), 6)
        intervals = {name: ends for name, ends in found.intervals.items() if name in metrics}
    timing = {name: round(value, 4) for name, value in values.items() if isinstance(value, float)}
    study = {
        "name": STUDY_NAME,
        "kind": peer.kind,
        "tools": len(workload.records),
        "permissions": peer.permissions,
        "adapter_lines": adapter_lines(peer.adapter),
        **about,
        **{name: value for name, value in values.items() if name not in timing},
    }
    return {
        "dataset": dataset.name,
        "digest": dataset.digest(SPLIT),
        "split": SPLIT,
        "retriever": peer.name,
        "variant": "default",
        "options": dict(peer.options),
        "seed": None,
        "metrics": metrics,
        "intervals": intervals,
        "timing": timing,
        "requests": len(workload.requests),
        "failed": 0,
        STUDY: study,
        **provenance(command),
    }


def measure(peer: PeerSpec, workload: Workload, python: Path) -> Measured:
    """Index, ask and reopen, each in a process of its own; raises PeerFailed where one fails or all take too long."""
    ends = time.monotonic() + LIMIT_S
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        workload.write(folder / "data")
        run = _Runner(peer, python, folder, ends)
        built = [run.phase("build", ROUNDS)]
        index_mb = _megabytes(run.kept)
        reopened = [run.phase("reopen", 0)]
        if built[0]["index_s"] < _SHORT_S:
            built += [run.phase("build", 0) for _ in range(2)]
            reopened += [run.phase("reopen", 0) for _ in range(2)]
    values: dict[str, Any] = _medians(built) | _medians(reopened) | {"index_mb": index_mb}
    searched, ranked = built[0]["searched"], built[0]["ranked"]
    if unknown := {name for names in (*searched, *ranked) for name in names} - workload.ids.keys():
        raise PeerFailed(f"returns {len(unknown)} names that it was not given, such as {min(unknown)}")
    values |= {
        "offered_recall": _offered_recall(workload, searched),
        "embedded": built[0]["embedded"],
        "reopen_embedded": reopened[0]["reopen_embedded"],
        "reopened_same": reopened[0]["reopened"] == searched[: len(reopened[0]["reopened"])],
        "live": reopened[0]["live"],
        "rounds": built[0]["rounds"],
        "repeats": len(built),
        "load": [round(one, 2) for one in built[0]["load"]],
    }
    return Measured(values, list(_results(workload, searched, ranked)))


class _Runner:
    """Runs the phases of one peer on one set until its time is over."""

    def __init__(self, peer: PeerSpec, python: Path, folder: Path, ends: float) -> None:
        self._peer, self._python, self._folder, self._ends = peer, python, folder, ends
        self.kept = folder / "kept"

    def phase(self, name: str, rounds: int) -> dict[str, Any]:
        """Run one process and return what it measured; "build" begins with an empty folder."""
        if name == "build":
            shutil.rmtree(self.kept, ignore_errors=True)
            self.kept.mkdir()
        task, out = self._folder / "task.json", self._folder / "out.json"
        out.unlink(missing_ok=True)
        fields = {"adapter": self._peer.adapter, "options": dict(self._peer.options), "phase": name, "k": K}
        places = {"data": str(self._folder / "data"), "folder": str(self.kept), "out": str(out)}
        task.write_text(json.dumps({**fields, **places, "rounds": rounds, "started": time.time()}), encoding="utf-8")
        command = [str(self._python), "-m", "peers.worker", str(task)]
        child = subprocess.Popen(
            command, cwd=self._folder, env=self._variables(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            _, said = child.communicate(timeout=self._ends - time.monotonic())
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise PeerFailed(f"takes over {LIMIT_S / 60:.0f} minutes (stopped in the phase {name})") from None
        if child.returncode or not out.is_file():
            last = [line for line in said.splitlines() if line.strip()][-1:] or ["it says nothing"]
            raise PeerFailed(f"fails in the phase {name} (code {child.returncode}): {last[0].strip()[:300]}")
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found

    def _variables(self) -> dict[str, str]:
        """Return the environment of a worker, which finds this package and nothing else of the repository."""
        alone = HOME / "alone"
        alone.mkdir(parents=True, exist_ok=True)
        if not (alone / "peers").is_symlink():
            (alone / "peers").symlink_to(ROOT / "peers", target_is_directory=True)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLSCOUT", "PYTHON"))}
        own |= {"PYTHONPATH": str(alone), "HF_HUB_OFFLINE": "1", "TOOLSCOUT_CACHE": str(self._folder / "cache")}
        # Threads of OpenMP spin while they wait: with two of them, beside other work on the machine, a request cost
        # ten times the processor time.
        own |= {"OMP_NUM_THREADS": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        return own | ({"PEERS_MODEL": str(environments.model_folder())} if self._peer.weights else {})


def _medians(phases: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of each number over the processes that have it."""
    names = [name for name in phases[0] if name not in _OTHER]
    return {name: float(statistics.median(one[name] for one in phases if name in one)) for name in names}


def _results(
    workload: Workload, searched: Sequence[Sequence[str]], ranked: Sequence[Sequence[str]]
) -> Sequence[RequestResult]:
    """Return the result of each request: its ranking, and whether tools were handed out."""
    gold = workload.dataset.qrels[SPLIT]
    return [
        RequestResult(
            request_id=key,
            scene=workload.dataset.scene(key),
            kind=workload.dataset.kind(key),
            gold=gold.get(key, ()),
            ranking=tuple(workload.ids[name] for name in names),
            fit=float(bool(offered)),
            verdict="use" if offered else "nothing_fits",
            seconds=0.0,
        )
        for (key, _), offered, names in zip(workload.requests, searched, ranked, strict=True)
    ]


def _offered_recall(workload: Workload, searched: Sequence[Sequence[str]]) -> float:
    """Return the share of the needed tools that are handed out among the first five, as a mean over requests."""
    gold = workload.dataset.qrels[SPLIT]
    shares = []
    for (key, _), names in zip(workload.requests, searched, strict=True):
        if key in gold:
            found = {workload.ids[name] for name in names[:K]}
            shares.append(len(found.intersection(gold[key])) / len(gold[key]))
    return float(np.mean(shares))


def adapter_lines(name: str) -> int:
    """Count the lines of an adapter that hold code: no comments, docstrings or empty lines."""
    path = Path(__file__).parent / "adapters" / f"{name}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = ast.unparse(_without_docstrings(tree))
    return len([line for line in plain.splitlines() if line.strip()])


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
