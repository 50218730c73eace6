"""What every importer shares: its options, its contract, and careful reading of files that may be broken."""

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

# Of a document, which may have an answer, its result, a list and a function around a tool.
MAX_DEPTH = MAX_NESTING + 10
# Bytes, unpacked. A URL's document is read whole, and so is a file that is no list of lines.
MAX_DOWNLOAD = 64 * 1024 * 1024
MAX_FILE = 512 * 1024 * 1024
MAX_LINE = 64 * 1024 * 1024
_LINES = (".jsonl", ".ndjson")
_YAML = (".yaml", ".yml")
_OPENAPI_HEAD = re.compile(r"""(?m)^\s*[{]?\s*["']?(openapi|swagger)["']?\s*:""")
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass
class ReadOptions:
    """How to read a source. Environment and headers reach the server that is asked and are stored nowhere.

    `namespace` overrides what the source says of itself (a record that names its own keeps it), `kind` forces an
    importer by its name. With `keep_going` broken entries are skipped and described in `problems`. `addresses` are the
    hosts that may be at any address, a private one too; None: the host of the source itself, since whoever reads it
    names it. Who reads a URL for somebody else gives them.
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
        """Raise the error, or note it and let the rest be imported."""
        if not self.keep_going:
            raise error
        self.problems.append(str(error))


class Importer(ABC):
    """Reads tools from one kind of source. It is made without arguments and keeps nothing between calls."""

    @abstractmethod
    def accepts(self, source: object) -> bool:
        """Whether this importer is the one for the source; reads no more than it must to know, and never raises."""

    @abstractmethod
    def read(self, source: object, options: ReadOptions) -> Iterator[Tool]:
        """The tools of the source, each id once; raises BadSource for a source of another kind."""

    def label(self, source: object) -> str:
        """A name of a source that it accepts, the same each time and without secrets; a store keeps tools by it."""
        return plain_label(source)


class DocumentShape(NamedTuple):
    """What a document is at its top: an object with these keys, an array, lines of JSON, YAML, or none of them."""

    form: Literal["object", "array", "lines", "yaml", "broken"]
    keys: frozenset[str] = frozenset()


class RepeatCheck:
    """Tells new tools from repeats, holding for each only its place, so that a catalogue of any size can stream by.

    `again` reads the source once more, and does so only when an id really comes twice; a source that cannot be read
    twice leaves it out, and a hash of each tool is kept instead. `content` is what makes two tools the same.
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
        """Whether an id comes for the first time, and if not, whether with the same tool."""
        first = self.places.setdefault(tool_id, where)
        if first == where:
            if self._earlier is None:
                self._contents[where] = self._content(tool)
            return "new"
        while first not in self._contents:
            entry = next(self._earlier, None) if self._earlier else None
            if entry is None:  # the source changed under our hands
                return "differs"
            self._contents[entry[0]] = self._content(entry[1])
        return "same" if self._contents[first] == self._content(tool) else "differs"


def unique(tools: Iterable[tuple[str, Tool]], options: ReadOptions, seen: RepeatCheck | None = None) -> Iterator[Tool]:
    """Each id once: exact repeats are dropped, two different tools of one id are a problem that names both places."""
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


_canonical = json.JSONEncoder(sort_keys=True, check_circular=False, default=str).encode


def fingerprint(record: Any) -> int:
    """A hash of a JSON value that the order of keys does not change."""
    return hash(_canonical(record))


def not_a(source: object, wanted: str) -> BadSource:
    """The refusal of a source that an importer was told to read and cannot."""
    path = as_path(source)
    if path is not None and not os.path.exists(path):
        return BadSource(f"{path} does not exist; {wanted} is needed")
    shown = str(path) if path is not None else f"{source!r:.80}"
    return BadSource(f"{shown} is not {wanted}")


def as_path(source: object) -> Path | None:
    """The path that text or a path object names, whether or not something is there."""
    return Path(os.path.expanduser(source)) if isinstance(source, str | Path) and str(source).strip() else None


def existing(source: object) -> Path | None:
    """The path a source names, if something is there."""
    path = as_path(source)
    return path if path is not None and os.path.exists(path) else None


def existing_file(source: object) -> Path | None:
    """The file a source names, if it is there."""
    path = existing(source)
    return path if path is not None and path.is_file() else None


def is_url(source: object) -> bool:
    """Whether a source is an address on the web."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def is_mcp_url(source: object) -> bool:
    """Whether a web address is an MCP server's by its form; that of any other server is told by its answer."""
    try:
        return isinstance(source, str) and is_url(source) and safe_url(source).rstrip("/").lower().endswith("/mcp")
    except BadSource:
        return False


