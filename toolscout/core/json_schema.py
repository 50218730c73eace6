"""Turns JSON Schemas as servers publish them into valid ones, ones that LLM vendors accept, and short ones."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, cast
from urllib.parse import unquote

Schema = dict[str, Any]

MAX_DEPTH = 48  # a schema nested deeper is replaced by {}, which allows anything
MAX_REFERENCES = 200  # followed in search of a schema's properties
MAX_ENUM = 10  # values that a slim schema lists
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
# Names of types that are not JSON Schema's, as found in published tools.
_TYPE_ALIASES = {
    "str": "string",
    "text": "string",
    "file": "string",
    "date": "string",
    "datetime": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
    "none": "null",
}

# Keywords whose value is one schema, several in a list, several by name.
_ONE = frozenset(
    "items additionalItems additionalProperties contains propertyNames not if then else"
    " unevaluatedItems unevaluatedProperties contentSchema".split()
)
_LISTED = frozenset(["anyOf", "oneOf", "allOf", "prefixItems"])
_NAMED = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"])
_INNER = _ONE | _LISTED | _NAMED
_SLIM = frozenset(
    "type properties required items prefixItems additionalProperties patternProperties anyOf allOf"
    " enum const format $ref $defs definitions".split()
)
_NOT_AT_TOP = frozenset(["anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref"])
_PROPERTY_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_encode = json.JSONEncoder(default=lambda _: None).encode


def sound(schema: Mapping[str, Any]) -> Schema:
    """Return the schema made valid by draft 2020-12: malformed keywords are dropped or corrected, nothing else."""
    made = _rebuilt(schema, _sound_node)
    return made if is_writable(made) else _rebuilt(made, _writable_node)


def object_schema(schema: Mapping[str, Any]) -> Schema:
    """Return a valid object schema with properties and no anyOf, oneOf, allOf, not, enum or $ref at its top level.

    OpenAI and Anthropic refuse a whole request over one tool that has them. Properties of such branches are moved to
    the top; one stays required if every alternative requires it. Dangling references are dropped.
    """
    root = sound(schema)
    properties, required = _gathered(root, root, set())
    top = {key: value for key, value in root.items() if key not in _NOT_AT_TOP}
    top |= {"type": "object", "properties": properties}
    if required:
        top["required"] = list(dict.fromkeys(required))
    return _rebuilt(top, lambda node: _without_dangling(node, top))


def with_items(schema: Mapping[str, Any]) -> Schema:
    """Return the schema with "items" in every array, {} where it is missing: OpenAI refuses arrays without it."""

    def visit(node: Schema) -> Schema:
        kind = node.get("type")
        is_array = kind == "array" or (isinstance(kind, list) and "array" in kind)
        return {**node, "items": {}} if is_array and "items" not in node else node

    return _rebuilt(schema, visit)


def slim(schema: Mapping[str, Any]) -> Schema:
    """Return names, types and what is required. A long enum becomes a description: cutting it would forbid values."""
    root = _rebuilt(schema, _slim_node)
    return _rebuilt(root, lambda node: _without_dangling(node, root))


def safe_keys(keys: Iterable[str]) -> dict[str, str]:
    """Map each property key to one that Anthropic accepts (1 to 64 of [a-zA-Z0-9_.-]); valid keys stay the same."""
    names = list(keys)
    renamed = {key: key for key in names if _PROPERTY_KEY.fullmatch(key)}
    taken = set(renamed)
    for key in names:
        if key not in renamed:
            wanted = re.sub(r"[^a-zA-Z0-9_.-]+", "_", key).strip("_")
            if not wanted or len(wanted) > 64 or wanted in taken:
                digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=8).hexdigest()
                wanted = f"{wanted[:47]}_{digest}"
            renamed[key] = wanted
            taken.add(wanted)
    return {key: renamed[key] for key in names}


def with_safe_keys(schema: Schema) -> Schema:
    """Return an object schema with its property keys renamed by `safe_keys`."""
    renamed = safe_keys(schema["properties"])
    if all(key == safe for key, safe in renamed.items()):
        return schema
    changed = {**schema, "properties": {renamed[key]: value for key, value in schema["properties"].items()}}
    if "required" in schema:
        changed["required"] = [renamed.get(key, key) for key in schema["required"]]
    return _rebuilt(changed, lambda node: _without_dangling(node, changed))


def type_word(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Return a schema's type in a few characters: "string", "integer|null", "string[]", "any"."""
    if not isinstance(schema, Mapping) or depth > 4:
        return "any"
    target = resolved(root, schema.get("$ref"))
    if target is not None:
        return type_word(target, root, depth + 1)
    kind = schema.get("type")
    if kind == "array":
        item = type_word(schema.get("items"), root, depth + 1)
        return "array" if item == "any" else f"({item})[]" if "|" in item else f"{item}[]"
    if isinstance(kind, str):
        return kind
    if isinstance(kind, list):
        return "|".join(map(str, kind))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            words = dict.fromkeys(type_word(branch, root, depth + 1) for branch in schema[key])
            return "any" if "any" in words else "|".join(words)
    return "object" if "properties" in schema else "string" if isinstance(schema.get("const"), str) else "any"


