"""What `toolscout train` is told: which splits, which retriever, which options, and where the model goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset, request_digest
from toolscout.errors import BadDataset, BadModel, Leak
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.memory import Memory
from toolscout.retrievers.provenance import SeenSplit, TrainedOn
from toolscout.retrievers.training_setup import check_out, made, training_sets

TOOLS = [Tool("n", "one"), Tool("n", "two")]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of datasets: full has two families of splits, bare only train, again repeats what full is trained on."""
    monkeypatch.setenv("TOOLSCOUT_DATA", str(tmp_path))
    names = ("train", "dev", "test", "unseen_tool.train", "unseen_tool.dev", "odd.train")
    save(tmp_path / "full", {name: [f"{name} a", f"{name} b"] for name in names})
    save(tmp_path / "bare", {"train": ["bare a"]})
    save(tmp_path / "again", {"train": ["again"], "dev": ["TRAIN  a", "something else"]})
    return tmp_path


def save(folder: Path, splits: dict[str, list[str]]) -> None:
    texts = {text: text for several in splits.values() for text in several}
    gold: tuple[str, ...] = (TOOLS[0].id,)
    qrels = {split: dict.fromkeys(several, gold) for split, several in splits.items()}
    Dataset(folder.name, TOOLS, texts, qrels).save(folder)


@pytest.mark.parametrize(
    ("text", "train", "dev"),
    [
        ("full", "train", "dev"),
        ("bare", "train", ""),
        ("full:unseen_tool", "unseen_tool.train", "unseen_tool.dev"),
        ("full:odd", "odd.train", ""),
        ("full:train", "train", ""),
        ("full:train:", "train", ""),
        ("full:test:dev", "test", "dev"),
    ],
)
def test_splits_are_named_or_guessed(data: Path, text: str, train: str, dev: str) -> None:
    for name in (text, f"{data}/{text}"):
        (one,) = training_sets([name])
        assert (one.dataset.name, one.train, one.dev) == (text.partition(":")[0], train, dev)
        assert set(one.dataset.splits) == {train, dev} - {""}  # no other split is read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere", "there is no dataset 'nowhere'"),
        ("full:valid", "has no split valid; it has: "),
        ("full:train:valid", "has no split valid"),
        ("full:train:dev:test", "write DATA, DATA:TRAIN or DATA:TRAIN:DEV"),
        ("full:", "write DATA, DATA:TRAIN or DATA:TRAIN:DEV"),
    ],
)
def test_what_is_not_there_is_told(data: Path, text: str, message: str) -> None:
    with pytest.raises(BadDataset, match=message):
        training_sets([text])


def test_selecting_on_what_is_trained_on_is_refused(data: Path) -> None:
    with pytest.raises(Leak, match="full:train and full:train share 2 requests; select on others than you train on"):
        training_sets(["full:train:train"])
    with pytest.raises(Leak, match="full:train and again:dev share 1 requests"):
        training_sets(["full", "again"])
    assert len(training_sets(["again", "bare", "full:unseen_tool"])) == 3


def test_what_the_writer_of_a_set_has_seen_counts_as_trained_on(data: Path) -> None:
    learned = frozenset([request_digest("dev B")])
    TrainedOn((SeenSplit("elsewhere", "x", "few", "train", learned),)).save(data / "bare")
    with pytest.raises(Leak, match="elsewhere:few and full:dev share 1 requests; select on others than you train on"):
        training_sets(["full", "bare"])
    assert len(training_sets(["full:unseen_tool", "bare"])) == 2


def test_what_the_writer_of_a_set_was_selected_on_chooses_nothing_here(data: Path) -> None:
    taught, selected = frozenset([request_digest("elsewhere")]), frozenset([request_digest("train a")])
    history = (SeenSplit("elsewhere", "x", "all", "train", taught), SeenSplit("elsewhere", "x", "few", "dev", selected))
    both = SeenSplit("need", "x", "few", "dev", taught)  # a part of the same model may be selected on them
    TrainedOn((*history, both)).save(data / "bare")
    assert len(training_sets(["bare"])) == 1
    assert len(training_sets(["full", "bare"])) == 2


