"""The tables of docs/languages.md are those of the rows in results/languages.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CODES = {
    "English": "en",
    "Arabic": "ar",
    "Chinese": "zh",
    "French": "fr",
    "German": "de",
    "Hindi": "hi",
    "Italian": "it",
    "Japanese": "ja",
    "Korean": "ko",
    "Portuguese": "pt_BR",
    "Russian": "ru",
    "Spanish": "es",
    "Turkish": "tr",
    "Bengali": "bn",
    "Chinese (Taiwan)": "zh_TW",
    "Tamil": "ta",
    "Thai": "th",
    "Ukrainian": "uk",
}
ROWS = [json.loads(line) for line in (ROOT / "results" / "languages.jsonl").read_text().splitlines()]


def row(language: str, tools: str, retriever: str, code: str) -> dict[str, Any]:
    (found,) = (
        one
        for one in ROWS
        if (one["study"]["language"], one["study"]["of"], one["retriever"]) == (CODES[language], tools, retriever)
        and one["variant"].partition("_")[0] == code
    )
    return found


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def tables() -> list[list[list[str]]]:
    lines = (ROOT / "docs" / "languages.md").read_text(encoding="utf-8").partition("## Measured")[2].splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    begins = [number for number, line in enumerate(lines) if line.startswith("|---")]
    return [[row for row in cells[begin + 1 : cells.index([], begin)] if row] for begin in begins]


def test_requests_in_other_languages() -> None:
    found = tables()[0]
    assert len(found) == 13
    for language, *numbers in found:
        words = row(language, "english tools", "bm25", "now")
        if language == "English":  # the encoder has seen these requests
            assert numbers == [percent(words["metrics"]["recall@5"]), "", "", ""]
            continue
        now = row(language, "english tools", "hybrid", "now")
        shares = [now["study"][key] for key in ("no_tool_needed", "nothing_fits")]
        assert numbers == [percent(one["metrics"]["recall@5"]) for one in (words, now)] + list(map(percent, shares))
        assert now["study"]["no_tool_needed"] <= 0.02


def test_tools_in_other_languages() -> None:
    for language, tools, requests, *recalls in tables()[1]:
        before, now = (row(language, "own tools", "bm25", code) for code in ("before", "now"))
        assert (tools, requests) == (str(now["study"]["tools"]), f"{now['requests']:,}")
        assert recalls == [percent(one["metrics"]["recall@5"]) for one in (before, now)]
