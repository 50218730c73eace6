"""Requests in other languages, and tools in other languages: results/languages.jsonl.

python -m studies.languages [--variant now] [--out FILE] [--cache FILE]

Two questions. Is a request in another language found among English tools, and never taken for one that needs no tool?
That asks tldr-languages of words and of what comes out of the box, and tldr of words: the encoder has seen all English
requests of tldr, and what it finds of those held out stands in results/default_encoder.jsonl. And do words find a tool
that is described in the request's own language? That asks words of tldr-parallel: of the goals that a program has in a
language, the first half describe it and the others ask for it.

Needs $TOOLSCOUT_DATA. `--variant` names the code that is measured, where that is not this. Rows of this variant that
are in the file are not made again.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from studies.running import RESULTS, say
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation import row as rows
from toolscout.evaluation.evaluate import Evaluation, evaluate
from toolscout.evaluation.row import STUDY
from toolscout.retrievers.registry import method

NAME = "languages"
OUT = RESULTS / "languages.jsonl"
NOW = "now"
ENGLISH_TOOLS, OWN_TOOLS = "english tools", "own tools"
METHODS = ("bm25", "hybrid")
LEAST_PAIRS, MOST_REQUESTS = 100, 1_500


def own_dataset(language: str, goals: dict[str, list[str]]) -> Dataset | None:
    """Programs described by the first half of their goals, and requests for them: the other half.

    None where no program has two. At most MOST_REQUESTS requests, evenly drawn.
    """
    tools: list[Tool] = []
    asked: list[tuple[str, str]] = []
    for texts in (list(dict.fromkeys(goals[program])) for program in sorted(goals)):
        if len(texts) > 1:
            half = len(texts) // 2
            tools.append(Tool("program", f"t{len(tools)}", ". ".join(texts[:half])))
            asked += [(text, tools[-1].id) for text in texts[half:]]
    asked = asked[:: -(-len(asked) // MOST_REQUESTS) or 1]
    if not asked:
        return None
    requests = {f"{language}-{number}": text for number, (text, _) in enumerate(asked)}
    gold = {f"{language}-{number}": (tool_id,) for number, (_, tool_id) in enumerate(asked)}
    return Dataset(f"tldr-parallel-{language}", tools, requests, {"test": gold})


def own_datasets() -> Iterator[tuple[str, Dataset]]:
    """A dataset for each language with enough pairs."""
    goals: dict[str, dict[str, list[str]]] = {}
    with gzip.open(find_dataset("tldr-parallel") / "pairs.jsonl.gz", "rt", encoding="utf-8") as file:
        for pair in map(json.loads, file):
            goals.setdefault(pair["language"], {}).setdefault(pair["tool"], []).append(pair["text"])
    for language, programs in goals.items():
        if sum(map(len, programs.values())) >= LEAST_PAIRS and (made := own_dataset(language, programs)):
            yield language, made


def measured(found: Evaluation, language: str, kind: str, tools: int) -> dict[str, Any]:
    """The row of an evaluation, and what was said of its requests, all of which need a tool."""
    said = Counter(one.verdict for one in found.asked)
    shares = {verdict: round(said[verdict] / len(found.asked), 6) for verdict in ("no_tool_needed", "nothing_fits")}
    told = sum(one.need is not None for one in found.asked) / len(found.asked)
    about = {"name": NAME, "language": language, "of": kind, "tools": tools, **shares, "need_told": round(told, 6)}
    return found.row.to_dict() | {STUDY: about}


def code_of(row: Mapping[str, Any]) -> str:
    """The code that a row was measured with: its variant, without what says that seen requests were left out."""
    return str(row["variant"]).partition("_")[0]


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", default=NOW)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    rows.check_writable(given.out)
    there = {(row["dataset"], row["split"], row["retriever"], code_of(row)) for row in rows.known_rows(given.out)}
    english, translated = (Dataset.load(find_dataset(name)) for name in ("tldr", "tldr-languages"))
    todo = [("en", ENGLISH_TOOLS, english, "dev"), *((s, ENGLISH_TOOLS, translated, s) for s in translated.qrels)]
    todo += [(language, OWN_TOOLS, data, "test") for language, data in own_datasets()]
    for language, kind, data, split in todo:
        for name in METHODS if data is translated else METHODS[:1]:
            if (data.name, split, name, given.variant) in there:
                continue
            found = evaluate(
                data,
                split,
                method(name)(),
                variant=given.variant,
                command="python -m studies.languages",
                drop_seen=True,  # one request in Turkish is one that the encoder was trained on
                cache=given.cache,
            )
            rows.append(given.out, measured(found, language, kind, len(data.tools)))
            say(f"{language} {kind} {name}: {found.row.metrics['recall@5']:.3f}")


if __name__ == "__main__":
    main()
