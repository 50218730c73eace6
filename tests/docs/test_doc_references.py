"""The generated references say what the code says."""

from __future__ import annotations

import pytest

import toolscout
from docs import make_http_reference, make_python_reference
from toolscout.retrievers import registry


@pytest.mark.parametrize("script", [make_python_reference, make_http_reference], ids=["python", "http"])
def test_the_reference_is_not_stale(script: object) -> None:
    assert script.TARGET.read_text() == script.reference(), f"run: python {script.__file__}"  # type: ignore[attr-defined]


def test_what_is_exported_and_every_method_is_in_it() -> None:
    page = make_python_reference.reference()
    for name in set(toolscout.__all__) - {"__version__", "errors"}:
        assert f"\n### {name}\n" in page
    for name in registry.BUILT_IN:
        assert f"\n### {name}: " in page


def test_nothing_in_it_depends_on_the_machine() -> None:
    assert " at 0x" not in make_python_reference.reference()
    assert make_python_reference.reference() == make_python_reference.reference()
