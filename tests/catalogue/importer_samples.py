"""One small sample of each kind of source, and the JSON-ish values that importers are tormented with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

RAW_SERVER = Path(__file__).with_name("raw_server.py")

PETSTORE: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Pet Store", "version": "1.0", "description": "Sells pets.\n\nMore about it."},
    "servers": [{"url": "https://{region}.pets.example/v1", "variables": {"region": {"default": "eu"}}}],
    "paths": {
        "/pets": {
            "get": {
                "operationId": "listPets",
                "summary": "List pets",
                "tags": ["pets"],
                "parameters": [
                    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1}},
                    {"$ref": "#/components/parameters/Trace"},
                ],
            },
            "post": {
                "summary": "Create a pet",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                },
            },
        },
        "/pets/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
            "delete": {"operationId": "deletePet", "deprecated": True},
        },
    },
    "components": {
        "parameters": {"Trace": {"name": "X-Trace", "in": "header", "schema": {"type": "string", "nullable": True}}},
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["id", "name"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "description": "How it is called"},
                    "parent": {"$ref": "#/components/schemas/Pet"},
                    "tags": {"type": "array", "items": {"type": "string", "enum": ["cat", "dog"]}},
                },
            }
        },
    },
}

WEATHER: dict[str, Any] = {
    "tool_name": "Weather Now",
    "tool_description": "All about the weather.",
    "home_url": "https://example.com/weather",
    "host": "weather.example.com",
    "api_list": [
        {
            "name": "Forecast",
            "url": "https://weather.example.com/v1/{city}/forecast",
            "description": "Forecast for some days",
            "method": "GET",
            "required_parameters": [{"name": "city", "type": "STRING", "description": "The city", "default": "Bern"}],
            "optional_parameters": [
                {"name": "days", "type": "NUMBER", "description": "How many", "default": "3"},
                {"name": "from", "type": "DATE (YYYY-MM-DD)", "description": "", "default": ""},
                {"name": "units", "type": "ENUM", "description": "", "default": "metric", "enum": ["metric", "us"]},
                {"name": "hourly", "type": "BOOLEAN", "description": "", "default": "false"},
            ],
        },
        {"name": "Report", "url": "", "description": "", "method": "POST", "required_parameters": [{"name": "text"}]},
    ],
}

FUNCTIONS = '''
"""Little helpers."""

def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: The first one.
    """
    return a + b

def _hidden(): ...
'''


def mcp_tool(name: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    return {"name": name, "description": f"does {name}", "inputSchema": schema, **more}


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _beir(folder: Path) -> Path:
    rows = [
        {"_id": "1", "title": "", "text": "x", "metadata": {"tool": mcp_tool("find", namespace="web")}},
        {"_id": "2", "title": "Plain document", "text": "has no tool"},
    ]
    write_lines(folder / "corpus.jsonl", rows)
    return folder


def _functions(folder: Path) -> Path:
    (folder / "helpers.py").write_text(FUNCTIONS, encoding="utf-8")
    return folder / "helpers.py"


def _openapi(folder: Path) -> Path:
    (folder / "pets.json").write_text(json.dumps(PETSTORE), encoding="utf-8")
    return folder / "pets.json"


def _toolbench(folder: Path) -> Path:
    category = folder / "tools" / "Weather"
    category.mkdir(parents=True, exist_ok=True)
    (category / "weather_now.json").write_text(json.dumps(WEATHER), encoding="utf-8")
    return folder / "tools"


# By importer: a folder in, a source out.
SAMPLES: dict[str, Callable[[Path], Any]] = {
    "beir": _beir,
    "functions": _functions,
    "jsonl": lambda folder: write_lines(folder / "tools.jsonl", [mcp_tool("a"), mcp_tool("b", namespace="other")]),
    "mcp": lambda _: [sys.executable, str(RAW_SERVER), "pages"],
    "openapi": _openapi,
    "toolbench": _toolbench,
}

_KEYS = (
    "name title description inputSchema input_schema parameters namespace tags _meta annotations outputSchema type "
    "function tools result properties required items enum $ref $defs allOf anyOf nullable default in schema content "
    "paths info servers url get post openapi swagger requestBody components schemas operationId api_list tool_name "
    "required_parameters optional_parameters method mcpServers command args env _id text metadata tool category body"
).split()
_VALUES = (
    "object array string integer 3.0.0 3.1.0 2.0 path query header body formData #/components/schemas/A #/paths # "
    "application/json /a/{id} x.json#/a file: \x1b[31m \ud800"
).split(" ")
texts = st.text(max_size=8) | st.sampled_from(_KEYS) | st.sampled_from(_VALUES)
scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | texts
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=5), max_leaves=25
)


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to four of its values replaced, removed, or put elsewhere."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 4))):
        places = list(_places(document))
        owner, key = draw(st.sampled_from(places))
        action = draw(st.sampled_from(["replace", "remove", "copy", "point"]))
        if action == "remove":
            del owner[key]
        elif action == "copy":
            other, name = draw(st.sampled_from(places))
            owner[key] = json.loads(json.dumps(other[name]))
        else:
            owner[key] = draw(json_values) if action == "replace" else {"$ref": draw(texts)}
        if not list(_places(document)):
            break
    return document


def _places(value: Any) -> Any:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
