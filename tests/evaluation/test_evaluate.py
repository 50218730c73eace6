"""An evaluation measures what is served, counts failures as zero, and embeds nothing twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.evaluation.made_up import dataset, hybrid
from tests.toys import HashedWords, catalogue
from toolscout.core.scope import EVERYTHING, Scope
from toolscout.core.tool import Searchable, Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.errors import BadDataset, BadModel, BadRequest, MissingEncoder, NeedsTraining
from toolscout.evaluation.evaluate import RequestResult, command_line, evaluate, load_split
from toolscout.evaluation.measures import CUTOFFS, MEASURES
from toolscout.retrievers.base import Ranking
from toolscout.retrievers.bm25 import Bm25, Bm25Options
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.hybrid.retriever import Hybrid, HybridOptions
from toolscout.retrievers.opening import open_retriever

DESIGNED = (
    "dataset digest split retriever variant options seed metrics timing params hardware commit command date".split()
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "vectors.db"


RANX = """
import json, sys
from ranx import Qrels, Run, evaluate
golds, rankings, names = json.load(sys.stdin)
run = {key: {tool: 1 / rank for rank, tool in enumerate(tools, 1)} for key, tools in rankings.items()}
found = evaluate(Qrels({key: dict.fromkeys(gold, 1) for key, gold in golds.items()}), Run(run), names)
print(json.dumps({name: float(value) for name, value in found.items()}))
"""


@pytest.mark.slow
def test_scores_equal_those_of_ranx(cache: Path) -> None:
    done = evaluate(dataset(), "test", hybrid(), cache=cache)
    answerable = [one for one in done.asked if one.gold]
    names = [f"{kind}@{k}" for kind in ("recall", "ndcg") for k in CUTOFFS]
    golds, rankings = ({one.request_id: part(one) for one in answerable} for part in (_gold, _ranking))
    ran = subprocess.run(
        [sys.executable, "-c", RANX],
        input=json.dumps([golds, rankings, names]),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},  # compiling itself takes it a minute
        check=True,
        capture_output=True,
        text=True,
    )
    expected = json.loads(ran.stdout.splitlines()[-1])
    assert {name: done.row.metrics[name] for name in names} == pytest.approx(expected, abs=1e-6)
    for k in CUTOFFS:
        complete = [set(one.gold) <= set(_ranking(one)[:k]) for one in answerable]
        assert done.row.metrics[f"comp@{k}"] == pytest.approx(np.mean(complete), abs=1e-6)


def _gold(one: RequestResult) -> tuple[str, ...]:
    return one.gold


def _ranking(one: RequestResult) -> tuple[str, ...]:
    return one.ranking or ()


def test_what_is_measured_is_what_the_retriever_ranks(cache: Path) -> None:
    data, alone = dataset(), Bm25()
    alone.add(data.tools)
    done = evaluate(data, "test", Bm25(), cache=cache)
    for one in done.asked:
        expected = [hit.tool_id for hit in alone.search([data.requests[one.request_id]], 10)[0]]
        assert list(one.ranking or ()) == expected


def test_a_row_describes_itself(cache: Path) -> None:
    data = dataset()
    row = evaluate(data, "test", hybrid(), command="toolscout evaluate …", cache=cache).row.to_dict()
    assert set(DESIGNED) <= row.keys()
    assert set(MEASURES) <= row["metrics"].keys()
    assert {"fit_s", "index_s", "query_p50_ms", "query_p95_ms"} <= row["timing"].keys()
    assert row["digest"] == data.digest("test")
    assert (row["requests"], row["failed"], row["encoder"], row["params"]) == (47, 0, "hashed-words", 0)
    assert all(0 <= value <= 1 for value in row["metrics"].values())


class Failing(Bm25):
    """Cannot take one request."""

    def rank(self, requests: Sequence[str], k: int, scope: Scope = EVERYTHING) -> list[Ranking]:
        if self.refused in requests:
            raise RuntimeError("this request is beyond me")
        return super().rank(requests, k, scope)

    refused = ""


def test_a_failed_request_scores_zero_and_is_counted(cache: Path) -> None:
    data = dataset()
    before = evaluate(data, "test", Bm25(), cache=cache)
    lost = next(one for one in before.asked if one.ranking and one.gold and one.gold[0] in one.ranking[:1])
    failing = Failing()
    failing.refused = data.requests[lost.request_id]
    after = evaluate(data, "test", failing, cache=cache)
    assert (before.row.failed, after.row.failed) == (0, 1)
    assert [one.error for one in after.asked if one.ranking is None] == ["RuntimeError: this request is beyond me"]
    share = 1 / len(lost.gold) / 40
    assert after.row.metrics["recall@1"] == pytest.approx(before.row.metrics["recall@1"] - share, abs=1e-6)
    assert after.row.metrics["ndcg@1"] == pytest.approx(before.row.metrics["ndcg@1"] - 1 / 40, abs=1e-6)


def test_the_verdict_is_judged_by_kind(cache: Path) -> None:
    done = evaluate(dataset(), "test", hybrid(), cache=cache)
    found = done.row.metrics
    for kind, name in (("no_tool", "fit_nothing.no_tool"), ("nothing_fits", "fit_nothing.nothing_fits")):
        verdicts = [one.verdict == "nothing_fits" for one in done.asked if one.kind == kind]
        assert found[name] == pytest.approx(np.mean(verdicts), abs=1e-6)
    right = [one.verdict == "use" for one in done.asked if one.kind == "use"]
    assert found["fit_use"] == pytest.approx(np.mean(right), abs=1e-6)
    used, others = ([one.fit for one in done.asked if (one.kind == "use") == wanted] for wanted in (True, False))
    wins = np.mean([(a > b) + (a == b) / 2 for a in used for b in others])
    assert found["fit_auroc"] == pytest.approx(wins, abs=1e-6)


def test_without_kinds_only_the_use_verdict_is_judged(cache: Path) -> None:
    data = dataset()
    plain = Dataset("plain", data.tools, data.requests, data.qrels)
    done = evaluate(plain, "test", Bm25(), cache=cache)
    assert {name for name in done.row.metrics if name.startswith(("fit_", "need_"))} == {"fit_use"}
    assert done.row.requests == 40


def test_evaluating_twice_embeds_once(cache: Path) -> None:
    first, second = HashedWords(), HashedWords()
    one = evaluate(dataset(), "test", hybrid(first), cache=cache)
    two = evaluate(dataset(), "test", hybrid(second), cache=cache)
    assert (first.encoded, second.encoded) == (60, 0)
    assert (one.row.timing["index_cached"], two.row.timing["index_cached"]) == (False, True)
    assert one.row.metrics == two.row.metrics


class Stopping(HashedWords):
    """Breaks off in the middle."""

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        for number, batch in enumerate(super().encode_documents(texts)):
            if number == 10:
                raise KeyboardInterrupt
            yield batch


def test_what_was_embedded_before_an_interruption_is_kept(cache: Path) -> None:
    data, again = dataset(tools=700), HashedWords()
    with pytest.raises(KeyboardInterrupt):
        evaluate(data, "test", hybrid(Stopping()), cache=cache)
    evaluate(data, "test", hybrid(again), cache=cache)
    assert again.encoded == 700 - 8 * 64  # what Scout had committed


def test_progress_covers_embedding_and_asking(cache: Path) -> None:
    seen: dict[str, tuple[int, int]] = {}
    evaluate(
        dataset(),
        "test",
        hybrid(),
        cache=cache,
        progress=lambda stage, done, total: seen.update({stage: (done, total)}),
    )
    assert (seen["embedding"], seen["asking"]) == ((60, 60), (47, 47))


def test_a_method_without_its_encoder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "no-encoder"))
    for retriever in (Dense(), Hybrid()):
        with pytest.raises(MissingEncoder):
            evaluate(dataset(), "test", retriever)


def test_an_unseen_tool_split_tells_new_tools_from_others(tmp_path: Path, cache: Path) -> None:
    data = dataset()
    qrels = data.qrels["test"]
    train = {key: gold for number, (key, gold) in enumerate(qrels.items()) if number % 2}
    test = {key: gold for key, gold in qrels.items() if key not in train}
    splits = {"unseen_tool.train": train, "unseen_tool.test": test, "other": test}
    Dataset("unseen", data.tools, data.requests, splits).save(tmp_path / "unseen")
    loaded = load_split(tmp_path / "unseen", "unseen_tool.test")
    done = evaluate(loaded, "unseen_tool.test", Bm25(), cache=cache)
    known = {tool for gold in train.values() for tool in gold}
    asked = [(one, set(one.gold) - known) for one in done.asked]
    recalls = [len(new & set((one.ranking or ())[:5])) / len(new) for one, new in asked if new]
    assert done.row.metrics["new_recall@5"] == pytest.approx(np.mean(recalls), abs=1e-6)
    plain = evaluate(load_split(tmp_path / "unseen", "other"), "other", Bm25(), cache=cache)
    assert "new_recall@5" not in plain.row.metrics


def test_datasets_are_found_by_path_by_name_and_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset().save(tmp_path / "home" / "mine")
    assert find_dataset(str(tmp_path / "home" / "mine")) == tmp_path / "home" / "mine"
    monkeypatch.setenv("TOOLSCOUT_DATA", str(tmp_path / "home"))
    assert find_dataset("mine") == tmp_path / "home" / "mine"
    assert len(load_split(find_dataset("bundled"), "dev").tools) >= 300
    with pytest.raises(BadDataset, match=r"no dataset 'yours'.*bundled"):
        find_dataset("yours")
    monkeypatch.delenv("TOOLSCOUT_DATA")
    with pytest.raises(BadDataset, match="TOOLSCOUT_DATA"):
        find_dataset("mine")
    with pytest.raises(BadDataset, match="no split nonsense; it has: test"):
        load_split(tmp_path / "home" / "mine", "nonsense")


def test_options_are_set_and_checked() -> None:
    made, variant = open_retriever("bm25", ["names=0", "fuzzy=false", "max_postings=7"])
    assert made.options == Bm25Options(names=0.0, fuzzy=False, max_postings=7)
    assert variant == "names-0.0_max_postings-7_fuzzy-false"
    assert open_retriever("bm25")[1] == "default"
    assert open_retriever("hybrid", ["fusion=rrf"])[1] == "fusion-rrf"
    with pytest.raises(BadModel, match=r"no option of bm25.*words=1\.0"):
        open_retriever("bm25", ["nonsense=1"])
    for wrong in ("names=many", "fuzzy=perhaps", "max_postings=1.5"):
        with pytest.raises(BadModel, match="must be of type"):
            open_retriever("bm25", [wrong])
    assert open_retriever("hybrid", ["weights=1,2.5"])[0].options == HybridOptions(weights=(1.0, 2.5))
    with pytest.raises(BadModel, match="numbers with commas"):
        open_retriever("hybrid", ["weights=1,many"])
    with pytest.raises(BadModel, match="3 weights for 2 parts"):
        open_retriever("hybrid", ["weights=1,2,3"])
    with pytest.raises(BadModel, match="one of scores, rrf"):
        open_retriever("hybrid", ["fusion=best"])
    with pytest.raises(BadModel, match="no retriever called"):
        open_retriever("nonsense")


def test_a_model_folder_is_judged_on_the_tools_of_the_dataset_alone(tmp_path: Path, cache: Path) -> None:
    saved = Bm25(Bm25Options(names=0.0))
    saved.add([*catalogue(20, seed=9), Tool("elsewhere", "search", "search list get")])  # other texts, and a stranger
    saved.save(tmp_path / "mine")
    made, variant = open_retriever(str(tmp_path / "mine"))
    assert variant == "mine"
    data = dataset()
    loaded = evaluate(data, "test", made, variant=variant, cache=cache)
    assert loaded.row.metrics == evaluate(data, "test", Bm25(Bm25Options(names=0.0)), cache=cache).row.metrics
    assert len(made) == len(data.tools)
    with pytest.raises(BadModel, match="leave --option out"):
        open_retriever(str(tmp_path / "mine"), ["names=1"])


class Wider(HashedWords):
    """Another encoder with longer vectors."""

    fingerprint = "wider"
    dimension = 300


def test_a_model_of_another_encoder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = hybrid()
    saved.add(catalogue(20))
    saved.save(tmp_path / "mine")
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder", Wider)
    with pytest.raises(BadModel, match=r"made with another encoder \(hashed-words\)"):
        open_retriever(str(tmp_path / "mine"))
    shutil.rmtree(tmp_path / "mine" / "1-dense")
    with pytest.raises(BadModel, match="1-dense is not a model folder"):
        open_retriever(str(tmp_path / "mine"))


def test_an_index_of_another_dimension_takes_no_more_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "no-encoder"))
    saved, encoder = Dense(), HashedWords()  # no encoder is here: nothing says what its vectors were made with
    saved.add(catalogue(20), {tool.digest(): encoder.encode_request(tool.document()) for tool in catalogue(20)})
    saved.save(tmp_path / "mine")
    monkeypatch.setattr("toolscout.models.encoders.onnx_encoder.Encoder", Wider)
    opened, _ = open_retriever(str(tmp_path / "mine"))
    with pytest.raises(BadModel, match="vectors of 300 numbers do not go with an index of 256"):
        opened.add([Tool("zoo", "feed_lion", "gives the lion its dinner")])
    # A dataset brings all its tools: nothing of the old index is left, and the encoder that is here makes a new one.
    assert evaluate(dataset(), "test", opened, cache=cache).row.failed == 0


class Fixed(Bm25):
    """A method that cannot take tools that it was not trained on."""

    def add(self, tools: Sequence[Searchable], vectors: object = None) -> None:
        raise NeedsTraining([tool.id for tool in tools], "toolscout train DATA --retriever fixed")


def test_a_method_that_was_trained_on_another_catalogue_says_so(cache: Path) -> None:
    with pytest.raises(NeedsTraining, match="and 55 more before it is trained on them; run: toolscout train"):
        evaluate(dataset(), "test", Fixed(), cache=cache)


def test_measures_beyond_ten_are_ranked_so_deep(cache: Path) -> None:
    done = evaluate(dataset(), "test", hybrid(), measures=["recall@25", "mrr@2", "fit_auroc"], cache=cache)
    assert max(len(one.ranking or ()) for one in done.asked) == done.depth == 25
    answerable = [one for one in done.asked if one.gold]
    found = [len(set(one.gold) & set((one.ranking or ())[:25])) / len(one.gold) for one in answerable]
    assert done.row.metrics["recall@25"] == pytest.approx(np.mean(found), abs=1e-6)
    usual = evaluate(dataset(), "test", hybrid(), cache=cache).row
    assert usual.metrics == {name: done.row.metrics[name] for name in usual.metrics}
    assert {line["depth"] for line in done.lines()} == {25}
    with pytest.raises(BadRequest, match="unknown measure"):
        evaluate(dataset(), "test", Bm25(), measures=["recall"], cache=cache)


def test_means_stand_inside_their_intervals(cache: Path) -> None:
    row = evaluate(dataset(), "test", hybrid(), cache=cache).row
    assert {*MEASURES, "fit_use", "fit_nothing"} <= row.intervals.keys() <= row.metrics.keys()
    for name, (low, high) in row.intervals.items():
        assert 0 <= low <= row.metrics[name] <= high <= 1
    assert row.intervals["recall@5"][0] < row.intervals["recall@5"][1]
    again = evaluate(dataset(), "test", hybrid(), cache=cache).row
    assert again.intervals == row.intervals


def test_rankings_are_written_only_where_they_are_asked_for(cache: Path) -> None:
    done = evaluate(dataset(), "test", Bm25(), cache=cache)
    assert not any({"golds", "ranking"} & line.keys() for line in done.lines())
    for one, line in zip(done.asked, done.lines(rankings=True), strict=True):
        assert (line["golds"], line["ranking"]) == (list(one.gold), list(one.ranking or ()))


def test_the_command_holds_no_paths_of_one_machine(tmp_path: Path) -> None:
    command = command_line(str(tmp_path / "toollens"), "test", str(tmp_path / "model"), ["names=0"])
    assert command == "toolscout evaluate toollens --split test --retriever model --option names=0"
    models = [f"reranker={tmp_path}/cross?max_tokens=64", f"dense.encoder={tmp_path}/e5/", "llm=rules"]
    shown = command_line("toollens", "test", "rerank", models, encoder=f"{tmp_path}/e5?pooling=cls")
    assert shown.endswith(
        "--option 'reranker=cross?max_tokens=64' --option dense.encoder=e5 --option llm=rules "
        "--encoder 'e5?pooling=cls'"
    )
    chats = ["reranker=chat:smollm2", f"reranker=chat:{tmp_path}/llm", "reranker=https://host/v1?model=a/b"]
    assert command_line("a", "b", "rerank", chats).endswith(
        "--option reranker=chat:smollm2 --option reranker=chat:llm --option 'reranker=https://host/v1?model=a/b'"
    )
    more = command_line("toollens", "dev", "bm25", measures=["recall@7"], drop_seen=True)
    assert more == "toolscout evaluate toollens --split dev --retriever bm25 --measure recall@7 --drop-seen"
