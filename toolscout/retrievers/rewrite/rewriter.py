"""Writes search queries for requests with a language model, in one or several rounds, or by rules."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple, get_args

from toolscout.core.answer import Allowed, Cost
from toolscout.core.scope import Scope
from toolscout.core.targets import is_address
from toolscout.core.tool import Searchable
from toolscout.errors import BadModel
from toolscout.index.exact_names import EXACT_BONUS
from toolscout.index.recent import Recent
from toolscout.llm.base import Message
from toolscout.llm.finetuned import is_finetuned, read_finetuned
from toolscout.retrievers.base import Options, Pairs
from toolscout.retrievers.rewrite import query_text
from toolscout.retrievers.rewrite.llm_writer import QueryWriter, WritingSession, WrittenText
from toolscout.training.text_options import AlignmentOptions, TextTrainingOptions

RULES = "rules"
TASK = "describe"  # the task of a fine-tuned model that can be used here
_FOUND = 5  # tools shown to the model before its next round
_CALLERS_KEPT = 64


@dataclass(frozen=True, slots=True)
class RewriteOptions(TextTrainingOptions, AlignmentOptions, Options):
    """Who writes queries, of what form, and for which requests; the inherited options say how a model is fine-tuned.

    llm: "" for the fine-tuned model, or SmolLM2 if there is none; "rules" to split requests without a model; a folder;
        or the URL of an endpoint.
    model, cache, offline, timeout, concurrency, requests_per_minute (0: no limit), input_price, output_price: of an
        endpoint. `cache` is a file, saved with a model only if it is in its folder; with `offline` its answers alone
        are used, and nothing is sent; `timeout` is in seconds for all calls of one search; prices are per million
        tokens.
    form: "describe" the tools needed; "decompose" the request into sub-requests; "iterate": describe, look at the
        tools found, and write more, for `rounds` in all.
    queries: the most queries in one round.
    examples: how many tools of the catalogue show a model that was not fine-tuned what descriptions look like; with 0
        it is prompted without examples.
    target_words: the words about each gold tool that a model is fine-tuned to write, 24 at most; 0 for the whole of its
        description. A generator that was fine-tuned with 0 and is used over another retriever needs it there too.
    utterance: whether the request itself is searched too.
    share: the share of requests that are rewritten, those with the highest predicted gain.
    request_words: a longer request is cut for the model, but not for the search.
    depth: how many tools of each ranking are fused.
    """

    llm: str = ""
    model: str = ""
    cache: str = ""
    offline: bool = False
    timeout: float = 20.0
    concurrency: int = 8
    requests_per_minute: float = 0.0
    input_price: float = 0.0
    output_price: float = 0.0
    form: query_text.Form = "describe"
    queries: int = 4
    examples: int = 6
    target_words: int = 16
    utterance: bool = True
    rounds: int = 2
    share: float = 1.0
    temperature: float = 0.0
    request_words: int = 120
    depth: int = 100

    def __post_init__(self) -> None:
        """Raise BadModel for values out of range."""
        TextTrainingOptions.__post_init__(self)
        AlignmentOptions.__post_init__(self)
        if self.form not in get_args(query_text.Form) or not 0 <= self.share <= 1 or not 0 <= self.temperature <= 100:
            raise BadModel(
                f"form must be one of {', '.join(get_args(query_text.Form))}, share from 0 to 1, temperature 0 or more"
            )
        if min(self.queries, self.rounds, self.request_words, self.depth) < 1 or self.examples < 0:
            raise BadModel("queries, rounds, request_words and depth must be at least 1, examples 0 or more")
        if not 0 <= self.target_words <= query_text.SHOWN_WORDS:
            raise BadModel(f"target_words must be from 0 to {query_text.SHOWN_WORDS}, got {self.target_words}")
        if (self.model or self.cache or self.offline) and not is_address(self.llm):
            raise BadModel("model, cache and offline are for an endpoint; name its URL, such as llm=https://host/v1")
        if not (self.timeout > 0 and self.concurrency > 0):
            raise BadModel("timeout and concurrency must be above 0")
        if not min(self.requests_per_minute, self.input_price, self.output_price) >= 0:
            raise BadModel("requests_per_minute and prices must be 0 or more")


class WrittenQueries(NamedTuple):
    """The queries written for a request; if there are none, the reason, if the user should know it."""

    queries: tuple[str, ...] = ()
    problem: str = ""
    cost: Cost = Cost()


Find = Callable[[Sequence[str], Sequence[WrittenQueries], int], Sequence[Iterable[str]]]
"""Finds the best k tools of each request, given the queries of each."""


class Rewriter:
    """Writes queries. It holds a one-line description of each tool, to show to a model."""

    def __init__(self, options: RewriteOptions, home: Path | None = None) -> None:
        """Open an endpoint; other models are opened on first use. `home`: the model folder of the options, if any."""
        self.options, self.taught = options, describes(options.llm)
        prices = (options.input_price, options.output_price)
        self.author = QueryWriter(
            options.llm,
            options.model,
            cache=inside(home, options.cache) if home and options.cache else options.cache,
            offline=options.offline,
            timeout=options.timeout,
            concurrency=options.concurrency,
            requests_per_minute=options.requests_per_minute or None,
            prices=prices if any(prices) else None,
            seed=options.seed,
            from_folder=home is not None,
        )
        self.texts: dict[str, str] = {}
        self._examples: Recent[tuple[Allowed | None, int], list[str]] = Recent(_CALLERS_KEPT)
        self._lock = threading.Lock()

    def add(self, tools: Sequence[Searchable]) -> None:
        """Add tools."""
        self.know({tool.id: query_text.described(tool) for tool in tools})

    def know(self, texts: Mapping[str, str]) -> None:
        """Add tools by their one-line descriptions."""
        with self._lock:
            self.texts.update(texts)
            self._examples = Recent(_CALLERS_KEPT)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove tools."""
        with self._lock:
            for tool_id in ids:
                self.texts.pop(tool_id, None)
            self._examples = Recent(_CALLERS_KEPT)

    def prompt(self, request: str, examples: Sequence[str] = ()) -> list[Message]:
        """The first prompt for the model."""
        text = query_text.shortened(request, self.options.request_words)
        if self.taught:
            return query_text.learned_prompt(text)
        return query_text.first_prompt(self.options.form, text, self.options.queries, examples)

    def asked(self, requests: Sequence[str], scope: Scope, find: Find) -> list[WrittenQueries]:
        """Write queries for each request, in one batch; `find` searches between the rounds of "iterate"."""
        options = self.options
        if options.llm == RULES:
            return [WrittenQueries(query_text.split(request, options.queries)) for request in requests]
        shown = [] if self.taught or options.form == "decompose" else self._drawn(scope.sees)
        session = self.author.session(scope.endpoints)
        texts = self._write(session, [self.prompt(one, shown) for one in requests])
        written, costs = self._parsed(requests, texts, shown), [one.cost for one in texts]
        # If the answer copied an example of the catalogue, ask again without examples: the copy may be an attempt
        # to steer the search, or may be what is needed.
        again = [place for place, one in enumerate(written) if one.copied]
        texts = self._write(session, [self.prompt(requests[place]) for place in again])
        retried = self._parsed([requests[place] for place in again], texts, ())
        for place, text, one in zip(again, texts, retried, strict=True):
            written[place] = one if one.queries or not written[place].queries else written[place]
            costs[place] += text.cost
        asked = [WrittenQueries(one.queries, one.problem, cost) for one, cost in zip(written, costs, strict=True)]
        if options.form == "iterate":
            self._iterate(session, requests, asked, find)
        return asked

    def parsed(self, text: str, request: str, shown: Sequence[str] = ()) -> query_text.ParsedQueries:
        """The queries in what the model wrote; one that was fine-tuned on whole descriptions writes long ones."""
        long = self.taught and not self.options.target_words
        return query_text.parsed(text, request, self.options.queries, shown, long=long)

    def _write(self, session: WritingSession, prompts: Sequence[list[Message]]) -> list[WrittenText]:
        return session.write(prompts, self.options.temperature, self.options.max_tokens) if prompts else []

    def _parsed(
        self, requests: Sequence[str], texts: Sequence[WrittenText], shown: Sequence[str]
    ) -> list[query_text.ParsedQueries]:
        return [
            query_text.ParsedQueries((), one.problem) if one.problem else self.parsed(one.text, request, shown)
            for request, one in zip(requests, texts, strict=True)
        ]

    def _iterate(
        self, session: WritingSession, requests: Sequence[str], asked: list[WrittenQueries], find: Find
    ) -> None:
        """Show the model the tools found so far and let it write more queries, until it adds none."""
        most, words = self.options.queries, self.options.request_words
        active = [place for place, one in enumerate(asked) if not one.problem]
        for _ in range(self.options.rounds - 1):
            due = [requests[place] for place in active]
            tools = find(due, [asked[place] for place in active], _FOUND) if due else []
            shown = [[self.texts.get(tool_id, "") for tool_id in few] for few in tools]
            prompts = [
                query_text.next_prompt(query_text.shortened(request, words), most, few)
                for request, few in zip(due, shown, strict=True)
            ]
            going = []
            for place, one, few in zip(active, self._write(session, prompts), shown, strict=True):
                more = () if one.problem else self.parsed(one.text, requests[place], few).queries
                wider = tuple(dict.fromkeys([*asked[place].queries, *more]))
                if len(wider) > len(asked[place].queries):
                    going.append(place)
                asked[place] = WrittenQueries(wider, cost=asked[place].cost + one.cost)
            active = going

    def _drawn(self, allowed: Allowed | None) -> list[str]:
        """Descriptions of tools that the caller may see, as examples; always the same ones for a catalogue."""
        key = (allowed, self.options.examples)
        with self._lock:
            examples = self._examples.get(key)
            if examples is None:
                seen = (tool_id for tool_id in self.texts if allowed is None or allowed.permits(tool_id))
                chosen = nsmallest(key[1], seen, key=lambda one: (zlib.crc32(one.encode()), one))
                examples = [self.texts[tool_id] for tool_id in chosen]
                self._examples.keep(key, examples)
            return examples


