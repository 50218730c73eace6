"""One process loads an encoder once: all encoders of one folder share its tokeniser and sessions."""

from __future__ import annotations

import gc
import json
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.models import tiny_bert
from tests.stores.store_helpers import fork, wait
from toolscout.errors import BadModel
from toolscout.models.encoders import onnx_encoder
from toolscout.models.encoders.export import export
from toolscout.models.encoders.onnx_encoder import CARD_FILE, Encoder, LoadedModel, fingerprint_of
from toolscout.scout import Scout

TEXTS = [f"w{number} w{number + 1} w{number + 2}" for number in range(100)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders of two different models."""
    home = tmp_path_factory.mktemp("loaded")
    sources = [tiny_bert.write_folder(home / f"{seed}", tiny_bert.random_weights(seed)) for seed in (1, 2)]
    return export(sources[0], home / "a"), export(sources[1], home / "b")


@pytest.fixture
def folder(exported: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return copied(exported[0], tmp_path / "encoder")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often files were read and sessions opened."""
    counted: Counter[str] = Counter()
    real_session, real_load = onnx_encoder._open_session, LoadedModel.__init__

    def session(*given: object) -> object:
        counted["sessions"] += 1
        return real_session(*given)

    def load(*given: object) -> None:
        counted["loads"] += 1
        real_load(*given)

    monkeypatch.setattr(onnx_encoder, "_open_session", session)
    monkeypatch.setattr(LoadedModel, "__init__", load)
    return counted


def copied(source: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_two_scouts_share_the_sessions(
    folder: Path, loads: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(folder))
    with Scout.open(tmp_path / "a.db", "dense") as one, Scout.open(tmp_path / "b.db", "dense") as other:
        for scout in (one, other):
            scout.add([{"name": "w1", "description": "w2 w3"}])
            scout.search("w2")
        first, second = one.retriever.encoder, other.retriever.encoder
        assert isinstance(first, Encoder)
        assert isinstance(second, Encoder)
        assert first is not second  # each has threads of its own
        assert first._model is second._model
        assert loads["loads"] == 1
        assert loads["sessions"] == len(first._model._sessions)


def test_the_same_vectors_as_alone(folder: Path) -> None:
    shared = [Encoder.load(folder), Encoder.load(folder, threads=1)]
    alone = Encoder(folder, json.loads((folder / CARD_FILE).read_text()), LoadedModel(folder, digests(folder)), 2)
    for encoder in shared:
        np.testing.assert_array_equal(encoder.encode(TEXTS), alone.encode(TEXTS))


def digests(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / CARD_FILE).read_text())["sha256"]
    return found


def test_each_encoder_has_its_own_threads(folder: Path) -> None:
    one, other = Encoder.load(folder, threads=3), Encoder.load(folder, threads=2)
    one.use_threads(1)
    assert (one.threads, other.threads) == (1, 2)


def test_different_folders_share_nothing(exported: tuple[Path, Path], folder: Path, loads: Counter[str]) -> None:
    encoders = [Encoder.load(one) for one in (*exported, folder)]
    assert len({id(encoder._model) for encoder in encoders}) == 3
    assert loads["loads"] == 3


def test_a_link_leads_to_the_same_model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    one, other, third = Encoder.load(folder), Encoder.load(tmp_path / "link"), Encoder.load(Path("encoder"))
    assert one._model is other._model is third._model


def test_a_replaced_folder_is_loaded_anew(exported: tuple[Path, Path], folder: Path) -> None:
    before = Encoder.load(folder)
    vectors = before.encode(TEXTS[:3])
    copied(exported[1], folder)
    after = Encoder.load(folder)
    assert after.fingerprint != before.fingerprint
    assert after._model is not before._model
    assert not np.allclose(after.encode(TEXTS[:3]), vectors)
    np.testing.assert_array_equal(before.encode(TEXTS[:3]), vectors)  # what is open stays what it was


def test_a_file_written_over_the_same_card_is_checked_again(folder: Path) -> None:
    kept = Encoder.load(folder)
    kept.encode_request("w1")
    content = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadModel, match="sha256 differs"):
        Encoder.load(folder)
    (folder / "model.onnx").write_bytes(content)
    assert Encoder.load(folder).fingerprint == kept.fingerprint


def test_other_limits_are_another_encoder_of_the_same_model(folder: Path) -> None:
    one = Encoder.load(folder)
    card = json.loads((folder / CARD_FILE).read_text()) | {"request_tokens": 5}
    (folder / CARD_FILE).write_text(json.dumps(card | {"fingerprint": fingerprint_of(card)}))
    other = Encoder.load(folder)
    assert other.fingerprint != one.fingerprint
    assert (other.request_tokens, other._model) == (5, one._model)


def test_a_model_that_nobody_uses_is_freed(folder: Path, loads: Counter[str]) -> None:
    encoder = Encoder.load(folder)
    encoder.encode_request("w1")
    model = weakref.ref(encoder._model)
    del encoder
    gc.collect()
    assert model() is None
    Encoder.load(folder)
    assert loads["loads"] == 2


def test_threads_that_race_load_once(folder: Path, loads: Counter[str]) -> None:
    start, found, wrong = threading.Barrier(16), [], []

    def work() -> None:
        try:
            start.wait(20)
            encoder = Encoder.load(folder, threads=1)
            found.append((encoder, encoder.encode_request("w1 w2")))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len({id(encoder._model) for encoder, _ in found}) == 1
    assert loads == {"loads": 1, "sessions": 1}
    for _, vector in found:
        np.testing.assert_array_equal(vector, found[0][1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_opens_sessions_of_its_own(folder: Path) -> None:
    encoder = Encoder.load(folder, threads=4)
    wanted = encoder.encode_request("w1 w2")  # its threads are not in the child

    def child() -> None:
        assert encoder._model._sessions == {}
        for one in (encoder, Encoder.load(folder, threads=4)):
            np.testing.assert_array_equal(one.encode_request("w1 w2"), wanted)

    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with LoadedModel._loading, encoder._model._opening:  # as if another thread were loading at the fork
            held.set()
            assert go_on.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20)
    try:
        assert wait(fork(child)) == 0
    finally:
        go_on.set()
        holder.join(20)
