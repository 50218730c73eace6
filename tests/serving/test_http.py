"""The JSON routes: what they answer, to whom, and that bad input is always a clear problem."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.http_app import TOOLS, Served, served
from toolscout.core.permissions import Principal, new_key
from toolscout.search.verdict import LEVELS
from toolscout.serving.limits import ServeOptions
from toolscout.serving.problems import MEDIA_TYPE

LION = "feed the lion its dinner"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("http"), ServeOptions(rate=0, body_bytes=10_000)) as running:
        yield running


def is_problem(answer: Any, status: int) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, MEDIA_TYPE), answer.text
    problem = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return dict(problem)


def test_a_search_is_the_answer_of_scout(server: Served) -> None:
    answer = server.post("/search", {"request": LION, "k": 2})
    assert answer.status_code == 200
    assert answer.json() == json.loads(json.dumps(server.scout.search(LION, 2).to_dict()))
    assert answer.json()["hits"][0]["tool_id"] == "zoo/feed_lion"


def test_a_batch_is_answered_one_by_one(server: Served) -> None:
    asked = [LION, "send an email"]
    answers = server.post("/search", {"requests": asked, "k": 1}).json()["answers"]
    assert answers == [server.post("/search", {"request": text, "k": 1}).json() for text in asked]
    needs = server.post("/need", {"requests": asked}).json()["answers"]
    assert needs == [server.post("/need", {"request": text}).json() for text in asked]


def test_a_search_has_a_level(server: Served) -> None:
    usual = server.post("/search", {"request": LION}).json()
    assert usual["verdict_level"] == "balanced"
    found = [server.post("/search", {"request": LION, "level": level}).json() for level in LEVELS]
    assert [one["verdict_level"] for one in found] == list(LEVELS)
    assert {one["use"] for one in found} == {usual["use"]}
    rendered = server.post("/search", {"request": LION, "level": "strict", "format": "mcp"}).json()
    assert (rendered["verdict_level"], rendered["level"]) == ("strict", "full")
    for wrong in ("sloppy", 3, ["strict"]):
        told = is_problem(server.post("/search", {"request": LION, "level": wrong}), 422)
        assert "lenient, balanced or strict" in told["detail"]


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "mcp"])
def test_the_tools_come_ready_to_send(server: Served, format: str) -> None:
    found = server.post("/search", {"request": LION, "format": format}).json()
    names = [tool.get("function", tool)["name"] for tool in found["tools"]]
    assert [found["names"][name] for name in names] == [hit["tool_id"] for hit in found["hits"]]
    assert found["level"] == "full"
    assert found["tokens"] > 0


def test_a_namespace_narrows_the_search(server: Served) -> None:
    found = server.post("/search", {"request": LION, "namespace": "vault"}).json()
    assert [hit["tool_id"] for hit in found["considered"]] == ["vault/open_vault"]
    assert found["searched"] == 1
    assert not server.post("/search", {"request": LION, "namespace": "vault"}, "guest").json()["considered"]


def test_a_guest_meets_its_own_tools_alone(server: Served) -> None:
    found = server.post("/search", {"request": LION, "k": 10}, "guest").json()
    assert {hit["tool_id"] for hit in found["considered"]} == {"mail/send_email", "mail/search_email"}
    assert found["searched"] == 2
    listed = server.get("/tools", "guest").json()
    assert ([tool["id"] for tool in listed["tools"]], listed["total"]) == (["mail/search_email", "mail/send_email"], 2)
    unknown, forbidden = (server.get(f"/tools/{i}", "guest") for i in ("zoo/none", "zoo/feed_lion"))
    assert is_problem(unknown, 404)["detail"].replace("none", "") == is_problem(forbidden, 404)["detail"].replace(
        "feed_lion", ""
    )


def test_only_an_admin_changes_and_measures(server: Served) -> None:
    for key in ("user", "guest"):
        is_problem(server.post("/tools", {"tools": [{"name": "x"}]}, key), 403)
        is_problem(server.client.delete("/tools/zoo/feed_lion", headers=server.headers(key)), 403)
        is_problem(server.get("/metrics", key), 403)
    for path in ("/tools", "/metrics"):
        answer = server.get(path, "nobody")
        is_problem(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    is_problem(server.client.get("/tools", headers={"X-API-Key": "ts_wrong"}), 401)
    assert server.client.get("/tools", headers={"X-API-Key": server.keys["user"]}).status_code == 200
    assert server.get("/health", "nobody").json() == {"status": "ok"}
    assert server.get("/ready", "nobody").json() == {"status": "ready", "index": "own", "store": "reached"}


def test_an_admin_changes_no_tools_that_it_may_not_see(server: Served) -> None:
    store, before = server.scout.store, server.scout.store.count()
    store.put_principal(Principal("half", allow=("mail/*",), deny=("*/search*",), admin=True))
    server.keys["half"], resting = new_key("half")
    store.add_key(resting)
    hidden, own = {"namespace": "zoo", "name": "feed_lion"}, {"namespace": "mail", "name": "new_letter"}
    for tool in (hidden, {"namespace": "zoo", "name": "not_there"}, {"namespace": "mail", "name": "search_email"}):
        is_problem(server.post("/tools", {"tools": [own, tool], "replace": True}, "half"), 403)
    is_problem(server.post("/tools", {"tools": [own], "sync": True}, "half"), 403)
    told = []
    for tool_id in ("zoo/feed_lion", "zoo/not_there", "mail/search_email"):
        is_problem(server.post("/tools", {"remove": [tool_id]}, "half"), 404)
        answer = server.client.delete(f"/tools/{tool_id}", headers=server.headers("half"))
        is_problem(answer, 404)
        told.append(answer.json()["detail"].replace(tool_id, ""))
    assert len(set(told)) == 1
    assert store.count() == before
    assert server.post("/tools", {"tools": [own]}, "half").json()["added"] == 1
    assert server.client.delete("/tools/mail/new_letter", headers=server.headers("half")).json()["removed"] == 1


def test_tools_come_change_and_go(server: Served) -> None:
    record = {"namespace": "sea", "name": "tide_table", "description": "Tells when the tide is high in a harbour."}
    done = server.post("/tools", {"tools": [record]}).json()
    assert (done["added"], done["words_only"]) == (1, 0)
    found = server.post("/search", {"request": "high tide in the harbour"}).json()
    assert found["hits"][0]["tool_id"] == "sea/tide_table"
    assert server.get("/tools/sea/tide_table").json()["name"] == "tide_table"
    assert server.post("/tools", {"tools": [record]}).json()["unchanged"] == 1
    assert server.post("/tools", {"tools": [{**record, "description": "Tells the depth."}]}).json()["changed"] == 1
    is_problem(server.post("/tools", {"tools": [{"name": "new"}], "remove": ["no/such"]}), 404)
    assert server.get("/tools").json()["total"] == len(TOOLS) + 1  # nothing of it was done
    assert server.client.delete("/tools/sea/tide_table", headers=server.headers("admin")).json()["removed"] == 1
    assert "sea/tide" not in json.dumps(
        server.post("/search", {"request": "tide harbour", "k": 9}).json()["considered"]
    )


def test_a_change_that_adds_and_removes_is_one(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"namespace": "sea", "name": "tide_table", "description": "Tells when the tide is high in a harbour."}
    assert server.post("/tools", {"tools": [{**record, "name": "old_table"}]}).json()["added"] == 1
    both = {"tools": [record], "remove": ["sea/old_table"]}
    before = server.get("/tools").json()

    def fails(*_: object) -> int:
        raise sqlite3.OperationalError("the disk died")

    with monkeypatch.context() as broken:
        broken.setattr("toolscout.stores.sqlite.tools._remove", fails)
        is_problem(server.post("/tools", both), 503)
    assert server.get("/tools").json() == before
    done = server.post("/tools", both).json()
    assert (done["added"], done["removed"], done["version"]) == (1, 1, before["version"] + 1)
    assert server.client.delete("/tools/sea/tide_table", headers=server.headers("admin")).json()["removed"] == 1


def test_another_source_is_not_overwritten_unless_told(server: Served) -> None:
    lion = {"namespace": "zoo", "name": "feed_lion", "description": "Starves it."}
    is_problem(server.post("/tools", {"tools": [lion]}), 409)
    assert server.scout.tools(["zoo/feed_lion"])[0].description == "Gives the lion its dinner."


def test_a_long_add_says_how_far_it_is(server: Served) -> None:
    lines = "\n".join(json.dumps({"namespace": "many", "name": f"tool{n}"}) for n in range(70))
    headers = {"Content-Type": "application/x-ndjson", "Accept": "application/x-ndjson", **server.headers("admin")}
    answer = server.client.post("/tools", content=lines, headers=headers)
    steps = [json.loads(line) for line in answer.text.splitlines()]
    assert steps[0] == {"stage": "begun", "done": 0, "of": 70}
    assert {"stage": "embedding", "done": 70, "of": 70} in steps
    assert (steps[-1]["stage"], steps[-1]["added"], steps[-1]["words_only"]) == ("done", 70, 0)
    removed = server.post("/tools", {"remove": [f"many/tool{n}" for n in range(70)]}, Accept=LINES).text
    assert json.loads(removed.splitlines()[-1])["removed"] == 70


LINES = "application/x-ndjson"


def test_many_tools_are_found_at_once_and_embedded_behind(server: Served) -> None:
    tools = [{"namespace": "crowd", "name": f"crowd_tool_{n}"} for n in range(65)]
    assert server.post("/tools", {"tools": tools, "source": "crowd"}).json()["added"] == 65
    assert (
        server.post("/search", {"request": "crowd_tool_7"}).json()["considered"][0]["tool_id"] == "crowd/crowd_tool_7"
    )
    assert server.post("/tools", {"source": "crowd", "sync": True}).json()["removed"] == 65
    assert server.get("/tools").json()["total"] == len(TOOLS)


def test_feedback_is_recorded_for_tools_that_may_be_seen(server: Served) -> None:
    before = len(list(server.scout.store.feedback()))
    assert server.post("/feedback", {"request": LION, "used": ["zoo/feed_lion"]}).json() == {"recorded": 1}
    both = [{"request": LION, "rejected": ["mail/send_email"]}, {"request": "mail", "used": ["mail/send_email"]}]
    assert server.post("/feedback", {"examples": both}).json() == {"recorded": 2}
    assert len(list(server.scout.store.feedback())) == before + 3
    for _ in range(2):  # sent again, as after an error
        again = {"request": LION, "used": ["zoo/feed_lion"], "id": "0d7a"}
        assert server.post("/feedback", again).json() == {"recorded": 1}
    assert len(list(server.scout.store.feedback())) == before + 4
    is_problem(server.post("/feedback", {"request": LION, "used": ["zoo/feed_lion"]}, "guest"), 404)


BAD: list[tuple[str, Any]] = [
    ("/search", {}),
    ("/search", []),
    ("/search", "text"),
    ("/search", {"request": ""}),
    ("/search", {"request": " \u0000 "}),
    ("/search", {"request": 7}),
    ("/search", {"request": "x", "requests": ["y"]}),
    ("/search", {"requests": []}),
    ("/search", {"requests": ["x"] * 33}),
    ("/search", {"request": "x", "k": 0}),
    ("/search", {"request": "x", "k": 10**30}),
    ("/search", {"request": "x", "k": True}),
    ("/search", {"request": "x", "k": "auto"}),
    ("/search", {"request": "x", "format": "xml"}),
    ("/search", {"request": LION, "format": "mcp", "budget": 1}),
    ("/search", {"request": "x", "namespace": 1}),
    ("/search", {"request": "x", "surprise": 1}),
    ("/need", {"request": None}),
    ("/feedback", {"request": "x"}),
    ("/feedback", {"request": "x", "used": ["zoo/feed_lion"], "id": ""}),
    ("/feedback", {"request": "x", "used": ["zoo/feed_lion"], "id": 65 * "x"}),
    ("/feedback", {"request": "x", "used": "zoo/feed_lion"}),
    ("/feedback", {"examples": [1]}),
    ("/tools", {}),
    ("/tools", {"tools": [{}]}),
    ("/tools", {"tools": [1]}),
    ("/tools", {"tools": [{"name": "x", "inputSchema": 1}]}),
    ("/tools", {"tools": [{"name": 5}]}),
    ("/tools", {"tools": [{"name": "x", "origin": {"kind": "function", "target": "os:system"}}]}),
    ("/tools", {"tools": [{"name": "x\r\nSet-Cookie: a=b"}]}),
    ("/tools", {"tools": [{"name": "x"}], "replace": "yes"}),
    ("/tools", {"sync": True, "remove": ["a/b"]}),
    ("/tools", {"tools": [{"name": "x"}], "source": " "}),
]


@pytest.mark.parametrize(("path", "body"), BAD, ids=lambda value: json.dumps(value)[:40])
def test_bad_bodies_are_problems_that_say_what_to_do(server: Served, path: str, body: Any) -> None:
    is_problem(server.post(path, body), 422)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[" * 9_000, b'{"request": NaN}', b'{"k": 1e999}', b'{"k":' + b"9" * 5000 + b"}"],
)
def test_what_is_not_json_is_a_problem(server: Served, content: bytes) -> None:
    headers = {"Content-Type": "application/json", **server.headers("admin")}
    is_problem(server.client.post("/search", content=content, headers=headers), 422)


def test_lone_surrogates_and_scripts_pass_as_text(server: Served) -> None:
    raw = b'{"request": "lion \\ud800 <script>alert(1)</script>"}'
    headers = {"Content-Type": "application/json", **server.headers("admin")}
    answer = server.client.post("/search", content=raw, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_types_sizes_methods_and_paths(server: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"Content-Type": kind, **server.headers("admin")}
        is_problem(server.client.post("/search", content=b'{"request": "x"}', headers=headers), 415)
    is_problem(server.post("/search", {"request": "x" * 20_000}), 413)
    chunks = (b"x" * 4_000 for _ in range(5))
    headers = {"Content-Type": "application/json", **server.headers("admin")}
    is_problem(server.client.post("/search", content=chunks, headers=headers), 413)
    answer = server.get("/search")
    is_problem(answer, 405)
    assert answer.headers["allow"] == "POST"
    assert "takes POST" in answer.json()["detail"]
    assert "/openapi.json" in server.get("/nothing").json()["detail"]
    for path in (
        "/nothing",
        "/tools/",
        "/tools/../../etc/passwd",
        "/tools/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/page/..%2f",
    ):
        assert server.get(path).status_code in (200, 404)
        assert "root:" not in server.get(path).text
    for query in ("limit=-1", "limit=x", "limit=1001", "offset=99999999999", "limit=٣"):
        is_problem(server.get(f"/tools?{query}"), 422)


def test_metrics_count_by_route_and_status(server: Served) -> None:
    server.get("/tools/no/such")
    text = server.get("/metrics").text
    assert 'toolscout_requests_total{route="GET /tools/{id}",status="404"}' in text
    assert f"toolscout_tools {len(TOOLS)}" in text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
    assert "/no/such" not in text


def test_the_audit_log_names_callers_and_never_keys(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    with served(tmp_path, ServeOptions(rate=0, audit=log)) as server:
        server.post("/search", {"request": "a secret wish"}, "guest")
        server.get("/tools/zoo/feed_lion", "guest")
        server.get("/tools", "nobody")
        keys = list(server.keys.values())
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(e["principal"], e["action"], e["tool"], e["ok"]) for e in entries] == [
        ("guest", "POST /search", "", True),
        ("guest", "GET /tools/{id}", "zoo/feed_lion", False),
        ("?", "GET /tools", "", False),
    ]
    assert not any(secret in log.read_text() for secret in [*keys, "secret wish"])
