"""compare-with-baseline on a few tools, with a tiny encoder in the place of MiniLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.training.learnable import tiny_source
from toolscout.evaluation import baseline
from toolscout.evaluation.baseline import BaselineComparison, LabelledRequest, Side
from toolscout.evaluation.report import baseline_page

TOOLS = [
    {"namespace": "weather", "name": "forecast", "description": "Tells how much it will rain <b>tomorrow</b>."},
    {"namespace": "mail", "name": "send", "description": "Sends a message to one or more people."},
    {"namespace": "calendar", "name": "create_event", "description": "Puts an appointment into the calendar."},
]
REQUESTS = [
    {"request": "will it rain <script> tomorrow?", "tools": ["weather/forecast"]},
    {
        "request": "send Ada a message, and put an appointment into the calendar",
        "tools": ["mail/send", "calendar/create_event"],
    },
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of tools.jsonl and requests.jsonl."""
    pytest.importorskip("torch", reason="needs the extra train")
    source = tiny_source(tmp_path / "source")
    monkeypatch.setattr(baseline, "default_source", lambda: source)
    for name, lines in (("tools", TOOLS), ("requests", REQUESTS)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return tmp_path


def test_both_are_asked_for_the_same_requests(run: Run, files: Path) -> None:
    words = ("compare-with-baseline", "tools.jsonl", "--requests", "requests.jsonl", "-k", "2")
    done = run(*words, "--html", "page.html")
    assert done.exit_code == 0, done.output
    assert "recall@2" in done.stdout
    assert "of a prompt, those that are found about" in " ".join(done.stdout.split())
    page = (files / "page.html").read_text()
    assert "<script>" not in page
    found = json.loads(run(*words, "--json").stdout)
    assert (found["tools"], found["requests"], found["k"]) == (3, 2, 2)
    assert found["measured"]["toolscout"]["recall"] == 1.0
    assert 0 < found["tokens_found"] < found["tokens"]
    for one in found["differing"]:
        assert one["request"] in {request["request"] for request in REQUESTS}
        assert len(one["MiniLM + cosine"]) == 2
        assert len(one["toolscout"]) <= 2
    assert not list(files.glob("*.db"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"request": "rain?"}, 'requests.jsonl, line 1 is not {"request"'),
        ({"request": "rain?", "tools": ["weather/storms"]}, "needs weather/storms, which is none of the tools"),
        (None, "requests.jsonl has no requests"),
    ],
)
def test_bad_requests_are_told(run: Run, files: Path, line: object, told: str) -> None:
    (files / "requests.jsonl").write_text("" if line is None else json.dumps(line))
    done = run("compare-with-baseline", "tools.jsonl", "--requests", "requests.jsonl")
    assert (done.exit_code, told in " ".join(done.output.split())) == (2, True), done.output


def test_a_page_that_cannot_be_written_is_told_first(run: Run, files: Path) -> None:
    words = ("compare-with-baseline", "nothing.jsonl", "--requests", "nothing.jsonl")
    done = run(*words, "--html", "tools.jsonl/page.html")
    assert (done.exit_code, "page.html cannot be written" in done.output) == (2, True), done.output
    done = run("compare-with-baseline", "tools.jsonl", "--requests", "nothing.jsonl")
    assert (done.exit_code, "nothing.jsonl cannot be read (No such file" in done.output) == (2, True), done.output


def test_two_tools_of_one_id_are_told(run: Run, files: Path) -> None:
    done = run("compare-with-baseline", "tools.jsonl", "tools.jsonl", "--requests", "requests.jsonl")
    assert (done.exit_code, "two tools are called weather/forecast" in done.output) == (2, True), done.output


def test_figures_are_those_of_the_rankings() -> None:
    asked = (
        LabelledRequest("one", ("a/x",)),
        LabelledRequest("two", ("a/x", "a/y")),
        LabelledRequest("three", ("a/z",)),
    )
    base = Side("MiniLM + cosine", 1.0, (("a/x", "a/y"), ("a/x", "a/z"), ("a/x", "a/y")), (0.001, 0.003, 0.002))
    ours = Side("toolscout", 2.0, (("a/x", "a/z"), ("a/x", "a/y"), ("a/z", "a/x")), (0.004, 0.005, 0.009))
    found = BaselineComparison(3, 2, asked, base, ours, turned_away=1 / 3, tokens=300, tokens_found=60)
    assert found.recall(base) == pytest.approx(0.5)
    assert found.whole(base) == pytest.approx(1 / 3)
    assert (found.recall(ours), found.whole(ours)) == (1.0, 1.0)
    assert base.milliseconds == pytest.approx(2)
    assert ours.milliseconds == pytest.approx(5)
    assert [one.text for one, _, _ in found.differing()] == ["two", "three"]
    assert "80 % less" in baseline_page.saved(found)
    page = baseline_page.page(found, "A & B")
    assert "<title>A &amp; B</title>" in page
    assert page.count('<span class="right">a/z</span>') == 2  # needed by one, found by one
