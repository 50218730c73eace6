"""An encoder with a second network for requests: exported, opened, told apart, and used for documents as "fast"."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.models import tiny_bert
from toolscout import Scout, Tool
from toolscout.cli.main import app
from toolscout.errors import BadModel, MissingEncoder
from toolscout.models.encoders import onnx_encoder
from toolscout.models.encoders.export import export
from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.models.encoders.opening import open_encoder

TEXTS = ["w1 w2 w3", "w9 w8", " ".join(f"w{number}" for number in range(30)), ""]
TABLE = "embeddings.word_embeddings.weight"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_bert.write_folder(tmp_path / "tiny", tiny_bert.random_weights())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """One layer, with the same table of words."""
    weights = tiny_bert.random_weights(1) | {TABLE: tiny_bert.random_weights()[TABLE]}
    return tiny_bert.write_folder(tmp_path / "small", weights, num_hidden_layers=1)


@pytest.fixture
def both(source: Path, small: Path) -> Path:
    return export(source, source.parent / "both", request_encoder=small)


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def documents(encoder: Encoder) -> Any:
    rows = np.empty((len(TEXTS), encoder.dimension), np.float32)
    for positions, vectors in encoder.encode_documents(TEXTS):
        rows[positions] = vectors
    return rows


def test_requests_and_documents_have_their_own_network(source: Path, small: Path, both: Path) -> None:
    alone, request = Encoder.load(export(source, source.parent / "a")), Encoder.load(export(small, source.parent / "b"))
    encoder = Encoder.load(both)
    np.testing.assert_array_equal(documents(encoder), documents(alone))
    np.testing.assert_array_equal(encoder.encode(TEXTS), request.encode(TEXTS))
    np.testing.assert_array_equal(encoder.encode_request(TEXTS[0]), request.encode_request(TEXTS[0]))
    assert len({encoder.fingerprint, alone.fingerprint, request.fingerprint}) == 3
    assert encoder.details()["request_file"] == "request.onnx"
    assert "request_file" not in alone.details()


def test_a_table_of_words_is_written_once_where_both_have_the_same(
    tmp_path: Path, source: Path, small: Path, both: Path
) -> None:
    alone = export(small, tmp_path / "alone") / "model.onnx"
    table = len(tiny_bert.WORDS) * 32
    assert 0 < (both / "request.onnx").stat().st_size < alone.stat().st_size - 0.9 * table
    other = tiny_bert.write_folder(tmp_path / "other", tiny_bert.random_weights(1), num_hidden_layers=1)
    apart = Encoder.load(export(source, tmp_path / "apart", request_encoder=other))
    assert (apart.folder / "request.onnx").stat().st_size == alone.stat().st_size
    np.testing.assert_array_equal(documents(apart), documents(Encoder.load(both)))
    assert (apart.encode(TEXTS) != Encoder.load(both).encode(TEXTS)).any()
    full = Encoder.load(export(source, tmp_path / "full", "fp32", small))
    assert (full.folder / "request.onnx").stat().st_size > 4 * table


@pytest.mark.parametrize("file", ["request.onnx", "model.onnx"])
def test_every_file_counts(both: Path, file: str) -> None:
    with (both / file).open("r+b") as stream:
        stream.write(b"changed")
    with pytest.raises(BadModel, match=f"{file} is not the file that was opened or exported"):
        Encoder.load(both)
    (both / file).unlink()
    with pytest.raises(BadModel, match=f"{file} cannot be read"):
        Encoder.load(both)
    card = json.loads((both / "encoder.json").read_text())
    del card["sha256"][file]
    (both / "encoder.json").write_text(json.dumps(card))
    with pytest.raises(BadModel, match="is not complete"):
        Encoder.load(both)


def test_who_opens_the_folder_says_which_network_reads_requests(source: Path, both: Path) -> None:
    alone = Encoder.load(export(source, source.parent / "alone"))
    whole = open_encoder(f"{both}?request_file=model.onnx")
    np.testing.assert_array_equal(whole.encode(TEXTS), alone.encode(TEXTS))
    assert whole.fingerprint == alone.fingerprint != Encoder.load(both).fingerprint
    card = json.loads((both / "encoder.json").read_text())
    del card["request_file"]
    card["fingerprint"] = onnx_encoder.fingerprint_of(card)
    (both / "encoder.json").write_text(json.dumps(card))
    default = open_encoder(both)
    assert default.fingerprint == alone.fingerprint  # a network that is not used changes no vector
    np.testing.assert_array_equal(default.encode(TEXTS), alone.encode(TEXTS))
    small = open_encoder(f"{both}?request_file=request.onnx")
    assert (small.encode(TEXTS) != alone.encode(TEXTS)).any()
    assert isinstance(small, Encoder)
    np.testing.assert_array_equal(documents(small), documents(alone))
    with pytest.raises(BadModel, match=r"has two models, model\.onnx and request\.onnx; .* leave `request_file` out"):
        open_encoder(f"{both}?request_file=other.onnx")


def test_the_small_network_may_encode_documents_too(both: Path) -> None:
    whole, fast = Encoder.load(both), open_encoder(f"{both}?file=request.onnx")
    assert isinstance(fast, Encoder)
    np.testing.assert_array_equal(fast.encode(TEXTS), whole.encode(TEXTS))
    np.testing.assert_array_equal(documents(fast), whole.encode(TEXTS))
    assert fast.fingerprint != whole.fingerprint
    assert 0 < fast.parameters < whole.parameters
    with pytest.raises(BadModel, match=r"has two models, model\.onnx and request\.onnx; name one of them"):
        open_encoder(f"{both}?file=other.onnx")


def test_fast_is_that_of_the_package(both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_encoder, "package_folder", lambda: both)
    monkeypatch.delenv("TOOLSCOUT_ENCODER", raising=False)
    fast = open_encoder("fast")
    assert fast.fingerprint == open_encoder(f"{both}?file=request.onnx").fingerprint
    assert open_encoder("fast?document_tokens=20").fingerprint != fast.fingerprint
    monkeypatch.setenv("TOOLSCOUT_ENCODER", "fast")
    assert open_encoder().fingerprint == Encoder.load().fingerprint == fast.fingerprint
    monkeypatch.delenv("TOOLSCOUT_ENCODER")
    rows = {row["encoder"]: row for row in json.loads(run("encoder", "list", "--format", "json"))}
    assert rows["fast"]["parameters"] == fast.parameters
    assert rows["fast"]["bytes"] == rows["default"]["bytes"]
    with Scout.open(tmp_path / "a.db", "dense", encoder="fast") as scout:
        scout.add([Tool("a", "w1", "w2 w3"), Tool("b", "w7", "w8")])
    with Scout.open(tmp_path / "a.db", "dense") as scout:  # the store names it
        assert scout.store.encoders()[0].name == "fast"
        assert scout.retriever.encoder is not None
        assert scout.retriever.encoder.fingerprint == fast.fingerprint
    shutil.copytree(both, tmp_path / "without")
    (tmp_path / "without" / "request.onnx").unlink()
    monkeypatch.setattr(onnx_encoder, "package_folder", lambda: tmp_path / "without")
    with pytest.raises(MissingEncoder, match="this package has no fast encoder"):
        open_encoder("fast")


def test_networks_that_do_not_go_together(tmp_path: Path, source: Path, small: Path) -> None:
    short = tiny_bert.random_weights(1)
    short["embeddings.position_embeddings.weight"] = short["embeddings.position_embeddings.weight"][:20]
    few = tiny_bert.write_folder(tmp_path / "few", short, num_hidden_layers=1, max_position_embeddings=20)
    with pytest.raises(BadModel, match="reads 20 tokens, a request has 40"):
        export(source, tmp_path / "out", request_encoder=few)
    (small / "tokenizer.json").write_text(tiny_bert.tokenizer().to_str(pretty=True))
    with pytest.raises(BadModel, match="another tokeniser"):
        export(source, tmp_path / "out", request_encoder=small)
    assert not (tmp_path / "out").exists()


def test_the_command_exports_both(source: Path, small: Path, both: Path) -> None:
    out = source.parent / "out"
    run("encoder", "export", "--source", str(source), "--request-encoder", str(small), "--out", str(out))
    assert Encoder.load(out).fingerprint == Encoder.load(both).fingerprint
