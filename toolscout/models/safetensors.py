"""Reads safetensors files, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel

_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_OTHER = {"F64": "<f8", "I8": "i1", "I32": "<i4", "I64": "<i8"}


class StoredTensor(NamedTuple):
    """A tensor in a file; `raw` are its bytes, which are read on demand."""

    shape: tuple[int, ...]
    dtype: str
    raw: NDArray[np.uint8]

    def values(self) -> Floats:
        """The tensor as float32."""
        return self._view().astype(np.float32, copy=self.dtype != "BF16").reshape(self.shape)

    def array(self) -> NDArray[Any]:
        """The tensor in its own type, BF16 as float32."""
        return np.array(self._view()).reshape(self.shape)

    def _view(self) -> NDArray[Any]:
        flat = np.asarray(self.raw).view((_DTYPES | _OTHER)[self.dtype])
        if self.dtype == "BF16":  # the upper half of a float32
            return (flat.astype(np.uint32) << 16).view(np.float32)
        return flat

    def rows(self, first: int, last: int) -> StoredTensor:
        """Some rows of the tensor."""
        size = self.raw.size // max(1, self.shape[0])
        shape = (max(0, min(last, self.shape[0]) - first), *self.shape[1:])
        return StoredTensor(shape, self.dtype, self.raw[first * size : last * size])


def read_safetensors(file: Path, all_types: bool = False) -> tuple[bytes, dict[str, StoredTensor]]:
    """The header of a safetensors file, and its tensors in F32, F16 or BF16; raises BadModel where it is broken.

    `all_types`: also those in F64, I8, I32 and I64.
    """
    tensors = {}
    dtypes = _DTYPES | _OTHER if all_types else _DTYPES
    try:
        content: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r")
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        head = content[8:start].tobytes()
        for name, entry in json.loads(head).items():
            if name != "__metadata__" and entry["dtype"] in dtypes:
                first, last = entry["data_offsets"]
                shape, raw = tuple(map(int, entry["shape"])), content[start + first : start + last]
                if raw.size != int(np.prod(shape)) * np.dtype(dtypes[entry["dtype"]]).itemsize:
                    raise ValueError(f"{name} is cut off")
                tensors[name] = StoredTensor(shape, entry["dtype"], raw)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise BadModel(f"{file} is not a readable safetensors file ({error!r}); get it again") from error
    return head, tensors
