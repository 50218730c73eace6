"""grant and revoke."""

from __future__ import annotations

import json

from tests.cli.cli_samples import Run


def test_a_principal_sees_what_was_granted(filled: Run) -> None:
    def hits(*args: str) -> list[str]:
        answer = json.loads(filled(*args, "--format", "json").stdout)
        return [hit["tool_id"] for hit in answer["considered"]]

    search = ("search", "issues of a repository, messages in the mailbox", "--as", "ann")
    assert hits(*search) == []
    granted = filled("grant", "ann", "--namespace", "mail", "--tool", "github/list_issues", "--tool", "not/here")
    assert granted.stdout == "ann may see: namespace mail, tool github/list_issues, tool not/here\n"
    assert "not in the catalogue yet: not/here" in granted.stderr
    assert set(hits(*search)) <= {"mail/send_email", "mail/search_emails", "github/list_issues"}
    assert hits(*search, "--namespace", "github") == ["github/list_issues"]
    assert filled("revoke", "ann", "--namespace", "mail").stdout.startswith("ann may see: tool github/list_issues")
    assert hits(*search) == ["github/list_issues"]
    assert filled("grant", "ann").exit_code == filled("revoke", "ann").exit_code == 2
