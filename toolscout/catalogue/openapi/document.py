"""Fetches OpenAPI documents, parses them from JSON or YAML to plain JSON values, and resolves their references."""

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
    decompress,
    existing_file,
    parse_json,
    read_text,
    safe_url,
)
from toolscout.core.addresses import Addresses
from toolscout.core.http_deadline import Deadline, opener
from toolscout.core.tool import MAX_NESTING
from toolscout.errors import BadSource

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # libyaml is optional; the Python loader gives the same result, ten times slower
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

# Characters by which aliases may make a document grow: each short YAML alias (*name) is a copy of what it names.
MAX_EXPANDED = 64 * 1024 * 1024
_MAX_MERGED = 1_000_000  # keys of mappings that are merged (<<) into others
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_TAG = "tag:yaml.org,2002:"
_HINTS = {
    **dict.fromkeys((401, 403), "give the headers it asks for"),
    **dict.fromkeys((400, 405, 406), "check the address; for an MCP server, write mcp: before it"),
}


class _Loader(_BaseLoader):
    """Reads YAML as JSON values: keys are text, and so is every value but null, true, false and numbers (no dates)."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the attribute PyYAML looks at

    def __init__(self, stream: str) -> None:
        """Take the text to read."""
        super().__init__(stream)
        self._keys_left = len(stream) + _MAX_MERGED
        self._depth = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        """Count a level of nesting before each node. Raises BadSource before libyaml overflows the stack."""
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:  # one for the values in the innermost list
            raise BadSource(f"nested deeper than {MAX_NESTING} levels; flatten it")

    def ascend_resolver(self) -> None:
        """Leave a level of nesting after each node."""
        self._depth -= 1

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge other mappings (<<) into this one. Raises ConstructorError where nested merges multiply the keys."""
        super().flatten_mapping(node)
        self._keys_left -= len(node.value)
        if self._keys_left < 0:
            raise yaml.constructor.ConstructorError(None, None, "keys are merged (<<) without end", node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys, such as 200 or true, are text."""
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
    """Parse a JSON or YAML document; `where` names it in messages. Raises BadSource where it is neither."""
    start = text.lstrip()[:1]
    if start == "<":
        raise BadSource(f"{where} is an HTML or XML page, not an OpenAPI document; name the raw JSON or YAML")
    try:
        return parse_json(text, where)
    except BadSource as error:
        json_error = error
    try:
        return _parse_yaml(text, where)
    except BadSource:
        if start in ("{", "["):  # YAML in flow style begins so too, but JSON is more likely
            raise json_error from None
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
    """Return about how many characters a value takes as JSON; an object in several places counts in each of them."""
    lengths: dict[int, int] = {}

    def length(part: Any) -> int:
        if isinstance(part, str):
            return len(part) + 1
        if not isinstance(part, dict | list):
            return 1
        if id(part) not in lengths:
            parts = [*part, *part.values()] if isinstance(part, dict) else part
            lengths[id(part)] = 1 + sum(map(length, parts))
        return lengths[id(part)]

    return length(value)


def fetch(url: str, options: ReadOptions) -> str:
    """Return the text at a URL. Raises BadSource where it cannot be fetched, or not within options.timeout.

    At most MAX_DOWNLOAD bytes are read, counted after decompression.
    """
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
        # The error of a malformed header quotes it, and it may be a secret.
        shown = "the address or a header is malformed" if isinstance(reason, ValueError) else reason
        raise BadSource(f"{where} cannot be fetched: {shown}; check the address") from None
    finally:
        deadline.close()
    if deadline.passed:  # even where the body looks complete: a connection that the deadline closed looks like its end
        raise late
    if len(data) > MAX_DOWNLOAD:
        raise BadSource(f"{where} is larger than {MAX_DOWNLOAD >> 20} MB; download it and name the file")
    return decode(decompress(data, where, MAX_DOWNLOAD), where)


def _request(url: str, options: ReadOptions) -> urllib.request.Request:
    """Return the request for a URL, with its credentials as a header.

    No header is sent after a redirect, which may lead to another host.
    """
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
    """A parsed specification and the files beside it that it refers to."""

    def __init__(self, root: Any, path: Path | None = None) -> None:
        """Take the parsed root. `path`: the file it was read from; without it, no other file is opened."""
        self.main = str(path.resolve()) if path else ""
        self._folder = path.resolve().parent if path else None
        self._files: dict[str, Any] = {self.main: root}

    def resolve(self, reference: str, base: str) -> tuple[Any, str, str]:
        """Return the target of a reference in the file `base`, the file that the target stands in, and its address.

        Raises BadSource where it points nowhere or to a file that is not read.
        """
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
        """Return the value, or the target of its chain of references, and its file. Raises BadSource for a circle."""
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
        except (OSError, ValueError, RuntimeError):  # an invalid file name, or symbolic links in a circle
            path = None
        if path is not None and not path.is_relative_to(self._folder):
            raise BadSource(f"$ref {reference!r:.200} leaves the folder of the specification; such files are not read")
        if path is None or existing_file(path) is None:
            raise BadSource(f"$ref {reference!r:.200} points nowhere: there is no such file")
        if str(path) not in self._files:
            self._files[str(path)] = parse(read_text(path), str(path))
        return str(path)
