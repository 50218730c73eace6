"""An encoder behind an OpenAI-compatible endpoint (POST …/embeddings): OpenAI, Ollama, vLLM, TEI and the like."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from toolscout.core.arrays import Floats, Ints
from toolscout.core.option_values import with_settings
from toolscout.errors import BadCompletion, BadRequest, EncoderUnavailable, EndpointError
from toolscout.llm import replies
from toolscout.llm.client import EndpointClient
from toolscout.llm.hosts import key_in_the_open
from toolscout.llm.http import HttpReply
from toolscout.llm.options import MOST, ConnectionOptions, check_connection, checked_url
from toolscout.models.encoders.base import TextEncoder

# The version of how this file cuts a text and what it sends; part of every fingerprint.
_RULES = 1
# English has about four characters a token; other scripts have more bytes.
_BYTES_PER_TOKEN = 4
# A text that a server refuses is cut in half, down to this many characters.
_SHORTEST = 200
_CHECKED_AS = "https://host/v1?model=NAME"


@dataclass(frozen=True, slots=True)
class EmbeddingOptions(ConnectionOptions):
    """How texts are sent to an embeddings endpoint, besides what all endpoints have.

    model: the name of the model.
    dimensions: how many numbers a vector has, for models that can be cut; 0 for as many as the model gives.
    request_prompt, document_prompt: what is put before a request or a document, such as "query: ".
    request_chars, document_chars: how many characters of a text are sent.
    batch: how many texts are sent at once.
    search_timeout: seconds within which a request must be encoded; after that, words alone are searched.
    rest: seconds for which an endpoint that did not answer a search is not asked again by searches.
    price, ceiling: the price of a million tokens, and the most that one add may cost; 0 sets no ceiling.
    """

    concurrency: int = 4
    model: str = ""
    dimensions: int = 0
    request_prompt: str = ""
    document_prompt: str = ""
    request_chars: int = 4_000
    document_chars: int = 2_000
    batch: int = 64
    search_timeout: float = 3.0
    rest: float = 10.0
    price: float = 0.0
    ceiling: float = 0.0


class EndpointEncoder(TextEncoder):
    """A model behind an embeddings endpoint. Safe to use from several threads; nothing is sent before it is needed."""

    remote = True

    def __init__(self, url: str, options: EmbeddingOptions) -> None:
        """Name the base URL (what stands before /embeddings). Raises BadRequest for bad options.

        Raises BadRequest also where a key would go over plain http to another machine.
        """
        self.url, self.options = checked_url(url), options
        _check(options)
        if problem := key_in_the_open(self.url, options.key_variable):
            raise BadRequest(problem)
        self.name = options.model
        self.fingerprint = _fingerprint(self.url, options)
        self._dimension = options.dimensions
        self._client = EndpointClient(self.url, options.model, options, "list of vectors", "data")
        self._left_out: set[str] = set()  # of what may be sent, what this server refused
        self._patient = False
        self._state = _State()

    @classmethod
    def open(cls, url: str, settings: Sequence[str]) -> Self:
        """Open an endpoint by its URL and settings as "key=value"; raises BadModel or BadRequest."""
        return cls(url, with_settings(EmbeddingOptions(), "an embeddings endpoint", settings))

    @property
    def dimension(self) -> int:
        """The length of a vector; the endpoint is asked where it is not known. Raises EncoderUnavailable."""
        if not (self._dimension or self._state.dimension):
            self.patient().encode_request("length")
        return self._dimension or self._state.dimension

    @dimension.setter
    def dimension(self, value: int) -> None:
        self._dimension = value

    def expect_dimension(self, dimension: int) -> None:
        """Take the length of vectors that it made before: another one is an error from now on, as of another model."""
        self._state.learn_dimension(dimension)

    def details(self) -> dict[str, Any]:
        """What the encoder is, beyond its length and fingerprint; None for what was not set."""
        return {
            "name": self.name,
            "kind": "endpoint",
            "url": self.url,
            "dimensions": self.options.dimensions or None,
            "request_prompt": self.options.request_prompt,
            "document_prompt": self.options.document_prompt,
            "request_chars": self.options.request_chars,
            "document_chars": self.options.document_chars,
            "batch": self.options.batch,
            "price": self.options.price or None,
            "ceiling": self.options.ceiling or None,
        }

    def patient(self) -> Self:
        """The same encoder, which waits for its answers as long as its timeout and retries say."""
        waiting = copy.copy(self)
        waiting._patient = True
        return waiting

    def encode_request(self, text: str) -> Floats:
        """The unit vector of one request; raises EncoderUnavailable where it does not come in time."""
        vector: Floats = self.encode([text])[0]
        return vector

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors of requests, one a row; raises EncoderUnavailable where they do not come in time."""
        cut = [self.options.request_prompt + text[: self.options.request_chars] for text in texts]
        if self._patient:
            rows = np.zeros((len(cut), 0), np.float32)
            for positions, vectors in self._stream(cut):
                rows = rows if rows.shape[1] else np.zeros((len(cut), vectors.shape[1]), np.float32)
                rows[positions] = vectors
            return rows
        self._state.check_awake()
        client = self._client.within(self.options.search_timeout)
        try:
            batches = [cut[start : start + self.options.batch] for start in range(0, len(cut), self.options.batch)]
            return np.concatenate([self._vectors(batch, client) for batch in batches])
        except EncoderUnavailable as error:
            self._state.rest(self.options.rest, str(error))
            raise

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        """Yield unit vectors of documents, batch by batch, as (positions in `texts`, vectors).

        Raises EncoderUnavailable where the endpoint fails, and before anything is sent where the texts would cost more
        than the ceiling.
        """
        cut = [self.options.document_prompt + text[: self.options.document_chars] for text in texts]
        expected = self._cost(sum(map(_tokens, cut)))
        if self.options.ceiling and expected > self.options.ceiling:
            raise EncoderUnavailable(
                f"embedding {len(texts):,} texts at {self.url} would cost about {expected:.2f}, and the ceiling is "
                f"{self.options.ceiling:g}: name the encoder with a higher ceiling=, or another encoder"
            )
        return self._stream(cut)

    def _stream(self, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        spent = _Spent()

        def work(start: int) -> tuple[Ints, Floats]:
            chunk = texts[start : start + self.options.batch]
            rows = self._vectors(chunk, self._client, spent)
            if self.options.ceiling and self._cost(spent.tokens) > self.options.ceiling:
                spent.over.set()
            return np.arange(start, start + len(chunk), dtype=np.int64), rows

        pool = ThreadPoolExecutor(self.options.concurrency, thread_name_prefix="toolscout-embeddings")
        pending: deque[Future[tuple[Ints, Floats]]] = deque()
        try:
            for start in range(0, len(texts), self.options.batch):
                if spent.over.is_set():
                    break
                pending.append(pool.submit(work, start))
                if len(pending) > 2 * self.options.concurrency:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
        if spent.over.is_set():
            raise EncoderUnavailable(
                f"embedding at {self.url} has cost {self._cost(spent.tokens):.2f}, above the ceiling of "
                f"{self.options.ceiling:g}: what was embedded is kept; name the encoder with a higher ceiling= to go on"
            )

    def _cost(self, tokens: int) -> float:
        return tokens * self.options.price / 1e6

    def _vectors(self, texts: Sequence[str], client: EndpointClient, spent: _Spent | None = None) -> Floats:
        """Unit vectors of one batch; a batch or text that the server finds too large is sent in halves."""
        if not texts:
            return np.zeros((0, self._dimension or self._state.dimension), np.float32)
        try:
            reply = client.ask("/embeddings", lambda: self._payload(texts), self._adapted)
        except BadCompletion as error:
            half = len(texts) // 2
            if half:
                parts = [self._vectors(part, client, spent) for part in (texts[:half], texts[half:])]
                return np.concatenate(parts)
            if len(texts[0]) > _SHORTEST:
                return self._vectors([texts[0][: len(texts[0]) // 2]], client, spent)
            raise EncoderUnavailable(str(error)) from None
        except EndpointError as error:
            raise EncoderUnavailable(str(error)) from None
        if spent is not None:
            spent.add(_used(reply, texts))
        return self._checked(_rows(reply, len(texts), self.url))

    def _checked(self, rows: Floats) -> Floats:
        """The rows as unit vectors of the length that is known; raises EncoderUnavailable."""
        if self.options.dimensions:
            if rows.shape[1] < self.options.dimensions:
                raise self._wrong(f"gave vectors of {rows.shape[1]} numbers, fewer than dimensions")
            rows = rows[:, : self.options.dimensions]
        known = self._state.learn_dimension(rows.shape[1])
        if rows.shape[1] != known:
            raise self._wrong(f"gave vectors of {rows.shape[1]} numbers after others of {known}: another model")
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or not (lengths > 0).all():
            raise self._wrong("gave a vector that is zero, or holds what is not a finite number")
        unit: Floats = (rows / lengths).astype(np.float32)
        return unit

    def _wrong(self, why: str) -> EncoderUnavailable:
        return EncoderUnavailable(f"{self.url} {why}; check its model {self.name!r}, or name another encoder")

    def _payload(self, texts: Sequence[str]) -> dict[str, Any]:
        optional: dict[str, Any] = {"encoding_format": "float"}
        if self.options.dimensions:
            optional["dimensions"] = self.options.dimensions
        kept = {key: value for key, value in optional.items() if key not in self._left_out}
        # Lone surrogates cannot be sent.
        return {"model": self.name, "input": [text.encode(errors="replace").decode() for text in texts], **kept}

    def _adapted(self, reply: HttpReply, payload: Mapping[str, Any]) -> bool:
        """Whether the server refused an optional parameter, which is then left out: vectors are cut here as well."""
        if reply.status not in (400, 422):
            return False
        said = replies.message(reply.body)
        for name in ("encoding_format", "dimensions"):
            if name in payload and (name in said or replies.parameter(reply.body) == name):
                self._left_out.add(name)
                return True
        return False


class _Spent:
    """Tokens that were sent in one call, counted by several threads; `over` is set once they cost too much."""

    def __init__(self) -> None:
        self.tokens = 0
        self.over = threading.Event()
        self._lock = threading.Lock()

    def add(self, tokens: int) -> None:
        with self._lock:
            self.tokens += tokens


class _State:
    """What all copies of an encoder share: the length of its vectors, and until when searches do not ask it."""

    def __init__(self) -> None:
        self.dimension = 0
        self._until, self._why = 0.0, ""
        self._lock = threading.Lock()

    def learn_dimension(self, found: int) -> int:
        """The length of the first vectors that came; the endpoint answers, so searches may ask it again."""
        with self._lock:
            self.dimension = self.dimension or found
            self._until = 0.0
            return self.dimension

    def rest(self, seconds: float, why: str) -> None:
        """Let no search ask for this many seconds."""
        with self._lock:
            self._until, self._why = time.monotonic() + seconds, why

    def check_awake(self) -> None:
        """Raise EncoderUnavailable, with the reason of the last failure, while no search may ask."""
        with self._lock:
            if time.monotonic() < self._until:
                raise EncoderUnavailable(self._why)


def _check(options: EmbeddingOptions) -> None:
    """Raise BadRequest for options that are not valid."""
    if not options.model:
        raise BadRequest(f"an embeddings endpoint needs the name of a model; write {_CHECKED_AS}")
    check_connection(options, options.model)
    counts = (options.batch, options.request_chars, options.document_chars, options.search_timeout)
    if not all(0 < one <= MOST for one in counts):
        raise BadRequest("batch, request_chars, document_chars and search_timeout of an endpoint have to be above 0")
    if not all(0 <= one <= MOST for one in (options.dimensions, options.rest, options.price, options.ceiling)):
        raise BadRequest("dimensions, rest, price and ceiling of an endpoint have to be 0 or more")
    if options.ceiling and not options.price:
        raise BadRequest("a ceiling needs the price of a million tokens; give price= too")


def _fingerprint(url: str, options: EmbeddingOptions) -> str:
    """A digest of all that a vector depends on, as far as it can be known here."""
    texts = (options.request_prompt, options.document_prompt, options.request_chars, options.document_chars)
    parts = ["endpoint", _RULES, url, options.model, options.dimensions, *texts]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _tokens(text: str) -> int:
    return -(-len(text.encode(errors="replace")) // _BYTES_PER_TOKEN)


def _used(reply: Mapping[str, Any], texts: Sequence[str]) -> int:
    """The tokens that a server says it has read; an estimate where it does not say."""
    usage = reply.get("usage")
    for key in ("prompt_tokens", "total_tokens"):
        if isinstance(usage, dict) and isinstance(usage.get(key), int) and usage[key] > 0:
            return int(usage[key])
    return sum(map(_tokens, texts))


def _rows(reply: Mapping[str, Any], count: int, url: str) -> Floats:
    """The vectors in a reply, in the order of the texts; raises EncoderUnavailable where they are not all there."""
    data = reply.get("data")
    if not isinstance(data, list) or len(data) != count:
        got = len(data) if isinstance(data, list) else 0
        raise EncoderUnavailable(
            f"{url} gave {got} vectors for {count} texts; send fewer at once (batch=), or look there"
        )
    try:
        places = [int(entry.get("index", place)) for place, entry in enumerate(data)]
        if sorted(places) != list(range(count)):
            raise ValueError("its places are not those of the texts")
        found = [_vector(entry["embedding"]) for entry in data]
        if len({len(vector) for vector in found}) != 1 or not len(found[0]):
            raise ValueError("its vectors are not of one length")
        rows = np.empty((count, len(found[0])), np.float32)
        rows[places] = np.stack(found)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise EncoderUnavailable(
            f"{url} answered with something that is no list of vectors ({error}); check that it is an embeddings model"
        ) from None
    return rows


def _vector(embedding: Any) -> Floats:
    """One vector, given as numbers or as the base64 of float32."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
    vector: Floats = np.asarray(embedding, dtype=np.float32)
    if vector.ndim != 1:
        raise ValueError("a vector is not a list of numbers")
    return vector
