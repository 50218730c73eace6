"""Tracing that is off costs nothing; ids of requests; what the environment asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolscout.core import tracing


def test_without_tracing_no_span_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(tracing, "_new_span", lambda *_: made.append(1))
    with tracing.span("a", "server", None, k=1) as span:
        span.set(a=1)
        span.content("b", "secret")
        span.failed("Error")
    assert span is tracing.span("another")
    assert not span.recording
    assert not tracing.enabled()
    assert not made
    assert tracing.outgoing() == {}
    assert tracing.trace_id() == ""
    assert tracing.extracted({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}) is None
    assert list(tracing.spanned([1, 2], "x")) == [1, 2]
    tracing.record("a", 1, "s", "about")


def test_opentelemetry_is_not_imported_without_asking(tmp_path: Path) -> None:
    code = (
        "import sys, toolscout\nfrom toolscout.core import tracing\nfrom toolscout.scout import Scout\n"
        "with Scout.open(sys.argv[1], 'bm25') as scout:\n"
        "    with tracing.running(False, False):\n        scout.search('hello')\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "t.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_the_standard_variables_ask(environ: dict[str, str], asked: bool) -> None:
    assert tracing.asked_for(environ) is asked


def test_ids_of_requests_are_safe() -> None:
    assert tracing.checked_request_id("abc-1.2_3") == "abc-1.2_3"
    for bad in (None, "", "a b", "a\nb", "é", "x" * 129):
        made = tracing.checked_request_id(bad)
        assert made != bad
        assert len(made) == 32
