"""Agent conversations, worded the same for training and for the agent; reads and writes ShareGPT records.

A step of an agent is three turns of the assistant: a thought; after "Generate the action.", the id of one tool; after
"Please give the input. …" and the tool's documentation, its arguments as JSON. The result of the call comes back as a
turn of the user. The last action is Finish. In a step without a thought the action is asked for in the turn that holds
the request or observation, so that the model does not learn to write empty thoughts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from toolscout.core.json_schema import object_schema, type_word
from toolscout.core.tool import Tool, clean_text, name_of, namespace_of
from toolscout.data import beir_files as files
from toolscout.data.dataset import Dataset
from toolscout.data.trajectories import (
    Call,
    Trajectory,
    TrajectoryMessage,
    json_lines,
    known_tools,
    parsed,
    write_records,
)
from toolscout.errors import BadDataset, ToolscoutError

Role = Literal["system", "user", "assistant"]
Kind = Literal["trajectory", "retrieval", "memorisation", ""]

SYSTEM = (
    "You solve a request with tools, one step after another. In each step you may write a thought, then you name the "
    "action: one tool. You are shown its documentation and give its input as JSON. You read the observation and go on. "
    "The last action is Finish: give_answer with the final answer, or give_up_and_restart where no tool can help."
)
ACTION = "Generate the action."
INPUT = "Please give the input. Here is the documentation: "
OBSERVATION = "Observation: "
GO_ON = "Go on."
FINISH = "Finish"
GIVE_ANSWER, GIVE_UP = "give_answer", "give_up_and_restart"
FINISH_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "return_type": {"type": "string", "enum": [GIVE_ANSWER, GIVE_UP]},
        "final_answer": {"type": "string", "description": "The answer to the request."},
    },
    "required": ["return_type"],
}
# The field of a ShareGPT record that keeps the original messages where the turns lose something. It is JSON text, so
# that its type is the same in every record.
SAID = "toolscout_messages"
# How an answer that gives up begins in published trajectories.
_GAVE_UP = "i cannot handle the task"
MAX_DESCRIPTION_CHARS, MAX_PARAMETER_CHARS, MAX_VALUES = 600, 200, 20
_ROLES = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant", "chatgpt": "assistant"}
_SIMPLE = ("string", "integer", "number", "boolean", "array", "object")


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn. `loss`: whether training learns it. `action`: the tool id or Finish that it names."""

    role: Role
    content: str
    loss: bool = False
    action: str = ""


