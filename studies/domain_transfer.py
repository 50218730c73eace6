"""Models trained on ToolLens, asked about other catalogues without retraining: results/transfer.jsonl.

python -m studies.domain_transfer [--models DIR] [--names toollens,colt-toollens,masstool-toollens] [--seeds 0] [--out
FILE]
                        [--sets DATA:SPLIT,…] [--jobs N] [--stop-after SECONDS]

The models are those that studies/trained.py leaves in DIR, each in a folder NAME-sSEED. Needs $TOOLSCOUT_DATA. Rows
that are in the file are not made again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from studies.running import RESULTS, numbers, run, say
from toolscout.evaluation import row as rows
from toolscout.evaluation.row import STUDY
from toolscout.papers.jobs import Job
from toolscout.retrievers.model_folder import trained_on

NAME = "transfer"
OUT = RESULTS / "transfer.jsonl"
NAMES = ("toollens", "colt-toollens", "masstool-toollens")
SETS = (
    "ultratool:test",
    "sealtools:test_in",
    "sealtools:test_out",
    "simpletoolquestions:test",
    "simpletoolquestions:test_unseen",
    "bundled:test",
)


def measure(folder: Path, data: str, part: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Evaluate a model on one set, as `toolscout evaluate` does; its rows and their scores."""
    part.unlink(missing_ok=True)
    words = [sys.executable, "-m", "toolscout", "evaluate", data, "--retriever", str(folder), "--json", str(part)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    trained = sorted({split.dataset for split in trained_on(folder).splits if split.role == "train"})
    source = ", ".join(name for name in trained if not name.startswith("no_tool"))
    found = []
    for row in rows.read_rows(part):
        told = row | {STUDY: {"name": NAME, "from": source}}
        found.append((told, rows.read_scores(rows.scores_path(part, row))))
    return found


def jobs(models: Path, names: Sequence[str], seeds: Sequence[int], sets: Sequence[str], path: Path) -> list[Job]:
    """A job for each model that is there and each set whose row is not."""
    known = rows.known_rows(path)
    there = {(row["variant"], f"{row['dataset']}:{row['split']}") for row in known}
    made = []
    for folder in [models / f"{name}-s{seed}" for seed in seeds for name in names]:
        if not (folder / "model.json").is_file():
            say(f"note: there is no model {folder}; make it with studies/trained.py")
            continue
        for data in sets:
            if (folder.name, data) not in there:
                part = models / "transfer" / f"{folder.name}.{data.replace(':', '.')}.jsonl"
                made.append(Job(f"{folder.name} {data}", measure, (folder, data, part)))
    return made


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stop-after", type=float, default=float("inf"))
    told = parser.parse_args()
    rows.check_writable(told.out)
    (told.models / "transfer").mkdir(parents=True, exist_ok=True)
    seeds = numbers(told.seeds)
    todo = jobs(told.models, told.names.split(","), seeds, told.sets.split(","), told.out)
    run(todo, told.jobs, told.stop_after, partial(_write, told.out))


def _write(out: Path, found: Sequence[tuple[dict[str, Any], list[dict[str, Any]]]]) -> None:
    for row, lines in found:
        rows.append_with_scores(out, row, lines)


if __name__ == "__main__":
    main()
