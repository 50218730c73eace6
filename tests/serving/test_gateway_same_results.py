"""Reference servers that others wrote give the same results through the gateway as without it."""

from __future__ import annotations

import base64
import http.server
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters

from tests.serving.gateways import called, soon
from tests.serving.reference_servers import installed, servers
from toolscout.core.vendor_formats import wire_name
from toolscout.serving.gateway.offers import own_uri

pytestmark = pytest.mark.slow

_CLOCK = re.compile(r"\d{1,2}:\d\d:\d\d(?:\.\d+)?(?: ?[AP]M)?")
_OWN_META = ("toolscout/", "io.modelcontextprotocol/")


class Side:
    """A client on one side of the comparison: what it calls, and what it was asked and told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[Any] = []

    async def sample(self, _: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.heard.append(("sample", plain(params)))
        content = types.TextContent(type="text", text="Rome is warm")
        return types.CreateMessageResult(role="assistant", content=content, model="small", stop_reason="endTurn")

    async def elicit(self, _: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked = plain(params)
        asked["message"] = asked["message"].removeprefix("everything: ")
        asked.pop("elicitationId", None)
        self.heard.append(("elicit", asked))
        if isinstance(params, types.ElicitRequestURLParams):
            return types.ElicitResult(action="accept")
        return types.ElicitResult(action="accept", content={"name": "Ada", "check": True, "integer": 4})

    async def roots(self, _: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=(self.folder / "files").as_uri(), name="files")])

    async def note(self, message: Any) -> None:
        self.heard.append(message)

    def client(self, server: Any, mode: str) -> Client:
        return Client(
            server,
            mode=mode,
            sampling_callback=self.sample,
            elicitation_callback=self.elicit,
            list_roots_callback=self.roots,
            message_handler=self.note,
        )

    def questions(self) -> list[Any]:
        return [one for one in self.heard if isinstance(one, tuple)]

    async def tool(self, client: Client, server: str, name: str, arguments: dict[str, Any], **more: Any) -> Any:
        raise NotImplementedError

    def prompt(self, server: str, name: str) -> str:
        raise NotImplementedError


class Without(Side):
    """A client of the server itself."""

    async def tool(self, client: Client, server: str, name: str, arguments: dict[str, Any], **more: Any) -> Any:
        return await client.call_tool(name, arguments, **more)

    def prompt(self, server: str, name: str) -> str:
        return name


class Through(Side):
    """A client of the gateway."""

    async def tool(self, client: Client, server: str, name: str, arguments: dict[str, Any], **more: Any) -> Any:
        return await called(client, f"{server}/{name}", arguments, **more)

    def prompt(self, server: str, name: str) -> str:
        return wire_name(f"{server}/{name}")


def plain(value: Any) -> Any:
    """A message without what differs from run to run, and without what gateways and protocols add to every message."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(by_alias=True, mode="json", exclude_none=True)
    if isinstance(value, dict):
        meta = {k: v for k, v in value.get("_meta", {}).items() if not k.startswith(_OWN_META) and k != "progressToken"}
        if isinstance(value.get("blob"), str):  # it may say when it was made
            value = value | {"blob": base64.b64decode(value["blob"]).decode(errors="replace")}
        rest = {k: plain(v) for k, v in value.items() if k not in ("_meta", "ttlMs", "cacheScope", "resultType")}
        return rest | ({"_meta": meta} if meta else {})
    if isinstance(value, list):
        return [plain(one) for one in value]
    return _CLOCK.sub("HH:MM:SS", value) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def cache() -> Path:
    return installed()