Talks = Sequence[Sequence[Turn]]
"""A batch of unfinished conversations."""
Spent = Sequence[Collection[str]]
"""For each conversation the ids of tools not to pick again; empty where there are none at all."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to train on. `tools`: the tools known in it. `about`: all other fields of its record."""

    turns: tuple[Turn, ...]
    id: str = ""
    kind: Kind = ""
    tools: tuple[Tool, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[TrajectoryMessage, ...] = ()
    """The original messages, where the turns cannot reproduce them, as when one brings several observations."""


class ConversationBuilder:
    """Builds a conversation turn by turn. Text of the user since the assistant's last turn is joined into one turn."""

    def __init__(self, request: str = "", more_rules: str = "") -> None:
        """Begin with the system prompt, with `more_rules` appended, and the request."""
        self.turns: list[Turn] = [Turn("system", f"{SYSTEM}\n{more_rules}" if more_rules else SYSTEM)]
        self._heard = request

    def hear(self, text: str) -> None:
        """Add text of the user."""
        self._heard = f"{self._heard}\n{text}" if self._heard else text

    def observe(self, text: str) -> None:
        """Add the result of a call."""
        self.hear(OBSERVATION + text)

    def before_thought(self) -> list[Turn]:
        """Return the turns that prompt for a thought."""
        return [*self.turns, Turn("user", self._heard or GO_ON)]

    def before_action(self) -> list[Turn]:
        """Return the turns that prompt for an action."""
        return [*self.turns, Turn("user", f"{self._heard}\n{ACTION}" if self._heard else ACTION)]

    def before_input(self, documentation: str) -> list[Turn]:
        """Return the turns that prompt for the arguments of the chosen tool."""
        return [*self.turns, Turn("user", INPUT + documentation)]

    def think(self, thought: str) -> None:
        """Add a thought of the assistant."""
        self._say(self.before_thought(), Turn("assistant", thought, loss=True))

    def act(self, action: str) -> None:
        """Add the assistant's action: a tool id, or Finish."""
        self._say(self.before_action(), Turn("assistant", action, loss=True, action=action))

    def give(self, documentation: str, arguments: Mapping[str, Any]) -> None:
        """Add the assistant's arguments for the chosen tool."""
        self._say(self.before_input(documentation), Turn("assistant", compact(arguments), loss=True))

    def _say(self, before: list[Turn], turn: Turn) -> None:
        self.turns, self._heard = [*before, turn], ""


def request_of(turns: Sequence[Turn]) -> str:
    """Return the request of a conversation: the user's first turn."""
    first = next((turn.content for turn in turns if turn.role == "user"), "")
    return first.removesuffix(ACTION).removesuffix("\n") if first.endswith(ACTION) else first


def documentation(tool: Tool | None) -> str:
    """Return the JSON description of a tool that prompts for its arguments; None stands for Finish."""
    description = "Ends the work on the request." if tool is None else clean_text(tool.description)
    schema = object_schema(FINISH_SCHEMA if tool is None else tool.input_schema)
    needed = schema.get("required", ())
    parameters = [(key in needed, _parameter(key, value, schema)) for key, value in schema["properties"].items()]
    about = {
        "name": FINISH if tool is None else tool.name,
        "description": description[:MAX_DESCRIPTION_CHARS],
        "required": [parameter for required, parameter in parameters if required],
        "optional": [parameter for required, parameter in parameters if not required],
    }
    return compact(about)


def compact(value: Any) -> str:
    """Return a value as JSON in one line, keys in their order."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _parameter(name: str, schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {"name": name, "type": type_word(schema, root)}
    if isinstance(schema, Mapping):
        text = schema.get("description")
        about |= {"description": clean_text(text)[:MAX_PARAMETER_CHARS]} if isinstance(text, str) and text else {}
        values = schema.get("enum")
        about |= {"values": values} if isinstance(values, list) and len(values) <= MAX_VALUES else {}
        about |= {"default": schema["default"]} if "default" in schema else {}
    return about


def conversation(trajectory: Trajectory) -> Conversation:
    """Return a trajectory as a conversation to train on, with loss on the assistant's turns."""
    script, tools = ConversationBuilder(), {tool.id: tool for tool in trajectory.tools}
    carried = ""  # text of the assistant without calls, directly followed by more from the assistant
    open_call = False
    for said, after in zip(trajectory.messages, [*trajectory.messages[1:], None], strict=True):
        text = said.content.strip()
        if said.role == "tool" or (said.role == "user" and open_call):  # some sets give observations as the user's
            script.observe(said.content)
        elif said.role == "user" and text:
            script.hear(said.content)
        elif said.role == "assistant":
            carried = "\n".join(filter(None, [carried, text if said.calls else ""]))
            if not said.calls and after is not None and after.role == "assistant":
                carried = "\n".join(filter(None, [carried, text]))
                continue
            if carried:
                script.think(carried)
            carried = ""
            for call in said.calls:
                script.act(call.tool_id)
                script.give(documentation(tools[call.tool_id]), call.arguments)
            if not said.calls:
                _finish(script, said.content)
        open_call = bool(said.calls)
    made = Conversation(tuple(script.turns), trajectory.id, "trajectory", trajectory.tools, trajectory.about)
    return made if _Reader(made, "").messages() == trajectory.messages else replace(made, said=trajectory.messages)


def _finish(script: ConversationBuilder, answer: str) -> None:
    gave_up = answer.strip().lower().startswith(_GAVE_UP)
    script.act(FINISH)
    script.give(documentation(None), {"return_type": GIVE_UP if gave_up else GIVE_ANSWER, "final_answer": answer})


def trajectory(made: Conversation, where: str = "") -> Trajectory:
    """Return the trajectory of a conversation; tools that it does not list are rebuilt from their documentation."""
    kept = Trajectory(made.id, made.tools, made.said, made.about)
    if made.said and _words(conversation(kept)) == _words(made):  # nobody changed the turns since
        return kept
    return _Reader(made, where or made.id or "the conversation").read()


def _words(made: Conversation) -> list[tuple[str, str]]:
    """Return role and content of each turn but the system prompt, which a trajectory has not."""
    return [(turn.role, turn.content) for turn in made.turns if turn.role != "system"]


class _Reader:
    """Turns a conversation back into messages and calls."""

    def __init__(self, made: Conversation, where: str) -> None:
        self._made, self._where = made, where
        self._tools = {tool.id: tool for tool in made.tools}
        self._messages: list[TrajectoryMessage] = []
        self._thought, self._action, self._after_call = "", "", False

    def read(self) -> Trajectory:
        messages = self.messages()
        if self._action:
            raise BadDataset(f"{self._where}: the action {self._action} has no input; give its arguments as JSON")
        if not any(message.role == "assistant" for message in messages):
            raise BadDataset(f"{self._where}: the assistant says nothing; a record needs a turn to learn from")
        return Trajectory(self._made.id, tuple(self._tools.values()), messages, self._made.about)

    def messages(self) -> tuple[TrajectoryMessage, ...]:
        turns = self._made.turns
        for at, (turn, after) in enumerate(zip(turns, [*turns[1:], None], strict=True)):
            if turn.role == "user":
                self._hear(turn.content, at)
            elif turn.role == "assistant" and self._action:
                self._call(turn.content, at)
            elif turn.role == "assistant" and turn.action:
                self._action = turn.action
            elif turn.role == "assistant" and after is not None and after.content == ACTION:
                self._thought = turn.content
            elif turn.role == "assistant":
                self._messages.append(TrajectoryMessage("assistant", turn.content))
        return tuple(self._messages)

    def _hear(self, content: str, at: int) -> None:
        if self._action:
            if not content.startswith(INPUT):
                self._refuse(at, f"the action {self._action} must be followed by {INPUT!r} and its documentation")
            if self._action != FINISH and self._action not in self._tools:
                tool = self._documented(content.removeprefix(INPUT), at)
                self._action = tool.id  # an action without a namespace gets the default one
                self._tools[tool.id] = tool
            return
        text = content.removesuffix(ACTION).removesuffix("\n") if content.endswith(ACTION) else content
        if text and text != GO_ON:
            role: Literal["tool", "user"] = "tool" if self._after_call else "user"
            self._messages.append(TrajectoryMessage(role, text.removeprefix(OBSERVATION) if role == "tool" else text))
        self._after_call = False

    def _call(self, content: str, at: int) -> None:
        arguments = parsed(content, f"{self._where}: conversations[{at}].content: the input is not JSON")
        if not isinstance(arguments, dict):
            self._refuse(at, f"the input of {self._action} must be a JSON object, got {type(arguments).__name__}")
        if self._action == FINISH:
            self._messages += [TrajectoryMessage("assistant", self._thought)] if self._thought else []
            self._messages.append(TrajectoryMessage("assistant", _answered(arguments)))
        else:
            self._messages.append(TrajectoryMessage("assistant", self._thought, (Call(self._action, arguments),)))
        self._after_call = self._action != FINISH
        self._thought = self._action = ""

    def _documented(self, text: str, at: int) -> Tool:
        try:
            about = json.loads(text)
            listed = [(need, one) for need in ("required", "optional") for one in about.get(need, ())]
            properties = {one["name"]: _schema(one) for _, one in listed}
            required = [one["name"] for need, one in listed if need == "required"]
            schema = {"type": "object", "properties": properties} | ({"required": required} if required else {})
            place = namespace_of(self._action) or "default"
            return Tool(place, name_of(self._action), about.get("description", ""), input_schema=schema)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ToolscoutError) as error:
            self._refuse(at, f"the documentation of {self._action} cannot be read ({error!r:.120})")

    def _refuse(self, at: int, what: str) -> NoReturn:
        raise BadDataset(f"{self._where}: conversations[{at}].content: {what}")


