"""A language model that names tools in plain text, as it is or fine-tuned: the baseline of models that generate ids.

Nothing holds it to the names of tools. It is fine-tuned on the same texts as a model with ids: documents, requests and
trajectories, each with the names of tools where the other has ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolscout.agent.llm_batch import ask
from toolscout.agent.pickers import InventedTool, Pick, Picker, Unpicked
from toolscout.core.option_values import with_settings
from toolscout.core.tool import Tool, split_words
from toolscout.data.conversations import FINISH, Conversation, Spent, Talks, Turn
from toolscout.errors import MissingExtra
from toolscout.llm.base import LanguageModel, Message
from toolscout.retrievers.base import FitProgress
from toolscout.retrievers.generative.conversation_examples import provenance_of, read_conversations
from toolscout.retrievers.provenance import TrainedOn, TrainingSet
from toolscout.training.text_options import TextTrainingOptions

if TYPE_CHECKING:
    from toolscout.training.text_generation import Pair

TASK = "name"
_INSTRUCTIONS = "Name the one tool that does what the user asks for. Answer with its name and nothing else."
_NAME_TOKENS = 48
_AT_ONCE = 256


@dataclass(frozen=True)
class NameWriterOptions(TextTrainingOptions):
    """How the model is fine-tuned; the defaults are those of ToolGen's preset "published".

    memorise, epochs, agent_epochs: epochs over the documents of all tools, over requests, and over trajectories where
        they are given. One schedule of the learning rate goes over all of them.
    """

    rank: int = 0
    memorise: int = 8
    epochs: int = 1
    agent_epochs: int = 1
    rate: float = 4e-5
    batch: int = 1024
    request_tokens: int = 6144
    max_tokens: int = 512


class ToolNames:
    """Finds a tool by a name that was written: its id, or its name where no other tool has that; as words."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        """Take the tools that can be named."""
        tools = list(tools)
        count = Counter(_words(tool.name) for tool in tools)
        self._by_name = {name: tool.id for tool in tools if count[name := _words(tool.name)] == 1}
        self._by_name |= {_words(tool.id): tool.id for tool in tools}

    def find(self, text: str) -> str:
        """Return the id of the tool whose name is the first line of a text; "" where that is the name of no tool."""
        return self._by_name.get(_words(first_line(text)), "")


def first_line(text: str) -> str:
    """Return the first line of a text that is not empty."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _words(name: str) -> str:
    return " ".join(split_words(name)).lower()


class NamePicker(Picker):
    """Has a language model write the name of the next tool, without a list of tools; it may invent one."""

    def __init__(self, llm: LanguageModel, tools: Iterable[Tool]) -> None:
        """`tools`: those that there are."""
        self._llm, self._names = llm, ToolNames(tools)

    def pick(self, conversations: Talks, *, without: Spent = ()) -> list[Pick]:
        """Return the tool that the model names, FINISH, InventedTool, or Unpicked where it failed."""
        found: list[Pick] = []
        for reply in ask(self._llm, conversations, max_tokens=_NAME_TOKENS):
            written = first_line(reply.text)
            if reply.failed:
                found.append(Unpicked(reply.failed))
            elif _words(written) == _words(FINISH):
                found.append(FINISH)
            else:
                found.append(self._names.find(written) or InventedTool(written))
        return found


def write_names(llm: LanguageModel, requests: Sequence[str], progress: FitProgress | None = None) -> list[str]:
    """Return what a language model writes where it is asked to name the tool of each request."""
    written: list[str] = []
    for start in range(0, len(requests), _AT_ONCE):
        prompts = [_prompt(request) for request in requests[start : start + _AT_ONCE]]
        done = llm.complete(prompts, max_tokens=_NAME_TOKENS)
        written += [first_line(one.text) for (one,) in done]
        if progress:
            progress("naming tools", len(written), len(requests))
    return written


def _prompt(text: str) -> list[Message]:
    return [Message("system", _INSTRUCTIONS), Message("user", text)]


def fit(
    data: TrainingSet,
    trajectories: Path | None,
    settings: Sequence[str],
    folder: Path,
    progress: FitProgress | None = None,
) -> None:
    """Fine-tune a language model to name tools, and write it to `folder`; an interrupted training goes on."""
    try:
        from toolscout.training.text_generation import finetune
    except ImportError as error:
        raise MissingExtra("training", "train") from error
    own = with_settings(NameWriterOptions(), "a language model that names tools", settings)
    talks = read_conversations(trajectories) if trajectories else []
    stages = [
        *[list(_documents(data.dataset.tools))] * own.memorise,
        *[list(_requests(data))] * own.epochs,
        *[list(_steps(talks))] * (own.agent_epochs if talks else 0),
    ]
    seen = TrainedOn.of([data]) | provenance_of(talks, trajectories.name if trajectories else "")
    options = with_settings(own, "a language model that names tools", [f"epochs={len(stages)}"])
    about = {"task": TASK, "settings": asdict(own)}
    folder.mkdir(parents=True, exist_ok=True)
    seen.save(folder)
    finetune(options, lambda epoch: stages[epoch], folder, about=about, progress=progress)


def _documents(tools: Iterable[Tool]) -> Iterator[Pair]:
    for tool in tools:
        yield _prompt(tool.document()), tool.id


def _requests(data: TrainingSet) -> Iterator[Pair]:
    split = data.dataset.split(data.train)
    for (_, request), gold in zip(split.requests, split.gold, strict=True):
        for tool_id in gold:
            yield _prompt(request), tool_id


def _steps(talks: Iterable[Conversation]) -> Iterator[Pair]:
    """Yield the turns that the assistant learns, each behind all turns before it."""
    for talk in talks:
        messages = [_message(turn) for turn in talk.turns]
        for at, turn in enumerate(talk.turns):
            if turn.loss:
                yield messages[:at], turn.content


def _message(turn: Turn) -> Message:
    return Message(turn.role, turn.content)
