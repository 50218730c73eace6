"""Recorded calls: which requests count, and which recording answers a call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.recordings import recorded_folder
from toolscout.agent.recorded_calls import RecordedCaller, Recording, read_trial
from toolscout.calling.dispatch import CallResult
from toolscout.core.tool import Tool
from toolscout.errors import BadDataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return recorded_folder(tmp_path / "d")


def test_the_requests_whose_gold_is_recorded(folder: Path) -> None:
    trial = read_trial(folder)
    assert (len(trial.requests), trial.recorded, trial.of) == (2, 2, 3)
    assert (len(trial.first(1).requests), trial.first(1).recorded) == (1, 2)


def test_bad_recordings(folder: Path) -> None:
    path = folder / "cache.jsonl"
    good = path.read_text()
    for line in ("{", '{"tool_id": "w/none"}', '{"tool_id": "w/rain", "arguments": [], "response": "x"}'):
        path.write_text(good + line + "\n")
        with pytest.raises(BadDataset, match="line 5"):
            read_trial(folder)
    path.unlink()
    with pytest.raises(BadDataset, match="recorded calls"):
        read_trial(folder)


def test_recordings() -> None:
    tool, other = Tool("a", "b"), Tool("a", "c")
    recorded = RecordedCaller(
        [
            Recording("a/b", {"is_id": "5", "user_name": "Ann"}, "first"),
            Recording("a/b", {"is_id": "6", "user_name": "Bob Ray"}, "second"),
            Recording("a/b", {}, "bare", "it failed"),
        ]
    )

    def one(caller: RecordedCaller, tool: Tool, **arguments: object) -> CallResult:
        return caller.call([(tool, arguments)])[0]

    assert recorded.tool_ids() == {"a/b"}
    assert one(recorded, tool, **{"id": 5, "User-Name": "Ann"}) == CallResult(True, "first")
    assert one(recorded, tool, id=6) == CallResult(True, "second", exact=False)
    assert one(recorded, tool, user_name="bob") == CallResult(True, "second", exact=False)
    assert one(recorded, tool) == CallResult(False, "bare", "it failed")
    assert one(recorded, other) == CallResult(
        False, "", "this tool does not answer: no call of it is recorded", exact=False
    )


def test_published_recordings(shared_data: Path) -> None:
    trial = read_trial(shared_data / "stabletoolbench")
    assert (len(trial.requests), trial.of) == (558, 765)
