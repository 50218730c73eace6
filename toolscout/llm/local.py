"""A language model on this machine: any Writer and its tokeniser, SmolLM2 by default."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from toolscout.errors import BadCompletion
from toolscout.llm.base import Completion, Conversation, Outcome, check_call, cut, settled
from toolscout.llm.filling import Filling, Tokens, Vocabulary
from toolscout.nn.decoding import Writer

_MAX_FILLINGS = 64
_TAIL = 8  # tokens that are read again for a stop string, beside those it may take itself
_NOTHING = np.empty(0, np.int64)


class _Window(Protocol):
    @property
    def context(self) -> int:
        """Tokens that fit into the model, prompt and answer together."""


class Speaker(Protocol):
    """What is needed of a base language model beside its weights; nn.language.Base is one."""

    name: str
    tokenizer: Tokenizer
    ends: frozenset[int]

    @property
    def architecture(self) -> _Window:
        """Its sizes."""

    def chat(self, messages: Sequence[tuple[str, str]], open_turn: bool = True) -> list[int]:
        """A conversation as tokens, the assistant to speak next."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""


class Local:
    """Completes conversations with a model that is held in memory. The same call gives the same answer."""

    def __init__(self, writer: Writer, speaker: Speaker, *, batch: int = 16, seed: int = 0) -> None:
        """Take the model's two halves; `batch` rows are written at once, `seed` decides what is drawn."""
        self.name = speaker.name
        self._writer, self._speaker = writer, speaker
        self._batch, self._seed = max(1, batch), seed
        self._vocabulary: Vocabulary | None = None
        self._fillings: OrderedDict[str, Filling] = OrderedDict()

    @classmethod
    def open(cls, reference: str = "", *, batch: int = 16, seed: int = 0) -> Local:
        """Open SmolLM2, or the Hugging Face folder or GGUF file at `reference`, to run on ONNX Runtime."""
        from toolscout.nn.language import open_base
        from toolscout.nn.llama import Served

        base = open_base(reference)
        return cls(Served(base.architecture, base.weights()), base, batch=batch, seed=seed)

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        n: int = 1,
        temperature: float = 0.0,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
    ) -> list[list[Completion]]:
        """n completions of each conversation; with a `schema` the model can write nothing that does not fit it.

        A conversation that leaves no room in the model's window has no completion: it raises BadCompletion, once the
        others are done. `stop` does not apply inside of JSON.
        """
        check_call(conversations, n, temperature, max_tokens, stop)
        filling = None if schema is None else self._filling(schema)
        prompts = [self._speaker.chat([(one.role, one.content) for one in messages]) for messages in conversations]
        window = self._speaker.architecture.context
        outcomes: list[Outcome] = [
            []
            if len(prompt) < window
            else BadCompletion(
                f"the conversation has {len(prompt)} tokens and {self.name} reads fewer than {window}; shorten it"
            )
            for prompt in prompts
        ]
        # The likeliest words are the same each time: they are written once.
        written = n if temperature else 1
        rows = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, list) for _ in range(written)]
        rows.sort(key=lambda place: len(prompts[place]))  # of like length, so that little is padded
        for number, places in enumerate(self._batches(rows, [window - len(prompt) - max_tokens for prompt in prompts])):
            most = min(max_tokens, window - max(len(prompts[place]) for place in places))
            texts = self._written([prompts[place] for place in places], most, temperature, stop, filling, number)
            for place, tokens in zip(places, texts, strict=True):
                outcomes[place] = self._with(outcomes[place], len(prompts[place]), tokens, most, stop, filling)
        return [completions * (n // written) for completions in settled(outcomes)]

    def _batches(self, rows: list[int], spare: list[int]) -> Iterator[list[int]]:
        """Rows by batches; one whose answer has little room is written alone, so that it cuts no other short."""
        roomy = [place for place in rows if spare[place] >= 0]
        for start in range(0, len(roomy), self._batch):
            yield roomy[start : start + self._batch]
        yield from ([place] for place in rows if spare[place] < 0)

    def _filling(self, schema: Mapping[str, Any]) -> Filling:
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self._speaker.tokenizer)
        key = json.dumps(schema, default=str)  # the order of properties counts: it is the order they are written in
        if key not in self._fillings:
            self._fillings[key] = Filling(self._vocabulary, schema, self._speaker.ends)
            if len(self._fillings) > _MAX_FILLINGS:
                self._fillings.popitem(last=False)
        self._fillings.move_to_end(key)
        return self._fillings[key]

    def _written(
        self,
        prompts: list[list[int]],
        most: int,
        temperature: float,
        stop: Sequence[str],
        filling: Filling | None,
        batch: int,
    ) -> list[list[int]]:
        allow = filling.rows() if filling else self._until(stop) if stop else None
        # Drawn by what is read: two equal conversations in one batch still draw differently.
        digest = hashlib.blake2b(json.dumps([self._seed, batch, prompts]).encode(), digest_size=4).digest()
        seed = int.from_bytes(digest) >> 1
        ends: Collection[int] = self._speaker.ends
        return self._writer.write(prompts, most=most, temperature=temperature, end=ends, allow=allow, seed=seed)

    def _until(self, stop: Sequence[str]) -> Callable[[int, Sequence[int]], Tokens | None]:
        """Ends a row once it holds a stop string; only its last tokens are looked at."""
        reach = max(len(word.encode()) for word in stop) + _TAIL

        def allow(row: int, written: Sequence[int]) -> Tokens | None:
            return _NOTHING if cut(self._speaker.decode(written[-reach:]), stop)[1] else None

        return allow

    def _with(
        self, before: Outcome, read: int, tokens: list[int], most: int, stop: Sequence[str], filling: Filling | None
    ) -> Outcome:
        """A conversation's outcome with one more completion."""
        if isinstance(before, BadCompletion):
            return before
        if filling:
            try:
                text, whole = filling.text(tokens)
            except BadCompletion as error:
                return error
        else:
            text, stopped = cut(self._speaker.decode(tokens), stop)
            whole = stopped or len(tokens) < most
        return [*before, Completion(text, read, len(tokens), "stop" if whole else "length", cost=0.0)]
