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
from toolscout.core.masking import HIDDEN, Secrets
from toolscout.core.targets import Targets, calls_itself, is_address
from toolscout.core.tool import Origin, Tool, clean_text
from toolscout.errors import BadSource, Forbidden, ToolscoutError

Arguments = Mapping[str, Any]
_SHOWN_ERROR = 600
_log = logging.getLogger("toolscout.calling.dispatch")


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of one call: `content` where it is `ok`; otherwise `error`, and any content that came with it.

    `exact` is False where the result is the recording of a call with other arguments. `missing`: the number of
    characters cut from a long response; `content` ends with that number.
    """

    ok: bool
    content: str
    error: str = ""
    exact: bool = True
    missing: int = 0

    @property
    def observation(self) -> str:
        """The result as text for a model."""
        return self.content if self.ok else "error: " + "\n".join(filter(None, [self.error, self.content]))

    def shortened(self, most: int) -> str:
        """Return the first `most` characters of the observation, and how many of the whole response are missing."""
        return cut(self.observation.removesuffix(_missing(self.missing)), most, self.missing)


class ToolCaller(ABC):
    """Runs tool calls, a batch at a time. A call that fails gives a result with an error; it does not raise."""

    @abstractmethod
    def call(self, calls: Sequence[tuple[Tool, Arguments]]) -> list[CallResult]:
        """Return the result of each call, in order."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How calls are made and which targets may be called.

    `timeout`: seconds to wait for a call. `max_chars`: the longest response; the rest is cut off. `allow`: the targets
    that may be called as the catalogue names them (core/targets.py has their syntax); no other may. `targets`: for each
    namespace, the address that replaces the one in the catalogue: the base URL of a service, or the command line or URL
    of an MCP server. `headers` and `env`: HTTP headers and environment variables by namespace; they are sent only to
    that namespace's entry in `targets`, so that no server learns the secrets of another. `addresses`: hosts with
    private addresses that HTTP services may use; None: only the host of the target. `hide_targets`: errors name no
    command line, path or address; these go to the log instead, for callers over a network.
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
    """Calls each tool at its origin. `functions` maps tool ids to functions that cannot be imported by name."""

    def __init__(
        self, options: CallOptions | None = None, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        """Take the options; servers are only contacted by a call."""
        self.options = options or CallOptions()
        self._allowed = Targets(self.options.allow)
        self._functions = dict(functions or {})

    def call(self, calls: Sequence[tuple[Tool, Arguments]]) -> list[CallResult]:
        """Make the calls one after another, since a later call may depend on an earlier one; return their results."""
        return [self._call(tool, arguments) for tool, arguments in calls]

    def _call(self, tool: Tool, arguments: Arguments) -> CallResult:
        wrong = problems(arguments, tool.input_schema)
        if wrong:
            return CallResult(False, "", "the arguments do not fit: " + "; ".join(wrong))
        origin = tool.origin
        if tool.id not in self._functions and origin is None:
            return CallResult(False, "", f"it is not known how {tool.id} is called; add it from its server or document")
        try:
            result = self._run_by_origin(tool, origin, arguments)
        except BadSource as error:  # the server or module of the tool cannot be reached
            if self.options.hide_targets:
                _log.warning("%s could not be called: %s", tool.id, error)
                result = CallResult(False, "", f"what serves {tool.id} cannot be reached now; the log here says why")
            else:
                result = CallResult(False, "", clean_text(str(error)))
        except ToolscoutError as error:
            result = CallResult(False, "", clean_text(str(error)))
        except Exception as error:  # code and answers of strangers: anything may be raised
            result = CallResult(False, "", clean_text(f"{type(error).__name__}: {error}"))
        # Secrets first: one that is cut in two would not be found.
        content, problem = (self._without_secrets(text, tool.namespace) for text in (result.content, result.error))
        problem = problem if len(problem) <= _SHOWN_ERROR else problem[: _SHOWN_ERROR - 1] + "…"
        most = self.options.max_chars
        return CallResult(result.ok, cut(content, most), problem, missing=max(0, len(content) - most))

    def _without_secrets(self, text: str, namespace: str) -> str:
        """Return the text with the values of the namespace's headers and environment variables replaced by ***."""
        env, headers = self.options.env.get(namespace, {}), self.options.headers.get(namespace, {})
        return Secrets(env.values(), headers).mask(text) if text else text

    def _run_by_origin(self, tool: Tool, origin: Origin | None, arguments: Arguments) -> CallResult:
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
        """Return whether the options allow to call this tool."""
        replaced = tool.origin is not None and tool.origin.kind != "function" and tool.namespace in self.options.targets
        return tool.id in self._functions or replaced or self._allowed.permit(tool)

    def _target(self, tool: Tool, origin: Origin) -> str:
        """Return the address to call a tool at. Raises Forbidden where the options do not allow it."""
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
        if HIDDEN in target:
            raise ToolscoutError(
                f"the address of {tool.namespace} holds a secret, which is not stored; give it again (--target)"
            )
        if is_address(target):
            return McpServer(url=target, headers=dict(self.options.headers.get(tool.namespace, {})))
        return McpServer(command=tuple(shlex.split(target)), env=dict(self.options.env.get(tool.namespace, {})))


def allowing(tool: Tool) -> str:
    """Return the command-line option that allows the target of a tool for its namespace."""
    assert tool.origin is not None
    if tool.origin.kind == "mcp" and tool.origin.details.get("cwd"):
        return "name its server in a file for --config, since it is started in a folder of its own"
    return f"--allow-target {shlex.quote(f'{tool.namespace}={clean_text(tool.origin.target)}')}"


def cut(text: str, most: int, missing: int = 0) -> str:
    """Return the first `most` characters and how many are missing; `missing` characters were cut off before."""
    return text[:most] + _missing(missing + max(0, len(text) - most))


def _missing(count: int) -> str:
    return f" … ({count:,} more characters)" if count else ""


def _run(coroutine: Any) -> Any:
    """Run a coroutine and return its result; in another thread where this one already runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def _run_function(function: Callable[..., Any], arguments: Arguments, timeout: float) -> CallResult:
    """Call a function in a daemon thread; the thread is abandoned when `timeout` seconds have passed."""
    done: list[CallResult] = []

    def run() -> None:
        try:
            value = _applied(function, arguments)
            value = asyncio.run(value) if inspect.iscoroutine(value) else value
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            done.append(CallResult(True, text))
        except BaseException as error:  # SystemExit too: a tool may not end the agent
            done.append(CallResult(False, "", clean_text(f"{type(error).__name__}: {error}")))

    worker = threading.Thread(target=run, name="toolscout-call", daemon=True)
    worker.start()
    worker.join(timeout)
    return done[0] if done else CallResult(False, "", f"it did not end within {timeout:g} s")


def _applied(function: Callable[..., Any], arguments: Arguments) -> Any:
    """Call a function with keyword arguments; positional-only parameters are passed by position."""
    named = dict(arguments)
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    positional = [
        named.pop(name) for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY and name in named
    ]
    return function(*positional, **named)


def _mcp_result(answer: Any) -> CallResult:
    """Return the text of an MCP CallToolResult; a block that is not text appears as its type in parentheses."""
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
