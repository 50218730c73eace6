"""Hidden tools stay hidden: neither their names nor their words change what a caller gets that may not see them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.retrievers.test_contract import reranker
from tests.serving.http_app import TOOLS as SERVED
from tests.serving.http_app import Served, served
from tests.toys import HashedWords
from toolscout import Scout, Tool
from toolscout.core.answer import Allowed, Answer, Example, MatchedWords, Similarity
from toolscout.core.permissions import Principal, new_key
from toolscout.core.scope import Scope
from toolscout.core.vendor_formats import wire_name
from toolscout.index.exact_names import ExactNames
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.retrievers.memory import Memory
from toolscout.retrievers.rerank.retriever import Rerank, RerankOptions

VERBS = "create list search fetch delete update send archive approve rotate merge split publish cancel".split()
KINDS = "daily internal public monthly draft remote shared open legal old urgent final".split()
NOUNS = "issue event mail file user order weather map price note report invoice secret token budget vote".split()
COUNT = 90


class Remembering(HashedWords):
    """Makes the vector of a text once: every catalogue is compared with the same few hundred requests."""

    @staticmethod
    @cache
    def _vector(text: str) -> NDArray[np.float32]:
        return HashedWords().encode_request(text)

    def encode_request(self, text: str) -> NDArray[np.float32]:
        return self._vector(text)


def dense() -> Dense:
    return Dense(encoder=Remembering())


RETRIEVERS: dict[str, Callable[[], Retriever]] = {
    "bm25": Bm25,
    "dense": dense,
    "memory": lambda: Memory(encoder=Remembering()),
    "hybrid": lambda: Hybrid(parts=[Bm25(), dense()]),
    "hybrid-rrf": lambda: Hybrid(HybridOptions(fusion="rrf"), [Bm25(), dense()]),
    "hybrid-memory": lambda: Hybrid(parts=[Bm25(), Memory(encoder=Remembering())]),
    "rerank": lambda: Rerank(
        RerankOptions(reranker=str(reranker()), deadline_ms=60_000), [Hybrid(parts=[Bm25(), dense()])]
    ),
}
of_each = pytest.mark.parametrize("kind", RETRIEVERS)


def _words(drawn: random.Random) -> list[str]:
    return [drawn.choice(few) for few in (VERBS, KINDS, NOUNS)]


def _catalogue() -> tuple[list[Tool], list[Tool], list[str]]:
    """Tools of ten namespaces, 90 of them hidden whose names nobody else has, and 90 names that are no tool's."""
    drawn, tools = random.Random(7), dict[str, Tool]()
    while len(tools) < 500:
        words = _words(drawn)
        more = " ".join(drawn.sample([*VERBS, *KINDS, *NOUNS], 5))
        tool = Tool(f"space{len(tools) % 10}", "_".join(words), f"{' '.join(words)} {more}")
        tools.setdefault(tool.name, tool)
    found = list(tools.values())
    hidden = [tool for tool in found if not ALLOWED.permits(tool.id)]
    invented: set[str] = set()
    while len(invented) < COUNT:
        invented |= {"_".join(_words(drawn))} - tools.keys()
    return found, drawn.sample(hidden, COUNT), sorted(invented)


ALLOWED = Allowed.of(["space0", "space1", "space2"])
TOOLS, HIDDEN, INVENTED = _catalogue()


@contextmanager
def opened(kind: str, folder: Path, tools: list[Tool]) -> Iterator[Scout]:
    with Scout.open(folder / "tools.db", RETRIEVERS[kind]()) as scout:
        scout.add(tools)
        for number in range(0, 60, 3):
            text, then = tools[number].description[:20], datetime(2026, 1, 1, tzinfo=UTC)
            scout.feedback(Example(text, (tools[number].id,), time=then))
        yield scout


def shown(answer: Answer) -> dict[str, Any]:
    return answer.to_dict() | {"version": 0}


def spellings(tool: Tool) -> list[str]:
    """What counts as the exact name of a tool, alone and in a sentence."""
    words = tool.name.split("_")
    camel = words[0] + "".join(word.title() for word in words[1:])
    alone = [tool.name, tool.id, camel, "-".join(words), " ".join(words), tool.name.upper(), wire_name(tool.id)]
    return [*alone, f"please call {tool.name} for me", f"use '{' '.join(words)}' on the old map", tool.aliases[0]]


