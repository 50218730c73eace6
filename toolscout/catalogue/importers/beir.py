"""BEIR folders: each row of corpus.jsonl is a tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolscout.catalogue.base import (
    Importer,
    ReadOptions,
    RepeatCheck,
    cleaned,
    existing,
    fingerprint,
    not_a,
    parse_json,
    read_lines,
)
from toolscout.core.tool import Tool, clean_text
from toolscout.data.dataset import tool_from_row
from toolscout.errors import BadSource, BadTool

_CORPUS = ("corpus.jsonl", "corpus.jsonl.gz")


class BeirImporter(Importer):
    """BEIR folders: each row of the corpus is a tool."""

    def accepts(self, source: object) -> bool:
        """Whether this is a folder with a corpus, or the corpus file itself."""
        return _corpus(source) is not None

    def read(self, source: object, options: ReadOptions) -> Iterator[Tool]:
        """The tools of the corpus. Like Dataset.load, different tools of one id are kept apart: namespace-2, -3 …"""
        path = _corpus(source)
        if path is None:
            raise not_a(source, "a BEIR folder (one with corpus.jsonl or corpus.jsonl.gz)")
        namespace = options.namespace or clean_text(path.parent.resolve().name) or "corpus"
        seen = RepeatCheck(again=lambda: _tools(path, namespace, ReadOptions(keep_going=True)), content=_content)
        for where, tool in _tools(path, namespace, options):
            candidate, copies = tool, 1
            while (verdict := seen.verdict(candidate.id, tool, where)) == "differs":
                copies += 1
                candidate = replace(tool, namespace=f"{tool.namespace}-{copies}")
            if verdict == "new":
                yield candidate


def _tools(path: Path, namespace: str, options: ReadOptions) -> Iterator[tuple[str, Tool]]:
    for number, line in read_lines(path, options):
        where = f"{path} line {number}"
        try:
            yield where, _tool(parse_json(line, where), namespace, where)
        except BadSource as error:
            options.problem(error)


def _content(tool: Tool) -> int:
    """Two rows may hold the same tool under two corpus ids."""
    return fingerprint(tool.to_record() | {"_meta": {**tool.meta, "corpus_id": None}})


def _corpus(source: object) -> Path | None:
    path = existing(source)
    if path is None:
        return None
    if path.is_file():
        return path if path.name in _CORPUS else None
    return next((path / name for name in _CORPUS if (path / name).is_file()), None)


def _tool(row: Any, namespace: str, where: str) -> Tool:
    if not isinstance(row, Mapping):
        raise BadSource(f"{where}: a JSON object is needed, got {type(row).__name__}")
    try:
        return tool_from_row(row, namespace)
    except BadTool:
        metadata = row.get("metadata")
        if isinstance(metadata, Mapping):
            row = {**row, "metadata": {**metadata, "tool": cleaned(metadata.get("tool"))}}
        try:
            return tool_from_row(row, namespace)
        except BadTool as error:
            raise BadSource(f"{where}: {error}") from None
