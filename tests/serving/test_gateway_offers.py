"""Resources, prompts and completions through the gateway, over either form of the protocol on both sides."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.serving.asking_server import AskingServer
from tests.serving.gateways import Old, gateway, serving, soon
from toolscout.core.permissions import Principal, new_key
from toolscout.serving.gateway.server import Gateway
from toolscout.serving.gateway.transports import make_app
from toolscout.serving.limits import ServeOptions

ASKING = Path(__file__).with_name("asking_server.py")
UPSTREAMS = ["old stdio", "new stdio", "old http", "new http"]
MODES = ["legacy", "auto"]


@asynccontextmanager
async def asking(name: str, kind: str) -> AsyncIterator[dict[str, Any]]:
    """An asking server, as an mcpServers file names it."""
    if kind.endswith("stdio"):
        yield {"command": sys.executable, "args": [str(ASKING), name, kind.split()[0]]}
        return
    app = AskingServer(name).server.streamable_http_app()
    async with serving(Old(app) if kind.startswith("old") else app) as url:
        yield {"url": url}


@asynccontextmanager
async def gateway_of(folder: Path, **kinds: str) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway before asking servers of these kinds, and the URL that it is served at."""
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(asking(name, kind)) for name, kind in kinds.items()}
        made = await stack.enter_async_context(gateway(folder / "t.db", {"mcpServers": servers}))
        yield made, await stack.enter_async_context(serving(make_app(made, ServeOptions())))


def said(result: types.ReadResourceResult) -> tuple[str, str]:
    content = result.contents[0]
    assert isinstance(content, types.TextResourceContents)
    return content.uri, content.text


@pytest.mark.parametrize("kind", UPSTREAMS)
@pytest.mark.parametrize("mode", MODES)
def test_resources_prompts_and_completions_pass(tmp_path: Path, kind: str, mode: str) -> None:
    async def main() -> None:
        async with gateway_of(tmp_path, mail=kind, music=kind) as (_, url), Client(url, mode=mode) as client:
            assert client.server_capabilities.completions is not None
            listed = (await client.list_resources()).resources
            own = ["toolscout://mail/shared://help", "toolscout://music/shared://help"]
            assert [one.uri for one in listed] == ["note://mail/first", own[0], "note://music/first", own[1]]
            assert [(one.meta or {})["toolscout/server"] for one in listed] == ["mail", "mail", "music", "music"]
            assert listed[0].mime_type == "text/plain"
            assert said(await client.read_resource("note://music/first")) == (
                "note://music/first",
                "music has note://music/first",
            )
            assert said(await client.read_resource(own[1])) == (own[1], "music has shared://help")
            templates = (await client.list_resource_templates()).resource_templates
            assert [one.uri_template for one in templates] == [
                "note://mail/pages/{number}",
                "note://music/pages/{number}",
            ]
            assert said(await client.read_resource("note://mail/pages/7"))[1] == "mail has note://mail/pages/7"
            prompts = (await client.list_prompts()).prompts
            assert [one.name for one in prompts] == ["mail__first", "music__first"]
            assert prompts[0].arguments == [types.PromptArgument(name="whom", required=True)]
            got = await client.get_prompt("music__first", {"whom": "Ada"})
            assert got.messages[0].content == types.TextContent(type="text", text="first: greet Ada")
            of_prompt = types.PromptReference(type="ref/prompt", name="mail__first")
            done = await client.complete(of_prompt, {"name": "whom", "value": "A"})
            assert done.completion.values == ["A…", "first"]
            of_pages = types.ResourceTemplateReference(type="ref/resource", uri=templates[1].uri_template)
            done = await client.complete(of_pages, {"name": "number", "value": "1"})
            assert done.completion.values == ["1…", "note://music/pages/{number}"]

    anyio.run(main)


def test_what_is_nobodys_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway_of(tmp_path, mail="old http", music="new http") as (_, url), Client(url) as client:
            with pytest.raises(MCPError, match="read one of: toolscout://mail/shared://help, toolscout://music/shared"):
                await client.read_resource("shared://help")
            with pytest.raises(MCPError, match="several servers may have"):
                await client.read_resource("other://thing")
            for uri in ("toolscout://nobody/note://mail/first", "toolscout://mail"):
                with pytest.raises(MCPError, match="there is no resource"):
                    await client.read_resource(uri)
            with pytest.raises(MCPError, match="no note://mail/missing") as raised:
                await client.read_resource("note://mail/missing")
            assert raised.value.code == -32002
            assert raised.value.data == {"uri": "note://mail/missing"}
            with pytest.raises(MCPError, match="there is no prompt 'first'"):
                await client.get_prompt("first", {"whom": "Ada"})

    anyio.run(main)


def test_what_a_server_quotes_of_its_credentials_is_hidden(tmp_path: Path) -> None:
    secret = "sk-of-the-gateway-1234"

    async def main() -> None:
        async with asking("mail", "new http") as server, AsyncExitStack() as stack:
            document = {"mcpServers": {"mail": server | {"headers": {"Authorization": f"Bearer {secret}"}}}}
            made = await stack.enter_async_context(gateway(tmp_path / "t.db", document))
            client = await stack.enter_async_context(Client(made.server))
            got = await client.get_prompt("mail__first", {"whom": secret})
            assert got.messages[0].content == types.TextContent(type="text", text="first: greet ***")
            assert (
                said(await client.read_resource(f"note://mail/pages/{secret}"))[1] == "mail has note://mail/pages/***"
            )
            of_prompt = types.PromptReference(type="ref/prompt", name="mail__first")
            done = await client.complete(of_prompt, {"name": "whom", "value": secret})
            assert done.completion.values[0] == "***…"
            with pytest.raises(MCPError) as raised:
                await client.read_resource(f"note://mail/pages/{secret}/missing")
            assert secret not in f"{raised.value} {raised.value.data}"

    anyio.run(main)


