"""Static encoders: the mean of rows as model2vec computes it, and every folder that is refused."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import tiny_encoders as tiny
from toolscout.errors import BadModel
from toolscout.models.encoders.settings import EncoderSettings
from toolscout.models.encoders.static import StaticEncoder

TEXTS = ["find the weather of in city", "send mail to 日本", "xyz"]
TOKENS = len(tiny.VOCABULARY)


def unit(vector: tiny.Array) -> tiny.Array:
    return vector / np.linalg.norm(vector)


def known_ids(text: str) -> list[int]:
    return [token for token in tiny.wordpiece().encode(text, add_special_tokens=False).ids if token != 1]


def test_a_vector_is_the_mean_of_the_known_tokens(tmp_path: Path) -> None:
    encoder = StaticEncoder.load(tiny.static_folder(tmp_path))
    expected = np.stack([unit(tiny.table()[known_ids(text)].mean(axis=0)) for text in TEXTS])
    assert encoder.encode(TEXTS) == pytest.approx(expected, abs=1e-6)
    assert np.stack([encoder.encode_request(text) for text in TEXTS]) == pytest.approx(expected, abs=1e-6)
    assert (encoder.dimension, encoder.parameters, encoder.folder) == (8, TOKENS * 8, tmp_path)
    assert encoder.details() == {
        "name": tmp_path.name,
        "kind": "model2vec",
        "file": "model.safetensors",
        "pooling": "mean",
        "request_prompt": "",
        "document_prompt": "",
        "request_tokens": 128,
        "document_tokens": 96,
    }


@pytest.mark.parametrize("kind", [np.float16, np.int8, np.float64])
def test_tables_of_other_types_are_read(tmp_path: Path, kind: type[Any]) -> None:
    rows = (tiny.table() * 20).astype(kind)
    encoder = StaticEncoder.load(tiny.static_folder(tmp_path, rows))
    expected = unit(rows[known_ids(TEXTS[0])].astype(np.float64).mean(axis=0))
    assert encoder.encode_request(TEXTS[0]) == pytest.approx(expected, abs=1e-6)
    assert encoder.encode_request(TEXTS[0]).dtype == np.float32


def test_tokens_may_share_rows_and_have_weights(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    mapping, weights = random.integers(0, 20, TOKENS), random.uniform(0.1, 2, TOKENS)
    rows = tiny.table(20)
    folder = tiny.static_folder(tmp_path, rows, mapping=mapping, weights=weights)
    ids = known_ids(TEXTS[0])
    expected = unit((rows[mapping[ids]] * weights[ids][:, None]).mean(axis=0))
    assert StaticEncoder.load(folder).encode_request(TEXTS[0]) == pytest.approx(expected, abs=1e-6)


def test_the_unknown_token_of_a_unigram_model_is_left_out(tmp_path: Path) -> None:
    folder = tiny.static_folder(tmp_path, tiny.table(tiny.unigram().get_vocab_size()), tiny.unigram())
    encoder = StaticEncoder.load(folder)
    assert encoder._unknown == 3
    assert 3 not in encoder._tokens("mail 日本", 100)


def test_a_text_without_known_tokens_works(tmp_path: Path) -> None:
    rows = tiny.table()
    rows[tiny.VOCABULARY.index("mail")] = 0
    weights = np.ones(TOKENS, np.float32)
    for name, more in (("a", {}), ("b", {"weights": weights}), ("c", {"mapping": np.arange(TOKENS)})):
        encoder = StaticEncoder.load(tiny.static_folder(tmp_path / name, rows, **more))
        for text in ("", "日本", "mail"):
            assert encoder.encode_request(text) == pytest.approx(np.full(8, 8**-0.5), abs=1e-6)
        assert np.isfinite(encoder.encode(["\ud800", "mail", "שלום", "e\u0301", "find"])).all()


def test_the_layout_of_sentence_transformers(tmp_path: Path) -> None:
    home = tmp_path / "0_StaticEmbedding"
    home.mkdir()
    (home / "model.safetensors").write_bytes(tiny.safetensors({"embedding.weight": tiny.table()}))
    tiny.wordpiece().save(str(home / "tokenizer.json"))
    tiny.write_json(
        tmp_path, {"modules.json": [{"path": home.name, "type": "sentence_transformers.models.StaticEmbedding"}]}
    )
    ids = tiny.wordpiece().encode(TEXTS[1], add_special_tokens=False).ids
    assert 1 in ids  # which sentence-transformers does not leave out
    assert StaticEncoder.load(tmp_path).encode_request(TEXTS[1]) == pytest.approx(
        unit(tiny.table()[ids].mean(axis=0)), abs=1e-6
    )


def test_settings_prompts_and_limits(tmp_path: Path) -> None:
    folder = tiny.static_folder(tmp_path, config={"max_length": 30})
    tiny.write_json(folder, {"config_sentence_transformers.json": {"prompts": {"query": "query: "}, "truncate_dim": 6}})
    first = StaticEncoder.load(folder)
    assert (first.dimension, first.request_tokens, first.document_tokens) == (6, 30, 30)
    assert first.encode_request("mail") == pytest.approx(unit(tiny.table()[known_ids("query: mail")].mean(axis=0)[:6]))
    changes = [
        EncoderSettings(request_prompt=""),
        EncoderSettings(document_prompt="passage"),
        EncoderSettings(request_tokens=5),
        EncoderSettings(document_tokens=5),
        EncoderSettings(dimensions=4),
    ]
    made = [StaticEncoder.load(folder, settings=one) for one in changes]
    assert len({one.fingerprint for one in (first, *made)}) == 6
    cut = made[3]
    assert len(cut._tokens("mail " * 100_000, cut.document_tokens)) == 5
    for wrong, why in (
        (EncoderSettings(pooling="cls"), "leave pooling and files out"),
        (EncoderSettings(file="x"), "leave pooling and files out"),
        (EncoderSettings(request_tokens=31), "reads at most 30 tokens"),
        (EncoderSettings(dimensions=9), "gives 8 numbers a vector, not 9"),
    ):
        with pytest.raises(BadModel, match=why):
            StaticEncoder.load(folder, settings=wrong)


def test_the_fingerprint_covers_the_files(tmp_path: Path) -> None:
    found = {StaticEncoder.load(tiny.static_folder(tmp_path / name)).fingerprint for name in ("a", "b")}
    assert len(found) == 1
    found.add(StaticEncoder.load(tiny.static_folder(tmp_path / "a", tiny.table(seed=1))).fingerprint)
    (tmp_path / "b" / "tokenizer.json").write_text((tmp_path / "b" / "tokenizer.json").read_text() + " ")
    found.add(StaticEncoder.load(tmp_path / "b").fingerprint)
    assert len(found) == 3


def test_what_is_open_stays_what_it_was(tmp_path: Path) -> None:
    folder = tiny.static_folder(tmp_path / "a")
    encoder = StaticEncoder.load(folder)
    before = encoder.encode(TEXTS)
    (folder / "model.safetensors").write_bytes(b"")  # what was mapped would be gone
    assert np.array_equal(encoder.encode(TEXTS), before)
    shutil.rmtree(folder)
    assert np.array_equal(encoder.encode(TEXTS), before)


NAN = tiny.table()
NAN[3, 3] = np.nan


@pytest.mark.parametrize(
    ("rows", "more", "why"),
    [
        (tiny.table(50), {}, r"has rows for 50 tokens, tokenizer\.json has 105"),
        (tiny.table(), {"weights": np.ones(9, np.float32)}, "has rows for 9 tokens"),
        (tiny.table(9), {"mapping": np.arange(TOKENS)}, "names rows that are not there"),
        (tiny.table(), {"mapping": np.zeros(TOKENS, np.float32)}, "names rows that are not there"),
        (NAN, {}, "not finite"),
        (tiny.table()[0], {}, "no table of embeddings"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, rows: Any, more: dict[str, Any], why: str) -> None:
    with pytest.raises(BadModel, match=why):
        StaticEncoder.load(tiny.static_folder(tmp_path, rows, **more))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, b"", b"x", "half"])
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: Any) -> None:
    path = tiny.static_folder(tmp_path) / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content == "half" else content)
    with pytest.raises(BadModel, match=name.replace(".", r"\.")):
        StaticEncoder.load(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "vocabulary"])
def test_vectors_are_those_of_model2vec(tmp_path: Path, kind: str) -> None:
    model2vec = pytest.importorskip("model2vec")
    more: dict[str, Any] = {}
    rows = tiny.table()
    if kind == "vocabulary":
        random = np.random.default_rng(2)
        more = {"mapping": random.integers(0, 20, TOKENS), "weights": random.uniform(0.1, 2, TOKENS)}
        rows = tiny.table(20)
    else:
        rows = (rows * 20).astype(kind)
    folder = tiny.static_folder(tmp_path, rows, **more)
    expected = model2vec.StaticModel.from_pretrained(folder, normalize=True).encode(TEXTS)
    assert StaticEncoder.load(folder).encode(TEXTS) == pytest.approx(expected, abs=2e-3)


@pytest.mark.slow
@pytest.mark.timing
def test_a_request_takes_a_fifth_of_a_millisecond(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    from toolscout.models.encoders.onnx_encoder import TOKENIZER_FILE, package_folder

    tokenizer = Tokenizer.from_file(str(package_folder() / TOKENIZER_FILE))
    folder = tiny.static_folder(tmp_path, tiny.table(tokenizer.get_vocab_size(), 256), tokenizer)
    encoder = StaticEncoder.load(folder)
    medians = []
    for _ in range(5):  # other work on the machine slows some rounds
        times = []
        for number in range(300):
            started = time.perf_counter()
            encoder.encode_request(f"find the weather forecast for Paris tomorrow and email it to {number}")
            times.append(time.perf_counter() - started)
        medians.append(np.median(times))
    assert min(medians) < 0.0002
