"""toolscout codes: health, groups, JSON and the page; a model without codes is refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_samples import Run
from toolscout.retrievers import registry
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.toolweaver import Toolweaver


class Weaver(Toolweaver):
    """Stands in for a model with codes."""

    def codes(self) -> dict[str, tuple[int, ...]]:
        return {"mail/send": (3, 1), "mail/\x1b[31mread": (3, 0), "maps/route": (1, 0)}

    def health(self) -> dict[str, Any]:
        return {"tools": 3, "perplexity": [1.89, 1.89], "together": 0.5}

    def uses(self) -> list[tuple[str, str, int]]:
        return [("mail/send", "maps/route", 2)]


@pytest.fixture
def weaver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "load_model", lambda folder: Weaver())


@pytest.mark.usefixtures("weaver")
def test_codes_are_shown(run: Run) -> None:
    result = run("codes", "model", "--limit", 1)
    assert result.exit_code == 0
    assert "1.890, 1.890" in result.stdout
    assert "mail/read" in result.stdout.replace(" ", "")
    assert "\x1b" not in result.stdout
    assert "maps/route" not in result.stdout
    assert "1 first code more; --limit shows them" in result.stderr


@pytest.mark.usefixtures("weaver")
def test_codes_as_json_and_page(run: Run, tmp_path: Path) -> None:
    result = run("codes", "model", "--json", "--html", "tree.html")
    assert json.loads(result.stdout)["codes"]["mail/send"] == [3, 1]
    assert json.loads(result.stdout)["health"]["tools"] == 3
    assert result.stderr == "written: tree.html\n"
    assert "<title>Codes of model</title>" in (tmp_path / "tree.html").read_text()
    assert run("codes", "model", "--html", "absent/tree.html").exit_code == 2


def test_a_model_without_codes_is_refused(run: Run, tmp_path: Path) -> None:
    Bm25().save(tmp_path / "model")
    result = run("codes", "model")
    assert result.exit_code == 2
    assert "model (bm25) gives its tools no codes" in result.stderr.replace("in model", "model")
    assert "--retriever toolweaver" in result.stderr
    assert run("codes", "absent").exit_code == 2
