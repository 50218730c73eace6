"""Which tools a conversation is listed, and what a search says of the servers and of those that are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from tests.serving.gateways import called, found, gateway, serving, small_http, soon
from toolscout.core.permissions import Principal, new_key
from toolscout.serving.gateway.listed_tools import MAX_EXPOSED
from toolscout.serving.gateway.server import INSTRUCTIONS, Gateway, GatewayOptions
from toolscout.serving.gateway.transports import make_app
from toolscout.serving.limits import ServeOptions

META = ["search_tools", "describe_tool", "call_tool"]


async def listed(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_tools_that_a_conversation_uses_join_its_list(tmp_path: Path, mode: str) -> None:
    """They come at the end, stay in order, and are listed to this conversation alone."""
    options = GatewayOptions(pins=("music/get_music",), expose="auto", pass_through=0)
    heard: list[str] = []

    async def note(message: Any) -> None:
        heard.append(type(message).__name__)

    async def main() -> None:
        async with (
            small_http("mail") as mail,
            small_http("music") as music,
            gateway(tmp_path / "t.db", {"mcpServers": {"mail": mail, "music": music}}, options=options) as made,
            serving(make_app(made, ServeOptions())) as url,
            Client(url, mode=mode, message_handler=note) as client,
            Client(url, mode="legacy") as other,
        ):
            first = [*META, "music__get_music"]
            assert await listed(client) == await listed(other) == first
            await found(client, "letters in the mailbox")
            assert await listed(client) == first  # found is not used
            assert (await called(client, "mail/delete_mail", {"number": 1})).is_error
            assert await listed(client) == first
            await called(client, "mail/get_mail", {"city": "Rome"})
            await called(client, "music/get_music", {"city": "Rome"})
            await called(client, "mail/count", {"to": 1})
            await called(client, "mail/get_mail", {"city": "Rome"})
            assert await listed(client) == [*first, "mail__get_mail", "mail__count"]
            assert await listed(other) == first
            answer = await client.call_tool("mail__count", {"to": 1})
            assert answer.structured_content == {"counted": 1}
            if mode == "legacy":
                await soon(lambda: heard.count("ToolListChangedNotification") == 2)
            await called(client, "music/change", {"remove": "delete_music"})
            used = [f"mail/{name}" for name in ("sleep", "change")] + [f"music/{name}" for name in ("count", "sleep")]
            for name in used:
                await called(
                    client, name, {"to": 1} if name.endswith("count") else {"seconds": 0} if "sleep" in name else {}
                )
            now = await listed(client)
            assert now[:6] == [*first, "mail__get_mail", "mail__count"]
            assert len(now) <= len(first) + MAX_EXPOSED

    anyio.run(main)


def test_without_it_nothing_joins(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            small_http("mail") as mail,
            gateway(tmp_path / "t.db", {"mcpServers": {"mail": mail}}, options=GatewayOptions(pass_through=0)) as made,
            Client(made.server) as client,
        ):
            await called(client, "mail/get_mail", {"city": "Rome"})
            assert await listed(client) == META
            assert client.instructions == INSTRUCTIONS

    anyio.run(main)


def test_a_search_counts_tools_by_server_and_names_servers_that_are_missing(tmp_path: Path) -> None:
    document = {
        "mcpServers": {"gone": {"command": "no-such-command"}},
        "openapi": {"shop": {"source": str(tmp_path / "shop.json")}},
    }

    async def main() -> None:
        async with small_http("mail") as mail:
            document["mcpServers"]["mail"] = mail
            async with gateway(tmp_path / "t.db", document) as made, Client(made.server) as client:
                for query in ("letters in the mailbox", "quantum chromodynamics"):
                    told = await found(client, query)
                    assert told["servers"] == {"mail": 5}
                    assert told["notes"] == [
                        "the server gone cannot be started: none of its tools is known",
                        "the server shop cannot be read now: none of its tools is known",
                    ]
                await called(client, "mail/change", {"add": "extra"})
                await soon_counts(client, {"mail": 6})
        document["mcpServers"]["mail"] = {"url": "http://127.0.0.1:9/mcp"}
        async with gateway(tmp_path / "t.db", document) as made, Client(made.server) as client:
            told = await found(client, "letters in the mailbox")
            assert told["servers"] == {"mail": 6}
            about_mail = [note for note in told["notes"] if note.startswith("the server mail ")]
            assert len(about_mail) == 1
            assert about_mail[0].endswith(": 6 of its tools are known from before")
            key = key_of_reader(made)
        async with gateway(tmp_path / "t.db", document, options=GatewayOptions(key=key, pass_through=0)) as made:
            await others_hear_nothing(made)

    anyio.run(main)


async def soon_counts(client: Client, counts: dict[str, int]) -> None:
    async def counted() -> bool:
        told = await found(client, "letters in the mailbox")
        return bool(told["servers"] == counts)

    await soon(counted, 5)


def key_of_reader(made: Gateway) -> str:
    """The key of somebody who may use one tool of one server."""
    store = made.access.scout.store
    store.put_principal(Principal("reader", allow=("mail/get*",)))
    key, stored = new_key("reader")
    store.add_key(stored)
    return key


async def others_hear_nothing(made: Gateway) -> None:
    async with Client(made.server) as client:
        told = await found(client, "letters in the mailbox")
        assert told["servers"] == {"mail": 1}
        assert len(told["notes"]) == 1
        assert told["notes"][0].startswith("the server mail ")
        assert (await client.list_resources()).resources == []


def test_tools_that_wait_for_approval_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            small_http("mail") as mail,
            gateway(tmp_path / "t.db", {"mcpServers": {"mail": mail}}, quarantine=tmp_path / "q") as made,
            Client(made.server) as client,
        ):
            await called(client, "mail/change", {"remove": "get_mail"})
            await soon_counts(client, {"mail": 4})
            await called(client, "mail/change", {"add": "get_mail", "description": "Something else"})

            async def noted() -> bool:
                return "1 tools of the server mail are held back" in str((await found(client, "letters")).get("notes"))

            await soon(noted, 5)

    anyio.run(main)
