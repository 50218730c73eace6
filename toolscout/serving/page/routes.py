"""The routes of the page: its files, and JSON for its scripts. All data comes through Access."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolscout.core import vendor_formats
from toolscout.core.addresses import Addresses
from toolscout.core.answer import Level
from toolscout.core.tool import Tool
from toolscout.errors import BadRequest, ToolscoutError, UnknownTool
from toolscout.models.tool_ids.code_tree import CodeTree
from toolscout.scout import Scout
from toolscout.search.score_share import is_named, score_shares
from toolscout.search.verdict import LEVELS, checked_level
from toolscout.serving.access import Access, Caller
from toolscout.serving.limits import FeedbackQuota, Gate, ServeOptions
from toolscout.serving.live_metrics import LiveView
from toolscout.serving.middleware import key_of, record_of
from toolscout.serving.page import results as page_results
from toolscout.serving.page.add import Addition
from toolscout.serving.page.files import FILES, HEADERS, file
from toolscout.serving.page.shapes import narrowed, tool_shape
from toolscout.serving.problems import Problem, public_message
from toolscout.serving.prometheus import Metrics

MAX_COUNT = 100
MAX_LISTED = 200
MAX_SUGGESTED = 50
# The token cost of all tools is counted over at most this many, and extrapolated for more.
COUNTED_TOOLS = 1_000
_MAX_CACHED = 64
_MAX_FAILURES = 50
_Values = Mapping[str, Any]
_Handler = Callable[[Caller, _Values], dict[str, Any] | Response]


def routes(
    scout: Scout,
    access: Access,
    options: ServeOptions,
    others: Mapping[str, Scout] | None,
    searching: Gate,
    changing: Gate,
    quota: FeedbackQuota,
    metrics: Metrics,
    live: LiveView,
) -> list[Route]:
    """Return the page's route "/" and those under "/page/".

    `others`: Scouts with other retrievers on the same catalogue, by name. `searching`, `changing`: the queues shared
    with the JSON routes, two so that a slow change never delays a search. `quota`: the shared limit of feedback.
    `metrics` counts the searches of the page, `live` shows what was counted.
    """
    page = _Page(scout, access, others or {}, options, metrics, live)
    handlers: dict[str, _Handler] = {
        "state": page.state,
        "tokens": page.tokens,
        "tools": page.tools,
        "namespaces": page.namespaces,
        "sources": page.sources,
        "results": page.results,
        "results/{name}": page.plot,
    }
    return [
        Route("/", file("index.html", "text/html")),
        *[Route(f"/page/{name}", file(name, kind)) for name, kind in FILES.items()],
        *[Route(f"/page/{name}", _endpoint(access, handler, searching)) for name, handler in handlers.items()],
        # Among the changes: whoever looks why searches wait must not wait behind them.
        Route("/page/live", _endpoint(access, page.live, changing)),
        Route("/page/search", _endpoint(access, page.search, searching), methods=["POST"]),
        Route("/page/feedback", _endpoint(access, _within_quota(quota, page.feedback), changing), methods=["POST"]),
        Route("/page/add", _endpoint(access, page.add, changing), methods=["POST"]),
    ]


class _Page:
    """The handlers of the page; each method answers one route with JSON."""

    def __init__(
        self,
        scout: Scout,
        access: Access,
        others: Mapping[str, Scout],
        options: ServeOptions,
        metrics: Metrics,
        live: LiveView,
    ) -> None:
        self._scout, self._access, self._metrics, self._live = scout, access, metrics, live
        self._results, self._addresses = options.results or Path("results"), Addresses.of(options.private)
        first = scout.retriever.name
        self._retrievers = {first: (scout, access)}
        for path, other in others.items():
            name = Path(path).name or other.retriever.name  # the page must not show a folder's path
            name = name if name not in self._retrievers else f"{name} ({len(self._retrievers) + 1})"
            self._retrievers[name] = (other, Access(other))
        self._failures: dict[str, str] = {}  # by source: why it could not be added
        self._tree = lru_cache(_MAX_CACHED)(self._code_tree)
        self._all_tokens = lru_cache(_MAX_CACHED)(self._count_tokens)

    def state(self, caller: Caller, _: _Values) -> dict[str, Any]:
        return {
            # The page's admin functions are only for admins who see everything.
            "caller": {"name": caller.name, "admin": caller.admin and caller.allowed is None},
            "tools": self._access.count(caller),
            "version": self._access.version(caller),
            "namespaces": len(self._access.namespaces(caller)),
            "words_only": self._scout.words_only(caller.allowed),
            "retrievers": list(self._retrievers),
            "formats": list(vendor_formats.FORMATS),
            "level": self._scout.level,
            "levels": list(LEVELS),
        }

    def search(self, caller: Caller, values: _Values) -> dict[str, Any]:
        request, k = values.get("request"), values.get("k", 5)
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_COUNT:
            raise BadRequest(f"k must be a whole number from 1 to {MAX_COUNT}")
        names = values.get("retrievers") or list(self._retrievers)[:1]
        if not isinstance(names, list) or len(names) > 2 or not all(isinstance(n, str) for n in names):
            raise BadRequest("retrievers must be a list of one or two names")
        unknown = [name for name in names if name not in self._retrievers]
        if unknown:
            raise BadRequest(f"there is no retriever {unknown[0]!r:.80} here; choose of {', '.join(self._retrievers)}")
        namespace, version = values.get("namespace"), self._access.version(caller)
        if namespace is not None:
            # Only namespaces that exist: the caches below must not grow with what clients send.
            if not isinstance(namespace, str) or namespace not in self._access.namespaces(caller):
                raise BadRequest("there is no such namespace; the catalogue lists them")
            caller = replace(caller, allowed=narrowed(caller.allowed, namespace))
        if not isinstance(request, str):
            raise BadRequest("request must be text: what should be done")
        level = None if not values.get("level") else checked_level(values["level"])
        return {"answers": [self._answer(name, caller, version, request, k, level) for name in names]}

    def _answer(
        self, name: str, caller: Caller, version: int, request: str, k: int, level: Level | None
    ) -> dict[str, Any]:
        scout, access = self._retrievers[name]
        began = time.perf_counter()
        answer = access.search(caller, request, k, level)
        took = 1000 * (time.perf_counter() - began)
        self._metrics.count_verdict(answer.verdict)
        offered = {hit.tool_id for hit in answer.hits}
        found = {tool.id: tool for tool in _existing_tools(access, caller, [hit.tool_id for hit in answer.considered])}
        hits = [hit for hit in answer.considered if hit.tool_id in found]
        # The number of codes is part of the cache key: embedding adds codes without changing the catalogue version.
        tree = self._tree(name, caller, version, len(scout.retriever.codes()))
        shown = [
            tool_shape(found[hit.tool_id])
            | hit.to_dict()
            | {"share": share, "named": is_named(hit)}
            | {"offered": hit.tool_id in offered, "code": tree.path(hit.tool_id)}
            for hit, share in zip(hits, score_shares(hits), strict=True)
        ]
        rendered = {
            f: vendor_formats.render([t for t in found.values() if t.id in offered], f) for f in vendor_formats.FORMATS
        }
        record, used = answer.to_dict(), answer.verdict_level
        shown_keys = ("request", "verdict", "need", "fit", "use", "verdict_level", "searched", "notes", "asked")
        use_threshold = None if used is None else scout.use_threshold(used, answer.need is not None)
        return {key: record[key] for key in shown_keys} | {
            "retriever": name,
            "ms": took,
            "thresholds": {
                "need": scout.need_options.threshold,
                "fit": scout.fit_options.threshold,
                "use": use_threshold,
            },
            "tools": shown,
            "wire": {
                f: {"json": json.dumps(r.payload, indent=2, ensure_ascii=False), "tokens": r.tokens if offered else 0}
                for f, r in rendered.items()
            },
        }

    def _code_tree(self, name: str, caller: Caller, version: int, code_count: int) -> CodeTree:
        codes = self._retrievers[name][0].retriever.codes()
        return CodeTree({i: c for i, c in codes.items() if caller.allowed is None or caller.allowed.permits(i)})

    def tokens(self, caller: Caller, _: _Values) -> dict[str, Any]:
        """Return how many tokens all of the caller's tools would cost in each format."""
        return self._all_tokens(caller, self._access.version(caller))

    def _count_tokens(self, caller: Caller, version: int) -> dict[str, Any]:
        ids = self._access.ids(caller)
        step = max(1, len(ids) / COUNTED_TOOLS)
        sample = [ids[int(at * step)] for at in range(min(len(ids), COUNTED_TOOLS))]
        tools = _existing_tools(self._access, caller, sample)
        scale = len(ids) / len(tools) if tools else 0
        return {
            f: {"tokens": round(scale * vendor_formats.render(tools, f).tokens) if tools else 0, "exact": scale <= 1}
            for f in vendor_formats.FORMATS
        }

    def tools(self, caller: Caller, values: _Values) -> dict[str, Any]:
        find, namespace = values.get("find", "").lower(), values.get("namespace") or None
        offset, limit = _whole_number(values, "offset", 0), _whole_number(values, "limit", 50)
        ids = [i for i in self._access.ids(caller, namespace) if find in i.lower()]
        listed = _existing_tools(self._access, caller, ids[offset : offset + min(limit, MAX_LISTED)])
        return {"total": len(ids), "tools": [tool_shape(tool) for tool in listed]}

    def namespaces(self, caller: Caller, values: _Values) -> dict[str, Any]:
        """Return the namespaces whose names contain a text, best match first, at most MAX_SUGGESTED of them."""
        find, counts = values.get("find", "").lower(), self._access.namespaces(caller)
        found = [name for name in counts if find in name.lower()]
        found.sort(key=lambda name: (name.lower() != find, not name.lower().startswith(find), name))
        return {"total": len(found), "namespaces": {name: counts[name] for name in found[:MAX_SUGGESTED]}}

    def feedback(self, caller: Caller, values: _Values) -> dict[str, Any]:
        used, rejected = values.get("used", []), values.get("rejected", [])
        texts = [isinstance(ids, list) and all(isinstance(i, str) for i in ids) for ids in (used, rejected)]
        if not all(texts) or not (used or rejected):
            raise BadRequest("feedback needs used or rejected: lists of tool ids")
        if not isinstance(values.get("request"), str):
            raise BadRequest("request must be text: what should be done")
        self._access.feedback(caller, values["request"], used, rejected, source="page")
        return {"noted": True}

    def sources(self, caller: Caller, _: _Values) -> dict[str, Any]:
        self._access.require_admin(caller)
        self._access.require_everything(caller)
        states = self._scout.store.sources()
        known = {state.source for state in states}
        listed: list[dict[str, Any]] = [
            {
                "source": state.source,
                "tools": state.tools,
                "changed": state.changed.isoformat() if state.changed else None,
                "error": self._failures.get(state.source),
            }
            for state in states
        ]
        failed = [(label, error) for label, error in self._failures.items() if label not in known]
        listed += [{"source": label, "tools": None, "changed": None, "error": error} for label, error in failed]
        return {"sources": listed}

    def add(self, caller: Caller, values: _Values) -> dict[str, Any]:
        self._access.require_admin(caller)
        self._access.require_own(caller, (), (), sync=True)  # the ids in the document are not known yet
        addition = Addition.of(values)
        label = addition.label
        try:
            added = addition.bring(self._scout, self._addresses)
        except ToolscoutError as error:
            self._failures = dict([*self._failures.items(), (label, public_message(error))][-_MAX_FAILURES:])
            raise
        self._failures.pop(label, None)
        report = added.report
        counts = {"added": report.added, "changed": report.changed, "unchanged": report.unchanged}
        return counts | {"problems": list(added.problems)}

    def live(self, caller: Caller, values: _Values) -> dict[str, Any]:
        """Return the figures since an earlier look: for whom /metrics is, as they count all tools and callers."""
        self._access.require_admin(caller)
        self._access.require_everything(caller)
        return self._live.look(values.get("since", ""))

    def results(self, caller: Caller, _: _Values) -> dict[str, Any]:
        self._access.require_admin(caller)
        return page_results.listing(self._results)

    def plot(self, caller: Caller, values: _Values) -> Response:
        self._access.require_admin(caller)
        data = page_results.plot(self._results, values["name"])
        if data is None:
            raise Problem(404, "there is no such plot")
        # An SVG shown as an image runs no scripts; this policy forbids them also where it is opened directly.
        policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
        return Response(data, headers=HEADERS | {"Content-Security-Policy": policy}, media_type="image/svg+xml")


