"""The base class and options of importers, and their functions for reading files that may be broken."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn
from urllib.parse import urlsplit, urlunsplit

from toolscout.core.addresses import Addresses
from toolscout.core.tool import MAX_NESTING, Tool, clean_text, too_deep
from toolscout.errors import BadSource, BadTool, DuplicateTool, ToolscoutError

# Levels of nesting in a document: a tool in it may be wrapped in a response, a result, a list and a function.
MAX_DEPTH = MAX_NESTING + 10
# Bytes after decompression. Downloads and files other than JSON Lines are read whole.
MAX_DOWNLOAD = 64 * 1024 * 1024
MAX_FILE = 512 * 1024 * 1024
MAX_LINE = 64 * 1024 * 1024
_LINES = (".jsonl", ".ndjson")
_YAML = (".yaml", ".yml")
_OPENAPI_HEAD = re.compile(r"""(?m)^\s*[{]?\s*["']?(openapi|swagger)["']?\s*:""")
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass
class ReadOptions:
    """How to read a source.

    `namespace`: the namespace of the tools, except of records that name their own. `kind`: the name of the importer to
    use. `keep_going`: skip broken entries and describe them in `problems`. `timeout`: in seconds. `env` and `headers`
    are sent to the server of the source and stored nowhere. `addresses`: hosts that may have private addresses; None:
    the host of the source. Give it where the URL comes from somebody else.
    """

    namespace: str | None = None
    kind: str | None = None
    keep_going: bool = False
    timeout: float = 30.0
    env: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    addresses: Addresses | None = None

    def problem(self, error: ToolscoutError) -> None:
        """Raise the error, or with `keep_going` add it to `problems`."""
        if not self.keep_going:
            raise error
        self.problems.append(str(error))


class Importer(ABC):
    """Reads tools from one kind of source. A subclass takes no constructor arguments and has no state."""

    @abstractmethod
    def accepts(self, source: object) -> bool:
        """Return whether this importer reads such a source. Reads as little as possible and never raises."""

    @abstractmethod
    def read(self, source: object, options: ReadOptions) -> Iterator[Tool]:
        """Yield the tools of the source, each id once. Raises BadSource for a source of another kind."""

    def label(self, source: object) -> str:
        """Return a stable label without secrets for an accepted source; a store records it with the tools."""
        return plain_label(source)


class DocumentShape(NamedTuple):
    """The outermost form of a document: an object with its keys, an array, JSON Lines, YAML, or none of these."""

    form: Literal["object", "array", "lines", "yaml", "broken"]
    keys: frozenset[str] = frozenset()


class RepeatCheck:
    """Finds repeated tool ids in a stream of tools. It keeps only the place of each tool, so a catalogue can be large.

    `again` reads the source a second time; it is used only once an id repeats. Without it (a source that can be read
    only once) a hash of each tool is kept instead. `content` returns the hash by which two tools count as equal.
    """

    def __init__(
        self,
        again: Callable[[], Iterator[tuple[str, Tool]]] | None = None,
        content: Callable[[Tool], int] = lambda tool: fingerprint(tool.to_record()),
    ) -> None:
        """Start with nothing seen."""
        self.places: dict[str, str] = {}
        self._earlier = again() if again else None
        self._content = content
        self._contents: dict[str, int] = {}

    def verdict(self, tool_id: str, tool: Tool, where: str) -> Literal["new", "same", "differs"]:
        """Return "new" for the first tool of an id; for a repeat, whether it is the same tool or differs."""
        first = self.places.setdefault(tool_id, where)
        if first == where:
            if self._earlier is None:
                self._contents[where] = self._content(tool)
            return "new"
        while first not in self._contents:
            entry = next(self._earlier, None) if self._earlier else None
            if entry is None:  # the source has changed since the first reading
                return "differs"
            self._contents[entry[0]] = self._content(entry[1])
        return "same" if self._contents[first] == self._content(tool) else "differs"


def unique(tools: Iterable[tuple[str, Tool]], options: ReadOptions, seen: RepeatCheck | None = None) -> Iterator[Tool]:
    """Yield each id once. Exact repeats are dropped; different tools of one id are a problem that names both places."""
    seen = seen or RepeatCheck()
    for where, tool in tools:
        verdict = seen.verdict(tool.id, tool, where)
        if verdict == "new":
            yield tool
        elif verdict == "differs":
            options.problem(
                DuplicateTool(
                    f"{where}: tool {tool.id} differs from the one of the same id in {seen.places[tool.id]}; "
                    "rename one of them or read them into different namespaces"
                )
            )


def rename_repeats(
    tools: Iterable[tuple[str, Tool]], seen: RepeatCheck, renamed: Callable[[Tool, int], Tool]
) -> Iterator[Tool]:
    """Yield each id once. Exact repeats are dropped; the n-th different tool of one id becomes renamed(tool, n)."""
    for where, tool in tools:
        candidate, copies = tool, 1
        while (verdict := seen.verdict(candidate.id, tool, where)) == "differs":
            copies += 1
            candidate = renamed(tool, copies)
        if verdict == "new":
            yield candidate


_canonical = json.JSONEncoder(sort_keys=True, check_circular=False, default=str).encode


def fingerprint(record: Any) -> int:
    """Return a hash of a JSON value that does not depend on the order of keys."""
    return hash(_canonical(record))


def not_a(source: object, wanted: str) -> BadSource:
    """Return the error for a source that an importer cannot read; `wanted` describes what it can read."""
    path = as_path(source)
    if path is not None and not os.path.exists(path):
        return BadSource(f"{path} does not exist; {wanted} is needed")
    shown = str(path) if path is not None else f"{source!r:.80}"
    return BadSource(f"{shown} is not {wanted}")


def as_path(source: object) -> Path | None:
    """Return the path that a text or Path names, whether or not it exists; None for other sources."""
    return Path(os.path.expanduser(source)) if isinstance(source, str | Path) and str(source).strip() else None


def existing(source: object) -> Path | None:
    """Return the path that a source names if it exists, else None."""
    path = as_path(source)
    return path if path is not None and os.path.exists(path) else None


def existing_file(source: object) -> Path | None:
    """Return the path that a source names if it is an existing file, else None."""
    path = existing(source)
    return path if path is not None and path.is_file() else None


def is_url(source: object) -> bool:
    """Return whether a source is an http(s) URL."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def is_mcp_url(source: object) -> bool:
    """Return whether a source is a URL that ends with /mcp."""
    try:
        return isinstance(source, str) and is_url(source) and safe_url(source).rstrip("/").lower().endswith("/mcp")
    except BadSource:
        return False


def safe_url(url: str) -> str:
    """Return a URL without credentials, query and fragment, which may be secret; BadSource if it is malformed."""
    try:
        parts = urlsplit(url)
    except ValueError:
        shown = url.rpartition("@")[2].partition("?")[0]
        raise BadSource(f"{shown!r:.80} is not a URL; check its brackets and special characters") from None
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def plain_label(source: object) -> str:
    """Return the default label of a source: its URL without secrets, its absolute path, or "in memory"."""
    if isinstance(source, str) and is_url(source):
        return safe_url(source)
    path = as_path(source)
    return "in memory" if path is None else os.path.abspath(path)


def stem(path: Path) -> str:
    """Return a file's name without its extensions: tools.jsonl.gz -> tools."""
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


def suffix(path: Path) -> str:
    """Return a file's extension in lower case, without .gz: tools.JSONL.gz -> .jsonl."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


@contextmanager
def open_bytes(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading bytes, decompressed if it is gzip. Errors inside the block become BadSource."""
    try:
        with path.open("rb") as stream:
            if stream.peek(2)[:2] != _GZIP_MAGIC:
                yield stream
            else:
                with gzip.GzipFile(fileobj=stream) as decompressed:
                    yield decompressed
    except (OSError, EOFError, zlib.error) as error:
        raise BadSource(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_text(path: Path) -> str:
    """Return a whole file as text; BadSource where it is too large, unreadable or not UTF-8."""
    with open_bytes(path) as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise BadSource(
            f"{path} is larger than {MAX_FILE >> 20} MB unpacked; split it, or write one tool a line (.jsonl)"
        )
    return decode(data, str(path))


def decompress(data: bytes, where: str, most: int) -> bytes:
    """Return the bytes, decompressed if they are gzip; BadSource where they are broken or more than `most`."""
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            found = stream.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadSource(f"{where} cannot be unpacked: {error}; fetch or compress it again") from error
    if len(found) > most:
        raise BadSource(f"{where} is larger than {most >> 20} MB unpacked; download it and name the file")
    return found


def decode(data: bytes, where: str) -> str:
    """Decode UTF-8; BadSource names the line of an invalid byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadSource(
            f"{where} line {line}: invalid UTF-8 at byte {error.start} of the file; save it as UTF-8"
        ) from None


def read_lines(path: Path, options: ReadOptions) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not blank; a line that is not UTF-8 or too long is a problem."""
    with open_bytes(path) as stream:
        for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE + 1), b""), 1):
            if len(raw) > MAX_LINE:
                while raw and not raw.endswith(b"\n"):
                    raw = stream.readline(MAX_LINE)
                options.problem(BadSource(f"{path} line {number}: longer than {MAX_LINE >> 20} MB; shorten it"))
                continue
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                where = f"{path} line {number}: invalid UTF-8 at byte {error.start} of the line"
                options.problem(BadSource(f"{where}; save the file as UTF-8"))
                continue
            if text and not text.isspace():
                yield number, text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    """Parse a number; one such as 1e999 is refused, since it becomes infinity, which JSON cannot write."""
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)


