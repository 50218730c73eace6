"""masstool and colt from the command line: trained with or without prompts, alone or in a hybrid, and asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.models import tiny_families
from tests.training.learnable import learnable, tiny_source
from toolscout.models.encoders.export import export
from toolscout.retrievers.model_folder import read_model, trained_on

pytestmark = pytest.mark.slow

QUICK = ("epochs=2", "batch=40", "epsilon=0.3", "hidden=8", "device=cpu")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of datasets: data and no_tool; the tiny BERT to train (source) and to serve (encoder)."""
    folder = tmp_path_factory.mktemp("masstool")
    learnable().save(folder / "data")
    export(tiny_source(folder / "source"), folder / "encoder")
    for name in ("no_tool", "chat"):
        (folder / name).mkdir()
        rows = [
            {"_id": f"{name}{n}", "text": f"{name} w{n} w1", "split": "train" if n % 3 else "dev", "source": "s"}
            for n in range(30)
        ]
        (folder / name / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def here(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """There is an encoder, and a folder of datasets."""
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(home / "encoder"))
    monkeypatch.setenv("TOOLSCOUT_DATA", str(home))
    return run


def settings(*more: str, part: str = "", chosen: tuple[str, ...] = QUICK) -> list[str]:
    return [word for option in (*chosen, *more) for word in ("--option", part + option)]


def test_masstool_is_trained_evaluated_searched_and_asked(here: Run, tmp_path: Path, home: Path) -> None:
    done = here("train", "data", "--retriever", "masstool", "--out", "model", *settings())
    assert done.exit_code == 0, done.output
    assert f"prompts that need no tool are those of {home / 'no_tool'}; --no-tool none trains without" in done.stderr
    assert "note: graph: 160 requests, " in done.stderr
    assert "ndcg@5" in done.stdout
    assert read_model(tmp_path / "model")["options"]["no_tool"] == "no_tool"
    assert [one.dataset for one in trained_on(tmp_path / "model").splits] == ["data", "data", "no_tool", "no_tool"]
    done = here("evaluate", "data", "--retriever", "model", "--json", "rows.jsonl")
    assert done.exit_code == 0, done.output
    row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    assert (row["retriever"], row["failed"]) == ("masstool", 0)
    assert str(home) not in json.dumps(row)
    done = here("evaluate", "data:dev", "--retriever", "model")
    assert (done.exit_code, "shares 40 of its 40 requests" in done.stderr) == (2, True)
    done = here("need", "w20 w20 w41", "chat w3 w1", "--retriever", "model", "--format", "json")
    asked = json.loads(done.stdout)
    assert asked[0]["need"] > asked[1]["need"]
    (tmp_path / "tools.jsonl").write_text('{"namespace": "n", "name": "t0", "description": "w0 w1"}\n')
    assert here("add", "tools.jsonl", "--no-embed").exit_code == 0
    assert here("embed", "--retriever", "model").exit_code == 0
    done = here("search", "w0 w1 w7", "--retriever", "model", "--format", "json")
    found = json.loads(done.stdout)
    assert found["considered"][0]["tool_id"] == "n/t0", done.output
    assert 0 <= found["need"] <= 1


@pytest.mark.parametrize(
    ("words", "name"),
    [(["--no-tool", "none"], ""), (["--no-tool", "chat"], "chat"), (["--option", "no_tool=CHAT"], "chat")],
)
def test_the_prompts_that_are_named_are_taken(
    here: Run, home: Path, tmp_path: Path, words: list[str], name: str
) -> None:
    words = [word.replace("CHAT", str(home / "chat")) for word in words]
    done = here("train", "data", "--retriever", "masstool", "--out", "model", *settings("epochs=1"), *words)
    assert done.exit_code == 0, done.output
    assert "prompts that need no tool" not in done.stderr
    assert read_model(tmp_path / "model")["options"]["no_tool"] == name
    assert (tmp_path / "model" / "need.npz").exists() == bool(name)


def test_without_any_prompts_it_says_so(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(home / "encoder"))
    monkeypatch.delenv("TOOLSCOUT_DATA", raising=False)
    done = run("train", home / "data", "--retriever", "masstool", "--out", "model", *settings("epochs=1"))
    assert done.exit_code == 0, done.output
    assert "the model will not tell whether a tool is needed; name some with --no-tool FOLDER" in done.stderr
    done = run("need", "w20 w20 w41", "--retriever", "model")
    assert (done.exit_code, "cannot tell whether a tool is needed" in done.stderr) == (2, True)


def test_colt_is_trained_and_evaluated(here: Run) -> None:
    done = here("train", "data", "--retriever", "colt", "--out", "model", *settings(chosen=("epochs=1", "device=cpu")))
    assert done.exit_code == 0, done.output
    assert "prompts" not in done.stderr
    assert here("evaluate", "data", "--retriever", "model").exit_code == 0


def test_the_published_form_takes_the_same_prompts(here: Run, tmp_path: Path) -> None:
    chosen = ("epochs=1", "batch=40", "device=cpu")
    done = here("train", "data", "--retriever", "masstool_published", "--out", "model", *settings(chosen=chosen))
    assert done.exit_code == 0, done.output
    assert "prompts that need no tool are those of" in done.stderr
    assert read_model(tmp_path / "model")["options"]["no_tool"] == "no_tool"


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_the_published_form_takes_the_weights_of_its_backbones(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    source = tiny_families.write_folder(tmp_path / "source", family)
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(source))
    chosen = ("epochs=1", "batch=40", "device=cpu")
    done = here("train", "data", "--retriever", "masstool_published", "--out", "model", *settings(chosen=chosen))
    assert done.exit_code == 0, done.output
    (card,) = (tmp_path / "cache").glob("encoders/*/encoder.json")
    assert json.loads(card.read_text())["family"] == family


def test_a_hybrid_has_it_trained_as_a_part(here: Run, home: Path, tmp_path: Path) -> None:
    words = [word for part in ("bm25", "masstool") for word in ("--part", part)]
    done = here("train", "data", "--out", "model", *words, *settings(part="masstool."))
    assert done.exit_code == 0, done.output
    assert f"prompts that need no tool are those of {home / 'no_tool'}" in done.stderr
    assert "note: graph: 160 requests, " in done.stderr
    assert read_model(tmp_path / "model" / "1-masstool")["options"]["no_tool"] == "no_tool"
    assert "no_tool" in {one.dataset for one in trained_on(tmp_path / "model").splits}
    done = here("need", "w20 w20 w41", "--retriever", "model", "--format", "json")
    assert 0 <= json.loads(done.stdout)[0]["need"] <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--retriever", "dense", "--no-tool", "chat"], "dense does not learn whether a request needs a tool"),
        (["--retriever", "colt", "--no-tool", "none"], "colt does not learn whether a request needs a tool"),
        (["--no-tool", "chat"], "hybrid does not learn whether a request needs a tool; leave --no-tool out"),
        (["--retriever", "masstool", "--no-tool", "nowhere"], "there is no dataset 'nowhere'"),
        (["--retriever", "masstool", "--no-tool", "data"], "holds no prompts.jsonl"),
        (["--retriever", "masstool", "--no-tool", "chat", "--option", "no_tool=x"], "say the same twice"),
        (["--retriever", "masstool", "--option", "transfer=shouting"], "must be one of gating, attention"),
        (["--retriever", "masstool", "--option", "start=x"], "set train_encoder=true as well"),
        (["--retriever", "masstol"], "no retriever called 'masstol'"),
    ],
)
def test_bad_input_is_one_plain_line_and_leaves_nothing(
    here: Run, tmp_path: Path, words: list[str], message: str
) -> None:
    done = here("train", "data", "--out", "model", *words)
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]
    assert not (tmp_path / "model").exists()


def test_they_are_listed(run: Run) -> None:
    found = {row["name"]: row for row in json.loads(run("retrievers", "--format", "json").stdout)}
    assert found["masstool"]["about"].startswith("dense retrieval, votes of neighbouring requests")
    assert found["colt"]["options"]["layers"] == 1
    assert found["masstool"]["options"]["transfer"] == "gating"
