"""log.export: recorded requests as a dataset. What is merged, what is dropped, what is kept beside the gold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from toolscout.core.answer import Example
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.feedback_export import Exported, export
from toolscout.data.splits import cut
from toolscout.errors import BadDataset
from toolscout.stores import open_store

TOOLS = [Tool("n", name, meta={"corpus_id": "0"}) for name in "abcd"]
START = datetime(2026, 1, 1, tzinfo=UTC)


def example(
    request: str, used: str = "", rejected: str = "", day: int = 0, tenant: str = "", source: str = ""
) -> Example:
    ids = tuple(f"n/{name}" for name in used), tuple(f"n/{name}" for name in rejected)
    return Example(request, *ids, tenant, source, START + timedelta(days=day))


def exported(*examples: Example) -> Exported:
    return export("log", TOOLS, examples)


def gold(done: Exported) -> dict[str, str]:
    """What each text uses, by the names of tools."""
    rows = done.dataset.qrels["log"]
    return {done.dataset.requests[key]: "".join(tool[-1] for tool in tools) for key, tools in rows.items()}


def test_requests_that_used_tools_are_labelled_and_the_others_are_kept_beside() -> None:
    done = exported(example("mail it", "ab"), example("hello"), example("find it", rejected="c"), example("call", "d"))
    assert gold(done) == {"mail it": "ab", "call": "d"}
    assert done.dataset.splits == ("log",)
    assert [text for _, text in done.dataset.goldless("log")] == ["hello", "find it"]
    assert (done.examples, done.blank, dict(done.gone)) == (4, 0, {})
    assert [tool.id for tool in done.dataset.tools] == ["n/a", "n/b", "n/c", "n/d"]


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (["a", "a", "a"], "a"),
        (["a", "b"], "ab"),
        (["ab", "a", "a"], "a"),
        (["ab", "ac"], "abc"),
        (["ab", "ab", "c"], "ab"),
        (["a", "b", "c"], "abc"),
        (["a", "b", "c", "a", "d"], "a"),
        (["a", "", ""], "a"),
        (["ax", "x", "x"], "a"),
        (["aa", "b", "b"], "b"),
    ],
)
def test_equal_texts_merge_to_the_tools_that_at_least_half_used_or_else_most(used: list[str], expected: str) -> None:
    texts = ["Mail  it", "mail it", "MAIL IT "]
    done = exported(*(example(texts[i % 3], tools, "d" * (not tools)) for i, tools in enumerate(used)))
    assert gold(done) == {"Mail  it": expected}


def test_what_else_is_known_is_in_the_metadata() -> None:
    done = exported(
        example("mail it", "a", "bc", 3, "ann", "cli"),
        example("Mail it", "ab", "d", 1, "bob", "web"),
        example("MAIL it", "", "ax", 2, "", "web"),
    )
    (about,) = done.dataset.metadata.values()
    assert about == {
        "split": "log",
        "times": 3,
        "first": (START + timedelta(days=3)).isoformat(),
        "last": (START + timedelta(days=2)).isoformat(),
        "tenants": ["ann", "bob"],
        "sources": ["cli", "web"],
        "rejected": ["n/c", "n/d"],
    }


def test_tools_that_are_gone_are_dropped_and_counted() -> None:
    done = exported(example("one", "ax"), example("two", "x"), example("three", "b", "y"))
    assert gold(done) == {"one": "a", "three": "b"}
    assert done.gone == {"n/x": 2, "n/y": 1}
    assert [text for _, text in done.dataset.goldless("log")] == ["two"]


def test_examples_without_text_are_counted_and_times_may_have_no_zone() -> None:
    naive = Example("one", ("n/a",), time=datetime(2026, 1, 1))
    done = exported(example(" \n", "a"), naive, example("One", "a"))
    assert (done.examples, done.blank, gold(done)) == (3, 1, {"one": "a"})


def test_nothing_to_export_says_how_to_record_something() -> None:
    with pytest.raises(BadDataset, match=r"nothing is recorded yet; use Scout\.feedback or: toolscout feedback"):
        exported()
    for useless in (example("a", "x"), example("a", rejected="a"), example("a"), example(" ", "a")):
        with pytest.raises(BadDataset, match="none of the 1 recorded requests used a tool that is still in the cat"):
            exported(useless)


def test_the_order_of_examples_changes_no_gold_and_no_id() -> None:
    examples = [example(f"text {i % 5}", "abcd"[i % 4]) for i in range(20)]
    one, two = exported(*examples).dataset, exported(*reversed(examples)).dataset
    assert one.qrels == two.qrels
    assert one.digest() == two.digest()


def test_a_store_goes_to_disk_and_on_to_splits(tmp_path: Path) -> None:
    with open_store(tmp_path / "tools.db") as store:
        store.add(TOOLS)
        store.add_feedback([example(f"text {i}", "abcd"[i % 4]) for i in range(40)] + [example("hello")])
        done = export("mine", store.tools(), (one for _, one in store.feedback()))
    done.dataset.save(tmp_path / "mine")
    read = Dataset.load(tmp_path / "mine")
    assert (read.requests, read.qrels, read.metadata) == (
        done.dataset.requests,
        done.dataset.qrels,
        done.dataset.metadata,
    )
    made = cut(read)
    assert sum(len(made.dataset.qrels[part]) for part in ("train", "dev", "test")) == 40
    assert len(made.unlabelled) == 1
