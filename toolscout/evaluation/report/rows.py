"""Reads and checks the rows of a folder and merges them into lines: one for each method on a split, over its seeds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeGuard, TypeVar

from toolscout.core.tool import clean_text
from toolscout.errors import BadDataset
from toolscout.evaluation.candidates import names_in
from toolscout.evaluation.row import STUDY, RowDict, read_rows
from toolscout.retrievers.model_folder import RENAMED_OPTIONS

_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)
# The keys that every row needs and their types; rows of earlier versions may lack others.
_QUALITY: dict[str, type] = {
    **dict.fromkeys(("dataset", "digest", "split", "retriever", "variant"), str),
    "metrics": dict,
    "requests": int,
}
_BENCH: dict[str, type] = {"bench": str, "tools": int, "requests": str, "values": dict}
_NAMED_SEED = re.compile(r"[-_](?:seed|s)(\d+)$")
# The key that is added to a row: the file that it was read from.
FILE = "file"


@dataclass(frozen=True, slots=True)
class ResultLine:
    """The results of a method on a split: the newest row of each seed."""

    rows: tuple[RowDict, ...]

    @property
    def newest(self) -> RowDict:
        """Return the row written last."""
        return self.rows[-1]

    @property
    def split(self) -> tuple[str, str, str]:
        """Return dataset, name and digest of the split; only lines that agree in all three can be compared.

        The digest of a line that ranked a part of the tools is another.
        """
        return self.newest["dataset"], self.newest["split"], self.newest["digest"]

    @property
    def among(self) -> str:
        """Return the tools that alone were ranked, such as "1,605 tools of train"; "" where all tools were."""
        names = names_in(self.newest)
        return f"{self.newest['among']['tools']:,} tools of {', '.join(names)}" if names else ""

    @property
    def method(self) -> str:
        """Return the retriever and its variant, without the seed."""
        name = self.retriever + ("" if self.variant == "default" else f" ({self.variant})")
        return clean_text(name)

    @property
    def variant(self) -> str:
        """Return the variant without the seed."""
        return _without_seed(self.newest["variant"], _seed(self.newest)) or "default"

    @property
    def retriever(self) -> str:
        """Return the retriever; `+dense` where the cosine of an encoder is added to what a generative model says."""
        name: str = self.newest["retriever"]
        return f"{name}+dense" if (self.newest.get("options") or {}).get("similarity") else name

    @property
    def label(self) -> str:
        """Return the method with the number of seeds, failed requests and requests left out."""
        notes = [f"{len(self.rows)} seeds"] if len(self.rows) > 1 else []
        for key, about in (("failed", "failed"), ("dropped", "left out as seen in training")):
            count = max(row.get(key) or 0 for row in self.rows)
            notes += [f"{count:,} {about}"] if count else []
        return ", ".join([self.method, *notes])

    def values(self, name: str, part: str = "metrics") -> list[float]:
        """Return a number of every row; [] unless every row has it, as a mean over fewer seeds would mislead."""
        found = [(row.get(part) or {}).get(name) for row in self.rows]
        numbers = [float(value) for value in found if _is_number(value)]
        return numbers if len(numbers) == len(self.rows) else []

    def mean(self, name: str, part: str = "metrics") -> float | None:
        """Return the mean over the seeds; None unless every row has the number."""
        found = self.values(name, part)
        return fmean(found) if found else None

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return the 95 % interval of a measure, its ends averaged over the seeds; None unless every row has it."""
        found = [(row.get("intervals") or {}).get(name) for row in self.rows]
        ends = [pair for pair in found if isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))]
        return (fmean(low for low, _ in ends), fmean(high for _, high in ends)) if len(ends) == len(found) else None

    def interval_text(self, name: str) -> str:
        """Return the interval of a measure in percent, such as "31.36–36.99"; "" unless every row has it."""
        return "–".join(f"{100 * end:.2f}" for end in self.interval(name) or ())

    @property
    def commits(self) -> str:
        """Return the commits of the code that made the rows."""
        return commits(self.rows)


def read_folder(folder: Path) -> tuple[list[ResultLine], list[RowDict]]:
    """Read every .jsonl file of a folder: return the rows of `evaluate` merged into lines, and the rows of `bench`.

    Raises BadDataset where there is no row, or where one lacks a key.
    """
    if not folder.is_dir():
        raise BadDataset(f"there is no folder {folder}; {_REMEDY.format(folder=folder)}")
    quality: list[RowDict] = []
    bench: list[RowDict] = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, row in enumerate(read_rows(path), 1):
            is_bench = "bench" in row
            wanted = _BENCH if is_bench else _QUALITY
            wrong = next((key for key, kind in wanted.items() if not isinstance(row.get(key), kind)), None)
            if wrong:
                raise BadDataset(
                    f"{path} line {number} is no row of toolscout evaluate or bench: {wrong!r} is missing or of a "
                    "wrong type; remove that line, or move the file elsewhere"
                )
            (bench if is_bench else quality).append(row | {FILE: path})
    if not quality and not bench:
        raise BadDataset(f"{folder} has no rows in any .jsonl file; {_REMEDY.format(folder=folder)}")
    return merge_seeds(quality), newest(bench, "bench", "tools", "requests", "encoder", "store")


