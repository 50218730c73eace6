"""Checks the arguments of a call against the tool's JSON Schema, and repairs harmless faults.

Neither the schema nor the arguments are trusted, so a check is bounded in time, in memory and in the length of its
messages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice
from typing import Any

import re2  # type: ignore[import-untyped]

from toolscout.core.json_schema import (
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

MAX_STEPS = 250_000  # of one check; a step checks one value against one part of a schema: some microseconds
MAX_REPAIRS = 2000
MAX_PROBLEMS = 20  # reported by one check
MAX_TOLD = 4000  # characters of all problems of one check
MAX_LINE = 600  # characters of one problem
MAX_NOTES = 500  # lines that describe one repair
MAX_PATTERN = 4096  # characters of a regular expression
TOO_MUCH = "the arguments are too large or too entangled to be checked: send less at once, or simpler values"
_SHOWN = 60  # characters of a value that a message quotes
_NAMED = 100  # of the name of a property
_PATH = 240  # of the place of a value
_LISTED = 30  # values of an enum, or properties, that a message names
_LISTED_TEXT = 400  # characters of such a list, about
_TOO_LONG = "a number of too many digits"
_BRANCHES = frozenset(["$ref", "allOf", "anyOf", "oneOf", "not"])  # keywords that hold other schemas of the same value
_CLASSES: dict[str, type] = {"string": str, "array": list, "object": Mapping}
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}

_PATTERN_MEMORY = 1 << 20  # bytes of one compiled pattern and its automaton
_PATTERNS_KEPT = 256
# Measured costs in steps: of a list, an object or a value with several forms; of a problem that is written down; of a
# Unicode class in a pattern; of a pattern that is too large to compile. Then, for one step: the instructions of a
# pattern that are compiled, and the product of instructions and bytes that is searched in the worst case.
_FOLLOWED, _WRITTEN, _CLASS, _TOO_LARGE = 3, 4, 100, 7000
_COMPILED, _SEARCHED = 4, 1000
# Escapes that re2 writes differently than ECMA-262 (the pattern language of JSON Schema) or Python.
_ESCAPE = re.compile(
    r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|u([0-9a-f]{4})|u\{([0-9a-f]{1,6})\}|c([a-z])|(.))", re.I | re.S
)


def problems(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the arguments of a call, in words a model can act on; empty where they fit the schema.

    Checks type, enum, const, properties, required, additionalProperties, patternProperties, items, prefixItems, all
    bounds, pattern, uniqueItems, anyOf, oneOf, allOf, not, local $ref and OpenAPI's nullable. Other keywords and
    malformed parts of the schema are ignored.

    Patterns are matched by re2 in linear time; \\d, \\w and \\s are ASCII, as in ECMA-262. A pattern that re2 cannot
    read (look-around, back-references, more than 1,000 repeats) is ignored.

    At most MAX_PROBLEMS problems of MAX_TOLD characters are returned. Arguments that take more than MAX_STEPS to check
    do not fit: the only problem says that they are too large.
    """
    given: Any = arguments  # models send anything
    if not isinstance(given, Mapping):
        return [f"the arguments must be one JSON object, not {_kind(given)}"]
    return Checker(schema).problems(given)


