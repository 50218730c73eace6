"""Links of all pages lead somewhere, anchors included; files and make targets that pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "results").glob("*.md"),
        ROOT / "toolscout" / "default_model" / "README.md",
        ROOT / "toolscout" / "default_reranker" / "README.md",
    ]
)
# Where a path in backticks is looked for: pages speak of the package from inside of it.
PLACES = [ROOT, ROOT / "toolscout", ROOT / "toolscout" / "retrievers"]


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """The anchors of headings, as GitHub and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _prose(page), flags=re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", shown).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^()\s#]*)#?([^()\s]*)\)", _prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            assert anchor in _anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=_name)
def test_files_and_make_targets_that_are_named_exist(page: Path) -> None:
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for command in re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text()):
        assert command in targets
    for named in re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.(?:py|sh|md|txt|json|jsonl|npz|html|toml))?)`", _prose(page)):
        if named.split("/")[0] in PARTS:
            assert any((place / named).exists() for place in PLACES), named


PARTS = {path.name for place in (ROOT, ROOT / "toolscout") for path in place.iterdir() if path.is_dir()} - {
    "models",  # also the folder that examples train into
    "build",
}


def test_every_page_is_in_the_site() -> None:
    listed = re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(listed)


def test_the_site_asks_nothing_of_other_machines() -> None:
    text = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text())
    settings = yaml.safe_load(text)
    assert settings["theme"]["font"] is False
    assert "://" not in text
