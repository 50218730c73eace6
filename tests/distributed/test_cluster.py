"""Connecting to a cluster, or starting one; what goes wrong is said within seconds."""

from __future__ import annotations

import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest

from toolscout.distributed import cluster as cluster_module
from toolscout.distributed.cluster import connected, is_address
from toolscout.errors import ClusterError, MissingExtra

if TYPE_CHECKING:
    from tests.distributed.conftest import Nodes


@pytest.mark.parametrize("word", ["auto", "local", "ray://head:10001", "10.0.0.1:6379", "[::1]:6379", "head-1:6379"])
def test_addresses_are_told_from_other_words(word: str) -> None:
    assert is_address(word)


@pytest.mark.parametrize("word", ["tools.jsonl", "bundled:test", "--store", "https://host:80/spec", "head", "C:6379x"])
def test_other_words_are_no_addresses(word: str) -> None:
    assert not is_address(word)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[ray\]'"), connected():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "head", "127.0.0.1:99999", "ray://127.0.0.1:10001"])
def test_an_address_where_nothing_listens_is_refused_at_once(address: str) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(ClusterError), connected(address.format(port=port)):
        pass
    assert time.monotonic() - started < 8


@pytest.mark.slow
def test_something_else_that_listens_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.setattr(cluster_module, "_PROBE_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ClusterError, match="but not as Ray does"), connected(address):
            pass


@pytest.mark.slow
def test_a_cluster_that_was_started_here_is_stopped() -> None:
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    with connected() as cluster:
        assert cluster.started
        assert "was started on this machine" in cluster.about
        assert cluster.cpus() >= 1
        assert ray.is_initialized()
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_cluster_that_runs_already_goes_on(nodes: Nodes) -> None:
    import ray

    for _ in range(2):
        with connected(nodes.address) as found:
            assert not found.started
            assert found.cpus() == 2
        assert not ray.is_initialized()
