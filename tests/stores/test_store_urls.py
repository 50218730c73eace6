"""A URL is no path: it is refused where a store is named, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolscout.cli.main import app
from toolscout.errors import StoreError
from toolscout.scout import Scout
from toolscout.stores import open_store
from toolscout.stores.sqlite.store import SqliteStore

PASSWORD = "hunter2"
URLS = (
    f"mysql://ann:{PASSWORD}@host/tools",
    f"Mysql:/ann:{PASSWORD}@host/tools",  # as a Path writes it
    "postgresql+psycopg://host/tools",
    f"jdbc:mysql://host/tools?password={PASSWORD}",
    "redis://localhost:6379/0",
    "https://host/tools.db",
    "s3://bucket/tools.db",
)
OWN = (
    "sqlite:///tools.db",
    "sqlite:tools.db",
    "sqlite3:tools.db",
    "file:tools.db?mode=ro",
    "file:///tmp/tools.db",
    "FILE:x",
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("open_", [Scout.open, open_store, SqliteStore])
@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("url", [*URLS, *OWN])
def test_a_url_is_refused_and_nothing_is_made(open_: object, kind: type, url: str, tmp_path: Path) -> None:
    told = "path of its file alone" if url in OWN else r"no kind of store for .*: URLs; name an SQLite file"
    with pytest.raises(StoreError, match=told) as caught:
        open_(kind(url))  # type: ignore[operator]
    assert PASSWORD not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "add tools.jsonl --no-embed",
        "list",
        "show a/b",
        "remove a/b",
        "search x",
        "agent x",
        "embed",
        "alias a/b c",
        "grant ann --namespace a",
        "revoke ann --namespace a",
        "feedback x --used a/b",
        "keys add ann",
        "keys list",
        "log export --out out",
        "approve",
        "serve --port 0",
        "mcp",
        "bench serve --data bundled",
        "doctor",
    ],
)
@pytest.mark.parametrize("option", ["before", "after", "variable"])
def test_every_command_refuses_it(command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools.jsonl").write_text("")
    if option == "variable":
        monkeypatch.setenv("TOOLSCOUT_STORE", URLS[0])
    given = ["--store", URLS[0]]
    before, after = given if option == "before" else [], given if option == "after" else []
    done = CliRunner().invoke(app, [*before, *command.split(), *after])
    assert done.exit_code == 2, done.output
    assert "no kind of store for mysql: URLs" in " ".join(done.output.split())
    assert PASSWORD not in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["tools.jsonl"]


@pytest.mark.parametrize(
    "name", ["a:b.db", "C:tools.db", "C:/tools.db", "sub/http:x.db", "2026-11:/tools.db", "tools:.db"]
)
def test_a_path_with_a_colon_is_a_path(name: str, tmp_path: Path) -> None:
    with SqliteStore(name) as store:
        assert store.count() == 0
    assert (tmp_path / name).is_file()
    with open_store(tmp_path / "postgresql:" / "tools.db") as store:
        assert store.count() == 0
