"""The gateway before the reference servers that others run, installed by name from PyPI and npm."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters

from tests.serving.gateways import called, found, names, soon, text
from tests.serving.reference_servers import installed, servers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache() -> Path:
    """The folder they are installed in."""
    return installed()


@pytest.fixture
def config(cache: Path, tmp_path: Path) -> Path:
    """An mcpServers file as Claude Desktop has it."""
    path = tmp_path / "claude_desktop_config.json"
    path.write_text(json.dumps({"mcpServers": servers(cache, tmp_path)}))
    return path


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_reference_servers_at_once(config: Path, tmp_path: Path, mode: str, transport: str) -> None:
    words = ["-m", "toolscout", "--store", str(tmp_path / "t.db"), "mcp", "--config", str(config)]
    words += ["--retriever", "bm25"]

    async def main() -> None:
        if transport == "stdio":
            async with Client(StdioServerParameters(command=sys.executable, args=words), mode=mode) as client:
                await all_are_found_and_called(client, tmp_path)
            return
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with subprocess.Popen([sys.executable, *words, "--http", str(port)]) as process:
            try:
                await soon(lambda: listens(port), 30)
                async with Client(f"http://127.0.0.1:{port}/mcp", mode=mode) as client:
                    await all_are_found_and_called(client, tmp_path)
            finally:
                process.terminate()
        assert process.returncode == 0

    anyio.run(main)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def all_are_found_and_called(client: Client, folder: Path) -> None:
    listed = [tool.name for tool in (await client.list_tools()).tools]
    assert listed == ["search_tools", "describe_tool", "call_tool"]
    told = await found(client, "what time is it in Tokyo")
    assert told["searched"] > 35
    assert "time/get_current_time" in names(told)
    for query, name in (
        ("read a text file from disk", "filesystem/read_text_file"),
        ("working tree status of a git repository", "git/git_status"),
        ("create entities in the knowledge graph", "memory/create_entities"),
        ("fetch a web page as markdown", "fetch/fetch"),
        ("echo a message back", "everything/echo"),
    ):
        assert name in names(await found(client, query))
    now = await called(client, "time/get_current_time", {"timezone": "UTC"})
    assert "UTC" in text(now)
    file = await called(client, "filesystem/read_text_file", {"path": str(folder / "files" / "hello.txt")})
    assert text(file) == "hello there"
    status = await called(client, "git/git_status", {"repo_path": str(folder / "files")})
    assert "hello.txt" in text(status)
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    assert not (await called(client, "memory/create_entities", {"entities": [entity]})).is_error
    assert "Ada" in text(await called(client, "memory/read_graph"))
    assert "hey" in text(await called(client, "everything/echo", {"message": "hey"}))
    outside = await called(client, "filesystem/read_text_file", {"path": "/etc/hostname"})
    assert outside.is_error
