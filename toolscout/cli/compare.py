"""The commands `compare` (test whether two runs differ) and `inspect` (show the worst requests of a run)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from toolscout.cli import output
from toolscout.cli.common import plural
from toolscout.errors import BadDataset

if TYPE_CHECKING:
    from toolscout.evaluation.scores import Comparison, Scores

_USUAL = ("recall@5", "ndcg@5", "comp@5")
_BY_NOVELTY = ("new_recall@5", "known_recall@5")
_SHOWN = 5
_ABOUT = "A file of OUT.scores/, or OUT.jsonl, OUT.jsonl#NUMBER, OUT.jsonl#RETRIEVER[.VARIANT]."

DatasetOption = Annotated[str | None, typer.Option("--dataset", metavar="NAME", help="Of OUT.jsonl only these rows.")]
SplitOption = Annotated[str | None, typer.Option("--split", metavar="NAME", help="Of OUT.jsonl only these rows.")]
RetrieverOption = Annotated[
    str | None, typer.Option("--retriever", metavar="NAME", help="Of OUT.jsonl only these rows.")
]


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"The one run. {_ABOUT}")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other, named alike.")],
    dataset: DatasetOption = None,
    split: SplitOption = None,
    retriever: RetrieverOption = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME@K", help="A measure to compare on; may be repeated.", show_default=", ".join(_USUAL)
        ),
    ] = None,
    common: Annotated[bool, typer.Option("--common", help="Compare on the requests that both have.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test whether two runs differ by more than chance, request by request.

    Requests of one scene are not independent: the 95 % interval of the difference resamples scenes, and p is how often
    a difference as large comes about when each scene's sign is left to chance.
    """
    from toolscout.evaluation import scores

    narrow = scores.RowFilter(dataset, split, retriever)
    one, other = scores.find(a, narrow), scores.find(b, narrow)
    names = list(dict.fromkeys(measure or [*_USUAL, *(_BY_NOVELTY if _tell_new(one) and _tell_new(other) else ())]))
    found = scores.compare(one, other, names, common)
    if json:
        compared = [{"measure": each.measure, **asdict(each.result)} for each in found]
        output.print_json({"a": one.label, "b": other.label, "measures": compared})
        return
    console = output.stdout()
    console.print(output.shown(f"A: {one.label}"))
    console.print(output.shown(f"B: {other.label}"))
    console.print(_comparison_table(found))
    counted = found[0].result
    console.print(f"{plural(counted.requests, 'request')} in {plural(counted.scenes, 'scene')}")


def _tell_new(scores: Scores) -> bool:
    return all("new" in line for line in scores.lines) and any(line["new"] for line in scores.lines)


def _comparison_table(found: Sequence[Comparison]) -> Any:
    table = output.table("", "A", "B", "B - A", "95 % interval", "p")
    for one in found:
        result = one.result
        table.add_row(
            one.measure,
            f"{result.mean_a:.4f}",
            f"{result.mean_b:.4f}",
            f"{result.difference:+.4f}",
            f"{result.low:+.4f} to {result.high:+.4f}",
            "< 0.001" if result.p < 0.001 else f"{result.p:.3f}",
        )
    return table


def inspect(
    run: Annotated[str, typer.Argument(metavar="RUN", help=_ABOUT)],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="The dataset, for the texts of the requests.", show_default="the one the run names"
        ),
    ] = None,
    count: Annotated[int, typer.Option("-n", min=0, metavar="N", help="How many requests to show.")] = 10,
    measure: Annotated[str, typer.Option(metavar="NAME@K", help="What makes a request a bad one.")] = "recall@5",
    dataset: DatasetOption = None,
    split: SplitOption = None,
    retriever: RetrieverOption = None,
) -> None:
    """Show the worst requests of a run with what was returned and what was gold, and the mean by number of gold tools.

    What was returned is known of runs that were made with --rankings.
    """
    from toolscout.evaluation import scores

    found = scores.find(run, scores.RowFilter(dataset, split, retriever))
    groups = scores.by_gold(found, measure)
    texts = _texts(found, data, split)
    console = output.stdout()
    console.print(output.shown(f"{found.label}: {measure} by number of gold tools"))
    table = output.table("gold", "requests", measure)
    for gold, requests, mean in groups:
        table.add_row(f"{gold}", f"{requests:,}", f"{mean:.4f}")
    console.print(table)
    shown = scores.worst(found, measure, count)
    for line, value in shown:
        _print_request(console, line, f"{measure} {value:.4f}", texts)
    if shown and not all("golds" in line for line, _ in shown):
        output.note("which tools were returned was not written; evaluate again with --json OUT --rankings")
    if shown and texts is None:
        output.note("the dataset is not here, so the requests are named by id only; name it with --data DATA")


def _texts(found: Scores, data: str | None, split: str | None) -> Mapping[str, str] | None:
    """Return the texts of the requests by id; None where no dataset was named and the run's own is not found.

    Raises BadDataset where a named dataset is not found or lacks requests of the run.
    """
    from toolscout.data.dataset import Dataset
    from toolscout.data.locate import find_dataset
    from toolscout.evaluation.leakage import base
    from toolscout.evaluation.no_tool_mix import prompt_texts

    summary = found.row or {}
    chosen: str = split or summary.get("split") or ""
    try:
        folder = find_dataset(data or summary.get("dataset") or found.path.name.partition(".")[0])
        texts = Dataset.load(folder, [base(chosen)] if chosen else None).requests | prompt_texts(chosen)
    except BadDataset:
        if data:
            raise
        return None
    if all(line["id"] in texts for line in found.lines):
        return texts
    if data:
        raise BadDataset(f"{data} lacks requests of {found.label}; name what was evaluated with --data and --split")
    return None


def _print_request(console: Console, line: Mapping[str, Any], score: str, texts: Mapping[str, str] | None) -> None:
    """Print one request: its text, its gold tools with their ranks, and the tools returned."""
    console.print()
    console.print(output.shown(f"{line['id']}: {score}", style="bold"))
    if texts is not None:
        console.print(output.shown(texts[line["id"]]))
    if line["ranks"] is None:
        _indented(console, f"failed: {line.get('error') or 'no ranking'}")
    if "golds" not in line:
        found = ", ".join(map(str, line["ranks"] or ())) or "none"
        _indented(console, f"{plural(line['gold'], 'gold tool')}, found at rank: {found}")
        return
    ranking: list[str] = line["ranking"] or []
    places = {tool_id: rank for rank, tool_id in reversed(list(enumerate(ranking, 1)))}
    for tool_id in sorted(line["golds"], key=lambda tool_id: places.get(tool_id, len(ranking) + 1)):
        _indented(console, f"gold, {f'at {places[tool_id]}' if tool_id in places else 'missing'}: {tool_id}")
    for rank, tool_id in enumerate(ranking[:_SHOWN], 1):
        _indented(console, f"{rank}. {tool_id}{' (gold)' if tool_id in line['golds'] else ''}")


def _indented(console: Console, text: str) -> None:
    console.print(Text("  ").append_text(output.shown(text)))
