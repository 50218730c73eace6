"""The routes of the page: what they answer, to whom, and that nothing in a catalogue becomes more than text."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.serving.page_app import SCRIPT, SPEC, TOKEN, TOOLS, Coded, app, opened
from toolscout import Answer, Scout, Tool
from toolscout.core import vendor_formats
from toolscout.core.permissions import Principal, new_key
from toolscout.models.tool_ids.code_tree import CodeTree
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.serving.access import Access
from toolscout.serving.live_metrics import LiveView, Rates, figures, read_metrics
from toolscout.serving.page import files, routes
from toolscout.serving.prometheus import Metrics

SITE = "http://localhost"
HOLDER = {"Authorization": f"Bearer {TOKEN}"}
FOLDER = Path(routes.__file__).parent / "static"


@pytest.fixture
def scout(tmp_path: Path) -> Iterator[Scout]:
    with opened(tmp_path) as scout:
        yield scout


@pytest.fixture
def client(scout: Scout, tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(app(scout, results=tmp_path / "results"), SITE, headers=HOLDER) as client:
        yield client


def search(client: TestClient, request: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/page/search", json={"request": request, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["answers"][0])


def test_every_file_is_served_and_known(client: TestClient) -> None:
    named = {"index.html", *files.FILES, "gateway.html", *files.GATEWAY_FILES}
    assert {path.name for path in FOLDER.iterdir()} == named
    for path in ["", *(f"page/{name}" for name in files.FILES)]:
        answer = client.get(f"/{path}")
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == files.CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = client.get(f"/{path}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere() -> None:
    assert "unsafe" not in files.CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in files.CONTENT_SECURITY_POLICY
    for page in ("index.html", "gateway.html"):
        html = (FOLDER / page).read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", html)
    for path in FOLDER.iterdir():
        text = path.read_text()
        for known in ("http://www.w3.org/2000/svg", "https://example.com/openapi.json"):
            text = text.replace(known, "")
        assert "http:" not in text
        assert "https:" not in text
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


@pytest.mark.parametrize("path", ["/page/../page.py", "/page/%2e%2e/page.py", "/page/results/..%2Ftools.db", "/page/x"])
def test_no_path_leads_elsewhere(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_search_gives_scores_reasons_and_the_exact_json(client: TestClient, scout: Scout) -> None:
    answer = search(client, "send an email to the lion", k=2)
    assert (answer["verdict"], answer["searched"], len(answer["tools"])) == ("use", 5, 2)
    first = answer["tools"][0]
    assert (first["id"], first["offered"], first["code"]) == ("mail/send_email", True, None)
    assert first["reasons"][0]["kind"] == "matched_words"
    best = first["score"]
    assert [(tool["share"], tool["named"]) for tool in answer["tools"]] == [
        (1.0, False), (answer["tools"][1]["score"] / best, False)
    ]  # fmt: skip
    named, other = search(client, "use send_email for the lion", k=2)["tools"]
    assert (named["id"], named["named"]) == ("mail/send_email", True)
    assert 0.05 < other["share"] <= 1  # what a name adds to a score is not counted
    assert first["parameters"][0] == {"name": "to", "type": "string", "required": True, "description": "Who gets it"}
    tools = scout.tools([tool["id"] for tool in answer["tools"]])
    for format in vendor_formats.FORMATS:
        rendered = vendor_formats.render(tools, format)
        assert json.loads(answer["wire"][format]["json"]) == rendered.payload
        assert answer["wire"][format]["tokens"] == rendered.tokens
        assert client.get("/page/tokens").json()[format] == {
            "tokens": vendor_formats.render(TOOLS, format).tokens,
            "exact": True,
        }


def test_a_tool_that_is_removed_while_it_is_found(
    client: TestClient, scout: Scout, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Access.search

    def search_then_lose(*given: Any) -> Answer:
        answer = found(*given)
        scout.remove("mail/send_email")
        return answer

    monkeypatch.setattr(Access, "search", search_then_lose)
    assert [tool["id"] for tool in search(client, "send an email", k=2)["tools"]] == ["mail/search_email"]


def test_the_level_is_chosen_on_the_page(client: TestClient, scout: Scout) -> None:
    state = client.get("/page/state").json()
    assert (state["level"], state["levels"]) == (scout.level, ["lenient", "balanced", "strict"])
    answer = search(client, "send an email to the lion", level="strict")
    if answer["verdict_level"] is not None:
        assert answer["verdict_level"] == "strict"
        assert answer["thresholds"]["use"] == scout.use_threshold("strict", answer["need"] is not None)
    wrong = client.post("/page/search", json={"request": "send an email", "level": "sloppy"})
    assert wrong.status_code == 422
    assert "lenient, balanced or strict" in wrong.text


def test_where_nothing_fits_the_agent_gets_nothing(client: TestClient) -> None:
    answer = search(client, "qwertyuiop")
    assert answer["verdict"] == "nothing_fits"
    assert answer["wire"]["openai"] == {"json": "[]", "tokens": 0}


def test_many_tools_are_reckoned_from_some(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "COUNTED_TOOLS", 2)
    reckoned = client.get("/page/tokens").json()["openai"]
    assert not reckoned["exact"]
    assert reckoned["tokens"] == pytest.approx(vendor_formats.render(TOOLS, "openai").tokens, rel=0.6)


def test_only_one_namespace(client: TestClient) -> None:
    assert {tool["namespace"] for tool in search(client, "lion", namespace="zoo")["tools"]} == {"zoo"}
    assert client.post("/page/search", json={"request": "lion", "namespace": "nowhere"}).status_code == 422


def test_namespaces_are_suggested_and_never_sent_all_at_once(client: TestClient, scout: Scout) -> None:
    scout.add([Tool(f"a{number:03}-mail", "ping", "Pings.") for number in range(routes.MAX_SUGGESTED)])
    assert client.get("/page/state").json()["namespaces"] == routes.MAX_SUGGESTED + 4
    found = client.get("/page/namespaces", params={"find": "MAIL"}).json()
    assert found["total"] == routes.MAX_SUGGESTED + 1
    assert list(found["namespaces"].items())[:2] == [("mail", 2), ("a000-mail", 1)]
    assert len(found["namespaces"]) == routes.MAX_SUGGESTED
    assert client.get("/page/namespaces", params={"find": "nowhere"}).json() == {"total": 0, "namespaces": {}}


def test_two_retrievers_side_by_side(scout: Scout, tmp_path: Path) -> None:
    with opened(tmp_path, "bm25") as other, TestClient(app(scout, {"again": other}), SITE) as client:
        assert client.get("/page/state").json()["retrievers"] == ["bm25", "again"]
        given = {"request": "lion", "retrievers": ["bm25", "again"]}
        answers = client.post("/page/search", json=given).json()["answers"]
        assert [answer["retriever"] for answer in answers] == ["bm25", "again"]
        assert answers[0]["tools"] == answers[1]["tools"]


@pytest.mark.parametrize(
    "given",
    [{}, {"request": ""}, {"request": 5}, {"request": "a", "k": 0}, {"request": "a", "k": True},
     {"request": "a", "k": 1e9}, {"request": "a", "retrievers": ["none"]},
     {"request": "a", "retrievers": [[]]}, {"request": "a", "namespace": 3}],
)  # fmt: skip
def test_bad_searches_are_refused_in_words(client: TestClient, given: dict[str, Any]) -> None:
    answer = client.post("/page/search", json=given)
    assert answer.status_code == 422
    assert answer.json()["detail"]


@pytest.mark.parametrize("body", ["", "{", "[]", "[" * 100_000, '{"a": NaN'])
def test_bad_bodies(client: TestClient, body: str) -> None:
    assert client.post("/page/search", content=body, headers={"Content-Type": "application/json"}).status_code == 422
    assert client.post("/page/search", content=body, headers={"Content-Type": "text/plain"}).status_code == 415


def test_a_body_that_is_too_large(client: TestClient) -> None:
    body = json.dumps({"request": "a" * (1 << 20)})
    answer = client.post("/page/search", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_listing_pages_and_finds(client: TestClient) -> None:
    listed = client.get("/page/tools", params={"offset": 1, "limit": 2}).json()
    assert listed["total"] == 5
    assert [tool["id"] for tool in listed["tools"]] == sorted(tool.id for tool in TOOLS)[1:3]
    assert client.get("/page/tools", params={"find": "LION"}).json()["total"] == 1
    assert client.get("/page/tools", params={"offset": "-1"}).status_code == 422
    assert client.get("/page/tools", params={"limit": "9" * 30}).status_code == 422


def test_what_a_description_says_stays_text(client: TestClient) -> None:
    answer = client.post("/page/search", json={"request": "feed the lion"})
    assert answer.headers["content-type"] == "application/json"
    tool = answer.json()["answers"][0]["tools"][0]
    assert SCRIPT in tool["description"]
    assert tool["parameters"][0]["description"] == SCRIPT


def test_thumbs_are_feedback(client: TestClient, scout: Scout) -> None:
    given = {"request": "feed it", "used": ["zoo/feed_lion"], "rejected": ["mail/send_email"]}
    assert client.post("/page/feedback", json=given).json() == {"noted": True}
    [(_, example)] = scout.store.feedback()
    assert (example.request, example.used, example.rejected) == ("feed it", ("zoo/feed_lion",), ("mail/send_email",))
    assert example.source == "page"
    assert client.post("/page/feedback", json={"request": "a", "used": ["no/such"]}).status_code == 404
    assert client.post("/page/feedback", json={"request": "a"}).status_code == 422
    assert client.post("/page/feedback", json={"request": "a", "used": "zoo/feed_lion"}).status_code == 422


def test_a_dropped_file(client: TestClient, scout: Scout) -> None:
    added = client.post("/page/add", json={"name": "tea.yaml", "text": SPEC})
    assert added.json() == {"added": 1, "changed": 0, "unchanged": 0, "problems": []}
    assert search(client, "brew tea")["tools"][0]["name"] == "brew_tea"
    [source] = [one for one in client.get("/page/sources").json()["sources"] if one["source"] == "tea.yaml"]
    assert (source["tools"], source["error"]) == (1, None)
    assert source["changed"]
    assert client.post("/page/add", json={"name": "tea.yaml", "text": SPEC}).json()["unchanged"] == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [("tea.yaml", "openapi: [3"), ("tea.json", "{"), ("tools.json", "[1]"), ("x.py", "print()"), ("..", ""), ("", ""),
     (".yaml", SPEC), ("servers.json", json.dumps({"mcpServers": {"a": {"command": "touch", "args": ["owned"]}}}))],
)  # fmt: skip
def test_a_file_that_cannot_be_read_or_would_run_something(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = client.post("/page/add", json={"name": name, "text": text})
    told = answer.json().get("detail") or answer.json()["problems"][0]
    assert "/tmp" not in told
    assert not (tmp_path / "owned").exists()
    assert client.get("/page/state").json()["tools"] == len(TOOLS)


def test_a_failed_add_is_shown_until_it_succeeds(client: TestClient) -> None:
    def errors() -> dict[str, str | None]:
        return {one["source"]: one["error"] for one in client.get("/page/sources").json()["sources"]}

    assert client.post("/page/add", json={"name": "tea.yaml", "text": "openapi: [3"}).status_code == 422
    assert errors()["tea.yaml"]
    assert client.post("/page/add", json={"name": "tea.yaml", "text": SPEC}).status_code == 200
    assert errors()["tea.yaml"] is None


def test_a_document_is_added_by_its_address(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "tea.yaml").write_text(SPEC)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{site.server_address[1]}/tea.yaml"
        added = client.post("/page/add", json={"url": url}).json()
        missing = client.post("/page/add", json={"url": url.replace("tea", "coffee")})
        site.shutdown()
    assert added == {"added": 1, "changed": 0, "unchanged": 0, "problems": []}
    assert missing.status_code == 422
    assert search(client, "brew tea")["tools"][0]["name"] == "brew_tea"
    listed = {one["source"]: one for one in client.get("/page/sources").json()["sources"]}
    assert (listed[url]["tools"], listed[url]["error"]) == (1, None)
    assert "404" in listed[url.replace("tea", "coffee")]["error"]


@pytest.mark.parametrize("url", ["touch owned", "file:///etc/passwd", "mcp:touch owned", "os:system", ""])
def test_only_addresses_are_added_by_address(client: TestClient, url: str) -> None:
    answer = client.post("/page/add", json={"url": url})
    assert answer.status_code == 422
    assert "https://" in answer.json()["detail"]


def test_an_address_that_does_not_answer(client: TestClient) -> None:
    assert client.post("/page/add", json={"url": "http://127.0.0.1:9/openapi.json"}).status_code == 422
    assert client.get("/page/sources").json()["sources"][-1]["error"]


def test_a_caller_meets_its_own_tools_alone(scout: Scout) -> None:
    scout.store.put_principal(Principal("ann", allow=("*/*",), deny=("vault/*",)))
    token, key = new_key("ann")
    scout.store.add_key(key)
    with TestClient(app(scout), SITE) as client:
        assert client.get("/page/state").status_code == 401
        assert client.get("/").status_code == 200
        client.headers["Authorization"] = f"Bearer {token}"
        state = client.get("/page/state").json()
        assert state["tools"] == 4
        assert state["namespaces"] == 3
        assert client.get("/page/namespaces").json()["namespaces"].keys() == {"mail", "weather", "zoo"}
        assert not state["caller"]["admin"]
        answer = search(client, "open the vault of the lion", k=10)
        assert {tool["namespace"] for tool in answer["tools"]} == {"zoo"}
        refused = [client.post("/page/search", json={"request": "a", "namespace": n}) for n in ("vault", "nowhere")]
        assert refused[0].status_code == 422
        assert refused[0].json() == refused[1].json()
        assert client.get("/page/tools", params={"find": "vault"}).json()["total"] == 0
        allowed = [tool for tool in TOOLS if tool.namespace != "vault"]
        assert client.get("/page/tokens").json()["mcp"]["tokens"] == vendor_formats.render(allowed, "mcp").tokens
        for route in ("sources", "results", "results/a.svg", "live"):
            assert client.get(f"/page/{route}").status_code == 403
        assert client.post("/page/add", json={"name": "tea.yaml", "text": SPEC}).status_code == 403
        forbidden = client.post("/page/feedback", json={"request": "a", "used": ["vault/open_vault"]})
        unknown = client.post("/page/feedback", json={"request": "a", "used": ["vault/xxxx_xxxxx"]})
        assert forbidden.status_code == unknown.status_code == 404


def test_an_admin_who_may_not_see_everything_adds_no_documents(scout: Scout) -> None:
    scout.store.put_principal(Principal("part", allow=("*/*",), deny=("vault/*",), admin=True))
    token, key = new_key("part")
    scout.store.add_key(key)
    with TestClient(app(scout), SITE, headers={"Authorization": f"Bearer {token}"}) as client:
        refused = client.post("/page/add", json={"name": "tea.yaml", "text": SPEC})
        assert client.get("/page/live").status_code == client.get("/metrics").status_code == 403
    assert refused.status_code == 403
    assert "may change only tools that it may see" in refused.json()["detail"]


def test_the_live_view_has_the_figures_of_top(client: TestClient) -> None:
    for request in ("send an email", "feed the lion", "qwertyuiop"):
        assert client.post("/search", json={"request": request}).status_code == 200
    first = client.get("/page/live").json()
    assert (first["seconds"], first["per_second"], first["tools"]) == (0, None, 5)
    assert first["verdicts"] == {"nothing_fits": 1, "use": 2}
    [searches] = [one for one in first["routes"] if one["route"] == "POST /search"]
    assert (searches["requests"], searches["failed"]) == (3, 0)
    shown = figures(Rates(read_metrics(client.get("/metrics").text, 0.0)))
    [same] = [one for one in shown.routes if one.route == "POST /search"]
    assert searches == asdict(same)
    search(client, "send an email")
    then = client.get("/page/live", params={"since": first["look"]}).json()
    assert then["verdicts"] == {"nothing_fits": 0, "use": 1}
    assert then["per_second"] == pytest.approx(then["requests"] / then["seconds"])
    # A second page that looks now shares the look, and a name that nobody gave means since the start.
    other = client.get("/page/live", params={"since": "1"}).json()
    assert (other["look"], other["verdicts"]) == (then["look"], {"nothing_fits": 1, "use": 3})


def test_only_admins_look(scout: Scout) -> None:
    with TestClient(app(scout), SITE) as client:
        assert client.get("/page/live").status_code == 403


def test_looks_are_kept_for_a_while_and_not_for_ever() -> None:
    metrics, now = Metrics(), [100.0]
    view = LiveView(lambda: metrics.text({}), clock=lambda: now[0])
    looks = []
    for _ in range(100):
        metrics.count_verdict("use")
        now[0] += 2.0
        looks.append(view.look("")["look"])
    assert len(set(looks)) == 100
    recent, old = view.look(looks[-2]), view.look(looks[0])
    assert (recent["seconds"], recent["verdicts"]) == (2.0, {"use": 1})
    assert (old["seconds"], old["verdicts"]) == (0, {"use": 100})


def test_results(client: TestClient, tmp_path: Path) -> None:
    assert client.get("/page/results").json() == {"folder": "", "files": [], "plots": []}
    folder = tmp_path / "results"
    folder.mkdir()
    row = {"dataset": "toys", "retriever": "bm25", "metrics": {"recall@5": 0.5, "ndcg@5": float("nan")}}
    speed = {"bench": "query", "values": {"p50_ms": 1.23456}, "date": "2026-01-02T03:04:05"}
    lines = [json.dumps(row), "{broken", "[]", json.dumps(speed)]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    (folder / "plot.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    found = client.get("/page/results").json()
    assert found["plots"] == ["plot.svg"]
    assert found["files"] == [
        {"name": "rows", "columns": ["dataset", "retriever", "R@5"], "rows": [["toys", "bm25", 50.0]]},
        {"name": "rows: bench", "columns": ["bench", "p50_ms", "date"], "rows": [["query", 1.235, "2026-01-02"]]},
    ]
    plot = client.get("/page/results/plot.svg")
    assert plot.headers["content-type"] == "image/svg+xml"
    assert "sandbox" in plot.headers["content-security-policy"]
    assert client.get("/page/results/rows.jsonl").status_code == 404


def test_only_shares_become_percentages(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    row = {"retriever": "toolgen", "metrics": {"perplexity": 29.7345}}
    (tmp_path / "results" / "stages.jsonl").write_text(json.dumps(row))
    [file] = client.get("/page/results").json()["files"]
    assert file["rows"] == [["toolgen", 29.73]]


def test_codes_are_shown_as_soon_as_tools_have_them(tmp_path: Path) -> None:
    class Late(Coded):
        ready = False

        def codes(self) -> dict[str, tuple[int, ...]]:
            return super().codes() if self.ready else {}

    retriever = Late()
    with opened(tmp_path, retriever) as scout, TestClient(app(scout), SITE) as client:
        assert search(client, "lion")["tools"][0]["code"] is None
        retriever.ready = True
        assert search(client, "lion")["tools"][0]["code"]["steps"]


def test_the_path_in_a_code_tree() -> None:
    class Fixed(Bm25):
        def codes(self) -> dict[str, tuple[int, ...]]:
            return {"a/x": (1, 2, 3), "a/y": (1, 2, 4), "a/z": (1, 5, 0), "b/w": (7, 0, 0)}

    assert Bm25().codes() == {}
    tree = CodeTree(Hybrid(parts=[Bm25(), Fixed()]).codes())
    steps = [{"code": [1], "tools": 3}, {"code": [1, 2], "tools": 2}, {"code": [1, 2, 3], "tools": 1}]
    assert tree.path("a/x") == {"steps": steps, "near": ["a/y"]}
    alone = tree.path("b/w")
    assert alone is not None
    assert alone["near"] == []
    assert tree.path("no/such") is None