def _existing_tools(access: Access, caller: Caller, ids: Sequence[str]) -> list[Tool]:
    """Return the tools with these ids, without those that were removed since the search."""
    try:
        return access.tools(caller, ids)
    except UnknownTool:
        tools = []
        for tool_id in ids:
            with suppress(UnknownTool):
                tools.append(access.describe(caller, tool_id))
        return tools


def _within_quota(quota: FeedbackQuota, handler: _Handler) -> _Handler:
    """Wrap a handler so that it raises Problem 429 where the caller has given too much feedback."""

    def limited(caller: Caller, values: _Values) -> dict[str, Any] | Response:
        quota.take(caller.tenant, 1)
        return handler(caller, values)

    return limited


def _endpoint(access: Access, handler: _Handler, gate: Gate) -> Callable[[Request], Any]:
    """Return the endpoint that runs a handler in a thread, with the values of the query, path or JSON body."""

    async def endpoint(request: Request) -> Response:
        caller = access.caller(key_of(request.headers))
        values: _Values = dict(request.query_params) | request.path_params
        if request.method == "POST":
            values = await record_of(request, gate)
        answer = await gate.run(handler, caller, values)
        if isinstance(answer, Response):
            return answer
        # ASCII escapes a lone surrogate in a description, which UTF-8 could not encode.
        text = json.dumps(_without_nan(answer), allow_nan=False)
        return Response(text, headers=HEADERS | {"Cache-Control": "no-store"}, media_type="application/json")

    return endpoint


def _without_nan(value: Any) -> Any:
    """Return the value with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _whole_number(values: _Values, name: str, default: int) -> int:
    text = values.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise BadRequest(f"{name} must be a whole number")
    return int(text)
