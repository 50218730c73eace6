"""Converts Python type hints to JSON Schema."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import inspect
import json
import math
import pathlib
import types
import typing
import uuid
from typing import Any

_SCALARS: tuple[tuple[type, dict[str, Any]], ...] = (
    (bool, {"type": "boolean"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (decimal.Decimal, {"type": "number"}),
    (str, {"type": "string"}),
    (bytes, {"type": "string", "contentEncoding": "base64"}),
    (datetime.datetime, {"type": "string", "format": "date-time"}),
    (datetime.date, {"type": "string", "format": "date"}),
    (datetime.time, {"type": "string", "format": "time"}),
    (datetime.timedelta, {"type": "string", "format": "duration"}),
    (uuid.UUID, {"type": "string", "format": "uuid"}),
    (pathlib.PurePath, {"type": "string", "format": "path"}),
    (type(None), {"type": "null"}),
)
_WRAPPERS = (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)
_MAX_DEPTH = 30


def hints_of(owner: Any) -> dict[str, Any]:
    """Return the annotations of a function or class; where a name cannot be resolved, text annotations are left out."""
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except Exception:  # a name that exists for the type checker only may raise anything
        raw = getattr(owner, "__annotations__", None)
        return {name: hint for name, hint in raw.items() if not isinstance(hint, str)} if isinstance(raw, dict) else {}


class Hints:
    """Converts the hints of one function; recursive classes and pydantic models share the definitions in `defs`."""

    def __init__(self) -> None:
        """Start without definitions."""
        self.defs: dict[str, Any] = {}
        self._names: dict[type, str] = {}
        self._enclosing: list[type] = []  # the classes that are being converted now

    def schema(self, hint: Any, depth: int = 0) -> dict[str, Any]:
        """Return the schema of one hint; {} (anything) where JSON Schema cannot express it."""
        if depth > _MAX_DEPTH or hint is Any or hint is object or hint is inspect.Parameter.empty:
            return {}
        if hint is None:
            return {"type": "null"}
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            return self._annotated(arguments, depth)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, depth)
        if origin is typing.Literal:
            return _enum([value.value if isinstance(value, enum.Enum) else value for value in arguments])
        if origin in _WRAPPERS:
            return self.schema(arguments[0], depth + 1)
        if isinstance(hint, typing.TypeVar):
            choices = hint.__constraints__ or ((hint.__bound__,) if hint.__bound__ else ())
            return self._union(choices, depth) if choices else {}
        for alias in ("__supertype__", "__value__"):  # NewType, and the type statement of later Pythons
            if not isinstance(hint, type) and hasattr(hint, alias):
                return self.schema(getattr(hint, alias), depth + 1)
        kind = origin or hint
        if not isinstance(kind, type):
            return {}
        return self._container(kind, arguments, depth) or self._class(kind, depth)

    def _annotated(self, arguments: tuple[Any, ...], depth: int) -> dict[str, Any]:
        schema = self.schema(arguments[0], depth + 1)
        for note in arguments[1:]:
            text = note
            for attribute in ("description", "documentation"):
                text = text if isinstance(text, str) else getattr(note, attribute, None)
            if isinstance(text, str) and text:
                return {**schema, "description": text}
        return schema

    def _union(self, members: tuple[Any, ...], depth: int) -> dict[str, Any]:
        branches: list[dict[str, Any]] = []
        for member in members:
            branch = self.schema(member, depth + 1)
            branches += [branch] if branch not in branches else []
        return branches[0] if len(branches) == 1 else {"anyOf": branches}

    def _container(self, kind: type, arguments: tuple[Any, ...], depth: int) -> dict[str, Any] | None:
        if typing.is_typeddict(kind) or issubclass(kind, str | bytes | enum.Enum):
            return None
        if issubclass(kind, collections.abc.Mapping):
            return {"type": "object"} | self._inner("additionalProperties", arguments[1:], depth)
        if issubclass(kind, tuple):
            return self._tuple(kind, arguments, depth)
        if issubclass(kind, collections.abc.Set):
            return {"type": "array", "uniqueItems": True} | self._inner("items", arguments, depth)
        # A pydantic model is an object, even if it can be iterated over.
        if issubclass(kind, collections.abc.Iterable) and not hasattr(kind, "model_json_schema"):
            return {"type": "array"} | self._inner("items", arguments, depth)
        return None

    def _inner(self, keyword: str, arguments: tuple[Any, ...], depth: int) -> dict[str, Any]:
        schema = self.schema(arguments[0], depth + 1) if arguments else {}
        return {keyword: schema} if schema else {}

    def _tuple(self, kind: type, arguments: tuple[Any, ...], depth: int) -> dict[str, Any]:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array"} | self._inner("items", arguments, depth)
        arguments = arguments or tuple(hints_of(kind).values())  # the fields of a NamedTuple
        if not arguments:
            return {"type": "array"}
        items = [self.schema(item, depth + 1) for item in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _class(self, kind: type, depth: int) -> dict[str, Any]:
        if issubclass(kind, enum.Enum):
            return _enum([member.value if is_json(member.value) else member.name for member in kind])
        if callable(getattr(kind, "model_json_schema", None)):
            return self._model(kind)
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            return self._object(kind, depth)
        return next((dict(schema) for scalar, schema in _SCALARS if issubclass(kind, scalar)), {})

    def _object(self, kind: type, depth: int) -> dict[str, Any]:
        """Return the schema of a dataclass or TypedDict; one that contains itself becomes a reference to `defs`."""
        if kind in self._enclosing:
            return {"$ref": f"#/$defs/{self._name(kind)}"}
        self._enclosing.append(kind)
        hints = hints_of(kind)
        if dataclasses.is_dataclass(kind):
            schema = self._dataclass(kind, hints, depth)
        else:
            schema = object_schema(
                {name: self.schema(hint, depth + 1) for name, hint in hints.items()},
                [name for name, hint in hints.items() if _is_required(kind, name, hint)],
            )
        self._enclosing.pop()
        if kind not in self._names:
            return schema
        self.defs[self._names[kind]] = schema
        return {"$ref": f"#/$defs/{self._names[kind]}"}

    def _dataclass(self, kind: Any, hints: dict[str, Any], depth: int) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        for item in dataclasses.fields(kind):
            if not item.init:
                continue
            properties[item.name] = with_default(self.schema(hints.get(item.name, Any), depth + 1), item.default)
            if isinstance(text := item.metadata.get("description"), str):
                properties[item.name]["description"] = text
            if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                required.append(item.name)
        return object_schema(properties, required)

    def _model(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a pydantic model; its definitions move to `defs` under the model's name."""
        try:
            template = f"#/$defs/{self._name(kind)}.{{model}}"
            schema = json.loads(json.dumps(kind.model_json_schema(ref_template=template)))
        except Exception:  # a model may hold types that JSON Schema cannot express
            return {"type": "object"}
        for name, definition in schema.pop("$defs", {}).items():
            self.defs[f"{self._name(kind)}.{name}"] = definition
        return typing.cast(dict[str, Any], schema)

    def _name(self, kind: type) -> str:
        if kind not in self._names:
            taken, name, number = set(self._names.values()), kind.__name__, 1
            while name in taken:
                number += 1
                name = f"{kind.__name__}_{number}"
            self._names[kind] = name
        return self._names[kind]


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    """Return whether a TypedDict requires a key; __required_keys__ alone is wrong for hints written as text."""
    marks = {typing.Required: True, typing.NotRequired: False}
    return marks.get(typing.get_origin(hint), name in kind.__required_keys__)


def object_schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the schema of an object with these properties."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema | {"required": required} if required else schema


def with_default(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    """Return the schema with a default, where JSON can express it."""
    if isinstance(default, enum.Enum):
        default = default.value
    if isinstance(default, datetime.date | datetime.time):
        default = default.isoformat()
    if isinstance(default, uuid.UUID | pathlib.PurePath):
        default = str(default)
    if isinstance(default, tuple):
        default = list(default)
    return {**schema, "default": default} if is_json(default) else dict(schema)


def is_json(value: Any) -> bool:
    """Return whether a value is a JSON value."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(is_json, value.values()))
    if isinstance(value, list):
        return all(map(is_json, value))
    return value is None or (isinstance(value, bool | int | float | str) and value == value and value not in _INFINITE)


_INFINITE = (math.inf, -math.inf)


def _enum(values: list[Any]) -> dict[str, Any]:
    values = [value if is_json(value) else str(value) for value in values]
    names = {bool: "boolean", int: "integer", str: "string"}
    kinds = {type(value) for value in values}
    return {"enum": values} | ({"type": names[kinds.pop()]} if len(kinds) == 1 and kinds <= names.keys() else {})
