"""What servers ask and tell the client whose call they work on, through the gateway."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.serving.gateways import QUICK, gateway, soon, text
from tests.serving.test_gateway_offers import MODES, UPSTREAMS, asking, gateway_of
from toolscout.serving.gateway import client_calls


class Answers:
    """Callbacks of a client that answer as one person does, and what they were asked and told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Any] = []
        self.logged: list[types.LoggingMessageNotificationParams] = []

    async def sample(self, _: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.asked.append(params)
        content = types.TextContent(type="text", text=f"{self.name} writes")
        return types.CreateMessageResult(role="assistant", content=content, model="small")

    async def elicit(self, _: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params)
        return types.ElicitResult(action="accept", content={"answer": self.name})

    async def roots(self, _: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=f"file:///home/{self.name}")])

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params)

    def client(self, server: Any, mode: str, **more: Any) -> Client:
        callbacks = {
            "sampling_callback": self.sample,
            "elicitation_callback": self.elicit,
            "list_roots_callback": self.roots,
            "logging_callback": self.log,
        }
        return Client(server, mode=mode, **callbacks | more)


async def answer(client: Client, tool: str, question: str = "Who?") -> Any:
    result = await client.call_tool(f"mail__{tool}", {"text": question})
    assert not result.is_error, text(result)
    return json.loads(text(result))


@pytest.mark.parametrize("kind", UPSTREAMS)
@pytest.mark.parametrize("mode", MODES)
def test_questions_and_log_messages_go_to_the_client_that_called(tmp_path: Path, kind: str, mode: str) -> None:
    async def main() -> None:
        ada, bob = Answers("ada"), Answers("bob")
        async with (
            gateway_of(tmp_path, mail=kind) as (_, url),
            ada.client(url, mode, log_level="info") as one,
            bob.client(url, mode, log_level="error") as two,
        ):
            for who, client in ((ada, one), (bob, two)):
                sampled = await answer(client, "sample", "Write!")
                assert sampled["content"]["text"] == f"{who.name} writes"
                assert (await answer(client, "elicit"))["content"] == {"answer": who.name}
                assert (await answer(client, "roots"))["roots"][0]["uri"] == f"file:///home/{who.name}"
                sampling, elicitation = who.asked
                assert sampling.messages[0].content.text == "Write!"
                assert elicitation.message == "mail: Who?"
                if mode == "legacy":  # questions of the newest protocol have no _meta
                    assert sampling.meta["toolscout/server"] == elicitation.meta["toolscout/server"] == "mail"
            if mode == "legacy":
                request = types.SetLevelRequest(params=types.SetLevelRequestParams(level="error"))
                await two.session.send_request(request, types.EmptyResult)
            for client in (one, two):
                await client.call_tool("mail__say", {"text": "careful"})
            await soon(lambda: ada.logged)
            assert [(one.logger, one.level, one.data) for one in ada.logged] == [("mail/speech", "warning", "careful")]
            assert bob.logged == []

    anyio.run(main)


@pytest.mark.parametrize("kind", UPSTREAMS)
@pytest.mark.parametrize("mode", MODES)
def test_a_client_that_cannot_be_asked_is_not(tmp_path: Path, kind: str, mode: str) -> None:
    async def main() -> None:
        async with gateway_of(tmp_path, mail=kind) as (_, url), Client(url, mode=mode) as client:
            for tool in ("sample", "elicit", "roots"):
                if kind.startswith("old"):
                    told = text(await client.call_tool(f"mail__{tool}", {"text": "?"}))
                    assert told.startswith("refused: the client ")
                else:  # there is no way to tell such a server
                    with pytest.raises(MCPError, match="the client "):
                        await client.call_tool(f"mail__{tool}", {"text": "?"})

    anyio.run(main)


