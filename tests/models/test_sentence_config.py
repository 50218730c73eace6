"""The configuration files of sentence-transformers: what is read, what is assumed, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_encoders import sentence_files, write_json
from toolscout.errors import BadModel
from toolscout.models.encoders.sentence_config import SentenceConfig, read_sentence_config
from toolscout.models.encoders.settings import EncoderSettings

SENTENCE = "config_sentence_transformers.json"


def read(folder: Path, **files: Any) -> SentenceConfig:
    write_json(folder, {name.replace("__", "/") + ".json": content for name, content in files.items()})
    return read_sentence_config(folder)


def test_an_empty_folder_takes_the_mean(tmp_path: Path) -> None:
    assert read_sentence_config(tmp_path) == SentenceConfig()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_the_files_are_read(tmp_path: Path, pooling: str) -> None:
    files = sentence_files(pooling, ["2_Dense"], {"query": "q: ", "passage": "p: "}, truncate_dim=4)
    write_json(tmp_path, {**files, "2_Dense/config.json": {"out_features": 5}})
    found = read(tmp_path, sentence_bert_config={"max_seq_length": 256, "do_lower_case": True})
    assert found.pooling == pooling
    assert (found.request_prompt, found.document_prompt) == ("q: ", "p: ")
    assert (found.max_tokens, found.dimensions, found.lowercase) == (256, 4, True)
    assert (found.token_dimension, found.sentence_dimension) == (8, 5)
    assert found.dense == (tmp_path / "2_Dense",)
    changed = found.with_settings(EncoderSettings(pooling="cls", request_prompt="", document_tokens=9))
    assert (changed.pooling, changed.request_prompt, changed.document_prompt) == ("cls", "", "p: ")


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": False}, "mean"),
    ],
)
def test_pooling_of_old_and_new_files(tmp_path: Path, config: dict[str, Any], pooling: str) -> None:
    assert read(tmp_path, **{"1_Pooling__config": config}).pooling == pooling


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode": "max"},
        {"pooling_mode": ["mean", "cls"]},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode_weightedmean_tokens": True},
    ],
)
def test_other_poolings_are_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(BadModel, match="is not supported, only: mean, cls, lasttoken"):
        read(tmp_path, **{"1_Pooling__config": config})


@pytest.mark.parametrize(
    ("name", "prompts", "default", "wanted"),
    [
        ("any", {"query": "q ", "document": "d "}, None, ("q ", "d ")),
        ("any", {"retrieval.query": "q ", "retrieval.passage": "d "}, None, ("q ", "d ")),
        ("any", {"s2p_query": "q ", "s2s_query": "s "}, None, ("q ", "")),
        ("any", {"query": "q ", "other": "o "}, "other", ("q ", "o ")),
        ("any", {"query": "", "document": ""}, None, ("", "")),
        ("any", {}, "missing", ("", "")),
        ("e5-small-v2", {"query": "", "document": ""}, None, ("query: ", "passage: ")),
        ("multilingual-e5-large", {}, None, ("query: ", "passage: ")),
        ("multilingual-e5-large-instruct", {}, None, ("", "")),
        ("e5-small", {"query": "mine "}, None, ("mine ", "")),
        ("nomic-embed-text-v1.5", {}, None, ("search_query: ", "search_document: ")),
        ("file5-model", {}, None, ("", "")),
        ("models--intfloat--e5-base/snapshots/0123abcd", {}, None, ("query: ", "passage: ")),
    ],
)
def test_prompts(
    tmp_path: Path, name: str, prompts: dict[str, str], default: str | None, wanted: tuple[str, str]
) -> None:
    write_json(tmp_path / name, {SENTENCE: {"prompts": prompts, "default_prompt_name": default}})
    found = read_sentence_config(tmp_path / name)
    assert (found.request_prompt, found.document_prompt) == wanted


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"sentence_bert_config": {"max_seq_length": 128}, "tokenizer_config": {"model_max_length": 512}}, 128),
        ({"tokenizer_config": {"model_max_length": 512}}, 512),
        ({"tokenizer_config": {"model_max_length": 10**30}}, None),
        ({"sentence_bert_config": {"max_seq_length": None}, "config": {"max_position_embeddings": 512}}, 512),
        ({"config": {"max_position_embeddings": 514, "model_type": "xlm-roberta"}}, 512),
        ({"sentence_bert_config": {"max_seq_length": 600}, "config": {"max_position_embeddings": 512}}, 512),
        ({"config": {"n_positions": 2048}}, 2048),
        ({"config": {"max_position_embeddings": -1}}, None),
        ({"sentence_bert_config": {"max_seq_length": "128"}}, None),
        ({"sentence_bert_config": {"max_seq_length": True}}, None),
    ],
)
def test_how_many_tokens_are_read(tmp_path: Path, files: dict[str, Any], most: int | None) -> None:
    assert read(tmp_path, **files).max_tokens == most


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"modules": {"a": 1}}, "does not hold what sentence-transformers writes"),
        ({"modules": ["a"]}, "does not hold what sentence-transformers writes"),
        ({"modules": [{"type": "sentence_transformers.models.LSTM", "path": ""}]}, "type LSTM is not supported"),
        ({"modules": [{"type": "x.Dense", "path": "../other"}]}, "outside of its own"),
        ({"modules": [{"type": "x.Dense", "path": "/etc"}]}, "outside of its own"),
        ({"config_sentence_transformers": {"prompts": {"query": 3}}}, "a prompt is a text"),
        (
            {
                "1_Pooling__config": {"include_prompt": False},
                "config_sentence_transformers": {"prompts": {"query": "q"}},
            },
            "without the prompt's tokens",
        ),
        ({"config": [1]}, "does not hold"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, files: dict[str, Any], why: str) -> None:
    with pytest.raises(BadModel, match=why):
        read(tmp_path, **files)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SENTENCE).write_bytes(content)
    with pytest.raises(BadModel, match="is not readable JSON"):
        read_sentence_config(tmp_path)