@pytest.mark.slow
@of_each
def test_a_hidden_tool_has_no_name(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not see a tool gets the very answer that it would get if the tool had no name."""
    aliased = {tool.id: Tool(tool.namespace, tool.name, tool.description, aliases=("klaatu",)) for tool in HIDDEN[:6]}
    tools = [aliased.get(tool.id, tool) for tool in TOOLS]
    with opened(kind, tmp_path, tools) as scout:
        requests = [text for tool in aliased.values() for text in spellings(tool)] + [tool.name for tool in HIDDEN]
        answers = [scout.search(text, 10, ALLOWED) for text in requests]
        for tool in aliased.values():
            for text in spellings(tool)[:-1]:
                assert scout.search(text).considered[0].tool_id == tool.id  # it is a name for those who see it
    nameless, add = {tool.id for tool in HIDDEN}, ExactNames.add
    monkeypatch.setattr(ExactNames, "add", lambda self, i, aliases=(): None if i in nameless else add(self, i, aliases))
    (tmp_path / "nameless").mkdir()
    with opened(kind, tmp_path / "nameless", tools) as scout:
        assert [shown(scout.search(text, 10, ALLOWED)) for text in requests] == [shown(answer) for answer in answers]
    assert not {reason.kind for one in answers for hit in one.considered for reason in hit.reasons} & {"exact_name"}


def told_apart(some: list[float], others: list[float]) -> float:
    """How often a number tells one of the first from one of the others (area under the curve; a coin: 0.5)."""
    one, other = np.array(some), np.array(others)
    area = float(np.mean(one[:, None] > other[None]) + np.mean(one[:, None] == other[None]) / 2)
    return max(area, 1 - area)


def numbers(answer: Answer, turned: Answer) -> dict[str, float]:
    """What a tester looks at: `turned` is the answer to the same words the other way round, which name nothing."""
    scores = [hit.score for hit in answer.considered] + [0.0] * 10
    before = [hit.score for hit in turned.considered] + [0.0]
    reasons = [reason for hit in answer.considered for reason in hit.reasons]
    cosines = [reason.cosine for reason in reasons if isinstance(reason, Similarity)]
    places = zip(answer.considered, turned.considered, strict=False)
    return {
        "best score": scores[0],
        "second score": scores[1],
        "sum of scores": sum(scores),
        "second to first": scores[1] / (scores[0] or 1),
        "fifth to first": scores[4] / (scores[0] or 1),
        "best score against the turned one's": scores[0] - before[0],
        "ties": float(len(answer.considered) - len({hit.score for hit in answer.considered})),
        "places changed": float(sum(one.tool_id != other.tool_id for one, other in places)),
        "hits": float(len(answer.considered)),
        "below zero": float(sum(score < 0 for score in scores)),
        "best cosine": max(cosines, default=0.0),
        "cosines out of order": float(sum(one < other for one, other in pairwise(cosines))),
        "best share": max((reason.share for reason in reasons if isinstance(reason, MatchedWords)), default=0.0),
        "fit": answer.fit or 0.0,
        "need": answer.need or 0.0,
        "kinds of reasons": float(len({reason.kind for reason in reasons})),
        "notes": float(len(answer.notes)),
        "use": float(answer.verdict == "use"),
    }


@of_each
def test_hidden_names_cannot_be_told_from_invented_ones(kind: str, tmp_path: Path) -> None:
    """90 of each, of the same words. Before: hybrid gave away 90 of 90 by order and by scores."""
    with opened(kind, tmp_path, TOOLS) as scout:

        def asked(names: list[str]) -> list[dict[str, float]]:
            turned = [" ".join(reversed(name.split("_"))) for name in names]
            answers = ([scout.search(text, 10, ALLOWED) for text in texts] for texts in (names, turned))
            return list(map(numbers, *answers))

        secret, other = asked([tool.name for tool in HIDDEN]), asked(INVENTED)
        seen = {name: told_apart([one[name] for one in secret], [one[name] for one in other]) for name in secret[0]}
    assert max(seen.values()) < 0.62, (
        seen
    )  # a number that says nothing is off by .04 mostly, and below .12 nearly always


@of_each
def test_other_requests_get_the_full_ranking_without_the_hidden(kind: str, tmp_path: Path) -> None:
    drawn = random.Random(3)
    with opened(kind, tmp_path, TOOLS) as scout:
        for _ in range(40):
            request = " ".join(drawn.sample([*VERBS, *KINDS, *NOUNS], drawn.randint(1, 6)))
            full = scout.retriever.search([request], len(TOOLS))[0]
            ids = [hit.tool_id for hit in full if ALLOWED.permits(hit.tool_id)]
            own = scout.retriever.search([request], 30, Scope(ALLOWED))[0]
            assert [hit.tool_id for hit in own] == ids[:30]
            ranks = [(-hit.score, hit.tool_id) for hit in own]
            assert ranks == sorted(ranks)


def test_scores_of_hybrid_do_not_say_that_a_better_tool_exists(tmp_path: Path) -> None:
    with opened("hybrid", tmp_path, TOOLS) as scout:
        for tool in HIDDEN[:20]:
            own = scout.retriever.search([f"{tool.description} now"], 120, Scope(ALLOWED))[0]
            best = [hit for hit in own if any(isinstance(reason, Similarity) for reason in hit.reasons)]
            assert best[0].score > 1.32 / 2  # relative to the best of its own, whatever lies above it
            assert min(hit.score for hit in own) > -1  # nor how many: those below the fused depth count like others


RARE = "umbrella"
ZOO = [Tool("zoo", f"feed_{beast}", f"gives the {beast} its dinner at noon") for beast in ("lion", "seal", "zebra")]
SHOP = [Tool("shop", "sell_one", f"sells {RARE} stands"), Tool("shop", "count_all", "counts what is on the shelves")]


@pytest.mark.parametrize("kind", ["bm25", "hybrid", "hybrid-memory"])
@pytest.mark.parametrize(
    "request_text", [RARE, "umbrela", "dinner with an umbrela", f"the lion has an {RARE}", "sebra"]
)
def test_words_of_hidden_tools_are_no_words(kind: str, request_text: str, tmp_path: Path) -> None:
    """A word that only hidden tools have, spelt right or wrong, counts as one that nobody has."""
    other = [Tool("shop", "sell_one", "sells xylophon stands"), SHOP[1]]
    answers = []
    for number, shop in enumerate((SHOP, other)):
        (tmp_path / str(number)).mkdir()
        with Scout.open(tmp_path / str(number) / "tools.db", RETRIEVERS[kind]()) as scout:
            scout.add([*ZOO, *shop])
            answers.append(shown(scout.search(request_text, 5, Allowed.of(["zoo"]))))
            if request_text == "umbrela" and shop is SHOP:
                assert scout.search(request_text, 1).considered[0].tool_id == "shop/sell_one"
    assert answers[0] == answers[1]


def test_ones_own_words_are_still_corrected(tmp_path: Path) -> None:
    with Scout.open(tmp_path / "tools.db", RETRIEVERS["hybrid"]()) as scout:
        scout.add([*ZOO, *SHOP])
        allowed = Allowed.of(["zoo"])
        assert scout.search("zebrq dinnr", 1, allowed).considered[0].tool_id == "zoo/feed_zebra"
        scout.add([Tool("shop", "rent_zebrq", "rents out zebrq dinnr sets")])  # a hidden tool is spelt like that
        assert scout.search("zebrq dinnr", 1, allowed).considered[0].tool_id == "zoo/feed_zebra"
        scout.add([Tool("zoo", "feed_emu", "gives the emu its zebrq dinnr")])
        assert scout.search("zebrq dinnr", 1, allowed).considered[0].tool_id == "zoo/feed_emu"


def test_a_hidden_name_hides_no_other_tool_that_is_called_alike(tmp_path: Path) -> None:
    tools = [Tool("own", "createIssue", "makes one"), Tool("secret", "create_issue", "makes one"), *TOOLS[:20]]
    for kind in RETRIEVERS:
        with Scout.open(tmp_path / f"{kind}.db", RETRIEVERS[kind]()) as scout:
            scout.add(tools)
            assert scout.search("create_issue").considered[0].tool_id == "secret/create_issue"
            hit = scout.search("create_issue", 3, Allowed.of(["own", "space1"])).considered[0]
            assert (hit.tool_id, hit.reasons[0].kind) == ("own/createIssue", "exact_name")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """The server of tests/serving, with an admin who sees the namespace mail alone."""
    with served(tmp_path) as server:
        server.scout.store.put_principal(Principal("half", allow=("mail/*",), admin=True))
        server.keys["half"], resting = new_key("half")
        server.scout.store.add_key(resting)
        yield server


def test_a_hidden_namespace_is_like_none(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a caller may not see is left out before anything is asked of the store, whose time would tell."""
    store, count = server.scout.store, server.scout.store.count
    for name in ("ids", "tools", "namespaces"):
        monkeypatch.setattr(store, name, lambda *_, **__: pytest.fail("the store was asked for all tools"))

    def counted(allowed: Allowed | None = None) -> int:
        assert allowed is not None
        assert allowed.namespaces <= {"mail"}, "the store was asked for what the caller may not see"
        assert all(tool_id.startswith("mail/") for tool_id in allowed.ids)
        return count(allowed)

    monkeypatch.setattr(store, "count", counted)
    for path in ("/page/tools?namespace=", "/tools?namespace="):
        hidden, absent = (server.get(path + space, "guest") for space in ("zoo", "none"))
        assert (hidden.status_code, hidden.json()) == (absent.status_code, absent.json())
        assert hidden.json()["total"] == 0
        assert server.get(path + "mail", "guest").json()["total"] == 2
    assert server.get("/page/tools?find=email", "guest").json()["total"] == 2
    assert server.get("/page/tokens", "guest").status_code == 200
    for path in ("/search", "/page/search"):
        hidden, absent = (
            server.post(path, {"request": "feed the lion", "namespace": space}, "guest") for space in ("zoo", "none")
        )
        assert (hidden.status_code, _timeless(hidden.json())) == (absent.status_code, _timeless(absent.json()))


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "ms"}


