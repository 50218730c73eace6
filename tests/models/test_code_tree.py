"""The health of codes by hand-made numbers; the page as a browser would read it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from toolscout.models.tool_ids.code_tree import health, tree_html

HOSTILE = [
    "a/</script><script>alert(1)</script>",
    'b/"><img src=x onerror=alert(1)>',
    "c/<!--<script>",
    "d/&lt;b&gt; \u2028 \u202e ünï ☃ {{title}} {{data}}",
    "e/'; alert(1); //",
]


class Page(HTMLParser):
    """Which elements a page has, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts[-1] += data


def test_health_counts_what_it_says() -> None:
    codes = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 3), (2, 3)]
    found = health(codes, 4, np.array([[0, 1], [0, 2], [4, 5]]))
    assert found.perplexity == pytest.approx((3.0, np.exp(3 * np.log(3) / 3)))
    assert found.used == (0.75, 0.75)
    assert (found.tools, found.levels, found.codes, found.collisions) == (6, 2, 4, 1)
    assert (found.groups, found.group, found.pairs) == (3, 2.0, 3)
    assert found.together == pytest.approx(2 / 3)
    assert found.random == pytest.approx(3 / 15)
    assert json.loads(json.dumps(found.as_dict()))["perplexity"][0] == pytest.approx(3.0)


def test_health_of_one_tool_or_none() -> None:
    none = np.empty((0, 2), dtype=np.int64)
    one = health([(3, 1)], 4, none)
    assert (one.perplexity, one.used, one.together, one.random) == ((1.0, 1.0), (0.25, 0.25), 0.0, 0.0)
    assert health([], 4, none).tools == 0


def test_the_page_is_whole_and_needs_no_other_file() -> None:
    text = tree_html({"mail/send": (1, 2), "mail/read": (1, 0), "maps/route": (0, 0)}, [("mail/send", "maps/route", 3)])
    page = Page(text)
    assert page.links == []
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text)
    assert json.loads(page.scripts[0]) == {
        "tools": [["mail/read", [1, 0]], ["mail/send", [1, 2]], ["maps/route", [0, 0]]],
        "uses": [[1, 2, 3]],
    }
    assert "prefers-color-scheme: dark" in text
    assert '<label for="search">' in text


def test_hostile_names_stay_text() -> None:
    codes = {name: (row, row) for row, name in enumerate(HOSTILE)}
    plain, page = Page(tree_html({"a": (0, 0)}, [])), Page(tree_html(codes, [], title=f"{HOSTILE[0]} {{{{data}}}}"))
    assert page.tags == plain.tags
    assert page.scripts[1:] == plain.scripts[1:]
    names = [name for name, _ in json.loads(page.scripts[0])["tools"]]
    assert names[:3] == HOSTILE[:3]
    assert "\u202e" not in names[3]  # signs that turn the direction of writing are not shown
    assert names[3].endswith("{{title}} {{data}}")


def test_pairs_are_joined_and_unknown_ones_left_out() -> None:
    codes = {"a": (0, 0), "b": (0, 1)}
    page = Page(tree_html(codes, [("a", "b", 2), ("b", "a", 1), ("a", "a", 9), ("a", "gone", 4)]))
    assert json.loads(page.scripts[0])["uses"] == [[0, 1, 3]]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_is_sound(tmp_path: Path) -> None:
    script = tmp_path / "page.js"
    script.write_text(Page(tree_html({}, [])).scripts[1])
    subprocess.run(["node", "--check", str(script)], check=True, capture_output=True)
