"""The OpenAPI 3.1 document of the HTTP API. A test compares it with the routes and their answers."""

from __future__ import annotations

from typing import Any, get_args

from toolscout import __version__
from toolscout.core import vendor_formats
from toolscout.core.answer import Level, Verdict
from toolscout.serving import request_bodies
from toolscout.serving.limits import PATHS
from toolscout.serving.protected_resource import PATHS as RESOURCE_PATHS

Json = dict[str, Any]
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_IDS: Json = {"type": "array", "items": _TEXT, "description": "Tool ids: namespace/name."}
_UNIT: Json = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_NEED: Json = _UNIT | {
    "description": "Tool need: how much the request is like those that need a tool. No probability, but a part of "
    "use. Where thresholds decide, the verdict is no_tool_needed below its threshold. null: nothing here can tell."
}
_FIT: Json = _UNIT | {
    "description": "Catalogue fit: how well the best tools match the request, against what a request about something "
    "else reaches here. No probability, but a part of use. Where thresholds decide, the verdict is nothing_fits "
    "below its threshold."
}
_USE: Json = _UNIT | {
    "description": "The probability that a tool should be used; the verdict is use where it reaches the threshold of "
    "the level. null where thresholds of need and fit decided.",
}
_LEVEL = "How sure the verdict must be before tools are offered: lenient offers them most often, strict least."
_SCORE: Json = {"type": "number", "description": "The method's own number: comparable only within one answer."}
_REQUEST: Json = {"type": "string", "minLength": 1, "description": "What should be done, in words."}
_REQUESTS: Json = {"type": "array", "items": _REQUEST, "minItems": 1, "maxItems": request_bodies.MAX_BATCH}
_ADMIN = "Needs an admin's key."
_LINES = "application/x-ndjson"


