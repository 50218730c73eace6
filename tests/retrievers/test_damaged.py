"""Whatever happens to a file of a saved model: it is opened, or BadModel says that it cannot be."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.retrievers import generators
from tests.retrievers.test_contract import build, fitted
from tests.toys import HashedWords, catalogue
from toolscout.errors import BadModel
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.masstool import Masstool
from toolscout.retrievers.model_folder import trained_on
from toolscout.retrievers.registry import load_model

pytestmark = pytest.mark.slow

NAMES = (
    "bm25",
    "dense",
    "dense-graph",
    "hybrid",
    "memory-learned",
    "centroid-learned",
    "masstool-trained",
    "masstool_published",
    "toolgen",
    "toolgen-hierarchical",
    "toolweaver",
    "rewrite",
    "rerank",
)
# More keys than any record has: then they are ids, and all alike.
MANY = 20
OTHERS: tuple[Any, ...] = (None, [], {}, 1, "x", [1], {"a": 1})


def save(name: str, folder: Path) -> None:
    if name in generators.VARIANTS:
        shutil.copytree(generators.fitted(name), folder)
    elif name == "masstool-trained":
        shutil.copytree(fitted(Masstool), folder)
    else:
        made: Any = Dense(encoder=HashedWords()) if name == "dense-graph" else build(name)
        made.add(catalogue(60))
        made.remove([catalogue(60)[3].id])
        if name == "dense-graph":
            made._graph_above = 10
            made.optimise()
            assert made._table.has_graph
        made.save(folder)


def damaged(path: Path) -> Iterator[tuple[str, bytes]]:
    """What a file may hold after an accident, and what that is."""
    good, chance = path.read_bytes(), random.Random(0)
    noise = chance.randbytes(len(good))
    yield "empty", b""
    yield "half", good[: len(good) // 2]
    yield "garbage", noise
    yield "garbled head", good[:8] + noise[8:60] + good[60:]
    if path.suffix == ".npy":
        yield "open bracket", good[:10] + b"((" + good[12:]
    if path.suffix != ".json":
        return
    record, records = json.loads(good), list(OTHERS)
    if isinstance(record, dict) and len(record) < MANY:
        records += [{**record, key: other} for key in record for other in OTHERS]
    for one in records:
        yield json.dumps(one)[:200], json.dumps(one).encode()


@pytest.mark.parametrize("name", NAMES)
def test_every_damage_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder.load", HashedWords.load)
    folder = tmp_path / "model"
    save(name, folder)
    load_model(folder)
    raised = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        good = path.read_bytes()
        for what, content in damaged(path):
            path.write_bytes(content)
            try:
                load_model(folder)
                trained_on(folder)
            except BadModel:
                pass
            except BaseException as error:  # what an engine raises may be no Exception
                raised.append(f"{path.relative_to(folder)} {what}: {error!r}")
        path.write_bytes(good)
    assert not raised, "\n".join(raised)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00v\x00((", b"\x93NUMPY\x01\x00v\x00{'a' 1}", b"no"])
@pytest.mark.parametrize("file", ["vectors.npy", "dead.npy"])
def test_vectors_that_cannot_be_read(tmp_path: Path, file: str, content: bytes) -> None:
    made = Dense(encoder=HashedWords())
    made.add(catalogue(8))
    made.save(tmp_path)
    path = tmp_path / "vectors" / file
    path.write_bytes(content.ljust(200) if content else b"")
    with pytest.raises(BadModel, match=r"the vectors in .* cannot be read .* build the index again"):
        Dense.load(tmp_path, HashedWords())


@pytest.mark.parametrize("options", [None, [], 1, {"fuzzy": None}, {"words": "many"}])
def test_options_of_another_kind(tmp_path: Path, options: Any) -> None:
    build("bm25").save(tmp_path)
    record = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**record, "options": options}))
    with pytest.raises(BadModel, match="write the model again"):
        load_model(tmp_path)