def resolved(root: Mapping[str, Any], reference: Any) -> Any:
    """Return what a local reference ("#/$defs/name") points at, or None where it is dangling or not local."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: Any = root
    for part in reference[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and len(key) < 9 and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node if reference in ("#", "") or reference.startswith("#/") else None


def canonical(value: Any) -> str:
    """Return a text that is equal for values equal by JSON Schema: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:#x}"  # Python limits the length of decimal integers, not of hexadecimal ones
    if isinstance(value, list):
        return f"[{','.join(map(canonical, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{json.dumps(str(k))}:{canonical(v)}' for k, v in value.items()))}}}"
    return json.dumps(value, default=repr)


def is_writable(value: Any) -> bool:
    """Return whether Python can write all integers of a value: it refuses those of more than 4,300 digits."""
    try:
        _encode(value)
    except ValueError:
        return False
    except (TypeError, RecursionError):  # not JSON, but for another reason
        return True
    return True


def plain_text(value: Any) -> str:
    """Return text unchanged and any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=repr) if is_writable(value) else canonical(value)


def folded(text: str) -> str:
    """Return a text in one case and without spaces, dashes and underscores, to compare spellings."""
    return re.sub(r"[\s_-]+", "", str(text)).casefold()


class Choices:
    """The values of an enum, indexed by value and by spelling, since there may be thousands."""

    def __init__(self, values: list[Any]) -> None:
        """Index the values."""
        self._values, self._known = values, frozenset(map(canonical, values))

    def __contains__(self, value: object) -> bool:
        """Return whether the enum has a value."""
        return canonical(value) in self._known

    @cached_property
    def spelled(self) -> dict[str, list[Any]]:
        """The values by their `folded` spelling."""
        found: dict[str, list[Any]] = {}
        for value in self._values:
            found.setdefault(folded(plain_text(value)), []).append(value)
        return found


def _gathered(node: Any, root: Schema, followed: set[str]) -> tuple[Schema, list[str]]:
    """Return the properties of a schema and of all its branches, and the names that are always required."""
    if not isinstance(node, dict):
        return {}, []
    properties, required = dict(node.get("properties", {})), list(node.get("required", ()))
    parts = list(node.get("allOf", ()))
    reference = node.get("$ref")
    if isinstance(reference, str) and reference not in followed and len(followed) < MAX_REFERENCES:
        followed.add(reference)  # each only once: references that branch would take exponential time
        parts.append(resolved(root, reference))
    for part in parts:
        more, needed = _gathered(part, root, followed)
        _merge(properties, [more])
        required += needed
    for key in ("anyOf", "oneOf"):
        branches = [_gathered(branch, root, followed) for branch in node.get(key, ())]
        if branches:
            _merge(properties, [more for more, _ in branches])
            required += [name for name in branches[0][1] if all(name in needed for _, needed in branches)]
    return properties, required


def _merge(properties: Schema, branches: list[Schema]) -> None:
    """Add the properties of branches; one that differs between branches becomes an anyOf."""
    for name in dict.fromkeys(name for branch in branches for name in branch if name not in properties):
        forms: list[Any] = []
        for branch in branches:
            if name in branch and branch[name] not in forms:
                forms.append(branch[name])
        properties[name] = forms[0] if len(forms) == 1 else {"anyOf": forms}


def _rebuilt(schema: Mapping[str, Any], visit: Callable[[Schema], Schema]) -> Schema:
    """Return a copy in which `visit` has replaced every schema, the innermost first."""
    return cast(Schema, _rebuilt_inner(schema, visit, 0))


def _rebuilt_inner(schema: Any, visit: Callable[[Schema], Schema], depth: int) -> Schema | bool:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return {}
    node: Schema = {}
    for key, value in schema.items():
        if key in _ONE and isinstance(value, Mapping | bool):
            node[key] = _rebuilt_inner(value, visit, depth + 1)
        elif (key in _LISTED or key == "items") and isinstance(value, list):
            # A list under "items" is what older drafts called prefixItems.
            node["prefixItems" if key == "items" else key] = [_rebuilt_inner(item, visit, depth + 1) for item in value]
        elif key in _NAMED and isinstance(value, Mapping):
            node[key] = {
                str(name): item
                if key == "dependencies" and _are_names(item)
                else _rebuilt_inner(item, visit, depth + 1)
                for name, item in value.items()
            }
        else:
            node[str(key)] = value
    return visit(node)


def _without_dangling(node: Schema, root: Schema) -> Schema:
    if "$ref" in node and not isinstance(resolved(root, node["$ref"]), Mapping | bool):
        return {key: value for key, value in node.items() if key != "$ref"}
    return node


def _slim_node(node: Schema) -> Schema:
    kept = {key: value for key, value in node.items() if key in _SLIM}
    if "oneOf" in node:  # shortened branches may overlap, which oneOf would refuse
        branches = {"anyOf": node["oneOf"]}
        kept |= {"allOf": [*kept.get("allOf", ()), branches]} if "anyOf" in kept else branches
    values = kept.get("enum")
    if isinstance(values, list) and len(values) > MAX_ENUM:
        del kept["enum"]
        kept["description"] = "e.g. " + ", ".join(str(value)[:40] for value in values[:MAX_ENUM])
    return kept


def _sound_node(node: Schema) -> Schema:
    fixed: Schema = {}
    for key, value in node.items():
        if key == "type":
            kind = _sound_type(value)
            if kind:
                fixed[key] = kind
        elif key not in _CHECKS or _CHECKS[key](value):
            fixed[key] = value
    return fixed


def _writable_node(node: Schema) -> Schema:
    return {key: value for key, value in node.items() if key in _INNER or is_writable(value)}


def _sound_type(value: Any) -> str | list[str]:
    if isinstance(value, list):
        kinds = [_sound_type(kind) for kind in value if isinstance(kind, str)]
        return list(dict.fromkeys(kind for kind in kinds if isinstance(kind, str) and kind))
    if not isinstance(value, str) or value in TYPES:
        return value if isinstance(value, str) else ""
    lowered = value.lower()
    return lowered if lowered in TYPES else _TYPE_ALIASES.get(lowered, "")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number within the range of floats: many parsers read no larger ones."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _is_anchor(value: Any) -> bool:
    return isinstance(value, str) and re.search(r"^[A-Za-z_][-A-Za-z0-9._]*$", value) is not None


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_mapping_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and all(map(check, value.values()))


# What the metaschema demands of each keyword's value. Inner schemas have been made valid before.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        "$schema $ref $dynamicRef $recursiveRef $comment title description format pattern".split(), _is_text
    ),
    **dict.fromkeys(["contentEncoding", "contentMediaType"], _is_text),
    **dict.fromkeys(["$anchor", "$dynamicAnchor", "$recursiveAnchor"], _is_anchor),
    **dict.fromkeys(["uniqueItems", "deprecated", "readOnly", "writeOnly"], lambda value: isinstance(value, bool)),
    **dict.fromkeys(["maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"], _is_number),
    **dict.fromkeys("maxLength minLength maxItems minItems maxProperties minProperties".split(), _is_count),
    **dict.fromkeys(["maxContains", "minContains"], _is_count),
    **dict.fromkeys(["enum", "examples"], lambda value: isinstance(value, list)),
    **dict.fromkeys(_ONE, _is_schema),
    **dict.fromkeys(_LISTED, lambda value: isinstance(value, list) and bool(value)),
    **dict.fromkeys(_NAMED, lambda value: isinstance(value, Mapping)),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "required": _are_names,
    "dependentRequired": _is_mapping_of(_are_names),
    "$id": lambda value: isinstance(value, str) and "#" not in value[:-1],
    "$vocabulary": _is_mapping_of(lambda value: isinstance(value, bool)),
}
