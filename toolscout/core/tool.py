"""Tool: the record of one tool, shaped like an MCP tool with a namespace, and the text that is searched for it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol, Self
from urllib.parse import unquote

from toolscout.errors import BadTool

DOCUMENT_VERSION = 1
# Limits of the searched text: the first pages of a long description are enough. The record itself is kept whole.
MAX_DESCRIPTION_CHARS = 20_000
MAX_DOCUMENT_CHARS = 60_000
MAX_SERVICE_CHARS = 300
MAX_NAME_CHARS = 1_000
MAX_SCHEMA_DEPTH = 12
MAX_ENUM_VALUES = 1_000
# Levels of nested objects and lists: more than any real schema has, and few enough for recursive functions.
MAX_NESTING = 100

_UPPER, _LOWER = "A-ZÀ-ÖØ-Þ", "a-zß-öø-ÿĀ-ɏḀ-ỿ"
_WORD = re.compile(
    rf"[{_UPPER}]+(?=[{_UPPER}][{_LOWER}])|[{_UPPER}]?[{_LOWER}]+|[{_UPPER}]+|\d+|[^\W\d_{_UPPER}{_LOWER}]+"
)
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]+"
)
_NESTS = (dict, list, tuple)  # types that hold other values
_FLAT = frozenset((str, int, float, bool, type(None)))  # a quick test, which settles most values
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
# Where a schema may hold further schemas.
_INNER_ONE = ("items", "additionalProperties", "then", "else")
_INNER_LISTS = ("items", "anyOf", "oneOf", "allOf", "prefixItems")
_INNER_UNNAMED = frozenset([*_INNER_ONE, *_INNER_LISTS])
_INNER = _INNER_UNNAMED | {"$ref", "properties"}

_NESTED_FIELDS = ("inputSchema", "outputSchema", "annotations", "_meta", "origin")

OriginKind = Literal["mcp", "http", "function"]


def split_words(identifier: str) -> list[str]:
    """Split an identifier at camelCase, snake_case, kebab-case and digits: "getHTTPCode2" -> get HTTP Code 2."""
    return _WORD.findall(identifier)


@lru_cache(maxsize=64)
def request_words(request: str) -> tuple[str, ...]:
    """Split a request as split_words does; the parts of a search, which all split the same one, split it once."""
    return tuple(_WORD.findall(request))


def clean_text(text: str) -> str:
    """Return the text as one printable line: terminal escapes, control and direction characters become spaces."""
    if not text.isprintable():
        text = _UNPRINTABLE.sub(" ", _ANSI.sub(" ", text))
    elif "  " not in text:  # the common case: no other white space is printable
        return text.strip()
    return " ".join(text.split())


def escaped_text(text: str) -> str:
    """Return the text with invisible characters as escapes: a model reads them, so a person must see them."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """How to call a tool. It never holds a secret: headers and environment variables are given at call time.

    kind "mcp": target is the server's command line or URL, details["tool"] the name the server knows.
    kind "http": target is the base URL, details hold method, path and where each parameter goes.
    kind "function": target is "module:qualified.name".
    """

    kind: OriginKind
    target: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        """The JSON form that from_record reads."""
        return {"kind": self.kind, "target": self.target, "details": dict(self.details)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read what to_record returned; BadTool where a field is missing or malformed."""
        kind, target, details = record.get("kind"), record.get("target"), record.get("details", {})
        if kind not in ("mcp", "http", "function") or not isinstance(target, str) or not isinstance(details, Mapping):
            raise BadTool("an origin needs kind (mcp, http or function), target (text) and details (an object)")
        return cls(kind=kind, target=target, details=details)


