"""bm25 against a naive BM25 of our own, and the words it corrects."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from tests.toys import WORDS, catalogue
from toolscout.core.answer import MatchedWords
from toolscout.core.scope import EVERYTHING
from toolscout.core.tool import Tool, split_words
from toolscout.index.spelling import edits
from toolscout.retrievers.bm25 import Bm25, Bm25Options

K1, B = 1.2, 0.75


def naive(documents: dict[str, list[str]], request: list[str]) -> dict[str, float]:
    """BM25 as in the textbook, one loop over everything."""
    mean = sum(map(len, documents.values())) / len(documents)
    scores: dict[str, float] = {}
    for tool_id, words in documents.items():
        counts = Counter(words)
        for term in set(request):
            held = sum(term in other for other in documents.values())
            if counts[term]:
                idf = math.log(1 + (len(documents) - held + 0.5) / (held + 0.5))
                weight = counts[term] * (K1 + 1) / (counts[term] + K1 * (1 - B + B * len(words) / mean))
                scores[tool_id] = scores.get(tool_id, 0.0) + idf * weight
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_bm25(seed: int) -> None:
    tools = catalogue(80, seed)
    retriever = Bm25(Bm25Options(stems=0.0, names=0.0, fuzzy=False))
    retriever.add(tools)
    words = {tool.id: tool.document().lower().replace("_", " ").split() for tool in tools}
    request = np.random.default_rng(seed).choice(WORDS, 4).tolist()
    expected = naive(words, request)
    found = {hit.tool_id: hit.score for hit in retriever.search([" ".join(request)], 100)[0]}
    assert found.keys() == expected.keys()
    for tool_id, score in found.items():
        assert score == pytest.approx(expected[tool_id], rel=1e-4)


def test_three_ways_to_match_add_up() -> None:
    tools = catalogue(40)
    one = {}
    for field in ("words", "stems", "names"):
        weights = {"words": 0.0, "stems": 0.0, "names": 0.0, field: 1.0}
        retriever = Bm25(Bm25Options(**weights, fuzzy=False))
        retriever.add(tools)
        one[field] = {hit.tool_id: hit.score for hit in retriever.search(["mail issues"], 40)[0]}
    retriever = Bm25(Bm25Options(words=1.0, stems=0.5, names=2.0, fuzzy=False))
    retriever.add(tools)
    for hit in retriever.search(["mail issues"], 40)[0]:
        total = sum(
            weight * one[field].get(hit.tool_id, 0.0) for field, weight in (("words", 1), ("stems", 0.5), ("names", 2))
        )
        assert hit.score == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize(
    ("misspelt", "right"),
    [
        ("umbrela", "umbrella"),
        ("calender", "calendar"),
        ("recieve", "receive"),
        ("databse", "database"),
        ("invioce", "invoice"),
    ],
)
def test_misspelt_words_are_corrected(misspelt: str, right: str) -> None:
    retriever = Bm25()
    retriever.add([Tool("a", "one", f"does something with a {right}"), *catalogue(30)])
    hits = retriever.search([misspelt], 3)[0]
    assert hits[0].tool_id == "a/one"
    assert any(isinstance(reason, MatchedWords) and reason.words == (misspelt,) for reason in hits[0].reasons)


@pytest.mark.parametrize(
    ("one", "other", "needed"),
    [
        ("weather", "weather", 0),
        ("wether", "weather", 1),
        ("form", "from", 1),
        ("cat", "dog", 3),
        ("kitten", "sitting", 3),
    ],
)
def test_edits_are_counted_up_to_the_limit(one: str, other: str, needed: int) -> None:
    assert edits(one, other, 3) == needed
    assert edits(one, other, 0) == min(needed, 1)


def test_common_terms_of_a_long_request_are_left_out_where_postings_are_bounded() -> None:
    tools = [*(Tool("x", f"common_{n}", "shared word") for n in range(50)), Tool("y", "rare", "shared unicorn")]
    retriever = Bm25(Bm25Options(max_postings=10))
    retriever.add(tools)
    assert [hit.tool_id for hit in retriever.search(["shared unicorn"], 10)[0]] == ["y/rare"]
    assert len(retriever.search(["shared"], 100)[0]) == 51


def test_only_surely_misspelt_plain_words_are_mended() -> None:
    retriever = Bm25()
    retriever.add([Tool("a", "one", "weather forecast for pairs of places"), *catalogue(30)])
    assert retriever.corrected("whats the wether forcast", EVERYTHING) == "whats the weather forecast"
    for kept in (
        "the weather forecast",
        "Paris",
        "in Forcast",
        "see forcast.txt",
        "mail me@forcast.org",
        "wthr",
        "wexyzer",
    ):
        assert retriever.corrected(kept, EVERYTHING) == kept


def test_a_settled_index_scores_as_a_new_one() -> None:
    tools = catalogue(300)
    used, new = Bm25(), Bm25()
    used.add(tools)
    for start in range(0, 90, 10):
        used.remove([tool.id for tool in tools[start : start + 10]])
        used.add(tools[start : start + 10])
    used.remove([tool.id for tool in tools[:20]])
    new.add(tools[20:])
    requests = [" ".join(WORDS[start : start + 3]) for start in range(0, 30, 3)]
    used.settle()
    assert [one.pairs for one in used.rank(requests, 10)] == [one.pairs for one in new.rank(requests, 10)]


@pytest.mark.parametrize(
    "request_text",
    [
        "get the weather of Berlin, please",
        "call getHTTPCode2 or send_the_message-now (running RUNS) for x@y.com at 10:30",
        "a" * 39 + " " + "b" * 40 + " " + "C" * 41 + "d",
        "The my A I'm you Wouldn't HASN'T",
        "\t_ -- 7 e2e\x00x\x7fy ~~",
        "zażółć getCafé naïve 5μs",
    ],
)
def test_words_of_a_request_are_those_that_the_analyzers_find(request_text: str) -> None:
    retriever = Bm25()
    text = f"{request_text} {' '.join(split_words(request_text))}"
    found = retriever._words_of(request_text)
    assert [set(one) for one in found] == [set(retriever._analyzers[name].analyze(text)) for name in ("words", "stems")]


def test_what_was_looked_up_is_forgotten_with_each_change() -> None:
    retriever = Bm25()
    retriever.add([Tool("mail", "send", "Sends a letter.")])
    for _ in range(2):  # the second time it is looked up already
        assert not retriever.rank(["zeppelin"], 5)[0].pairs
        assert retriever.corrected("leter zepelin", EVERYTHING) == "letter zepelin"
    retriever.add([Tool("air", "fly", "Flies a zeppelin.")])
    (ranking,) = retriever.rank(["zeppelin or letter"], 5)
    assert ranking.ids() == ["air/fly", "mail/send"]
    assert [why for (why,) in retriever.explain(ranking, ranking.ids())] == [
        MatchedWords(("zeppelin",), 0.5),
        MatchedWords(("letter",), 0.5),
    ]
    assert retriever.corrected("leter zepelin", EVERYTHING) == "letter zeppelin"
    retriever.remove(["air/fly"])
    (ranking,) = retriever.rank(["zeppelin or letter"], 5)
    assert ranking.ids() == ["mail/send"]
    ((why,),) = retriever.explain(ranking, ranking.ids())
    assert isinstance(why, MatchedWords)
    assert why.share < 0.5  # zeppelin is a word that no tool has
