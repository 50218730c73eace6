"""toolscout synth --expand, add --expansions and remove --expansions."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.cli_samples import TOOLS, Run, record
from toolscout.core.expansion import read_expansions
from toolscout.core.tool import split_words
from toolscout.stores import open_store

GOOD = "for: making somebody hear from you\nwhen: let grandma know I am fine"


def test_by_rules_into_the_catalogue(filled: Run, source: Path, tmp_path: Path) -> None:
    done = filled("synth", source, "--expand", "--llm", "rules", "--out", "e.jsonl")
    assert done.exit_code == 0, done.output
    assert "written" in done.stdout
    written = read_expansions(tmp_path / "e.jsonl")
    assert written
    again = filled("synth", source, "--expand", "--llm", "rules", "--out", "e.jsonl")
    assert (again.exit_code, "already there" in again.stderr) == (2, True)
    done = filled("add", "--expansions", "e.jsonl", "--no-embed")
    assert f"{len(written)} expansions stored, 0 unchanged; catalogue version 2" in done.stdout
    assert f"0 expansions stored, {len(written)} unchanged" in filled("add", source, "--expansions", "e.jsonl").stdout
    first = next(iter(written))
    assert "is searched besides" in filled("show", first).stdout
    for shape in ("table", "json", "mcp"):
        assert written[first].purpose not in filled("show", first, "--format", shape).stdout
    done = filled("remove", "--expansions", first)
    assert "1 expansion removed; catalogue version 3" in done.stdout
    assert "is searched besides" not in filled("show", first).stdout
    assert f"{len(written) - 1} expansion" in filled("remove", "--expansions").stdout
    assert filled("remove", "--expansions", "no/such").exit_code == 2


def test_with_a_model(filled: Run, tmp_path: Path) -> None:
    with open_store(tmp_path / "tools.db") as store:
        name = " ".join(split_words(next(iter(store.tools())).name))
    script = [{"when": f'1. "{name}" of', "text": GOOD}, {"when": "1. ", "text": "no"}]
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in script))
    words = ("synth", "tools.db", "--expand", "--llm", "scripted:script.jsonl")
    done = filled(*words, "--out", "e.jsonl", "--round-trip", "0")
    assert done.exit_code == 0, done.output
    assert "left out: not the three lines" in done.stdout
    assert len(read_expansions(tmp_path / "e.jsonl")) == 1
    again = filled(*words, "--out", "other.jsonl")  # nothing that the tool says of itself
    assert "left out: not found again" in again.stdout
    assert read_expansions(tmp_path / "other.jsonl") == {}
    assert not list(tmp_path.glob("*.partial.jsonl"))


def test_options_of_requests_are_refused(filled: Run, source: Path, tmp_path: Path) -> None:
    for option in (("--per-tool", 2), ("--for", "all"), ("--examples", 1), ("--no-filter",)):
        done = filled("synth", source, "--expand", "--llm", "rules", "--out", "e.jsonl", *option)
        assert (done.exit_code, "writes no requests" in " ".join(done.stderr.split())) == (2, True)
    assert not (tmp_path / "e.jsonl").exists()


def test_a_bad_file_loses_nothing(run: Run, source: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("no json\n")
    done = run("add", source, "--expansions", "bad.jsonl")
    assert (done.exit_code, "line 1 is not an expansion" in done.stderr) == (2, True)
    assert not (tmp_path / "tools.db").exists()


def test_what_is_left_out_is_said(filled: Run, source: Path, tmp_path: Path) -> None:
    filled("synth", source, "--expand", "--llm", "rules", "--out", "e.jsonl")
    assert filled("add", "--expansions", "e.jsonl", "--no-embed").exit_code == 0
    changed = [record(*tool) | {"description": "Now it does something else"} for tool in TOOLS]
    source.write_text("".join(json.dumps(one) + "\n" for one in changed))
    said = filled("add", source, "--no-embed").stderr
    assert "lost the expansion that was written for the text before" in " ".join(said.split())
    with open_store(tmp_path / "tools.db") as store:
        assert store.expansions() == {}
    (tmp_path / "e.jsonl").write_text((tmp_path / "e.jsonl").read_text() + '{"id": "no/tool", "for": "x"}\n')
    said = " ".join(filled("add", "--expansions", "e.jsonl", "--no-embed").stderr.split())
    assert "written for another text than the tool has now" in said
    assert "1 expansion left out: there is no such tool here" in said
