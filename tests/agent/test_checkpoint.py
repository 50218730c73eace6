"""What an agent has done is kept, and read again by the same run alone."""

from __future__ import annotations

from pathlib import Path

from toolscout.agent.checkpoint import ReplayCheckpoint
from toolscout.agent.episode import Episode, Step
from toolscout.llm.base import Usage


def test_episodes_are_kept_as_they_were(tmp_path: Path) -> None:
    step = Step("w/rain", "I look", {"city": "Rome"}, True, called=True, ok=True, observation="x")
    kept, done = (
        ReplayCheckpoint(tmp_path, {"a": 1}),
        [Episode("rain?", (step,), "answered", "x"), Episode("y", (), "gave_up", reason="z")],
    )
    kept.add(done, 2.0, Usage(conversations=3))
    again = ReplayCheckpoint(tmp_path, {"a": 1})
    assert (again.episodes, again.seconds, again.usage.conversations) == (done, 2.0, 3)
    assert ReplayCheckpoint(tmp_path, {"a": 2}).episodes == []
