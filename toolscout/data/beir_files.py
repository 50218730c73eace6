"""Reads and writes the files of a BEIR folder (JSON Lines and TSV); errors name the file and the line."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolscout.errors import BadDataset

Qrels = dict[str, tuple[str, ...]]
QRELS_HEADER = ("query-id", "corpus-id", "score")
SCENES_HEADER = ("scene-id", "tool-id")
# The key in a request's metadata that says what a right answer is: "use", "no_tool" or "nothing_fits".
EXPECTS = "expects"
TOOLLESS = ("no_tool", "nothing_fits")
REWRITES = "queries_rewritten.jsonl"
PROMPTS = "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class RewordedRequest:
    """A rewritten form of the request `original_id`; `level` names the kind of rewrite, `about` is its metadata."""

    id: str
    text: str
    level: str
    original_id: str
    about: Mapping[str, Any]


def _some(ids: Collection[str]) -> str:
    shown = sorted(ids)[:5]
    return ", ".join(shown) + (f" and {len(ids) - len(shown)} more" if len(ids) > len(shown) else "")


def refuse_unknown(where: str, what: str, ids: Collection[str]) -> None:
    """Raise BadDataset that names the ids, where there are any."""
    if ids:
        raise BadDataset(f"{where}: {len(ids)} unknown {what} ids: {_some(ids)}; add them or remove their rows")


def required(folder: Path) -> tuple[Path, Path, dict[str, Path]]:
    """Return the corpus file, the queries file and the file of each split; BadDataset where one is missing."""
    if not folder.is_dir():
        raise BadDataset(f"{folder} is not a folder; name a BEIR folder (corpus.jsonl, queries.jsonl, qrels/*.tsv)")
    if (folder / PROMPTS).is_file() and find(folder, "corpus.jsonl") is None:
        raise BadDataset(
            f"{folder} holds prompts without tools; read it with toolscout.data.no_tool_prompts.read_prompts"
        )
    corpus, queries, splits = find(folder, "corpus.jsonl"), find(folder, "queries.jsonl"), _qrels_files(folder)
    if corpus is None or queries is None or not splits:
        parts = {"corpus.jsonl": corpus, "queries.jsonl": queries, "qrels/*.tsv": splits}
        missing = " and ".join(f"{name} (or {name}.gz)" for name, part in parts.items() if not part)
        raise BadDataset(f"{folder} is only half a dataset: {missing} is missing; add it or name another folder")
    return corpus, queries, splits


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file of the folder, plain or as .gz; None where there is neither."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _qrels_files(folder: Path) -> dict[str, Path]:
    """Return the qrels files by the name of their split."""
    files = sorted((folder / "qrels").glob("*.tsv")) + sorted((folder / "qrels").glob("*.tsv.gz"))
    found: dict[str, Path] = {}
    for path in files:
        if not path.name.startswith("."):
            found.setdefault(path.name.removesuffix(".gz").removesuffix(".tsv"), path)
    return found


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line that is not blank; BadDataset where the file cannot be read."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if text.strip():
                    yield number, text
    except UnicodeDecodeError as error:
        raise BadDataset(f"{path} line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise BadDataset(f"{path} cannot be read after line {number}: {error}") from error


def rows(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield line number, _id and JSON object of each line; BadDataset where an _id is missing or comes twice."""
    seen: dict[str, int] = {}
    for number, line in lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadDataset(f"{path} line {number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise BadDataset(f"{path} line {number}: a JSON object is needed, got {type(row).__name__}")
        row_id = row.get("_id")
        row_id = str(row_id) if isinstance(row_id, int) else row_id
        if not isinstance(row_id, str) or not row_id:
            raise BadDataset(f"{path} line {number}: every row needs an _id: text that is not empty")
        if seen.setdefault(row_id, number) != number:
            raise BadDataset(f"{path} line {number}: the _id {row_id} is already that of line {seen[row_id]}")
        row["_id"] = row_id
        yield number, row_id, row


def read_queries(path: Path) -> tuple[dict[str, str], dict[str, Mapping[str, Any]]]:
    """Return the texts and the metadata of requests by id; a request without metadata is left out of the latter."""
    requests: dict[str, str] = {}
    metadata: dict[str, Mapping[str, Any]] = {}
    for number, request_id, row in rows(path):
        text, about = row.get("text"), row.get("metadata")
        if not isinstance(text, str) or not text.strip():
            raise BadDataset(f"{path} line {number}: request {request_id} needs a text that is not empty")
        if about is not None and not isinstance(about, dict):
            raise BadDataset(f"{path} line {number}: metadata must be a JSON object, got {type(about).__name__}")
        requests[request_id] = text
        if about:
            metadata[request_id] = about
    if not requests:
        raise BadDataset(f"{path} holds no requests")
    return requests, metadata


def read_rewrites(folder: Path) -> list[RewordedRequest]:
    """Return the rewrites in queries_rewritten.jsonl; an empty list without such a file."""
    path = find(folder, REWRITES)
    if path is None:
        return []
    texts, metadata = read_queries(path)
    found = []
    for request_id, text in texts.items():
        about = metadata.get(request_id, {})
        level, original_id = about.get("level"), about.get("original_id")
        if not isinstance(level, str) or not isinstance(original_id, str):
            raise BadDataset(f"{path}: the rewrite {request_id} needs metadata with level and original_id, both text")
        found.append(RewordedRequest(request_id, text, level, original_id, about))
    return found


def read_qrels(
    path: Path, requests: Collection[str], tool_ids: Mapping[str, str], metadata: Mapping[str, Mapping[str, Any]]
) -> Qrels:
    """Return the gold tool ids of each request of a split. `tool_ids` maps corpus ids to tool ids.

    Raises BadDataset for unknown ids, an empty split, and a request without gold whose metadata does not expect that.
    """
    scores = _read_scores(path)
    refuse_unknown(str(path), "request", {request_id for request_id, _ in scores} - set(requests))
    refuse_unknown(str(path), "tool", {corpus_id for _, corpus_id in scores} - tool_ids.keys())
    gold: dict[str, dict[str, None]] = {}
    for (request_id, corpus_id), score in scores.items():
        if score > 0:
            gold.setdefault(request_id, {})[tool_ids[corpus_id]] = None
    if not gold:
        raise BadDataset(f"{path} is an empty split: no row has a score above 0; add some or remove the file")
    bare = {request_id for request_id, _ in scores} - gold.keys()
    bare -= {request_id for request_id in bare if metadata.get(request_id, {}).get(EXPECTS) in TOOLLESS}
    if bare:
        raise BadDataset(
            f"{path}: {len(bare)} requests with no gold tool: {_some(bare)}; give each a row with a score above 0, "
            f"remove its rows, or say in queries.jsonl that its metadata.{EXPECTS} is {' or '.join(TOOLLESS)}"
        )
    return {request_id: tuple(tools) for request_id, tools in gold.items()}


def _read_scores(path: Path) -> dict[tuple[str, str], float]:
    scores: dict[tuple[str, str], float] = {}
    for number, line in lines(path):
        cells = tuple(line.split("\t"))
        if number == 1 and cells == QRELS_HEADER:
            continue
        try:
            request_id, corpus_id, text = cells
            score = float(text)
        except ValueError as error:
            raise BadDataset(f"{path} line {number}: needs {' TAB '.join(QRELS_HEADER)}, got {line!r:.80}") from error
        if math.isnan(score):
            raise BadDataset(f"{path} line {number}: the score must be a number, got {text!r:.80}")
        if scores.setdefault((request_id, corpus_id), score) != score:
            raise BadDataset(f"{path} line {number}: {request_id} and {corpus_id} were given another score before")
    return scores


def read_scenes(path: Path, tool_ids: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the tool ids of each published scene (a set of tools used together); {} without such a file."""
    if not path.is_file():
        return {}
    scenes: dict[str, dict[str, None]] = {}
    for number, line in lines(path):
        cells = tuple(line.split("\t"))
        if number == 1 and cells == SCENES_HEADER:
            continue
        if len(cells) != 2 or cells[1] not in tool_ids:
            raise BadDataset(f"{path} line {number}: needs a scene id, TAB, a known corpus id, got {line!r:.80}")
        scenes.setdefault(cells[0], {})[tool_ids[cells[1]]] = None
    return {scene: tuple(tools) for scene, tools in scenes.items()}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a .jsonl file."""
    # Lone surrogates cannot be written as UTF-8; as \u escapes they can.
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(row, default=str) + "\n" for row in rows)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a TSV file; BadDataset where a cell has a tab or a line break."""
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for row in (header, *rows):
            if any("\t" in cell or "\n" in cell or "\r" in cell for cell in row):
                raise BadDataset(f"{path}: no id may hold a tab or a line break, got {row!r:.80}")
            stream.write("\t".join(row) + "\n")
