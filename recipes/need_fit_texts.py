"""Writes the texts from which the need head of any encoder is fitted: python -m recipes.need_fit_texts

All of them are this project's own sentences: those of recipes/need_texts.py, over everyday matters and over the tools
of the bundled benchmark, and those in need_asked.txt, need_talk.txt and toolscout/search/background.txt. What need is
measured on (the bundled pairs) is left out. Writes toolscout/search/need_texts.jsonl.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console

from recipes import need_texts
from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.locate import find_dataset

HERE = Path(__file__).resolve().parent
SEARCH = HERE.parent / "toolscout" / "search"
OUT = SEARCH / "need_texts.jsonl"
MOST_EVERYDAY = 600


def gathered() -> dict[bool, list[str]]:
    """The texts that need a tool (True) and those that need none (False)."""
    rng = np.random.default_rng(0)
    bundled = Dataset.load(find_dataset("bundled"), ["dev"])
    about = need_texts.about_tools(need_texts.tasks([tool.description for tool in bundled.tools]), rng)
    everyday = need_texts.everyday(rng)
    files = ([SEARCH / "background.txt", HERE / "need_asked.txt"], [HERE / "need_talk.txt"])
    pairs = (find_dataset("bundled") / "need_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {request_digest(json.loads(line)["text"]) for line in pairs}
    found: dict[bool, list[str]] = {}
    for needed, place in ((True, 0), (False, 1)):
        lines = [line.strip() for file in files[place] for line in file.read_text(encoding="utf-8").splitlines()]
        texts = [*lines, *need_texts.thinned(everyday[place], MOST_EVERYDAY, rng), *about[place]]
        found[needed] = [text for text in dict.fromkeys(texts) if text and request_digest(text) not in measured]
    return found


def main() -> None:
    """Write the file."""
    rows = [{"text": text, "need": needed} for needed, texts in gathered().items() for text in texts]
    OUT.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    Console().print(
        f"{len(rows):,} texts, {sum(row['need'] is True for row in rows):,} of them need a tool: {OUT.name}"
    )


if __name__ == "__main__":
    main()
