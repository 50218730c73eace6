"""Which tools are returned how often, and how well each namespace is served: does a method favour some of them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from toolscout.core.tool import Tool
from toolscout.evaluation.request_result import RequestResult

K = 5
_ENOUGH = 5  # gold tools of a namespace, below which its recall says nothing
_MOST = 40


def gini(counts: Iterable[float]) -> float:
    """0 where all have the same, towards 1 where one has it all."""
    values = np.sort(np.fromiter(counts, dtype=np.float64))
    total = values.sum()
    if not len(values) or not total:
        return 0.0
    places = np.arange(1, len(values) + 1)
    return float(2 * (places * values).sum() / (len(values) * total) - (len(values) + 1) / len(values))


def exposure(answers: Sequence[RequestResult], tools: Sequence[Tool]) -> dict[str, float]:
    """How unevenly tools come among the first five, how unevenly they are needed, and what share ever comes."""
    shown = Counter(tool_id for one in answers for tool_id in (one.ranking or ())[:K])
    needed = Counter(tool_id for one in answers for tool_id in one.gold)
    ids = [tool.id for tool in tools]
    return {
        f"gini@{K}": round(gini(shown[one] for one in ids), 6),
        "gini_gold": round(gini(needed[one] for one in ids), 6),
        f"coverage@{K}": round(sum(one in shown for one in ids) / len(ids), 6),
    }


def by_namespace(answers: Sequence[RequestResult], tools: Sequence[Tool]) -> dict[str, list[int]]:
    """How often tools of each namespace were needed, and found among the first five; of those needed most."""
    home = {tool.id: tool.namespace for tool in tools}
    needed, found = Counter[str](), Counter[str]()
    for one in answers:
        first = frozenset((one.ranking or ())[:K])
        needed.update(home[tool_id] for tool_id in one.gold)
        found.update(home[tool_id] for tool_id in one.gold if tool_id in first)
    often = sorted(needed.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST]
    return {name: [count, found[name]] for name, count in often if count >= _ENOUGH}
