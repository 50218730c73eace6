"""The HTTP API of one Scout: every route answers with what Scout returns through Access."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from toolscout.core import vendor_formats
from toolscout.core.answer import Answer
from toolscout.core.tool import Tool
from toolscout.errors import MissingExtra, StoreUnavailable, ToolscoutError, UnknownTool
from toolscout.scout import Scout
from toolscout.serving import request_bodies
from toolscout.serving.access import Access, Caller, CallerSearch
from toolscout.serving.audit import Audit

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    from toolscout.serving import openapi_document, problems, prometheus, protected_resource
    from toolscout.serving.catalogue_writes import Writes
    from toolscout.serving.limits import PATHS, FeedbackQuota, Gate, Probe, ProbeTimeout, ServeOptions
    from toolscout.serving.live_metrics import LiveView
    from toolscout.serving.llm_proxy import Proxy
    from toolscout.serving.middleware import CALLER, LABEL, Edge, body_of, record_of
    from toolscout.serving.page import routes as page
    from toolscout.serving.page.shapes import narrowed
except ImportError as error:
    raise MissingExtra("serving", "serve") from error

LINES = "application/x-ndjson"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
# Several changes wait at a time for the index, which applies all of them at once.
_WRITERS, _WRITES_WAITING, _LONGEST_WRITE_S = 8, 64, 3600.0
# Searches that one thread makes together while all are busy. Vectors are read once for four of them; with more, the
# first would wait longer and little time would be saved.
SEARCHED_TOGETHER = 4
_Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(
    scout: Scout, access: Access, options: ServeOptions | None = None, others: Mapping[str, Scout] | None = None
) -> Starlette:
    """Return the whole application: JSON routes, the page, and the proxy where `options` name an upstream.

    `others`: Scouts with other retrievers over the same catalogue, by name, for the page to compare with.
    """
    options = options or ServeOptions()
    endpoints = _Endpoints(scout, access, options)
    shared = (
        endpoints.searches,
        endpoints.changes,
        endpoints.quota,
        endpoints.metrics,
        LiveView(endpoints.metrics_text),
    )
    routes = [*endpoints.routes(), *page.routes(scout, access, options, others, *shared)]
    handlers = {ToolscoutError: _problem, problems.Problem: _problem, HTTPException: _http_problem}
    edge = Middleware(Edge, access=access, options=options, metrics=endpoints.metrics, audit=endpoints.audit)
    return Starlette(routes=routes, middleware=[edge], exception_handlers=handlers, lifespan=endpoints.lifespan)


async def _problem(_: Request, error: Exception) -> Response:
    return problems.response(problems.of(error))


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    detail = {
        404: "there is nothing at this address; GET /openapi.json says what there is",
        405: f"this address takes {headers.get('Allow', 'other methods')}; GET /openapi.json says what for",
    }.get(error.status_code, error.detail)
    return problems.response(problems.Problem(error.status_code, detail, headers))


class _Endpoints:
    """The handlers of all routes and the objects that they share."""

    def __init__(self, scout: Scout, access: Access, options: ServeOptions) -> None:
        self._scout, self._access = scout, access
        self.searches = Gate(options.workers, options.queue, options.seconds)
        self.changes = Gate(_WRITERS, _WRITES_WAITING, _LONGEST_WRITE_S, _WRITERS // 2)
        self.quota = FeedbackQuota(scout.store, options)
        self._probe = Probe(scout.store.version)
        self._writes = Writes(scout)
        self._proxy = Proxy(scout, access, options) if options.upstream else None
        self._document = json.dumps(openapi_document.document(bool(options.upstream), access.sign_in is not None))
        self.metrics, self.audit = prometheus.Metrics(), Audit(options.audit)

    def routes(self) -> list[Route]:
        """Return the routes that openapi_document.py describes."""
        found = [
            _route("POST", "/search", self.search),
            _route("POST", "/need", self.need),
            _route("POST", "/feedback", self.feedback),
            _route("GET", "/tools", self.list),
            _route("POST", "/tools", self.change),
            _route("GET", "/tools/{id:path}", self.describe),
            _route("DELETE", "/tools/{id:path}", self.remove),
            _route("GET", "/health", self.health),
            _route("GET", "/ready", self.ready),
            _route("GET", "/metrics", self.measured),
            _route("GET", "/openapi.json", self.document),
        ]
        if self._proxy is not None:
            for path in PATHS:
                found.append(_route("POST", path, self.forward))
        if self._access.sign_in is not None:
            found += [_route("GET", path, self.resource) for path in protected_resource.PATHS]
        return found

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """At shutdown, finish the requests that run and refuse new ones."""
        yield
        self.searches.draining = self.changes.draining = self._probe.draining = True
        self._probe.close()
        await asyncio.to_thread(self.searches.close)
        self._writes.close()
        await asyncio.to_thread(self.changes.close)
        if self._proxy is not None:
            await self._proxy.close()
        self.audit.close()

    async def search(self, request: Request) -> Response:
        """Answer a search: one request, or several in a batch."""
        caller, body = _caller(request), request_bodies.read_search(await record_of(request, self.searches))
        if body.namespace is not None:
            # In a thread: a caller's permissions may list tens of thousands of single tools.
            caller = replace(caller, allowed=await self.searches.run(narrowed, caller.allowed, body.namespace))
        return await self._each(caller, body, partial(self._rendered, caller, body))

    async def _each(
        self, caller: Caller, body: request_bodies.SearchBody, show: Callable[[Answer], dict[str, Any]]
    ) -> Response:
        """Search for each request text of a body as a separate item, so that other callers get their turn between."""
        searches = [CallerSearch(caller, text, body.k, body.level) for text in body.requests]
        most = SEARCHED_TOGETHER if self._scout.ranks_together else 1
        found = await self.searches.run_together(self._answers, [(search, show) for search in searches], most)
        return _sent('{"answers": [' + ", ".join(found) + "]}" if body.batch else found[0])

    def _answers(
        self, items: Sequence[tuple[CallerSearch, Callable[[Answer], dict[str, Any]]]]
    ) -> list[str | Exception]:
        """Return what is sent for each search, which may be of different callers, or its error."""
        answers, found = self._access.search_together([search for search, _ in items]), list[str | Exception]()
        for answer, (_, show) in zip(answers, items, strict=True):
            if isinstance(answer, Answer):
                self.metrics.count_verdict(answer.verdict)
            try:
                found.append(answer if isinstance(answer, Exception) else json.dumps(show(answer)))
            except Exception as error:  # it concerns this search alone
                found.append(error)
        return found

    def _rendered(self, caller: Caller, body: request_bodies.SearchBody, answer: Answer) -> dict[str, Any]:
        found = answer.to_dict()
        if body.format is not None:
            rendered = vendor_formats.render(self._tools(caller, answer), body.format, body.budget)
            names = {tool["name"]: rendered.names.tool_id(tool["name"]) for tool in map(_named, rendered.payload)}
            found |= {"tools": rendered.payload, "level": rendered.level, "tokens": rendered.tokens, "names": names}
        return found

    def _tools(self, caller: Caller, answer: Answer) -> list[Tool]:
        """Return the tools of an answer, without those removed since the search."""
        ids = [hit.tool_id for hit in answer.hits]
        try:
            return self._access.tools(caller, ids)
        except UnknownTool:
            found = []
            for tool_id in ids:
                try:
                    found.append(self._access.describe(caller, tool_id))
                except UnknownTool:
                    continue
            return found

    async def need(self, request: Request) -> Response:
        """Answer the tool need of each request, and whether it reaches the threshold."""
        caller, body = _caller(request), request_bodies.read_need(await record_of(request, self.searches))
        return await self._each(caller, replace(body, k=1), self._need)

    def _need(self, answer: Answer) -> dict[str, Any]:
        need = answer.need
        return {"need": need, "needed": None if need is None else need >= self._scout.need_options.threshold}

    async def feedback(self, request: Request) -> Response:
        """Record which tools requests really used."""
        caller, examples = _caller(request), request_bodies.read_feedback(await record_of(request, self.changes))
        await self.changes.run(self._learn, caller, examples)
        return _sent(json.dumps({"recorded": len(examples)}))

    def _learn(self, caller: Caller, examples: list[request_bodies.FeedbackBody]) -> None:
        self.quota.take(caller.tenant, len(examples))
        for example in examples:
            tools = example.used, example.rejected
            self._access.feedback(caller, example.request, *tools, source="http", example_id=example.id)

    async def list(self, request: Request) -> Response:
        """Answer one page of the caller's tools."""
        caller, page = _caller(request), request_bodies.read_page(request.query_params)
        return _sent(await self.searches.run(self._listed, caller, page))

    def _listed(self, caller: Caller, page: tuple[str | None, int, int]) -> str:
        tools = self._access.list(caller, *page)
        total, version = self._access.count(caller, page[0]), self._access.version(caller)
        return json.dumps({"tools": [_shown(tool, caller) for tool in tools], "total": total, "version": version})

    async def describe(self, request: Request) -> Response:
        """Answer one tool in full."""
        caller = _caller(request)
        return _sent(await self.searches.run(self._described, caller, request.path_params["id"]))

    def _described(self, caller: Caller, tool_id: str) -> str:
        return json.dumps(_shown(self._access.describe(caller, tool_id), caller))

    async def remove(self, request: Request) -> Response:
        """Remove one tool."""
        self._access.require_admin(_caller(request))
        changes = request_bodies.Changes(remove=(request.path_params["id"],))
        await self.changes.run(self._check, _caller(request), changes)
        return _sent(json.dumps(await self.changes.run(self._changed, _caller(request), changes)))

    def _check(self, caller: Caller, changes: request_bodies.Changes) -> None:
        self._access.require_own(caller, [tool.id for tool in changes.tools], changes.remove, changes.sync)

    async def change(self, request: Request) -> Response:
        """Add, change and remove tools; a client that accepts JSON lines gets progress."""
        self._access.require_admin(_caller(request))
        body = await body_of(request, ("application/json", LINES))
        by_line = LINES in request.headers.get("content-type", "").lower()
        changes = await self.changes.run(
            request_bodies.read_tool_lines if by_line else request_bodies.read_changes, body
        )
        await self.changes.run(self._check, _caller(request), changes)
        if LINES in request.headers.get("accept", "").lower():
            return StreamingResponse(
                self._progress_lines(_caller(request), changes), headers=_HEADERS, media_type=LINES
            )
        return _sent(json.dumps(await self.changes.run(self._changed, _caller(request), changes)))

    def _changed(
        self, caller: Caller, changes: request_bodies.Changes, progress: Callable[[str, int, int], None] | None = None
    ) -> dict[str, int]:
        """Change the catalogue, and return the counts of changes with the caller's new version."""
        counts = self._writes.apply(changes, progress)
        now = caller if caller.allowed is None else self._access.named(caller.name)
        return counts | {"version": self._access.version(now), "words_only": self._scout.words_only(now.allowed)}

    async def _progress_lines(self, caller: Caller, changes: request_bodies.Changes) -> AsyncIterator[str]:
        """Yield a JSON line for each step and one for the outcome. The change goes on if the client stops reading."""
        loop, steps = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

        def progress(stage: str, done: int, total: int) -> None:
            loop.call_soon_threadsafe(steps.put_nowait, {"stage": stage, "done": done, "of": total})

        work = asyncio.ensure_future(self.changes.run(self._changed, caller, changes, progress))
        work.add_done_callback(lambda _: steps.put_nowait(None))
        yield json.dumps({"stage": "begun", "done": 0, "of": len(changes.tools)}) + "\n"
        while (step := await steps.get()) is not None:
            yield json.dumps(step) + "\n"
        try:
            yield json.dumps({"stage": "done", **work.result()}) + "\n"
        except (ToolscoutError, problems.Problem) as error:
            problem = problems.of(error)
            yield json.dumps({"stage": "failed", "status": problem.status, "detail": problem.detail}) + "\n"

    async def forward(self, request: Request) -> Response:
        """Forward a model request to the upstream with fewer tools."""
        _caller(request)
        assert self._proxy is not None
        return await self._proxy.forward(request, self.searches)

    async def health(self, _: Request) -> Response:
        """Answer that the process runs."""
        return _sent('{"status": "ok"}')

    async def ready(self, _: Request) -> Response:
        """Answer 200 where requests can be answered, and from what; 503 where they cannot, or at shutdown.

        A server whose own index stands goes on while a database cannot be reached.
        """
        status = {"status": "ready", "index": "database" if self._scout.searches_store else "own", "store": "reached"}
        try:
            await self._probe.check()
        except (StoreUnavailable, ProbeTimeout):
            if self._scout.searches_store:
                raise
            status["store"] = "unreachable"
        return _sent(json.dumps(status))

    async def measured(self, request: Request) -> Response:
        """Answer metrics for Prometheus: only for an admin who sees everything, as they count all tools and callers."""
        self._access.require_admin(_caller(request))
        self._access.require_everything(_caller(request))
        return Response(self.metrics_text(), headers=_HEADERS, media_type=prometheus.MEDIA_TYPE)

    def metrics_text(self) -> str:
        """Return the metrics for Prometheus."""
        gauges = {
            "toolscout_tools": ("Tools in the catalogue.", float(self._scout.count())),
            "toolscout_words_only": ("Tools that are not embedded yet.", float(self._scout.words_only())),
            "toolscout_searches_inside": ("Searches running or waiting.", float(self.searches.inside)),
            "toolscout_changes_inside": ("Changes running or waiting.", float(self.changes.inside)),
            "toolscout_audit_lines_lost": ("Lines that the audit log could not take.", float(self.audit.lost)),
        }
        return self.metrics.text(gauges)

    async def resource(self, request: Request) -> Response:
        """Answer where to sign in (RFC 9728)."""
        assert self._access.sign_in is not None
        return protected_resource.metadata(self._access.sign_in, request.scope)

    async def document(self, _: Request) -> Response:
        """Answer the OpenAPI document of this API."""
        return _sent(self._document)


def _route(method: str, path: str, act: _Endpoint) -> Route:
    async def endpoint(request: Request) -> Response:
        request.scope[LABEL] = f"{method} {path.replace(':path', '')}"
        return await act(request)

    return Route(path, endpoint, methods=[method], name=f"{method} {path}")


def _caller(request: Request) -> Caller:
    """Return the caller that the middleware found for the request's key; raises the error that it found instead."""
    found = request.scope[CALLER]
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, Caller)
    return found


def _sent(text: str) -> Response:
    return Response(text, headers=_HEADERS, media_type="application/json")


def _shown(tool: Tool, caller: Caller) -> dict[str, Any]:
    """Return a tool as JSON; its origin (where and how it is called) only for admins who see everything."""
    shown = {"id": tool.id, **tool.to_record()}
    if not caller.admin or caller.allowed is not None:
        shown.pop("origin", None)
    return shown


def _named(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a vendor's tool object that holds its name."""
    inner = tool.get("function")
    return inner if isinstance(inner, dict) else tool
