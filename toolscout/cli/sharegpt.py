"""The commands `export` and `import`: write and read training records in the ShareGPT format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import plural
from toolscout.errors import BadDataset

if TYPE_CHECKING:
    from toolscout.data.conversations import Conversation
    from toolscout.data.trajectories import Trajectory

_TRAJECTORIES = "trajectories.jsonl"


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
    sharegpt: Annotated[Path, typer.Option(metavar="FILE", help="A ShareGPT file: lines, or one JSON array.")],
    out: Annotated[Path, typer.Option(metavar="OUT", help="The file of trajectories to write: .jsonl or .jsonl.gz.")],
) -> None:
    """Read ShareGPT records, check them, and write their trajectories for training.

    What is wrong is named by line and field. Records that only pair a text with a tool are left out: a dataset folder
    holds those.
    """
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
