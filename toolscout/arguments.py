"""Arguments of a call held against the tool's JSON Schema: what is wrong with them, and what can be put right."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any

from toolscout.schemas import (
    MAX_DEPTH,
    Choices,
    Schema,
    canonical,
    folded,
    is_writable,
    object_schema,
    plain_text,
    resolved,
    sound,
)

MAX_REPAIRS = 2000
_SHOWN = 60  # characters of a value that a message quotes
_LISTED = 30  # values of an enum that it names
_TOO_LONG = "a number of too many digits"
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}


def problems(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """What keeps a call's arguments from fitting the schema, in words a model can act on; empty where they fit.

    Knows type, enum, const, properties, required, additionalProperties, patternProperties, items, prefixItems, all
    bounds, pattern, uniqueItems, anyOf, oneOf, allOf, not, local $ref and OpenAPI's nullable; a keyword outside of
    these, and whatever is malformed in the schema, forbids nothing.
    """
    given: Any = arguments  # models send anything
    if not isinstance(given, Mapping):
        return [f"the arguments must be one JSON object, not {_kind(given)}"]
    return Checker(schema).problems(given)


def value_problems(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """The same for any JSON value, which need not be an object."""
    return Checker(schema).problems(value)


def repaired(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments with their harmless faults put right, and a line for each thing that was done.

    "5" becomes 5 where an integer is asked for, "True" becomes true, a lone value a list of one, "Celsius" the enum's
    "celsius", "City" the property "city"; arguments that the tool does not know are dropped, as is null for an optional
    one; defaults are filled in. Nothing is guessed: ask `problems` what is still wrong.
    """
    done: list[str] = []
    checker = Checker(schema)
    known = object_schema(schema)["properties"]
    plain = dict(arguments)
    value = _repaired(plain, checker.root, checker, "", done)
    if isinstance(value, dict) and known and checker.root.get("additionalProperties") is None:
        # The schema does not forbid them, but a tool that was never told of an argument cannot want it.
        value = _without_unknown(value, known, checker.root, "", done)
    if not isinstance(value, dict) or (done and not checker.problems(plain) and Checker(schema).problems(value)):
        return plain, []
    return value, done