@contextmanager
def page() -> Iterator[str]:
    """The URL of a small web page on this machine."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/page"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html><body><h1>Title</h1><p>Some words to read.</p></body></html>" if found else b"")

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/page"
    finally:
        server.shutdown()
        server.server_close()


def calls(folder: Path, url: str) -> list[tuple[str, str, dict[str, Any]]]:
    """What is called of each server: results of all kinds, and errors."""
    files = folder / "files"
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    visit = {"url": "https://shop.example/", "message": "Pay", "elicitationId": "visit-1"}
    thought = {"thought": "First", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2}
    return [
        ("everything", "echo", {"message": "hey"}),
        ("everything", "get-sum", {"a": 2, "b": 3}),
        ("everything", "get-tiny-image", {}),
        ("everything", "get-annotated-message", {"messageType": "error", "includeImage": True}),
        ("everything", "get-structured-content", {"location": "Chicago"}),
        ("everything", "get-resource-links", {"count": 2}),
        ("everything", "get-resource-reference", {"resourceType": "Text", "resourceId": 3}),
        ("everything", "trigger-sampling-request", {"prompt": "Rome", "maxTokens": 20}),
        ("everything", "trigger-elicitation-request", {}),
        ("everything", "trigger-url-elicitation", visit),
        ("everything", "trigger-url-elicitation", visit | {"errorPath": True}),
        ("everything", "get-roots-list", {}),
        ("memory", "create_entities", {"entities": [entity]}),
        ("memory", "read_graph", {}),
        ("memory", "search_nodes", {"query": "programs"}),
        ("memory", "open_nodes", {"names": ["nobody"]}),
        ("filesystem", "list_allowed_directories", {}),
        ("filesystem", "write_file", {"path": str(files / "new.txt"), "content": "one\ntwo\n"}),
        ("filesystem", "read_text_file", {"path": str(files / "new.txt"), "head": 1}),
        ("filesystem", "list_directory", {"path": str(files)}),
        ("filesystem", "read_text_file", {"path": "/etc/hostname"}),
        ("sequential-thinking", "sequentialthinking", thought),
        ("time", "convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
        ("time", "get_current_time", {"timezone": "Nowhere/City"}),
        ("git", "git_status", {"repo_path": str(files)}),
        ("git", "git_log", {"repo_path": str(folder)}),
        ("fetch", "fetch", {"url": url}),
        ("fetch", "fetch", {"url": url.replace("page", "gone")}),
    ]


async def tools_of(side: Side, client: Client, server: str) -> Any:
    """The definitions of a server's tools as a model is given them."""
    if isinstance(side, Without):
        listed = (await client.list_tools()).tools
        found = {tool.name: plain(tool) for tool in listed}
    else:
        told = await client.call_tool("search_tools", {"query": server, "k": 50})
        assert told.structured_content is not None
        count = told.structured_content["servers"][server]
        found = {}
        for tool_id in side_ids[server]:
            described = await client.call_tool("describe_tool", {"name": tool_id})
            assert described.structured_content is not None
            found[tool_id.partition("/")[2]] = plain(described.structured_content) | {"name": tool_id.partition("/")[2]}
        assert count == len(found)
    kept = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    return {name: {key: tool.get(key) for key in kept} for name, tool in found.items()}


side_ids: dict[str, list[str]] = {}


async def offers_of(side: Side, client: Client, server: str) -> dict[str, Any]:
    """Resources, templates and prompts of a server, and what they hold."""
    found: dict[str, Any] = {}
    has = client.server_capabilities

    def mine(one: Any) -> bool:
        return isinstance(side, Without) or (one.meta or {})["toolscout/server"] == server

    if has.resources is not None:
        resources = [one for one in (await client.list_resources()).resources if mine(one)]
        templates = [one for one in (await client.list_resource_templates()).resource_templates if mine(one)]
        found["resources"] = sorted((plain(one) for one in resources), key=lambda one: one["uri"])
        found["templates"] = [plain(one) for one in templates]
        uris = [one.uri for one in resources] + [one.uri_template.replace("{resourceId}", "7") for one in templates]
        found["contents"] = {uri: plain(await client.read_resource(uri)) for uri in uris}
        if isinstance(side, Through) and resources:
            again = await client.read_resource(own_uri(server, resources[0].uri))
            assert len(again.contents) == len(found["contents"][resources[0].uri]["contents"])
        if templates:
            ref = types.ResourceTemplateReference(type="ref/resource", uri=templates[0].uri_template)
            found["completion"] = plain(await client.complete(ref, {"name": "resourceId", "value": "12"}))
    if has.prompts is not None:
        prompts = [one for one in (await client.list_prompts()).prompts if mine(one)]
        names = {side.prompt(server, name): name for name in PROMPTS.get(server, {})}
        assert {one.name for one in prompts} == set(names)
        found["prompts"] = [plain(one) | {"name": names[one.name]} for one in prompts]
        for shown, name in names.items():
            found[f"prompt {name}"] = await or_error(partial(client.get_prompt, shown, PROMPTS[server][name]))
        if server == "everything":
            ref_prompt = types.PromptReference(type="ref/prompt", name=side.prompt(server, "completable-prompt"))
            for context in ({}, {"department": "Engineering"}):
                argument = {"name": "name" if context else "department", "value": "E" if not context else "A"}
                key = f"completion {len(context)}"
                found[key] = plain(await client.complete(ref_prompt, argument, context_arguments=context))
    return {what: result for what, result in found.items() if result}


