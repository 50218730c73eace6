"""What many write themselves before they look for a library: MiniLM, and the cosine of a request with every tool.

`compare` asks both for the same requests: what they find, how long it takes, and what the tools found cost in a prompt.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

import numpy as np

from toolscout.core import vendor_formats
from toolscout.core.tool import Tool
from toolscout.data import metrics
from toolscout.errors import BadDataset
from toolscout.models.encoders.base import TextEncoder
from toolscout.models.encoders.export import default_source
from toolscout.models.encoders.opening import open_encoder
from toolscout.scout import Progress, Scout

BASELINE, OURS = "MiniLM + cosine", "toolscout"
_AT_ONCE = 64
Found = TypeVar("Found")


class Baseline:
    """Finds the tools whose texts are nearest to a request: all of it, in the lines of this class."""

    def __init__(self, tools: Sequence[Tool], encoder: TextEncoder, progress: Progress | None = None) -> None:
        """Encode every tool as "name: description"."""
        self._encoder, self._ids = encoder, [tool.id for tool in tools]
        texts, parts = [f"{tool.name}: {tool.description}" for tool in tools], []
        for start in range(0, len(texts), _AT_ONCE):
            parts.append(encoder.encode(texts[start : start + _AT_ONCE]))
            if progress:
                progress(f"encoding for {BASELINE}", min(len(texts), start + _AT_ONCE), len(texts))
        self._vectors = np.concatenate(parts)

    def search(self, request: str, k: int) -> list[str]:
        """Return the ids of the nearest tools."""
        cosines = self._vectors @ self._encoder.encode([request])[0]
        return [self._ids[row] for row in np.argsort(-cosines, kind="stable")[:k]]


@dataclass(frozen=True, slots=True)
class LabelledRequest:
    """A request, and the ids of the tools that it needs."""

    text: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the two found. Of each request: the tools, best first, and the seconds that took."""

    name: str
    index_s: float
    rankings: tuple[tuple[str, ...], ...]
    seconds: tuple[float, ...]

    @property
    def milliseconds(self) -> float:
        """Return the median time of a request."""
        return 1000 * median(self.seconds)


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """Both on the same requests.

    k: how many tools they may return. turned_away: the share of requests that toolscout, as it is served, answers with
    no tool. tokens, tokens_found: of all tools in a prompt, and of those that toolscout finds for a request.
    """

    tools: int
    k: int
    requests: tuple[LabelledRequest, ...]
    baseline: Side
    ours: Side
    turned_away: float
    tokens: int
    tokens_found: int

    def recall(self, side: Side) -> float:
        """Return the mean share of a request's tools that were found."""
        found = zip(side.rankings, self.requests, strict=True)
        return fmean(metrics.recall(ranking, one.tools, self.k) for ranking, one in found)

    def whole(self, side: Side) -> float:
        """Return the share of requests all of whose tools were found."""
        found = zip(side.rankings, self.requests, strict=True)
        return fmean(metrics.comp(ranking, one.tools, self.k) for ranking, one in found)

    def differing(self) -> Iterator[tuple[LabelledRequest, tuple[str, ...], tuple[str, ...]]]:
        """Yield the requests of which one found more: with what the baseline found, and what toolscout found."""
        for one, base, own in zip(self.requests, self.baseline.rankings, self.ours.rankings, strict=True):
            if metrics.recall(base, one.tools, self.k) != metrics.recall(own, one.tools, self.k):
                yield one, base, own


def read_requests(path: Path) -> list[LabelledRequest]:
    """Read a file with a line {"request": …, "tools": [ID, …]} for each request. Raises BadDataset."""
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadDataset(f"{path} cannot be read ({error.strerror}); name a file of requests") from None
    except UnicodeDecodeError:
        raise BadDataset(f"{path} is not text in UTF-8; name a file of requests") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
            text, tools = one["request"], one["tools"]
        except (ValueError, KeyError, TypeError):
            text, tools = None, None
        if not isinstance(text, str) or not text.strip() or not isinstance(tools, list) or not tools:
            raise BadDataset(f'{path}, line {number} is not {{"request": "…", "tools": ["namespace/name", …]}}')
        found.append(LabelledRequest(text, tuple(map(str, tools))))
    if not found:
        raise BadDataset(f"{path} has no requests")
    return found


def compare(
    tools: Sequence[Tool],
    requests: Sequence[LabelledRequest],
    folder: Path,
    k: int = 5,
    progress: Progress | None = None,
) -> BaselineComparison:
    """Ask both for every request; toolscout's catalogue lies in `folder`.

    Raises BadDataset for a request whose tools are not there, MissingEncoder where MiniLM's weights are not installed.
    """
    known = {tool.id: tool for tool in tools}
    for one in requests:
        if lacking := [tool_id for tool_id in one.tools if tool_id not in known]:
            raise BadDataset(f"the request {one.text!r:.80} needs {lacking[0]}, which is none of the tools")
    encoder, texts = open_encoder(str(default_source())), [one.text for one in requests]
    started = time.perf_counter()
    baseline = Baseline(tools, encoder, progress)
    base_s = time.perf_counter() - started
    rankings, base_seconds = _timed(texts, lambda text: baseline.search(text, k), progress)
    with Scout.open(folder / "catalogue.db") as scout:
        started = time.perf_counter()
        scout.add(tools, progress=progress)
        own_s = time.perf_counter() - started
        answers, own_seconds = _timed(texts, lambda text: scout.search(text, k), progress)
    considered = [tuple(hit.tool_id for hit in answer.considered[:k]) for answer in answers]
    return BaselineComparison(
        tools=len(tools),
        k=k,
        requests=tuple(requests),
        baseline=Side(BASELINE, base_s, tuple(map(tuple, rankings)), tuple(base_seconds)),
        ours=Side(OURS, own_s, tuple(considered), tuple(own_seconds)),
        turned_away=fmean(answer.verdict != "use" for answer in answers),
        tokens=_tokens(tools),
        tokens_found=round(fmean(_tokens([known[one] for one in ids]) for ids in considered)),
    )


def _timed(
    texts: Sequence[str], search: Callable[[str], Found], progress: Progress | None
) -> tuple[list[Found], list[float]]:
    """Search for every request, alone, and time it; the first one is asked before that, so that nothing is cold."""
    search(texts[0])
    found, seconds = [], []
    for number, text in enumerate(texts, 1):
        started = time.perf_counter()
        found.append(search(text))
        seconds.append(time.perf_counter() - started)
        if progress:
            progress("asking", number, len(texts))
    return found, seconds


def _tokens(tools: Sequence[Tool]) -> int:
    return vendor_formats.render(tools, "mcp").tokens if tools else 0
