"""Turns conversations (trajectories of an agent) into training examples.

The model is trained on what the assistant says; each tool call in it is written as the tool's id.
"""

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

_SHAREGPT = "sharegpt"
_CHANCES = (0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02)
_LIKELY, _DEV_REQUESTS = 10, 500  # tools ranked for each dev request; most requests of a dev split that are used


def read_conversations(path: Path) -> list[Conversation]:
    """Read the conversations of a file: ShareGPT records if its name contains "sharegpt", trajectories otherwise."""
    if _SHAREGPT in path.name:
        return list(read_sharegpt(path))
    return [conversation(one) for one in read_trajectories(path)]


def provenance_of(talks: Sequence[Conversation], name: str) -> TrainedOn:
    """Record all that users say in the conversations as seen in training; `name` is the name of their file.

    A split that holds one of these requests may then not be used to evaluate the model.
    """
    if not talks:
        return TrainedOn()
    said = (turn.content.removesuffix(ACTION).strip() for talk in talks for turn in talk.turns if turn.role == "user")
    digest = hashlib.blake2b(digest_size=16)
    for talk in talks:
        digest.update(json.dumps([(turn.role, turn.content) for turn in talk.turns]).encode())
    requests = frozenset(map(request_digest, filter(None, said)))
    return TrainedOn((SeenSplit(name, digest.hexdigest(), "conversations", "train", requests),))


def called_tools(talks: Iterable[Conversation], known: Mapping[str, Tool]) -> dict[str, Tool]:
    """The tools that the conversations call, by id.

    A tool is taken from `known`, else from the conversation's own list; one that is in neither is left out.
    """
    found: dict[str, Tool] = {}
    for talk in talks:
        brought = {tool.id: tool for tool in talk.tools}
        for action in filter(None, (turn.action for turn in talk.turns)):
            tool = known.get(action, brought.get(action))
            if tool is not None:
                found.setdefault(action, tool)
    return found


def choose_carry_on(retriever: GenerativeRetriever, data: Sequence[TrainingSet]) -> float:
    """Choose the option `carry_on`: the least probability at which a tool counts as still needed.

    The threshold with the highest mean F1 on the dev splits is returned. The option's own value is returned if it is
    set, if there are no trajectories, or if there is no dev split.
    """
    dev = [one for one in data if one.dev]
    if retriever.options.carry_on or not retriever.options.trajectories or not dev:
        return float(retriever.options.carry_on)
    scores = []
    for one in dev:
        split = one.dataset.split(one.dev)
        few = slice(None, None, max(1, len(split) // _DEV_REQUESTS))
        among = Scope(Allowed.of(ids=(tool.id for tool in one.dataset.tools)))
        ranked = retriever.rank([text for _, text in split.requests[few]], _LIKELY, among)
        pairs = [[(i, chance(score)) for i, score in ranking.pairs] for ranking in ranked]
        scores.append([_mean_f1(pairs, split.gold[few], least) for least in _CHANCES])
    return _CHANCES[int(np.argmax(np.mean(scores, 0)))]


def _mean_f1(ranked: Sequence[Pairs], golds: Sequence[Sequence[str]], least: float) -> float:
    """The mean F1 of the tools whose probability is at least `least`."""
    likely = [{i for i, probability in pairs if probability >= least} for pairs in ranked]
    scores = [2 * len(ids & set(gold)) / (len(ids) + len(gold)) for ids, gold in zip(likely, golds, strict=True)]
    return float(np.mean(scores))


def conversation_examples(
    retriever: GenerativeRetriever, plan: IdPlan, talks: Iterable[Conversation], path: str
) -> list[IdExample]:
    """Make training examples of the conversations of the file `path`, cut to what the model reads of one.

    A call of a tool without an id stays in the text but is no target. Raises BadDataset if no example is left.
    """
    from toolscout.training.id_generation import IdExample

    found, most = [], min(retriever.options.trajectory_tokens, retriever.base().architecture.context)
    for talk in talks:
        tokens, right = _tokens(retriever, plan, talk)
        if len(tokens) > most:
            tokens, right = tokens[:most], [one for one in right if one[0] < most - 1]
        if right:
            found.append(IdExample(tokens, right))
    if not found:
        raise BadDataset(f"{path} holds no conversation that can be learned; name a file of trajectories")
    return found


def _tokens(
    retriever: GenerativeRetriever, plan: IdPlan, talk: Conversation
) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    """The tokens of a conversation, and its targets: (position, tokens that are right after it)."""
    said = contents(talk.turns, lambda action: _action_tokens(retriever, action, plan.paths))
    tokens, spans = retriever.base().chat_with_spans(said)
    turns = [turn for turn in talk.turns if turn.role == "assistant"]
    right: list[tuple[int, tuple[int, ...]]] = []
    for turn, (first, last) in zip(turns, spans, strict=True):
        if turn.loss and not (turn.action and _action_tokens(retriever, turn.action, plan.paths) is None):
            right += [(place - 1, (tokens[place],)) for place in range(first, last)]
    return tokens, right
