"""Do expansions help: what a tool is for, in words that users say? results/expansion.jsonl.

python -m studies.expansion [--only DATASET,…] [--written NAME=FILE] [--out FILE] [--cache FILE]

Words alone (bm25), vectors alone (dense) and both (hybrid) are asked, without expansions and with those that the rules
write. `--written smollm2=FILE` measures a file that `toolscout synth --expand` wrote, with `--only` for the set that it
was written for. Other ways to use an expansion are measured beside the one that is built: behind the document in one
text ("append"), a second vector of which the nearer one counts ("max"), and with what a tool cannot do ("not").

The weights were chosen on dev; `--weights` says what they bring there. The encoder was selected on dev as well, so the
rows ask other requests, as studies/document_length.py does, and nothing is chosen by them.

Needs $TOOLSCOUT_DATA. `--only toolbench` measures all 46,587 documents of ToolBench, which takes about ten minutes a
way to encode. Rows of this encoder that are in the file are not made again.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studies.document_length import difference, drawn
from studies.running import RESULTS, progress, say
from toolscout.core.answer import Allowed
from toolscout.core.arrays import Floats, Ints
from toolscout.core.expansion import Expansion, read_expansions
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.evaluation import row as rows
from toolscout.evaluation.evaluate import Evaluation, evaluate
from toolscout.evaluation.row import STUDY
from toolscout.evaluation.vector_cache import request_vectors, tool_vectors
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.opening import open_encoder
from toolscout.retrievers.base import Pairs, Retriever
from toolscout.retrievers.bm25 import Bm25, Bm25Options
from toolscout.retrievers.dense import Dense
from toolscout.retrievers.registry import method
from toolscout.synth.expanding import by_rules

NAME = "expansion"
OUT = RESULTS / f"{NAME}.jsonl"
# The split whose requests are asked: train where the encoder was not trained on it, else test.
SETS = {"bundled": "test", "toolbench-g3": "train", "ultratool": "test"}
ALL = SETS | {"toolbench": "test"}
DEV, MEASURE = "dev", "recall@5"
MOST_REQUESTS = 1_000
SHARES, WORD_WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5), (0.0, 0.1, 0.3, 0.5, 1.0)
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

    def _nearest(
        self, vectors: Floats, evidence: Sequence[Any], k: int, allowed: Allowed | None, named: Sequence[Sequence[str]]
    ) -> list[Pairs]:
        found = []
        for vector, pairs in zip(vectors, super()._nearest(vectors, evidence, len(self), allowed, named), strict=True):
            scores = dict(pairs)
            for tool_id, score in zip(self._expanded, (self._expansion_vectors @ vector).tolist(), strict=True):
                scores[tool_id] = max(scores.get(tool_id, -1.0), score)
            found.append(sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k])
        return found


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


def measure(data: Dataset, split: str, job: Job, expansions: Expansions, cache: Path | None) -> Evaluation:
    """Evaluate one job."""
    retriever, stored = prepared(job, data, expansions)
    return evaluate(
        data,
        split,
        retriever,
        variant=job.written if job.way == BUILT else f"{job.written}-{job.way}",
        command="python -m studies.expansion",
        drop_seen=True,
        expansions=stored,
        cache=cache,
        progress=progress(),
    )


def run(
    data: Dataset, written: Mapping[str, Expansions], done: set[tuple[str, ...]], given: argparse.Namespace
) -> None:
    """Append the rows of a dataset that are not there yet; each is compared with the method without expansions."""
    encoder, split = open_encoder("").fingerprint, ALL[data.name]
    for name in METHODS:
        jobs = [Job(name, who, way) for who in written for way in WAYS[name]]
        missing = [job for job in (Job(name, NONE, BUILT), *jobs) if (data.name, *job, encoder) not in done]
        if not missing:
            continue
        plain = measure(data, split, Job(name, NONE, BUILT), {}, given.cache)
        for job in missing:
            own = {i: one for i, one in written.get(job.written, {}).items() if one.searched()}
            found = plain if job.written == NONE else measure(data, split, job, own, given.cache)
            told = {"name": NAME, **job._asdict(), "tools": len(data.tools), "expanded": len(own), "encoder": encoder}
            rows.append(given.out, found.row.to_dict() | {STUDY: told | difference(found, plain)})
            say(f"{data.name} {' '.join(job)}: {found.row.metrics[MEASURE]:.4f}")


def say_weights(data: Dataset, expansions: Expansions, cache: Path | None) -> None:
    """Say the R@5 of dev requests for each share of the expansion in a vector, and for each weight of its words."""
    part, encoder = data.split(DEV), open_encoder("")
    ids = [tool.id for tool in data.tools]
    asked = request_vectors([text for _, text in part.requests], encoder, cache)
    own = tool_vectors(data.tools, encoder, cache)
    texts = [expansions[i].searched() if i in expansions else "" for i in ids]
    added = np.zeros_like(own)
    places = [place for place, text in enumerate(texts) if text]
    for positions, found in encoder.encode_documents([texts[place] for place in places]):
        added[np.array(places)[positions]] = found
    for share in SHARES:
        mixed = (1 - share) * own + share * np.where(added.any(axis=1, keepdims=True), added, own)
        scores = asked @ (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).T
        best = [[ids[place] for place in np.argsort(-one, kind="stable")[:5]] for one in scores]
        recall = np.mean([len(set(gold) & set(five)) / len(gold) for gold, five in zip(part.gold, best, strict=True)])
        say(f"{data.name} dense share {share}: {recall:.4f}")
    for weight in WORD_WEIGHTS:
        row = evaluate(data, DEV, Bm25(Bm25Options(expansions=weight)), expansions=expansions).row
        say(f"{data.name} bm25 weight {weight}: {row.metrics[MEASURE]:.4f}")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(SETS), help="names of datasets, with commas between them")
    parser.add_argument("--written", action="append", default=[], metavar="NAME=FILE", help="expansions by a model")
    parser.add_argument("--weights", action="store_true", help="say what weights bring on dev, and write no rows")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    rows.check_writable(given.out)
    studied = [(row["dataset"], row[STUDY]) for row in rows.known_rows(given.out)]
    done = {(name, one["method"], one["written"], one["way"], one["encoder"]) for name, one in studied}
    files = {name: read_expansions(path) for name, _, path in (one.partition("=") for one in given.written)}
    for name in given.only.split(","):
        data = Dataset.load(find_dataset(name), [DEV if given.weights else ALL[name]])
        by = {RULES: by_rules(data.tools).expansions, **files}
        if given.weights:
            for expansions in by.values():
                say_weights(data, expansions, given.cache)
        else:
            run(drawn(data, ALL[name], MOST_REQUESTS), by, done, given)


if __name__ == "__main__":
    main()
