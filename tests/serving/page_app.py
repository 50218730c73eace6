"""A server with its page over a small catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.applications import Starlette

from toolscout import Scout, Tool
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.serving.access import Access
from toolscout.serving.app import make_app
from toolscout.serving.limits import ServeOptions

SCRIPT = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TOOLS = [
    Tool("mail", "send_email", "Sends an email to somebody.", title="Send email", input_schema={
        "type": "object", "required": ["to"],
        "properties": {"to": {"type": "string", "description": "Who gets it"}, "subject": {"type": "string"}},
    }),
    Tool("mail", "search_email", "Finds email by words, sender and date."),
    Tool("weather", "get_forecast", "Tells how warm and how wet the coming days will be."),
    Tool("zoo", "feed_lion", f"Gives the lion its dinner. {SCRIPT}", title=f"Feed lion {SCRIPT}", input_schema={
        "type": "object", "properties": {"meat": {"type": "string", "description": SCRIPT}},
    }),
    Tool("vault", "open_vault", "Opens the vault of the lion."),
]  # fmt: skip
TOKEN = "ts_token-of-the-test-server"
SPEC = """openapi: 3.0.0
info: {title: Tea house, version: "1"}
paths:
  /pots:
    post:
      operationId: brew_tea
      summary: Brews a pot of tea
      responses: {"200": {description: done}}
"""


def opened(folder: Path, retriever: str | Retriever = "bm25") -> Scout:
    """A Scout on the store of a folder, filled where it is new; words alone, so that no weights are needed."""
    scout = Scout.open(folder / "tools.db", retriever)
    if not scout.count():
        scout.add(TOOLS)
    return scout


class Coded(Bm25):
    """A retriever by words whose tools have codes: how codes look does not depend on who chose them."""

    def codes(self) -> dict[str, tuple[int, ...]]:
        """A code for each tool."""
        return {tool_id: (len(tool_id) % 2, number) for number, tool_id in enumerate(sorted(self.ids()))}


def app(scout: Scout, others: Mapping[str, Scout] | None = None, results: Path | None = None) -> Starlette:
    """The server with its page."""
    return make_app(scout, Access(scout, token=TOKEN), ServeOptions(results=results, private=("127.0.0.1",)), others)
