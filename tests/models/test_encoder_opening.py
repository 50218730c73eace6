"""An encoder is opened by its name: each kind of folder, settings behind a question mark, and what is no encoder."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.models import tiny_bert
from tests.models import tiny_encoders as tiny
from toolscout.errors import BadModel, MissingEncoder
from toolscout.models.encoders import export as exporting
from toolscout.models.encoders import file_digests
from toolscout.models.encoders.endpoint import EndpointEncoder
from toolscout.models.encoders.file_digests import file_digest
from toolscout.models.encoders.hf_onnx import HfOnnxEncoder
from toolscout.models.encoders.onnx_encoder import Encoder, package_folder
from toolscout.models.encoders.opening import kind_of, open_encoder
from toolscout.models.encoders.settings import encoders_folder
from toolscout.models.encoders.static import StaticEncoder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TOOLSCOUT_ENCODER", raising=False)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tiny_bert.write_folder(tmp_path / "tiny", tiny_bert.random_weights())


def test_nothing_named_is_the_encoder_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (None, "", "default"):
        assert open_encoder(name).folder == package_folder()
    changed = open_encoder("default?document_tokens=64&dimensions=100")
    assert (changed.dimension, changed.fingerprint == open_encoder().fingerprint) == (100, False)
    monkeypatch.setenv("TOOLSCOUT_ENCODER", f"{tiny.static_folder(tmp_path / 'a')}?dimensions=4")
    assert open_encoder().dimension == 4
    assert open_encoder("default").folder == package_folder()


def test_an_encoder_is_returned_as_it_is(tmp_path: Path) -> None:
    made = StaticEncoder.load(tiny.static_folder(tmp_path / "a"))
    assert open_encoder(made) is made


def test_each_kind_of_folder(tmp_path: Path, weights: Path) -> None:
    exported = exporting.export(weights, tmp_path / "exported")
    onnx = tiny.onnx_folder(tmp_path / "onnx")
    static = tiny.static_folder(tmp_path / "static")
    (static / "onnx").mkdir()
    shutil.copy(onnx / "onnx" / "model.onnx", static / "onnx")  # such a folder may have both
    (onnx / "model.safetensors").write_bytes(b"")  # and such a one too
    for folder, kind, opened in (
        (exported, "exported", Encoder),
        (onnx, "onnx", HfOnnxEncoder),
        (static, "model2vec", StaticEncoder),
    ):
        encoder = open_encoder(f"{folder}?request_prompt=find ", threads=1)
        assert (kind_of(folder), type(encoder), encoder.folder) == (kind, opened, folder)
        assert isinstance(encoder, Encoder | HfOnnxEncoder | StaticEncoder)
        assert (encoder.threads, encoder.request_prompt) == (1, "find ")
        assert open_encoder(folder).fingerprint == open_encoder(str(folder)).fingerprint != encoder.fingerprint


def test_a_url_is_an_endpoint() -> None:
    encoder = open_encoder("http://127.0.0.1:9/v1?model=m&dimensions=7")
    assert isinstance(encoder, EndpointEncoder)
    assert (encoder.name, encoder.dimension) == ("m", 7)


def test_weights_are_exported_once(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_encoder(weights)
    assert first.folder is not None
    assert first.folder.parent == encoders_folder()
    assert first.folder.name.startswith("tiny-")
    assert [path.name for path in encoders_folder().iterdir()] == [first.folder.name]
    with monkeypatch.context() as patched:
        patched.setattr(exporting, "export", lambda *_: pytest.fail("exported again"))
        again = open_encoder(f"{weights}?document_tokens=20")
    assert again.folder == first.folder
    assert again.fingerprint != first.fingerprint
    (weights / "model.safetensors").write_bytes(tiny_bert.safetensors(tiny_bert.random_weights(1)))
    other = open_encoder(weights)
    assert other.folder != first.folder
    assert other.fingerprint != first.fingerprint


def test_threads_that_export_at_once_open_the_same(weights: Path) -> None:
    found, wrong, start = [], [], threading.Barrier(4)

    def work() -> None:
        try:
            start.wait(20)
            found.append(open_encoder(weights).encode_request("w1 w2"))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert len(list(encoders_folder().iterdir())) == 1
    for vector in found:
        np.testing.assert_array_equal(vector, found[0])


def test_what_cannot_be_written_is_said(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(BadModel, match="cannot write"):
        open_encoder(weights)


def test_no_encoder_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        BadModel, match=r"empty holds no encoder: name a folder with encoder\.json .*onnx.*model2vec; or"
    ):
        open_encoder(tmp_path / "empty")
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(BadModel, match="holds no encoder"):
        open_encoder(tmp_path)
    path = tmp_path / "model.onnx"
    path.touch()
    with pytest.raises(BadModel, match=r"model\.onnx is a file; name a folder"):
        open_encoder(path)
    with pytest.raises(MissingEncoder, match=r"there is no sentence encoder in .*absent .*; name a folder"):
        open_encoder(tmp_path / "absent")
    with pytest.raises(MissingEncoder, match="toolscout encoder export"):
        open_encoder("raw")


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("default?x", "is no name of an encoder"),
        ("default?tokens=3", "is no option of an encoder"),
        ("default?document_tokens=x", "must be of type int"),
        ("default?pooling=max", "must be one of mean, cls, last"),
        ("default?pooling=cls", "was exported with the pooling mean"),
        ("default?file=x.onnx", r"has (one model, model\.onnx;|two models, model\.onnx and)"),
        ("default?document_tokens=600", "reads at most 512 tokens"),
        ("default?dimensions=400", "gives 384 numbers"),
    ],
)
def test_bad_settings_are_refused(named: str, why: str) -> None:
    with pytest.raises(BadModel, match=why):
        open_encoder(named)


def test_digests_of_large_files_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digests, "_LARGE", 10)
    path, cache, read = tmp_path / "large", tmp_path / "remembered", []
    real = file_digests._read
    monkeypatch.setattr(file_digests, "_read", lambda path: read.append(path) or real(path))
    path.write_bytes(b"x" * 100)
    first = file_digest(path, cache)
    assert not cache.exists()  # as young as it is, it may change without another time stamp
    monkeypatch.setattr(file_digests, "_YOUNG_S", -1.0)
    assert [file_digest(path, cache) for _ in range(3)] == [first] * 3
    assert len(read) == 2
    os.utime(path, (1, 1))
    path.write_bytes(b"y" * 100)
    assert file_digest(path, cache) != first
    gone = tmp_path / "gone"
    gone.write_bytes(b"z" * 100)
    file_digest(gone, cache)
    gone.unlink()
    path.write_bytes(b"x" * 101)
    file_digest(path, cache)
    assert list(json.loads((cache / "digests.json").read_text())) == [str(path)]
    for damage in (b"", b"[]", b'{"a": 1}', b"["):
        (cache / "digests.json").write_bytes(damage)
        assert file_digest(path, cache) == real(path)
    with pytest.raises(OSError, match="gone"):
        file_digest(gone, cache)


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digests, "_LARGE", 1)
    monkeypatch.setattr(file_digests, "_YOUNG_S", -1.0)
    (tmp_path / "cache").write_text("a file")
    assert open_encoder(tiny.onnx_folder(tmp_path / "a")).dimension == 8
