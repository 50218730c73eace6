"""Invented tools: what is counted, models that name tools in plain text, and agents that name what there is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.brains import FORECAST, MAIL, lookup
from tests.agent.recordings import recorded_folder
from toolscout.agent.pickers import InventedTool, Pick, Picker, Unpicked
from toolscout.calling.dispatch import OriginCaller
from toolscout.data.conversations import FINISH, ConversationBuilder, Spent, Talks
from toolscout.llm.scripted import Scripted, ScriptedReply
from toolscout.papers import agent_runs, reproduction
from toolscout.papers.generation_runs import generation_measures
from toolscout.papers.name_writer import NamePicker, ToolNames, write_names
from toolscout.papers.paper import NAMES, AgentExperiment, GenerationExperiment, NamesExperiment
from toolscout.papers.registry import PAPERS
from toolscout.papers.toolgen_agent import PublishedAgent

TOOLS = [FORECAST, MAIL]


def test_what_is_no_tools_id_keeps_its_place() -> None:
    generated = [["a", "", "b"], ["", "a", ""], ["\0no tool", "a", "b"], []]
    found = generation_measures(generated, [("a", "b"), ("a",), ("a",), ("a",)])
    assert found["invented@1"] == [0.0, 1.0, 0.0, 1.0]
    assert found["invented"] == pytest.approx([1 / 3, 2 / 3, 0.0, 1.0])
    assert found["toolgen_ndcg@1"] == [1.0, 0.0, 0.0, 0.0]
    assert found["recall@3"] == [1.0, 1.0, 1.0, 0.0]


def test_a_tool_is_named_by_its_words() -> None:
    names = ToolNames(TOOLS)
    for text in (FORECAST.id, FORECAST.name, "Forecast", f"\n{FORECAST.id}\nbecause it rains"):
        assert names.find(text) == FORECAST.id
    assert names.find("forecasts of everything") == ""
    assert names.find("") == ""
    twice = replace(MAIL, namespace="other")
    assert ToolNames([MAIL, twice]).find(MAIL.name) == ""
    assert ToolNames([MAIL, twice]).find(twice.id) == twice.id


def test_names_are_written_for_requests() -> None:
    llm = Scripted([ScriptedReply("forecast", "Rain"), ScriptedReply("I would ask someone.", "Mail")])
    assert write_names(llm, ["Rain?", "Mail?"]) == ["forecast", "I would ask someone."]
    assert [message.role for message in llm.asked[0]] == ["system", "user"]


def test_a_model_without_ids_picks_by_name() -> None:
    said = [("Rain", "forecast"), ("Mail", "Finish"), ("Fly", "teleport")]
    llm = Scripted([ScriptedReply(text, when) for when, text in said])
    talks = [ConversationBuilder(text).before_action() for text in ("Rain", "Mail", "Fly", "Nobody")]
    picked = NamePicker(llm, TOOLS).pick(talks)
    assert picked[:3] == [FORECAST.id, FINISH, InventedTool("teleport")]
    assert isinstance(picked[3], Unpicked)


class Inventor(Picker):
    """Invents a tool, then calls one, then finishes; with thoughts it invents without end."""

    def __init__(self, *picks: Pick) -> None:
        self.picks, self.seen = list(picks), list[str]()

    def pick(self, conversations: Talks, *, without: Spent = ()) -> Sequence[Pick]:
        self.seen += [turns[-1].content for turns in conversations]
        return [self.picks.pop(0) if len(self.picks) > 1 else self.picks[0] for _ in conversations]


def test_an_agent_is_told_that_there_is_no_such_tool() -> None:
    llm = Scripted(
        [
            ScriptedReply('{"return_type": "give_answer", "final_answer": "sun"}', '{"name": "Finish"'),
            ScriptedReply('{"city": "Rome"}', '{"name": "forecast"'),
            ScriptedReply("I think.", "Rain?"),
        ]
    )
    caller = OriginCaller(functions={FORECAST.id: lambda city: "sun"})
    picker = Inventor(InventedTool("teleport"), FORECAST.id, FINISH)
    (episode,) = PublishedAgent(llm, picker, caller, lookup).run(["Rain?"])
    first, second = episode.steps
    assert (first.tool_id, first.invented, first.called, first.arguments) == ("teleport", True, False, None)
    assert first.observation == "error: there is no tool 'teleport'"
    assert (second.tool_id, second.invented, second.called) == (FORECAST.id, False, True)
    assert episode.called == (FORECAST.id,)
    assert episode.finish == "answered"
    (endless,) = PublishedAgent(llm, Inventor(InventedTool("x")), caller, lookup).run(["Rain?"])
    assert (endless.finish, len(endless.steps)) == ("step_limit", 8)  # 16 turns: thoughts and actions


def test_a_language_model_as_it_is_works_as_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_folder(tmp_path / "calls", "test_G1_instruction")
    script = Scripted(
        [
            ScriptedReply('{"return_type": "give_answer", "final_answer": "x"}', '{"name": "Finish"'),
            ScriptedReply("Finish", "Observation"),
            ScriptedReply("rain_of_frogs", "Generate the action."),
        ]
    )
    monkeypatch.setattr(agent_runs, "open_llm", lambda *_, **__: script)
    setup = reproduction.Setup(tmp_path, tmp_path / "rows", tmp_path / "models")
    plain = AgentExperiment("names-untrained-agent", NAMES, "calls", thoughts=False)
    (row,) = reproduction.run(plain, None, ["test_G1_instruction"], setup, "")
    assert row["metrics"]["invented"] == 1.0
    assert row["metrics"]["all_called"] == 0.0
    assert (row["retriever"], row["variant"], row["seed"]) == (NAMES, "names-untrained-agent", None)
    assert reproduction.seeds_to_run(plain, 3, ["test_G1_instruction"], setup.reread()) == []


@pytest.mark.parametrize("part", ["retrieval", "agent"])
def test_the_table_has_every_kind_of_ids_with_and_without_the_constraint(part: str) -> None:
    (table,) = [one for one in PAPERS["toolgen"].tables if one.title == f"invented, {part}"]
    lines = {line.name: line.published for line in table.lines}
    ways = [""] if part == "agent" else ["", ", this package's settings"]
    kinds = [(kind, way) for way in ways for kind in ("atomic", "numeric", "hierarchical", "semantic")]
    assert [name for name in lines if "ids, " in name and "fine-tuned" not in name] == [
        f"{kind} ids, {decoding}{way}" for kind, way in kinds for decoding in ("constrained", "free")
    ]
    for kind, way in kinds:
        under, freely = lines[f"{kind} ids, constrained{way}"], lines[f"{kind} ids, free{way}"]
        assert isinstance(under, GenerationExperiment | AgentExperiment)
        assert isinstance(freely, GenerationExperiment | AgentExperiment)
        assert under.model == freely.model  # one training for both
        assert (under.decoding, freely.decoding) == ("constrained", "free")
    baselines = [one for one in lines.values() if isinstance(one, GenerationExperiment | AgentExperiment) and one.names]
    assert [type(one.model) for one in baselines] == [type(None), NamesExperiment]


def test_rows_of_free_agents_are_told_apart() -> None:
    made = {one.name for table in PAPERS["toolgen"].tables for one in table.experiments()}
    assert "toolgen-published-toolbench-atomic-agent-with-thoughts-free-sopr" in made
