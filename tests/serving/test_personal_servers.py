"""What an MCP server lists for one caller, and what others see of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import mcp_types as types
import pytest

from toolscout.catalogue.mcp.client import McpServer, ServerListing
from toolscout.core.permissions import User
from toolscout.errors import BadSource, UnknownTool
from toolscout.serving.access import Caller
from toolscout.serving.gateway import personal_servers
from toolscout.serving.gateway.client_calls import ClientCall
from toolscout.serving.gateway.personal_servers import WANTS_SIGN_IN, PersonalServer
from toolscout.serving.gateway.server_connection import BackendDown, BackendOptions
from toolscout.serving.gateway.server_requests import ServerRequest
from toolscout.serving.gateway.upstream_auth import Credentials, NoCredentials, UpstreamAuth

CALLERS = {name: Caller("staff", user=User("staff", "https://i.example", name)) for name in ("alice", "bob", "carol")}


def tool(name: str, text: str = "Says something") -> dict[str, Any]:
    return {"name": name, "description": text, "inputSchema": {"type": "object"}}


class Crm:
    """A server that lists by token, and the tokens that it was sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, auth: UpstreamAuth | None = None) -> None:
        self.lists: dict[str, Any] = {}
        self.asked: list[str] = []
        self.published = 0
        monkeypatch.setattr(personal_servers, "list_tools", self.list_tools)
        monkeypatch.setattr(personal_servers, "send_alone", self.send_alone)
        credentials = Credentials("crm", auth or UpstreamAuth("pass-through"))
        server = McpServer(url="https://crm.example/mcp", name="crm", headers={"authorization": "Bearer of-all"})
        self.server = PersonalServer(server, credentials, BackendOptions(), self.publish)

    async def list_tools(self, server: McpServer, timeout: float) -> ServerListing:
        assert [name.lower() for name in server.headers] == ["authorization"]
        [token] = (value.removeprefix("Bearer ") for value in server.headers.values())
        self.asked.append(token)
        await anyio.sleep(0.01)
        listed = self.lists.get(token)
        if listed is None:
            raise BadSource("https://crm.example/mcp answered 401 Unauthorized; give the headers it asks for")
        return ServerListing("crm", "", listed)

    async def send_alone(self, server: McpServer, request: ServerRequest, call: ClientCall, timeout: float) -> Any:
        sent = request.make({})
        assert isinstance(sent, types.CallToolRequest)
        name = sent.params.name
        self.asked.append(f"{name} {server.headers['Authorization']}")
        if name == "broken":
            raise BadSource(f"https://crm.example/mcp {server.headers['Authorization']} broke")
        return name

    async def publish(self, server: PersonalServer) -> None:
        self.published += 1
        server.admit(server.listed.values())

    async def seen(self, name: str) -> set[str]:
        await self.server.list_for(CALLERS[name], name)
        return {one.removeprefix("crm/") for one in self.server.visible(CALLERS[name])}


@pytest.fixture
def crm(monkeypatch: pytest.MonkeyPatch) -> Crm:
    return Crm(monkeypatch)


def test_a_public_list_is_everybodys_and_calls_are_in_the_callers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    crm = Crm(monkeypatch, UpstreamAuth("pass-through", {"list": "public"}))

    async def main() -> None:
        crm.lists = {"of-all": [tool("a")]}
        assert crm.server.problem == "has not listed its tools"
        await crm.server.list_for(Caller(""), None)
        assert crm.asked == ["of-all"]
        assert crm.server.visible(CALLERS["alice"]) == crm.server.visible(Caller("staff")) == {"crm/a"}
        assert crm.server.wants_list(CALLERS["alice"]) == ""
        await crm.server.call(crm.server.listed["crm/a"], {}, CALLERS["alice"], "alice", ClientCall())
        assert crm.asked[-1] == "a Bearer alice"
        with pytest.raises(NoCredentials):
            await crm.server.call(crm.server.listed["crm/a"], {}, Caller("staff"), None, ClientCall())
        crm.lists = {}  # it does not answer: what is known stays, and it is asked again soon
        await crm.server.list_for(Caller(""), None)
        assert crm.server.visible(CALLERS["bob"]) == {"crm/a"}

    anyio.run(main)


