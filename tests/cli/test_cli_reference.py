"""docs/reference/cli.md is what the program says of itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from toolscout.cli.main import app
from toolscout.search.catalogue_fit import FitOptions
from toolscout.search.tool_need import NeedOptions

ROOT = Path(__file__).parent.parent.parent


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_reference", ROOT / "docs" / "make_cli_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_not_stale() -> None:
    script = _script()
    if not script.TARGET.exists():
        pytest.skip("the documentation is not here")
    assert script.TARGET.read_text() == script.reference(), "run: python docs/make_cli_reference.py"


def test_the_reference_names_every_command() -> None:
    page = _script().reference()
    for command in ("add", "list", "show", "remove", "search", "evaluate", "bench", "retrievers", "doctor", "demo"):
        assert f"\n## toolscout {command}\n" in page
    assert "\n## toolscout split\n" in page
    for command in ("encoder export", "log export"):
        assert f"\n## toolscout {command}\n" in page


@pytest.mark.parametrize(
    ("command", "option", "default"),
    [
        ("search", "--need-threshold", NeedOptions().threshold),
        ("search", "--fit-threshold", FitOptions().threshold),
        ("need", "--threshold", NeedOptions().threshold),
    ],
)
def test_help_tells_the_defaults_that_hold(command: str, option: str, default: float) -> None:
    root: Any = typer.main.get_command(app)
    shown = {name: one.show_default for one in root.commands[command].params for name in one.opts}
    assert shown[option] == f"{default:g}"
