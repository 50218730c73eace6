"""The tools of a saved index in files that are read where they are asked for: a million of them open at once.

A table holds an id, aliases and a digest for each row. What is looked up (ids, namespaces, names, aliases, digests) is
hashed, and the hashes are sorted, so that a look-up is a binary search in a mapped file. Nothing is ever unpickled.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Ints
from toolscout.core.tool import name_of, namespace_of, split_words

Kind = Literal["id", "namespace", "name", "ending", "alias", "digest"]
KINDS: tuple[Kind, ...] = ("id", "namespace", "name", "ending", "alias", "digest")
Numbers = Ints
_SALT_BYTES = 16
_NO_ROWS = np.empty(0, dtype=np.int64)


def name_key(text: str) -> str:
    """What names are compared by: createIssue, create_issue and create-issue are one name."""
    return "_".join(split_words(text)).lower()


def last_word(key: str) -> str:
    """The last word of a name's key."""
    return key.rpartition("_")[2]


class ToolTable:
    """Rows of tools in the files that `write` left in a folder, which never change. A row without an id is dead."""

    def __init__(self, folder: Path) -> None:
        """Map the files; OSError or ValueError where they are no table."""
        self.folder = folder
        self._salt = bytes.fromhex(json.loads((folder / "table.json").read_text())["salt"])
        if len(self._salt) != _SALT_BYTES:
            raise ValueError("the table has no salt")
        self._ids, self._aliases = Texts(folder, "ids"), Texts(folder, "aliases")
        self._digests = Texts(folder, "digests")
        self._hashes = {kind: _mapped(folder / f"{kind}.hashes.npy", np.uint64) for kind in KINDS}
        self._rows = {kind: _mapped(folder / f"{kind}.rows.npy", np.uint32) for kind in KINDS}
        if not len(self) == len(self._aliases) == len(self._digests) or len(self._hashes["id"]) > len(self):
            raise ValueError("the files of the table do not go together")
        if any(len(self._hashes[kind]) != len(self._rows[kind]) for kind in KINDS):
            raise ValueError("a file of the table is cut off")

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._ids)

    @property
    def has_aliases(self) -> bool:
        """Whether any tool has an alias."""
        return len(self._hashes["alias"]) > 0

    def id(self, row: int) -> str:
        """The id of the tool in a row."""
        return self._ids[row]

    def some_ids(self, rows: Iterable[int]) -> list[str]:
        """The ids of the tools in some rows."""
        return self._ids.some(rows)

    def ids(self) -> list[str]:
        """The id of every row."""
        return self._ids.all()

    def aliases(self, row: int) -> tuple[str, ...]:
        """The aliases of the tool in a row."""
        text = self._aliases[row]
        return tuple(map(str, json.loads(text))) if text else ()

    def digest(self, row: int) -> str:
        """The digest of the document in a row; "" where the table was made without."""
        return self._digests[row]

    def row(self, tool_id: str) -> int | None:
        """The row of a tool."""
        rows = self.rows("id", tool_id)
        return int(rows[0]) if len(rows) else None

    def rows(self, kind: Kind, key: str) -> Numbers:
        """The rows with this key, ascending."""
        hashes, sought = self._hashes[kind].data, _hash(key, self._salt)
        start = bisect_left(hashes, sought)  # on a memoryview: numpy takes five times as long for a single number
        # No two keys of a table have one hash; one that is not in the table may have that of another.
        if start == len(hashes) or hashes[start] != sought or not self._has(kind, key, int(self._rows[kind][start])):
            return _NO_ROWS
        return self._rows[kind][start : bisect_right(hashes, sought)].astype(np.int64)

    def known(self, kind: Kind, keys: Sequence[str]) -> list[str]:
        """Those of many keys that the table has, in order."""
        return [keys[i] for i in self._find(kind, keys)[0]]

    def rows_of_any(self, kind: Kind, keys: Sequence[str]) -> Numbers:
        """The rows that have any of these different keys, in any order; much faster than `rows` key by key."""
        _, starts, ends = self._find(kind, keys)
        counts = ends - starts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows: Numbers = self._rows[kind][np.repeat(starts, counts) + within].astype(np.int64)
        return rows

    def _find(self, kind: Kind, keys: Sequence[str]) -> tuple[list[int], Ints, Ints]:
        """Which of the keys the table has, by position; where the hash of each begins and ends among all hashes."""
        hashes, rows = self._hashes[kind], self._rows[kind]
        sought = np.fromiter((_hash(key, self._salt) for key in keys), dtype=np.uint64, count=len(keys))
        starts, ends = np.searchsorted(hashes, sought, "left"), np.searchsorted(hashes, sought, "right")
        places: list[int] = np.flatnonzero(starts < ends).tolist()
        found = rows[starts[places]].tolist()
        if kind == "id":
            same = [tool_id == keys[i] for i, tool_id in zip(places, self._ids.some(found), strict=True)]
        else:
            same = [self._has(kind, keys[i], row) for i, row in zip(places, found, strict=True)]
        places = list(itertools.compress(places, same))
        return places, starts[places], ends[places]

    def _has(self, kind: Kind, key: str, row: int) -> bool:
        aliases = self.aliases(row) if kind == "alias" else ()
        return key in _keys(kind, self.id(row), aliases, self.digest(row) if kind == "digest" else "")

    def link(self, folder: Path) -> None:
        """Have the same table in another folder, without copying it where the system can."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            link_file(self.folder / name, folder / name)


def write(folder: Path, ids: Sequence[str], aliases: Sequence[Sequence[str]], digests: Sequence[str]) -> None:
    """Write the table of these tools, one a row; "" for the id of a dead row."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_texts(folder, "ids", ids)
    _write_texts(folder, "aliases", _written(aliases))
    _write_texts(folder, "digests", digests)
    _write_salt(folder, _write_keys(folder, ids, aliases, digests))