def _empty_schema() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """The description of one tool. Its id, "namespace/name", never changes."""

    namespace: str
    name: str
    description: str = ""
    title: str = ""
    service: str = ""  # what the service behind the namespace is, in a sentence or two
    input_schema: Mapping[str, Any] = field(default_factory=_empty_schema)
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    origin: Origin | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise BadTool for an empty or unprintable name, a field of the wrong type, or too deep nesting."""
        for label, value in (("namespace", self.namespace), ("name", self.name)):
            if not isinstance(value, str) or not value.strip():
                raise BadTool(f"a tool needs a {label}: text that is not empty, got {value!r:.80}")
            if value != value.strip() or _UNPRINTABLE.search(value):
                raise BadTool(f"a tool's {label} may not hold control characters or outer spaces, got {value!r:.80}")
            if len(value) > MAX_NAME_CHARS:
                raise BadTool(f"a tool's {label} may not be longer than {MAX_NAME_CHARS} characters, got {value!r:.80}")
        for label, value in (("description", self.description), ("title", self.title), ("service", self.service)):
            if not isinstance(value, str):
                raise BadTool(f"tool {self.id}: {label} must be text, got {type(value).__name__}")
        if not isinstance(self.input_schema, Mapping):
            raise BadTool(f"tool {self.id}: inputSchema must be a JSON object, got {type(self.input_schema).__name__}")
        if self.output_schema is not None and not isinstance(self.output_schema, Mapping):
            raise BadTool(f"tool {self.id}: outputSchema must be a JSON object or absent")
        details = self.origin.details if self.origin else None
        nested = (self.input_schema, self.output_schema, self.annotations, self.meta, details)
        for label, field_value in zip(_NESTED_FIELDS, nested, strict=True):
            if field_value and too_deep(field_value):
                raise BadTool(f"tool {self.id}: {label} is nested deeper than {MAX_NESTING} levels; flatten it")

    def __hash__(self) -> int:
        """Return the hash of namespace and name: schemas are dicts, which cannot be hashed."""
        return hash((self.namespace, self.name))

    @property
    def id(self) -> str:
        """The stable id. A slash in the name is escaped, so that no two tools can share an id."""
        return tool_id(self.namespace, self.name)

    def document(self) -> str:
        """Return the text that is searched: names whole and split into words, title, description, parameters."""
        whole = f"{self.namespace} {self.name}"
        name = " ".join(split_words(self.name)).lower()
        split = " ".join([*split_words(self.namespace), name]).lower()
        lines = [whole]
        lines += [split] if split != whole.lower() else []
        lines += [self.title[:MAX_DESCRIPTION_CHARS]] if self.title.lower() not in (self.name.lower(), name) else []
        lines += [self.description[:MAX_DESCRIPTION_CHARS]]
        lines += [self.service[:MAX_SERVICE_CHARS]] if self.service != self.description else []
        lines += _SchemaWords(self.input_schema).lines
        return "\n".join(filter(None, map(clean_text, lines)))[:MAX_DOCUMENT_CHARS]

    def digest(self) -> str:
        """Return a digest of the searched text; vectors are cached by it."""
        return text_digest(self.document())

    @property
    def expansion(self) -> str:
        """Always "": an expansion is no part of a tool. A store keeps it beside the tool, and Listing has it."""
        return ""

    def content_digest(self) -> str:
        """Return a digest of the whole record."""
        record = json.dumps(self.to_record(), sort_keys=True, ensure_ascii=True, default=str)
        return hashlib.blake2b(record.encode(), digest_size=16).hexdigest()

    def to_record(self) -> dict[str, Any]:
        """Return the JSON form that from_record reads: an MCP tool with its namespace and further fields."""
        record: dict[str, Any] = {"namespace": self.namespace, "name": self.name, "description": self.description}
        record["inputSchema"] = dict(self.input_schema)
        optional = {
            "title": self.title,
            "service": self.service,
            "annotations": dict(self.annotations),
            "tags": list(self.tags),
            "aliases": list(self.aliases),
            "examples": list(self.examples),
            "origin": self.origin.to_record() if self.origin else None,
            "_meta": dict(self.meta),
        }
        record.update({key: value for key, value in optional.items() if value})
        if self.output_schema is not None:  # an empty one says "anything", which is more than none
            record["outputSchema"] = dict(self.output_schema)
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any], namespace: str | None = None) -> Self:
        """Read a record shaped like an MCP tool; `namespace` is used where the record names none. Raises BadTool."""
        if not isinstance(record, Mapping):
            raise BadTool(f"a tool record must be a JSON object, got {type(record).__name__}")
        origin = record.get("origin")
        schema = record.get("inputSchema", record.get("input_schema", record.get("parameters")))
        return cls(
            namespace=record.get("namespace") or namespace or "default",
            name=record.get("name") or "",
            description=record.get("description") or "",
            title=record.get("title") or "",
            service=_service(record),
            input_schema=_empty_schema() if schema is None else schema,
            output_schema=record.get("outputSchema", record.get("output_schema")),
            annotations=_mapping(record, "annotations"),
            tags=_texts(record, "tags"),
            aliases=_texts(record, "aliases"),
            examples=_texts(record, "examples"),
            origin=Origin.from_record(origin) if isinstance(origin, Mapping) else None,
            meta=_mapping(record, "_meta"),
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a stored record. Parts nested too deeply, which older versions accepted, become {}."""
        try:
            return cls.from_record(json.loads(text))
        except (BadTool, RecursionError):
            cut = _cut_deep(text)
            if cut == text:
                raise
            return cls.from_record(json.loads(cut))


