"""Makes training sets for the default model out of permissively licensed sources: python recipes/default_model_data.py
OUT

Reads trajectories (Apache-2.0), mcp_tools (MIT) and openapi_ops (CC0) in $TOOLSCOUT_DATA, writes three BEIR folders:

- calls: what users said, with the tools that were called for it. Rows that repeat Seal-Tools are left out.
- mcp, openapi: what a tool does, in its own words, asked of the same tool with these words removed. So what is learned
  is to find a tool by its names and parameters, not to find a sentence in itself.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset, request_digest

DEV_SHARE = 0.05
OPENAPI_EVERY = 4
WORDS = range(4, 40)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a compressed file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def hashed(text: str) -> float:
    """A number from 0 to 1 that follows from the text."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=6).digest(), "big") / 2**48


def dataset(name: str, tools: dict[str, Tool], asked: dict[str, tuple[str, list[str]]]) -> Dataset:
    """Requests by digest, with the documents they need, cut into train and dev by hash. Tools go by their documents."""
    ids: dict[str, str] = {}
    kept: dict[str, Tool] = {}
    for digest, tool in tools.items():
        unique = tool if tool.id not in kept else replace(tool, namespace=f"{tool.namespace}-{digest[:8]}")
        kept[unique.id] = unique
        ids[digest] = unique.id
    requests = {key: text for key, (text, _) in asked.items()}
    gold = {key: tuple(dict.fromkeys(ids[digest] for digest in digests)) for key, (_, digests) in asked.items()}
    dev = {key for key in gold if hashed(key) < DEV_SHARE}
    qrels = {"train": {k: v for k, v in gold.items() if k not in dev}, "dev": {k: gold[k] for k in gold if k in dev}}
    return Dataset(name, list(kept.values()), requests, qrels)


def calls(home: Path) -> Dataset:
    """User messages and the tools that were called before the next one."""
    tools: dict[str, Tool] = {}
    asked: dict[str, tuple[str, list[str]]] = {}
    for row in rows(home / "trajectories" / "trajectories.jsonl.gz"):
        if "Seal-Tools" in row["source"]:
            continue
        local = {record["name"]: Tool.from_record(record, "calls") for record in row["tools"]}
        said = ""
        for message in row["messages"]:
            if message["role"] == "user":
                said = message["content"]
            for call in message.get("tool_calls") or ():
                tool = local.get(call["name"])
                if tool is not None and said.strip():
                    tools.setdefault(tool.digest(), tool)
                    asked.setdefault(request_digest(said), (said, []))[1].append(tool.digest())
    return dataset("calls", tools, asked)


def described(home: Path, file: str, name: str, every: int) -> Dataset:
    """The first sentence of each description, asked of the tool without its description."""
    tools: dict[str, Tool] = {}
    asked: dict[str, tuple[str, list[str]]] = {}
    for number, record in enumerate(rows(home / file)):
        tool = Tool.from_record(record, name)
        sentence = re.split(r"(?<=[.!?])\s|\n", tool.description.strip(), maxsplit=1)[0]
        if number % every or len(sentence.split()) not in WORDS:
            continue
        bare = replace(tool, description="")
        tools.setdefault(bare.digest(), bare)
        asked.setdefault(request_digest(sentence), (sentence, []))[1].append(bare.digest())
    several = {key for key, (_, digests) in asked.items() if len(set(digests)) > 3}  # boilerplate says nothing
    return dataset(name, tools, {key: value for key, value in asked.items() if key not in several})


if __name__ == "__main__":
    data, out = Path(os.environ["TOOLSCOUT_DATA"]), Path(sys.argv[1])
    calls(data).save(out / "calls")
    described(data, "mcp_tools/tools.jsonl.gz", "mcp", 1).save(out / "mcp")
    described(data, "openapi_ops/operations.jsonl.gz", "openapi", OPENAPI_EVERY).save(out / "openapi")
