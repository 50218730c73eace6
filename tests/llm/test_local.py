"""The local engine over toy models: batches, stops, samples, seeds, windows, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.llm.language_toys import Follower, RandomWriter, ToySpeaker
from tests.models.tiny_llama import tiny_llama
from toolscout.errors import BadCompletion, BadRequest
from toolscout.llm import open_llm
from toolscout.llm.base import Message, complete_each
from toolscout.llm.local import Local

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
}


def asked(*texts: str) -> list[list[Message]]:
    return [[Message("system", "Help."), Message("user", text)] for text in texts]


def toy(batch: int = 4, seed: int = 0, context: int = 2000) -> tuple[Local, RandomWriter]:
    speaker = ToySpeaker(context)
    writer = RandomWriter(speaker.tokenizer.get_vocab_size(), favour=sorted(speaker.ends))
    return Local(writer, speaker, batch=batch, seed=seed), writer


def told(*texts: str) -> Local:
    speaker = ToySpeaker()
    return Local(Follower(speaker.tokenizer, texts), speaker)


def test_prompts_are_the_chat_and_answers_come_in_order() -> None:
    model, writer = toy(batch=2)
    requests = asked("a long request, longer than the others", "b", "middling c")
    answers = model.complete(requests, max_tokens=5)
    alone = [model.complete([request], max_tokens=5)[0] for request in requests]
    assert answers == alone  # whatever the batch
    assert [len(batch) for batch in writer.batches[:2]] == [2, 1]
    speaker = ToySpeaker()
    prompts = [speaker.decode(prompt) for batch in writer.batches[:2] for prompt in batch]
    assert sorted(prompts) == sorted(f"system: Help.\nuser: {one[1].content}\nassistant: " for one in requests)
    assert all(one.prompt_tokens == len(speaker.chat([(m.role, m.content) for m in request])) for request, (one,) in
               zip(requests, answers, strict=True))  # fmt: skip


def test_a_stop_string_ends_the_text_and_is_not_in_it() -> None:
    model = told("Lisbon and then\nUser: more", "no stop here")
    (first,), (second,) = model.complete(asked("x", "y"), stop=["\nUser:", "<end>"], max_tokens=100)
    assert (first.text, first.finish) == ("Lisbon and then", "stop")
    assert first.completion_tokens < len("Lisbon and then\nUser: more")
    assert (second.text, second.finish) == ("no stop here", "stop")


def test_a_text_that_is_cut_says_so() -> None:
    (one,) = told("abcdefghij").complete(asked("x"), max_tokens=4)[0]
    assert (one.text, one.completion_tokens, one.finish, one.cost) == ("abcd", 4, "length", 0.0)


def test_samples_differ_and_come_again_with_the_same_seed() -> None:
    def drawn(seed: int) -> list[str]:
        return [one.text for one in toy(seed=seed)[0].complete(asked("x"), n=6, temperature=1.0, max_tokens=9)[0]]

    assert len(set(drawn(1))) > 1
    assert drawn(1) == drawn(1) != drawn(2)


def test_the_likeliest_words_are_written_once_however_many_are_asked_for() -> None:
    model, writer = toy()
    completions = model.complete(asked("x"), n=3, max_tokens=6)[0]
    assert len(completions) == 3
    assert len(set(completions)) == 1
    assert len(writer.batches[0]) == 1


def test_json_fits_the_schema_in_every_sample() -> None:
    model, _ = toy(batch=3)
    for completions in model.complete(asked("x", "y"), n=4, temperature=1.0, max_tokens=300, schema=SCHEMA):
        for one in completions:
            value = json.loads(one.text)
            assert set(value) <= {"city", "days"}
            assert len(value["city"]) <= 9
    wish = '{"city": "Lisbon", "days": 3}'
    assert told(wish).complete(asked("x"), schema=SCHEMA)[0][0].text == wish


def test_a_conversation_longer_than_the_window_fails_alone_and_a_tight_one_cuts_no_other() -> None:
    model, writer = toy(context=60)
    requests = asked("short", "far too long " * 9, "a" * 20)
    found = complete_each(model, requests, max_tokens=12)
    assert isinstance(found[1], BadCompletion)
    assert "fewer than 60; shorten it" in str(found[1])
    assert isinstance(found[0], list)
    assert isinstance(found[2], list)
    assert [len(batch) for batch in writer.batches] == [1, 1]
    with pytest.raises(BadCompletion, match="1 of 3 conversations failed"):
        model.complete(requests, max_tokens=12)


def test_json_that_is_not_done_in_time_is_closed_or_fails_with_the_reason() -> None:
    wishes = '{"city": "Lisbon and more"}', '{"city": "Lisbon"}'
    (closed,) = told(*wishes).complete(asked("x"), schema=SCHEMA, max_tokens=4)[0]
    assert (closed.text, closed.finish) == ('{"city": "Lisbon"}', "length")
    with pytest.raises(BadCompletion, match="raise max_tokens"):
        told(*wishes).complete(asked("x"), schema=SCHEMA, max_tokens=3)


@pytest.mark.parametrize(
    "settings", [{"n": 0}, {"max_tokens": 0}, {"temperature": -1.0}, {"stop": "x"}, {"stop": [""]}]
)
def test_calls_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        toy()[0].complete(asked("x"), **settings)


def test_conversations_that_make_no_sense_are_refused() -> None:
    for conversation in ([], [Message("bot", "x")]):  # type: ignore[arg-type]
        with pytest.raises(BadRequest):
            toy()[0].complete([conversation])
    assert toy()[0].complete([]) == []


def test_rows_of_one_batch_are_written_each_under_its_own_schema() -> None:
    word: dict[str, Any] = {"type": "object", "properties": {"w": {"enum": ["x", "y"]}}, "required": ["w"]}
    impossible: dict[str, Any] = {"type": "object", "properties": {"w": {"enum": []}}, "required": ["w"]}
    model, writer = toy(batch=8)
    found = complete_each(model, asked("a", "b", "c", "d"), schema=[SCHEMA, word, None, impossible], max_tokens=300)
    assert [len(batch) for batch in writer.batches] == [3]
    assert isinstance(found[3], BadCompletion)
    texts = [one[0].text for one in found[:3] if isinstance(one, list)]
    assert "city" in json.loads(texts[0])
    assert json.loads(texts[1])["w"] in ("x", "y")
    speaker = ToySpeaker()
    free = Local(RandomWriter(speaker.tokenizer.get_vocab_size(), favour=sorted(speaker.ends)), speaker)
    assert texts[2] == free.complete(asked("c"), max_tokens=300)[0][0].text
    wishes = '{"city": "Lisbon"}', "so be it\nUser:"
    said = told(*wishes).complete(asked("x", "y"), schema=[SCHEMA, None], stop=["\nUser:"])
    assert [one.text for (one,) in said] == ['{"city": "Lisbon"}', "so be it"]


def test_what_messages_say_can_be_put_into_tokens_by_the_caller() -> None:
    speaker = ToySpeaker()
    writer = RandomWriter(speaker.tokenizer.get_vocab_size(), favour=sorted(speaker.ends))
    model = Local(writer, speaker, prompt=lambda messages: [len(message.content) for message in messages])
    model.complete(asked("abc"), max_tokens=2)
    assert writer.batches == [[[5, 3]]]


@pytest.mark.slow
def test_an_opened_model_runs_on_onnx_runtime_and_on_the_device_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_llama(tmp_path)
    found = []
    for device in ("", "cpu"):
        monkeypatch.setenv("TOOLSCOUT_DEVICE", device)
        model = open_llm(str(tmp_path))
        assert isinstance(model, Local)
        assert model._batch == (4096 if device else 16)
        answers = model.complete([[Message("user", "Find")]] * 2, max_tokens=4, schema=[None, {"enum": [["a"]]}])
        assert answers[1][0].text == '["a"]'
        assert answers[0][0].prompt_tokens > 0
        found.append(type(model._writer).__name__)
    assert found == ["OnnxEngine", "TorchEngine"]
