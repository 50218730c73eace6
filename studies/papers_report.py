"""The section and figures that show the papers' numbers beside ours.

The papers' numbers and the experiments behind ours are those of `toolscout reproduce`; no script of this folder makes
rows for this section.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from studies.study_rows import StudyRows
from toolscout.evaluation.report.figures import Figure, Panel, Series, deviation, mean_percent
from toolscout.evaluation.report.tables import table
from toolscout.papers import registry, reproduction
from toolscout.papers.paper import Column, Line, Table

_HEAD = """
## The papers beside our runs

Hatched: the paper's numbers, as `toolscout/papers/papers.json` has them. Filled: ours, means of the seeds, from rows of
this folder; thin bars are their standard deviation. *As published* and *as served* are the two forms that
`toolscout reproduce PAPER --no-run` prints, which also says what differs from the paper and what was not run. Under
each figure stand its numbers.
"""
_FORMS = MappingProxyType({"published": "ours, as published", "served": "ours, as served"})
_THEIRS = "the paper's"


@dataclass(frozen=True, slots=True)
class _TablePanel:
    """A panel that shows a part of a paper's table.

    table: its title. lines, columns: which are shown. lines_as_groups: whether the groups of bars are the lines, and
    not the columns.
    """

    title: str
    paper: str
    table: str
    lines: tuple[str, ...]
    columns: tuple[str, ...]
    lines_as_groups: bool = False

    def series(self, rows: StudyRows, setup: reproduction.Setup) -> Iterator[Series]:
        """Yield the paper's numbers and ours; only those that there are."""
        paper = registry.find_paper(self.paper)
        source = next(one for one in paper.tables if one.title == self.table)
        lines = [next(line for line in source.lines if line.name == name) for name in self.lines]
        columns = [next(column for column in source.columns if column.head == head) for head in self.columns]
        if self.lines_as_groups:
            for column in columns:
                for form in (*_FORMS.values(), _THEIRS):  # the paper's last: groups stand in the order of the first
                    cells = {line.name: _values(source, line, column, form, setup) for line in lines}
                    label = form if len(columns) == 1 else f"{column.head}: {form}"
                    yield from _series(label, cells, form == _THEIRS)
            return
        for line in lines:
            for form in (_THEIRS, *_FORMS.values()):
                cells = {column.head: _values(source, line, column, form, setup) for column in columns}
                borrowed = form == _THEIRS and line.source not in ("", paper.title)  # a baseline of an earlier paper
                whose = f"the {line.source} paper's" if borrowed else form
                yield from _series(f"{line.name}: {whose}", cells, form == _THEIRS)


@dataclass(frozen=True, slots=True)
class _MethodsPanel:
    """A panel that shows trained methods.

    methods: by label, the retriever and what the names of its models begin with.
    groups: by label, the dataset, the split, how the names of models trained for it end, and the measure.
    """

    title: str
    methods: Mapping[str, tuple[str, str]]
    groups: Mapping[str, tuple[str, str, str, str]]

    def series(self, rows: StudyRows, setup: reproduction.Setup) -> Iterator[Series]:
        """Yield a series for each method that there are rows of."""
        found = {(*line.split[:2], line.retriever, line.variant): line for line in rows.methods() if not line.among}
        for label, (retriever, prefix) in self.methods.items():
            keys = {
                group: ((dataset, split, retriever, prefix + suffix), measure)
                for group, (dataset, split, suffix, measure) in self.groups.items()
            }
            cells = {name: found[key].values(measure) for name, (key, measure) in keys.items() if key in found}
            yield from _series(label, cells)


def _values(source: Table, line: Line, column: Column, form: str, setup: reproduction.Setup) -> Sequence[float]:
    """Return the values of the seeds, or the paper's number, as fractions; none where there is nothing."""
    if form == _THEIRS:
        theirs = source.theirs(line, column)
        return [] if theirs is None else [theirs / 100]
    ours = line.published if form == _FORMS["published"] else line.served
    return reproduction.cell(ours, column, setup).values


