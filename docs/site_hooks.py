"""What `make docs` does besides building docs/: takes pages of the repository in, and lets nothing from elsewhere in.

MkDocs calls the functions that are named on_*.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# Files of the repository that are part of the site, and where they stand in it.
TAKEN_IN = {
    **{name: f"project/{name}" for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")},
    "toolscout/default_model/README.md": "project/default_model.md",
    "toolscout/default_reranker/README.md": "project/default_reranker.md",
    **{
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix()
        for pattern in ("*.md", "*.svg", "*.jsonl")
        for path in sorted((ROOT / "results").glob(pattern))
    },
}
_BACK = {there: here for here, there in TAKEN_IN.items()}
_LINK = re.compile(r"(?<=\]\()([^()\s]+?)(#[^()\s]*)?(?=\))")
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that the site shows."""
    for here, there in TAKEN_IN.items():
        files.append(File.generated(config, there, abs_src_path=str(ROOT / here)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        return relpath(_in_site(_in_repository(here), target), str(PurePosixPath(here).parent)) + anchor

    return _LINK.sub(moved, _with_lists_apart(markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show `A|B` in a cell of a table as GitHub does, where the source has to say `A\\|B`."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)


def on_post_build(config: MkDocsConfig) -> None:
    """Raise PluginError where a built page would fetch a script, a style or a picture from elsewhere."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        loads = _Loads()
        loads.feed(path.read_text(encoding="utf-8"))
        if loads.foreign:
            raise PluginError(f"{path.name} loads from elsewhere: {', '.join(loads.foreign)}")
    for path in sorted(Path(config.site_dir).rglob("*.css")):
        if found := re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)", path.read_text(encoding="utf-8")):
            raise PluginError(f"{path.name} loads from elsewhere: {', '.join(found)}")


def _with_lists_apart(markdown: str) -> str:
    """Put an empty line between a paragraph and the list behind it, as Python-Markdown wants it and GitHub does not."""
    made: list[str] = []
    in_code = False
    for line in markdown.split("\n"):
        in_code ^= line.lstrip().startswith("```")
        before = made[-1] if made else ""
        if not in_code and re.match(r"(-|1\.) ", line) and before and not re.match(r"(- |\d+\. |  |#)", before):
            made.append("")
        made.append(line)
    return "\n".join(made)


def _in_repository(page: str) -> str:
    return _BACK.get(page, f"docs/{page}")


def _in_site(page: str, target: str) -> str:
    """Where a link of a file of the repository leads in the site; MkDocs warns where nothing is there."""
    path = normpath(f"{PurePosixPath(page).parent}/{target}")
    return TAKEN_IN.get(path, path.removeprefix("docs/"))


class _Loads(HTMLParser):
    """Collects what a page loads by itself from another host; links that a reader follows do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        address = dict(attrs).get(_LOADS.get(tag, "")) or ""
        if address.startswith(("http:", "https:", "//")) and dict(attrs).get("rel") != "canonical":
            self.foreign.append(address)
