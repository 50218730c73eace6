"""Imports OpenAPI 3 and Swagger 2 documents, from files or URLs: one tool for each operation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

from toolscout.catalogue.base import (
    Importer,
    ReadOptions,
    as_json,
    existing_file,
    first_paragraph,
    is_mcp_url,
    is_url,
    not_a,
    read_text,
    safe_url,
    shape,
    stem,
)
from toolscout.catalogue.openapi.document import Document, fetch, parse
from toolscout.catalogue.openapi.schema import Schemas, object_parts
from toolscout.core.tool import Origin, Tool, clean_text
from toolscout.errors import BadSource, BadTool

# Characters of the input schemas of all operations as JSON: each schema has its own copy of what it refers to.
MAX_EXPANDED = 512 * 1024 * 1024
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_PLACES = ("path", "query", "header", "cookie", "body", "formData")
# Headers that the HTTP client sets; they are not arguments of the tool.
_CLIENT_HEADERS = frozenset({"accept", "content-type", "authorization"})
_KEYS = frozenset({"openapi", "swagger", "paths"})
_SERIALIZATION = ("style", "explode", "collectionFormat")
_Parameters = dict[tuple[str, str], tuple[Mapping[str, Any], str]]


@dataclass(frozen=True, slots=True)
class _Api:
    """What the operations of one document share. `secrets`: (place, name) of the parameters that hold credentials."""

    where: str
    document: Document
    root: Mapping[str, Any]
    namespace: str
    service: str
    url: str
    secrets: frozenset[tuple[str, str]]

    @property
    def is_swagger(self) -> bool:
        return "swagger" in self.root


@dataclass(slots=True)
class _Inputs:
    """Collects the parameters and body of an operation into one input schema.

    `details` becomes those of the tool's origin: where each property goes in the HTTP request.
    """

    schemas: Schemas
    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=lambda: {"in": {}})

    def add(self, name: str, place: str, schema: Mapping[str, Any], required: bool) -> str:
        """Add a property and return its key: its name, with its place as suffix where the name is already used."""
        key, number = name, 1
        while key in self.properties:
            key = f"{name}_{place}" if number == 1 else f"{name}_{place}_{number}"
            number += 1
        if key != name:
            self.details.setdefault("renamed", {})[key] = name
        self.properties[key] = schema
        self.details["in"][key] = place
        self.required += [key] if required else []
        return key

    def schema(self) -> dict[str, Any]:
        """Return the schema of an object with all properties added so far."""
        schema: dict[str, Any] = {"type": "object", "properties": self.properties}
        schema |= {"required": self.required} if self.required else {}
        return schema | {"$defs": self.schemas.defs} if self.schemas.defs else schema


class OpenApiImporter(Importer):
    """Reads OpenAPI and Swagger documents."""

    def accepts(self, source: object) -> bool:
        """Return whether this is an OpenAPI document, or a URL that may be one."""
        if is_url(source):
            return not is_mcp_url(source)
        found = shape(source)
        return found is not None and (found.form == "yaml" or bool(found.keys & _KEYS))

    def read(self, source: object, options: ReadOptions) -> Iterator[Tool]:
        """Yield one tool for each operation, in the document's order. Raises BadSource for a broken document."""
        api = _open(source, options)
        names: set[str] = set()
        expanded = 0
        for path, item in api.root["paths"].items():
            if path.startswith("x-"):
                continue
            try:
                item, base = api.document.follow(item, api.document.main)
                if not isinstance(item, Mapping):
                    raise BadSource(f"a path must be an object, got {type(item).__name__}")
            except BadSource as error:
                options.problem(BadSource(f"{api.where}: path {path}: {error}"))
                continue
            for method in (key for key in _METHODS if key in item):
                try:
                    tool = _tool(api, path, method, item, base, names)
                except (BadSource, BadTool) as error:
                    options.problem(BadSource(f"{api.where}: {method.upper()} {path}: {error}"))
                    continue
                names.add(tool.name)
                expanded += len(json.dumps(tool.input_schema))
                if expanded > MAX_EXPANDED:
                    raise BadSource(
                        f"{api.where}: its references ($ref) expand to more than {MAX_EXPANDED >> 20} MB; split it"
                    )
                yield tool


def _open(source: object, options: ReadOptions) -> _Api:
    path, url = None, ""
    if isinstance(source, str) and is_url(source):
        url, where = source, safe_url(source)
        root = parse(fetch(url, options), where)
    elif isinstance(source, Mapping):
        where = "the given document"
        root = as_json(source, where)
    else:
        path = existing_file(source)
        if path is None:
            raise not_a(source, "an OpenAPI document (JSON or YAML, file or URL)")
        where = str(path)
        root = parse(read_text(path), where)
    _check(root, where, url)
    info = root["info"] if isinstance(root.get("info"), Mapping) else {}
    title, description = _text(info, "title"), first_paragraph(_text(info, "description"))
    file_or_host = stem(path) if path else urlsplit(url).hostname or ""
    namespace = options.namespace or _slug(title) or _slug(file_or_host) or "api"
    service = _joined(title, description)
    return _Api(where, Document(root, path), root, namespace, service, url, _secrets(root))