class Checker:
    """Checks JSON values against one schema, each pair of a value and a part of the schema only once."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Take the schema as published; what is malformed in it is left out."""
        self.root: Schema = sound(schema)
        self.repairs = MAX_REPAIRS  # steps that are left to a repair: references that fork could go on for ever
        self._checked: dict[tuple[str, int, int], list[str]] = {}
        self._choices: dict[int, Choices] = {}

    def choices(self, node: Mapping[str, Any]) -> Choices:
        """What the enum of a part of the schema allows."""
        values = node["enum"]
        if id(values) not in self._choices:
            self._choices[id(values)] = Choices(values)
        return self._choices[id(values)]

    def problems(self, value: Any, node: Any = None, path: str = "") -> list[str]:
        """What is wrong with a value, by this part of the schema (the whole of it by default)."""
        self._checked.clear()
        return self._check(value, self.root if node is None else node, path, 0)

    def _check(self, value: Any, node: Any, path: str, depth: int) -> list[str]:
        if node is True or node is None or depth > MAX_DEPTH:
            return []
        if node is False:
            return [f"{_at(path)} must be left out"]
        key = (path, id(value), id(node))
        if key not in self._checked:
            self._checked[key] = []  # a reference that leads back here says nothing more
            self._checked[key] = list(dict.fromkeys(self._found(value, node, path, depth + 1)))
        return self._checked[key]

    def _found(self, value: Any, node: Schema, path: str, depth: int) -> list[str]:
        if value is None and node.get("nullable") is True:
            return []
        found = _type_problems(value, node, path) or self._choice_problems(value, node, path)
        if found:
            return found  # the rest would only repeat it
        if isinstance(value, str):
            found += _text_problems(value, node, path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found += _number_problems(value, node, path)
        elif isinstance(value, list):
            found += self._array_problems(value, node, path, depth)
        elif isinstance(value, Mapping):
            found += self._object_problems(value, node, path, depth)
        return found + self._branch_problems(value, node, path, depth)

    def _choice_problems(self, value: Any, node: Schema, path: str) -> list[str]:
        if "const" in node and canonical(node["const"]) != canonical(value):
            return [f"{_at(path)} must be {_json(node['const'])}"]
        if "enum" in node and value not in self.choices(node):
            values = ", ".join(map(_json, node["enum"][:_LISTED]))
            more = f" … ({len(node['enum'])} in all)" if len(node["enum"]) > _LISTED else ""
            return [f"{_at(path)} must be one of {values}{more}; not{_shown(value) or ' this'}"]
        return []

    def _array_problems(self, value: list[Any], node: Schema, path: str, depth: int) -> list[str]:
        found = _size_problems(len(value), node, "minItems", "maxItems", path, "items")
        first = node.get("prefixItems", [])
        for position, item in enumerate(value):
            inner = first[position] if position < len(first) else node.get("items")
            found += self._check(item, inner, f"{path}[{position}]", depth)
        if node.get("uniqueItems") is True:
            seen = {canonical(item) for item in value}
            if len(seen) < len(value):
                found.append(f"{_at(path)} must not hold the same item twice")
        return found

    def _object_problems(self, value: Mapping[str, Any], node: Schema, path: str, depth: int) -> list[str]:
        found = _size_problems(len(value), node, "minProperties", "maxProperties", path, "properties")
        properties, rest = node.get("properties", {}), node.get("additionalProperties")
        for name in node.get("required", ()):
            if name not in value:
                found.append(f"{_at(_under(path, name))} is required{_wanted(properties.get(name))}: add it")
        for name, item in value.items():
            patterns = [inner for pattern, inner in node.get("patternProperties", {}).items() if _finds(pattern, name)]
            inside = [properties[name], *patterns] if name in properties else patterns
            if not inside and rest is False:
                known = ", ".join(_quoted(key) for key in list(properties)[:20]) or "none"
                found.append(f"{_at(_under(path, name))} is not known: leave it out (known: {known})")
            for inner in inside or ([] if rest is False else [rest]):
                found += self._check(item, inner, _under(path, name), depth)
        return found

    def _branch_problems(self, value: Any, node: Schema, path: str, depth: int) -> list[str]:
        found: list[str] = []
        target = resolved(self.root, node["$ref"]) if "$ref" in node else None
        if isinstance(target, Mapping | bool):
            found += self._check(value, target, path, depth)
        for branch in node.get("allOf", ()):
            found += self._check(value, branch, path, depth)
        for keyword in ("anyOf", "oneOf"):
            results = [self._check(value, branch, path, depth) for branch in node.get(keyword, ())]
            fitting = sum(not result for result in results)
            if results and not fitting:
                nearest = min(results, key=len)
                found += nearest if len(results) == 1 else [f"{_at(path)} fits none of its forms: {'; '.join(nearest)}"]
            elif keyword == "oneOf" and fitting > 1:
                found.append(f"{_at(path)} fits {fitting} forms where only one may fit")
        if "not" in node and not self._check(value, node["not"], path, depth):
            found.append(f"{_at(path)} is of a kind that is not allowed here")
        return found


def _type_problems(value: Any, node: Schema, path: str) -> list[str]:
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{_at(path)} must be a finite number"]
    if isinstance(value, int) and not is_writable(value):
        return [f"{_at(path)} is a number of too many digits to be read: make it shorter"]
    kinds = _kinds(node)
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [f"{_at(path)} must be {' or '.join(map(_a, kinds))}, not {_kind(value)}{_shown(value)}"]
    return []


def _text_problems(value: str, node: Schema, path: str) -> list[str]:
    found = _size_problems(len(value), node, "minLength", "maxLength", path, "characters")
    if "pattern" in node and not _finds(node["pattern"], value):
        found.append(f"{_at(path)} must match the pattern {node['pattern']}; {_json(value)} does not")
    return found


def _number_problems(value: float, node: Schema, path: str) -> list[str]:
    found = []
    if "minimum" in node and value < node["minimum"]:
        found.append(f"{_at(path)} must be at least {_json(node['minimum'])}, not {_json(value)}")
    if "maximum" in node and value > node["maximum"]:
        found.append(f"{_at(path)} must be at most {_json(node['maximum'])}, not {_json(value)}")
    if "exclusiveMinimum" in node and value <= node["exclusiveMinimum"]:
        found.append(f"{_at(path)} must be more than {_json(node['exclusiveMinimum'])}, not {_json(value)}")
    if "exclusiveMaximum" in node and value >= node["exclusiveMaximum"]:
        found.append(f"{_at(path)} must be less than {_json(node['exclusiveMaximum'])}, not {_json(value)}")
    if "multipleOf" in node and not is_multiple(value, node["multipleOf"]):
        found.append(f"{_at(path)} must be a multiple of {_json(node['multipleOf'])}, not {_json(value)}")
    return found


def is_multiple(value: float, step: float) -> bool:
    """Whether a number is a whole number of steps; 0.3 is three times 0.1, whatever floats say."""
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        quotient = value / step
    except ZeroDivisionError:
        return False
    except OverflowError:  # one of them is an integer beyond the range of floats
        return (Fraction(value) / Fraction(str(step))).denominator == 1
    return math.isfinite(quotient) and abs(quotient - round(quotient)) < max(1e-9, 1e-15 * abs(quotient))


def _size_problems(size: int, node: Schema, least: str, most: str, path: str, what: str) -> list[str]:
    if least in node and size < node[least]:
        return [f"{_at(path)} must have at least {node[least]} {what}, not {size}"]
    if most in node and size > node[most]:
        return [f"{_at(path)} must have at most {node[most]} {what}, not {size}"]
    return []


def _repaired(value: Any, node: Any, checker: Checker, path: str, done: list[str], depth: int = 0) -> Any:
    checker.repairs -= 1
    if not isinstance(node, Mapping) or depth > MAX_DEPTH or checker.repairs < 0:
        return value
    if value is None and node.get("nullable") is True:
        return value
    for part in (resolved(checker.root, node.get("$ref")), *node.get("allOf", ())):
        value = _repaired(value, part, checker, path, done, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        branches = node.get(keyword, ())
        if branches and all(checker.problems(value, branch, path) for branch in branches):
            for branch in branches:
                said: list[str] = []
                attempt = _repaired(value, branch, checker, path, said, depth + 1)
                if not checker.problems(attempt, branch, path):
                    done += said
                    value = attempt
                    break
    value = _retyped(value, node, checker, path, done)
    if isinstance(value, list):
        first, rest = node.get("prefixItems", []), node.get("items")
        inner = [*first, *[rest] * (len(value) - len(first))]
        return [
            _repaired(item, part, checker, f"{path}[{position}]", done, depth + 1)
            for position, (item, part) in enumerate(zip(value, inner, strict=False))
        ]
    return _repaired_object(value, node, checker, path, done, depth) if isinstance(value, dict) else value


def _repaired_object(
    value: dict[str, Any], node: Mapping[str, Any], checker: Checker, path: str, done: list[str], depth: int
) -> dict[str, Any]:
    properties, required = node.get("properties", {}), node.get("required", ())
    kept = _renamed(value, properties, path, done)
    if node.get("additionalProperties") is False:
        kept = _without_unknown(kept, properties, node, path, done)
    for name, inner in properties.items():
        where = _under(path, name)
        if name in kept:
            kept[name] = _repaired(kept[name], inner, checker, where, done, depth + 1)
            if kept[name] is None and name not in required and checker.problems(None, inner):
                del kept[name]
                done.append(f"{_at(where)}: null dropped")
        if name not in kept and isinstance(inner, Mapping):
            default = inner["default"] if "default" in inner else inner.get("const") if name in required else None
            if default is not None and not checker.problems(default, inner):
                kept[name] = default
                done.append(f"{_at(where)}: set to {_json(default)}, its default")
    return kept


def _renamed(value: dict[str, Any], properties: Mapping[str, Any], path: str, done: list[str]) -> dict[str, Any]:
    """Names that differ from a property's only in case, blanks, dashes or underscores become the property's."""
    meant: dict[str, list[str]] = {}
    for name in properties:
        meant.setdefault(folded(name), []).append(name)
    kept: dict[str, Any] = {}
    for name, item in value.items():
        names = meant.get(folded(name), [])
        if name not in properties and len(names) == 1 and names[0] not in value and names[0] not in kept:
            done.append(f"{_at(_under(path, name))}: renamed to {_quoted(names[0])}")
            name = names[0]
        kept[name] = item
    return kept


def _without_unknown(
    value: dict[str, Any], known: Mapping[str, Any], node: Mapping[str, Any], path: str, done: list[str]
) -> dict[str, Any]:
    patterns = list(node.get("patternProperties", {}))
    unknown = [name for name in value if name not in known and not any(_finds(p, name) for p in patterns)]
    done += [f"{_at(_under(path, name))}: dropped, the tool does not know it" for name in unknown]
    return {name: item for name, item in value.items() if name not in unknown}


def _retyped(value: Any, node: Mapping[str, Any], checker: Checker, path: str, done: list[str]) -> Any:
    """A value of the wrong type as what it plainly stands for; the value itself where there is no such thing."""
    if isinstance(value, int) and not is_writable(value):
        return value
    choices = Choices([node["const"]]) if "const" in node else checker.choices(node) if "enum" in node else None
    if choices is not None and value not in choices:
        alike = choices.spelled.get(folded(plain_text(value)), [])
        if len(alike) == 1:
            done.append(f"{_at(path)}: {_json(value)} taken as {_json(alike[0])}")
            return alike[0]
    kinds = _kinds(node)
    if not kinds or any(_is(value, kind) for kind in kinds):
        return value
    for kind in kinds:
        changed = _as(value, kind)
        if _is(changed, kind):
            done.append(f"{_at(path)}: {_json(value)} taken as {_json(changed)}")
            return changed
    return value


def _as(value: Any, kind: str) -> Any:
    if kind == "string":
        return plain_text(value) if isinstance(value, int | float) else value
    if isinstance(value, str):
        text = value.strip()
        if kind in ("boolean", "null"):
            return _WORDS.get(text.lower(), value)
        with suppress(ValueError, RecursionError):
            parsed = json.loads(text)
            # 5.0 is an integer to JSON Schema, but not to most tools.
            whole = kind == "integer" and isinstance(parsed, float) and parsed.is_integer()
            value = int(parsed) if whole else parsed if _is(parsed, kind) else value
    if kind == "array" and isinstance(value, str | int | float):
        return [value]
    return value


def _kinds(node: Mapping[str, Any]) -> list[str]:
    kinds = node.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if kind == "number":
        return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, {"string": str, "array": list, "object": Mapping}.get(kind, ()))


def _kind(value: Any) -> str:
    kinds = ("null", "boolean", "integer", "number", "string", "array", "object")
    found = next((kind for kind in kinds if _is(value, kind)), None)
    return _a(found) if found else f"a Python {type(value).__name__}"


def _a(kind: str) -> str:
    return kind if kind == "null" else f"{'an' if kind[0] in 'aio' else 'a'} {kind}"


def _at(path: str) -> str:
    return f'"{path}"' if path else "the object of arguments"


def _under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)


def _wanted(schema: Any) -> str:
    kinds = _kinds(schema) if isinstance(schema, Mapping) else []
    return f" ({' or '.join(map(_a, kinds))})" if kinds else ""


def _shown(value: Any) -> str:
    return f" {_json(value)}" if isinstance(value, str | int | float) else ""


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr) if is_writable(value) else _TOO_LONG
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _finds(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text; one that Python cannot read forbids nothing."""
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return True