def document(with_proxy: bool = False, with_sign_in: bool = False) -> Json:
    """Return the document; `with_proxy` includes the forwarded model routes, `with_sign_in` where to sign in."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "toolscout", "version": __version__, "summary": "The few right tools for a request."},
        "paths": _paths() | (_proxied() if with_proxy else {}) | (_resource() if with_sign_in else {}),
        "components": {"schemas": _schemas(), "securitySchemes": _keys()},
        "security": [{"bearer": []}, {"key": []}, {}],
    }


def _paths() -> Json:
    number = {"schema": {"type": "integer", "minimum": 0}}
    listing = [
        {"name": "namespace", "in": "query", "schema": _TEXT},
        {"name": "offset", "in": "query", **number},
        {
            "name": "limit",
            "in": "query",
            "schema": {"type": "integer", "minimum": 0, "maximum": request_bodies.MAX_LISTED},
        },
    ]
    one = [{"name": "id", "in": "path", "required": True, "schema": {**_TEXT, "minLength": 1}}]
    return {
        "/search": {"post": _act("search", "The tools for a request, or for each of several.", "Search", "Answers")},
        "/need": {
            "post": _act(
                "need",
                "The tool need of a request, or of each of several, and whether a tool is needed.",
                "Need",
                "Needs",
            )
        },
        "/feedback": {
            "post": _act("feedback", "Record which tools requests really used.", "Feedback", "Recorded", 404)
        },
        "/tools": {
            "get": _act("listTools", "The tools that the caller may see, by id.", "", "Listing", parameters=listing),
            "post": _act("changeTools", f"Add, change and remove tools. {_ADMIN}", "Changes", "Changed", 403, 404, 409),
        },
        "/tools/{id}": {
            "get": _act("describeTool", "One tool in full.", "", "Tool", 404, parameters=one),
            "delete": _act("removeTool", f"Remove a tool. {_ADMIN}", "", "Changed", 403, 404, parameters=one),
        },
        "/health": {"get": _open("health", "That the server lives.")},
        "/ready": {"get": _open("ready", "That the server can answer, and from what.", _reference("Ready"))},
        "/metrics": {
            "get": _plain("metrics", "For Prometheus. Needs the key of an admin that sees everything.", "text/plain")
        },
        "/openapi.json": {"get": _open("openapi", "This document.", {"type": "object"})},
    }


def _proxied() -> Json:
    about = "Sent on to the model with the right tools alone; the answer is the model's."
    made = {}
    for path in PATHS:
        act = _act(path.rpartition("/")[2], about, "", "", 502, 504)
        act["requestBody"] = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
        act["responses"]["default"] = {"description": "What the model's server answered."}
        made[path] = {"post": act}
    return made


def _resource() -> Json:
    about = "Where to sign in, and with which scopes (RFC 9728)."
    urls: Json = {"type": "array", "items": _TEXT}
    schema: Json = {
        "type": "object",
        "required": ["resource", "authorization_servers"],
        "properties": {
            "resource": {"type": "string", "description": "This server, as tokens for it name it."},
            "resource_name": _TEXT,
            "authorization_servers": urls,
            "bearer_methods_supported": urls,
            "scopes_supported": urls,
        },
    }
    names = ("resource", "resource_mcp")
    return {path: {"get": _open(name, about, schema)} for name, path in zip(names, RESOURCE_PATHS, strict=True)}


def _act(name: str, about: str, body: str, answer: str, *errors: int, parameters: list[Json] | None = None) -> Json:
    made: Json = {"operationId": name, "summary": about, "responses": {}}
    if parameters:
        made["parameters"] = parameters
    if body:
        content: Json = {"application/json": {"schema": _reference(body)}}
        if body == "Changes":
            content[_LINES] = {"schema": {"type": "string", "description": "One tool a line."}}
        made["requestBody"] = {"required": True, "content": content}
    if answer:
        content = {"application/json": {"schema": _reference(answer)}}
        if answer == "Changed" and body:
            content[_LINES] = {"schema": {"type": "string", "description": "One step a line, the outcome last."}}
        made["responses"]["200"] = {"description": about, "content": content}
    usual = [401, 408, 413, 415, 422, 429] if body or not answer else [401, 422, 429]
    for status in sorted({*usual, *errors, 421, 403, 503}):
        made["responses"][str(status)] = _problem()
    return made


def _open(name: str, about: str, schema: Json | None = None) -> Json:
    content = {"application/json": {"schema": schema or _reference("Status")}}
    made: Json = {"200": {"description": about, "content": content}, "503": _problem(), "421": _problem()}
    return {"operationId": name, "summary": about, "security": [], "responses": {**made, "403": _problem()}}


def _plain(name: str, about: str, kind: str) -> Json:
    made: Json = {"200": {"description": about, "content": {kind: {"schema": _TEXT}}}}
    for status in (401, 403, 421, 429):
        made[str(status)] = _problem()
    return {"operationId": name, "summary": about, "responses": made}


def _problem() -> Json:
    content = {"application/problem+json": {"schema": _reference("Problem")}}
    return {"description": "What went wrong, and what to do next (RFC 9457).", "content": content}


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str, **properties: Json) -> Json:
    return {"type": "object", "required": required.split(), "properties": properties}


def _closed(required: str, **properties: Json) -> Json:
    return {**_object(required, **properties), "additionalProperties": False}


def _one_or_many(body: Json) -> Json:
    return {**body, "oneOf": [{"required": ["request"]}, {"required": ["requests"]}]}


def _batch(name: str) -> Json:
    return {"anyOf": [_reference(name), _object("answers", answers={"type": "array", "items": _reference(name)})]}


def _keys() -> Json:
    return {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }


def _schemas() -> Json:
    many = {"type": "integer", "minimum": 1, "maximum": request_bodies.MAX_K}
    budget = {"type": "integer", "minimum": 1, "maximum": request_bodies.MAX_BUDGET}
    example_id = {
        "type": "string",
        "minLength": 1,
        "maxLength": request_bodies.MAX_EXAMPLE_ID,
        "description": "Made by the caller, such as a UUID: sent again, the example is recorded once.",
    }
    examples = {"type": "array", "items": _reference("Example"), "minItems": 1, "maxItems": request_bodies.MAX_BATCH}
    search = _closed(
        "",
        request=_REQUEST,
        requests=_REQUESTS,
        k={"anyOf": [many, {"const": "auto"}], "default": 5},
        format={"type": ["string", "null"], "enum": [*vendor_formats.FORMATS, None]},
        budget={"anyOf": [budget, {"type": "null"}], "description": "Tokens that the tools may take."},
        namespace={"type": ["string", "null"]},
        level={
            "type": ["string", "null"],
            "enum": [*get_args(Level), None],
            "description": f"{_LEVEL} null: as the server was started with.",
        },
    )
    return {
        "Search": _one_or_many(search),
        "Need": _one_or_many(_closed("", request=_REQUEST, requests=_REQUESTS)),
        "Example": _closed("request", request=_REQUEST, used=_IDS, rejected=_IDS, id=example_id),
        "Feedback": {"oneOf": [_reference("Example"), _closed("examples", examples=examples)]},
        "Recorded": _object("recorded", recorded=_COUNT),
        "NeedAnswer": _object("need needed", need=_NEED, needed={"type": ["boolean", "null"]}),
        "Needs": _batch("NeedAnswer"),
        "Answers": _batch("Answer"),
        "Problem": _object(
            "type title status detail code", type=_TEXT, title=_TEXT, status=_COUNT, detail=_TEXT, code=_TEXT
        ),
        "Status": _object("status", status=_TEXT),
        "Ready": _object(
            "status index store",
            status=_TEXT,
            index={"type": "string", "enum": ["own", "database"]},
            store={"type": "string", "enum": ["reached", "unreachable"]},
        ),
        "Listing": _object(
            "tools total version", tools={"type": "array", "items": _reference("Tool")}, total=_COUNT, version=_COUNT
        ),
        "Changed": _object(
            "added changed unchanged removed version words_only",
            **dict.fromkeys(("added", "changed", "unchanged", "removed", "version", "words_only"), _COUNT),
        ),
        **_tools(),
    }


def _tools() -> Json:
    reason = _object("kind", kind=_TEXT)
    hit = _object("tool_id score reasons", tool_id=_TEXT, score=_SCORE, reasons={"type": "array", "items": reason})
    hits = {"type": "array", "items": _reference("Hit")}
    texts = {"type": "array", "items": _TEXT}
    fields: Json = dict.fromkeys(("namespace", "name", "description", "title", "service"), _TEXT)
    fields |= {name: {"type": "object"} for name in ("inputSchema", "outputSchema", "annotations", "_meta", "origin")}
    fields |= dict.fromkeys(("tags", "aliases", "examples"), texts)
    flag = {"type": "boolean", "default": False}
    return {
        "Hit": hit,
        "Answer": _object(
            "request verdict need fit hits considered searched words_only version notes asked cost use verdict_level",
            request=_TEXT,
            verdict={"enum": list(get_args(Verdict))},
            need=_NEED,
            fit=_FIT,
            use=_USE,
            verdict_level={
                "enum": [*get_args(Level), None],
                "description": "The level that decided. null where thresholds of need and fit decided.",
            },
            hits=hits,
            considered=hits,
            **dict.fromkeys(("searched", "words_only", "version", "tokens"), _COUNT),
            **dict.fromkeys(("notes", "asked"), texts),
            cost={"type": ["object", "null"], "description": "What language models were asked for it."},
            tools={"type": "array", "items": {"type": "object"}, "description": "In the format asked for."},
            level={"enum": list(vendor_formats.LEVELS)},
            names={"type": "object", "additionalProperties": _TEXT, "description": "Tool ids by the names sent."},
        ),
        "Tool": _object("id namespace name description inputSchema", id=_TEXT, **fields),
        "NewTool": _object("name", **{**fields, "name": {**_TEXT, "minLength": 1}}),
        "Changes": _closed(
            "",
            tools={"type": "array", "items": _reference("NewTool")},
            remove=_IDS,
            source={**_TEXT, "minLength": 1, "maxLength": 200},
            namespace={"type": ["string", "null"]},
            replace=flag,
            sync=flag,
        ),
    }
