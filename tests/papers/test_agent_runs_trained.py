"""A trained toolgen as its own agent: it thinks, names tools among all ids, and writes arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.retrievers import generators
from tests.retrievers.scenes import scenes
from toolscout.agent.model_loading import Models
from toolscout.agent.recorded_calls import read_trial
from toolscout.errors import BadModel
from toolscout.papers import agent_runs
from toolscout.papers.paper import AgentExperiment, Experiment

pytestmark = pytest.mark.slow


def test_a_trained_model_is_its_own_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    data = scenes()
    data.save(tmp_path / "d")
    corpus_ids = data.corpus_ids()
    rows = [{"tool_id": corpus_ids[tool.id], "arguments": {}, "response": "done"} for tool in data.tools]
    (tmp_path / "d" / "cache.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trial, place = read_trial(tmp_path / "d").first(2), str(generators.fitted("toolgen-agent"))
    own = AgentExperiment("own", "toolgen", "d", model=Experiment("m", "toolgen", "d"))
    models, other = Models(), str(generators.fitted("toolgen"))
    models.keep(place, generators.opened("toolgen-agent"))
    models.keep(other, generators.opened("toolgen"))
    episodes = agent_runs.replayed(own, place, trial, tmp_path, models)
    assert [one.request for one in episodes] == [text for _, text in trial.requests]
    assert all(step.tool_id in {tool.id for tool in data.tools} for one in episodes for step in one.steps)
    measured = agent_runs.call_measures(trial, episodes)
    row, lines = agent_runs.make_row(own, 0, trial, measured, {}, "")
    assert (row["variant"], row["seed"], len(lines)) == ("own-s0", 0, 2)
    with pytest.raises(BadModel, match="has learned no trajectories"):
        agent_runs.replayed(own, other, trial, tmp_path, models)
