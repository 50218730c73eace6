"""Runs tool calls by the tool's origin: a Python function, an MCP server or an HTTP service.

Only targets that the configuration of this process allows are called, whatever the catalogue says. Arguments are
checked against the tool's schema first. A call that fails gives a result whose error a model can act on; it raises
nothing, and the result holds no header and no environment variable.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import shlex
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from toolscout.calling import http_request
from toolscout.catalogue.importers import functions
from toolscout.catalogue.mcp.client import McpServer, call_tool
from toolscout.core.addresses import Addresses
from toolscout.core.argument_checks import problems
from toolscout.core.targets import Targets, calls_itself, is_address
from toolscout.core.tool import Origin, Tool, clean_text
from toolscout.errors import BadSource, Forbidden, ToolscoutError

Arguments = Mapping[str, Any]
_HIDDEN = "***"
_SHORTEST_SECRET = 6  # what is shorter stands in too many words by chance
_SHOWN_ERROR = 600
_log = logging.getLogger("toolscout.calling.dispatch")


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call brought: `content` where it is ok, else `error` (and what content there was).

    `exact` is False for a recording of the same tool with other arguments. `missing`: how many characters of a long
    response were left out, which the end of `content` says.
    """

    ok: bool
    content: str
    error: str = ""
    exact: bool = True
    missing: int = 0

    @property
    def observation(self) -> str:
        """What a model is told."""
        return self.content if self.ok else "error: " + "\n".join(filter(None, [self.error, self.content]))

    def shortened(self, most: int) -> str:
        """The beginning of the observation, and how much of the whole response is missing then."""
        return cut(self.observation.removesuffix(_missing(self.missing)), most, self.missing)


class ToolCaller(ABC):
    """What runs calls. Batch in, batch out; it never raises for a call that fails."""

    @abstractmethod
    def call(self, calls: Sequence[tuple[Tool, Arguments]]) -> list[CallResult]:
        """The result of each call."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How calls are made: seconds to wait, characters of a response that are kept, and what may be called.

    `allow`: targets that may be called as the catalogue has them (see core/targets.py); nothing else is. `targets`
    replace the address of a namespace's tools: the base URL of a service, or the command line or URL of an MCP server.
    `headers` and `env` are by namespace and go to its entry in `targets` alone, so that no server is told what is
    another's.
    `addresses`: hosts that HTTP services may be at though they are not public; None: the host of the target alone.
    `hide_targets`: errors name no command line, path or address of a target; those go to the log. It is for callers
    over a network.
    """

    timeout: float = 30.0
    max_chars: int = 4_000
    allow: tuple[str, ...] = ()
    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    targets: Mapping[str, str] = field(default_factory=dict, repr=False)
    addresses: Addresses | None = None
    hide_targets: bool = False


