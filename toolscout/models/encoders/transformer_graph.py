"""Writes the ONNX graph of an encoder, node by node: no torch, and the same bytes on every machine.

The graph computes what the published model computes, arranged for speed on a CPU:

- A LayerNorm is an InstanceNormalization over rows, times its scale: this takes a third of the time of the fused
  operators. Its shift is never added; it is folded into the bias of the next layer.
- int8 weights have one scale per column. Activations get one scale per text at run time, by the largest value. In the
  feed-forward layers, that value would be an outlier of the first token, ten times larger than all others. So the first
  product there takes the rows before the LayerNorm's scale (which is folded into the weights), where there is no
  outlier, and the second takes rows that are divided by their own maximum.
- A run takes one text, [1, tokens], and gives one unit vector. So there is no mask, and no padding.
- MPNet adds a bias to the attention that depends on the distance of two tokens. The fused operator for int8 does not
  take one, so a matrix product and an operator for the attention alone are used there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Bytes, Floats
from toolscout.models.encoders.dense_layers import NORM_EPSILON, Layer, NormLayer
from toolscout.models.encoders.families import ACTIVATIONS, BUCKETS, EncoderShape
from toolscout.models.encoders.onnx_writer import FUSED, OnnxWriter, Place
from toolscout.models.encoders.settings import Pooling

Precision = Literal["int8", "fp32"]
Array = NDArray[Any]

# The minimum of GELU is above minus this.
_GELU_DEPTH = 0.17
# Of the layers behind the pooling.
_LAYER_ACTIVATIONS = {"Tanh": "Tanh", "ReLU": "Relu", "Sigmoid": "Sigmoid"}
# Words whose rows are quantised at once.
_BLOCK = 4096
# MPNet has a bias for each distance below 8, and one for each range of distances that begins here, in each direction.
_DISTANCES = (*range(1, 9), 12, 16, 23, 32, 46, 64, 91)


class Tensors(Protocol):
    """The weights of an encoder, by the names of `families.tensor_shapes`; each is read when it is asked for."""

    def __contains__(self, name: str) -> bool:
        """Whether the family has this tensor."""

    def __getitem__(self, name: str) -> Floats:
        """The whole tensor."""

    def blocks(self, name: str, rows: int) -> Iterator[Floats]:
        """The tensor in pieces of at most this many rows."""


class _Rows(NamedTuple):
    """The output of a LayerNorm in parts: its value is normal * scale + shift, and `scaled` is normal * scale.

    `normal` and `scaled` are names in the graph.
    """

    normal: str
    scaled: str
    scale: Array
    shift: Array


class TransformerGraph:
    """The graph that maps input_ids [1, tokens] int64 to vector [1, dimension] float32 of length 1."""

    _inputs: tuple[str, ...] = ("input_ids",)
    _output = "vector"

    def __init__(
        self,
        tensors: Tensors,
        shape: EncoderShape,
        pooling: Pooling,
        layers: Sequence[Layer],
        precision: Precision,
        table: Place | None = None,
    ) -> None:
        """Compute all nodes and constants; raises MissingExtra where the package onnx is not installed.

        `table`: where the table of words stands as signed bytes; None for the graph itself.
        """
        self._file, self._table = OnnxWriter(), table
        file = self._file
        self._tensors, self._shape, self._quantised = tensors, shape, precision == "int8"
        self._activation = ACTIVATIONS[shape.activation][self._quantised]
        self._one, self._zero = file.constant(np.ones(1, np.float32)), file.constant(np.zeros(1, np.float32))
        self._first, self._last = file.constant(np.array([0])), file.constant(np.array([-1]))
        self._as_channels = file.constant(np.array([-1, 1, shape.hidden]))
        self._as_text = file.constant(np.array([1, -1, shape.hidden]))
        self._least = file.constant(np.float32(_GELU_DEPTH))
        rows = self._embeddings()
        self._bias = self._relative_bias() if "relative_bias.weight" in tensors else ""
        for layer in range(shape.layers):
            rows = self._layer(layer, rows)
        self._dimension = layers[-1].outputs if layers else shape.hidden
        self._finish(rows, pooling, layers)

    def write(self, file: BinaryIO) -> None:
        """Write the ONNX file, once: weights are forgotten as they are written."""
        helper, types = self._file.onnx.helper, self._file.onnx.TensorProto
        inputs = [helper.make_tensor_value_info(name, types.INT64, [1, "tokens"]) for name in self._inputs]
        output = helper.make_tensor_value_info(self._output, types.FLOAT, [1, self._dimension])
        self._file.write(file, inputs, [output])

    def _embeddings(self) -> _Rows:
        file = self._file
        if self._quantised:
            integers, scales = quantised_words(self._tensors, self._shape)
            found = file.node("Gather", file.constant(integers, self._table), "input_ids")
            found = file.node("Cast", found, to=file.onnx.TensorProto.FLOAT)
            found = file.node("Mul", found, file.node("Gather", file.constant(scales), "input_ids"))
        else:
            found = file.node("Gather", file.constant(self._tensors["words.weight"]), "input_ids")
        count = file.node("Shape", "input_ids", start=1, end=2)
        places = file.node("Slice", file.constant(self._positions()), self._first, count, self._first)
        return self._normalise(self._typed(file.node("Add", found, places)), "embedding_norm")

    def _positions(self) -> Floats:
        """The embeddings of positions; a text has one type of tokens, whose embedding is added to all of them."""
        table = self._tensors["positions.weight"][self._shape.first_position :]
        return table + self._tensors["token_types.weight"][0] if "token_types.weight" in self._tensors else table

    def _typed(self, rows: str) -> str:
        """The rows of tokens with what their types add, where these are an input of the graph."""
        return rows

    def _relative_bias(self) -> str:
        """What the attention of each head adds for the distance of two tokens, [1, heads, tokens, tokens]."""
        file, longest = self._file, self._shape.positions
        away = np.arange(1 - longest, longest)  # from the token that attends to the other
        buckets = np.searchsorted(_DISTANCES, np.abs(away), side="right") + np.where(away > 0, BUCKETS // 2, 0)
        table = file.constant(self._tensors["relative_bias.weight"][buckets].T)
        count = file.node("Size", "input_ids")
        places = file.node("Range", file.constant(np.array(0)), count, file.constant(np.array(1)))
        away_name = file.node("Sub", places, file.node("Unsqueeze", places, file.constant(np.array([1]))))
        bias = file.node("Gather", table, file.node("Add", away_name, file.constant(np.array(longest - 1))), axis=1)
        return file.node("Unsqueeze", bias, self._first)

    def _layer(self, layer: int, rows: _Rows) -> _Rows:
        """Attention and feed-forward, each added to its input and normalised."""
        weight, bias = self._attention_weights(layer, rows)
        seen = (self._biased_attention if self._bias else self._attention)(rows.scaled, weight, bias)
        return self._behind_attention(layer, rows, seen)

    def _attention_weights(self, layer: int, rows: _Rows) -> tuple[Array, Array]:
        """The weight and the bias of query, key and value, side by side."""
        parts = [self._linear_layer(f"{layer}.{part}") for part in ("query", "key", "value")]
        weight = np.concatenate([weight for weight, _ in parts], axis=1)
        return weight, np.concatenate([bias for _, bias in parts]) + _product(rows.shift, weight)

    def _behind_attention(self, layer: int, rows: _Rows, seen: str) -> _Rows:
        """The rest of a layer: the output of the attention, added to its input, and feed-forward."""
        file = self._file
        weight, bias = self._linear_layer(f"{layer}.attention_output")
        mixed = self._linear(seen, weight, bias + rows.shift)
        rows = self._normalise(file.node("Add", mixed, rows.scaled), f"{layer}.attention_norm")

        weight, bias = self._linear_layer(f"{layer}.intermediate")
        wide = self._linear(rows.normal, weight * rows.scale[:, np.newaxis], bias + _product(rows.shift, weight))
        wide = file.node(self._activation, wide, domain=FUSED)
        weight, bias = self._linear_layer(f"{layer}.output")
        mixed = self._linear_by_rows(wide, weight, bias + rows.shift)
        return self._normalise(file.node("Add", mixed, rows.scaled), f"{layer}.output_norm")

    def _finish(self, rows: _Rows, pooling: Pooling, layers: Sequence[Layer]) -> None:
        """Add pooling, the layers behind it in full precision, and normalisation."""
        self._file.result(self._output, "LpNormalization", self._pooled(rows, pooling, layers), axis=-1, p=2)

    def _pooled(self, rows: _Rows, pooling: Pooling, layers: Sequence[Layer]) -> str:
        file = self._file
        if pooling == "mean":
            pooled = file.node("ReduceMean", rows.scaled, file.constant(np.array([1])), keepdims=0)
        else:
            place = file.constant(np.array(0 if pooling == "cls" else -1))
            pooled = file.node("Gather", rows.scaled, place, axis=1)
        pooled = file.node("Add", pooled, file.constant(rows.shift))
        for layer in layers:
            weight, bias = self._head_weight(layer.weight.T), file.constant(layer.bias)
            if isinstance(layer, NormLayer):
                pooled = file.node("LayerNormalization", pooled, weight, bias, epsilon=NORM_EPSILON)
                continue
            pooled = file.node("Add", file.node("MatMul", pooled, weight), bias)
            if layer.activation != "Identity":
                pooled = file.node(_LAYER_ACTIVATIONS[layer.activation], pooled)
        return pooled

    def _head_weight(self, weight: Array) -> str:
        """The weight of a layer behind the pooling, in full precision."""
        return self._file.constant(weight)

    def _normalise(self, total: str, name: str) -> _Rows:
        file, scale, shift = self._file, self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        channels = file.node("Reshape", total, self._as_channels)
        normal = file.node("InstanceNormalization", channels, self._one, self._zero, epsilon=self._shape.epsilon)
        normal = file.node("Reshape", normal, self._as_text)
        return _Rows(normal, file.node("Mul", normal, file.constant(scale)), scale, shift)

    def _linear_layer(self, name: str) -> tuple[Array, Array]:
        """The weight [inputs, outputs] and the bias of a linear layer."""
        return np.ascontiguousarray(self._tensors[f"{name}.weight"].T), self._tensors[f"{name}.bias"]

    def _linear(self, rows: str, weight: Array, bias: Array) -> str:
        file = self._file
        if not self._quantised:
            return file.node("Add", file.node("MatMul", rows, file.constant(weight)), file.constant(bias))
        integers, scales = (file.constant(array) for array in quantise(weight))
        return file.node("DynamicQuantizeMatMul", rows, integers, scales, "", file.constant(bias), domain=FUSED)

    def _linear_by_rows(self, rows: str, weight: Array, bias: Array) -> str:
        """As `_linear`, with each row divided by its own maximum before it is quantised."""
        if not self._quantised:
            return self._linear(rows, weight, bias)
        file = self._file
        integers, scales = (file.constant(array) for array in quantise(weight))
        largest = file.node("Max", file.node("ReduceMax", rows, self._last), self._least)
        rows = file.node("Mul", rows, file.node("Reciprocal", largest))
        mixed = file.node("DynamicQuantizeMatMul", rows, integers, scales, domain=FUSED)
        return file.node("Add", file.node("Mul", mixed, largest), file.constant(bias))

    def _attention(self, rows: str, weight: Array, bias: Array) -> str:
        file, heads = self._file, self._shape.heads
        if not self._quantised:
            inputs = (rows, file.constant(weight), file.constant(bias))
            return file.node("Attention", *inputs, domain=FUSED, num_heads=heads)
        integers, scales = quantise(weight)
        packed, scale, zero = file.nodes(3, "DynamicQuantizeLinear", rows)
        zeros = file.constant(np.zeros(len(scales), np.int8))
        quantised = (packed, file.constant(integers), file.constant(bias), scale, file.constant(scales))
        return file.node("QAttention", *quantised, "", zero, zeros, domain=FUSED, num_heads=heads)

    def _biased_attention(self, rows: str, weight: Array, bias: Array) -> str:
        """Attention with the bias by distance; weights and activations are as in `_attention`."""
        file = self._file
        parts = file.nodes(3, "Split", self._linear(rows, weight, bias), axis=-1, num_outputs=3)
        inputs = (*parts, "", "", self._bias)
        return file.node("MultiHeadAttention", *inputs, domain=FUSED, num_heads=self._shape.heads)


class CrossEncoderGraph(TransformerGraph):
    """The graph of a cross-encoder: input_ids [1, tokens] int64 of a pair to logits [1, labels] float32.

    The last of the layers behind the pooling gives the logits. Where the model has several types of tokens, which say
    what belongs to the request and what to the document, token_type_ids [1, tokens] int64 are an input too. Of the last
    layer only the first token is computed, which is the one that is scored: that saves five sixths of the layer.
    """

    _output = "logits"

    def __init__(
        self, tensors: Tensors, shape: EncoderShape, layers: Sequence[Layer], precision: Precision, longest: int = 0
    ) -> None:
        """Compute all nodes and constants; raises MissingExtra where the package onnx is not installed.

        `longest`: how many tokens a pair may have, where these are fewer than the model can read; 0 for all of them.
        """
        self._longest, name = longest or None, "token_types.weight"
        self._types = tensors[name] if name in tensors and len(tensors[name]) > 1 else None
        if self._types is not None:
            self._inputs = ("input_ids", "token_type_ids")
        super().__init__(tensors, shape, "cls", layers, precision)

    def _positions(self) -> Floats:
        if self._types is None:
            return super()._positions()[: self._longest]
        return self._tensors["positions.weight"][self._shape.first_position :][: self._longest]

    def _head_weight(self, weight: Array) -> str:
        """With int8, signed bytes where that saves space; the runtime computes with them in full precision."""
        if not self._quantised or weight.shape[1] < 16:
            return super()._head_weight(weight)
        integers, scales = quantise(weight)
        whole = self._file.node("Cast", self._file.constant(integers), to=self._file.onnx.TensorProto.FLOAT)
        return self._file.node("Mul", whole, self._file.constant(scales))

    def _typed(self, rows: str) -> str:
        if self._types is None:
            return rows
        return self._file.node(
            "Add", rows, self._file.node("Gather", self._file.constant(self._types), "token_type_ids")
        )

    def _layer(self, layer: int, rows: _Rows) -> _Rows:
        if layer != self._shape.layers - 1:
            return super()._layer(layer, rows)
        file, (weight, bias) = self._file, self._attention_weights(layer, rows)
        ends = (self._first, file.constant(np.array([1])), file.constant(np.array([1])))
        first = rows._replace(
            normal=file.node("Slice", rows.normal, *ends), scaled=file.node("Slice", rows.scaled, *ends)
        )
        queries, others = np.split(weight, [self._shape.hidden], axis=1)
        query = self._linear(first.scaled, np.ascontiguousarray(queries), bias[: self._shape.hidden])
        both = self._linear(rows.scaled, np.ascontiguousarray(others), bias[self._shape.hidden :])
        inputs = (query, *file.nodes(2, "Split", both, axis=-1, num_outputs=2))
        seen = file.node("MultiHeadAttention", *inputs, domain=FUSED, num_heads=self._shape.heads)
        return self._behind_attention(layer, first, seen)

    def _finish(self, rows: _Rows, pooling: Pooling, layers: Sequence[Layer]) -> None:
        self._file.result(self._output, "Identity", self._pooled(rows, pooling, layers))


def quantised_words(tensors: Tensors, shape: EncoderShape) -> tuple[Bytes, Floats]:
    """The table of words as signed bytes with one scale per row."""
    integers = np.empty((shape.vocabulary, shape.hidden), np.int8)
    scales = np.empty((shape.vocabulary, 1), np.float32)
    start = 0
    for words in tensors.blocks("words.weight", _BLOCK):
        some = slice(start, start := start + len(words))
        scales[some] = _nonzero(np.abs(words).max(axis=1, keepdims=True) / np.float32(127))
        integers[some] = np.rint(words / scales[some]).astype(np.int8)
    return integers, scales


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
