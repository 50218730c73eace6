"""rewrite: a language model says in the catalogue's words what a request needs; each of its queries is searched."""

from __future__ import annotations

import json
import shutil
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from toolscout.answer import SEARCHED_ALONE, Allowed, Example, Hit
from toolscout.errors import BadModel, BadRequest
from toolscout.llm import LanguageModel
from toolscout.llm.generator import is_generator
from toolscout.retrievers import _showing
from toolscout.retrievers._recent import Recent
from toolscout.retrievers._rewriting import RULES, Asking, Placed, RewriteOptions, Rewriter, owners, placed
from toolscout.retrievers._router import Router, features
from toolscout.retrievers._showing import Caller, Costs, Reasons, Told
from toolscout.retrievers.base import (
    FitProgress,
    FitReport,
    Foresighted,
    Pairs,
    Retriever,
    TrainedOn,
    TrainingSet,
    Vectors,
    check_k,
    load_model,
    method,
    read_model,
    read_options,
    write_model,
)
from toolscout.tool import Searchable

__all__ = ["GENERATOR_FOLDER", "RULES", "Asking", "Group", "Rewrite", "RewriteOptions"]

GENERATOR_FOLDER = "generator"
_TEXTS_FILE = "texts.json"
_FIRST = 10  # of its own ranking, by which the router judges a request
_RECENT = 64
_NO_ROUTER = (
    "nothing was trained that says which requests gain by rewriting, so all are rewritten; run: toolscout train"
)
# What a part may be able to do beside ranking: then so can this. As attributes of the object, so that one over words
# alone does not pass for one over vectors.
_LENT = (
    "open_encoder",
    "waiting",
    "arrived",
    "build_graph",
    "request_vector",
    "request_vector_for",
    "need",
    "need_for",
    "best_cosines",
    "moved",
)


class Group(NamedTuple):
    """A sub-request, and the tools for it; the request itself where it is one thing."""

    sub_request: str
    hits: list[Hit]


