"""The minimal pairs are what they say, and stay as they were frozen."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import Any

import pytest

from studies.need_measures import PAIRS
from toolscout.data.dataset import Dataset, request_digest
from toolscout.data.locate import find_dataset

FROZEN = "9da0c080e4521012853ee4aad80ff757090e51984f29e1da91d89e76d8624df0"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def test_they_are_as_they_were_frozen() -> None:
    assert hashlib.sha256(PAIRS.read_bytes()).hexdigest() == FROZEN


def test_a_hundred_pairs_of_one_that_needs_a_tool_and_one_that_does_not(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 200
    assert all(row.keys() == {"id", "pair", "text", "need", "domain"} for row in rows)
    pairs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        pairs.setdefault(row["pair"], []).append(row)
    assert len(pairs) == 100
    for pair in pairs.values():
        assert sorted(row["need"] for row in pair) == [False, True]
        assert len({row["domain"] for row in pair}) == 1
    assert len({row["id"] for row in rows}) == len({request_digest(row["text"]) for row in rows}) == 200


def test_the_two_of_a_pair_share_words_and_neither_is_told_by_its_length(rows: list[dict[str, Any]]) -> None:
    needed = {row["pair"]: row["text"] for row in rows if row["need"]}
    other = {row["pair"]: row["text"] for row in rows if not row["need"]}
    shared = [
        len(words(text) & words(other[pair])) / min(len(words(text)), len(words(other[pair])))
        for pair, text in needed.items()
    ]
    assert sum(shared) / 100 > 0.5
    assert min(shared) > 0.1
    longer = sum(len(text) > len(other[pair]) for pair, text in needed.items())
    assert 30 <= longer <= 70


def test_they_vary_in_domain_register_and_construction(rows: list[dict[str, Any]]) -> None:
    domains = Counter(row["domain"] for row in rows)
    assert len(domains) >= 25
    assert max(domains.values()) <= 10
    for needs in (True, False):
        texts = [row["text"] for row in rows if row["need"] is needs]
        assert 25 <= sum(text[0].islower() for text in texts) <= 75
        assert 25 <= sum(text.endswith("?") for text in texts) <= 75
        assert max(Counter(words(text.split()[0]).pop() for text in texts if words(text.split()[0])).values()) <= 25
        assert min(map(len, texts)) < 25
        assert max(map(len, texts)) > 120


def test_no_request_of_the_bundled_benchmark_is_among_them(rows: list[dict[str, Any]]) -> None:
    bundled = {request_digest(text) for text in Dataset.load(find_dataset("bundled")).requests.values()}
    assert not bundled & {request_digest(row["text"]) for row in rows}
