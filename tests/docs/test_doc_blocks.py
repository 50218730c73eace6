"""The code blocks of README.md and docs/ run as they stand, and their commands are ones that toolscout has."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from docs import run_blocks
from toolscout.cli.main import app

ROOT = run_blocks.ROOT
PAGES = run_blocks.pages()
STALE = "run: python docs/run_blocks.py"
KINDS = {"", "not run", "run", "run slowly", "file", "output"}


@cache
def _command_line() -> Any:
    return typer.main.get_command(app)


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _runs(page: Path) -> bool:
    found = list(run_blocks.blocks(page.read_text()))
    python = any(one.language == "python" and one.kind != "not run" for one in found)
    return python or any(one.kind in ("run", "run slowly") for one in found)


@pytest.mark.parametrize("page", [page for page in PAGES if _runs(page)], ids=_name)
def test_blocks_run_in_order_and_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    assert run_blocks.remade(page, tmp_path, slowly=False) == page.read_text(), STALE


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- run slowly -->" in page.read_text()], ids=_name)
def test_what_takes_longer_prints_what_is_shown_too(page: Path, tmp_path: Path) -> None:
    assert run_blocks.remade(page, tmp_path) == page.read_text(), STALE


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_blocks_are_marked_as_the_script_knows_it(page: Path) -> None:
    for block in run_blocks.blocks(page.read_text()):
        assert block.kind in KINDS
        if block.kind == "not run":
            assert block.language == "python", "other blocks are not run in any case"
            assert block.detail, "say why it is not run"


def test_the_quick_start_and_the_readme_run() -> None:
    assert _runs(ROOT / "README.md")
    assert _runs(ROOT / "docs" / "index.md")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_are_parsed_by_the_command_line(page: Path) -> None:
    for block in run_blocks.blocks(page.read_text()):
        for command in run_blocks.commands(block) if page.name != "cli.md" else ():
            _parse(command)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_within_sentences_have_options_that_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`toolscout ([^`]+)`", text):
        command: Any = _command_line()
        known = set(_options(command))
        for word in span.split():
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
                known |= set(_options(command))
            elif re.match(r"--?[a-z]", word) and word != "--help":
                assert word.partition("=")[0] in known, f"toolscout {span}"


def test_a_wrong_command_would_be_noticed() -> None:
    for wrong in (["serch", "x"], ["search", "x", "--nothing"], ["search"], ["train", "toollens", "--retriever"]):
        with pytest.raises(typer.exceptions.TyperException):
            _parse(wrong)


def _options(command: Any) -> list[str]:
    return [name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("-")]


def _parse(words: list[str]) -> None:
    """Have the command line read the words without doing anything."""
    command: Any = _command_line()
    context, name, rest = None, "toolscout", words
    while True:
        context = command.make_context(name, list(rest), parent=context)
        words = [*getattr(context, "_protected_args", ()), *context.args]
        if not hasattr(command, "commands") or (not words and command.invoke_without_command):
            return
        name, command, rest = command.resolve_command(context, words)


def test_outputs_may_differ_in_times_and_last_digits_alone() -> None:
    shown = "1. one tool · 14 ms\n1   mail/send   2.560   meaning 0.53\n"
    assert run_blocks.same("1. one tool · 7 ms\n1  mail/send  2.558  meaning 0.54\n", shown)
    assert not run_blocks.same(shown.replace("2.560", "1.2"), shown)
    assert not run_blocks.same(shown.replace("send", "read"), shown)
    assert not run_blocks.same(shown.replace("0.53", "53 %"), shown)
    assert run_blocks.same("mail/send  73 %", "mail/send  72 %")
    assert not run_blocks.same("mail/send  82 %", "mail/send  72 %")
