"""A JSON Schema as an automaton over bytes.

A state describes what is still to be written: a part, and the state after it (None at the end). The automaton is in
several states at once where something is not decided yet, such as which optional property or anyOf branch follows.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolscout.core.argument_checks import Checker
from toolscout.core.json_schema import canonical, resolved, sound
from toolscout.llm.constrained_json.numbers import Numbers

# Limits on strings, arrays and objects with free keys, as a small model may never stop; a schema can demand more.
MAX_TEXT = 400
MAX_ITEMS = 16
MAX_ENTRIES = 8
MAX_FORMS = 64  # the most alternatives of one value
ANYTHING: dict[str, Any] = {}  # one object, so that it has one id
_DEPTH = 24
_QUOTE, _BACKSLASH = 0x22, 0x5C
ESCAPED = frozenset(b'"\\/bfnrt')
# The range of the second byte of a UTF-8 character, for first bytes that restrict it.
_ANY = (0x80, 0xBF)
_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
_DIGITS = frozenset(b"0123456789-.")
_BRANCHES = ("$ref", "allOf", "anyOf", "oneOf")
# How to combine the bounds of two schemas that must both hold.
_TIGHTER = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
}


@dataclass(frozen=True, slots=True)
class Fixed:
    """Fixed bytes, written up to `place`."""

    text: bytes
    place: int
    rest: State


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the sorted texts[low:high], which all share their first `place` bytes and are longer than that."""

    node: int
    low: int
    high: int
    place: int
    rest: State
    texts: list[bytes] = field(compare=False)  # the node identifies them; there may be thousands

    def within(self, byte: int) -> tuple[int, int]:
        """The range of the texts that go on with this byte."""
        low = bisect_left(self.texts, byte, self.low, self.high, key=self._next)
        return low, bisect_right(self.texts, byte, low, self.high, key=self._next)

    def viable(self) -> Iterator[int]:
        """The bytes with which a text goes on."""
        low = self.low
        while low < self.high:
            byte = self._next(self.texts[low])
            yield byte
            low = self.within(byte)[1]

    def _next(self, text: bytes) -> int:
        return text[self.place]


