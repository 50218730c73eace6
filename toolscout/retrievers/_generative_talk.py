"""Conversations as lessons: whole trajectories, learned where the assistant speaks, its actions written as ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from toolscout.answer import Allowed
from toolscout.conversations import ACTION, FINISH, Conversation, Spent, Talks, conversation, read_sharegpt, request_of
from toolscout.dataset import request_digest
from toolscout.errors import BadDataset
from toolscout.nn.decoding import odds_against
from toolscout.nn.prompting import Spoken, contents
from toolscout.nn.trie import Trie
from toolscout.retrievers._generative import SPECIALS, STOP
from toolscout.retrievers._reading import chance
from toolscout.retrievers.base import Pairs, SeenSplit, TrainedOn, TrainingSet
from toolscout.tool import Tool
from toolscout.trajectories import read_trajectories

if TYPE_CHECKING:
    from toolscout.retrievers._generative import Generative
    from toolscout.retrievers._generative_fit import Plan
    from toolscout.training.generative import Lesson

MOST_TOKENS = 1536
_SHAREGPT = "sharegpt"
_CHANCES = (0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02)
_LIKELY, _JUDGED = 10, 500  # tools that are looked at of a request, requests of a dev split
_PICKED = 64  # conversations that are read together: a GPU keeps all that it read of them


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file: trajectories, or ShareGPT records where its name says so."""
    if _SHAREGPT in path.name:
        return list(read_sharegpt(path))
    return [conversation(one) for one in read_trajectories(path)]


def seen_in(talks: Sequence[Conversation], name: str) -> TrainedOn:
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


def prompt(retriever: Generative, turns: Iterable[Spoken]) -> list[int]:
    """A conversation as tokens, the assistant to speak next; actions are ids where they have one, as in training."""
    return retriever.base().chat(contents(turns, lambda action: _written(retriever, action, retriever._paths)))


def _written(retriever: Generative, action: str, paths: Mapping[str, tuple[int, ...]]) -> Sequence[int] | None:
    return (retriever.token(STOP),) if action == FINISH else paths.get(action)


def picked(retriever: Generative, conversations: Talks, allowed: Allowed | None, without: Spent) -> list[str | None]:
    """The likeliest next action of each conversation, of all that is allowed; None for one that is too long."""
    prompts = [prompt(retriever, turns) for turns in conversations]
    short = [at for at, one in enumerate(prompts) if len(one) < retriever.base().architecture.context]
    short.sort(key=lambda at: len(prompts[at]))
    found: list[str | None] = [None] * len(prompts)
    for first in range(0, len(short), _PICKED):
        few = short[first : first + _PICKED]
        requests = [request_of(conversations[at]) for at in few]
        spent = [without[at] if without else () for at in few]
        actions = _actions(retriever, [prompts[at] for at in few], requests, allowed, spent)
        called = [{turn.action for turn in conversations[at]} - {""} for at in few]
        for at, action in zip(few, _carried_on(retriever, actions, requests, allowed, called, spent), strict=True):
            found[at] = action
    return found


def _actions(
    retriever: Generative,
    prompts: Sequence[Sequence[int]],
    requests: Sequence[str],
    allowed: Allowed | None,
    without: Spent,
) -> list[str]:
    """Whether to act is what the model alone finds likelier; which tool it is, is found as search finds it.

    All tools together stand against Finish: where many would do, none of them alone is likely.
    """
    reading = retriever.engine().read(prompts)
    alone = retriever._aware(reading, [""] * len(prompts))
    ends = [retriever.token(one) for one in SPECIALS if one in retriever._trie]
    with retriever._lock:
        others = retriever._trie.children(Trie.ROOT)
        acts = odds_against(alone, retriever._scoring(), others, ends) > 0
    k = 1 + max(map(len, without), default=0)
    tools = retriever._rank(reading, requests, k, allowed) if acts.any() else [[] for _ in prompts]
    left = [[i for i, _ in pairs if i not in spent] for pairs, spent in zip(tools, without, strict=True)]
    return [ids[0] if act and ids else FINISH for act, ids in zip(acts, left, strict=True)]


