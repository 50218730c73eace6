"""keys: made, listed, changed and revoked; shown once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from toolscout.core.permissions import key_digest
from toolscout.stores import open_store


def test_a_key_is_printed_once_and_kept_as_its_digest(filled: Run, tmp_path: Path) -> None:
    made = filled("keys", "add", "ann", "--allow", "mail/*", "--allow", "github/list*", "--deny", "*/send*")
    assert made.exit_code == 0
    key = made.stdout.strip()
    assert key.startswith("ts_")
    assert "ann may see 2 of 5 tools" in made.stderr
    assert key.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("tools.db*"))
    with open_store(tmp_path / "tools.db") as store:
        assert [found.digest for found in store.api_keys()] == [key_digest(key)]
        assert store.permissions("ann").ids == {"mail/search_emails", "github/list_issues"}
    listed = filled("keys", "list")
    assert key not in listed.stdout
    assert all(word in listed.stdout for word in ("ann", "mail/*", "*/send*", key_digest(key)[:8]))
    [record] = json.loads(filled("keys", "list", "--format", "json").stdout)
    assert (record["name"], record["tenant"], record["admin"]) == ("ann", "ann", False)
    assert (record["allow"], record["deny"]) == (["mail/*", "github/list*"], ["*/send*"])


def test_a_search_as_somebody_with_patterns(filled: Run) -> None:
    filled("keys", "add", "ann", "--allow", "mail/*", "--deny", "*/send*")
    found = json.loads(filled("search", "send an email", "--as", "ann", "--format", "json").stdout)
    assert found["searched"] == 1
    assert {hit["tool_id"] for hit in found["considered"]} <= {"mail/search_emails"}


def test_an_admin_sees_everything_unless_told_otherwise(filled: Run) -> None:
    assert "root may see 5 of 5 tools" in filled("keys", "add", "root", "--admin").stderr
    assert "half may see 2 of 5 tools" in filled("keys", "add", "half", "--admin", "--allow", "mail/*").stderr
    assert "none may see 0 of 5 tools" in filled("keys", "add", "none").stderr


def test_keys_are_replaced_one_after_the_other(filled: Run, tmp_path: Path) -> None:
    first = filled("keys", "add", "ann", "--allow", "mail/*").stdout.strip()
    again = filled("keys", "add", "ann", "--allow", "*")
    assert (again.exit_code, "keys change ann" in again.stderr) == (2, True)
    second = filled("keys", "add", "ann").stdout.strip()
    assert filled("keys", "revoke", "ann", "--id", "ffffffffff").exit_code == 2
    assert filled("keys", "revoke", "ann", "--id", key_digest(first)[:8]).exit_code == 0
    with open_store(tmp_path / "tools.db") as store:
        assert [key.digest for key in store.api_keys()] == [key_digest(second)]
        assert store.permissions("ann").namespaces == {"mail"}
    revoked = filled("keys", "revoke", "ann")
    assert revoked.stdout == "revoked: 1 key of ann\n"
    assert "no keys any more" in revoked.stderr
    assert filled("keys", "list").exit_code == 1
    assert filled("keys", "revoke", "ann").exit_code == 2


def test_what_somebody_may_see_is_changed(filled: Run, tmp_path: Path) -> None:
    filled("keys", "add", "ann", "--allow", "mail/*", "--deny", "*/send*", "--tenant", "acme")
    assert "ann may see 1 of 5" in filled("keys", "change", "ann", "--admin").stderr
    assert "ann may see 2 of 5" in filled("keys", "change", "ann", "--deny", "").stderr
    with open_store(tmp_path / "tools.db") as store:
        ann = store.principal("ann")
        assert ann is not None
        assert (ann.allow, ann.deny, ann.admin, ann.tenant) == (("mail/*",), (), True, "acme")
    assert filled("keys", "change", "bob").exit_code == 2


def test_feedback_goes_to_the_tenant(filled: Run, tmp_path: Path) -> None:
    filled("keys", "add", "ann", "--tenant", "acme")
    filled("feedback", "mail it", "--used", "mail/send_email", "--as", "ann")
    filled("feedback", "mail it", "--used", "mail/send_email", "--as", "bob")
    filled("feedback", "mail it", "--used", "mail/send_email")
    with open_store(tmp_path / "tools.db") as store:
        assert [example.tenant for _, example in store.feedback()] == ["acme", "bob", ""]


@pytest.mark.parametrize("pattern", ["mail", "/x"])
def test_a_pattern_that_is_none(filled: Run, pattern: str) -> None:
    result = filled("keys", "add", "ann", "--allow", pattern)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "NAMESPACE/*" in result.stderr
    assert filled("keys", "list").exit_code == 1
