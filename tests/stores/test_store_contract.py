"""The kinds of store that come with the package keep the contract."""

from __future__ import annotations

import pytest

from tests.stores.contract import Chunks, Make, StoreContract
from toolscout.stores import Store
from toolscout.stores.sqlite.store import SqliteStore


class TestSqlite(StoreContract):
    @pytest.fixture
    def make(self) -> Make:
        return lambda folder: SqliteStore(folder / "store.db")

    @pytest.fixture
    def chunks(self, monkeypatch: pytest.MonkeyPatch) -> Chunks:
        return lambda size: monkeypatch.setattr("toolscout.stores.sqlite.tools.CHUNK", size)


def test_a_store_that_lacks_a_method_cannot_be_made() -> None:
    class Forgetful(SqliteStore):
        feedback = Store.feedback

    with pytest.raises(TypeError, match=r"abstract.*feedback"):
        Forgetful("never.db")
