"""A catalogue and its encoder: chosen, kept in the store, switched while the one before answers, lost and found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Split

from tests.llm.fake_endpoint import Answer, FakeEndpoint, refused
from tests.models.tiny_encoders import static_folder
from tests.toys import HashedWords, catalogue
from toolscout import Scout, Tool
from toolscout.core.answer import Similarity
from toolscout.errors import BadModel, EncoderUnavailable, MissingEncoder
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.encoders.settings import VARIABLE
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.search import encoder_fit
from toolscout.search.encoder_choice import full_name

# Words of one meaning in two languages.
MEANINGS = (("weather", "天気"), ("forecast", "予報"), ("mail", "メール"), ("send", "送"), ("lion", "ライオン"))
TOOLS = [
    Tool("weather", "get_forecast", "weather forecast"),
    Tool("post", "send_mail", "send mail"),
    Tool("zoo", "feed", "lion"),
]


def vectors() -> dict[str, Any]:
    rows = np.eye(len(MEANINGS) + 1, dtype=np.float32)
    return {word: rows[place] for place, words in enumerate(MEANINGS) for word in words}


def multilingual(folder: Path, scale: float = 1.0) -> Path:
    """A model2vec folder that knows the words of both languages; others are one unknown word."""
    known = list(vectors())
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate([*known, "[UNK]"])}, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Split(Regex("|".join(known)), "isolated")
    unknown = np.eye(len(MEANINGS) + 1, dtype=np.float32)[-1] * 0.01
    return static_folder(folder, np.stack([*vectors().values(), unknown]) * scale, tokenizer)


def embed(text: str) -> list[float]:
    found = [vector for word, vector in vectors().items() if word in text.lower()]
    total = np.sum([*found, np.full(len(MEANINGS) + 1, 0.001)], axis=0)
    return [float(number) for number in total]


def answering(request: dict[str, Any], _: int) -> Answer:
    data = [{"index": place, "embedding": embed(text)} for place, text in enumerate(request["input"])]
    return 200, {}, json.dumps({"data": data}).encode()


class Other(HashedWords):
    """Another encoder: other vectors, another length; it may stop after some documents."""

    fingerprint = "other-words"
    dimension = 64
    stops_after = 10**9

    def encode_documents(self, texts: Sequence[str]) -> Iterator[Any]:
        for positions, rows in super().encode_documents(texts):
            if self.encoded > self.stops_after:
                raise EncoderUnavailable("it stopped")
            yield positions, rows


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))


def fingerprint(scout: Scout) -> str:
    assert scout.retriever.encoder is not None
    return scout.retriever.encoder.fingerprint


def by_meaning(scout: Scout, request: str) -> list[str]:
    """The tools that the request's vector is near to."""
    hits = scout.search(request, k=3).considered
    return [hit.tool_id for hit in hits if any(isinstance(r, Similarity) and r.cosine > 0.5 for r in hit.reasons)]


def test_a_japanese_request_finds_an_english_tool_with_an_encoder_by_folder(tmp_path: Path) -> None:
    with Scout.open(tmp_path / "tools.db", encoder=multilingual(tmp_path / "encoder")) as scout:
        assert scout.add(TOOLS).embedded == 3
        answer = scout.search("明日の天気予報を教えて")
        assert (answer.verdict, answer.hits[0].tool_id) == ("use", "weather/get_forecast")
    with Scout.open(tmp_path / "tools.db") as scout:  # the store knows its encoder
        assert scout.search("メールを送りたい").hits[0].tool_id == "post/send_mail"


def test_a_japanese_request_finds_an_english_tool_with_an_encoder_by_endpoint(tmp_path: Path) -> None:
    with (
        FakeEndpoint(answering) as fake,
        Scout.open(tmp_path / "tools.db", encoder=f"{fake.url}?model=m") as scout,
    ):
        assert scout.add(TOOLS).embedded == 3
        answer = scout.search("明日の天気予報を教えて")
        assert (answer.verdict, answer.hits[0].tool_id) == ("use", "weather/get_forecast")
        # Its ten words cannot tell requests for tools from talk.
        assert answer.need is None
        assert answer.notes == (
            "need is not predicted, and fit is by another encoder's curve; run: toolscout encoder fit",
        )


