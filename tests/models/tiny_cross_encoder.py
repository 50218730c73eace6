"""A cross-encoder of a few nodes: the logit of a pair is the number of words that request and document share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from tests.toys import WORDS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
VOCABULARY = [*SPECIAL, *WORDS, "lion", "dinner", "elephant", "zoo", "gives", "brushes", "the", "a", "weather_report"]


def tokenizer() -> Tokenizer:
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.normalizer = Lowercase()
    made.pre_tokenizer = Sequence([WhitespaceSplit(), Split("_", "removed")])
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.enable_truncation(8)  # what a file says of truncation does not count
    made.enable_padding(length=40)
    return made


def cross_encoder(
    folder: Path,
    *,
    labels: int = 1,
    whole: int = TensorProto.INT64,
    names: tuple[str, str, str] = ("input_ids", "token_type_ids", "attention_mask"),
    factor: float = 1.0,
    where: str = "onnx/model.onnx",
    config: dict[str, Any] | None = None,
) -> Path:
    """Write the folder. `factor`: by which a logit is multiplied; nan for a model that is broken."""
    (folder / where).parent.mkdir(parents=True, exist_ok=True)
    ids, types, mask = names
    constants = {
        "special": np.array([len(SPECIAL) - 1]),
        "ones": np.array([1]),
        "asked": np.array([2]),
        "all": np.array([1, 2]),
        "factor": np.array([[factor] if labels == 1 else [[-factor, 2 * factor] + [0.0] * 9][0][:labels]], np.float32),
    }
    nodes = [
        helper.make_node("Cast", [ids], ["ids"], to=TensorProto.INT64),
        helper.make_node("Cast", [types], ["types"], to=TensorProto.INT64),
        helper.make_node("Cast", [mask], ["mask"], to=TensorProto.INT64),
        helper.make_node("Greater", ["ids", "special"], ["words"]),
        helper.make_node("Equal", ["types", "ones"], ["second"]),
        helper.make_node("Not", ["second"], ["first"]),
        helper.make_node("Equal", ["mask", "ones"], ["real"]),
        helper.make_node("And", ["words", "first"], ["of_request"]),
        helper.make_node("And", ["second", "real"], ["of_document"]),
        helper.make_node("Unsqueeze", ["ids", "asked"], ["down"]),
        helper.make_node("Unsqueeze", ["ids", "ones"], ["across"]),
        helper.make_node("Unsqueeze", ["of_request", "asked"], ["rows"]),
        helper.make_node("Unsqueeze", ["of_document", "ones"], ["columns"]),
        helper.make_node("Equal", ["down", "across"], ["same"]),
        helper.make_node("And", ["rows", "columns"], ["pairs"]),
        helper.make_node("And", ["same", "pairs"], ["shared"]),
        helper.make_node("Cast", ["shared"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["numbers", "all"], ["count"], keepdims=0),
        helper.make_node("Unsqueeze", ["count", "ones"], ["column"]),
        helper.make_node("Mul", ["column", "factor"], ["logits"]),
    ]
    inputs = [helper.make_tensor_value_info(name, whole, ["batch", "tokens"]) for name in names]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", labels])]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(folder / where))
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "bert", "max_position_embeddings": 512, **(config or {})})
    )
    return folder
