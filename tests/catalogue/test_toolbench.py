"""ToolBench's original layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.catalogue.importer_samples import SAMPLES, WEATHER
from toolscout import catalogue
from toolscout.catalogue import ReadOptions
from toolscout.core.tool import Origin
from toolscout.errors import BadSource


def test_each_api_becomes_a_tool(tmp_path: Path) -> None:
    forecast, report = catalogue.read(SAMPLES["toolbench"](tmp_path))
    assert (forecast.id, forecast.tags) == ("Weather Now/Forecast", ("Weather",))
    assert forecast.description == "Forecast for some days"
    assert forecast.service == report.description == "All about the weather."
    assert forecast.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city", "default": "Bern"},
            "days": {"type": "number", "description": "How many", "default": 3},
            "from": {"type": "string", "format": "date"},
            "units": {"type": "string", "enum": ["metric", "us"], "default": "metric"},
            "hourly": {"type": "boolean", "default": False},
        },
        "required": ["city"],
    }
    places = {"city": "path", "days": "query", "from": "query", "units": "query", "hourly": "query"}
    details = {"method": "GET", "path": "/v1/{city}/forecast", "in": places}
    assert forecast.origin == Origin("http", "https://weather.example.com", details)
    assert report.origin is not None
    assert report.origin.details["in"] == {"text": "body"}
    assert report.meta == {"home_url": "https://example.com/weather"}


def test_folder_file_and_value_are_all_read(tmp_path: Path) -> None:
    folder = SAMPLES["toolbench"](tmp_path)
    whole = list(catalogue.read(folder))
    assert list(catalogue.read(folder / "Weather")) == whole
    assert list(catalogue.read(folder / "Weather" / "weather_now.json")) == whole
    assert [tool.id for tool in catalogue.read(WEATHER)] == [tool.id for tool in whole]
    assert [tool.namespace for tool in catalogue.read(folder, ReadOptions(namespace="n"))] == ["n", "n"]


def test_repeated_names_are_kept_apart_and_exact_repeats_dropped() -> None:
    first, second = {"name": "Get", "description": "one"}, {"name": "Get", "description": "two"}
    tools = list(catalogue.read({"name": "T", "api_list": [first, second, first, second]}))
    assert [(tool.name, tool.description) for tool in tools] == [("Get", "one"), ("Get_2", "two")]


def test_types_and_defaults_that_do_not_fit() -> None:
    kinds = [("NUMBER", "inf"), ("NUMBER", "abc"), ("ARRAY", "[]"), ("OBJECT", {"a": 1}), ("TIME (24-hour HH:MM)", 5)]
    parameters = [{"name": f"p{n}", "type": kind, "default": value} for n, (kind, value) in enumerate(kinds)]
    parameters += [{"name": "odd", "type": "GEOPOINT (latitude, longitude)"}, {"name": "none", "type": None}]
    (tool,) = catalogue.read({"name": "T", "api_list": [{"name": "a", "optional_parameters": parameters}]})
    assert list(tool.input_schema["properties"].values()) == [
        {"type": "number"},
        {"type": "number"},
        {"type": "array"},
        {"type": "object", "default": {"a": 1}},
        {"type": "string", "format": "time"},
        {"type": "string"},
        {"type": "string"},
    ]


@pytest.mark.parametrize(
    ("api", "said"),
    [
        (5, "an API must be a JSON object, got int"),
        ({}, "a tool needs a name"),
        ({"name": "a", "required_parameters": {}, "optional_parameters": "x"}, "optional_parameters must be a list"),
        ({"name": "a", "required_parameters": [{"type": "STRING"}]}, "a parameter of required_parameters has no name"),
    ],
)
def test_broken_apis_are_named(api: object, said: str) -> None:
    document = {"name": "T", "api_list": [{"name": "good"}, api]}
    with pytest.raises(BadSource, match=f"API 2: {said}"):
        list(catalogue.read(document))
    options = ReadOptions(keep_going=True)
    assert [tool.name for tool in catalogue.read(document, options)] == ["good"]
    assert len(options.problems) == 1


def test_a_broken_file_among_good_ones(tmp_path: Path) -> None:
    folder = SAMPLES["toolbench"](tmp_path)
    (folder / "Weather" / "zz.json").write_text("{", encoding="utf-8")
    (folder / "Weather" / "zzz.json").write_text(json.dumps({"name": "no list"}), encoding="utf-8")
    with pytest.raises(BadSource, match=r"zz\.json: not JSON"):
        list(catalogue.read(folder))
    options = ReadOptions(keep_going=True)
    assert len(list(catalogue.read(folder, options))) == 2
    assert [problem.partition(".json")[0][-3:] for problem in options.problems] == ["/zz", "zzz"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadSource, match=r"it holds no \.json file"):
        list(catalogue.read(tmp_path / "empty", ReadOptions(kind="toolbench")))
