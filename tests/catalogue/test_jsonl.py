"""JSON Lines, JSON arrays, and the tool shapes of the vendors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.catalogue.importer_samples import mcp_tool, write_lines
from toolscout import catalogue
from toolscout.catalogue import ReadOptions
from toolscout.core.tool import Tool
from toolscout.errors import BadSource, DuplicateTool

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


def ids(source: object, **options: Any) -> list[str]:
    return [tool.id for tool in catalogue.read(source, ReadOptions(**options))]


def test_namespace_of_the_record_then_the_option_then_the_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "my.tools.jsonl", [mcp_tool("a", namespace="own"), mcp_tool("b")])
    assert ids(path) == ["own/a", "my.tools/b"]
    assert ids(path, namespace="given") == ["own/a", "given/b"]


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "jsonl.gz", "JSONL"])
def test_gzip_and_endings(tmp_path: Path, ending: str) -> None:
    path = write_lines(tmp_path / f"tools.{ending}", [mcp_tool("a")])
    if ending.endswith("gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert ids(path) == ["tools/a"]


@pytest.mark.parametrize(
    "value",
    [
        [mcp_tool("a")],
        {"tools": [mcp_tool("a")], "nextCursor": None},
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": [mcp_tool("a")]}},
        {"functions": [{"name": "a", "description": "does a", "parameters": SCHEMA}]},
        [{"type": "function", "function": {"name": "a", "description": "does a", "parameters": SCHEMA}}],
        [{"type": "function", "name": "a", "description": "does a", "parameters": SCHEMA, "strict": True}],
        [{"name": "a", "description": "does a", "input_schema": SCHEMA}],
        mcp_tool("a"),
    ],
)
def test_shapes_of_the_vendors(tmp_path: Path, value: Any) -> None:
    expected = Tool("t", "a", "does a", input_schema=SCHEMA)
    for name in ("t.json", "t.json.gz", "t"):
        data = json.dumps(value, indent=1).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        assert list(catalogue.read(tmp_path / name)) == [expected]
    assert list(catalogue.read(value, ReadOptions(namespace="t"))) == [expected]


def test_lines_under_the_name_of_json(tmp_path: Path) -> None:
    assert ids(write_lines(tmp_path / "t.json", [mcp_tool("a"), mcp_tool("b")])) == ["t/a", "t/b"]


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    tools = list(catalogue.read([mcp_tool("a", namespace="x", tags=["t"], annotations={"readOnlyHint": True})]))
    assert list(catalogue.read(write_lines(tmp_path / "t.jsonl", [tool.to_record() for tool in tools]))) == tools


BROKEN = {
    "{not json": r"line 2: not JSON: Expecting property name .* at column 2; correct or remove it",
    "[1, 2]": r"line 2: a tool record must be a JSON object, got list",
    '{"description": "no name"}': r"line 2: a tool needs a name",
    '{"name": "\\u0000 "}': r"line 2: a tool needs a name",
    '{"name": "x", "inputSchema": "text"}': r"line 2: tool t/x: inputSchema must be a JSON object",
    '{"name": "x", "description": 5}': r"line 2: tool t/x: description must be text",
    '{"name": "x", "inputSchema": {"minimum": NaN}}': r"line 2: not JSON: NaN is not a JSON value",
    '{"name": "x", "inputSchema": {"minimum": 1e999}}': r"line 2: not JSON: 1e999 is not a JSON value",
    '{"name": "x", "n": ' + "1" * 5000 + "}": r"line 2: not JSON: Exceeds the limit",
    "[" * 500 + "]" * 500: r"line 2: nested deeper than 100 levels",
    "[" * 5000 + "]" * 5000: r"line 2: nested too deeply",
}


@pytest.mark.parametrize("line", BROKEN)
def test_broken_lines_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(mcp_tool('a'))}\n{line}\n\n{json.dumps(mcp_tool('b'))}\n", encoding="utf-8")
    with pytest.raises(BadSource, match=f"^{path} {BROKEN[line]}"):
        ids(path)
    problems: list[str] = []
    assert ids(path, keep_going=True, problems=problems) == ["t/a", "t/b"]
    assert len(problems) == 1
    assert problems[0].startswith(f"{path} line 2: ")


def test_invalid_utf8_is_named_and_skipped(tmp_path: Path) -> None:
    good = json.dumps(mcp_tool("a")).encode()
    path = tmp_path / "t.jsonl"
    path.write_bytes(good + b'\n{"name": "caf\xe9"}\n' + good.replace(b'"a"', b'"b"'))
    with pytest.raises(BadSource, match=r"line 2: invalid UTF-8 at byte 13 of the line; save the file as UTF-8"):
        ids(path)
    problems: list[str] = []
    assert ids(path, keep_going=True, problems=problems) == ["t/a", "t/b"]
    assert len(problems) == 1
    array = tmp_path / "t.json"
    array.write_bytes(b'[\n{"name": "caf\xe9"}]')
    with pytest.raises(BadSource, match=r"t.json line 2: invalid UTF-8 at byte 15 of the file"):
        ids(array)


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(mcp_tool("a")).encode() + b"\r\n \r\n")
    assert ids(path) == ["t/a"]


def test_a_gzip_cut_off_in_the_middle(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [mcp_tool(f"tool {number}") for number in range(500)])
    path.write_bytes(gzip.compress(path.read_bytes())[:-300])
    with pytest.raises(BadSource, match="cannot be read: Compressed file ended before the end"):
        ids(path)


def test_broken_json_document_names_the_place(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[\n  {"name": "a"},\n  {"name" "b"}\n]', encoding="utf-8")
    with pytest.raises(BadSource, match=r"t.json: not JSON: Expecting ':' delimiter at line 3 column 11"):
        ids(path)
    path.write_text('[{"name": "a"}, {"nam": "b"}]', encoding="utf-8")
    with pytest.raises(BadSource, match=r"t.json entry 2: a tool needs a name"):
        ids(path)
    assert ids(path, keep_going=True) == ["t/a"]


def test_same_id_with_other_content_names_both_lines(tmp_path: Path) -> None:
    rows = [mcp_tool("a"), mcp_tool("b"), mcp_tool("a", title="other"), mcp_tool("b")]
    path = write_lines(tmp_path / "t.jsonl", rows)
    with pytest.raises(DuplicateTool, match=rf"^{path} line 3: tool t/a differs .* in {path} line 1; rename"):
        ids(path)
    problems: list[str] = []
    assert ids(path, keep_going=True, problems=problems) == ["t/a", "t/b"]
    assert len(problems) == 1


def test_identical_repeats_are_dropped_whatever_the_order_of_their_keys(tmp_path: Path) -> None:
    turned = dict(reversed(mcp_tool("a").items()))
    rows = [mcp_tool("a"), "broken", turned, mcp_tool("b"), mcp_tool("a"), mcp_tool("b")]
    path = write_lines(tmp_path / "t.jsonl", rows)
    problems: list[str] = []
    assert ids(path, keep_going=True, problems=problems) == ["t/a", "t/b"]
    assert len(problems) == 1  # reading again to compare notes nothing twice


def test_an_empty_file_has_no_tools(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.touch()
    assert ids(path) == []


def test_the_real_tools_come_in_whole(shared_data: Path) -> None:
    assert len(set(ids(shared_data / "mcp_tools" / "tools.jsonl.gz"))) == 13_605


@pytest.mark.slow
def test_the_real_operations_come_in_whole(shared_data: Path) -> None:
    assert len(set(ids(shared_data / "openapi_ops" / "operations.jsonl.gz"))) == 84_106