def extend(
    table: ToolTable, folder: Path, ids: Sequence[str], aliases: Sequence[Sequence[str]], dead: Collection[int]
) -> bool:
    """Write a table with the rows of another and these tools behind them, without digests; "" for the id of a dead row.

    The rows `dead` of the other table keep their ids, but no key leads to them. Much faster than `write`, since no key
    is hashed again. Returns False where it cannot be done, because two keys would have one hash.
    """
    keys = _extended_keys(table, ids, aliases, np.fromiter(dead, dtype=np.int64, count=len(dead)))
    if keys is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    table._ids.write_extended(folder, "ids", ids)
    table._aliases.write_extended(folder, "aliases", _written(aliases))
    table._digests.write_extended(folder, "digests", [""] * len(ids))
    for kind, (hashes, rows) in keys.items():
        save_array(folder / f"{kind}.hashes.npy", hashes)
        save_array(folder / f"{kind}.rows.npy", rows)
    _write_salt(folder, table._salt)
    return True


def _extended_keys(
    table: ToolTable, ids: Sequence[str], aliases: Sequence[Sequence[str]], dead: Ints
) -> dict[Kind, tuple[NDArray[np.uint64], NDArray[np.uint32]]] | None:
    """The sorted hashes of every kind of key, and their rows; None where two keys would have one hash."""
    found: dict[Kind, tuple[NDArray[np.uint64], NDArray[np.uint32]]] = {}
    for kind, (keys, rows) in _all_keys(ids, aliases, [""] * len(ids)).items():
        hashes = {key: _hash(key, table._salt) for key in dict.fromkeys(keys)}
        known = set(table.known(kind, list(hashes)))
        taken = np.isin(np.fromiter(hashes.values(), np.uint64, len(hashes)), table._hashes[kind]).sum()
        if len(set(hashes.values())) < len(hashes) or taken > len(known):
            return None
        later = [(hashes[key], len(table) + row) for key, row in zip(keys, rows, strict=True)]
        # One row, dead or not, shows that there is a name with an ending.
        later = [one for one, key in zip(later, keys, strict=True) if kind != "ending" or key not in known]
        stay = np.ones(len(table._rows[kind]), dtype=bool) if kind == "ending" else ~np.isin(table._rows[kind], dead)
        made = np.concatenate([table._hashes[kind][stay], np.array([one for one, _ in later], dtype=np.uint64)])
        placed = np.concatenate([table._rows[kind][stay], np.array([row for _, row in later], dtype=np.uint32)])
        order = np.argsort(made, kind="stable")
        found[kind] = made[order], placed[order]
    return found


def _written(aliases: Sequence[Sequence[str]]) -> list[str]:
    return [json.dumps(list(own)) if own else "" for own in aliases]


def _write_salt(folder: Path, salt: bytes) -> None:
    replace_file(folder / "table.json", lambda path: path.write_text(json.dumps({"salt": salt.hex()})))


def _write_keys(folder: Path, ids: Sequence[str], aliases: Sequence[Sequence[str]], digests: Sequence[str]) -> bytes:
    """Write the sorted hashes of every kind of key; the salt they were made with, with which no two keys share one."""
    kinds = _all_keys(ids, aliases, digests)
    # Salted: nobody can make up a namespace that has the hash of another.
    while True:
        salt = secrets.token_bytes(_SALT_BYTES)
        for kind, (keys, rows) in kinds.items():
            places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
            hashed = np.fromiter((_hash(key, salt) for key in places), dtype=np.uint64, count=len(places))
            if len(np.unique(hashed)) < len(hashed):
                break
            made = hashed[np.fromiter(map(places.__getitem__, keys), dtype=np.int64, count=len(keys))]
            order = np.argsort(made, kind="stable")
            save_array(folder / f"{kind}.hashes.npy", made[order])
            save_array(folder / f"{kind}.rows.npy", np.array(rows, dtype=np.uint32)[order])
        else:
            return salt