def _answered(arguments: Mapping[str, Any]) -> str:
    """Return the final answer of Finish as trajectories word it: giving up is said at the beginning."""
    answer = str(arguments.get("final_answer", ""))
    if arguments.get("return_type") != GIVE_UP or answer.strip().lower().startswith(_GAVE_UP):
        return answer
    return f"{_GAVE_UP.capitalize()}. {answer}".strip()


def _schema(parameter: Mapping[str, Any]) -> dict[str, Any]:
    kind = parameter.get("type")
    found: dict[str, Any] = {"type": kind} if kind in _SIMPLE else {}
    found |= {"description": parameter["description"]} if parameter.get("description") else {}
    found |= {"enum": parameter["values"]} if parameter.get("values") else {}
    return found | ({"default": parameter["default"]} if "default" in parameter else {})


def retrieval(dataset: Dataset, split: str) -> Iterator[Conversation]:
    """Yield a conversation from request to tool id for each request of a split and each of its gold tools."""
    part = dataset.split(split)
    for (request_id, text), gold in zip(part.requests, part.gold, strict=True):
        for tool_id in gold:
            yield _pair(request_id, "retrieval", text, tool_id)


def memorisation(tools: Iterable[Tool]) -> Iterator[Conversation]:
    """Yield a conversation from document to tool id for each tool."""
    for tool in tools:
        yield _pair(tool.id, "memorisation", tool.document(), tool.id)


def _pair(key: str, kind: Kind, text: str, tool_id: str) -> Conversation:
    return Conversation((Turn("user", text), Turn("assistant", tool_id, loss=True, action=tool_id)), key, kind)