def test_no_tool_is_read_again_to_compare_requests(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> str:
        raise AssertionError("a digest of tools")

    monkeypatch.setattr(Dataset, "digest", refuse)
    monkeypatch.setattr(Tool, "digest", refuse)
    assert len(training_sets(["again", "bare", "full:unseen_tool"])) == 3


def test_a_retriever_is_made_with_its_options() -> None:
    dense = made("dense", [], ["epochs=2", "loss=softmax", "unused=yes"])
    assert isinstance(dense, Dense)
    assert (dense.options.epochs, dense.options.loss, dense.options.unused) == (2, "softmax", True)
    hybrid = made("hybrid", [], ["depth=20", "dense.rate=0.5", "memory.votes=0.5"])
    assert isinstance(hybrid, Hybrid)
    assert hybrid.options.depth == 20
    words, memory, trained = hybrid.parts
    assert isinstance(words, Bm25)
    assert isinstance(memory, Memory)
    assert isinstance(trained, Dense)
    assert (memory.options.votes, trained.options.rate) == (0.5, 0.5)


def test_parts_are_names_or_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Bm25().save(tmp_path / "words")
    Path("dense").mkdir()  # a name is a name, whatever lies in this folder
    hybrid = made("hybrid", ["words", "dense"], [])
    assert isinstance(hybrid, Hybrid)
    assert [part.name for part in hybrid.parts] == ["bm25", "dense"]


@pytest.mark.parametrize(
    ("retriever", "parts", "settings", "message"),
    [
        ("nonsense", [], [], "no retriever called 'nonsense'; choose one of bm25"),
        ("bm25", [], [], "bm25 learns nothing: it can be used as it is"),
        ("dense", ["bm25"], [], "dense has no parts"),
        ("dense", [], ["speed=9"], "'speed=9' is no option of dense; give key=value with one of: .*epochs=6"),
        ("dense", [], ["epochs"], "is no option of dense"),
        ("dense", [], ["rate=inf"], "'rate=inf': the value must be a finite number"),
        ("dense", [], ["epochs=many"], "must be of type int"),
        ("dense", [], ["loss=hinge"], "must be one of sigmoid, softmax"),
        ("dense", [], ["rate=-1"], "rate and scale must be above 0"),
        ("hybrid", ["bm25", "nowhere"], [], "there is no part 'nowhere'; name one of bm25.*, or a model folder"),
        ("hybrid", ["bm25"], ["dense.rate=1"], "no part is called dense; the parts are: bm25"),
        ("hybrid", [], ["dense.speed=9"], "'speed=9' is no option of dense"),
        ("hybrid", [], ["speed=9"], "'speed=9' is no option of hybrid"),
        ("hybrid", [], ["weights=inf,1"], "numbers with commas between them, all of them finite"),
    ],
)
def test_what_cannot_be_made_is_told(retriever: str, parts: list[str], settings: list[str], message: str) -> None:
    with pytest.raises(BadModel, match=message):
        made(retriever, parts, settings)


def test_the_folder_must_be_new_or_hold_an_interrupted_training(tmp_path: Path) -> None:
    check_out(tmp_path / "new")
    check_out(tmp_path)
    for name in ("training", "encoded", "2-dense"):
        (tmp_path / name / name).mkdir(parents=True)
        check_out(tmp_path / name)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadModel, match="is not a folder"):
        check_out(tmp_path / "file")
    Bm25().save(tmp_path / "model")
    with pytest.raises(BadModel, match="already holds a model; name a new folder, or remove this one"):
        check_out(tmp_path / "model")
    save(tmp_path / "data", {"train": ["x"]})
    with pytest.raises(BadModel, match=r"holds something else \(corpus.jsonl\); name a new folder"):
        check_out(tmp_path / "data")
