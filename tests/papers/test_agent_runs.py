"""Agents as published on recorded calls: what is measured by group, what a judge adds, and what is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agent.recordings import recorded_folder
from tests.llm.fake_endpoint import FakeEndpoint, chat
from toolscout.errors import BadCompletion, BadModel, ToolscoutError
from toolscout.llm import Message
from toolscout.papers import agent_runs
from toolscout.papers import reproduction as found
from toolscout.papers.paper import AgentExperiment, Column, Experiment, Weights

SPLITS = ("test_G1_instruction", "test_G2_instruction")
GPT = AgentExperiment("gpt-gold-agent", "gold", "calls", weights=Weights("gpt", "a chat model", ""))
OTHER = AgentExperiment("other-gold-agent", "gold", "calls", weights=Weights("other", "another one", ""))


def script(path: Path, *said: tuple[str, str]) -> str:
    """Write the script of a chat model: what it says where words are in the conversation."""
    path.write_text("".join(json.dumps({"when": when, "text": text}) + "\n" for when, text in said))
    return f"scripted:{path}"


@pytest.fixture
def setup(tmp_path: Path) -> found.Setup:
    """Two agents: both call the rain tool once and answer, "good" or "bad", in the words of their scripts."""
    recorded_folder(tmp_path / "calls", *SPLITS)
    weights = {}
    for name in ("good", "bad"):
        weights["gpt" if name == "good" else "other"] = script(
            tmp_path / f"{name}.jsonl",
            ('{"name": "Finish"', json.dumps({"return_type": "give_answer", "final_answer": name})),
            ("Observation: rain Rome\nGenerate the action. Answer", '{"tool": "finish"}'),
            ('JSON: {"tool": NAME}', '{"tool": "rain"}'),
            ('{"name": "rain"', '{"city": "Rome"}'),
        )
    return found.Setup(tmp_path, tmp_path / "rows", tmp_path / "models", weights)


def plain(experiment: AgentExperiment, **changes: Any) -> AgentExperiment:
    return replace(experiment, thoughts=False, **changes)


def test_calls_are_measured_without_a_judge(setup: found.Setup) -> None:
    rows = found.run(plain(GPT), None, SPLITS, setup, "toolscout reproduce")
    assert [row["split"] for row in rows] == list(SPLITS)
    # Of the two requests with recordings, one needs rain alone and one rain and wind; rain was called for both.
    assert rows[0]["metrics"]["all_called"] == 0.5
    assert rows[0]["metrics"]["gold_recall"] == 0.75
    assert (rows[0]["requests"], rows[0]["study"]["of"]) == (2, 3)
    assert rows[0]["options"] == {"thoughts": False, "retry": True, "turns": 16, "tokens": 6144}
    called = Column("called avg", "all_called", SPLITS)
    assert found.cell(plain(GPT), called, setup.reread()).values == (0.5,)
    assert found.seeds_to_run(plain(GPT), 3, SPLITS, setup.reread()) == []


def test_a_judge_gives_the_rates_of_each_group(setup: found.Setup, tmp_path: Path) -> None:
    judge = script(
        tmp_path / "judge.jsonl",
        ("Answer: good", '{"status": "solved"}'),
        ("Request: rain please\nAnswer: bad", '{"status": "solved"}'),
        ("Answer: bad", '{"status": "unsolved"}'),
        ("Agent A\nRequest", '{"better": "A"}'),
    )
    setup = replace(setup, judge=judge)
    bad = plain(OTHER, name="other-sopr", judged="sopr")
    (row,) = found.run(bad, None, SPLITS[:1], setup, "")
    assert row["metrics"] == {"sopr": 0.5}
    assert row["study"] | {"judge": "scripted", "times": 3, "unjudged": 0, "deviation": 0.0} == row["study"]
    against = plain(GPT, name="gpt-sowr", judged="sowr", reference=plain(OTHER))
    (row,) = found.run(against, None, SPLITS[:1], setup, "")
    # Both solved "rain please", where the judge names whoever comes first; "rain and wind" is won.
    assert row["metrics"] == {"sowr": 0.5, "ties": 0.5}
    assert row["study"]["against"] == "other-gold-agent"


def test_what_an_agent_did_is_kept(setup: found.Setup, tmp_path: Path) -> None:
    found.run(plain(GPT), None, SPLITS[:1], setup, "")
    kept = list((tmp_path / "models" / agent_runs.EPISODES).iterdir())
    assert len(kept) == 1
    before = kept[0].read_text()
    (tmp_path / "good.jsonl").unlink()  # the model is not there any more
    assert found.run(plain(GPT), None, SPLITS[:1], setup, "")[0]["metrics"]["all_called"] == 0.5
    assert kept[0].read_text() == before
    with pytest.raises(ToolscoutError, match="is no script"):
        found.run(GPT, None, SPLITS[:1], setup, "")  # with thoughts it is another run


def test_a_model_that_fails_for_all_leaves_nothing(setup: found.Setup, tmp_path: Path) -> None:
    broken = replace(setup, weights={"gpt": script(tmp_path / "x.jsonl", ("nobody says this", "x"))})
    with pytest.raises(BadCompletion, match="failed for 2 requests"):
        found.run(plain(GPT), None, SPLITS[:1], broken, "")
    assert not (tmp_path / "rows").exists()


def test_all_that_is_missing_is_named_at_once(setup: found.Setup, tmp_path: Path) -> None:
    judged = replace(GPT, judged="sowr", reference=OTHER)
    assert found.missing(replace(GPT, judged=""), SPLITS, setup) == []
    nothing = replace(setup, weights={})
    assert found.missing(judged, SPLITS, nothing) == [
        "the weights of a chat model: pass --model gpt=FOLDER",
        "a judge: pass --judge https://HOST/v1?model=NAME, a language model that says what was solved",
        "the weights of another one: pass --model other=FOLDER",
    ]
    (tmp_path / "calls" / "cache.jsonl").unlink()
    (calls,) = found.missing(GPT, SPLITS, setup)
    assert calls.startswith("recorded calls, the observations of agents: add cache.jsonl")
    trained = replace(GPT, weights=None, model=Experiment("m", "toolgen", "calls", trajectories=True))
    lacking = found.missing(trained, SPLITS, setup)
    assert any("qrels/train.tsv" in one for one in lacking)
    assert any("trajectories of agents" in one for one in lacking)
    assert found.seeds_to_run(trained, 2, SPLITS, setup) == [0, 1]
    (elsewhere,) = found.missing(replace(GPT, dataset="elsewhere"), SPLITS, setup)
    assert elsewhere.startswith("the dataset elsewhere, which ")


def test_a_model_learns_from_the_trajectories_of_the_data_folder(tmp_path: Path) -> None:
    recorded_folder(tmp_path / "calls", "train", "dev")
    model = Experiment("m", "toolgen", "calls", ("preset=published",), trajectories=True)
    here = found.Setup(tmp_path, tmp_path / "rows", tmp_path / "models")
    assert any(one.startswith("trajectories of agents, in ") for one in found.missing(model, (), here))
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "trajectories" / "trajectories.jsonl.gz").write_bytes(b"")
    assert not any("trajectories" in one for one in found.missing(model, (), here))
    assert found._settings(model, 1, here, None)[-1].endswith("trajectories/trajectories.jsonl.gz")


def test_judgements_are_recorded_and_read_without_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    said = [Message("user", "Was it solved?")]
    with FakeEndpoint(lambda body, number: chat("solved")) as server:
        spec = f"{server.url}?model=judge-1"
        assert agent_runs.open_chat(spec, tmp_path / "j.db").complete([said])[0][0].text == "solved"
        assert server.requests[0]["model"] == "judge-1"
    offline = agent_runs.open_chat(f"{spec}&offline=true", tmp_path / "j.db")
    assert offline.complete([said])[0][0].text == "solved"
    with pytest.raises(ToolscoutError, match="holds no completion"):
        offline.complete([[Message("user", "Was another one?")]])
    with pytest.raises(BadModel, match="no option of a chat model"):
        agent_runs.open_chat(f"{spec}&speed=9")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("https://host/v1", "write https://host/v1\\?model=NAME"),
        ("https://host/v1?model=m&speed=9", "speed"),
        ("nowhere", "there is no language model at nowhere"),
    ],
)
def test_a_chat_model_that_cannot_be_is_refused_before_it_is_opened(spec: str, message: str) -> None:
    with pytest.raises(ToolscoutError, match=message):
        agent_runs.check_chat(spec)
    agent_runs.check_chat("https://host/v1?model=m")
    agent_runs.check_chat("smollm2")
