"""BEIR folders."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.catalogue.importer_samples import mcp_tool, write_lines
from toolscout import catalogue
from toolscout.catalogue import ReadOptions
from toolscout.data.dataset import Dataset
from toolscout.errors import BadSource


def row(number: int, **tool: object) -> dict[str, object]:
    return {"_id": str(number), "title": "", "text": "text", "metadata": {"tool": tool}}


def test_rows_with_and_without_a_tool(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    rows = [
        row(1, **mcp_tool("find", namespace="web", _meta={"category": ["Search", "Web"], "x": 1})),
        row(2, **mcp_tool("bare")),
        {"_id": "3", "title": "Plain one", "text": "described"},
        {"_id": "only-an-id", "text": "described"},
    ]
    write_lines(folder / "corpus.jsonl", rows)
    first, second, third, fourth = catalogue.read(folder)
    assert (first.id, first.tags, first.meta) == ("web/find", ("Search", "Web"), {**first.meta, "x": 1})
    assert [tool.meta["corpus_id"] for tool in (first, second, third, fourth)] == ["1", "2", "3", "only-an-id"]
    assert [tool.id for tool in (second, third, fourth)] == ["demo/bare", "demo/Plain one", "demo/only-an-id"]
    assert third.description == "described"
    assert [tool.id for tool in catalogue.read(folder, ReadOptions(namespace="n"))][1] == "n/bare"
    assert list(catalogue.read(folder / "corpus.jsonl")) == [first, second, third, fourth]


def test_gzip_corpus(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "corpus.jsonl", [row(1, **mcp_tool("a"))])
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert len(list(catalogue.read(tmp_path))) == 1


def test_one_id_twice_gives_the_ids_that_a_dataset_gives(tmp_path: Path) -> None:
    rows = [
        row(1, **mcp_tool("a", namespace="n")),
        row(2, **mcp_tool("a", namespace="n")),
        row(3, **mcp_tool("a", namespace="n", title="other")),
        row(4, **mcp_tool("a", namespace="n", title="third")),
        row(5, **mcp_tool("a", namespace="n", title="other")),
    ]
    write_lines(tmp_path / "corpus.jsonl", rows)
    write_lines(tmp_path / "queries.jsonl", [{"_id": "q", "text": "request"}])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n", encoding="utf-8")
    tools = list(catalogue.read(tmp_path))
    assert [tool.id for tool in tools] == ["n/a", "n-2/a", "n-3/a"]
    assert tools == Dataset.load(tmp_path).tools


@pytest.mark.parametrize(
    ("line", "said"),
    [("[1]", "a JSON object is needed, got list"), ("{}", "a tool needs a name"), ("{", "not JSON")],
)
def test_broken_rows_are_named(tmp_path: Path, line: str, said: str) -> None:
    path = write_lines(tmp_path / "corpus.jsonl", [row(1, **mcp_tool("a"))])
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line)
    with pytest.raises(BadSource, match=rf"^{path} line 2: {said}"):
        list(catalogue.read(tmp_path))
    options = ReadOptions(keep_going=True)
    assert len(list(catalogue.read(tmp_path, options))) == len(options.problems) == 1


def test_every_published_folder_comes_in_whole(shared_data: Path) -> None:
    counts = {
        path.parent.name: sum(1 for _ in catalogue.read(path.parent))
        for path in sorted(shared_data.glob("*/corpus.jsonl*"))
        if path.parent.name != "toolbench"
    }
    assert counts["sealtools"] == 4076
    assert counts["toollens"] == 464
    assert all(counts.values())


def test_the_largest_folder_comes_in_whole(shared_data: Path) -> None:
    tools = list(catalogue.read(shared_data / "toolbench"))
    assert len({tool.id for tool in tools}) == 46_587
    assert tools[0].tags == ("Advertising",)
