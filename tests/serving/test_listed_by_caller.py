"""Tools of servers that list them for each caller: who sees them in a catalogue that others read too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from toolscout import Scout, Tool
from toolscout.cli.main import app as commands
from toolscout.core.permissions import Principal, new_key
from toolscout.serving.access import Access, Caller
from toolscout.serving.app import make_app
from toolscout.serving.limits import ServeOptions
from toolscout.stores.listed_by_caller import marked_namespaces, marked_source

LETTERS, DEALS = Tool("mail", "send", "Sends a letter"), Tool('the "crm"', "letters", "Lists letters to customers")
CRM = DEALS.namespace


@pytest.fixture
def scout(tmp_path: Path) -> Iterator[Scout]:
    with Scout.open(tmp_path / "t.db", "bm25") as scout:
        scout.store.add([LETTERS], "gateway servers.json mail")
        scout.store.add([DEALS], marked_source(CRM, "servers.json"), replace=True, sync=True)
        scout.refresh()
        yield scout


def seen(access: Access, caller: Caller) -> set[str]:
    """What a caller finds, lists and counts, which has to be the same."""
    found = {hit.tool_id for hit in access.search(caller, "send letters", 10).considered}
    listed = {tool.id for tool in access.list(caller)}
    assert found == listed == set(access.ids(caller))
    assert len(found) == access.count(caller)
    return found


def test_the_mark_is_kept_while_there_are_such_tools(scout: Scout) -> None:
    assert marked_namespaces(scout.store) == {CRM}
    scout.store.add([DEALS], "gateway servers.json crm", replace=True)  # configured anew, for all alike
    assert marked_namespaces(scout.store) == frozenset()


def test_callers_do_not_see_them(scout: Scout) -> None:
    access = Access(scout, token="ts_token")
    assert seen(access, access.caller(None)) == {LETTERS.id}
    assert seen(access, access.caller("ts_token")) == {LETTERS.id, DEALS.id}  # who may change the catalogue
    for name, allow, admin, expected in (
        ("all", ("*",), False, {LETTERS.id}),
        ("names", ("mail/*", "*/letters"), False, {LETTERS.id}),
        ("named", ("mail/*", f"{CRM}/*"), False, {LETTERS.id, DEALS.id}),
        ("admin", ("*",), True, {LETTERS.id, DEALS.id}),
        ("some", (f"{CRM}/let*",), False, {DEALS.id}),
    ):
        scout.store.put_principal(Principal(name, allow=allow, admin=admin))
        assert seen(access, access.named(name)) == expected, name
    scout.store.put_principal(Principal("denied", allow=("*", f"{CRM}/*"), deny=("mail/*",)))
    assert seen(access, access.named("denied")) == {DEALS.id}


def test_a_running_server_follows_the_mark(scout: Scout) -> None:
    access = Access(scout)
    assert seen(access, access.caller(None)) == {LETTERS.id}
    scout.store.add([DEALS], "gateway servers.json crm", replace=True)
    assert access.caller(None).allowed is None
    scout.store.add([DEALS], marked_source(CRM, "servers.json"), replace=True)
    assert seen(access, access.caller(None)) == {LETTERS.id}
    scout.store.add([Tool("new", "tool", "Sends letters, too")], "new")
    scout.refresh()
    assert seen(access, access.caller(None)) == {LETTERS.id, "new/tool"}


def test_the_gateway_that_asks_the_server_decides_itself(scout: Scout) -> None:
    access = Access(scout, listed_by_caller=[CRM])
    assert access.caller(None).allowed is None


def test_serve_and_search_leave_them_out(scout: Scout, tmp_path: Path) -> None:
    with TestClient(make_app(scout, Access(scout), ServeOptions(rate=0)), "http://localhost") as client:
        assert [tool["id"] for tool in client.get("/tools").json()["tools"]] == [LETTERS.id]
        assert client.get(f"/tools/{DEALS.id}").status_code == 404
    place = ["--store", str(tmp_path / "t.db"), "--retriever", "bm25", "--format", "json"]
    done = CliRunner().invoke(commands, ["search", "letters to customers", *place])
    assert DEALS.id not in done.stdout
    assert "name them with --namespace" in " ".join(done.stderr.split())
    assert (
        DEALS.id.replace('"', '\\"')
        in CliRunner().invoke(commands, ["search", "letters to customers", *place, "--namespace", CRM]).stdout
    )
    scout.store.put_principal(Principal("ann", allow=("*",)))
    assert (
        DEALS.id.replace('"', '\\"')
        not in CliRunner().invoke(commands, ["search", "letters to customers", *place, "--as", "ann"]).stdout
    )


def test_a_key_that_sees_all_else_is_no_admin_of_everything(scout: Scout) -> None:
    scout.store.put_principal(Principal("ann", allow=("*",)))
    key, stored = new_key("ann")
    scout.store.add_key(stored)
    access = Access(scout)
    assert seen(access, access.caller(key)) == {LETTERS.id}
