"""Copies all that one store holds into another, and checks that both hold the same then.

A copy that was interrupted goes on: what is there already is not written again. Catalogue versions are not copied, nor
which tools were removed: an index that followed the first store is built anew over the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, islice, zip_longest
from typing import TypeVar

import numpy as np

from toolscout.core.answer import Example
from toolscout.errors import BadRequest, StoreError
from toolscout.stores.base import Store, VectorBatch

Progress = Callable[[str, int, int], None]
_T = TypeVar("_T")
_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class CopyReport:
    """How much two stores hold alike after a copy."""

    tools: int
    vectors: int
    principals: int
    keys: int
    feedback: int


def copy(source: Store, target: Store, progress: Progress | None = None) -> CopyReport:
    """Copy everything into `target`, which must be empty or hold a part of `source` and nothing else.

    Raises BadRequest where it holds something else, and StoreError where the two differ afterwards, as they do where
    one of them was changed meanwhile.
    """
    if source.identity() == target.identity():
        raise BadRequest("both names are of one store; name another one to copy to")
    feedback = _new_feedback(source, target)
    _refuse_more(source, target)
    _copy_tools(source, target, progress)
    _copy_vectors(source, target, progress)
    _copy_principals(source, target)
    for few in _batches(feedback):
        target.add_feedback(few)
    _copy_approvals(source, target)
    return _checked(source, target, progress)


def _refuse_more(source: Store, target: Store) -> None:
    """Raise BadRequest where the target has tools or principals that the source has not."""
    for what, known, there in (
        ("tool", source.ids(), target.ids()),
        ("principal", source.principals(), target.principals()),
    ):
        more = sorted(set(there).difference(known))
        if more:
            raise BadRequest(
                f"the store to copy to has {what}s that the other has not, such as {more[0]!r:.80}; name an empty one"
            )


def _new_feedback(source: Store, target: Store) -> Iterator[Example]:
    """Return the feedback that the target lacks; raise BadRequest where its own is not how the source's begins."""
    rest = (example for _, example in source.feedback())
    for _, example in target.feedback():
        if next(rest, None) != example:
            raise BadRequest("the store to copy to has feedback that the other has not; name an empty one")
    return rest


def _copy_tools(source: Store, target: Store, progress: Progress | None) -> None:
    done, total = 0, source.count()
    for few in _batches(source.entries()):
        for label, entries in groupby(sorted(few, key=lambda one: one.source), key=lambda one: one.source):
            target.add([one.tool for one in entries], label, replace=True)
        for one in few:
            for alias in one.aliases:
                target.set_alias(one.tool.id, alias)
        target.set_expansions(source.expansions([one.tool.id for one in few]))
        done += len(few)
        if progress:
            progress("copying tools", done, total)


def _copy_vectors(source: Store, target: Store, progress: Progress | None) -> None:
    done = 0
    for fingerprint in source.models():
        for batch in _vectors(source, fingerprint):
            target.put_vectors(fingerprint, batch.digests, batch.vectors)
            done += len(batch.digests)
            if progress:
                progress("copying vectors", done, 0)
    if target.encoders() != source.encoders():
        for encoder in reversed(source.encoders()):
            target.use_encoder(encoder)


def _copy_principals(source: Store, target: Store) -> None:
    for name in source.principals():
        principal = source.principal(name)
        if principal is not None and principal != target.principal(name):
            target.put_principal(principal)
        if source.grants(name) != target.grants(name):
            target.grant(name, source.grants(name))
    known = set(target.api_keys())
    for key in source.api_keys():
        if key not in known:
            target.add_key(key)


def _copy_approvals(source: Store, target: Store) -> None:
    """Copy which tool definitions a gateway accepted and which it holds back, with the key of their digests."""
    if not source.has_approvals():
        return
    with closing(source.approvals()) as first, closing(target.approvals()) as second:
        with first.reading() as rows:
            known = rows.everything()
        with second.reading() as rows:
            there = rows.everything()
        if there and first.key != second.key:
            raise BadRequest("the store to copy to has approved tools of its own; name an empty one")
        if (known, first.key) != (there, second.key):
            second.take_over(first)
        with second.reading() as rows:
            if rows.everything() != known:
                raise _differ("approved tools")


def _checked(source: Store, target: Store, progress: Progress | None) -> CopyReport:
    """Compare all that both stores hold, and count it; raise StoreError where they differ."""
    tools = _compare("tools", source.entries(), target.entries(), progress, source.count())
    _compare("expansions", source.expansions().items(), target.expansions().items())
    _compare("encoders", source.encoders(), target.encoders())
    _compare("models", source.models(), target.models())
    vectors = 0
    for fingerprint in source.models():
        for batch in _vectors(source, fingerprint):
            found = target.vectors(fingerprint, batch.digests)
            if any(
                not np.array_equal(row, found.get(one, ()))
                for one, row in zip(batch.digests, batch.vectors, strict=True)
            ):
                raise _differ("vectors")
            vectors += len(batch.digests)
            if progress:
                progress("comparing vectors", vectors, 0)
    names = source.principals()
    _compare("principals", names, target.principals())
    for name in names:
        rights = (source.principal(name), source.grants(name)), (target.principal(name), target.grants(name))
        if rights[0] != rights[1]:
            raise _differ("principals")
    keys = _compare("keys", source.api_keys(), target.api_keys())
    examples = (one for _, one in source.feedback()), (one for _, one in target.feedback())
    return CopyReport(tools, vectors, len(names), keys, _compare("feedback", *examples))


def _compare(
    what: str, first: Iterable[_T], second: Iterable[_T], progress: Progress | None = None, total: int = 0
) -> int:
    count = 0
    for one, other in zip_longest(first, second):
        if one != other:
            raise _differ(what)
        count += 1
        if progress and count % _AT_ONCE == 0:
            progress(f"comparing {what}", count, total)
    return count


def _differ(what: str) -> StoreError:
    return StoreError(
        f"the {what} of the two stores differ after copying: one was changed meanwhile; give the same command again"
    )


def _vectors(store: Store, fingerprint: str) -> Iterator[VectorBatch]:
    cursor = 0
    while (batch := store.vectors_after(fingerprint, cursor)).digests:
        yield batch
        cursor = batch.cursor


def _batches(values: Iterable[_T]) -> Iterator[list[_T]]:
    iterator = iter(values)
    while few := list(islice(iterator, _AT_ONCE)):
        yield few
