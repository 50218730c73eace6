"""A language model on this machine, by default SmolLM2."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from toolscout.core.arrays import Ints
from toolscout.errors import BadCompletion
from toolscout.llm.base import (
    Completion,
    Conversation,
    LanguageModel,
    Outcome,
    Schemas,
    check_call,
    cut,
    each_schema,
    settled,
)
from toolscout.llm.constrained_json.filling import Filling, TokenVocabulary
from toolscout.models.decoding.constrained import Allow, TextWriter
from toolscout.models.language.open import device_name

if TYPE_CHECKING:
    from toolscout.models.language.base import Base
    from toolscout.models.language.lora import Adapter

_MAX_FILLINGS = 1024
_ON_CPU, _ON_DEVICE = 16, 4096  # rows in a batch; on a device, the engine splits what does not fit into memory
_TAIL = 8  # extra tokens in which a stop string is looked for
_NOTHING = np.empty(0, np.int64)


class _Window(Protocol):
    @property
    def context(self) -> int:
        """Tokens that fit into the model, prompt and answer together."""

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""


class ChatModel(Protocol):
    """The tokeniser and chat format of a language model; models.language.base.Base is one."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokeniser."""

    @property
    def ends(self) -> Collection[int]:
        """The tokens that end what it writes."""

    @property
    def architecture(self) -> _Window:
        """Its sizes."""

    def chat(self, messages: Sequence[tuple[str, str]], open_turn: bool = True) -> list[int]:
        """A conversation as tokens, with an open turn of the assistant."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""


Prompt = Callable[[Conversation], list[int]]
"""Turns a conversation into tokens, with an open turn of the assistant."""


class Local(LanguageModel):
    """Completes conversations with a model in memory. The same call gives the same answer."""

    def __init__(
        self,
        writer: TextWriter,
        speaker: ChatModel,
        *,
        batch: int | None = None,
        seed: int = 0,
        prompt: Prompt | None = None,
    ) -> None:
        """Take the engine that generates (`writer`), and the tokeniser and chat format (`speaker`).

        `batch` is the number of rows in a batch, `seed` that of sampling. `prompt` turns a conversation into tokens, by
        default the speaker's chat format.
        """
        self.name = speaker.name
        self._writer, self._speaker = writer, speaker
        self._prompt = prompt or self._chat
        usual = _ON_DEVICE if device_name() else _ON_CPU
        self._batch, self._seed = usual if batch is None else max(1, batch), seed
        self._vocabulary: TokenVocabulary | None = None
        self._fillings: OrderedDict[str, Filling] = OrderedDict()

    @classmethod
    def open(cls, reference: str = "", *, batch: int | None = None, seed: int = 0) -> Local:
        """Open SmolLM2, or the Hugging Face folder or GGUF file at `reference`.

        It runs on ONNX Runtime, or in torch on the device that $TOOLSCOUT_DEVICE names.
        """
        from toolscout.models.language.base import open_base

        return cls.of(open_base(reference), batch=batch, seed=seed)

    @classmethod
    def of(cls, base: Base, adapter: Adapter | None = None, *, batch: int | None = None, seed: int = 0) -> Local:
        """Open a base language model, with an adapter merged in where there is one."""
        from toolscout.models.language.base import TokenTable
        from toolscout.models.language.open import open_engine

        weights = base.weights()
        if adapter is not None:
            weights = adapter.merge_into(base.architecture, weights)
        writer = open_engine(base.architecture, weights, TokenTable.of(weights))
        return cls(writer, base, batch=batch, seed=seed)

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return self._speaker.architecture.parameters

    def _chat(self, messages: Conversation) -> list[int]:
        return self._speaker.chat([(one.role, one.content) for one in messages])

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        n: int = 1,
        temperature: float = 0.0,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        schema: Schemas = None,
    ) -> list[list[Completion]]:
        """n completions of each conversation; with a `schema`, decoding is constrained to JSON that fits it.

        Raises BadCompletion, once the others are done, where a conversation is too long for the model's context.
        `stop` does not apply to JSON.
        """
        check_call(conversations, n, temperature, max_tokens, stop)
        fillings = [self._filling(one) for one in each_schema(schema, len(conversations))]
        prompts = [self._prompt(messages) for messages in conversations]
        window = self._speaker.architecture.context
        outcomes = [self._begun(prompt, filling) for prompt, filling in zip(prompts, fillings, strict=True)]
        # At temperature 0, all n completions are the same, so one is generated.
        written = n if temperature else 1
        rows = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, list) for _ in range(written)]
        rows.sort(key=lambda place: len(prompts[place]))  # batches of similar length need little padding
        for number, places in enumerate(self._batches(rows, [window - len(prompt) - max_tokens for prompt in prompts])):
            most = min(max_tokens, window - max(len(prompts[place]) for place in places))
            allow = self._allow([fillings[place] for place in places], stop)
            texts = self._written([prompts[place] for place in places], most, temperature, allow, number)
            for place, tokens in zip(places, texts, strict=True):
                outcomes[place] = self._with(outcomes[place], len(prompts[place]), tokens, most, stop, fillings[place])
        return [completions * (n // written) for completions in settled(outcomes)]

    def _begun(self, prompt: list[int], filling: Filling | BadCompletion | None) -> Outcome:
        """An empty list of completions, or the reason why there can be none."""
        window = self._speaker.architecture.context
        if len(prompt) >= window:
            return BadCompletion(
                f"the conversation has {len(prompt)} tokens and {self.name} reads fewer than {window}; shorten it"
            )
        return filling if isinstance(filling, BadCompletion) else []

    def _batches(self, rows: list[int], spare: list[int]) -> Iterator[list[int]]:
        """Rows in batches; a row without room for max_tokens is alone, so that it does not shorten the others."""
        roomy = [place for place in rows if spare[place] >= 0]
        for start in range(0, len(roomy), self._batch):
            yield roomy[start : start + self._batch]
        yield from ([place] for place in rows if spare[place] < 0)

    def _filling(self, schema: Mapping[str, Any] | None) -> Filling | BadCompletion | None:
        if schema is None:
            return None
        if self._vocabulary is None:
            self._vocabulary = TokenVocabulary(self._speaker.tokenizer)
        key = json.dumps(schema, default=str)  # the order of properties counts: it is the order they are written in
        if key not in self._fillings:
            try:
                self._fillings[key] = Filling(self._vocabulary, schema, self._speaker.ends)
            except BadCompletion as error:
                return error
            if len(self._fillings) > _MAX_FILLINGS:
                self._fillings.popitem(last=False)
        self._fillings.move_to_end(key)
        return self._fillings[key]

    def _written(
        self, prompts: list[list[int]], most: int, temperature: float, allow: Allow | None, batch: int
    ) -> list[list[int]]:
        # The seed depends on the prompts of the batch; equal conversations in a batch are still sampled differently.
        digest = hashlib.blake2b(json.dumps([self._seed, batch, prompts]).encode(), digest_size=4).digest()
        seed = int.from_bytes(digest) >> 1
        ends: Collection[int] = self._speaker.ends
        return self._writer.write(prompts, most=most, temperature=temperature, end=ends, allow=allow, seed=seed)

    def _allow(self, fillings: Sequence[Filling | BadCompletion | None], stop: Sequence[str]) -> Allow | None:
        """The `allow` function of a batch: JSON of each row's schema, or anything up to a stop string."""
        until: Allow | None = self._until(stop) if stop else None
        rows: list[Allow | None] = [one.rows() if isinstance(one, Filling) else until for one in fillings]
        if not any(rows):
            return None

        def allow(row: int, written: Sequence[int]) -> Ints | None:
            allow_row = rows[row]
            return allow_row(row, written) if allow_row else None

        return allow

    def _until(self, stop: Sequence[str]) -> Allow:
        """An `allow` function that ends a row once its last tokens contain a stop string."""
        reach = max(len(word.encode()) for word in stop) + _TAIL

        def allow(row: int, written: Sequence[int]) -> Ints | None:
            return _NOTHING if cut(self._speaker.decode(written[-reach:]), stop)[1] else None

        return allow

    def _with(
        self,
        before: Outcome,
        read: int,
        tokens: list[int],
        most: int,
        stop: Sequence[str],
        filling: Filling | BadCompletion | None,
    ) -> Outcome:
        """The outcome of a conversation with one more completion."""
        if isinstance(before, BadCompletion):
            return before
        if isinstance(filling, Filling):
            try:
                text, whole = filling.text(tokens)
            except BadCompletion as error:
                return error
        else:
            text, stopped = cut(self._speaker.decode(tokens), stop)
            whole = stopped or len(tokens) < most
        return [*before, Completion(text, read, len(tokens), "stop" if whole else "length", cost=0.0)]
