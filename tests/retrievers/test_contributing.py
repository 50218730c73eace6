"""The retriever that CONTRIBUTING.md lists is complete: it keeps the contract, and a Scout searches with it."""

from __future__ import annotations

import re
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from tests.retrievers.contract import LION, Contract, Make
from tests.toys import catalogue
from toolscout.retrievers import registry
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.scout import Scout
from toolscout.stores.sqlite.store import SqliteStore

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
LISTING, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The listing as a module."""
    path = tmp_path_factory.mktemp("listing") / "trigram.py"
    path.write_text(LISTING)
    spec = util.spec_from_file_location("trigram", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestListing(Contract):
    @pytest.fixture
    def make(self, listed: ModuleType) -> Make:
        kind: Make = listed.Trigram
        return kind


def test_it_is_as_short_as_is_said() -> None:
    assert len(LISTING.splitlines()) <= 40


def test_it_is_opened_by_its_name_searched_and_fused(
    listed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trigram", listed)
    monkeypatch.setitem(registry.BUILT_IN, "trigram", "trigram:Trigram")
    hybrid = Hybrid(parts=[Bm25(), registry.method("trigram")()])
    with Scout(SqliteStore(tmp_path / "s.db"), hybrid) as scout:
        scout.add([*catalogue(30), LION])
        found = scout.search("give the lions dinner", 3).considered
        assert found[0].tool_id == LION.id
    hybrid.save(tmp_path / "model")
    loaded = registry.load_model(tmp_path / "model")
    assert [part.name for part in loaded.parts] == ["bm25", "trigram"]
    assert loaded.search(["give the lions dinner"], 5) == hybrid.search(["give the lions dinner"], 5)
