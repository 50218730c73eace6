"""A client's request while a server works on it: what the server may ask the client, and tell it, meanwhile.

Clients of the older protocol are asked by a request. Those of the newest are not: the answer to their request holds the
questions, and they send the request again with their answers (`Interruptions`).
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, get_args

from toolscout.core.masking import Secrets
from toolscout.errors import BadRequest, MissingExtra

try:
    import anyio
    import anyio.abc
    import anyio.lowlevel
    import mcp_types as types
    from mcp import MCPError
    from mcp.shared.message import ServerMessageMetadata
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
    from pydantic import ValidationError

    from toolscout.serving.gateway.masking import masked
except ImportError:
    raise MissingExtra("serving", "serve") from None

ANSWER_SECONDS = 600.0
"""How long a client, and the person before it, may take to answer a question."""
LEVELS: tuple[types.LoggingLevel, ...] = get_args(types.LoggingLevel)
"""Levels of log messages, the least severe first."""
LOG_LEVEL = "toolscout/log-level"
"""Key in the state of a connection under which the level lies that its client has set."""
_MAX_INTERRUPTED = 32  # calls of one caller that wait for its answers
_MAX_QUESTIONS = 20  # open ones of one call
_MAX_ELICITED = 1_000  # elicitations by URL of one server that are not known to be done
_MAX_PENDING = 100  # reports and log messages that may wait for a client to read them
_MAX_REPORT_CHARS = 1_000
_UNCLAIMED_SECONDS = 60.0  # that a result is kept whose client was asked something and has not come back
_RESULTS: Mapping[str, tuple[type[Any], ...]] = {
    "sampling/createMessage": (types.CreateMessageResult, types.CreateMessageResultWithTools),
    "elicitation/create": (types.ElicitResult,),
    "roots/list": (types.ListRootsResult,),
}
_Answer = types.InputResponse | types.ErrorData


class Clock:
    """Ends a call after some seconds without a sign of progress; it stands still while the client is asked."""

    def __init__(self, seconds: float) -> None:
        """Take the seconds; `scope` is to be entered around the call."""
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
        self._seconds, self._stops = seconds, 0

    def restart(self) -> None:
        """Begin again: there was a sign of progress."""
        if not self._stops:
            self.scope.deadline = anyio.current_time() + self._seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stand still inside the block."""
        self._stops += 1
        self.scope.deadline = math.inf
        try:
            yield
        finally:
            self._stops -= 1
            self.restart()


class ClientCall:
    """A request of a client that a server works on. This class is for clients that cannot be asked or told anything."""

    client: Hashable = None
    """Whose request it is: equal for two requests of one client, and only then."""
    log_level: types.LoggingLevel | None = None
    """The least severe log messages that the client wants; None: it wants none."""
    capabilities: types.ClientCapabilities = types.ClientCapabilities()
    """What the client can be asked."""
    secrets: Secrets = Secrets()
    """What the server may quote in what it asks and tells, and the client shall not see."""

    def __init__(self) -> None:
        """Begin without a clock."""
        self.clock: Clock | None = None
        self._asking: set[anyio.CancelScope] = set()
        self._pending = 0

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on a report of progress, which restarts the clock."""
        if self.clock is not None:
            self.clock.restart()
        if self._pending < _MAX_PENDING:
            self._pending += 1
            try:
                await self._report(progress, total, message and self.secrets.mask(message)[:_MAX_REPORT_CHARS])
            finally:
                self._pending -= 1

    async def log(self, message: types.LoggingMessageNotificationParams) -> None:
        """Pass on a log message, where the client wants it."""
        wanted = self.log_level is not None and LEVELS.index(message.level) >= LEVELS.index(self.log_level)
        if wanted and self._pending < _MAX_PENDING:
            self._pending += 1
            try:
                await self._log(masked(message, self.secrets))
            finally:
                self._pending -= 1

    async def ask(self, request: types.InputRequest) -> _Answer:
        """Return the client's answer to a question of the server, or why there is none; the clock stands still."""
        request = masked(request, self.secrets)
        with anyio.CancelScope() as scope:
            self._asking.add(scope)
            try:
                if self.clock is None:
                    return await self._ask(request)
                with self.clock.stopped():
                    return await self._ask(request)
            finally:
                self._asking.discard(scope)
        return refused("the call has ended")

    async def visited(self, elicitation_id: str) -> None:
        """Pass on that the user has done what an elicitation sent it to a URL for."""

    def end(self) -> None:
        """Take back what is still asked, as the call has ended."""
        for scope in self._asking:
            scope.cancel()

    async def _report(self, progress: float, total: float | None, message: str | None) -> None:
        """Tell the client."""

    async def _log(self, message: types.LoggingMessageNotificationParams) -> None:
        """Tell the client."""

    async def _ask(self, request: types.InputRequest) -> _Answer:
        return refused("there is no client that could be asked")


