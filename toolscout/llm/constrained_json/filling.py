"""Gives, at each step, the tokens with which a local model can go on writing JSON that fits a schema."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from toolscout.core.argument_checks import value_problems
from toolscout.core.arrays import Ints
from toolscout.errors import BadCompletion
from toolscout.llm.constrained_json.grammar import ESCAPED, Grammar, State, States, Text, after

Allow = Callable[[int, Sequence[int]], Ints]

_MAX_KEPT = 4096  # the most states whose tokens are cached
_CLOSERS = b'"}]'
_ROUNDS, _LONGEST_ROUND = 4, 12  # a string is closed after this many repetitions, over at least this many tokens
_PLAIN = re.compile(rb'[^\x00-\x1f"\\]*')


class TokenVocabulary:
    """The tokens of a tokeniser as bytes, with lists of those that can stand inside a string or close it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the vocabulary, without special tokens."""
        self.bytes_of = _bytes_of_tokens(tokenizer)
        ordered = sorted((text, token) for token, text in self.bytes_of.items())
        self.texts = [text for text, _ in ordered]
        self.ids = [token for _, token in ordered]
        self.escapes = np.array([token for text, token in ordered if len(text) == 1 and text[0] in ESCAPED], np.int64)
        inside = [(token, count) for text, token in ordered if (count := _characters(text)) is not None]
        self.inside = np.array([token for token, _ in inside], np.int64)
        self.inside_characters = np.array([count for _, count in inside], np.int64)
        self.closing: list[tuple[int, int, bytes]] = []  # a token, its characters before the quote, what follows it
        for text, token in ordered:
            for place in (place for place, byte in enumerate(text) if byte == _CLOSERS[0]):
                state = _read(text[:place])
                if state and not state.pending and not state.escaped:
                    self.closing.append((token, state.count, text[place + 1 :]))
                    break
        self.widest = max([*map(int, self.inside_characters), *(count for _, count, _ in self.closing)], default=0)


class Filling:
    """Constrains the tokens of one vocabulary to JSON that fits one schema."""

    def __init__(self, vocabulary: TokenVocabulary, schema: Mapping[str, Any], ends: Collection[int] = ()) -> None:
        """Prepare the schema; `ends` are the tokens that end a text. Raises BadCompletion if no JSON can fit."""
        self._vocabulary, self._schema = vocabulary, schema
        self._grammar = Grammar(schema)
        self._ends = np.array(sorted(ends), np.int64)
        self._known: dict[States, Ints] = {}
        self._closers: dict[State, tuple[Ints, Ints]] = {}
        self._inside: dict[State, Ints] = {}
        if not self._grammar.start:
            raise BadCompletion("no JSON can fit this schema; check its enum, const, minimum and maximum")

    def rows(self) -> Allow:
        """A function for the `allow` of `TextWriter.write`: the tokens that may follow what a row has written."""
        reached: dict[int, tuple[int, States]] = {}

        def allow(row: int, written: Sequence[int]) -> Ints:
            count, states = reached.get(row, (0, self._grammar.start))
            if count > len(written):
                count, states = 0, self._grammar.start
            states = self._reached(states, written[count:])
            reached[row] = (len(written), states)
            text = states[0] if len(states) == 1 else None
            if isinstance(text, Text) and not text.pending and not text.escaped and _goes_round(written):
                closers = self._allowed_inside(text, only_closers=True)
                return closers if len(closers) else self._allowed(states)
            return self._allowed(states)

        return allow

    def text(self, written: Sequence[int]) -> tuple[str, bool]:
        """The written tokens as JSON text that fits the schema, and whether the model finished it.

        Where the text was cut off, open strings, arrays and objects are closed. Raises BadCompletion where a required
        value is missing, or a rule is broken that is only checked at the end (pattern, uniqueItems).
        """
        states = self._reached(self._grammar.start, written)
        whole = None in states
        while any(isinstance(state, Text) and (state.pending or state.escaped) for state in states):
            written = written[:-1]  # half a character
            states = self._reached(self._grammar.start, written)
        content = b"".join(self._vocabulary.bytes_of[token] for token in written)
        while None not in states:
            byte = next((byte for byte in self._ending(states) if self._grammar.step(states, byte)), None)
            if byte is None:
                shown = content.decode(errors="replace")[-80:]
                raise BadCompletion(f"the JSON was cut off before it was whole, at: {shown}; raise max_tokens")
            content += bytes([byte])
            states = self._grammar.step(states, byte)
        text = content.decode(errors="replace")
        found = value_problems(json.loads(text), self._schema)
        if found:
            raise BadCompletion(f"the model's JSON does not fit: {'; '.join(found[:5])}; ask again or relax the schema")
        return text, whole

    def _reached(self, states: States, tokens: Sequence[int]) -> States:
        for token in tokens:
            for byte in self._vocabulary.bytes_of.get(token, b"\x00"):
                states = self._grammar.step(states, byte)
        return states

    def _ending(self, states: States) -> list[int]:
        """Bytes that close what is open, without adding values."""
        inside = [state for state in states if isinstance(state, Text)]
        if inside:
            return [_CLOSERS[0]] if inside[0].count else []
        begun = self._grammar.begun(states)
        return [*_CLOSERS[1:], *(begun if len(begun) == 1 else ())]

    def _allowed(self, states: States) -> Ints:
        if len(states) == 1 and isinstance(states[0], Text) and not states[0].pending:
            return self._allowed_inside(states[0])  # not cached: the count of characters differs each time
        if states not in self._known:
            if len(self._known) >= _MAX_KEPT:
                self._known.clear()
            plain = [state for state in states if isinstance(state, Text) and not state.pending]
            parts = [self._allowed_inside(state) for state in plain]
            found: list[int] = []
            others = tuple(state for state in states if state is not None and state not in plain)
            self._walk(others, b"", 0, len(self._vocabulary.texts), found)
            parts.append(np.array(found, np.int64))
            if None in states and len(states) > 1:  # if None is the only state, the text is complete
                parts.append(self._ends)
            self._known[states] = np.unique(np.concatenate(parts))
        return self._known[states]

    def _allowed_inside(self, state: Text, only_closers: bool = False) -> Ints:
        vocabulary = self._vocabulary
        if state.escaped:
            return vocabulary.escapes
        left = state.most - state.count
        fits = left >= vocabulary.widest
        if fits and state.count >= state.least and not only_closers:
            return self._anything_inside(state.rest)
        inside = vocabulary.inside if fits else vocabulary.inside[vocabulary.inside_characters <= left]
        closers, characters = self._closers_before(state.rest)
        closes = (characters <= left) & (characters + state.count >= state.least)
        return closers[closes] if only_closers else np.concatenate([inside, closers[closes]])

    def _anything_inside(self, rest: State) -> Ints:
        """The tokens for a string that is neither too short nor nearly too long; the same array each time."""
        if rest not in self._inside:
            self._inside[rest] = np.concatenate([self._vocabulary.inside, self._closers_before(rest)[0]])
        return self._inside[rest]

    def _closers_before(self, rest: State) -> tuple[Ints, Ints]:
        """The tokens that close a string and fit what follows it, and their numbers of characters before the quote."""
        if rest not in self._closers:
            following = self._grammar.opened(rest)
            good: dict[bytes, bool] = {}
            for _, _, tail in self._vocabulary.closing:
                if tail not in good:
                    states = following
                    for byte in tail:
                        states = self._grammar.step(states, byte)
                    good[tail] = bool(states)
            fitting = [(token, before) for token, before, tail in self._vocabulary.closing if good[tail]]
            pairs = np.array(fitting, np.int64).reshape(-1, 2)
            self._closers[rest] = pairs[:, 0], pairs[:, 1]
        return self._closers[rest]

    def _walk(self, states: States, prefix: bytes, low: int, high: int, found: list[int]) -> None:
        """Add to `found` the tokens from low to high, all of which begin with `prefix`, that these states accept."""
        texts = self._vocabulary.texts
        while low < high and len(texts[low]) == len(prefix):
            found.append(self._vocabulary.ids[low])
            low += 1
        viable = self._grammar.viable(states)
        while low < high:
            byte = texts[low][len(prefix)]
            if viable is not None:
                byte = min((one for one in viable if one >= byte), default=256)
                if byte == 256:
                    return
            begun = prefix + bytes([byte])
            low = bisect_left(texts, begun, low, high)
            end = bisect_left(texts, prefix + bytes([byte + 1]), low, high) if byte < 255 else high
            if low < end and (following := self._grammar.step(states, byte)):
                self._walk(following, begun, low, end, found)
            low = end


def _goes_round(written: Sequence[int]) -> bool:
    """Whether the last tokens repeat the same few, a loop that small models do not leave by themselves."""
    for period in range(1, _LONGEST_ROUND + 1):
        span = period * max(_ROUNDS, -(-_LONGEST_ROUND // period))
        tail = list(written[-span:])
        if len(tail) == span and tail[period:] == tail[:-period]:
            return True
    return False


def _characters(text: bytes) -> int | None:
    """The number of characters of a token inside a string; None if it cannot stand there."""
    if _PLAIN.fullmatch(text):  # nearly all of them
        with suppress(UnicodeDecodeError):
            return len(text.decode())
    state = _read(text)
    return state.count if state else None


def _read(text: bytes) -> Text | None:
    """The state after these bytes at the start of a string; None if they are not allowed there, or close it."""
    state: State = Text(0, len(text), None)
    for byte in text:
        state = next(after(state, byte), None)
    return state if isinstance(state, Text) else None


def _bytes_of_tokens(tokenizer: Tokenizer) -> dict[int, bytes]:
    described = json.loads(tokenizer.to_str())
    byte_level = "ByteLevel" in json.dumps([described.get("decoder"), described.get("pre_tokenizer")])
    added = {token["id"]: token for token in described.get("added_tokens", ())}
    letters = _letters()
    found: dict[int, bytes] = {}
    for token, number in tokenizer.get_vocab(with_added_tokens=True).items():
        if number in added:
            text = b"" if added[number]["special"] else token.encode()
        elif byte_level:
            text = bytes(letters.get(letter, 0) for letter in token)
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            text = bytes([int(token[3:5], 16)])
        else:
            text = token.replace("▁", " ").encode()
        if text:
            found[number] = text
    return found


def _letters() -> dict[str, int]:
    """The letters that byte-level tokenisers use for bytes: printable bytes as they are, others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