@pytest.mark.parametrize("kind", UPSTREAMS)
@pytest.mark.parametrize("mode", MODES)
def test_changes_reach_who_follows_them(tmp_path: Path, kind: str, mode: str) -> None:
    heard: list[Any] = []

    async def note(message: Any) -> None:
        heard.append(message)

    def kinds() -> set[str]:
        return {type(one).__name__ for one in heard}

    async def main() -> None:
        async with (
            gateway_of(tmp_path, mail=kind) as (made, url),
            Client(url, mode=mode, message_handler=note) as client,
            AsyncExitStack() as stack,
        ):
            await client.list_resources()
            uri = "note://mail/first"
            if mode == "auto":
                streams = client.listen(
                    prompts_list_changed=True, resources_list_changed=True, resource_subscriptions=[uri]
                )
                await stack.enter_async_context(streams)
            else:
                request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
                await client.session.send_request(request, types.EmptyResult)

            async def updated() -> bool:
                await client.call_tool("mail__touch", {"text": "note://mail/other"})
                await client.call_tool("mail__touch", {"text": uri})
                return "ResourceUpdatedNotification" in kinds()

            await soon(updated, 10)
            uris = {one.params.uri for one in heard if isinstance(one, types.ResourceUpdatedNotification)}
            assert uris == {uri}
            await client.call_tool("mail__grow", {"text": "second"})
            await soon(lambda: {"ResourceListChangedNotification", "PromptListChangedNotification"} <= kinds(), 10)
            assert "note://mail/second" in [one.uri for one in (await client.list_resources()).resources]
            assert "mail__second" in [one.name for one in (await client.list_prompts()).prompts]
            await stack.aclose()
            if mode == "legacy":
                stop = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
                await client.session.send_request(stop, types.EmptyResult)
            await soon(lambda: not made.backends._servers["mail"]._subscribed, 5)

    anyio.run(main)


def test_a_client_that_leaves_follows_nothing_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway_of(tmp_path, mail="old stdio") as (made, _):
            mail = made.backends._servers["mail"]
            async with Client(made.server, mode="legacy") as client:
                for uri in ("note://mail/first", "toolscout://mail/shared://help"):
                    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
                    await client.session.send_request(request, types.EmptyResult)
                assert mail._subscribed == {"note://mail/first", "shared://help"}
            await soon(lambda: not mail._subscribed)

    anyio.run(main)


def test_only_who_may_use_all_of_a_server_sees_what_it_offers(tmp_path: Path) -> None:
    """Others get the same answers as for what does not exist, and hear of no change."""
    heard: dict[str, list[Any]] = {"all": [], "some": []}

    async def main() -> None:
        async with gateway_of(tmp_path, mail="old http", music="new stdio") as (made, url):
            store = made.access.scout.store
            keys: dict[str, str] = {}
            for name, allow in (("all", ("mail/*",)), ("some", ("mail/sa*", "music/touch"))):
                store.put_principal(Principal(name, allow=allow))
                keys[name], stored = new_key(name)
                store.add_key(stored)
            async with (
                client_of(url, keys["all"], heard["all"]) as one,
                client_of(url, keys["some"], heard["some"]) as two,
            ):
                assert {one.uri for one in (await one.list_resources()).resources} == {
                    "note://mail/first",
                    "shared://help",  # no other server that this caller sees has it
                }
                assert [one.name for one in (await one.list_prompts()).prompts] == ["mail__first"]
                assert said(await one.read_resource("shared://help"))[1] == "mail has shared://help"
                assert (await two.list_resources()).resources == []
                assert (await two.list_resource_templates()).resource_templates == []
                assert (await two.list_prompts()).prompts == []
                for uri in ("note://mail/first", "toolscout://mail/shared://help", "note://nobody/first"):
                    with pytest.raises(MCPError, match="there is no resource") as raised:
                        await two.read_resource(uri)
                    assert raised.value.code == types.INVALID_PARAMS
                with pytest.raises(MCPError, match="there is no prompt"):
                    await two.get_prompt("mail__first", {"whom": "Ada"})
                ref = types.PromptReference(type="ref/prompt", name="mail__first")
                with pytest.raises(MCPError, match="there is no prompt"):
                    await two.complete(ref, {"name": "whom", "value": "A"})
                request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri="note://mail/first"))
                with pytest.raises(MCPError, match="there is no resource"):
                    await two.session.send_request(request, types.EmptyResult)
                await one.call_tool("mail__grow", {"text": "second"})
                await soon(lambda: any(isinstance(m, types.ResourceListChangedNotification) for m in heard["all"]), 10)
                assert not any(isinstance(m, types.ResourceListChangedNotification) for m in heard["some"])

    anyio.run(main)


@asynccontextmanager
async def client_of(url: str, key: str, heard: list[Any]) -> AsyncIterator[Client]:
    async def note(message: Any) -> None:
        heard.append(message)

    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as web,
        Client(streamable_http_client(url, http_client=web), mode="legacy", message_handler=note) as client,
    ):
        yield client
