"""Reads which weights an ONNX file has, without the onnx package: it walks the file's protocol buffers."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from toolscout.errors import BadModel

# Field numbers of onnx.proto.
_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _EXTERNAL_DATA = 1, 2, 13
_KEY, _VALUE = 1, 2
# Types of weights: float, uint8, int8, float16, double, bfloat16, uint4, int4. Others are shapes and indices.
_WEIGHTS = (1, 2, 3, 10, 11, 16, 21, 22)

Field = tuple[int, int, int]
"""The number of a field, and where its content begins and ends; the begin is the value itself of a number (end -1)."""


class OnnxWeights(NamedTuple):
    """How many parameters a graph has, and the files beside it that hold some of them."""

    parameters: int
    external: tuple[str, ...]


def read_weights(path: Path) -> OnnxWeights:
    """What a file says of its weights; raises BadModel where it is no ONNX file, or names files outside its folder."""
    parameters, external = 0, set()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for number, start, end in _fields(content, 0, len(content)):
                if number == _GRAPH:
                    for tensor in (field for field in _fields(content, start, end) if field[0] == _INITIALIZER):
                        count, places = _tensor(content, tensor)
                        parameters += count
                        external |= places
    except OSError as error:
        raise BadModel(f"{path} cannot be read ({error.strerror}); get the folder again") from None
    except (ValueError, IndexError, OverflowError) as error:
        raise BadModel(f"{path} is no ONNX file, or is cut off ({error}); get the folder again") from None
    for place in external:
        if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts:
            raise BadModel(f"{path} names weights outside of its folder ({place!r:.80}); get the folder again")
    return OnnxWeights(parameters, tuple(sorted(external)))


def _tensor(content: mmap.mmap, tensor: Field) -> tuple[int, set[str]]:
    """How many parameters a tensor has, and the file that holds them, if any."""
    dims: list[int] = []
    kind, places = 0, set()
    for number, start, end in _fields(content, tensor[1], tensor[2]):
        if number == _DIMS and end < 0:
            dims.append(start)
        elif number == _DIMS:  # packed
            while start < end:
                value, start = _varint(content, start)
                dims.append(value)
        elif number == _DATA_TYPE:
            kind = start
        elif number == _EXTERNAL_DATA:
            entry = {one[0]: content[one[1] : one[2]].decode() for one in _fields(content, start, end)}
            if entry.get(_KEY) == "location":
                places.add(entry.get(_VALUE, ""))
    return (math.prod(dims) if kind in _WEIGHTS else 0), places


def _fields(content: mmap.mmap, start: int, end: int) -> Iterator[Field]:
    """The fields of one message, without those inside of them; raises ValueError where it is malformed."""
    while start < end:
        tag, start = _varint(content, start)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, start = _varint(content, start)
            yield number, value, -1
        elif kind in (1, 5):
            start += 8 if kind == 1 else 4
        elif kind == 2:
            length, start = _varint(content, start)
            if start + length > end:
                raise ValueError("a field is longer than its message")
            yield number, start, start + length
            start += length
        else:
            raise ValueError(f"a field has the unknown type {kind}")


def _varint(content: mmap.mmap, start: int) -> tuple[int, int]:
    """A number and where the next field begins."""
    value = shift = 0
    while shift < 70:
        byte = content[start]
        value |= (byte & 0x7F) << shift
        start, shift = start + 1, shift + 7
        if byte < 0x80:
            return value, start
    raise ValueError("a number is too long")
