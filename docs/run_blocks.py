"""Runs the code blocks of README.md and docs/, and writes what they printed below them: python docs/run_blocks.py

Every ```python block of a page is run, in order and in one empty folder. A comment before a block says otherwise:

    <!-- not run: needs a GPU -->    the Python block is shown only, for this reason
    <!-- run -->                     the `toolscout` commands of this shell block are run too; others are only parsed
    <!-- run slowly -->              the same, by the slow tests alone
    <!-- file: tools.jsonl -->       the block is written to this file of the folder
    <!-- output -->                  the block is what was printed last; of `output: TEXT` the paragraph that
                                     begins with TEXT

A test runs all of it as well and fails where an output is stale; times may differ, and fractions by little.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from toolscout.cli.main import app

ROOT = Path(__file__).parent.parent
WIDTH = "100"
SHELL = ("", "sh", "console")
_BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[^\n]+?) -->\n+)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_TIME = re.compile(r"[\d.,]+ (?=m?s\b)")
_SCORE = re.compile(r"(\d+\.\d+)|(\d+)(?= %)")
_CLOSE = 0.03  # two decimals of a score are not the same on every processor


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: the comment before it, its language, its text, and where the text stands."""

    note: str
    language: str
    text: str
    start: int
    end: int

    @property
    def kind(self) -> str:
        """What the comment says before its colon."""
        return self.note.partition(":")[0].strip()

    @property
    def detail(self) -> str:
        """What the comment says behind its colon."""
        return self.note.partition(":")[2].strip()


def pages() -> list[Path]:
    """README.md and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for match in _BLOCK.finditer(text):
        yield Block(match["note"] or "", match["language"], match["text"], match.start("text"), match.end("text"))


def commands(block: Block) -> Iterator[list[str]]:
    """The `toolscout` commands of a shell block, as lists of arguments without `toolscout` itself."""
    if block.language not in SHELL:
        return
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(re.sub(r"(?<!\S)#.*", "", line.removeprefix("$ ")))
        while words:
            end = next((at for at, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
            if words[0] == "toolscout":
                yield words[1:end]
            words = words[end + 1 :]


def remade(page: Path, folder: Path, slowly: bool = True) -> str:
    """Run the blocks of a page in an empty folder; the page with every output as it is now.

    Without `slowly`, what is to be run slowly is not run, and its output stays as it is.

    Raises what a Python block raises, and ValueError where a command fails.
    """
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "page"}
    made, done = "", 0
    printed: str | None = ""
    for block in blocks(text):
        if block.kind == "output":
            if printed is None:
                continue
            new = _paragraph(printed, block.detail)
            if not same(new, block.text):
                made, done = made + text[done : block.start] + new, block.end
        elif block.kind == "file":
            (folder / block.detail).write_text(block.text, encoding="utf-8")
        elif block.kind == "run slowly" and not slowly:
            printed = None
        elif block.kind in ("run", "run slowly"):
            printed = "".join(_run(command, folder) for command in commands(block))
        elif block.language == "python" and block.kind != "not run":
            with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, str(page), "exec"), names)
            printed = out.getvalue()
    return made + text[done:]


def same(printed: str, shown: str) -> bool:
    """Whether two outputs say the same: times may differ, fractions and shares by little, blanks in any way."""
    texts = [" ".join(_TIME.sub("", text).split()) for text in (printed, shown)]
    numbers = [
        [float(number) if number else int(percent) / 100 for number, percent in _SCORE.findall(text)] for text in texts
    ]
    words = [re.sub(r"─+", "─", _SCORE.sub("", text)) for text in texts]
    return words[0] == words[1] and all(abs(a - b) <= _CLOSE + 1e-9 for a, b in zip(*numbers, strict=True))


def _run(command: list[str], folder: Path) -> str:
    unset = dict.fromkeys(("TOOLSCOUT_STORE", "TOOLSCOUT_DATA", "TOOLSCOUT_ENCODER"))
    with contextlib.chdir(folder):
        ran = CliRunner().invoke(app, command, env={"COLUMNS": WIDTH, **unset}, prog_name="toolscout")
    if ran.exit_code not in (0, 1) or (ran.exception and not isinstance(ran.exception, SystemExit)):
        raise ValueError(f"toolscout {shlex.join(command)}: {ran.exception!r} {ran.stderr}")
    return ran.stdout  # exit code 1: there are no tools to use, which is an answer


def _paragraph(printed: str, begins: str) -> str:
    """What is shown of an output: all of it, or the one paragraph that begins so."""
    found = [part for part in printed.split("\n\n") if part.startswith(begins)] if begins else [printed]
    if not found:
        raise ValueError(f"nothing printed begins with {begins!r}:\n{printed}")
    return "\n".join(line.rstrip() for line in found[0].strip("\n").splitlines()) + "\n"


def main() -> None:
    """Write every page anew, as far as its outputs changed."""
    for page in pages():
        with tempfile.TemporaryDirectory() as folder:
            made = remade(page, Path(folder))
        if made != page.read_text(encoding="utf-8"):
            page.write_text(made, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
