"""What the integrations share, without any framework: the choice among an agent's tools, and calls of others."""

from __future__ import annotations

import importlib
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.workshop import CALLER, LION, NAMES, NOTHING
from toolscout import Allowed, Scout
from toolscout.errors import BadRequest, MissingLibrary, ToolscoutError, UnknownTool
from toolscout.integrations import Choice
from toolscout.integrations.toolbox import REQUIREMENTS, Offer, Offered, Toolbox, chosen_names, text_of

IDS = {name: f"workshop/{name}" for name in NAMES}


@dataclass(frozen=True)
class Own:
    """A tool of some framework."""

    name: str
    description: str
    schema: dict[str, Any] | None = None


@pytest.fixture
def own(stocked: Scout) -> list[Own]:
    return [Own(tool.name, tool.description) for tool in stocked.tools(IDS.values())]


def box(scout: Scout, choice: Choice | None = None) -> Toolbox[Own]:
    return Toolbox(scout, choice, lambda tool: (tool.description, tool.schema))


def names(tools: list[Own]) -> list[str]:
    return [tool.name for tool in tools]


def test_the_right_ones_the_pinned_and_the_used_are_sent_in_their_order(stocked: Scout, own: list[Own]) -> None:
    choice = Choice(k=1, pinned=("set_alarm", "no_such"), ids=IDS)
    assert names(box(stocked, choice).narrowed(LION, own, ["get_weather"])) == ["get_weather", "set_alarm", "feed_lion"]
    assert names(box(stocked, choice).narrowed(LION, own[::-1])) == ["feed_lion", "set_alarm"]


def test_all_are_sent_where_there_is_nothing_to_choose(stocked: Scout, own: list[Own]) -> None:
    assert box(stocked, Choice(k=1, ids=IDS)).narrowed(" ", own) == own
    assert box(stocked, Choice(k=1, ids=IDS)).narrowed(LION, own[:9]) == own[:9]
    assert box(stocked, Choice(k=99, ids=IDS)).narrowed(LION, own) == own
    assert names(box(stocked, Choice(k=1, ids=IDS, pass_through=0)).narrowed(LION, own[-3:])) == ["feed_lion"]


def test_abstaining_is_honest_and_a_search_always_is(stocked: Scout, own: list[Own]) -> None:
    assert len(box(stocked, Choice(k=2, ids=IDS)).narrowed(NOTHING, own)) == 2
    assert box(stocked, Choice(k=2, ids=IDS, abstain=True)).narrowed(NOTHING, own) == []
    assert box(stocked, Choice(ids=IDS)).found(NOTHING, own) == []
    assert names(box(stocked, Choice(k=1, ids=IDS)).found("lion meat", own)) == ["feed_lion"]
    assert box(stocked).found(LION, []) == []
    with pytest.raises(BadRequest, match="empty"):
        box(stocked, Choice(ids=IDS)).found("", own)


def test_only_the_tools_at_hand_are_searched(stocked: Scout, own: list[Own]) -> None:
    assert "feed_lion" not in names(box(stocked, Choice(ids=IDS)).found(LION, own[:-1]))


def test_own_tools_are_described_to_the_scout_once_and_again_when_they_change(scout: Scout, own: list[Own]) -> None:
    reads: list[str] = []

    def read(tool: Own) -> tuple[str, None]:
        reads.append(tool.name)
        return tool.description, None

    chooser = Toolbox(scout, Choice(k=1), read)
    for _ in range(3):
        assert names(chooser.narrowed(LION, own)) == ["feed_lion"]
    assert reads == NAMES
    assert (scout.count(), scout.search(LION).version) == (len(NAMES), 1)
    changed = [replace(tool, description="Milks the cow") if tool.name == "set_alarm" else tool for tool in own]
    assert names(chooser.narrowed("milk the cow", changed)) == ["set_alarm"]
    assert reads == [*NAMES, "set_alarm"]


