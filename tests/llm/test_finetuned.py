"""Generators: they are opened as they were saved, by whatever serves, and refused where they do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.tiny_llama import tiny_llama
from toolscout.errors import BadModel
from toolscout.llm import open_llm
from toolscout.llm.base import Message
from toolscout.llm.finetuned import FINETUNED_FILE, is_finetuned, load_finetuned, open_finetuned, read_finetuned
from toolscout.llm.finetuned import save_finetuned as save
from toolscout.llm.local import Local
from toolscout.models.language.base import open_base
from toolscout.models.language.lora import Adapter

pytestmark = pytest.mark.slow

ASKED = [[Message("user", "Find me a hotel in Paris")], [Message("user", "weather")]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and a generator of it."""
    folder = tmp_path_factory.mktemp("generator")
    tiny_llama(folder / "base", max_position_embeddings=128)
    base = open_base(str(folder / "base"))
    drawn = np.random.default_rng(0)
    shapes = {"o_a": (2, 4, 64), "o_b": (2, 32, 4), "down_a": (2, 4, 80), "down_b": (2, 32, 4)}
    adapter = Adapter({name: drawn.normal(size=shape).astype(np.float32) * 0.3 for name, shape in shapes.items()})
    save(folder / "made", base, adapter, {"task": "describe", "settings": {"queries": 4}, "base": "ignored"})
    return folder


def texts(model: Any) -> list[str]:
    return [few[0].text for few in model.complete(ASKED, max_tokens=10)]


def test_it_writes_with_what_was_learned(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLSCOUT_DEVICE", raising=False)
    served = open_llm(str(home / "made"))
    assert served.name == "base-describe"
    assert texts(served) != texts(Local.open(str(home / "base")))
    monkeypatch.setenv("TOOLSCOUT_DEVICE", "cpu")
    assert texts(open_finetuned(home / "made", batch=1)) == texts(open_finetuned(home / "made"))
    base, adapter = load_finetuned(home / "made")
    assert texts(open_finetuned(home / "made")) == texts(Local.of(base, adapter))


def test_its_base_is_found_where_it_was_moved_to(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = texts(open_finetuned(home / "made"))
    shutil.copytree(home / "made", tmp_path / "made")
    path = tmp_path / "made" / FINETUNED_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "base": "/no/such/place/base"}))
    with pytest.raises(BadModel, match="TOOLSCOUT_BASE=PLACE"):
        open_llm(str(tmp_path / "made"))
    monkeypatch.setenv("TOOLSCOUT_BASE", str(home))
    assert texts(open_llm(str(tmp_path / "made"))) == wanted


def test_it_says_what_it_is(home: Path) -> None:
    assert is_finetuned(home / "made")
    assert not is_finetuned(home / "base")
    assert not is_finetuned("")
    record = read_finetuned(home / "made")
    assert record["base"] == str(home / "base")
    assert record["settings"] == {"queries": 4}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "no language model"),
        ({"language": 3}, "no language model"),
        ({"format": "x"}, "no format"),
        ({"format": 99}, "newer toolscout"),
        ({"language": "another"}, "another language model"),
    ],
)
def test_a_spoilt_folder_is_refused(home: Path, tmp_path: Path, changed: Any, said: str) -> None:
    shutil.copytree(home / "made", tmp_path / "made")
    path = tmp_path / "made" / FINETUNED_FILE
    path.write_text(changed if isinstance(changed, str) else json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(BadModel, match=said):
        open_llm(str(tmp_path / "made"))


def test_an_adapter_of_another_base_is_refused(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "made", tmp_path / "made")
    Adapter({"o": np.zeros((3, 32, 64), np.float32)}).save(tmp_path / "made")
    with pytest.raises(BadModel, match="does not fit"):
        open_finetuned(tmp_path / "made")
