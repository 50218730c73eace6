"""Imports BEIR folders: each row of corpus.jsonl is a tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolscout.catalogue.base import (
    Importer,
    ReadOptions,
    RepeatCheck,
    existing,
    fingerprint,
    not_a,
    parse_json,
    read_lines,
    rename_repeats,
    with_clean_names,
)
from toolscout.core.tool import Tool, clean_text
from toolscout.data.dataset import tool_from_row
from toolscout.errors import BadSource, BadTool

_CORPUS = ("corpus.jsonl", "corpus.jsonl.gz")


class BeirImporter(Importer):
    """Reads BEIR folders: each row of the corpus is a tool."""

    def accepts(self, source: object) -> bool:
        """Return whether this is a folder with a corpus file, or the corpus file itself."""
        return _corpus_file(source) is not None

    def read(self, source: object, options: ReadOptions) -> Iterator[Tool]:
        """Yield the tools of the corpus. A different tool of an id already read gets the namespace NAME-2, NAME-3 …

        Dataset.load names them the same way. Raises BadSource where there is no corpus, or for a broken row.
        """
        path = _corpus_file(source)
        if path is None:
            raise not_a(source, "a BEIR folder (one with corpus.jsonl or corpus.jsonl.gz)")
        namespace = options.namespace or clean_text(path.parent.resolve().name) or "corpus"
        seen = RepeatCheck(again=lambda: _tools(path, namespace, ReadOptions(keep_going=True)), content=_content_hash)
        yield from rename_repeats(
            _tools(path, namespace, options),
            seen,
            lambda tool, number: replace(tool, namespace=f"{tool.namespace}-{number}"),
        )


def _tools(path: Path, namespace: str, options: ReadOptions) -> Iterator[tuple[str, Tool]]:
    for number, line in read_lines(path, options):
        where = f"{path} line {number}"
        try:
            yield where, _tool(parse_json(line, where), namespace, where)
        except BadSource as error:
            options.problem(error)


def _content_hash(tool: Tool) -> int:
    """Return a hash of a tool without its corpus id: two rows may hold the same tool under two corpus ids."""
    return fingerprint(tool.to_record() | {"_meta": {**tool.meta, "corpus_id": None}})


def _corpus_file(source: object) -> Path | None:
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
    except BadTool:  # try again with unprintable characters removed from its names
        metadata = row.get("metadata")
        if isinstance(metadata, Mapping):
            row = {**row, "metadata": {**metadata, "tool": with_clean_names(metadata.get("tool"))}}
        try:
            return tool_from_row(row, namespace)
        except BadTool as error:
            raise BadSource(f"{where}: {error}") from None
