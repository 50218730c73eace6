"""One encoder for several parts: each text is encoded once, and different texts at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.toys import HashedWords
from toolscout.retrievers.hybrid.shared_encoder import SharedEncoder


class Meeting(HashedWords):
    """Encodes a text only when another one is being encoded too."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2, timeout=5)
        self.texts: list[str] = []

    def encode_request(self, text: str) -> NDArray[np.float32]:
        self.texts.append(text)
        self.both.wait()
        return super().encode_request(text)


def test_different_requests_do_not_wait_for_each_other() -> None:
    encoder = Meeting()
    shared = SharedEncoder(encoder)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(shared.encode_request, ["one", "two", "one", "two"]))
    assert sorted(encoder.texts) == ["one", "two"]
    assert np.array_equal(found[0], HashedWords().encode_request("one"))
    assert np.array_equal(found[1], found[3])


def test_batches_do_not_wait_for_each_other_and_share_what_they_have_in_common() -> None:
    class Together(HashedWords):
        """Encodes a batch only when another one is being encoded too."""

        def __init__(self) -> None:
            super().__init__()
            self.both = threading.Barrier(2, timeout=5)
            self.texts: list[str] = []

        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            self.texts += texts
            self.both.wait()
            return super().encode(texts)

    encoder = Together()
    shared = SharedEncoder(encoder)
    batches = [["one", "two", "one"], ["two", "three"]]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(shared.encode, batches))
    assert sorted(encoder.texts) == ["one", "three", "two"]
    for batch, vectors in zip(batches, found, strict=True):
        assert np.array_equal(vectors, HashedWords().encode(batch))


def test_an_error_reaches_everyone_and_is_not_kept() -> None:
    class Failing(HashedWords):
        fails = True

        def encode_request(self, text: str) -> NDArray[np.float32]:
            if self.fails:
                raise ValueError("no")
            return super().encode_request(text)

    encoder = Failing()
    shared = SharedEncoder(encoder)
    with pytest.raises(ValueError, match="no"):
        shared.encode_request("one")
    encoder.fails = False
    assert np.array_equal(shared.encode_request("one"), HashedWords().encode_request("one"))
