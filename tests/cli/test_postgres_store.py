"""The commands on a catalogue in PostgreSQL, named by its URL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")

from tests.postgres import Postgres
from toolscout.cli.main import app
from toolscout.errors import MissingExtra, StoreError
from toolscout.stores import is_url, may_exist, open_store, shown

PASSWORD = "hunter2"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.fixture
def tools_file(tmp_path: Path) -> Path:
    path = tmp_path / "tools.jsonl"
    records = ({"name": f"tool_{number}", "description": f"Sends letter {number}."} for number in range(3))
    path.write_text("".join(json.dumps({"namespace": "mail", **one}) + "\n" for one in records))
    return path


def test_a_catalogue_from_its_first_tool_to_a_copy_and_back(
    postgres: Postgres, tools_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url("cli")
    run("--store", url, "add", str(tools_file), "--no-embed")
    monkeypatch.setenv("TOOLSCOUT_STORE", url)
    assert "mail 3" in run("list")
    assert "mail/tool_2" in run("search", "letter 2", "--retriever", "bm25")
    run("alias", "mail/tool_1", "postcard")
    run("keys", "add", "ann", "--allow", "mail/*")
    assert "ann" in run("keys", "list")
    run("grant", "bob", "--namespace", "mail")
    run("feedback", "send a letter", "--used", "mail/tool_0")
    assert "no tool waits" in run("approve", code=1)
    assert "3 tools" in run("doctor")
    assert "3 tools" in run("copy", url, "copy.db")
    assert "3 tools" in run("copy", "copy.db", postgres.url("cli_back"))
    assert "postcard" in run("show", "mail/tool_1", "--store", postgres.url("cli_back"))
    beside = {path.name for path in tmp_path.iterdir()}
    assert beside <= {"tools.jsonl", "cache", "copy.db", "copy.db-wal", "copy.db-shm"}


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{PASSWORD}@127.0.0.1:1/tools",
        f"postgresql://127.0.0.1:1/tools?user=ann&password={PASSWORD}",
        f"postgresql://ann:{PASSWORD}@127.0.0.1:{PASSWORD}/tools",
        f"postgresql://ann:{PASSWORD}",
        f"postgresql://ann:%{PASSWORD}@127.0.0.1:1/tools",
        f"postgresql://ann:x@{PASSWORD}@127.0.0.1:1/tools",
        f"postgresql://ann:{PASSWORD}@127.0.0.1:1/tools?schema=No%20{PASSWORD[:0]}",
        f"postgresql://ann:x?{PASSWORD}@127.0.0.1:1/tools",
        f"postgresql://ann:{PASSWORD}#x@127.0.0.1:1/tools",
    ],
)
@pytest.mark.parametrize("command", ["list", "doctor", "add tools.jsonl --no-embed", "serve --port 0", "copy URL x.db"])
def test_no_password_is_ever_printed(
    url: str, command: str, tools_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [url if word == "URL" else word for word in command.split()]
    done = CliRunner().invoke(app, ["--debug", "--store", url, *words])
    assert done.exit_code in (1, 2), done.output
    assert PASSWORD not in done.output
    assert PASSWORD not in caplog.text
    assert PASSWORD not in shown(url)
    with pytest.raises(StoreError) as caught:
        open_store(url)
    seen: BaseException | None = caught.value
    while seen is not None:
        assert PASSWORD not in f"{seen!r} {seen}"
        seen = seen.__cause__


def test_a_wrong_password_is_not_printed(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with pytest.raises(StoreError, match="nobody") as caught:
        open_store(postgres.url(user="nobody"))
    assert PASSWORD not in str(caught.value)


def test_a_service_file_names_the_server(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "services").write_text(f"[mine]\nhost={postgres.host}\nuser=postgres\ndbname=postgres\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    with open_store("postgresql://?service=mine&schema=by_service") as store:
        assert store.version() == 0
        assert "service=mine" in repr(store)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg_pool", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[postgres\]'"):
        open_store("postgresql://host/database")


def test_places() -> None:
    assert is_url("postgresql://h/d")
    assert is_url("postgres://h/d")
    assert not is_url("postgresql/d.db")
    assert may_exist("postgresql://h/d")
    assert not may_exist("no.db")
    assert shown("postgres://ann@h:5432/d?schema=x") == "postgresql://h:5432/d"
    assert shown("a/b.db") == "a/b.db"
    with pytest.raises(StoreError, match="as text, not as a Path"):
        open_store(Path("postgresql://h/d"))