def test_the_environment_names_an_encoder_and_what_is_named_in_the_call_goes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = multilingual(tmp_path / "one"), multilingual(tmp_path / "other", 2.0)
    monkeypatch.setenv(VARIABLE, str(one))
    with Scout.open(tmp_path / "a.db") as scout:
        first = fingerprint(scout)
    with Scout.open(tmp_path / "b.db", encoder=other) as scout:
        assert fingerprint(scout) != first
    with Scout.open(tmp_path / "c.db", encoder=f"{one}?document_tokens=3") as scout:
        assert fingerprint(scout) != first


def test_the_encoder_before_answers_until_all_tools_are_embedded_with_another(tmp_path: Path) -> None:
    old, new = HashedWords(), Other()
    with Scout.open(tmp_path / "tools.db", encoder=old) as scout:
        scout.add(catalogue(200))
        expected = scout.search("paint the garden").considered
    # An encoder that a program made has no name, so the store does not know how to open it again.
    with Scout.open(tmp_path / "tools.db", encoder=multilingual(tmp_path / "first")) as scout:
        scout.embed()
        scout.add(TOOLS)
        used = fingerprint(scout)
    with Scout.open(tmp_path / "tools.db", encoder=new) as scout:
        assert scout.switching
        assert fingerprint(scout) == used
        answer = scout.search("天気予報")
        assert answer.considered[0].tool_id == "weather/get_forecast"
        assert any("the one before answers" in note for note in answer.notes)
        scout.add([Tool("late", "comer", "arrives during the change")])  # embeds everything
        assert not scout.switching
        assert fingerprint(scout) == new.fingerprint
        answer = scout.search("paint the garden")
        assert answer.notes == ()
        assert {hit.tool_id for hit in answer.considered} & {hit.tool_id for hit in expected}


def test_another_network_for_requests_needs_no_other_vectors_of_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add(TOOLS)
        used = fingerprint(scout)
    embedded, encode = set[str](), Encoder.encode_documents

    def embeds(encoder: Encoder, texts: Sequence[str]) -> Iterator[Any]:
        embedded.update(texts)
        return encode(encoder, texts)

    monkeypatch.setattr(Encoder, "encode_documents", embeds)
    monkeypatch.setattr(encoder_fit, "is_fitted", lambda _: True)
    with Scout.open(tmp_path / "tools.db", encoder="default?request_file=request.onnx") as scout:
        assert scout.switching
        assert scout.embed() == 0
        assert not scout.switching
        assert fingerprint(scout) != used
        assert scout.words_only() == 0
        assert by_meaning(scout, "will it rain tomorrow?")[0] == "weather/get_forecast"
    with Scout.open(tmp_path / "tools.db", encoder="default") as scout:
        assert scout.embed() == 0
        assert fingerprint(scout) == used
    assert not embedded


def test_an_interrupted_change_of_encoders_loses_nothing(tmp_path: Path) -> None:
    with Scout.open(tmp_path / "tools.db", encoder=multilingual(tmp_path / "first")) as scout:
        scout.add([*catalogue(300), *TOOLS])
        used = fingerprint(scout)
    stopping = Other()
    stopping.stops_after = 128
    with Scout.open(tmp_path / "tools.db", encoder=stopping) as scout:
        with pytest.raises(EncoderUnavailable, match="it stopped"):
            scout.embed()
        assert scout.embedding_problem == "it stopped"
        assert fingerprint(scout) == used
        assert scout.search("天気予報").considered[0].tool_id == "weather/get_forecast"
        done = len(scout.store.vectors(Other.fingerprint, [tool.digest() for tool in scout.store.tools()]))
        assert 0 < done < 303
    again = Other()
    with Scout.open(tmp_path / "tools.db", encoder=again) as scout:
        assert scout.switching
        scout.embed()
        assert not scout.switching
        assert again.encoded == 303 - done  # nothing is embedded twice
    with Scout.open(tmp_path / "tools.db", encoder=again) as scout:
        assert not scout.switching or scout.embed() == 0


