"""Trains and measures variants of MassTool as published: rows of results/masstool_published.jsonl.

python -m studies.masstool_published DATA [--only VARIANT,VARIANT] [--seeds 0,1,2] [--option epochs=20]

The variants are those of toolscout/papers/masstool/published_ablations.py. Rows that are in the file are not made
again: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from studies.running import RESULTS, numbers, run
from toolscout.papers.masstool.ablations import AblationWriter
from toolscout.papers.masstool.published_ablations import NAME, VARIANTS, PublishedPlan, jobs

ROWS = RESULTS / "masstool_published.jsonl"


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="masstool_published")
    parser.add_argument("data", help="a dataset of $TOOLSCOUT_DATA, as DATA[:TRAIN[:DEV]]")
    parser.add_argument("--test", default="test", help="the split to measure on")
    parser.add_argument("--no-tool", default="no_tool", help="the folder of prompts that need no tool")
    parser.add_argument("--encoder", default="", help="the folder of the frozen encoder; the default one unless given")
    parser.add_argument("--only", default=",".join(VARIANTS), help="variants, with commas between them")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--option", action="append", default=[], help="an option of all variants, as NAME=VALUE")
    parser.add_argument("--out", type=Path, default=Path("models/masstool_published"), help="where vectors are kept")
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--jobs", type=int, default=1, help="variants that are trained side by side")
    parser.add_argument("--stop-after", type=float, default=1e9, help="begin no other variant after these seconds")
    given = parser.parse_args()
    plan = PublishedPlan(given.data, given.test, given.out, given.encoder, given.no_tool, tuple(given.option))
    todo = jobs(plan, given.only.split(","), numbers(given.seeds), given.rows)
    writer = AblationWriter(given.rows, NAME)
    run(todo, given.jobs, given.stop_after, lambda result: writer.add([result]))


if __name__ == "__main__":
    main()
