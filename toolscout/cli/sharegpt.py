"""The commands `export` and `import`: training records in the ShareGPT format, and requests that others published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import plural
from toolscout.errors import BadDataset, BadRequest

if TYPE_CHECKING:
    from toolscout.data.conversations import Conversation
    from toolscout.data.trajectories import Trajectory

_TRAJECTORIES = "trajectories.jsonl"
_NAMED = 5  # tools that are named on the screen


def export(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA[:SPLIT]",
            help="BEIR folders (split train unless another is named), folders or files of trajectories.",
            show_default="",
        ),
    ],
    sharegpt: Annotated[
        Path, typer.Option(metavar="OUT", help="Where to write: .jsonl a record a line, .json one array; .gz packs it.")
    ],
) -> None:
    """Write training records: request to tool, document to tool, and trajectories as an agent's conversations.

    A record is {"conversations": [{"role", "content", "loss"}, …]}; a turn that names a tool has its id as "action".
    """
    from toolscout.data.conversations import write_sharegpt

    counts: Counter[str] = Counter()

    def counted() -> Iterator[Conversation]:
        for text in data:
            for one in _conversations(text):
                counts[one.kind] += 1
                yield one

    write_sharegpt(sharegpt, counted())
    for kind, count in counts.items():
        output.write(f"{kind}: {plural(count, 'record')}")
    output.note(f"{plural(counts.total(), 'record')} in {sharegpt}", label="written")


def import_(
    out: Annotated[
        Path,
        typer.Option(metavar="OUT", help="What to write: a .jsonl or .jsonl.gz of trajectories; with --onto a folder."),
    ],
    sharegpt: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A ShareGPT file: lines, or one JSON array.", show_default="none"),
    ] = None,
    requests: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="ToolBench's published training requests: G1_query.json, a folder with train.query.txt, or ToolGen's "
            "records of retrieval; may be repeated.",
            show_default="none",
        ),
    ] = None,
    onto: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The BEIR folder with ToolBench's tools; it stays as it is.", show_default="none"
        ),
    ] = None,
) -> None:
    """Read ShareGPT records and write their trajectories, or join published requests to a BEIR folder (--onto).

    What is wrong in a ShareGPT file is named by line and field. Records that only pair a text with a tool are left out:
    a dataset folder holds those. With --onto, OUT is a BEIR folder with the tools and splits of FOLDER, and with the
    requests in its train split too: tools are found by their names, requests that FOLDER has in any split are left out,
    and tools that it does not have are counted and named in the file unmatched.jsonl of OUT.
    """
    if requests and onto is not None and sharegpt is None:
        _join(requests, onto, out)
    elif sharegpt is not None and not requests and onto is None:
        _import_trajectories(sharegpt, out)
    else:
        raise BadRequest("pass --sharegpt FILE for trajectories, or --requests FILE and --onto FOLDER for requests")


def _join(files: Sequence[Path], onto: Path, out: Path) -> None:
    """Write a copy of a folder that has published requests too, and say what became of all of them."""
    from toolscout.data import published_requests as published
    from toolscout.data.dataset import Dataset

    base = Dataset.load(onto)
    read = (one for file in files for one in published.read_published(file))
    made = published.join(base, read, ", ".join(file.name for file in files))
    made.dataset.save(out)
    output.write(f"requests: {plural(made.added, 'new one')} in {published.TRAIN}, of {made.read:,} read")
    for split, count in made.known.items():
        output.note(f"left out: {plural(count, 'request')} that {split} of {onto.name} has")
    if made.bare:
        output.note(f"left out: {plural(made.bare, 'record')} without a request or without a tool")
    if made.unmatched:
        named = out / "unmatched.jsonl"
        named.write_text(published.unmatched_lines(made.unmatched), encoding="utf-8")
        few = "; ".join(f"{name} ({why})" for (name, why), _ in made.unmatched.most_common(_NAMED))
        output.note(f"left out: {plural(made.incomplete, 'request')} with a tool that was not found in {onto.name}")
        output.note(f"not found: {plural(len(made.unmatched), 'tool')}, all named in {named}, such as: {few}")
    output.note(f"{out}", label="written")


def _import_trajectories(sharegpt: Path, out: Path) -> None:
    """Write the trajectories of a ShareGPT file."""
    from toolscout.data.conversations import located_sharegpt, trajectory
    from toolscout.data.trajectories import write_trajectories

    left: Counter[str] = Counter()

    def read() -> Iterator[Trajectory]:
        for where, one in located_sharegpt(sharegpt):
            if one.kind in ("retrieval", "memorisation"):
                left[one.kind] += 1
            else:
                yield trajectory(one, where)

    found = list(read())
    if not found:
        raise BadDataset(f"{sharegpt} holds no trajectories, only pairs of a text and a tool; a dataset holds those")
    write_trajectories(out, found)
    calls = sum(len(message.calls) for one in found for message in one.messages)
    output.write(f"trajectories: {plural(len(found), 'record')}, {plural(calls, 'call')}")
    for kind, count in left.items():
        output.note(f"left out: {plural(count, f'{kind} record')}")
    output.note(f"{out}", label="written")


def _conversations(text: str) -> Iterator[Conversation]:
    from toolscout.data import beir_files as files
    from toolscout.data.conversations import conversation, memorisation, retrieval
    from toolscout.data.dataset import Dataset
    from toolscout.data.locate import find_split
    from toolscout.data.trajectories import read_trajectories

    if Path(text).is_file():
        yield from map(conversation, read_trajectories(Path(text)))
        return
    _, folder, split = find_split(text)
    recorded = files.find(folder, _TRAJECTORIES)
    if recorded is not None:
        yield from map(conversation, read_trajectories(recorded))
        return
    split = split or "train"
    dataset = Dataset.load(folder, [split])
    yield from memorisation(dataset.tools)
    yield from retrieval(dataset, split)