class Searchable(Protocol):
    """What a retriever needs to know of a tool; Tool and Listing provide it."""

    @property
    def id(self) -> str:
        """The stable id."""

    @property
    def name(self) -> str:
        """The name inside the namespace."""

    @property
    def namespace(self) -> str:
        """The namespace."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names that must find the tool."""

    @property
    def expansion(self) -> str:
        """What others wrote about the tool: searched besides its document, never shown. "" for none."""

    def document(self) -> str:
        """The searched text."""

    def digest(self) -> str:
        """Identifies the searched text, its expansion included."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The short form of a tool that a store gives to indexes; it holds the finished searched text."""

    id: str
    namespace: str
    name: str
    aliases: tuple[str, ...]
    text: str
    text_digest: str
    expansion: str = ""

    def document(self) -> str:
        """The searched text."""
        return self.text

    def digest(self) -> str:
        """Identifies the searched text, its expansion included."""
        return self.text_digest


def too_deep(value: object, most: int = MAX_NESTING) -> bool:
    """Return whether objects and lists are nested more than `most` levels deep; one that contains itself is."""
    level: list[Any] = [value.values()] if isinstance(value, Mapping) else [value] if isinstance(value, _NESTS) else []
    for _ in range(most):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if type(child) not in _FLAT and isinstance(child, _NESTS)
        ]
        if not level:
            return False
        if len(level) > 1_000:  # read shared parts once: shared parts within shared parts grow exponentially
            level = list({id(child): child for child in level}.values())
    return True


def _cut_deep(text: str) -> str:
    """Return the JSON text of a record with {} in place of parts nested deeper than MAX_NESTING."""
    kept: list[str] = []
    depth = start = 0
    for found in _BRACKETS.finditer(text):
        if found[0] in "[{":
            depth += 1
            if depth == MAX_NESTING + 1:
                kept += text[start : found.start()], "{}"
        elif found[0] in "]}":
            if depth == MAX_NESTING + 1:
                start = found.end()
            depth -= 1
    return "".join(kept) + text[start:]


def tool_id(namespace: str, name: str) -> str:
    """Join a namespace and a name into an id."""
    return (
        f"{namespace}/{name.replace('%', '%25').replace('/', '%2F')}"
        if "/" in name or "%" in name
        else f"{namespace}/{name}"
    )


def namespace_of(tool_id: str) -> str:
    """The namespace part of an id."""
    return tool_id.rpartition("/")[0]


