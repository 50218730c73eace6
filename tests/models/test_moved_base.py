"""A language model that was moved since something was trained from it: found again, or told how to name its place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.models.test_language import write_gguf
from tests.models.tiny_llama import tiny_llama
from toolscout.errors import BadModel, MissingLanguageModel
from toolscout.models.language import base
from toolscout.models.language.base import BASE_VARIABLE, find_base, open_base

pytestmark = pytest.mark.slow

GONE = "/no/such/place/tiny"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two bases, and one of them as a GGUF file."""
    folder = tmp_path_factory.mktemp("bases")
    tiny_llama(folder / "other", num_hidden_layers=1)
    write_gguf(folder / "tiny.gguf", tiny_llama(folder / "tiny"))
    return folder


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model; nothing says where its base is."""
    monkeypatch.delenv(BASE_VARIABLE, raising=False)
    folder = tmp_path / "project" / "models" / "mine"
    folder.mkdir(parents=True)
    return folder


def test_it_is_opened_where_it_was(bases: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = open_base(str(bases / "tiny"))
    monkeypatch.setenv(BASE_VARIABLE, str(bases / "other"))
    for fingerprint in (wanted.fingerprint, ""):
        assert find_base(model, str(bases / "tiny"), fingerprint).reference == str(bases / "tiny")


@pytest.mark.parametrize("place", ["tiny", ".", f"no{os.pathsep}other{os.pathsep}tiny"])
def test_its_place_is_named(bases: Path, model: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bases)
    monkeypatch.setenv(BASE_VARIABLE, place)
    found = find_base(model, GONE, open_base("tiny").fingerprint)
    assert found.reference == str(bases / "tiny")  # wherever one works later


@pytest.mark.parametrize(
    ("reference", "where"),
    [
        (GONE, "project/models/mine/tiny"),
        (GONE, "project/models/tiny"),
        ("bases/tiny", "project/bases/tiny"),
        ("/no/such/place/tiny.gguf", "project/tiny.gguf"),
    ],
)
def test_it_was_moved_with_the_model(bases: Path, model: Path, tmp_path: Path, reference: str, where: str) -> None:
    source, place = bases / Path(reference).name, tmp_path / where
    place.parent.mkdir(exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, place)
    (model / "other").mkdir()
    wanted = open_base(str(source)).fingerprint
    assert find_base(model, reference, wanted).reference == str(place)
    with pytest.raises(BadModel, match=f"{place} is another language model"):
        find_base(model, reference, "of another")
    with pytest.raises(BadModel, match="not found"):
        find_base(model, reference, "")  # what has no fingerprint cannot be told from others of its name


def test_a_wrong_one_is_refused_with_the_way_out(bases: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = open_base(str(bases / "tiny")).fingerprint
    with pytest.raises(BadModel, match=f"nothing is at {GONE}.*TOOLSCOUT_BASE=PLACE, or put it beside .*mine as tiny"):
        find_base(model, GONE, wanted)
    monkeypatch.setenv(BASE_VARIABLE, os.pathsep.join(map(str, (bases / "other", bases / "typo", model))))
    with pytest.raises(BadModel) as raised:
        find_base(model, GONE, wanted)
    for said in (
        "other is another language model",
        f"nothing is at {bases / 'typo'}",
        "mine is no folder of a Hugging",
    ):
        assert said in str(raised.value)


def test_a_place_that_may_not_be_looked_at_is_not_there(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(place: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", GONE)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(BadModel, match="neither a Hugging Face folder"):
        open_base(GONE)


def test_where_a_package_is_missing_it_is_named(bases: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_DEFAULT_MODULE", "no_such_package")
    wanted = open_base(str(bases / "tiny")).fingerprint
    with pytest.raises(MissingLanguageModel, match="pip install"):
        find_base(model, "", wanted)
    monkeypatch.setenv(BASE_VARIABLE, str(bases / "tiny"))
    assert find_base(model, "", wanted).name == "tiny"