def safe_url(url: str) -> str:
    """A URL without what may be secret: credentials, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        shown = url.rpartition("@")[2].partition("?")[0]
        raise BadSource(f"{shown!r:.80} is not a URL; check its brackets and special characters") from None
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def plain_label(source: object) -> str:
    """What a source is called by its form alone: its URL without secrets, its absolute path, or "in memory"."""
    if isinstance(source, str) and is_url(source):
        return safe_url(source)
    path = as_path(source)
    return "in memory" if path is None else os.path.abspath(path)


def stem(path: Path) -> str:
    """A file's name without its endings: tools.jsonl.gz -> tools."""
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


def suffix(path: Path) -> str:
    """A file's ending in lower case, .gz left aside: tools.JSONL.gz -> .jsonl."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


@contextmanager
def open_bytes(path: Path) -> Iterator[io.BufferedIOBase]:
    """A file's bytes, unpacked where it is gzip by its first bytes; what fails while reading is a BadSource."""
    try:
        with path.open("rb") as stream:
            if stream.peek(2)[:2] != _GZIP_MAGIC:
                yield stream
            else:
                with gzip.GzipFile(fileobj=stream) as unpacked:
                    yield unpacked
    except (OSError, EOFError, zlib.error) as error:
        raise BadSource(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_text(path: Path) -> str:
    """A whole file as text."""
    with open_bytes(path) as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise BadSource(
            f"{path} is larger than {MAX_FILE >> 20} MB unpacked; split it, or write one tool a line (.jsonl)"
        )
    return decode(data, str(path))


def unpacked(data: bytes, where: str, most: int) -> bytes:
    """Bytes unpacked where they are gzip, `most` of them at most."""
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
    """UTF-8 bytes as text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadSource(
            f"{where} line {line}: invalid UTF-8 at byte {error.start} of the file; save it as UTF-8"
        ) from None


def read_lines(path: Path, options: ReadOptions) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers; one that is not UTF-8 or too long is a problem of its own."""
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
    """A number; one that is too large, such as 1e999, would be written again as what is no JSON."""
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)


# Raw control characters inside texts are common in the wild and harmless: they are cleaned where text is shown.
_decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, strict=False)


def parse_json(text: str, where: str) -> Any:
    """A JSON value, refused where it is broken or nested deeper than anything real."""
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise BadSource(f"{where}: not JSON: {error.msg} at {place}; correct or remove it") from None
    except ValueError as error:
        raise BadSource(f"{where}: not JSON: {error}; correct or remove it") from None
    except RecursionError:
        raise BadSource(f"{where}: nested too deeply to be read; flatten it") from None
    # Counting brackets costs next to nothing and spares almost every value the walk.
    if text.count("{") + text.count("[") > MAX_NESTING:
        check_depth(value, where)
    return value


def as_json(value: object, where: str) -> Any:
    """A value at hand as the plain JSON it would be in a file."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadSource(f"{where}: not a JSON value: {error}") from None
    return parse_json(text, where)


def check_depth(value: Any, where: str) -> None:
    """Refuse a value that is nested too deeply, or without end. How deep a tool may be, the tool itself says."""
    if too_deep(value, MAX_DEPTH):
        raise BadSource(f"{where}: nested deeper than {MAX_NESTING} levels; flatten it")


def shape(source: object) -> DocumentShape | None:
    """What a source is at its top; None for anything but a file or a JSON value at hand."""
    if isinstance(source, Mapping):
        return DocumentShape("object", frozenset(key for key in source if isinstance(key, str)))
    path = existing_file(source)
    if path is None:
        return None
    status = path.stat()
    return _shape_of(path.absolute(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _shape_of(path: Path, _mtime: int, _size: int) -> DocumentShape:
    """Cached, because every importer asks and a large file takes a while to parse."""
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
    """The opening lines of a longer text, as one line: what a service says of itself first."""
    return clean_text(text.strip().partition("\n\n")[0])


def tool_from(record: Mapping[str, Any], namespace: str, where: str) -> Tool:
    """Make a Tool of a record; a name that only needs cleaning is cleaned, anything else that is wrong is said."""
    try:
        return Tool.from_record(record, namespace)
    except BadTool:
        try:
            return Tool.from_record(cleaned(record), clean_text(namespace))
        except BadTool as error:
            raise BadSource(f"{where}: {error}") from None


def cleaned(record: Any) -> Any:
    """The record with its name and namespace as one line of printable text."""
    if not isinstance(record, Mapping):
        return record
    names = {key: record[key] for key in ("name", "namespace") if isinstance(record.get(key), str)}
    return {**record, **{key: clean_text(value) for key, value in names.items()}}
