"""The commands encoder list, check and compare: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_samples import Run
from tests.llm.fake_endpoint import Answer, FakeEndpoint
from tests.models import tiny_bert
from tests.models import tiny_encoders as tiny
from toolscout.errors import Leak
from toolscout.evaluation import encoder_measures
from toolscout.models.encoders.opening import open_encoder
from toolscout.models.encoders.static import StaticEncoder
from toolscout.retrievers.provenance import TrainedOn, TrainingSet


def test_list_has_the_package_the_cache_and_the_default(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = f"{tiny.onnx_folder(tmp_path / 'mine')}?dimensions=4"
    monkeypatch.setenv("TOOLSCOUT_ENCODER", named)
    exported = open_encoder(tiny_bert.write_folder(tmp_path / "tiny", tiny_bert.random_weights())).folder
    cache = tmp_path / "cache" / "encoders"
    tiny.static_folder(cache / "static")
    (cache / ".half-written").mkdir()
    (cache / "damaged").mkdir()
    (cache / "digests.json").write_text("{}")
    found = [row for row in json.loads(run("encoder", "list", "--format", "json").stdout) if row["encoder"] != "fast"]
    rows = {row["encoder"]: row for row in found}
    assert list(rows) == [named, "default", str(cache / "damaged"), str(cache / "static"), str(exported)]
    assert [row["default"] for row in found] == [True, False, False, False, False]
    assert [row["kind"] for row in found] == ["onnx", "exported", "damaged", "model2vec", "exported"]
    assert [row["dimension"] for row in found] == [None, 384, None, None, 32]
    assert rows["default"]["name"] == "toolscout-minilm-3"
    assert rows["default"]["bytes"] > 20_000_000
    shown = run("encoder", "list")
    assert shown.exit_code == 0
    assert "toolscout-minilm-3" in shown.stdout
    assert "22,565,376" in shown.stdout


def test_without_a_choice_that_of_the_package_is_the_default(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLSCOUT_ENCODER")
    row, *others = json.loads(run("encoder", "list", "--format", "json").stdout)
    assert [other["encoder"] for other in others] in ([], ["fast"])
    assert (row["encoder"], row["default"]) == ("default", True)


@pytest.mark.parametrize(("named", "kind"), [("http://127.0.0.1:9/v1?model=m", "endpoint"), ("absent", "missing")])
def test_a_default_that_is_no_folder_is_listed(
    run: Run, monkeypatch: pytest.MonkeyPatch, named: str, kind: str
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", named)
    first = json.loads(run("encoder", "list", "--format", "json").stdout)[0]
    assert (first["encoder"], first["kind"], first["default"]) == (named, kind, True)


def test_check_says_what_an_encoder_is_and_costs(run: Run, tmp_path: Path) -> None:
    files = tiny.sentence_files("last", prompts={"query": "query: "})
    folder = tiny.onnx_folder(tmp_path / "mine", files=files, file="onnx/model_quantized.onnx")
    named = f"{folder}?document_tokens=50"
    facts = json.loads(run("encoder", "check", named, "--format", "json").stdout)
    assert facts.pop("request_ms") > 0
    assert facts.pop("documents_s") > 0
    assert facts == {
        "encoder": named,
        "name": "mine",
        "kind": "onnx",
        "file": "onnx/model_quantized.onnx",
        "pooling": "last",
        "request_prompt": "query: ",
        "document_prompt": "",
        "request_tokens": 128,
        "document_tokens": 50,
        "folder": str(folder),
        "dimension": 8,
        "parameters": 841,
        "fingerprint": open_encoder(named).fingerprint,
        "vector_bytes": {"10000": 400_000, "46587": 1_863_480},
    }
    shown = " ".join(run("encoder", "check", named).stdout.split())
    for text in ("kind onnx", "request prompt “query: ”", "document prompt none", "vectors of 46,587 tools 1.9 MB"):
        assert text in shown


def embeddings(request: dict[str, Any], _: int) -> Answer:
    data = [{"index": place, "embedding": [1.0, len(text), 2.0]} for place, text in enumerate(request["input"])]
    return 200, {}, json.dumps({"data": data}).encode()


def test_check_says_what_an_endpoint_is(run: Run) -> None:
    with FakeEndpoint(embeddings) as fake:
        named = f"{fake.url}?model=m&request_prompt=query: &batch=32&dimensions=2&price=0.02&ceiling=1.5"
        facts = json.loads(run("encoder", "check", named, "--format", "json").stdout)
        shown = " ".join(run("encoder", "check", named).stdout.split())
        plain = json.loads(run("encoder", "check", f"{fake.url}?model=m", "--format", "json").stdout)
    wanted = {"name": "m", "kind": "endpoint", "url": fake.url, "request_prompt": "query: ", "document_prompt": ""}
    wanted |= {"dimension": 2, "dimensions": 2, "batch": 32, "price": 0.02, "ceiling": 1.5, "folder": None}
    assert {key: facts[key] for key in wanted} == wanted
    for text in ("texts sent at once 32", "price of a million tokens 0.02", "most that one add may cost 1.5"):
        assert text in shown
    assert (plain["dimension"], plain["dimensions"], plain["price"], plain["ceiling"]) == (3, None, None, None)


def test_compare_measures_several_encoders(run: Run, tmp_path: Path) -> None:
    static = tiny.static_folder(tmp_path / "static")
    names = [str(static), f"{static}?document_tokens=5"]
    found = json.loads(run("encoder", "compare", *names, "--format", "json").stdout)
    assert [row["encoder"] for row in found] == names
    assert len({row["fingerprint"] for row in found}) == 2
    for row in found:
        assert 0 <= row["recall@1"] <= row["recall@5"] <= 1
        assert row["dimension"] == 8
    shown = run("encoder", "compare", static)
    assert f"{found[0]['recall@5']:.3f}" in shown.stdout
    assert "s per 1,000 documents" in shown.stdout


def test_recall_is_that_of_a_plain_ranking() -> None:
    encoder = open_encoder("default?document_tokens=10&request_tokens=10", threads=1)
    found = encoder_measures.score(encoder)
    data = encoder_measures.benchmark()
    split = data.split("test")
    documents = [encoder.encode_documents([tool.document()]) for tool in data.tools]
    vectors = {tool.id: next(rows)[1][0] for tool, rows in zip(data.tools, documents, strict=True)}
    shares = []
    for (_, text), gold in zip(split.requests, split.gold, strict=True):
        request = encoder.encode_request(text)
        ranked = sorted(vectors, key=lambda tool: -float(request @ vectors[tool]))
        shares.append(len(set(gold) & set(ranked[:5])) / len(gold))
    assert found.recall_5 == pytest.approx(sum(shares) / len(shares))


def test_an_encoder_that_knows_the_requests_is_not_compared(tmp_path: Path) -> None:
    folder = tiny.static_folder(tmp_path)
    data = encoder_measures.benchmark()
    TrainedOn.of([TrainingSet(data, "test", "")]).save(folder)
    with pytest.raises(Leak):
        encoder_measures.score(StaticEncoder.load(folder))


@pytest.mark.parametrize("command", ["check", "compare"])
def test_what_is_no_encoder_is_bad_input(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in (tmp_path / "empty", tmp_path / "absent", "default?x=1"):
        result = run("encoder", command, name)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert result.stdout == ""
