"""The tables of generation alone: no cosine in one column, the cosine in the other, the same requests for both."""

from __future__ import annotations

import pytest

from toolscout.papers import registry
from toolscout.papers.paper import Experiment, Table
from toolscout.retrievers import opening

SPLITS = ["test", "unseen_tool.test", "unseen_scene.test", "test", "test"]


def tables(method: str) -> list[Table]:
    return registry.find_tables(registry.PAPERS[method], "alone")


def of(ours: object) -> Experiment:
    assert isinstance(ours, Experiment)
    return ours


@pytest.mark.parametrize("method", ["toolgen", "toolweaver"])
def test_generation_alone_has_no_cosine(method: str) -> None:
    found = tables(method)
    assert [table.splits() for table in found] == [[split] for split in SPLITS]
    for table in found:
        published, own, *more = table.lines
        for one in (published.published, own.published, *(line.published for line in more)):
            made = opening.made(of(one).retriever, (), of(one).settings).options
            assert (of(one).retriever, made.similarity, made.new_bonus) == (method, 0.0, 0.0)
        assert opening.made(method, (), of(own.served).settings).options.similarity is None
        families = {of(one).train for one in (published.published, own.published, own.served)}
        assert families == {table.splits()[0].partition(".")[0] if "." in table.splits()[0] else "train"}


@pytest.mark.parametrize("method", ["toolgen", "toolweaver"])
def test_unseen_parts_have_an_encoder_that_has_not_seen_them(method: str) -> None:
    for table in tables(method):
        for line in table.lines:
            encoder = of(line.published).encoder
            if table.splits() == ["test"]:
                assert encoder is None
            else:
                assert encoder is not None
                assert f"{encoder.train}.test" == table.splits()[0]


def test_a_part_is_found_by_its_name() -> None:
    (table,) = registry.find_tables(registry.PAPERS["toolgen"], "alone, UltraTool")
    assert (table.id, table.part) == ("alone", "UltraTool")
