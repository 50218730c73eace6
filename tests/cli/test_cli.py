"""The program itself: stores that are not there or not good, help, errors, doctor."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.cli.cli_samples import FITTING, Run


@pytest.mark.parametrize(
    "args",
    [
        ("list",),
        ("show", "a/b"),
        ("remove", "a/b"),
        ("search", "anything"),
        ("embed",),
        ("alias", "a/b", "c"),
        ("grant", "ann", "--namespace", "a"),
        ("revoke", "ann", "--namespace", "a"),
        ("feedback", "anything", "--used", "a/b"),
    ],
)
def test_only_add_makes_a_catalogue(run: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: there is no catalogue at ")
    assert "toolscout add" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_store_may_be_named_before_or_behind_the_command(filled: Run, tmp_path: Path) -> None:
    (tmp_path / "tools.db").rename(tmp_path / "other.db")
    assert filled("--store", "other.db", "list").exit_code == 0
    assert filled("list", "--store", "other.db").exit_code == 0
    assert filled("--store", "nowhere.db", "list", "--store", "other.db").exit_code == 0


def test_a_damaged_store_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tools.db").write_bytes(b"this is no database at all" * 100)
    for args in (("list",), ("search", "anything"), ("add", "x")):
        result = run(*args)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert "damaged" in result.stderr
    assert run("doctor").exit_code == 1


def test_a_read_only_folder(run: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # one that others can reach, unlike pytest's
        place = Path(folder)
        store = ("--store", place / "tools.db")
        assert run("add", source, *store).exit_code == 0
        assert run("search", FITTING, *store).exit_code == 0
        (place / "tools.db").chmod(0o444)
        place.chmod(0o555)
        root = os.geteuid() == 0
        monkeypatch.chdir(place)
        try:
            if root:
                os.seteuid(65534)  # root may write anywhere
            results = [run(*args, *store) for args in (("list",), ("search", FITTING), ("remove", "mail/send_email"))]
            made = run("add", source, "--store", place / "new.db")
        finally:
            if root:
                os.seteuid(0)
            place.chmod(0o755)
            monkeypatch.undo()
    assert [result.exit_code for result in results] == [0, 0, 2], results[1].stderr
    assert "may only be read" in results[2].stderr
    assert made.exit_code == 2
    assert "choose another path" in made.stderr


def test_a_folder_where_nothing_can_be_made(run: Run, source: Path) -> None:
    result = run("add", source, "--store", "/proc/none/tools.db")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_version_and_help(run: Run) -> None:
    from toolscout import __version__

    assert run("--version").stdout == f"toolscout {__version__}\n"
    assert run("--help").exit_code == run("search", "-h").exit_code == 0
    assert run("--install-completion", "--help").exit_code == 0
    assert run("serch", "x").exit_code == 2


def test_debug_shows_where_an_error_was_raised(run: Run) -> None:
    assert "Traceback" not in run("list").stderr
    shown = run("--debug", "list").stderr
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("error: ")


def test_doctor_says_how_to_get_the_encoder(filled: Run) -> None:
    result = filled("doctor")
    assert result.exit_code == 0
    for text in ("unset TOOLSCOUT_ENCODER", "pip install --force-reinstall toolscout", "5 tools in 3 namespaces"):
        assert text in result.stdout
    assert result.stdout.endswith("Requests can be answered.\n")


def test_embed_without_an_encoder_says_so(filled: Run) -> None:
    result = filled("embed")
    assert result.exit_code == 1
    assert "toolscout doctor" in result.stderr


def test_an_error_nobody_expected_is_not_taken_for_an_answer(filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout.stores.open_store", lambda path: 1 / 0)
    result = filled("list")
    assert result.exit_code == 70
    assert "report it" in result.stderr


def test_ctrl_c(filled: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("toolscout.stores.open_store", interrupted)
    result = filled("list")
    assert result.exit_code == 130
    assert result.stderr == "interrupted: nothing is lost: what was committed stays\n"
