"""read_prompts: prompts that need no tool, by split, and what it refuses."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from toolscout.data.dataset import Dataset
from toolscout.data.no_tool_prompts import Prompt, read_prompts
from toolscout.errors import BadDataset

ROWS: list[dict[str, Any]] = [
    {"_id": "a", "text": "How are you?", "split": "train", "source": "chat"},
    {"_id": "b", "text": "Write a poem", "split": "test", "source": "poems"},
    {"_id": "c", "text": "Sing", "split": "train"},
]


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_prompts_come_with_split_and_source_all_or_by_split(tmp_path: Path) -> None:
    folder = write(tmp_path, *ROWS)
    prompts = read_prompts(folder)
    assert prompts[:2] == [Prompt("a", "How are you?", "train", "chat"), Prompt("b", "Write a poem", "test", "poems")]
    assert [prompt.id for prompt in read_prompts(folder, "train")] == ["a", "c"]
    with pytest.raises(BadDataset, match="no split 'dev'; it has: test, train"):
        read_prompts(folder, "dev")


def test_a_folder_of_prompts_is_no_dataset_and_says_what_reads_it(tmp_path: Path) -> None:
    with pytest.raises(
        BadDataset, match=r"prompts without tools; read it with toolscout\.data\.no_tool_prompts\.read_prompts"
    ):
        Dataset.load(write(tmp_path, *ROWS))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no prompts"),
        ([ROWS[0], ROWS[0]], "line 2: the _id a is already that of line 1"),
        ([{**ROWS[0], "text": "\n"}], "line 1: prompt a needs a text"),
        ([{"_id": "a", "text": "Hi"}], "line 1: prompt a needs a split and a source"),
        ([{**ROWS[0], "source": 5}], "line 1: prompt a needs a split and a source"),
    ],
)
def test_malformed_prompts_name_the_line(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(BadDataset, match=message):
        read_prompts(write(tmp_path, *rows))


def test_a_folder_without_prompts_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadDataset, match=r"holds no prompts\.jsonl \(or \.gz\)"):
            read_prompts(folder)


def test_published_prompts_are_as_many_as_their_notes_say(shared_data: Path) -> None:
    folder = shared_data / "no_tool"
    found = Counter((prompt.source, prompt.split) for prompt in read_prompts(folder))
    splits = ("train", "dev", "test", "tooldet_test")
    table = re.findall(
        r"^\| (\S+) \|.*?\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", (folder / "README.md").read_text(), re.M
    )
    expected = {source: [int(count) for count in counts] for source, *counts in table}
    assert len(expected) == 15
    total = expected.pop("all")
    assert {source: [found[source, split] for split in splits] for source in expected} == {
        source: counts[1:] for source, counts in expected.items()
    }
    assert [len(read_prompts(folder, split)) for split in splits] == total[1:] == [8508, 1072, 1103, 2972]
