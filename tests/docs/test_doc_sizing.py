"""The numbers in docs/guides/scaling.md are those of the rows, and follow from them by the slopes that it names."""

from __future__ import annotations

from typing import Any

import pytest

from studies import sizing_report
from toolscout.evaluation.report.rows import read_folder


def test_the_page_is_not_stale() -> None:
    page = sizing_report.PAGE.read_text(encoding="utf-8")
    numbers = sizing_report.sizing(read_folder(sizing_report.RESULTS)[1])
    assert sizing_report.page_with(page, numbers) == page, "run: python -m studies.sizing_report"


def row(bench: str, tools: int, requests: str = "", store: str = "", **values: float) -> dict[str, Any]:
    made = {"bench": bench, "tools": tools, "requests": requests, "values": values, "hardware": {"cores": 2}}
    return made | ({"store": store} if store else {})


def rows() -> list[dict[str, Any]]:
    """Words and vectors take ten times as long for a hundred times the tools: they grow by the square root."""
    made = []
    for name in ("toollens", "toolbench"):
        made += [
            row("query", tools, name, words_ms=ms, vectors_ms=ms) for tools, ms in ((46_587, 1.0), (4_658_700, 10.0))
        ]
        served = {"rate": 80.0, "seconds": 10.0, "answered": 800.0, "cores": 1.6}
        made += [
            row("saturation 80/s", 46_587, name, **served, refused=0.0),
            row("saturation 90/s", 46_587, name, **served | {"rate": 90.0, "cores": 9.0}, refused=1.0),
        ]
    for tools, mb in ((46_587, 200.0), (4_658_700, 10_000.0)):
        made.append(row("memory", tools, peak_mb=mb, index_mb=mb / 2, store_mb=2 * mb))
    made.append(row("index", 46_587, index_s=465.87))
    made.append(row("index", 4_658_700, first_answer_s=700.0, store_s=100.0, link_s=600.0))
    return made


def test_numbers_follow_from_the_two_largest_sizes() -> None:
    found = {
        one.name: one for one in sizing_report.lines([*rows(), row("memory", 464, peak_mb=1e9, index_mb=1, store_mb=1)])
    }
    tools = sizing_report.TOOLS
    each = (10_000 - 200) / (4_658_700 - 46_587) / 1000
    assert found["memory of a server, GB"].on_paper == pytest.approx(10 + (tools - 4_658_700) * each)
    searches = found["words and vectors of a ToolLens request, ms"]
    assert searches.power == pytest.approx(0.5)
    assert searches.on_paper == pytest.approx(20 * (tools / 4_658_700) ** 0.5)
    whole = found["a ToolLens request altogether, ms of a core"]  # 20 ms under load, of which searches were 2
    assert whole.measured == pytest.approx({46_587: 20.0, 4_658_700: 38.0})
    assert whole.on_paper == pytest.approx(18 + searches.on_paper)
    assert found["embedding all tools, core-hours"].on_paper == pytest.approx(tools * 0.02 / 3600)
    assert found["building the index on one machine, minutes"].on_paper == pytest.approx(20 * tools / 4_658_700)
    assert "database with its indexes, GB" not in found


def test_servers_are_counted_by_the_dearer_request() -> None:
    text = " ".join(sizing_report.sizing(rows()).split())
    cores = 2_000 * (18 + 20 * (sizing_report.TOOLS / 4_658_700) ** 0.5) / 1000
    assert f"take {cores:.0f} cores" in text
    assert f"{-(-cores // 8):.0f} servers of 8 cores" in text
    assert f"{-(-cores // 32):.0f} servers of 32 cores" in text


def test_rows_over_a_database_have_a_line() -> None:
    more = [
        row("memory", tools, store="postgresql", peak_mb=1, index_mb=1, store_mb=mb)
        for tools, mb in ((464, 4), (10_464, 104))
    ]
    found = {one.name: one for one in sizing_report.lines([*rows(), *more])}
    assert found["database with its indexes, GB"].on_paper == pytest.approx(
        0.104 + (sizing_report.TOOLS - 10_464) * 1e-5
    )
