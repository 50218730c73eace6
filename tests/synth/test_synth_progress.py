"""Whatever takes long says how far it is."""

from __future__ import annotations

import pytest

from tests.synth.shop import TOOLS, asked, writer
from tests.toys import HashedWords, catalogue
from toolscout.core.arrays import Floats
from toolscout.core.tool import Tool
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.provenance import TrainingSet
from toolscout.synth import RequestWriter, SynthOptions, SynthSource, synthesise
from toolscout.synth.progress import each, named

WRITING = ["planning", "preparing prompts", "writing", "checking"]


class Told:
    """Keeps what is reported: for each stage how much was done, and of how much."""

    def __init__(self) -> None:
        self.stages: dict[str, list[tuple[int, int]]] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        assert stage not in list(self.stages)[:-1], "a stage that was done does not begin again"
        self.stages.setdefault(stage, []).append((done, total))

    def check(self) -> None:
        for calls in self.stages.values():
            done = [one for one, _ in calls]
            assert done == sorted(set(done))
            assert len({total for _, total in calls}) == 1
            assert calls[-1][0] == calls[-1][1]


def vectors_of(tools: list[Tool]) -> Floats:
    return HashedWords().encode([one.document() for one in tools])


def test_every_stage_of_every_try_is_reported_to_its_end() -> None:
    told, retriever = Told(), Bm25()
    retriever.add(TOOLS)
    source = SynthSource("shop", TOOLS, TrainingSet(asked(), "unseen_tool.train", ""))
    options, vectors = SynthOptions(round_trip=1, per_tool=2, tries=2, combinations=0.5), vectors_of(TOOLS)
    made = synthesise(source, RequestWriter(writer()), options, retriever=retriever, vectors=vectors, progress=told)
    assert made == synthesise(source, RequestWriter(writer()), options, retriever=retriever, vectors=vectors)
    assert made.dropped["not found again"]
    told.check()
    known = ["known requests: comparing meanings", "known requests: finding partners", "comparing meanings"]
    judged = [*WRITING, "round trip", "comparing"]
    again = [f"try 2: {stage}" for stage in judged[:-1]]  # of the second nothing is found again
    assert list(told.stages) == [*known, *judged, *again]
    assert told.stages["checking"] == [(12, 12)]


@pytest.mark.parametrize(
    ("kinds", "combinations", "stages"),
    [
        ({"meaning": 1.0}, None, ["comparing meanings", *WRITING]),
        ({"namespace": 1.0, "meaning": 0.0}, None, WRITING),
        ({"meaning": 1.0}, 0.0, WRITING),
    ],
)
def test_tools_are_compared_only_where_it_matters(
    kinds: dict[str, float], combinations: float | None, stages: list[str]
) -> None:
    told, tools = Told(), catalogue(30)
    options = SynthOptions(round_trip=0, filtered=False, per_tool=1, tries=1, kinds=kinds, combinations=combinations)
    source, vectors = SynthSource("many", tools), vectors_of(tools)
    synthesise(source, RequestWriter(writer(lambda _: "say it")), options, vectors=vectors, progress=told)
    told.check()
    assert list(told.stages) == stages


def test_many_are_reported_in_batches() -> None:
    told, tools = Told(), catalogue(700)
    options = SynthOptions(round_trip=0, combinations=0, per_tool=3, tries=1)
    synthesise(SynthSource("many", tools), RequestWriter(writer(lambda _: "say what I need")), options, progress=told)
    told.check()
    assert told.stages["planning"] == told.stages["checking"] == [(done, 2_100) for done in (1_024, 2_048, 2_100)]


def test_items_come_as_they_are_and_names_stand_before_stages() -> None:
    told = Told()
    assert list(each([], "none", told)) == []
    assert list(each("ab", "letters", named("try 2", told))) == ["a", "b"]
    assert list(each("ab", "letters", named("", None))) == ["a", "b"]
    assert told.stages == {"try 2: letters": [(2, 2)]}
    assert named("", told) is told