@dataclass(frozen=True, slots=True)
class Text:
    """The inside of a string. `pending` bytes of a character are missing, the next one in the range `within`."""

    least: int
    most: int
    rest: State
    count: int = 0
    pending: int = 0
    within: tuple[int, int] = _ANY
    escaped: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A number of which `text` is written."""

    allowed: Numbers
    text: str
    rest: State


@dataclass(frozen=True, slots=True)
class Value:
    """Any value that fits a part of the schema."""

    node: int
    rest: State


@dataclass(frozen=True, slots=True)
class Members:
    """The properties of an object from number `place` on; `first`: none is written yet."""

    node: int
    place: int
    first: bool
    rest: State


@dataclass(frozen=True, slots=True)
class Items:
    """The items of an array, or the entries of an object with free keys, after the first `count`."""

    node: int
    count: int
    keyed: bool
    rest: State


State = Fixed | OneOf | Text | Number | Value | Members | Items | None
States = tuple[State, ...]


class Grammar:
    """The automaton of one schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Take a JSON Schema; keywords that cannot be enforced while writing must be checked at the end."""
        self._root = sound(schema)
        self._nodes: dict[int, Any] = {}
        self._forms: dict[int, list[dict[str, Any]]] = {}
        self._written: dict[int, list[bytes]] = {}
        self.start = self._opened([Value(self._keep(self._root), None)])

    def step(self, states: States, byte: int) -> States:
        """The states after a byte; none where the byte is not allowed."""
        return self._opened([following for state in states for following in after(state, byte)])

    def opened(self, state: State) -> States:
        """The states that take a byte, or are the end, for a single state."""
        return self._opened([state])

    def viable(self, states: States) -> frozenset[int] | None:
        """A superset of the bytes that may come next; None for nearly all bytes."""
        found: set[int] = set()
        for state in states:
            if isinstance(state, Fixed):
                found.add(state.text[state.place])
            elif isinstance(state, OneOf):
                found.update(state.viable())
            elif isinstance(state, Number):
                found |= _DIGITS
            elif isinstance(state, Text):
                return None
        return frozenset(found)

    def begun(self, states: States) -> set[int]:
        """The next bytes of fixed texts that are written in part."""
        return set(self.viable(tuple(one for one in states if isinstance(one, Fixed | OneOf) and one.place > 0)) or ())

    def _opened(self, states: list[State]) -> States:
        """Replace states that stand for alternatives by those that take a byte, or are the end."""
        found: dict[State, None] = {}
        waiting = states[::-1]
        while waiting:
            state = waiting.pop()
            if isinstance(state, Value):
                waiting += reversed(self._values(state))
            elif isinstance(state, Members):
                waiting += reversed(list(self._members(state)))
            elif isinstance(state, Items):
                waiting += reversed(list(self._items(state)))
            elif state not in found:
                found[state] = None
                if isinstance(state, Number) and state.allowed.may_end(state.text):
                    waiting.append(state.rest)
        return tuple(found)

    def _keep(self, node: Any) -> int:
        self._nodes[id(node)] = node  # kept alive, so that its id stays unique
        return id(node)

    def _values(self, state: Value) -> list[State]:
        return [begun for form in self._forms_of(state.node) for begun in self._begun(form, state.rest)]

    def _forms_of(self, key: int) -> list[dict[str, Any]]:
        if key not in self._forms:
            self._forms[key] = []  # ends the recursion: a value that must contain itself cannot be written
            self._forms[key] = [form for form in self._flat(self._nodes[key], 0) if list(self._begun(form, None))]
        return self._forms[key]

    def _flat(self, node: Any, depth: int) -> list[dict[str, Any]]:
        """The forms of a value: schemas without references and branches."""
        if not isinstance(node, Mapping) or depth > _DEPTH:
            return [] if node is False or depth > _DEPTH else [{}]
        forms: list[dict[str, Any]] = [{key: value for key, value in node.items() if key not in _BRANCHES}]
        target = resolved(self._root, node.get("$ref"))
        for part in ([target] if target is not None else []) + list(node.get("allOf", ())):
            inner = self._flat(part, depth + 1)
            forms = [both for form in forms for one in inner if (both := _both(form, one)) is not None][:MAX_FORMS]
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                inner = [one for branch in node[keyword] for one in self._flat(branch, depth + 1)]
                forms = [both for form in forms for one in inner if (both := _both(form, one)) is not None][:MAX_FORMS]
        return [*forms, {"type": "null"}] if node.get("nullable") is True else forms

    def _begun(self, form: dict[str, Any], rest: State) -> Iterator[State]:
        if "const" in form or "enum" in form:
            texts = self._choices(form)
            if texts:
                yield OneOf(self._keep(form), 0, len(texts), 0, rest, texts)
            return
        for kind in _kinds(form):
            if kind == "string":
                least = int(form.get("minLength", 0))
                most = int(form.get("maxLength", max(MAX_TEXT, least)))
                if least <= most:
                    yield _fixed('"', Text(least, most, rest))
            elif kind in ("integer", "number"):
                allowed = Numbers.of(form, whole=kind == "integer")
                if allowed.may_begin("") or allowed.may_begin("-"):
                    yield Number(allowed, "", rest)
            elif kind == "object" and self._has_all(form):
                named = form.get("properties") or form.get("required")
                inside = Members(self._keep(form), 0, True, rest) if named else Items(self._keep(form), 0, True, rest)
                yield _fixed("{", inside)
            elif kind == "array":
                yield _fixed("[", Items(self._keep(form), 0, False, rest))
            elif kind in ("boolean", "null"):
                for word in ("true", "false") if kind == "boolean" else ("null",):
                    yield _fixed(word, rest)

    def _choices(self, form: dict[str, Any]) -> list[bytes]:
        """The sorted texts of the const or enum values that fit the rest of the form."""
        key = self._keep(form)
        if key not in self._written:
            keyword = "const" if "const" in form else "enum"
            values = [form[keyword]] if keyword == "const" else form[keyword]
            others = Checker({name: value for name, value in form.items() if name != keyword})
            self._written[key] = sorted({_written(value).encode() for value in values if not others.problems(value)})
        return self._written[key]

    def _has_all(self, form: Mapping[str, Any]) -> bool:
        """Whether every required property can be written."""
        properties = self._properties(form)
        return all(self._forms_of(self._keep(properties[name])) for name in form.get("required", ()))

    def _members(self, state: Members) -> Iterator[State]:
        form = self._nodes[state.node]
        required, properties = form.get("required", ()), self._properties(form)
        names = list(properties)
        for place in range(state.place, len(names)):
            key = self._keep(properties[names[place]])
            if self._forms_of(key):
                opening = f"{'' if state.first else ', '}{_written(names[place])}: "
                yield _fixed(opening, Value(key, Members(state.node, place + 1, False, state.rest)))
            if names[place] in required:
                return
        yield _fixed("}", state.rest)

    def _properties(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """The schemas of the described properties, and of those that are only required."""
        described, rest = form.get("properties", {}), form.get("additionalProperties", ANYTHING)
        return {**described, **{name: rest for name in form.get("required", ()) if name not in described}}

    def _items(self, state: Items) -> Iterator[State]:
        form = self._nodes[state.node]
        least = int(form.get("minProperties" if state.keyed else "minItems", 0))
        most = int(form.get("maxProperties" if state.keyed else "maxItems", MAX_ENTRIES if state.keyed else MAX_ITEMS))
        prefix = form.get("prefixItems", [])
        inner = form.get("additionalProperties" if state.keyed else "items", ANYTHING)
        if not state.keyed and state.count < len(prefix):
            inner = prefix[state.count]
        key = self._keep(inner)
        if state.count < max(least, min(most, MAX_ENTRIES if state.keyed else MAX_ITEMS)) and self._forms_of(key):
            value: State = Value(key, Items(state.node, state.count + 1, state.keyed, state.rest))
            if state.keyed:
                value = _fixed('"', Text(1, 64, _fixed(": ", value)))
            yield from self._opened([_fixed(", ", value) if state.count else value])
        if state.count >= least:
            yield _fixed("}" if state.keyed else "]", state.rest)


def after(state: State, byte: int) -> Iterator[State]:
    """The states that follow one state after a byte."""
    if isinstance(state, Fixed):
        if state.text[state.place] == byte:
            at_end = state.place + 1 == len(state.text)
            yield state.rest if at_end else Fixed(state.text, state.place + 1, state.rest)
    elif isinstance(state, OneOf):
        low, high = state.within(byte)
        if low < high and len(state.texts[low]) == state.place + 1:
            yield state.rest
            low += 1
        if low < high:
            yield replace(state, low=low, high=high, place=state.place + 1)
    elif isinstance(state, Number):
        if byte in _DIGITS and (byte != 0x2D or not state.text) and (byte != 0x2E or "." not in state.text):
            text = state.text + chr(byte)
            if state.allowed.may_begin(text):
                yield Number(state.allowed, text, state.rest)
    elif isinstance(state, Text):
        yield from _after_in_text(state, byte)


def _after_in_text(state: Text, byte: int) -> Iterator[State]:
    if state.pending:
        if state.within[0] <= byte <= state.within[1]:
            yield replace(state, pending=state.pending - 1, within=_ANY)
    elif state.escaped:
        if byte in ESCAPED:
            yield replace(state, escaped=False)
    elif byte == _QUOTE:
        if state.count >= state.least:
            yield state.rest
    elif state.count < state.most and (0x20 <= byte < 0x80 or 0xC2 <= byte <= 0xF4):
        pending = 0 if byte < 0x80 else 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        within = _SECOND.get(byte, _ANY)
        yield replace(state, count=state.count + 1, pending=pending, within=within, escaped=byte == _BACKSLASH)


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """A schema for values that fit both, as far as keywords can be merged; None where their types differ."""
    merged = {**one, **other}
    for key in one.keys() & other.keys():
        mine, theirs = one[key], other[key]
        if key in _TIGHTER:
            merged[key] = _TIGHTER[key](mine, theirs)
        elif key == "properties":
            shared = {name: {"allOf": [mine[name], theirs[name]]} for name in mine.keys() & theirs.keys()}
            merged[key] = {**mine, **theirs, **shared}
        elif key == "required":
            merged[key] = list(dict.fromkeys([*mine, *theirs]))
        elif key == "enum":
            known = set(map(canonical, theirs))
            merged[key] = [value for value in mine if canonical(value) in known]
        elif key == "type":
            kinds = [kind for kind in _kinds(one) if kind in _kinds(other)]
            if not kinds and {"integer", "number"} <= {*_kinds(one), *_kinds(other)}:
                kinds = ["integer"]
            if not kinds:
                return None
            merged[key] = kinds
    return merged


def _kinds(form: Mapping[str, Any]) -> list[str]:
    """The types that a value may have; without "type", they are guessed from the other keywords."""
    given = form.get("type")
    if given is not None:
        return [given] if isinstance(given, str) else list(given)
    if "properties" in form or "required" in form or "additionalProperties" in form:
        return ["object"]
    if "items" in form or "prefixItems" in form or "minItems" in form:
        return ["array"]
    if form.keys() & {"minLength", "maxLength", "pattern", "format"}:
        return ["string"]
    if form.keys() & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}:
        return ["number"]
    return ["string", "number", "boolean", "null"]


def _fixed(text: str, rest: State) -> Fixed:
    return Fixed(text.encode(), 0, rest)


def _written(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return json.dumps(value)
    return text
