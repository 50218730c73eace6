"""The file of servers, as Claude Desktop, Cursor and VS Code write it, and as people misspell it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import BadSource
from toolscout.serving.gateway.config import parse_config, read_config


def test_a_config_names_servers_services_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "sesame")
    document = {
        "servers": {"code": {"type": "stdio", "command": "npx", "args": ["x"]}, "half": {"args": []}},
        "openapi": {"shop": {"source": "https://x/openapi.json", "headers": {"K": "${SHOP_KEY}"}}, "bad": 5},
        "functions": {"mine": "mine.py", "code": "twice.py"},
    }
    (tmp_path / "mine.py").write_text("def f(): pass\n")
    (tmp_path / "c.json").write_text(json.dumps(document))
    found = read_config(tmp_path / "c.json")
    assert [server.name for server in found.servers] == ["code"]
    assert [(one.name, one.kind) for one in found.sources] == [("shop", "openapi"), ("mine", "functions")]
    assert found.sources[0].headers == {"K": "sesame"}
    assert "sesame" not in repr(found)
    assert found.sources[1].source == str(tmp_path / "mine.py")
    assert len(found.problems) == 3
    for wrong in ({}, [], {"mcpServers": 5}, None):
        with pytest.raises(BadSource, match="mcpServers"):
            parse_config(wrong, "it")
    with pytest.raises(BadSource, match="does not exist"):
        read_config(tmp_path / "no.json")


def test_a_config_as_editors_write_it(tmp_path: Path) -> None:
    folder = tmp_path / "shop" / ".vscode"
    folder.mkdir(parents=True)
    (folder / "secrets.env").write_text('# keys\nexport TOKEN="a=b"\nPLAIN = x\n\nOURS=file\n')
    (folder / "mcp.json").write_text(
        """{
  // what the editor may be told
  "inputs": [],
  "servers": {
    "docs": {"type": "http", "url": "https://docs.example/mcp" /* no comment: // */},
    "code": {
      "command": "${userHome}/bin/code", "args": ["${workspaceFolder}", "a, ]", "// b"], "disabled": false,
      "envFile": "${workspaceFolder}/.vscode/secrets.env", "env": {"OURS": "here"},
    },
    "lost": {"command": "x", "envFile": "${workspaceFolder}/no.env"},
  },
}"""
    )
    found = read_config(folder / "mcp.json")
    docs, code, lost = found.servers
    assert docs.url == "https://docs.example/mcp"
    assert code.command == (str(Path.home() / "bin" / "code"), str(tmp_path / "shop"), "a, ]", "// b")
    assert code.env == {"TOKEN": "a=b", "PLAIN": "x", "OURS": "here"}
    assert lost.env == {}
    assert len(found.problems) == 1
    assert "no.env" in found.problems[0]
    (folder / "mcp.json").write_text('{\n// one\n"servers": {"a" 5}}')
    with pytest.raises(BadSource, match="line 3"):
        read_config(folder / "mcp.json")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"mcpServer": {"a": {"command": "x"}}}, "'mcpServer' is not known and not used; write 'mcpServers'"),
        ({"mcpServers": {"a": {"command": "x", "agrs": []}}}, "mcpServers a: 'agrs' .* write 'args'"),
        ({"servers": {"a": {"comand": "x"}, "b": {"command": "y"}}}, "servers a: 'comand' .* write 'command'"),
        ({"openapi": {"s": {"source": "x", "base_url": "y"}}}, "'base_url' .* write 'baseUrl'"),
        ({"mcpServers": 5, "functions": {}}, "'mcpServers' must be an object of names, got int"),
        ({"mcpServers": {}, "opneapi": {"s": "x"}}, "'opneapi' .* write 'openapi'"),
    ],
)
def test_a_misspelt_config_says_so(document: dict[str, Any], said: str) -> None:
    try:
        problems = parse_config(document, "it").problems
    except BadSource as error:
        problems = (str(error),)
    assert re.search(said, "\n".join(problems))


def test_what_other_clients_keep_in_the_file_is_their_own_matter() -> None:
    entry = {"command": "x", "autoApprove": [], "enabled": True, "timeout": 5, "description": "d", "name": "n"}
    document = {"mcpServers": {"a": entry}, "theme": "dark", "globalShortcut": "", "inputs": []}
    assert parse_config(document, "it").problems == ()