def test_an_encoder_that_is_removed_leaves_words_and_comes_back(tmp_path: Path) -> None:
    folder = multilingual(tmp_path / "encoder")
    with Scout.open(tmp_path / "tools.db", encoder=folder) as scout:
        scout.add(TOOLS)
    shutil.move(folder, tmp_path / "away")
    with Scout.open(tmp_path / "tools.db") as scout:
        answer = scout.search("weather forecast")
        assert answer.considered[0].tool_id == "weather/get_forecast"
        assert any("put it back" in note for note in answer.notes)
        added = scout.add([Tool("new", "one", "lion in the mail")])
        assert added.report.added == 1
        assert "put it back" in added.embedding_problem
        with pytest.raises(EncoderUnavailable):
            scout.embed()
    with pytest.raises((MissingEncoder, BadModel)):
        Scout.open(tmp_path / "tools.db", encoder=folder)
    shutil.move(tmp_path / "away", folder)
    with Scout.open(tmp_path / "tools.db") as scout:
        assert scout.embed() == 1
        assert by_meaning(scout, "天気予報") == ["weather/get_forecast"]


def test_an_endpoint_that_is_down_leaves_words_and_an_add_is_embedded_later(tmp_path: Path) -> None:
    down = True

    def script(request: dict[str, Any], number: int) -> Answer:
        return refused(503, "asleep") if down else answering(request, number)

    with (
        FakeEndpoint(script) as fake,
        Scout.open(
            tmp_path / "tools.db", encoder=f"{fake.url}?model=m&retries=1&backoff=0.001&rest=0.01&search_timeout=1"
        ) as scout,
    ):
        added = scout.add(TOOLS)
        assert (added.report.added, added.embedded) == (3, 0)
        assert "503" in added.embedding_problem
        answer = scout.search("a mail that I want to send to somebody")
        assert answer.considered[0].tool_id == "post/send_mail"
        assert answer.need is None
        down = False
        assert scout.embed() == 3
        assert by_meaning(scout, "天気予報") == ["weather/get_forecast"]
        down = True
        answer = scout.search("weather forecast")
        assert answer.considered[0].tool_id == "weather/get_forecast"
        assert any(note.startswith("words alone were searched") for note in answer.notes)


def test_an_endpoint_that_only_the_store_names_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeEndpoint(answering) as fake:
        with Scout.open(tmp_path / "tools.db", encoder=f"{fake.url}?model=m") as scout:
            scout.add(TOOLS)
        asked = len(fake.requests)
        with Scout.open(tmp_path / "tools.db") as scout:
            answer = scout.search("weather forecast")
            assert answer.considered[0].tool_id == "weather/get_forecast"
            assert any("TOOLSCOUT_LLM_HOSTS" in note for note in answer.notes)
        assert len(fake.requests) == asked
        monkeypatch.setenv("TOOLSCOUT_LLM_HOSTS", fake.url)
        with Scout.open(tmp_path / "tools.db") as scout:
            assert by_meaning(scout, "天気予報") == ["weather/get_forecast"]


def test_a_model_folder_that_names_an_endpoint_does_not_have_it_asked(tmp_path: Path) -> None:
    with FakeEndpoint(answering) as fake:
        index = Dense(DenseOptions(encoder=f"{fake.url}?model=m"))
        index.add(TOOLS)
        index.save(tmp_path / "model")
        asked = len(fake.requests)
        loaded = Dense.load(tmp_path / "model")
        ranking = loaded.rank(["天気予報"], 3)[0]
        assert ranking.pairs == []
        assert "TOOLSCOUT_LLM_HOSTS" in ranking.notes[0]
        assert len(fake.requests) == asked


def test_a_model_that_is_bound_to_an_encoder_refuses_another(tmp_path: Path) -> None:
    bound = Dense(DenseOptions(), HashedWords())
    bound.add(TOOLS)
    with pytest.raises(BadModel, match="another encoder"):
        Scout.open(tmp_path / "tools.db", bound, encoder=Other())


def test_the_memory_of_vectors_is_known_before_they_are_made(tmp_path: Path) -> None:
    class Wide(HashedWords):
        fingerprint, dimension = "wide", 4096

    with Scout.open(tmp_path / "tools.db", encoder=Wide()) as scout:
        scout.store.add(TOOLS)
        scout.refresh()
        assert scout.vector_memory() == 3 * 4096 * 5


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("", ""),
        ("default", ""),
        ("default?document_tokens=64", "default?document_tokens=64"),
        ("raw", "raw"),
        ("https://host/v1?model=m", "https://host/v1?model=m"),
        (HashedWords(), None),
    ],
)
def test_the_name_that_a_store_keeps(named: Any, name: str | None) -> None:
    assert full_name(named) == name


def test_a_folder_is_kept_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert full_name("one?pooling=cls") == f"{tmp_path}/one?pooling=cls"
