"""Dataset: tools, requests, and the tools that each request needs; read from and written to a BEIR folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

from toolscout.core.tool import Tool, clean_text
from toolscout.data import beir_files as files
from toolscout.data.beir_files import TOOLLESS, Qrels, RewordedRequest
from toolscout.errors import BadDataset, BadTool

Kind = Literal["use", "no_tool", "nothing_fits"]
KINDS: tuple[str, ...] = get_args(Kind)
WRITTEN = "synthetic"
"""The key in a request's metadata that marks it as written by a language model."""


@dataclass(frozen=True, slots=True)
class Split:
    """The requests of one qrels file in its order, and the tool ids each of them needs."""

    name: str
    requests: list[tuple[str, str]]
    gold: list[tuple[str, ...]]

    def __len__(self) -> int:
        """How many requests there are."""
        return len(self.requests)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Tools, requests and gold tools. `qrels` maps each split to the gold tool ids of its requests.

    A request may have no gold. `metadata` of a request may hold anything; used here are "expects" (the right answer,
    see Kind), "split", "scene" and "synthetic". `scenes`: published sets of tools used together, by scene id.
    """

    name: str
    tools: list[Tool]
    requests: dict[str, str]
    qrels: dict[str, Qrels]
    metadata: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    scenes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Cache of _tool_records: the tools, and their bytes for digests.
    _records: tuple[list[Tool], bytes] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise BadDataset for unknown ids, empty splits, and an "expects" that contradicts the gold."""
        ids = {tool.id for tool in self.tools}
        if len(ids) != len(self.tools):
            raise BadDataset(f"{self.name}: two tools share an id; give each its own namespace or name")
        for split, qrels in self.qrels.items():
            where = f"{self.name}, split {split}"
            if not qrels:
                raise BadDataset(f"{where}: no request has a gold tool; add rows with score 1 or remove the split")
            files.refuse_unknown(where, "request", qrels.keys() - self.requests.keys())
            files.refuse_unknown(where, "tool", {tool_id for gold in qrels.values() for tool_id in gold} - ids)
            if not all(qrels.values()):
                raise BadDataset(f"{where}: a request without gold tools; leave such requests out of the qrels")
        self._check_kinds()

    def _check_kinds(self) -> None:
        with_gold = {request_id for qrels in self.qrels.values() for request_id in qrels}
        for request_id, about in self.metadata.items():
            kind, where = about.get(files.EXPECTS), f"{self.name}: request {request_id}"
            if kind is not None and kind not in KINDS:
                raise BadDataset(f"{where}: metadata.{files.EXPECTS} is {kind!r}; use one of {', '.join(KINDS)}")
            if kind in TOOLLESS and request_id in with_gold:
                raise BadDataset(f"{where} expects {kind} and has gold tools; remove one of them")
            if kind == "use" and request_id not in self.qrels.get(str(about.get("split")), {request_id}):
                raise BadDataset(
                    f"{where} expects use and has no gold tools; add them, or change metadata.{files.EXPECTS}"
                )

    @classmethod
    def load(cls, folder: str | Path, splits: Sequence[str] | None = None) -> Self:
        """Read a BEIR folder: corpus.jsonl, queries.jsonl and qrels/*.tsv (or .gz); all splits, or those named.

        With queries_rewritten.jsonl, "test.tool" is the split "test" with its requests in their rewrites of level
        "tool". Such splits are read only where they are named. Raises BadDataset.
        """
        folder = Path(folder).resolve()
        corpus, queries, found = files.required(folder)
        chosen = list(found) if splits is None else list(dict.fromkeys(splits))
        rewrites = _rewrites_of(folder, chosen, found)
        tools, tool_ids = _read_corpus(corpus, folder.name)
        requests, metadata = files.read_queries(queries)
        qrels: dict[str, Qrels] = {}
        for name in chosen:
            base, rewritten = rewrites.get(name, (name, ()))
            qrels[name] = files.read_qrels(found[base], requests, tool_ids, metadata)
            if rewritten:
                qrels[name] = _rewrite(base, qrels[name], rewritten, requests, metadata)
        return cls(
            name=folder.name,
            tools=tools,
            requests=requests,
            qrels=qrels,
            metadata=metadata,
            scenes=files.read_scenes(folder / "scenes.tsv", tool_ids),
        )

    @staticmethod
    def split_names(folder: str | Path) -> list[str]:
        """The splits that a folder has files for."""
        return list(files.required(Path(folder).resolve())[2])

    def save(self, folder: str | Path) -> None:
        """Write a BEIR folder that load reads back. The folder must be new or empty, so that no stale split stays."""
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadDataset(f"{folder} is not an empty folder; save a dataset into a new one")
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        corpus_ids = self.corpus_ids()
        files.write_rows(folder / "corpus.jsonl", (_corpus_row(tool, corpus_ids[tool.id]) for tool in self.tools))
        files.write_rows(folder / "queries.jsonl", (self._query_row(request_id) for request_id in self.requests))
        for split, qrels in self.qrels.items():
            rows = ((request_id, corpus_ids[tool], "1") for request_id, gold in qrels.items() for tool in gold)
            files.write_table(folder / "qrels" / f"{split}.tsv", files.QRELS_HEADER, rows)
        if self.scenes:
            pairs = ((scene, corpus_ids[tool]) for scene, tools in self.scenes.items() for tool in tools)
            files.write_table(folder / "scenes.tsv", files.SCENES_HEADER, pairs)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits that were read."""
        return tuple(self.qrels)

    def split(self, name: str) -> Split:
        """The requests of a split that have gold, with their gold."""
        qrels = self._qrels(name)
        return Split(name, [(request_id, self.requests[request_id]) for request_id in qrels], list(qrels.values()))

    def gold_tools(self, split: str, *, written: bool) -> frozenset[str]:
        """Return the gold tools of a split: of requests that a language model wrote (`written`), or of all others."""
        rows = self._qrels(split).items()
        return frozenset(i for key, gold in rows if bool(self._about(key).get(WRITTEN)) is written for i in gold)

    def goldless(self, split: str) -> list[tuple[str, str]]:
        """Return the requests (id, text) that their metadata puts into a split and that have no gold tools."""
        qrels = self._qrels(split)
        return [
            (request_id, text)
            for request_id, text in self.requests.items()
            if request_id not in qrels and self._about(request_id).get("split") == split
        ]

    def kind(self, request_id: str) -> Kind:
        """Return the right answer to a request: "use" (the default), "no_tool" or "nothing_fits"."""
        if request_id not in self.requests:
            raise BadDataset(f"{self.name} has no request {request_id!r}")
        return cast(Kind, self._about(request_id).get(files.EXPECTS, "use"))

    def scene(self, request_id: str) -> str:
        """Return the scene of a request: the published one, else its set of gold tools, else its own id."""
        published = self._about(request_id).get("scene")
        if published is not None:
            return str(published)
        for qrels in self.qrels.values():
            if request_id in qrels:
                return " ".join(sorted(qrels[request_id]))
        return request_id

    def new_tools(self, train: str, test: str) -> frozenset[str]:
        """Return the gold tools of `test` that are gold nowhere in `train`."""
        known = {tool for gold in self._qrels(train).values() for tool in gold}
        return frozenset(tool for gold in self._qrels(test).values() for tool in gold) - known

    def request_digests(self, split: str) -> frozenset[str]:
        """Return digests of all requests of a split, those without gold included, to find leaks between splits."""
        texts = [text for _, text in self.split(split).requests + self.goldless(split)]
        return frozenset(map(request_digest, texts))

    def digest(self, split: str | None = None) -> str:
        """Return a digest of the tools, requests and gold of one split or of all; order does not matter."""
        names = [split] if split is not None else sorted(self.qrels)
        rows: dict[str, Any] = {}
        for name in names:
            gold = [[key, self.requests[key], sorted(tools)] for key, tools in self._qrels(name).items()]
            bare = [[key, text, self.kind(key)] for key, text in self.goldless(name)]
            rows[name] = sorted(gold) + sorted(bare)
        digest = hashlib.blake2b(json.dumps(rows).encode(), digest_size=16)
        digest.update(self._tool_records())
        return digest.hexdigest()

    def _tool_records(self) -> bytes:
        """Return all tools as bytes for a digest; cached, since a large catalogue takes seconds."""
        cached = self._records
        if cached is None or cached[0] != self.tools:  # the list may have been changed since
            ordered = sorted(self.tools, key=lambda tool: tool.id)
            rows = (json.dumps(without_corpus_id(t).to_record(), sort_keys=True, default=str) for t in ordered)
            cached = (list(self.tools), "".join(rows).encode())
            object.__setattr__(self, "_records", cached)
        return cached[1]

    def _qrels(self, split: str) -> Qrels:
        if split not in self.qrels:
            raise BadDataset(f"{self.name} has no split {split!r}; it has: {', '.join(self.qrels) or 'none'}")
        return self.qrels[split]

    def _about(self, request_id: str) -> Mapping[str, Any]:
        return self.metadata.get(request_id, {})

    def _query_row(self, request_id: str) -> dict[str, Any]:
        row: dict[str, Any] = {"_id": request_id, "text": self.requests[request_id]}
        about = self._about(request_id)
        return row | {"metadata": dict(about)} if about else row

    def corpus_ids(self) -> dict[str, str]:
        """Return the corpus id of each tool id: the one it was read with where that is unique, else the tool id."""
        taken: dict[str, str] = {}
        for tool in self.tools:
            wanted = tool.meta.get("corpus_id")
            corpus_id = wanted if isinstance(wanted, str) and wanted not in taken else tool.id
            if corpus_id in taken:
                raise BadDataset(f"{self.name}: {tool.id} and {taken[corpus_id]} claim the corpus id {corpus_id}")
            taken[corpus_id] = tool.id
        return {tool_id: corpus_id for corpus_id, tool_id in taken.items()}


def pooled(sets: Sequence[tuple[Dataset, str, str]]) -> Dataset:
    """Join datasets, each given with its train split and its dev split or "", into one with "train" and "dev".

    Tools of equal ids are one tool; request ids get the number of their dataset.
    """
    tools = {tool.id: tool for data, _, _ in sets for tool in data.tools}
    requests: dict[str, str] = {}
    qrels: dict[str, Qrels] = {"train": {}, "dev": {}}
    for number, (data, train, dev) in enumerate(sets):
        for role, split in (("train", train), ("dev", dev)):
            for request_id, gold in data._qrels(split).items() if split else ():
                key = f"{number}:{role}:{request_id}"
                requests[key], qrels[role][key] = data.requests[request_id], gold
    kept = {role: found for role, found in qrels.items() if found}
    return Dataset(sets[0][0].name, list(tools.values()), requests, kept)


def tool_from_row(row: Mapping[str, Any], namespace: str) -> Tool:
    """Make a Tool of a BEIR corpus row: of its metadata.tool, else of its title and text in the given namespace."""
    corpus_id = row.get("_id")
    metadata = row.get("metadata")
    record = metadata.get("tool") if isinstance(metadata, Mapping) else None
    if record is None:
        name = clean_text(str(row.get("title") or corpus_id or ""))
        return Tool(namespace, name, description=row.get("text") or "", meta={"corpus_id": corpus_id})
    if not isinstance(record, Mapping):
        raise BadTool(f"corpus row {corpus_id}: metadata.tool must be a JSON object, got {type(record).__name__}")
    meta = record.get("_meta")
    meta = {**meta, "corpus_id": corpus_id} if isinstance(meta, Mapping) else {"corpus_id": corpus_id}
    tags = _texts(record.get("tags"))
    tags += [category for category in _texts(meta.get("category")) if category not in tags]
    return Tool.from_record({**record, "tags": tags, "_meta": meta}, namespace)


def request_digest(text: str) -> str:
    """Return a digest of a request's text that ignores case and white space."""
    return hashlib.blake2b(" ".join(text.casefold().split()).encode(errors="replace"), digest_size=8).hexdigest()


