"""The spans of searches, HTTP requests and calls through the gateway, as an exporter in memory gets them."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.serving.gateways import called, found, gateway, serving
from tests.serving.http_app import served
from toolscout import Scout, Tool
from toolscout.cli import output
from toolscout.core import tracing
from toolscout.serving.gateway.transports import make_app
from toolscout.serving.limits import ServeOptions

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
# The MCP SDK uses the global provider, which a process can set once.
PROVIDER, EXPORTER = TracerProvider(), InMemorySpanExporter()
PROVIDER.add_span_processor(SimpleSpanProcessor(EXPORTER))


class Traced:
    def __init__(self, metrics: InMemoryMetricReader) -> None:
        self._metrics = metrics

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in EXPORTER.get_finished_spans() if span.name.startswith(name)]

    def metrics(self) -> set[str]:
        data: Any = json.loads(self._metrics.get_metrics_data().to_json())
        scopes = [scope for resource in data["resource_metrics"] for scope in resource["scope_metrics"]]
        return {metric["name"] for scope in scopes for metric in scope["metrics"]}

    def everything(self) -> str:
        return "".join(span.to_json() for span in self.spans())


@pytest.fixture
def traced(request: pytest.FixtureRequest) -> Iterator[Traced]:
    trace.set_tracer_provider(PROVIDER) if not isinstance(trace.get_tracer_provider(), TracerProvider) else None
    EXPORTER.clear()
    reader = InMemoryMetricReader()
    tracing.start(getattr(request, "param", False), PROVIDER, MeterProvider([reader]))
    yield Traced(reader)
    tracing.stop()


def values(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def own_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_a_search_says_what_it_did(tmp_path: Path, traced: Traced) -> None:
    tools = [Tool("mail", f"send_{number}", "Sends a letter") for number in range(20)]
    with Scout.open(tmp_path / "t.db", "bm25") as scout:
        scout.add(tools)
        EXPORTER.clear()
        answer = scout.search("send a letter", 3)
    (span,) = traced.spans("retrieval")
    about = values(span)
    assert about["gen_ai.operation.name"] == "retrieval"
    assert about["toolscout.k"] == 3
    assert about["toolscout.verdict"] == answer.verdict
    assert about["toolscout.fit"] == answer.fit
    assert about["toolscout.tools_searched"] == 20
    assert about["toolscout.tokens_saved"] > 0
    assert {"toolscout.ms.refresh", "toolscout.ms.rank", "toolscout.ms.verdict"} <= about.keys()
    assert "toolscout.need" not in about  # without an encoder nothing is known of it
    assert "toolscout.search.duration" in traced.metrics()
    assert "letter" not in traced.everything()


def test_http_requests_carry_context_ids_and_no_content(
    tmp_path: Path, traced: Traced, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(tmp_path) as server, output.logged(logging.INFO, "toolscout.serving", as_json=True):
        EXPORTER.clear()
        headers = {**HEADERS, "X-Request-Id": "abc-1"}
        answer = server.post("/search", {"request": "feed the secretive lion"}, **headers)
        assert answer.headers["X-Request-Id"] == "abc-1"
        assert len(server.get("/health").headers["X-Request-Id"]) == 32
    (span,) = traced.spans("POST")
    about = values(span)
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{parent(span):016x}" == PARENT
    assert about["http.route"] == "/search"
    assert about["http.response.status_code"] == 200
    assert about["toolscout.request_id"] == "abc-1"
    (search,) = traced.spans("retrieval")
    assert parent(search) == own_id(span)
    assert values(search).get("toolscout.need") == answer.json()["need"]
    (embedded, *_) = traced.spans("embeddings request")
    assert parent(embedded) == own_id(search)
    assert "secretive" not in traced.everything()
    assert {"http.server.request.duration", "toolscout.search.duration"} <= traced.metrics()
    line = json.loads(capsys.readouterr().err.splitlines()[0])
    assert (line["route"], line["status"], line["request_id"]) == ("POST /search", 200, "abc-1")


@pytest.mark.parametrize("traced", [True], indirect=True)
def test_content_is_there_where_it_was_asked_for(tmp_path: Path, traced: Traced) -> None:
    with served(tmp_path) as server:
        server.post("/search", {"request": "feed the secretive lion"})
    (search,) = traced.spans("retrieval")
    assert values(search)["gen_ai.retrieval.query.text"] == "feed the secretive lion"


def line_of(spans: Sequence[ReadableSpan], first: ReadableSpan) -> list[str]:
    """The names of a span and of those above it."""
    by_id = {own_id(span): span for span in spans}
    names, at = [], by_id.get(own_id(first))
    while at is not None:
        names.append(at.name)
        at = by_id.get(parent(at) or 0)
    return names


@pytest.mark.slow
def test_a_call_through_the_gateway_is_one_trace(tmp_path: Path, traced: Traced) -> None:
    seen = tmp_path / "seen"
    script = Path(__file__).with_name("meta_server.py")
    server = {"command": sys.executable, "args": [str(script), str(seen)], "env": {}}

    async def main() -> None:
        async with gateway(tmp_path / "t.db", {"mcpServers": {"echo": server}}) as made, Client(made.server) as client:
            EXPORTER.clear()
            await found(client, "say something back")
            done = await called(client, "echo/say", {"text": "verysecret"}, meta=HEADERS)
            assert not done.is_error
            assert 'toolscout_call_seconds_count{tool="echo/say",ok="true"} 1' in made.metrics.text({})

    anyio.run(main)
    spans = traced.spans()
    assert [values(span)["gen_ai.tool.name"] for span in traced.spans("execute_tool")] == ["search_tools", "echo/say"]
    (upstream,) = traced.spans("upstream")
    assert upstream.name == "upstream echo"
    assert "execute_tool call_tool" in line_of(spans, upstream)
    (search,) = traced.spans("retrieval")
    assert "execute_tool search_tools" in line_of(spans, search)
    assert "verysecret" not in traced.everything()
    assert "toolscout.call.duration" in traced.metrics()
    # What the server behind the gateway was told: the caller's trace, and a span of ours.
    _, trace_id, span_id, _ = json.loads(seen.read_text())["traceparent"].split("-")
    assert trace_id == TRACE
    below = next(span for span in spans if own_id(span) == int(span_id, 16))
    assert "upstream echo" in line_of(spans, below)


@pytest.mark.slow
def test_the_gateway_takes_context_and_request_id_from_http_headers(tmp_path: Path, traced: Traced) -> None:
    audit = tmp_path / "audit"

    def message(method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    search = {"name": "search_tools", "arguments": {"query": "send a letter"}}
    accepts = {"Accept": "application/json, text/event-stream", **HEADERS, "X-Request-Id": "from-http"}

    async def main() -> None:
        async with (
            gateway(tmp_path / "t.db", audit=audit) as made,
            serving(make_app(made, ServeOptions(rate=0))) as url,
            httpx2.AsyncClient(headers=accepts) as web,
        ):
            opened = await web.post(url, json=message("initialize", info))
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
            done = await web.post(url, json=message("tools/call", search), headers=session)
            assert "verdict" in done.text

    anyio.run(main)
    (span,) = traced.spans("execute_tool")
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert values(span)["toolscout.request_id"] == "from-http"
    assert json.loads(audit.read_text())["request_id"] == "from-http"
