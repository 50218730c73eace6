"""toolscout reproduce: the numbers of a paper beside ours, what is missing, and runs that go on where they stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.training.learnable import learnable
from toolscout.cli import reproduce
from toolscout.papers import published_numbers, registry, reproduction
from toolscout.papers.paper import (
    AgentExperiment,
    Column,
    Experiment,
    GenerationExperiment,
    Line,
    Paper,
    Table,
    Unavailable,
    Weights,
)

COLUMNS = (Column("R@3", "recall@3"), Column("C@3", "comp@3"))
TABLE = Table(
    "3",
    "made up",
    "Tools that were made up",
    COLUMNS,
    (
        Line("BM25", None, Experiment("default", "bm25", "learnable", train=""), "COLT"),
        Line(
            "COLT (ANCE)",
            Experiment("raw", "dense", "learnable", train="", weights=Weights("ance", "ANCE", "encoder")),
            source="COLT",
        ),
        Line("words alone", Experiment("fuzzy-false", "bm25", "learnable", ("fuzzy=false",), train="")),
        Line("nobody's", Unavailable("nobody released it")),
    ),
    "toollens",
    ("The tools are made up.",),
)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Paper:
    """COLT with one tiny table."""
    made = replace(registry.PAPERS["colt"], tables=(TABLE,))
    monkeypatch.setattr(registry, "PAPERS", {"colt": made})
    return made


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data with one dataset."""
    monkeypatch.delenv("TOOLSCOUT_DATA", raising=False)
    learnable().save(tmp_path / "sets" / "learnable")
    return tmp_path / "sets"


def words(text: str) -> str:
    return " ".join(text.split())


def test_it_runs_what_it_can_and_prints_the_three_columns(run: Run, paper: Paper, data: Path, tmp_path: Path) -> None:
    done = run("reproduce", "colt", "--data", data)
    assert done.exit_code == 0, done.output
    assert "colt: 2 runs to make" in done.stderr
    assert "2 of 2: " in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results" / "reproduce.jsonl").read_text().splitlines()]
    assert {row["variant"] for row in rows} == {"default", "fuzzy-false"}
    assert {row["command"] for row in rows} == {"toolscout reproduce colt --table 3"}
    assert str(tmp_path) not in json.dumps(rows)
    (row,) = [row for row in rows if row["variant"] == "default"]
    said = words(done.stdout)
    theirs = dict(
        zip(published_numbers.load()["toollens"].columns, (21.58, 26.88, 23.19, 26.09, 3.89, 6.13), strict=True)
    )
    ours = 100 * row["metrics"]["recall@3"]
    assert "method measure theirs ours, as published ours, as served" in said
    assert f"BM25 R@3 {theirs['R@3']:.2f} – {ours:.2f} C@3 {theirs['C@3']:.2f} –" in said
    assert "COLT (ANCE) R@3 92.15 missing –" in said
    assert "theirs: arXiv 2405.16089, Table 3" in said
    assert "missing: the weights of ANCE: pass --model ance=FOLDER (COLT (ANCE))" in said
    assert "missing: nobody released it (nobody's)" in said
    assert "different: The tools are made up." in said
    for difference in paper.differences:
        assert f"different: {words(difference)}" in said
    again = run("reproduce", "colt", "--data", data)
    assert "colt: 0 runs to make" in again.stderr
    assert again.stdout == done.stdout


