"""A cross-encoder in a folder: what it is fed, what it gives, and folders that are none."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.models.tiny_cross_encoder import cross_encoder
from toolscout.errors import BadModel
from toolscout.models.rerankers.cross_encoder import CrossEncoder, CrossEncoderSettings
from toolscout.models.rerankers.opening import open_reranker

DOCUMENTS = ["get the weather report", "delete a mail", "weather weather", "", "search \ud800 the mail of a user"]


def test_the_logit_of_each_pair(tmp_path: Path) -> None:
    reranker = open_reranker(str(cross_encoder(tmp_path)))
    assert reranker.score("get weather", DOCUMENTS) == [2.0, 0.0, 2.0, 0.0, 0.0]
    assert reranker.score("get weather", []) == []
    assert (reranker.name, reranker.remote, reranker.visible_only) == (tmp_path.name, False, False)


@pytest.mark.parametrize(
    "made",
    [
        {"labels": 2, "factor": 1 / 3},  # the difference of two logits
        {"whole": TensorProto.INT32},
        {"where": "model.onnx"},
        {"where": "model_quantized.onnx"},
    ],
)
def test_graphs_of_other_forms(tmp_path: Path, made: dict[str, Any]) -> None:
    assert CrossEncoder(cross_encoder(tmp_path, **made)).score("get weather", DOCUMENTS) == pytest.approx(
        [2, 0, 2, 0, 0]
    )


def test_a_file_is_chosen_by_its_name(tmp_path: Path) -> None:
    cross_encoder(cross_encoder(tmp_path), where="onnx/model_int8.onnx", factor=3.0)
    assert open_reranker(f"{tmp_path}?file=onnx/model_int8.onnx").score("weather", ["weather"]) == [3.0]
    assert open_reranker(str(tmp_path)).score("weather", ["weather"]) == [1.0]


def fed(reranker: CrossEncoder, request: str, document: str) -> dict[str, list[int]]:
    return {name: value[0].tolist() for name, value in reranker._feed(request, document).items()}


def test_a_pair_is_cut_to_the_limit(tmp_path: Path) -> None:
    reranker = CrossEncoder(cross_encoder(tmp_path), CrossEncoderSettings(max_tokens=16))
    short = fed(reranker, "get weather", "mail " * 100_000)
    assert len(short["input_ids"]) == 16
    assert short["token_type_ids"] == [0] * 4 + [1] * 12
    assert short["attention_mask"] == [1] * 16
    assert (short["input_ids"][0], short["input_ids"][3], short["input_ids"][-1]) == (2, 3, 3)
    long = fed(reranker, "get " * 100_000, "mail " * 100_000)
    assert long["token_type_ids"] == [0] * 10 + [1] * 6  # the request has half of the limit
    both = fed(reranker, "get " * 100_000, "")
    assert len(both["input_ids"]) == 11


def test_a_text_of_a_hundred_thousand_characters(tmp_path: Path) -> None:
    reranker, long = CrossEncoder(cross_encoder(tmp_path)), "weather " * 12_500
    assert reranker.score("weather", [long, "weather"])[1] == 1.0
    assert reranker.score(long, ["weather"]) == [128.0]
    assert reranker.score("x" * 100_000, ["y" * 100_000]) == [0.0]


@pytest.mark.parametrize(
    ("config", "limit"),
    [({"max_position_embeddings": 64}, 64), ({"max_position_embeddings": 66, "model_type": "roberta"}, 64), ({}, 256)],
)
def test_the_model_reads_no_more_than_it_can(tmp_path: Path, config: dict[str, Any], limit: int) -> None:
    reranker = CrossEncoder(cross_encoder(tmp_path, config=config))
    assert len(fed(reranker, "get", "mail " * 1000)["input_ids"]) == limit
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 32}))
    assert len(fed(CrossEncoder(tmp_path), "get", "mail " * 1000)["input_ids"]) == 32
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    assert len(fed(CrossEncoder(tmp_path), "get", "mail " * 1000)["input_ids"]) == limit


def test_a_score_does_not_depend_on_other_documents_or_threads(tmp_path: Path) -> None:
    reranker = CrossEncoder(cross_encoder(tmp_path))
    alone = [reranker.score("mail the weather report", [text])[0] for text in DOCUMENTS * 10]
    found: list[list[float | None]] = []
    threads = [
        threading.Thread(target=lambda: found.append(reranker.score("mail the weather report", DOCUMENTS * 10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4


def test_what_is_not_done_by_the_deadline_has_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = CrossEncoder(cross_encoder(tmp_path))
    assert reranker.score("weather", DOCUMENTS, time.monotonic()) == [None] * 5
    run = reranker._score_pair
    monkeypatch.setattr(
        reranker,
        "_score_pair",
        lambda *pair: time.sleep(3) if pair[1] == "hang" else run(*pair),  # type: ignore[func-returns-value]
    )
    began = time.monotonic()
    found = reranker.score("weather", ["weather", "mail", *["hang"] * 50, "weather"], began + 0.5)
    assert found == [1.0, 0.0, *[None] * 51]
    assert time.monotonic() - began < 2.5


def test_a_broken_model_gives_what_it_gives(tmp_path: Path) -> None:
    (score,) = CrossEncoder(cross_encoder(tmp_path, factor=math.nan)).score("weather", ["weather"])
    assert score is not None
    assert np.isnan(score)


def test_parameters_are_the_weights_of_the_graph(tmp_path: Path) -> None:
    folder = cross_encoder(tmp_path / "one")
    assert CrossEncoder(folder).parameters == 1  # the factor; the other constants are indices
    opened = CrossEncoder(cross_encoder(tmp_path / "two", labels=2))
    (tmp_path / "two" / "onnx" / "model.onnx").unlink()
    assert opened.parameters == 0


def test_a_fingerprint_is_of_files_and_limit(tmp_path: Path) -> None:
    one, other = (CrossEncoder(cross_encoder(tmp_path / str(n), factor=float(n))) for n in (1, 2))
    shorter = CrossEncoder(tmp_path / "1", CrossEncoderSettings(max_tokens=64))
    assert len({one.fingerprint, other.fingerprint, shorter.fingerprint}) == 3
    assert CrossEncoder(cross_encoder(tmp_path / "again")).fingerprint == one.fingerprint


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"names": ("pair", "token_type_ids", "attention_mask")}, "wants an input 'pair'.*input_ids"),
        ({"whole": TensorProto.FLOAT}, "of tensor.float.*whole numbers"),
        ({"labels": 3}, r"shape \(1, 3\) for one pair; a reranker gives one score"),
    ],
)
def test_a_graph_of_another_kind_is_refused(tmp_path: Path, made: dict[str, Any], says: str) -> None:
    with pytest.raises(BadModel, match=says):
        CrossEncoder(cross_encoder(tmp_path, **made))


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("tokenizer.json", None, "holds no tokenizer.json; save"),
        ("tokenizer.json", "{", "tokenizer.json cannot be read"),
        ("onnx/model.onnx", None, "holds no model.onnx"),
        ("onnx/model.onnx", "nonsense", "model.onnx cannot be run"),
        ("config.json", "[]", "config.json"),
    ],
)
def test_a_folder_that_is_not_whole_says_so(tmp_path: Path, file: str, content: str | None, says: str) -> None:
    path = cross_encoder(tmp_path) / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadModel, match=says):
        CrossEncoder(tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no/such", "there is no reranker 'no/such'; name a folder"),
        ("{}?max_tokens=3", "16 or more"),
        ("{}?tokens=3", "no option of a cross-encoder"),
        ("{}?file=../other.onnx", "holds no file"),
        ("{}?max_tokens", "is no name of a reranker"),
    ],
)
def test_names_that_open_nothing(tmp_path: Path, name: str, says: str) -> None:
    folder = cross_encoder(tmp_path / "own")
    (tmp_path / "other.onnx").write_bytes((folder / "onnx/model.onnx").read_bytes())
    with pytest.raises(BadModel, match=says):
        open_reranker(name.format(folder))
