"""An OpenAPI document as plain JSON: fetched or read, parsed from JSON or YAML, its references followed."""

from __future__ import annotations

import base64
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import yaml

from toolscout.catalogue.base import (
    MAX_DEPTH,
    MAX_DOWNLOAD,
    ReadOptions,
    check_depth,
    decode,
    existing_file,
    parse_json,
    read_text,
    safe_url,
    unpacked,
)
from toolscout.core.addresses import Addresses
from toolscout.core.http_deadline import Deadline, opener
from toolscout.core.tool import MAX_NESTING
from toolscout.errors import BadSource

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # libyaml is optional; the pure loader reads the same, ten times slower
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

# A short YAML alias (*name) stands for all that its anchor names. Characters by which a document may grow so.
MAX_EXPANDED = 64 * 1024 * 1024
_MAX_MERGED = 1_000_000
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_TAG = "tag:yaml.org,2002:"
_HINTS = {
    **dict.fromkeys((401, 403), "give the headers it asks for"),
    **dict.fromkeys((400, 405, 406), "check the address; for an MCP server, write mcp: before it"),
}


class _Loader(_BaseLoader):
    """YAML as JSON knows it: keys are text, and only null, true, false and numbers are not (no dates, no "no")."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the attribute PyYAML looks at

    def __init__(self, stream: str) -> None:
        """Read a text."""
        super().__init__(stream)
        self._room = len(stream) + _MAX_MERGED
        self._depth = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        """Called before each node is read. Stops while there is stack: libyaml's reader would end the process."""
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:  # one for the values in the innermost list
            raise BadSource(f"nested deeper than {MAX_NESTING} levels; flatten it")

    def ascend_resolver(self) -> None:
        """Called after each node is read."""
        self._depth -= 1

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Take in what a mapping is merged with (<<), not without end: that may be merged with others many times."""
        super().flatten_mapping(node)
        self._room -= len(node.value)
        if self._room < 0:
            raise yaml.constructor.ConstructorError(None, None, "keys are merged (<<) without end", node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Keys such as 200 or true are read as the text they are written as."""
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    key.tag = f"{_TAG}str"
        return super().construct_mapping(node, deep)


def _as_text(loader: _Loader, node: yaml.ScalarNode) -> Any:
    return loader.construct_scalar(node)


_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"^[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]{1,3})?|[eE][-+]?[0-9]{1,2})$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"^(?:<<)$"), ["<"])
for _name in ("timestamp", "binary"):
    _Loader.add_constructor(f"{_TAG}{_name}", _as_text)
for _name in ("set", "omap", "pairs"):
    _Loader.add_constructor(f"{_TAG}{_name}", _Loader.construct_undefined)  # type: ignore[type-var]


def parse(text: str, where: str) -> Any:
    """A JSON or YAML document."""
    start = text.lstrip()[:1]
    if start == "<":
        raise BadSource(f"{where} is an HTML or XML page, not an OpenAPI document; name the raw JSON or YAML")
    try:
        return parse_json(text, where)
    except BadSource as error:
        broken = error
    try:
        return _parse_yaml(text, where)
    except BadSource:
        if start in ("{", "["):  # YAML in flow style begins so too, but JSON is what was meant
            raise broken from None
        raise