def _carried_on(
    retriever: Generative,
    actions: Sequence[str],
    requests: Sequence[str],
    allowed: Allowed | None,
    called: Sequence[Collection[str]],
    without: Spent,
) -> list[str]:
    """The actions; in place of Finish the likeliest tool that was not called, if the request is likely to need it.

    Conversations that were learned are short: a model ends when most of what a longer request needs is still to do. Who
    has called nothing needs nothing.
    """
    found, least = list(actions), retriever.options.carry_on
    ends = [at for at, action in enumerate(actions) if action == FINISH and called[at]] if 0 < least < 1 else []
    if ends:
        k = 1 + max(len({*called[at], *without[at]}) for at in ends)
        for at, pairs in zip(ends, retriever.rank([requests[at] for at in ends], k, allowed), strict=True):
            due = [i for i, score in pairs if chance(score) >= least and i not in called[at] and i not in without[at]]
            found[at] = due[0] if due else FINISH
    return found


def chance_to_carry_on(retriever: Generative, data: Sequence[TrainingSet]) -> float:
    """The least chance of a tool that is needed: by which what is likelier is most like the gold of dev (mean F1)."""
    dev = [one for one in data if one.dev]
    if retriever.options.carry_on or not retriever.options.trajectories or not dev:
        return float(retriever.options.carry_on)
    likenesses = []
    for one in dev:
        split = one.dataset.split(one.dev)
        few = slice(None, None, max(1, len(split) // _JUDGED))
        among = Allowed.of(ids=(tool.id for tool in one.dataset.tools))
        ranked = retriever.rank([text for _, text in split.requests[few]], _LIKELY, among)
        pairs = [[(i, chance(score)) for i, score in own] for own in ranked]
        likenesses.append([_likeness(pairs, split.gold[few], least) for least in _CHANCES])
    return _CHANCES[int(np.argmax(np.mean(likenesses, 0)))]


def _likeness(ranked: Sequence[Pairs], golds: Sequence[Sequence[str]], least: float) -> float:
    likely = [{i for i, sure in pairs if sure >= least} for pairs in ranked]
    shared = [2 * len(own & set(gold)) / (len(own) + len(gold)) for own, gold in zip(likely, golds, strict=True)]
    return float(np.mean(shared))


def lessons(retriever: Generative, plan: Plan, talks: Iterable[Conversation], path: str) -> list[Lesson]:
    """What can be learned of a file's conversations: an action that names a tool without an id is read, not learned."""
    from toolscout.training.generative import Lesson

    found = []
    for talk in talks:
        tokens, right = _tokens(retriever, plan, talk)
        if len(tokens) > MOST_TOKENS:
            tokens, right = tokens[:MOST_TOKENS], [one for one in right if one[0] < MOST_TOKENS - 1]
        if right:
            found.append(Lesson(tokens, right))
    if not found:
        raise BadDataset(f"{path} holds no conversation that can be learned; name a file of trajectories")
    return found


def _tokens(
    retriever: Generative, plan: Plan, talk: Conversation
) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    """The conversation, and after which of its tokens which one is right: all that the assistant says and learns."""
    said = contents(talk.turns, lambda action: _written(retriever, action, plan.paths))
    tokens, spans = retriever.base().spoken(said)
    turns = [turn for turn in talk.turns if turn.role == "assistant"]
    right: list[tuple[int, tuple[int, ...]]] = []
    for turn, (first, last) in zip(turns, spans, strict=True):
        if turn.loss and not (turn.action and _written(retriever, turn.action, plan.paths) is None):
            right += [(place - 1, (tokens[place],)) for place in range(first, last)]
    return tokens, right
