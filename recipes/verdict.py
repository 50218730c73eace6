"""Fits the verdict model of an encoder and measures it: python -m recipes.verdict; minutes on two cores.

    python -m recipes.verdict                    the default encoder: writes toolscout/default_model/verdict.json and
                                                 results/verdict.jsonl
    python -m recipes.verdict --encoder FOLDER   another one, which has a need head: writes FOLDER/verdict.json
    python -m recipes.verdict --no-test          without the rows of test splits, while something is still chosen

Needs $TOOLSCOUT_DATA. verdict_data.py makes the labelled rows, verdict_fit.py fits and measures. Each set is left out
once, together with the sets that share its requests or tools and with talk of the same sources; a model and thresholds
fitted to the other sets are measured on it. Vectors are kept in the user's cache and evidence in --cache, so that a
second run is quick. Test splits are read at the end, and nothing is chosen on them.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table as Shown

from recipes import verdict_data as data
from recipes import verdict_fit as fit
from recipes.verdict_data import NO_TOOL, SIZES, TALK_OF, Rows
from recipes.verdict_fit import Predictions, Table
from toolscout.core.answer import Level
from toolscout.core.arrays import Bools
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation import row
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.onnx_encoder import default_folder
from toolscout.models.encoders.opening import open_encoder
from toolscout.models.encoders.settings import encoders_folder
from toolscout.models.rerankers.base import Reranker
from toolscout.models.rerankers.opening import DEFAULT, open_reranker
from toolscout.search.encoder_fit import fit_options_of
from toolscout.search.tool_need import open_head
from toolscout.search.verdict import LEVELS, LevelThresholds, VerdictModel

OUT = Path(__file__).resolve().parent.parent / "results" / "verdict.jsonl"
NAME = "verdict"
DEV, TEST = "dev", "test"
# Of these the test splits are measured at the end.
TESTED = ("bundled", "toollens", "toolbench-g3", "simpletoolquestions")
LEFT_OUT, MEAN, POOLED, RERANKED = "left out", "mean", "all together", ", reranked"
COLUMNS = {
    "answered": "recall",
    "precision": "precision",
    "nothing fits: turned away": "nothing_fits_not_used",
    "nothing fits: said so": "nothing_fits_told",
    "talk: turned away": "no_tool_not_used",
    "talk: said so": "no_tool_told",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """The measures of one set, or means over several; `part` says by which model: see studies/verdict_report.py."""

    dataset: str
    split: str
    part: str
    metrics: Mapping[str, float]
    requests: int


def rows_of(
    encoder: TextEncoder, reranker: Reranker | None, names: Sequence[str], split: str, cache: Path, console: Console
) -> dict[str, Rows]:
    """Return the labelled rows of each set, from the cache or made anew."""
    seen, head, options = data.seen_by(encoder), open_head(encoder), fit_options_of(encoder)
    every = data.talk(seen, split, split)
    found: dict[str, Rows] = {}
    for name in names:
        about = f"{encoder.fingerprint} {name} {split} {options} {head and head.shift} {data.VERSION}"
        about += f" {reranker.fingerprint}" if reranker else ""
        path = cache / f"{name}.{split}.{hashlib.blake2b(about.encode(), digest_size=8).hexdigest()}.npz"
        if not path.is_file():
            source = data.labelled_set(name, split, seen)
            if not source.served:
                console.print(f"{name}: all of its {split} requests were trained on")
                continue
            data.save(path, data.gathered(source, every, data.Catalogues(source, encoder, head, options, reranker)))
        found[name] = data.load(path)
        console.print(f"{name} {split}: {len(found[name].kind):,} rows")
    return found


class Trial(NamedTuple):
    """Rows, what a model predicts for them, and the thresholds of its levels."""

    said: Predictions
    table: Table
    thresholds: Mapping[Level, LevelThresholds]

    def where(self, mask: Bools) -> Trial:
        """Return those of some of the rows."""
        return Trial(self.said.where(mask), self.table.where(mask), self.thresholds)


def searched_and_reranked(trials: Mapping[str, Trial]) -> Iterator[tuple[str, dict[str, Trial]]]:
    """Yield the rows of the search alone, and those with a reranker where there are any, with what to add to a part."""
    yield "", {name: one.where(~one.table.reranked) for name, one in trials.items()}
    if any(one.table.reranked.any() for one in trials.values()):
        yield RERANKED, {name: one.where(one.table.reranked) for name, one in trials.items()}


def left_out(rows: Mapping[str, Rows]) -> dict[str, Trial]:
    """Return for each set what a model predicts that was fitted without it, its kin, and its sources of talk."""
    whole = fit.joined(rows)
    names, sources, talk = np.array(whole.sets), np.array(whole.sources), whole.kind == NO_TOOL
    found = {}
    for name in rows:
        own = np.isin(sources, TALK_OF[name])
        kin = np.array([data.is_kin(name, other) for other in whole.sets])
        known, tested = whole.where(~kin & ~(talk & own)), whole.where((names == name) & (~talk | own))
        parts = fit.fitted(known)
        thresholds = levels_of(Predictions.by(parts, known), known)
        found[name] = Trial(Predictions.by(parts, tested), tested, thresholds)
    return found


def levels_of(said: Predictions, table: Table) -> dict[Level, LevelThresholds]:
    """Return the thresholds of the levels, for both where need is known and where fit alone is judged.

    A level reaches its recall (TARGET_RECALL) both on the mean of the sets and on the bundled requests over all bundled
    tools. People wrote those; they are less similar to their tools than the requests of published sets.
    """
    every = np.ones(len(table.kind), dtype=bool)
    found = [
        [fit.thresholds_of(several[mask], table.where(mask)) for mask in (among, among & _people(table)) if mask.any()]
        for several, among in ((said.use, table.known), (said.fit, every))
    ]
    use, alone = ({level: min(one[level] for one in several) for level in LEVELS} for several in found)
    return {
        level: LevelThresholds(*(math.floor(10_000 * one[level]) / 10_000 for one in (use, alone))) for level in LEVELS
    }


def _people(table: Table) -> Bools:
    found: Bools = np.array([name == "bundled" for name in table.sets]) & (table.size == data.WHOLE)
    return found


def measures(trials: Mapping[str, Trial], split: str, part: str) -> Iterator[Measured]:
    """Yield the measures of each set; of several sets also the means, over all rows and for each catalogue size."""
    found = [
        Measured(name, split, part, fit.measured(one.said, one.table, one.thresholds), len(one.table.kind))
        for name, one in trials.items()
    ]
    yield from found
    if len(found) == 1:
        return
    yield Measured(MEAN, split, part, fit.means([one.metrics for one in found]), sum(one.requests for one in found))
    yield Measured(POOLED, split, part, _pooled(list(trials.values())), sum(one.requests for one in found))
    for size, about in enumerate(SIZES):
        some = [(one, one.table.size == size) for one in trials.values()]
        several = [
            fit.measured(one.said.where(mask), one.table.where(mask), one.thresholds)
            for one, mask in some
            if mask.any()
        ]
        yield Measured(f"{MEAN}, {about}", split, part, fit.means(several), int(sum(mask.sum() for _, mask in some)))


def _pooled(trials: Sequence[Trial]) -> dict[str, float]:
    """Return AUROC and calibration error over the rows of all sets together, each set with the same weight."""
    use = np.concatenate([one.said.use for one in trials])
    weights = np.concatenate([one.table.weights / one.table.weights.sum() for one in trials])
    served = np.concatenate([one.table.kind for one in trials]) == data.USE
    found = {"use_auroc": fit.auroc(use, served, weights), "use_ece": fit.ece(use, served, weights)}
    return {name: round(value, 4) for name, value in found.items()}


def by_model(model: VerdictModel, rows: Mapping[str, Rows]) -> dict[str, Trial]:
    """Return what one model predicts for each set."""
    whole = fit.joined(rows)
    names = np.array(whole.sets)
    tables = {name: whole.where(names == name) for name in rows}
    return {
        name: Trial(Predictions.by((model.need, model.fit), table), table, model.levels)
        for name, table in tables.items()
    }


def bundled(trial: Trial, split: str) -> dict[str, Trial]:
    """Keep the bundled requests over all bundled tools, with the kinds that people gave them."""
    benchmark = Dataset.load(find_dataset("bundled"), [split])
    labelled = sum(benchmark.kind(one) == "nothing_fits" for one, _ in benchmark.goldless(split))
    table, whole = trial.table, np.flatnonzero(trial.table.size == data.WHOLE).tolist()
    # The order of verdict_data.gathered: served requests, the same with their tools left out, those that people say
    # nothing fits, talk.
    served = [at for at in whole if table.kind[at] == data.USE]
    hopeless = [at for at in whole if table.kind[at] == data.NOTHING_FITS][-labelled:]
    talk = [at for at in whole if table.kind[at] == NO_TOOL and table.sources[at] == "bundled"]
    mask = np.isin(np.arange(len(table.kind)), [*served, *hopeless, *talk])
    return {"bundled": trial.where(mask)}


def show(console: Console, title: str, found: Sequence[Measured], level: Level) -> None:
    """Print a table of the measures at a level."""
    shown = Shown("", "AUROC", "ECE", "fit AUROC", *COLUMNS, title=title)
    names = ["use_auroc", "use_ece", "fit_auroc", *(f"{level}_{name}" for name in COLUMNS.values())]
    for one in found:
        shown.add_row(one.dataset, *(f"{one.metrics.get(name, float('nan')):.3f}" for name in names))
    console.print(shown)


def row_of(one: Measured, model: VerdictModel, command: str) -> dict[str, Any]:
    """Return the row of one measurement."""
    thresholds = {level: model.levels[level]._asdict() for level in LEVELS}
    texts = f"{one.dataset} {one.split} {one.part} {one.requests}"
    made = row.Row(
        dataset=one.dataset,
        digest=hashlib.blake2b(texts.encode(), digest_size=16).hexdigest(),
        split=one.split,
        retriever="hybrid",
        variant=one.part,
        options={"least": thresholds},
        seed=None,
        metrics=one.metrics,
        intervals={},
        timing={},
        params=sum(value != 0 for part in (model.need, model.fit) for value in part.values),
        encoder=model.encoder,
        requests=one.requests,
        failed=0,
        dropped=0,
        new_tools=None,
        **row.provenance(command),
    )
    return made.to_dict() | {row.STUDY: {"name": NAME, "part": one.part}}


def run(
    encoder: TextEncoder, reranker: Reranker | None, cache: Path, tested: bool, console: Console
) -> tuple[VerdictModel, list[Measured]]:
    """Fit the model, choose the thresholds of its levels, and measure both. `tested`: on test splits, too."""
    rows = rows_of(encoder, reranker, list(TALK_OF), DEV, cache, console)
    whole = fit.joined(rows)
    parts = fit.fitted(whole)
    known = (encoder.fingerprint, reranker.fingerprint if reranker else "")
    model = VerdictModel(*parts, levels_of(Predictions.by(parts, whole), whole), *known)
    found: list[Measured] = []
    for more, trials in searched_and_reranked(left_out(rows)):
        found += measures(trials, DEV, LEFT_OUT + more)
        found += measures(bundled(trials["bundled"], DEV), DEV, f"bundled, {LEFT_OUT}{more}")
    for more, trials in searched_and_reranked(by_model(model, rows)):
        found += measures(bundled(trials["bundled"], DEV), DEV, f"bundled{more}")
    if tested:
        asked = by_model(model, rows_of(encoder, reranker, TESTED, TEST, cache, console))
        for more, trials in searched_and_reranked(asked):
            found += [*measures(trials, TEST, TEST + more)]
            found += measures(bundled(trials["bundled"], TEST), TEST, f"bundled{more}")
    return model, found


def main() -> None:
    """Read the arguments, fit, and write the model and its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="default")
    parser.add_argument("--no-reranker", action="store_true", help="leave out the reranker in the package")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cache", type=Path, default=encoders_folder().parent / "verdict")
    parser.add_argument("--no-test", action="store_true")
    given = parser.parse_args()
    console, encoder = Console(width=160), open_encoder(given.encoder)
    if open_head(encoder) is None:
        sys.exit(
            "this encoder has no need head of its own; make one with recipes/need_head.py, or: toolscout encoder fit"
        )
    reranker = None if given.no_reranker else open_reranker(DEFAULT)
    model, found = run(encoder, reranker, given.cache, not given.no_test, console)
    for part, split in dict.fromkeys((one.part, one.split) for one in found):
        for level in LEVELS:
            some = [one for one in found if (one.part, one.split) == (part, split)]
            show(console, f"{part} ({split}), {level}", some, level)
    folder = default_folder() if given.encoder == "default" else Path(given.encoder)
    model.save(folder)
    console.print(model.to_dict())
    if given.encoder == "default" and not given.no_test:
        given.out.unlink(missing_ok=True)
        for one in found:
            row.append(given.out, row_of(one, model, "python -m recipes.verdict"))


if __name__ == "__main__":
    if not os.environ.get("TOOLSCOUT_DATA"):
        sys.exit("name the folder of datasets: TOOLSCOUT_DATA")
    main()