def to_record(made: Conversation) -> dict[str, Any]:
    """Return the ShareGPT record of a conversation."""
    turns = [
        {"role": turn.role, "content": turn.content, "loss": turn.loss}
        | ({"action": turn.action} if turn.action else {})
        for turn in made.turns
    ]
    about = {"id": made.id, "kind": made.kind, "tools": [tool.to_record() for tool in made.tools]}
    about |= {SAID: compact(Trajectory("", made.tools, made.said).to_row()["messages"]) if made.said else ""}
    # The record's own fields win over fields of the same name in `about`.
    return dict(made.about) | {"conversations": turns} | {key: value for key, value in about.items() if value}


def from_record(record: Any, where: str) -> Conversation:
    """Read a ShareGPT record; `from` and `value` mean role and content. BadDataset names `where` and the wrong field.

    If no turn has `loss`, all turns of the assistant are learned; if none has `action`, a turn of the assistant after
    "Generate the action." is one.
    """
    turns = record.get("conversations") if isinstance(record, dict) else None
    if not isinstance(turns, list) or not turns:
        raise BadDataset(f"{where}: conversations: a list of one turn or more is needed, got {turns!r:.80}")
    keys = {key for turn in turns if isinstance(turn, dict) for key in turn}
    read: list[Turn] = []
    for at, turn in enumerate(turns):
        read.append(_turn(turn, read[-1] if read else None, keys, f"{where}: conversations[{at}]"))
    about = {key: value for key, value in record.items() if key not in ("conversations", "id", "kind", "tools", SAID)}
    kind = record.get("kind", "")
    if kind not in ("", "trajectory", "retrieval", "memorisation"):
        raise BadDataset(f"{where}: kind: trajectory, retrieval or memorisation is needed, got {kind!r:.80}")
    key, tools = str(record.get("id", "")), known_tools(record.get("tools", []), where)
    said: tuple[TrajectoryMessage, ...] = ()
    if text := record.get(SAID):
        row, place = {"tools": record.get("tools", [])}, f"{where}: {SAID} (mend it, or leave it out)"
        said = Trajectory.from_row(row | {"messages": parsed(str(text), f"{place}: not JSON")}, place).messages
    return Conversation(tuple(read), key, cast(Kind, kind), tools, about, said)


def _turn(turn: Any, before: Turn | None, keys: Collection[str], where: str) -> Turn:
    if not isinstance(turn, dict):
        raise BadDataset(f"{where}: a JSON object is needed, got {type(turn).__name__}")
    role = turn.get("role", turn.get("from"))
    role = _ROLES.get(role, role) if isinstance(role, str) else role
    if role not in ("system", "user", "assistant"):
        raise BadDataset(f"{where}.role: system, user or assistant is needed, got {role!r:.80}")
    content, action = turn.get("content", turn.get("value")), turn.get("action", "")
    if not isinstance(content, str):
        raise BadDataset(f"{where}.content: text is needed, got {type(content).__name__}")
    loss = turn.get("loss", role == "assistant" and "loss" not in keys)
    if not isinstance(loss, bool) or (loss and role != "assistant"):
        raise BadDataset(f"{where}.loss: true or false is needed, and true for the assistant only, got {loss!r:.80}")
    if not isinstance(action, str) or (action and role != "assistant"):
        raise BadDataset(f"{where}.action: a tool's id is needed, and for the assistant only, got {action!r:.80}")
    prompted = "action" not in keys and before is not None and before.role == "user" and before.content.endswith(ACTION)
    return Turn(cast(Role, role), content, loss, content.strip() if prompted and role == "assistant" else action)


def write_sharegpt(path: Path, conversations: Iterable[Conversation]) -> int:
    """Write one record a line, or one JSON array to a .json file, with .gz compressed; return their number."""
    return write_records(path, map(to_record, conversations), one_array=path.name.removesuffix(".gz").endswith(".json"))


def read_sharegpt(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of a JSON Lines or JSON file; BadDataset names the line and the field."""
    return (made for _, made in located_sharegpt(path))


def located_sharegpt(path: Path) -> Iterator[tuple[str, Conversation]]:
    """Yield conversations as read_sharegpt does, each with its file and line."""
    lines = list(files.lines(path))
    if not lines:
        raise BadDataset(f"{path} holds no records; a ShareGPT file has one a line, or is one JSON array of them")
    records = json_lines(path, lines)
    if lines[0][1].lstrip().startswith("["):
        listed = parsed("\n".join(text for _, text in lines), f"{path}: not a JSON array")
        records = ((f"{path} record {number}", record) for number, record in enumerate(listed, 1))
    for where, record in records:
        yield where, from_record(record, where)
