"""The papers' numbers: as they were published, and beside ours only where they belong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.report_samples import scored, write_rows
from tests.evaluation.test_report import line, page
from toolscout.papers import published_numbers

PARTS = {
    "test_G1_instruction": 200,
    "test_G1_tool": 100,
    "test_G1_category": 300,
    "test_G2_instruction": 200,
    "test_G2_category": 200,
    "test_G3_instruction": 100,
}


def numbers(text: str) -> list[list[float]]:
    """The numbers of every line, in a sentence too, and each percentage; in cells with two, also either alone."""
    rows = [[cell.strip().strip("*%") for cell in row.strip("|").split("|")] for row in text.splitlines() if "|" in row]
    rows += [[cell.split("/")[side] for cell in row if cell.count("/") == 1] for row in list(rows) for side in (0, 1)]
    found = [[float(cell) for cell in row if re.fullmatch(r"\d*\.\d+", cell)] for row in rows]
    found += [[float(one)] for one in re.findall(r"\b(\d+) %", text)]
    return found + [[float(one) for one in re.findall(r"\d*\.\d+", row)] for row in text.splitlines()]


def test_every_number_stands_in_the_survey_of_methods(shared_data: Path) -> None:
    survey = shared_data.parent / "METHODS.md"
    if not survey.is_file():
        pytest.skip("the survey of methods does not lie beside the datasets")
    rows = numbers(survey.read_text(encoding="utf-8"))
    for dataset, published in published_numbers.load().items():
        for name, source, values in published.lines:
            theirs = [value for value in values if value is not None]
            fractions = [round(value / 100, 4) for value in theirs]
            found = any(row[at : at + len(theirs)] in (theirs, fractions) for row in rows for at in range(len(row)))
            assert found, f"{dataset}: {name} of {source} says {theirs}"
            assert source in published.sources
            assert len(values) == len(published.columns)


def test_every_source_says_where_it_was_printed() -> None:
    for published in published_numbers.load().values():
        assert published.caveats
        for about in published.sources.values():
            assert re.search(r"arXiv \d{4}\.\d{5}|Table|table", about)


def test_theirs_stand_in_italics_beside_ours_on_the_same_requests_only(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(dataset="toollens", requests=1877))
    write_rows(tmp_path, scored(dataset="toollens", split="unseen_tool.test", requests=1685))
    assert line(tmp_path, "*COLT (Contriever)*")["R@5"] == "*97.75*"
    assert line(tmp_path, "*MassTool (ANCE)*")["paper"] == "*MassTool*"
    text = page(tmp_path)
    assert text.count("COLT (Contriever)") == 1
    assert "the papers' numbers, not measured here. COLT: arXiv 2405.16089, Table 3" in text
    assert "- In these papers the validation set is the test set" in text
    own = write_rows(tmp_path / "own", scored(dataset="toollens", requests=20))
    assert "COLT" not in page(own)


def parts(**changes: Any) -> list[dict[str, Any]]:
    return [
        scored(0.1 * number, dataset="toolbench", split=split, requests=requests, **changes)
        for number, (split, requests) in enumerate(PARTS.items(), 1)
    ]


def by_part(folder: Path, method: str) -> dict[str, str]:
    (found,) = [cells for cells in published_numbers.by_part(lines(folder)) if cells["retriever"] == method]
    return found


def lines(folder: Path) -> list[Any]:
    from toolscout.evaluation.report.rows import read_folder

    return read_folder(folder)[0]


def test_parts_of_toolbench_are_joined_by_their_requests(tmp_path: Path) -> None:
    write_rows(tmp_path, *parts())
    expected = 100 * (0.1 * 200 + 0.2 * 100 + 0.3 * 300) / 600
    assert by_part(tmp_path, "bm25") == {
        "retriever": "bm25",
        "commit": "abc",
        "G1 N@1": f"{expected:.2f}",
        "G1 N@3": "",
        "G1 N@5": "",
        "G2 N@1": "45.00",
        "G2 N@3": "",
        "G2 N@5": "",
        "G3 N@1": "60.00",
        "G3 N@3": "",
        "G3 N@5": "",
    }
    text = page(tmp_path)
    assert f"| bm25 | {expected:.2f} |" in text
    assert "| *EmbSim (text-embedding-3-large)* | *54.00* |" in text
    assert "- N@1 is the same measure everywhere." in text


def test_toolgens_ndcg_is_shown_where_rows_have_it_and_seeds_are_averaged(tmp_path: Path) -> None:
    for seed, value in enumerate((0.5, 0.7)):
        metrics = {f"toolgen_ndcg@{k}": value for k in (1, 3, 5)}
        write_rows(tmp_path, *parts(seed=seed, metrics=metrics))
    assert by_part(tmp_path, "bm25")["G2 N@3"] == "60.00 ± 14.14"


def test_a_part_needs_all_of_its_files(tmp_path: Path) -> None:
    write_rows(tmp_path, *(row for row in parts() if row["split"] != "test_G1_tool"))
    found = by_part(tmp_path, "bm25")
    assert "G1 N@1" not in found
    assert found["G3 N@1"] == "60.00"


def test_g3_is_said_to_be_other_requests(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(dataset="toolbench-g3", requests=489))
    text = page(tmp_path)
    assert text.index("| bm25 |") < text.index("### Published on other requests: not comparable") < text.index("*COLT")
    assert "The papers' own G3 requests (2,373 in test) are not available" in text
    assert "ToolBench G2's texts are not available" in text
