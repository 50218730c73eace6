"""Schemas nested deeper than 100 levels are refused at every door, and what an older version let in breaks nothing."""

from __future__ import annotations

import json
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.serving.http_app import Served, served
from toolscout import Tool, catalogue
from toolscout.catalogue import ReadOptions
from toolscout.catalogue.openapi.document import parse
from toolscout.core import vendor_formats
from toolscout.core.tool import MAX_NESTING, Origin, too_deep
from toolscout.errors import BadSource, BadTool

pytestmark = pytest.mark.slow

FINE, DEEP = (99, 100), (101, 491, 982, 5_000, 100_000)
SAID = r"nested deeper than 100 levels|nested too deeply"


def deep(levels: int) -> dict[str, Any]:
    """A schema of so many objects, each in the one before."""
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


def deep_text(levels: int) -> str:
    """The same as text: no encoder writes the deepest ones."""
    return '{"items":' * (levels - 1) + "{}" + "}" * (levels - 1)


def record_text(levels: int, key: str = "inputSchema", name: str = "deep") -> str:
    return f'{{"namespace":"mail","name":"{name}","description":"sends a deep thing","{key}":{deep_text(levels)}}}'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as found:
        yield found


@pytest.mark.parametrize("levels", FINE + DEEP)
def test_a_tool_made_in_python(levels: int) -> None:
    value = deep(levels)
    makers: list[Callable[[], Tool]] = [
        lambda: Tool("a", "b", input_schema=value),
        lambda: Tool("a", "b", input_schema=MappingProxyType(value)),
        lambda: Tool("a", "b", output_schema=value),
        lambda: Tool("a", "b", annotations=value),
        lambda: Tool("a", "b", meta=value),
        lambda: Tool("a", "b", origin=Origin("http", "https://x.example", value)),
        lambda: Tool.from_record({"name": "b", "inputSchema": value}),
        lambda: Tool.from_record({"name": "b", "parameters": value}),
        lambda: Tool.from_record({"name": "b", "origin": {"kind": "mcp", "target": "x", "details": value}}),
    ]
    for make in makers:
        if levels in FINE:
            assert make().name == "b"
        else:
            with pytest.raises(BadTool, match="is nested deeper than 100 levels; flatten it"):
                make()


def test_depth_is_told_quickly_whatever_a_value_shares() -> None:
    shared: Any = []
    for _ in range(90):
        shared = [shared, shared]
    assert not too_deep(shared)
    for _ in range(20):
        shared = {"a": shared, "b": shared}
    assert too_deep(shared)
    loop: dict[str, Any] = {}
    loop.update(a=loop, b=[loop, loop])
    assert too_deep(loop)
    assert not any(map(too_deep, (None, 1, "text", [], {}, {"a": object()}, [{1, 2}])))


@pytest.mark.parametrize("levels", FINE + DEEP)
@pytest.mark.parametrize("key", ["inputSchema", "outputSchema", "_meta", "annotations"])
def test_uploads(server: Served, levels: int, key: str) -> None:
    record = record_text(levels, key)
    for kind, body in (("application/json", f'{{"tools":[{record}]}}'), ("application/x-ndjson", record)):
        answer = server.client.post("/tools", content=body, headers=server.headers("admin") | {"Content-Type": kind})
        if levels in FINE:
            assert answer.status_code == 200
        else:
            assert answer.status_code == 422
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] in ("bad_tool", "bad_request")
            assert "nested" in answer.json()["detail"]
    assert ("mail/deep" in server.scout.store.ids()) == (levels in FINE)
    assert_all_faces_answer(server)