def _series(label: str, cells: Mapping[str, Sequence[float]], theirs: bool = False) -> Iterator[Series]:
    shown = {place: values for place, values in cells.items() if values}
    if shown:
        heights, errors = tuple(map(mean_percent, shown.values())), tuple(map(deviation, shown.values()))
        yield Series(label, tuple(shown), heights, errors, dashed=theirs)


_RETRIEVAL = ("R@3", "R@5", "N@3", "N@5")
_COMPLETE = ("R@3", "R@5", "N@5", "C@3", "C@5")
_MASSTOOL = (
    "ANCE, fine-tuned",
    "MassTool (ANCE)",
    "MiniLM-L6, fine-tuned",
    "MassTool (MiniLM-L6)",
    "MassTool (MiniLM-L6, stage 1 as served)",
)
_GAIN = ("stage 1 alone", "COLT over stage 1", "MassTool over stage 1")
_COLT = ("Contriever, fine-tuned", "COLT (Contriever)", "MiniLM-L6, fine-tuned", "COLT (MiniLM-L6)")
_WRITERS = ("Utterance alone", "Zero-shot", "Few-shot", "Supervised", "Aligned", "QTA")
_IDS = ("ToolGen, atomic ids", "ToolGen, numeric ids", "ToolGen, hierarchical ids", "ToolGen, semantic ids")
_PARTS = ("G1 N@1", "G2 N@1", "G3 N@1")
_OTHER_REQUESTS = "ToolBench G3 (the paper: other requests)"
_QUERIES = "query-generation"

