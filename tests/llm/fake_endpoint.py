"""An endpoint on this machine that answers as it is told to, badly too."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from toolscout.llm import Message

KEY = "sk-planted-0123456789"
Answer = tuple[int, dict[str, str], bytes]
Script = Callable[[dict[str, Any], int], Answer]


def chat(*texts: str, usage: dict[str, int] | None = None, **more: Any) -> Answer:
    """A good answer with these choices."""
    choices = [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **more} for text in texts]
    reply = {"choices": choices, "usage": usage or {"prompt_tokens": 10, "completion_tokens": 4 * len(texts)}}
    return 200, {}, json.dumps(reply).encode()


def refused(status: int, message: str, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    """An error as OpenAI words it."""
    return status, headers or {}, json.dumps({"error": {"message": message, **more}}).encode()


class FakeEndpoint:
    """Answers by its script, which is given the request and its number; keeps requests, headers and their times."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with fake._lock:
                    fake.requests.append(body)
                    fake.headers.append(dict(self.headers))
                    fake.paths.append(self.path)
                    fake.times.append(time.monotonic())
                    number = len(fake.requests) - 1
                    fake._at_once += 1
                    fake.most_at_once = max(fake.most_at_once, fake._at_once)
                try:
                    status, headers, content = fake.script(body, number)
                finally:
                    with fake._lock:  # before it is answered: the client may ask again at once
                        fake._at_once -= 1
                try:
                    self.send_response(status)
                    for name, value in {"Content-Length": str(len(content)), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    pass  # the client has gone

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def asked(*texts: str) -> list[list[Message]]:
    return [[Message("user", text)] for text in texts]


def in_turn(*answers: Answer) -> Script:
    """One answer after the other, the last one for ever."""
    return lambda _, number: answers[min(number, len(answers) - 1)]


def message(**parts: Any) -> Answer:
    """An answer whose message has these parts."""
    return 200, {}, json.dumps({"choices": [{"message": parts, "finish_reason": "stop"}]}).encode()


def echo(request: dict[str, Any], _: int) -> Answer:
    """Says the last message in capitals."""
    return chat(request["messages"][-1]["content"].upper())
