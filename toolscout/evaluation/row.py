"""Rows of results: JSON lines with the measures, and with all that is needed to repeat the measurement.

The scores of single requests are saved beside the file of rows: those of `results/baselines.jsonl` in the folder
`results/baselines.scores/`, in a file `DATASET.SPLIT.RETRIEVER[.VARIANT].jsonl.gz` for the newest row of that name.
Each line is a request: `id`, `scene` (a short digest; requests of one scene are not independent), `kind`, `gold` (the
number of gold tools), `ranks` (their ranks among the first ten; null where the request failed), `fit`, `verdict`;
`need` where it was predicted; `depth` where more than ten tools were ranked; `new` and `new_ranks` where new tools are
distinguished (the number of new gold tools, and their ranks); `returned` and `returned_gold` of a search with k="auto"
(the number of tools, and of gold tools among them). Every measure up to that depth can be computed from it, so that
two rows can be compared request by request. With `--rankings` also `golds` and `ranking` (the ids of the first ten),
`set` (the ids that k="auto" returned), and `error` where the request failed.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import subprocess
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from toolscout.errors import BadDataset, ToolscoutError

RowDict = dict[str, Any]
"""A row read from a file or written by a benchmark; `evaluate` makes a `Row`."""
COMMIT = "TOOLSCOUT_COMMIT"
STUDY = "study"
"""The additional key of an experiment's row: its name, and the data for its section of a page."""
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The row that `evaluate` writes. Metrics are fractions, but `returned` counts tools; unknown times are null.

    `intervals`: 95 % confidence intervals of the metrics that are means. `dropped`: the number of requests left out of
    the split because the model had seen them. `new_tools`: the number of new gold tools, null where new tools are not
    distinguished. `encoder` and `reranker`: the fingerprints of these models, null where there is none. `among`: the
    `names` of the splits and files whose tools alone were ranked, and how many `tools` these are; null where all tools
    of the dataset were. Variant and digest of such a row differ from those of a row without. Rows of earlier versions
    lack `intervals`, `dropped`, `new_tools`, `among` and `reranker`, and `fit_device` and `fit_params` in `timing`.
    """

    dataset: str
    digest: str
    split: str
    retriever: str
    variant: str
    options: Mapping[str, Any]
    seed: int | None
    metrics: Mapping[str, float]
    intervals: Mapping[str, list[float]]
    timing: Mapping[str, float | bool | str | None]
    params: int
    encoder: str | None
    reranker: str | None = None
    requests: int
    failed: int
    dropped: int
    new_tools: int | None
    among: Mapping[str, Any] | None = None
    hardware: Mapping[str, Any]
    commit: str
    command: str
    date: str

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


def provenance(command: str) -> dict[str, Any]:
    """Return the fields of a row that say where, when, with which code and by which command it was measured."""
    return {
        "hardware": hardware(),
        "commit": commit(),
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware() -> dict[str, Any]:
    """Return machine, processor, cores, memory and Python version."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {"machine": platform.machine(), "cpu": _cpu(), "cores": cores}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory_gb"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    return found | {"python": platform.python_version()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    arm = f"implementer {about.get('CPU implementer', '?')} part {about.get('CPU part', '?')}"
    return about.get("model name") or arm


def commit() -> str:
    """Return the commit of the running code, with "+" where files differ from it.

    Outside a git clone return $TOOLSCOUT_COMMIT, or the version where that is not set.
    """
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if _git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get(COMMIT, "").strip() or f"v{metadata.version('toolscout')}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_PACKAGE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def check_writable(path: Path) -> None:
    """Raise ToolscoutError where a file cannot be written; called before a long measurement."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise ToolscoutError(f"{path} cannot be written ({error.strerror}); name another file") from None


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a row to a file; raises ToolscoutError where it cannot be written.

    It is written at once, whole: other processes may append to the file too.
    """
    check_writable(path)
    with path.open("ab", buffering=0) as stream:
        stream.write(f"{json.dumps(record)}\n".encode())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file in their order; raises BadDataset where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadDataset(f"{path} cannot be read as a file of rows ({error}); name a .jsonl file") from None
    return _objects(path, text)


def known_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file as read_rows does; [] where there is no such file."""
    return read_rows(path) if path.is_file() else []


def append_with_scores(path: Path, record: Mapping[str, Any], requests: Iterable[Mapping[str, Any]]) -> None:
    """Append a row to a file, and write the scores of its single requests beside it."""
    write_scores(scores_path(path, record), requests)
    append(path, record)


def scores_path(path: Path, row: Row | Mapping[str, Any]) -> Path:
    """Return the path of the scores of a row's single requests."""
    about = row.to_dict() if isinstance(row, Row) else row
    parts = [about["dataset"], about["split"], about["retriever"]]
    parts += [] if about["variant"] == "default" else [about["variant"]]
    return path.with_name(f"{path.stem}.scores") / f"{'.'.join(parts)}.jsonl.gz"


def write_scores(path: Path, requests: Iterable[Mapping[str, Any]]) -> None:
    """Write one line for each request; the same scores give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(request, separators=(",", ":")) + "\n" for request in requests)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def read_scores(path: Path) -> list[dict[str, Any]]:
    """Return the lines that write_scores wrote; raises BadDataset where the file cannot be read or has none."""
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadDataset(
            f"{path} cannot be read as scores of single requests ({error}); write them with: toolscout evaluate --json"
        ) from None
    lines = _objects(path, text)
    for number, line in enumerate(lines, 1):
        if not {"id", "scene", "kind", "gold", "ranks"} <= line.keys():
            raise BadDataset(f"{path} line {number} is not the score of a request; name a file of OUT.scores/")
    if not lines:
        raise BadDataset(f"{path} holds no requests; evaluate again")
    return lines


def _objects(path: Path, text: str) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise BadDataset(f"{path} line {number} is not JSON ({error}); remove that line") from None
        if not isinstance(record, dict):
            raise BadDataset(f"{path} line {number} is not a JSON object; remove that line")
        found.append(record)
    return found
