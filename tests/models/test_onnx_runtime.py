"""ONNX Runtime reports nothing to its maker."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "toolscout"


def test_it_is_loaded_in_one_place() -> None:
    loading = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "onnxruntime" for name in names):
                loading.add(path.relative_to(PACKAGE).as_posix())
    assert loading == {"models/onnx_runtime.py"}


@pytest.mark.slow
def test_a_process_that_encodes_connects_to_nobody() -> None:
    """A report would go out through the proxy within ten seconds."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            with suppress(OSError):
                while True:
                    connected, _ = server.accept()
                    with connected:
                        asked.append(connected.recv(1_000))

        threading.Thread(target=listen, daemon=True).start()
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        kept = {
            name: value
            for name, value in os.environ.items()
            if "TELEMETRY" not in name and "no_proxy" not in name.lower()
        }
        code = (
            "import time; from toolscout.models.encoders.onnx_encoder import Encoder;"
            "Encoder.load().encode_request('x'); time.sleep(12)"
        )
        environment = kept | {"http_proxy": proxy, "https_proxy": proxy, "PYTHONPATH": str(PACKAGE.parent)}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert asked == []
