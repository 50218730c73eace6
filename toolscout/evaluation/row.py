"""One result is one JSON object in one line: all that is needed to read it, and to run it again.

The scores of the single requests lie beside the file of rows: those of `results/baselines.jsonl` in the folder
`results/baselines.scores/`, a file `DATASET.SPLIT.RETRIEVER[.VARIANT].jsonl.gz` for each row, the newest only. Each
line is a request: `id`, `scene` (a short digest; requests of one scene are not independent), `kind`, `gold` (how many
tools it needs), `ranks` (where they stand among the first ten; null when it failed), `fit`, `verdict`; `need` where it
was forecast; `depth` where more than ten were ranked; `new` and `new_ranks` where some tools were new (how many of the
gold, and where they stand); `returned` and `returned_gold` where it was also asked with k="auto" (how many tools came,
and how many of them are gold). Every measure up to that rank follows, so two rows can be compared request by request.
With `--rankings` also `golds` and `ranking` (the ids of the first ten), `set` (those that k="auto" returned), and
`error` where it failed.
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
"""A row as it is read from a file, or as a benchmark writes it; `Row` is what `evaluate` makes."""
COMMIT = "TOOLSCOUT_COMMIT"
STUDY = "study"
"""The further key of a row of an experiment: its name, and all that its section of a page is made of."""
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What `evaluate` writes. Metrics are fractions, `returned` a number of tools; times that do not apply are null.

    `intervals` are 95 % confidence intervals of the metrics that are means. `dropped`: how many requests of the split
    were left out because the model had seen them. `new_tools`: how many gold tools are new (null where none are told
    apart). Rows of earlier versions lack these three, and `fit_device` and `fit_params` in `timing`.
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
    requests: int
    failed: int
    dropped: int
    new_tools: int | None
    hardware: Mapping[str, Any]
    commit: str
    command: str
    date: str

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def provenance(command: str) -> dict[str, Any]:
    """Where, when, with what code and by which command something was measured."""
    return {
        "hardware": hardware(),
        "commit": commit(),
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware() -> dict[str, Any]:
    """The machine, as far as speed depends on it."""
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
    """The commit of the code that runs, with a plus where files differ from it; outside a clone $TOOLSCOUT_COMMIT, else
    the version."""
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if _git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get(COMMIT, "").strip() or f"v{metadata.version('toolscout')}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_PACKAGE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written before hours are spent on what should go into it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise ToolscoutError(f"{path} cannot be written ({error.strerror}); name another file") from None


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line to a file of rows."""
    check_writable(path)
    with path.open("a", encoding="utf-8", newline="\n") as stream:
        stream.write(json.dumps(record) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, in the order they were written."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadDataset(f"{path} cannot be read as a file of rows ({error}); name a .jsonl file") from None
    return _objects(path, text)


def known_rows(path: Path) -> list[dict[str, Any]]:
    """As read_rows; none where there is no such file yet."""
    return read_rows(path) if path.is_file() else []


def append_with_scores(path: Path, record: Mapping[str, Any], requests: Iterable[Mapping[str, Any]]) -> None:
    """Add one row to a file of rows, and write the scores of its single requests beside it."""
    write_scores(scores_path(path, record), requests)
    append(path, record)


def scores_path(path: Path, row: Row | Mapping[str, Any]) -> Path:
    """Where the scores of a row's single requests lie."""
    about = row.to_dict() if isinstance(row, Row) else row
    parts = [about["dataset"], about["split"], about["retriever"]]
    parts += [] if about["variant"] == "default" else [about["variant"]]
    return path.with_name(f"{path.stem}.scores") / f"{'.'.join(parts)}.jsonl.gz"


def write_scores(path: Path, requests: Iterable[Mapping[str, Any]]) -> None:
    """Write one line for each request; the same scores are the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(request, separators=(",", ":")) + "\n" for request in requests)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def read_scores(path: Path) -> list[dict[str, Any]]:
    """The requests that write_scores wrote, in their order."""
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
