"""Traces and metrics by OpenTelemetry, and the id of the request that is being answered.

Nothing of OpenTelemetry is imported before `start`. Until then `span` returns one object that does nothing. Names
follow the semantic conventions for generative AI where these have one. Texts of requests, arguments and results are
left out unless `start(content=True)`.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TypeVar

from toolscout.errors import MissingExtra

Kind = Literal["internal", "server", "client"]
Value = str | int | float | bool
_Item = TypeVar("_Item")
CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"  # what the conventions call it
MAX_CONTENT_CHARS = 4_000
_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NAME = "toolscout"
_END_S = 5.0  # that sending what is left may take at the end

request_id: ContextVar[str] = ContextVar("toolscout_request_id", default="")
"""The id of the request that is being answered; "" outside of one."""


class Span:
    """A span. This one does nothing: it stands for all spans while there is no tracing."""

    recording = False

    def set(self, **attributes: Value | None) -> None:
        """Set attributes; "__" in a name stands for ".". Those that are None are left out."""

    def content(self, name: str, value: object) -> None:
        """Set an attribute that shows what a request or call said; left out unless that was asked for."""

    def failed(self, kind: str) -> None:
        """Mark the span as an error of this kind."""

    def __enter__(self) -> Span:
        """Return the span, which is the current one in the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the span."""


_NO_SPAN = Span()


class _Recorded(Span):
    """A span that OpenTelemetry records."""

    recording = True

    def __init__(self, manager: AbstractContextManager[Any], with_content: bool) -> None:
        self._manager, self._with_content = manager, with_content

    def set(self, **attributes: Value | None) -> None:
        """Set attributes."""
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(name.replace("__", "."), value)

    def content(self, name: str, value: object) -> None:
        """Set an attribute with content, where that was asked for."""
        if self._with_content:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            self._span.set_attribute(name, text[:MAX_CONTENT_CHARS])

    def failed(self, kind: str) -> None:
        """Mark the span as an error."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_status(Status(StatusCode.ERROR))
        self._span.set_attribute("error.type", kind)

    def __enter__(self) -> _Recorded:
        """Begin the span."""
        self._span = self._manager.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the span. Of an error only its type is recorded: its message may quote a request."""
        if kind is not None:
            self.failed(kind.__name__)
        self._manager.__exit__(None, None, None)


class _Telemetry:
    """The tracer and the meter in use."""

    def __init__(self, tracer: Any, meter: Any, content: bool, close: Callable[[], None]) -> None:
        self.tracer, self.meter, self.content, self.close = tracer, meter, content, close
        self.instruments: dict[str, Any] = {}


_telemetry: _Telemetry | None = None


def enabled() -> bool:
    """Return whether spans are recorded."""
    return _telemetry is not None


def span(name: str, kind: Kind = "internal", context: object = None, **attributes: Value | None) -> Span:
    """Return a span for a with statement. `context`: that of its parent, as extracted() gives it."""
    if _telemetry is None:
        return _NO_SPAN
    return _new_span(_telemetry, name, kind, context, attributes)


def _new_span(
    telemetry: _Telemetry,
    name: str,
    kind: Kind,
    context: object,
    attributes: Mapping[str, Value | None],
    began: int | None = None,
) -> Span:
    from opentelemetry.trace import SpanKind

    if request_id.get():
        attributes = {**attributes, "toolscout.request_id": request_id.get()}
    manager = telemetry.tracer.start_as_current_span(
        name,
        context=context,
        kind=SpanKind[kind.upper()],
        attributes={key.replace("__", "."): value for key, value in attributes.items() if value is not None},
        start_time=began,
        record_exception=False,
        set_status_on_exception=False,
    )
    return _Recorded(manager, telemetry.content)


def spanned(values: Iterable[_Item], name: str, **attributes: Value | None) -> Iterator[_Item]:
    """Yield the values, then record a span of the time that they took."""
    if _telemetry is None:
        yield from values
        return
    source, made, began = iter(values), 0, time.time_ns()
    for value in source:
        made += 1
        yield value
    if made:
        with _new_span(_telemetry, name, "internal", None, attributes, began) as span:
            span.set(toolscout__batches=made)


def record(name: str, value: float, unit: str, about: str, **attributes: Value) -> None:
    """Record a value of a histogram."""
    if _telemetry is None:
        return
    instruments = _telemetry.instruments
    if name not in instruments:
        instruments[name] = _telemetry.meter.create_histogram(name, unit, about)
    instruments[name].record(value, {key.replace("__", "."): one for key, one in attributes.items()})


def extracted(headers: Mapping[str, str]) -> object:
    """Return the context that W3C headers (traceparent, tracestate) name; None where they name none."""
    if _telemetry is None or "traceparent" not in headers:
        return None
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {key: headers[key] for key in ("traceparent", "tracestate") if key in headers}
    found = TraceContextTextMapPropagator().extract(carrier)
    return found if get_current_span(found).get_span_context().is_valid else None


def outgoing() -> dict[str, str]:
    """Return the W3C headers that pass the current context on; {} without tracing."""
    headers: dict[str, str] = {}
    if _telemetry is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)
    return headers


def trace_id() -> str:
    """Return the id of the current trace, for logs; "" where there is none."""
    if _telemetry is None:
        return ""
    from opentelemetry.trace import format_trace_id, get_current_span

    found = get_current_span().get_span_context()
    return format_trace_id(found.trace_id) if found.is_valid else ""


def checked_request_id(given: str | None) -> str:
    """Return a caller's request id, or a new one where it gave none that is safe in logs and headers."""
    return given if given and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def asked_for(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the standard variables of OpenTelemetry ask for traces or metrics."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return any(environ.get(name) for name in _ENDPOINTS)


def start(content: bool | None = None, tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Record spans and metrics from now on; without providers send them by OTLP over HTTP as OTEL_* variables say.

    `content`: record requests, arguments and results too; None: as OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT
    says. Raises MissingExtra where the extra is not installed.
    """
    global _telemetry
    try:
        from opentelemetry import metrics, trace
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingExtra("tracing", "otel") from None
    if content is None:
        content = os.environ.get(CONTENT_VARIABLE, "").strip().lower() in ("1", "true", "yes")
    close: list[Callable[[], object]] = []
    resource = Resource.create({SERVICE_NAME: _NAME}).merge(OTELResourceDetector().detect())
    if tracer_provider is None:
        tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(tracer_provider)  # the MCP SDK records its messages with the global one
        close.append(tracer_provider.shutdown)
    if meter_provider is None:
        meter_provider = MeterProvider(
            [PeriodicExportingMetricReader(OTLPMetricExporter())], resource, shutdown_on_exit=False
        )
        metrics.set_meter_provider(meter_provider)
        close.append(meter_provider.shutdown)

    def close_all() -> None:
        ends = [threading.Thread(target=one, name="toolscout-otel-end", daemon=True) for one in close]
        until = time.monotonic() + _END_S
        for end in ends:
            end.start()
        for end in ends:  # a collector that does not answer must not keep the server from ending
            end.join(max(0.0, until - time.monotonic()))

    tracer, meter = tracer_provider.get_tracer(_NAME), meter_provider.get_meter(_NAME)
    _telemetry = _Telemetry(tracer, meter, content, close_all)


def stop() -> None:
    """Send what is not sent yet, and record nothing more."""
    global _telemetry
    telemetry, _telemetry = _telemetry, None
    if telemetry is not None:
        telemetry.close()


@contextmanager
def running(wanted: bool, content: bool) -> Iterator[None]:
    """Record spans and metrics inside the block, where that is wanted or the environment asks for it."""
    if not wanted and not content and not asked_for():
        yield
        return
    start(content or None)
    try:
        yield
    finally:
        stop()
