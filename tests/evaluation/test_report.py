"""The page of a folder of results: what stands in it, when it is stale, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.report_samples import MEASURES, asked, scored, timed, write_rows
from toolscout.errors import BadDataset, MissingExtra, ToolscoutError
from toolscout.evaluation.report import page as report
from toolscout.evaluation.report import plots
from toolscout.evaluation.report.by_gold_count import NAME as BY_GOLD
from toolscout.evaluation.report.figures import Figure
from toolscout.evaluation.row import scores_path, write_scores


def page(folder: Path) -> str:
    return report.make(folder, with_plots=False).texts[report.PAGE]


def line(folder: Path, begin: str) -> dict[str, str]:
    """The first line of a table that begins so, by the heads of its columns."""
    lines = page(folder).splitlines()
    number = next(number for number, text in enumerate(lines) if text.startswith(f"| {begin}"))
    head = max(other for other in range(number) if lines[other].startswith("| retriever"))
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", lines[at])[1:-1]] for at in (head, number)]
    return dict(zip(*split, strict=True))


def figure(folder: Path, file: str) -> Figure:
    return next(one for one in report.make(folder).figures if one.file == file)


def test_rows_become_tables_the_newest_of_its_kind_counting(tmp_path: Path) -> None:
    fitting = {"fit_use": 0.9, "fit_auroc": 0.8, "need_brier": 0.125}
    metrics = dict.fromkeys(MEASURES, 0.75) | fitting
    write_rows(tmp_path, scored(0.5), scored(), name="one.jsonl")
    write_rows(tmp_path, scored(variant="names-0.0", metrics=metrics), name="two.jsonl")
    write_rows(tmp_path, timed(464, 3.0), timed(46587, 12.0), name="bench.jsonl")
    text = page(tmp_path)
    assert "| bm25 | 25.00 |" in text
    assert "50.00" not in text
    assert "| bm25 (names-0.0) | 75.00 |" in text
    assert "| test | bm25 (names-0.0) | 90.00 | 80.00 | 12.50 |" in text
    assert "| query toollens | p50_ms | 3 | 12 (≤ 8: **missed**) |" in text


def test_the_newest_row_counts_whatever_file_it_is_in(tmp_path: Path) -> None:
    options = {"depth": 9}
    write_rows(tmp_path, scored(date="2026-11-19T06:24:06+00:00", options=options), name="one.jsonl")
    write_rows(tmp_path, scored(0.5, date="2026-11-18T07:44:34+00:00"), name="two.jsonl")
    write_rows(tmp_path, timed(464, 3.0) | {"date": "2026-11-19"}, name="bench1.jsonl")
    write_rows(tmp_path, timed(464, 4.0) | {"date": "2026-11-18"}, name="bench2.jsonl")
    text = page(tmp_path)
    assert ("| bm25 | 25.00 |" in text, "50.00" in text) == (True, False)
    assert "| query toollens | p50_ms | 3 |" in text


def test_seeds_are_one_line_of_means_never_the_best(tmp_path: Path) -> None:
    recalls = [0.5, 0.61, 0.93]
    for seed, value in enumerate(recalls):
        variant = "default" if seed == 0 else f"seed-{seed}"
        options = {"seed": seed, "encoder": f"models/seed{seed}/encoder"}
        write_rows(tmp_path, scored(0.1, seed=seed, variant=variant, options=options))
        write_rows(tmp_path, scored(value, seed=seed, variant=variant, options=options))
    found = line(tmp_path, "bm25")
    mean, deviation = 100 * np.mean(recalls), 100 * np.std(recalls, ddof=1)
    assert found["retriever"] == "bm25, 3 seeds"
    assert found["R@5"] == f"{mean:.2f} ± {deviation:.2f}"
    assert page(tmp_path).count("| bm25") == 1


def test_model_folders_that_differ_in_the_seed_are_one_method(tmp_path: Path) -> None:
    for seed in (1, 2, 11):
        write_rows(tmp_path, scored(0.2, seed=seed, variant=f"toollens-s{seed}_k-11", retriever="dense"))
    assert line(tmp_path, "dense")["retriever"] == "dense (toollens_k-11), 3 seeds"


def test_seeds_with_other_options_do_not_join(tmp_path: Path) -> None:
    write_rows(tmp_path, *(scored(0.5, seed=seed, options={"seed": seed, "epochs": 1}) for seed in range(3)))
    write_rows(tmp_path, scored(0.75, seed=0, options={"seed": 0, "epochs": 2}))
    found = line(tmp_path, "bm25")
    assert (found["retriever"], found["R@5"]) == ("bm25", "75.00")


def test_a_measure_that_one_seed_lacks_is_left_empty(tmp_path: Path) -> None:
    metrics = dict.fromkeys(MEASURES, 0.5)
    write_rows(tmp_path, scored(seed=0, metrics=metrics | {"new_recall@5": 0.5}))
    write_rows(tmp_path, scored(seed=1, metrics=metrics | {"new_recall@5": float("nan")}))
    assert "new R@5" not in line(tmp_path, "bm25")


def test_what_newer_rows_say_is_shown(tmp_path: Path) -> None:
    write_rows(
        tmp_path,
        scored(
            metrics=dict.fromkeys(MEASURES, 0.5) | {"new_recall@5": 0.125, "known_recall@5": 0.625},
            intervals={"recall@5": [0.45, 0.55]},
            timing={"query_p50_ms": 2.5, "fit_s": 1234.4, "fit_device": "cuda"},
            params=22_600_000,
            failed=2,
            dropped=7,
        ),
    )
    found = line(tmp_path, "bm25")
    assert found["retriever"] == "bm25, 2 failed, 7 left out as seen in training"
    assert (found["new R@5"], found["known R@5"], found["R@5, 95 %"]) == ("12.50", "62.50", "45.00–55.00")
    assert (found["p50 ms"], found["fit time"], found["params"]) == ("2.5", "1,234 s cuda", "22.6 M")


def test_intervals_of_seeds_are_averaged(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(seed=0, intervals={"recall@5": [0.4, 0.6]}))
    write_rows(tmp_path, scored(seed=1, intervals={"recall@5": [0.2, 0.5]}))
    assert line(tmp_path, "bm25")["R@5, 95 %"] == "30.00–55.00"


def test_a_row_needs_little(tmp_path: Path) -> None:
    keys = ("dataset", "digest", "split", "retriever", "variant", "metrics", "requests")
    full = scored()
    write_rows(tmp_path, {key: full[key] for key in keys})
    assert list(line(tmp_path, "bm25")) == ["retriever", *(f"{m}@{k}" for m in "RN" for k in (1, 3, 5)), "C@3", "C@5"]
    assert report.make(tmp_path).figures == ()


def test_requests_that_changed_are_another_table(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(0.5), scored(0.75, digest="fedcba9876543210"))
    text = page(tmp_path)
    assert text.index("digest `0123456789ab`") < text.index("| bm25 | 50.00 |") < text.index("digest `fedcba987654`")
    assert "| bm25 | 75.00 |" in text


def test_times_name_their_machine_where_there_are_several(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(hardware={"machine": "aarch64", "cpu": "one", "cores": 2}))
    assert line(tmp_path, "bm25")["p50 ms"] == "1.2"
    write_rows(tmp_path, scored(retriever="dense", hardware={"machine": "x86_64", "cpu": "two", "cores": 16}))
    assert line(tmp_path, "dense")["p50 ms"] == "1.2 [2]"
    assert "- x86_64, two, 16 cores [2]\n" in page(tmp_path)


@pytest.mark.slow
def test_names_are_taken_literally(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(variant="a|b\n$x$ <c>"))
    assert r"| bm25 (a\|b $x$ <c>) | 25.00 |" in page(tmp_path)
    assert report.write(tmp_path)
    assert "a|b $x$ &lt;c&gt;" in (tmp_path / "quality_latency.svg").read_text()


@pytest.mark.slow
def test_plots_are_the_same_to_the_byte_small_and_without_a_date(tmp_path: Path) -> None:
    rows = [scored(0.1 * seed, seed=seed) for seed in range(1, 4)]
    rows += [timed(464, 4.6), timed(46587, 466.0), scored(split="unseen_tool.test")]
    made = [write_rows(tmp_path / name, *rows) for name in "ab"]
    for folder in made:
        report.write(folder)
    for name in ("quality_latency.svg", "seen_unseen.svg", "bench.svg"):
        drawn = (made[0] / name).read_bytes()
        assert drawn == (made[1] / name).read_bytes()
        assert len(drawn) < 100_000
        assert b"dc:date" not in drawn
    assert "ToolLens requests" in (made[0] / "bench.svg").read_text()


@pytest.mark.slow
def test_what_the_rows_left_behind_is_stale(tmp_path: Path) -> None:
    write_rows(tmp_path, scored())
    names = [report.PAGE, "quality_latency.svg"]
    assert [path.name for path in report.stale(tmp_path)] == names
    assert [path.name for path in report.write(tmp_path)] == names
    assert report.stale(tmp_path) == report.write(tmp_path) == []
    write_rows(tmp_path, scored(0.75))
    assert [path.name for path in report.stale(tmp_path)] == names
    (tmp_path / "quality_latency.svg").unlink()
    report.write(tmp_path)
    assert all((tmp_path / name).exists() for name in re.findall(r"\]\((\S+\.svg)\)", page_of(tmp_path)))


def page_of(folder: Path) -> str:
    return (folder / report.PAGE).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_plot_of_the_current_data_is_not_drawn_again(tmp_path: Path) -> None:
    write_rows(tmp_path, scored())
    report.write(tmp_path)
    plot = tmp_path / "quality_latency.svg"
    elsewhere = plot.read_text().replace("DejaVu", "Other")  # as another version of matplotlib would draw it
    plot.write_text(elsewhere)
    write_rows(tmp_path, scored(commit="other"))
    assert [path.name for path in report.write(tmp_path)] == [report.PAGE]
    assert plot.read_text() == elsewhere
    assert plots.read_digest(plot) == figure(tmp_path, "quality_latency.svg").digest()


def test_without_plots_nothing_is_drawn_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_rows(tmp_path, scored())
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[report\]'"):
        report.write(tmp_path)
    assert not (tmp_path / report.PAGE).exists()
    assert [path.name for path in report.write(tmp_path, with_plots=False)] == [report.PAGE]
    assert ".svg" not in page_of(tmp_path)
    assert report.stale(tmp_path, with_plots=False) == []
    assert len(report.stale(tmp_path)) == 2


def test_quality_and_latency_of_each_test_split(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(), scored(split="dev"), scored(split="test_G1"))
    write_rows(tmp_path, scored(dataset="two", split="test_in"), scored(dataset="two", split="test_out"))
    write_rows(tmp_path, scored(dataset="own", split="friday"))
    drawn = figure(tmp_path, "quality_latency.svg")
    assert [panel.title for panel in drawn.panels] == ["mine test", "two test_in", "two test_out", "own friday"]
    assert (drawn.panels[0].series[0].x, drawn.panels[0].series[0].y) == ((1.25,), (25.0,))


def test_seen_against_unseen(tmp_path: Path) -> None:
    write_rows(tmp_path, scored(0.9), scored(0.8, dataset="never unseen"), scored(0.3, retriever="dense"))
    assert "seen_unseen.svg" not in {one.file for one in report.make(tmp_path).figures}
    new = dict.fromkeys(MEASURES, 0.4)
    for seed, value in enumerate((0.1, 0.3)):
        metrics = new | {"new_recall@5": value}
        write_rows(tmp_path, scored(split="unseen_tool.test", seed=seed, metrics=metrics))
    (panel,) = figure(tmp_path, "seen_unseen.svg").panels
    bars = {one.label: (one.x, one.y) for one in panel.series}
    assert bars == {
        "test": (("bm25",), (90.0,)),  # dense has no row to be compared with
        "unseen tools": (("bm25",), (40.0,)),
        "unseen tools, those alone": (("bm25",), (20.0,)),
    }
    assert panel.series[-1].error == (14.14,)


def test_models_trained_apart_for_each_split_stand_together(tmp_path: Path) -> None:
    for split, name in (("test", "mine-s1"), ("unseen_scene.test", "mine-unseen_scene-s1"), ("unseen_tool.test", "s1")):
        write_rows(tmp_path, scored(0.5, split=split, seed=1, variant=name))
    write_rows(tmp_path, scored(0.5, split="unseen_tool.test", seed=1, variant="unseen-tool-mine-s1"))
    (panel,) = figure(tmp_path, "seen_unseen.svg").panels
    assert [one.x for one in panel.series] == [("bm25 (mine)",), ("bm25 (mine)",), ("bm25", "bm25 (mine)")]


def with_scores(folder: Path) -> dict[str, Any]:
    """A row and the scores it sums up: ten requests for one tool, ten for two, one of them failed, five for three."""
    scores = [asked(number, 1, [1 + number]) for number in range(10)]
    scores += [asked(10 + number, 2, None if number == 0 else [1, 6] if number < 5 else [2, 3]) for number in range(10)]
    scores += [asked(20 + number, 3, [1]) for number in range(5)] + [asked(30, 0, [])]
    made = scored((5 + 4 * 0.5 + 5 + 5 / 3) / 25)
    write_scores(scores_path(folder / "rows.jsonl", made), scores)
    return made


@pytest.mark.slow
def test_quality_by_number_of_gold_tools_outlives_the_scores(tmp_path: Path) -> None:
    row = with_scores(tmp_path)
    write_rows(tmp_path, row)
    report.write(tmp_path)
    kept = (tmp_path / BY_GOLD).read_text()
    (groups,) = (groups for name, groups in json.loads(kept).items() if name != "about")
    assert groups == {"1": [10, 0.5, 0.5], "2": [10, 0.7, 0.5], "3": [5, 0.333333, 0.0]}
    recall, comp = figure(tmp_path, "by_gold.svg").panels[0].series
    assert (recall.x, recall.y, comp.y, comp.dashed) == ((1, 2), (50.0, 70.0), (50.0, 50.0), True)
    scores_path(tmp_path / "rows.jsonl", row).unlink()
    assert report.write(tmp_path) == []
    assert (tmp_path / BY_GOLD).read_text() == kept


@pytest.mark.slow
def test_scores_of_another_run_are_passed_over(tmp_path: Path) -> None:
    write_rows(tmp_path, with_scores(tmp_path))
    report.write(tmp_path)
    write_rows(tmp_path, scored(0.123))
    report.write(tmp_path)
    assert BY_GOLD not in report.make(tmp_path).texts
    assert "by_gold.svg" not in page_of(tmp_path)


@pytest.mark.parametrize("damage", ["{", '{"a": {"1": [1]}}', '{"a": {"x": [1, 2, 3]}}', "[1]"])
def test_a_damaged_file_of_gold_tools_is_named(tmp_path: Path, damage: str) -> None:
    write_rows(tmp_path, scored())
    (tmp_path / BY_GOLD).write_text(damage)
    with pytest.raises(BadDataset, match=r"by_gold\.json is damaged .* remove it"):
        report.make(tmp_path)


def test_a_folder_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match=r"there is no folder .*nowhere.*toolscout evaluate DATA --json"):
        report.make(tmp_path / "nowhere")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(BadDataset, match=r"has no rows.*toolscout evaluate DATA --json"):
        report.make(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"dataset": "x"', r"line 2 is not JSON"),
        ("[1]", r"line 2 is not a JSON object"),
        ('{"_id": "a", "text": "b"}', r"line 2 is no row .*'dataset'.*remove that line"),
        (json.dumps(scored(metrics=[1])), r"line 2 is no row .*'metrics'"),
        ('{"bench": "query"}', r"line 2 is no row .*'tools'"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    write_rows(tmp_path, scored())
    with (tmp_path / "rows.jsonl").open("a") as stream:
        stream.write(text + "\n")
    with pytest.raises(BadDataset, match=rf"rows\.jsonl {said}"):
        report.make(tmp_path)


def test_a_page_that_somebody_wrote_is_kept(tmp_path: Path) -> None:
    write_rows(tmp_path, scored())
    (tmp_path / report.PAGE).write_text("# My notes\n")
    with pytest.raises(ToolscoutError, match="was not made by toolscout results; rename it"):
        report.write(tmp_path)
    assert page_of(tmp_path) == "# My notes\n"
    assert not (tmp_path / "quality_latency.svg").exists()
