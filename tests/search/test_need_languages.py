"""Tool need in languages that the head does not know: not told, said why, and searched."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.search.test_tool_need import Homely, Telling, poem_head
from tests.toys import HashedWords, catalogue
from toolscout.core.answer import OTHER_LANGUAGE, ExactName, Hit, PastRequest
from toolscout.core.scope import EVERYTHING
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.models.need_head import NEED_FILE, NeedHead
from toolscout.retrievers.base import Ranking
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.scout import Scout
from toolscout.search.request_language import knows
from toolscout.search.tool_need import NeedEstimator, NeedOptions
from toolscout.stores.sqlite.store import SqliteStore

GERMAN = "poem: Wie wird das Wetter morgen in Berlin, und was ist mit dem Regen?"
JAPANESE = "poem 明日の東京の天気を教えてください"
NOTE = "the request is not in English, the only language that the need head knows: it was searched"


@pytest.fixture
def encoder(tmp_path: Path) -> Homely:
    poem_head().save(tmp_path / "encoder")
    return Homely(tmp_path / "encoder")


def ranked(text: str) -> Ranking:
    return Ranking(text, EVERYTHING, [])


def test_a_head_keeps_the_languages_it_knows(tmp_path: Path) -> None:
    assert poem_head().languages == ("en",)
    for languages in (("en",), ("en", "de", "zh"), ("*",)):
        replace(poem_head(), languages=languages).save(tmp_path)
        assert NeedHead.load(tmp_path).languages == languages


def test_a_head_whose_file_does_not_say_knows_english(tmp_path: Path) -> None:
    poem_head().save(tmp_path)
    with np.load(tmp_path / NEED_FILE) as file:
        older = {name: file[name] for name in file.files if name != "languages"}
    np.savez(tmp_path / NEED_FILE, **older)
    assert NeedHead.load(tmp_path).languages == ("en",)


def test_need_is_not_told_in_other_languages(encoder: Homely) -> None:
    estimator = NeedEstimator(Dense(encoder=encoder))
    found = estimator.need(["write a poem", GERMAN, "send a mail", JAPANESE])
    assert found is not None
    assert [need is None for need in found] == [False, True, False, True]
    for text in (GERMAN, JAPANESE):
        assert estimator.need_of(ranked(text), [], NeedOptions()) is None
        assert estimator.unknown_language(ranked(text)) == NOTE
    assert estimator.unknown_language(ranked("write a poem")) == ""


def test_a_head_that_knows_a_language_is_asked_about_it(encoder: Homely) -> None:
    replace(poem_head(), languages=("en", "de")).save(encoder.folder)
    estimator = NeedEstimator(Dense(encoder=encoder))
    assert estimator.need_of(ranked(GERMAN), [], NeedOptions()) is not None
    assert estimator.need_of(ranked(JAPANESE), [], NeedOptions()) is None
    told = estimator.unknown_language(ranked(JAPANESE))
    assert told == "the request is not in a language that the need head knows (en, de): it was searched"
    assert told.startswith(OTHER_LANGUAGE)


def test_a_head_that_knows_all_languages_is_always_asked(encoder: Homely) -> None:
    replace(poem_head(), languages=("*",)).save(encoder.folder)
    found = NeedEstimator(Dense(encoder=encoder)).need([GERMAN, JAPANESE, "ᏣᎳᎩ"])
    assert found is not None
    assert None not in found


def test_a_name_and_a_repeated_request_need_a_tool_in_any_language(encoder: Homely) -> None:
    estimator, options = NeedEstimator(Dense(encoder=encoder)), NeedOptions()
    assert estimator.need_of(ranked(GERMAN), [Hit("a/b", 1.0, (ExactName("b"),))], options) == 1.0
    assert estimator.need_of(ranked(GERMAN), [Hit("a/b", 1.0, (PastRequest("Wetter?", 0.95),))], options) == 0.95
    assert estimator.need_of(ranked(GERMAN), [Hit("a/b", 1.0, (PastRequest("Wetter?", 0.5),))], options) is None


def test_a_tower_of_its_own_is_asked_in_any_language(encoder: Homely) -> None:
    own = Telling(encoder=encoder)
    own.add(catalogue(3))
    ranking = own.rank([GERMAN], 2)[0]
    assert NeedEstimator(own).need_of(ranking, [], NeedOptions()) == 0.125
    assert NeedEstimator(own).unknown_language(ranking) == ""


def test_without_a_head_nothing_is_said_of_languages() -> None:
    for retriever in (Bm25(), Dense(encoder=HashedWords())):
        assert NeedEstimator(retriever).unknown_language(ranked(GERMAN)) == ""


def test_scout_searches_and_says_why(encoder: Homely, tmp_path: Path) -> None:
    with Scout(SqliteStore(tmp_path / "tools.db"), Hybrid(parts=[Bm25(), Dense(encoder=encoder)])) as scout:
        scout.add(catalogue(20))
        for text in (GERMAN, JAPANESE):
            answer = scout.search(text)
            assert answer.verdict != "no_tool_needed"
            assert answer.need is None
            assert answer.notes == (NOTE,)
            assert json.loads(json.dumps(answer.to_dict()))["need"] is None
            assert scout.need(text) is None
        talk = scout.search("write a poem")
        assert (talk.verdict, talk.notes) == ("no_tool_needed", ())


@pytest.mark.slow
@pytest.mark.parametrize("language", ["ko", "es", "zh", "fr", "de", "ru", "pt_BR", "ja", "hi", "ar", "it", "tr"])
def test_hardly_any_request_in_another_language_is_taken_to_need_no_tool(language: str) -> None:
    if "TOOLSCOUT_DATA" not in os.environ or not (Path(os.environ["TOOLSCOUT_DATA"]) / "tldr-languages").is_dir():
        pytest.skip("TOOLSCOUT_DATA has no tldr-languages")
    texts = [text for _, text in Dataset.load(find_dataset("tldr-languages"), [language]).split(language).requests]
    found = NeedEstimator(Dense()).need(texts)
    assert found is not None
    assert sum(need is not None and need < NeedOptions().threshold for need in found) <= 0.02 * len(texts)


def test_hardly_any_english_goal_is_taken_for_another_language() -> None:
    if "TOOLSCOUT_DATA" not in os.environ or not (Path(os.environ["TOOLSCOUT_DATA"]) / "tldr").is_dir():
        pytest.skip("TOOLSCOUT_DATA has no tldr")
    texts = [text for _, text in Dataset.load(find_dataset("tldr"), ["dev"]).split("dev").requests]
    assert sum(not knows(("en",), text) for text in texts) <= 0.001 * len(texts)


def test_english_requests_of_the_bundled_benchmark_are_told_as_before() -> None:
    data = Dataset.load(find_dataset("bundled"), ["dev", "test"])
    pairs = (find_dataset("bundled") / "need_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [*data.requests.values(), *(json.loads(line)["text"] for line in pairs)]
    found = NeedEstimator(Dense()).need(texts)
    assert found is not None
    untold = [text for text, need in zip(texts, found, strict=True) if need is None]
    assert len(untold) == 8
    assert all(set(text) & set("äöüßéèàáíóúñ¿«") or "wer ist" in text or "steht in" in text for text in untold)
