"""list, show, remove, alias."""

from __future__ import annotations

import json

import pytest

from tests.cli.cli_samples import TOOLS, Run, record
from toolscout import Tool
from toolscout.core import vendor_formats


def test_list_namespaces_and_tools(filled: Run) -> None:
    listed = filled("list")
    assert listed.exit_code == 0
    assert [line.split() for line in listed.stdout.splitlines()[2:]] == [
        ["github", "2"],
        ["mail", "2"],
        ["weather", "1"],
    ]
    assert json.loads(filled("list", "--format", "json").stdout) == {
        "version": 1,
        "total": 3,
        "offset": 0,
        "tools": 5,
        "namespaces": {"github": 2, "mail": 2, "weather": 1},
    }
    page = filled("list", "--namespace", "github", "--limit", "1", "--offset", "1")
    assert "github/list_issues" in page.stdout
    assert "create_issue" not in page.stdout
    assert "2 to 2 of 2 tools" in page.stderr
    tools = json.loads(filled("list", "--namespace", "mail", "--format", "json").stdout)["tools"]
    assert [tool["id"] for tool in tools] == ["mail/search_emails", "mail/send_email"]


@pytest.mark.parametrize("format", ["table", "json"])
def test_an_empty_list_exits_with_1(filled: Run, format: str) -> None:
    result = filled("list", "--namespace", "nowhere", "--format", format)
    assert result.exit_code == 1
    assert (json.loads(result.stdout)["tools"] == []) if format == "json" else ("no namespace nowhere" in result.stderr)


def test_show_in_every_format(filled: Run) -> None:
    shown = filled("show", "github/create_issue")
    assert shown.exit_code == 0
    for text in ("github/create_issue", "github__create_issue", "Creates an issue", "repository", "yes"):
        assert text in shown.stdout
    tool = Tool.from_record(record(*TOOLS[4]))
    assert json.loads(filled("show", tool.id, "--format", "json").stdout) == {"id": tool.id, **tool.to_record()}
    for format in vendor_formats.FORMATS:
        printed = filled("show", tool.id, "--format", format)
        assert json.loads(printed.stdout) == vendor_formats.to_wire(tool, format)


def test_unknown_ids_are_bad_input(filled: Run) -> None:
    for args in (
        ("show", "mail/x"),
        ("remove", "mail/x"),
        ("alias", "mail/x", "y"),
        ("feedback", "a", "--used", "mail/x"),
    ):
        result = filled(*args)
        assert result.exit_code == 2
        assert result.stderr == "error: the catalogue has no tool mail/x; run: toolscout list\n"
        assert result.stdout == ""


def test_remove_by_id_is_whole_or_not_at_all(filled: Run) -> None:
    assert filled("remove", "mail/send_email", "mail/x").exit_code == 2
    removed = filled("remove", "mail/send_email", "mail/search_emails", "mail/send_email")
    assert removed.exit_code == 0
    assert removed.stdout == "2 tools removed; catalogue version 2\n"
    assert filled("show", "mail/send_email").exit_code == 2


def test_remove_of_a_namespace_asks(filled: Run) -> None:
    assert filled("remove", "--namespace", "mail", input="n\n").exit_code == 1
    alone = filled("remove", "--namespace", "mail")
    assert alone.exit_code == 2
    assert "--yes" in alone.stderr
    assert filled("remove", "--namespace", "nowhere", "--yes").exit_code == 1
    assert "2 tools removed" in filled("remove", "--namespace", "mail", input="y\n").stdout
    assert "2 tools removed" in filled("remove", "--namespace", "github", "--yes").stdout
    assert filled("remove").exit_code == 2
    assert filled("remove", "a/b", "--namespace", "weather").exit_code == 2


def test_an_alias_finds_its_tool(filled: Run) -> None:
    assert filled("alias", "weather/get_forecast", "skyReport").stdout.endswith("aliases: skyReport\n")
    assert filled("alias", "weather/get_forecast", "skyReport").stdout.startswith("nothing to do")
    found = json.loads(filled("search", "skyReport", "--format", "json").stdout)
    assert found["hits"][0]["tool_id"] == "weather/get_forecast"
    assert filled("alias", "weather/get_forecast", "skyReport", "--remove").stdout.endswith("aliases: none\n")
