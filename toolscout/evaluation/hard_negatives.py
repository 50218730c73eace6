"""Prompts that need no tool but sound like a catalogue: hard negatives for "is a tool needed?", by similarity.

ToolDet kept prompts whose similarity to tool requests lies between 0.4 and 0.6. Such a band changes the mix of a
collection, so prompts are counted by tenths of similarity, and by the domain (namespace) of the nearest tool.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from toolscout.core.arrays import Floats
from toolscout.core.tool import Listing, Tool, namespace_of
from toolscout.data import beir_files as files
from toolscout.data.dataset import request_digest
from toolscout.data.no_tool_prompts import read_prompts
from toolscout.errors import BadDataset, BadRequest
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.need_head import NeedHead
from toolscout.scout import Progress

DEFAULT_BAND = "0.4:0.6"
TENTHS = 10
_CHUNK = 512
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Band:
    """Similarities from `low` to `high`, both included."""

    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> Band:
        """Parse LOW:HIGH; raises BadRequest where it is no range between -1 and 1."""
        try:
            low, high = map(float, text.split(":"))
        except ValueError:
            raise BadRequest(f"{text!r:.40} is no band; write LOW:HIGH, as {DEFAULT_BAND}") from None
        if not -1 <= low < high <= 1:
            raise BadRequest(f"the band {text} holds nothing; write LOW:HIGH from -1 to 1, the lower end first")
        return cls(low, high)

    def holds(self, similarity: float) -> bool:
        """Return whether a prompt of this similarity is kept."""
        return self.low <= similarity <= self.high


@dataclass(frozen=True, slots=True)
class EncodedCatalogue:
    """What prompts are compared with: vectors and the tool of each. `requests`: digests of requests that need tools."""

    vectors: Floats
    tool_ids: tuple[str, ...]
    requests: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A prompt, its similarity to the catalogue, its nearest tool, and its tool need (None without a need head)."""

    text: str
    source: str
    similarity: float
    nearest: str
    need: float | None
    kept: bool = False

    @property
    def split(self) -> str:
        """Return its split by the hash of its text: 80 % train, 10 % dev, 10 % test."""
        place = int(request_digest(self.text), 16) % 10
        return "train" if place < 8 else "dev" if place == 8 else "test"

    @property
    def tenth(self) -> int:
        """Return the tenth of similarity it lies in; 4 is 0.4 to 0.5."""
        return min(int(np.floor(self.similarity * TENTHS)), TENTHS - 1)


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Counts for one band or domain: prompts, those kept, their mean length, the share that seems to need a tool."""

    name: str
    prompts: int
    kept: int
    words: float
    needing: float | None
    domains: tuple[tuple[str, int], ...] = ()


def read_texts(path: Path) -> list[tuple[str, str]]:
    """Return (text, source) of prompts from a folder with prompts.jsonl, a .jsonl file with "text", or a .txt file.

    Raises BadDataset where there is no such file, no prompt in it, or a line that cannot be read.
    """
    if path.is_dir():
        return [(prompt.text, prompt.source) for prompt in read_prompts(path)]
    if not path.is_file():
        raise BadDataset(f"there is no {path}; name a folder with {files.PROMPTS}, a .jsonl file or a .txt file")
    name = path.name.removesuffix(".gz")
    found = []
    for number, line in files.lines(path):
        text, source = line.strip(), Path(name).stem
        if name.endswith(".jsonl"):
            text, source = _parse_record(path, number, line, source)
        found.append((text, source))
    if not found:
        raise BadDataset(f"{path} holds no prompts: give a .txt file with one in a line, or a .jsonl file with texts")
    return found


def _parse_record(path: Path, number: int, line: str, source: str) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise BadDataset(f"{path} line {number}: not JSON ({error})") from None
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise BadDataset(f'{path} line {number}: a JSON object with a "text" that is not empty is needed')
    named_source = row.get("source")
    return text, named_source if isinstance(named_source, str) and named_source else source


def catalogue_of(
    tools: Sequence[Tool | Listing],
    known: Mapping[str, Floats],
    requests: Mapping[str, str],
    encoder: TextEncoder,
    progress: Progress | None = None,
) -> EncodedCatalogue:
    """Encode tools and past requests. `known`: vectors by tool digest that need no encoding; `requests`: text to tool.

    Raises BadDataset for an empty catalogue.
    """
    if not tools:
        raise BadDataset("the catalogue is empty, so nothing can be near it; add tools with: toolscout add SOURCE")
    documents = {tool.digest(): (tool.id, tool.document()) for tool in tools}
    missing = [digest for digest in documents if digest not in known]
    found = dict(known)
    done = 0
    for positions, rows in encoder.encode_documents([documents[digest][1] for digest in missing]):
        found |= {missing[at]: row for at, row in zip(positions, rows, strict=True)}
        done += len(positions)
        if progress:
            progress("embedding tools", done, len(missing))
    vectors = [np.stack([found[digest] for digest in documents])]
    if requests:
        vectors.append(_encode("embedding requests", list(requests), encoder, progress))
    ids = [tool_id for tool_id, _ in documents.values()] + list(requests.values())
    return EncodedCatalogue(np.concatenate(vectors), tuple(ids), frozenset(map(request_digest, requests)))


def candidates(
    texts: Sequence[tuple[str, str]],
    catalogue: EncodedCatalogue,
    encoder: TextEncoder,
    head: NeedHead | None,
    progress: Progress | None = None,
) -> list[Candidate]:
    """Return every distinct prompt, compared with the catalogue, without those that are requests for tools.

    `texts` are (text, source) pairs; `head` estimates tool need, None for none. Raises BadDataset where none is left.
    """
    unique = {request_digest(text): (text, source) for text, source in reversed(texts)}
    chosen = [pair for digest, pair in reversed(unique.items()) if digest not in catalogue.requests]
    if not chosen:
        raise BadDataset("every prompt is a request of the catalogue; give prompts that need no tool")
    vectors = _encode("embedding prompts", [text for text, _ in chosen], encoder, progress)
    needs = head.probabilities(vectors, [text for text, _ in chosen]) if head else None
    found = []
    for start in range(0, len(chosen), _CHUNK):
        cosines = vectors[start : start + _CHUNK] @ catalogue.vectors.T
        best = cosines.argmax(axis=1)
        for row, (at, (text, source)) in enumerate(zip(best, chosen[start:], strict=False)):
            need = None if needs is None else float(needs[start + row])
            found.append(Candidate(text, source, float(cosines[row, at]), catalogue.tool_ids[at], need))
    return found


def mark_kept(found: Sequence[Candidate], band: Band, per_band: int | None = None) -> list[Candidate]:
    """Return all candidates, marked as kept where they lie in the band: at most `per_band` of each tenth, by hash.

    Raises BadRequest where no candidate lies in the band.
    """
    inside = sorted((one for one in found if band.holds(one.similarity)), key=lambda one: one.tenth)
    if not inside:
        low, middle, high = np.quantile([one.similarity for one in found], [0, 0.5, 1])
        raise BadRequest(
            f"no prompt lies in the band {band.low:g}:{band.high:g}: the best cosines of these {len(found):,} go from "
            f"{low:.2f} to {high:.2f}, half of them are below {middle:.2f}; choose another --band or other prompts"
        )
    taken: set[str] = set()
    for _, group in groupby(inside, key=lambda one: one.tenth):
        taken.update(sorted(_order(one.text) for one in group)[:per_band])
    return [
        Candidate(one.text, one.source, one.similarity, one.nearest, one.need, kept=True)
        if band.holds(one.similarity) and _order(one.text) in taken
        else one
        for one in found
    ]


def by_band(found: Sequence[Candidate], threshold: float) -> list[PromptGroup]:
    """Return the counts of each tenth of similarity, lowest first. A need of `threshold` or more needs a tool."""
    groups: dict[int, list[Candidate]] = {}
    for one in found:
        groups.setdefault(one.tenth, []).append(one)
    return [
        _count(f"{tenth / TENTHS:.1f} to {(tenth + 1) / TENTHS:.1f}", groups[tenth], threshold)
        for tenth in sorted(groups)
    ]


def by_domain(found: Sequence[Candidate], threshold: float) -> list[PromptGroup]:
    """Return the counts by namespace of the nearest tool, most prompts first; `threshold` as in by_band."""
    groups: dict[str, list[Candidate]] = {}
    for one in found:
        groups.setdefault(namespace_of(one.nearest), []).append(one)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_count(name, group, threshold) for name, group in ordered]


def save(found: Sequence[Candidate], folder: Path) -> Counter[str]:
    """Write the kept candidates as prompts.jsonl, which read_prompts reads; return the number in each split.

    Raises BadDataset where the folder is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadDataset(f"{folder} is not an empty folder; write prompts into a new one")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in found if one.kept]
    files.write_rows(
        folder / files.PROMPTS,
        (
            {
                "_id": request_digest(one.text),
                "text": one.text,
                "split": one.split,
                "source": one.source,
                "similarity": round(one.similarity, 4),
                "nearest": one.nearest,
            }
            for one in chosen
        ),
    )
    return Counter(one.split for one in chosen)


def _count(name: str, group: Sequence[Candidate], threshold: float) -> PromptGroup:
    needs = [one.need for one in group if one.need is not None]
    return PromptGroup(
        name,
        len(group),
        sum(one.kept for one in group),
        float(np.mean([len(one.text.split()) for one in group])),
        float(np.mean([need >= threshold for need in needs])) if needs else None,
        tuple(Counter(namespace_of(one.nearest) for one in group).most_common(_NAMED)),
    )


def _order(text: str) -> str:
    """Return a hash to order by, other than the one that makes splits, so that the order favours no split."""
    return hashlib.blake2b(request_digest(text).encode(), digest_size=8).hexdigest()


def _encode(stage: str, texts: Sequence[str], encoder: TextEncoder, progress: Progress | None) -> Floats:
    rows = []
    for start in range(0, len(texts), _CHUNK):
        rows.append(encoder.encode(texts[start : start + _CHUNK]))
        if progress:
            progress(stage, min(start + _CHUNK, len(texts)), len(texts))
    return np.concatenate(rows)
