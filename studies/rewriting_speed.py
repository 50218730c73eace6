"""How long a request takes that is rewritten, and what its model reads and writes: results/rewriting_speed.jsonl.

python -m studies.rewriting_speed [--only toollens-unseen_tool] [--forms alone,rules,zero,…] [--over hybrid]
                               [--requests 24] [--seed 0] [--models DIR] [--out FILE]

Requests of the set's test split, one after the other through `search(k=5)`, nothing kept between them: a form's own
time is what it takes beyond `alone`. On two cores models are served with 8-bit weights by ONNX Runtime; with
TOOLSCOUT_DEVICE=cuda in torch. Generators are those that studies/rewriting.py has left in DIR; forms whose generator is
not there are left out. Rows that are in the file are not made again.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from studies import rewriting_models as models
from studies.rewriting_models import FORMS, Family, RewritingPlan
from studies.running import RESULTS, by_hash, say
from toolscout.core.answer import Cost
from toolscout.evaluation import row as rows
from toolscout.models.encoders.onnx_encoder import RAW, Encoder
from toolscout.models.language.open import device_name
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.rewrite.retriever import Rewrite

NAME = "rewriting"
OUT = RESULTS / "rewriting_speed.jsonl"
USUAL = "alone,rules,zero,decompose,iterate,supervised,aligned"
_WARM = 2
_K = 5


class Forgetful(models.Remembering):
    """Encodes each request anew."""

    def encode(self, texts: Any) -> Any:
        """Unit vectors of several requests."""
        return self._encoder.encode(texts)


def over(plan: RewritingPlan, family: Family, name: str, seed: int) -> Retriever:
    """The retriever that is searched with, its encoder as it is served."""
    found, _ = models.part(plan, family, name, seed)
    for one in (found, *found.parts):
        if isinstance(one, Dense) and isinstance(one.encoder, models.Remembering):
            one.share(Forgetful(Encoder.load(Path(RAW)), {}, {}))
    return found


def opened(plan: RewritingPlan, family: Family, name: str, part: Retriever, seed: int) -> Rewrite:
    """A form whose model really writes."""
    form = FORMS[name]
    folder = plan.folder(family, form.source, seed) if form.source not in (models.NOBODY, models.ZERO) else None
    made = Rewrite(models.options_of(plan, form, folder), [part])
    made.rewriter.add(models.read(family).tools)
    base = next((one.partition("=")[2] for one in plan.settings if one.startswith("base=")), "")
    if form.source == models.ZERO and base:
        made.rewriter.author.point(Path(base))
    return made


def device() -> str:
    """What it runs on, as a row says it."""
    return device_name() or f"{len(os.sched_getaffinity(0))} cores"


def measure(plan: RewritingPlan, family: Family, name: str, where: str, seed: int) -> dict[str, Any]:
    """The row of one form."""
    data, part = models.read(family), over(plan, family, where, seed)
    rewrite, split = opened(plan, family, name, part, seed), family.tests[0]
    texts = [data.requests[one] for one in by_hash(data.qrels[split])[: plan.requests + _WARM]]
    for text in texts[:_WARM]:
        rewrite.search([text], _K)
    spent, cost = [], Cost()
    for text in texts[_WARM:]:
        started = time.perf_counter()
        ranking = rewrite.rank([text], _K)[0]
        rewrite.hits(ranking, _K)
        spent.append(1000 * (time.perf_counter() - started))
        cost += ranking.cost or Cost()
    values = {
        "p50_ms": round(float(np.median(spent)), 2),
        "p95_ms": round(float(np.percentile(spent, 95)), 2),
        "read": round(cost.prompt_tokens / len(spent), 1),
        "written": round(cost.completion_tokens / len(spent), 1),
        "rewritten": round(cost.rewritten / len(spent), 3),
        "failed": cost.failed,
    }
    return {
        "bench": NAME,
        "tools": len(data.tools),
        "requests": key(family, name, where, plan.requests),
        "values": values,
        "form": name,
        "over": where,
        "asked": f"{data.name} {split}, {len(spent)} requests",
        "device": device(),
        **rows.provenance("python -m studies.rewriting_speed"),
    }


def key(family: Family, name: str, where: str, count: int) -> str:
    """What tells rows apart."""
    return f"{name} over {where} {family.name} {count} on {device()}"


def todo(plan: RewritingPlan, family: Family, names: list[str], where: str, seed: int) -> list[str]:
    """The forms whose rows are not there and whose generators are."""
    known = {row["requests"] for row in rows.known_rows(plan.out)}
    return [
        name
        for name in names
        if key(family, name, where, plan.requests) not in known
        and (
            FORMS[name].source in (models.NOBODY, models.ZERO)
            or models.complete(plan.folder(family, FORMS[name].source, seed))
        )
    ]


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="toollens-unseen_tool")
    parser.add_argument("--forms", default=USUAL)
    parser.add_argument("--over", default="hybrid")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, default=Path("models/rewriting"))
    parser.add_argument("--out", type=Path, default=OUT)
    told = parser.parse_args()
    rows.check_writable(told.out)
    plan = RewritingPlan(
        told.models, told.out, models.chosen(models.FAMILIES, told.only.split(",")), requests=told.requests
    )
    for family in plan.families:
        for name in todo(plan, family, told.forms.split(","), told.over, told.seed):
            row = measure(plan, family, name, told.over, told.seed)
            rows.append(told.out, row)
            say(f"{name}: {row['values']}")


if __name__ == "__main__":
    main()
