"""Embedding on a cluster of several nodes: the same bits, nothing lost and nothing written twice when a node dies."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.toys import HashedWords
from toolscout.core.expansion import Expansion
from toolscout.core.tool import Tool
from toolscout.distributed.cluster import connected
from toolscout.distributed.embedding import ClusterEncoding
from toolscout.errors import BadModel, BadRequest
from toolscout.models.encoders.opening import open_encoder
from toolscout.scout import Scout
from toolscout.stores.base import Store

if TYPE_CHECKING:
    from tests.distributed.conftest import Nodes
    from tests.postgres import Postgres

pytestmark = pytest.mark.slow


def tools(count: int) -> list[Tool]:
    return [
        Tool(
            namespace="shop",
            name=f"find_{number}",
            description=f"Finds order {number} by its number. " * (1 + number % 7),
        )
        for number in range(count)
    ]


def vectors(store: Store) -> dict[str, bytes]:
    (fingerprint,) = store.models()
    found = store.vectors_after(fingerprint, limit=100_000)
    return {digest: row.tobytes() for digest, row in zip(found.digests, found.vectors, strict=True)}


def counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each vector is written from now on."""
    written: Counter[str] = Counter()
    put = store.put_vectors

    def counting(fingerprint: str, digests: Sequence[str], rows: Any) -> None:
        written.update(digests)
        put(fingerprint, digests, rows)

    monkeypatch.setattr(store, "put_vectors", counting)
    return written


