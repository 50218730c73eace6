"""MCP servers that others publish, installed by name from PyPI and npm once for all runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FROM_PYPI = {"mcp-server-time": "2026.10.19", "mcp-server-git": "2026.10.19", "mcp-server-fetch": "2026.10.24"}
FROM_NPM = dict.fromkeys(("everything", "memory", "filesystem", "sequential-thinking"), "2026.8.31")


def installed() -> Path:
    """Return the folder they are installed in; skip the test where they cannot be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolscout-tests" / "mcp-servers"
    cache.mkdir(parents=True, exist_ok=True)
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    python = [f"{name}=={version}" for name, version in FROM_PYPI.items()]
    packages = [f"@modelcontextprotocol/server-{name}@{version}" for name, version in FROM_NPM.items()]
    done, wanted = cache / "installed.txt", "\n".join([*python, *packages])
    if not done.exists() or done.read_text() != wanted:
        for words in (
            [sys.executable, "-m", "venv", str(cache / "python")],
            [str(cache / "python" / "bin" / "pip"), "install", "--quiet", *python],
            ["npm", "install", "--silent", "--prefix", str(cache / "node"), *packages],
        ):
            try:
                subprocess.run(words, check=True, capture_output=True, timeout=300)
            except (subprocess.SubprocessError, OSError) as error:
                pytest.skip(f"the reference servers cannot be installed here: {error}")
        done.write_text(wanted)
    return cache


def servers(cache: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Return how to start them, as an mcpServers file says it; those that keep something keep it in the folder."""
    files = folder / "files"
    files.mkdir(parents=True)
    (files / "hello.txt").write_text("hello there")
    subprocess.run(["git", "init", "-q", str(files)], check=True)
    python, node = cache / "python" / "bin", cache / "node" / "node_modules" / ".bin"
    found: dict[str, dict[str, Any]] = {
        name.rpartition("-")[2]: {"command": str(python / name), "args": []} for name in FROM_PYPI
    }
    found |= {name: {"command": str(node / f"mcp-server-{name}"), "args": []} for name in FROM_NPM}
    found["filesystem"]["args"] = [str(files)]
    found["fetch"]["args"] = ["--allow-private-ips"]
    found["memory"]["env"] = {"MEMORY_FILE_PATH": str(folder / "memory.json")}
    return found
