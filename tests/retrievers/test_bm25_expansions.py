"""Words of expansions in bm25: they find tools, by a weight of their own, and change nothing where there are none."""

from __future__ import annotations

from pathlib import Path

from tests.toys import catalogue
from toolscout.core.answer import Allowed, MatchedWords
from toolscout.core.scope import Scope
from toolscout.core.tool import Listing, Tool, text_digest
from toolscout.retrievers.bm25 import Bm25, Bm25Options


def listing(tool: Tool, expansion: str = "") -> Listing:
    text = tool.document()
    return Listing(tool.id, tool.namespace, tool.name, tool.aliases, text, text_digest(text + expansion), expansion)


RM = Tool("disk", "rm", "Unlinks directory entries")
FORECAST = Tool("sky", "forecast", "Tells the weather of the coming days")
UMBRELLA = Tool("shop", "sell_umbrella", "Sells umbrellas")
PLAIN = [RM, FORECAST, UMBRELLA, *catalogue(30)]


def ids(index: Bm25, request: str, scope: Scope | None = None) -> list[str]:
    return [tool_id for tool_id, _ in index.rank([request], 5, scope or Scope())[0].pairs]


def index(*expanded: Listing, options: Bm25Options | None = None) -> Bm25:
    made = Bm25(options)
    made.add([listing(tool) for tool in PLAIN])
    made.add(expanded)
    return made


def test_a_word_that_only_an_expansion_has_finds_the_tool() -> None:
    made = index(listing(RM, "erase my pictures"), listing(FORECAST, "do I need an umbrella"))
    assert ids(made, "please erase") == [RM.id]
    assert ids(made, "erasing pictures") == [RM.id]  # stems
    assert ids(made, "an umbrella for Sunday")[:2] == [UMBRELLA.id, FORECAST.id]  # its own words weigh more
    assert RM.id not in ids(index(), "please erase")
    assert RM.id not in ids(index(listing(RM, "erase"), options=Bm25Options(expansions=0)), "erase")


def test_a_word_of_an_expansion_is_not_taken_for_a_misspelt_one() -> None:
    tools = [listing(Tool("a", "b", "marker station")), listing(Tool("c", "d", "something else"), "market shoes")]
    made = Bm25()
    made.add(tools)
    assert ids(made, "market") == ["c/d"]
    assert made.corrected("market", Scope()) == "market"
    assert made.corrected("market", Scope(Allowed.of(ids=["a/b"]))) == "marker"  # hidden words are none


def test_reasons_name_no_word_of_an_expansion() -> None:
    made = index(listing(RM, "erase my pictures"))
    ranking = made.rank(["erase directory pictures"], 5)[0]
    ((reason,),) = made.explain(ranking, [RM.id])
    assert isinstance(reason, MatchedWords)
    assert reason.words == ("directory",)
    assert made.explain(made.rank(["erase"], 5)[0], [RM.id]) == [()]


def test_without_expansions_scores_are_the_same() -> None:
    plain, gone = index(), index(listing(RM, "erase my pictures"))
    gone.add([listing(RM)])
    gone._renew()
    requests = ["tells the weather", "erase umbrellas", "directory entries", *(tool.description for tool in PLAIN)]
    assert [one.pairs for one in gone.rank(requests, 5)] == [one.pairs for one in plain.rank(requests, 5)]
    assert not plain._expanded


def test_it_goes_with_the_tool_and_is_saved(tmp_path: Path) -> None:
    made = index(listing(RM, "erase my pictures"), listing(FORECAST, "erase doubts"))
    made.save(tmp_path / "saved")
    loaded = Bm25.load(tmp_path / "saved")
    assert loaded.rank(["erase"], 5)[0].pairs == made.rank(["erase"], 5)[0].pairs
    assert set(ids(loaded, "erase")) == {RM.id, FORECAST.id}
    loaded.remove([RM.id])
    assert ids(loaded, "erase") == [FORECAST.id]
    loaded._renew()
    assert ids(loaded, "erase") == [FORECAST.id]


def test_an_index_saved_without_expansions_takes_one(tmp_path: Path) -> None:
    index().save(tmp_path / "saved")
    assert "expanded" not in (tmp_path / "saved" / "model.json").read_text()
    loaded = Bm25.load(tmp_path / "saved")
    loaded.add([listing(RM, "erase my pictures")])
    assert ids(loaded, "erase") == [RM.id]
    assert set(loaded.ids()) == {tool.id for tool in PLAIN}
    assert ids(loaded, "directory entries")[0] == RM.id


def test_other_scripts() -> None:
    made = index(listing(RM, "удалить файл"), listing(FORECAST, "刪除檔案"))
    assert ids(made, "удалить") == [RM.id]
    assert ids(made, "檔案") == [FORECAST.id]


def test_one_expanded_tool_does_not_outrank_the_others() -> None:
    # In expansions "send" is rare, in documents it is not.
    tools = [listing(Tool("mail", f"send_{n}", "send a letter to somebody")) for n in range(20)]
    made = Bm25()
    made.add([*tools, listing(Tool("x", "y", "unrelated"), "send")])
    assert "x/y" not in ids(made, "send a letter")


def test_restricted_callers_get_the_full_ranking_filtered() -> None:
    made = index(listing(RM, "erase my pictures"), listing(FORECAST, "erase doubts"))
    full = made.rank(["erase pictures"], 5)[0].pairs
    only = made.rank(["erase pictures"], 5, Scope(Allowed.of(ids=[FORECAST.id, UMBRELLA.id])))[0].pairs
    assert only == [pair for pair in full if pair[0] == FORECAST.id]
