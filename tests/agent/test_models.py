"""A model that writes tools as the agent's own: it picks, thinks and fills in, and is opened once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from studies import agent_replay as replay
from studies.agent_replay import MeteredModel
from tests.retrievers import generators
from tests.retrievers.scenes import scenes
from toolscout.agent.llm_batch import ask
from toolscout.agent.loop import AgentOptions
from toolscout.agent.model_loading import Models, is_own
from toolscout.agent.recorded_calls import language_model, read_trial
from toolscout.data.conversations import FINISH, Turn
from toolscout.errors import BadRequest, EndpointError
from toolscout.llm.base import Completion, Conversation, Message
from toolscout.llm.scripted import Scripted
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.generative.base import STOP, GenerativeRetriever, prompt

pytestmark = pytest.mark.slow

NAME = "toolgen-agent"


@pytest.fixture(scope="module")
def models() -> Models:
    found = Models()
    found.keep(str(generators.fitted(NAME)), generators.opened(NAME))
    return found


@pytest.fixture
def retriever(models: Models) -> GenerativeRetriever:
    opened = models.retriever(str(generators.fitted(NAME)))[0]
    assert isinstance(opened, GenerativeRetriever)
    return opened


def test_it_speaks_with_the_trained_weights_and_ends_where_it_would_name_a_tool(
    models: Models, retriever: GenerativeRetriever
) -> None:
    llm = models.language_model(str(generators.fitted(NAME)))
    assert llm.name == f"toolgen-{NAME}"
    (one,), (filled,) = llm.complete(
        [[Message("user", "Find")], [Message("user", "Please give the input.")]],
        max_tokens=8,
        schema=[None, {"type": "object", "properties": {"x": {"enum": ["y"]}}, "required": ["x"]}],
    )
    assert one.completion_tokens <= 8
    assert filled.text == '{"x": "y"}'
    tool_id = retriever.ids()[0]
    ends = llm._speaker.ends  # type: ignore[attr-defined]
    assert retriever.base().ends < ends
    assert set(retriever.path(tool_id)) < ends


def test_past_actions_are_ids_as_in_training(retriever: GenerativeRetriever) -> None:
    tool_id = retriever.ids()[0]
    said = [Message("user", "Find"), Message("assistant", tool_id, tool_id), Message("assistant", FINISH, FINISH)]
    tokens, base = prompt(retriever, said), retriever.base()
    for path in (retriever.path(tool_id), (retriever.token(STOP),)):
        at = tokens.index(path[0])
        assert tokens[at : at + len(path) + 1] == [*path, base.end]
    unknown = prompt(retriever, [Message("assistant", "no/tool", "no/tool")])
    assert "no/tool" in base.decode(unknown)


def test_what_was_answered_before_an_endpoint_failed_counts() -> None:
    class Failing(Scripted):
        def complete(self, conversations: Sequence[Conversation], **settings: object) -> list[list[Completion]]:
            error = EndpointError("no money left", 429)
            error.results = [[Completion("yes", 5, 1, "stop")], error, None]
            raise error

    metered = MeteredModel(Failing([]))
    turns = [[Turn("user", word)] for word in "abc"]
    replies = ask(metered, turns, max_tokens=5)
    assert [(one.text, one.failed) for one in replies] == [("yes", ""), ("", "no money left"), ("", "no money left")]
    assert metered.usage.row()["llm_prompt_tokens"] == 5


def test_other_models_do_not_speak(models: Models, tmp_path: Path) -> None:
    Bm25().save(tmp_path / "m")
    assert is_own(str(tmp_path / "m"))
    with pytest.raises(BadRequest, match="writes nothing"):
        models.language_model(str(tmp_path / "m"))
    lines = tmp_path / "script.jsonl"
    lines.write_text('{"text": "hello"}\n')
    assert isinstance(models.language_model(f"scripted:{lines}"), Scripted)


def test_it_is_the_front_and_the_language_model(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    data, folder = scenes(), tmp_path / "d"
    data.save(folder)
    corpus_ids = data.corpus_ids()
    rows = [{"tool_id": corpus_ids[tool.id], "arguments": {}, "response": "done"} for tool in data.tools]
    (folder / "cache.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trial, place = read_trial(folder).first(2), str(generators.fitted(NAME))
    llm = MeteredModel(language_model(trial, place, "", models))
    options = AgentOptions(steps=2, thoughts=False, constrain=False, argument_tokens=8, answer_tokens=8)
    for name, picks, variant in ((place, "itself", NAME), (f"shortlist:{place}", "shortlist", f"shortlist_{NAME}")):
        before = replay.front(trial, name, llm, models=models)
        done = replay.replay(trial, before, llm, options)
        assert done is not None
        assert (done.row["retriever"], done.row["variant"]) == ("toolgen", f"toolgen-{NAME}_{variant}")
        assert done.row["study"]["picks"] == picks
        told = replay.about(trial, name, llm, options, 5)
        assert told["front"] == (NAME if picks == "itself" else f"shortlist:{NAME}")
        assert len(done.episodes) == 2
