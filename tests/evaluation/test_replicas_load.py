"""The load test of several servers over one database."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from tests.postgres import Postgres
from tests.toys import catalogue
from toolscout.evaluation.bench import replicas
from toolscout.evaluation.bench.serving_load import ServingPlan
from toolscout.stores import open_store

pytestmark = pytest.mark.slow


def test_every_change_is_found_on_the_other_servers(postgres: Postgres) -> None:
    url = postgres.url("replicas_load")
    with open_store(url) as store:
        store.add(catalogue(50))
    (row,) = replicas.measure(ServingPlan(url, "bm25", "bundled", rate=10, seconds=3, writes=2), 2)
    values = row["values"]
    assert (row["bench"], row["tools"], values["replicas"]) == ("replicas", 50, 2)
    assert (values["answered"], values["changes"], values["late"], values["errors"]) == (30, 6, 0, 0)
    assert 0 <= values["found_p50_ms"] <= values["found_p99_ms"] <= values["found_max_ms"]
    assert row["command"].endswith("--replicas 2")
    with open_store(url) as store:  # as it was
        assert store.count() == 50
