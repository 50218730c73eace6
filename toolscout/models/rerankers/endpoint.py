"""A reranker behind an HTTP endpoint (POST …/rerank): Cohere, Jina, vLLM and the like, or text-embeddings-inference."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from toolscout.core.option_values import with_settings
from toolscout.errors import BadRequest
from toolscout.llm import replies
from toolscout.llm.client import EndpointClient
from toolscout.llm.hosts import key_in_the_open
from toolscout.llm.http import HttpReply
from toolscout.llm.options import MOST, ConnectionOptions, check_connection, checked_url
from toolscout.models.rerankers.base import Reranker

KEY_VARIABLE = "TOOLSCOUT_RERANK_KEY"
# The version of what this file sends; part of every fingerprint.
_RULES = 1
_TEI_BATCH = 32  # texts that text-embeddings-inference takes at once, unless it is told otherwise
_OPTIONAL = ("return_documents", "top_n", "truncate", "raw_scores")
_HIGHEST = 1e30  # a score beyond this, or one that is no number, is none
_NEAREST = 1e-6  # how near to 0 or 1 a probability is taken to be at most


@dataclass(frozen=True, slots=True)
class RerankEndpointOptions(ConnectionOptions):
    """How pairs are sent to an endpoint, besides what all endpoints have: URL?KEY=VALUE&….

    model: the name of the model.
    request_chars, document_chars: how many characters of a text are sent.
    """

    key_variable: str = KEY_VARIABLE
    model: str = ""
    request_chars: int = 2_000
    document_chars: int = 2_000


class EndpointReranker(Reranker):
    """A model behind a rerank endpoint. Safe to use from several threads; nothing is sent before it is needed.

    Scores from 0 to 1 are turned into log-odds, which most models computed first: near 0 and 1 they tell more apart.
    """

    remote = True
    visible_only = True
    deadline_ms = 1_000.0

    def __init__(self, url: str, options: RerankEndpointOptions) -> None:
        """Name the base URL (what stands before /rerank). Raises BadRequest for bad options.

        Raises BadRequest also where a key would go over plain http to another machine.
        """
        self.url, self.options = checked_url(url), options
        if not options.model:
            raise BadRequest("a rerank endpoint needs the name of a model; write https://host/v1?model=NAME")
        check_connection(options, options.model)
        if not all(0 < one <= MOST for one in (options.request_chars, options.document_chars)):
            raise BadRequest("request_chars and document_chars of an endpoint have to be above 0")
        if problem := key_in_the_open(self.url, options.key_variable):
            raise BadRequest(problem)
        self.name = options.model
        parts = ["rerank", _RULES, self.url, options.model, options.request_chars, options.document_chars]
        self.fingerprint = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
        self._client = EndpointClient(self.url, options.model, options, "list of scores", "results")
        self._takes_texts = False  # whether this server is one of text-embeddings-inference
        self._left_out: set[str] = set()  # of what may be sent, what this server refused

    @classmethod
    def open(cls, url: str, settings: Sequence[str]) -> Self:
        """Open an endpoint by its URL and settings as "key=value"; raises BadModel or BadRequest."""
        return cls(url, with_settings(RerankEndpointOptions(), "a rerank endpoint", settings))

    def score(self, request: str, documents: Sequence[str], deadline: float = math.inf) -> list[float | None]:
        """The score of each document; None where the answer has none that is a number.

        Raises EndpointError or BadCompletion where the endpoint does not answer, not in time, or refuses.
        """
        client = self._client if deadline == math.inf else self._client.within(deadline - time.monotonic())
        request = _sendable(request, self.options.request_chars)
        texts = [_sendable(text, self.options.document_chars) for text in documents]
        scores: list[float | None] = []
        while len(scores) < len(texts):
            start = len(scores)

            def payload(start: int = start) -> dict[str, Any]:
                return self._payload(request, texts[start : start + _TEI_BATCH] if self._takes_texts else texts[start:])

            reply = client.ask("/rerank", payload, self._adapted)
            count = len(texts) - start
            scores += _scores(reply, min(count, _TEI_BATCH) if self._takes_texts else count)
        return _log_odds(scores)

    def _payload(self, request: str, texts: Sequence[str]) -> dict[str, Any]:
        optional: dict[str, Any]
        if self._takes_texts:
            needed, optional = {"query": request, "texts": list(texts)}, {"raw_scores": True, "truncate": True}
        else:
            needed = {"model": self.name, "query": request, "documents": list(texts)}
            optional = {"top_n": len(texts), "return_documents": False}
        return {**needed, **{key: value for key, value in optional.items() if key not in self._left_out}}

    def _adapted(self, reply: HttpReply, payload: Mapping[str, Any]) -> bool:
        """Whether the server wants texts instead of documents, or refused an optional field, which is then left out."""
        if reply.status not in (400, 422):
            return False
        said = replies.message(reply.body)
        for name in _OPTIONAL:
            if name in payload and (name in said or replies.parameter(reply.body) == name):
                self._left_out.add(name)
                return True
        if "documents" in payload and "texts" in said:
            self._takes_texts = True
            return True
        return False


def _sendable(text: str, chars: int) -> str:
    return text[:chars].encode(errors="replace").decode()  # lone surrogates cannot be sent


def _scores(reply: Mapping[str, Any], count: int) -> list[float | None]:
    """The scores in a reply in the order of the documents; None where it has none, or one that is no number."""
    found: list[float | None] = [None] * count
    for entry in reply["results"]:
        if isinstance(entry, dict):
            place: Any = entry.get("index")
            score: Any = entry.get("relevance_score", entry.get("score"))
            placed = isinstance(place, int) and not isinstance(place, bool) and 0 <= place < count
            if placed and isinstance(score, int | float) and abs(score) < _HIGHEST:
                found[place] = float(score)
    return found


def _log_odds(scores: Sequence[float | None]) -> list[float | None]:
    """Log-odds of scores that all lie from 0 to 1; others as they are."""
    if not all(score is None or 0 <= score <= 1 for score in scores):
        return list(scores)
    clipped = [None if score is None else min(max(score, _NEAREST), 1 - _NEAREST) for score in scores]
    return [None if score is None else math.log(score / (1 - score)) for score in clipped]
