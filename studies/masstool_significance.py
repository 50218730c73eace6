"""Is masstool better than the others by more than chance? Paired tests over scenes: results/compared.md.

python -m studies.masstool_significance

Reads the rows and scores that studies/trained.py left in results/. Each seed is tested by itself, as `toolscout
compare` does; what is written is the mean difference over the seeds that both have, and the largest p of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from studies.running import RESULTS
from toolscout.errors import ToolscoutError
from toolscout.evaluation.scores import RowFilter, compare, find

ROWS = RESULTS / "trained.jsonl"
SETS = {
    "toollens test": ("toollens", "test", "toollens"),
    "toollens unseen combinations": ("toollens", "unseen_scene.test", "toollens-unseen_scene"),
    "toollens unseen tools": ("toollens", "unseen_tool.test", "toollens-unseen_tool"),
    "g3 test": ("toolbench-g3", "test", "g3"),
    "g3 unseen combinations": ("toolbench-g3", "unseen_scene.test", "g3-unseen_scene"),
    "g3 unseen tools": ("toolbench-g3", "unseen_tool.test", "g3-unseen_tool"),
}
OTHERS = ("dense", "memory", "hybrid", "colt", "masstool_published")
MEASURES = ("recall@5", "ndcg@5", "comp@3", "new_recall@5")
HEAD = """<!-- made by python -m studies.masstool_significance -->
# MassTool against the others

masstool less the other, in points, on the same requests; p from flipping the signs of whole scenes. Mean over the seeds
that both have (their number stands behind the name), and of their p the largest. The rows are in
[README.md](README.md). hybrid has encoders of the same recipe and seed, but of an earlier run.

| set | against | R@5 | p | N@5 | p | C@3 | p | new R@5 | p |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def tested(dataset: str, split: str, name: str, other: str) -> tuple[int, dict[str, tuple[float, float]]]:
    """How many seeds both have, and for each measure the mean difference and the largest p."""
    found: dict[str, list[tuple[float, float]]] = {}
    seeds = 0
    for seed in range(3):
        theirs = f"{name}-s{seed}" if other == "dense" else f"{other}-{name}-s{seed}"
        narrow = RowFilter(dataset, split, None)
        try:
            a = find(f"{ROWS}#{other}.{theirs}", narrow)
            b = find(f"{ROWS}#masstool.masstool-{name}-s{seed}", narrow)
        except ToolscoutError:
            continue
        seeds += 1
        measures = [m for m in MEASURES if m != "new_recall@5" or "unseen_tool" in split]
        for one in compare(a, b, measures):
            if one.result is not None:
                found.setdefault(one.measure, []).append((one.result.difference, one.result.p))
    return seeds, {m: (sum(d for d, _ in few) / len(few), max(p for _, p in few)) for m, few in found.items()}


def lines() -> Iterator[str]:
    """The rows of the table."""
    for label, (dataset, split, name) in SETS.items():
        for other in OTHERS:
            seeds, found = tested(dataset, split, name, other)
            if seeds:
                cells = [f"{100 * found[m][0]:+.2f} | {found[m][1]:.3f}" if m in found else " | " for m in MEASURES]
                yield f"| {label} | {other} ({seeds}) | {' | '.join(cells)} |\n"


if __name__ == "__main__":
    (RESULTS / "compared.md").write_text(HEAD + "".join(lines()))