def _check(root: Any, where: str, url: str) -> None:
    if not isinstance(root, Mapping) or not root.keys() & {"openapi", "swagger"}:
        hint = "; for an MCP server, write mcp: before its address" if url else ""
        raise BadSource(f"{where} is not an OpenAPI document: it has no 'openapi' or 'swagger' version{hint}")
    version = str(root.get("openapi", root.get("swagger")))
    if not version.startswith("3." if "openapi" in root else "2"):
        raise BadSource(f"{where} is of version {version:.20}; OpenAPI 3.x and Swagger 2.0 are read")
    if not isinstance(root.get("paths"), Mapping):
        found = f"'paths' is {type(root['paths']).__name__}" if "paths" in root else "it has no 'paths'"
        raise BadSource(f"{where} describes no operations: {found}; an object of paths is needed")


def _slug(text: str) -> str:
    return re.sub(r"[\W_]+", "-", clean_text(text).lower()).strip("-")


def _secrets(root: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return (place, name) of each security scheme's parameter: the caller authenticates, so no tool asks for it."""
    components = root.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, Mapping) else root.get("securityDefinitions")
    found = (
        [scheme for scheme in schemes.values() if isinstance(scheme, Mapping)] if isinstance(schemes, Mapping) else []
    )
    return frozenset((str(scheme.get("in")), str(scheme.get("name")).lower()) for scheme in found)


def _tool(api: _Api, path: str, method: str, item: Mapping[str, Any], base: str, names: set[str]) -> Tool:
    operation = item[method]
    if not isinstance(operation, Mapping):
        raise BadSource(f"an operation must be an object, got {type(operation).__name__}")
    inputs = _Inputs(Schemas(api.document))
    inputs.details |= {"method": method.upper(), "path": path}
    parameters = _parameters(api, item, base) | _parameters(api, operation, base)
    _add_parameters(api, inputs, path, parameters)
    if operation.get("requestBody") is not None:
        _add_request_body(api, inputs, operation["requestBody"], base)
    else:
        _add_swagger_body(api, inputs, operation, parameters)
    tags = operation.get("tags")
    summary, description = _text(operation, "summary"), _text(operation, "description")
    hints = {"readOnlyHint": method in ("get", "head"), "destructiveHint": method == "delete"}
    hints["deprecated"] = operation.get("deprecated") is True
    return Tool(
        namespace=api.namespace,
        name=_name(_text(operation, "operationId"), method, path, names),
        title=clean_text(summary),
        description=_joined(summary, description) or f"{method.upper()} {path}",
        service=api.service,
        input_schema=inputs.schema(),
        annotations={hint: True for hint, holds in hints.items() if holds},
        tags=tuple(dict.fromkeys(tag for tag in tags if isinstance(tag, str))) if isinstance(tags, list) else (),
        origin=Origin("http", _base_url(api, item, operation), inputs.details),
    )


def _parameters(api: _Api, owner: Mapping[str, Any], base: str) -> _Parameters:
    """Return the parameters of a path or an operation by (place, name), each with the file that it stands in."""
    listed = owner.get("parameters") or []
    if not isinstance(listed, list):
        raise BadSource(f"parameters must be a list, got {type(listed).__name__}")
    found: _Parameters = {}
    for number, entry in enumerate(listed, 1):
        parameter, place = api.document.follow(entry, base)
        if not isinstance(parameter, Mapping):
            raise BadSource(f"parameter {number} must be an object, got {type(parameter).__name__}")
        name = parameter.get("name")
        if not isinstance(name, str) or not name:
            raise BadSource(f"parameter {number} has no name")
        if parameter.get("in") not in _PLACES:
            raise BadSource(f"parameter {name:.80} has no valid 'in'; it must be one of {', '.join(_PLACES)}")
        found[parameter["in"], name] = (parameter, place)
    return found


def _add_parameters(api: _Api, inputs: _Inputs, path: str, parameters: _Parameters) -> None:
    """Add all parameters but those of the body, in the order of _PLACES, so that path parameters keep their names.

    A name in the path's braces that no parameter declares is added as a string.
    """
    for (place, name), (parameter, base) in sorted(parameters.items(), key=lambda pair: _PLACES.index(pair[0][0])):
        if place in ("body", "formData") or _is_set_by_client(api, place, name):
            continue
        required = place == "path" or parameter.get("required") is True
        key = inputs.add(name, place, _parameter_schema(inputs, parameter, base), required)
        style = {word: parameter[word] for word in _SERIALIZATION if word in parameter}
        if style:
            inputs.details.setdefault("style", {})[key] = style
    for name in dict.fromkeys(re.findall(r"\{([^{}/]+)\}", path)):
        if ("path", name) not in parameters:
            inputs.add(name, "path", {"type": "string"}, True)


def _is_set_by_client(api: _Api, place: str, name: str) -> bool:
    return (place, name.lower()) in api.secrets or (place == "header" and name.lower() in _CLIENT_HEADERS)


