"""toolscout add: every way in, and what is said of broken sources."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run, record


def test_add_reports_what_it_did_and_is_idempotent(run: Run, source: Path) -> None:
    first = run("add", source)
    assert first.exit_code == 0
    assert first.stdout == "5 added, 0 changed, 0 unchanged, 0 removed, 0 embedded; catalogue version 1\n"
    assert "words only" in first.stderr
    assert "toolscout doctor" in first.stderr
    again = run("add", source)
    assert again.exit_code == 0
    assert again.stdout == "0 added, 0 changed, 5 unchanged, 0 removed, 0 embedded; catalogue version 1\n"


def test_add_sync_removes_what_the_source_lost(filled: Run, source: Path) -> None:
    source.write_text("\n".join(source.read_text().splitlines()[:2]))
    assert "0 removed" in filled("add", source).stdout
    assert "2 unchanged, 3 removed" in filled("add", source, "--sync").stdout


def test_add_replace_takes_over(filled: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(record("mail", "send_email", "Another text.", {})))
    refused = filled("add", other)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: mail/send_email is already here from")
    assert "1 changed" in filled("add", other, "--replace").stdout


def test_add_takes_several_sources_and_a_namespace(run: Run, source: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps({"name": "ping", "description": "Pings a host."}))
    result = run("add", source, bare, "--namespace", "net")
    assert result.exit_code == 0
    assert [line.partition(": ")[0] for line in result.stdout.splitlines()] == [str(source), str(bare)]
    assert run("show", "net/ping").exit_code == 0


def test_add_stops_at_a_source_that_fails_unless_told_to_keep_going(run: Run, source: Path) -> None:
    stopped = run("add", "missing.jsonl", source)
    assert stopped.exit_code == 2
    assert stopped.stderr.startswith("error: 'missing.jsonl' does not exist")
    assert stopped.stdout == ""
    kept = run("add", "missing.jsonl", source, "--keep-going")
    assert kept.exit_code == 2
    assert "5 added" in kept.stdout
    assert "1 of 2 sources could not be read" in kept.stderr


def test_broken_lines_are_named_and_with_keep_going_counted(run: Run, source: Path) -> None:
    lines = source.read_text().splitlines()
    lines[1] = "{broken"
    lines[3] = '{"namespace": "x"}'
    source.write_text("\n".join(lines))
    refused = run("add", source)
    assert refused.exit_code == 2
    assert "line 2" in refused.stderr
    assert run("list").exit_code == 1  # nothing was stored
    kept = run("add", source, "--keep-going")
    assert kept.exit_code == 0
    assert "3 added" in kept.stdout
    assert "2 problems" in kept.stdout
    assert [line.partition(":")[0] for line in kept.stderr.splitlines()[-2:]] == ["skipped", "skipped"]
    assert "line 2" in kept.stderr
    assert "line 4" in kept.stderr


def test_long_lists_of_problems_are_cut(run: Run, source: Path) -> None:
    source.write_text(source.read_text() + "{broken\n" * 30)
    kept = run("add", source, "--keep-going")
    assert "30 problems" in kept.stdout
    assert kept.stderr.count("skipped:") == 21
    assert "10 more" in kept.stderr


def test_add_without_a_source_is_wrong_use_and_an_empty_one_finds_nothing(run: Run, tmp_path: Path) -> None:
    assert run("add").exit_code == 2
    (tmp_path / "empty.jsonl").touch()
    result = run("add", tmp_path / "empty.jsonl")
    assert result.exit_code in (1, 2)
    assert result.stderr


def test_add_forces_an_importer(run: Run, source: Path) -> None:
    renamed = source.rename(source.with_suffix(".txt"))
    assert run("add", renamed, "--kind", "jsonl").exit_code == 0
    unknown = run("add", renamed, "--kind", "spreadsheet")
    assert unknown.exit_code == 2
    assert "jsonl, mcp, openapi" in unknown.stderr


SERVER = """
import os
from mcp.server import MCPServer
server = MCPServer("clock")

@server.tool()
def tell_time(zone: str) -> dict[str, str]:
    \"\"\"Tells the time in a zone.\"\"\"
    return {}

if os.environ.get("EXTRA"):
    @server.tool()
    def set_alarm(at: str) -> dict[str, str]:
        \"\"\"Sets an alarm.\"\"\"
        return {}

server.run()
"""


def test_add_takes_an_mcp_command_behind_dashes_or_quoted(run: Run, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    dashed = run("add", "--no-embed", "--", sys.executable, server)
    assert dashed.exit_code == 0, dashed.stderr
    assert "1 added" in dashed.stdout
    quoted = run("add", "--no-embed", "--env", "EXTRA=1", f"{sys.executable} {server}")
    assert quoted.exit_code == 0, quoted.stderr
    assert "1 added, 0 changed, 1 unchanged" in quoted.stdout
    assert run("show", "clock/set_alarm").exit_code == 0


@pytest.mark.parametrize("option", ["--header", "--env"])
def test_pairs_that_are_none_are_wrong_use(run: Run, source: Path, option: str) -> None:
    assert run("add", source, option, "secret").exit_code == 2