class DirectCall(ClientCall):
    """A request whose client is told and asked through the session of the SDK, while it waits for the one result."""

    def __init__(self, ctx: Any) -> None:
        """Take the context of the request."""
        super().__init__()
        self._ctx = ctx
        self.capabilities = ctx.session.client_capabilities or self.capabilities
        self.log_level = _wanted_level(ctx)
        self.client = _client_of(ctx)

    async def _report(self, progress: float, total: float | None, message: str | None) -> None:
        await self._ctx.session.report_progress(progress, total, message)

    async def _log(self, message: types.LoggingMessageNotificationParams) -> None:
        notification = types.LoggingMessageNotification(params=message)
        await self._ctx.session.send_notification(notification, related_request_id=self._ctx.request_id)

    async def _ask(self, request: types.InputRequest) -> _Answer:
        return await _ask_session(self._ctx.session, request, ServerMessageMetadata(self._ctx.request_id))

    async def visited(self, elicitation_id: str) -> None:
        """Pass on that the user has done what an elicitation sent it to a URL for; the newest protocol has no word."""
        if self._ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._ctx.session.send_elicit_complete(elicitation_id)


class ConnectedClient(ClientCall):
    """The only client of a gateway over stdio, for what concerns none of its requests; of the older protocol."""

    def __init__(self, ctx: Any) -> None:
        """Take the context of any message of the client."""
        super().__init__()
        self._session = ctx.session
        self.connection = ctx.session._connection

    async def log(self, message: types.LoggingMessageNotificationParams) -> None:
        """Pass on a log message, where the client wants it now."""
        self.log_level = self.connection.state.get(LOG_LEVEL, LEVELS[0])
        await super().log(message)

    async def _log(self, message: types.LoggingMessageNotificationParams) -> None:
        await self._session.send_notification(types.LoggingMessageNotification(params=message))

    async def _ask(self, request: types.InputRequest) -> _Answer:
        return await _ask_session(self._session, request, None)


class _Question:
    """A question that waits for the client's answer."""

    def __init__(self, request: types.InputRequest) -> None:
        self.request = request
        self.answered = anyio.Event()
        self.answer: types.InputResponse | None = None


class _InterruptedCall(DirectCall):
    """A request of the newest protocol, answered in rounds: each but the last ends with questions to the client."""

    def __init__(self, ctx: Any) -> None:
        super().__init__(ctx)
        self.claimed = anyio.Event()  # the client has come for the result
        self._scope = anyio.CancelScope()
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._news = anyio.Event()
        self._waits = True  # whether the client waits for an answer now
        self._ended = False
        self._result: Any = None
        self._error: Exception = BadRequest("you were asked something and did not answer in time; call again")

    async def work(self, work: Callable[[ClientCall], Awaitable[Any]]) -> None:
        """Do the work and keep what it returns or raises."""
        try:
            with self._scope:
                self._result = await work(self)
        except Exception as error:  # raised again where the client waits for the result
            self._error = error
        finally:
            self._ended = True
            self.end()
            self._news.set()

    async def round(self, ctx: Any, answers: Mapping[str, types.InputResponse]) -> dict[str, types.InputRequest]:
        """Take the client's answers and wait; return what the server asks next, {} where the result is there."""
        self._ctx, self._waits = ctx, True
        for key, answer in answers.items():
            question = self._questions.get(key)
            if question is not None and isinstance(answer, _RESULTS[question.request.method]):
                question.answer = answer
                question.answered.set()
                del self._questions[key]
        try:
            while not self._ended:
                self._news = anyio.Event()
                if not self._questions:
                    await self._news.wait()
                await anyio.sleep(0)  # so that questions asked at once go to the client together
                if self._questions:
                    self._waits = False
                    return {key: question.request for key, question in self._questions.items()}
        except anyio.get_cancelled_exc_class():
            self.cancel()
            raise
        self.claimed.set()
        return {}

    def result(self) -> Any:
        """Return what the work returned, or raise what it raised."""
        if self._result is None:
            raise self._error
        return self._result

    def cancel(self) -> None:
        """End the work."""
        self._scope.cancel()

    async def _report(self, progress: float, total: float | None, message: str | None) -> None:
        if self._waits:
            await super()._report(progress, total, message)

    async def _log(self, message: types.LoggingMessageNotificationParams) -> None:
        if self._waits:
            await super()._log(message)

    async def _ask(self, request: types.InputRequest) -> _Answer:
        if problem := _problem(self.capabilities, request):
            return refused(problem)
        if len(self._questions) >= _MAX_QUESTIONS:
            return refused("the server has asked too much at once")
        self._asked += 1
        key, question = f"question-{self._asked}", _Question(request)
        self._questions[key] = question
        self._news.set()
        try:
            with anyio.move_on_after(ANSWER_SECONDS):
                await question.answered.wait()
        finally:
            self._questions.pop(key, None)
        if question.answer is None:
            self.cancel()
            return refused("the client did not answer in time")
        return question.answer


