"""A language model that is no model: a byte-level tokeniser, and writers that draw at random or follow a text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Allow = Callable[[int, Sequence[int]], NDArray[np.int64] | None]
# What real vocabularies hold beside bytes: words, ends of strings run together with structure, pieces of JSON.
PIECES = [
    "Lisbon", " Lisbon", "city", "days", "unit", "celsius", "true", "false", "null", "and", " and", "12", "0.5", "caf",
    '"', '",', '"}', '"]', '", "', '": ', '": "', '{"', '."', '"]}', '"}}', ' "', "[]", "{}", "[{", "], ", '\\"',
    "\\\\", "a\\", ": ", ", ", "日", "é", "}}", "1,", '\n', "\\n",
]  # fmt: skip
END = "<|im_end|>"


def toy_tokenizer(pieces: Sequence[str] = PIECES) -> Tokenizer:
    """Every byte is a token, and so is every piece."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = ["".join(word for word, _ in level.pre_tokenize_str(piece)) for piece in pieces]
    vocabulary = {token: place for place, token in enumerate(dict.fromkeys([*letters, *spelled]))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], fuse_unk=False))
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return tokenizer


@dataclass
class Window:
    context: int = 2000
    parameters: int = 0


class ToySpeaker:
    name = "toy"

    def __init__(self, context: int = 2000) -> None:
        self.tokenizer = toy_tokenizer()
        self.ends = frozenset([self.tokenizer.token_to_id(END)])
        self.architecture = Window(context)

    def chat(self, messages: Sequence[tuple[str, str]], open_turn: bool = True) -> list[int]:
        text = "".join(f"{role}: {content}\n" for role, content in messages)
        return list(self.tokenizer.encode(text + "assistant: " * open_turn).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))


class RandomWriter:
    """Writes any allowed token; `favour` are tokens that it likes better. Keeps what it was asked."""

    def __init__(self, vocabulary: int, favour: Sequence[int] = ()) -> None:
        self.vocabulary, self.favour = vocabulary, np.array(favour, np.int64)
        self.batches: list[list[list[int]]] = []
        self.seeds: list[int] = []

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        most: int,
        temperature: float = 0.0,
        end: Collection[int] = (),
        allow: Allow | None = None,
        seed: int = 0,
    ) -> list[list[int]]:
        self.batches.append([list(prompt) for prompt in prompts])
        self.seeds.append(seed)
        # Without temperature what is written depends on nothing but the prompt.
        found = []
        for row, prompt in enumerate(prompts):
            rng = np.random.default_rng([seed, row] if temperature else list(prompt))
            written: list[int] = []
            while len(written) < most:
                allowed = allow(row, tuple(written)) if allow else None
                choices = np.arange(self.vocabulary) if allowed is None else allowed
                if not len(choices):
                    break
                liked = np.intersect1d(choices, self.favour)
                token = int(rng.choice(liked if len(liked) and rng.random() < 0.5 else choices))
                if token in end:
                    break
                written.append(token)
            found.append(written)
        return found


class Follower:
    """Wants to write given texts, one for each prompt in turn: the longest allowed token that goes on with its text."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        from toolscout.llm.constrained_json.filling import TokenVocabulary

        self.bytes_of = TokenVocabulary(tokenizer).bytes_of
        self.texts = list(texts)

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        most: int,
        temperature: float = 0.0,
        end: Collection[int] = (),
        allow: Allow | None = None,
        seed: int = 0,
    ) -> list[list[int]]:
        found = []
        for row, _ in enumerate(prompts):
            left, written = self.texts.pop(0).encode(), list[int]()
            while len(written) < most:
                allowed = allow(row, tuple(written)) if allow else None
                choices = list(self.bytes_of) if allowed is None else [int(token) for token in allowed]
                fitting = [token for token in choices if left.startswith(self.bytes_of.get(token, b"\0"))]
                if not choices or (not fitting and (not left or set(choices) & set(end))):
                    break
                token = max(fitting, key=lambda one: len(self.bytes_of[one])) if fitting else min(choices)
                left = left[len(self.bytes_of[token]) :] if fitting else left
                written.append(token)
            found.append(written)
        return found
