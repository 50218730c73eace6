"""Joins ToolBench's published training requests to a BEIR folder, which has ids of its own for ToolBench's tools.

Three published forms are read: query files (G1_query.json), folders that ToolBench's retriever is trained on
(train.query.txt, qrels.train.tsv, corpus.tsv), and ToolGen's records of retrieval
(toolgen_atomic_retrieval_G123.json), which name a tool as <<tool&&api>>.
"""

from __future__ import annotations

import csv
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.trajectories import parsed
from toolscout.errors import BadDataset

TRAIN = "train"
_QUERIES, _LABELS, _DOCUMENTS = "train.query.txt", "qrels.train.tsv", "corpus.tsv"
_NOT_THERE, _SEVERAL = "no tool of this name", "several tools of this name"
_FORMS = (
    f"name a query file of ToolBench (G1_query.json), a folder with {_QUERIES}, {_LABELS} and {_DOCUMENTS}, or "
    "ToolGen's records of retrieval"
)


class NamedTool(NamedTuple):
    """A tool as a published file names it; the category is "" where the file has none."""

    category: str
    tool: str
    api: str

    def __str__(self) -> str:
        """Return the names that there are, as category / tool / api."""
        return " / ".join(filter(None, self))


class PublishedRequest(NamedTuple):
    """A request and its gold tools; no text or no tools where a record lacks them."""

    text: str
    tools: tuple[NamedTool, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """A dataset whose train split has published requests too, and what became of all requests that were read.

    read: the number of different requests. added: how many of them are new in train.
    known: how many the dataset had, by the split that has them.
    incomplete: how many were left out since one of their tools was not found. bare: records without text or tools.
    unmatched: the tools that were not found, with the reason, and how many requests need each.
    """

    dataset: Dataset
    read: int
    added: int
    bare: int
    incomplete: int
    known: Counter[str] = field(default_factory=Counter)
    unmatched: Counter[tuple[str, str]] = field(default_factory=Counter)


def read_published(path: Path) -> Iterator[PublishedRequest]:
    """Yield the requests of a file or folder in one of the published forms. Raises BadDataset."""
    if path.is_dir():
        yield from _of_folder(path)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise BadDataset(f"{path} cannot be read ({error}); {_FORMS}") from None
    if text.lstrip().startswith("["):
        records = parsed(text, f"{path}: not a JSON array")
    else:
        lines = enumerate(text.splitlines(), 1)
        records = [parsed(line, f"{path} line {number}: not JSON") for number, line in lines if line.strip()]
    if not any(isinstance(one, dict) and ("conversations" in one or "api_list" in one) for one in records):
        raise BadDataset(f"{path} has no record with api_list or conversations; {_FORMS}")
    yield from map(_of_record, records)


def _of_record(record: Any) -> PublishedRequest:
    """Return the request of a record; one without text and tools for a record of neither form."""
    if not isinstance(record, dict):
        return PublishedRequest("", ())
    return _of_conversation(record) if "conversations" in record else _of_query(record)


def _of_query(record: Mapping[str, Any]) -> PublishedRequest:
    """Return the request of a record of ToolBench's query files: its gold tools are those of `relevant APIs`."""
    listed = [one for one in _listed(record.get("api_list")) if isinstance(one, dict)]
    relevant = [tuple(map(str, one)) for one in _listed(record.get("relevant APIs")) if isinstance(one, list)]
    # Of several with one name the first.
    named = {(tool.tool, tool.api): tool for tool in map(_described, reversed(listed))}
    tools = [named.get((one[0], one[1]), NamedTool("", *one[:2])) for one in relevant if len(one) > 1]
    return PublishedRequest(_text(record.get("query")), tuple(dict.fromkeys(tools)))


def _of_conversation(record: Mapping[str, Any]) -> PublishedRequest:
    """Return the request of a ShareGPT record: the user's first turn, and the tool that the assistant names."""
    said: dict[str, str] = {}
    for turn in _listed(record["conversations"]):
        if isinstance(turn, dict):
            role = {"human": "user", "gpt": "assistant"}.get(str(turn.get("from")), str(turn.get("role")))
            said.setdefault(role, _text(turn.get("content", turn.get("value"))))
    tool, mark, api = said.get("assistant", "").removeprefix("<<").removesuffix(">>").partition("&&")
    return PublishedRequest(said.get("user", ""), (NamedTool("", tool, api),) if mark else ())


def _of_folder(folder: Path) -> Iterator[PublishedRequest]:
    """Yield the requests of a folder that ToolBench's retriever is trained on."""
    lacking = [name for name in (_QUERIES, _LABELS, _DOCUMENTS) if not (folder / name).is_file()]
    if lacking:
        raise BadDataset(f"{folder} has no {', '.join(lacking)}; {_FORMS}")
    documents = {}
    for number, row in enumerate(_cells(folder / _DOCUMENTS, 2), 1):
        if row[0] != "docid":
            described = parsed(row[1], f"{folder / _DOCUMENTS} row {number}: not JSON")
            documents[row[0]] = _described(described if isinstance(described, dict) else {})
    gold: dict[str, list[NamedTool]] = {}
    for request_id, _, document_id, label in _cells(folder / _LABELS, 4):
        if label != "0":
            found = documents.get(document_id, NamedTool("", f"docid {document_id}", ""))
            gold.setdefault(request_id, []).append(found)
    for request_id, text in dict(_cells(folder / _QUERIES, 2)).items():
        yield PublishedRequest(text, tuple(gold.get(request_id, ())))


def _cells(path: Path, count: int) -> Iterator[list[str]]:
    csv.field_size_limit(10**8)  # documents are long
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for number, row in enumerate(csv.reader(stream, delimiter="\t"), 1):
                if len(row) != count:
                    raise BadDataset(f"{path} row {number}: {count} cells are needed, got {len(row)}")
                yield row
    except (OSError, ValueError, csv.Error) as error:
        raise error if isinstance(error, BadDataset) else BadDataset(f"{path} cannot be read: {error}") from None


def _described(api: Mapping[str, Any]) -> NamedTool:
    return NamedTool(*(_text(api.get(key)) for key in ("category_name", "tool_name", "api_name")))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


class _ToolNames:
    """Finds tools by the names that ToolBench's files have for them: letters and digits count, case does not."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools: dict[tuple[str, str], dict[str, str]] = {}
        for tool in tools:
            category = _plain(str(tool.meta.get("category") or ""))
            for named in (tool.namespace, str(tool.meta.get("tool") or tool.namespace)):
                for api in (tool.name, tool.title or tool.name):
                    # The first of several in one category, as in the folder's own splits.
                    self._tools.setdefault((_plain(named), _plain(api)), {}).setdefault(category, tool.id)

    def find(self, named: NamedTool) -> tuple[str, str]:
        """Return the id of a tool, or "" and why there is none."""
        by_category = self._tools.get((_plain(named.tool), _plain(named.api)), {})
        if named.category and (found := by_category.get(_plain(named.category))):
            return found, ""
        if len(by_category) == 1:
            return next(iter(by_category.values())), ""
        return "", _SEVERAL if by_category else _NOT_THERE


def _plain(name: str) -> str:
    """Return the letters and digits of a name without accents; the name itself where it has none."""
    folded = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in folded if letter.isalnum()) or name.strip()


def join(base: Dataset, published: Iterable[PublishedRequest], source: str) -> Joined:
    """Return the dataset with published requests added to its train split; nothing that it has is changed.

    Requests of one text are one, with the tools of all. A request that the dataset has in any split is left out, and so
    is one of whose tools any is not found: its gold would be incomplete. `source` goes into the metadata of requests.
    """
    merged: dict[str, tuple[str, dict[NamedTool, None]]] = {}
    bare = 0
    for text, tools in published:
        if not text or not tools:
            bare += 1
            continue
        merged.setdefault(request_digest(text), (text, {}))[1].update(dict.fromkeys(tools))
    splits = [*(split for split in base.splits if split != TRAIN), TRAIN]  # a request of a test is named as one
    had = {digest: split for split in reversed(splits) for digest in base.request_digests(split)}
    requests, metadata = dict(base.requests), dict(base.metadata)
    train = dict(base.qrels.get(TRAIN, {}))
    names, known, unmatched = _ToolNames(base.tools), Counter[str](), Counter[tuple[str, str]]()
    incomplete, number = 0, 0
    for digest, (text, gold) in merged.items():
        if digest in had:
            known[had[digest]] += 1
            continue
        found = [(str(named), *names.find(named)) for named in gold]
        if lacking := [(named, why) for named, _, why in found if why]:
            incomplete += 1
            unmatched.update(lacking)
            continue
        while (key := f"published-{number}") in requests:
            number += 1
        requests[key], metadata[key] = text, {"source": source}
        train[key] = tuple(dict.fromkeys(tool_id for _, tool_id, _ in found))
    added = len(requests) - len(base.requests)
    if not added:
        raise BadDataset(_nothing(base, merged, known, unmatched))
    whole = replace(base, requests=requests, metadata=metadata, qrels=base.qrels | {TRAIN: train})
    return Joined(whole, len(merged), added, bare, incomplete, known, unmatched)


def _nothing(base: Dataset, read: Mapping[str, Any], known: Counter[str], unmatched: Counter[tuple[str, str]]) -> str:
    named = "; ".join(f"{name} ({why})" for (name, why), _ in unmatched.most_common(3))
    return f"none of {len(read)} requests is new in {base.name}, which has {known.total()} of them" + (
        f"; tools that were not found: {named}" if named else ""
    )


def unmatched_lines(unmatched: Counter[tuple[str, str]]) -> str:
    """Return a line of JSON for each tool that was not found, those that most requests need first."""
    rows = ({"tool": name, "why": why, "requests": count} for (name, why), count in unmatched.most_common())
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
