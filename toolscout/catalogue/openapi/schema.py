"""Converts OpenAPI and Swagger schema objects to JSON Schema that is self-contained, finite and always valid."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from toolscout.catalogue.openapi.document import Document

# Up to so many nodes references are inlined, because language models read that best; further ones go to $defs.
INLINE_NODES = 300
# A schema beyond these limits becomes {}, which accepts anything: no prompt could hold more.
MAX_NODES = 2000
MAX_DEPTH = 40

_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
# Keywords whose schema describes parts of the value, and keywords whose schema describes the same value.
_PARTS = ("items", "additionalProperties", "contains", "propertyNames")
_SAME_VALUE = ("not", "if", "then", "else")
_SAME_VALUE_LISTS = ("allOf", "anyOf", "oneOf")
_MERGEABLE = frozenset(
    "type properties required title description additionalProperties allOf examples default deprecated "
    "minProperties maxProperties".split()
)
_Keys = frozenset[str]


class Schemas:
    """Converts the schemas of one operation; they share the definitions in `defs` and the count of nodes."""

    def __init__(self, document: Document) -> None:
        """Take the document that references are resolved in."""
        self.defs: dict[str, Any] = {}
        self._document = document
        self._names: dict[str, str] = {}
        self._unconverted: list[tuple[str, Any, str, str]] = []  # name in `defs`, schema, its file, its address
        self._nodes = 0

    def convert(self, schema: Any, base: str, in_place: bool = False) -> dict[str, Any]:
        """Return the JSON Schema of a schema object in the file `base`; with `in_place` it is never a bare $ref."""
        same_value = frozenset({"in place"}) if in_place else frozenset()  # any member forbids a $ref
        result = self._schema(schema, base, frozenset(), same_value, 0)
        while self._unconverted:
            name, target, base, address = self._unconverted.pop()
            self.defs[name] = self._schema(target, base, frozenset({address}), frozenset({address}), 0)
        return result

    def _schema(self, schema: Any, base: str, opened: _Keys, same_value: _Keys, depth: int) -> dict[str, Any]:
        """Convert a schema. `opened`: addresses inlined around it; `same_value`: those that describe the same value."""
        if schema is False:
            return {"not": {}}
        self._nodes += 1
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH or self._nodes > MAX_NODES:
            return {}
        result = _plain_keywords(schema)
        if isinstance(schema.get("$ref"), str):
            target = self._reference(schema["$ref"], base, opened, same_value, depth)
            return {**target, **{key: result[key] for key in ("title", "description", "default") if key in result}}
        self._add_parts(schema, result, base, opened, depth)
        for key in _SAME_VALUE:
            if key in schema:
                result[key] = self._schema(schema[key], base, opened, same_value, depth + 1)
        for key in _SAME_VALUE_LISTS:
            if isinstance(schema.get(key), list) and schema[key]:
                result[key] = [self._schema(item, base, opened, same_value, depth + 1) for item in schema[key]]
        return _with_null(result) if schema.get("nullable") is True else result

    def _reference(self, reference: str, base: str, opened: _Keys, same_value: _Keys, depth: int) -> dict[str, Any]:
        target, base, address = self._document.resolve(reference, base)
        if address in same_value:
            return {}  # a schema that refers to itself for the same value adds nothing
        # Only a part of a value may become a $ref, so that no chain of references describes one value in a circle.
        if not same_value and (address in opened or address in self._names or self._nodes > INLINE_NODES):
            return {"$ref": f"#/$defs/{self._definition(target, base, address)}"}
        return self._schema(target, base, opened | {address}, same_value | {address}, depth + 1)

    def _definition(self, target: Any, base: str, address: str) -> str:
        """Return the name in `defs` of the schema at an address; a new one is queued for conversion."""
        if address not in self._names:
            name = plain = re.sub(r"[^\w.-]+", "_", address.rpartition("/")[2].rpartition("#")[2]) or "schema"
            number = 1
            while name in self.defs:
                number += 1
                name = f"{plain}_{number}"
            self._names[address] = name
            self.defs[name] = {}
            self._unconverted.append((name, target, base, address))
        return self._names[address]

    def _add_parts(
        self, schema: Mapping[str, Any], result: dict[str, Any], base: str, opened: _Keys, depth: int
    ) -> None:
        def part(item: Any) -> dict[str, Any]:
            return self._schema(item, base, opened, frozenset(), depth + 1)

        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            # Requests do not carry read-only properties: the server sets them.
            unwritable = {name for name, item in properties.items() if _flag(item, "readOnly")}
            result["properties"] = {name: part(item) for name, item in properties.items() if name not in unwritable}
            if "required" in result:
                result["required"] = [name for name in result["required"] if name not in unwritable]
        if isinstance(schema.get("patternProperties"), Mapping):
            patterns = {name: part(item) for name, item in schema["patternProperties"].items() if _is_pattern(name)}
            result["patternProperties"] = patterns
        for key in _PARTS:
            value = schema.get(key)
            if isinstance(value, bool):
                result[key] = value
            elif isinstance(value, Mapping):
                result[key] = part(value)
        for key in ("prefixItems", "items"):  # before JSON Schema 2020-12, `items` could be a list
            if isinstance(schema.get(key), list) and schema[key]:
                result["prefixItems"] = [part(item) for item in schema[key]]


def object_parts(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]] | None:
    """Return properties and required names of a schema that only describes an object; None for any other schema."""
    types = schema.get("type", "object")
    if not schema.keys() <= _MERGEABLE or "object" not in (types if isinstance(types, list) else [types]):
        return None
    properties, required = dict(schema.get("properties", {})), list(schema.get("required", []))
    for item in schema.get("allOf", []):
        inner = object_parts(item)
        if inner is None:
            return None
        for name, value in inner[0].items():
            properties[name] = value if properties.get(name, value) == value else {"allOf": [properties[name], value]}
        required += [name for name in inner[1] if name not in required]
    return (properties, [name for name in required if name in properties]) if properties else None


def _plain_keywords(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords that hold no schema and have a valid value; invalid ones are dropped."""
    result: dict[str, Any] = {}
    _add_type(schema, result)
    result.update((key, value) for key, value in schema.items() if key in _PLAIN and _PLAIN[key](value))
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and limit in result:  # in OpenAPI 3.0 and Swagger a flag beside the limit
            result[exclusive] = result.pop(limit)
    if isinstance(schema.get("required"), list):
        result["required"] = list(dict.fromkeys(name for name in schema["required"] if isinstance(name, str)))
    examples = schema.get("examples") if isinstance(schema.get("examples"), list) else [schema.get("example")]
    shown = [value for value in examples or () if isinstance(value, str | int | float)]
    return result | {"examples": shown[:3]} if shown else result


