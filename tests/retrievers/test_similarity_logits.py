"""Documents beside a language model that writes ids of several tokens: exact, and of use to new tools."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.toy_language import Ids, ToyReading, ToyTable, catalogues, log_chances, trie_of
from tests.retrievers.generators import opened
from tests.retrievers.scenes import scenes
from toolscout.core.answer import Allowed
from toolscout.core.scope import Scope
from toolscout.models.decoding.constrained import best
from toolscout.retrievers.generative.base import choose
from toolscout.retrievers.generative.similarity_logits import CachedReading, IdOrder
from toolscout.retrievers.provenance import TrainingSet

pytestmark = pytest.mark.slow

DATA = scenes()
SEEDS = st.integers(0, 10**6)


def by_hand(reading: ToyReading, table: ToyTable, ids: Ids, scores: dict[str, float], owner: int) -> dict[str, float]:
    """Each tool's score, where every token also counts the best of the tools under it."""
    found = {}
    for key, tokens in ids.items():
        found[key] = 0.0
        for depth, token in enumerate(tokens):
            under: dict[int, float] = {}
            for other, path in ids.items():
                if path[:depth] == tokens[:depth]:
                    under[path[depth]] = max(under.get(path[depth], -np.inf), scores[other])
            allowed = sorted(under)
            logits = table.logits(reading.state(owner, tokens[:depth])[None], np.array(allowed))[0]
            total = [logit + under[one] for logit, one in zip(logits, allowed, strict=True)]
            found[key] += log_chances(np.array(total))[allowed.index(token)]
    return found


@settings(max_examples=40, deadline=None)
@given(ids=catalogues(), seed=SEEDS, k=st.integers(1, 10), data=st.data())
def test_rankings_are_those_of_brute_force_whoever_asks(ids: Ids, seed: int, k: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    vectors = {key: rng.normal(size=4).astype(np.float32) for key in ids}
    needed = data.draw(st.sets(st.sampled_from(sorted(ids))))
    permitted = data.draw(st.sets(st.sampled_from(sorted(ids))))
    requests = [rng.normal(size=4).astype(np.float32) for _ in range(2)]
    options: Any = SimpleNamespace(similarity=3.0, new_bonus=2.0)
    logit_bonus = IdOrder(ids, vectors, needed, 0).logits(requests, options)
    reading, table, trie = ToyReading(2, seed), ToyTable(seed), trie_of(ids)
    whole = best(reading, table, trie, len(ids), logit_bonus=logit_bonus)
    some = best(
        CachedReading(reading), table, trie, k, logit_bonus=logit_bonus, pruned=trie.pruned(permitted.__contains__)
    )
    for owner, (all_tools, few) in enumerate(zip(whole, some, strict=True)):
        scores = {key: 3 * float(vectors[key] @ requests[owner]) + 2 * (key not in needed) for key in ids}
        expected = by_hand(reading, table, ids, scores, owner)
        assert dict(all_tools) == pytest.approx(expected, abs=1e-4)
        assert few == [one for one in all_tools if one[0] in permitted][:k]


@pytest.mark.parametrize("name", ["toolweaver", "toolgen-hierarchical"])
def test_it_is_chosen_on_dev_saved_and_finds_what_comes_later(name: str) -> None:
    retriever = opened(name)
    assert retriever.needed == {tool_id for few in DATA.split("train").gold for tool_id in few}
    gone = sorted(retriever.needed)[:6]
    newcomer = replace(next(tool for tool in DATA.tools if tool.id == gone[0]), name="another_one")
    retriever.add([newcomer], {newcomer.digest(): retriever.encoder.encode([newcomer.document()])[0]})
    request = newcomer.document()
    place = {}
    for similarity in (0.0, 200.0):
        retriever.options = replace(retriever.options, similarity=similarity, new_bonus=5.0 if similarity else 0.0)
        ranking = retriever.rank([request], len(retriever))[0].ids()
        place[similarity] = ranking.index(newcomer.id)
        few = retriever.rank([request], 3, Scope(Allowed.of(ids=ranking[4:])))[0]
        assert few.ids() == ranking[4:7]
    assert place[200.0] == 0 <= place[0.0]
    retriever.options = replace(retriever.options, similarity=None, new_bonus=None)
    choose(retriever, [TrainingSet(DATA, dev="dev")])
    chosen = retriever.options.similarity
    measured = {}
    for similarity in (0.0, chosen):
        retriever.options = replace(retriever.options, similarity=similarity)
        asked = DATA.split("dev")
        ranked = retriever.rank([text for _, text in asked.requests], 5)
        found = [set(ranking.ids()) for ranking in ranked]
        measured[similarity] = sum(len(one & set(gold)) for one, gold in zip(found, asked.gold, strict=True))
    assert measured[chosen] >= measured[0.0]
