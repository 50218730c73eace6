"""The importer that CONTRIBUTING.md lists is complete, and joins as another package's: through an entry point."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.catalogue.contract import ImporterContract
from toolscout import catalogue
from toolscout.catalogue import ReadOptions, registry
from toolscout.errors import BadSource
from toolscout.scout import Scout

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
_, LISTING, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
(ENTRY,) = re.findall(r'```toml\n\[project\.entry-points\."(.*?)"\]\n(.*?) = "(.*?)"\n```', PAGE.read_text())


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, listing: str = LISTING) -> None:
    """Lay the listing into a folder as pip would, and put the folder on the path."""
    group, name, target = ENTRY
    module = folder / (target.partition(":")[0].replace(".", "/") + ".py")
    module.parent.mkdir(parents=True)
    module.write_text(listing)
    about = folder / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\njsonl = {target}\n")
    monkeypatch.syspath_prepend(str(folder))
    for known in [one for one in sys.modules if one.partition(".")[0] == "my_package"]:
        monkeypatch.delitem(sys.modules, known)


class TestListing(ImporterContract):
    @pytest.fixture
    def name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        install(tmp_path / "site", monkeypatch)
        return "csv"

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        path = tmp_path / "desk.csv"
        path.write_text("name,description\nring,Rings the bell.\nwrite,Writes a letter.\n")
        return path

    def test_it_is_asked_after_those_built_in_and_replaces_none(self, name: str, source: Path) -> None:
        assert list(registry.available()) == [*registry.BUILT_IN, name]
        assert type(registry.importer("jsonl")).__module__ == "toolscout.catalogue.importers.jsonl"

    def test_a_scout_adds_with_it(self, name: str, source: Path, tmp_path: Path) -> None:
        with Scout.open(tmp_path / "s.db", "bm25") as scout:
            assert scout.add(source).report.added == 2
            assert scout.store.sources()[0].source == str(source)
            assert scout.search("ring the bell").considered[0].tool_id == "desk/ring"

    def test_problems_name_their_line(self, name: str, source: Path) -> None:
        source.write_text("name,description\n,nothing\nring,Rings.\n")
        with pytest.raises(BadSource, match="line 2"):
            list(catalogue.read(source))
        options = ReadOptions(keep_going=True)
        assert [tool.id for tool in catalogue.read(source, options)] == ["desk/ring"]
        assert len(options.problems) == 1


def test_a_package_that_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, "import no_such_library_at_all")
    with pytest.raises(BadSource, match=r"of my-package cannot be loaded .*no_such_library.*uninstall my-package"):
        catalogue.read(tmp_path / "x.csv", ReadOptions(kind="csv"))
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"name": "a"}')
    assert [tool.id for tool in catalogue.read(lines)] == ["t/a"]  # what the package has no part in works


def test_the_installed_packages_are_looked_through_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That reads a file of every package: too slow for each tool that is added."""
    read = []
    found = metadata.entry_points
    monkeypatch.setattr(metadata, "entry_points", lambda **chosen: (read.append(chosen), found(**chosen))[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(3):
        registry.available()
    assert read == [{"group": registry.ENTRY_POINTS}]
