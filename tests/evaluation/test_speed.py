"""The benchmark measures what it says, in processes of its own, on catalogues made as stated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.evaluation.made_up import dataset, hybrid
from tests.toys import HashedWords, catalogue
from toolscout.core.arrays import Floats
from toolscout.core.tool import Tool
from toolscout.errors import BadModel, BadRequest, ToolscoutError
from toolscout.evaluation.bench import measurements, speed, synthetic_catalogue, worker
from toolscout.evaluation.bench.worker import BenchTask
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.dense import Dense, DenseOptions
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.hybrid.shared_encoder import SharedEncoder
from toolscout.scout import Scout
from toolscout.stores import open_store
from toolscout.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from tests.postgres import Postgres

pytestmark = pytest.mark.slow

REQUESTS = ["search the issue", "delete a mail event", "weather report for a user", "price map"]
PREPARED = ("vectors", "store", "graph", "link")
PARTS = ("encoder_ms", "words_ms", "vectors_ms", "fusion_ms", "explain_ms", "other_ms")


def opened(path: Path | str, retriever: Hybrid | None = None) -> Scout:
    scout = Scout(open_store(path), hybrid() if retriever is None else retriever)
    scout.refresh()
    return scout


@pytest.fixture
def scout(tmp_path: Path) -> Scout:
    made = opened(tmp_path / "store.db")
    made.add(catalogue(300))
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tools.jsonl"
    path.write_text("".join(json.dumps(tool.to_record()) + "\n" for tool in catalogue(100)))
    return path


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[BenchTask]:
    """Children run here, with an encoder that needs no weights; the tasks they were given."""
    given: list[BenchTask] = []

    def run(task: BenchTask, *_: object) -> worker.BenchValues:
        given.append(task)
        return worker.run(BenchTask(**json.loads(task.to_json())))

    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(worker, "_open", opened)
    monkeypatch.setattr(worker, "_report", lambda *_: None)
    monkeypatch.setattr(speed, "_run_child", run)
    return given


def test_sizes_are_read() -> None:
    assert speed.parse_sizes("464,46_587,1000000") == (464, 46587, 1_000_000)
    for wrong in ("", "many", "464,,5", "0", "-4"):
        with pytest.raises(BadRequest, match="numbers of tools"):
            speed.parse_sizes(wrong)


def test_indexing_is_timed_and_nothing_is_embedded_again(tmp_path: Path, source: Path) -> None:
    values = measurements.index(lambda: opened(tmp_path / "store.db"), str(source), REQUESTS[0])
    assert 0 < values["first_answer_s"] <= values["index_s"]
    assert (values["again_embedded"], values["again_s"] > 0) == (0, True)
    with SqliteStore(tmp_path / "store.db") as store:
        assert measurements.sizes_mb(store)["store_mb"] > 0
    with pytest.raises(BadModel, match="found nothing"):
        measurements.index(lambda: opened(tmp_path / "other.db"), str(source), "qqqq")


def test_the_parts_of_a_request_add_up(scout: Scout) -> None:
    watch = measurements.watch_parts(scout)
    one = measurements.queries(
        scout, watch, REQUESTS[:2], repeats=1
    )  # the median of two is their mean, and means add up
    assert all(one[part] >= 0 for part in PARTS)
    whole = one["encoder_ms"] + one["searches_ms"] + one["explain_ms"] + one["other_ms"]
    assert whole == pytest.approx(one["p50_ms"])
    assert one["searches_ms"] >= one["vectors_ms"] + one["fusion_ms"] - 1e-6
    assert one["encoder_ms"] > 0
    many = measurements.queries(scout, watch, REQUESTS, repeats=3)
    assert many["p95_ms"] >= many["p50_ms"] > 0


def test_every_repeat_encodes_its_requests(tmp_path: Path) -> None:
    class CountedWords(HashedWords):
        requests = 0

        def encode_request(self, text: str) -> Floats:
            self.requests += 1
            return super().encode_request(text)

    encoder = CountedWords()
    shared = Hybrid(parts=[Bm25(), Dense(encoder=SharedEncoder(encoder))])
    with opened(tmp_path / "store.db", shared) as scout:
        scout.add(catalogue(100))
        scout.search(REQUESTS[0])
        before = encoder.requests
        scout.search(REQUESTS[0])
        assert encoder.requests == before
        measurements.queries(scout, measurements.watch_parts(scout), REQUESTS, repeats=3)
    assert encoder.requests == before + 3 + 3 * 4  # three of the four are encoded to warm up


def test_only_the_default_retriever_can_be_timed_in_parts(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="hybrid over bm25 and dense"):
        measurements.parts_of(Scout(SqliteStore(tmp_path / "store.db"), Bm25()))


def test_names_and_ids_find_their_tools(scout: Scout) -> None:
    values = measurements.lookups(scout, repeats=1)
    assert (values["name_first"], values["id_first"]) == (1, 1)
    assert values["name_p50_ms"] > 0


def test_restricted_callers_may_see_a_twentieth(tmp_path: Path) -> None:
    tools = [Tool(f"space{number % 60}", f"tool_{number}", "search issue") for number in range(600)]
    with SqliteStore(tmp_path / "store.db") as store:
        store.add(tools)
        found = measurements.restricted_callers(store)
    assert len(found["ids"].ids) == 30
    assert 30 <= sum(found["namespaces"].permits(tool.id) for tool in tools) <= 36


def test_callers_are_compared_on_the_same_requests(scout: Scout) -> None:
    values = measurements.callers(scout, REQUESTS, repeats=1)
    expected = {f"{who}_p50_ms" for who in ("all", "namespaces", "ids")}
    assert expected | {"share", "namespaces_first_ms", "ids_first_ms"} == values.keys()


def test_tools_are_added_and_removed_and_the_catalogue_is_the_same_again(scout: Scout) -> None:
    before = {tool.id: tool.digest() for tool in scout.store.tools()}
    values = measurements.changes(scout, repeats=2)
    assert (values["found"], values["gone"]) == (1, 1)
    assert 0 < values["add_p50_ms"] <= values["add_p95_ms"]
    assert 0 < values["remove_p50_ms"] <= values["remove_p95_ms"]
    assert {"add_100_s", "remove_100_s"} < values.keys()
    assert {tool.id: tool.digest() for tool in scout.store.tools()} == before


def test_each_tool_that_is_added_is_embedded(tmp_path: Path) -> None:
    class Counted(HashedWords):
        texts = 0

        def encode_documents(self, texts: Sequence[str]) -> Any:
            self.texts += len(texts)
            return super().encode_documents(texts)

    encoder = Counted()
    with opened(tmp_path / "store.db", Hybrid(parts=[Bm25(), Dense(encoder=encoder)])) as scout:
        scout.add(catalogue(50))
        for _ in range(2):  # the second time too
            before = encoder.texts
            measurements.changes(scout, repeats=1)
            assert encoder.texts == before + measurements.CHANGES + measurements.TOGETHER


def test_exact_search_has_a_recall_of_one_and_a_blind_one_less(tmp_path: Path, scout: Scout) -> None:
    exact = measurements.recall(scout, REQUESTS)
    assert exact == {"recall@10": 1.0, "requests": len(REQUESTS)}
    encoder = HashedWords()
    linked = opened(tmp_path / "store.db", Hybrid(parts=[Bm25(), Dense(DenseOptions(graph_above=50), encoder)]))
    linked.embed()
    assert measurements.recall(linked, REQUESTS)["recall@10"] > 0.9
    scout.retriever.remove(scout.store.ids()[::2])  # the index loses half of what the store has
    assert measurements.recall(scout, REQUESTS)["recall@10"] < 0.9


def test_a_file_of_several_snapshots_counts_once(scout: Scout) -> None:
    first, second = (scout.store.index_folder() / name for name in ("1", "2"))
    for folder in (first, second):
        folder.mkdir(parents=True)
    (first / "vectors.npy").write_bytes(bytes(3_000_000))
    (second / "vectors.npy").hardlink_to(first / "vectors.npy")
    (second / "rows.json").write_bytes(bytes(1_000_000))
    assert measurements.sizes_mb(scout.store)["index_mb"] == pytest.approx(4, abs=0.1)


def test_memory_is_that_of_this_process() -> None:
    found = measurements.memory_mb()
    if found:
        assert found["peak_mb"] >= found["rss_mb"] >= found["anon_mb"] > 10


def test_perturbed_tools_begin_with_the_real_ones_and_are_all_different() -> None:
    base = catalogue(50)
    made = list(synthetic_catalogue.tools(base, 170))
    assert made[:50] == base
    assert len({tool.id for tool in made}) == len({tool.digest() for tool in made}) == 170
    assert made == list(synthetic_catalogue.tools(base, 170))
    record, copy = base[3], made[53]
    word = copy.namespace.removeprefix(f"{record.namespace}-")
    assert copy.name == f"{record.name}_{word}"
    pairs = list(zip(record.description.split(), copy.description.split(), strict=True))
    assert sum(one != other for one, other in pairs) <= synthetic_catalogue.SWAPPED_WORDS
    assert len(list(synthetic_catalogue.tools(base[:1], 100))) == len(
        {tool.id for tool in synthetic_catalogue.tools(base[:1], 100)}
    )


def test_perturbed_vectors_lie_as_far_off_as_stated() -> None:
    rows = np.random.default_rng(0).standard_normal((500, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    made = np.concatenate(list(synthetic_catalogue.vectors(rows, 1200, at_once=300)))
    assert made.shape == (1200, 384)
    assert np.array_equal(made[:500], rows)
    assert np.allclose(np.linalg.norm(made, axis=1), 1, atol=1e-5)
    cosines = (made[500:1000] * rows).sum(axis=1)
    assert cosines.mean() == pytest.approx(1 / np.sqrt(1 + synthetic_catalogue.SIGMA**2), abs=0.01)
    assert (made[1000:] * made[500:700]).sum(axis=1).max() < 0.95  # another copy, other noise


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up datasets in the place of the published ones."""
    home = tmp_path / "data"
    for name in ("toollens", "toolbench"):
        dataset().save(home / name)
    for name in synthetic_catalogue.SOURCES[1:]:
        (home / name).parent.mkdir()
        tools = [Tool(Path(name).parts[0], f"tool_{number}", "order price") for number in range(20)]
        (home / name).write_text("".join(json.dumps(tool.to_record()) + "\n" for tool in tools))
    monkeypatch.setenv("TOOLSCOUT_DATA", str(home))
    return home