_REMEDY = "write some with: toolscout evaluate DATA --json {folder}/rows.jsonl, or name the folder that has them"


def is_method(line: ResultLine) -> bool:
    """Return whether a line comes from `toolscout evaluate`, not from a study."""
    return STUDY not in line.newest and not (line.newest.get("options") or {}).get("need")


def newest(rows: Iterable[RowDict], *keys: str) -> list[RowDict]:
    """Return the newest row of each combination of keys, in the order in which the combinations first occur."""
    found: dict[tuple[str, ...], RowDict] = {}
    for row in rows:
        combination = tuple(str(row.get(key, "")) for key in keys)
        if combination not in found or _date(row) >= _date(found[combination]):
            found[combination] = row
    return list(found.values())


def merge_seeds(rows: Iterable[RowDict]) -> list[ResultLine]:
    """Merge rows that differ in the seed only into lines. Older rows with other options than the newest are dropped.

    Options of models whose names differ in the seed only may differ: some options are selected on dev.
    """
    groups: dict[tuple[str, ...], dict[object, RowDict]] = {}
    for row in rows:
        seed = _seed(row)
        variant = _without_seed(row["variant"], seed) or "default"
        seeds = groups.setdefault((row["dataset"], row["split"], row["digest"], row["retriever"], variant), {})
        older = seeds.pop(seed, row)  # of rows of one date the last one counts, as the newest
        seeds[seed] = max(row, older, key=_date)
    lines = []
    for seeds in groups.values():
        found = sorted(seeds.values(), key=_date)
        named = _NAMED_SEED.search(found[-1]["variant"]) is not None
        lines.append(ResultLine(tuple(row for row in found if named or _options(row) == _options(found[-1]))))
    return lines


def _date(row: RowDict) -> str:
    """Return when a row was made, so that dates compare as texts; one without a date is older than all others."""
    return str(row.get("date") or "")


def percent(values: Sequence[float]) -> str:
    """Return the mean of fractions in percent, with ± their standard deviation for several; "" for none."""
    if not values:
        return ""
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * fmean(values):.2f}{spread}"


def commits(rows: Iterable[RowDict]) -> str:
    """Return the commits of rows, each once, separated by commas."""
    return ", ".join(filter(None, dict.fromkeys(str(row.get("commit") or "") for row in rows)))


def group_by(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Group items by key; keys and items keep their order."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def by_split(lines: Iterable[ResultLine]) -> dict[tuple[str, str, str], list[ResultLine]]:
    """Group lines by dataset, split and digest."""
    return group_by(lines, lambda line: line.split)


def by_dataset(lines: Iterable[ResultLine]) -> dict[str, dict[tuple[str, str, str], list[ResultLine]]]:
    """Group lines by dataset, then by split."""
    return {dataset: by_split(own) for dataset, own in group_by(lines, lambda line: line.split[0]).items()}


def _seed(row: RowDict) -> object:
    """Return the seed in the model's name, else that of the row: an untrained method may use a trained encoder."""
    named = _NAMED_SEED.search(row["variant"])
    return int(named[1]) if named else row.get("seed")


def _options(row: RowDict) -> str:
    return json.dumps(_comparable(row.get("options") or {}, _seed(row)), sort_keys=True)


def _comparable(value: Any, seed: object) -> Any:
    """Return options under their current names, without the seed, which is removed from paths too."""
    if isinstance(value, Mapping):
        named = {RENAMED_OPTIONS.get(key, key): inner for key, inner in value.items() if key != "seed"}
        return {key: _comparable(inner, seed) for key, inner in named.items()}
    if isinstance(value, list):
        return [_comparable(inner, seed) for inner in value]
    return _without_seed(value, seed) if isinstance(value, str) else value


def _without_seed(text: str, seed: object) -> str:
    """Return a variant or path without its seed: "toollens-seed1" and "toollens-seed2" are one method."""
    if not isinstance(seed, int):
        return text
    return re.sub(rf"(^|[-_./])(?:seed|s)[-_.]?{seed}(?=$|[-_./])", "", text).lstrip("-_.")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
