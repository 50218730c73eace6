"""toolscout train: a model out of a folder of requests, which every other command opens."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.models import tiny_families
from tests.training.learnable import learnable, tiny_source
from toolscout.models.encoders.export import export
from toolscout.retrievers.base import FitReport
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.model_folder import read_model, trained_on

pytestmark = pytest.mark.slow

LEARNING = ("loss=softmax", "mix=0", "batch=16", "rate=0.003", "epochs=2", "device=cpu")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset (data), the tiny BERT (source) and the same to serve (encoder)."""
    folder = tmp_path_factory.mktemp("train")
    learnable().save(folder / "data")
    export(tiny_source(folder / "source"), folder / "encoder")
    return folder


def settings(home: Path, part: str = "") -> list[str]:
    chosen = (f"start={home / 'source'}", *LEARNING)
    return [word for option in chosen for word in ("--option", part + option)]


@pytest.mark.parametrize("retriever", ["dense", "memory", "centroid", "hybrid"])
def test_what_is_trained_can_be_evaluated_and_searched(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retriever: str
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(home / "encoder"))
    words = {"dense": settings(home), "hybrid": settings(home, "dense.")}.get(retriever, [])
    done = run("train", home / "data", "--retriever", retriever, "--out", "model", *words)
    assert done.exit_code == 0, done.output
    assert "data: data: 160 requests of train to train on, 40 of dev to select on; 20 tools" in done.stderr
    assert "recall@5" in done.stdout
    assert "numbers learned in" in done.stdout
    assert "written: model; try it: toolscout evaluate DATA --retriever model" in done.stderr
    assert [one.split for one in trained_on(tmp_path / "model").splits] == ["train", "dev"]
    done = run("evaluate", home / "data", "--retriever", "model", "--json", "rows.jsonl")
    assert done.exit_code == 0, done.output
    done = run("evaluate", f"{home / 'data'}:dev", "--retriever", "model")
    assert (done.exit_code, "shares 40 of its 40 requests" in done.stderr) == (2, True)
    (tmp_path / "tools.jsonl").write_text('{"namespace": "n", "name": "t0", "description": "w0 w1"}\n')
    assert run("add", "tools.jsonl", "--no-embed").exit_code == 0
    done = run("search", "n/t0", "--retriever", "model")
    assert "1 of 1 tools are not embedded yet" in done.output
    assert "run: toolscout embed, with the same --retriever" in " ".join(done.output.split())
    assert run("embed", "--retriever", "model").exit_code == 0
    done = run("search", "n/t0", "--retriever", "model")
    assert (done.exit_code, "n/t0" in done.stdout, "not embedded" in done.output) == (0, True, False), done.output


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "distilbert", "mpnet"])
def test_an_encoder_of_another_family_is_trained_by_its_folder(
    run: Run, home: Path, tmp_path: Path, family: str
) -> None:
    source = tiny_families.write_folder(tmp_path / "source", family)
    chosen = [word for option in (f"start={source}", *LEARNING) for word in ("--option", option)]
    done = run("train", home / "data", "--retriever", "dense", "--out", "model", *chosen)
    assert done.exit_code == 0, done.output
    assert f'"family": "{family}"' in (tmp_path / "model/encoder/encoder.json").read_text()
    done = run("evaluate", home / "data", "--retriever", "model", "--json", "rows.jsonl")
    assert done.exit_code == 0, done.output


def test_a_hybrid_takes_models_as_they_are(run: Run, home: Path, tmp_path: Path) -> None:
    assert run("train", home / "data", "--retriever", "dense", "--out", "dense-model", *settings(home)).exit_code == 0
    parts = [word for part in ("bm25", "memory", "dense-model") for word in ("--part", part)]
    done = run("train", home / "data", "--out", "model", *parts)
    assert done.exit_code == 0, done.output
    assert list(read_model(tmp_path / "model")["parts"]) == ["0-bm25", "1-memory", "2-dense"]
    model = Path("2-dense", "encoder", "model.onnx")
    assert (tmp_path / "model" / model).read_bytes() == (tmp_path / "dense-model" / "encoder/model.onnx").read_bytes()