class Interruptions:
    """Answers requests that servers may interrupt with questions to the client."""

    def __init__(self, tasks: Callable[[], anyio.abc.TaskGroup | None]) -> None:
        """`tasks` returns the task group that calls run in while their clients think; None before it starts."""
        self._tasks = tasks
        self._waiting: dict[str, tuple[str, str, _InterruptedCall]] = {}  # by state: who called what

    async def run(
        self, ctx: Any, params: types.InputResponseRequestParams, who: str, work: Callable[[ClientCall], Awaitable[Any]]
    ) -> Any:
        """Return the result of the work, or an InputRequiredResult with questions to the client.

        `work` gets the call that it may ask and tell. `who`: the caller, who alone may go on with its call.
        """
        tasks = self._tasks()
        direct = DirectCall(ctx)
        can = direct.capabilities
        rounds = can.sampling or can.elicitation or can.roots
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS or tasks is None or not rounds:
            try:
                return await work(direct)
            finally:
                direct.end()
        about = _digest(ctx.method, params)
        if params.request_state is None:
            call = _InterruptedCall(ctx)
            tasks.start_soon(call.work, work)
        else:
            call = self._resumed(params.request_state, who, about)
        questions = await call.round(ctx, params.input_responses or {})
        if not questions:
            return call.result()
        state = secrets.token_urlsafe(24)
        self._make_room(who)
        self._waiting[state] = (who, about, call)
        tasks.start_soon(self._forget, state, call)
        return types.InputRequiredResult(input_requests=questions, request_state=state)

    def _resumed(self, state: str, who: str, about: str) -> _InterruptedCall:
        known = self._waiting.get(state)
        if known is None or known[:2] != (who, about):
            raise MCPError(types.INVALID_PARAMS, "no call waits here for this answer, or not any more; call again")
        del self._waiting[state]
        return known[2]

    def _make_room(self, who: str) -> None:
        """End a caller's oldest calls that wait, where there are too many."""
        mine = [state for state, (caller, *_) in self._waiting.items() if caller == who]
        for state in mine[: max(0, len(mine) - _MAX_INTERRUPTED + 1)]:
            self._waiting.pop(state)[2].cancel()

    async def _forget(self, state: str, call: _InterruptedCall) -> None:
        """Forget a call that nobody comes back to."""
        with anyio.move_on_after(ANSWER_SECONDS + _UNCLAIMED_SECONDS):
            await call.claimed.wait()
        self._waiting.pop(state, None)


CURRENT: ContextVar[ClientCall | None] = ContextVar("toolscout_client_call", default=None)
"""The call that the present task works on; transports over HTTP hand it on to what a server says meanwhile."""


