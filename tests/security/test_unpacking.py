"""Small files that unpack to large ones: the size after unpacking is limited, wherever something is unpacked."""

from __future__ import annotations

import gzip
import json
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from toolscout import catalogue
from toolscout.catalogue import ReadOptions
from toolscout.catalogue.openapi.document import parse
from toolscout.errors import BadSource

pytestmark = pytest.mark.slow

MB = 1 << 20
BOMB = gzip.compress(bytes(64 * MB))  # 64 KB
RECORD = json.dumps({"namespace": "a", "name": "b"}).encode()


@contextmanager
def memory(most: int) -> Iterator[None]:
    """Fails where more memory than this is taken inside the block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@contextmanager
def served(data: bytes, **headers: str) -> Iterator[str]:
    """A server on loopback that answers everything with these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a megabyte or two, so that the tests are quick."""
    monkeypatch.setattr("toolscout.catalogue.openapi.document.MAX_DOWNLOAD", MB)
    monkeypatch.setattr("toolscout.catalogue.base.MAX_FILE", 2 * MB)
    monkeypatch.setattr("toolscout.catalogue.base.MAX_LINE", MB)


def read(source: object, **options: Any) -> list[str]:
    return [tool.name for tool in catalogue.read(source, ReadOptions(timeout=20, **options))]


def test_a_packed_document_on_the_web() -> None:
    with served(BOMB) as url, memory(20 * MB), pytest.raises(BadSource, match="is larger than 1 MB unpacked"):
        read(f"{url}/api.json")
    with served(BOMB, Content_Encoding="gzip") as url, memory(20 * MB), pytest.raises(BadSource, match="1 MB unpacked"):
        read(f"{url}/api.json")


def test_packed_twice_is_unpacked_once() -> None:
    with served(gzip.compress(BOMB, mtime=0)) as url, pytest.raises(BadSource, match="UTF-8"):
        read(f"{url}/api.json")


@pytest.mark.parametrize("data", [BOMB[:1000], b"\x1f\x8b", b"\x1f\x8bnonsense", gzip.compress(b"{}", mtime=0)[:-3]])
def test_what_cannot_be_unpacked(data: bytes) -> None:
    with served(data) as url, pytest.raises(BadSource, match="cannot be unpacked"):
        read(f"{url}/api.json")


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.yaml.gz", "a"])
def test_a_packed_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BOMB)
    kind = "jsonl" if name == "a" else "openapi" if "yaml" in name else None
    with memory(20 * MB), pytest.raises(BadSource, match=r"larger than 2 MB unpacked|longer than 1 MB"):
        read(tmp_path / name, kind=kind)


def test_a_line_without_end_costs_that_line(tmp_path: Path) -> None:
    lines = b"\n".join([RECORD, b'{"name": "' + b"x" * (20 * MB), RECORD.replace(b"b", b"c"), b"x" * MB])
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines, mtime=0))
    with memory(40 * MB), pytest.raises(BadSource, match="line 2: longer than 1 MB; shorten it"):
        read(path)
    options = ReadOptions(keep_going=True)
    with memory(40 * MB):
        assert len(list(catalogue.read(path, options))) == 2
    assert [problem.partition("line ")[2][:6] for problem in options.problems] == ["2: lon", "4: not"]
    corpus = tmp_path / "corpus.jsonl.gz"
    corpus.write_bytes(gzip.compress(b"x" * (20 * MB)))
    with memory(40 * MB), pytest.raises(BadSource, match="line 1: longer than 1 MB"):
        read(tmp_path)


def test_a_long_stream_of_lines_is_read(tmp_path: Path) -> None:
    """A catalogue of any size may stream by; the limits of whole files are not its limits."""
    path = tmp_path / "a.jsonl.gz"
    lines = [
        json.dumps({"namespace": "a", "name": f"t{number}", "description": "x" * 1_000}) for number in range(5_000)
    ]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert len(read(path)) == 5_000


def aliases(leaf: str, levels: int, width: int = 10) -> str:
    lines = [f"x0: &x0 {leaf}"]
    lines += [f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * width)}]" for level in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("leaf", ["lol", "{a: b}", "[]", "~", "'" + "x" * 1000 + "'"])
def test_aliases_that_expand_without_end(leaf: str) -> None:
    with memory(20 * MB), pytest.raises(BadSource, match=r"^t: its aliases \(\*name\) expand to more than 64 MB"):
        parse(aliases(leaf, 12), "t")
    assert parse(aliases(leaf, 3), "t")


def test_aliases_in_a_default(tmp_path: Path) -> None:
    """What is no schema is taken over as it is: nothing else would stop it from being written out."""
    schema = "{type: object, properties: {a: {type: string, default: *x11}}}"
    paths = f"paths: {{/a: {{post: {{requestBody: {{content: {{application/json: {{schema: {schema}}}}}}}}}}}}}"
    path = tmp_path / "a.yaml"
    path.write_text("\n".join(["openapi: 3.0.0", "info: {title: t}", aliases("lol", 12), paths]))
    with memory(20 * MB), pytest.raises(BadSource, match="its aliases"):
        read(path)


def test_keys_that_are_merged_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.catalogue.openapi.document._MAX_MERGED", 50_000)
    lines = [f"m0: &m0 {{{', '.join(f'k{number}: 1' for number in range(100))}}}"]
    lines += [f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 100)}]}}" for level in range(1, 6)]
    with memory(50 * MB), pytest.raises(BadSource, match="keys are merged"):
        parse("\n".join(lines), "t")
    assert parse("a: &a {k: 1}\nb: {<<: [*a, *a], l: 2}", "t")["b"] == {"k": 1, "l": 2}


def test_references_that_expand_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.catalogue.importers.openapi.MAX_EXPANDED", 10 * MB)
    text = {"type": "string", "description": "x" * 100_000}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
    document: dict[str, Any] = {
        "openapi": "3.0.0",
        "info": {"title": "t"},
        "components": {"schemas": {"A": {"type": "object", "properties": {"a": text}}}},
        "paths": {f"/{number}": {"post": {"requestBody": body}} for number in range(1_000)},
    }
    for keep_going in (False, True):
        with pytest.raises(BadSource, match=r"its references \(\$ref\) expand to more than 10 MB; split it"):
            read(document, keep_going=keep_going)
    document["paths"] = dict(list(document["paths"].items())[:50])
    assert len(read(document)) == 50


def test_one_operation_opens_so_many_schemas_and_no_more() -> None:
    """Each schema refers to the next one twice: as a tree that would be 2^60 of them."""
    schemas = {
        f"S{number}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/components/schemas/S{number + 1}"} for key in "ab"},
        }
        for number in range(60)
    }
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    document = {
        "openapi": "3.0.0",
        "components": {"schemas": {**schemas, "S60": {}}},
        "paths": {"/a": {"post": {"requestBody": body}}},
    }
    (tool,) = catalogue.read(document)
    assert len(json.dumps(tool.to_record())) < MB


@pytest.mark.parametrize(("encoding", "times"), [("gzip", 1), ("gzip, gzip", 2)])
def test_an_answer_of_an_mcp_server(encoding: str, times: int) -> None:
    data = b'{"jsonrpc": "2.0", "id": 1, "result": {"x": "' + b" " * (64 * MB) + b'"}}'
    for _ in range(times):
        data = gzip.compress(data, 1, mtime=0)
    headers = {"Content_Type": "application/json", "Content_Encoding": encoding}
    with served(data, **headers) as url, memory(60 * MB), pytest.raises(BadSource):
        read(f"{url}/mcp")
