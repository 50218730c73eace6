"""Whatever the patterns: a caller's hits are the full ranking without the others, and the rest is its own alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.toys import WORDS, HashedWords, catalogue
from toolscout import Scout, Tool
from toolscout.core.permissions import Principal
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.serving.access import Access, Caller

TOOLS = catalogue(60)
PATTERNS = ["*", "space1/*", "space[2-4]/*", "*/create*", "space5/*_mail_*", "*/*_1?", "space6/search*", "none/*"]

some = st.lists(st.sampled_from(PATTERNS), max_size=3, unique=True)
requests = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Remembering(HashedWords):
    """Makes the vector of a text once: every catalogue is compared with the same few hundred requests."""

    @staticmethod
    @cache
    def _vector(text: str) -> NDArray[np.float32]:
        return HashedWords().encode_request(text)

    def encode_request(self, text: str) -> NDArray[np.float32]:
        return self._vector(text)


def retriever(kind: str) -> Retriever:
    if kind == "hybrid":
        return Hybrid(parts=[Bm25(), Dense(encoder=Remembering())])
    return Bm25() if kind == "bm25" else Dense(encoder=Remembering())


@pytest.fixture(scope="module", params=["bm25", "dense", "hybrid"])
def access(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    with Scout.open(tmp_path_factory.mktemp(request.param) / "tools.db", retriever(request.param)) as scout:
        scout.add(TOOLS)
        yield Access(scout)


def caller(access: Access, allow: list[str], deny: list[str]) -> Caller:
    access.scout.store.put_principal(Principal("ann", tuple(allow), tuple(deny)))
    return access.named("ann")


@quick
@given(allow=some, deny=some, text=requests, k=st.integers(1, 70))
def test_hits_are_the_full_ranking_without_the_others(
    access: Access, allow: list[str], deny: list[str], text: str, k: int
) -> None:
    who = caller(access, allow, deny)
    rules = access.scout.store.rules("ann")
    mine = [tool.id for tool in TOOLS if rules.permits(tool.id)]
    full = [hit for hit in access.scout.search(text, len(TOOLS)).considered if hit.tool_id in mine]
    answer = access.search(who, text, k)
    if access.scout.retriever.name != "hybrid":
        assert [(hit.tool_id, hit.score) for hit in answer.considered] == [(hit.tool_id, hit.score) for hit in full[:k]]
    else:  # below what it fuses, the order is that of its last part
        assert [hit.tool_id for hit in answer.considered] == [hit.tool_id for hit in full[:k]]
    assert answer.searched == access.count(who) == len(mine)
    assert {tool.id for tool in access.list(who, limit=100)} == set(mine)
    assert sum(access.namespaces(who).values()) == len(mine)


@quick
@given(allow=some, deny=some, text=requests)
def test_the_verdict_is_that_of_a_catalogue_without_the_others(
    tmp_path_factory: pytest.TempPathFactory, allow: list[str], deny: list[str], text: str
) -> None:
    """With vectors alone, which know nothing of how often a word occurs among tools that one may not see."""
    folder = tmp_path_factory.mktemp("twins")
    with (
        Scout.open(folder / "all.db", retriever("dense")) as scout,
        Scout.open(folder / "own.db", retriever("dense")) as twin,
    ):
        scout.add(TOOLS)
        access = Access(scout)
        who = caller(access, allow, deny)
        twin.add([tool for tool in TOOLS if who.allowed is None or who.allowed.permits(tool.id)])
        answer, alone = access.search(who, text), twin.search(text)
    assert [hit.tool_id for hit in answer.considered] == [hit.tool_id for hit in alone.considered]
    assert [hit.reasons for hit in answer.hits] == [hit.reasons for hit in alone.hits]
    assert (answer.verdict, answer.need, answer.searched) == (alone.verdict, alone.need, alone.searched)
    assert answer.fit == pytest.approx(alone.fit, abs=1e-3)
    assert answer.words_only == alone.words_only


@quick
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["mine", "theirs"]), st.integers(0, 4), st.sampled_from(["put", "remove", "alias"])),
        max_size=8,
    ),
    deny=st.booleans(),
)
def test_the_version_moves_with_ones_own_tools_alone(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, str]], deny: bool
) -> None:
    with Scout.open(tmp_path_factory.mktemp("moving") / "tools.db", Bm25()) as scout:
        store, access = scout.store, Access(scout)
        store.put_principal(Principal("ann", ("mine/*",), ("*/tool_4",) if deny else ()))
        fresh = lambda: Access(scout)  # noqa: E731 - another process, or this one after a restart
        seen, states = access.version(access.named("ann")), set()
        for turn, (space, number, action) in enumerate(steps):
            tool = Tool(space, f"tool_{number}", f"turn {turn}")
            there = tool.id in store.ids()
            if action == "put":
                store.add([tool])
            elif there:
                _ = store.remove([tool.id]) if action == "remove" else store.set_alias(tool.id, f"alias {turn}")
            visible = space == "mine" and not (deny and number == 4) and (there or action == "put")
            now = access.version(access.named("ann"))
            assert (now != seen) == visible
            assert now == fresh().version(fresh().named("ann")) < 2**53
            assert now == access.search(access.named("ann"), "turn").version
            if visible and action != "remove":
                assert now not in states
            states.add(now)
            seen = now


def test_the_version_moves_when_one_may_see_other_tools(access: Access) -> None:
    states = {}
    for pattern in PATTERNS[1:]:
        who = caller(access, [pattern], [])
        states[pattern] = (tuple(tool.id for tool in access.list(who)), access.version(who))
    assert len(set(states.values())) == len({version for _, version in states.values()}) > 4
    assert access.version(caller(access, ["space1/*"], [])) == states["space1/*"][1]


@pytest.mark.parametrize("text", ["create_issue_0", "space0/create_issue_0"])
def test_the_name_of_a_tool_that_one_may_not_see_finds_others_or_none(access: Access, text: str) -> None:
    answer = access.search(caller(access, ["*"], ["space0/*"]), text)
    assert all(not hit.tool_id.startswith("space0/") for hit in answer.considered)
    kinds = {reason.kind for hit in answer.considered for reason in hit.reasons}
    assert "exact_name" not in kinds
    if access.scout.retriever.name == "hybrid":  # as for a name that no tool has
        assert "similarity" in kinds
