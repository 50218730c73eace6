"""Hugging Face folders with ONNX files: every architecture, what the folder's files say, and every folder refused."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from tests.models import tiny_encoders as tiny
from toolscout.errors import BadModel
from toolscout.models.encoders.hf_onnx import HfOnnxEncoder, choose_file, cpu_features
from toolscout.models.encoders.onnx_file import read_weights
from toolscout.models.encoders.settings import EncoderSettings

TEXTS = ["find the weather of a city", "send mail", "?", ""]
BERT = {"input_ids": tiny.INT64, "attention_mask": tiny.INT64, "token_type_ids": tiny.INT64}
ROBERTA = {"input_ids": tiny.INT64, "attention_mask": tiny.INT64}
DECODER = {"input_ids": tiny.INT32, "attention_mask": tiny.INT32, "position_ids": tiny.INT32}


def unit(vector: tiny.Array) -> tiny.Array:
    return vector / np.linalg.norm(vector)


def tokens_of(text: str, inputs: Mapping[str, int], first: int = 0, special: bool = True) -> tiny.Array:
    """What the tiny graph gives: the row of each token, and 0.1 for each mask and position."""
    ids = tiny.wordpiece(special).encode(text).ids
    rows: tiny.Array = tiny.table()[ids] + 0.1
    if "position_ids" in inputs:
        rows = rows + 0.1 * np.arange(first, first + len(ids))[:, None]
    return rows


@pytest.mark.parametrize("inputs", [BERT, ROBERTA, DECODER, {"input_ids": tiny.INT64}], ids=len)
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_token_vectors_are_pooled_as_the_folder_says(tmp_path: Path, inputs: dict[str, int], pooling: str) -> None:
    model = tiny.graph(tiny.table(), inputs)
    encoder = HfOnnxEncoder.load(tiny.onnx_folder(tmp_path, model, files=tiny.sentence_files(pooling)))
    pool = {"mean": lambda rows: rows.mean(axis=0), "cls": lambda rows: rows[0], "last": lambda rows: rows[-1]}[pooling]
    shift = 0.0 if "attention_mask" in inputs else 0.1
    expected = np.stack([unit(pool(tokens_of(text, inputs) - shift)) for text in TEXTS])
    assert encoder.encode(TEXTS) == pytest.approx(expected, abs=1e-6)
    assert np.stack([encoder.encode_request(text) for text in TEXTS]) == pytest.approx(expected, abs=1e-6)
    assert (encoder.dimension, encoder.folder, encoder.name) == (tiny.DIMENSION, tmp_path, tmp_path.name)
    assert encoder.parameters == tiny.table().size + 1
    assert encoder.details()["pooling"] == pooling


def test_a_sentence_vector_is_taken_as_it_is(tmp_path: Path) -> None:
    ready = tiny.onnx_folder(
        tmp_path / "ready", tiny.graph(tiny.table(), output="sentence_embedding"), files=tiny.sentence_files("cls")
    )
    encoder = HfOnnxEncoder.load(ready)
    assert encoder.encode_request(TEXTS[0]) == pytest.approx(unit(tokens_of(TEXTS[0], BERT).mean(axis=0)), abs=1e-6)
    assert encoder.details()["pooling"] == "by the model"
    with pytest.raises(BadModel, match=r"gives sentence_embedding; wanted: .* which pooling=… pools"):
        HfOnnxEncoder.load(ready, settings=EncoderSettings(pooling="mean"))


def test_asked_for_a_pooling_it_pools_although_there_is_a_sentence_vector(tmp_path: Path) -> None:
    model = tiny.graph(tiny.table())
    model.graph.node.append(helper.make_node("ReduceMax", ["last_hidden_state"], ["most"], axes=[1], keepdims=0))
    model.graph.node.append(helper.make_node("Identity", ["most"], ["sentence_embedding"]))
    shape = [1, tiny.DIMENSION]
    model.graph.output.append(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, shape))
    folder = tiny.onnx_folder(tmp_path, model)
    rows = tokens_of(TEXTS[0], BERT)
    assert HfOnnxEncoder.load(folder).encode_request(TEXTS[0]) == pytest.approx(unit(rows.max(axis=0)), abs=1e-6)
    pooled = HfOnnxEncoder.load(folder, settings=EncoderSettings(pooling="last"))
    assert pooled.encode_request(TEXTS[0]) == pytest.approx(unit(rows[-1]), abs=1e-6)


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    folder = tiny.onnx_folder(tmp_path, tiny.graph(tiny.table(), dtype=TensorProto.FLOAT16))
    vector = HfOnnxEncoder.load(folder).encode_request(TEXTS[0])
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    assert vector == pytest.approx(unit(tokens_of(TEXTS[0], BERT).mean(axis=0)), abs=2e-3)


def test_positions_of_a_roberta_begin_behind_padding(tmp_path: Path) -> None:
    files = {"config.json": {"model_type": "xlm-roberta", "hidden_size": tiny.DIMENSION}}
    folder = tiny.onnx_folder(tmp_path, tiny.graph(tiny.table(), DECODER), files=files)
    expected = unit(tokens_of(TEXTS[0], DECODER, first=2).mean(axis=0))
    assert HfOnnxEncoder.load(folder).encode_request(TEXTS[0]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("activation", ["Tanh", "Identity", "ReLU"])
def test_dense_layers_follow_the_pooling(tmp_path: Path, activation: str) -> None:
    one, two = tiny.table(5, tiny.DIMENSION, 1), tiny.table(6, 5, 2)
    bias = tiny.table(1, 5, 3)[0]
    folder = tiny.onnx_folder(tmp_path, files=tiny.sentence_files(dense=["2_Dense", "3_Dense"]))
    tiny.dense_folder(folder / "2_Dense", one, bias, activation)
    tiny.dense_folder(folder / "3_Dense", two, None, "Identity")
    function = {"Tanh": np.tanh, "Identity": np.array, "ReLU": lambda values: values.clip(0)}[activation]
    pooled = tokens_of(TEXTS[0], BERT).mean(axis=0)
    encoder = HfOnnxEncoder.load(folder)
    assert encoder.dimension == 6
    assert encoder.encode_request(TEXTS[0]) == pytest.approx(unit(two @ function(one @ pooled + bias)), abs=1e-6)
    tiny.dense_folder(folder / "2_Dense", one, bias * 2, activation)
    assert HfOnnxEncoder.load(folder).fingerprint != encoder.fingerprint


def test_bad_dense_layers_are_refused(tmp_path: Path) -> None:
    folder = tiny.onnx_folder(tmp_path, files=tiny.sentence_files(dense=["2_Dense"]))
    layer = folder / "2_Dense"
    with pytest.raises(BadModel, match=r"2_Dense has no model\.safetensors"):
        HfOnnxEncoder.load(folder)
    tiny.dense_folder(layer, tiny.table(3, 5), None)
    with pytest.raises(BadModel, match="takes 5 numbers, not 8"):
        HfOnnxEncoder.load(folder)
    tiny.dense_folder(layer, tiny.table(3), None, "Mish")
    with pytest.raises(BadModel, match="activation Mish is not supported, only: Identity, Tanh, ReLU"):
        HfOnnxEncoder.load(folder)
    tiny.dense_folder(layer, tiny.table(3) * np.nan, None)
    with pytest.raises(BadModel, match="cannot be computed"):
        HfOnnxEncoder.load(folder)
    tiny.dense_folder(layer, tiny.table(3), None)
    about = json.loads((layer / "config.json").read_text())
    for change, why in (
        ({"module_input_name": "token_embeddings"}, "of token vectors"),
        ({"use_residual": True}, "with a residual"),
        ({"bias": True}, r"lacks linear\.weight or linear\.bias"),
    ):
        tiny.write_json(layer, {"config.json": about | change})
        with pytest.raises(BadModel, match=why):
            HfOnnxEncoder.load(folder)


def test_prompts_limits_and_dimensions_come_from_the_folder(tmp_path: Path) -> None:
    files = {
        **tiny.sentence_files(prompts={"query": "query: ", "document": "passage: "}, truncate_dim=3),
        "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
    }
    encoder = HfOnnxEncoder.load(tiny.onnx_folder(tmp_path, files=files))
    assert (encoder.dimension, encoder.request_tokens, encoder.document_tokens) == (3, 20, 20)
    asked = unit(tokens_of("query: mail", BERT).mean(axis=0)[:3])
    assert encoder.encode_request("MAIL") == pytest.approx(asked, abs=1e-6)
    ((_, rows),) = encoder.encode_documents(["mail"])
    assert rows[0] == pytest.approx(unit(tokens_of("passage: mail", BERT).mean(axis=0)[:3]), abs=1e-6)


def test_settings_of_the_user_come_first(tmp_path: Path) -> None:
    files = tiny.sentence_files(prompts={"query": "query: "}, truncate_dim=3)
    files["sentence_bert_config.json"] = {"max_seq_length": 40}
    folder = tiny.onnx_folder(tmp_path, files=files)
    settings = EncoderSettings("last", "", "passage: ", 10, 12, 5)
    encoder = HfOnnxEncoder.load(folder, settings=settings)
    assert encoder.encode_request("mail") == pytest.approx(unit(tokens_of("mail", BERT)[-1][:5]), abs=1e-6)
    assert encoder.details() == {
        "name": tmp_path.name,
        "kind": "onnx",
        "file": "onnx/model.onnx",
        "pooling": "last",
        "request_prompt": "",
        "document_prompt": "passage: ",
        "request_tokens": 10,
        "document_tokens": 12,
    }
    for wrong, why in (
        (EncoderSettings(document_tokens=41), "reads at most 40 tokens of a text; set document_tokens to that or less"),
        (EncoderSettings(dimensions=9), "gives 8 numbers a vector, not 9"),
        (EncoderSettings(request_prompt="find the weather of", request_tokens=6), "raise request_tokens"),
        (EncoderSettings(file="model.onnx"), r"has no model\.onnx; its ONNX files: onnx/model\.onnx"),
    ):
        with pytest.raises(BadModel, match=why):
            HfOnnxEncoder.load(folder, settings=wrong)


def test_long_texts_are_cut_and_keep_what_closes_them(tmp_path: Path) -> None:
    words = " ".join(["mail"] * 500)
    closed = HfOnnxEncoder.load(tiny.onnx_folder(tmp_path / "a"), settings=EncoderSettings(request_tokens=10))
    assert closed._tokens(words, 10) == tiny.wordpiece().encode(" ".join(["mail"] * 8)).ids
    open_ended = HfOnnxEncoder.load(tiny.onnx_folder(tmp_path / "b", tokenizer=tiny.wordpiece(special=False)))
    assert open_ended._tokens("find " + words, 3) == tiny.wordpiece(False).encode("find mail mail").ids


def test_a_text_without_tokens_works(tmp_path: Path) -> None:
    folder = tiny.onnx_folder(tmp_path, tiny.graph(tiny.table(), DECODER), tiny.wordpiece(special=False))
    for text in ("", " ", "\x00"):
        vector = HfOnnxEncoder.load(folder).encode_request(text)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("kind", ["bert", "xlm"])
def test_any_text_has_a_vector(tmp_path: Path, kind: str) -> None:
    tokenizer = tiny.wordpiece() if kind == "bert" else tiny.unigram()
    files = {"sentence_bert_config.json": {"do_lower_case": True}}
    encoder = HfOnnxEncoder.load(tiny.onnx_folder(tmp_path, tokenizer=tokenizer, files=files))
    odd = [
        "\ud800",
        "mail \udfff",
        "שלום עולם",
        "مرحبا",
        "e\u0301\u0323" * 50,
        "🛠" * 500,
        "日本語" * 999,
        "\u202e x",
        "İ",
    ]
    for text in odd:
        assert np.linalg.norm(encoder.encode_request(text)) == pytest.approx(1, abs=1e-5)
    started = time.perf_counter()
    encoder.encode_request("mail " * 20_000)
    assert time.perf_counter() - started < 5


def test_documents_stream_and_do_not_depend_on_each_other(tmp_path: Path) -> None:
    encoder = HfOnnxEncoder.load(tiny.onnx_folder(tmp_path), threads=2)
    texts = [f"mail {number}" for number in range(100)]
    found = np.zeros((100, tiny.DIMENSION), np.float32)
    for positions, rows in encoder.encode_documents(texts):
        found[positions] = rows
    assert np.array_equal(found, np.stack([encoder.encode_request(text) for text in texts]))
    encoder.use_threads(1)
    assert np.array_equal(encoder.encode(texts), found)
    assert encoder.encode([]).shape == (0, tiny.DIMENSION)


def test_two_encoders_of_a_folder_share_the_model(tmp_path: Path) -> None:
    folder = tiny.onnx_folder(tmp_path)
    one, other = HfOnnxEncoder.load(folder), HfOnnxEncoder.load(folder, settings=EncoderSettings(dimensions=4))
    assert one._model is other._model
    assert one.fingerprint != other.fingerprint


def test_the_fingerprint_covers_all_that_a_vector_depends_on(tmp_path: Path) -> None:
    folder = tiny.onnx_folder(tmp_path / "a", files=tiny.sentence_files())
    same = tiny.onnx_folder(tmp_path / "b", files=tiny.sentence_files())
    first = HfOnnxEncoder.load(folder).fingerprint
    assert HfOnnxEncoder.load(same).fingerprint == first
    changes = [
        EncoderSettings(pooling="cls"),
        EncoderSettings(request_prompt="q"),
        EncoderSettings(document_prompt="q"),
        EncoderSettings(request_tokens=100),
        EncoderSettings(document_tokens=100),
        EncoderSettings(dimensions=4),
    ]
    found = {HfOnnxEncoder.load(folder, settings=one).fingerprint for one in changes}
    (same / "onnx" / "model.onnx").write_bytes(tiny.graph(tiny.table(seed=1)).SerializeToString())
    found.add(HfOnnxEncoder.load(same).fingerprint)
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")
    found.add(HfOnnxEncoder.load(folder).fingerprint)
    assert len(found | {first}) == 9


def test_weights_in_files_beside_the_graph_count(tmp_path: Path) -> None:
    folder = tiny.onnx_folder(tmp_path / "a")
    for seed in (1, 2):
        model = tiny.graph(tiny.table(seed=seed))
        external_data_helper.convert_model_to_external_data(model, location="model.onnx_data", size_threshold=1024)
        (folder / "onnx" / "model.onnx_data").unlink(missing_ok=True)
        onnx.save(model, folder / "onnx" / "model.onnx")
        assert read_weights(folder / "onnx" / "model.onnx") == (tiny.table().size + 1, ("model.onnx_data",))
        encoder = HfOnnxEncoder.load(folder)
        ids = tiny.wordpiece().encode("mail").ids
        expected = unit((tiny.table(seed=seed)[ids] + 0.1).mean(axis=0))
        assert encoder.encode_request("mail") == pytest.approx(expected, abs=1e-6)
        if seed == 1:
            first = encoder.fingerprint
    assert encoder.fingerprint != first
    (folder / "onnx" / "model.onnx_data").unlink()
    with pytest.raises(BadModel, match=r"model\.onnx_data cannot be read"):
        HfOnnxEncoder.load(folder)


def test_weights_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    model = tiny.graph(tiny.table())
    external_data_helper.set_external_data(model.graph.initializer[0], "../secret")
    with pytest.raises(BadModel, match="names weights outside of its folder"):
        HfOnnxEncoder.load(tiny.onnx_folder(tmp_path, model))


VNNI, AVX512, AVX2, ARM = {"avx2", "avx512f", "avx512_vnni"}, {"avx2", "avx512f"}, {"avx2"}, {"arm64"}
PUBLISHED = ("model", "model_O2", "model_O4", "model_qint8_arm64", "model_qint8_avx512", "model_qint8_avx512_vnni")


@pytest.mark.parametrize(
    ("names", "features", "chosen"),
    [
        ((*PUBLISHED, "model_quint8_avx2"), VNNI, "model_qint8_avx512_vnni"),
        ((*PUBLISHED, "model_quint8_avx2"), AVX512, "model_qint8_avx512"),
        ((*PUBLISHED, "model_quint8_avx2"), AVX2, "model_quint8_avx2"),
        ((*PUBLISHED, "model_quint8_avx2"), ARM, "model_qint8_arm64"),
        (("model", "model_qint8_arm64"), AVX2, "model"),
        (("model_qint8_arm64",), AVX2, "model_qint8_arm64"),
        (("model", "model_fp16", "model_q4", "model_quantized", "model_int8"), VNNI, "model_quantized"),
        (("model", "model_fp16", "model_q4", "model_bnb4"), VNNI, "model"),
        (("model_fp16", "decoder"), VNNI, "model_fp16"),
        (("encoder",), VNNI, "encoder"),
    ],
)
def test_the_file_that_fits_the_cpu_is_taken(
    tmp_path: Path, names: tuple[str, ...], features: set[str], chosen: str
) -> None:
    (tmp_path / "onnx").mkdir()
    for name in names:
        (tmp_path / "onnx" / f"{name}.onnx").touch()
    assert choose_file(tmp_path, features=features) == f"onnx/{chosen}.onnx"
    assert choose_file(tmp_path, f"onnx/{names[0]}.onnx") == f"onnx/{names[0]}.onnx"


def test_no_telling_which_file(tmp_path: Path) -> None:
    for name in ("text", "vision"):
        (tmp_path / f"{name}.onnx").touch()
    with pytest.raises(BadModel, match=r"name one with FOLDER\?file=…: text\.onnx, vision\.onnx"):
        choose_file(tmp_path)
    assert isinstance(cpu_features(), frozenset)


def refused(folder: Path, why: str) -> None:
    with pytest.raises(BadModel, match=why):
        HfOnnxEncoder.load(folder)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"tokens": tiny.INT64}, r"takes tokens \(tensor\(int64\)\); supported are, as int64 or int32: input_ids, att"),
        ({"input_ids": tiny.INT64, "task_id": tiny.INT64}, "task_id"),
        ({"input_ids": tiny.INT64, "attention_mask": TensorProto.FLOAT}, r"attention_mask \(tensor\(float\)\)"),
        ({"input_ids": tiny.INT64, "past_key_values.0.key": tiny.INT64}, "writes text with a cache"),
    ],
)
def test_other_inputs_are_refused(tmp_path: Path, inputs: dict[str, int], why: str) -> None:
    refused(tiny.onnx_folder(tmp_path, tiny.graph(tiny.table(), inputs)), why)


def test_other_outputs_are_refused(tmp_path: Path) -> None:
    refused(tiny.onnx_folder(tmp_path, tiny.graph(tiny.table(), output="logits")), "gives logits; wanted: sentence_emb")


def test_vectors_of_another_length_than_said_are_refused(tmp_path: Path) -> None:
    said = {"config.json": {"hidden_size": 12}}
    refused(tiny.onnx_folder(tmp_path / "a", files=said), "vectors of 8 numbers, the configuration says 12")
    ready = tiny.graph(tiny.table(dimension=6), output="sentence_embedding")
    folder = tiny.onnx_folder(tmp_path / "b", ready, files=tiny.sentence_files())
    refused(folder, "vectors of 6 numbers, the configuration says 8")


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_vectors_without_a_direction_are_refused(tmp_path: Path, value: float) -> None:
    rows = tiny.table()
    rows[tiny.VOCABULARY.index("mail")] = value
    folder = tiny.onnx_folder(
        tmp_path,
        tiny.graph(rows, {"input_ids": tiny.INT64}),
        files=tiny.sentence_files("cls"),
        tokenizer=tiny.wordpiece(False),
    )
    encoder = HfOnnxEncoder.load(folder)
    assert np.isfinite(encoder.encode_request("find")).all()
    with pytest.raises(BadModel, match="zero or not finite"):
        encoder.encode_request("mail")
    (folder / "onnx" / "model.onnx").write_bytes(tiny.graph(rows * np.nan).SerializeToString())
    with pytest.raises(BadModel, match="zero or not finite"):
        HfOnnxEncoder.load(folder)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    refused(
        tiny.onnx_folder(tmp_path, tiny.graph(tiny.table(50))), r"has a token 104 and the model does not; get the tok"
    )


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_cut_file_is_refused(tmp_path: Path, keep: float) -> None:
    folder = tiny.onnx_folder(tmp_path)
    path = folder / "onnx" / "model.onnx"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep if keep >= 1 else keep * len(content))])
    refused(folder, r"model\.onnx")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    folder = tiny.onnx_folder(tmp_path)
    (folder / "onnx" / "model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused(folder, r"model\.onnx is no ONNX file, or is cut off")


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1"])
def test_a_folder_without_tokenizer_is_refused(tmp_path: Path, content: bytes | None) -> None:
    folder = tiny.onnx_folder(tmp_path)
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / "tokenizer.json").write_bytes(content)
    refused(folder, r"tokenizer\.json")


def test_a_graph_that_cannot_take_one_text_is_refused(tmp_path: Path) -> None:
    model = tiny.graph(tiny.table())
    for one in model.graph.input:
        one.type.tensor_type.shape.dim[1].dim_value = 128
    refused(tiny.onnx_folder(tmp_path, model), "cannot be run on a text of")


def test_what_is_open_goes_on_when_the_folder_is_removed_or_replaced(tmp_path: Path) -> None:
    folder = tiny.onnx_folder(tmp_path / "a")
    encoder = HfOnnxEncoder.load(folder, threads=1)
    before = encoder.encode_request("mail")
    shutil.rmtree(folder)
    assert np.array_equal(encoder.encode_request("mail"), before)
    encoder.use_threads(2)
    with pytest.raises(BadModel, match=r"model\.onnx cannot be read"):
        encoder.encode_request("mail")
    tiny.onnx_folder(folder, tiny.graph(tiny.table(seed=5)))
    with pytest.raises(BadModel, match="sha256 differs"):
        encoder.encode_request("mail")
    after = HfOnnxEncoder.load(folder, threads=1)
    assert after.fingerprint != encoder.fingerprint
    assert not np.allclose(after.encode_request("mail"), before)


def test_parameters_are_counted_without_the_onnx_package(tmp_path: Path) -> None:
    model = tiny.graph(tiny.table())
    for name, kind in (("quantised", np.int8), ("half", np.float16), ("indices", np.int64)):
        model.graph.initializer.append(numpy_helper.from_array(np.zeros((3, 5), kind), name))
    (tmp_path / "x.onnx").write_bytes(model.SerializeToString())
    assert read_weights(tmp_path / "x.onnx") == (tiny.table().size + 1 + 30, ())


def oracle_cases() -> list[Any]:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    distil = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    modern = {"global_attn_every_n_layers": 1, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    return [
        pytest.param("Bert", small, "mean", id="bert"),
        pytest.param("Roberta", small | {"type_vocab_size": 1}, "mean", id="roberta"),
        pytest.param("XLMRoberta", small | {"type_vocab_size": 1}, "cls", id="xlm-roberta"),
        pytest.param("DistilBert", distil, "mean", id="distilbert"),
        pytest.param("MPNet", small, "mean", id="mpnet"),
        pytest.param("ModernBert", small | modern, "cls", id="modernbert"),
        pytest.param("Qwen3", small | {"num_key_value_heads": 1, "head_dim": 8}, "last", id="qwen3"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sizes", "pooling"), oracle_cases())
@pytest.mark.filterwarnings("ignore")  # of torch's exporter
def test_vectors_are_those_of_transformers(tmp_path: Path, family: str, sizes: dict[str, Any], pooling: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    tokenizer = tiny.unigram() if family in ("XLMRoberta", "Qwen3") else tiny.wordpiece()
    config = getattr(transformers, f"{family}Config")(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=80, **sizes
    )
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}Model")(config).eval()
    names = ["input_ids", "attention_mask"]

    class Plain(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            more = {"use_cache": False} if family == "Qwen3" else {}
            return self.inner(input_ids=input_ids, attention_mask=attention_mask, **more).last_hidden_state

    plain = Plain().eval()
    folder = tiny.onnx_folder(
        tmp_path, tokenizer=tokenizer, files={**tiny.sentence_files(pooling), "config.json": config.to_dict()}
    )
    tiny.write_json(folder, {"1_Pooling/config.json": {"pooling_mode": {"last": "lasttoken"}.get(pooling, pooling)}})
    sample = torch.tensor([tokenizer.encode(TEXTS[0]).ids])
    torch.onnx.export(
        plain,
        (sample, torch.ones_like(sample)),
        str(folder / "onnx" / "model.onnx"),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes={
            **{name: {0: "batch", 1: "length"} for name in names},
            "last_hidden_state": {0: "batch", 1: "length"},
        },
        opset_version=17,
        dynamo=False,
    )
    encoder = HfOnnxEncoder.load(folder)
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            rows = plain(ids, torch.ones_like(ids))[0].numpy()
        expected = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pooling]
        assert encoder.encode_request(text) == pytest.approx(unit(expected), abs=1e-4)
