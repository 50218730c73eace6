"""The comparison with other libraries, on a handful of tools and with peers that need no installation."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from peers import __main__ as command_line
from peers import measure, worker
from peers.adapters.base import Adapter, Record
from peers.table import PEERS, WORDS, PeerSpec
from peers.workload import Workload, unique_names
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.evaluation.row import read_rows, read_scores, scores_path

SQLITE = PeerSpec("sqlite_fts5", "sqlite_fts5", WORDS)
PYTHON = Path(sys.executable)


@pytest.fixture
def workload() -> Workload:
    tools = [
        Tool("weather", "forecast", "Tells how much rain will fall."),
        Tool("mail", "send", "Sends a letter to a person.", service="Mail for offices."),
        Tool("bank", "transfer", "Moves money to an account."),
    ]
    requests = {
        "rain": "how much rain will fall",
        "both": "move money, then send a letter",
        "talk": "hello there",
        "hopeless": "paint walls",
    }
    qrels = {"test": {"rain": ("weather/forecast",), "both": ("bank/transfer", "mail/send")}}
    about = {"talk": {"expects": "no_tool", "split": "test"}, "hopeless": {"expects": "nothing_fits", "split": "test"}}
    return Workload.of(Dataset("tiny", tools, requests, qrels, about))


class Forgetful(Adapter):
    """Ranks by the words that a tool shares with a request, hands out nothing, and cannot be changed."""

    def __init__(self, tools: Sequence[Record], folder: Path, **options: Any) -> None:
        self.tools, self.embedded = tools, len(tools)

    def search(self, request: str, k: int) -> list[str]:
        return []

    def rank(self, request: str, k: int) -> list[str]:
        shared = {t["name"]: len(set(request.split()) & set(t["description"].lower().split())) for t in self.tools}
        return sorted(shared, key=lambda name: -shared[name])[:k]


def test_a_peer_is_measured_in_processes_of_its_own(workload: Workload) -> None:
    row, scores = measure.row_of(SQLITE, workload, "python -m peers sqlite_fts5", PYTHON)
    assert row["study"]["problem"] == ""
    assert (row["dataset"], row["requests"], row["study"]["tools"]) == ("tiny", 4, 3)
    assert row["metrics"]["recall@1"] == 0.75  # "both" needs two tools, of which one can be first
    assert row["metrics"]["recall@5"] == row["metrics"]["comp@5"] == row["metrics"]["offered_recall@5"] == 1
    assert row["metrics"]["fit_nothing"] == 1  # no word of the other two requests occurs in a tool
    assert row["study"]["live"] == "yes"
    assert row["study"]["reopened_same"] is True
    assert row["timing"].keys() >= {"cpu_ms", "p50_ms", "p95_ms", "index_s", "reopen_s", "index_peak_mb", "index_mb"}
    assert row["timing"]["index_mb"] > 0
    assert [line["ranks"] for line in scores][:2] == [[1], [1, 2]]


def test_a_peer_that_fails_gets_a_row_that_says_why(workload: Workload) -> None:
    row, scores = measure.row_of(PeerSpec("none", "base", WORDS), workload, "", PYTHON)
    assert "fails in the phase build" in row["study"]["problem"]
    assert "Peer" in row["study"]["problem"]
    assert (row["metrics"], scores) == ({}, [])


def test_a_peer_that_takes_too_long_gets_a_row_that_says_so(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "LIMIT_S", -1.0)  # the time is up before the worker begins
    row, _ = measure.row_of(SQLITE, workload, "", PYTHON)
    assert "stopped in the phase build" in row["study"]["problem"]


def test_what_a_peer_needs_and_does_not_have_is_said_without_running_it(workload: Workload) -> None:
    row, _ = measure.row_of(PeerSpec("far", "sqlite_fts5", WORDS, needs="needs an API key"), workload, "")
    assert (row["study"]["problem"], row["metrics"]) == ("needs an API key", {})


def test_ranking_and_handing_out_are_measured_apart(
    workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = ModuleType("peers.adapters.fake")
    fake.Peer = Forgetful  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "peers.adapters.fake", fake)
    workload.write(tmp_path)
    task = {"adapter": "fake", "options": {}, "data": str(tmp_path), "folder": str(tmp_path), "k": 5, "rounds": 1}
    built = worker.run({**task, "phase": "build", "started": 0.0})
    assert built["searched"] == [[]] * 4
    assert built["ranked"][0][0] == "weather_forecast"
    reopened = worker.run({**task, "phase": "reopen", "started": 0.0})
    assert reopened["live"] == "no"
    assert reopened["reopen_embedded"] == 3  # it embeds again


def test_every_peer_is_given_all_that_is_known_of_a_tool(workload: Workload, tmp_path: Path) -> None:
    workload.write(tmp_path)
    records = [json.loads(line) for line in (tmp_path / "tools.jsonl").read_text().splitlines()]
    assert records[1]["name"] == "mail_send"
    assert records[1]["description"] == "Sends a letter to a person.\nMail for offices."
    requests = [json.loads(line)["id"] for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert requests == ["rain", "both", "talk", "hopeless"]


def test_names_are_legal_and_unique() -> None:
    names = unique_names([Tool("a b", "c"), Tool("a", "b_c"), Tool("a", "b c"), Tool("météo", "é")])
    assert names == ["a_b_c", "a_b_c_2", "a_b_c_3", "m_t_o"]


def test_a_row_is_written_for_each_peer_that_is_named(
    workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line.workload, "load", lambda name: workload)
    monkeypatch.setattr(command_line, "row_of", lambda *given: measure.row_of(*given, python=PYTHON))
    command_line.main(["sqlite_fts5", "--sets", "tiny", "--json", str(tmp_path / "rows.jsonl")])
    (row,) = read_rows(tmp_path / "rows.jsonl")
    assert row["command"] == f"python -m peers sqlite_fts5 --sets tiny --json {tmp_path / 'rows.jsonl'}"
    assert len(read_scores(scores_path(tmp_path / "rows.jsonl", row))) == 4
    with pytest.raises(SystemExit, match="no peer 'nobody'; use one of: toolscout bm25"):
        command_line.main(["nobody"])


def test_sets_that_are_not_here_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLSCOUT_DATA", raising=False)
    assert command_line._sets_here() == ["bundled"]


def test_every_peer_has_an_adapter_of_forty_lines_and_pinned_requirements() -> None:
    folder = Path(measure.__file__).parent
    for peer in PEERS.values():
        assert measure.adapter_lines(peer.adapter) <= 40, peer.name
        pins = (folder / "requirements" / f"{peer.requirements}.txt").read_text().split("\n")
        assert all("==" in pin or pin.startswith(("-c ", ".")) for pin in pins if pin), peer.name
