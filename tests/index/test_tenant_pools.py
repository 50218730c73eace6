"""One tenant's feedback never changes what another finds, is told, or reads; unless they share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toys import WORDS, HashedWords, catalogue, examples
from toolscout.core.answer import Example, Hit, PastRequest
from toolscout.core.scope import Scope
from toolscout.index.feedback_pool import FeedbackPool, merged
from toolscout.index.tenant_pools import TenantPools
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.centroid import Centroid, CentroidOptions
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.masstool import Masstool, MasstoolOptions
from toolscout.retrievers.memory import Memory, MemoryOptions

TOOLS = catalogue(60)
REQUESTS = ["create mail", "weather report map", "delete the old file"]


def memory(keep: int = 100_000, share_feedback: bool = False) -> Memory:
    return Memory(MemoryOptions(keep=keep, share_feedback=share_feedback), HashedWords())


def masstool(share_feedback: bool = False) -> Masstool:
    return Masstool(MasstoolOptions(share_feedback=share_feedback), HashedWords())


def centroid(share_feedback: bool = False) -> Centroid:
    return Centroid(CentroidOptions(share_feedback=share_feedback), HashedWords())


def hybrid(share_feedback: bool = False) -> Hybrid:
    return Hybrid(parts=[Bm25(), memory(share_feedback=share_feedback)])


MAKERS = {"memory": memory, "masstool": masstool, "centroid": centroid, "hybrid": hybrid}


def taught(made: Retriever, learned: Sequence[Example]) -> Retriever:
    made.add(TOOLS)
    made.learn(learned)
    return made


def found(made: Retriever, tenant: str) -> list[list[Hit]]:
    return made.search(REQUESTS, 60, Scope(tenant=tenant))


@pytest.mark.parametrize("kind", MAKERS)
def test_another_tenants_feedback_changes_nothing(kind: str) -> None:
    learned = examples(60)
    others = [replace(one, tenant="eve", time=one.time + timedelta(days=90)) for one in examples(60, 1)]
    before, after = taught(MAKERS[kind](), learned), taught(MAKERS[kind](), [*others, *learned, *others])
    for tenant in ("", "ann", "nobody"):
        assert found(after, tenant) == found(before, tenant)
    shared = taught(MAKERS[kind](share_feedback=True), [*others, *learned])
    assert found(shared, "ann") != found(before, "ann")
    assert found(shared, "ann")[0][0].tool_id == found(shared, "eve")[0][0].tool_id
    if kind != "centroid":
        assert found(before, "ann") != found(before, "")
        assert found(after, "eve") != found(before, "eve")


@pytest.mark.parametrize("kind", ["memory", "masstool", "hybrid"])
def test_turns_of_two_tenants_do_not_mix(kind: str) -> None:
    made = taught(MAKERS[kind](), examples(60))
    alone = {tenant: found(made, tenant) for tenant in ("ann", "bob", "")}
    for tenant in ("ann", "", "bob", "ann"):
        assert found(made, tenant) == alone[tenant]


def test_a_tenant_reads_its_own_requests_and_no_others() -> None:
    tool = TOOLS[0].id
    for shared in (False, True):
        made = taught(memory(share_feedback=shared), [Example("klaatu barada", (tool,), tenant="ann")])
        for tenant, wanted in (("ann", ["klaatu barada"]), ("eve", [""] if shared else [])):
            reasons = made.search(["klaatu barada"], 1, Scope(tenant=tenant))[0][0].reasons
            assert [reason.request for reason in reasons if isinstance(reason, PastRequest)] == wanted


def test_no_tenant_crowds_out_another() -> None:
    flood = [Example(f"flood {number}", (TOOLS[1].id,), tenant="eve") for number in range(50)]
    mine = [Example("klaatu barada", (TOOLS[0].id,), tenant="ann"), Example("shared nikto", (TOOLS[2].id,))]
    made = taught(memory(keep=5), [*mine, *flood])
    assert made.learned() == 5 + 2
    assert found(made, "ann") == found(taught(memory(), mine), "ann")


@pytest.mark.parametrize("kind", ["memory", "masstool"])
def test_tenants_stay_apart_when_saved(kind: str, tmp_path: Path) -> None:
    made = taught(MAKERS[kind](), examples(60))
    made.save(tmp_path)
    loaded = type(made).load(tmp_path, HashedWords())
    assert loaded.learned() == made.learned()
    for tenant in ("", "ann", "bob", "nobody"):
        assert found(loaded, tenant) == found(made, tenant)


def test_what_was_saved_together_is_taken_apart(tmp_path: Path) -> None:
    learned = examples(60)
    made = taught(memory(share_feedback=True), learned)
    made._pools.save(tmp_path)
    apart, encoder = TenantPools.load(tmp_path, 100), HashedWords()
    assert sorted(apart.keys()) == sorted(made._pools.keys())
    assert TenantPools.load(tmp_path, 3, shared=True).keys() == made._pools.keys()[-3:]
    for tenant in ("", "ann"):
        heard = apart.pools_for(tenant)
        near = heard.nearest(encoder.encode_request(REQUESTS[0]), 100, 1.0, -1.0, lambda entry: True)
        assert {one.entry.tenant for one in near} == {"", tenant}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 500), st.integers(1, 12), st.sampled_from([0.2, 0.5, 1.0]), st.sampled_from(WORDS))
def test_two_pasts_answer_as_one(seed: int, count: int, share: float, word: str) -> None:
    encoder, learned = HashedWords(), [one for one in examples(50, seed) if one.tenant != "bob"]
    vectors = encoder.encode([one.request for one in learned])
    whole, parts = FeedbackPool(100), [FeedbackPool(100), FeedbackPool(100)]
    whole.add(learned, vectors)
    for tenant, past in zip(("", "ann"), parts, strict=True):
        rows = [row for row, one in enumerate(learned) if one.tenant == tenant]
        past.add([learned[row] for row in rows], vectors[rows])
    asked = (encoder.encode_request(word), count, share, -1.0, lambda entry: len(entry.tools) > 1)
    both = [[(one.entry, pytest.approx(one.cosine)) for one in merged(pasts, *asked)] for pasts in (parts, [whole])]
    assert [entry for entry, _ in both[0]] == [entry for entry, _ in both[1]]


def test_times_and_vectors_of_an_empty_past() -> None:
    empty = TenantPools(3)
    empty.add([Example("", ("a/b",), time=datetime(2026, 1, 1, tzinfo=UTC))], np.ones((1, 4), dtype=np.float32))
    assert (len(empty), empty.keys(), empty.pools_for("").newest) == (0, [], float("-inf"))
