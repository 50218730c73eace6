"""The study of other languages: what its datasets are made of."""

from __future__ import annotations

from studies import languages


def test_half_of_the_goals_describe_a_program() -> None:
    goals = {"b": ["eins", "zwei", "drei", "eins"], "a": ["allein"], "c": ["vier", "fünf"]}
    data = languages.own_dataset("de", goals)
    assert data is not None
    assert [tool.description for tool in data.tools] == ["eins", "vier"]
    assert data.requests == {"de-0": "zwei", "de-1": "drei", "de-2": "fünf"}
    assert data.qrels["test"] == {"de-0": ("program/t0",), "de-1": ("program/t0",), "de-2": ("program/t1",)}
    assert languages.own_dataset("de", {"a": ["allein"]}) is None


def test_requests_are_thinned_evenly() -> None:
    goals = {str(number): [f"{number} a", f"{number} b"] for number in range(2 * languages.MOST_REQUESTS + 1)}
    data = languages.own_dataset("xx", goals)
    assert data is not None
    assert languages.MOST_REQUESTS / 2 < len(data.requests) <= languages.MOST_REQUESTS