def test_an_interrupted_training_goes_on(run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("train", home / "data", "--retriever", "dense", *settings(home), "--out")
    assert run(*command, "straight").exit_code == 0

    def interrupted(*args: object) -> FitReport:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Dense, "save", interrupted)
        done = run(*command, "model")
    assert (done.exit_code, "nothing is lost" in done.stderr) == (130, True)
    done = run(*command, "model", "--option", "rate=0.001")
    assert (done.exit_code, "other data or with other options that was interrupted" in done.stderr) == (2, True)
    assert run(*command, "model").exit_code == 0
    file = "weights/model.safetensors"
    assert (tmp_path / "model" / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "there is no dataset 'nowhere'"),
        (["DATA:valid"], "has no split valid; it has: "),
        (["DATA:train:train"], "share 160 requests; select on others than you train on"),
        (["DATA", "--retriever", "bm25"], "bm25 learns nothing"),
        (["DATA", "--retriever", "nonsense"], "no retriever called 'nonsense'"),
        (["DATA", "--retriever", "dense", "--option", "speed=9"], "'speed=9' is no option of dense"),
        (["DATA", "--retriever", "dense", "--option", "device=tpu9"], "the device 'tpu9' cannot be used"),
        (["DATA", "--retriever", "dense", "--option", "start=nowhere"], "not a folder of a Hugging Face model"),
        (["DATA", "--retriever", "memory"], "there is no sentence encoder"),
        (["DATA:train", "--retriever", "hybrid"], "no dataset has one; name one: DATA:TRAIN:DEV"),
        (["DATA", "--part", "nowhere"], "there is no part 'nowhere'"),
    ],
)
def test_bad_input_is_one_plain_line_and_leaves_nothing(
    run: Run, home: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    words = [word.replace("DATA", str(home / "data")) for word in words]
    done = run("train", *words, "--out", "model")
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[-1]
    assert not (tmp_path / "model").exists()


def test_a_sweep_trains_every_combination_and_compares_them(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(home / "encoder"))
    words = ("train", home / "data", "--retriever", "memory", "--out", "model")
    swept = ("--sweep", "neighbours=1,20", "--sweep", "half_life=1,365")
    done = run(*words, *swept)
    assert done.exit_code == 0, done.output
    places = [f"model-neighbours={count}-half_life={days}" for count in (1, 20) for days in (1, 365)]
    assert sorted(path.name for path in tmp_path.glob("model*")) == sorted(places)
    for place in places:
        options = read_model(tmp_path / place)["options"]
        assert place == f"model-neighbours={options['neighbours']}-half_life={options['half_life']:g}"
    compared = [line for line in done.stdout.splitlines() if "model-" in line]
    scores = [float(line.split()[1]) for line in compared]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    again = run(*words, *swept)
    assert "written" not in again.stderr
    assert [line for line in again.stdout.splitlines() if "model-" in line] == compared


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sweep", "neighbours"], "write KEY=VALUE,VALUE"),
        (["--sweep", "neighbours=1", "--sweep", "neighbours=2"], "swept twice"),
        (["--sweep", "neighbors=1,2"], "neighbors"),
        (["--processes", "2"], "give --retriever dense and --ray"),
        (["--ray", "auto"], "--processes N"),
    ],
)
def test_bad_sweeps_are_told(run: Run, home: Path, tmp_path: Path, words: list[str], told: str) -> None:
    done = run("train", home / "data", "--retriever", "memory", "--out", "model", *words)
    assert (done.exit_code, told in " ".join(done.output.split())) == (2, True), done.output
    assert not list(tmp_path.glob("model*"))


def test_a_folder_in_use_is_not_touched(run: Run, home: Path, tmp_path: Path) -> None:
    Bm25().save(tmp_path / "model")
    before = sorted(tmp_path.rglob("*"))
    for out, message in (("model", "already holds a model"), (".", "holds something else (model)")):
        done = run("train", home / "data", "--out", out)
        assert (done.exit_code, message in done.stderr) == (2, True)
    assert sorted(tmp_path.rglob("*")) == before
    assert run("train", "--out", "x").exit_code == 2
    assert run("train", home / "data").exit_code == 2


def test_half_a_dataset_and_unknown_gold_are_told(run: Run, home: Path, tmp_path: Path) -> None:
    data = learnable()
    replace(data, name="half").save(tmp_path / "half")
    (tmp_path / "half" / "queries.jsonl").unlink()
    data.save(tmp_path / "wrong")
    with (tmp_path / "wrong" / "qrels" / "train.tsv").open("a") as file:
        file.write("learnable-80\tn/t99\t1\n")
    for name, message in (("half", "only half a dataset"), ("wrong", "n/t99")):
        done = run("train", tmp_path / name, "--retriever", "dense", "--out", "model", *settings(home))
        assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_without_torch_the_pip_line_is_named(home: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from toolscout.cli.main import main; main()"
    words = ["train", str(home / "data"), "--retriever", "dense", "--out", str(tmp_path / "model")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "run: pip install 'toolscout[train]'" in done.stderr
