"""Reads a folder of results for the page: tables from each .jsonl file, and the .svg plots."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAX_FILE_BYTES = 20_000_000
MAX_ROWS = 5_000
_IDENTIFYING = ("dataset", "bench", "split", "tools", "requests", "retriever", "model", "variant", "seed")
_METRICS = {
    "recall@1": "R@1",
    "recall@5": "R@5",
    "recall@10": "R@10",
    "ndcg@5": "N@5",
    "comp@5": "C@5",
    "new_recall@5": "new R@5",
    "right@5": "right@5",
    "need_auroc": "need AUROC",
    "need_f1": "need F1",
    "fit_auroc": "fit AUROC",
}
_MAX_OTHERS = 8  # metrics shown of a row that has none of _METRICS


def listing(folder: Path) -> dict[str, Any]:
    """Return the tables (columns and cells) and the names of the plots; both empty where there is no folder."""
    if not folder.is_dir():
        return {"folder": "", "files": [], "plots": []}
    files = [table for path in sorted(folder.glob("*.jsonl")) for table in _tables(path)]
    plots = sorted(path.name for path in folder.glob("*.svg"))
    return {"folder": folder.name, "files": files, "plots": plots}


def plot(folder: Path, name: str) -> bytes | None:
    """Return the bytes of a plot; None for any other name, such as a path out of the folder."""
    found = {path.name: path for path in folder.glob("*.svg")} if folder.is_dir() else {}
    return found[name].read_bytes() if name in found and found[name].stat().st_size <= MAX_FILE_BYTES else None


def _tables(path: Path) -> list[dict[str, Any]]:
    """Return the tables of a file: quality and speed rows separately, as they share no columns."""
    records = _records(path)
    quality, speed = ([r for r in records if ("bench" in r) == bench] for bench in (False, True))
    names = (path.stem, f"{path.stem}: bench" if quality else path.stem)
    return [_table(name, map(_row, part)) for name, part in zip(names, (quality, speed), strict=True) if part]


def _table(name: str, cells: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return a table without empty columns; ms, date and commit stand last."""
    rows = list(cells)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    last: list[str] = [column for column in ("ms", "date", "commit") if column in columns]
    columns = [column for column in columns if column not in last] + last
    filled = [c for c in columns if any(row.get(c) not in (None, "") for row in rows)]
    return {"name": name, "columns": filled, "rows": [[row.get(column) for column in filled] for row in rows]}


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, newest last; lines that cannot be read are skipped."""
    found = []
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines[-MAX_ROWS:]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a record by column."""
    row = {key: _cell(record[key]) for key in _IDENTIFYING if key in record}
    metrics, values = record.get("metrics"), record.get("values")
    if isinstance(metrics, dict):
        wanted = {key: label for key, label in _METRICS.items() if key in metrics}
        row |= {label: _percent(metrics[key]) for key, label in wanted.items()}
        # Other metrics need not be from 0 to 1 (perplexity is not), so they are not shown in percent.
        if not wanted:
            row |= {key: _cell(metrics[key]) for key in list(metrics)[:_MAX_OTHERS]}
    if isinstance(values, dict):
        row |= {str(key): _cell(value) for key, value in values.items()}
    timing = record.get("timing")
    if isinstance(timing, dict):
        row["ms"] = _cell(timing.get("query_p50_ms"))
    row["date"] = str(record.get("date", ""))[:10]
    row["commit"] = str(record.get("commit", ""))[:13]
    return row


def _percent(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return round(100 * value, 1) if number and math.isfinite(value) else _cell(value)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else json.dumps(value)