# strict=False: raw control characters in strings are common and harmless; they are removed where text is shown.
_decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, strict=False)


def parse_json(text: str, where: str) -> Any:
    """Parse JSON; BadSource where it is broken or nested too deeply."""
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise BadSource(f"{where}: not JSON: {error.msg} at {place}; correct or remove it") from None
    except ValueError as error:
        raise BadSource(f"{where}: not JSON: {error}; correct or remove it") from None
    except RecursionError:
        raise BadSource(f"{where}: nested too deeply to be read; flatten it") from None
    # Few brackets cannot nest deeply: this quick count saves most values the full check.
    if text.count("{") + text.count("[") > MAX_NESTING:
        check_depth(value, where)
    return value


def as_json(value: object, where: str) -> Any:
    """Return a Python value as the plain JSON value that a file would hold; BadSource where it is none."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadSource(f"{where}: not a JSON value: {error}") from None
    return parse_json(text, where)


def check_depth(value: Any, where: str) -> None:
    """Raise BadSource for a document nested too deeply; Tool has a limit of its own for its fields."""
    if too_deep(value, MAX_DEPTH):
        raise BadSource(f"{where}: nested deeper than {MAX_NESTING} levels; flatten it")


def shape(source: object) -> DocumentShape | None:
    """Return the outermost form of a file or mapping; None for any other source."""
    if isinstance(source, Mapping):
        return DocumentShape("object", frozenset(key for key in source if isinstance(key, str)))
    path = existing_file(source)
    if path is None:
        return None
    status = path.stat()
    return _shape_of(path.absolute(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _shape_of(path: Path, _mtime: int, _size: int) -> DocumentShape:
    """Return the shape of a file. Cached by time and size: every importer asks, and a large file parses slowly."""
    if suffix(path) in _LINES:
        return DocumentShape("lines")
    if suffix(path) in _YAML:
        return DocumentShape("yaml")
    try:
        text = read_text(path)
    except BadSource:
        return DocumentShape("broken")
    try:
        value = parse_json(text, str(path))
    except BadSource:
        return _shape_of_broken(text)
    if isinstance(value, dict):
        return DocumentShape("object", frozenset(value))
    return DocumentShape("array") if isinstance(value, list) else DocumentShape("broken")


def _shape_of_broken(text: str) -> DocumentShape:
    first = text.lstrip().partition("\n")[0]
    try:
        if isinstance(parse_json(first, ""), dict):
            return DocumentShape("lines")
    except BadSource:
        pass
    return DocumentShape("yaml") if _OPENAPI_HEAD.search(text[:4096]) else DocumentShape("broken")


def first_paragraph(text: str) -> str:
    """Return the first paragraph of a text as one line."""
    return clean_text(text.strip().partition("\n\n")[0])


def tool_from(record: Mapping[str, Any], namespace: str, where: str) -> Tool:
    """Return the Tool of a record; unprintable names are cleaned, any other fault raises BadSource."""
    try:
        return Tool.from_record(record, namespace)
    except BadTool:
        try:
            return Tool.from_record(with_clean_names(record), clean_text(namespace))
        except BadTool as error:
            raise BadSource(f"{where}: {error}") from None


def with_clean_names(record: Any) -> Any:
    """Return the record with its name and namespace as printable text of one line."""
    if not isinstance(record, Mapping):
        return record
    names = {key: record[key] for key in ("name", "namespace") if isinstance(record.get(key), str)}
    return {**record, **{key: clean_text(value) for key, value in names.items()}}
