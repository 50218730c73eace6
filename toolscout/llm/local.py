"""A language model on this machine: any Writer and its tokeniser, SmolLM2 by default."""

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
from toolscout.models.decoding.constrained import TextWriter
from toolscout.models.language.open import device_name

if TYPE_CHECKING:
    from toolscout.models.language.base import Base
    from toolscout.models.language.lora import Adapter

_MAX_FILLINGS = 1024
_ON_CPU, _ON_DEVICE = 16, 1024  # rows that are written at once; a device cuts what does not fit into its memory
_TAIL = 8  # tokens that are read again for a stop string, beside those it may take itself
_NOTHING = np.empty(0, np.int64)


class _Window(Protocol):
    @property
    def context(self) -> int:
        """Tokens that fit into the model, prompt and answer together."""

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""


class ChatModel(Protocol):
    """What is needed of a base language model beside its weights; models.language.base.Base is one."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokens as text."""

    @property
    def ends(self) -> Collection[int]:
        """The tokens that end what it writes."""

    @property
    def architecture(self) -> _Window:
        """Its sizes."""

    def chat(self, messages: Sequence[tuple[str, str]], open_turn: bool = True) -> list[int]:
        """A conversation as tokens, the assistant to speak next."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""


Prompt = Callable[[Conversation], list[int]]
"""A conversation as tokens, the assistant to speak next."""
_Allow = Callable[[int, Sequence[int]], Ints | None]


class Local(LanguageModel):
    """Completes conversations with a model that is held in memory. The same call gives the same answer."""

    def __init__(
        self,
        writer: TextWriter,
        speaker: ChatModel,
        *,
        batch: int | None = None,
        seed: int = 0,
        prompt: Prompt | None = None,
    ) -> None:
        """Take the model's two halves; `batch` rows are written at once, `seed` decides what is drawn.

        `prompt` is for a model that reads more than text: by default the speaker chats what messages say.
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
        """Serve a base language model, with what a training learned where there is an `adapter`."""
        from toolscout.models.language.base import TokenTable
        from toolscout.models.language.open import open_engine

        weights = base.weights()
        if adapter is not None:
            weights = adapter.applied(base.architecture, weights)
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
        """n completions of each conversation; with a `schema` the model can write nothing that does not fit it.

        A conversation that leaves no room in the model's window has no completion: it raises BadCompletion, once the
        others are done. `stop` does not apply inside of JSON.
        """
        check_call(conversations, n, temperature, max_tokens, stop)
        fillings = [self._filling(one) for one in each_schema(schema, len(conversations))]
        prompts = [self._prompt(messages) for messages in conversations]
        window = self._speaker.architecture.context
        outcomes = [self._begun(prompt, filling) for prompt, filling in zip(prompts, fillings, strict=True)]
        # The likeliest words are the same each time: they are written once.
        written = n if temperature else 1
        rows = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, list) for _ in range(written)]
        rows.sort(key=lambda place: len(prompts[place]))  # of like length, so that little is padded
        for number, places in enumerate(self._batches(rows, [window - len(prompt) - max_tokens for prompt in prompts])):
            most = min(max_tokens, window - max(len(prompts[place]) for place in places))
            allow = self._allow([fillings[place] for place in places], stop)
            texts = self._written([prompts[place] for place in places], most, temperature, allow, number)
            for place, tokens in zip(places, texts, strict=True):
                outcomes[place] = self._with(outcomes[place], len(prompts[place]), tokens, most, stop, fillings[place])
        return [completions * (n // written) for completions in settled(outcomes)]

    def _begun(self, prompt: list[int], filling: Filling | BadCompletion | None) -> Outcome:
        """No completion yet, or why there can be none."""
        window = self._speaker.architecture.context
        if len(prompt) >= window:
            return BadCompletion(
                f"the conversation has {len(prompt)} tokens and {self.name} reads fewer than {window}; shorten it"
            )
        return filling if isinstance(filling, BadCompletion) else []

    def _batches(self, rows: list[int], spare: list[int]) -> Iterator[list[int]]:
        """Rows by batches; one whose answer has little room is written alone, so that it cuts no other short."""
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
        self, prompts: list[list[int]], most: int, temperature: float, allow: _Allow | None, batch: int
    ) -> list[list[int]]:
        # Drawn by what is read: two equal conversations in one batch still draw differently.
        digest = hashlib.blake2b(json.dumps([self._seed, batch, prompts]).encode(), digest_size=4).digest()
        seed = int.from_bytes(digest) >> 1
        ends: Collection[int] = self._speaker.ends
        return self._writer.write(prompts, most=most, temperature=temperature, end=ends, allow=allow, seed=seed)

    def _allow(self, fillings: Sequence[Filling | BadCompletion | None], stop: Sequence[str]) -> _Allow | None:
        """What each row of a batch may write: JSON of its own schema, or anything up to a stop string."""
        until: _Allow | None = self._until(stop) if stop else None
        rows: list[_Allow | None] = [one.rows() if isinstance(one, Filling) else until for one in fillings]
        if not any(rows):
            return None

        def allow(row: int, written: Sequence[int]) -> Ints | None:
            own = rows[row]
            return own(row, written) if own else None

        return allow

    def _until(self, stop: Sequence[str]) -> _Allow:
        """Ends a row once it holds a stop string; only its last tokens are looked at."""
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
        """A conversation's outcome with one more completion."""
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