# By file, without its ending: the heading, the label of the y axis, and the panels.
_FIGURES: Mapping[str, tuple[str, str, tuple[_TablePanel | _MethodsPanel, ...]]] = MappingProxyType(
    {
        "paper_masstool": (
            "MassTool: the paper's numbers and ours",
            "%",
            (
                _TablePanel("ToolLens", "masstool", "main, ToolLens", _MASSTOOL, _RETRIEVAL),
                _TablePanel(_OTHER_REQUESTS, "masstool", "main, ToolBench G3", _MASSTOOL, _RETRIEVAL),
            ),
        ),
        "masstool_gain": (
            "MassTool: where its gain comes from",
            "%",
            tuple(
                _TablePanel(f"{part}, {head}", "masstool", f"gain, {part}", _GAIN, (head,), lines_as_groups=True)
                for part in ("ToolLens", "ToolBench G3")
                for head in ("R@3", "C@5")
            ),
        ),
        "paper_colt": (
            "COLT: the paper's numbers and ours",
            "%",
            (
                _TablePanel("ToolLens", "colt", "3, ToolLens", _COLT, _COMPLETE),
                _TablePanel(_OTHER_REQUESTS, "colt", "3, ToolBench G3", _COLT, _COMPLETE),
            ),
        ),
        "paper_query_generation": (
            "Query generation: the paper's numbers and ours",
            "R@5, %",
            (
                _TablePanel(
                    "ToolLens, seen tools (the paper: own data)",
                    _QUERIES,
                    "main, in-domain",
                    _WRITERS,
                    ("in-domain R@5",),
                    lines_as_groups=True,
                ),
                _TablePanel(
                    "ToolLens, unseen tools (the paper: own data)",
                    _QUERIES,
                    "main, out-of-domain",
                    _WRITERS,
                    ("out-of-domain R@5",),
                    lines_as_groups=True,
                ),
                *(
                    _TablePanel(part, _QUERIES, f"main, {part}", _WRITERS, ("R@5",), lines_as_groups=True)
                    for part in ("ToolBench-G3", "ToolBench-G3, unseen tools", "UltraTool")
                ),
            ),
        ),
        "paper_toolgen": (
            "ToolGen: kinds of ids, the paper's numbers and ours",
            "%",
            (
                _TablePanel("ToolBench, all tools", "toolgen", "1, multi-domain", _IDS, _PARTS, lines_as_groups=True),
                _TablePanel("ToolLens", "toolgen", "toollens", _IDS, ("N@1", "C@5"), lines_as_groups=True),
            ),
        ),
        "toolgen_alone": (
            "ToolGen with and without the cosine of an encoder",
            "R@5, %",
            (
                _MethodsPanel(
                    "ToolLens",
                    {
                        "dense": ("dense", ""),
                        "toolgen alone (sets)": ("toolgen", "sets-"),
                        "toolgen+dense": ("toolgen+dense", "toolgen-"),
                    },
                    {
                        "test": ("toollens", "test", "toollens", "recall@5"),
                        "unseen combinations": (
                            "toollens",
                            "unseen_scene.test",
                            "toollens-unseen_scene",
                            "recall@5",
                        ),
                        "unseen tools: known": (
                            "toollens",
                            "unseen_tool.test",
                            "toollens-unseen_tool",
                            "known_recall@5",
                        ),
                        "unseen tools: new": ("toollens", "unseen_tool.test", "toollens-unseen_tool", "new_recall@5"),
                    },
                ),
            ),
        ),
        "paper_toolweaver": (
            "ToolWeaver against ToolGen: the paper's numbers and ours",
            "N@1, %",
            (
                _TablePanel(
                    "ToolBench, all tools",
                    "toolweaver",
                    "1, multi-domain",
                    ("ToolGen (public checkpoint)", "ToolWeaver"),
                    _PARTS,
                ),
                _MethodsPanel(
                    "ours, with the cosine of an encoder",
                    {
                        "toolgen+dense: ours, as served": ("toolgen+dense", "toolgen-"),
                        "toolweaver+dense: ours, as served": ("toolweaver+dense", "toolweaver-"),
                    },
                    {
                        "ToolLens": ("toollens", "test", "toollens", "ndcg@1"),
                        "… unseen combinations": ("toollens", "unseen_scene.test", "toollens-unseen_scene", "ndcg@1"),
                        "… unseen tools": ("toollens", "unseen_tool.test", "toollens-unseen_tool", "ndcg@1"),
                        "ToolBench-G3": ("toolbench-g3", "test", "g3", "ndcg@1"),
                        "UltraTool": ("ultratool", "test", "ultratool", "ndcg@1"),
                    },
                ),
            ),
        ),
    }
)


def section(rows: StudyRows, pictures: Mapping[str, str]) -> Iterator[str]:
    """The figures, each with its numbers; nothing where none of our numbers is there."""
    made = figures(rows)
    if not made:
        return
    yield _HEAD
    for name, figure in made.items():
        yield f"\n### {figure.heading}\n"
        yield from filter(None, [pictures.get(name)])
        for panel in figure.panels:
            yield f"\n**{panel.title}**\n"
            places = list(dict.fromkeys(str(place) for one in panel.series for place in one.x))
            yield table([figure.y_label, *places], [_cells(figure.y_label, one) for one in panel.series])


def _cells(first: str, one: Series) -> dict[str, str]:
    shown = zip(one.x, one.y, one.error, strict=True)
    return {first: one.label} | {str(x): f"{y:.2f}" + (f" ± {spread:.2f}" if spread else "") for x, y, spread in shown}


def figures(rows: StudyRows) -> dict[str, Figure]:
    """The figures by name; only those that show at least one number of ours."""
    setup = reproduction.Setup(data=None, rows=rows.folder, models=Path())
    made = {}
    for name, (heading, label, parts) in _FIGURES.items():
        panels = tuple(Panel(part.title, tuple(part.series(rows, setup))) for part in parts)
        if any(not one.dashed for panel in panels for one in panel.series):
            shown = tuple(panel for panel in panels if panel.series)
            made[name] = Figure(f"{name}.svg", heading, "", "bars", "", label, shown)
    return made
