"""The image, the compose file and the Kubernetes manifest: their commands exist, and those of the image run."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from toolscout.cli.main import app
from toolscout.serving.gateway.ownership import Peers
from toolscout.stores import open_store

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFEST = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def instructions(stage: int) -> Iterator[tuple[str, str]]:
    """The instructions of one stage of the Dockerfile, each with what follows its name."""
    text = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)[stage]
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(" ")
        if name and name != "#":
            yield name, rest


def resources(kind: str) -> list[dict[str, Any]]:
    """What the manifest has of one kind."""
    return [one for one in MANIFEST if one["kind"] == kind]


WORKLOADS = {"serve": resources("Deployment")[0], "gateway": resources("StatefulSet")[0]}


def container(name: str) -> dict[str, Any]:
    """The container of the servers or of the gateways in the manifest."""
    return WORKLOADS[name]["spec"]["template"]["spec"]["containers"][0]


def named_commands() -> Iterator[list[str]]:
    """The arguments of each toolscout command that the files run, or say to run."""
    yield json.loads(dict(instructions(2))["CMD"])
    for service in COMPOSE["services"].values():
        if "command" in service:
            yield service["command"]
    for name in WORKLOADS:
        yield container(name)["args"]
    for line in (DEPLOY / "compose.yaml").read_text().splitlines():
        if found := re.match(r"#\s+docker compose .* run --rm serve (.*)", line):
            yield shlex.split(found[1])
    for line in (DEPLOY / "kubernetes.yaml").read_text().splitlines():
        if found := re.match(r"#\s+toolscout (.*)", line):
            yield shlex.split(found[1])


@pytest.mark.parametrize("arguments", list(named_commands()), ids=" ".join)
def test_the_command_line_knows_each_command(arguments: list[str]) -> None:
    """It reads the words without doing anything."""
    command: Any = typer.main.get_command(app)
    context, name = None, "toolscout"
    while True:
        context = command.make_context(name, list(arguments), parent=context)
        words = [*getattr(context, "_protected_args", ()), *context.args]
        if not hasattr(command, "commands"):
            return
        name, command, arguments = command.resolve_command(context, words)


def test_containers_may_write_where_the_image_says_and_nowhere_else() -> None:
    written = set(json.loads(dict(instructions(2))["VOLUME"]))
    user = int(dict(instructions(2))["USER"])
    for name, workload in WORKLOADS.items():
        assert container(name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert workload["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == user > 0
        writable = {one["mountPath"] for one in container(name)["volumeMounts"] if not one.get("readOnly")}
        assert written <= writable
        service = COMPOSE["services"][name]
        places = {one.partition(":")[2] for one in service["volumes"]} | set(service["tmpfs"])
        assert service["read_only"]
        assert written <= places


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_manifest_fits_together(name: str) -> None:
    workload = WORKLOADS[name]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    services = [one for one in resources("Service") if one["spec"]["selector"] == labels]
    [budget] = [one for one in resources("PodDisruptionBudget") if one["spec"]["selector"]["matchLabels"] == labels]
    assert budget["spec"]["minAvailable"] < workload["spec"]["replicas"]
    ports = {port["name"] for port in container(name)["ports"]}
    assert services
    assert {one["spec"]["ports"][0]["targetPort"] for one in services} == ports
    assert {container(name)[f"{kind}Probe"]["httpGet"]["port"] for kind in ("readiness", "liveness")} == ports
    volumes = {volume["name"] for volume in workload["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == volumes


def test_gateways_of_the_manifest_reach_each_other() -> None:
    """A pod of a StatefulSet has the name POD.SERVICE, where SERVICE is without an address of its own."""
    spec = WORKLOADS["gateway"]["spec"]
    [headless] = [one for one in resources("Service") if one["spec"].get("clusterIP") == "None"]
    assert headless["metadata"]["name"] == spec["serviceName"]
    words = container("gateway")["args"]
    given = dict(zip(words[1::2], words[2::2], strict=True))
    url = given["--advertise"].replace("$(POD_NAME)", f"{WORKLOADS['gateway']['metadata']['name']}-1")
    peers = Peers(url, (given["--peer"],))
    assert peers.host == f"toolscout-gateway-1.{spec['serviceName']}"
    assert peers.permits(url.replace("-1.", "-0."))
    assert not peers.permits("http://elsewhere:8722/mcp")
    assert given["--http"].partition(":")[2] == str(container("gateway")["ports"][0]["containerPort"])
    assert f":{headless['spec']['ports'][0]['port']}/mcp" in url
    pod_name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    assert pod_name in container("gateway")["env"]
    [config] = resources("ConfigMap")
    folder, _, file = given["--config"].rpartition("/")
    assert "mcpServers" in json.loads(config["data"][file])
    assert folder in {one["mountPath"] for one in container("gateway")["volumeMounts"]}


@pytest.mark.slow
def test_what_the_image_runs_is_healthy_until_it_is_ended(tmp_path: Path) -> None:
    final = dict(instructions(2))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TOOLSCOUT_STORE": str(tmp_path / "tools.db"),
        "TOOLSCOUT_CACHE": str(tmp_path / "cache"),
    }
    open_store(environment["TOOLSCOUT_STORE"]).close()
    subprocess.run(["toolscout", "keys", "add", "ops", "--admin"], check=True, env=environment, capture_output=True)
    # On this machine alone, and at a port of its own.
    address, port = "127.0.0.1", free_port()
    served = [part.replace("0.0.0.0", address) for part in json.loads(final["CMD"])] + ["--port", str(port)]
    probe = [part.replace(":8765", f":{port}") for part in json.loads(final["HEALTHCHECK"].partition(" CMD ")[2])]
    server = subprocess.Popen([*json.loads(final["ENTRYPOINT"]), *served], env=environment, cwd=tmp_path)
    try:
        until = time.monotonic() + 60
        while not answers(f"http://{address}:{port}/ready"):
            assert server.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
        assert subprocess.run(probe, env=environment, timeout=30).returncode == 0
    finally:
        server.terminate()
        assert server.wait(30) == 0
    assert subprocess.run(probe, env=environment, timeout=30, capture_output=True).returncode != 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False
