"""Writes the ONNX graph of a Llama-like language model, node by node: token embeddings in, hidden states out.

Several sequences can run as one row of the batch: each token has its own position, and the attention mask `bias` keeps
the sequences apart. So nothing is padded, and a shared prefix is there once. One token each of several sequences, with
a cache for each, can run as a batch as well.

With 8 bits, weights are quantised in blocks of 64 with one scale each, and activations likewise at run time. Most of
the error comes from two places: the projections to queries, keys and values, whose input has a few very large channels,
so they use blocks of 32; and the last layer, so it stays float32. After its attention only the requested tokens are
computed, so this costs little. (studies/generative_speed.py measures a trained model, studies/lm_latency.py the base.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Floats
from toolscout.errors import BadModel, MissingExtra
from toolscout.models.language.architecture import EMBEDDINGS, HEAD, NORM, Architecture

Bits = Literal[8, 32]
Array = NDArray[Any]

BLOCK, SMALL_BLOCK = 64, 32
# Tokens in one run beyond the context, of other prompts: the operator needs a rotary angle for every column.
ROOM = 1536
_INT8 = 4  # MatMulNBits's accuracy level with int8 activations; at others, every run unpacks all weights
_ROTARY = 16  # heads are rotated in pieces of this size
_FUSED = "com.microsoft"
_OPSET, _FUSED_OPSET, _IR = 21, 1, 10


class OnnxModel(NamedTuple):
    """The graph, and the weights that it refers to by name."""

    graph: bytes
    weights: dict[str, Array]


def write_graph(architecture: Architecture, weights: Mapping[str, Array], bits: Bits) -> OnnxModel:
    """The layers between the embeddings and the output layer.

    Inputs: embeddings [b, t, d], positions [b, t], bias [1, 1, t, total], lengths [b] (past and new tokens, less one),
    total, take [k] (which of the b * t tokens to give back), key_i and value_i [b, heads, past, size].
    Outputs: states [k, d] after the final norm, new_key_i and new_value_i with the new tokens after the past ones.
    Raises BadModel where a weight is missing or has the wrong shape.
    """
    _check(architecture, weights)
    graph = _DecoderGraph(architecture, weights, bits)
    normal, rows = graph.norm("embeddings", "model.layers.0.input_layernorm.weight"), "embeddings"
    for layer in range(architecture.layers):
        normal, rows = graph.layer(layer, normal, rows)
    return graph.finish(normal)


def quantise(weight: Array, block: int = BLOCK) -> tuple[NDArray[np.uint8], Floats]:
    """A weight [outputs, inputs] as bytes around 128, in blocks of inputs with one scale each."""
    outputs, inputs = weight.shape
    blocks = -(-inputs // block)
    padded = np.pad(weight, ((0, 0), (0, blocks * block - inputs))).reshape(outputs, blocks, block)
    scales = np.maximum(padded.max(axis=2), -padded.min(axis=2)) / np.float32(127)
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    padded = padded / scales[..., np.newaxis]
    padded += np.float32(128.5)  # so that the conversion to integers, which truncates, rounds
    return padded.astype(np.uint8), scales


def _check(architecture: Architecture, weights: Mapping[str, Array]) -> None:
    if architecture.head_size % _ROTARY:
        raise BadModel(f"a model with heads of {architecture.head_size} cannot be served, only multiples of {_ROTARY}")
    for name, shape in architecture.shapes().items():
        if name not in (EMBEDDINGS, HEAD) and (name not in weights or weights[name].shape != shape):
            raise BadModel(f"the model's weights lack {name} of the shape {shape}; train or export it again")


class _DecoderGraph:
    """Collects the nodes and constants of the graph; methods return the name of the output that they add."""

    def __init__(self, architecture: Architecture, weights: Mapping[str, Array], bits: Bits) -> None:
        try:
            import onnx
        except ImportError as error:
            raise MissingExtra("serving a language model", "encoder") from error
        self.onnx, self.architecture, self.tensors, self.bits = onnx, architecture, weights, bits
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.outside: dict[str, Array] = {}
        half = np.arange(0, architecture.head_size, 2) / architecture.head_size
        angles = np.outer(np.arange(architecture.context + ROOM), 1 / architecture.theta**half)
        self.turns = [self.constant(turn(angles).astype(np.float32)) for turn in (np.cos, np.sin)]
        self.flat = self.constant(np.array([-1, architecture.hidden]))
        self.flat_heads = self.constant(np.array([-1, architecture.heads * architecture.head_size]))

    def constant(self, value: Array) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def weight(self, value: Array) -> str:
        """A constant that is passed to the runtime separately: inside the file it would be copied several times."""
        name = f"constant_{len(self.constants)}"
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        place = self.onnx.StringStringEntryProto(key="location", value="beside")
        outside = self.onnx.TensorProto.EXTERNAL
        self.constants.append(
            self.onnx.TensorProto(
                name=name, dims=value.shape, data_type=kind, data_location=outside, external_data=[place]
            )
        )
        self.outside[name] = np.ascontiguousarray(value)
        return name

    def node(self, kind: str, *inputs: str, domain: str = "", out: str = "", **attributes: Any) -> str:
        name = out or f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name

    def norm(self, rows: str, name: str) -> str:
        scale = self.constant(self.tensors[name])
        return self.node("SimplifiedLayerNormalization", rows, scale, epsilon=self.architecture.eps, axis=-1)

    def add_norm(self, change: str, rows: str, name: str) -> tuple[str, str]:
        """The names of the normalised sum of both inputs, and of the sum itself."""
        number = len(self.nodes)
        normal, total = f"normal_{number}", f"sum_{number}"
        inputs, outputs = [change, rows, self.constant(self.tensors[name])], [normal, "", "", total]
        kind, epsilon = "SkipSimplifiedLayerNormalization", self.architecture.eps
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, outputs, domain=_FUSED, epsilon=epsilon))
        return normal, total

    def linear(self, rows: str, *names: str) -> str:
        """One product with several weights, concatenated."""
        weight = np.concatenate([self.tensors[name] for name in names])
        last = f"model.layers.{self.architecture.layers - 1}."
        if self.bits == 32 or names[0].startswith(last):
            return self.node("MatMul", rows, self.weight(weight.T))
        outputs, inputs = weight.shape
        block = SMALL_BLOCK if "self_attn.q_proj" in names[0] else BLOCK
        packed, scales = (self.weight(array) for array in quantise(weight, block))
        sizes = {"N": outputs, "K": inputs, "bits": 8, "block_size": block, "accuracy_level": _INT8}
        return self.node("MatMulNBits", rows, packed, scales, domain=_FUSED, **sizes)

    def layer(self, layer: int, normal: str, rows: str) -> tuple[str, str]:
        """Attention and feed-forward: the output normalised for the next layer, and the residual stream."""
        prefix, last = f"model.layers.{layer}.", layer == self.architecture.layers - 1
        parts = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        mixed = self.linear(normal, *(f"{part}.weight" for part in parts))
        if self.architecture.kind == "qwen2":
            bias = np.concatenate([self.tensors[f"{part}.bias"] for part in parts])
            mixed = self.node("Add", mixed, self.constant(bias))
        seen = self.attention(layer, mixed)
        if last:  # from here on, only the requested tokens
            seen = self.node("Gather", self.node("Reshape", seen, self.flat_heads), "take", axis=0)
            rows = self.node("Gather", self.node("Reshape", rows, self.flat), "take", axis=0)
        change = self.linear(seen, f"{prefix}self_attn.o_proj.weight")
        normal, rows = self.add_norm(change, rows, f"{prefix}post_attention_layernorm.weight")
        both = self.linear(normal, f"{prefix}mlp.gate_proj.weight", f"{prefix}mlp.up_proj.weight")
        gate, up = f"gate_{layer}", f"up_{layer}"
        self.nodes.append(self.onnx.helper.make_node("Split", [both], [gate, up], axis=-1, num_outputs=2))
        # With alpha 1, QuickGelu is x * sigmoid(x), which is SiLU.
        wide = self.node("Mul", self.node("QuickGelu", gate, domain=_FUSED, alpha=1.0), up)
        change = self.linear(wide, f"{prefix}mlp.down_proj.weight")
        return self.add_norm(change, rows, NORM if last else f"model.layers.{layer + 1}.input_layernorm.weight")

    def attention(self, layer: int, mixed: str) -> str:
        seen = f"seen_{layer}"
        inputs = [mixed, "", "", f"key_{layer}", f"value_{layer}", "lengths", "total", *self.turns, "positions", "bias"]
        outputs = [seen, f"new_key_{layer}", f"new_value_{layer}"]
        heads: dict[str, Any] = {
            "num_heads": self.architecture.heads,
            "kv_num_heads": self.architecture.kv_heads,
            "do_rotary": 1,
        }
        self.nodes.append(self.onnx.helper.make_node("GroupQueryAttention", inputs, outputs, domain=_FUSED, **heads))
        return seen

    def finish(self, normal: str) -> OnnxModel:
        helper, types, size = self.onnx.helper, self.onnx.TensorProto, self.architecture
        self.node("Identity", normal, out="states")
        info = helper.make_tensor_value_info
        inputs = [
            info("embeddings", types.FLOAT, ["b", "t", size.hidden]),
            info("positions", types.INT64, ["b", "t"]),
            info("bias", types.FLOAT, [1, 1, "t", "total"]),
            info("lengths", types.INT32, ["b"]),
            info("total", types.INT32, []),
            info("take", types.INT64, ["k"]),
        ]
        outputs = [info("states", types.FLOAT, ["k", size.hidden])]
        for layer in range(size.layers):
            for part in ("key", "value"):
                shape = ["b", size.kv_heads, None, size.head_size]
                inputs.append(info(f"{part}_{layer}", types.FLOAT, shape))
                outputs.append(info(f"new_{part}_{layer}", types.FLOAT, shape))
        graph = helper.make_graph(self.nodes, "language model", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_FUSED, _FUSED_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="toolscout")
        return OnnxModel(model.SerializeToString(deterministic=True), self.outside)
