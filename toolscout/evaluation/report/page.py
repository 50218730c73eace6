"""Makes the page of a folder of results: FOLDER/README.md of the rows in FOLDER/*.jsonl, with plots beside it.

The rows come from `toolscout evaluate --json`, `bench --json` or `ablate --json`. Rows of the repository's studies are
left out: studies/report.py makes their page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from toolscout.errors import ToolscoutError
from toolscout.evaluation.leakage import base
from toolscout.evaluation.report import by_gold_count, plots, serving, tables
from toolscout.evaluation.report.figures import Figure, figures, lines_of_tests
from toolscout.evaluation.report.rows import ResultLine, is_method, read_folder
from toolscout.evaluation.row import RowDict
from toolscout.papers.masstool import ablation_report, published_report

PAGE = "README.md"
_MAKER = "toolscout results"
_HEAD = f"""<!-- made by {_MAKER} -->
# Results

Made by `toolscout results` from the rows beside it. A row says what was measured, by which command, with which options,
on which machine and at which commit (a plus: with uncommitted changes). Scores are percentages. R is recall, N is true
NDCG (the ideal counts every gold tool), C is COMP (all gold tools among the first k); new R is recall over the gold
tools that no real request in training asked for, known R over the others. A request that failed scores 0. Rows that
differ in the seed only are shown as their mean ± standard deviation, never as the best of them; of other repeated rows
the newest is shown. Intervals of R@5 come from resampling scenes, as requests of one scene are not independent; of
several seeds they are averaged. Scores of single requests are in `*.scores/` beside the rows.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The files to write for a folder of rows: texts by file name, and figures.

    `maker`: the command that makes them. A page's first line names it; a page without that line is not overwritten.
    """

    maker: str
    texts: dict[str, str]
    figures: tuple[Figure, ...]

    def stale(self, folder: Path) -> list[Path]:
        """Return the files of a folder that are missing or do not match the rows.

        Raises ToolscoutError for a file that cannot be read.
        """
        old = [folder / name for name, text in self.texts.items() if _read(folder / name) != text]
        return old + [folder / one.file for one in self.figures if plots.read_digest(folder / one.file) != one.digest()]

    def write(self, folder: Path) -> list[Path]:
        """Write the stale files into a folder and return their paths.

        Raises ToolscoutError for a page that this command did not make or that cannot be written, and MissingExtra
        where a plot must be drawn without matplotlib.
        """
        for name in self.texts:
            page = _read(folder / name) if name.endswith(".md") else None
            if page is not None and not page.startswith(f"<!-- made by {self.maker} -->"):
                raise ToolscoutError(f"{folder / name} was not made by {self.maker}; rename it, and run again")
        old = self.stale(folder)
        drawings = [one for one in self.figures if folder / one.file in old]
        if drawings:
            plots.check_library()  # before anything is written
        try:
            for one in drawings:
                plots.draw(one, folder / one.file)
            for name, text in self.texts.items():
                (folder / name).write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise ToolscoutError(f"{error.filename or folder} cannot be written ({error.strerror})") from None
        return old


def make(folder: Path, with_plots: bool = True) -> Report:
    """Read the rows of a folder and return its report, without writing anything; `with_plots` includes the figures.

    Raises BadDataset where there are no rows, or where one cannot be read.
    """
    lines, timed = read_folder(folder)
    methods = [line for line in lines if is_method(line)]
    bench = [row for row in timed if row["bench"] in tables.BENCHES]
    served = [row for row in timed if serving.is_serving(row)]
    ablated = ablation_report.lines_of(lines)
    plain = [line for line in methods if line.split[1] == base(line.split[1]) and not line.among]
    by_gold = by_gold_count.groups_by_row(folder, [line for chosen in lines_of_tests(plain) for line in chosen])
    found = tuple(figures(plain, bench, by_gold)) if with_plots else ()
    published = published_report.lines_of(lines)
    drawn = (ablation_report.figures(ablated), published_report.figures(published), serving.serving_figures(served))
    shown = {name: one for some in drawn for name, one in some.items()} if with_plots else {}
    pictures = {name: picture(one) for name, one in shown.items()}
    parts = [*_page(methods, bench, found), *ablation_report.section(ablated, pictures)]
    parts += published_report.section(published, pictures)
    parts += serving.section(served, pictures)
    texts = {PAGE: page_text(parts)}
    if by_gold:
        texts[by_gold_count.NAME] = by_gold_count.to_json(by_gold)
    return Report(_MAKER, texts, (*found, *shown.values()))


def stale(folder: Path, with_plots: bool = True) -> list[Path]:
    """Return the files of a folder that are missing or do not match the rows; raises as make and Report.stale do."""
    return make(folder, with_plots).stale(folder)


def write(folder: Path, with_plots: bool = True) -> list[Path]:
    """Write the stale files of a folder and return their paths; raises as make and Report.write do."""
    return make(folder, with_plots).write(folder)


def _page(lines: list[ResultLine], bench: list[RowDict], found: tuple[Figure, ...]) -> Iterator[str]:
    yield _HEAD
    cost = ""
    for one in found:
        if not one.caption:
            cost = picture(one)
            continue
        yield f"\n## {one.heading}\n\n{one.caption}\n\n{picture(one)}"
    yield from tables.quality(lines)
    if bench:
        yield from tables.bench(bench, cost)


def page_text(parts: Iterable[str]) -> str:
    """Join the parts of a page."""
    return "\n".join(parts).rstrip() + "\n"


def picture(figure: Figure) -> str:
    """Return the Markdown that shows a figure."""
    return f"![{figure.heading}]({figure.file})\n"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ToolscoutError(f"{path} cannot be read ({error}); remove it, and run again") from None
