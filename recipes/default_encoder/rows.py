"""The rows that say what the models of each stage find of dev splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

MEASURES = "measures.jsonl"
"""The file of the work folder with these rows."""
_NAMES = ("recall@1", "recall@5", "comp@5")


def measure_row(
    model: str, name: str, tools: int, values: Sequence[float], machine: Mapping[str, str]
) -> dict[str, Any]:
    """What a model found of a set, as a row of results/default_encoder.jsonl."""
    return {
        "bench": "default_encoder",
        "tools": tools,
        "requests": f"{model}: {name}",
        "model": model,
        "set": name,
        "values": dict(zip(_NAMES, values, strict=True)),
        "hardware": dict(machine),
        "command": "python -m recipes.default_encoder",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
