"""feedback."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_samples import Run


def test_feedback_is_kept(filled: Run, tmp_path: Path) -> None:
    from toolscout.stores import open_store

    said = filled(
        "feedback", "-", "--used", "mail/send_email", "--rejected", "mail/search_emails", input="write to Bob"
    )
    assert said.stdout == "recorded: 1 tool used, 1 rejected\n"
    with open_store(tmp_path / "tools.db") as store:
        examples = [example for _, example in store.feedback()]
    assert [(e.request, e.used, e.rejected, e.source) for e in examples] == [
        ("write to Bob", ("mail/send_email",), ("mail/search_emails",), "cli")
    ]
    assert filled("feedback", "write to Bob").exit_code == 2
    assert filled("feedback", " ", "--used", "mail/send_email").exit_code == 2
