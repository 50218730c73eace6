"""Tiny encoders of every kind that toolscout opens, as folders: ONNX graphs of three architectures, and model2vec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, Metaspace
from tokenizers.processors import TemplateProcessing

Array = NDArray[Any]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:?!-_'"
WORDS = ("find", "the", "weather", "of", "in", "city", "send", "mail", "to", "query", "passage", "forecast", "tool")
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
DIMENSION = 8
INT64, INT32 = TensorProto.INT64, TensorProto.INT32


def wordpiece(special: bool = True) -> Tokenizer:
    """The tokeniser of a BERT; without special tokens a text may have no tokens at all."""
    vocabulary = dict(zip(VOCABULARY, range(len(VOCABULARY)), strict=True))
    made = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = BertNormalizer()
    made.pre_tokenizer = BertPreTokenizer()
    if special:
        made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return made


def unigram() -> Tokenizer:
    """The tokeniser of an XLM-R: <s>, text, </s>."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -1.0) for word in WORDS] + [(letter, -4.0) for letter in LETTERS]
    made = Tokenizer(Unigram(pieces, unk_id=3))
    made.pre_tokenizer = Metaspace()
    made.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return made


def table(rows: int = len(VOCABULARY), dimension: int = DIMENSION, seed: int = 0) -> Array:
    """Random rows, one a token."""
    return np.random.default_rng(seed).normal(0, 1, (rows, dimension)).astype(np.float32)


def graph(
    rows: Array,
    inputs: Mapping[str, int] | None = None,
    output: str = "last_hidden_state",
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A graph that looks up the row of each token and adds 0.1 for each of the other inputs; [1, n] in, [1, n, d] out.

    With `output` "sentence_embedding" it gives the mean of all that, [1, d].
    """
    inputs = inputs or {"input_ids": INT64, "attention_mask": INT64, "token_type_ids": INT64}
    nodes = [helper.make_node("Gather", ["table", next(iter(inputs))], ["row"])]
    last = "row"
    for name in list(inputs)[1:]:
        nodes += [
            helper.make_node("Cast", [name], [f"{name}_f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}_f", "tenth"], [f"{name}_m"]),
            helper.make_node("Unsqueeze", [f"{name}_m", "two"], [f"{name}_u"]),
            helper.make_node("Add", [last, f"{name}_u"], [f"{name}_sum"]),
        ]
        last = f"{name}_sum"
    shape: list[Any] = [1, "n", rows.shape[1]]
    if output == "sentence_embedding":
        nodes.append(helper.make_node("ReduceMean", [last], ["mean"], axes=[1], keepdims=0))
        last, shape = "mean", [1, rows.shape[1]]
    nodes.append(helper.make_node("Cast", [last], [output], to=dtype))
    weights = [
        numpy_helper.from_array(rows, "table"),
        numpy_helper.from_array(np.array(0.1, np.float32), "tenth"),
        numpy_helper.from_array(np.array([2], np.int64), "two"),
    ]
    taken = [helper.make_tensor_value_info(name, kind, [1, "n"]) for name, kind in inputs.items()]
    given = [helper.make_tensor_value_info(output, dtype, shape)]
    made = helper.make_graph(nodes, "tiny", taken, given, weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_json(folder: Path, files: Mapping[str, Any]) -> None:
    """Write JSON files by their paths in the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def onnx_folder(
    folder: Path,
    model: onnx.ModelProto | None = None,
    tokenizer: Tokenizer | None = None,
    file: str = "onnx/model.onnx",
    files: Mapping[str, Any] | None = None,
) -> Path:
    """A Hugging Face folder with one ONNX file; `files` are the JSON files that say how vectors are made."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes((model or graph(table())).SerializeToString())
    (tokenizer or wordpiece()).save(str(folder / "tokenizer.json"))
    write_json(folder, {"config.json": {"model_type": "bert", "hidden_size": DIMENSION}, **(files or {})})
    return folder


def sentence_files(
    pooling: str = "mean", dense: Sequence[str] = (), prompts: Mapping[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """The JSON files of sentence-transformers; `dense` are folders of linear layers."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *(("Dense", name) for name in dense), ("Normalize", "9")]
    names = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
    return {
        "modules.json": [
            {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for place, (kind, path) in enumerate(kinds)
        ],
        "1_Pooling/config.json": {names[pooling]: True, "word_embedding_dimension": DIMENSION},
        "config_sentence_transformers.json": {"prompts": dict(prompts or {}), **more},
    }


def safetensors(tensors: Mapping[str, Array]) -> bytes:
    """A safetensors file of arrays of any type."""
    kinds = {"f4": "F32", "f2": "F16", "i1": "I8", "i8": "I64", "i4": "I32", "f8": "F64"}
    header: dict[str, Any] = {}
    body = b""
    for name, value in tensors.items():
        data = value.tobytes()
        place = [len(body), len(body) + len(data)]
        header[name] = {"dtype": kinds[value.dtype.str[1:]], "shape": list(value.shape), "data_offsets": place}
        body += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def dense_folder(folder: Path, weight: Array, bias: Array | None, activation: str = "Tanh") -> Path:
    """A linear layer as sentence-transformers writes it."""
    about = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": bias is not None}
    write_json(folder, {"config.json": {**about, "activation_function": f"torch.nn.modules.activation.{activation}"}})
    tensors = {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias})
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return folder


def static_folder(
    folder: Path,
    rows: Array | None = None,
    tokenizer: Tokenizer | None = None,
    config: Mapping[str, Any] | None = None,
    **tensors: Array,
) -> Path:
    """A model2vec folder; `tensors` may be `weights` and `mapping`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = table() if rows is None else rows
    (folder / "model.safetensors").write_bytes(safetensors({"embeddings": rows, **tensors}))
    (tokenizer or wordpiece()).save(str(folder / "tokenizer.json"))
    write_json(folder, {"config.json": {"model_type": "model2vec", "normalize": True, **(config or {})}})
    return folder