def test_each_caller_sees_its_own_list(crm: Crm) -> None:
    async def main() -> None:
        crm.lists = {"alice": [tool("a"), tool("both")], "bob": [tool("b"), tool("both")]}
        assert crm.server.problem == WANTS_SIGN_IN
        assert await crm.seen("alice") == {"a", "both"}
        assert await crm.seen("bob") == {"b", "both"}
        assert await crm.seen("carol") == set()
        assert crm.server.problem == ""
        assert set(crm.server.listed) == {"crm/a", "crm/b", "crm/both"}
        assert crm.server.visible(Caller("staff")) == frozenset()
        del crm.lists["alice"]  # her rights are gone
        assert await crm.seen("alice") == set()
        assert set(crm.server.listed) == {"crm/b", "crm/both"}

    anyio.run(main)


def test_a_text_for_one_caller_is_shown_to_no_other(crm: Crm) -> None:
    async def main() -> None:
        crm.lists = {"alice": [tool("report", "For Alice")], "bob": [tool("report", "For Bob")]}
        assert await crm.seen("alice") == {"report"}
        assert await crm.seen("bob") == set()
        assert crm.server.listed["crm/report"].description == "For Alice"
        crm.lists["alice"] = []
        assert await crm.seen("alice") == set()
        assert await crm.seen("bob") == {"report"}

    anyio.run(main)


def test_what_is_held_back_is_seen_by_nobody(crm: Crm) -> None:
    async def main() -> None:
        crm.lists = {"alice": [tool("a"), tool("b")]}
        await crm.seen("alice")
        crm.server.admit([crm.server.listed["crm/a"]])
        assert crm.server.visible(CALLERS["alice"]) == {"crm/a"}

    anyio.run(main)


def test_a_list_is_asked_for_once_at_a_time_and_renewed(crm: Crm, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        now = [1_000.0]
        # Not of the module itself, by which the event loop keeps its timers.
        monkeypatch.setattr(personal_servers, "time", SimpleNamespace(monotonic=lambda: now[0]))
        crm.lists = {"alice": [tool("a")]}
        alice, bob = CALLERS["alice"], CALLERS["bob"]
        assert crm.server.wants_list(alice) == "now"
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(crm.server.list_for, alice, "alice")
        await crm.server.list_for(bob, "bob")
        assert crm.asked == ["alice", "bob"]
        assert crm.server.wants_list(alice) == crm.server.wants_list(bob) == ""
        now[0] += 31
        assert (crm.server.wants_list(alice), crm.server.wants_list(bob)) == ("", "soon")
        now[0] += 30
        assert crm.server.wants_list(alice) == "soon"
        assert crm.server.visible(alice)
        now[0] += 600
        assert crm.server.wants_list(alice) == "now"
        assert not crm.server.visible(alice)

    anyio.run(main)


def test_calls_are_made_with_the_callers_own_token(crm: Crm, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        crm.lists = {"alice": [tool("a"), tool("broken")], "bob": []}
        await crm.seen("alice")
        await crm.seen("bob")
        listed = crm.server.listed
        crm.asked.clear()
        await crm.server.call(listed["crm/a"], {}, CALLERS["alice"], "alice", ClientCall())
        assert crm.asked == ["a Bearer alice"]
        for caller in (CALLERS["bob"], CALLERS["carol"], Caller("staff"), Caller("alice")):
            with pytest.raises(UnknownTool):
                await crm.server.call(listed["crm/a"], {}, caller, "alice", ClientCall())
        with pytest.raises(BackendDown) as raised:
            await crm.server.call(listed["crm/broken"], {}, CALLERS["alice"], "alice", ClientCall())
        assert "Bearer" not in str(raised.value)
        assert "crm.example" not in str(raised.value)

    anyio.run(main)
    assert "https://crm.example/mcp *** broke" in caplog.text
