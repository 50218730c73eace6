"""Documents without what they say twice: names stand there whole, for words, and split, which meaning does with."""

from __future__ import annotations

from toolscout.core.tool import split_words


def without_repeats(document: str) -> str:
    """A document, as `Tool.document` makes it, without each whole name that its words follow.

    "mail get_email", "mail get email" becomes "mail get email", and "message_id message id Id of the message." becomes
    "message id Id of the message."; every other line stays.
    """
    first, *rest = document.split("\n")
    if not rest or rest[0] != _split(first) or rest[0] == first:
        rest.insert(0, first)
    return "\n".join([rest[0], *map(_without_name, rest[1:])])


def _without_name(line: str) -> str:
    name, _, after = line.partition(" ")
    words = _split(name)
    return after if words != name.lower() and f"{after} ".startswith(f"{words} ") else line


def _split(name: str) -> str:
    return " ".join(split_words(name)).lower()