def test_what_is_missing_is_said_before_anything_is_run(
    run: Run, paper: Paper, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = AgentExperiment("judged", "gold", "calls", judged="sopr", weights=Weights("gpt", "GPT", "", "URL"))
    table = replace(TABLE, lines=(*TABLE.lines, Line("agent", judged)))
    monkeypatch.setattr(registry, "PAPERS", {"colt": replace(paper, tables=(table,))})
    said = words(run("reproduce", "colt", "--data", data).stderr)
    wanted = [
        "missing: the weights of ANCE: pass --model ance=FOLDER (table 3, made up)",
        "missing: the weights of GPT: pass --model gpt=URL (table 3, made up)",
        f"missing: the dataset calls, which {data} does not have: pass --data FOLDER",
        "missing: a judge: pass --judge https://HOST/v1?model=NAME",
        "colt: 2 runs to make",
        "1 of 2: ",
    ]
    places = [said.index(one) for one in wanted]
    assert places == sorted(places)
    again = words(run("reproduce", "colt", "--data", data).stderr)
    assert wanted[0] in again  # what is measured already lacks nothing, the rest still does
    assert "colt: 0 runs to make" in again


@pytest.mark.parametrize(
    ("paper", "table", "wanted"),
    [
        ("masstool", "main", ("--model ance=FOLDER", "toollens")),
        ("colt", "ablation", ("dataset toollens: pass --data FOLDER",)),
        ("query-generation", "larger-model", ("--llm https://HOST/v1?model=NAME", "toolbench-g3")),
        ("toolgen", "end-to-end", ("--judge https://HOST/v1", "--model gpt-3.5=", "stabletoolbench", "trajectories")),
        ("toolweaver", "qwen", ("--model qwen-2.5-1.5b=FOLDER", "--model qwen-2.5-14b=FOLDER", "toolbench-all")),
        ("toolweaver", "equal", ("--task FILE", "--judge https://HOST/v1", "no_tool", "trajectories")),
    ],
)
def test_each_paper_says_all_that_its_experiments_lack(
    run: Run, monkeypatch: pytest.MonkeyPatch, paper: str, table: str, wanted: tuple[str, ...]
) -> None:
    monkeypatch.delenv("TOOLSCOUT_DATA", raising=False)
    done = run("reproduce", paper, "--table", table, "--stop-after", "0")
    assert done.exit_code == 0, done.output
    said = [line for line in done.stderr.splitlines() if line.startswith("missing: ")]
    assert all("pass" in line or "pip install" in line for line in said)
    for what in wanted:
        assert any(what in line for line in said), what


def test_nothing_is_run_where_that_is_asked(run: Run, paper: Paper, data: Path, tmp_path: Path) -> None:
    for how in (["--no-run"], ["--list"]):
        done = run("reproduce", "colt", "--data", data, *how)
        assert done.exit_code == 0, done.output
        assert not (tmp_path / "results").exists()
    assert "BM25 R@3 21.58 – not run" in words(run("reproduce", "colt", "--data", data, "--no-run").stdout)


def test_it_stops_in_time_and_goes_on_later(run: Run, paper: Paper, data: Path, tmp_path: Path) -> None:
    done = run("reproduce", "colt", "--data", data, "--stop-after", "0")
    assert (done.exit_code, "stopped: 2 are left; give the same command again" in done.stderr) == (0, True), done.output
    (tmp_path / "results").mkdir(exist_ok=True)
    assert "colt: 2 runs to make" in run("reproduce", "colt", "--data", data).stderr


def test_a_failed_run_leaves_the_others(run: Run, paper: Paper, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reproduction.run

    def failing(experiment: Experiment, *more: object) -> list[dict[str, object]]:
        if experiment.name == "fuzzy-false":
            raise ValueError("no luck")
        return whole(experiment, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(reproduction, "run", failing)
    done = run("reproduce", "colt", "--data", data)
    assert done.exit_code == 0, done.output
    assert "failed: fuzzy-false: ValueError: no luck" in done.stderr
    assert "words alone R@3 – not run" in words(done.stdout)


def test_runs_are_made_side_by_side(run: Run, paper: Paper, data: Path, tmp_path: Path) -> None:
    done = run("reproduce", "colt", "--table", "3, made up", "--data", data, "--jobs", "2")
    assert done.exit_code == 0, done.output
    said = sorted(line.partition(": ")[2] for line in done.stderr.splitlines() if " of 2: " in line)
    assert said == ["default", "fuzzy-false"], done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results" / "reproduce.jsonl").read_text().splitlines()]
    assert {row["variant"] for row in rows} == {"default", "fuzzy-false"}


def test_an_experiment_of_several_tables_is_run_once(
    run: Run, paper: Paper, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = replace(paper, tables=(TABLE, replace(TABLE, part="again", lines=TABLE.lines[:1])))
    monkeypatch.setattr(registry, "PAPERS", {"colt": both})
    done = run("reproduce", "colt", "--data", data)
    assert "colt: 2 runs to make" in done.stderr
    assert "colt: 0 runs to make" in run("reproduce", "colt", "--data", data).stderr


def test_a_model_that_several_runs_use_is_trained_once(data: Path, tmp_path: Path) -> None:
    model = Experiment("model", "dense", "learnable")
    other = Experiment("other", "dense", "learnable")
    of_it = [
        GenerationExperiment(f"{decoding}", "toolgen", "learnable", model=model) for decoding in ("constrained", "free")
    ]
    table = replace(TABLE, lines=())
    wanted = [(of_it[0], 0), (other, 0), (of_it[1], 0), (model, 0), (of_it[0], 1)]
    todo = [reproduce._Run(table, one, seed, ("test",)) for one, seed in wanted]
    setup = reproduction.Setup(data, tmp_path, tmp_path)
    made = reproduce._jobs(registry.PAPERS["colt"], todo, setup, None)
    assert [(job.name, job.after) for job in made] == [
        ("constrained-s0", ()),
        ("other-s0", ()),
        ("free-s0", ("constrained-s0",)),
        ("model-s0", ("constrained-s0",)),
        ("constrained-s1", ()),
    ]


def test_an_agent_has_a_run_for_each_group(data: Path, tmp_path: Path) -> None:
    agent, groups = AgentExperiment("agent", "names", "learnable"), ["one", "two"]
    table = replace(TABLE, columns=(Column("called", "all_called", tuple(groups)),))
    todo = [reproduce._Run(table, agent, None, splits) for splits in reproduce._apart(agent, groups)]
    made = reproduce._jobs(registry.PAPERS["toolgen"], todo, reproduction.Setup(data, tmp_path, tmp_path), None)
    assert [(job.name, job.arguments[2]) for job in made] == [("agent, one", ("one",)), ("agent, two", ("two",))]
    assert reproduce._apart(Experiment("bm25", "bm25", "learnable"), groups) == [("one", "two")]


def test_a_name_that_two_datasets_have_is_run_on_both(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnable().save(data / "other")
    lines = [Line("BM25", None, Experiment("default", "bm25", name, train="")) for name in ("learnable", "other")]
    tables = tuple(replace(TABLE, part=str(number), lines=(line,)) for number, line in enumerate([*lines, lines[0]]))
    monkeypatch.setattr(registry, "PAPERS", {"colt": replace(registry.PAPERS["colt"], tables=tables)})
    done = run("reproduce", "colt", "--data", data)
    assert "1 of 2: default\n2 of 2: default, 3, 1\n" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results" / "reproduce.jsonl").read_text().splitlines()]
    assert [row["dataset"] for row in rows] == ["learnable", "other"]


def test_the_list_says_what_there_is_and_what_to_pass(run: Run, paper: Paper, data: Path) -> None:
    assert run("reproduce", "colt", "--data", data).exit_code == 0
    done = run("reproduce", "--list", "--data", data, "--json")
    (one,) = json.loads(done.stdout)
    assert (one["paper"], one["table"], one["part"]) == ("colt", "3", "made up")
    assert (one["measured"], one["can_be_run"], one["missing"]) == (2, 0, 2)
    assert one["lacks"] == ["the weights of ANCE: pass --model ance=FOLDER", "nobody released it"]
    assert "missing: nobody released it (colt 3, made up)" in words(run("reproduce", "--list", "--data", data).stdout)


def test_the_list_without_data_says_what_to_pass(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLSCOUT_DATA", raising=False)
    done = run("reproduce", "--list")
    assert done.exit_code == 0, done.output
    said = words(done.stdout)
    for name in ("toollens", "toolbench-g3", "toolbench"):
        assert f"missing: the dataset {name}: pass --data FOLDER, the folder that has {name}/ in it" in said
    listed = json.loads(run("reproduce", "--list", "--json").stdout)
    assert {one["paper"] for one in listed} == set(registry.PAPERS)
    assert not any(one["measured"] for one in listed)
    assert {one["part"] for one in listed if one["can_be_run"]} <= {"bundled"}  # which comes with the package


def test_tables_of_agents_ask_for_a_judge(run: Run, data: Path) -> None:
    asked = ["reproduce", "toolgen", "--table", "end-to-end", "--data", data, "--no-run"]
    wanted = "a judge: pass --judge https://HOST/v1?model=NAME"
    assert wanted in words(run(*asked).stdout)
    done = run(*asked, "--judge", "https://judge.example/v1?model=m")
    assert done.exit_code == 0, done.output
    assert wanted not in words(done.stdout)
    assert "the dataset stabletoolbench" in words(done.stdout)


def test_perplexities_are_not_shown_in_percent(
    run: Run, paper: Paper, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = replace(TABLE, columns=(replace(COLUMNS[0], percent=False),), lines=TABLE.lines[:1])
    monkeypatch.setattr(registry, "PAPERS", {"colt": replace(paper, tables=(shown,))})
    done = run("reproduce", "colt", "--data", data)
    value = json.loads(run("reproduce", "colt", "--data", data, "--no-run", "--json").stdout)
    (served,) = value["tables"][0]["lines"][0]["cells"][0]["served"]
    assert f"BM25 R@3 21.58 – {served:.2f}" in words(done.stdout)


def test_json_has_the_same_numbers(run: Run, paper: Paper, data: Path) -> None:
    assert run("reproduce", "colt", "--data", data).exit_code == 0
    found = json.loads(run("reproduce", "colt", "--data", data, "--no-run", "--json").stdout)
    assert (found["paper"], found["link"]) == ("colt", paper.link)
    (table,) = found["tables"]
    bm25 = table["lines"][0]
    assert bm25["cells"][0]["theirs"] == 21.58
    assert len(bm25["cells"][0]["served"]) == 1
    assert bm25["states"]["served"]["state"] == "measured"
    assert table["differences"] == ["The tools are made up.", *paper.differences]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "name a paper: colt; or see their tables with --list"),
        (["bert"], "there is no paper 'bert'; name one of colt"),
        (["colt", "--table", "9"], "colt has no table '9'; name one of 3"),
        (["--list", "--table", "3"], "name the paper too"),
        (["colt", "--data", "nowhere"], "there is no folder nowhere; pass --data"),
        (["colt", "--model", "ance"], "pass --model NAME=FOLDER"),
        (["colt", "--judge", "https://host/v1"], "needs the name of a model: write https://host/v1?model=NAME"),
        (["colt", "--model", "ance=."], "--model ance=.: . holds no encoder"),
        (["colt", "--model", "bert=."], "no table takes weights called 'bert'; there are: ance"),
    ],
)
def test_bad_input_is_one_plain_line(run: Run, paper: Paper, more: list[str], message: str) -> None:
    done = run("reproduce", *more)
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]
