"""The benchmark: cost of indexing and searching at several catalogue sizes, each phase in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from toolscout.core.tool import DOCUMENT_VERSION
from toolscout.data.dataset import Dataset
from toolscout.data.locate import DATA_FOLDER, find_dataset
from toolscout.errors import BadDataset, BadRequest, ToolscoutError
from toolscout.evaluation.bench import synthetic_catalogue
from toolscout.evaluation.bench.worker import BenchTask, BenchValues
from toolscout.evaluation.row import RowDict, provenance
from toolscout.index.tool_table import replace_file
from toolscout.models.encoders.settings import VARIABLE as ENCODER_VARIABLE
from toolscout.retrievers.dense import DenseOptions
from toolscout.scout import Progress
from toolscout.stores import is_url, open_store

PUBLISHED = {464: "toollens", 46_587: "toolbench"}
REQUEST_SETS = ("toollens", "toolbench")
ASKED = 300
# What makes a synthetic catalogue, each in a process of its own.
_STEPS: Sequence[Literal["vectors", "store", "graph", "link"]] = ("vectors", "store", "graph", "link")
_INDEX_ONCE_FROM = 10_000  # from this size on, embedding takes minutes and is not repeated


class Target(NamedTuple):
    """The target of a value on two cores: at most `limit`, or at least that with `at_least`."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Return whether a value meets the target."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        """Return the target as shown in tables, such as "≤ 5"."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


TARGETS: Mapping[tuple[int, str, str], Mapping[str, Target]] = {
    (46_587, "index", ""): {
        "first_answer_s": Target(5),
        "index_s": Target(240),
        "again_s": Target(15),
        "again_embedded": Target(0),
        "peak_mb": Target(600),
    },
    (46_587, "open", ""): {"open_s": Target(0.3), "words_open_s": Target(0.3), "command_s": Target(1.5)},
    (46_587, "memory", ""): {"peak_mb": Target(600)},
    (46_587, "query", "toollens"): {"p50_ms": Target(8), "searches_ms": Target(4)},
    (46_587, "query", "toolbench"): {"p50_ms": Target(16), "searches_ms": Target(4)},
    (46_587, "serve", "toollens"): {"p95_ms": Target(60), **dict.fromkeys(("errors", "missing", "stale"), Target(0))},
    (1_000_000, "open", ""): {"open_s": Target(2), "words_open_s": Target(2)},
    (1_000_000, "query", "toollens"): {"p50_ms": Target(30)},
    (1_000_000, "query", "toolbench"): {"p50_ms": Target(30)},
    (1_000_000, "lookup", ""): {"name_p50_ms": Target(2), "id_p50_ms": Target(2)},
    (1_000_000, "recall", "toollens"): {"recall@10": Target(0.98, at_least=True)},
}


class ValueLine(NamedTuple):
    """One value as shown in a table; `target` is empty where none was set."""

    name: str
    value: str
    target: str


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure: catalogue sizes, repeats, and `asked` requests of each set.

    `work`: the folder that keeps prepared catalogues. `embed_timing`: embed all tools anew and time it. `encoder`: the
    encoder to measure; "" is the default one. `server`: the postgresql:// URL of a database to keep the catalogues in,
    each in a schema of its own; "": SQLite files in the work folder.
    """

    sizes: tuple[int, ...]
    repeats: int
    work: Path
    embed_timing: bool = True
    asked: int = ASKED
    encoder: str = ""
    server: str = ""

    @property
    def store(self) -> str:
        """The kind of store that holds the catalogues, as rows name it; "" for SQLite."""
        return "postgresql" if self.server else ""

    def place(self, folder: Path) -> str:
        """Return the path or URL of the catalogue that is prepared in a folder."""
        if not self.server:
            return str(folder / "store.db")
        schema = "bench_" + re.sub(r"[^a-z0-9]+", "_", folder.name.lower())
        return f"{self.server}{'&' if '?' in self.server else '?'}schema={schema}"

    def command(self) -> str:
        """Return the command that repeats the measurement."""
        words = ["toolscout", "bench", "--sizes", ",".join(map(str, self.sizes)), "--repeats", str(self.repeats)]
        words += [] if self.embed_timing else ["--no-embed-timing"]
        words += ["--server", "postgresql://…"] if self.server else []  # without what the URL says of this machine
        return shlex.join(words + (["--encoder", self.encoder] if self.encoder else []))


