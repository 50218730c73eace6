"""The limits in docs/guides/security.md are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolscout.calling import http_request
from toolscout.catalogue import base
from toolscout.catalogue.mcp import client, messages
from toolscout.core import argument_checks as arguments
from toolscout.core import http_json
from toolscout.core.tool import MAX_NESTING
from toolscout.serving import http_protocol, issuer_keys, limits, request_bodies, sign_in
from toolscout.serving.access import MAX_FEEDBACK_TOOLS
from toolscout.serving.app import SEARCHED_TOGETHER
from toolscout.serving.gateway import argument_process, transports
from toolscout.serving.gateway.server_connection import BackendOptions
from toolscout.serving.limits import ServeOptions

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "security.md"
SERVE, BACKEND = ServeOptions(), BackendOptions()
LIMITS = {
    "headers of a request": f"{http_protocol.HEAD_BYTES >> 10} KiB, within {http_protocol.HEAD_S:g} s",
    "body of a request": f"{SERVE.body_bytes >> 20} MiB, {SERVE.add_bytes >> 20} MiB for an admin who adds tools, "
    f"{SERVE.forward_bytes >> 20} MiB for a forwarded one; within {SERVE.seconds:g} s",
    "a connection without a request": f"closed after {http_protocol.KEEP_ALIVE_S:g} s",
    "connections": f"{limits.CONNECTIONS:,}, fewer where",
    "an answer that is not read": f"less than {http_protocol.WRITE_BYTES >> 10} KiB are taken in "
    f"{http_protocol.WRITE_S:g} s; "
    f"{http_protocol.UNREAD_BYTES >> 20} MiB",
    "a token": f"{sign_in.MAX_TOKEN_CHARS:,} characters; clocks may differ by {sign_in.LEEWAY_S} s",
    "an issuer's document": f"{http_json.MAX_BYTES >> 20} MiB, within {http_json.SECONDS:g} s; asked for a key that "
    f"nobody knows every {issuer_keys.PAUSE_S:g} s",
    "requests of one caller at once": f"{SERVE.in_flight}",
    "requests of one caller a second": f"{SERVE.rate:g} (`--rate`)",
    "searches": f"{SERVE.workers} threads (`--workers`), up to {SEARCHED_TOGETHER} at a time in each; "
    f"{SERVE.queue} wait (`--queue`)",
    "a search": f"{SERVE.seconds:g} s",
    "texts of a batch, tools of an answer": f"{request_bodies.MAX_BATCH}, {request_bodies.MAX_K}",
    "feedback of one caller": f"{SERVE.feedback_minute} examples a minute, {SERVE.feedback_day:,} a day, "
    f"{MAX_FEEDBACK_TOOLS} tools each; {SERVE.feedback_kept:,} kept",
    "MCP sessions": f"{SERVE.sessions} of one caller, {transports.SESSIONS:,} in all; one ends after "
    f"{SERVE.session_seconds:,.0f} s",
    "arguments of a call": f"{argument_process.MAX_BYTES >> 20} MiB; checked within {argument_process.DEADLINE:g} s; "
    f"{arguments.MAX_PROBLEMS} problems are told, in {arguments.MAX_TOLD:,} characters",
    "a schema that arguments are checked against": f"{argument_process.MAX_SCHEMA_BYTES >> 20} MiB; patterns of "
    f"{arguments.MAX_PATTERN:,} characters",
    "a tool that is added over HTTP or listed by a server behind the gateway": (
        f"{request_bodies.MAX_TOOL_CHARS:,} characters"
    ),
    "values in one message to `mcp --http`": f"{transports.MAX_VALUES:,}",
    "nesting of a tool's schemas, annotations, `_meta`": f"{MAX_NESTING} levels",
    "a document from an address": f"{base.MAX_DOWNLOAD >> 20} MiB",
    "a file that is read whole": f"{base.MAX_FILE >> 20} MiB, unpacked; a line of JSON lines {base.MAX_LINE >> 20} MiB",
    "an MCP server's list": f"{client.MAX_PAGES:,} pages, {client.MAX_TOOLS:,} tools, "
    f"{client.MAX_LIST_CHARS >> 20} MiB",
    "one message of an MCP server": f"{messages.MAX_MESSAGE_BYTES >> 20} MiB, "
    f"{messages.MAX_VALUES:,} values; {messages.MESSAGES_PER_SECOND:,} messages a second",
    "what an MCP server writes to its standard error": f"the last {client.MAX_ERROR_BYTES >> 10} KiB",
    "a call": f"{BACKEND.timeout:g} s without a sign",
    "a server that ended": f"after {BACKEND.pause:g} s, then later and later, up to {BACKEND.longest_pause:g} s",
    "the answer of an HTTP service": f"{http_request.MAX_BYTES >> 20} MiB",
}


def documented() -> dict[str, str]:
    table = PAGE.read_text().partition("## Limits")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in rows[1:]}


def test_a_tool_is_as_large_over_http_as_behind_the_gateway() -> None:
    assert BACKEND.max_tool_chars == request_bodies.MAX_TOOL_CHARS


def test_every_limit_is_held_to_the_code() -> None:
    assert documented().keys() == LIMITS.keys()


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_as_documented(name: str) -> None:
    assert LIMITS[name] in documented()[name]