def test_a_tool_that_the_catalogue_cannot_take_is_sent_and_never_found(scout: Scout, own: list[Own]) -> None:
    odd = Own(" feed\nlion ", "Feeds the lion")
    assert box(scout, Choice(k=1)).narrowed("play a song", [*own, odd])[-1] is odd
    assert odd not in box(scout).found(LION, [*own, odd])


def test_ids_that_are_not_in_the_catalogue_are_refused(stocked: Scout) -> None:
    with pytest.raises(UnknownTool, match="no_such"):
        box(stocked, Choice(ids={"x": "workshop/no_such"}))


def offered(scout: Scout, **options: Any) -> Offered[Offer]:
    return Offered(scout, lambda offer: offer, **options)


def test_tools_of_the_catalogue_are_found_and_called(stocked: Scout) -> None:
    catalogue = offered(stocked, k=1, caller=CALLER)
    lion = catalogue.found(LION)["workshop__feed_lion"]
    assert catalogue.fetched(LION)["workshop__feed_lion"] is lion is catalogue.named("workshop__feed_lion")
    assert lion.call({"meat": "beef"}).content == "the lion ate beef"
    assert "meat" in lion.call({}).observation
    assert "lions do not eat salad" in lion.call({"meat": "salad"}).observation
    assert "JSON object" in lion.call(["beef"]).observation
    assert catalogue.named("workshop__play_music") is None


def test_what_a_catalogue_names_is_not_run_by_itself(stocked: Scout) -> None:
    lion = offered(stocked, k=2).found(LION)["workshop__feed_lion"]
    result = lion.call({"meat": "beef"})
    assert not result.ok
    assert "may not be called from here" in result.error


def test_nothing_is_offered_where_nothing_fits_or_nothing_is_asked(stocked: Scout) -> None:
    assert offered(stocked).found(NOTHING) == offered(stocked).fetched(NOTHING) == offered(stocked).fetched(" ") == {}


def test_what_is_not_allowed_is_not_offered(stocked: Scout) -> None:
    catalogue = offered(stocked, allowed=Allowed.of(ids=["workshop/play_music"]))
    assert list(catalogue.found("play a song")) == ["workshop__play_music"]
    assert "workshop__feed_lion" not in catalogue.fetched(LION)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, set()),
        ("auto", {"auto"}),
        ({"type": "tool", "name": "a"}, {"a"}),
        ({"type": "function", "function": {"name": "a"}}, {"a"}),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "a"}, {"name": "b"}, 3]}, {"a", "b"}),
        ({"name": 3, "function": 4}, set()),
    ],
)
def test_tools_that_a_choice_names(choice: Any, expected: set[str]) -> None:
    assert chosen_names(choice) == expected


def test_the_words_of_a_message() -> None:
    assert text_of("a") == "a"
    assert text_of([{"type": "input_text", "text": "a"}, {"type": "input_image"}, "b"]) == "a b"
    assert text_of(None) == ""


def test_the_extra_asks_for_what_was_tested() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert sorted(project["optional-dependencies"]["integrations"]) == sorted(REQUIREMENTS.values())


MAKERS = {
    "langchain": ("middleware", "langchain"),
    "llamaindex": ("catalogue_retriever", "llama_index"),
    "pydantic_ai": ("tool_search", "pydantic_ai"),
    "haystack": ("catalogue_toolset", "haystack"),
    "openai_agents": ("catalogue_tools", "agents"),
    "fastmcp": ("search_transform", "fastmcp"),
}


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_a_missing_library_is_named_with_the_line_that_installs_it(
    name: str, scout: Scout, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, root = MAKERS[name]
    for module in [root, *(module for module in sys.modules if module.startswith(f"{root}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    make = getattr(importlib.import_module(f"toolscout.integrations.{name}"), maker)
    with pytest.raises(MissingLibrary, match=f"integrations.{name} needs") as caught:
        make(scout)
    assert str(caught.value).endswith(f"run: pip install '{REQUIREMENTS[name]}'")
    assert isinstance(caught.value, ToolscoutError)
    assert isinstance(caught.value, ImportError)
