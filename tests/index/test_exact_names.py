"""What a text names is remembered until a tool comes or goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolscout.core.permissions import Allowed
from toolscout.index import exact_names, tool_table
from toolscout.index.exact_names import ExactNames


def test_a_change_counts_at_once() -> None:
    names = ExactNames()
    names.add("a/get_weather")
    assert names.find("get_weather") == {"a/get_weather": "get_weather"}
    names.add("b/get_weather")
    assert set(names.find("get_weather")) == {"a/get_weather", "b/get_weather"}
    names.remove("a/get_weather")
    assert set(names.find("get_weather")) == {"b/get_weather"}
    assert names.is_name("get weather")
    assert not names.is_name("get weather", Allowed(ids=frozenset({"a/get_weather"})))
    names.remove("b/get_weather")
    assert not names.is_name("get weather")


def test_a_saved_tool_that_goes(tmp_path: Path) -> None:
    tool_table.write(tmp_path, ["a/get_weather"], [[]], [""])
    names = ExactNames(tool_table.ToolTable(tmp_path))
    assert names.is_name("get_weather")
    names.remove("a/get_weather")
    assert not names.is_name("get_weather")


def test_a_text_is_looked_up_once_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    names, looked = ExactNames(), list[str]()
    names.add("a/get_weather")
    real = ExactNames._look_up

    def look_up(self: ExactNames, text: str, allowed: Allowed | None) -> object:
        looked.append(text)
        return real(self, text, allowed)

    monkeypatch.setattr(ExactNames, "_look_up", look_up)
    for _ in range(3):
        assert names.is_name("get_weather")
    assert looked == ["get_weather"]
    for number in range(3 * exact_names._RECENT):
        names.is_name(f"text {number}")
        assert len(names._recent) <= exact_names._RECENT