def rows_of(plan: speed.BenchPlan) -> list[dict[str, Any]]:
    notes: list[str] = []
    rows = list(speed.bench(plan, notes.append))
    assert not notes
    return rows


def test_every_measurement_of_a_published_size_is_a_row(
    data: Path, tmp_path: Path, in_process: list[BenchTask]
) -> None:
    rows = rows_of(speed.BenchPlan((464,), 2, tmp_path / "work", asked=5))
    kinds = [(row["bench"], row["requests"]) for row in rows]
    queries = [("query", "toollens"), ("query", "toolbench")]
    once = [("memory", ""), ("lookup", ""), ("caller", ""), ("change", "")]
    assert kinds == [("index", ""), ("open", ""), *queries, *once]
    assert [task.phase for task in in_process] == ["index", "index", "open", "serve", "change"]
    for row in rows:
        assert {"tools", "catalogue", "how", "hardware", "commit", "command", "date"} <= row.keys()
        assert row["tools"] == 464
        assert json.loads(json.dumps(row)) == row
    assert rows[0]["values"]["again_embedded"] == 0


def test_cached_vectors_stand_in_for_embedding(data: Path, tmp_path: Path, in_process: list[BenchTask]) -> None:
    first = rows_of(speed.BenchPlan((464,), 1, tmp_path / "work", asked=5))[0]
    second = rows_of(speed.BenchPlan((464,), 1, tmp_path / "work", embed_timing=False, asked=5))[0]
    assert "index_s" in first["values"]
    assert "index_s" not in second["values"]
    assert second["command"].endswith("--no-embed-timing")
    assert in_process[4].cached