def owners(alone: Pairs, lists: Mapping[str, Pairs], utterance: bool, most: int | None = None) -> dict[str, str]:
    """Interleave the rankings of the request (`alone`) and of its queries, after the tools that the request names.

    Returns each tool with the query that ranks it highest: "" for the request, which wins for tools that it names.
    `utterance`: whether the request's own ranking takes part. `most`: how many tools to interleave; None for all.
    """
    if utterance or not lists:
        lists = {**lists, "": alone}
    named = _named(alone)
    rankings = {query: [tool_id for tool_id, _ in ranking] for query, ranking in lists.items()}
    found = dict.fromkeys(named, (0, ""))
    for query, ranking in rankings.items():
        for place, tool_id in enumerate(ranking, 1):
            if place < found.get(tool_id, (place + 1, ""))[0]:
                found[tool_id] = (place, query)
    in_turn = [rankings.pop("")] if "" in rankings else []
    order = query_text.interleaved([*in_turn, *rankings.values()], len(found) if most is None else most)
    return {tool_id: found[tool_id][1] for tool_id in [*named, *order]}


def placed(ids: Sequence[str], alone: Pairs) -> Pairs:
    """Tools in this order; scores follow from the position and from whether the request names the tool."""
    bonus = dict.fromkeys(_named(alone), EXACT_BONUS)
    return [(tool_id, bonus.get(tool_id, 0.0) + 1 / (1 + place)) for place, tool_id in enumerate(ids, 1)]


def _named(ranking: Pairs) -> list[str]:
    return [tool_id for tool_id, score in ranking if score >= EXACT_BONUS]


def inside(home: Path, name: str) -> str:
    """The path of a file in a model folder. Raises BadModel if it lies elsewhere, links followed."""
    try:
        root = home.resolve()
        place = (root / name).resolve()
    except (OSError, ValueError, RuntimeError):  # a name that cannot be one, or links in a circle
        place = root = home
    if Path(name).is_absolute() or place == root or not place.is_relative_to(root):
        raise BadModel(
            f"{home} names a file outside of its folder as cache ({name!r:.200}), which a model may not write; "
            "take cache out of its model.json, or name a file in the folder"
        )
    return str(place)


def describes(llm: str) -> bool:
    """Whether this is a model fine-tuned to describe tools. Raises BadModel if it was fine-tuned for another task."""
    if not is_finetuned(llm):
        return False
    task = read_finetuned(llm).get("task")
    if task != TASK:
        raise BadModel(
            f"{llm} was fine-tuned for another task ({task!r:.40}), not to describe the tools that a request needs; "
            "name the folder generator/ of a model that toolscout train --retriever rewrite made"
        )
    return True
