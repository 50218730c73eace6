"""dense lifts tools that its training has not seen, exactly as if it had ranked them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toys import WORDS, HashedWords, catalogue
from toolscout.core.answer import Allowed
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.retrievers.base import Pairs
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.provenance import TrainedOn

TOOLS = [*catalogue(40), Tool("other", "get_weather_8", "a namesake that nobody has seen")]
ENCODER = HashedWords()
REQUESTS = ["search issue", "get_weather_8 report", "`get_weather_8` or `create_issue_10`", "order map price"]


def model(known: Sequence[Tool], bonus: float = 0.1) -> Dense:
    """A model that was trained on these tools."""
    made = Dense(DenseOptions(new_bonus=bonus), ENCODER)
    made.trained_on = TrainedOn(tools=frozenset(tool.digest() for tool in known))
    return made


def ranked(pairs: Pairs) -> list[tuple[str, float]]:
    return [(tool_id, round(score, 6)) for tool_id, score in pairs]


def all_pairs(made: Dense) -> list[Pairs]:
    """The full ranking of each request."""
    return [ranking.pairs for ranking in made.rank(REQUESTS, 41)]


def by_hand(request: str, tools: Sequence[Tool], known: set[str], bonus: float, allowed: Allowed | None) -> Pairs:
    """Every tool's score by the plain index, plus the bonus where it is new."""
    plain = Dense(encoder=ENCODER)
    plain.add(tools)
    scores = dict(plain.rank([request], len(tools))[0].pairs)
    for tool_id in scores:
        scores[tool_id] += 0.0 if tool_id in known else bonus
    pairs = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
    return [pair for pair in pairs if allowed is None or allowed.permits(pair[0])]


@settings(max_examples=60, deadline=None)
@given(
    known=st.sets(st.integers(0, len(TOOLS) - 1), min_size=1, max_size=len(TOOLS) - 1),
    bonus=st.sampled_from([0.01, 0.1, 0.5, 3.0]),
    request=st.sampled_from(REQUESTS) | st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    spaces=st.none() | st.sets(st.integers(0, 6)),
    k=st.integers(1, len(TOOLS)),
)
def test_the_bonus_is_exact_whoever_asks_for_however_many(
    known: set[int], bonus: float, request: str, spaces: set[int] | None, k: int
) -> None:
    seen = [TOOLS[n] for n in known]
    made = model(seen, bonus)
    made.add(TOOLS)
    allowed = None if spaces is None else Allowed.of({f"space{n}" for n in spaces}, ["other/get_weather_8"])
    expected = by_hand(request, TOOLS, {tool.id for tool in seen}, bonus, allowed)
    assert ranked(made.rank([request], k, Scope(allowed))[0].pairs) == ranked(expected[:k])


@pytest.mark.parametrize("known", [[], TOOLS])
def test_where_all_or_none_are_new_nothing_changes(known: list[Tool]) -> None:
    made, plain = model(known), Dense(encoder=ENCODER)
    for one in (made, plain):
        one.add(TOOLS)
    assert all_pairs(made) == all_pairs(plain)


def test_named_tools_keep_their_order_whatever_k_is() -> None:
    made = model([tool for tool in TOOLS if tool.id != "other/get_weather_8"], bonus=3.0)
    made.add(TOOLS)
    made.add([Tool("zoo", f"lion_{n}", "get weather 8 report") for n in range(5)])  # new, and nearer to the request
    first = made.rank(["use get_weather_8"], 1)[0].pairs[0]
    assert first == made.rank(["use get_weather_8"], 40)[0].pairs[0]
    assert (first[0], first[1] > EXACT_BONUS + 3) == ("other/get_weather_8", True)


def test_tools_that_wait_for_their_vector_do_not_count() -> None:
    made = model(TOOLS[:2])
    vectors = {tool.digest(): ENCODER.encode_request(tool.document()) for tool in TOOLS[:3]}
    made.add(TOOLS, vectors)
    assert (len(made), made.pending()) == (3, 38)
    expected = by_hand("search issue", TOOLS[:3], {tool.id for tool in TOOLS[:2]}, 0.1, None)
    assert ranked(made.rank(["search issue"], 3)[0].pairs) == ranked(expected)
    made.take_vectors({tool.digest(): ENCODER.encode_request(tool.document()) for tool in TOOLS})
    expected = by_hand("search issue", TOOLS, {tool.id for tool in TOOLS[:2]}, 0.1, None)
    assert ranked(made.rank(["search issue"], 41)[0].pairs) == ranked(expected)


def test_a_tool_is_new_or_known_by_its_document(tmp_path: Path) -> None:
    made = model(TOOLS[:20])
    made.add(TOOLS)
    changed = Tool(TOOLS[0].namespace, TOOLS[0].name, "search issue")
    made.add([changed])  # known by name, but what it says now was never seen
    tools = [changed, *TOOLS[1:]]
    expected = by_hand("search issue", tools, {tool.id for tool in TOOLS[1:20]}, 0.1, None)
    assert ranked(made.rank(["search issue"], 41)[0].pairs) == ranked(expected)
    made.save(tmp_path)
    loaded = Dense.load(tmp_path, ENCODER)
    assert all_pairs(loaded) == all_pairs(made)
    made.add([TOOLS[0]])
    made.remove([TOOLS[30].id])
    left = [tool for tool in TOOLS if tool is not TOOLS[30]]
    expected = by_hand("search issue", left, {tool.id for tool in TOOLS[:20]}, 0.1, None)
    assert ranked(made.rank(["search issue"], 41)[0].pairs) == ranked(expected)


def test_many_callers_are_not_all_remembered() -> None:
    made = model(TOOLS[:20])
    made.add(TOOLS)
    for tool in TOOLS:
        made.rank(["search issue"], 3, Scope(Allowed.of(ids=[tool.id])))
        made.rank(["search issue"], 3, Scope(Allowed.of(["space0"], [tool.id])))
    assert len(made._new_rows) <= 64
