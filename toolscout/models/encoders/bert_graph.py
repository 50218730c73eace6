"""Writes the ONNX graph of a BERT encoder, node by node: no torch, and the same bytes on every machine.

The graph computes what the published model computes, arranged for speed on a CPU:

- A LayerNorm is an InstanceNormalization over rows, times its scale: this takes a third of the time of the fused
  operators. Its shift is never added; it is folded into the bias of the next layer.
- int8 weights have one scale per column. Activations get one scale per text at run time, by the largest value. In the
  feed-forward layers, that value would be an outlier of the first token, ten times larger than all others. So the first
  product there takes the rows before the LayerNorm's scale (which is folded into the weights), where there is no
  outlier, and the second takes rows that are divided by their own maximum.
- A run takes one text, [1, tokens], and gives one unit vector. So there is no mask, and no padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Bytes, Floats
from toolscout.errors import MissingExtra

Precision = Literal["int8", "fp32"]
Pooling = Literal["mean", "cls"]
Array = NDArray[Any]

# The exact function, and the one used with int8: twice as fast, with an error far below that of eight bits.
ACTIVATIONS = {"gelu": ("Gelu", "FastGelu"), "gelu_new": ("FastGelu", "FastGelu")}

# The minimum of GELU is above minus this.
_GELU_DEPTH = 0.17

_FUSED = "com.microsoft"
_OPSET, _FUSED_OPSET, _IR = 21, 1, 10


class BertShape(NamedTuple):
    """The sizes and settings of a BERT encoder."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    positions: int
    vocabulary: int
    epsilon: float
    activation: str
    pooling: Pooling


class _Rows(NamedTuple):
    """The output of a LayerNorm in parts: its value is normal * scale + shift, and `scaled` is normal * scale.

    `normal` and `scaled` are names in the graph.
    """

    normal: str
    scaled: str
    scale: Array
    shift: Array


