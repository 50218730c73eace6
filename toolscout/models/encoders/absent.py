"""Stands in for an encoder that is not there or may not be asked: words alone are searched, and the reason is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolscout.core.arrays import Floats, Ints
from toolscout.errors import EncoderUnavailable
from toolscout.models.encoders.base import TextEncoder


class AbsentEncoder(TextEncoder):
    """Has the fingerprint of an encoder, so that its stored vectors are kept, and encodes nothing."""

    remote = True
    dimension = 0

    def __init__(self, fingerprint: str, why: str) -> None:
        """`why`: what is missing, and what to do."""
        self.fingerprint, self._why = fingerprint, why

    def encode_request(self, text: str) -> Floats:
        """Raise EncoderUnavailable."""
        raise EncoderUnavailable(self._why)

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        """Raise EncoderUnavailable, unless there is nothing to encode."""
        if texts:
            raise EncoderUnavailable(self._why)
        return iter(())
