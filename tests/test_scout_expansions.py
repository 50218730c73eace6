"""Expansions through Scout: searched by words and by meaning, never shown, gone with the tool or its text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.toys import HashedWords, catalogue
from toolscout import Scout, Tool
from toolscout.core.expansion import Expansion, with_expansion, write_expansions
from toolscout.errors import BadSource
from toolscout.models.encoders.expanded import WEIGHT, encode_documents

RM = Tool("disk", "rm", "Unlinks directory entries")
SAID = "shred my embarrassing pictures"
WRITTEN = {RM.id: Expansion(SAID, "they must vanish", "does not copy", RM.digest())}


@pytest.fixture(autouse=True)
def encoder(monkeypatch: pytest.MonkeyPatch) -> HashedWords:
    """The toy encoder in place of the real one."""
    toy = HashedWords()
    monkeypatch.setattr("toolscout.retrievers.dense.Encoder.load", lambda folder=None: toy)
    return toy


def scores(scout: Scout, request: str) -> dict[str, float]:
    return {hit.tool_id: hit.score for hit in scout.search(request, k=5).considered}


@pytest.mark.parametrize("retriever", ["bm25", "dense", "hybrid"])
def test_a_users_word_that_only_the_expansion_has_raises_the_tool(tmp_path: Path, retriever: str) -> None:
    def score(scout: Scout) -> float:
        return scores(scout, SAID).get(RM.id, 0.0)

    with Scout.open(tmp_path / "tools.db", retriever) as scout:
        scout.add([RM, *catalogue(4)])
        before = score(scout)
        assert scout.expand(WRITTEN).changed == 1
        assert score(scout) > before
        assert scout.words_only() == 0
    with Scout.open(tmp_path / "tools.db", retriever) as scout:  # it is stored
        assert score(scout) > before
        scout.remove(RM.id)
        assert RM.id not in scores(scout, SAID)
        assert scout.store.expansions() == {}
        scout.add([RM])  # it does not come back with the tool
        assert score(scout) == pytest.approx(before, abs=1e-3)


def test_words_of_an_expansion_find_the_tool_among_many(tmp_path: Path) -> None:
    with Scout.open(tmp_path / "tools.db", "bm25") as scout:
        scout.add([RM, *catalogue(40)])
        assert scout.search(SAID).considered == ()
        scout.expand(WRITTEN)
        assert [hit.tool_id for hit in scout.search(SAID).considered] == [RM.id]
        assert scout.search("copy it").considered == ()  # what it cannot do finds nothing


def test_it_is_never_shown(tmp_path: Path) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([RM, *catalogue(40)], expansions=WRITTEN)
        answer = scout.search("shred my embarrassing pictures", k=3)
        rendered = [scout.render(answer, name).payload for name in ("openai", "anthropic", "mcp")]
        shown = json.dumps(
            [answer.to_dict() | {"request": ""}, rendered, [one.to_record() for one in scout.store.tools()]]
        )
        for word in ("shred", "embarrassing", "vanish", "copy"):
            assert word not in shown
        assert scout.tools([RM.id]) == [RM]


def test_rankings_are_identical_once_it_is_removed(tmp_path: Path) -> None:
    requests = ["directory entries", SAID, *(tool.description for tool in catalogue(10))]
    with Scout.open(tmp_path / "b.db") as other:
        other.add([RM, *catalogue(40)], expansions=WRITTEN)
        assert other.expand({RM.id: Expansion()}).changed == 1
    with Scout.open(tmp_path / "a.db") as plain, Scout.open(tmp_path / "b.db") as other:
        plain.add([RM, *catalogue(40)])
        for request in requests:
            assert scores(other, request) == scores(plain, request)
        digests = [[change.digest for change, _ in one.store.documents(0)] for one in (plain, other)]
        assert sorted(digests[0]) == sorted(digests[1])


def test_it_is_dropped_when_the_tools_text_changes_and_kept_otherwise(tmp_path: Path) -> None:
    with Scout.open(tmp_path / "tools.db") as scout:
        scout.add([RM], label="a", expansions=WRITTEN)
        report = scout.add([replace(RM, tags=("files",))], label="a").report
        assert (report.changed, report.unexpanded) == (1, 0)
        assert set(scout.store.expansions()) == {RM.id}
        changed = replace(RM, description="Unlinks files")
        report = scout.add([changed], label="a").report
        assert (report.changed, report.unexpanded) == (1, 1)
        assert scout.store.expansions() == {}
        again = scout.add([changed], label="a", expansions=WRITTEN).expansions
        assert again is not None
        assert (again.changed, again.outdated, again.unknown) == (0, 1, 0)
        assert scout.expand({"no/tool": Expansion("x")}).unknown == 1
        assert scout.expand({RM.id: Expansion("for anybody")}).changed == 1  # no digest: for whatever text


def test_a_bad_file_stores_nothing(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.jsonl", tmp_path / "good.jsonl"
    write_expansions(good, WRITTEN.items())
    bad.write_text(good.read_text() + "{broken\n")
    with Scout.open(tmp_path / "tools.db") as scout:
        with pytest.raises(BadSource, match="line 2"):
            scout.add([RM], expansions=bad)
        assert scout.count() == 0
        added = scout.add([RM], expansions=good)
        assert added.expansions is not None
        assert (added.report.added, added.embedded, added.expansions.changed) == (1, 1, 1)
        with pytest.raises(BadSource):
            scout.expand(bad)
        assert scout.store.expansions() == WRITTEN


async def _added(scout: Scout) -> int:
    added = await scout.aadd([RM], expansions=WRITTEN)
    assert added.expansions is not None
    return added.expansions.changed


def test_coroutines(tmp_path: Path) -> None:
    import asyncio

    with Scout.open(tmp_path / "tools.db") as scout:
        assert asyncio.run(_added(scout)) == 1


def test_a_vector_is_mostly_of_the_tools_own_text(encoder: HashedWords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.expanded._AT_ONCE", 2)
    texts = ["one", with_expansion("two", "more words"), "three", with_expansion("four", "others"), "five"]
    vectors = np.zeros((5, encoder.dimension), dtype=np.float32)
    for positions, rows in encode_documents(encoder, texts):
        vectors[positions] = rows
    for place, text in {0: "one", 2: "three", 4: "five"}.items():
        assert np.array_equal(vectors[place], encoder.encode([text])[0])
    mixed = (1 - WEIGHT) * encoder.encode(["two"])[0] + WEIGHT * encoder.encode(["more words"])[0]
    assert np.allclose(vectors[1], mixed / np.linalg.norm(mixed), atol=1e-6)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
