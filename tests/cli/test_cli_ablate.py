"""toolscout ablate: variants trained and measured by one command, which can be given again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.training.learnable import learnable, tiny_source
from toolscout.models.encoders.export import export
from toolscout.papers.masstool import ablations

pytestmark = pytest.mark.slow

SMALL = ("epochs=1", "batch=32", "device=cpu", "hidden=8", "neighbours=5")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset (data) and the tiny BERT to serve (encoder)."""
    folder = tmp_path_factory.mktemp("ablate")
    learnable().save(folder / "data")
    export(tiny_source(folder / "source"), folder / "encoder")
    return folder


def words(home: Path, *more: str) -> list[str]:
    settings = [word for one in SMALL for word in ("--option", one)]
    told = ["ablate", "masstool", str(home / "data"), "--test", "test", "--out", "work", "--json", "rows.jsonl"]
    return [*told, "--encoder", str(home / "encoder"), *settings, *more]


def test_variants_are_trained_shown_and_not_made_again(run: Run, home: Path, tmp_path: Path) -> None:
    done = run(*words(home, "--only", "without-adakt", "--stop-after", "0"))
    assert (done.exit_code, "2 are left; give the same command again" in done.stderr) == (0, True), done.output
    done = run(*words(home, "--only", "without-adakt"))
    assert done.exit_code == 0, done.output
    assert "2 variants, 2 runs to make" in done.stderr
    assert "there is no detection to ablate" in done.stderr
    assert "2 of 2: without-adakt s0" in done.stderr
    assert done.stdout.count("without-adakt") == 2
    assert "parts count what they learned" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["study"]["variant"], row["study"]["weights"]) for row in rows] == [
        (name, weights) for name in ("full", "without-adakt") for weights in ("chosen", "learned")
    ]
    assert rows[0]["command"] == (
        "toolscout ablate masstool data --test test --out FOLDER --encoder ENCODER "
        + " ".join(f"--option {one}" for one in SMALL)
    )
    assert str(home) not in (tmp_path / "rows.jsonl").read_text()
    done = run(*words(home, "--only", "without-adakt"))
    assert "2 variants, 0 runs to make" in done.stderr
    assert done.stdout.count("without-adakt") == 2
    assert run("results", ".", "--no-plots").exit_code == 0
    assert "without AdaKT" in (tmp_path / "README.md").read_text()


def test_a_variant_that_fails_leaves_the_others(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ablations.run_variant

    def failing(
        plan: ablations.AblationPlan, variant: ablations.Variant, seed: int
    ) -> list[ablations.ExperimentResult]:
        if variant.name == "without-suim":
            raise ValueError("no luck")
        return whole(plan, variant, seed)

    monkeypatch.setattr(ablations, "run_variant", failing)
    done = run(*words(home, "--only", "su"))
    assert "failed: without-suim s0: ValueError: no luck" in done.stderr
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--only", "nonsense"], "no variant has 'nonsense' in its name"),
        (["--option", "speed=9"], "'speed=9' is no option of masstool"),
        (["--option", "train_encoder=true"], "variants share the vectors of one frozen encoder"),
        (["--seeds", "one"], "seeds must be numbers"),
        (["--no-tool", "nowhere"], "there is no dataset 'nowhere'"),
        (["--test", "train"], "shares 160 of its 160 requests"),
    ],
)
def test_bad_input_is_one_plain_line(run: Run, home: Path, more: list[str], message: str) -> None:
    done = run(*words(home, *more))
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]


def test_other_methods_have_no_parts(run: Run, home: Path) -> None:
    done = run("ablate", "bm25", home / "data", "--test", "test", "--out", "work")
    assert (done.exit_code, "'bm25' has no parts to leave out" in done.stderr) == (2, True)
