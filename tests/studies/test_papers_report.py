"""The section that shows the papers' numbers beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies import report
from tests.evaluation.report_samples import scored, write_rows
from toolscout.evaluation.report import plots
from toolscout.evaluation.report.figures import Figure
from toolscout.papers import published_numbers

COLT = {"dataset": "toollens", "retriever": "colt", "options": {"epochs": 3}}  # what the served form was trained with
STAGE_1 = {"epochs": 6, "rate": 0.0002, "patience": 0}


def made(folder: Path) -> dict[str, Figure]:
    return {one.file.removesuffix(".svg"): one for one in report.make(folder).figures}


def test_the_numbers_of_the_paper_stand_beside_the_mean_of_our_seeds(tmp_path: Path) -> None:
    for seed, value in enumerate((0.5, 0.75)):
        write_rows(tmp_path, scored(value, **COLT, variant=f"colt-toollens-s{seed}", seed=seed))
    drawn = made(tmp_path)
    assert set(drawn) == {"paper_colt", "masstool_gain"}  # COLT as served is a line of both
    figure = drawn["paper_colt"]
    toollens, other = figure.panels
    series = {one.label: one for one in toollens.series}
    ours = series.pop("COLT (MiniLM-L6): ours, as served")
    assert ours.x == ("R@3", "R@5", "N@5", "C@3", "C@5")
    assert ours.y == (62.5,) * 5
    assert ours.error == pytest.approx((17.68,) * 5)
    assert not ours.dashed
    assert all(one.dashed for one in [*series.values(), *other.series])
    published = published_numbers.load()["toollens"]
    theirs = next(values for name, _, values in published.lines if name == "COLT (Contriever)")
    by_column = dict(zip(published.columns, theirs, strict=True))
    shown = series["COLT (Contriever): the paper's"]
    assert dict(zip(shown.x, shown.y, strict=True)) == {head: by_column[head] for head in shown.x}
    text = report.make(tmp_path).texts[report.PAGE]
    assert "![COLT: the paper's numbers and ours](paper_colt.svg)" in text
    assert "| COLT (MiniLM-L6): ours, as served | 62.50 ± 17.68 |" in text


def test_generation_with_a_cosine_is_told_apart_from_generation_alone(tmp_path: Path) -> None:
    about = {"dataset": "toollens", "retriever": "toolgen", "seed": 0}
    write_rows(
        tmp_path,
        scored(0.5, **about, variant="sets-toollens-s0", options={"similarity": 0.0}),
        scored(0.75, **about, variant="toolgen-toollens-s0", options={"similarity": 30.0}),
    )
    (panel,) = made(tmp_path)["toolgen_alone"].panels
    assert [(one.label, one.x, one.y) for one in panel.series] == [
        ("toolgen alone (sets)", ("test",), (50.0,)),
        ("toolgen+dense", ("test",), (75.0,)),
    ]


def test_a_baseline_of_an_earlier_paper_is_called_by_its_name(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(dataset="toollens", retriever="dense", variant="toollens-s0", options=STAGE_1, seed=0))
    labels = {one.label for one in made(tmp_path)["paper_masstool"].panels[0].series}
    assert "ANCE, fine-tuned: the COLT paper's" in labels
    assert "MassTool (ANCE): the paper's" in labels
    assert "MiniLM-L6, fine-tuned: ours, as served" in labels


def test_without_a_number_of_ours_nothing_is_drawn(tmp_path: Path) -> None:
    write_rows(tmp_path, scored())
    assert made(tmp_path) == {}
    assert "The papers beside our runs" not in report.make(tmp_path).texts[report.PAGE]


def test_the_papers_bars_are_hatched_and_ours_are_not(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_rows(tmp_path, scored(**COLT, variant="colt-toollens-s0", seed=0))
    figure = made(tmp_path)["paper_colt"]
    plots.draw(figure, tmp_path / figure.file)
    drawn = (tmp_path / figure.file).read_text(encoding="utf-8")
    theirs = {one.label for panel in figure.panels for one in panel.series if one.dashed}
    assert drawn.count("<pattern ") == len(theirs) == 2
    assert plots.read_digest(tmp_path / figure.file) == figure.digest()
