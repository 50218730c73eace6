"""Conversations as lessons: whole trajectories, learned where the assistant speaks, its actions written as ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from toolscout.core.answer import Allowed
from toolscout.core.scope import Scope
from toolscout.core.tool import Tool
from toolscout.data.conversations import (
    ACTION,
    Conversation,
    conversation,
    read_sharegpt,
)
from toolscout.data.dataset import request_digest
from toolscout.data.trajectories import read_trajectories
from toolscout.errors import BadDataset
from toolscout.models.language.prompts import contents
from toolscout.retrievers.base import Pairs
from toolscout.retrievers.generative.base import _action_tokens
from toolscout.retrievers.generative.reading import chance
from toolscout.retrievers.provenance import SeenSplit, TrainedOn, TrainingSet

if TYPE_CHECKING:
    from toolscout.retrievers.generative.base import GenerativeRetriever, IdPlan
    from toolscout.training.id_generation import IdExample

MOST_TOKENS = 1536
_SHAREGPT = "sharegpt"
_CHANCES = (0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02)
_LIKELY, _JUDGED = 10, 500  # tools that are looked at of a request, requests of a dev split


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file: trajectories, or ShareGPT records where its name says so."""
    if _SHAREGPT in path.name:
        return list(read_sharegpt(path))
    return [conversation(one) for one in read_trajectories(path)]


def provenance_of(talks: Sequence[Conversation], name: str) -> TrainedOn:
    """What conversations show a model: all that users say in them, so that no split which asks it may judge it."""
    if not talks:
        return TrainedOn()
    said = (turn.content.removesuffix(ACTION).strip() for talk in talks for turn in talk.turns if turn.role == "user")
    digest = hashlib.blake2b(digest_size=16)
    for talk in talks:
        digest.update(json.dumps([(turn.role, turn.content) for turn in talk.turns]).encode())
    requests = frozenset(map(request_digest, filter(None, said)))
    return TrainedOn((SeenSplit(name, digest.hexdigest(), "conversations", "train", requests),))


def called_tools(talks: Iterable[Conversation], known: Mapping[str, Tool]) -> dict[str, Tool]:
    """The tools that conversations call, by id, as they are known, or as a conversation brings them; others not."""
    found: dict[str, Tool] = {}
    for talk in talks:
        brought = {tool.id: tool for tool in talk.tools}
        for action in filter(None, (turn.action for turn in talk.turns)):
            tool = known.get(action, brought.get(action))
            if tool is not None:
                found.setdefault(action, tool)
    return found


def choose_carry_on(retriever: GenerativeRetriever, data: Sequence[TrainingSet]) -> float:
    """The least chance of a tool that is needed: by which what is likelier is most like the gold of dev (mean F1)."""
    dev = [one for one in data if one.dev]
    if retriever.options.carry_on or not retriever.options.trajectories or not dev:
        return float(retriever.options.carry_on)
    likenesses = []
    for one in dev:
        split = one.dataset.split(one.dev)
        few = slice(None, None, max(1, len(split) // _JUDGED))
        among = Scope(Allowed.of(ids=(tool.id for tool in one.dataset.tools)))
        ranked = retriever.rank([text for _, text in split.requests[few]], _LIKELY, among)
        pairs = [[(i, chance(score)) for i, score in own.pairs] for own in ranked]
        likenesses.append([_likeness(pairs, split.gold[few], least) for least in _CHANCES])
    return _CHANCES[int(np.argmax(np.mean(likenesses, 0)))]


def _likeness(ranked: Sequence[Pairs], golds: Sequence[Sequence[str]], least: float) -> float:
    likely = [{i for i, sure in pairs if sure >= least} for pairs in ranked]
    shared = [2 * len(own & set(gold)) / (len(own) + len(gold)) for own, gold in zip(likely, golds, strict=True)]
    return float(np.mean(shared))


def conversation_examples(
    retriever: GenerativeRetriever, plan: IdPlan, talks: Iterable[Conversation], path: str
) -> list[IdExample]:
    """What can be learned of a file's conversations: an action that names a tool without an id is read, not learned."""
    from toolscout.training.id_generation import IdExample

    found = []
    for talk in talks:
        tokens, right = _tokens(retriever, plan, talk)
        if len(tokens) > MOST_TOKENS:
            tokens, right = tokens[:MOST_TOKENS], [one for one in right if one[0] < MOST_TOKENS - 1]
        if right:
            found.append(IdExample(tokens, right))
    if not found:
        raise BadDataset(f"{path} holds no conversation that can be learned; name a file of trajectories")
    return found


def _tokens(
    retriever: GenerativeRetriever, plan: IdPlan, talk: Conversation
) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    """The conversation, and after which of its tokens which one is right: all that the assistant says and learns."""
    said = contents(talk.turns, lambda action: _action_tokens(retriever, action, plan.paths))
    tokens, spans = retriever.base().spoken(said)
    turns = [turn for turn in talk.turns if turn.role == "assistant"]
    right: list[tuple[int, tuple[int, ...]]] = []
    for turn, (first, last) in zip(turns, spans, strict=True):
        if turn.loss and not (turn.action and _action_tokens(retriever, turn.action, plan.paths) is None):
            right += [(place - 1, (tokens[place],)) for place in range(first, last)]
    return tokens, right