def test_an_admin_who_does_not_see_everything_measures_nothing(server: Served) -> None:
    for path in ("/metrics", "/page/sources"):
        answer = server.get(path, "half")
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "sees everything" in answer.json()["detail"]
        assert server.get(path).status_code == 200
    state = server.get("/page/state", "half").json()
    assert (state["tools"], state["namespaces"], state["caller"]) == (2, 1, {"name": "half", "admin": False})


def test_versions_and_counts_of_a_change_are_the_callers(server: Served) -> None:
    waiting = [Tool("zoo", f"wash_{n}", f"washes beast {n}") for n in range(200)]
    server.scout.store.add(waiting, "keeper")
    server.scout.refresh()
    lines = {**server.headers("half"), "Accept": "application/x-ndjson"}
    one = {"namespace": "mail", "name": "reply", "description": "Replies to an email."}
    added = server.post("/tools", {"tools": [one]}, "half").json()
    listed = server.get("/tools", "half").json()
    assert (added["added"], added["version"]) == (1, listed["version"])
    assert added["words_only"] <= 1  # its own alone
    assert listed["version"] != server.scout.store.version()
    told = server.client.post("/tools", json={"tools": [one | {"name": "forward"}]}, headers=lines).text.splitlines()
    assert '"of": 20' not in "".join(told)  # how many others wait
    assert f'"version": {server.get("/tools", "half").json()["version"]}' in told[-1]
    server.scout.store.remove([waiting[0].id])
    removed = server.client.delete("/tools/mail/reply", headers=server.headers("half")).json()
    assert removed["removed"] == 1
    assert removed["words_only"] <= 1
    assert removed["version"] == server.get("/tools", "half").json()["version"]
    assert server.post("/tools", {"tools": [one]}).json()["version"] == server.scout.store.version()


def test_changes_do_not_say_what_exists(server: Served) -> None:
    put = [{"namespace": "zoo", "name": name, "description": "x"} for name in ("feed_lion", "feed_none")]
    answers = [server.post("/tools", {"tools": [one]}, "half") for one in put]
    answers += [server.post("/tools", {"tools": [one], "source": "keeper", "replace": True}, "half") for one in put]
    assert len({(one.status_code, one.text) for one in answers}) == 1
    for ask in (
        lambda tool_id: server.client.delete(f"/tools/{tool_id}", headers=server.headers("half")),
        lambda tool_id: server.post("/tools", {"remove": [tool_id]}, "half"),
        lambda tool_id: server.get(f"/tools/{tool_id}", "half"),
        lambda tool_id: server.post("/feedback", {"request": "feed", "used": [tool_id]}, "half"),
        lambda tool_id: server.post("/page/feedback", {"request": "feed", "rejected": [tool_id]}, "half"),
    ):
        there, absent = (ask(tool_id) for tool_id in ("zoo/feed_lion", "zoo/feed_none"))
        assert there.status_code == absent.status_code == 404
        assert there.text.replace("feed_lion", "feed_none") == absent.text
    assert server.scout.count() == len(SERVED)
