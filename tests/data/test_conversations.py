"""Conversations to learn from: the wording, the way there and back, and ShareGPT files."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from toolscout.cli.main import app
from toolscout.core.tool import Tool
from toolscout.data import conversations as c
from toolscout.data import trajectories as t
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Where."}, "days": {"type": "integer", "default": 1}},
    "required": ["city"],
}
FORECAST = Tool("weather", "forecast", "The weather to come.", input_schema=SCHEMA)
MAIL = Tool("mail", "send", "Sends a mail.")
ROW: dict[str, Any] = {
    "id": "one",
    "source": "made up",
    "tools": [FORECAST.to_record(), MAIL.to_record()],
    "messages": [
        {"role": "user", "content": "Will it rain in Rome?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"name": "forecast", "arguments": {"city": "Rome"}}],
        },
        {"role": "tool", "content": "sun"},
        {"role": "assistant", "content": "No, sun."},
    ],
}


def made(**changes: Any) -> c.Conversation:
    return c.conversation(t.Trajectory.from_row(ROW | changes, "here"))


def test_a_trajectory_becomes_three_turns_a_step_and_a_finish() -> None:
    turns = made().turns
    assert [(turn.role, turn.content[:40]) for turn in turns] == [
        ("system", c.SYSTEM[:40]),
        ("user", "Will it rain in Rome?"),
        ("assistant", "I look."),
        ("user", "Generate the action."),
        ("assistant", "weather/forecast"),
        ("user", "Please give the input. Here is the docum"),
        ("assistant", '{"city": "Rome"}'),
        ("user", "Observation: sun\nGenerate the action."),
        ("assistant", "Finish"),
        ("user", "Please give the input. Here is the docum"),
        ("assistant", '{"return_type": "give_answer", "final_an'),
    ]
    assert [turn.action for turn in turns if turn.action] == ["weather/forecast", "Finish"]
    assert all(turn.loss == (turn.role == "assistant") for turn in turns)
    shown = json.loads(turns[5].content.removeprefix(c.INPUT))
    assert shown == {
        "name": "forecast",
        "description": "The weather to come.",
        "required": [{"name": "city", "type": "string", "description": "Where."}],
        "optional": [{"name": "days", "type": "integer", "default": 1}],
    }


def test_a_step_without_a_thought_has_no_thought() -> None:
    messages = [*ROW["messages"]]
    messages[1] = messages[1] | {"content": ""}
    turns = made(messages=messages).turns
    assert turns[1].content == "Will it rain in Rome?\nGenerate the action."
    assert turns[2].action == "weather/forecast"


def test_words_before_a_call_are_its_thought_and_giving_up_is_told() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "mail/send", "arguments": {}}] * 2}
    messages = [
        {"role": "user", "content": "Mail it."},
        {"role": "assistant", "content": "To whom?"},
        {"role": "user", "content": "Ann."},
        {"role": "assistant", "content": "Thanks."},
        call,
        {"role": "user", "content": "not sent"},
        {"role": "assistant", "content": "I cannot handle the task."},
    ]
    turns = made(messages=messages).turns
    assert [turn.action for turn in turns if turn.action] == ["Finish", "mail/send", "mail/send", "Finish"]
    assert "Thanks." in [turn.content for turn in turns if turn.loss]
    assert "Observation: not sent\nGenerate the action." in [turn.content for turn in turns]
    assert json.loads(turns[-1].content)["return_type"] == c.GIVE_UP
    roles = [turn.role for turn in turns]
    assert all(here != there for here, there in pairwise(roles))


WORDS = st.text('ab {}"\n', min_size=1, max_size=8).filter(lambda text: text.strip() == text)
CALLS = st.builds(
    lambda name, arguments: {"name": name, "arguments": arguments},
    st.sampled_from(["forecast", "send"]),
    st.dictionaries(WORDS, st.integers() | WORDS | st.booleans(), max_size=2),
)
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, WORDS),
        st.builds(lambda text: {"role": "tool", "content": text}, WORDS),
        st.builds(lambda text: {"role": "assistant", "content": text}, WORDS),
        st.builds(
            lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls},
            WORDS | st.just(""),
            st.lists(CALLS, min_size=1, max_size=2),
        ),
    ),
    min_size=1,
    max_size=8,
).map(lambda rest: [{"role": "user", "content": "please"}, *rest, {"role": "assistant", "content": "done"}])


@settings(max_examples=60)
@given(MESSAGES)
def test_nothing_is_lost_on_the_way_there_and_back(messages: list[Any]) -> None:
    there = made(messages=messages)
    assert c.from_record(json.loads(json.dumps(c.to_record(there))), "x") == there
    back = c.trajectory(replace(there, said=()))
    assert c.conversation(back).turns == there.turns
    assert t.Trajectory.from_row(json.loads(json.dumps(back.to_row())), "x") == back


# Whatever may be said, in any order, also what looks like the wording of conversations.
ANY_WORDS = st.sampled_from([c.OBSERVATION, f"x\n{c.OBSERVATION}y", c.ACTION, c.GO_ON, c.INPUT, "", " "]) | st.text(
    'ab {}"\n\ud800', max_size=6
)
ANY_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": ANY_WORDS})
    | st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": ANY_WORDS, "tool_calls": st.lists(CALLS, max_size=2)}
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=100)
@given(ANY_MESSAGES)
def test_every_message_comes_back_from_sharegpt_as_it_was(messages: list[Any]) -> None:
    wanted = t.Trajectory.from_row(ROW | {"messages": messages}, "here")
    there = c.conversation(wanted)
    record = json.loads(json.dumps(c.to_record(there)))
    assert c.from_record(record, "x") == there
    assert c.trajectory(there) == wanted
    # As others write it: other names of roles, no fields of ours in turns, rules of their own.
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    turns = [{"from": names[turn["role"]], "value": turn["content"]} for turn in record["conversations"][1:]]
    rules = {"from": "system", "value": "Be kind."}
    assert c.trajectory(c.from_record(record | {"conversations": [rules, *turns]}, "x")) == wanted
    # What others read: one side after the other, in text.
    assert all(one["from"] != other["from"] for one, other in pairwise(turns))
    assert isinstance(record.get(c.SAID, ""), str)


TWICE = [
    {"role": "user", "content": "Rome?"},
    {"role": "assistant", "content": "", "tool_calls": [{"name": "forecast", "arguments": {"city": "Rome"}}] * 2},
    {"role": "tool", "content": "sun"},
    {"role": "tool", "content": "rain"},
    {"role": "assistant", "content": "Both."},
]


def test_turns_that_were_changed_since_are_what_counts() -> None:
    record = c.to_record(made(messages=TWICE))
    at, turn = next((at, one) for at, one in enumerate(record["conversations"]) if "rain" in one["content"])
    assert turn["content"] == f"Observation: sun\nObservation: rain\n{c.ACTION}"  # as it was and is learned
    assert [one.content for one in c.trajectory(c.from_record(record, "x")).messages[2:4]] == ["sun", "rain"]
    record["conversations"][at] = turn | {"content": f"Observation: snow\n{c.ACTION}"}
    assert [one.content for one in c.trajectory(c.from_record(record, "x")).messages[3:]] == ["snow", "Both."]
    assert c.SAID not in c.to_record(made())  # where turns tell all


def test_tools_are_made_of_their_documentation() -> None:
    back = c.trajectory(c.Conversation(made().turns))
    assert [(tool.id, dict(tool.input_schema)) for tool in back.tools] == [("weather/forecast", SCHEMA)]


def test_an_action_without_a_namespace_gets_one() -> None:
    turns = [("user", f"Rome?\n{c.ACTION}"), ("assistant", "forecast"), ("user", c.INPUT + "{}"), ("assistant", "{}")]
    record = {"conversations": [{"role": role, "content": content} for role, content in [*turns, ("user", "sun")]]}
    row = c.trajectory(c.from_record(record, "here")).to_row()
    assert t.Trajectory.from_row(row, "there").messages[1].calls == (t.Call("default/forecast", {}),)


@pytest.mark.parametrize("answer", [{}, {"final_answer": "Sorry, impossible."}])
def test_giving_up_stays_giving_up(answer: dict[str, str]) -> None:
    given = json.dumps({"return_type": c.GIVE_UP} | answer)
    turns = [("user", f"Rome?\n{c.ACTION}"), ("assistant", c.FINISH), ("user", c.INPUT), ("assistant", given)]
    record = {"conversations": [{"role": role, "content": content} for role, content in turns]}
    again = c.conversation(c.trajectory(c.from_record(record, "here")))
    told = json.loads(again.turns[-1].content)
    assert told["return_type"] == c.GIVE_UP
    assert answer.get("final_answer", "") in told["final_answer"]


def test_a_field_of_a_trajectory_does_not_hide_one_of_the_record() -> None:
    assert c.from_record(c.to_record(made(kind="chat")), "here").kind == "trajectory"


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.jsonl.gz"])
def test_files_round_trip(tmp_path: Path, name: str) -> None:
    data = Dataset("d", [FORECAST, MAIL], {"r": "Rome"}, {"train": {"r": (FORECAST.id, MAIL.id)}})
    wanted = [made(), *c.retrieval(data, "train"), *c.memorisation(data.tools)]
    assert c.write_sharegpt(tmp_path / name, wanted) == 5
    assert list(c.read_sharegpt(tmp_path / name)) == wanted
    assert wanted[1].turns == (c.Turn("user", "Rome"), c.Turn("assistant", FORECAST.id, True, FORECAST.id))
    assert wanted[3].turns[0].content == FORECAST.document()


def test_the_original_names_of_sharegpt_are_read() -> None:
    turns = [{"from": "human", "value": "hi\nGenerate the action."}, {"from": "gpt", "value": "Finish"}]
    read = c.from_record({"conversations": turns}, "x")
    assert read.turns[1] == c.Turn("assistant", "Finish", True, "Finish")


GOOD = {"role": "user", "content": "x", "loss": False}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("{", "line 2: not JSON"),
        ({"conversations": []}, "line 2: conversations: a list of one turn or more is needed, got []"),
        ({"turns": []}, "line 2: conversations: a list of one turn or more is needed, got None"),
        ({"conversations": [GOOD, 5]}, "line 2: conversations[1]: a JSON object"),
        ({"conversations": [GOOD | {"role": "tool"}]}, "line 2: conversations[0].role:"),
        ({"conversations": [GOOD | {"content": 5}]}, "line 2: conversations[0].content:"),
        ({"conversations": [GOOD | {"loss": True}]}, "line 2: conversations[0].loss:"),
        ({"conversations": [GOOD | {"loss": "no"}]}, "line 2: conversations[0].loss:"),
        ({"conversations": [GOOD | {"action": "a/b"}]}, "line 2: conversations[0].action:"),
        ({"conversations": [GOOD], "kind": "song"}, "line 2: kind:"),
        ({"conversations": [GOOD], "tools": [{"name": ""}]}, "line 2: tools[0]:"),
        ({"conversations": [GOOD], c.SAID: "["}, f"line 2: {c.SAID} (mend it, or leave it out): not JSON"),
        ({"conversations": [GOOD], c.SAID: [5]}, f"{c.SAID} (mend it, or leave it out): messages[0]"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(tmp_path: Path, record: Any, said: str) -> None:
    path = tmp_path / "x.jsonl"
    text = record if isinstance(record, str) else json.dumps(record)
    path.write_text(json.dumps(c.to_record(made())) + "\n" + text + "\n")
    with pytest.raises(BadDataset) as error:
        list(c.read_sharegpt(path))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([("user", "x\nGenerate the action."), ("assistant", "a/b")], "has no input"),
        ([("user", "x\nGenerate the action."), ("assistant", "a/b"), ("user", "?")], "[2].content: the action a/b"),
        ([("user", "x")], "says nothing"),
        ([("user", f"x\n{c.ACTION}"), ("assistant", "Finish"), ("user", c.INPUT), ("assistant", "no")], "not JSON"),
        ([("user", f"x\n{c.ACTION}"), ("assistant", "a/b"), ("user", f"{c.INPUT}[5]")], "documentation of a/b"),
        ([("user", f"x\n{c.ACTION}"), ("assistant", "a/b"), ("user", c.INPUT + "[" * 99_999)], "documentation of a/b"),
        (
            [("user", f"x\n{c.ACTION}"), ("assistant", "Finish"), ("user", c.INPUT), ("assistant", "[" * 99_999)],
            "not JSON",
        ),
    ],
)
def test_conversations_that_are_no_trajectories(turns: list[tuple[str, str]], said: str) -> None:
    record = {"conversations": [{"role": role, "content": content} for role, content in turns]}
    with pytest.raises(BadDataset) as error:
        c.trajectory(c.from_record(record, "here"), "here")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": None}, "tools: a list"),
        ({"messages": []}, "messages: a list"),
        ({"messages": [{"role": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "tool_calls": [1]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "no"}]}]}, "tool_calls[0].name"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "send", "arguments": 5}]}]}, "[0].arguments"),
    ],
)
def test_broken_trajectories(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadDataset) as error:
        t.Trajectory.from_row(ROW | change, "f line 1")
    assert str(error.value).startswith("f line 1: ")
    assert said in str(error.value)


def test_export_and_import_on_the_command_line(tmp_path: Path) -> None:
    def run(*words: object) -> str:
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.output

    rows, out, again = tmp_path / "rows.jsonl", tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in (ROW, ROW | {"messages": TWICE})))
    Dataset("d", [FORECAST, MAIL], {"r": "Rome"}, {"train": {"r": (MAIL.id,)}}).save(tmp_path / "d")
    said = run("export", "--sharegpt", out, rows, tmp_path / "d", f"{tmp_path / 'd'}:train")
    assert "trajectory: 2 records\n" in said
    assert "memorisation: 4 records\n" in said
    assert "2 records, 3 calls" in run("import", "--sharegpt", out, "--out", again)
    assert list(t.read_trajectories(again)) == list(t.read_trajectories(rows))
    out.write_text("{}\n")
    done = CliRunner().invoke(app, ["import", "--sharegpt", str(out), "--out", str(again)])
    assert done.exit_code == 2
    assert "line 1: conversations" in done.output


def test_published_trajectories_can_be_learned(shared_data: Path) -> None:
    read = islice(t.read_trajectories(shared_data / "trajectories" / "trajectories.jsonl.gz"), 150)
    for row in read:
        there = c.conversation(row)
        roles = [turn.role for turn in there.turns]
        assert roles[-1] == "assistant"
        assert all(a != b for a, b in pairwise(roles))
        assert c.conversation(c.trajectory(replace(there, said=()))).turns == there.turns
        assert c.trajectory(c.from_record(c.to_record(there), "x")) == row
