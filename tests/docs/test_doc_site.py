"""The site builds without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE_PARTS = ("index.html", "reference/python.html", "results/index.html", "results/bench.jsonl")


def build(config: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "--site-dir", str(out)]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True)


@pytest.fixture(scope="module", autouse=True)
def _mkdocs() -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed; run: make docs")


@pytest.mark.slow
def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    built = build(ROOT / "mkdocs.yml", tmp_path)
    assert built.returncode == 0, built.stderr
    for part in SITE_PARTS:
        assert (tmp_path / part).is_file()
    assert "Quarantine" in (tmp_path / "search" / "search_index.js").read_text()


@pytest.mark.slow
def test_a_page_that_loads_from_elsewhere_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text().replace("font: false", "font: {text: Roboto}")
    config = tmp_path / "mkdocs.yml"
    config.write_text(text.replace("docs_dir: docs", f"docs_dir: {ROOT / 'docs'}").replace("[docs/", f"[{ROOT}/docs/"))
    built = build(config, tmp_path / "site")
    assert built.returncode != 0
    assert "loads from elsewhere: https://fonts.gstatic.com" in built.stderr
