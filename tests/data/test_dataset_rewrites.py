"""Rewritten requests beside a dataset: read where a split asks for them, and refused where they are malformed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_dataset import HEADER, QUERIES, TEST_ROWS, write
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset

REWRITES: list[dict[str, Any]] = [
    {"_id": f"{original}-{level}", "text": f"{level} words of {original}", "metadata": about}
    for original in ("q1", "q2", "q3", "q5")
    for level in ("tool", "api")
    for about in [{"level": level, "original_id": original}]
]


def write_rewrites(folder: Path, rows: Iterable[Mapping[str, Any]] = REWRITES) -> Path:
    (folder / "queries_rewritten.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_split_in_its_rewrites_has_the_gold_the_kinds_and_the_scenes_of_the_originals(tmp_path: Path) -> None:
    qrels = {"test": HEADER + TEST_ROWS, "unseen_tool.test": HEADER + "q2\t8\t1\n"}
    folder = write_rewrites(write(tmp_path / "set", qrels=qrels))
    plain = Dataset.load(folder)
    assert plain.splits == ("test", "unseen_tool.test")
    assert plain.requests.keys() == {row["_id"] for row in QUERIES}
    data = Dataset.load(folder, ["test", "test.tool", "unseen_tool.test.api"])
    assert data.split("test") == plain.split("test")
    assert data.split("test.tool").gold == plain.split("test").gold
    assert [key for key, _ in data.split("test.tool").requests] == ["q1-tool", "q2-tool", "q5-tool"]
    assert data.requests["q5-tool"] == "tool words of q5"
    assert data.split("unseen_tool.test.api").requests == [("q2-api", "api words of q2")]
    assert data.goldless("test.tool") == [("q3-tool", "tool words of q3")]
    assert [data.kind(key) for key in ("q1-tool", "q3-tool")] == ["use", "no_tool"]
    assert [data.scene(key) for key in ("q2-tool", "q2-api", "q5-tool")] == ["s4", "s4", data.scene("q5")]
    assert data.metadata["q2-api"] == {"level": "api", "original_id": "q2", "scene": "s4"}
    assert "q1-api" not in data.requests
    assert not data.request_digests("test") & data.request_digests("test.tool")
    data.save(tmp_path / "saved" / "set")
    assert Dataset.load(tmp_path / "saved" / "set").digest() == data.digest()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"_id": "r", "text": "t", "metadata": {"level": "api"}}, "the rewrite r needs metadata with level and orig"),
        ({"_id": "r", "text": "t", "metadata": {"original_id": "q1"}}, "the rewrite r needs metadata with level"),
        ({"_id": "r", "text": ""}, "line 9: request r needs a text"),
        ({"_id": "r", "text": "t", "metadata": {"level": "api", "original_id": "q9"}}, "1 unknown original ids: q9"),
        ({"_id": "q2", "text": "t", "metadata": {"level": "api", "original_id": "q1"}}, "the id of another request"),
        ({"_id": "q1-api", "text": "t"}, "line 9: the _id q1-api is already that of line 2"),
    ],
)
def test_malformed_rewrites_are_refused_only_where_they_are_asked_for(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    folder = write_rewrites(write(tmp_path), [*REWRITES, row])
    assert Dataset.load(folder).splits == ("test",)
    with pytest.raises(BadDataset, match=message):
        Dataset.load(folder, ["test.api"])


def test_unknown_splits_are_told_which_rewrites_there_are(tmp_path: Path) -> None:
    folder = write_rewrites(write(tmp_path))
    message = r"no split test\.category, dev\.api; it has: test; and the rewrites of each, as: test\.api, \.tool"
    with pytest.raises(BadDataset, match=message):
        Dataset.load(folder, ["test.category", "test.api", "dev.api"])
