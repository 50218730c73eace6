"""How many tokens of a tool's document should the encoder read? results/document_length.jsonl.

python -m studies.document_length [--only DATASET,…] [--out FILE] [--cache FILE]

The default encoder with several limits of `document_tokens`, by vectors alone (`dense`). The encoder was selected on
the dev requests of these sets while it read documents up to the shipped limit, so dev would favour that limit. The
train requests are asked instead, where the encoder was not trained on them, and the test requests where there are no
others. Each row also has the share of documents that the limit cuts, the CPU seconds for 1,000 documents, and the
paired difference in R@5 to the shipped limit. Nothing is chosen by it.

Needs $TOOLSCOUT_DATA; ToolBench takes minutes a limit. Rows that are in the file are not made again.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from studies.running import RESULTS, progress, say
from toolscout.core.arrays import Doubles
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation import measures, significance
from toolscout.evaluation import row as rows
from toolscout.evaluation.evaluate import Evaluation, evaluate
from toolscout.evaluation.row import STUDY
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.onnx_encoder import TOKENIZER_FILE, package_folder
from toolscout.models.encoders.opening import open_encoder
from toolscout.retrievers.dense import Dense, DenseOptions

NAME = "document_length"
OUT = RESULTS / f"{NAME}.jsonl"
SHIPPED = 96
LIMITS = (32, 64, SHIPPED, 128, 256)
MEASURE = "recall@5"
MOST_REQUESTS = 2_000
# Documents that are encoded for a time, and how often.
_TIMED, _ROUNDS = 128, 3


class LengthSet(NamedTuple):
    """A dataset, the split whose requests are asked, and the limits to measure."""

    dataset: str
    split: str
    limits: Sequence[int] = LIMITS


SETS = (
    LengthSet("bundled", "test"),
    LengthSet("toollens", "train"),
    LengthSet("simpletoolquestions", "train"),
    LengthSet("toolbench-g3", "train"),
    LengthSet("ultratool", "test"),
    LengthSet("toolbench", "test", (64, SHIPPED, 128)),
)


def drawn(data: Dataset, split: str, most: int = MOST_REQUESTS) -> Dataset:
    """The dataset with at most so many requests in the split, evenly drawn."""
    gold = list(data.qrels[split].items())
    return replace(data, qrels={**data.qrels, split: dict(gold[:: -(-len(gold) // most)])})


def shares_cut(texts: Sequence[str], limits: Sequence[int]) -> dict[int, float]:
    """The share of documents that have more tokens than each limit."""
    tokenizer = Tokenizer.from_file(str(package_folder() / TOKENIZER_FILE))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    counts = np.array([len(found.ids) for found in tokenizer.encode_batch(list(texts))])
    return {limit: round(float((counts > limit).mean()), 6) for limit in limits}


def cpu_seconds_per_thousand(encoders: Mapping[int, TextEncoder], texts: Sequence[str]) -> dict[int, float]:
    """The CPU seconds of all cores that 1,000 documents take each encoder; some are encoded, evenly drawn.

    CPU time, and the least of several rounds: other processes that use the machine change it far less than the time
    that passes.
    """
    texts = texts[:: -(-len(texts) // _TIMED)]
    best = dict.fromkeys(encoders, math.inf)
    for _ in range(_ROUNDS):
        for limit, encoder in encoders.items():
            started = time.process_time()
            for _batch in encoder.encode_documents(texts):
                pass
            best[limit] = min(best[limit], time.process_time() - started)
    return {limit: round(1000 * seconds / len(texts), 3) for limit, seconds in best.items()}


def difference(found: Evaluation, shipped: Evaluation) -> dict[str, float]:
    """R@5 minus that of the shipped limit over the same requests, the ends of its 95 % interval, and its p-value."""

    def scores(one: Evaluation) -> Doubles:
        asked = [request for request in one.asked if request.gold]
        made = measures.scores([request.ranking for request in asked], [request.gold for request in asked], [MEASURE])
        return np.array(made[MEASURE])[:, np.newaxis]

    scenes = [request.scene for request in shipped.asked if request.gold]
    (paired,) = significance.paired_test(scores(shipped), scores(found), scenes)
    assert paired is not None
    values = {"difference": paired.difference, "low": paired.low, "high": paired.high, "p": paired.p}
    return {key: round(value, 6) for key, value in values.items()}


def limit_of(row: Mapping[str, Any]) -> int:
    """The limit that a row of this study was measured with."""
    return int(row[STUDY]["document_tokens"])


def measure(one: LengthSet, data: Dataset, todo: Sequence[int], out: Path, cache: Path | None = None) -> None:
    """Append a row for each limit that is to do. The shipped limit is measured first, to be compared with."""
    data = drawn(data, one.split)
    texts = [tool.document() for tool in data.tools]
    encoders = {limit: open_encoder(f"default?document_tokens={limit}") for limit in dict.fromkeys((SHIPPED, *todo))}
    cut, seconds = shares_cut(texts, list(encoders)), cpu_seconds_per_thousand(encoders, texts)
    shipped: Evaluation | None = None
    for limit, encoder in encoders.items():
        found = evaluate(
            data,
            one.split,
            Dense(DenseOptions(encoder=f"default?document_tokens={limit}"), encoder),
            variant=f"document_tokens={limit}",
            command="python -m studies.document_length",
            drop_seen=True,  # ToolLens repeats some of its dev requests in train
            cache=cache,
            progress=progress(),
        )
        shipped = shipped or found
        told = {"name": NAME, "document_tokens": limit, "tools": len(texts), "cut": cut[limit]}
        told |= {"documents_cpu_s": seconds[limit], **difference(found, shipped)}
        if limit in todo:
            rows.append(out, found.row.to_dict() | {STUDY: told})
        say(f"{one.dataset} {limit}: {found.row.metrics[MEASURE]:.4f}, {told}")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="names of datasets, with commas between them")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    rows.check_writable(given.out)
    there = {(row["dataset"], row["split"], limit_of(row)) for row in rows.known_rows(given.out)}
    for one in SETS:
        todo = [limit for limit in one.limits if (one.dataset, one.split, limit) not in there]
        if todo and (not given.only or one.dataset in given.only.split(",")):
            measure(one, Dataset.load(find_dataset(one.dataset), [one.split]), todo, given.out, given.cache)


if __name__ == "__main__":
    main()
