"""The section about models asked about other domains than they were trained on (studies/domain_transfer.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from studies.study_rows import StudyRows, about
from toolscout.evaluation.report.rows import ResultLine, by_split, percent
from toolscout.evaluation.report.tables import table

_MEASURES = MappingProxyType({"R@5": "recall@5", "N@5": "ndcg@5", "C@5": "comp@5", "new R@5": "new_recall@5"})
_HEAD = """
## Across domains, without retraining

Trained on ToolLens alone, asked about other catalogues. Beside them stand, where they were measured, the domain's own
dense model (trained on its train split), and words and vectors as they come with the package.
"""


def section(rows: StudyRows, _pictures: Mapping[str, str]) -> Iterator[str]:
    """A table for each split, with the methods that were trained on it beside; nothing where there are no rows."""
    lines = rows.study("transfer")
    if lines:
        yield _HEAD
    for split, chosen in by_split(lines).items():
        beside = [line for line in rows.methods() if line.split == split and _is_reference(line, split[0])]
        yield f"\n**{split[0]} {split[1]}**, {chosen[0].newest['requests']:,} requests\n"
        cells = [_cells(line, f"{line.newest['retriever']}, trained on {about(line, 'from')}") for line in chosen]
        cells += [_cells(line, _reference(line)) for line in beside]
        yield table(["model", *_MEASURES, "seeds", "commit"], cells)


def _is_reference(line: ResultLine, dataset: str) -> bool:
    """The domain's own dense model, and what no training on these sets stands behind."""
    retriever, variant = line.newest["retriever"], line.newest["variant"]
    plain = retriever in ("bm25", "dense", "hybrid") and variant in ("default", "drop-seen")
    return plain or (retriever == "dense" and variant.startswith(dataset))


def _reference(line: ResultLine) -> str:
    plain = line.newest["variant"] in ("default", "drop-seen")
    return f"{line.newest['retriever']}, as it comes" if plain else f"{line.newest['retriever']}, trained on this set"


def _cells(line: ResultLine, name: str) -> dict[str, str]:
    cells = {head: percent(line.values(measure)) for head, measure in _MEASURES.items()}
    return cells | {"model": name, "seeds": str(len(line.rows)), "commit": line.commits}