class CallsInFlight:
    """The calls that one server works on, and which of them a question or a message of the server concerns.

    Over HTTP the answer to a call carries them. Over stdio nothing does: they concern the client whose calls alone are
    in flight, and nobody where several clients' calls are. They are passed on under the server's name; "" where the
    server is another gateway, which has named it.
    """

    def __init__(self, server: str, connected: Callable[[], ClientCall | None]) -> None:
        """`connected` returns the client for what concerns no call, None where nobody is."""
        self._server, self._connected = server, connected
        self._calls: list[ClientCall] = []
        self._elicited: dict[str, ClientCall] = {}  # by id: whose user was sent to a URL

    @contextmanager
    def working_on(self, call: ClientCall) -> Iterator[None]:
        """Inside the block, the server works on this call."""
        self._calls.append(call)
        token = CURRENT.set(call)
        try:
            yield
        finally:
            CURRENT.reset(token)
            self._calls.remove(call)

    def concerned(self) -> ClientCall | None:
        """Return the call that what the server says now concerns; None where that cannot be told."""
        if (current := CURRENT.get()) is not None:
            return current
        clients = {call.client for call in self._calls}
        if not clients:
            return self._connected()
        return self._calls[-1] if len(clients) == 1 else None

    def callbacks(self, capabilities: types.ClientCapabilities | None = None) -> dict[str, Any]:
        """Return the callbacks of an MCP client that is connected to the server.

        `capabilities`: what the one client behind it can be asked; None where clients come and go.
        """

        async def sample(_: Any, params: types.CreateMessageRequestParams) -> Any:
            return await self._ask(types.CreateMessageRequest(params=self._marked(params)))

        async def elicit(_: Any, params: types.ElicitRequestParams) -> Any:
            changes: dict[str, Any] = {}
            if self._server:
                changes["message"] = f"{self._server}: {params.message}"
            if isinstance(params, types.ElicitRequestURLParams):
                # Servers of the newest protocol give none, and clients of the older one need it.
                changes["elicitation_id"] = known_as = params.elicitation_id or secrets.token_urlsafe(16)
                if (call := self.concerned()) is not None:
                    self._elicited[known_as] = call
                    while len(self._elicited) > _MAX_ELICITED:
                        self._elicited.pop(next(iter(self._elicited)))
            return await self._ask(types.ElicitRequest(params=self._marked(params, **changes)))

        async def roots(_: Any) -> Any:
            return await self._ask(types.ListRootsRequest())

        async def log(params: types.LoggingMessageNotificationParams) -> None:
            if (call := self.concerned()) is not None:
                name = "/".join(filter(None, [self._server, params.logger]))
                await call.log(params.model_copy(update={"logger": name or None, "meta": None}))

        every = types.ClientCapabilities(
            sampling=types.SamplingCapability(tools=types.SamplingToolsCapability()),
            elicitation=types.ElicitationCapability(),
            roots=types.RootsCapability(),
        )
        can = capabilities or every
        return {
            "sampling_callback": sample if can.sampling else None,
            "sampling_capabilities": can.sampling,
            "elicitation_callback": elicit if can.elicitation else None,
            "list_roots_callback": roots if can.roots else None,
            "logging_callback": log,
        }

    async def visited(self, elicitation_id: str) -> None:
        """Tell the client that its user has done what an elicitation sent it to a URL for."""
        if (call := self._elicited.pop(elicitation_id, None)) is not None:
            await call.visited(elicitation_id)

    async def _ask(self, request: types.InputRequest) -> Any:
        call = self.concerned()
        if call is None:
            return refused("several clients use this server at once, and whom it asks cannot be told")
        return await call.ask(request)

    def _marked(self, params: Any, **changes: Any) -> Any:
        """Return the parameters with the server's name in their `_meta`, without what belongs to its connection."""
        known = (params.meta or {}).get(SERVER)
        return params.model_copy(update={**changes, "meta": {SERVER: self._server or known}})


SERVER = "toolscout/server"
"""Key of `_meta` that names the server from which something comes."""


def refused(why: str) -> types.ErrorData:
    """Return the error for a server whose question is not answered."""
    return types.ErrorData(code=types.INVALID_REQUEST, message=why)


async def _ask_session(session: Any, request: types.InputRequest, metadata: ServerMessageMetadata | None) -> _Answer:
    if problem := _problem(session.client_capabilities or types.ClientCapabilities(), request):
        return refused(problem)
    result = _RESULTS[request.method][-1 if getattr(request.params, "tools", None) else 0]
    try:
        answer: types.InputResponse = await session.send_request(request, result, ANSWER_SECONDS, metadata)
        return answer
    except MCPError as error:
        return error.error
    except ValidationError:
        return refused("the client's answer is not one")


def _problem(known: types.ClientCapabilities, request: types.InputRequest) -> str:
    """Return why a client of these capabilities cannot answer such a question; "" where it can."""
    if isinstance(request, types.CreateMessageRequest):
        tools = request.params.tools or request.params.tool_choice
        lacks = known.sampling is None or (tools and known.sampling.tools is None)
        return "the client does not let servers use its model so" if lacks else ""
    if isinstance(request, types.ListRootsRequest):
        return "the client has no roots" if known.roots is None else ""
    elicitation = known.elicitation
    by_url = isinstance(request.params, types.ElicitRequestURLParams)
    lacks = elicitation is None or (by_url and elicitation.url is None)
    return "the client does not let servers ask its user so" if lacks else ""


def _wanted_level(ctx: Any) -> types.LoggingLevel | None:
    if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        level: types.LoggingLevel = ctx.session._connection.state.get(LOG_LEVEL, LEVELS[0])
        return level
    asked = (ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
    return asked if asked in LEVELS else None


def _client_of(ctx: Any) -> Hashable:
    if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
        return id(ctx.session._connection)
    return "stdio" if ctx.request is None else object()


def _digest(method: str, params: types.InputResponseRequestParams) -> str:
    """Return what stays the same in a request that is sent again with answers."""
    said = params.model_dump(
        by_alias=True, mode="json", exclude={"input_responses", "request_state", "meta"}, exclude_none=True
    )
    return hashlib.sha256(json.dumps([method, said], sort_keys=True).encode(errors="surrogatepass")).hexdigest()
