"""memory: borrows from past requests, forgets what is gone, and lets no source take over."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toys import WORDS, HashedWords, catalogue, examples
from toolscout.core.answer import Allowed, ExactName, Example, Hit, PastRequest, Similarity
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.errors import BadModel
from toolscout.retrievers.memory import Memory, MemoryOptions

LION = Tool("zoo", "feed_lion", "gives a lion its dinner")
TIGER = Tool("zoo", "feed_tiger", "gives a tiger its dinner")
PLAIN = Tool("farm", "milk_cow", "gets milk from a cow")
HUNGRY = "somebody roars because of hunger"
THEN = datetime(2025, 6, 1, tzinfo=UTC)


def memory(**options: float) -> Memory:
    made = Memory(replace(MemoryOptions(), **options), HashedWords())
    made.add([*catalogue(60), LION, TIGER, PLAIN])
    return made


def used(request: str, tool: Tool, source: str = "", days: float = 0, tenant: str = "") -> Example:
    return Example(request, (tool.id,), source=source, tenant=tenant, time=THEN + timedelta(days=days))


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.tool_id for hit in hits]


def score(made: Memory, request: str, tool: Tool) -> float:
    return next(hit.score for hit in made.search([request], 100)[0] if hit.tool_id == tool.id)


def bonus(made: Memory, request: str, tool: Tool) -> float:
    """What memory adds to the cosine of the document."""
    vectors = HashedWords().encode([request, tool.document()]).astype(np.float16).astype(np.float64)
    return score(made, request, tool) - float(HashedWords().encode_request(request) @ vectors[1])


def naive(made: Memory, request: str, learned: Sequence[Example], tools: Sequence[Tool]) -> Mapping[str, float]:
    """The scores, written down again as they are documented: for fewer requests than one source may fill places."""
    encoder, options = HashedWords(), made.options
    query = encoder.encode_request(request).astype(np.float64)

    def cosine(text: str) -> float:
        return float(query @ encoder.encode_request(text).astype(np.float16).astype(np.float64))

    entries: dict[tuple[str, str], tuple[dict[str, int], datetime]] = {}
    for example in sorted(learned, key=lambda example: example.time):
        if example.used or example.rejected:
            key = (example.tenant or "source " + example.source, example.request)
            said = dict.fromkeys(example.rejected, -1) | dict.fromkeys(example.used, 1)
            entries[key] = (entries.get(key, ({}, None))[0] | said, example.time)
    newest = max(when for _, when in entries.values())
    near = {key: cosine(key[1]) for key in entries}
    order = sorted(near, key=lambda key: (-near[key], -entries[key][1].timestamp()))
    ages = {key: (newest - entries[key][1]).total_seconds() / 86400 for key in order}
    weights = {
        key: near[key] ** options.power * math.exp(-math.log(2) * ages[key] / options.half_life)
        for key in order
        if max(0, near[key]) ** options.power > 0.01
    }
    said: dict[tuple[str, str], float] = {}
    for source in {source for source, _ in weights}:
        own = [key for key in weights if key[0] == source]
        placed = {key: weights[key] / place for place, key in enumerate(own, 1)}
        voice = min(sum(placed.values()), 1.5 * max(weights[key] for key in own)) / sum(placed.values())
        said |= {key: weight * voice for key, weight in placed.items()}
    total = sum(weight / place for place, weight in enumerate(weights.values(), 1))
    scores = {}
    for tool in tools:
        x = sum(total * said[key] / sum(said.values()) * entries[key][0].get(tool.id, 0) for key in weights)
        scores[tool.id] = cosine(tool.document()) + options.votes * x / (1 + abs(x))
    return scores


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5))
def test_scores_are_what_is_documented(seed: int, words: list[str]) -> None:
    tools, learned = catalogue(60), examples(40, seed)
    made = Memory(MemoryOptions(neighbours=200, share_feedback=True), HashedWords())
    made.add(tools)
    made.learn(learned)
    request = " ".join(words)
    found = {hit.tool_id: hit.score for hit in made.search([request], 60)[0]}
    wanted = naive(made, request, learned, tools)
    assert found.keys() == wanted.keys()
    assert list(found.values()) == pytest.approx([wanted[tool_id] for tool_id in found], abs=1e-5)


def test_it_learns_from_feedback_and_can_be_trained() -> None:
    assert memory().learns
    assert memory().trainable


def test_a_past_request_brings_its_tool_to_the_front_at_once() -> None:
    made = memory()
    assert made.search([HUNGRY], 1)[0][0].tool_id != LION.id
    made.learn([used(HUNGRY, LION)])
    hit = made.search(["somebody roars out of hunger"], 1)[0][0]
    assert hit.tool_id == LION.id
    assert [type(reason) for reason in hit.reasons] == [Similarity, PastRequest]
    past = hit.reasons[1]
    assert isinstance(past, PastRequest)
    assert past.request == HUNGRY
    assert 0.5 < past.cosine < 1
    assert made.learned() == 1


def test_a_request_like_none_before_is_a_search_over_documents() -> None:
    made, plain = memory(), memory()
    made.learn([used(HUNGRY, LION), used("report every order", PLAIN)])
    request = "gets milk from some cow"
    assert made.search([request], 60) == plain.search([request], 60)


def test_a_tool_that_nobody_used_is_found_by_its_document() -> None:
    made = memory()
    made.learn([used(f"create the {word} of a user", LION) for word in WORDS])
    made.add([Tool("zoo", "wash_whale", "washes a whale in the sea")])
    assert ids(made.search(["washes a whale"], 1)[0]) == ["zoo/wash_whale"]


def test_rejected_tools_fall() -> None:
    made = memory()
    request = "gives dinner"
    first = made.search([request], 2)[0]
    assert set(ids(first)) == {LION.id, TIGER.id}
    made.learn([Example(request, rejected=(first[0].tool_id,), time=THEN)])
    assert made.search([request], 1)[0][0].tool_id == first[1].tool_id
    assert first[0].tool_id not in ids(made.search([request], 2)[0])
    restricted = made.search([request], 2, Scope(Allowed.of(["zoo"])))[0]
    assert ids(restricted) == [first[1].tool_id, first[0].tool_id]
    assert not any(isinstance(reason, PastRequest) for reason in restricted[1].reasons)


def test_a_removed_tool_takes_its_votes_with_it_until_it_comes_back() -> None:
    made = memory()
    made.learn([used(HUNGRY, LION), used(HUNGRY + " today", TIGER)])
    before = made.search([HUNGRY], 63)[0]
    made.remove([LION.id])
    found = made.search([HUNGRY], 63)[0]
    assert LION.id not in ids(found)
    assert found[0].tool_id == TIGER.id
    made.add([LION])
    assert made.search([HUNGRY], 63)[0] == before


def test_requests_whose_tools_are_gone_take_nobodys_place() -> None:
    made = memory(neighbours=3)
    made.learn([used(f"{HUNGRY} number{n}", LION) for n in range(50)])
    made.learn([used(HUNGRY + " again and again", TIGER)])
    made.remove([LION.id])
    assert bonus(made, HUNGRY, TIGER) > 0.1


def test_a_changed_tool_keeps_its_votes() -> None:
    made = memory()
    made.learn([used(HUNGRY, LION)])
    made.add([Tool("zoo", "feed_lion", "something else entirely")])
    assert made.search([HUNGRY], 1)[0][0].tool_id == LION.id


def test_the_same_request_of_a_source_counts_once_and_the_last_word_stands() -> None:
    made, once = memory(), memory()
    once.learn([used(HUNGRY, LION, days=1)])
    made.learn([used(HUNGRY.upper() if n % 2 else f"  {HUNGRY} ", LION, days=n / 100) for n in range(101)])
    assert made.learned() == 1
    assert score(made, HUNGRY, LION) == pytest.approx(score(once, HUNGRY, LION))
    made.learn([used(HUNGRY, TIGER, days=2)])  # a second tool for the same request
    assert bonus(made, HUNGRY, LION) > 0.1
    made.learn([Example(HUNGRY, rejected=(LION.id,), time=THEN + timedelta(days=3))])
    assert bonus(made, HUNGRY, LION) < -0.1
    made.learn([used(HUNGRY, LION, days=1)])  # said again, but not after the rejection
    assert bonus(made, HUNGRY, LION) < -0.1
    assert bonus(made, HUNGRY, TIGER) > 0.1


def flood(count: int) -> list[Example]:
    """One source that says the same in very many ways, each near to the request."""
    return [used(f"{HUNGRY} {'so' if n % 2 else 'very'} number{n}", PLAIN, "noisy") for n in range(count)]


def test_a_noisy_source_is_outvoted_by_two_others() -> None:
    made = memory()
    made.learn(flood(1000))
    assert made.search([HUNGRY], 1)[0][0].tool_id == PLAIN.id
    others = [used(f"{HUNGRY} {word} {word}ly", LION, f"source{word}") for word in ("one", "two")]
    made.learn(others)
    assert made.search([HUNGRY], 1)[0][0].tool_id == LION.id
    assert bonus(made, HUNGRY, LION) > bonus(made, HUNGRY, PLAIN) > 0


def test_a_noisy_source_takes_no_place_from_others() -> None:
    made = memory()
    made.learn([*flood(1000), *(used(f"{HUNGRY} {word} {word} {word}", LION, "mine") for word in ("one", "two"))])
    assert bonus(made, HUNGRY, LION) > 0.2  # though a thousand are nearer


def test_sources_that_agree_are_worth_what_one_is() -> None:
    one, many = memory(), memory()
    one.learn([used(f"{HUNGRY} {n}", LION, "alone") for n in range(8)])
    many.learn([used(f"{HUNGRY} {n}", LION, f"source{n}") for n in range(8)])
    assert bonus(many, HUNGRY, LION) == pytest.approx(bonus(one, HUNGRY, LION), abs=1e-6)


def test_a_source_with_little_to_say_silences_nobody() -> None:
    alone, beside = memory(), memory()
    alone.learn(flood(50))
    beside.learn([*flood(50), used("somebody calls the weather report and deletes mail", LION, "other")])
    assert bonus(beside, HUNGRY, PLAIN) > 0.95 * bonus(alone, HUNGRY, PLAIN)


def test_the_voice_of_one_source_is_bounded() -> None:
    made = memory()
    made.learn(flood(300))
    assert bonus(made, HUNGRY, PLAIN) < made.options.votes


def test_one_source_alone_fills_every_place_and_a_far_one_takes_none() -> None:
    alone, beside = memory(), memory()
    alone.learn(flood(50))
    beside.learn([*flood(50), used("delete the weather report", LION, "other")])
    assert score(beside, HUNGRY, PLAIN) == score(alone, HUNGRY, PLAIN)


def test_old_requests_fade_by_the_newest_one_not_by_the_clock() -> None:
    made = memory(half_life=10)
    made.learn([used(HUNGRY, LION)])
    fresh = bonus(made, HUNGRY, LION)
    made.learn([used("get weather", PLAIN, days=10)])
    faded = bonus(made, HUNGRY, LION)
    assert fresh == pytest.approx(1 / 2, abs=1e-3)
    assert faded == pytest.approx(0.5 / 1.5, abs=1e-3)


def test_a_clock_that_is_ahead_makes_nobody_old() -> None:
    made = memory(half_life=1)
    made.learn([replace(used(HUNGRY, LION), time=datetime.now(UTC))])
    made.learn([replace(used("get weather", PLAIN), time=datetime(2199, 1, 1))])
    assert bonus(made, HUNGRY, LION) == pytest.approx(0.5, abs=1e-2)


def test_what_a_tenant_asked_is_not_shown_to_others() -> None:
    made = memory(share_feedback=True)
    made.learn([used(HUNGRY, LION, tenant="ann")])
    reason = made.search([HUNGRY], 1)[0][0].reasons[-1]
    assert isinstance(reason, PastRequest)
    assert reason.request == ""
    assert "ann" not in str(reason)


def test_exact_names_come_before_votes() -> None:
    made = memory()
    made.learn([used("please run feed_tiger", LION, f"source{n}") for n in range(9)])
    hit = made.search(["please run feed_tiger"], 1)[0][0]
    assert hit.tool_id == TIGER.id
    assert isinstance(hit.reasons[0], ExactName)


def test_only_so_many_are_kept_and_the_oldest_leave() -> None:
    made = memory(keep=3)
    for n in range(3000):  # so many that the table is written anew on the way
        made.learn([used(f"{WORDS[n % 16]} number{n}", LION)])
        if n == 2990:
            made.learn([used(HUNGRY, TIGER)])
        elif n > 2990:
            made.learn([used(HUNGRY, TIGER, days=n / 1000)])  # spoken of again, so it stays
    assert made.learned() == 3
    assert bonus(made, HUNGRY, TIGER) > 0.1
    assert bonus(made, f"{WORDS[2999 % 16]} number2999", LION) > 0.1
    assert bonus(made, f"{WORDS[2990 % 16]} number2990", LION) == pytest.approx(0, abs=1e-3)


def test_examples_that_say_nothing_are_ignored() -> None:
    made = memory()
    made.learn([])
    made.learn([Example("nothing was used"), Example("   ", used=(LION.id,)), Example(HUNGRY, used=("no/such",))])
    assert made.learned() == 1
    assert made.search([HUNGRY], 60) == memory().search([HUNGRY], 60)


def test_vectors_that_are_given_are_not_made_again() -> None:
    made = memory()
    encoder = HashedWords()

    class Silent(HashedWords):
        def encode_request(self, text: str) -> np.ndarray:
            raise AssertionError("encoded again")

    made._encoder = Silent()
    made.learn([used(HUNGRY, LION)], {HUNGRY: encoder.encode_request(HUNGRY)})
    made._encoder = encoder
    assert made.search([HUNGRY], 1)[0][0].tool_id == LION.id


def test_everything_that_was_learned_is_saved(tmp_path: Path) -> None:
    made = memory(keep=70, half_life=50, share_feedback=True)
    made.learn([*examples(90), *flood(20)])
    made.remove([TIGER.id])
    made.save(tmp_path / "model")
    requests = [HUNGRY, *(example.request for example in examples(90)[::7])]
    loaded = Memory.load(tmp_path / "model", HashedWords())
    assert loaded.options == made.options
    assert loaded.learned() == made.learned() == 70
    assert loaded.search(requests, 20) == made.search(requests, 20)
    for one in (loaded, made):
        one.learn([used(HUNGRY, LION, "late", days=400)])
    assert loaded.search(requests, 20) == made.search(requests, 20)
    assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix not in (".json", ".npy", "")]


@pytest.mark.parametrize("damage", ["missing", "nonsense", "short"])
def test_a_damaged_memory_says_so(tmp_path: Path, damage: str) -> None:
    made = memory()
    made.learn(examples(20))
    made.save(tmp_path)
    path = tmp_path / "requests" / "requests.json"
    record = json.loads(path.read_text())
    path.unlink()
    if damage != "missing":
        path.write_text("[1]" if damage == "nonsense" else json.dumps(record | {"entries": record["entries"][1:]}))
    with pytest.raises(BadModel, match="again"):
        Memory.load(tmp_path, HashedWords())


@pytest.mark.parametrize("wrong", [{"neighbours": 0}, {"power": 0}, {"votes": -1}, {"share": 0}, {"share": 2}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadModel, match="neighbours"):
        replace(MemoryOptions(), **wrong)


@pytest.mark.timing
def test_a_hundred_thousand_requests_are_searched_in_milliseconds() -> None:
    made = memory()
    random = np.random.default_rng(0)
    vectors = random.standard_normal((100_000, HashedWords.dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    learned = [used(f"request {n}", LION, f"source{n % 50}") for n in range(100_000)]
    made.learn(learned, {example.request: vector for example, vector in zip(learned, vectors, strict=True)})
    made.search([HUNGRY], 5)
    started = time.perf_counter()
    for n in range(5):
        made.search([f"{HUNGRY} {n}"], 5)
    assert (time.perf_counter() - started) / 5 < 0.25  # 10 ms on an idle core; machines that test are not idle
