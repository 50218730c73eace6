"""Aligns a language model with a retriever: samples texts, searches with them, and trains on those that find more.

Each round samples from the model as the round before left it. Torch is imported inside functions only.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolscout.core.arrays import Doubles
from toolscout.data import metrics
from toolscout.errors import BadDataset, BadModel
from toolscout.llm.base import Conversation
from toolscout.llm.finetuned import is_finetuned, read_finetuned
from toolscout.retrievers.base import FitProgress
from toolscout.training.text_options import AlignmentOptions, TextTrainingOptions

if TYPE_CHECKING:
    from toolscout.training.text_generation import ScoredTexts, TrainableWriter

_K = 5
_DEPTH = 100  # with the reward "rank", a tool that was not found counts as if ranked just behind this
_LOOKED_AT = 50  # requests whose rankings identify the retriever
_DEV_REQUESTS = 500  # used to evaluate each round
_PLATEAU = 0.002  # smaller gains on dev count as a plateau
_COPIED = 0.8  # a query with this share of its words in the request repeats the request
_WORD = re.compile(r"\w+")
_FOLDER = "align-{}"
_DRAWN = "drawn.json"


@dataclass(frozen=True, slots=True)
class LabelledRequests:
    """Requests, the gold tools of each, and the number of the dataset that each belongs to (`homes`)."""

    requests: Sequence[str]
    gold: Sequence[Collection[str]]
    homes: Sequence[int]


@dataclass(frozen=True, slots=True)
class RankingSteps:
    """The steps from requests to rankings.

    prompts: makes prompts of requests.
    parse: takes a request and a generated text, and gives the queries in the text.
    ask: takes requests, their queries and their datasets, and ranks tools for each.
    documents: the texts of all tools.
    """

    prompts: Callable[[Sequence[str]], list[Conversation]]
    parse: Callable[[str, str], list[str]]
    ask: Callable[[Sequence[str], Sequence[Sequence[str]], Sequence[int]], list[list[str]]]
    documents: Sequence[str]


def align(
    model: TrainableWriter,
    train: LabelledRequests,
    dev: LabelledRequests | None,
    means: RankingSteps,
    options: AlignmentOptions,
    generating: TextTrainingOptions,
    folder: Path,
    *,
    about: Mapping[str, Any] | None = None,
    progress: FitProgress | None = None,
) -> list[dict[str, Any]]:
    """Run all rounds; returns a record of each, the first of the model before alignment.

    The model ends in the state of the round that is best on dev (of the last one without dev) and is saved in the
    folder. An interrupted alignment continues where it was. Raises BadDataset if no request has gold tools.
    """
    from toolscout.training.text_generation import TRAINING, forget

    aligning = _Alignment(model, means, options.with_preset(), generating, folder / TRAINING)
    history = aligning.run(_with_gold(train), _with_gold(dev) if dev else None, progress)
    before = read_finetuned(folder) if is_finetuned(folder) else {}
    model.save(folder, {**before, **(about or {}), "align": history})
    forget(folder / TRAINING)
    return history


def _with_gold(asked: LabelledRequests) -> LabelledRequests:
    every = zip(asked.requests, asked.gold, asked.homes, strict=True)
    kept = [(text, gold, home) for text, gold, home in every if gold and text.strip()]
    if not kept:
        raise BadDataset("there are no requests with gold tools to align with; name another split")
    return LabelledRequests(*zip(*kept, strict=True))


def drawn(homes: Sequence[int], seed: Sequence[int], most: int, evenly: bool) -> list[int]:
    """The places of `most` random requests (0: of all) in random order; with `evenly`, the datasets take turns."""
    order: list[int] = np.random.default_rng(seed).permutation(len(homes)).tolist()
    if evenly:
        counts: Counter[int] = Counter()
        turns = []
        for place in order:
            turns.append(counts[homes[place]])
            counts[homes[place]] += 1
        order = [place for _, place in sorted(zip(turns, order, strict=True), key=lambda one: one[0])]
    return order[: most or None]


def reward_of(kind: str, ranking: Sequence[str], gold: Collection[str]) -> float:
    """The reward of a ranking; AlignmentOptions.reward names the kinds."""
    if kind == "rank":
        places, behind = {tool_id: place for place, tool_id in enumerate(ranking, 1)}, max(_DEPTH, len(ranking)) + 1
        return -float(np.mean([math.log(places.get(tool_id, behind)) for tool_id in gold]))
    if kind == "recall":
        return metrics.recall(ranking, gold, _K)
    found = metrics.ndcg(ranking, gold, _K)
    return found + metrics.comp(ranking, gold, _K) if kind == "both" else found


def contrasts(
    texts: Sequence[Sequence[int]], rewards: Sequence[float], margin: float, most: int
) -> list[tuple[int, int]]:
    """Pairs (better, worse) of texts whose rewards differ by the margin: best and worst, then the next two, and so on.

    Equal texts count once; ties keep the order in which they were sampled.
    """
    first = {tuple(text): place for place, text in reversed(list(enumerate(texts)))}
    order = sorted(first.values(), key=lambda i: (-rewards[i], i))
    pairs = zip(order[: len(order) // 2], reversed(order), strict=False)
    return [(i, j) for i, j in pairs if rewards[i] > rewards[j] and rewards[i] - rewards[j] >= margin][:most]


class _Alignment:
    """The state of one alignment."""

    def __init__(
        self,
        model: TrainableWriter,
        means: RankingSteps,
        options: AlignmentOptions,
        generating: TextTrainingOptions,
        folder: Path,
    ) -> None:
        self._model, self._means, self._options, self._generating = model, means, options, generating
        self._folder, self._idf = folder, _idf(means.documents)
        self._start_state = ""

    def run(
        self, train: LabelledRequests, dev: LabelledRequests | None, progress: FitProgress | None
    ) -> list[dict[str, Any]]:
        """Run all rounds and return their records."""
        beginning = self._model.network.trained_arrays()
        self._start_state = self._state(beginning, train)
        history = [{"round": 0, **self._judged(dev)}]
        best, kept = beginning, 0
        for number in range(1, self._options.align + 1):
            started = time.perf_counter()
            if progress:
                progress(f"align, round {number}: sampling", number - 1, self._options.align)
            record, scored = self._drawn(number, train)
            learned = self._learn(number, scored, None if self._options.reset else beginning, progress)
            record |= learned | self._judged(dev)
            if dev:
                gain = record["dev_recall@5"] - history[-1]["dev_recall@5"]
                record["plateau"] = gain < _PLATEAU
            if not dev or record["dev_recall@5"] > history[kept]["dev_recall@5"]:
                best, kept = self._model.network.trained_arrays(), number
            history.append(record | {"seconds": round(time.perf_counter() - started, 3)})
        self._model.network.begin(best)
        return [record | {"kept": record["round"] == kept} for record in history]

    def _drawn(self, number: int, train: LabelledRequests) -> tuple[dict[str, Any], list[ScoredTexts]]:
        """The samples of a round with their rewards; read from disk if the round was interrupted after sampling."""
        from toolscout.training.text_generation import ScoredTexts

        path = self._folder / _FOLDER.format(number) / _DRAWN
        identity = self._identity(number, train)
        if path.is_file():
            kept = json.loads(path.read_text())
            if kept["identity"] != identity:
                raise BadModel(
                    f"{path.parent} holds an interrupted alignment on other data, of another fine-tuned model or "
                    "retriever, or with other options; train into another folder, or remove this one to begin again"
                )
            return kept["record"], [ScoredTexts(*one) for one in kept["scored"]]
        record, scored = self._sampled(number, train)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{_DRAWN}")
        rows = [(list(one.prompt), [list(text) for text in one.texts], list(one.rewards)) for one in scored]
        beside.write_text(json.dumps({"identity": identity, "record": record, "scored": rows}))
        os.replace(beside, path)
        return record, scored

    def _state(self, beginning: Mapping[str, Any], train: LabelledRequests) -> str:
        """A digest of the initial weights and of the retriever's rankings, on which rewards depend."""
        found = hashlib.blake2b(digest_size=16)
        for name in sorted(beginning):
            found.update(name.encode() + beginning[name].tobytes())
        few = slice(_LOOKED_AT)
        rankings = self._means.ask(train.requests[few], [[] for _ in train.requests[few]], train.homes[few])
        found.update(json.dumps(rankings).encode(errors="replace"))
        return found.hexdigest()

    def _identity(self, number: int, train: LabelledRequests) -> str:
        """A digest of a round's options, model and data; the number of later rounds does not count."""
        options = {**asdict(self._generating), **asdict(self._options), "align": number}
        gold = [sorted(own) for own in train.gold]
        known = [
            self._model.base.fingerprint,
            self._start_state,
            options,
            list(train.requests),
            gold,
            list(train.homes),
        ]
        content = json.dumps(known, sort_keys=True)
        return hashlib.blake2b(content.encode(errors="replace"), digest_size=16).hexdigest()

    def _sampled(self, number: int, train: LabelledRequests) -> tuple[dict[str, Any], list[ScoredTexts]]:
        from toolscout.training.text_generation import ScoredTexts

        options, n, started = self._options, self._options.samples, time.perf_counter()
        seeds = [self._generating.seed, number]
        few = drawn(train.homes, seeds, options.align_requests, options.align_evenly)
        prompts = self._prompts([train.requests[i] for i in few])
        few = [i for i, prompt in zip(few, prompts, strict=True) if prompt is not None]
        read = [prompt for prompt in prompts if prompt is not None]
        seed = self._generating.seed + number
        texts = self._model.sample(read, n, options.spread, self._generating.max_tokens, seed)
        sampling = time.perf_counter() - started
        requests, gold = [train.requests[i] for i in few], [train.gold[i] for i in few]
        queries = self._queries([request for request in requests for _ in range(n)], [t for own in texts for t in own])
        homes = [train.homes[i] for i in few for _ in range(n)]
        rankings = self._ranked([request for request in requests for _ in range(n)], queries, homes)
        wanted = [own for own in gold for _ in range(n)]
        rewards = np.array(
            [reward_of(options.reward, ranking, own) for ranking, own in zip(rankings, wanted, strict=True)]
        )
        recalls = np.array([metrics.recall(ranking, own, _K) for ranking, own in zip(rankings, wanted, strict=True)])
        table = rewards.reshape(-1, n)
        record = {
            "round": number,
            "requests": len(few),
            "reward": _rounded(rewards.mean()),
            "best_reward": _rounded(table.max(1).mean()),
            "recall@5": _rounded(recalls.mean()),
            "correlation": _rounded(_correlation(rewards, recalls)),
            "distinct": _rounded(np.mean([len(set(map(tuple, own))) / n for own in texts])),
            **self._described([request for request in requests for _ in range(n)], queries),
            "sampling_seconds": round(sampling, 3),
            "searching_seconds": round(time.perf_counter() - started - sampling, 3),
        }
        scored = [ScoredTexts(*one) for one in zip(read, texts, table.tolist(), strict=True)]
        return record, scored

    def _prompts(self, requests: Sequence[str]) -> list[list[int] | None]:
        """Prompts of requests; None for one that is too long."""
        most = min(self._generating.request_tokens, self._model.base.architecture.context - self._generating.max_tokens)
        found = [self._model.prompt(messages) for messages in self._means.prompts(requests)]
        return [prompt if len(prompt) <= most else None for prompt in found]

    def _queries(self, requests: Sequence[str], texts: Sequence[Sequence[int]]) -> list[list[str]]:
        parse, text = self._means.parse, self._model.text
        return [parse(request, text(tokens)) for request, tokens in zip(requests, texts, strict=True)]

    def _ranked(
        self, requests: Sequence[str], queries: Sequence[Sequence[str]], homes: Sequence[int]
    ) -> list[list[str]]:
        """The rankings of requests; equal ones are searched once."""
        keys = [(request, tuple(own), home) for request, own, home in zip(requests, queries, homes, strict=True)]
        distinct = list(dict.fromkeys(keys))
        rankings = self._means.ask(*map(list, zip(*distinct, strict=True))) if distinct else []
        found = dict(zip(distinct, rankings, strict=True))
        return [found[key] for key in keys]

    def _learn(
        self,
        number: int,
        scored: Sequence[ScoredTexts],
        reference: Mapping[str, Any] | None,
        progress: FitProgress | None,
    ) -> dict[str, Any]:
        """Train on the samples of a round."""
        from toolscout.training.preference_pairs import PreferencePair, TextTrainingSettings
        from toolscout.training.text_generation import prefer, rank_reward

        options, generating, started = self._options, self._generating, time.perf_counter()
        settings = TextTrainingSettings(
            1, options.align_rate, generating.batch, seed=generating.seed, chunk=generating.chunk
        )
        network, folder = self._model.network, self._folder / _FOLDER.format(number)
        told = None if progress is None else _named(f"align, round {number}", progress)
        apart = [(one, contrasts(one.texts, one.rewards, options.margin, options.pairs)) for one in scored]
        pairs = [
            PreferencePair(one.prompt, one.texts[i], one.texts[j], one.rewards[i] - one.rewards[j])
            for one, few in apart
            for i, j in few
        ]
        found: dict[str, Any] = {"pairs": len(pairs)}
        if not pairs:
            return found
        if options.loss == "dpo":
            prefers = partial(prefer, beta=options.beta, sft=options.sft, reference=reference)
            trained = prefers(network, pairs, settings, folder, told)
        else:
            # Prompts whose texts all have the same reward are left out.
            trained = rank_reward(network, [one for one, few in apart if few], settings, folder, told)
        return found | {
            "gap": _rounded(np.mean([pair.gap for pair in pairs])),
            "loss": trained.history[-1]["loss"],
            "learning_seconds": round(time.perf_counter() - started, 3),
        }

    def _judged(self, dev: LabelledRequests | None) -> dict[str, float]:
        """Dev scores of greedy generation."""
        if dev is None:
            return {}
        step = max(1, len(dev.requests) // _DEV_REQUESTS)
        requests, gold, homes = dev.requests[::step], dev.gold[::step], dev.homes[::step]
        prompts = self._prompts(requests)
        read = [prompt for prompt in prompts if prompt is not None]
        texts = iter(self._model.sample(read, 1, 0.0, self._generating.max_tokens))
        written = [[] if prompt is None else next(texts)[0] for prompt in prompts]
        rankings = self._ranked(requests, self._queries(requests, written), homes)
        scores = metrics.evaluate(rankings, gold, ("recall@5", "comp@5", "ndcg@5"))
        return {f"dev_{name}": _rounded(value) for name, value in scores.items()}

    def _described(self, requests: Sequence[str], queries: Sequence[Sequence[str]]) -> dict[str, float]:
        """Statistics of queries: number, diversity, specificity, and the share that repeats the request."""
        pairs: Counter[tuple[str, str]] = Counter()
        known, copied, count = [], 0, 0
        for request, own in zip(requests, queries, strict=True):
            asked = set(_words(request))
            for query in own:
                words = _words(query)
                count += 1
                pairs.update(pairwise(words))
                known += [self._idf[word] for word in words if word in self._idf]
                copied += bool(words) and sum(word in asked for word in words) >= _COPIED * len(words)
        return {
            "queries": _rounded(count / max(1, len(queries))),
            "diversity": _rounded(len(pairs) / max(1, pairs.total())),
            "specificity": _rounded(np.mean(known)) if known else 0.0,
            "copying": _rounded(copied / max(1, count)),
        }


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _idf(documents: Iterable[str]) -> dict[str, float]:
    """The idf of each word of the catalogue."""
    counts: Counter[str] = Counter()
    number = 0
    for document in documents:
        counts.update(set(_words(document)))
        number += 1
    return {word: math.log((1 + number) / (1 + count)) for word, count in counts.items()}


def _correlation(one: Doubles, other: Doubles) -> float:
    """Pearson's correlation; 0 where one of them is constant."""
    return float(np.corrcoef(one, other)[0, 1]) if len(one) > 1 and one.std() > 0 and other.std() > 0 else 0.0


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)


def _named(name: str, progress: FitProgress) -> FitProgress:
    return lambda text, done, total: progress(f"{name}: {text}", done, total)
