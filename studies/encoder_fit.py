"""Compares the need head that is fitted to any encoder with the one that comes with the default encoder.

    python -m studies.encoder_fit          minutes on a CPU; needs $TOOLSCOUT_DATA

The default encoder's vectors are given to both: its own head, made from many sources by recipes/need_head.py, and one
that `toolscout encoder fit` makes from the sentences in the package. Writes results/encoder_fit.jsonl, a row a head and
pair of collections. No test split but the bundled one is read, and it chooses nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.evaluation import row
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.opening import open_encoder
from toolscout.models.need_head import NeedHead
from toolscout.search import encoder_fit
from toolscout.search.tool_need import NeedOptions, open_head

OUT = Path(__file__).resolve().parent.parent / "results" / "encoder_fit.jsonl"
COMMAND = "python -m studies.encoder_fit"
MOST = 400


class Pair(NamedTuple):
    """Requests that need a tool, and texts that need none."""

    name: str
    needed: list[str]
    unneeded: list[str]


def pairs() -> Iterator[Pair]:
    """The bundled test requests, the bundled pairs, and dev requests against dev prompts that need no tool."""
    bundled = Dataset.load(find_dataset("bundled"), ["test"])
    talk = [text for request, text in bundled.goldless("test") if bundled.kind(request) == "no_tool"]
    yield Pair("bundled:test", [text for _, text in bundled.split("test").requests], talk)
    lines = (find_dataset("bundled") / "need_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    rows = list(map(json.loads, lines))
    yield Pair("bundled:need_pairs", *([r["text"] for r in rows if r["need"] is need] for need in (True, False)))
    prompts = [prompt.text for prompt in read_prompts(find_dataset("no_tool"), "dev")]
    sample = [prompts[i] for i in np.random.default_rng(0).permutation(len(prompts))[:MOST]]
    for name in ("toollens", "toolbench-g3", "ultratool", "simpletoolquestions"):
        data = Dataset.load(find_dataset(name), ["dev"])
        yield Pair(f"{name}:dev", [text for _, text in data.split("dev").requests][:MOST], sample)


def scores(head: NeedHead, encoder: TextEncoder, pair: Pair) -> dict[str, float]:
    """AUROC, and the share of each side that passes at the default threshold."""
    sides = (pair.needed, pair.unneeded)
    up, down = (head.probabilities(encoder.encode(texts), texts).astype(np.float64) for texts in sides)
    labels = np.repeat(np.array([True, False]), [len(up), len(down)])
    threshold = NeedOptions().threshold
    return {
        "auroc": round(metrics.auroc(labels, np.concatenate([up, down])), 4),
        "needed_passed": round(float((up >= threshold).mean()), 4),
        "unneeded_passed": round(float((down >= threshold).mean()), 4),
    }


def row_of(pair: Pair, head: str, found: Mapping[str, float], encoder: str) -> dict[str, Any]:
    """The row of one head on one pair of collections."""
    name, _, split = pair.name.partition(":")
    texts = "\n".join([*pair.needed, *pair.unneeded])
    made = row.Row(
        dataset=name,
        digest=hashlib.blake2b(texts.encode(), digest_size=16).hexdigest(),
        split=split,
        retriever="need head",
        variant=head,
        options={"needed": len(pair.needed), "unneeded": len(pair.unneeded)},
        seed=None,
        metrics=found,
        intervals={},
        timing={},
        params=0,
        encoder=encoder,
        requests=len(pair.needed) + len(pair.unneeded),
        failed=0,
        dropped=0,
        new_tools=None,
        **row.provenance(COMMAND),
    )
    return made.to_dict() | {row.STUDY: {"name": "encoder_fit"}}


def main() -> None:
    """Measure both heads and replace the file."""
    encoder = open_encoder("default")
    shipped = open_head(encoder)
    report = encoder_fit.fit(encoder)  # of no effect on the default encoder, whose own files go before
    heads = {"shipped": shipped, "fitted": NeedHead.load(report.folder)}
    made: list[dict[str, Any]] = []
    for pair in pairs():
        for name, head in heads.items():
            assert head is not None
            found = scores(head, encoder, pair)
            made.append(row_of(pair, name, found, encoder.fingerprint))
            sys.stdout.write(f"{pair.name:20} {name:8} {found}\n")
    OUT.unlink(missing_ok=True)
    for one in made:
        row.append(OUT, one)


if __name__ == "__main__":
    if not os.environ.get("TOOLSCOUT_DATA"):
        sys.exit("name the folder of datasets: TOOLSCOUT_DATA")
    main()