def test_a_killed_node_costs_nothing(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tools(1_500)
    with Scout.open(tmp_path / "local.db") as scout:
        scout.add(made)
        expected = vectors(scout.store)
    killed: list[int] = []

    def kill_one(stage: str, done: int, total: int) -> None:
        if stage == "embedding" and 0 < done < total and not killed:
            killed.append(done)
            nodes.kill()

    with connected(nodes.address) as cluster, Scout.open(tmp_path / "cluster.db") as scout:
        assert cluster.about.endswith("3 nodes, 2 CPUs, 0 GPUs")
        written = counted(scout.store, monkeypatch)
        with ClusterEncoding(cluster, scout.encoder_name) as encode:
            scout.encode_documents = encode
            scout.store.add(made, "tools")
            assert scout.embed(kill_one) == len(made)
        assert killed
        assert scout.words_only() == 0
        assert vectors(scout.store) == expected
    assert set(written.values()) == {1}
    assert len(written) == len(expected) == len(made)


# Claims texts of the store that it is given, a few at a time, as the command `embed` does by the thousand.
EMBED = """
import sys
from toolscout.scout import Scout
with Scout.open(sys.argv[1]) as scout:
    scout.claimed_at_once = 128
    scout.embed()
"""


def test_a_killed_node_over_a_database_that_another_process_embeds_too(
    nodes: Nodes, postgres: Postgres, tmp_path: Path
) -> None:
    """The database counts what any process writes: each text once, though a node dies and two processes embed."""
    made, url = tools(1_200), postgres.url("embedded")
    with Scout.open(tmp_path / "local.db") as scout:
        scout.add(made)
        expected = vectors(scout.store)
    killed: list[int] = []

    def kill_one(stage: str, done: int, total: int) -> None:
        if stage == "embedding" and done > 0 and not killed:
            killed.append(done)
            nodes.kill()

    nodes.add()
    with connected(nodes.address) as cluster, Scout.open(url) as scout:
        assert cluster.about.endswith("4 nodes, 3 CPUs, 0 GPUs")
        scout.store.add(made, "tools")
        postgres.sql(
            "CREATE TABLE embedded.written (digest text)",
            "CREATE FUNCTION embedded.count_written() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO embedded.written VALUES (NEW.digest); RETURN NEW; END $$",
            # It counts a vector that is there already too.
            "CREATE TRIGGER counting BEFORE INSERT ON embedded.vectors "
            "FOR EACH ROW EXECUTE FUNCTION embedded.count_written()",
        )
        with (
            ClusterEncoding(cluster, scout.encoder_name) as encode,
            subprocess.Popen([sys.executable, "-c", EMBED, url]) as other,
        ):
            while postgres.sql("SELECT count(*) FROM embedded.claims") == [(0,)]:
                assert other.poll() is None
                time.sleep(0.05)
            scout.encode_documents, scout.claimed_at_once = encode, 192
            here = scout.embed(kill_one)
            assert other.wait(60) == 0
        assert killed
        assert 0 < here < len(made)
        scout.refresh()
        assert scout.words_only() == 0
        assert vectors(scout.store) == expected
    written = Counter(digest for (digest,) in postgres.sql("SELECT digest FROM embedded.written"))
    assert set(written.values()) == {1}
    assert len(written) == len(expected) == len(made)
    assert postgres.sql("SELECT count(*) FROM embedded.claims") == [(0,)]


def test_what_is_written_stays_when_all_nodes_die(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "embedding" and done > 700:
            raise Stopped

    with connected(nodes.address) as cluster, Scout.open(tmp_path / "store.db") as scout:
        written = counted(scout.store, monkeypatch)
        scout.store.add(tools(1_000), "tools")
        with ClusterEncoding(cluster, scout.encoder_name) as encode:
            scout.encode_documents = encode
            with pytest.raises(Stopped):
                scout.embed(stop)
        first = sum(written.values())
        assert 0 < first < 1_000
        nodes.kill()
        nodes.kill()
        nodes.add()  # the work goes on as soon as there is a node again
        with ClusterEncoding(cluster, scout.encoder_name) as encode:
            scout.encode_documents = encode
            assert scout.embed() == 1_000 - first
    assert set(written.values()) == {1}


def test_expansions_are_mixed_into_vectors_as_without_a_cluster(cluster: Any, tmp_path: Path) -> None:
    made = tools(100)
    added = {one.id: Expansion("seeing what was bought", "where is my parcel", "", one.digest()) for one in made[::3]}
    found = []
    for name in ("local", "cluster"):
        with Scout.open(tmp_path / f"{name}.db") as scout, ClusterEncoding(cluster, scout.encoder_name) as encode:
            if name == "cluster":
                scout.encode_documents = encode
            scout.store.add(made, "tools")
            scout.expand(added)
            found.append(vectors(scout.store))
    assert found[0] == found[1]
    assert len(found[0]) == 100


def test_another_encoder_on_a_worker_is_refused(cluster: Any) -> None:
    encoder = open_encoder()
    encoder.fingerprint = "another"
    with ClusterEncoding(cluster, "") as encode, pytest.raises(BadModel, match="is another one than here"):
        list(encode(encoder, ["a"]))


def test_an_encoder_that_a_worker_cannot_open_is_refused(cluster: Any, tmp_path: Path) -> None:
    with ClusterEncoding(cluster, str(tmp_path / "gone")) as encode, pytest.raises(BadModel, match="cannot open"):
        list(encode(open_encoder(), ["a"]))


def test_encoders_that_other_processes_cannot_open_are_refused(cluster: Any) -> None:
    with ClusterEncoding(cluster, None) as encode, pytest.raises(BadRequest, match="leave --ray out"):
        list(encode(HashedWords(), ["a"]))
    remote = HashedWords()
    remote.remote = True
    with ClusterEncoding(cluster, "https://host/v1") as encode, pytest.raises(BadRequest, match="leave --ray out"):
        list(encode(remote, ["a"]))


def test_the_folder_of_an_encoder_stands_for_its_name(cluster: Any) -> None:
    encoder, texts = open_encoder(), ["send mail", "delete file"]
    with ClusterEncoding(cluster, None) as encode:
        ((positions, rows),) = encode(encoder, texts)
        assert list(encode(encoder, [])) == []
    ((_, expected),) = encoder.encode_documents(texts)
    assert positions.tolist() == [0, 1]
    assert np.array_equal(rows, expected)
