"""What every kind of store does alike: how tools and expansions are written and read, and how a change is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from toolscout.core.answer import Example
from toolscout.core.arrays import Floats
from toolscout.core.expansion import Expansion, with_expansion
from toolscout.core.permissions import Principal
from toolscout.core.tool import Tool, clean_text, text_digest
from toolscout.errors import BadTool, CorruptStore, DuplicateTool, StoreError, UnknownTool

HALF = np.dtype("<f2")
DURABLE_VARIABLE = "TOOLSCOUT_DURABLE"
# The same words as for flags of the command line.
_ON, _OFF = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")

encode_json = json.JSONEncoder(default=str, separators=(",", ":")).encode  # ASCII, so that any text can be stored


def storable(text: str) -> str:
    """Return text that can be stored as UTF-8: a lone surrogate becomes a question mark."""
    return text.encode(errors="replace").decode()


# Feedback


def write_feedback(examples: Iterable[Example], write: Callable[[str], str]) -> list[tuple[str | None, ...]]:
    """Return feedback as rows (request, used, rejected, tenant, source, time, id); `write` makes text storable."""
    return [
        (
            write(example.request),
            json.dumps(example.used),
            json.dumps(example.rejected),
            write(example.tenant),
            write(example.source),
            example.time.isoformat(),
            write(example.id) or None,
        )
        for example in examples
    ]


# Tools


def write_record(tool: Tool) -> str:
    """Return a tool as it is stored. Raises BadTool for one that cannot be written as JSON."""
    try:
        return encode_json(tool.to_record())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadTool(f"tool {tool.id} cannot be written as JSON: {error}") from error


def read_record(record: str, place: object) -> Tool:
    """Return a stored tool. Raises CorruptStore, which names the place, where it cannot be read."""
    try:
        return Tool.from_json(record)
    except (ValueError, AttributeError) as error:
        raise CorruptStore(f"{place} holds a tool that cannot be read: {error}") from error


def content_digest(record: str) -> str:
    """Return the digest of a tool as it is stored."""
    return blake2b(record.encode(), digest_size=16).hexdigest()


def differ_in_order_only(known: str, record: str) -> bool:
    """Return whether two records differ only in the order of keys.

    Some servers list the properties of a schema in another order each time they start; that is not a change.
    """
    try:
        return len(known) == len(record) and bool(json.loads(known) == json.loads(record))
    except RecursionError:  # a record of an older version, which allowed deeper nesting
        return False


def write_aliases(tool: Tool) -> str:
    """Return a tool's own aliases as they are stored."""
    return encode_json(tool.aliases) if tool.aliases else "[]"


def all_aliases(own: Iterable[str], added: Iterable[str]) -> tuple[str, ...]:
    """Return the tool's own aliases and those that users added, each once."""
    return tuple(dict.fromkeys((*own, *sorted(added))))


def clean_alias(tool_id: str, alias: str) -> str:
    """Return an alias as it is stored. Raises BadTool where nothing of it is printable."""
    alias = clean_text(alias)
    if not alias:
        raise BadTool(f"an alias of {tool_id} must be text that is not empty")
    return alias


def given_twice(tool_id: str) -> DuplicateTool:
    """Return the error for two different tools of one id in one call of `add`."""
    return DuplicateTool(f"{tool_id} is given twice with different content; name one of the two differently")


def taken(tool_id: str, owner: str) -> DuplicateTool:
    """Return the error for a tool that another source has added with different content."""
    other = clean_text(owner) or "a source without a name"
    way_out = "give this source a namespace of its own, or add it with replace to take the other's place"
    return DuplicateTool(
        f"{tool_id} is already here from {other}, with different content; {way_out}",
        public=f"{tool_id} is already here from another source, with different content; {way_out}",
    )


def refuse_unknown(ids: Sequence[str], found: Container[str]) -> None:
    """Raise UnknownTool where one of the ids was not found."""
    unknown = [tool_id for tool_id in ids if tool_id not in found]
    if unknown:
        shown = ", ".join(map(clean_text, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise UnknownTool(f"the catalogue has no tool {shown}; run: toolscout list")


# Expansions


def searched_expansion(written: str) -> str:
    """Return what is searched of an expansion as it is stored; "" for none."""
    return read_expansion(written).searched() if written else ""


def read_expansion(written: str) -> Expansion:
    """Return a stored expansion. Raises CorruptStore where it cannot be read."""
    try:
        return Expansion.from_record(json.loads(written))
    except ValueError as error:
        raise CorruptStore(f"the store holds an expansion that cannot be read: {error}") from error


def write_expansion(expansion: Expansion) -> str:
    """Return an expansion as it is stored; "" where there is nothing to search."""
    return encode_json(expansion.to_record("")) if expansion.searched() else ""


def expanded_digest(text: str, written: str) -> str:
    """Return the digest of a document and of its expansion, as it is stored."""
    return text_digest(with_expansion(text, searched_expansion(written)))


# Vectors and principals


def in_half_precision(digests: Sequence[str], vectors: Floats) -> NDArray[np.float16]:
    """Return vectors in half precision. Raises StoreError where they are not as many finite rows as there are texts."""
    with np.errstate(over="ignore"):
        halves: NDArray[np.float16] = np.asarray(vectors).astype(HALF)
    if halves.ndim != 2 or len(halves) != len(digests) or not np.isfinite(halves).all():
        raise StoreError(
            f"{len(digests)} texts need as many rows of finite numbers below 65,504, got shape {halves.shape}"
        )
    return halves


def another_width(fingerprint: str, known: int, width: int) -> StoreError:
    """Return the error for vectors of another width than those of the same model that are stored."""
    return StoreError(f"model {fingerprint} makes vectors of {known} numbers, got {width}: another model")


def read_principal(name: str, allow: str, deny: str, admin: bool, tenant: str) -> Principal:
    """Return a stored principal. Raises CorruptStore where it cannot be read."""
    try:
        return Principal(name, tuple(json.loads(allow)), tuple(json.loads(deny)), admin, tenant)
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptStore(
            f"what {name!r:.80} may see cannot be read ({error}); restore a copy of the store"
        ) from error


# Errors of the caller's own code


class CallerError(Exception):
    """Carries an error of the caller's code through a block that turns errors of a database into StoreErrors."""

    def __init__(self, error: Exception) -> None:
        """Take the error."""
        super().__init__(error)
        self.error = error


@contextmanager
def caller_code() -> Iterator[None]:
    """Let errors of the caller's code pass unchanged, even where they are of the kind that the database raises."""
    try:
        yield
    except Exception as error:
        raise CallerError(error) from None


# Settings


def durable_by_default(unset: bool) -> bool:
    """Return whether $TOOLSCOUT_DURABLE asks for commits that survive a loss of power; `unset` where it is not set.

    Raises StoreError for other values.
    """
    value = os.environ.get(DURABLE_VARIABLE, "").strip().lower()
    if not value:
        return unset
    if value not in _ON + _OFF:
        raise StoreError(f"{DURABLE_VARIABLE} is 1 or 0, got {value!r:.40}; set it to one of them")
    return value in _ON
