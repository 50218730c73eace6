"""Clusters of several nodes on this machine, each with one CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolscout.distributed.cluster import connected, ray_module

# Ray finds out the address of this machine by asking the network, and listens there, unless it is told of loopback so.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# Ray leaves its processes and log files for the interpreter to close, and warns of what it calls itself.
_OF_RAY = (
    "ignore:subprocess .* is still running:ResourceWarning",
    "ignore:unclosed file .*ray.*:ResourceWarning",
    "ignore:.*use_\\w+. is deprecated",
)
OBJECT_STORE = 80_000_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Ray leave open what it leaves open."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for text in _OF_RAY:
                item.add_marker(pytest.mark.filterwarnings(text))


class Nodes:
    """A cluster whose head has no CPU, so that all work is done on nodes that may be killed."""

    def __init__(self, count: int) -> None:
        ray_module()
        from ray.cluster_utils import Cluster

        self._made = Cluster(initialize_head=True, head_node_args=self._options(0))
        self.alive = [self._made.add_node(**self._options(1)) for _ in range(count)]
        self._made.wait_for_nodes()
        self.address: str = self._made.address

    def _options(self, cpus: int) -> dict[str, Any]:
        local = {"node_ip_address": "127.0.0.1", "include_dashboard": False}
        return {"num_cpus": cpus, "object_store_memory": OBJECT_STORE} | local

    def add(self) -> None:
        self.alive.append(self._made.add_node(**self._options(1)))
        self._made.wait_for_nodes()

    def kill(self) -> None:
        """Kill the processes of a node."""
        self._made.remove_node(self.alive.pop(), allow_graceful=False)

    def shutdown(self) -> None:
        self._made.shutdown()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="needs the extra ray")
    made = Nodes(2)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster that was started here, for the tests of a module that kill nothing."""
    pytest.importorskip("ray", reason="needs the extra ray")
    with connected() as found:
        yield found