def _parameter_schema(inputs: _Inputs, parameter: Mapping[str, Any], base: str) -> dict[str, Any]:
    content = parameter.get("content")
    if "schema" in parameter:
        schema = inputs.schemas.convert(parameter["schema"], base)
    elif isinstance(content, Mapping) and content:
        media = next(iter(content.values()))
        schema = inputs.schemas.convert(media.get("schema") if isinstance(media, Mapping) else None, base)
    else:  # Swagger 2 writes the schema's keywords into the parameter
        schema = inputs.schemas.convert(parameter, base)
    description = _text(parameter, "description")
    schema |= {"description": description} if description else {}
    return schema | {"deprecated": True} if parameter.get("deprecated") is True else schema


def _add_request_body(api: _Api, inputs: _Inputs, body: Any, base: str) -> None:
    body, base = api.document.follow(body, base)
    content = body.get("content") if isinstance(body, Mapping) else None
    if not isinstance(content, Mapping):
        raise BadSource("requestBody must be an object with 'content'")
    if not content:
        return
    kind = min(content, key=_preference)
    media, base = api.document.follow(content[kind], base)
    schema = inputs.schemas.convert(media.get("schema") if isinstance(media, Mapping) else None, base, in_place=True)
    _add_body(inputs, schema, kind, body.get("required") is True, _text(body, "description"))


def _add_swagger_body(api: _Api, inputs: _Inputs, operation: Mapping[str, Any], parameters: _Parameters) -> None:
    consumes = operation.get("consumes") or api.root.get("consumes")
    kinds = [kind for kind in consumes if isinstance(kind, str)] if isinstance(consumes, list) else []
    for (place, name), (parameter, base) in parameters.items():
        required = parameter.get("required") is True
        if place == "body":
            kind = min(kinds, key=_preference, default="application/json")
            schema = inputs.schemas.convert(parameter.get("schema"), base, in_place=True)
            _add_body(inputs, schema, kind, required, _text(parameter, "description"))
        elif place == "formData":
            upload = parameter.get("type") == "file" or "multipart/form-data" in kinds
            form = "multipart/form-data" if upload else "application/x-www-form-urlencoded"
            if inputs.details.get("content_type") != "multipart/form-data":
                inputs.details["content_type"] = form
            inputs.add(name, "body", _parameter_schema(inputs, parameter, base), required)


def _add_body(inputs: _Inputs, schema: dict[str, Any], kind: str, required: bool, description: str) -> None:
    """Add the fields of an object body as properties beside the parameters; any other body as one property `body`."""
    inputs.details["content_type"] = kind
    parts = object_parts(schema)
    if parts is None:
        schema |= {"description": description} if description and "description" not in schema else {}
        inputs.details["whole_body"] = inputs.add("body", "body", schema, required)
        return
    properties, needed = parts
    for name, value in properties.items():
        inputs.add(name, "body", value, required and name in needed)


def _preference(kind: Any) -> int:
    """Return the rank of a media type, lowest first: JSON, then forms, then any other."""
    text = str(kind).lower()
    ranked = (text.startswith("application/json"), "json" in text, "urlencoded" in text, "multipart" in text, True)
    return ranked.index(True)


def _name(operation_id: str, method: str, path: str, names: set[str]) -> str:
    """Return the operationId; where it is missing or already used, a name made of method and path."""
    name = clean_text(operation_id)
    if name and name not in names:
        return name
    plain = name = re.sub(r"[\W_]+", "_", f"{method}_{clean_text(path)}").strip("_")
    number = 1
    while name in names:
        number += 1
        name = f"{plain}_{number}"
    return name


def _text(owner: Mapping[str, Any], key: str) -> str:
    value = owner.get(key)
    return value.strip() if isinstance(value, str) else ""


def _joined(summary: str, description: str) -> str:
    """Return "summary. description", without the summary where the description begins with it."""
    if not summary or description.lower().startswith(summary.lower().rstrip(".")):
        return description or summary
    return f"{summary.rstrip('.')}. {description}" if description else summary


def _base_url(api: _Api, item: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
    """Return the URL that the operation is served under, from the document or its own address; "" if unknown."""
    if api.is_swagger:
        schemes, host, folder = api.root.get("schemes"), _text(api.root, "host"), _text(api.root, "basePath")
        scheme = "https" if not isinstance(schemes, list) or "https" in schemes or not schemes else str(schemes[0])
        address = f"{scheme}://{host}{folder}" if host else folder
    else:
        owners = (owner.get("servers") for owner in (operation, item, api.root))
        servers: list[Any] = next((listed for listed in owners if isinstance(listed, list) and listed), [{}])
        address = _server_url(servers[0])
    try:
        return safe_url(urljoin(api.url, address) if api.url else address).rstrip("/")
    except (BadSource, ValueError):
        return ""


def _server_url(server: Any) -> str:
    if not isinstance(server, Mapping):
        return ""
    variables = server.get("variables")
    url = _text(server, "url")
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        default = variable.get("default") if isinstance(variable, Mapping) else None
        url = url.replace(f"{{{name}}}", str(default)) if isinstance(default, str | int | float) else url
    return url
