"""Conversations as lessons: whole trajectories, learned where the assistant speaks, its actions written as ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolscout.answer import Allowed
from toolscout.conversations import FINISH, Conversation, Turn, conversation, read_sharegpt
from toolscout.errors import BadDataset
from toolscout.nn.decoding import best
from toolscout.nn.prompting import Spoken, contents
from toolscout.retrievers._generative import SPECIALS, STOP
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


def prompt(retriever: Generative, turns: Iterable[Spoken]) -> list[int]:
    """A conversation as tokens, the assistant to speak next; actions are ids where they have one, as in training."""
    return retriever.base().chat(contents(turns, lambda action: _written(retriever, action, retriever._paths)))


def _written(retriever: Generative, action: str, paths: Mapping[str, tuple[int, ...]]) -> Sequence[int] | None:
    return (retriever.token(STOP),) if action == FINISH else paths.get(action)


def picked(retriever: Generative, conversations: Sequence[Sequence[Turn]], allowed: Allowed | None) -> list[str | None]:
    """The likeliest next action of each conversation, of all that is allowed; None for one that is too long."""
    prompts = [prompt(retriever, turns) for turns in conversations]
    short = [at for at, one in enumerate(prompts) if len(one) < retriever.base().architecture.context]
    found: list[str | None] = [None] * len(prompts)
    if not short:
        return found
    reading = retriever._aware(retriever.engine().read([prompts[at] for at in short]), [""] * len(short))
    with retriever._lock:
        pruned = retriever._pruned(allowed)
        ranked = best(reading, retriever._scoring(), retriever._trie, 1, pruned=pruned, extra=SPECIALS)
    for at, few in zip(short, ranked, strict=True):
        found[at] = None if not few else FINISH if few[0][0] in SPECIALS else few[0][0]
    return found


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
    """The conversation, and after which of its tokens which one is right: all that the assistant says and learns."""
    said = contents(talk.turns, lambda action: _written(retriever, action, plan.paths))
    tokens, spans = retriever.base().spoken(said)
    turns = [turn for turn in talk.turns if turn.role == "assistant"]
    right: list[tuple[int, tuple[int, ...]]] = []
    for turn, (first, last) in zip(turns, spans, strict=True):
        if turn.loss and not (turn.action and _written(retriever, turn.action, plan.paths) is None):
            right += [(place - 1, (tokens[place],)) for place in range(first, last)]
    return tokens, right
