"""Chooses the encoder of a catalogue: the one that is named, else the one that its tools were embedded with."""

from __future__ import annotations

import os
from typing import NamedTuple

from toolscout.errors import BadModel, BadRequest, MissingEncoder
from toolscout.models.encoders.absent import AbsentEncoder
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.opening import EncoderName, open_encoder, refusal
from toolscout.models.encoders.settings import DEFAULT, FAST, RAW, VARIABLE, split_name
from toolscout.stores.base import Store, UsedEncoder


class EncoderChoice(NamedTuple):
    """An encoder and the name that opens it again; None for an object that a program made.

    encoder: None for the one that a retriever opens by itself, which may not be installed.
    named: whether the user named it, here or in the environment.
    """

    encoder: TextEncoder | None
    name: str | None
    named: bool


def choose(store: Store, named: EncoderName) -> EncoderChoice:
    """The encoder that is named, else that of $TOOLSCOUT_ENCODER, else the store's, else that of the package.

    Raises MissingEncoder or BadModel where the named one cannot be opened. One that the store names and that is not
    there is represented by an AbsentEncoder.
    """
    if named is not None:
        return EncoderChoice(_with_length(store, open_encoder(named)), full_name(named), True)
    if os.environ.get(VARIABLE):
        try:
            return EncoderChoice(_with_length(store, open_encoder()), full_name(os.environ[VARIABLE]), True)
        except MissingEncoder:  # words alone still answer
            return EncoderChoice(None, None, False)
    used = store.encoders()[:1]
    if used and used[0].name:
        return EncoderChoice(_with_length(store, open_used(used[0])), used[0].name, False)
    return EncoderChoice(None, "", False)


def _with_length(store: Store, encoder: TextEncoder) -> TextEncoder:
    """The encoder, told how long its vectors in the store are: the model behind an endpoint may have been replaced."""
    if encoder.remote and (last := store.last_vector(encoder.fingerprint)):
        found = store.vectors_after(encoder.fingerprint, last - 1, limit=1).vectors
        if len(found):
            encoder.expect_dimension(found.shape[1])
    return encoder


def open_used(used: UsedEncoder) -> TextEncoder:
    """Open the encoder that a store names; an AbsentEncoder where it is not there, has changed, or is not allowed."""
    why = refusal(used.name)
    if not why:
        try:
            encoder = open_encoder(used.name or DEFAULT)
            if encoder.fingerprint == used.fingerprint:
                return encoder
            why = f"the encoder {used.name or 'of the package'} has changed since the tools were embedded"
        except (MissingEncoder, BadModel, BadRequest) as error:
            why = f"the tools were embedded with an encoder that cannot be opened ({error})"
    return AbsentEncoder(used.fingerprint, f"{why}; put it back, or name another one with --encoder: nothing is lost")


def previous(store: Store, fingerprint: str) -> TextEncoder | None:
    """The encoder that answers until all tools are embedded with the one of this fingerprint.

    None where they are embedded, or where no encoder before can be opened.
    """
    used = store.encoders()
    if used and used[0].fingerprint == fingerprint:
        return None
    if not used and (store.last_vector(fingerprint) or not store.count()):  # of a version without that record
        return None
    if not store.missing_vectors(fingerprint, limit=1):
        return None
    if not used:
        try:
            used = [UsedEncoder(open_encoder(DEFAULT).fingerprint, "")]
        except MissingEncoder:
            return None
    for one in used:
        if one.fingerprint != fingerprint and store.last_vector(one.fingerprint):
            encoder = open_used(one)
            return None if isinstance(encoder, AbsentEncoder) else _with_length(store, encoder)
    return None


def same_documents(store: Store, encoder: TextEncoder) -> list[str]:
    """The fingerprints of the store's other encoders that give documents the same vectors as this one."""
    others = [one for one in store.encoders() if one.fingerprint != encoder.fingerprint]
    found = [one.fingerprint for one in others if open_used(one).document_fingerprint == encoder.document_fingerprint]
    return found if encoder.document_fingerprint == encoder.fingerprint else [encoder.document_fingerprint, *found]


def full_name(named: EncoderName) -> str | None:
    """The name that opens an encoder from any folder; None for an object, "" for the default one."""
    if isinstance(named, TextEncoder) or named is None:
        return None
    place, _ = split_name(str(named))
    settings = str(named)[len(place) :]
    if place in ("", DEFAULT):
        return DEFAULT + settings if settings else ""
    if place in (RAW, FAST) or place.lower().startswith(("http://", "https://")):
        return str(named)
    return os.path.abspath(place) + settings
