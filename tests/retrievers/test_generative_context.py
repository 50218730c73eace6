"""request_tokens above what the language model reads: requests are cut in training and search, and that is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.retrievers.generators import base, made, opened
from tests.retrievers.scenes import scenes
from toolscout.retrievers.generative.base import IdPlan
from toolscout.retrievers.generative.fit import IdExamples, IdTrainingData
from toolscout.retrievers.provenance import TrainingSet

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="training needs the extra 'train'")
pytest.importorskip("onnx", reason="serving a language model needs the extra 'encoder'")

LONG = "find the weather order of the map and report it " * 2000


@pytest.mark.parametrize("name", ["toolgen", "toolgen-sets", "toolgen-semantic", "toolweaver-sets"])
def test_a_long_request_is_cut_to_what_the_model_reads(name: str) -> None:
    retriever = opened(name)
    retriever.options = replace(retriever.options, request_tokens=100_000)
    rankings = retriever.rank([LONG], 5)
    assert len(rankings[0].pairs) == 5
    if retriever.options.sets:
        assert len(retriever.as_many(rankings)) == 1
    assert len(retriever.prompter().ask(LONG)) < 512
    assert [len(ranking.pairs) for ranking in retriever.rank([LONG, "weather"], 3)] == [3, 3]


def test_training_cuts_requests_too_and_says_so(tmp_path: Path) -> None:
    retriever = made("toolgen-semantic", request_tokens=5000, epochs=1, base=str(base(max_position_embeddings=128)))
    report = retriever.fit([TrainingSet(scenes())], tmp_path)
    limit = retriever.prompter().limit
    assert limit < 128 - 25
    assert report.notes == (
        f"requests are cut after {limit} tokens, not after 5,000 (request_tokens): no more fit into the 128 that the "
        "language model reads",
    )
    assert retriever.search([LONG], 3)[0]


@pytest.mark.parametrize("sets", [True, False])
def test_lessons_with_many_tools_fit_into_the_context(sets: bool) -> None:
    retriever: Any = made("toolgen-sets" if sets else "toolgen-semantic", request_tokens=5000)
    size = 1 if sets else 20
    paths = {f"a/{number}": tuple(range(30 + number, 30 + number + size)) for number in range(40)}
    material: Any = IdTrainingData({}, {}, {}, [LONG, "weather"], [tuple(paths)] * 2, [], [])
    lessons = IdExamples(retriever, IdPlan(paths, retriever._special_rows, retriever._special_rows), material, [])
    cut, short = lessons.requests(0)
    assert len(short.tokens) < len(cut.tokens)
    ends = [cut.right[0][0] + (len(paths) * size if sets else size)]
    assert max(ends) < 512
