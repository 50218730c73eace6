"""Expansions in files: what is read, what is refused, and what is searched of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolscout.core.expansion import (
    MAX_EXPANSION_CHARS,
    Expansion,
    read_expansions,
    split_expansion,
    with_expansion,
    write_expansions,
)
from toolscout.core.tool import Tool
from toolscout.errors import BadSource

WRITTEN = Expansion("erasing files", "get rid of the old report", "does not move files", "d1")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "expansions.jsonl"
    write_expansions(path, [("disk/rm", WRITTEN), ("disk/mv", Expansion("moving"))])
    assert read_expansions(path) == {"disk/rm": WRITTEN, "disk/mv": Expansion("moving")}
    assert [one.name for one in path.parent.iterdir()] == ["expansions.jsonl"]


def test_what_a_tool_cannot_do_is_not_searched() -> None:
    assert WRITTEN.searched() == "erasing files\nget rid of the old report"
    assert len(Expansion("long " * 10_000).searched()) == MAX_EXPANSION_CHARS


def test_control_characters_are_gone_and_the_last_line_of_a_tool_counts(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    lines = [{"id": "a/b", "for": "first"}, {"id": "a/b", "for": "no\x1e \x1b[31mtricks", "by": "somebody"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_expansions(path) == {"a/b": Expansion("no tricks")}


BAD = ["garbage", "[1]", '{"for": "no id"}', '{"id": 3, "for": "x"}', '{"id": "a/b", "for": 3}', '{"id": "a/b"}']


@pytest.mark.parametrize("line", [*BAD, "[" * 9999])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"id": "a/b", "for": "fine"}\n' + line + "\n")
    with pytest.raises(BadSource, match=r"line 2 is not an expansion .* correct or remove that line"):
        read_expansions(path)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing", "binary", "."):
        with pytest.raises(BadSource, match="toolscout synth --expand"):
            read_expansions(tmp_path / name)


def test_document_and_expansion_as_one_text() -> None:
    document = Tool("disk", "rm", "Removes.\x1e\nNow.").document()
    assert with_expansion(document, "") == document
    assert split_expansion(document) == (document, "")
    assert split_expansion(with_expansion(document, "erase\nit")) == (document, "erase\nit")


def test_a_text_may_hold_a_line_separator(tmp_path: Path) -> None:
    path = tmp_path / "expansions.jsonl"
    path.write_text('{"id": "a/b", "for": "one\u2028two"}\n', encoding="utf-8")
    assert "one" in read_expansions(path)["a/b"].purpose
