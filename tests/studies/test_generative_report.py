"""The sections of the page about generative models: catalogues that grow, stages of training, speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import report
from tests.evaluation.report_samples import scored, timed, write_rows
from toolscout.evaluation.report import plots


def grown(retriever: str, tools: int, value: float, vocabulary: int, **costs: float) -> dict[str, Any]:
    told = {
        "name": "growth",
        "tools": tools,
        "train": 500,
        "device": "cuda",
        "costs": {"vocabulary": vocabulary, "rows_mb": vocabulary / 100, "add_s": 0.01, **costs},
    }
    made = scored(value, retriever=retriever, variant=f"growth-{tools}-s0", digest=f"{tools}", seed=0, study=told)
    return made | {"metrics": made["metrics"] | {"same_ndcg@5": value / 2, "same_recall@5": value / 2}}


def staged(variant: str, stage: str, **metrics: float) -> dict[str, Any]:
    told = {"name": "stages", "variant": variant, "stage": stage, "text": "no_tool test", "task": "sst2"}
    return scored(
        retriever="toolgen", split="dev", variant=f"stages-{variant}-{stage}-s0", seed=0, metrics=metrics, study=told
    )


def quick(ids: str, device: str, **values: float) -> dict[str, Any]:
    about = {"bench": "generative", "tools": 464, "requests": f"{ids} {device}", "values": values}
    return about | {"model": f"{ids}-model", "ids": ids, "asked": "toollens dev", "device": device, "commit": "abc"}


def page(folder: Path) -> str:
    return report.make(folder).texts[report.PAGE]


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]


def test_catalogues_that_grow_have_tables_and_plots(tmp_path: Path) -> None:
    write_rows(
        tmp_path,
        scored(0.25),
        grown("toolweaver", 10_000, 0.4, 1026),
        grown("toolgen", 10_000, 0.5, 10_002, gpu_peak_mb=2000.0),
        grown("toolgen", 1000, 0.75, 1002),
    )
    before, _, section = page(tmp_path).partition("## Generative models: catalogues that grow")
    assert "toolgen" not in before
    assert "![Catalogues that grow: cost](growth_cost.svg)" in section
    found = lines(section)
    assert found[1].startswith("| toolgen | 1,000 | 500 | 10 | 75.00 | 75.00 | 75.00 | 75.00 | 37.50 | 37.50 |")
    assert found[3].startswith("| toolweaver | 10,000 |")
    assert [line.split(" | ")[2] for line in found[5:]] == ["1,002", "10,002", "1,026"]
    figures = {one.file: one for one in report.make(tmp_path).figures}
    quality = figures["growth.svg"].panels[0].series
    assert [(one.label, one.x, one.y, one.dashed) for one in quality[:2]] == [
        ("toolgen", (1000.0, 10_000.0), (75.0, 50.0), False),
        ("toolweaver", (10_000.0,), (40.0,), False),
    ]
    assert [panel.title for panel in figures["growth_cost.svg"].panels] == [
        "added vocabulary",
        "added rows in memory, MB",
        "GPU peak, MB",
        "adding a tool, s",
    ]


def test_stages_stand_in_their_order_behind_the_base(tmp_path: Path) -> None:
    write_rows(
        tmp_path,
        staged(
            "full-mixed", "retrieve", **{"recall@5": 0.9, "free_invented": 0.125, "perplexity": 31.5, "spoiled": 0.0}
        ),
        staged("full-mixed", "memorise", document_accuracy=0.5, perplexity=25.0, task_accuracy=0.75),
        staged("base", "base", perplexity=20.0, perplexity_words=20.0),
    )
    section = page(tmp_path).partition("## Generative models: what each stage")[2]
    assert "**toolgen, mine dev**, 10 requests; text: no_tool test" in section
    head, *found = lines(section)
    assert [line.split(" | ")[0].removeprefix("| ") for line in found] == [
        "none: the base model",
        "full, mixed",
        "full, mixed",
    ]
    assert [line.split(" | ")[1] for line in found] == ["", "memorise", "retrieve"]
    assert "| sst2 |" in head
    assert "free: right" not in head
    assert "12.50" in found[2]
    assert "31.50" in found[2]


def test_speed_is_held_against_its_aims(tmp_path: Path) -> None:
    write_rows(
        tmp_path,
        timed(10, 1.0),
        quick("atomic", "2 cores", search_p50_ms=75.0, top1=0.97, top5=0.99),
        quick("codes", "2 cores", search_p50_ms=170.0, top1=0.99, top5=0.99),
        quick("atomic", "cuda", requests_per_s=5000.0),
    )
    section = page(tmp_path).partition("## Generative models: speed")[2]
    found = lines(section)
    assert "75 (≤ 80: met)" in found[1]
    assert "0.97 (≥ 0.98: **missed**)" in found[1]
    assert "5,000" in found[2]
    assert "170 (≤ 160: **missed**)" in found[3]


def test_nothing_is_said_where_there_are_no_rows(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(0.25))
    assert "Generative models" not in page(tmp_path)


@pytest.mark.slow
def test_plots_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_rows(tmp_path, grown("toolgen", 1000, 0.75, 1002), grown("toolweaver", 1000, 0.5, 1026))
    report.make(tmp_path).write(tmp_path)
    assert plots.read_digest(tmp_path / "growth.svg")
    assert plots.read_digest(tmp_path / "growth_cost.svg")
    assert report.make(tmp_path).stale(tmp_path) == []