def test_a_made_up_catalogue_is_prepared_once(
    data: Path, tmp_path: Path, in_process: list[BenchTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "DenseOptions", lambda: DenseOptions(graph_above=100))
    plan = speed.BenchPlan((250,), 1, tmp_path / "work", asked=5)
    rows = rows_of(plan)
    measured = ["open", "serve", "recall", "change"]
    assert [task.phase for task in in_process] == [*PREPARED, *measured]
    again = rows_of(plan)
    assert [task.phase for task in in_process[8:]] == measured
    assert again[0]["values"] == rows[0]["values"]
    assert (rows[0]["values"]["embedded"], rows[-2]["values"]["recall@10"]) == (0, 1.0)
    values = rows[0]["values"]
    assert values["first_answer_s"] == pytest.approx(values["store_s"] + values["own_index_s"], rel=1e-3)
    assert f"noise of length {synthetic_catalogue.SIGMA}" in rows[0]["how"]
    assert rows[0]["tools"] == 250


@pytest.mark.parametrize("step", PREPARED)
def test_a_preparation_that_was_interrupted_goes_on(
    data: Path, tmp_path: Path, in_process: list[BenchTask], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    plan, run = speed.BenchPlan((250,), 1, tmp_path / "work", asked=5), speed._run_child

    def interrupted(task: BenchTask, *rest: Any) -> worker.BenchValues:
        if task.phase == step:
            raise KeyboardInterrupt
        return run(task, *rest)

    monkeypatch.setattr(speed, "_run_child", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rows_of(plan)
    monkeypatch.setattr(speed, "_run_child", run)
    del in_process[:]
    rows = rows_of(plan)
    assert [task.phase for task in in_process] == [*PREPARED[PREPARED.index(step) :], "open", "serve", "change"]
    assert {"store_s", "own_index_s", "link_s"} <= rows[0]["values"].keys()


def test_what_is_not_the_catalogue_that_was_prepared_is_prepared_anew(
    data: Path, tmp_path: Path, in_process: list[BenchTask]
) -> None:
    plan = speed.BenchPlan((250,), 1, tmp_path / "work", asked=5)
    rows_of(plan)
    (record,) = (tmp_path / "work").glob("*/prepared.json")
    (record.parent / "store.db").unlink()
    del in_process[:]
    rows_of(plan)
    assert [task.phase for task in in_process[:4]] == list(PREPARED)
    done = json.loads(record.read_text())
    del done["steps"]["store"], done["steps"]["link"]  # ended before it was noted that the tools are stored
    record.write_text(json.dumps(done))
    del in_process[:]
    rows_of(plan)
    assert [task.phase for task in in_process[:4]] == list(PREPARED)


def test_catalogues_in_a_database_have_a_schema_each(
    data: Path, tmp_path: Path, in_process: list[BenchTask], monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    opened_cold: list[str] = []

    def cold_start(place: str, requests: Sequence[str]) -> measurements.Values:
        opened_cold.append(place)
        return {"first_answer_s": 1.0}

    monkeypatch.setattr(measurements, "cold_start", cold_start)
    server = postgres.url("any").partition("&schema=")[0]
    plan = speed.BenchPlan((120,), 1, tmp_path / "work", asked=5, server=server)
    rows = rows_of(plan)
    assert [task.phase for task in in_process] == [*PREPARED, "open", "cold", "serve", "change"]
    places = {task.store for task in in_process} | set(opened_cold)
    assert len(places) == 1
    assert "&schema=bench_postgresql_perturbed_120_" in places.pop()
    assert {row["store"] for row in rows} == {"postgresql"}
    assert all(server not in json.dumps(row) for row in rows)
    assert next(row["values"]["store_mb"] for row in rows if row["bench"] == "memory") > 0.1


def test_a_catalogue_of_another_encoder_is_not_measured(tmp_path: Path, in_process: list[BenchTask]) -> None:
    with SqliteStore(tmp_path / "store.db") as store:
        store.add(catalogue(20))
    with pytest.raises(BadModel, match="20 tools have no vector of this encoder"):
        worker.run(BenchTask("serve", str(tmp_path / "store.db"), requests={"mine": REQUESTS}))


def test_without_datasets_the_bundled_catalogue_serves_the_small_size(
    tmp_path: Path, in_process: list[BenchTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOOLSCOUT_DATA", raising=False)
    notes: list[str] = []
    plan = speed.BenchPlan((464, 46587), 1, tmp_path / "work", asked=5)
    rows = list(speed.bench(plan, notes.append))
    assert {row["catalogue"] for row in rows} == {"bundled"}
    assert ["bundled catalogue" in notes[0], "46,587 tools are left out" in notes[1]] == [True, True]


def row(**changes: Any) -> dict[str, Any]:
    return {"bench": "query", "requests": "toollens", "tools": 46587, "values": {"p50_ms": 10.0}} | changes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"values": {"p50_ms": 7.5}}, "≤ 8 met"),
        ({}, "≤ 8 missed"),
        ({"tools": 464}, ""),
        ({"bench": "recall", "tools": 1_000_000, "values": {"recall@10": 0.97}}, "≥ 0.98 missed"),
        ({"bench": "caller", "requests": "", "values": {"ids_p50_ms": 3.0, "all_p50_ms": 4.0}}, "≤ 4 met"),
    ],
)
def test_values_are_shown_with_their_targets(changes: dict[str, Any], expected: str) -> None:
    assert speed.lines(row(**changes))[0].target == expected


def plan(work: Path, encoder: str = "") -> speed.BenchPlan:
    return speed.BenchPlan((100,), 1, work, encoder=encoder)


def subject(source: Path) -> speed.BenchCatalogue:
    return speed.BenchCatalogue("mine", 100, str(source), False, "")


def test_a_child_that_fails_says_why(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "no-encoder"))
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    task = BenchTask("index", str(tmp_path / "store.db"), str(source), requests={"mine": REQUESTS})
    with pytest.raises(ToolscoutError, match=r"measuring 100 tools failed: .*MissingEncoder.*no-encoder"):
        speed._run_child(task, plan(tmp_path), subject(source), None)


def test_a_child_measures_in_a_process_of_its_own(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_CACHE", str(tmp_path / "cache"))
    requests, seen = {"mine": REQUESTS}, set[str]()

    def report(stage: str, done: int, total: int) -> None:
        seen.add(stage)

    def run(task: BenchTask, encoder: str = "") -> dict[str, dict[str, float]]:
        return speed._run_child(task, plan(tmp_path, encoder), subject(source), report)

    index = run(BenchTask("index", str(tmp_path / "s.db"), str(source), requests=requests))
    serve = run(BenchTask("serve", str(tmp_path / "s.db"), requests=requests))
    assert index["index"]["again_embedded"] == 0
    assert serve["query mine"]["encoder_ms"] > 0
    assert "100 tools: asking" in seen
    with pytest.raises(ToolscoutError, match=r"MissingEncoder.*no-encoder"):
        run(BenchTask("serve", str(tmp_path / "s.db"), requests=requests), str(tmp_path / "no-encoder"))
    named = speed.BenchPlan((464,), 2, tmp_path, encoder="fast").command()
    assert named == "toolscout bench --sizes 464 --repeats 2 --encoder fast"