def name_of(tool_id: str) -> str:
    """The name part of an id."""
    name = tool_id.rpartition("/")[2]
    return name.replace("%2F", "/").replace("%25", "%") if "%" in name else name


def text_digest(text: str) -> str:
    """Return a digest of a searched text and of DOCUMENT_VERSION, the version of the rules that made it."""
    return hashlib.blake2b(f"{DOCUMENT_VERSION}\n{text}".encode(errors="replace"), digest_size=16).hexdigest()


def _mapping(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, Mapping) else {}


def _service(record: Mapping[str, Any]) -> str:
    """Return the description of the server or product that a tool belongs to."""
    meta = _mapping(record, "_meta")
    text = record.get("service") or meta.get("server_description") or meta.get("tool_description")
    return text if isinstance(text, str) else ""


def _texts(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = record.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, Sequence) else ()


class _SchemaWords:
    """The searched lines of a schema: one for each parameter at any depth, and for each other described schema.

    Each definition is read once, and reading stops at MAX_DOCUMENT_CHARS, so that no schema takes long.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        self._room = MAX_DOCUMENT_CHARS
        self._definitions = {**_mapping(schema, "definitions"), **_mapping(schema, "$defs")}
        self._followed: set[str] = set()
        self._read(schema, 0)

    def _add(self, words: list[str]) -> None:
        line = " ".join(words)
        self.lines.append(line)
        self._room -= len(line)

    def _read(self, schema: Mapping[str, Any], depth: int) -> None:
        self._room -= 1
        if depth > MAX_SCHEMA_DEPTH or self._room <= 0:
            return
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in self._followed:
            self._followed.add(reference)
            name = unquote(reference.rpartition("/")[2]).replace("~1", "/").replace("~0", "~")
            self._enter(self._definitions.get(name), depth)
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            for name, parameter in properties.items():
                if self._room <= 0:
                    return
                parameter = parameter if isinstance(parameter, Mapping) else {}
                self._add(_parameter_words(str(name)[:MAX_DESCRIPTION_CHARS], parameter))
                if not _INNER.isdisjoint(parameter):
                    self._read(parameter, depth + 1)
        if _INNER_UNNAMED.isdisjoint(schema):
            return
        for key in _INNER_ONE:
            self._enter(schema.get(key), depth)
        for key in _INNER_LISTS:
            branches = schema.get(key)
            for branch in branches if isinstance(branches, list) else ():
                self._enter(branch, depth)

    def _enter(self, schema: Any, depth: int) -> None:
        """Read a schema that is not a named parameter: its description and enum, and its inner schemas."""
        if isinstance(schema, Mapping):
            text = schema.get("description")
            words = [text[:MAX_DESCRIPTION_CHARS]] if isinstance(text, str) else []
            words += _enum_words(schema)
            if words:
                self._add(words)
            if not _INNER.isdisjoint(schema):
                self._read(schema, depth + 1)


def _parameter_words(name: str, parameter: Mapping[str, Any]) -> list[str]:
    """Return a parameter's name whole and split into words, its title, description and enum values."""
    words = [name]
    lowered = name.lower()
    split = " ".join(split_words(name)).lower()
    if split and split != lowered:
        words.append(split)
    for key in ("title", "description"):
        text = parameter.get(key)
        if isinstance(text, str) and text and text.lower() not in (split, lowered):
            words.append(text[:MAX_DESCRIPTION_CHARS])
    return words + _enum_words(parameter) if "enum" in parameter or "const" in parameter else words


def _enum_words(schema: Mapping[str, Any]) -> list[str]:
    values = schema.get("enum")
    values = values if isinstance(values, list) else [schema["const"]] if "const" in schema else []
    return [
        str(value)[:MAX_DESCRIPTION_CHARS]
        for value in values[:MAX_ENUM_VALUES]
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    ]
