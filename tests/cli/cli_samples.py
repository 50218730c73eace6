"""The few tools that the tests of the command line search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.testing import Result

TOOLS = (
    ("mail", "send_email", "Sends an email message to one or more people.", {"to": "string", "subject": "string"}),
    ("mail", "search_emails", "Searches the mailbox for messages.", {"query": "string"}),
    ("weather", "get_forecast", "Gets the weather forecast for a city. Rain, wind, sun.", {"city": "string"}),
    ("github", "list_issues", "Lists the issues of a repository.", {"repository": "string"}),
    ("github", "create_issue", "Creates an issue in a repository.", {"repository": "string", "title": "string"}),
)
FITTING = "weather forecast for the city of Paris"
UNFITTING = "knit quilted trousers overnight"

Run = Callable[..., Result]


def record(namespace: str, name: str, description: str, parameters: dict[str, str]) -> dict[str, Any]:
    """A tool as a line of JSONL holds it."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)[:1]}
    return {"namespace": namespace, "name": name, "description": description, "inputSchema": schema}