def _add_type(schema: Mapping[str, Any], result: dict[str, Any]) -> None:
    value = schema.get("type")
    if value == "file":  # Swagger 2's type of an upload
        result |= {"type": "string", "format": "binary"}
        return
    types = [name for name in (value if isinstance(value, list) else [value]) if name in _TYPES]
    if types:
        result["type"] = types[0] if len(types) == 1 else list(dict.fromkeys(types))


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema that also accepts null, as `nullable: true` of OpenAPI 3.0 says."""
    if "type" not in schema:
        constrained = schema.keys() & {"enum", "const", *_SAME_VALUE_LISTS, "$ref"}
        return {"anyOf": [schema, {"type": "null"}]} if constrained else schema
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    result = {**schema, "type": list(dict.fromkeys([*types, "null"]))}
    if "enum" in schema and None not in schema["enum"]:
        result["enum"] = [*schema["enum"], None]
    return result


def _flag(schema: Any, key: str) -> bool:
    return isinstance(schema, Mapping) and schema.get(key) is True


def _is_pattern(text: str) -> bool:
    """Return whether Python can compile a pattern: with one of another dialect, every call of the tool would fail."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(text)
    except (re.error, Warning, RecursionError, OverflowError):
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_PLAIN: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        ("title", "description", "format", "contentEncoding", "contentMediaType"), lambda value: isinstance(value, str)
    ),
    **dict.fromkeys(("uniqueItems", "deprecated", "writeOnly"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("default", "const"), lambda _: True),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "pattern": lambda value: isinstance(value, str) and _is_pattern(value),
    "enum": lambda value: isinstance(value, list) and bool(value),
}
