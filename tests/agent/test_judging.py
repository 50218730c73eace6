"""ToolEval's judging: the arithmetic of SoPR and SoWR, with a scripted judge and numbers worked out by hand."""

from __future__ import annotations

import json

import pytest

from toolscout.agent.episode import Episode, Step
from toolscout.agent.judging import PassRate, pass_rate, win_rate
from toolscout.errors import BadRequest
from toolscout.llm.scripted import Scripted


def episode(answer: str, request: str = "rain?") -> Episode:
    step = Step("w/rain", "I look", {"city": "Rome"}, True, called=True, ok=True, observation="x" * 9_000)
    return Episode(request, (step,), "answered", answer)


def judge(key: str, *said: str) -> Scripted:
    return Scripted([json.dumps({key: one}) for one in said])


def test_the_pass_rate_is_the_mean_over_the_times() -> None:
    solved, unsolved = "solved", "unsolved"
    llm = judge("status", solved, solved, unsolved, solved, unsolved, unsolved)
    found = pass_rate(llm, [episode("a"), episode("b")])
    assert found.statuses == ((solved, solved, unsolved), (solved, unsolved, unsolved))
    assert found.rates == [1.0, 0.5, 0.0]
    assert found.rate == 0.5
    assert found.deviation == pytest.approx((1 / 6) ** 0.5)
    assert found.passed() == [True, False]
    assert [one[1].content for one in llm.asked] == ["Request: rain?\nAnswer: a", "Request: rain?\nAnswer: b"]


def test_an_unsure_judge_sees_the_trace_once() -> None:
    llm = judge("status", "unsure", "solved", "unsure", "unsolved", "unsure")
    found = pass_rate(llm, [episode("a")])
    assert found.statuses == (("unsolved", "solved", "unsure"),)
    assert (found.rate, found.passed()) == (0.5, [None])
    assert [len(one[1].content) < 100 for one in llm.asked] == [True, False]
    assert llm.asked[1][1].content.endswith("Answer (answered): a")
    assert len(llm.asked[1][1].content) < 8_100


def test_who_gives_no_answer_is_unsolved_and_not_judged() -> None:
    silent = Episode("rain?", (), "step_limit")
    gave_up = Episode("rain?", (), "gave_up", "I cannot")
    llm = judge("status", "solved", "solved", "solved")
    found = pass_rate(llm, [silent, gave_up, episode("a")])
    assert (found.rate, found.unjudged, len(llm.asked)) == (pytest.approx(1 / 3), 0, 1)


def test_a_judgement_that_is_missing_counts_as_unsolved() -> None:
    found = pass_rate(Scripted(["what?"]), [episode("a")])
    assert (found.rate, found.unjudged) == (0.0, 3)
    with pytest.raises(BadRequest, match="no episode"):
        pass_rate(Scripted([]), [])


def test_the_win_rate_counts_wins_alone() -> None:
    first = [episode(text, text) for text in "abcdef"]
    second = [*(episode(text.upper(), text) for text in "abcde"), first[5]]
    passed = PassRate((("solved",), ("unsolved",), ("solved",), ("solved",), ("unsure",), ("solved",)))
    other = PassRate((("unsolved",), ("solved",), ("solved",), ("solved",), ("unsolved",), ("solved",)))
    # a and b are decided by who passed; c, d and e are compared, in both orders; f is the same twice.
    llm = judge("better", "A", "A", "B", "B", "A", "A")
    found = win_rate(llm, first, second, passed, other)
    assert found.verdicts == ("first", "second", "first", "tie", "second", "tie")
    assert (found.rate, found.ties) == (pytest.approx(2 / 6), pytest.approx(2 / 6))
    straight, swapped = llm.asked[0][1].content, llm.asked[3][1].content
    assert straight.index("): c") < straight.index("): C")
    assert swapped.index("): C") < swapped.index("): c")


def test_agents_with_different_requests_are_not_compared() -> None:
    one = PassRate((("solved",),))
    with pytest.raises(BadRequest, match="different requests"):
        win_rate(Scripted([]), [episode("a")], [episode("a", "wind?")], one, one)
