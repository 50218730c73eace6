"""The study of the length of documents: what it draws and measures, its rows and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies import document_length, report
from studies.document_length import SHIPPED, LengthSet
from tests.evaluation.report_samples import scored, write_rows
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.models.encoders.opening import open_encoder

WORDS = ("weather", "invoice", "train", "recipe", "music", "parcel")


def small() -> Dataset:
    """Tools whose own word stands at the end of a long document, or at once."""
    tools = [
        Tool("shop", word, f"{'the service answers ' * (20 * (at % 2))}about {word}") for at, word in enumerate(WORDS)
    ]
    requests = {f"r{at}": f"tell me about my {word}" for at, word in enumerate(WORDS)}
    gold = {f"r{at}": (tool.id,) for at, tool in enumerate(tools)}
    return Dataset("small", tools, requests, {"test": gold})


def test_requests_are_drawn_evenly() -> None:
    assert list(document_length.drawn(small(), "test", 3).qrels["test"]) == ["r0", "r2", "r4"]
    assert list(document_length.drawn(small(), "test", 4).qrels["test"]) == ["r0", "r2", "r4"]
    assert document_length.drawn(small(), "test").qrels == small().qrels


def test_documents_are_cut_where_they_have_more_tokens() -> None:
    # Two tokens open and close each text.
    texts = ["weather", "weather " * 8, "weather " * 9]
    assert document_length.shares_cut(texts, (3, 10, 11)) == {3: 0.666667, 10: 0.333333, 11: 0.0}


def test_the_shipped_limit_is_the_default() -> None:
    default, named = open_encoder("default"), open_encoder(f"default?document_tokens={SHIPPED}")
    assert default.fingerprint == named.fingerprint
    assert SHIPPED in document_length.LIMITS
    assert all(SHIPPED in one.limits for one in document_length.SETS)


def test_each_limit_has_a_row_compared_with_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_length, "_ROUNDS", 1)
    out = tmp_path / "rows.jsonl"
    document_length.measure(LengthSet("small", "test"), small(), (16, SHIPPED), out, tmp_path / "vectors.db")
    whole, short = map(json.loads, out.read_text().splitlines())
    assert [document_length.limit_of(row) for row in (whole, short)] == [SHIPPED, 16]
    assert (whole["study"]["cut"], short["study"]["cut"]) == (0.0, 0.5)
    assert whole["study"]["difference"] == 0
    for row in (whole, short):
        assert row["study"]["documents_cpu_s"] > 0
        assert row["study"]["tools"] == row["requests"] == len(WORDS)
        gained = row["metrics"]["recall@5"] - whole["metrics"]["recall@5"]
        assert row["study"]["difference"] == pytest.approx(gained, abs=2e-6)
    assert whole["encoder"] == open_encoder("default").fingerprint != short["encoder"]
    document_length.measure(LengthSet("small", "test"), small(), (32,), out, tmp_path / "vectors.db")
    assert [document_length.limit_of(json.loads(line)) for line in out.read_text().splitlines()] == [SHIPPED, 16, 32]


def test_the_table_has_a_line_for_each_limit(tmp_path: Path) -> None:
    for limit, recall in ((SHIPPED, 0.5), (32, 0.25)):
        told = {
            "name": "document_length",
            "document_tokens": limit,
            "tools": 1234,
            "cut": 0.125,
            "documents_cpu_s": 9.5,
        }
        told |= {"difference": recall - 0.5, "low": -0.3, "high": 0.0, "p": 0.5}
        about = {"retriever": "dense", "variant": f"document_tokens={limit}", "study": told}
        write_rows(tmp_path, scored(recall, **about))
    section = report.make(tmp_path).texts[report.PAGE].partition("## Length of documents")[2]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    beginning = ["mine test", "1,234", "10"]
    assert lines[2:] == [
        [*beginning, "32", "25.00", "-25.00", "-30.00 to +0.00", "12.5", "9.5", "abc"],
        [*beginning, "96", "50.00", "", "", "12.5", "9.5", "abc"],
    ]
