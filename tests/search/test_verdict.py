"""The verdict model: it rises with need and fit, its levels nest, and what cannot be judged goes by thresholds."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.toys import HashedWords, Poems, catalogue
from toolscout import Scout, Tool
from toolscout.core.answer import ExactName, Hit, Level, MatchedWords, PastRequest, Reranked, Similarity
from toolscout.errors import BadModel, BadRequest
from toolscout.integrations.toolbox import Choice
from toolscout.models.rerankers.base import Reranker
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.rerank.retriever import Rerank, RerankOptions
from toolscout.search import encoder_fit
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.tool_need import NeedOptions
from toolscout.search.verdict import (
    ANY_SIGN,
    DEFAULT_LEVEL,
    FEATURES,
    FILE,
    LEVELS,
    Evidence,
    VerdictModel,
    Weights,
    checked_level,
    default_model,
    evidence_of,
    features,
    judge,
    thresholds_verdict,
)
from toolscout.stores.sqlite.store import SqliteStore

LION = Tool("zoo", "feed_lion", "Gives the lion its dinner of fresh meat")
STRICTNESS = {level: place for place, level in enumerate(LEVELS)}
SOME = Evidence(need=0.5, fit=0.0, next=0.5, fifth=1.0, words=0.3, tools=100)


def hits(*cosines: float, share: float = 0.0) -> list[Hit]:
    words = (MatchedWords(("word",), share),) if share else ()
    return [Hit(f"zoo/tool{at}", 1.0 - at, (Similarity(one), *words)) for at, one in enumerate(cosines)]


# The model.


@pytest.mark.parametrize("tools", [1, 3, 10, 200, 46_587])
def test_more_need_and_more_fit_never_make_it_less_likely(tools: int) -> None:
    model, steps = default_model(), np.linspace(0, 1, 13)
    for need, fit in itertools.product(steps[:-1], np.linspace(-6, 6, 13)[:-1]):
        for known in (float(need), None):
            here = replace(SOME, need=known, fit=float(fit), tools=tools)
            more = replace(here, need=None if known is None else known + 1 / 12, fit=here.fit + 1)
            assert model.probability(more) >= model.probability(here)
            for field in ("next", "fifth", "words"):
                assert model.probability(replace(here, **{field: 0.9})) >= model.probability(
                    replace(here, **{field: 0})
                )


def test_coefficients_that_must_not_be_below_0_are_not() -> None:
    for part in (default_model().need, default_model().fit):
        assert all(value >= 0 or name in ANY_SIGN for name, value in zip(FEATURES, part.values, strict=True))
    assert len(features(SOME)) == len(FEATURES)


def test_levels_nest() -> None:
    model, random = default_model(), np.random.default_rng(0)
    for _ in range(500):
        need = None if random.random() < 0.2 else float(random.random())
        tools = int(10 ** random.uniform(0, 5))
        found = Evidence(need, float(random.normal(0, 2)), *random.random(2).tolist(), float(random.random()), tools)
        probability = model.probability(found)
        used = [model.verdict(found, level, probability) == "use" for level in LEVELS]
        assert used == sorted(used, reverse=True)
        assert 0 <= probability <= 1
    for known in (True, False):
        thresholds = [model.threshold(level, known) for level in LEVELS]
        assert thresholds == sorted(set(thresholds))


def test_what_is_told_of_the_rest() -> None:
    model = default_model()
    talk, hopeless = replace(SOME, need=0.01, fit=-1.0), replace(SOME, need=0.97, fit=-5.0)
    assert model.verdict(talk, "strict", model.probability(talk)) == "no_tool_needed"
    assert model.verdict(hopeless, "strict", model.probability(hopeless)) == "nothing_fits"


def test_without_need_it_never_says_that_no_tool_is_needed() -> None:
    model = default_model()
    for fit, tools, level in itertools.product(np.linspace(-8, 8, 17), (1, 50, 40_000), LEVELS):
        found = replace(SOME, need=None, fit=float(fit), tools=tools)
        assert model.verdict(found, level, model.probability(found)) != "no_tool_needed"


# Evidence.


def test_evidence_comes_from_the_first_five_tools() -> None:
    options = FitOptions()
    found = evidence_of(hits(0.6, 0.5, 0.45, 0.4, 0.3, 0.9, share=0.4), 0.7, 0.2, 40, options)
    assert found is not None
    assert found.fit == pytest.approx(options.bias + options.similarity * 0.4)
    assert found.next == pytest.approx(options.similarity * 0.1)
    assert found.fifth == pytest.approx(options.similarity * 0.3)
    assert (found.need, found.words, found.tools, found.reranked) == (0.7, 0.4, 40, None)
    alone = evidence_of(hits(0.6), None, None, 1, options)
    assert alone is not None
    assert (alone.next, alone.fifth, alone.need) == (0, 0, None)
    assert alone.fit == pytest.approx(options.bias + options.similarity * (0.6 - options.usual))


def test_a_near_past_request_counts_as_fit_and_a_reranker_is_read() -> None:
    used = [Hit("zoo/a", 1.0, (Similarity(0.1), PastRequest("feed it", 0.95), Reranked(2.5)))]
    found = evidence_of(used, 0.9, 0.2, 5, FitOptions())
    assert found is not None
    assert found.fit == pytest.approx(FitOptions().steepness * 0.35)
    assert found.reranked == 2.5
    assert features(found)[FEATURES.index("has_reranked")] == 1


def test_words_alone_are_no_evidence() -> None:
    words = [Hit("zoo/a", 1.0, (MatchedWords(("lion",), 0.9),))]
    assert evidence_of(words, None, None, 5, FitOptions()) is None
    assert judge(default_model(), None, words, "strict", "use").verdict == "use"
    assert judge(default_model(), None, [], "strict", "nothing_fits").verdict == "nothing_fits"


def test_a_request_that_names_a_tool_is_to_use_it() -> None:
    named = [Hit("zoo/a", 1.0, (ExactName("a"), Similarity(0.01)))]
    evidence = evidence_of(named, 1.0, 0.5, 5, FitOptions())
    found = judge(default_model(), evidence, named, "strict", "nothing_fits")
    assert (found.verdict, found.probability, found.level) == ("use", 1.0, "strict")


@pytest.mark.parametrize("wrong", [{"need": math.nan}, {"fit": math.nan}, {"words": math.nan}, {"next": math.nan}])
def test_evidence_that_is_not_a_number_is_left_to_the_thresholds(wrong: dict[str, float]) -> None:
    found = judge(default_model(), replace(SOME, **wrong), hits(0.6), "lenient", "nothing_fits")
    assert (found.verdict, found.probability, found.level) == ("nothing_fits", None, None)


def test_thresholds() -> None:
    need, fit = NeedOptions(), FitOptions()
    assert thresholds_verdict(need.threshold - 0.01, 1.0, True, need, fit) == "no_tool_needed"
    assert thresholds_verdict(None, fit.threshold, True, need, fit) == "use"
    assert thresholds_verdict(1.0, 1.0, False, need, fit) == "nothing_fits"


# Files.


def test_a_model_is_saved_and_read_again(tmp_path: Path) -> None:
    default_model().save(tmp_path)
    again = VerdictModel.load(tmp_path)
    assert again.to_dict() == default_model().to_dict()
    assert again.probability(SOME) == pytest.approx(default_model().probability(SOME), abs=1e-4)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("levels", {"lenient": {"use": 0.5, "alone": 0.5}}),
        ("levels", {level: {"use": 0.9 - place / 10, "alone": 0.5} for level, place in STRICTNESS.items()}),
        ("need", {"nonsense": 1.0}),
        ("need", {"need": -1.0}),
        ("need", {"need": float("nan")}),
        ("fit", {"intercept": float("inf")}),
        ("levels", {level: {"use": 1.1, "alone": 0.5} for level in LEVELS}),
        ("levels", {level: {"use": float("nan"), "alone": 0.5} for level in LEVELS}),
        ("fit", "text"),
        ("encoder", None),
    ],
)
def test_a_broken_model_is_a_clear_error(part: str, value: object, tmp_path: Path) -> None:
    record = default_model().to_dict()
    if value is None:
        del record[part]
    else:
        record[part] = value
    (tmp_path / FILE).write_text(json.dumps(record))
    with pytest.raises(BadModel, match="fit it again"):
        VerdictModel.load(tmp_path)


def test_a_model_of_another_encoder_is_not_used(tmp_path: Path, poems: Poems) -> None:
    replace(default_model(), encoder="another").save(poems.folder)
    assert encoder_fit.verdict_model_of(poems) is default_model()
    replace(default_model(), encoder=poems.fingerprint).save(poems.folder)
    assert encoder_fit.verdict_model_of(poems).encoder == poems.fingerprint
    (poems.folder / FILE).write_text("nonsense")
    assert encoder_fit.verdict_model_of(poems) is default_model()
    assert encoder_fit.verdict_model_of(None) is default_model()


def test_any_encoder_gets_a_calibrated_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path))
    encoder = HashedWords()
    report = encoder_fit.fit(encoder)
    model = encoder_fit.verdict_model_of(encoder)
    assert model.encoder == encoder.fingerprint
    assert (report.folder / FILE).is_file()
    assert all(value >= 0 or name in ANY_SIGN for name, value in zip(FEATURES, model.need.values, strict=True))
    assert [model.threshold(level, True) for level in LEVELS] == sorted(
        model.threshold(level, True) for level in LEVELS
    )


def test_an_encoder_that_an_older_version_fitted_is_fitted_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path))
    encoder = HashedWords()
    (encoder_fit.fit(encoder).folder / FILE).unlink()
    assert not encoder_fit.is_fitted(encoder)
    assert encoder_fit.verdict_model_of(encoder) is default_model()
    encoder_fit.fit(encoder)
    assert encoder_fit.is_fitted(encoder)


# Scout.


@pytest.mark.parametrize("level", LEVELS)
def test_an_empty_catalogue(level: Level, tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db", level=level) as scout:
        for needed in (False, True):
            answer = scout.search("give the lion its dinner", needed=needed)
            assert (answer.verdict, answer.use, answer.verdict_level) == ("nothing_fits", None, None)
        assert scout.search("poem poem poem").verdict == "no_tool_needed"
        assert scout.search("poem poem poem", needed=True).verdict == "nothing_fits"


def test_coroutines_take_a_level_too(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([LION])
        answer = asyncio.run(scout.asearch("give the lion its dinner", level="strict", needed=True))
        assert (answer.verdict, answer.verdict_level) == ("use", "strict")
        assert answer.use == scout.search("give the lion its dinner", needed=True).use
        assert answer.use is not None
        assert answer.use >= scout.use_threshold("strict", need_known=False)


def test_an_answer_has_its_probability_and_level(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(50), LION])
        answer = scout.search("give the lion its dinner")
        assert (answer.verdict, answer.verdict_level) == ("use", DEFAULT_LEVEL)
        assert answer.use is not None
        assert answer.use >= scout.use_threshold(DEFAULT_LEVEL)
        record = json.loads(json.dumps(answer.to_dict()))
        assert (record["use"], record["verdict_level"]) == (answer.use, DEFAULT_LEVEL)
        assert record["need"] == answer.need
        assert record["fit"] == answer.fit


def test_levels_nest_in_searches(tmp_path: Path, poems: Poems) -> None:
    texts = [
        f"{' '.join(words)} please" for words in itertools.combinations("lion dinner poem fresh weather".split(), 3)
    ]
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(50), LION])
        for text in texts:
            answers = [scout.search(text, level=level) for level in LEVELS]
            used = [one.verdict == "use" for one in answers]
            assert used == sorted(used, reverse=True)
            assert len({one.use for one in answers}) == 1
            assert [one.verdict_level for one in answers] == list(LEVELS)


@pytest.mark.parametrize("size", [1, 3, 10])
def test_small_catalogues(size: int, tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(size - 1), LION] if size > 1 else [LION])
        assert scout.search("give the lion its dinner of fresh meat").verdict == "use"
        assert scout.search("qwzx vbnm").verdict == "nothing_fits"
        assert scout.search("poem poem poem").verdict == "no_tool_needed"


def test_another_language_is_judged_from_fit_alone(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(50), LION])
        for text in ("Wie wird das Wetter morgen in Berlin, und was ist mit dem Regen?", "明天天气怎么样"):
            for level in LEVELS:
                answer = scout.search(text, level=level)
                assert answer.need is None
                assert answer.verdict != "no_tool_needed"
                assert answer.verdict_level == level


def test_words_alone_go_by_thresholds_at_every_level(tmp_path: Path) -> None:
    with Scout(SqliteStore(tmp_path / "tools.db"), Bm25()) as scout:
        scout.add([*catalogue(30), LION])
        for level in LEVELS:
            answer = scout.search("lion dinner", level=level)
            assert (answer.verdict, answer.use, answer.verdict_level) == ("use", None, None)
            assert scout.search("qwzx vbnm", level=level).verdict == "nothing_fits"


def test_numbers_of_ones_own_decide_in_place_of_a_level(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db", need_options=NeedOptions(threshold=0.0)) as scout:
        scout.add([*catalogue(50), LION])
        assert scout.level is None
        answer = scout.search("poem lion dinner")
        assert (answer.verdict, answer.use, answer.verdict_level) == ("use", None, None)
        assert scout.search("poem poem lion dinner", level="strict").verdict_level == "strict"
        scout.level = "lenient"
        assert scout.search("poem lion dinner").verdict_level == "lenient"
        scout.level = None
        scout.fit_options = replace(scout.fit_options, threshold=1.0)
        assert scout.search("give the lion its dinner").verdict == "nothing_fits"


def test_a_caller_that_knows_the_need_asks_the_catalogue_alone(tmp_path: Path, poems: Poems) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([*catalogue(50), LION])
        talk = "poem poem poem give the lion its dinner of fresh meat"
        assert scout.search(talk).verdict == "no_tool_needed"
        assert scout.search(talk, needed=True).verdict == "use"
        assert scout.search("poem qwzx vbnm", needed=True).verdict == "nothing_fits"


@pytest.mark.parametrize("level", ["", "sloppy", "Strict", 3, ["strict"]])
def test_a_bad_level_names_the_three(level: object, tmp_path: Path, poems: Poems) -> None:
    wanted = "lenient, balanced or strict"
    with pytest.raises(BadRequest, match=wanted):
        checked_level(level)
    with pytest.raises(BadRequest, match=wanted):
        Scout.open(tmp_path / "tools.db", level=level)  # type: ignore[arg-type]
    assert not (tmp_path / "tools.db").exists()
    with Scout.open(tmp_path / "tools.db") as scout:
        with pytest.raises(BadRequest, match=wanted):
            scout.search("give the lion its dinner", level=level)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match=wanted):
            scout.level = level  # type: ignore[assignment]
    with pytest.raises(BadRequest, match=wanted):
        Choice(level=level)  # type: ignore[arg-type]


class Doubts(Reranker):
    """A reranker that finds nothing fitting."""

    name = fingerprint = "doubts"

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        return [-9.0 for _ in documents]


@pytest.mark.parametrize("fitted_with", ["doubts", "another", ""])
def test_the_scores_of_a_reranker_count_where_the_model_was_fitted_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fitted_with: str
) -> None:
    model = default_model()
    sure = Weights(tuple(8.0 if name == "reranked" else 0.0 for name in FEATURES))
    known = replace(model, fit=sure, reranker=fitted_with)
    monkeypatch.setattr("toolscout.search.live_index.verdict_model_of", lambda encoder: known)
    retriever = Rerank(RerankOptions(first=3, deadline_ms=0), [Dense(encoder=HashedWords())], Doubts())
    with Scout(SqliteStore(tmp_path / "tools.db"), retriever) as scout:
        scout.add([LION, Tool("zoo", "wash_bear", "Washes the bear")])
        answer = scout.search("give the lion its dinner", needed=True)
    assert answer.use is not None
    assert (answer.use < 0.01) == (fitted_with == "doubts")
    assert (answer.use == pytest.approx(0.5)) == (fitted_with != "doubts")