class Rewrite:
    """Searches the request and what a language model made of it with its one part, and interleaves what they find.

    A model that fails costs nothing but its queries: the request alone is searched then, and `asked` says why. Scores
    say the place alone. Rankings are those of the full catalogue, whoever asks; below `depth` tools follow in the order
    of the request's own.
    """

    name: ClassVar[str] = "rewrite"

    def __init__(
        self,
        options: RewriteOptions | None = None,
        parts: Sequence[Retriever] | None = None,
        llm: LanguageModel | None = None,
        *,
        home: Path | None = None,
    ) -> None:
        """Search with this part, hybrid by default; `llm` is for a model that is open already.

        `home`: the model folder that the options come from, where the user did not give them. Such an endpoint is asked
        only if its host is in $TOOLSCOUT_LLM_HOSTS, and `cache` is a file in that folder.
        """
        self._options = options or RewriteOptions()
        self.parts = list(parts) if parts is not None else [method("hybrid")()]
        if len(self.parts) != 1:
            raise BadModel(f"rewrite searches with one part, got {len(self.parts)}; hand it one, such as a hybrid")
        self.rewriter, self._home = Rewriter(self._options, home), home
        if llm is not None:
            self.rewriter.author.use(llm)
        self.router: Router | None = None
        self._rewritten = 0
        self._seen = TrainedOn.load(Path(self._options.llm)) if self.rewriter.taught else TrainedOn()
        self._fit: dict[str, Any] | None = None
        self._generator: Path | None = None
        self._recent: OrderedDict[tuple[str, Allowed | None], Asking] = OrderedDict()
        self._ahead: dict[str, Asking] = {}
        self._found_by: Recent[tuple[str, Allowed | None], dict[str, Placed]] = Recent(_RECENT)
        self._lock = threading.Lock()
        for name in _LENT:
            if hasattr(self.part, name):
                setattr(self, name, getattr(self.part, name))

    @property
    def options(self) -> RewriteOptions:
        """What it was made with."""
        return self._options

    @options.setter
    def options(self, options: RewriteOptions) -> None:
        """Write and fuse otherwise from now on; the language model stays."""
        self._options = self.rewriter.options = options
        self.forget_requests()

    @property
    def part(self) -> Retriever:
        """What it searches with."""
        return self.parts[0]

    def __len__(self) -> int:
        """How many tools its part can find."""
        return len(self.part)

    def ids(self) -> list[str]:
        """The ids of all tools."""
        return self.part.ids()

    def add(self, tools: Sequence[Searchable], vectors: Vectors | None = None) -> None:
        """Hand tools to the part, and keep a line about each."""
        self.part.add(tools, vectors)
        self.rewriter.add(tools)
        self._forget()

    def remove(self, ids: Sequence[str]) -> None:
        """Forget tools."""
        self.part.remove(ids)
        self.rewriter.remove(ids)
        self._forget()

    def learn(self, examples: Sequence[Example]) -> None:
        """Hand feedback to the part."""
        self.part.learn(examples)

    def _forget(self) -> None:
        with self._lock:
            self._recent, self._ahead, self._found_by = OrderedDict(), {}, Recent(_RECENT)

    def forget_requests(self) -> None:
        """Let go of what was written for recent requests: one that is timed again must be written for again."""
        self._forget()
        getattr(self.part, "forget_requests", lambda: None)()

    @property
    def language_parameters(self) -> int:
        """How many numbers its language model has, and that of its part."""
        return self.rewriter.author.parameters + int(getattr(self.part, "language_parameters", 0))

    def wait_longer(self) -> None:
        """Rather wait for a language model than go on without it: for evaluations."""
        self.rewriter.author.wait_longer()
        _showing.wait_longer(self.parts)

    def take_costs(self) -> Costs:
        """What was asked of the language model since this was last called, and of the part's: for a row of results."""
        author, rewritten = self.rewriter.author, self._rewritten
        self._rewritten = 0
        return _showing.added(author.take_costs() | {"rewritten": rewritten}, _showing.take_costs(self.parts))

    def asked(self, request: str, allowed: Allowed | None = None) -> Asking:
        """What was made of a request that was searched just now."""
        known = self._ahead.get(request) if allowed is None else None
        return known or self._recent.get((request, allowed), Asking())

    def rank_ahead(self, requests: Sequence[str], k: int) -> None:
        """Write for many requests in one batch, and have the part rank all of their queries together if it can."""
        if not len(self) or not requests:
            return
        self._forget()
        asked = self._asking(requests, self.ranked(requests, self._deep(k, None)), Caller())
        if isinstance(self.part, Foresighted):
            queries = [query for one in asked for query in one.queries]
            self.part.rank_ahead(list(dict.fromkeys([*requests, *queries])), self._deep(k, None))
        self._ahead = dict(zip(requests, asked, strict=True))

    def _asking(self, requests: Sequence[str], alone: dict[str, Pairs], caller: Caller) -> list[Asking]:
        """What is asked for each request; for those that are new all is written in one batch."""
        allowed, recent = caller.sees, self._recent
        ahead = self._ahead if allowed is None else {}
        known: dict[str, Asking] = {}
        for request in dict.fromkeys(requests):
            kept = ahead.get(request) or recent.get((request, allowed))
            # One that failed is tried again, but not where all were written for ahead.
            if kept is not None and (kept.queries or not kept.problem or request in ahead or not caller.again):
                known[request] = kept
        new = [request for request in dict.fromkeys(requests) if request not in known]
        due = self._worth([one for one in new if one.strip() and not self.is_name_for(caller, one)], alone, caller)
        with self.rewriter.author.one_search():
            found = dict(zip(due, self.rewriter.asked(due, allowed, self.fused), strict=True))
        with self._lock:
            self._rewritten += sum(bool(one.queries) for one in found.values())
            for request in new:
                known[request] = self._recent[request, allowed] = found.get(request, Asking())
            while len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
        return [known[request] for request in requests]

    def is_name(self, request: str) -> bool:
        """Whether the request is nothing but the name of a tool."""
        return self.is_name_for(Caller(), request)

    def is_name_for(self, caller: Caller, request: str) -> bool:
        """Whether the request is nothing but the name of a tool that the caller sees."""
        return _showing.is_name(self.part, caller, request)

    def _worth(self, requests: Sequence[str], alone: dict[str, Pairs], caller: Caller) -> list[str]:
        """The requests that are to be rewritten."""
        share = self.options.share
        if share == 0 or not requests:
            return []
        if share == 1 or self.router is None:
            return list(requests)
        sees = caller.sees
        seen = {text: [one for one in alone[text] if sees is None or sees.permits(one[0])] for text in requests}
        worth = self.router.worth([self.features(request, seen[request]) for request in requests], share)
        return [request for request, chosen in zip(requests, worth, strict=True) if chosen]

    def told(self, request: str, allowed: Allowed | None = None) -> Told:
        """What was asked for a request that was searched just now, and why it was not where a model failed.

        Of what the part made of its queries the notes alone: no hit says that it was found by that.
        """
        asked = self.asked(request, allowed)
        notes = [f"{SEARCHED_ALONE}: {asked.problem}"] if asked.problem else []
        notes += [_NO_ROUTER] if 0 < self.options.share < 1 and self.router is None else []
        of_queries = [((), _showing.told(self.part, query, allowed)[1]) for query in asked.queries]
        return _showing.all_told(
            [(asked.queries, tuple(notes)), _showing.told(self.part, request, allowed), *of_queries]
        )

    def features(self, request: str, ranking: Pairs) -> list[float]:
        """What the router knows of a request, given its own ranking."""
        return features(request, ranking, [self.rewriter.texts.get(tool_id, "") for tool_id, _ in ranking[:_FIRST]])

    def _deep(self, k: int, allowed: Allowed | None) -> int:
        """How far down rankings are needed; a caller who may not see all of them needs more of each."""
        depth = self.options.depth
        return depth if allowed is not None else max(min(k, depth), min(_FIRST, depth))

    def ranked(
        self, texts: Sequence[str], k: int, allowed: Allowed | None = None, caller: Caller | None = None
    ) -> dict[str, Pairs]:
        """The ranking of each text, all searched in one batch; for one who sees what is allowed where none is named."""
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return {}
        rankings = _showing.rank(self.part, caller or Caller(allowed), distinct, k, allowed)
        return dict(zip(distinct, rankings, strict=True))

    def fused(
        self, requests: Sequence[str], asked: Sequence[Asking], k: int, allowed: Allowed | None = None
    ) -> list[dict[str, str]]:
        """The best k tools of each request with the query that found each, "" for the request itself."""
        caller = Caller(allowed).later()  # the requests have been searched
        alone = self.ranked(requests, self._deep(k, allowed), None, caller)
        found = self._fused(caller, requests, asked, alone, k, allowed)
        return [{one.tool_id: one.query for one in few} for few in found]

    def _fused(
        self,
        caller: Caller,
        requests: Sequence[str],
        asked: Sequence[Asking],
        alone: dict[str, Pairs],
        k: int,
        allowed: Allowed | None,
    ) -> list[list[Placed]]:
        lists = self.ranked([query for one in asked for query in one.queries], self._deep(k, allowed), None, caller)
        return [
            self._best(caller, request, alone[request], {query: lists[query] for query in one.queries}, k, allowed)
            for request, one in zip(requests, asked, strict=True)
        ]

    def _best(
        self, caller: Caller, request: str, alone: Pairs, lists: dict[str, Pairs], k: int, allowed: Allowed | None
    ) -> list[Placed]:
        """Those that the request names, what was interleaved, and below it the request's own ranking."""
        found = owners(alone, lists, self.options.utterance, k if allowed is None else None)
        if allowed is not None:
            found = {tool_id: query for tool_id, query in found.items() if allowed.permits(tool_id)}
        if len(found) < k:
            for tool_id, _ in self.ranked([request], k, allowed, caller.later())[request]:
                found.setdefault(tool_id, "")
        return placed(found, alone)[:k]

    def search(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Hit]]:
        """Interleave the rankings of each request and of its queries."""
        caller = Caller(allowed)
        return [
            self._hits(caller, request, found)
            for request, found in zip(requests, self._found(caller, requests, k, allowed), strict=True)
        ]

    def _hits(self, caller: Caller, request: str, found: Sequence[Placed]) -> list[Hit]:
        reasons = _showing.why(self.part, caller, request, [one.tool_id for one in found])
        return [Hit(one.tool_id, one.score, one.reasons(few)) for one, few in zip(found, reasons, strict=True)]

    def rank(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """What search ranks, without reasons."""
        return self.rank_for(Caller(allowed), requests, k, allowed)

    def rank_for(self, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[Pairs]:
        """The same for a caller: what is ranked may be more than what the model is shown."""
        found = self._found(caller, requests, k, allowed)
        for request, few in zip(requests, found, strict=True):
            self._found_by.keep((request, caller.sees), {one.tool_id: one for one in few})
        return [[(one.tool_id, one.score) for one in few] for few in found]

    def why(self, request: str, ids: Sequence[str]) -> Reasons:
        """The reasons of the part, and the query that found each where the request was ranked just now."""
        return self.why_for(Caller(), request, ids)

    def why_for(self, caller: Caller, request: str, ids: Sequence[str]) -> Reasons:
        """The same for a caller for whom they were ranked."""
        found = self._found_by.get((request, caller.sees)) or {}
        reasons = zip(ids, _showing.why(self.part, caller, request, ids), strict=True)
        return [found[tool_id].reasons(few) if tool_id in found else few for tool_id, few in reasons]

    def _found(self, caller: Caller, requests: Sequence[str], k: int, allowed: Allowed | None) -> list[list[Placed]]:
        check_k(k)
        if not len(self) or not requests:
            return [[] for _ in requests]
        alone = self.ranked(requests, self._deep(k, allowed), None, caller)
        asked = self._asking(requests, alone, caller)
        return self._fused(caller, requests, asked, alone, k, allowed)

    def grouped(self, requests: Sequence[str], k: int, allowed: Allowed | None = None) -> list[list[Group]]:
        """The best k tools of each sub-request; of the request where it was not split."""
        check_k(k)
        if not len(self) or not requests:
            return [[] for _ in requests]
        caller = Caller(allowed)
        asked = self._asking(requests, self.ranked(requests, self._deep(k, allowed), None, caller), caller)
        queries = [one.queries or (request,) for request, one in zip(requests, asked, strict=True)]
        distinct = list(dict.fromkeys(query for few in queries for query in few))
        hits = dict(zip(distinct, self.part.search(distinct, k, allowed), strict=True))
        return [[Group(query, hits[query]) for query in few] for few in queries]

    def explain(self, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """What the part knows besides."""
        return self.explain_for(Caller(), request, hits)

    def explain_for(self, caller: Caller, request: str, hits: Sequence[Hit]) -> list[Hit]:
        """The same for a caller."""
        return _showing.explain(self.part, caller, request, hits)

    def fit(self, data: Sequence[TrainingSet], folder: Path, progress: FitProgress | None = None) -> FitReport:
        """Train a generator to describe gold tools, align it with the part, and learn which requests gain by it."""
        from toolscout.retrievers._rewrite_fit import fit

        return fit(self, data, folder, progress)

    def teach(self, llm: LanguageModel | Path) -> None:
        """Write with a generator that was trained: one that is open, or the folder of one."""
        self.rewriter.taught = True
        self._forget()
        if isinstance(llm, Path):
            self._generator = llm
            self.rewriter.author.point(llm)
        else:
            self.rewriter.author.use(llm)

    def save(self, folder: Path) -> None:
        """Write the part and the generator into folders of their own."""
        name, home = f"0-{self.part.name}", folder / GENERATOR_FOLDER
        self.part.save(folder / name)
        if self._generator is not None and self._generator.resolve() != home.resolve():
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(self._generator, home)
        if self._seen.splits:
            self._seen.save(folder)
        (folder / _TEXTS_FILE).write_text(json.dumps(self.rewriter.texts))
        extra: dict[str, Any] = {"fit": self._fit} if self._fit else {}
        extra |= {"router": asdict(self.router)} if self.router else {}
        options = asdict(self.options) | {"cache": self._saved_cache(folder)}
        write_model(folder, self, parts={name: self.part.name}, options=options, **extra)

    def _saved_cache(self, folder: Path) -> str:
        """The cache as a saved model names it: from its folder on; "" for a file of the user's that is elsewhere."""
        cache = self.options.cache
        if not cache or self._home is not None:
            return cache
        file, root = Path(cache).resolve(), folder.resolve()
        return str(file.relative_to(root)) if file.is_relative_to(root) else ""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved model; its generator is opened when it is first asked."""
        model = read_model(folder)
        options = read_options(RewriteOptions, model)
        parts = [load_model(folder / name) for name in model.get("parts", {})]
        try:
            loaded = cls(options, parts, home=folder)
        except BadRequest as error:
            raise BadModel(f"{folder} names an endpoint that cannot be used: {error}") from None
        loaded._seen |= TrainedOn.load(folder)
        loaded._fit = model.get("fit")
        loaded.router = Router.read(model["router"]) if model.get("router") else None
        try:
            loaded.rewriter.know(dict(json.loads((folder / _TEXTS_FILE).read_text())))
        except (OSError, ValueError, TypeError) as error:
            raise BadModel(f"{folder / _TEXTS_FILE} cannot be read ({error}); build the index again") from None
        if not loaded.options.llm and is_generator(folder / GENERATOR_FOLDER):
            loaded.teach(folder / GENERATOR_FOLDER)
        return loaded
