"""Do expansions help: what a tool is for, in words that users say? results/expansion.jsonl.

python -m studies.expansion [--only DATASET,…] [--written NAME=FILE] [--out FILE] [--cache FILE]

Dev requests are asked of words alone (bm25), of vectors alone (dense) and of both (hybrid), without expansions and with
those that the rules write. `--written smollm2=FILE` measures a file that `toolscout synth --expand --llm smollm2` wrote,
with `--only` for the set that it was written for. Other ways to use an expansion are measured beside the one that is
built: behind the document in one text ("append"), a second vector of which the nearer one counts ("max"), and with what
a tool cannot do ("not").

Needs $TOOLSCOUT_DATA. `--only toolbench` measures all 46,587 documents of ToolBench, which takes about ten minutes a way
to encode. Rows of this encoder that are in the file are not made again.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studies.document_length import difference
from studies.running import RESULTS, progress, say
from toolscout.core.answer import Allowed
from toolscout.core.arrays import Floats, Ints
from toolscout.core.expansion import Expansion, read_expansions
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation import row as rows
from toolscout.evaluation.evaluate import Evaluation, evaluate
from toolscout.evaluation.row import STUDY
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.opening import open_encoder
from toolscout.retrievers.base import Pairs, Retriever
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.registry import method
from toolscout.synth.expanding import by_rules

NAME = "expansion"
OUT = RESULTS / f"{NAME}.jsonl"
SETS, WHOLE = ("bundled", "toolbench-g3", "ultratool"), "toolbench"
SPLIT, MEASURE = "dev", "recall@5"
NONE, RULES = "none", "rules"
BUILT, APPEND, MAX, NOT = "built", "append", "max", "not"
METHODS = ("bm25", "dense", "hybrid")
# For each method the ways that are measured; the first is the one that is built.
WAYS: Mapping[str, Sequence[str]] = {"bm25": (BUILT, NOT), "dense": (BUILT, APPEND, MAX, NOT), "hybrid": (BUILT,)}
Expansions = Mapping[str, Expansion]


class Job(NamedTuple):
    """One row: a method, who wrote the expansions, and the way they are used."""

    method: str
    written: str
    way: str


class Appending(TextEncoder):
    """An encoder that reads each document with its expansion behind it, within the limit of tokens."""

    def __init__(self, encoder: TextEncoder, texts: Mapping[str, str]) -> None:
        """`texts`: the expansions by document."""
        self._encoder, self._texts = encoder, texts
        digest = hashlib.blake2b("\0".join(sorted(texts.values())).encode(), digest_size=4).hexdigest()
        self.fingerprint, self.dimension = f"{encoder.fingerprint}-append-{digest}", encoder.dimension
        self.parameters, self.folder = encoder.parameters, encoder.folder

    def encode_request(self, text: str) -> Floats:
        """As the encoder does."""
        return self._encoder.encode_request(text)

    def encode_documents(self, texts: Sequence[str]) -> Iterator[tuple[Ints, Floats]]:
        """As the encoder does, with expansions."""
        return self._encoder.encode_documents(["\n".join([text, self._texts.get(text, "")]).strip() for text in texts])


class Nearer(Dense):
    """Two vectors a tool, of its document and of its expansion: the nearer one to a request counts."""

    def __init__(self, encoder: TextEncoder, expansions: Expansions) -> None:
        """Encode the expansions."""
        super().__init__(encoder=encoder)
        self._expanded = list(expansions)
        vectors = np.empty((len(expansions), encoder.dimension), dtype=np.float32)
        for positions, found in encoder.encode_documents([one.searched() for one in expansions.values()]):
            vectors[positions] = found
        self._expansion_vectors = vectors

    def _nearest(self, vector: Floats, evidence: Any, k: int, allowed: Allowed | None, named: Sequence[str]) -> Pairs:
        scores = dict(super()._nearest(vector, evidence, len(self), allowed, named))
        for tool_id, score in zip(self._expanded, (self._expansion_vectors @ vector).tolist(), strict=True):
            scores[tool_id] = max(scores.get(tool_id, -1.0), score)
        return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


def prepared(job: Job, data: Dataset, expansions: Expansions) -> tuple[Retriever, Expansions]:
    """The retriever of a job, and what is stored beside the tools."""
    if job.way == NOT:
        return method(job.method)(), {
            i: replace(one, when=f"{one.when}\n{one.limits}") for i, one in expansions.items()
        }
    if job.way == APPEND:
        texts = {tool.document(): expansions[tool.id].searched() for tool in data.tools if tool.id in expansions}
        return Dense(encoder=Appending(open_encoder(""), texts)), {}
    if job.way == MAX:
        return Nearer(open_encoder(""), expansions), {}
    return method(job.method)(), expansions if job.written != NONE else {}


def measure(data: Dataset, job: Job, expansions: Expansions, cache: Path | None) -> Evaluation:
    """Evaluate one job."""
    retriever, stored = prepared(job, data, expansions)
    return evaluate(
        data,
        SPLIT,
        retriever,
        variant=job.written if job.way == BUILT else f"{job.written}-{job.way}",
        command="python -m studies.expansion",
        drop_seen=True,
        expansions=stored,
        cache=cache,
        progress=progress(),
    )


def run(
    data: Dataset, written: Mapping[str, Expansions], done: set[tuple[str, ...]], out: Path, cache: Path | None
) -> None:
    """Append the rows of a dataset that are not there yet; each is compared with the method without expansions."""
    encoder = open_encoder("").fingerprint
    for name in METHODS:
        jobs = [Job(name, who, way) for who in written for way in WAYS[name]]
        missing = [job for job in (Job(name, NONE, BUILT), *jobs) if (data.name, *job, encoder) not in done]
        if not missing:
            continue
        plain = measure(data, Job(name, NONE, BUILT), {}, cache)
        for job in missing:
            own = {i: one for i, one in written.get(job.written, {}).items() if one.searched()}
            found = plain if job.written == NONE else measure(data, job, own, cache)
            told = {"name": NAME, **job._asdict(), "tools": len(data.tools), "expanded": len(own), "encoder": encoder}
            rows.append(out, found.row.to_dict() | {STUDY: told | difference(found, plain)})
            say(f"{data.name} {' '.join(job)}: {found.row.metrics[MEASURE]:.4f}")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(SETS), help="names of datasets, with commas between them")
    parser.add_argument("--written", action="append", default=[], metavar="NAME=FILE", help="expansions by a model")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    rows.check_writable(given.out)
    studied = [(row["dataset"], row[STUDY]) for row in rows.known_rows(given.out)]
    done = {(name, one["method"], one["written"], one["way"], one["encoder"]) for name, one in studied}
    files = {name: read_expansions(path) for name, _, path in (one.partition("=") for one in given.written)}
    for name in given.only.split(","):
        data = Dataset.load(find_dataset(name), [SPLIT])
        run(data, {RULES: by_rules(data.tools).expansions, **files}, done, given.out, given.cache)


if __name__ == "__main__":
    main()
