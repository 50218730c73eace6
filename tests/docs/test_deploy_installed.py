"""What the image, the compose file and the manifest run, run from a wheel in an environment that has nothing else."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_deploy import COMPOSE, ROOT, answers, container, free_port, instructions, named_commands, resources
from tests.postgres import Postgres

pytestmark = pytest.mark.slow
_NO_INDEX = ("No matching distribution found", "HTTP error 429", "ConnectionError", "Max retries", "name resolution")
SHOP = {
    "openapi": "3.0.0",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "https://shop.example"}],
    "paths": {"/orders": {"get": {"operationId": "list_orders", "summary": "List the orders of a customer"}}},
}


class Image(NamedTuple):
    """The environment as the image has it, and the folders in which its commands may write."""

    venv: Path
    home: Path
    config: Path
    writable: tuple[Path, ...]
    environment: dict[str, str]

    def run(self, *words: str) -> str:
        """Run a command to its end, and return what it prints."""
        done = subprocess.run(words, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def server(self, *words: str) -> Iterator[None]:
        """Run a server inside the block, and end it as a container is ended."""
        process = subprocess.Popen(words, cwd=self.home, env=self.environment)
        try:
            yield
            assert process.poll() is None
        finally:
            process.terminate()
            assert process.wait(60) == 0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The steps of the Dockerfile, with a wheel in place of the clone."""
    folder = tmp_path_factory.mktemp("image")
    source, venv = folder / "src", folder / "venv"
    for name in ("toolscout", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    alone = ["--no-build-isolation"] if setuptools_here() else []
    installed([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *alone, "-w", str(folder), str(source)])
    [wheel] = folder.glob("*.whl")
    for name, rest in instructions(1):
        if name == "RUN":
            # The cache of pip, which an image does without, spares the network here.
            step = rest.replace("/src[", f"{wheel}[").replace("/src/", f"{source}/").replace("--no-cache-dir ", "")
            words = shlex.split(step.replace("/opt/toolscout", str(venv)))
            installed([sys.executable if words[0] == "python" else words[0], *words[1:]])
    home, config, cache, scratch = folder / "home", folder / "etc", folder / "cache", folder / "tmp"
    for one in (home, config, cache, scratch):
        one.mkdir()
    (home / "openapi.json").write_text(json.dumps(SHOP))
    environment = {
        "PATH": f"{venv}/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(scratch),
        "TOOLSCOUT_CACHE": str(cache),
        "PYTHONPYCACHEPREFIX": str(scratch / "pycache"),
    }
    return Image(venv, home, config, (cache, scratch), environment)


def installed(words: list[str]) -> None:
    """Run a step; skip where it needs packages that neither a cache nor an index gives."""
    kept = ("PATH", "HOME", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "NO_PROXY")
    environment = {key: value for key, value in os.environ.items() if key in kept or key.startswith("PIP_")}
    environment["PIP_NO_COMPILE"] = "1"  # half of the time; modules are compiled as they are imported
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment, check=False)
    if done.returncode and any(sign in done.stderr for sign in _NO_INDEX):
        pytest.skip(f"packages cannot be had: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr


def setuptools_here() -> bool:
    """Return whether a wheel can be built without fetching what builds it."""
    try:
        return int(version("setuptools").partition(".")[0]) >= 77
    except PackageNotFoundError:
        return False


def files_of(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_no_build_tools_are_left(image: Image) -> None:
    for module in ("pip", "setuptools", "wheel"):
        assert subprocess.run([image.venv / "bin" / "python", "-c", f"import {module}"], capture_output=True).returncode
    assert image.run("toolscout", "--version").strip().endswith("0.1.0")


def test_every_command_runs(image: Image, postgres: Postgres) -> None:
    """Those that do something first, then the servers; the compose file and the manifest have a schema each."""
    image.environment["TOOLSCOUT_STORE"] = postgres.url("compose")
    before = files_of(image.venv)
    [config] = resources("ConfigMap")
    for name, text in config["data"].items():
        (image.config / name).write_text(text)
    keys, served = [], []
    for words in named_commands():
        there = [postgres.url("manifest") if word.startswith("postgresql://") else word for word in words]
        # The document of another machine, and this machine alone instead of every network.
        there = ["openapi.json" if word.endswith("openapi.json") else word for word in there]
        port = free_port()
        there = [word.replace("0.0.0.0:8722", f"127.0.0.1:{port}").replace("0.0.0.0", "127.0.0.1") for word in there]
        there = [word.replace("/etc/toolscout", str(image.config)).replace("$(POD_NAME)", "pod-0") for word in there]
        if "serve" in there or "mcp" in there:
            served.append((there if "mcp" in there else [*there, "--port", str(port)], port))
        else:
            done = image.run("toolscout", *there)
            keys += [word for word in done.split() if word.startswith("ts_")] if "keys" in there else []
    assert len(keys) == 2, "the compose file and the manifest each make a key"
    assert len(served) == 5, "the image serves, the compose file and the manifest serve and have a gateway"
    assert "list_orders" in image.run("toolscout", "search", "list the orders of a customer")
    checks = {
        "serve": json.loads(dict(instructions(2))["HEALTHCHECK"].partition(" CMD ")[2]),
        "mcp": COMPOSE["services"]["gateway"]["healthcheck"]["test"][1:],
    }
    for words, port in served:
        with image.server("toolscout", *words):
            address = f"http://127.0.0.1:{port}"
            until = time.monotonic() + 60
            while not answers_at(f"{address}/metrics", keys[0]):
                assert time.monotonic() < until
                time.sleep(0.2)
            pod = container("serve" if "serve" in words else "gateway")
            for kind in ("readiness", "liveness"):
                assert answers(address + pod[f"{kind}Probe"]["httpGet"]["path"])
            image.run(*(re.sub(":8765|:8722", f":{port}", part) for part in checks[words[0]]))
    # What containers mount read-only was not written to.
    assert files_of(image.venv) == before
    assert [path.name for path in image.home.iterdir()] == ["openapi.json"]
    assert COMPOSE["services"]["serve"]["read_only"]


def answers_at(url: str, key: str) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False
