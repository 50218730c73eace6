"""The bundled benchmark is what it says, and stays as it was frozen."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import toolscout
from toolscout.core.tool import split_words
from toolscout.data.dataset import Dataset

FOLDER = Path(toolscout.__file__).parent / "bundled"
# The digest of requests and gold; the searched text may follow Tool.document().
FROZEN = "af4b763cd57c99ffc3f9c8ca8e1ad370f1e0fbfbfd977eb74b8e088987f3d810"
RARE = 5  # a word in at most so many documents tells which tool is meant
STOP = set(
    """
    a about above after again against all also am an and any are aren as at be because been before being below
    between both but by can cannot could couldn d did didn do does doesn doing don done down during each few for
    from further get give go going got had has hasn have haven having he her here hers him his how i if in into
    is isn it its itself just ll let like m make may me might more most much must my myself need no nor not now
    of off ok okay on once one only or other our ours out over own please put re s same see shall she should so
    some such t than that the their theirs them then there these they thing this those through to too two under
    until up upon us use ve very want was wasn we well were what when where which while who whom whose why will
    with without won would wouldn yes yet you your yours le la les un une des de du et en pour sur dans est au
    aux ce cette il elle je tu nous vous mon ma mes der die das ein eine und oder mit für von zu im ist bitte
    mir ich du wir den dem el los las una y o por para con del al es mi tu example
    """.split()
)


@pytest.fixture(scope="module")
def bundled() -> Dataset:
    return Dataset.load(FOLDER)


def singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def content_words(text: str) -> set[str]:
    found = {word.lower() for word in [*re.findall(r"[^\W_]+", text), *split_words(text)]}
    return {singular(word) for word in found if word not in STOP and len(word) > 1 and not word.isdigit()} - STOP


def test_it_has_the_promised_size(bundled: Dataset) -> None:
    assert len(bundled.tools) >= 300
    assert len({tool.namespace for tool in bundled.tools}) >= 30
    kinds = Counter(bundled.kind(request) for request in bundled.requests)
    assert kinds["use"] >= 200
    assert kinds["no_tool"] >= 60
    assert kinds["nothing_fits"] >= 40
    golds = [gold for split in ("dev", "test") for gold in bundled.split(split).gold]
    assert {len(gold) for gold in golds} == {1, 2, 3, 4}
    assert set(bundled.splits) == {"dev", "test"}


def test_dev_and_test_share_no_request(bundled: Dataset) -> None:
    assert not set(bundled.request_digests("dev")) & set(bundled.request_digests("test"))


def test_every_tool_has_a_full_valid_schema(bundled: Dataset) -> None:
    for tool in bundled.tools:
        Draft202012Validator.check_schema(dict(tool.input_schema))
        assert tool.description, tool.id
        for name, parameter in tool.input_schema.get("properties", {}).items():
            assert parameter.get("description"), f"{tool.id}: {name}"


def test_near_duplicates_make_it_hard(bundled: Dataset) -> None:
    names = Counter("_".join(split_words(tool.name)).lower() for tool in bundled.tools)
    assert {"search_issues", "get_issue", "send_message"} <= {name for name, count in names.items() if count > 1}


def test_requests_are_not_paraphrases_of_the_documents(bundled: Dataset) -> None:
    documents = {tool.id: content_words(tool.document()) for tool in bundled.tools}
    spaces = {
        tool.id: {singular(word.lower()) for word in [tool.namespace, *split_words(tool.namespace)]}
        for tool in bundled.tools
    }
    frequency = Counter(word for words in documents.values() for word in words)
    shared = []
    for split in ("dev", "test"):
        part = bundled.split(split)
        for (_, text), gold in zip(part.requests, part.gold, strict=True):
            known = set().union(*(documents[tool] for tool in gold)) - set().union(*(spaces[tool] for tool in gold))
            shared.append(sum(frequency[word] <= RARE for word in content_words(text) & known))
    assert max(shared) <= 1
    assert sum(shared) / len(shared) < 0.3


def test_it_is_as_it_was_frozen() -> None:
    digest = hashlib.sha256()
    for name in ("queries.jsonl", "qrels/dev.tsv", "qrels/test.tsv"):
        # When it was frozen, what a right answer is stood under another key.
        digest.update((FOLDER / name).read_bytes().replace(b'"metadata": {"expects":', b'"metadata": {"kind":'))
    assert digest.hexdigest() == FROZEN


def test_the_searched_text_is_the_documents(bundled: Dataset) -> None:
    rows = [json.loads(line) for line in (FOLDER / "corpus.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == [tool.document() for tool in bundled.tools]
