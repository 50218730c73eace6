"""Checkpoint of a replay: the episodes done so far, so that a stopped replay can go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from toolscout.agent.episode import Episode
from toolscout.llm.base import Usage


class ReplayCheckpoint:
    """The finished episodes of one replay, written to disk after every batch. `about` identifies the replay."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Read the checkpoint if there is one; an incomplete last line is ignored."""
        digest = hashlib.blake2b(json.dumps(about, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()
        self._path = folder / f"{digest}.jsonl"
        self.episodes: list[Episode] = []
        self.seconds, self.usage = 0.0, Usage()
        self._lines: list[str] = []
        for line in self._path.read_text(encoding="utf-8").splitlines() if self._path.is_file() else ():
            try:
                record = json.loads(line)
                episodes = [Episode.from_dict(one) for one in record["episodes"]]
                usage = Usage(**record["usage"])
            except (ValueError, KeyError, TypeError):
                break
            self._lines.append(line)
            self.episodes += episodes
            self.seconds, self.usage = float(record["seconds"]), usage

    def add(self, episodes: Sequence[Episode], seconds: float, usage: Usage) -> None:
        """Add a batch that took `seconds`. `usage` is that of all batches together."""
        self.episodes += episodes
        self.seconds += seconds
        record = {"seconds": self.seconds, "usage": asdict(usage), "episodes": [one.to_dict() for one in episodes]}
        self._lines.append(json.dumps(record, default=str))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("".join(line + "\n" for line in self._lines), encoding="utf-8")

    def remove(self) -> None:
        """Delete the checkpoint."""
        self._path.unlink(missing_ok=True)
        if self._path.parent.is_dir() and not any(self._path.parent.iterdir()):
            self._path.parent.rmdir()
