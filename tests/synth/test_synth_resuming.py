"""What was written before an interruption stays with what it was written for; what was paid for is not lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.synth.shop import TOOLS, asked, wordings, writer
from toolscout.errors import BadDataset, EndpointError
from toolscout.llm.base import Completion, Conversation
from toolscout.llm.endpoint import Endpoint
from toolscout.retrievers.provenance import TrainingSet
from toolscout.synth import RequestWriter, SynthOptions, SynthSource, synthesise

ALONE = SynthSource("shop", TOOLS)
PAIRS = SynthOptions(round_trip=0, filtered=False, sizes={"2": 1.0}, kinds={"meaning": 1.0}, per_tool=2)


def test_texts_are_not_given_to_the_tools_of_another_encoder(tmp_path: Path) -> None:
    first, second = (np.random.default_rng(seed).normal(size=(len(TOOLS), 4)).astype(np.float32) for seed in (0, 1))
    partial = tmp_path / "x.partial.jsonl"
    before = synthesise(ALONE, RequestWriter(writer(numbered=False)), PAIRS, vectors=first, partial=partial)
    model = writer(numbered=False)
    made = synthesise(ALONE, RequestWriter(model), PAIRS, vectors=second, partial=partial)
    anew = synthesise(ALONE, RequestWriter(writer(numbered=False)), PAIRS, vectors=second)
    assert made.requests == anew.requests != before.requests
    assert 0 < len(model.asked) < 12  # what is the same is not asked again
    idle = writer()
    assert synthesise(ALONE, RequestWriter(idle), PAIRS, vectors=first, partial=partial).requests == before.requests
    assert idle.asked == []


def test_texts_that_were_written_after_other_examples_are_written_again(tmp_path: Path) -> None:
    alike: dict[str, Any] = {"sizes": {"1": 1.0}, "kinds": {"chain": 1.0}, "styles": {"goal, no values": 1.0}}
    options = SynthOptions(round_trip=0, filtered=False, per_tool=1, examples=2, tries=1, **alike)
    partial, data = tmp_path / "x.partial.jsonl", asked()
    for split in ("unseen_tool.train", "unseen_tool.dev"):
        model = writer()
        synthesise(
            SynthSource("shop", TOOLS, TrainingSet(data, split, "")), RequestWriter(model), options, partial=partial
        )
        assert len(model.asked) == len(TOOLS)


def test_a_run_that_wrote_nothing_does_not_stand_in_the_way(tmp_path: Path) -> None:
    partial = tmp_path / "x.partial.jsonl"

    def down(conversation: Conversation) -> str:
        raise EndpointError("no such model", 404)

    with pytest.raises(EndpointError):
        synthesise(ALONE, RequestWriter(writer(down), fingerprint="http://tpyo"), PAIRS, partial=partial)
    made = synthesise(ALONE, RequestWriter(writer(), fingerprint="http://typo"), PAIRS, partial=partial)
    assert len(made.requests) == 12
    again = writer()
    synthesise(ALONE, RequestWriter(again, fingerprint="http://typo"), PAIRS, partial=partial)
    assert again.asked == []
    with pytest.raises(BadDataset, match="was begun with other tools, options or another model"):
        synthesise(ALONE, RequestWriter(writer(), fingerprint="http://tpyo"), PAIRS, partial=partial)


def test_an_endpoint_that_breaks_down_loses_only_what_was_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, partial, batches = Endpoint("http://localhost/v1", "m"), tmp_path / "x.partial.jsonl", []

    def complete(conversations: list[Conversation], **_: object) -> list[list[Completion]]:
        batches.append(len(conversations))
        if len(batches) == 3:
            raise EndpointError("no money left", 429)
        return [[Completion(wordings(one), 1, 1, "stop")] for one in conversations]

    monkeypatch.setattr(endpoint, "complete", complete)
    options = SynthOptions(round_trip=0, filtered=False, combinations=0, per_tool=5)
    with pytest.raises(EndpointError):
        synthesise(ALONE, RequestWriter(endpoint), options, partial=partial)
    assert batches == [8, 8, 8]
    assert len(partial.read_text().splitlines()) == 1 + 16
    assert len(synthesise(ALONE, RequestWriter(endpoint), options, partial=partial).requests) == 30
    assert sum(batches[3:]) == 14


def test_what_a_batch_got_before_it_failed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, partial, asked_for = Endpoint("http://localhost/v1", "m"), tmp_path / "x.partial.jsonl", []

    def complete(conversations: list[Conversation], **_: object) -> list[list[Completion]]:
        asked_for.append(len(conversations))
        answers: list[list[Completion]] = [[Completion(wordings(one), 1, 1, "stop")] for one in conversations]
        if len(asked_for) == 1:
            error = EndpointError("no money left", 429)
            error.results = [*answers[:3], error, *[None] * (len(answers) - 4)]
            raise error
        return answers

    monkeypatch.setattr(endpoint, "complete", complete)
    options = SynthOptions(round_trip=0, filtered=False, combinations=0, per_tool=5)
    with pytest.raises(EndpointError, match="no money left"):
        synthesise(ALONE, RequestWriter(endpoint), options, partial=partial)
    assert len(partial.read_text().splitlines()) == 1 + 3
    assert len(synthesise(ALONE, RequestWriter(endpoint), options, partial=partial).requests) == 30
    assert sum(asked_for[1:]) == 27


def test_a_file_of_something_else_is_told(tmp_path: Path) -> None:
    partial = tmp_path / "x.partial.jsonl"
    for content in (b"\xff\xfe\x00\n\x01", b"[1]\n[2]\n"):
        partial.write_bytes(content)
        with pytest.raises(BadDataset, match=r"cannot be read .*; remove it to begin again"):
            synthesise(ALONE, RequestWriter(writer()), PAIRS, partial=partial)
        assert partial.read_bytes() == content
