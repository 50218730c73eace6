"""What holds for every importer that is found, and for the choice among them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.catalogue.contract import ImporterContract, check_tools
from tests.catalogue.importer_samples import PETSTORE, SAMPLES, WEATHER, json_values, mcp_tool, mutated, write_lines
from toolscout import catalogue
from toolscout.catalogue import Importer, ReadOptions, registry
from toolscout.catalogue.base import unique
from toolscout.catalogue.importers import mcp
from toolscout.catalogue.importers.beir import BeirImporter
from toolscout.catalogue.mcp.client import McpServer, ServerListing
from toolscout.catalogue.mcp.config import config_servers
from toolscout.core.tool import Tool
from toolscout.errors import BadSource, DuplicateTool, ToolscoutError

NAMES = list(registry.available())


def check_references(schema: Any) -> None:
    """Each $ref of a schema leads to one of its own $defs."""
    defs, waiting = schema.get("$defs", {}), [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                assert reference.removeprefix("#/$defs/") in defs
            for key, inner in value.items():
                if key in ("properties", "$defs", "patternProperties"):
                    waiting += inner.values()
                elif key not in ("default", "const", "enum", "examples"):
                    waiting.append(inner)
        elif isinstance(value, list):
            waiting += value


def test_every_importer_has_a_sample() -> None:
    assert set(SAMPLES) == set(NAMES) == {"beir", "functions", "jsonl", "mcp", "openapi", "toolbench"}


class TestBuiltIn(ImporterContract):
    @pytest.fixture(params=NAMES)
    def name(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def source(self, name: str, tmp_path: Path) -> Any:
        return SAMPLES[name](tmp_path)

    def runs(self, name: str) -> bool:
        return name in ("mcp", "functions")

    def starts(self, name: str) -> bool:
        return name == "mcp"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=json_values, name=st.sampled_from(["corpus.jsonl", "a.json", "a.yaml", "a"]), kind=st.sampled_from(NAMES))
def test_any_file_gives_tools_or_a_toolscout_error(value: Any, name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(json.dumps(value), encoding="utf-8")
    for options in (ReadOptions(keep_going=True), ReadOptions(kind=None if kind in ("mcp", "functions") else kind)):
        try:
            tools = list(catalogue.read(path, options))
        except ToolscoutError:
            continue
        check_tools(tools)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    listed=st.lists(json_values | mutated(mcp_tool("a", annotations={"title": "A"})), max_size=4), config=json_values
)
def test_anything_a_server_or_its_file_says_gives_tools_or_a_toolscout_error(listed: list[Any], config: Any) -> None:
    """The mcp importer without its process: a random value must never become a command that is run."""
    server = McpServer(command=("serve",))
    for keep_going in (False, True):
        options = ReadOptions(keep_going=keep_going)
        with contextlib.suppress(ToolscoutError):
            found = mcp.tools_of(server, ServerListing("n", "", listed), options, alone=True)
            check_tools(list(unique(found, options)))
        with contextlib.suppress(ToolscoutError):
            config_servers({"mcpServers": config}, "file", options)
            config_servers({"mcpServers": {"x": config}}, "file", options)


DOCUMENTS = {
    "jsonl": {"tools": [mcp_tool("a"), {"type": "function", "function": mcp_tool("b", outputSchema={})}]},
    "openapi": PETSTORE,
    "toolbench": WEATHER,
}


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_half_valid_documents_give_sound_tools_or_a_toolscout_error(name: str, data: st.DataObject) -> None:
    document = data.draw(mutated(DOCUMENTS[name]))
    for keep_going in (False, True):
        try:
            tools = list(catalogue.read(document, ReadOptions(kind=name, keep_going=keep_going)))
        except ToolscoutError:
            continue
        check_tools(tools)
        if name != "jsonl":  # whose schemas are whatever the source says
            for tool in tools:
                Draft202012Validator.check_schema(dict(tool.input_schema))
                check_references(tool.input_schema)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60), name=st.sampled_from(["corpus.jsonl", "corpus.jsonl.gz", "a.json", "a.yaml", "a"]))
def test_any_bytes_give_tools_or_a_toolscout_error(data: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    for keep_going in (False, True):
        try:
            check_tools(list(catalogue.read(tmp_path / name, ReadOptions(keep_going=keep_going))))
        except ToolscoutError:
            continue


@pytest.mark.parametrize("name", ["jsonl", "beir", "openapi", "toolbench", "functions"])
def test_terminal_escapes_and_huge_descriptions_come_in_whole(name: str, tmp_path: Path) -> None:
    wild = "\x1b[31mred\x1b[0m\x07\u202e \x00" + "long " * 2_000_000
    record = mcp_tool("a") | {"description": wild}
    sources: dict[str, Any] = {
        "jsonl": [record],
        "openapi": PETSTORE | {"paths": {"/a": {"get": {"description": wild}}}},
        "toolbench": WEATHER | {"api_list": [{"name": "a", "description": wild}]},
    }

    def function() -> None: ...

    function.__doc__ = wild
    sources["functions"] = function
    sources["beir"] = write_lines(tmp_path / "corpus.jsonl", [{"_id": "1", "metadata": {"tool": record}}])
    (tool,) = catalogue.read(sources[name], ReadOptions(kind=name))
    assert len(tool.description) > 9_900_000
    assert all(line.isprintable() for line in tool.document().splitlines())
    assert len(tool.document()) < 100_000


@pytest.mark.parametrize("name", ["jsonl", "beir", "openapi", "toolbench"])
def test_names_are_cleaned(name: str, tmp_path: Path) -> None:
    wild = " \x1b[31mred\n name\x00 "
    sources: dict[str, Any] = {
        "jsonl": [mcp_tool(wild, namespace=" spaced ")],
        "openapi": PETSTORE | {"info": {"title": "spaced"}, "paths": {"/a": {"get": {"operationId": wild}}}},
        "toolbench": {"tool_name": " spaced ", "api_list": [{"name": wild}]},
        "beir": tmp_path,
    }
    rows = [{"_id": "1", "metadata": {"tool": mcp_tool(wild, namespace=" spaced ")}}]
    write_lines(tmp_path / "corpus.jsonl", rows)
    (tool,) = catalogue.read(sources[name], ReadOptions(kind=name))
    assert tool.id == "spaced/red name"


def test_nothing_accepts() -> None:
    with pytest.raises(BadSource, match=r"'nowhere\.txt' does not exist\. A source is .*OpenAPI"):
        catalogue.read("nowhere.txt")
    with pytest.raises(BadSource, match="42 holds no tools"):
        catalogue.read(42)
    with pytest.raises(BadSource, match="no importer 'xml'; the importers are: beir, functions"):
        catalogue.read("x", ReadOptions(kind="xml"))


def test_a_file_or_folder_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear all", encoding="utf-8")
    (tmp_path / "settings.json").write_text('{"colour": "red"}', encoding="utf-8")
    for path in (tmp_path, tmp_path / "letter.txt", tmp_path / "settings.json"):
        with pytest.raises(BadSource, match=r"holds no tools that can be read\. A source is"):
            catalogue.read(path)


def test_tools_at_hand_pass_through() -> None:
    tools = [Tool("a", "x"), Tool("a", "y")]
    assert list(catalogue.read(iter(tools))) == tools
    assert list(catalogue.read(tools[0])) == tools[:1]
    assert list(catalogue.read([])) == []
    with pytest.raises(BadSource, match="item 2 is not a Tool but int"):
        list(catalogue.read([tools[0], 5]))
    with pytest.raises(DuplicateTool, match="item 2: tool a/x differs from the one of the same id in item 1"):
        list(catalogue.read([tools[0], Tool("a", "x", "other")]))
    options = ReadOptions(keep_going=True)
    assert list(catalogue.read([tools[0], tools[0], 5, Tool("a", "x", "other")], options)) == tools[:1]
    assert len(options.problems) == 2


def test_labels_are_stable_and_hold_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").touch()
    (tmp_path / "f.py").touch()
    expected = {
        "t.jsonl": str(tmp_path / "t.jsonl"),
        "f.py": str(tmp_path / "f.py"),
        "f.py:go": f"{tmp_path}/f.py:go",
        "json:dumps": "json:dumps",
        "json": "json",
        "https://me:pw@host/api.json?key=s#x": "https://host/api.json",
        "mcp:https://me:pw@host/api?key=s": "https://host/api",
        "mcp+https://host/api?key=s": "https://host/api",
        "https://host/mcp?api_key=s": "https://host/mcp",
        "mcp:serve --api-key abc --port 1": "serve --api-key '***' --port 1",
        "stdio:serve --token=abc TOKEN=abc sk-abc": "serve '--token=***' 'TOKEN=***' '***'",
        "mcp:pg postgres://me:pw@db/x?sslkey=1": "pg 'postgres://***@db/x?***'",
        "mcp:remote --header 'Authorization: Bearer abc'": "remote --header '***'",
        "mcp:serve --author me --keyboard us monkey:1": "serve --author me --keyboard us monkey:1",
    }
    assert {source: catalogue.describe(source) for source in expected} == expected
    assert catalogue.describe(Path("t.jsonl")) == str(tmp_path / "t.jsonl")
    assert catalogue.describe(json.dumps) == "json:dumps"
    assert catalogue.describe(json) == "json:"
    assert catalogue.describe([json.dumps, json.loads]) == "json:dumps, json:loads"
    assert catalogue.describe(["serve", "--password", "x"]) == "serve --password '***'"
    assert catalogue.describe([Tool("a", "b")]) == catalogue.describe({"tools": []}) == "in memory"


def test_an_importer_that_lacks_a_method_cannot_be_made() -> None:
    class Blind(BeirImporter):
        accepts = Importer.accepts

    with pytest.raises(TypeError, match=r"abstract.*accepts"):
        Blind()


def test_reading_inside_a_running_loop() -> None:
    async def inside() -> list[Tool]:
        return list(catalogue.read(SAMPLES["mcp"](Path())))

    assert len(asyncio.run(inside())) == 4


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "t.jsonl", [mcp_tool("a")])
    with rows.open("a", encoding="utf-8") as stream:
        stream.write("broken\n")
    tools: Iterator[Tool] = catalogue.read(rows)
    assert next(tools).name == "a"
    with pytest.raises(BadSource, match="line 2"):
        next(tools)