@dataclass(frozen=True, slots=True)
class BenchCatalogue:
    """A catalogue to measure: a published one, or a synthetic one (`made_up`) of the datasets in folder `source`.

    `how` says in words how it was made.
    """

    name: str
    tools: int
    source: str
    made_up: bool
    how: str


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse catalogue sizes such as "464,46587,1000000"; raises BadRequest where a part is no positive number."""
    try:
        sizes = tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise BadRequest(f"sizes must be numbers of tools with commas between them, got {text!r:.80}")
    return sizes


def default_work() -> Path:
    """Return the default folder for prepared catalogues."""
    return Path(tempfile.gettempdir()) / "toolscout-bench"


def bench(plan: BenchPlan, note: Callable[[str], None], progress: Progress | None = None) -> Iterator[RowDict]:
    """Measure every size and yield a row as soon as it is measured; `note` gets a message for what is left out.

    Raises BadDataset where a dataset is incomplete, and ToolscoutError where a child process fails.
    """
    about = provenance(plan.command())
    requests = _request_sets(plan.asked, note)
    for size in plan.sizes:
        subject = _catalogue_of_size(size)
        if subject is None:
            note(f"{size:,} tools are left out: they need the datasets that {DATA_FOLDER} names")
            continue
        for name, values in _measure_size(plan, subject, requests, progress):
            kind, _, request_set = name.partition(" ")
            yield {
                "bench": kind,
                "tools": subject.tools,
                "catalogue": subject.name,
                "requests": request_set,
                "values": {key: float(f"{value:.5g}") for key, value in values.items()},
                "repeats": plan.repeats,
                "encoder": plan.encoder,
                **({"store": plan.store} if plan.store else {}),
                "how": subject.how,
                **about,
            }


def lines(row: RowDict) -> list[ValueLine]:
    """Return the values of a row as lines of a table, with their targets."""
    name = " ".join(filter(None, [row["bench"], row["requests"]]))
    targets = target_of(row)
    shown = []
    for key, value in row["values"].items():
        aim = targets.get(key)
        mark = "" if aim is None else f"{aim} {'met' if aim.met(value) else 'missed'}"
        shown.append(ValueLine(f"{name}: {key}", f"{value:,.6g}", mark))
    return shown


def target_of(row: RowDict) -> Mapping[str, Target]:
    """Return the targets of a row's values. The target of a restricted caller is the time of one allowed all."""
    if row["bench"] == "caller":
        everyone = Target(row["values"]["all_p50_ms"])
        return {"namespaces_p50_ms": everyone, "ids_p50_ms": everyone}
    return TARGETS.get((row["tools"], row["bench"], row["requests"]), {})


def _measure_size(
    plan: BenchPlan, subject: BenchCatalogue, requests: dict[str, list[str]], progress: Progress | None
) -> Iterator[tuple[str, dict[str, float]]]:
    plan.work.mkdir(parents=True, exist_ok=True)
    if subject.made_up:
        place, prepared = _prepare_catalogue(plan, subject, requests, progress)
        yield from prepared.items()
    else:
        folder = plan.work / subject.name
        place, rounds = plan.place(folder), []
        for _ in range(plan.repeats if subject.tools < _INDEX_ONCE_FROM else 1):
            _empty(folder, place)
            task = BenchTask("index", place, subject.source, cached=not plan.embed_timing, requests=requests)
            rounds.append(_run_child(task, plan, subject, progress)["index"])
        values = {key: median(one[key] for one in rounds) for key in rounds[0]}
        if not plan.embed_timing:  # vectors came from the cache
            del values["index_s"]
        yield "index", values
    task = BenchTask("open", place, repeats=plan.repeats, requests=requests)
    yield from _run_child(task, plan, subject, progress).items()
    if plan.server:
        yield from _run_child(BenchTask("cold", place, requests=requests), plan, subject, progress).items()
    task = BenchTask("serve", place, repeats=plan.repeats, requests=requests)
    yield from _run_child(task, plan, subject, progress).items()
    if subject.tools > DenseOptions().graph_above:
        name = next(iter(requests))
        task = BenchTask("recall", place, requests={name: requests[name]})
        yield f"recall {name}", _run_child(task, plan, subject, progress)["recall"]
    yield from _run_child(BenchTask("change", place, repeats=plan.repeats), plan, subject, progress).items()


def _prepare_catalogue(
    plan: BenchPlan, subject: BenchCatalogue, requests: dict[str, list[str]], progress: Progress | None
) -> tuple[str, BenchValues]:
    """Return the place of a synthetic catalogue and the times of making it; both are reused where they exist.

    Each step is noted when it is done, so that a preparation that was interrupted goes on with the next.
    """
    kind = f"{plan.store}-" if plan.store else ""
    folder = plan.work / f"{kind}{subject.name}-{subject.tools}-{synthetic_catalogue.RECIPE}.{DOCUMENT_VERSION}"
    place, record = plan.place(folder), folder / "prepared.json"
    folder.mkdir(parents=True, exist_ok=True)
    found = json.loads(record.read_text()) if record.is_file() else {}
    with open_store(place) as store:
        # Of another database, or ended between storing tools and noting it: then its times are not known.
        usable = found.get("identity") == store.identity() and ("store" in found["steps"]) == (store.count() > 0)
        found = found if usable else {}
    if not found:
        _empty(folder, place)
        with open_store(place) as store:
            found = {"identity": store.identity(), "steps": {}}
        _note(record, found)
    for step in _STEPS:
        if step not in found["steps"]:
            task = BenchTask(step, place, subject.source, tools=subject.tools, requests=requests)
            found["steps"] |= _run_child(task, plan, subject, progress)
            _note(record, found)
    values = {key: value for step in _STEPS for key, value in found["steps"][step].items()}
    return place, {"index": {**values, "first_answer_s": values["store_s"] + values["own_index_s"]}}


