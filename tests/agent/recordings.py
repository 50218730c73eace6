"""A tiny dataset with recorded calls: three requests, of which the third needs a tool without recordings."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agent.brains import CITY
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset


def recorded_folder(folder: Path, *splits: str) -> Path:
    """Write the dataset, each of its splits with the same requests, and return its folder."""
    tools = [Tool("w", name, f"{name} of a city", input_schema=CITY) for name in ("rain", "wind", "snow", "tide")]
    texts = {"r0": "rain please", "r1": "rain and wind", "r2": "the tide"}
    gold = {"r0": ("w/rain",), "r1": ("w/rain", "w/wind"), "r2": ("w/tide",)}
    Dataset(folder.name, tools, texts, dict.fromkeys(splits or ("test",), gold)).save(folder)
    rows = [
        {"tool_id": f"w/{name}", "arguments": {"city": city}, "error": "", "response": f"{name} {city}"}
        for name in ("rain", "wind")
        for city in ("Rome", "Oslo")
    ]
    (folder / "cache.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