PROMPTS: dict[str, dict[str, dict[str, str]]] = {
    "everything": {
        "simple-prompt": {},
        "args-prompt": {"city": "Rome", "state": "Lazio"},
        "completable-prompt": {"department": "Engineering", "name": "Alice"},
        "resource-prompt": {"resourceType": "Text", "resourceId": "2"},
    },
    "fetch": {"fetch": {"url": "http://127.0.0.1:9/"}},
}


async def or_error(work: Callable[[], Any]) -> Any:
    """The result, or the error as it is told."""
    try:
        return plain(await work())
    except MCPError as error:
        return {"code": error.code, "message": error.message}


async def results_of(side: Side, client: Client, server: str, folder: Path, url: str) -> dict[str, Any]:
    """Everything that a server gives and asks."""
    found: dict[str, Any] = {"tools": await tools_of(side, client, server)}
    for number, (of, name, arguments) in enumerate(calls(folder, url)):
        if of == server:
            found[f"{number} {name}"] = await or_error(partial(side.tool, client, server, name, arguments))
    found["offers"] = await offers_of(side, client, server)
    if server == "everything":
        seen: list[Any] = []

        async def progress(*report: Any) -> None:
            seen.append(report)

        arguments = {"duration": 0.5, "steps": 2}
        slow = await side.tool(client, server, "trigger-long-running-operation", arguments, progress_callback=progress)
        found["progress"] = (plain(slow), seen)
    found["questions"] = side.questions()
    return found


async def follow(client: Client, mode: str, side: Side, server: str, name: str, arguments: Any, uri: str) -> None:
    """Subscribe to a resource, change it, and wait to hear of it."""

    async def heard() -> bool:
        await side.tool(client, server, name, arguments)
        updates = [one for one in side.heard if isinstance(one, types.ResourceUpdatedNotification)]
        return uri in [one.params.uri for one in updates]

    if client.protocol_version.startswith("2026"):
        async with client.listen(resource_subscriptions=[uri]):
            await soon(heard, 10)
        return
    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
    await client.session.send_request(request, types.EmptyResult)
    await soon(heard, 10)


@asynccontextmanager
async def gateway_client(side: Side, config: Path, store: Path, transport: str, mode: str) -> AsyncIterator[Client]:
    words = ["-m", "toolscout", "--store", str(store), "mcp", "--config", str(config), "--retriever", "bm25"]
    if transport == "stdio":
        async with side.client(StdioServerParameters(command=sys.executable, args=words), mode) as client:
            yield client
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, *words, "--http", str(port)], stderr=subprocess.DEVNULL) as process:
        try:
            await soon(lambda: listens(port), 30)
            async with side.client(f"http://127.0.0.1:{port}/mcp", mode) as client:
                yield client
        finally:
            process.terminate()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_same_results_with_and_without_the_gateway(cache: Path, tmp_path: Path, mode: str, transport: str) -> None:
    folder = tmp_path / "kept"
    described = servers(cache, folder)
    config = tmp_path / "claude_desktop_config.json"
    config.write_text(json.dumps({"mcpServers": described}))

    async def main(url: str) -> None:
        without: dict[str, Any] = {}
        for name, entry in described.items():
            side = Without(folder)
            server = StdioServerParameters(command=entry["command"], args=entry["args"], env=entry.get("env"))
            async with side.client(server, "auto") as client:
                without[name] = await results_of(side, client, name, folder, url)
            side_ids[name] = [f"{name}/{tool}" for tool in without[name]["tools"]]
        (folder / "memory.json").unlink()
        (folder / "files" / "new.txt").unlink()
        through = Through(folder)
        async with gateway_client(through, config, tmp_path / "t.db", transport, mode) as client:
            await client.list_tools()  # waits until the servers have started
            for name in described:
                through.heard.clear()
                found = await results_of(through, client, name, folder, url)
                assert found.keys() == without[name].keys()
                assert found["offers"].keys() == without[name]["offers"].keys()
                for what, result in found.pop("offers").items():
                    assert result == without[name]["offers"][what], f"{name}: {what}"
                for what, result in found.items():
                    assert result == without[name][what], f"{name}: {what}"
            graph = "memory://knowledge-graph"
            entity = {"entities": [{"name": "Bob", "entityType": "person", "observations": []}]}
            clear = {"entityNames": ["Bob"]}
            await through.tool(client, "memory", "delete_entities", clear)
            await follow(client, mode, through, "memory", "create_entities", entity, graph)

    with page() as url:
        anyio.run(main, url)
