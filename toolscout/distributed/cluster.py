"""Connects to a Ray cluster, or starts one on this machine for as long as a command runs."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from toolscout.errors import ClusterError, MissingExtra

AUTO, LOCAL = "auto", "local"
"""The addresses of the cluster that runs on this machine, and of one that is started here."""
_CLIENT = "ray://"
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}")
_CONNECT_S, _PROBE_S = 5.0, 20.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster that this process is connected to.

    about: in words, what was started or connected to, and how large it is. started: whether it was started here.
    """

    about: str
    started: bool

    def cpus(self) -> int:
        """Return how many CPUs the cluster has now, 1 at least."""
        return max(1, int(ray_module().cluster_resources().get("CPU", 1)))

    def smallest_node(self) -> int:
        """Return how many CPUs the smallest node has, of those that have any; 1 at least."""
        nodes = (node["Resources"].get("CPU", 0) for node in ray_module().nodes() if node["Alive"])
        return int(min((cpus for cpus in nodes if cpus >= 1), default=1))


def is_address(word: str) -> bool:
    """Return whether a word is the address of a cluster, rather than something else on a command line."""
    return word in (AUTO, LOCAL) or word.startswith(_CLIENT) or _HOST_PORT.fullmatch(word) is not None


def ray_module() -> ModuleType:
    """Import Ray, which sends no usage statistics then. Raises MissingExtra where it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of its own plans
    try:
        import ray
    except ImportError:
        raise MissingExtra("--ray", "ray") from None
    return ray


@contextmanager
def connected(address: str = LOCAL) -> Iterator[Cluster]:
    """Connect to the cluster at `address`, disconnect in the end, and stop it if it was started here.

    `address`: "local" starts a cluster of this machine's cores, reached from this machine alone; "auto" is the one that
    runs on this machine; HOST:PORT is any other. Raises ClusterError within seconds where nothing answers there.
    """
    ray = ray_module()
    if address.startswith(_CLIENT):
        raise ClusterError("ray:// is not supported; give the command on a machine of the cluster, with --ray auto")
    if not is_address(address):
        raise ClusterError(
            f"{address!r:.80} is no address of a Ray cluster; name HOST:PORT or auto, or none to start one here"
        )
    if address not in (AUTO, LOCAL):
        _check_reachable(address)
    options = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        # Ray asks nobody for a password: a cluster of one machine listens to that machine alone.
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ClusterError(_refusal(address, str(error))) from None
    try:
        yield Cluster(_about(ray, address), address == LOCAL)
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise ClusterError where no Ray answers at HOST:PORT: left alone, Ray would go on trying for a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(_refusal(address, str(error))) from None
    probe = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        subprocess.run(probe, check=True, capture_output=True, timeout=_PROBE_S)
    except subprocess.TimeoutExpired:
        raise ClusterError(_refusal(address, "something listens there, but not as Ray does")) from None
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode(errors="replace").strip().splitlines() or ["it is not healthy"]
        raise ClusterError(_refusal(address, why[-1])) from None


def _refusal(address: str, why: str) -> str:
    if address == AUTO:
        return "no Ray cluster runs on this machine; start one with: ray start --head, or give --ray without an address"
    if address == LOCAL:
        return f"Ray cannot start a cluster on this machine: {why}"
    return f"no Ray cluster answers at {address} ({why}); check the address, and that the versions of Ray are the same"


def _about(ray: ModuleType, address: str) -> str:
    """Say in words what was started or connected to."""
    found = ray.cluster_resources()
    nodes = sum(1 for node in ray.nodes() if node["Alive"])
    size = f"{int(found.get('CPU', 0)):,} CPUs, {int(found.get('GPU', 0)):,} GPUs"
    if address == LOCAL:
        return f"a cluster was started on this machine ({size}); it stops with this command"
    where = "on this machine" if address == AUTO else f"at {address}"
    return f"connected to the cluster {where}: {nodes:,} {'node' if nodes == 1 else 'nodes'}, {size}"
