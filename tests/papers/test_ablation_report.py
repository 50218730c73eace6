"""The section of the page about ablations of masstool: its table and plot, apart from those of methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.report_samples import scored, write_rows
from toolscout.evaluation.report import page as report
from toolscout.evaluation.report import plots
from toolscout.papers.masstool.ablation_report import variant_label


def ablated(variant: str, part: str, value: float, weights: str = "chosen", **more: Any) -> dict[str, Any]:
    changes = more.pop("changes", {})
    against = {} if variant == "full" else {"against": {"ndcg@5": [value - 0.5, value - 0.6, value - 0.4, 0.0004]}}
    told = {"name": "ablation", "of": "x", "variant": variant, "part": part, "weights": weights, "encoder": "e"}
    metrics = {"recall@5": value, "ndcg@5": value, "comp@5": value} | more.pop("metrics", {})
    options = {"epsilon": 0.5, "detection": 0.1, "layers": 1, "edges": 1.0} | more.pop("options", {})
    return scored(
        retriever="masstool",
        variant=f"{variant}-{weights}-x-s{more.get('seed', 0)}",
        metrics=metrics,
        options=options,
        study=told | {"changes": changes} | against,
        **({"seed": 0} | more),
    )


def page(folder: Path) -> str:
    return report.make(folder).texts[report.PAGE]


def test_parts_stand_beside_the_full_model_in_a_section_of_their_own(tmp_path: Path) -> None:
    write_rows(
        tmp_path,
        scored(0.25),
        *(ablated("full", "full", 0.5 + 0.02 * seed, seed=seed) for seed in (0, 1)),
        ablated("full", "full", 0.4, "learned"),
        ablated("without-adakt", "without", 0.375, changes={"transfer": "none"}, metrics={"need_auroc": 0.99}),
        ablated("epsilon-0.4", "epsilon", 0.625, changes={"epsilon": 0.4}, options={"epsilon": 0.4}),
        ablated(
            "layers-2_edges-0.5", "graph", 0.5, changes={"layers": 2, "edges": 0.5}, options={"layers": 2, "edges": 0.5}
        ),
        ablated("detector-0.8", "detector", 0.45, metrics={"detector_accuracy": 0.79}),
        ablated("pool-0.25", "pool", 0.41, changes={"pool": 0.25}),
    )
    text = page(tmp_path)
    before, _, section = text.partition("## MassTool: what each part is worth")
    assert "masstool" not in before
    assert " test**, 10 requests, encoder e" in section
    assert "| full | 51.00 ± 1.41 | 51.00 ± 1.41 |" in section
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in section.splitlines() if line.startswith("|")}
    assert "-12.50 | < 0.001" in lines["without AdaKT (the gate)"]
    assert "99.00" in lines["without AdaKT (the gate)"]
    assert "+12.50" in lines["ε 0.4"]
    assert {"2 layers, 50 % of the edges", "detector right for 79 %", "pool of 25 %"} <= lines.keys()
    figure = next(one for one in report.make(tmp_path).figures if one.file == "ablation.svg")
    titles = [panel.title.partition(": ")[2] for panel in figure.panels]
    assert titles == ["ε of the filter", "edges kept, by layers", "pool, share of requests", "accuracy of the detector"]
    assert figure.panels[0].series[0].x == (0.4, 0.5)
    assert figure.panels[0].series[0].y == (62.5, 51.0)
    assert [(one.label, one.dashed) for one in figure.panels[3].series] == [
        ("MassTool", False),
        ("full, detector as it is", False),
        ("full, detector as it is", True),
        ("without AdaKT", False),
    ]
    assert "![MassTool: what each part is worth](ablation.svg)" in section


def test_what_leaving_a_part_out_changes_is_drawn_with_its_interval(tmp_path: Path) -> None:
    write_rows(
        tmp_path,
        ablated("full", "full", 0.5),
        ablated("without-graph", "without", 0.625),
        ablated("without-votes", "without", 0.375),
        ablated("without-contrastive", "without", 0.25),
        ablated("without-graph", "without", 0.4, "learned"),
    )
    figure = next(one for one in report.make(tmp_path).figures if one.file == "masstool_parts.svg")
    served, learned = figure.panels
    assert [(one.label, one.x, one.y, one.error) for one in served.series] == [
        ("mine test, e", ("graph", "votes"), (12.5, -12.5), (10.0, 10.0))
    ]
    assert [one.y for one in learned.series] == [(-10.0,)]
    pytest.importorskip("matplotlib")
    plots.draw(figure, tmp_path / figure.file)
    assert plots.read_digest(tmp_path / figure.file) == figure.digest()


@pytest.mark.slow
def test_plots_of_ablations_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_rows(tmp_path, ablated("full", "full", 0.5), ablated("lambda-1", "lambda", 0.4, options={"detection": 1.0}))
    report.write(tmp_path)
    assert plots.read_digest(tmp_path / "ablation.svg")
    assert report.stale(tmp_path) == []


def test_variants_are_said_in_words() -> None:
    told = {"variant": "transfer-cross_attention", "part": "transfer", "changes": {"transfer": "cross_attention"}}
    assert variant_label(told) == "transfer cross attention"
    assert variant_label({"variant": "lambda-0.08", "part": "lambda", "changes": {"detection": 0.08}}) == "λ 0.08"