def _note(record: Path, found: RowDict) -> None:
    replace_file(record, lambda path: path.write_text(json.dumps(found)))


def _empty(folder: Path, place: str) -> None:
    """Make the folder of a catalogue anew, and drop the schema that an earlier run has left in a database."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if is_url(place):
        with open_store(place) as store:
            shutil.rmtree(store.index_folder(), ignore_errors=True)
        _drop_schema(place)


def _drop_schema(url: str) -> None:
    import psycopg
    from psycopg import sql

    from toolscout.stores.postgres.address import conninfo, read_address

    address = read_address(url)
    with psycopg.connect(conninfo(address), autocommit=True) as db:
        db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(address.schema)))


def _run_child(task: BenchTask, plan: BenchPlan, subject: BenchCatalogue, progress: Progress | None) -> BenchValues:
    """Run one task in a new process, report its progress, and return its values; raises ToolscoutError if it fails."""
    command = [sys.executable, "-m", "toolscout.evaluation.bench.worker"]
    environment = {**os.environ, ENCODER_VARIABLE: plan.encoder} if plan.encoder else None
    found: BenchValues | None = None
    with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile() as errors:
        given.write(task.to_json())
        given.seek(0)
        with subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as child:
            try:
                for text in child.stdout or ():
                    line = json.loads(text)
                    if "values" in line:
                        found = line["values"]
                    elif progress:
                        stage, done, total = line["progress"]
                        progress(f"{subject.tools:,} tools: {stage}", done, total)
            except BaseException:
                child.kill()
                raise
        if child.returncode or found is None:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").strip().splitlines()
            raise ToolscoutError(f"measuring {subject.tools:,} tools failed: {tail[-1] if tail else 'no reason given'}")
    return found


def _catalogue_of_size(size: int) -> BenchCatalogue | None:
    """Return the catalogue of a size, or None where $TOOLSCOUT_DATA has no datasets for it.

    Raises BadDataset where a dataset is missing that synthetic catalogues are made of.
    """
    home = os.environ.get(DATA_FOLDER, "")
    if not home or not Path(home).is_dir():
        if size > min(PUBLISHED):
            return None
        tools = len(Dataset.load(find_dataset("bundled")).tools)
        return BenchCatalogue("bundled", tools, str(find_dataset("bundled")), False, "the bundled catalogue")
    if size in PUBLISHED:
        name = PUBLISHED[size]
        return BenchCatalogue(name, size, str(find_dataset(name)), False, f"the published documents of {name}")
    missing = [source for source in synthetic_catalogue.SOURCES if not (Path(home) / source).exists()]
    if missing:
        raise BadDataset(f"{home} has no {', '.join(missing)}; without them only {list(PUBLISHED)} can be measured")
    how = (
        f"records of {', '.join(synthetic_catalogue.SOURCES)}, then copies: one word behind namespace and name, "
        f"{synthetic_catalogue.SWAPPED_WORDS} words of the description swapped, vector + Gaussian noise of length "
        f"{synthetic_catalogue.SIGMA}, renormalised; vectors were in the store before the tools, none was embedded"
    )
    return BenchCatalogue("perturbed", size, home, True, how)


def _request_sets(count: int, note: Callable[[str], None]) -> dict[str, list[str]]:
    """Return evenly spaced test requests of each set; those of the bundled dataset where no other is found."""
    sets: dict[str, list[str]] = {}
    for name in REQUEST_SETS if os.environ.get(DATA_FOLDER) else ():
        try:
            sets[name] = _evenly_spaced(Dataset.load(find_dataset(name), ["test"]), count)
        except BadDataset as error:
            note(str(error))
    if not sets:
        note(f"{DATA_FOLDER} names no datasets: the bundled catalogue and its requests are used")
        sets["bundled"] = _evenly_spaced(Dataset.load(find_dataset("bundled"), ["test"]), count)
    return sets


def _evenly_spaced(dataset: Dataset, count: int) -> list[str]:
    texts: Sequence[str] = [text for _, text in dataset.split("test").requests]
    step = max(1, len(texts) // count)
    return list(texts[::step][:count])
