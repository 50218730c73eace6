"""Conversations as lessons: whole trajectories, learned where the assistant speaks, its actions written as ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolscout.conversations import FINISH, Conversation, conversation, read_sharegpt
from toolscout.errors import BadDataset
from toolscout.retrievers._generative import STOP
from toolscout.trajectories import read_trajectories

if TYPE_CHECKING:
    from toolscout.retrievers._generative import Generative
    from toolscout.retrievers._generative_fit import Plan
    from toolscout.training.generative import Lesson

MOST_TOKENS = 1536
_SHAREGPT = "sharegpt"


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file: trajectories, or ShareGPT records where its name says so."""
    if _SHAREGPT in path.name:
        return list(read_sharegpt(path))
    return [conversation(one) for one in read_trajectories(path)]


def lessons(retriever: Generative, plan: Plan, path: str) -> list[Lesson]:
    """What can be learned of a file's conversations: an action that names a tool without an id is read, not learned."""
    from toolscout.training.generative import Lesson

    found = []
    for talk in read_conversations(Path(path)):
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
    base = retriever.base()
    tokens: list[int] = []
    right: list[tuple[int, tuple[int, ...]]] = []
    for turn in talk.turns:
        if turn.role != "assistant":
            tokens += base.chat([(turn.role, turn.content)], open_turn=False)
            continue
        opened = base.chat([], open_turn=True)
        said = _said(retriever, plan, turn.action) if turn.action else None
        written = list(said or base.encode(turn.content))
        begin = len(tokens) + len(opened)
        tokens += [*opened, *written, base.end]
        if turn.loss and not (turn.action and said is None):
            targets: Sequence[int] = [*written, base.end]
            right += [(begin - 1 + place, (token,)) for place, token in enumerate(targets)]
    return tokens, right


def _said(retriever: Generative, plan: Plan, action: str) -> tuple[int, ...] | None:
    if action == FINISH:
        return (retriever.token(STOP),)
    return plan.paths.get(action)
