"""Prompts of requests: cut to a length, joined, and conversations whose actions are ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.tiny_llama import tiny_llama
from toolscout.data.conversations import Turn
from toolscout.errors import BadModel
from toolscout.models.language.base import Base, open_base
from toolscout.models.language.prompts import Prompter, contents

pytestmark = pytest.mark.slow

LIMIT = 12


@pytest.fixture(scope="module", params=["chatml", "lines"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("tiny")
    if request.param == "chatml":
        tiny_llama(folder)
    else:
        tiny_llama(folder, markup=("<|endoftext|>",), eos_token_id=0)
    return open_base(str(folder))


def test_a_short_text_is_the_chat_itself(base: Base) -> None:
    assert Prompter(base, LIMIT).ask("a hotel") == base.chat([("user", "a hotel")])
    assert Prompter(base, LIMIT).ask("") == base.chat([("user", "")])


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60), other=st.text(max_size=60))
def test_a_long_text_is_cut_and_the_assistant_still_speaks_next(base: Base, text: str, other: str) -> None:
    prompter = Prompter(base, LIMIT)
    frame, closing = base.chat([("user", "")]), base.chat([])
    for made in (prompter.ask(text), prompter.join(prompter.ask(text), prompter.ask(other))):
        assert len(made) <= len(frame) + LIMIT + 1
        assert made[-len(closing) + len(base.chat([], open_turn=False)) :] == closing[len(base.chat([], False)) :]
    whole = base.chat([("user", text)])
    asked = prompter.ask(text)
    assert asked == whole or (len(asked) < len(whole) and asked[: LIMIT + 1] == whole[: LIMIT + 1])


def test_two_requests_are_one_behind_the_other(base: Base) -> None:
    prompter = Prompter(base, LIMIT)
    first, second = prompter.ask("Find"), prompter.ask("8 nights")
    together = base.decode(prompter.join(first, second))
    assert together.replace(" ", "") == base.decode(prompter.ask("Find 8 nights")).replace(" ", "")
    long = prompter.ask("9" * 40)
    assert prompter.join(long, second) == long
    assert len(prompter.join(second, long)) == len(long)


def test_actions_are_written_as_their_ids(base: Base) -> None:
    turns = [
        Turn("user", "Find a hotel"),
        Turn("assistant", "I look", loss=True),
        Turn("user", "Generate"),
        Turn("assistant", "a/b", loss=True, action="a/b"),
        Turn("assistant", "a/c", loss=True, action="a/c"),
    ]
    found = contents(turns, {"a/b": (340, 341)}.get)
    assert [content for _, content in found] == ["Find a hotel", "I look", "Generate", (340, 341), "a/c"]
    tokens, spans = base.chat_with_spans(found)
    said = [tokens[first:last] for first, last in spans]
    assert said[1] == [340, 341, base.end]
    assert [base.decode(one[:-1]).strip() for one in said] == ["I look", "", "a/c"]
    assert {one[-1] for one in said} == {base.end}
    assert base.chat(found)[: len(tokens)] == tokens


def test_no_prompt_is_longer_than_the_model_reads(base: Base) -> None:
    context, behind = base.architecture.context, 5
    prompter = Prompter(base, 10 * context, behind)
    long = prompter.ask("9 " * context)
    assert len(long) == context - behind
    assert len(prompter.join(long, long)) == context - behind
    assert prompter.truncate(long, behind) == long
    shorter = prompter.truncate(long, 20)
    assert (len(shorter), shorter[-1], shorter[:9]) == (context - 20, long[-1], long[:9])
    assert len(prompter.truncate(long, 10 * context)) < 20
    assert Prompter(base, LIMIT, behind).limit == LIMIT
    with pytest.raises(BadModel, match="too few for a request"):
        Prompter(base, LIMIT, context)