@pytest.mark.parametrize("levels", DEEP)
@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.yaml"])
def test_a_dropped_file(server: Served, levels: int, name: str) -> None:
    answer = server.post("/page/add", {"name": name, "text": record_text(levels)})
    told = answer.json().get("detail") or answer.json()["problems"][0]
    assert answer.status_code in (200, 422)
    assert "nested" in told or "is not an OpenAPI document" in told
    assert "mail/deep" not in server.scout.store.ids()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    head = '{"jsonrpc":"2.0","id":%s,' % json.dumps(asked["id"])
    if asked["method"] == "initialize":
        version = asked["params"]["protocolVersion"]
        about = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
        print(head + '"result":%s}' % json.dumps(about), flush=True)
    elif asked["method"] == "tools/list":
        deep = open(sys.argv[1]).read()
        print(head + '"result":{"tools":[{"name":"shallow","inputSchema":{}},' + deep + "]}}", flush=True)
    else:
        print(head + '"error":{"code":-32601,"message":"no"}}', flush=True)
"""


def sources(folder: Path, levels: int) -> dict[str, object]:
    """A source of each kind that has one tool with a schema of so many levels."""
    record, schema = record_text(levels), deep_text(levels)
    script, listed = write(folder / "server.py", SERVER), write(folder / "deep.json", record)
    inner = levels - 3  # what stands around a default: the schema, its properties, the parameter
    parameter = f'{{"name":"x","type":"OBJECT","default":{deep_text(inner)}}}'
    api = f'{{"name":"deep","required_parameters":[{parameter}]}}'
    return {
        "lines": write(folder / "a.jsonl", record),
        "array": write(folder / "b.json", f"[{record}]"),
        "answer": write(folder / "c.json", f'{{"result":{{"tools":[{record}]}}}}'),
        "openai": write(
            folder / "d.json", f'[{{"type":"function","function":{{"name":"deep","parameters":{schema}}}}}]'
        ),
        "beir": write(
            folder / "beir" / "corpus.jsonl", f'{{"_id":"1","title":"","text":"","metadata":{{"tool":{record}}}}}'
        ).parent,
        "toolbench": write(folder / "bench" / "t.json", f'{{"tool_name":"t","api_list":[{api}]}}'),
        "mcp": f"mcp:{shlex.quote(sys.executable)} {script} {listed}",
    }


@pytest.mark.parametrize("levels", FINE + DEEP)
@pytest.mark.parametrize("kind", ["lines", "array", "answer", "openai", "beir", "toolbench", "mcp"])
def test_importers(tmp_path: Path, levels: int, kind: str) -> None:
    source, options = sources(tmp_path, levels)[kind], ReadOptions(keep_going=True, timeout=20)
    if levels in FINE:
        assert "deep" in [tool.name for tool in catalogue.read(source, options)]
        assert not options.problems
        return
    with pytest.raises(BadSource, match=SAID):
        list(catalogue.read(source, ReadOptions(timeout=20)))
    try:
        found = [tool.name for tool in catalogue.read(source, options)]
    except BadSource as error:
        found, options.problems = [], [str(error)]
    assert "deep" not in found
    assert any("nested" in problem for problem in options.problems)


@pytest.mark.parametrize("levels", [101, 491, 5_000, 100_000])
def test_documents_of_services(tmp_path: Path, levels: int) -> None:
    body = f'{{"content":{{"application/json":{{"schema":{deep_text(levels)}}}}}}}'
    text = f'{{"openapi":"3.0.0","info":{{"title":"t"}},"paths":{{"/a":{{"post":{{"requestBody":{body}}}}}}}}}'
    for name in ("a.json", "a.yaml"):
        path = write(tmp_path / name, text)
        if levels == 101:  # opened to forty levels, and what lies deeper accepts anything
            (tool,) = catalogue.read(path, ReadOptions(kind="openapi"))
            assert not too_deep(tool.input_schema)
        else:
            with pytest.raises(BadSource, match=SAID):
                list(catalogue.read(path, ReadOptions(kind="openapi")))


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[" * 100_000 + "]" * 100_000, "- " * 100_000, "- ? " * 50_000, "a: " + "[{b: " * 50_000],
    ids=["open", "closed", "dashes", "keys", "mixed"],
)
def test_yaml_is_refused_before_the_stack_ends(tmp_path: Path, text: str) -> None:
    """The C parser of YAML has no limit of its own: it would end the whole process, without an error to catch."""
    code = "import sys; from toolscout.catalogue.openapi.document import parse; parse(open(sys.argv[1]).read(), 't')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(write(tmp_path / "t.yaml", text))], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.returncode
    assert "BadSource" in done.stderr


def test_yaml_of_the_allowed_depth() -> None:
    assert parse("a: " + "[" * 99 + "]" * 99, "t")
    with pytest.raises(BadSource, match=r"^t: nested deeper than 100 levels; flatten it$"):
        parse("a: " + "[" * 120 + "]" * 120, "t")


@pytest.mark.parametrize("levels", [90, 200, 5_000])
def test_defaults_of_functions(levels: int) -> None:
    value: Any = []
    for _ in range(levels):
        value = [value]

    def deep_default(x: list[Any] = value) -> None: ...

    if levels < MAX_NESTING:
        assert [tool.name for tool in catalogue.read(deep_default)] == ["deep_default"]
    else:
        with pytest.raises(BadSource, match=r"nested deeper|recursion"):
            list(catalogue.read(deep_default))


def age(path: Path, tool_id: str, text: str) -> None:
    """Put a record into a store as an older version would have."""
    with sqlite3.connect(path) as db:
        changed = db.execute("UPDATE tools SET record = ? WHERE id = ?", (text, tool_id)).rowcount
    db.close()
    assert changed == 1


@pytest.mark.parametrize("levels", [101, 491, 900, 982, 986, 5_000, 100_000])
@pytest.mark.parametrize("key", ["inputSchema", "outputSchema"])
def test_what_an_older_version_stored_breaks_nothing(server: Served, tmp_path: Path, levels: int, key: str) -> None:
    age(tmp_path / "tools.db", "mail/search_email", record_text(levels, key, "search_email"))
    assert_all_faces_answer(server)
    (tool,) = server.scout.store.get(["mail/search_email"])
    assert not too_deep(tool.input_schema)
    assert not too_deep(tool.output_schema)
    assert tool.description == "sends a deep thing"
    assert any(found.id == tool.id for found in server.scout.store.tools())
    for format in vendor_formats.FORMATS:
        assert vendor_formats.render([tool], format).payload


def test_older_rows_are_cut_where_they_are_too_deep_and_nowhere_else() -> None:
    text = '{"name":"a","description":"[[{{\\"[\\\\","inputSchema":%s,"tags":["x"]}'
    fine = Tool.from_json(text % deep_text(100))
    assert fine.input_schema == deep(100)
    cut = Tool.from_json(text % f'{{"properties":{{"a":{deep_text(500)},"b":{{"type":"string"}}}}}}')
    assert cut.input_schema["properties"]["b"] == {"type": "string"}
    assert (cut.description, cut.tags) == ('[[{{"[\\', ("x",))
    assert not too_deep(cut.input_schema)
    with pytest.raises(BadTool, match="a tool needs a name"):
        Tool.from_json('{"name": ""}')
    with pytest.raises(ValueError, match="Expecting"):
        Tool.from_json("{")


def assert_all_faces_answer(server: Served) -> None:
    """Searching in every format, listing, the page and each tool by itself."""
    searches = [
        {"request": "sends a deep thing"},
        *({"request": "email", "format": one} for one in vendor_formats.FORMATS),
    ]
    searches += [{"request": "email", "format": "anthropic", "budget": 300}]
    answers = [server.post("/search", body) for body in searches]
    answers += [server.get(path) for path in ("/tools", "/tools/mail/search_email", "/page/tools", "/page/tokens")]
    answers += [server.post("/page/search", {"request": "email"})]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    assert "search_email" in server.get("/tools").text


def test_the_deepest_allowed_tool_is_searched_listed_and_added_again(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        server.scout.add([Tool("mail", "deep", "sends a deep thing", input_schema=deep(100), output_schema=deep(100))])
        assert_all_faces_answer(server)
        listed = server.get("/tools?namespace=mail").json()["tools"]
        [record] = [one for one in listed if one["name"] == "deep"]
        assert record["inputSchema"] == deep(100)
        again = write(tmp_path / "again.jsonl", json.dumps(record))
        assert [tool.input_schema for tool in catalogue.read(again)] == [deep(100)]
