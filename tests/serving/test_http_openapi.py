"""The OpenAPI document says what the routes are, what they take and what they answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from jsonschema import Draft202012Validator
from starlette.routing import Route

from tests.serving.http_app import Served, served
from toolscout.serving import openapi_document
from toolscout.serving.limits import ServeOptions

DOCUMENT = openapi_document.document(with_proxy=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    options = ServeOptions(rate=0, upstream="http://127.0.0.1:1/v1")
    with served(tmp_path_factory.mktemp("openapi"), options) as running:
        yield running


def schema(reference: dict[str, Any]) -> dict[str, Any]:
    """A schema that stands on its own."""
    return {**reference, "components": DOCUMENT["components"]}


def test_every_route_is_described_and_every_description_is_a_route(server: Served) -> None:
    served_at = {
        (method.lower(), route.path.replace(":path", ""))
        for route in server.client.app.routes  # type: ignore[attr-defined]
        if isinstance(route, Route) and not route.path.startswith("/page") and route.path != "/"
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert served_at == {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert server.get("/openapi.json", "nobody").json() == DOCUMENT


def test_its_schemas_are_sound_and_lead_somewhere() -> None:
    names = DOCUMENT["components"]["schemas"]
    for one in names.values():
        Draft202012Validator.check_schema(one)
    text = str(DOCUMENT)
    assert {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]} <= set(names)
    ids = [act["operationId"] for acts in DOCUMENT["paths"].values() for act in acts.values()]
    assert len(ids) == len(set(ids))


ASKED: list[tuple[str, str, Any, int]] = [
    ("post", "/search", {"request": "feed the lion", "format": "mcp", "budget": 5000}, 200),
    ("post", "/search", {"requests": ["feed the lion", "mail"], "k": 2}, 200),
    ("post", "/search", {}, 422),
    ("post", "/need", {"request": "feed the lion"}, 200),
    ("post", "/need", {"requests": ["feed the lion"]}, 200),
    ("post", "/feedback", {"request": "feed the lion", "used": ["zoo/feed_lion"]}, 200),
    ("post", "/feedback", {"examples": [{"request": "x", "used": ["no/such"]}]}, 404),
    ("post", "/tools", {"tools": [{"name": "x", "namespace": "y"}], "remove": []}, 200),
    ("get", "/tools", None, 200),
    ("get", "/tools/{id}", None, 200),
    ("delete", "/tools/{id}", None, 404),
    ("get", "/health", None, 200),
    ("get", "/ready", None, 200),
    ("get", "/openapi.json", None, 200),
    ("post", "/v1/chat/completions", {"messages": []}, 502),
    ("post", "/v1/messages", [], 422),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), ASKED, ids=lambda value: str(value)[:30])
def test_what_is_answered_is_what_is_described(server: Served, method: str, path: str, body: Any, status: int) -> None:
    act = DOCUMENT["paths"][path][method]
    if status == 200 and body is not None:
        Draft202012Validator(schema(act["requestBody"]["content"]["application/json"]["schema"])).validate(body)
    tool = "zoo/feed_lion" if method == "get" else "no/such"
    url = path.replace("{id}", tool)
    answer = server.client.request(method, url, json=body, headers=server.headers("admin"))
    assert answer.status_code == status
    described = act["responses"][str(status)]["content"][answer.headers["content-type"]]["schema"]
    Draft202012Validator(schema(described)).validate(answer.json())


@pytest.mark.slow
def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    """Thousands of made-up requests, good and bad: none is answered with a 5xx or otherwise than described."""
    command = os.environ.get("SCHEMATHESIS") or shutil.which("schemathesis") or shutil.which("st")
    if not command:
        pytest.skip("schemathesis is not installed; name it with SCHEMATHESIS")
    with served(tmp_path, ServeOptions(rate=0), keyed=False) as server:
        config = uvicorn.Config(server.client.app, port=0, log_config=None)  # type: ignore[arg-type]
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.05)
        port = running.servers[0].sockets[0].getsockname()[1]
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        words = [command, "run", f"http://127.0.0.1:{port}/openapi.json", "--checks", checks, "--max-examples", "50"]
        words += ["--suppress-health-check", "all"]  # those are about how long it takes to make requests up
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
        running.should_exit = True
        thread.join(30)
    sys.stdout.write(done.stdout[-5000:])
    assert done.returncode == 0, done.stdout[-5000:]