def value_problems(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Return the problems of any JSON value, as `problems` does for an object of arguments."""
    return Checker(schema).problems(value)


def repaired(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments with harmless faults repaired, and one line for each repair.

    "5" becomes 5 where an integer is asked for, "True" becomes true, a lone value a list of one, "Celsius" the enum's
    "celsius", "City" the property "city"; unknown arguments are dropped, as is null for an optional
    one; defaults are filled in. Other faults stay: `problems` finds them. Arguments that take more than MAX_STEPS to
    repair come back unchanged.
    """
    done: list[str] = []
    checker = Checker(schema)
    known = object_schema(schema)["properties"]
    plain = dict(arguments)
    try:
        value = _repaired(plain, checker.root, checker, "", done)
        if isinstance(value, dict) and known and checker.root.get("additionalProperties") is None:
            # The schema allows unknown arguments by default, but the tool has no use for them.
            value = _without_unknown(value, known, checker.root, checker, "", done)
    except (_OutOfSteps, RecursionError):
        return plain, []
    if not isinstance(value, dict) or (done and not checker.problems(plain) and checker.problems(value)):
        return plain, []
    return value, done if len(done) <= MAX_NOTES else [*done[:MAX_NOTES], "and more"]


class _OutOfSteps(Exception):
    """A check or a repair has used up its steps."""


class Checker:
    """Checks JSON values against one schema; the result for each value and part of the schema is cached."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Take a schema as published; malformed parts are dropped."""
        self.root: Schema = sound(schema)
        self.repairs = MAX_REPAIRS  # steps left to a repair: references that branch could go on for ever
        self._left = MAX_STEPS
        self._unread = 0  # how often a pattern was ignored because re2 cannot read it
        # Key: path, value and part of the schema. Value: the problems, and whether a pattern was ignored.
        self._checked: dict[tuple[str, int, int], tuple[list[str], bool]] = {}
        self._choices: dict[int, Choices] = {}  # cached by the id of the enum's list
        self._patterns: dict[str, Any] = {}

    def choices(self, node: Mapping[str, Any]) -> Choices:
        """Return the values that the enum of a part of the schema allows."""
        values = node["enum"]
        if id(values) not in self._choices:
            self._choices[id(values)] = Choices(values)
        return self._choices[id(values)]

    def target(self, node: Mapping[str, Any]) -> Any:
        """Return what the $ref of a part of the schema points at; None without $ref or where it is dangling."""
        if "$ref" not in node:
            return None
        self.spend(len(node["$ref"]) // 16)
        return resolved(self.root, node["$ref"])

    def problems(self, value: Any, node: Any = None, path: str = "") -> list[str]:
        """Return the problems of a value by a part of the schema (by default all of it), within MAX_STEPS."""
        self._left = MAX_STEPS
        try:
            found = self._checked_anew(value, self.root if node is None else node, path)
        except (_OutOfSteps, RecursionError):
            return [TOO_MUCH]
        return _few(found)

    def fits(self, value: Any, node: Any, path: str = "") -> bool:
        """Return whether a value fits a part of the schema; spends the steps that are left."""
        return not self._checked_anew(value, node, path)

    def finds(self, pattern: str, text: str) -> bool | None:
        """Return whether a pattern matches somewhere in a text; None where re2 cannot read the pattern."""
        if pattern not in self._patterns:
            known = pattern[:MAX_PATTERN]
            self.spend(
                20 + len(known) + _CLASS * known.lower().count("\\p")
            )  # before compiling, which may take longest
            self._patterns[pattern], steps = _compiled(pattern)
            self.spend(steps)
        compiled = self._patterns[pattern]
        if compiled is None:
            self._unread += 1
            return None
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # halves of surrogate pairs
            encoded = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        self.spend(1 + len(encoded) * compiled.programsize // _SEARCHED)
        return compiled.search(encoded) is not None

    def spend(self, steps: int) -> None:
        """Count steps; raises _OutOfSteps where none are left."""
        self._left -= steps
        if self._left < 0:
            raise _OutOfSteps

    def spend_on(self, value: Any) -> None:
        """Count the steps that reading a whole value takes."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            self.spend(1 + (len(one) // 64 if isinstance(one, str | list | Mapping) else 0))
            if isinstance(one, Mapping):
                waiting += one.keys()
                waiting += one.values()
            elif isinstance(one, list):
                waiting += one

    def _checked_anew(self, value: Any, node: Any, path: str) -> list[str]:
        self._checked.clear()  # the keys hold ids of objects that may no longer exist
        return self._check(value, node, path, 0)

    def _check(self, value: Any, node: Any, path: str, depth: int) -> list[str]:
        self.spend(1)
        if node is True or node is None or depth > MAX_DEPTH:
            return []
        if node is False:
            return [f"{_at(path)} must be left out"]
        if not isinstance(value, list | Mapping) and _BRANCHES.isdisjoint(node):
            return self._found(value, node, path, depth)  # cheap and not recursive: not worth caching
        key = (path, id(value), id(node))
        if key not in self._checked:
            self.spend(_FOLLOWED)
            unread = self._unread
            self._checked[key] = ([], False)  # ends the recursion where a reference leads back here
            lines = dict.fromkeys(self._found(value, node, path, depth + 1))
            self.spend(_WRITTEN * len(lines))
            found = [_cut(line, MAX_LINE) for line in islice(lines, MAX_PROBLEMS + 1)]
            self._checked[key] = (found, self._unread > unread)
        elif self._checked[key][1]:
            self._unread += 1
        return self._checked[key][0]

    def _found(self, value: Any, node: Schema, path: str, depth: int) -> list[str]:
        if value is None and node.get("nullable") is True:
            return []
        if isinstance(value, int) and value.bit_length() > 64:
            self.spend(value.bit_length() // 64)
        found = _type_problems(value, node, path)
        if not found and ("enum" in node or "const" in node):
            found = self._choice_problems(value, node, path)
        if found:
            return found  # further problems would only follow from this one
        if isinstance(value, str):
            found += self._text_problems(value, node, path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found += _number_problems(value, node, path)
        elif isinstance(value, list):
            found += self._array_problems(value, node, path, depth)
        elif isinstance(value, Mapping):
            found += self._object_problems(value, node, path, depth)
        if len(found) <= MAX_PROBLEMS and not _BRANCHES.isdisjoint(node):
            found += self._branch_problems(value, node, path, depth)
        return found

    def _choice_problems(self, value: Any, node: Schema, path: str) -> list[str]:
        self.spend_on(value)
        if "const" in node:
            self.spend_on(node["const"])
            if canonical(node["const"]) != canonical(value):
                return [f"{_at(path)} must be {_json(node['const'])}"]
        if "enum" in node and value not in self.choices(node):
            values = _listed(map(_json, node["enum"]), len(node["enum"]))
            return [f"{_at(path)} must be one of {values}; not{_shown(value) or ' this'}"]
        return []

    def _text_problems(self, value: str, node: Schema, path: str) -> list[str]:
        found = _size_problems(len(value), node, "minLength", "maxLength", path, "characters")
        if "pattern" in node and self.finds(node["pattern"], value) is False:
            pattern = _cut(node["pattern"], MAX_LINE // 2)
            found.append(f"{_at(path)} must match the pattern {pattern}; {_json(value)} does not")
        return found

    def _array_problems(self, value: list[Any], node: Schema, path: str, depth: int) -> list[str]:
        found = _size_problems(len(value), node, "minItems", "maxItems", path, "items")
        first, rest = node.get("prefixItems", []), node.get("items")
        described = value if isinstance(rest, Mapping) or rest is False else islice(value, len(first))
        for position, item in enumerate(described):
            found += self._check(item, first[position] if position < len(first) else rest, f"{path}[{position}]", depth)
            if len(found) > MAX_PROBLEMS:
                return found
        if node.get("uniqueItems") is True:
            self.spend_on(value)
            if len({canonical(item) for item in value}) < len(value):
                found.append(f"{_at(path)} must not hold the same item twice")
        return found

    def _object_problems(self, value: Mapping[str, Any], node: Schema, path: str, depth: int) -> list[str]:
        found = _size_problems(len(value), node, "minProperties", "maxProperties", path, "properties")
        properties, rest = node.get("properties", {}), node.get("additionalProperties")
        patterns, required = node.get("patternProperties", {}), node.get("required", ())
        self.spend((len(value) + len(required)) // 16)
        for name in islice((name for name in required if name not in value), MAX_PROBLEMS + 1):
            found.append(f"{_at(_under(path, name))} is required{_wanted(properties.get(name))}: add it")
        any_may_be_wrong = patterns or isinstance(rest, Mapping) or rest is False
        for name in value if any_may_be_wrong else filter(properties.__contains__, value):
            if len(found) > MAX_PROBLEMS:
                break
            matched = {pattern: self.finds(pattern, str(name)) for pattern in patterns}
            inside = [properties[name]] if name in properties else []
            inside += [patterns[pattern] for pattern, is_found in matched.items() if is_found]
            if not inside and None not in matched.values():
                if rest is False:
                    known = _listed(map(_quoted, properties), len(properties)) or "none"
                    found.append(f"{_at(_under(path, name))} is not known: leave it out (known: {known})")
                else:
                    inside = [rest]
            for inner in inside:
                found += self._check(value[name], inner, _under(path, name), depth)
        return found

    def _branch_problems(self, value: Any, node: Schema, path: str, depth: int) -> list[str]:
        found: list[str] = []
        target = self.target(node)
        for part in chain([target] if isinstance(target, Mapping | bool) else [], node.get("allOf", ())):
            found += self._check(value, part, path, depth)
            if len(found) > MAX_PROBLEMS:
                return found
        for keyword in ("anyOf", "oneOf"):
            found += self._form_problems(value, node.get(keyword, ()), keyword == "oneOf", path, depth)
        if "not" in node:
            unread = self._unread
            if not self._check(value, node["not"], path, depth) and self._unread == unread:
                found.append(f"{_at(path)} is of a kind that is not allowed here")
        return found

    def _form_problems(self, value: Any, forms: Iterable[Any], only_one: bool, path: str, depth: int) -> list[str]:
        """Return the problems of a value that must fit one of several forms; exactly one where `only_one`."""
        results: list[list[str]] = []
        surely = 0  # forms that fit without any pattern being ignored
        for form in forms:
            unread = self._unread
            results.append(self._check(value, form, path, depth))
            surely += not results[-1] and self._unread == unread
            if not results[-1] and not only_one:
                return []
        if not results or not all(results):
            return [f"{_at(path)} fits {surely} forms where only one may fit"] if surely > 1 else []
        nearest = min(results, key=len)
        return nearest if len(results) == 1 else [f"{_at(path)} fits none of its forms: {'; '.join(nearest)}"]


@lru_cache(_PATTERNS_KEPT)
def _compiled(pattern: str) -> tuple[Any, int]:
    """Return a compiled pattern (None where re2 cannot read it) and the steps that compiling took."""
    if len(pattern) > MAX_PATTERN:
        return None, 0
    options = re2.Options()
    options.max_mem, options.log_errors, options.never_capture = _PATTERN_MEMORY, False, True
    try:
        made = re2.compile(_ESCAPE.sub(_as_re2, pattern).encode(), options)
    except (re2.error, ValueError, OverflowError) as error:
        return None, _TOO_LARGE if "too large" in str(error) else 0
    return made, made.programsize // _COMPILED


def _as_re2(escape: re.Match[str]) -> str:
    high, low, unit, point, control, _ = escape.groups()
    if high:
        return f"\\x{{{0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00:x}}}"
    if unit or point:
        return f"\\x{{{unit or point}}}"
    if control:
        return f"\\x{{{ord(control) % 32:x}}}"
    return r"\z" if escape[0] == r"\Z" else escape[0]


def _type_problems(value: Any, node: Schema, path: str) -> list[str]:
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{_at(path)} must be a finite number"]
    if isinstance(value, int) and value.bit_length() > 64 and not is_writable(value):
        return [f"{_at(path)} is a number of too many digits to be read: make it shorter"]
    kinds = _kinds(node)
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [f"{_at(path)} must be {' or '.join(map(_a, kinds))}, not {_kind(value)}{_shown(value)}"]
    return []


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
    """Return whether `value` is a multiple of `step`, with a tolerance: 0.3 is a multiple of 0.1."""
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
    checker.spend(1)
    if not isinstance(node, Mapping) or depth > MAX_DEPTH or checker.repairs < 0:
        return value
    if value is None and node.get("nullable") is True:
        return value
    for part in (checker.target(node), *node.get("allOf", ())):
        value = _repaired(value, part, checker, path, done, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        branches = node.get(keyword, ())
        if branches and not any(checker.fits(value, branch, path) for branch in branches):
            for branch in branches:
                said: list[str] = []
                attempt = _repaired(value, branch, checker, path, said, depth + 1)
                if checker.fits(attempt, branch, path):
                    done += said
                    value = attempt
                    break
    value = _retyped(value, node, checker, path, done)
    if isinstance(value, list):
        checker.spend(len(value))
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
    properties, required = node.get("properties", {}), frozenset(node.get("required", ()))
    checker.spend(len(value))
    if properties:
        checker.spend_on([*value, *properties])
    kept = _renamed(value, properties, path, done)
    if node.get("additionalProperties") is False:
        kept = _without_unknown(kept, properties, node, checker, path, done)
    for name, inner in properties.items():
        where = _under(path, name)
        if name in kept:
            kept[name] = _repaired(kept[name], inner, checker, where, done, depth + 1)
            if kept[name] is None and name not in required and not checker.fits(None, inner):
                del kept[name]
                done.append(f"{_at(where)}: null dropped")
        if name not in kept and isinstance(inner, Mapping):
            default = inner["default"] if "default" in inner else inner.get("const") if name in required else None
            if default is not None and checker.fits(default, inner):
                kept[name] = default
                done.append(f"{_at(where)}: set to {_json(default)}, its default")
    return kept


def _renamed(value: dict[str, Any], properties: Mapping[str, Any], path: str, done: list[str]) -> dict[str, Any]:
    """Rename keys that differ from a property only in case, spaces, dashes or underscores."""
    if not properties:
        return dict(value)
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
    value: dict[str, Any],
    known: Mapping[str, Any],
    node: Mapping[str, Any],
    checker: Checker,
    path: str,
    done: list[str],
) -> dict[str, Any]:
    patterns = list(node.get("patternProperties", {}))
    checker.spend(len(value))
    kept: dict[str, Any] = {}
    for name, item in value.items():
        if name in known or any(checker.finds(pattern, str(name)) is not False for pattern in patterns):
            kept[name] = item
        else:
            done.append(f"{_at(_under(path, name))}: dropped, the tool does not know it")
    return kept


def _retyped(value: Any, node: Mapping[str, Any], checker: Checker, path: str, done: list[str]) -> Any:
    """Convert a value of the wrong type where the conversion is obvious; otherwise return it unchanged."""
    if isinstance(value, int) and not is_writable(value):
        return value
    if isinstance(value, str) or "const" in node or "enum" in node:
        checker.spend_on([value, node.get("const")])
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
    return isinstance(value, _CLASSES.get(kind, ()))


def _kind(value: Any) -> str:
    kinds = ("null", "boolean", "integer", "number", "string", "array", "object")
    found = next((kind for kind in kinds if _is(value, kind)), None)
    return _a(found) if found else f"a Python {type(value).__name__}"


def _a(kind: str) -> str:
    return kind if kind == "null" else f"{'an' if kind[0] in 'aio' else 'a'} {kind}"


def _at(path: str) -> str:
    return f'"{path}"' if path else "the object of arguments"


def _under(path: str, name: str) -> str:
    if len(path) > _PATH:  # deeply nested arguments would make paths, and memory, grow without limit
        return path
    name = _cut(str(name), _NAMED)
    return f"{path}.{name}" if path else name


def _wanted(schema: Any) -> str:
    kinds = _kinds(schema) if isinstance(schema, Mapping) else []
    return f" ({' or '.join(map(_a, kinds))})" if kinds else ""


def _shown(value: Any) -> str:
    return f" {_json(value)}" if isinstance(value, str | int | float) else ""


def _quoted(name: str) -> str:
    return json.dumps(_cut(str(name), _NAMED), ensure_ascii=False)


def _listed(texts: Iterable[str], total: int) -> str:
    """Join the first texts with commas, up to a limit, and say how many there are in all."""
    listed, room = list[str](), _LISTED_TEXT
    for text in islice(texts, _LISTED):
        listed.append(text)
        room -= len(text)
        if room < 0:
            break
    return ", ".join(listed) + (f" … ({total} in all)" if len(listed) < total else "")


def _json(value: Any) -> str:
    """Return the first characters of a value as JSON without encoding the rest, which may be a megabyte."""
    text = ""
    for part in _parts(value):
        text += part
        if len(text) > _SHOWN:
            return f"{text[:_SHOWN]}…"
    return text


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield "{"
        for place, (name, item) in enumerate(value.items()):
            yield f"{', ' if place else ''}{json.dumps(str(name)[: _SHOWN + 1], ensure_ascii=False)}: "
            yield from _parts(item)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "["
        for place, item in enumerate(value):
            yield ", " if place else ""
            yield from _parts(item)
        yield "]"
    elif isinstance(value, str):
        yield json.dumps(value[: _SHOWN + 1], ensure_ascii=False)
    else:
        yield json.dumps(value, ensure_ascii=False, default=repr) if is_writable(value) else _TOO_LONG


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _few(found: list[str]) -> list[str]:
    """Return the first problems, within MAX_PROBLEMS and MAX_TOLD characters."""
    room, first = MAX_TOLD, list[str]()
    for line in found[:MAX_PROBLEMS]:
        room -= len(line)
        if room < 0:
            break
        first.append(line)
    return first if len(first) == len(found) else [*first, "and more: put these right first"]
