"""Writes an ONNX file piece by piece: the package onnx would hold the weights in memory four times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolscout.errors import BadModel, MissingExtra

Array = NDArray[Any]

FUSED = "com.microsoft"
_OPSET, _FUSED_OPSET, _IR = 21, 1, 10
# Longer messages cannot be parsed.
_LONGEST = 2**31 - 1
# Numbers of fields in onnx.proto.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


class Place(NamedTuple):
    """Where values stand: a file in the same folder, and the number of bytes before them."""

    file: str
    offset: int


class OnnxWriter:
    """Collects the nodes and constants of a graph; `write` gives the bytes that the package onnx would give."""

    def __init__(self) -> None:
        """Start empty; raises MissingExtra where the package onnx is not installed."""
        try:
            import onnx
        except ImportError as error:
            raise MissingExtra("exporting an encoder", "encoder") from error
        self.onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Array] = []
        self._beside: dict[int, Place] = {}  # where a constant stands that is not in the file, by its number

    def constant(self, value: Array | np.float32, beside: Place | None = None) -> str:
        """Add a constant; gives back its name. `beside`: where its values stand, if not in the file itself."""
        self._constants.append(np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value))
        number = len(self._constants) - 1
        if beside is not None:
            self._beside[number] = beside
        return f"constant_{number}"

    def nodes(self, outputs: int, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        """Add a node; gives back the names of its outputs."""
        names = [f"{kind}_{len(self._nodes)}_{number}" for number in range(outputs)]
        self._nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output; gives back its name."""
        return self.nodes(1, kind, *inputs, domain=domain, **attributes)[0]

    def result(self, name: str, kind: str, *inputs: str, **attributes: Any) -> None:
        """Add the node whose output is that of the graph."""
        self._nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))

    def write(self, file: BinaryIO, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Write the file; its constants are forgotten as they are written. Raises BadModel where it is too long.

        Files beside it that hold constants are the caller's to write.
        """
        proto, helper = self.onnx, self.onnx.helper
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(FUSED, _FUSED_OPSET)]
        # A message is its fields in the order of their numbers, so it can be written in parts.
        before = _bytes(proto.ModelProto(ir_version=_IR, producer_name="toolscout"))
        nodes = _bytes(proto.GraphProto(node=self._nodes, name="encoder"))
        ends = _bytes(proto.GraphProto(input=inputs, output=outputs))
        after = _bytes(proto.ModelProto(opset_import=opsets))
        heads = [self._constant_head(number, array) for number, array in enumerate(self._constants)]
        sizes = [
            len(head) + (0 if number in self._beside else array.nbytes)
            for number, (head, array) in enumerate(zip(heads, self._constants, strict=True))
        ]
        total = len(nodes) + sum(sizes) + len(ends)
        if total + len(before) + len(after) + 16 > _LONGEST:
            raise BadModel(f"an ONNX file cannot hold {total / 1e9:.1f} GB, only 2; export int8, or a smaller model")
        file.write(before + _tag(_GRAPH, total) + nodes)
        for number, head in enumerate(heads):
            array, self._constants[number] = self._constants[number], np.empty(0)
            file.write(head)
            if number not in self._beside:
                file.write(_little_endian(array).data)
        file.write(ends + after)

    def _constant_head(self, number: int, array: Array) -> bytes:
        """All of a constant but its values, which come last."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = self.onnx.TensorProto(dims=array.shape, data_type=kind, name=f"constant_{number}")
        if beside := self._beside.get(number):
            place = {"location": beside.file, "offset": beside.offset, "length": array.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            tensor.data_location = self.onnx.TensorProto.EXTERNAL
            described = _bytes(tensor)
            return _tag(_INITIALIZER, len(described)) + described
        described = _bytes(tensor)
        described += _tag(_RAW_DATA, array.nbytes)
        return _tag(_INITIALIZER, len(described) + array.nbytes) + described


def _bytes(message: Any) -> bytes:
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def _tag(field: int, size: int) -> bytes:
    """The bytes before a field of this many bytes."""
    return bytes([field << 3 | 2]) + _varint(size)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _little_endian(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
