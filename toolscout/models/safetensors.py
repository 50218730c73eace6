"""Reads safetensors files, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel

_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class StoredTensor(NamedTuple):
    """A tensor of floating-point numbers in a file; `raw` are its bytes, which are read on demand."""

    shape: tuple[int, ...]
    dtype: str
    raw: NDArray[np.uint8]

    def values(self) -> Floats:
        """The tensor as float32."""
        flat = np.asarray(self.raw).view(_DTYPES[self.dtype])
        if self.dtype == "BF16":  # the upper half of a float32
            return (flat.astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        return flat.astype(np.float32).reshape(self.shape)

    def rows(self, first: int, last: int) -> StoredTensor:
        """Some rows of the tensor."""
        size = self.raw.size // max(1, self.shape[0])
        shape = (max(0, min(last, self.shape[0]) - first), *self.shape[1:])
        return StoredTensor(shape, self.dtype, self.raw[first * size : last * size])


def read_safetensors(file: Path) -> tuple[bytes, dict[str, StoredTensor]]:
    """The header of a safetensors file, and its tensors in F32, F16 or BF16; raises BadModel where it is broken."""
    tensors = {}
    try:
        content: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r")
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        head = content[8:start].tobytes()
        for name, entry in json.loads(head).items():
            if name != "__metadata__" and entry["dtype"] in _DTYPES:
                first, last = entry["data_offsets"]
                shape, raw = tuple(map(int, entry["shape"])), content[start + first : start + last]
                if raw.size != int(np.prod(shape)) * np.dtype(_DTYPES[entry["dtype"]]).itemsize:
                    raise ValueError(f"{name} is cut off")
                tensors[name] = StoredTensor(shape, entry["dtype"], raw)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise BadModel(f"{file} is not a readable safetensors file ({error!r}); get it again") from error
    return head, tensors
