"""The codes of a catalogue's tools: quality figures, a prefix tree, and an HTML page that shows it."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import numpy as np

from toolscout.core.arrays import Ints
from toolscout.core.tool import clean_text
from toolscout.models.tool_ids.quantizer import Code

_NEAR = 3  # how many neighbours of a tool are shown


@dataclass(frozen=True, slots=True)
class Health:
    """Quality figures of the codes of `tools` tools: `levels` codes per tool, each out of `codes`.

    perplexity: for each level, the perplexity of the distribution of codes.
    used: for each level, the share of codes that at least one tool has.
    collisions: the number of tools minus the number of different code sequences. nearest_collisions: the same if every
        tool had its nearest codes; published_collisions: if then, as published, the last codes of tools that share a
        sequence were assigned once by Sinkhorn-Knopp. Both are 0 where they were not measured.
    groups: the number of first codes in use; `group` is the mean number of tools per first code.
    pairs: the number of pairs of tools that are used together.
    together, random: the share of pairs with the same first code, among those pairs and among all pairs.
    error: the mean squared error of the decoded vectors; `lost` is that error as a share of the vectors' variance.
        Both are 0 where they were not measured.
    """

    tools: int
    levels: int
    codes: int
    perplexity: tuple[float, ...]
    used: tuple[float, ...]
    collisions: int
    groups: int
    group: float
    pairs: int
    together: float
    random: float
    error: float = 0.0
    lost: float = 0.0
    nearest_collisions: int = 0
    published_collisions: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The figures as a dictionary that can be written as JSON."""
        return asdict(self) | {"perplexity": list(self.perplexity), "used": list(self.used)}


def health(codes: Sequence[Code], size: int, pairs: Ints) -> Health:
    """Compute the figures for one code sequence per tool, without `error` and `lost`.

    `size` is the number of codes per level. `pairs` [n, 2] has the positions, in `codes`, of tools used together.
    """
    numbers = np.array(codes, dtype=np.int64).reshape(len(codes), len(codes[0]) if codes else 0)
    counts = [np.bincount(level, minlength=size) for level in numbers.T]
    shares = [count[count > 0] / max(len(codes), 1) for count in counts]
    first = numbers[:, 0] if numbers.size else np.empty(0, dtype=np.int64)
    sizes = np.bincount(first)
    all_pairs = len(codes) * (len(codes) - 1)
    return Health(
        tools=len(codes),
        levels=numbers.shape[1],
        codes=size,
        perplexity=tuple(float(np.exp(-(share * np.log(share)).sum())) for share in shares),
        used=tuple(len(share) / size for share in shares),
        collisions=len(codes) - len(set(codes)),
        groups=int((sizes > 0).sum()),
        group=len(codes) / max(int((sizes > 0).sum()), 1),
        pairs=len(pairs),
        together=float((first[pairs[:, 0]] == first[pairs[:, 1]]).mean()) if len(pairs) else 0.0,
        random=float((sizes * (sizes - 1)).sum() / all_pairs) if all_pairs else 0.0,
    )


class CodeTree:
    """A prefix tree of the codes of some tools."""

    def __init__(self, codes: Mapping[str, Code]) -> None:
        """Build the tree: each prefix of a code, with the tools whose codes begin with it."""
        self._codes = codes
        self._by_prefix: dict[Code, list[str]] = {}
        for tool_id in sorted(codes):
            for length in range(1, len(codes[tool_id]) + 1):
                self._by_prefix.setdefault(codes[tool_id][:length], []).append(tool_id)

    def path(self, tool_id: str) -> dict[str, Any] | None:
        """Return the steps down to a tool with the number of tools under each, and its neighbours; None if unknown."""
        code = self._codes.get(tool_id)
        if code is None:
            return None
        prefixes = [code[:length] for length in range(1, len(code) + 1)]
        steps = [{"code": list(prefix), "tools": len(self._by_prefix[prefix])} for prefix in prefixes]
        shared = next((prefix for prefix in reversed(prefixes) if len(self._by_prefix[prefix]) > 1), None)
        near = [other for other in self._by_prefix[shared] if other != tool_id] if shared else []
        return {"steps": steps, "near": near[:_NEAR]}


def tree_html(codes: Mapping[str, Code], uses: Iterable[tuple[str, str, int]], title: str = "Codes") -> str:
    """An HTML page, complete in one file: the tree of codes, the tools at each, and which are used together.

    `codes` has the code of each tool id. `uses` has (tool id, tool id, how often they were used together); a pair is
    left out if one of its tools has no code.
    """
    rows = {tool_id: row for row, tool_id in enumerate(sorted(codes))}
    counts: Counter[tuple[int, int]] = Counter()
    for first, second, count in uses:
        if first in rows and second in rows and first != second:
            low, high = sorted((rows[first], rows[second]))
            counts[low, high] += count
    data = {
        "tools": [[clean_text(tool_id), list(codes[tool_id])] for tool_id in rows],
        "uses": [[low, high, count] for (low, high), count in sorted(counts.items())],
    }
    # Without "<", ">" and "&", the JSON cannot close the script element it stands in, nor open another one.
    text = json.dumps(data, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    parts = {"{{title}}": html.escape(clean_text(title)), "{{data}}": text}
    # In one pass, so that a placeholder inside an inserted text is not replaced.
    return re.sub("|".join(map(re.escape, parts)), lambda found: parts[found[0]], _page())


def _page() -> str:
    return (resources.files("toolscout.models.tool_ids") / "code_tree.html").read_text(encoding="utf-8")
