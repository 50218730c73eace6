"""Dataset on the published folders: everything that their own READMEs list is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolscout.data.dataset import Dataset

pytestmark = pytest.mark.slow


def listed(folder: Path) -> dict[str, tuple[int, int]]:
    """What a published folder says of its own files: rows, and requests where there are any."""
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) \| (\d*) \|$", (folder / "README.md").read_text(), flags=re.MULTILINE)
    return {name.removesuffix(".gz"): (int(count), int(queries or 0)) for name, count, queries in rows}


# How many splits each published folder has.
PUBLISHED = {
    "toollens": 9,
    "toolbench-g3": 9,
    "simpletoolquestions": 4,
    "ultratool": 3,
    "sealtools": 3,
    "stabletoolbench": 7,
    "toolbench": 10,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sets_are_read_whole(shared_data: Path, name: str) -> None:
    files = listed(shared_data / name)
    data = Dataset.load(shared_data / name)
    assert (len(data.tools), len(data.requests)) == (files["corpus.jsonl"][0], files["queries.jsonl"][0])
    assert len(data.splits) == PUBLISHED[name]
    sizes = {f"qrels/{split}.tsv": (sum(map(len, q.values())), len(q)) for split, q in data.qrels.items()}
    assert sizes == {file: counts for file, counts in files.items() if file.startswith("qrels/")}
    assert len({tool.meta["corpus_id"] for tool in data.tools}) == len(data.tools)
    if name == "toollens":
        assert len(data.scenes) == len({data.scene(request_id) for request_id in data.requests}) == 463
        held_out = {line.split("\t")[0] for line in (shared_data / name / "unseen_tools.tsv").read_text().split("\n")}
        new = data.new_tools("unseen_tool.train", "unseen_tool.test")
        assert new
        assert {tool.meta["corpus_id"] for tool in data.tools if tool.id in new} <= held_out


def test_published_rewrites_are_read_for_every_split(shared_data: Path) -> None:
    folder = shared_data / "toolbench-g3"
    files = listed(folder)
    parts, levels = ("train", "dev", "test"), ("api", "tool", "category")
    bases = [family + part for family in ("", "unseen_scene.", "unseen_tool.") for part in parts]
    data = Dataset.load(folder, [*bases, *(f"{base}.{level}" for base in bases for level in levels)])
    assert len(data.splits) == 36
    for base in bases:
        originals = data.qrels[base]
        for level in levels:
            rewrites = data.qrels[f"{base}.{level}"]
            assert len(rewrites) == files[f"qrels/{base}.tsv"][1]
            assert {data.metadata[key]["original_id"]: gold for key, gold in rewrites.items()} == originals
    assert len(data.requests) == files["queries.jsonl"][0] + files["queries_rewritten.jsonl"][0]
    assert len({data.scene(request_id) for request_id in data.requests}) == 3110
