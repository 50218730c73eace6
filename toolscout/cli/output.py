"""Prints to the terminal: results on stdout, all else on stderr; control characters in texts are removed first."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolscout.core import tracing
from toolscout.core.tool import clean_text

# The width where output is no terminal: fixed, so that the output of two runs can be compared.
WIDTH = 100
MAX_SHOWN_CHARS = 4_000

Report = Callable[[str, int, int], None]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Stop printing without an error when the reader closes the pipe."""
        self.quiet = True
        _discard(self.file)


def _discard(stream: IO[str]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _console(stream: IO[str]) -> Console:
    width = None if stream.isatty() else WIDTH
    return _Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def stdout() -> Console:
    """Return the console for results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for notes, errors and progress."""
    return _console(sys.stderr)


def shown(text: str, style: str = "") -> Text:
    """Return text from a tool, file or error as one printable line without markup."""
    return Text(clean_text(text[:MAX_SHOWN_CHARS]), style)


def note(text: str, label: str = "note") -> None:
    """Print one line `label: text` on stderr."""
    stderr().print(shown(f"{label}: {text}"), soft_wrap=True)


class _Notes(logging.Handler):
    """Prints each log record as one line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage() + (f" ({record.exc_info[1]!r})" if record.exc_info else "")
        note(message, label=record.levelname.lower())


class _JsonLines(logging.Handler):
    """Prints each log record as one line of ASCII JSON on stderr, with the ids of the request and of its trace."""

    def emit(self, record: logging.LogRecord) -> None:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {key: record.__dict__[key] for key in ("route", "status", "ms") if key in record.__dict__}
        entry |= {"error": repr(record.exc_info[1])} if record.exc_info else {}
        ids = {"request_id": tracing.request_id.get(), "trace_id": tracing.trace_id()}
        line = json.dumps(entry | {key: value for key, value in ids.items() if value}, default=str)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


@contextmanager
def logged(level: int, *names: str, as_json: bool = False) -> Iterator[None]:
    """Print the records of these loggers, from `level` on, on stderr while the block runs."""
    handler = _JsonLines(level) if as_json else _Notes(level)
    loggers = [logging.getLogger(name) for name in names]
    before = [(log.level, log.propagate) for log in loggers]
    for log in loggers:
        log.addHandler(handler)
        log.setLevel(level)
        log.propagate = False
    try:
        yield
    finally:
        for log, (old, propagate) in zip(loggers, before, strict=True):
            log.removeHandler(handler)
            log.setLevel(old)
            log.propagate = propagate


def table(*headers: str, grow: str = "") -> Table:
    """Return an empty table that folds long cells; the column named `grow` takes the remaining width."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for header in headers:
        right = header in ("#", "of best", "tools")
        made.add_column(
            header, justify="right" if right else "left", overflow="fold", ratio=1 if header == grow else None
        )
    return made


def print_json(value: Any) -> None:
    """Print a value as ASCII JSON; what JSON does not have becomes text, and numbers that are not finite null."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except (ValueError, TypeError):
        plain = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
        text = json.dumps(plain, indent=2)
    write(text.replace("\x7f", "\\u007f"))


def write(text: str) -> None:
    """Print text unchanged to stdout; the caller has removed control characters."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)


def print_error(error: BaseException, debug: bool) -> None:
    """Print an error in one line; with `debug` the traceback before it."""
    if debug:
        for line in "".join(traceback.format_exception(error)).splitlines():
            indent = " " * (len(line) - len(line.lstrip(" ")))
            stderr().print(Text(indent + clean_text(line)), soft_wrap=True)
    note(str(error) or type(error).__name__, label="error")


@contextmanager
def progress() -> Iterator[Report | None]:
    """Give a function that shows a stage's progress as a bar with count, rate and time left; None without a terminal.

    It takes the name of the stage, how much is done, and the total (0 where unknown).
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars

    class Rate(bars.ProgressColumn):
        def render(self, task: bars.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.0f}/s" if speed else "", style="progress.data.speed")

    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[count]}", markup=False),
        Rate(),
        bars.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with bars.Progress(*columns, console=stderr(), transient=True) as live:
        tasks: dict[str, bars.TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            name = stage.partition(",")[0]  # the text after the comma changes during a stage
            if name not in tasks:
                for task in tasks.values():
                    live.update(task, visible=False)
                tasks[name] = live.add_task(stage, total=total or None, count="")
            count = f"{done:,} of {total:,}" if total else f"{done:,}" if done else ""
            live.update(tasks[name], description=stage, completed=done, total=total or None, count=count)

        yield report