def _texts(value: Any) -> list[str]:
    items = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str) and item]


def without_corpus_id(tool: Tool) -> Tool:
    """Return the tool without the corpus id that a BEIR folder gave it."""
    return replace(tool, meta={key: value for key, value in tool.meta.items() if key != "corpus_id"})


def _read_corpus(path: Path, namespace: str) -> tuple[list[Tool], dict[str, str]]:
    """Return the tools, and the tool id of each corpus id. Equal tools are merged; different ones get different ids."""
    tools: dict[str, Tool] = {}
    tool_ids: dict[str, str] = {}
    for number, corpus_id, row in files.rows(path):
        try:
            tool = tool_from_row(row, namespace)
        except BadTool as error:
            raise BadDataset(f"{path} line {number}: {error}") from error
        tool_id = tool.id
        if tool_id in tools:
            tool = _kept_apart(tool, tools)
            tool_id = tool.id
        tools.setdefault(tool_id, tool)
        tool_ids[corpus_id] = tool_id
    if not tools:
        raise BadDataset(f"{path} holds no tools")
    return list(tools.values()), tool_ids


def _kept_apart(tool: Tool, tools: Mapping[str, Tool]) -> Tool:
    """Return the tool, in the first of NAMESPACE, NAMESPACE-2, … that has no different tool of its name."""
    candidate, number = tool, 1
    while (held := tools.get(candidate.id)) is not None and without_corpus_id(held) != without_corpus_id(candidate):
        number += 1
        candidate = replace(tool, namespace=f"{tool.namespace}-{number}")
    return candidate