def tensor_shapes(shape: BertShape) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that the graph uses, by its name in BERT; -1 is any size."""
    hidden, wide = shape.hidden, shape.intermediate
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (shape.vocabulary, hidden),
        "embeddings.position_embeddings.weight": (shape.positions, hidden),
        "embeddings.token_type_embeddings.weight": (-1, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    linear = {f"attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
    linear |= {"attention.output.dense": (hidden, hidden)}
    linear |= {"intermediate.dense": (wide, hidden), "output.dense": (hidden, wide)}
    for layer in range(shape.layers):
        for name, size in linear.items():
            shapes[f"encoder.layer.{layer}.{name}.weight"] = size
            shapes[f"encoder.layer.{layer}.{name}.bias"] = size[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = (hidden,)
            shapes[f"encoder.layer.{layer}.{name}.bias"] = (hidden,)
    return shapes


def write_graph(tensors: Mapping[str, Array], shape: BertShape, precision: Precision) -> bytes:
    """The bytes of an ONNX file that maps input_ids [1, tokens] int64 to vector [1, hidden] float32 of length 1.

    Raises MissingExtra where the package onnx is not installed.
    """
    graph = _BertGraph(tensors, shape, precision)
    rows = graph.embeddings()
    for layer in range(shape.layers):
        rows = graph.layer(f"encoder.layer.{layer}", rows)
    return graph.finish(rows)


class _BertGraph:
    """Collects the nodes and constants of the graph; methods return the name of the output that they add."""

    def __init__(self, tensors: Mapping[str, Array], shape: BertShape, precision: Precision) -> None:
        try:
            import onnx
        except ImportError as error:
            raise MissingExtra("exporting an encoder", "encoder") from error
        self.onnx = onnx
        self.tensors, self.shape, self.quantised = tensors, shape, precision == "int8"
        self.activation = ACTIVATIONS[shape.activation][self.quantised]
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.one, self.zero = self.constant(np.ones(1, np.float32)), self.constant(np.zeros(1, np.float32))
        self.first, self.last = self.constant(np.array([0])), self.constant(np.array([-1]))
        self.as_channels = self.constant(np.array([-1, 1, shape.hidden]))
        self.as_text = self.constant(np.array([1, -1, shape.hidden]))
        self.least = self.constant(np.float32(_GELU_DEPTH))

    def constant(self, value: Array | np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def nodes_of(self, outputs: int, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> list[str]:
        names = [f"{kind}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self.nodes_of(1, kind, *inputs, domain=domain, **attributes)[0]

    def embeddings(self) -> _Rows:
        words = self.tensors["embeddings.word_embeddings.weight"]
        if self.quantised:
            scales = _nonzero(np.abs(words).max(axis=1, keepdims=True) / np.float32(127))
            found = self.node("Gather", self.constant(np.rint(words / scales).astype(np.int8)), "input_ids")
            found = self.node("Cast", found, to=self.onnx.TensorProto.FLOAT)
            found = self.node("Mul", found, self.node("Gather", self.constant(scales), "input_ids"))
        else:
            found = self.node("Gather", self.constant(words), "input_ids")
        kind = self.tensors["embeddings.token_type_embeddings.weight"][0]
        table = self.constant(self.tensors["embeddings.position_embeddings.weight"] + kind)
        count = self.node("Shape", "input_ids", start=1, end=2)
        places = self.node("Slice", table, self.first, count, self.first)
        return self.normalise(self.node("Add", found, places), "embeddings.LayerNorm")

    def layer(self, prefix: str, rows: _Rows) -> _Rows:
        """Attention and feed-forward, each added to its input and normalised."""
        parts = [self.linear_layer(f"{prefix}.attention.self.{part}") for part in ("query", "key", "value")]
        weight = np.concatenate([weight for weight, _ in parts], axis=1)
        bias = np.concatenate([bias for _, bias in parts]) + _product(rows.shift, weight)
        seen = self.attention(rows.scaled, weight, bias)
        weight, bias = self.linear_layer(f"{prefix}.attention.output.dense")
        mixed = self.linear(seen, weight, bias + rows.shift)
        rows = self.normalise(self.node("Add", mixed, rows.scaled), f"{prefix}.attention.output.LayerNorm")

        weight, bias = self.linear_layer(f"{prefix}.intermediate.dense")
        wide = self.linear(rows.normal, weight * rows.scale[:, np.newaxis], bias + _product(rows.shift, weight))
        wide = self.node(self.activation, wide, domain=_FUSED)
        weight, bias = self.linear_layer(f"{prefix}.output.dense")
        mixed = self.linear_by_rows(wide, weight, bias + rows.shift)
        return self.normalise(self.node("Add", mixed, rows.scaled), f"{prefix}.output.LayerNorm")

    def finish(self, rows: _Rows) -> bytes:
        """Add pooling and normalisation, and return the bytes of the ONNX file."""
        if self.shape.pooling == "cls":
            pooled = self.node("Gather", rows.scaled, self.constant(np.array(0)), axis=1)
        else:
            pooled = self.node("ReduceMean", rows.scaled, self.constant(np.array([1])), keepdims=0)
        pooled = self.node("Add", pooled, self.constant(rows.shift))
        helper, types = self.onnx.helper, self.onnx.TensorProto
        self.nodes.append(helper.make_node("LpNormalization", [pooled], ["vector"], axis=-1, p=2))
        ids = helper.make_tensor_value_info("input_ids", types.INT64, [1, "tokens"])
        vector = helper.make_tensor_value_info("vector", types.FLOAT, [1, self.shape.hidden])
        graph = helper.make_graph(self.nodes, "encoder", [ids], [vector], self.constants)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_FUSED, _FUSED_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="toolscout")
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def normalise(self, total: str, name: str) -> _Rows:
        scale, shift = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        channels = self.node("Reshape", total, self.as_channels)
        normal = self.node("InstanceNormalization", channels, self.one, self.zero, epsilon=self.shape.epsilon)
        normal = self.node("Reshape", normal, self.as_text)
        return _Rows(normal, self.node("Mul", normal, self.constant(scale)), scale, shift)

    def linear_layer(self, name: str) -> tuple[Array, Array]:
        """The weight [inputs, outputs] and the bias of a linear layer."""
        return np.ascontiguousarray(self.tensors[f"{name}.weight"].T), self.tensors[f"{name}.bias"]

    def linear(self, rows: str, weight: Array, bias: Array) -> str:
        if not self.quantised:
            return self.node("Add", self.node("MatMul", rows, self.constant(weight)), self.constant(bias))
        integers, scales = (self.constant(array) for array in quantise(weight))
        return self.node("DynamicQuantizeMatMul", rows, integers, scales, "", self.constant(bias), domain=_FUSED)

    def linear_by_rows(self, rows: str, weight: Array, bias: Array) -> str:
        """As `linear`, with each row divided by its own maximum before it is quantised."""
        if not self.quantised:
            return self.linear(rows, weight, bias)
        integers, scales = (self.constant(array) for array in quantise(weight))
        largest = self.node("Max", self.node("ReduceMax", rows, self.last), self.least)
        rows = self.node("Mul", rows, self.node("Reciprocal", largest))
        mixed = self.node("DynamicQuantizeMatMul", rows, integers, scales, domain=_FUSED)
        return self.node("Add", self.node("Mul", mixed, largest), self.constant(bias))

    def attention(self, rows: str, weight: Array, bias: Array) -> str:
        heads = self.shape.heads
        if not self.quantised:
            return self.node(
                "Attention", rows, self.constant(weight), self.constant(bias), domain=_FUSED, num_heads=heads
            )
        integers, scales = quantise(weight)
        packed, scale, zero = self.nodes_of(3, "DynamicQuantizeLinear", rows)
        zeros = self.constant(np.zeros(len(scales), np.int8))
        quantised = (packed, self.constant(integers), self.constant(bias), scale, self.constant(scales))
        return self.node("QAttention", *quantised, "", zero, zeros, domain=_FUSED, num_heads=heads)


def quantise(weight: Array) -> tuple[Bytes, Floats]:
    """Weights as signed bytes with one scale per column.

    x86 without VNNI adds the products of two neighbouring weights in 16 bits, so the sum of two neighbours of one sign
    must not exceed 128 (255 * 128 fits). The usual remedy is to use 7 bits for all weights; choosing the scale by the
    sums of pairs keeps nearly all of the eighth bit.
    """
    pairs = np.abs(weight[0::2] + weight[1::2]).max(axis=0)
    scales = _nonzero(np.maximum(np.abs(weight).max(axis=0), pairs) / np.float32(127))
    return np.rint(weight / scales).astype(np.int8), scales


def _nonzero(scales: Array) -> Floats:
    return np.where(scales > 0, scales, 1).astype(np.float32)


def _product(row: Array, matrix: Array) -> Floats:
    """Vector times matrix, summed in a fixed order, so that every machine gets the same bytes (not so with BLAS)."""
    total: Floats = (row[:, np.newaxis].astype(np.float64) * matrix).sum(axis=0).astype(np.float32)
    return total
