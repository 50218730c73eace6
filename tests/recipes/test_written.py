"""Requests that are written for catalogues without any: which are kept, and that they are written once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from recipes.default_encoder import written
from tests.synth.shop import TOOLS, writer
from tests.toys import HashedWords
from toolscout.synth.writing import RequestWriter


def test_requests_that_find_their_tool_again_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = writer()
    monkeypatch.setattr(written, "WRITTEN", {"mcp": ("", 1)})
    monkeypatch.setattr(written, "catalogue", lambda _: TOOLS)
    monkeypatch.setattr(written, "open_encoder", lambda _: HashedWords())
    monkeypatch.setattr(written.RequestWriter, "open", lambda _: RequestWriter(model))
    (tmp_path / "written" / "writer").mkdir(parents=True)
    (tmp_path / "written" / "writer" / "generator.json").write_text("{}")  # it was trained before
    written.write_requests(tmp_path)
    with gzip.open(tmp_path / "written" / "kept-mcp.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    known = {tool.id for tool in TOOLS}
    assert {gold[0] for _, gold in rows} == known
    assert all(text and set(gold) <= known for text, gold in rows)
    asked = len(model.asked)
    written.write_requests(tmp_path)  # all is there
    assert len(model.asked) == asked
    assert [path.name for path in (tmp_path / "written").glob("kept*")] == ["kept-mcp.jsonl.gz"]