def _rewrites_of(
    folder: Path, chosen: Sequence[str], found: Mapping[str, Path]
) -> dict[str, tuple[str, list[RewordedRequest]]]:
    """Return, for each chosen split without a file, the split that it rewrites and the rewrites of its level."""
    unknown = [name for name in chosen if name not in found]
    if not unknown:
        return {}
    levels: dict[str, list[RewordedRequest]] = {}
    for rewrite in files.read_rewrites(folder):
        levels.setdefault(rewrite.level, []).append(rewrite)
    named = {name: (base, level) for name in unknown for base, _, level in [name.rpartition(".")]}
    missing = [name for name, (base, level) in named.items() if base not in found or level not in levels]
    if missing:
        also = f"; and the rewrites of each, as: {min(found)}.{', .'.join(sorted(levels))}" if levels else ""
        raise BadDataset(f"{folder} has no split {', '.join(missing)}; it has: {', '.join(found)}{also}")
    return {name: (base, levels[level]) for name, (base, level) in named.items()}


def _rewrite(
    base: str,
    qrels: Qrels,
    rewrites: Sequence[RewordedRequest],
    requests: dict[str, str],
    metadata: dict[str, Mapping[str, Any]],
) -> Qrels:
    """Add the rewrites of a split to `requests` and `metadata`; return their gold, which is that of the originals."""
    files.refuse_unknown(files.REWRITES, "original", {rewrite.original_id for rewrite in rewrites} - requests.keys())
    for rewrite in rewrites:
        about = metadata.get(rewrite.original_id, {})
        if rewrite.original_id not in qrels and about.get("split") != base:
            continue
        if requests.setdefault(rewrite.id, rewrite.text) != rewrite.text:
            raise BadDataset(f"the rewrite {rewrite.id} has the id of another request; give it one of its own")
        shared = {key: about[key] for key in (files.EXPECTS, "scene") if key in about}
        split = {"split": f"{about['split']}.{rewrite.level}"} if "split" in about else {}
        metadata[rewrite.id] = {**rewrite.about, **shared, **split}
    return {rewrite.id: qrels[rewrite.original_id] for rewrite in rewrites if rewrite.original_id in qrels}


def _corpus_row(tool: Tool, corpus_id: str) -> dict[str, Any]:
    return {
        "_id": corpus_id,
        "title": tool.title or tool.name,
        "text": tool.document(),
        "metadata": {"tool": without_corpus_id(tool).to_record()},
    }
