"""Replay of recorded calls: which requests count, what is measured, and the row of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace

import pytest

from studies import agent as script
from studies import agent_replay as replay
from studies.agent_replay import MeteredModel
from tests.agent.brains import Brain, called
from tests.agent.recordings import recorded_folder
from toolscout.agent.loop import AgentOptions
from toolscout.agent.model_loading import Models
from toolscout.agent.recorded_calls import read_trial
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.evaluation.row import read_rows
from toolscout.llm.base import Message
from toolscout.llm.scripted import Scripted
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.retrievers.bm25 import Bm25, Bm25Options
from toolscout.retrievers.provenance import TrainedOn, TrainingSet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return recorded_folder(tmp_path / "d")


def brain() -> Brain:
    """Calls what it is shown, in order, and ends."""

    def pick(said: Sequence[Message]) -> str:
        names = [line.removeprefix("- ").partition(":")[0] for line in said[0].content.splitlines() if line[:2] == "- "]
        return names[min(called(said), len(names) - 1)]

    return Brain(pick, lambda said: {"city": "Rome"} if called(said) == 0 else {"city": "Paris", "days": "x"})


def test_gold_tools_in_front_of_the_agent(folder: Path) -> None:
    trial, llm = read_trial(folder), MeteredModel(brain())
    done = replay.replay(trial, replay.front(trial, "gold", llm), llm, AgentOptions(constrain=False, steps=3))
    assert done is not None
    assert done.row["metrics"] == {
        "all_called": 0.5,
        "gold_recall": 0.75,
        "valid_arguments": 0.75,
        "refused": 0.25,
        "exact": 1.0,
        "steps": 1.5,
        "finished": 1.0,
    }
    assert done.row["requests"] == 2
    assert (done.row["variant"], done.row["dataset"]) == ("scripted", "d")
    assert done.row["study"] | {"agent": {}} == {
        "name": "agent",
        "front": "gold",
        "llm": "scripted",
        "k": 0,
        "picks": "shortlist",
        "requests": 2,
        "recorded": 2,
        "of": 3,
        "agent": {},
        "models": {},
    }
    assert done.row["timing"]["llm_calls"] == llm.usage.conversations > 0
    assert "pass_rate" not in done.row["metrics"]
    assert [line["called"] for line in done.lines] == [["w/rain"], ["w/rain"]]
    assert done.episodes[0].steps[0].observation == "rain Rome"


@pytest.fixture
def words(folder: Path, tmp_path: Path) -> list[str]:
    """A command line whose language model ends at once."""
    lines = tmp_path / "script.jsonl"
    lines.write_text(json.dumps({"when": "", "text": '{"tool": "finish", "return_type": "give_answer"}'}) + "\n")
    found = ["--data", str(folder), "--llm", f"scripted:{lines}", "--out", str(tmp_path / "agent.jsonl")]
    return [*found, "--no-thoughts"]


def test_several_fronts_of_the_same_agent(
    words: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "agent.jsonl"
    script.main([*words, "--retrievers", "bm25,gold", "--traces", str(tmp_path / "traces")])
    rows = read_rows(out)
    assert [row["retriever"] for row in rows] == ["bm25", "gold"]
    assert [row["metrics"]["all_called"] for row in rows] == [0.0, 0.0]
    assert [(row["requests"], row["study"]["recorded"], row["study"]["of"]) for row in rows] == [(2, 2, 3)] * 2
    assert "valid_arguments" not in rows[0]["metrics"]
    assert str(folder) not in json.dumps(rows)
    assert (tmp_path / "agent.scores").is_dir()
    assert len((tmp_path / "traces" / "bm25.scripted.jsonl").read_text().splitlines()) == 2
    asked = ["--judge", "host:80/x", "--llm", "https://x/y", "--retrievers", "a/b,c,shortlist:a/b,shortlist:c"]
    assert script.command_line(asked) == (
        "python -m studies.agent --judge URL --llm URL --retrievers b,c,shortlist:b,shortlist:c"
    )
    script.main([*words, "--retrievers", "gold,bm25"])  # nothing to do
    assert read_rows(out) == rows
    assert "bm25: its row is there" in capsys.readouterr().err
    trial, told = read_trial(folder), rows[0]["study"]
    assert [script.is_there(out, trial, told, encoder) for encoder in (None, "another")] == [True, False]
    assert script.encoder_under(Models(), "dense") == Encoder.load().fingerprint
    assert script.encoder_under(Models(), "bm25") is None
    script.main([*words, "--retrievers", "bm25", "--limit", "1"])  # other requests are another row
    assert [row["requests"] for row in read_rows(out)] == [2, 2, 1]


def test_a_shortlist_is_a_front_of_its_own(words: list[str], tmp_path: Path) -> None:
    Bm25().save(tmp_path / "models" / "x")
    place = str(tmp_path / "models" / "x")
    script.main([*words, "--retrievers", f"{place},shortlist:{place},shortlist:bm25"])
    rows = read_rows(tmp_path / "agent.jsonl")
    assert [row["study"]["front"] for row in rows] == ["x", "shortlist:x", "shortlist:bm25"]
    assert [row["variant"] for row in rows] == ["scripted_x", "scripted_shortlist_x", "scripted_shortlist"]
    assert len(list((tmp_path / "agent.scores").iterdir())) == 3
    script.main([*words, "--retrievers", f"shortlist:{place},{place}"])  # nothing to do
    assert read_rows(tmp_path / "agent.jsonl") == rows


def test_a_replay_that_was_stopped_goes_on(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial, out = tmp_path / "agent.partial", tmp_path / "agent.jsonl"
    ticks = iter([0.0, 1.0, 99.0])
    with monkeypatch.context() as clock:
        clock.setattr(script.time, "monotonic", lambda: next(ticks))
        script.main([*words, "--retrievers", "gold", "--at-once", "1", "--stop-after", "9"])
    assert read_rows(out) == []
    (file,) = partial.iterdir()
    file.write_text(file.read_text() + '{"half')  # as if the machine had gone away
    script.main([*words, "--retrievers", "gold", "--at-once", "1"])
    (row,) = read_rows(out)
    assert (row["requests"], row["timing"]["llm_calls"]) == (2, 4)  # a pick and an answer each, counted once
    assert not partial.exists()


def test_models_of_one_name_are_different_fronts(words: list[str], tmp_path: Path) -> None:
    one, other = tmp_path / "a" / "x", tmp_path / "b" / "x"
    Bm25().save(one)
    Bm25(Bm25Options(fuzzy=False)).save(other)
    out, asked = tmp_path / "agent.jsonl", [*words, "--retrievers", f"{one},{other}"]
    script.main(asked)
    rows = read_rows(out)
    assert [row["study"]["front"] for row in rows] == ["x", "x"]
    assert [row["options"]["fuzzy"] for row in rows] == [True, False]
    script.main(asked)  # nothing to do
    assert read_rows(out) == rows
    copytree(one, tmp_path / "c" / "x")
    script.main([*words, "--retrievers", f"{tmp_path / 'c' / 'x'}"])  # the same model in another place
    assert read_rows(out) == rows
    Bm25(Bm25Options(fuzzy=False)).save(one)
    (one / "fit.json").write_text("{}")  # trained again under its name
    script.main([*words, "--retrievers", str(one)])
    assert len(read_rows(out)) == 3


def test_rows_without_fingerprints_are_known_by_name(words: list[str], tmp_path: Path) -> None:
    Bm25().save(tmp_path / "a" / "x")
    out, asked = tmp_path / "agent.jsonl", [*words, "--retrievers", str(tmp_path / "a" / "x")]
    script.main(asked)
    (row,) = read_rows(out)
    assert row["study"].pop("models").keys() == {"front"}
    out.write_text(json.dumps(row) + "\n")  # as it was written before
    Bm25(Bm25Options(fuzzy=False)).save(tmp_path / "a" / "x")
    script.main(asked)
    assert read_rows(out) == [row]


def test_another_model_does_not_go_on_from_kept_episodes(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ticks = tmp_path / "x", iter([0.0, 1.0, 99.0])
    Bm25().save(model)
    asked = [*words, "--retrievers", str(model), "--at-once", "1"]
    with monkeypatch.context() as clock:
        clock.setattr(script, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
        script.main([*asked, "--stop-after", "9"])
    (file,) = (tmp_path / "agent.partial").iterdir()
    mark = file.read_text()
    Bm25(Bm25Options(fuzzy=False)).save(model)
    file.write_text(mark.replace("rain please", "somebody else's request"))
    script.main([*asked, "--traces", str(tmp_path / "traces")])
    (traces,) = (tmp_path / "traces").iterdir()
    assert "somebody else's request" not in traces.read_text()
    assert file.is_file()  # what the other one did


def test_a_language_model_is_known_by_what_is_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fuzzy in (("a", True), ("b", False)):
        Bm25(Bm25Options(fuzzy=fuzzy)).save(tmp_path / name / "m")
    a, b = (script.trained(Models(), replay.GOLD, str(tmp_path / name / "m")) for name in "ab")
    assert (a.keys(), b.keys()) == ({"llm"}, {"llm"})
    assert a != b
    (tmp_path / "a" / "m" / ".hidden").write_text("no part of it")
    assert script.trained(Models(), replay.GOLD, str(tmp_path / "a" / "m")) == a
    weights = tmp_path / "m.gguf"
    weights.write_text("1")
    assert script.trained(Models(), "shortlist:bm25", str(weights)).keys() == {"llm"}
    monkeypatch.chdir(tmp_path)
    for name in (replay.GOLD, "smollm2"):
        (tmp_path / name).mkdir()  # not what the name stands for
    assert script.trained(Models(), replay.GOLD, "smollm2") == {}


def test_a_model_that_fails_throughout_makes_no_row(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.jsonl").write_text("")
    with pytest.raises(SystemExit, match="2"):
        script.main([*words, "--retrievers", "gold"])
    assert "the language model failed for all" in " ".join(capsys.readouterr().err.split())
    assert read_rows(tmp_path / "agent.jsonl") == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--limit", "0"], "--limit: a number of 1 or more is needed, got '0'"),
        (["--limit", "-3"], "--limit: a number of 1 or more is needed, got '-3'"),
        (["--steps", "0"], "--steps: a number of 1 or more is needed"),
        (["-k", "no"], "-k: a number of 1 or more is needed"),
        (["--at-once", "0"], "--at-once: a number of 1 or more is needed"),
        (["--retrievers", "gold,nonsense"], "nonsense"),
        (["--split", "nowhere"], "nowhere"),
        (["--data", "nothing"], "there is no dataset 'nothing'"),
        (["--llm", "nobody"], "nobody is no language model"),
        (["--retrievers", "gold,MODEL"], "d test shares 1 of its 3 requests with what the model has seen: 1 of e train "
         "(trained on); name another --split, or a model that has not seen this one"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_ends_with_a_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    seen = Dataset("e", [Tool("w", "rain")], {"x": "the tide"}, {"train": {"x": ("w/rain",)}})
    Bm25().save(tmp_path / "model")
    TrainedOn.of([TrainingSet(seen, dev="")]).save(tmp_path / "model")
    with pytest.raises(SystemExit) as ended:
        script.main([*words, *(word.replace("MODEL", str(tmp_path / "model")) for word in more)])
    *_, line = capsys.readouterr().err.splitlines()
    assert (ended.value.code, said in line, "drop-seen" in line) == (2, True, False), line
    assert not (tmp_path / "agent.scores").exists()  # nor was one that could be measured


def test_a_judge_puts_its_numbers_into_the_rows(folder: Path) -> None:
    trial, llm = read_trial(folder), MeteredModel(brain())
    front = replay.front(trial, "gold", llm)
    done = {}
    for name in "ab":
        one = replay.replay(trial, front, llm, AgentOptions(steps=1))
        assert one is not None
        done[name] = one
    votes = [*['{"status": "solved"}'] * 6, *['{"status": "unsolved"}'] * 3, *['{"status": "solved"}'] * 3]
    script.judged(done, "b", Scripted(votes), "judge-1")
    assert [one.row["metrics"]["pass_rate"] for one in done.values()] == [1.0, 0.5]
    assert [one.row["metrics"].get("win_rate") for one in done.values()] == [0.5, None]  # one wins, one is the same
    assert done["a"].row["study"]["judge"] == "judge-1"
