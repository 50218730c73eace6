"""Load test of `toolscout serve`: a steady rate while tools change, rates up to saturation, and overload ("storm")."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from toolscout.core.permissions import new_secret
from toolscout.core.tool import Tool
from toolscout.data.dataset import Dataset
from toolscout.data.locate import find_dataset
from toolscout.errors import BadRequest, ToolscoutError
from toolscout.evaluation.bench.http_client import Client, Tally, run_at_rate
from toolscout.evaluation.row import RowDict, provenance
from toolscout.search.progress import Progress
from toolscout.stores import shown

LIVE_NAMESPACE = "live"
_LIVE = 100
_STARTS_WITHIN_S = 120
_SAMPLED_EVERY_S = 5.0
_CURVE_DATA = ("toollens", "toolbench")


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """What to measure on the catalogue in `store`: `rate` requests of dataset `data` and `writes` changes a second.

    `curve`: further rates, each for `step_s` seconds with each of two datasets. `storm`: a rate that overloads the
    server. `encoder`: the encoder that the server is told to use; "" is the one in use.
    """

    store: str
    retriever: str = "hybrid"
    data: str = "toollens"
    rate: float = 80.0
    seconds: float = 600.0
    writes: float = 10.0
    curve: tuple[float, ...] = ()
    step_s: float = 15.0
    storm: float = 0.0
    encoder: str = ""

    def command(self) -> str:
        """Return the command that repeats the measurement."""
        words = ["toolscout", "--store", Path(shown(self.store)).name, "bench", "serve", "--rate", f"{self.rate:g}"]
        words += ["--seconds", f"{self.seconds:g}", "--writes", f"{self.writes:g}", "--data", self.data]
        words += ["--curve", ",".join(f"{rate:g}" for rate in self.curve)] if self.curve else []
        words += ["--storm", f"{self.storm:g}"] if self.storm else []
        return shlex.join(words + (["--encoder", self.encoder] if self.encoder else []))


@dataclass(slots=True)
class ChangingTools:
    """The tools that a load test adds and removes, and how often a search was wrong about them.

    `copied`: tools to copy. `present`: ids added and not removed. `removed_at`: when a removal was acknowledged.
    `missing` counts added tools that a search did not find, `stale` hits that were removed before the search.
    """

    copied: list[Tool]
    present: deque[str] = field(default_factory=deque)
    removed_at: dict[str, float] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    added: int = 0
    removed: int = 0
    missing: int = 0
    stale: int = 0

    def check(self, ids: list[str], asked_at: float) -> None:
        """Count the hits `ids` of a search begun at `asked_at` whose removal was acknowledged before it."""
        self.stale += sum(self.removed_at.get(tool_id, asked_at) < asked_at for tool_id in ids)


def measure(plan: ServingPlan, progress: Progress | None = None) -> Iterator[RowDict]:
    """Start a server, send it the load of the plan, and yield a row for each measurement.

    Raises BadDataset or BadRequest for a dataset that cannot be used, ToolscoutError where the server does not start.
    """
    about, sent = provenance(plan.command()), Counter[str]()
    for _, data, *_ in _steps(plan):  # a missing dataset raises before a server is started
        _dataset(data)
    token = new_secret()
    with _server(plan, token) as port:
        for kind, data, rate, seconds, writes in _steps(plan):
            if progress:
                progress(f"{kind} {data} {rate:g}/s", 0, 0)
            with asyncio.Runner(loop_factory=_uvloop_factory()) as loop:
                values = loop.run(
                    _measure_load(Client("127.0.0.1", port, token), data, sent[data], rate, seconds, writes)
                )
            sent[data] += int(rate * seconds)
            tools = int(values.pop("tools"))
            values = {"rate": rate, "seconds": seconds, "writes": writes, **values}
            rounded = {key: float(f"{value:.5g}") for key, value in values.items()}
            how = {"bench": kind, "tools": tools, "catalogue": Path(shown(plan.store)).stem, "requests": data}
            used = {"retriever": plan.retriever, "encoder": plan.encoder}
            yield {**how, **used, "values": rounded, "repeats": 1, "how": "over HTTP", **about}


def _steps(plan: ServingPlan) -> Iterator[tuple[str, str, float, float, float]]:
    if plan.seconds:
        yield "serve", plan.data, plan.rate, plan.seconds, plan.writes
    for data in _CURVE_DATA:
        for rate in plan.curve:
            yield f"saturation {rate:g}/s", data, rate, plan.step_s, 0.0
    if plan.storm:
        yield "storm", plan.data, plan.storm, plan.step_s, 0.0


@contextmanager
def _server(plan: ServingPlan, token: str) -> Iterator[int]:
    """Run a server in a process of its own and yield its port; `token` allows changes to its catalogue."""
    command = [sys.executable, "-m", "toolscout", "--store", plan.store, "serve", "--port", "0", "--rate", "0"]
    process = subprocess.Popen(
        [*command, "--retriever", plan.retriever, *(["--encoder", plan.encoder] if plan.encoder else [])],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TOOLSCOUT_TOKEN": token},
    )
    assert process.stdout is not None
    try:
        found = re.search(r":(\d+)/", process.stdout.readline())
        if found is None:
            raise ToolscoutError("the server did not start; try: toolscout serve")
        yield int(found[1])
    finally:
        process.terminate()
        try:
            process.wait(_STARTS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory, or None where it is missing: a slow client would take the server's cores."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return made


@lru_cache(2)
def _dataset(name: str) -> Dataset:
    return Dataset.load(find_dataset(name))


def _distinct_request(requests: Sequence[str], number: int) -> str:
    """Return request `number`; each number gives another text, so that the server's cache never answers."""
    again, place = divmod(number, len(requests))
    return f"{requests[place]} {again + 1}" if again else requests[place]