@pytest.mark.parametrize("kind", ["old stdio", "old http"])
def test_two_clients_that_call_one_server_at_once(tmp_path: Path, kind: str) -> None:
    """Over stdio nothing tells whom the server asks: it is refused. Over HTTP each gets its own question."""

    async def main() -> None:
        names, results = ("ada", "bob"), dict[str, str]()
        asked, answered = anyio.Event(), anyio.Event()

        async def slow(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            asked.set()
            await answered.wait()
            return types.ElicitResult(action="accept", content={"answer": "ada"})

        async with (
            gateway_of(tmp_path, mail=kind) as (_, url),
            Answers("ada").client(url, "legacy", elicitation_callback=slow) as one,
            Answers("bob").client(url, "legacy") as two,
            anyio.create_task_group() as tasks,
        ):

            async def call(name: str, client: Client) -> None:
                results[name] = text(await client.call_tool("mail__elicit", {"text": "Who?"}))

            tasks.start_soon(call, names[0], one)
            await asked.wait()
            await call(names[1], two)
            answered.set()
        assert "ada" in results["ada"]
        assert ("bob" in results["bob"]) == (kind == "old http")
        assert ("cannot be told" in results["bob"]) == (kind == "old stdio")

    anyio.run(main)


def test_the_clock_stands_still_while_a_person_thinks(tmp_path: Path) -> None:
    async def slow(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        await anyio.sleep(1.5)
        return types.ElicitResult(action="accept", content={"answer": "late"})

    async def main() -> None:
        async with asking("mail", "old stdio") as mail:
            options = replace(QUICK, timeout=0.7)
            async with gateway(tmp_path / "t.db", {"mcpServers": {"mail": mail}}, backend=options) as made:
                for mode in MODES:
                    async with Answers("ada").client(made.server, mode, elicitation_callback=slow) as client:
                        assert (await answer(client, "elicit"))["content"] == {"answer": "late"}

    anyio.run(main)


def test_a_call_that_waits_belongs_to_who_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state can be used once, for the same call, and not after the time to answer."""
    monkeypatch.setattr(client_calls, "ANSWER_SECONDS", 0.5)

    async def main() -> None:
        async with gateway_of(tmp_path, mail="old stdio") as (made, url), Answers("ada").client(url, "auto") as client:
            assert client.protocol_version in MODERN_PROTOCOL_VERSIONS

            async def send(more: dict[str, Any]) -> Any:
                name = "mail__elicit"
                arguments = more.pop("arguments", {"text": "Who?"})
                return await client.session.call_tool(name, arguments, allow_input_required=True, **more)

            first = await send({})
            assert isinstance(first, types.InputRequiredResult)
            (key,) = first.input_requests or {}
            responses = {key: types.ElicitResult(action="accept", content={"answer": "x"})}
            resumed = {"request_state": first.request_state, "input_responses": responses}
            with pytest.raises(MCPError, match="no call waits here"):
                await send(resumed | {"arguments": {"text": "What?"}})
            again = await send({"request_state": first.request_state})
            assert isinstance(again, types.InputRequiredResult)  # it was not answered
            assert again.input_requests is not None
            assert list(again.input_requests) == [key]
            with pytest.raises(MCPError, match="no call waits here"):
                await send(resumed)
            done = await send(resumed | {"request_state": again.request_state})
            assert '"answer":"x"' in text(done)
            late = await send({})
            await soon(lambda: not made.backends._servers["mail"]._in_flight._calls, 5)
            told = await send({"request_state": late.request_state})
            assert "did not answer in time" in text(told)

    anyio.run(main)


def test_the_client_over_stdio_answers_for_its_roots_between_calls(tmp_path: Path) -> None:
    """Servers hear when they change, and log messages that concern no call reach the one client."""

    async def main() -> None:
        async with (
            asking("mail", "old stdio") as mail,
            gateway(tmp_path / "t.db", {"mcpServers": {"mail": mail}}) as made,
        ):
            ada = Answers("ada")
            async with ada.client(made.server, "legacy"):
                await soon(lambda: made.backends.connected is not None)
                connected = made.backends.connected
                assert connected is not None
                found = await connected.ask(types.ListRootsRequest())
                assert isinstance(found, types.ListRootsResult)
                assert str(found.roots[0].uri) == "file:///home/ada"
                message = types.LoggingMessageNotificationParams(level="info", data="later")
                await connected.log(message)
                await soon(lambda: ada.logged)
            await soon(lambda: made.backends.connected is None)

    anyio.run(main)