def _parse_yaml(text: str, where: str) -> Any:
    try:
        value = yaml.load(_CONTROL.sub(" ", text), Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1} column {mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise BadSource(f"{where}{place}: neither JSON nor YAML: {problem}; correct it") from None
    except BadSource as error:
        raise BadSource(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BadSource(f"{where}: neither JSON nor YAML: {error}; correct it") from None
    check_depth(value, where)
    if "*" in text and _length(value) > len(text) + MAX_EXPANDED:
        raise BadSource(f"{where}: its aliases (*name) expand to more than {MAX_EXPANDED >> 20} MB; use fewer")
    return value


def _length(value: Any) -> int:
    """About the characters that a value takes as JSON. What stands in several places counts in each of them."""
    lengths: dict[int, int] = {}

    def of(part: Any) -> int:
        if isinstance(part, str):
            return len(part) + 1
        if not isinstance(part, dict | list):
            return 1
        if id(part) not in lengths:
            parts = [*part, *part.values()] if isinstance(part, dict) else part
            lengths[id(part)] = 1 + sum(map(of, parts))
        return lengths[id(part)]

    return of(value)


def fetch(url: str, options: ReadOptions) -> str:
    """The text at a URL, within the time and size that are allowed; the size is that of the text unpacked."""
    where = safe_url(url)
    late = BadSource(f"{where} did not answer within {options.timeout:g} s; allow a longer timeout")
    addresses = options.addresses or Addresses.of_url(url)
    deadline = Deadline(options.timeout)
    try:
        with opener(deadline, addresses).open(_request(url, options), timeout=options.timeout) as response:
            data = response.read(MAX_DOWNLOAD + 1)
    except urllib.error.HTTPError as error:
        with error:
            hint = _HINTS.get(error.code, "check the address")
            raise BadSource(f"{where} answered {error.code} {error.reason}; {hint}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if deadline.passed or isinstance(reason, TimeoutError):
            raise late from None
        # A malformed header is quoted in its error, and may be a secret.
        told = "the address or a header is malformed" if isinstance(reason, ValueError) else reason
        raise BadSource(f"{where} cannot be fetched: {told}; check the address") from None
    finally:
        deadline.close()
    if deadline.passed:  # also where what came looks whole: a shut connection reads as one that has ended
        raise late
    if len(data) > MAX_DOWNLOAD:
        raise BadSource(f"{where} is larger than {MAX_DOWNLOAD >> 20} MB; download it and name the file")
    return decode(unpacked(data, where, MAX_DOWNLOAD), where)


def _request(url: str, options: ReadOptions) -> urllib.request.Request:
    """Credentials in the URL become a header; no header follows a redirect, which may lead to another host."""
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host, fragment="")))
    headers = {"Accept": "application/json, application/yaml, */*", "User-Agent": "toolscout", **options.headers}
    if userinfo:
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(userinfo).encode()).decode()
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    return request


class Document:
    """A parsed specification and the files beside it that it refers to, each known by its address."""

    def __init__(self, root: Any, path: Path | None = None) -> None:
        """`path` is where the root was read from; without it, no other file is opened."""
        self.main = str(path.resolve()) if path else ""
        self._folder = path.resolve().parent if path else None
        self._files: dict[str, Any] = {self.main: root}

    def resolve(self, reference: str, base: str) -> tuple[Any, str, str]:
        """What a reference made in the file `base` points to, the file that it stands in, and its full address."""
        address, _, pointer = reference.partition("#")
        file = self._open(address, base, reference) if address else base
        value = self._files[file]
        parts = pointer.split("/")
        if parts.pop(0):
            raise BadSource(f"$ref {reference!r:.200} points nowhere; only JSON pointers (#/…) are followed")
        for part in parts:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(value, Mapping) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdecimal() and len(key) < 9 and int(key) < len(value):
                value = value[int(key)]
            else:
                raise BadSource(f"$ref {reference!r:.200} points nowhere; add what it names or correct it")
        return value, file, f"{file}#{pointer}"

    def follow(self, value: Any, base: str) -> tuple[Any, str]:
        """The value itself, or what it finally refers to."""
        followed: set[str] = set()
        while isinstance(value, Mapping) and isinstance(value.get("$ref"), str):
            reference = value["$ref"]
            value, base, address = self.resolve(reference, base)
            if address in followed:
                raise BadSource(f"$ref {reference!r:.200} leads back to itself")
            followed.add(address)
        return value, base

    def _open(self, address: str, base: str, reference: str) -> str:
        if self._folder is None or "://" in address:
            raise BadSource(f"$ref {reference!r:.200} names another document; only files beside a local one are read")
        try:
            path: Path | None = (Path(base).parent / unquote(address)).resolve()
        except (OSError, ValueError, RuntimeError):  # a name that cannot be one, or links in a circle
            path = None
        if path is not None and not path.is_relative_to(self._folder):
            raise BadSource(f"$ref {reference!r:.200} leaves the folder of the specification; such files are not read")
        if path is None or existing_file(path) is None:
            raise BadSource(f"$ref {reference!r:.200} points nowhere: there is no such file")
        if str(path) not in self._files:
            self._files[str(path)] = parse(read_text(path), str(path))
        return str(path)
