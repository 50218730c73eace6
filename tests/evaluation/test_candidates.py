"""An evaluation among some tools ranks those as a ranking of all tools does, and its rows say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.evaluation.made_up import dataset, hybrid
from tests.evaluation.report_samples import scored
from tests.toys import HashedWords
from toolscout.data.dataset import Dataset
from toolscout.errors import BadDataset
from toolscout.evaluation import scores
from toolscout.evaluation.candidates import Candidates, names_in, read_candidates, restricted_variant
from toolscout.evaluation.evaluate import command_line, evaluate
from toolscout.evaluation.report.rows import merge_seeds
from toolscout.evaluation.report.tables import quality
from toolscout.evaluation.row import append_with_scores, scores_path
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "vectors.db"


def halves() -> Dataset:
    """The made-up dataset with its requests in two splits, which use other tools besides common ones."""
    data = dataset()
    rows = list(data.qrels["test"].items())
    return replace(data, qrels={"test": dict(rows[:10]), "dev": dict(rows[10:14])})


def gold_of(data: Dataset, *splits: str) -> set[str]:
    return {tool_id for split in splits for gold in data.qrels[split].values() for tool_id in gold}


@pytest.mark.parametrize("made", [Bm25, hybrid, lambda: Dense(encoder=HashedWords())])
def test_the_ranking_is_that_of_all_tools_without_the_others(made: type[Retriever], cache: Path) -> None:
    data = halves()
    candidates = read_candidates(data, ["test", "dev"])
    assert candidates.ids == gold_of(data, "test", "dev")
    assert 10 < len(candidates.ids) < len(data.tools)
    alone = made()
    alone.add(data.tools)
    done = evaluate(data, "test", made(), among=candidates, cache=cache)
    for one in done.asked:
        everything = alone.search([data.requests[one.request_id]], len(data.tools))[0]
        expected = [hit.tool_id for hit in everything if hit.tool_id in candidates.ids][:10]
        assert list(one.ranking or ()) == expected
    answerable = [one for one in done.asked if one.gold]
    recalls = [len({*one.gold} & {*(one.ranking or ())[:5]}) / len(one.gold) for one in answerable]
    assert done.row.metrics["recall@5"] == pytest.approx(sum(recalls) / len(recalls), abs=1e-6)


def test_all_tools_as_candidates_change_no_measure(cache: Path) -> None:
    data = halves()
    everything = Candidates(("all",), frozenset(tool.id for tool in data.tools))
    plain, among = (evaluate(data, "test", hybrid(), among=one, cache=cache) for one in (None, everything))
    assert among.row.metrics == plain.row.metrics
    assert [one.ranking for one in among.asked] == [one.ranking for one in plain.asked]


def test_rows_with_and_without_candidates_are_kept_apart(cache: Path, tmp_path: Path) -> None:
    data, out = halves(), tmp_path / "rows.jsonl"
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(sorted(gold_of(data, "test"))) + "\n\n")
    read = [None, read_candidates(data, ["test", "dev", "test"]), read_candidates(data, [str(ids)])]
    runs = [evaluate(data, "test", Bm25(), among=one, cache=cache) for one in read]
    made = [one.row.to_dict() for one in runs]
    assert [row["variant"] for row in made] == ["default", "among-dev+test", "among-ids.txt"]
    assert made[0]["among"] is None
    assert made[1]["among"] == {"names": ["dev", "test"], "tools": len(gold_of(data, "test", "dev"))}
    assert list(map(names_in, made)) == [(), ("dev", "test"), ("ids.txt",)]
    assert len({row["digest"] for row in made}) == 3
    assert len({scores_path(out, row) for row in made}) == 3
    assert len(merge_seeds(made)) == 3
    assert len(merge_seeds([row | {"variant": "same"} for row in made])) == 3
    for row, one in zip(made, runs, strict=True):
        append_with_scores(out, row, one.lines())
    chosen = [scores.find(f"{out}#{number}") for number in (1, 2)]
    with pytest.raises(BadDataset, match="measured on other tools"):
        scores.compare(*chosen, ["recall@5"])
    page = "".join(quality(merge_seeds(made)))
    assert f"requests among {len(gold_of(data, 'test', 'dev'))} tools of dev, test, digest" in page
    assert page.count("**test**") == 3


def test_seeds_of_a_model_are_one_line() -> None:
    about = {"names": ["train"], "tools": 9}
    rows = [
        scored(0.5, variant=restricted_variant(f"model-s{seed}", ["train"]), seed=seed, among=about, digest="d")
        for seed in (0, 1)
    ]
    (line,) = merge_seeds(rows)
    assert (line.variant, line.among, len(line.rows)) == ("among-train_model", "9 tools of train", 2)


def test_gold_tools_must_be_candidates(cache: Path) -> None:
    data = halves()
    outside = gold_of(data, "test") - gold_of(data, "dev")
    with pytest.raises(BadDataset, match=rf"{len(outside)} of .* gold tools of made-up test .*--among test"):
        evaluate(data, "test", Bm25(), among=read_candidates(data, ["dev"]), cache=cache)


def test_a_file_lists_ids_of_the_corpus_or_of_tools(tmp_path: Path) -> None:
    data = halves()
    named = replace(data.tools[0], meta={"corpus_id": "first row"})
    data = replace(data, tools=[named, *data.tools[1:]])
    path = tmp_path / "ids.txt"
    for first in ("first row", named.id):
        path.write_text(f"{first}\n  {data.tools[1].id} \n")
        assert read_candidates(data, [str(path)]).ids == {named.id, data.tools[1].id}


def test_the_command_that_repeats_it_names_the_candidates(tmp_path: Path) -> None:
    command = command_line("toolbench", "test", "bm25", among=["train", str(tmp_path / "ids.txt")])
    assert command == "toolscout evaluate toolbench --split test --retriever bm25 --among train --among ids.txt"
