"""The detection tower at inference: how likely a request needs a tool, by its vector and its words. numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Doubles, Floats
from toolscout.core.model_files import UNREADABLE, read_arrays
from toolscout.errors import BadModel
from toolscout.models.phrases import phrases

NEED_FILE = "need.npz"

ENGLISH_ALONE = ("en",)  # of heads whose file does not say

_ARRAYS = ("hidden", "hidden_bias", "output", "output_bias", "scale", "shift")
_PHRASES, _PHRASE_WEIGHTS = "phrases", "phrase_weights"


@dataclass(frozen=True, slots=True)
class NeedHead:
    """A network with one hidden layer: h = relu(hidden x + hidden_bias), and the probability that a tool is needed is
    sigmoid(scale (output h + output_bias + p) + shift).

    p is the sum of the weights in `phrases` of the words and pairs of words of the request. An encoder that was trained
    to find tools forgets much of how a request is put, which tells talk from tasks.
    `scale` and `shift` calibrate it; they are fitted on dev after training. `encoder` is the fingerprint of the encoder
    whose vectors it takes. `languages` (ISO 639-1; "*": all): what it was trained on, and may be asked about.
    """

    hidden: Floats
    hidden_bias: Floats
    output: Floats
    output_bias: float
    scale: float
    shift: float
    encoder: str
    languages: tuple[str, ...] = ENGLISH_ALONE
    phrases: Mapping[str, float] = field(default_factory=dict)

    def states(self, vectors: Floats) -> Floats:
        """The hidden states of requests, one row each, which the retrieval tower uses too."""
        states: Floats = np.maximum(vectors @ self.hidden.T + self.hidden_bias, 0.0)
        return states

    def logits(self, vectors: Floats, requests: Sequence[str] | None = None) -> Doubles:
        """What the head says of requests, given their unit vectors, before it is calibrated.

        A head with phrases reads the requests too, and raises ValueError without them.
        """
        said: Doubles = self.states(vectors).astype(np.float64) @ self.output + self.output_bias
        if not self.phrases:
            return said
        if requests is None:
            raise ValueError("a need head with phrases reads the requests beside their vectors")
        return said + [sum(self.phrases.get(one, 0.0) for one in phrases(text)) for text in requests]

    def probabilities(self, vectors: Floats, requests: Sequence[str] | None = None) -> Floats:
        """How likely each request is to need a tool, given its unit vectors."""
        # The sigmoid, in a form that cannot overflow.
        chances = 0.5 + 0.5 * np.tanh(0.5 * (self.scale * self.logits(vectors, requests) + self.shift))
        found: Floats = chances.astype(np.float32)
        return found

    def save(self, folder: Path) -> None:
        """Write need.npz."""
        folder.mkdir(parents=True, exist_ok=True)
        numbers = {name: np.asarray(getattr(self, name), dtype=np.float32) for name in _ARRAYS}
        texts = {"encoder": np.array(self.encoder), "languages": np.array(self.languages)}
        if self.phrases:
            numbers[_PHRASE_WEIGHTS] = np.array(list(self.phrases.values()), dtype=np.float32)
            texts[_PHRASES] = np.frombuffer("\n".join(self.phrases).encode(), dtype=np.uint8)
        np.savez(folder / NEED_FILE, allow_pickle=False, **texts, **numbers)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; raises BadModel where it cannot be read."""
        path = folder / NEED_FILE
        try:
            return cls._of(read_arrays(path))
        except UNREADABLE as error:
            raise BadModel(f"the need head in {path} cannot be read ({error}); train it again") from None

    @classmethod
    def _of(cls, found: Mapping[str, NDArray[Any]]) -> Self:
        hidden, bias, output = (found[name].astype(np.float32) for name in _ARRAYS[:3])
        if hidden.ndim != 2 or bias.shape != hidden.shape[:1] or output.shape != bias.shape:
            raise ValueError(f"its shapes are {hidden.shape}, {bias.shape} and {output.shape}")
        offset, scale, shift = (found[name].astype(np.float32).item() for name in _ARRAYS[3:])
        languages = tuple(map(str, found["languages"].tolist())) if "languages" in found else ENGLISH_ALONE
        known: dict[str, float] = {}
        if _PHRASES in found:
            names = found[_PHRASES].astype(np.uint8).tobytes().decode().split("\n")
            known = dict(zip(names, found[_PHRASE_WEIGHTS].astype(np.float64).tolist(), strict=True))
        return cls(hidden, bias, output, offset, scale, shift, str(found["encoder"]), languages, known)
