"""Documents by tool: they follow the tools, are saved in files that are linked, and opened where they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.toys import catalogue
from toolscout.core.tool import Tool
from toolscout.errors import BadModel
from toolscout.index import document_texts
from toolscout.index.document_texts import MAX_CHARS, DocumentTexts

TOOLS = catalogue(40)


def filled() -> DocumentTexts:
    texts = DocumentTexts()
    texts.add(TOOLS)
    return texts


def all_of(texts: DocumentTexts) -> dict[str, str | None]:
    ids = [tool.id for tool in TOOLS]
    return {tool_id: text for tool_id, text in zip(ids, texts.get(ids), strict=True) if text is not None}


def test_they_follow_the_tools() -> None:
    texts = filled()
    assert all_of(texts) == {tool.id: tool.document() for tool in TOOLS}
    changed = replace(TOOLS[3], description="quite another one, ünï \ud800")
    texts.add([changed, Tool("zoo", "long", "x" * 10_000)])
    texts.remove([TOOLS[0].id, "no/such"])
    assert texts.get([TOOLS[0].id, changed.id, "no/such"]) == [None, changed.document(), None]
    assert len(str(texts.get(["zoo/long"])[0])) == MAX_CHARS
    assert len(texts) == 40


def test_rows_of_removed_tools_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_texts, "_DEAD_KEPT", 10)
    texts = filled()
    for _ in range(5):
        texts.add(TOOLS)
    assert len(texts._rows.ids) <= 2 * 40 + 10
    assert all_of(texts) == {tool.id: tool.document() for tool in TOOLS}


def test_saved_texts_are_opened_and_live_on(tmp_path: Path) -> None:
    texts = filled()
    texts.remove([TOOLS[1].id])
    texts.save(tmp_path / "one")
    opened = DocumentTexts.load(tmp_path / "one")
    assert all_of(opened) == all_of(texts)
    changed = replace(TOOLS[2], description="new")
    opened.add([changed, Tool("zoo", "new", "also new")])
    opened.remove([TOOLS[5].id])
    opened.save(tmp_path / "two")
    again = DocumentTexts.load(tmp_path / "two")
    assert all_of(again) == all_of(opened)
    assert again.get([changed.id, "zoo/new", TOOLS[5].id]) == [changed.document(), "zoo new\nalso new", None]
    same = [(tmp_path / name / "documents.npy").stat().st_ino for name in ("one", "two")]
    assert same[0] == same[1]  # linked, not copied


def test_many_changes_are_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_texts, "_BESIDE", 3)
    filled().save(tmp_path / "one")
    opened = DocumentTexts.load(tmp_path / "one")
    opened.add(TOOLS[:10])
    opened.save(tmp_path / "two")
    assert all_of(DocumentTexts.load(tmp_path / "two")) == all_of(filled())
    same = [(tmp_path / name / "documents.npy").stat().st_ino for name in ("one", "two")]
    assert same[0] != same[1]


def test_a_folder_is_saved_over_itself(tmp_path: Path) -> None:
    filled().save(tmp_path)
    opened = DocumentTexts.load(tmp_path)
    opened.add([Tool("zoo", "new", "also new")])
    opened.save(tmp_path)
    assert all_of(DocumentTexts.load(tmp_path)) == all_of(opened) == all_of(filled())


def test_an_empty_one_is_saved_too(tmp_path: Path) -> None:
    DocumentTexts().save(tmp_path)
    assert len(DocumentTexts.load(tmp_path)) == 0


@pytest.mark.parametrize("file", ["rows.json", "documents.npy", "documents.ends.npy", "later.npy", "later.ends.npy"])
@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_damaged_files_are_told(tmp_path: Path, file: str, content: bytes | None) -> None:
    filled().save(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(BadModel, match=r"the documents in .* cannot be read .* build the index again"):
        DocumentTexts.load(tmp_path)


def test_a_text_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    filled().save(tmp_path)
    path = tmp_path / "documents.npy"
    good = path.read_bytes()
    path.write_bytes(good[:128] + b"\xff" * (len(good) - 128))
    assert DocumentTexts.load(tmp_path).get([TOOLS[0].id]) == [None]