class OriginCaller(ToolCaller):
    """Calls tools where they come from. `functions`: those that cannot be found again by name, by tool id."""

    def __init__(
        self, options: CallOptions | None = None, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        """Nothing is opened before a call needs it."""
        self.options = options or CallOptions()
        self._allowed = Targets(self.options.allow)
        self._functions = dict(functions or {})

    def call(self, calls: Sequence[tuple[Tool, Arguments]]) -> list[CallResult]:
        """One call after the other: a model that asked for two may count on their order."""
        return [self._call(tool, arguments) for tool, arguments in calls]

    def _call(self, tool: Tool, arguments: Arguments) -> CallResult:
        wrong = problems(arguments, tool.input_schema)
        if wrong:
            return CallResult(False, "", "the arguments do not fit: " + "; ".join(wrong))
        origin = tool.origin
        if tool.id not in self._functions and origin is None:
            return CallResult(False, "", f"it is not known how {tool.id} is called; add it from its server or document")
        try:
            result = self._made(tool, origin, arguments)
        except BadSource as error:  # what runs or serves the tool cannot be reached
            if self.options.hide_targets:
                _log.warning("%s could not be called: %s", tool.id, error)
                result = CallResult(False, "", f"what serves {tool.id} cannot be reached now; the log here says why")
            else:
                result = CallResult(False, "", clean_text(str(error)))
        except ToolscoutError as error:
            result = CallResult(False, "", clean_text(str(error)))
        except Exception as error:  # whatever a tool's own code or answer does is told, not raised
            result = CallResult(False, "", clean_text(f"{type(error).__name__}: {error}"))
        # Before anything is cut off: a part of a secret would not be found.
        content, told = (self._without_secrets(text, tool.namespace) for text in (result.content, result.error))
        told = told if len(told) <= _SHOWN_ERROR else told[: _SHOWN_ERROR - 1] + "…"
        most = self.options.max_chars
        return CallResult(result.ok, cut(content, most), told, missing=max(0, len(content) - most))

    def _without_secrets(self, text: str, namespace: str) -> str:
        """What a tool said, without the headers and the environment that it was given: a model reads it."""
        headers, env = self.options.headers.get(namespace, {}), self.options.env.get(namespace, {})
        values = {*headers.values(), *env.values()}
        # "Bearer KEY": a service that complains about the key names it alone.
        values |= {words[1] for words in map(str.split, headers.values()) if len(words) == 2}
        values |= {json.dumps(value)[1:-1] for value in values}
        for value in sorted(values, key=len, reverse=True):
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, _HIDDEN)
        return text

    def _made(self, tool: Tool, origin: Origin | None, arguments: Arguments) -> CallResult:
        if tool.id in self._functions:
            return _run_function(self._functions[tool.id], arguments, self.options.timeout)
        assert origin is not None
        target = self._target(tool, origin)
        if origin.kind == "function":
            function = functions.find(origin.target, own=not self._allowed.names(tool))
            return _run_function(function, arguments, self.options.timeout)
        if origin.kind == "http":
            made = http_request.request(origin, arguments, target, self.options.headers.get(tool.namespace, {}))
            answer = http_request.send(made, self.options.timeout, self.options.addresses)
            failed = answer.status >= 300
            moved = " (it has moved; give its new address as the target)" if 301 <= answer.status <= 308 else ""
            return CallResult(not failed, answer.text, f"{answer.status} {answer.reason}{moved}" if failed else "")
        if not calls_itself(tool, origin):
            raise Forbidden(f"{tool.id} would run another tool of its server; add it again from that server")
        name = str(origin.details.get("tool") or tool.name)
        return _mcp_result(_run(call_tool(self._server(tool, target), name, dict(arguments), self.options.timeout)))

    def permits(self, tool: Tool) -> bool:
        """Whether a tool may be called from here."""
        replaced = tool.origin is not None and tool.origin.kind != "function" and tool.namespace in self.options.targets
        return tool.id in self._functions or replaced or self._allowed.permit(tool)

    def _target(self, tool: Tool, origin: Origin) -> str:
        """Where to call a tool; Forbidden where this process was not told that it may."""
        namespace = tool.namespace
        if not self.permits(tool):
            _log.warning("%s is not called; to allow it: %s", tool.id, allowing(tool))
            raise Forbidden(f"{tool.id} may not be called from here: its target is not among those that are allowed")
        if origin.kind == "function":
            return origin.target
        if namespace in self.options.targets:
            return self.options.targets[namespace]
        if namespace in self.options.headers or namespace in self.options.env:
            raise Forbidden(
                f"the headers and variables of {namespace} are sent only to a target that was named for it; "
                f"name it with --target {namespace}=ADDRESS"
            )
        return origin.target

    def _server(self, tool: Tool, target: str) -> McpServer:
        if _HIDDEN in target:
            raise ToolscoutError(
                f"the address of {tool.namespace} holds a secret, which is not stored; give it again (--target)"
            )
        if is_address(target):
            return McpServer(url=target, headers=dict(self.options.headers.get(tool.namespace, {})))
        return McpServer(command=tuple(shlex.split(target)), env=dict(self.options.env.get(tool.namespace, {})))


def allowing(tool: Tool) -> str:
    """The option that allows the target of a tool for its namespace, as it is typed in a shell."""
    assert tool.origin is not None
    if tool.origin.kind == "mcp" and tool.origin.details.get("cwd"):
        return "name its server in a file for --config, since it is started in a folder of its own"
    return f"--allow-target {shlex.quote(f'{tool.namespace}={clean_text(tool.origin.target)}')}"


def cut(text: str, most: int, missing: int = 0) -> str:
    """The beginning of a long response, and how much is missing; `missing`: what was left out of it before."""
    return text[:most] + _missing(missing + max(0, len(text) - most))


def _missing(count: int) -> str:
    return f" … ({count:,} more characters)" if count else ""


def _run(coroutine: Any) -> Any:
    """Run it in an event loop: here, or in a thread of its own where one is already running here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def _run_function(function: Callable[..., Any], arguments: Arguments, timeout: float) -> CallResult:
    """Call it in a thread, which is left to itself where it takes too long."""
    done: list[CallResult] = []

    def run() -> None:
        try:
            value = _applied(function, arguments)
            value = asyncio.run(value) if inspect.iscoroutine(value) else value
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            done.append(CallResult(True, text))
        except BaseException as error:  # also an exit of the tool's: it may not end the agent
            done.append(CallResult(False, "", clean_text(f"{type(error).__name__}: {error}")))

    worker = threading.Thread(target=run, name="toolscout-call", daemon=True)
    worker.start()
    worker.join(timeout)
    return done[0] if done else CallResult(False, "", f"it did not end within {timeout:g} s")


def _applied(function: Callable[..., Any], arguments: Arguments) -> Any:
    """Call by name, apart from what can be given by position only."""
    named = dict(arguments)
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    positional = [
        named.pop(name) for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY and name in named
    ]
    return function(*positional, **named)


def _mcp_result(answer: Any) -> CallResult:
    """The text of an MCP answer; what is not text is named."""
    parts: list[str] = []
    for block in answer.content:
        resource = getattr(block, "resource", None)
        text = getattr(block, "text", None) or getattr(resource, "text", None)
        parts.append(text if isinstance(text, str) else f"({block.type})")
    content = "\n".join(parts)
    structured = getattr(answer, "structured_content", None)
    if not content and structured is not None:
        content = json.dumps(structured, ensure_ascii=False, default=str)
    if answer.is_error:
        return CallResult(False, "", content or "the server reports an error and does not say which")
    return CallResult(True, content)
