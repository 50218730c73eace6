"""The sections of the page about rewriting requests, and about training on written ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import report
from tests.evaluation.report_samples import scored, write_rows
from tests.studies.test_generative_report import lines, page
from toolscout.evaluation.report import plots


def rewritten(over: str, form: str, value: float, seed: int | None = None, **told: Any) -> dict[str, Any]:
    about = {
        "name": "rewriting",
        "family": "mine",
        "form": form,
        "over": over,
        "author": "SmolLM2" if form == "zero" else "",
        "costs": {"queries": 20, "llm_prompt_tokens": 500, "llm_completion_tokens": 50, "rewritten": 5},
        "namespaces": {"a": [10, 5], "b": [20, 10]},
        **told,
    }
    name = f"rewriting-{over}-{form}" + ("" if seed is None else f"-s{seed}")
    made = scored(value, retriever="rewrite", variant=name, seed=seed, study=about)
    return made | {"metrics": made["metrics"] | {"gini@5": 0.5, "gini_gold": 0.25}, "timing": {"fit_s": 12.0}}


def held(method: str, count: int, new: float, known: float, seed: int = 0) -> dict[str, Any]:
    told = {"name": "synthetic", "family": "mine", "method": method, "per_tool": count, "real": 1000, "written": count}
    made = scored(0.5, retriever=method, variant=f"synthetic-{method}-{count}-s{seed}", seed=seed, study=told)
    return made | {"metrics": made["metrics"] | {"new_recall@5": new, "known_recall@5": known}}


def test_each_form_is_held_against_the_request_alone(tmp_path: Path) -> None:
    moved = {"namespaces": {"a": [10, 6], "b": [20, 2], "c": [9, 9]}}
    write_rows(
        tmp_path,
        scored(0.25),
        rewritten("dense-raw", "supervised", 0.5, 0, **moved),
        rewritten("dense-raw", "supervised", 0.6, 1, **moved),
        rewritten("dense-raw", "alone", 0.25),
        rewritten("dense-raw", "zero", 0.2),
        rewritten("dense-raw", "zero", 0.7, author="strong") | {"variant": "rewriting-dense-raw-zero-strong"},
        rewritten("bm25", "rules", 0.3),
    )
    before, _, section = page(tmp_path).partition("## Rewriting requests")
    assert "rewrite" not in before
    head, bm25, alone, zero, strong, supervised = (line.strip("| ").split(" | ") for line in lines(section))
    assert [one[:2] for one in (bm25, alone, zero, strong, supervised)] == [
        ["bm25", "rules"],
        ["dense-raw", "alone"],
        ["dense-raw", "zero"],
        ["dense-raw", "zero (strong)"],
        ["dense-raw", "supervised"],
    ]
    found = dict(zip(head, supervised, strict=True))
    assert (found["R@5"], found["Δ R@5"], found["seeds"]) == ("55.00 ± 7.07", "+30.00", "2")
    assert (found["read"], found["written"], found["queries"]) == ("50.0", "5.0", "2.0")
    assert (found["Gini"], found["… needed"], found["better"], found["worse"]) == ("0.500", "0.250", "1", "1")
    assert dict(zip(head, zero, strict=True))["Δ R@5"] == "-5.00"
    figure = next(one for one in report.make(tmp_path).figures if one.file == "rewriting.svg")
    assert [(one.label, one.x) for one in figure.panels[0].series] == [
        ("bm25", ("rules",)),
        ("dense-raw", ("alone", "zero", "zero (strong)", "supervised")),
    ]
    gains = next(one for one in report.make(tmp_path).figures if one.file == "rewriting_gain.svg")
    assert [(panel.title, [(one.label, one.y) for one in panel.series]) for panel in gains.panels] == [
        ("SmolLM2 as it is, shown examples", [("dense-raw", (-5.0,))]),
        ("SmolLM2, supervised", [("dense-raw", (30.0,))]),
    ]
    assert "Only where it is worth it" not in section


def test_a_share_of_the_requests_stands_between_none_and_all(tmp_path: Path) -> None:
    write_rows(
        tmp_path,
        rewritten("dense-raw", "alone", 0.2),
        rewritten("dense-raw", "aligned", 0.6, 0),
        rewritten("dense-raw", "aligned-share25", 0.4, 0),
        rewritten("dense-raw", "aligned-share50", 0.5, 0),
    )
    section = page(tmp_path).partition("### Only where it is worth it")[2]
    head, *found = (line.strip("| ").split(" | ") for line in lines(section))
    shown = [dict(zip(head, one, strict=True)) for one in found]
    assert [one["share"] for one in shown] == ["0 %", "25 %", "50 %", "100 %"]
    assert [one["R@5 at random"] for one in shown] == ["20.00", "30.00", "40.00", "60.00"]
    assert shown[1]["rewritten"] == "50.0 %"
    figure = next(one for one in report.make(tmp_path).figures if one.file == "rewriting_share.svg")
    assert figure.panels[0].series[0].x == (0.0, 25.0, 50.0, 100.0)
    assert figure.panels[0].series[0].y == (20.0, 40.0, 50.0, 60.0)


def test_rounds_of_an_alignment_are_told(tmp_path: Path) -> None:
    first = {"round": 0, "dev_recall@5": 0.4, "kept": False}
    second = {"round": 1, "dev_recall@5": 0.45, "reward": 0.9, "copying": 0.125, "seconds": 30.0, "kept": True}
    third = {"round": 2, "dev_recall@5": 0.44, "seconds": 31.0, "plateau": True}
    write_rows(
        tmp_path,
        rewritten("dense-raw", "aligned-ndcg", 0.5, 0, history=[first, second]),
        rewritten("dense-raw", "aligned", 0.6, 0, history=[first, second, third]),
        rewritten("dense-raw", "aligned-share25", 0.55, 0, history=[first, second, third]),
    )
    section = page(tmp_path).partition("### Alignment: what matters")[2]
    found = lines(section)
    assert found[1].startswith("| aligned | 60.00 | 60.00 | +5.00 | 61 |")
    assert found[2].startswith("| aligned-ndcg | 50.00 |")
    assert [line.split(" | ")[1] for line in found[4:]] == ["0", "1", "2", "0", "1"]
    assert found[5].endswith("| 30 | kept |")
    assert found[6].endswith("| 31 | plateau |")


def test_times_of_single_requests(tmp_path: Path) -> None:
    about = {"bench": "rewriting", "tools": 464, "requests": "zero over hybrid", "form": "zero", "over": "hybrid"}
    values = {"p50_ms": 1234.5, "p95_ms": 2000.0, "read": 350.0, "written": 44.0, "failed": 0}
    write_rows(tmp_path, scored(), about | {"values": values, "device": "2 cores", "commit": "abc"})
    text = page(tmp_path)
    assert "Cost against catalogue size" not in text
    section = text.partition("## Rewriting requests")[2]
    assert lines(section)[1] == "| zero | hybrid | 2 cores | 1,234 | 2,000 | 350 | 44 | 0 | abc |"


def test_held_out_tools_against_the_number_of_written_requests(tmp_path: Path) -> None:
    written = {"seconds": 900.0, "anchors": 46_587, "kept": 130_000, "tokens_per_s": 5000.0, "dropped: too short": 12}
    bench = {"bench": "synthetic", "tools": 46_587, "requests": "written toolbench s0", "values": written}
    default = held("dense", 3, 0.5, 0.5)
    default["study"] |= {"family": "default"}
    before = held("dense", 0, 0.4, 0.4) | {"variant": "synthetic-default-before", "seed": None}
    before["study"] |= {"family": "default"}
    write_rows(
        tmp_path,
        held("dense", 20, 0.56, 0.7),
        held("dense", 0, 0.1, 0.65),
        held("toolgen", 20, 0.5, 0.6),
        default | {"dataset": "toolbench", "variant": "synthetic-default-after-s0"},
        before | {"dataset": "toolbench"},
        bench | {"writer": {"learned_from": ["ultratool:train"]}, "commit": "abc"},
    )
    section = page(tmp_path).partition("## Training on written requests")[2]
    found = lines(section)
    assert found[1].startswith("| dense | 0 | 1,000 | 0 | 10.00 | 65.00 | 50.00 |")
    assert "| 56.00 (≥ 55: met) | 70.00 (≥ 65: met) |" in found[2]
    assert "| 50.00 (≥ 55: **missed**) | 60.00 (≥ 65: **missed**) |" in found[3]
    assert [line.split(" | ")[:2] for line in found[5:7]] == [["| toolbench", "before"], ["| toolbench", "after"]]
    assert "| 900 (≤ 1,200: met) | 5,000 | ultratool:train |" in found[8]
    assert "12 too short" in found[8]
    figure = next(one for one in report.make(tmp_path).figures if one.file == "synthetic.svg")
    assert [(one.label, one.x, one.y, one.dashed) for one in figure.panels[0].series] == [
        ("dense", (0.0, 20.0), (10.0, 56.0), False),
        ("toolgen", (20.0,), (50.0,), False),
        ("dense", (0.0, 20.0), (65.0, 70.0), True),
        ("toolgen", (20.0,), (60.0,), True),
    ]


@pytest.mark.slow
def test_nothing_is_said_without_rows_and_plots_are_drawn(tmp_path: Path) -> None:
    text = page(write_rows(tmp_path, scored()))
    assert "Rewriting" not in text
    assert "written requests" not in text
    pytest.importorskip("matplotlib", reason="plots need the extra 'report'")
    write_rows(tmp_path, rewritten("bm25", "alone", 0.3), held("dense", 0, 0.1, 0.6), held("dense", 5, 0.3, 0.6))
    report.make(tmp_path).write(tmp_path)
    assert plots.read_digest(tmp_path / "rewriting.svg")
    assert plots.read_digest(tmp_path / "synthetic.svg")
    assert report.make(tmp_path).stale(tmp_path) == []
