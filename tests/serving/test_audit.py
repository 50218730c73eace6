"""The audit log: complete lines, nothing secret in them, files that do not grow for ever."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import BadRequest
from toolscout.serving.access import Caller
from toolscout.serving.audit import Audit


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_line_a_call(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    audit = Audit(path)
    audit.record(Caller("ann\nroot", tenant="acme"), "call", "mail/send \u2028", ok=True, ms=1.26)
    with audit.timed("bob", "search"):
        pass
    with pytest.raises(ZeroDivisionError), audit.timed("bob", "call", "x/y"):
        _ = 1 / 0
    audit.close()
    found = lines(path)
    assert [set(line) for line in found] == [{"time", "principal", "action", "tool", "ok", "ms"}] * 3
    assert (found[0]["principal"], found[0]["tool"], found[0]["ms"]) == ("ann\nroot", "mail/send \u2028", 1.3)
    assert [line["ok"] for line in found] == [True, True, False]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_older_files_are_kept_and_then_dropped(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path, max_bytes=1000, keep=2)
    for number in range(100):
        audit.record("ann", "call", f"tool/{number}", ok=True, ms=0)
    audit.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size <= 1000 for file in tmp_path.iterdir())
    kept = [line["tool"] for name in (".2", ".1", "") for line in lines(tmp_path / f"audit.jsonl{name}")]
    assert kept == [f"tool/{number}" for number in range(100 - len(kept), 100)]
    only = Audit(tmp_path / "only", max_bytes=1, keep=0)
    for number in range(3):
        only.record("ann", "call", f"tool/{number}", ok=True, ms=0)
    only.close()
    assert [line["tool"] for line in lines(tmp_path / "only")] == ["tool/2"]


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    work = [
        threading.Thread(target=lambda: [audit.record("ann", "call", "x" * 200, ok=True, ms=0) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    audit.close()
    assert len(lines(path)) == 200


def test_a_call_goes_on_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    monkeypatch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    audit.record("ann", "call", ok=True, ms=0)
    audit.close()
    assert audit.lost == 1
    with pytest.raises(OSError, match=r"directory"):
        Audit(tmp_path)
    with pytest.raises(BadRequest):
        Audit(tmp_path / "x", max_bytes=0)


def test_no_path_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Audit(None).record("ann", "call", ok=True, ms=0)
    assert list(tmp_path.iterdir()) == []
