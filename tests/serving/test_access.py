"""Keys become callers, and what a caller may not see it cannot tell from what is not there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toys import HashedWords
from toolscout import Scout, Tool
from toolscout.core.answer import Allowed
from toolscout.core.permissions import Principal, new_key
from toolscout.errors import BadRequest, Forbidden, Unauthorized, UnknownTool
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.memory import Memory
from toolscout.serving.access import Access, Caller

MAIL = [Tool("mail", name, f"{name} a message") for name in ("send", "read", "delete")]
STAFF = [Tool("staff", name, f"{name} somebody at work") for name in ("hire", "fire")]


@pytest.fixture
def scout(tmp_path: Path) -> Iterator[Scout]:
    with Scout.open(tmp_path / "tools.db", Bm25()) as made:
        made.add([*MAIL, *STAFF])
        yield made


def key(scout: Scout, name: str, *allow: str, deny: tuple[str, ...] = (), admin: bool = False, tenant: str = "") -> str:
    scout.store.put_principal(Principal(name, allow, deny, admin, tenant))
    made, resting = new_key(name)
    scout.store.add_key(resting)
    return made


def test_without_keys_this_machine_sees_everything_and_changes_it_with_the_token(scout: Scout) -> None:
    access = Access(scout, token="ts_token-of-this-server")
    assert not access.has_keys()
    for sent in (None, "", "sk-of-somebody-else", "ts_token-of-this-serve", "ts_token-of-this-server "):
        assert access.caller(sent) == Caller("anonymous", None, admin=False)
    with pytest.raises(Forbidden, match="the token that `toolscout serve` printed"):
        access.require_admin(access.caller(None))
    assert access.caller("ts_token-of-this-server") == Caller("anonymous", None, admin=True)
    for sent in (None, ""):
        assert not Access(scout).caller(sent).admin
    for sent in (None, "ts_guess"):
        with pytest.raises(Unauthorized):
            Access(scout, loopback=False).caller(sent)


def test_keys(scout: Scout) -> None:
    access = Access(scout, token="ts_token-of-this-server")
    assert access.caller("ts_token-of-this-server").admin
    ann, root = key(scout, "ann", "mail/*", deny=("*/delete",), tenant="acme"), key(scout, "root", "*", admin=True)
    assert access.has_keys()
    assert access.caller(ann) == Caller("ann", Allowed.of([], ["mail/send", "mail/read"]), tenant="acme")
    assert access.caller(root) == Caller("root", None, admin=True)
    assert access.caller(ann) is access.caller(ann)
    for wrong in (
        None,
        "",
        "ts_token-of-this-server",
        ann[:-1],
        ann + "x",
        ann.upper(),
        "x" * 10_000,
        "\ud800",
        "ts_\n",
    ):
        with pytest.raises(Unauthorized) as caught:
            access.caller(wrong)
        assert ann not in str(caught.value)
    access.require_admin(access.caller(root))
    with pytest.raises(Forbidden, match="admin"):
        access.require_admin(access.caller(ann))


def test_a_revoked_key_is_refused_at_once_and_the_last_one_opens_nothing(scout: Scout) -> None:
    access, ann = Access(scout), key(scout, "ann", "*")
    access.caller(ann)
    with Scout.open(scout.store.path, Bm25()) as elsewhere:  # type: ignore[attr-defined]
        elsewhere.store.remove_principal("ann")
    assert not access.has_keys()
    for sent in (ann, None):
        with pytest.raises(Unauthorized):
            access.caller(sent)


def test_a_caller_follows_patterns_grants_and_tools(scout: Scout) -> None:
    access, ann = Access(scout), key(scout, "ann", "mail/*", deny=("*/delete*",))
    scout.add([Tool("mail", "delete_all", "x"), Tool("mail", "reply", "x")])
    assert [tool.name for tool in access.list(access.caller(ann))] == ["read", "reply", "send"]
    scout.store.grant("ann", Allowed.of(["staff"]))
    assert access.count(access.caller(ann)) == 5
    scout.store.put_principal(Principal("ann"))
    assert access.count(access.caller(ann)) == 2
    assert access.named("ann") == access.caller(ann)
    assert access.named("who").allowed == Allowed()


@pytest.mark.parametrize("absent", ["staff/fire", "staff/promote", "no/such", "x", "", "mail/delete", "mail/\n"])
def test_unknown_and_forbidden_answer_alike(scout: Scout, monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    access = Access(scout)
    caller = access.caller(key(scout, "ann", "mail/*", deny=("mail/delete",)))
    assert access.describe(caller, "mail/send") == MAIL[0]
    monkeypatch.setattr(scout.store, "get", lambda ids: pytest.fail("the store was asked"))
    for ask in (
        lambda: access.describe(caller, absent),
        lambda: access.tools(caller, ["mail/send", absent]),
        lambda: access.feedback(caller, "fire him", [absent]),
        lambda: access.feedback(caller, "fire him", [], [absent]),
    ):
        with pytest.raises(UnknownTool) as caught:
            ask()
        plain = " ".join(absent.split())
        assert str(caught.value) == f"there is no tool {plain}; search for one, or list those that there are"


def test_an_unknown_and_a_forbidden_namespace_are_empty_alike(scout: Scout) -> None:
    access = Access(scout)
    caller = access.caller(key(scout, "ann", "mail/*"))
    for namespace in ("staff", "none", ""):
        assert (access.list(caller, namespace), access.count(caller, namespace)) == ([], 0)
    assert access.namespaces(caller) == {"mail": 3}


@pytest.mark.timing
def test_unknown_and_forbidden_take_the_same_time(scout: Scout) -> None:
    scout.add([Tool("staff", "record", "x" * 100_000)])
    access = Access(scout)
    caller = access.caller(key(scout, "ann", "mail/*"))
    best = {"staff/record": 1.0, "staff/recorx": 1.0, "never/record": 1.0}
    for _ in range(300):
        for tool_id in best:
            started = time.perf_counter()
            with pytest.raises(UnknownTool):
                access.describe(caller, tool_id)
            best[tool_id] = min(best[tool_id], time.perf_counter() - started)
    assert max(best.values()) < 1.5 * min(best.values())


def test_one_who_sees_everything(scout: Scout) -> None:
    access, caller = Access(scout), Caller("anonymous", admin=True)
    assert (access.count(caller), access.count(caller, "mail"), access.count(caller, "none")) == (5, 3, 0)
    assert access.version(caller) == scout.store.version() == access.search(caller, "hire").version
    assert access.namespaces(caller) == {"mail": 3, "staff": 2}
    assert [tool.id for tool in access.list(caller, offset=1, limit=2)] == ["mail/read", "mail/send"]
    with pytest.raises(UnknownTool, match=r"no tool mail/x;"):
        access.tools(caller, ["mail/send", "mail/x"])


def test_pages(scout: Scout) -> None:
    access = Access(scout)
    caller = access.caller(key(scout, "ann", "mail/*", "staff/h*"))
    assert access.namespaces(caller) == {"mail": 3, "staff": 1}
    assert [tool.id for tool in access.list(caller, offset=2, limit=5)] == ["mail/send", "staff/hire"]
    assert [tool.id for tool in access.list(caller, "staff")] == ["staff/hire"]
    assert access.list(caller, offset=9) == []
    for who in (caller, Caller("all")):
        with pytest.raises(BadRequest):
            access.list(who, offset=-1)


def test_ids_are_ones_own_without_asking_for_those_of_others(scout: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access(scout)
    caller = access.caller(key(scout, "ann", "mail/*", "staff/h*", admin=True))
    assert access.ids(Caller("all"), "staff") == ["staff/fire", "staff/hire"]
    access.require_everything(Caller("all"))
    monkeypatch.setattr(scout.store, "ids", lambda *_: pytest.fail("the store was asked"))
    assert access.ids(caller) == ["mail/delete", "mail/read", "mail/send", "staff/hire"]
    assert [access.ids(caller, space) for space in ("staff", "vault", "")] == [["staff/hire"], [], []]
    with pytest.raises(Forbidden, match="sees everything"):
        access.require_everything(caller)


def test_what_waits_for_a_vector_is_counted_among_ones_own(tmp_path: Path) -> None:
    with Scout.open(tmp_path / "tools.db", Memory(encoder=HashedWords())) as scout:
        scout.store.add([*MAIL, *STAFF])
        access = Access(scout)
        caller = access.caller(key(scout, "ann", "mail/*"))
        answer = access.search(caller, "send")
        assert answer.words_only == 3
        assert "3 of 3 tools" in answer.notes[0]
        nobody = access.search(access.named("nobody"), "send")
        assert (nobody.searched, nobody.words_only, nobody.verdict) == (0, 0, "nothing_fits")
        assert nobody.notes == ("there is no tool here that this caller may see",)


def test_feedback_is_the_tenants(tmp_path: Path) -> None:
    with Scout.open(tmp_path / "tools.db", Memory(encoder=HashedWords())) as scout:
        scout.add([*MAIL, *STAFF])
        access = Access(scout)
        ann, ben, eve = (
            access.caller(key(scout, name, "*", tenant=tenant))
            for name, tenant in (("ann", "acme"), ("ben", "acme"), ("eve", "evil"))
        )
        before = {who.name: access.search(who, "klaatu barada nikto") for who in (ann, ben, eve)}
        access.feedback(ann, "klaatu barada nikto", ["staff/fire"], source="http")
        assert access.search(eve, "klaatu barada nikto") == before["eve"]
        for who in (ann, ben):
            assert access.search(who, "klaatu barada nikto").considered[0].tool_id == "staff/fire"
        [(_, example)] = scout.store.feedback()
        assert (example.tenant, example.source) == ("acme", "http")
        for bad in (lambda: access.feedback(ann, "x", []), lambda: access.feedback(ann, " ", ["mail/send"])):
            with pytest.raises(BadRequest):
                bad()