async def _measure_load(
    client: Client, data: str, before: int, rate: float, seconds: float, writes: float
) -> dict[str, float]:
    """Send requests of a dataset, from number `before` on, beside `writes` changes a second; return the values."""
    dataset = _dataset(data)
    requests = list(dataset.requests.values())
    if not requests:
        raise BadRequest(f"{data} has no requests; name another dataset")
    tally = Tally()
    live = ChangingTools(dataset.tools[:464])
    memory: list[float] = []
    over = asyncio.Event()

    async def ask(number: int, due: float) -> None:
        began = time.perf_counter()
        try:
            status, body = await client.ask(
                "POST", "/search", {"request": _distinct_request(requests, before + number)}
            )
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            tally.errors.append(repr(error))
            return
        taken = time.perf_counter() - due
        if status == 200:
            tally.seconds.append(taken)
            live.check([hit["tool_id"] for hit in json.loads(body)["considered"]], began)
        elif status in (429, 503):
            tally.refused.append(taken)
        else:
            tally.errors.append(f"{status} {body[:200]!r}")

    cpu = (await _read_metrics(client))["process_cpu_seconds"]
    watching = asyncio.ensure_future(_sample_memory(client, memory, over))
    changing = asyncio.ensure_future(run_at_rate(writes, seconds, _ToolWriter(client, live), over)) if writes else None
    await run_at_rate(rate, seconds, ask)
    over.set()
    await watching
    if changing is not None:
        await changing
    gauges = await _read_metrics(client)
    if live.present:  # leave the catalogue as it was
        await client.ask("POST", "/tools", {"remove": list(live.present)})
    client.close()
    return _values(tally, live, memory, gauges, (gauges["process_cpu_seconds"] - cpu) / seconds)


class _ToolWriter:
    """Adds a tool, removes the oldest where enough are present, and searches for the added one."""

    def __init__(self, client: Client, live: ChangingTools) -> None:
        self._client, self._live = client, live
        self._run = f"{time.time_ns():x}"[-8:]

    async def __call__(self, number: int, due: float) -> None:
        live = self._live
        copied = live.copied[number % len(live.copied)]
        name = f"{copied.name}_{self._run}_{number}"
        record = {**copied.to_record(), "namespace": LIVE_NAMESPACE, "name": name}
        for key in ("aliases", "origin"):
            record.pop(key, None)
        body: dict[str, Any] = {"tools": [record], "source": "bench serve"}
        oldest = live.present.popleft() if len(live.present) >= _LIVE else None
        body |= {"remove": [oldest]} if oldest else {}
        try:
            status, answer = await self._client.ask("POST", "/tools", body)
            if status != 200:
                live.tally.errors.append(f"{status} {answer[:200]!r}")
                live.present.extendleft([oldest] if oldest else [])  # still to be removed at the end
                return
            live.tally.seconds.append(time.perf_counter() - due)
            live.added, live.removed = live.added + 1, live.removed + bool(oldest)
            tool_id = Tool(LIVE_NAMESPACE, name).id
            live.present.append(tool_id)
            if oldest:
                live.removed_at[oldest] = time.perf_counter()
            status, answer = await self._client.ask("POST", "/search", {"request": name, "k": 1})
            found = [hit["tool_id"] for hit in json.loads(answer)["considered"]] if status == 200 else [tool_id]
            live.missing += tool_id not in found
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            live.tally.errors.append(repr(error))


async def _read_metrics(client: Client) -> dict[str, float]:
    status, body = await client.ask("GET", "/metrics")
    if status == HTTPStatus.UNAUTHORIZED:
        raise ToolscoutError("this catalogue has keys and the load test has none; test a copy of it without keys")
    return {name: float(value) for name, value in re.findall(r"^(\w+) ([\d.e+-]+)$", body.decode(), re.MULTILINE)}


async def _sample_memory(client: Client, memory: list[float], over: asyncio.Event) -> None:
    while not over.is_set():
        memory.append((await _read_metrics(client))["process_resident_memory_bytes"] / 1e6)
        try:
            await asyncio.wait_for(over.wait(), _SAMPLED_EVERY_S)
        except TimeoutError:
            continue


def _values(
    tally: Tally, live: ChangingTools, memory: list[float], gauges: dict[str, float], cores: float
) -> dict[str, float]:
    values = tally.quantiles()
    values["errors"] += len(live.tally.errors)
    if live.added:
        written = live.tally.quantiles()
        values |= {"added": live.added, "removed": live.removed, "missing": live.missing, "stale": live.stale}
        values |= {"write_p50_ms": written["p50_ms"], "write_p95_ms": written["p95_ms"]}
    settled = memory[len(memory) // 4 :]  # memory that the first requests allocate is no leak
    values |= {"memory_mb": max(memory), "memory_grown_mb": settled[-1] - settled[0], "cores": cores}
    return {**values, "tools": gauges["toolscout_tools"] - len(live.present)}
