"""A task of labelled texts, such as one of GLUE: a file with a line of JSON for each text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from toolscout.errors import BadDataset


class Labelled(NamedTuple):
    """A text, and the word that is right behind it."""

    text: str
    label: str


def read_labelled(path: Path) -> list[Labelled]:
    """Read lines of {"text", "label"}. Raises BadDataset."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadDataset(f"{path} cannot be read ({error}); name a file of texts with labels") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            found.append(Labelled(str(record["text"]), str(record["label"])))
        except (ValueError, KeyError, TypeError):
            raise BadDataset(f'{path} line {number} is not {{"text": …, "label": …}}; mend or remove it') from None
    if len({one.label for one in found}) < 2:
        raise BadDataset(f"{path} has fewer than two labels; name a file of texts with labels")
    return found
