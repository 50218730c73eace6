"""copy."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_samples import Run


def test_a_catalogue_is_copied_and_compared(filled: Run, tmp_path: Path) -> None:
    assert filled("alias", "mail/send_email", "write_to").exit_code == 0
    assert filled("feedback", "write to Bob", "--used", "mail/send_email").exit_code == 0
    done = filled("copy", "tools.db", "other.db")
    assert done.exit_code == 0, done.output
    assert done.stdout == "5 tools, 0 vectors, 0 principals, 0 keys and 1 example of feedback are the same in both\n"
    assert filled("copy", "tools.db", "other.db").stdout == done.stdout
    (tmp_path / "tools.db").unlink()
    assert "mail/send_email" in filled("show", "mail/send_email", "--store", "other.db").stdout
    assert "write_to" in filled("show", "mail/send_email", "--store", "other.db").stdout


def test_nothing_is_copied_from_nowhere_or_onto_something_else(filled: Run, tmp_path: Path) -> None:
    missing = filled("copy", "none.db", "other.db")
    assert missing.exit_code == 2
    assert "there is no catalogue at none.db" in missing.stderr
    assert not (tmp_path / "other.db").exists()
    assert "both names are of one store" in filled("copy", "tools.db", "tools.db").stderr
