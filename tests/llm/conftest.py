"""A key that must be found nowhere."""

from __future__ import annotations

import pytest

from tests.llm.fake_endpoint import KEY


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
