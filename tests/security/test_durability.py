"""What survives a loss of power: every door to a store can be told to sync each commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolscout import stores
from toolscout.cli.main import app
from toolscout.core.tool import Tool
from toolscout.errors import StoreError
from toolscout.scout import Scout
from toolscout.serving.catalogue_writes import PacedScout
from toolscout.stores.base import Store
from toolscout.stores.records import DURABLE_VARIABLE
from toolscout.stores.sqlite.connections import Connections
from toolscout.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

NORMAL, FULL = 1, 2
TOOL = {"namespace": "mail", "name": "send", "description": "Sends an email", "inputSchema": {"type": "object"}}


@pytest.fixture
def syncing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The synchronous setting of every connection that was opened to write."""
    found: list[int] = []
    opened = Connections._open_writer

    def watched(self: Connections) -> sqlite3.Connection:
        db = opened(self)
        found.append(int(db.execute("PRAGMA synchronous").fetchone()[0]))
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        return db

    monkeypatch.setenv(DURABLE_VARIABLE, "")  # also puts back what a command sets
    monkeypatch.setattr(Connections, "_open_writer", watched)
    return found


def _store(path: Path, durable: bool | None) -> Store:
    return SqliteStore(path, durable=durable)


def _scout(path: Path, durable: bool | None) -> Store:
    return Scout.open(path, "bm25", durable=durable).store


def _served(path: Path, durable: bool | None) -> Store:
    return PacedScout.open(path, "bm25", durable=durable).store


DOORS: dict[str, Callable[[Path, bool | None], Store]] = {
    "SqliteStore": _store,
    "open_store": lambda path, durable: stores.open_store(path, durable=durable),
    "Scout": _scout,
    "serve": _served,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("variable", "durable", "expected"),
    [
        ("", None, NORMAL),
        ("0", None, NORMAL),
        ("1", None, FULL),
        (" True ", None, FULL),
        ("1", False, NORMAL),
        ("0", True, FULL),
        ("", True, FULL),
    ],
)
def test_a_door_is_told_how_to_sync(
    door: str, variable: str, durable: bool | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    syncing: list[int],
) -> None:  # fmt: skip
    monkeypatch.setenv(DURABLE_VARIABLE, variable)
    for _ in range(2):  # a file that is made, and one that is there
        with DOORS[door](tmp_path / "s.db", durable) as store:
            store.add([Tool("mail", "send", "Sends an email")], "tests")
            assert store.count() == 1
    assert syncing == [expected] * 2


def test_a_value_that_says_neither_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DURABLE_VARIABLE, "maybe")
    with pytest.raises(StoreError, match="TOOLSCOUT_DURABLE is 1 or 0, got 'maybe'"):
        SqliteStore(tmp_path / "s.db")
    assert list(tmp_path.iterdir()) == []


COMMANDS = (
    ("add", "more.jsonl", "--no-embed"),
    ("add", "more.jsonl"),
    ("alias", "mail/send", "post"),
    ("grant", "ann", "--namespace", "mail"),
    ("revoke", "ann", "--namespace", "mail"),
    ("feedback", "write to Ann", "--used", "mail/send"),
    ("keys", "add", "ann"),
    ("remove", "mail/send"),
    ("embed",),
    ("search", "send an email", "--retriever", "bm25"),
)


@pytest.mark.parametrize("how", ["option", "variable", "neither"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_sync_as_they_are_told(
    command: tuple[str, ...], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncing: list[int]
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "no-encoder"))
    monkeypatch.setenv("TOOLSCOUT_STORE", str(tmp_path / "tools.db"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.jsonl").write_text(json.dumps(TOOL) + "\n")
    assert CliRunner().invoke(app, ["add", "more.jsonl", "--no-embed"]).exit_code == 0
    assert CliRunner().invoke(app, ["grant", "ann", "--namespace", "mail"]).exit_code == 0
    syncing.clear()
    if how == "variable":
        monkeypatch.setenv(DURABLE_VARIABLE, "1")
    done = CliRunner().invoke(app, [*(["--durable"] if how == "option" else []), *command])
    assert done.exit_code in (0, 1), done.output
    assert set(syncing) == {NORMAL if how == "neither" else FULL}
