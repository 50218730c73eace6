"""The command `need-data`: pick prompts that need no tool but resemble a catalogue, to train a need head on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolscout.cli import output
from toolscout.cli.common import OutOption, plural
from toolscout.core.arrays import Floats

if TYPE_CHECKING:
    from toolscout.data.dataset import Dataset
    from toolscout.evaluation.hard_negatives import EncodedCatalogue, PromptGroup
    from toolscout.models.encoders.onnx_encoder import Encoder
    from toolscout.models.need_head import NeedHead
    from toolscout.scout import Progress

_DOMAINS = 10
_BAND = "0.4:0.6"


def need_data(
    prompts: Annotated[
        Path,
        typer.Argument(
            metavar="PROMPTS",
            help='A folder with prompts.jsonl, a .jsonl file with "text", or a .txt file with a prompt in each line.',
        ),
    ],
    out: OutOption,
    catalogue: Annotated[
        str | None, typer.Option(metavar="STORE", help="Compare with the tools of this catalogue.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help='Compare with the tools and the train requests of a dataset, or "bundled".'),
    ] = None,
    band: Annotated[str, typer.Option(metavar="LOW:HIGH", help="Keep prompts whose best cosine lies here.")] = _BAND,
    per_band: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Keep at most so many of each tenth of similarity.")
    ] = None,
    encoder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The encoder to compare with.", show_default="the default one")
    ] = None,
) -> None:
    """Pick hard negatives for "is a tool needed?" out of any prompts: those near to a catalogue, but not too near.

    Writes prompts.jsonl, cut into train, dev and test by the hash of the text, and shows what the band does to the
    mix. That the prompts need no tool is taken on trust: look at those that the need head doubts.
    """
    from toolscout.evaluation import hard_negatives as made
    from toolscout.models.encoders.onnx_encoder import Encoder
    from toolscout.search.tool_need import NeedOptions, open_head

    if (catalogue is None) == (data is None):
        raise typer.BadParameter("name one of --catalogue STORE and --data DATA", param_hint="--catalogue")
    chosen, texts = made.Band.parse(band), made.read_texts(prompts)
    opened = Encoder.load(encoder)
    head = open_head(opened)
    with output.progress() as report:
        known = _of_store(catalogue, opened, report) if catalogue else _of_dataset(data or "", opened, report)
        found = made.candidates(texts, known, opened, head, report)
    found = made.mark_kept(found, chosen, per_band)
    splits = made.save(found, out)
    threshold = NeedOptions().threshold
    _print("similarity", made.by_band(found, threshold), head, domains=True)
    output.write("")
    domains = made.by_domain(found, threshold)
    _print("nearest domain", domains[:_DOMAINS], head, domains=False)
    if len(domains) > _DOMAINS:
        output.note(f"{plural(len(domains) - _DOMAINS, 'domain')} more that are nearest to fewer prompts")
    if len(texts) > len(found):
        output.note(f"left out: {plural(len(texts) - len(found), 'prompt')} that came twice or are requests for tools")
    if head is None:
        output.note("this encoder has no need head, so what seems to need a tool is not shown")
    counts = ", ".join(f"{splits[name]:,} {name}" for name in ("train", "dev", "test"))
    output.note(f"{plural(splits.total(), 'prompt')} ({counts}) in {out}", label="written")


def _of_store(place: str, encoder: Encoder, report: Progress | None) -> EncodedCatalogue:
    from toolscout import stores
    from toolscout.errors import StoreError
    from toolscout.evaluation.hard_negatives import catalogue_of

    if not stores.may_exist(place):
        raise StoreError(f"there is no catalogue at {place}; make one with: toolscout add SOURCE")
    with stores.open_store(place) as store:
        tools = list(store.tools())
        known = store.vectors(encoder.fingerprint, [tool.digest() for tool in tools])
    return catalogue_of(tools, known, {}, encoder, report)


def _of_dataset(name: str, encoder: Encoder, report: Progress | None) -> EncodedCatalogue:
    from toolscout.data.dataset import Dataset
    from toolscout.data.locate import find_dataset
    from toolscout.evaluation.hard_negatives import catalogue_of

    folder = find_dataset(name)
    there = Dataset.split_names(folder)
    dataset = Dataset.load(folder, ["train"] if "train" in there else there)
    requests: dict[str, str] = {}
    for split in dataset.splits:
        part = dataset.split(split)
        requests |= {text: gold[0] for (_, text), gold in zip(part.requests, part.gold, strict=True)}
    return catalogue_of(dataset.tools, _cached(encoder, dataset), requests, encoder, report)


def _cached(encoder: Encoder, dataset: Dataset) -> Mapping[str, Floats]:
    """Return the vectors of the dataset's tools, by digest, that earlier evaluations left in the cache."""
    from toolscout.evaluation.vector_cache import cache_path
    from toolscout.stores.sqlite.store import SqliteStore

    if not cache_path().exists():
        return {}
    with SqliteStore(cache_path()) as store:
        return store.vectors(encoder.fingerprint, [tool.digest() for tool in dataset.tools])


def _print(what: str, lines: Sequence[PromptGroup], head: NeedHead | None, domains: bool) -> None:
    seems = ["seem to need a tool"] if head else []
    table = output.table(what, "prompts", "kept", "words", *seems, *(["nearest domains"] if domains else []))
    for column in table.columns[1 : 4 + len(seems)]:
        column.justify = "right"
    for line in lines:
        cells = [f"{line.prompts:,}", f"{line.kept:,}", f"{line.words:.0f}"]
        cells += [f"{line.needing:.0%}"] if line.needing is not None else []
        if domains:
            cells.append(", ".join(f"{name} {count:,}" for name, count in line.domains))
        table.add_row(output.shown(line.name), *map(output.shown, cells))
    output.stdout().print(table)