def _all_keys(
    ids: Sequence[str], aliases: Sequence[Sequence[str]], digests: Sequence[str]
) -> dict[Kind, tuple[list[str], list[int]]]:
    """The keys of each kind and the row of each, dead rows left out. Of an ending only the first row is kept."""
    alive = [row for row, tool_id in enumerate(ids) if tool_id]
    names = [name_key(name_of(ids[row])) for row in alive]
    endings: dict[str, int] = {}
    for row, name in zip(alive, names, strict=True):
        endings.setdefault(last_word(name), row)
    also = [(key, row) for row in alive if aliases[row] for key in _keys("alias", ids[row], aliases[row], "")]
    told = [row for row in alive if digests[row]]
    return {
        "id": ([ids[row] for row in alive], alive),
        "namespace": ([namespace_of(ids[row]) for row in alive], alive),
        "name": (names, alive),
        "ending": (list(endings), list(endings.values())),
        "alias": ([key for key, _ in also], [row for _, row in also]),
        "digest": ([digests[row] for row in told], told),
    }


def _keys(kind: Kind, tool_id: str, aliases: Sequence[str], digest: str) -> Iterable[str]:
    if kind == "id":
        return (tool_id,)
    if kind == "namespace":
        return (namespace_of(tool_id),)
    if kind == "alias":
        return dict.fromkeys(filter(None, map(name_key, aliases)))
    if kind == "digest":
        return (digest,) if digest else ()
    key = name_key(name_of(tool_id))
    return (key,) if kind == "name" else (last_word(key),)


def _hash(key: str, salt: bytes) -> int:
    return int.from_bytes(blake2b(key.encode(errors="surrogatepass"), digest_size=8, key=salt).digest(), "little")


class Texts:
    """Texts one after the other in one file, and where each ends in another."""

    def __init__(self, folder: Path, name: str) -> None:
        """Map the files; OSError or ValueError where they are no texts."""
        ends, texts = _mapped(folder / f"{name}.ends.npy", np.int64), _mapped(folder / f"{name}.npy", np.uint8)
        if len(texts) != (int(ends[-1]) if len(ends) else 0):
            raise ValueError(f"{name} are cut off")
        # Memoryviews, which are much faster than arrays for one text at a time.
        self._ends, self._bytes = ends.data, texts.data

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self._ends)

    def __getitem__(self, row: int) -> str:
        """The text in a row."""
        return str(self._bytes[self._ends[row - 1] if row else 0 : self._ends[row]], "utf-8", "surrogatepass")

    def some(self, rows: Iterable[int]) -> list[str]:
        """The texts in some rows."""
        data, ends = self._bytes, self._ends
        return [str(data[ends[row - 1] if row else 0 : ends[row]], "utf-8", "surrogatepass") for row in rows]

    def all(self) -> list[str]:
        """Every text."""
        data, ends = bytes(self._bytes), [0, *self._ends]
        return [data[start:end].decode(errors="surrogatepass") for start, end in itertools.pairwise(ends)]

    def sizes(self) -> list[int]:
        """The bytes of each text."""
        sizes: list[int] = np.diff(np.asarray(self._ends), prepend=0).tolist()
        return sizes

    def encoded(self) -> Iterator[bytes]:
        """Every text as bytes, one at a time."""
        return (bytes(self._bytes[start:end]) for start, end in itertools.pairwise([0, *self._ends]))

    def write_extended(self, folder: Path, name: str, texts: Sequence[str]) -> None:
        """Write these texts with others behind them."""
        _write_texts(folder, name, texts, np.asarray(self._ends), np.asarray(self._bytes))


_NO_BYTES = np.empty(0, dtype=np.uint8)


def _write_texts(
    folder: Path, name: str, texts: Sequence[str], ends: Ints = _NO_ROWS, before: NDArray[np.uint8] = _NO_BYTES
) -> None:
    """Write texts; `before`: the bytes of those before them, which end at `ends`."""
    encoded = [text.encode(errors="surrogatepass") for text in texts]
    later = len(before) + np.cumsum(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)))
    save_array(folder / f"{name}.ends.npy", np.concatenate([ends, later]))
    save_array(folder / f"{name}.npy", np.concatenate([before, np.frombuffer(b"".join(encoded), dtype=np.uint8)]))


_FILES = (
    "table.json",
    *(f"{name}{end}" for name in ("ids", "aliases", "digests") for end in (".npy", ".ends.npy")),
    *(f"{kind}.{what}.npy" for kind in KINDS for what in ("hashes", "rows")),
)


def _mapped(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    found = mapped_array(path)
    if found.ndim != 1 or found.dtype != dtype:
        raise ValueError(f"{path.name} holds {found.dtype} of shape {found.shape}")
    return found


def mapped_array(path: Path) -> NDArray[Any]:
    """An array of a file that is read where it is asked for."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array as a new file, whoever has the old one mapped."""

    def save(beside: Path) -> None:
        with beside.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    replace_file(path, save)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place and put it there in one step: one that is mapped must never change."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        write(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def link_file(source: Path, target: Path) -> None:
    """Have a file that never changes in a second place: as a link to the same data, or a copy where that cannot be."""
    source = source.resolve()
    if target.exists() and target.samefile(source):
        return
    with suppress(OSError):
        replace_file(target, lambda beside: os.link(source, beside))
        return
    replace_file(target, lambda beside: shutil.copyfile(source, beside))
