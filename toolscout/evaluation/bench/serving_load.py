"""How a server bears its load: paced requests while tools come and go, a curve up to saturation, a storm beyond it."""

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
from toolscout.evaluation.bench.http_client import Client, Tally, paced
from toolscout.evaluation.row import RowDict, provenance
from toolscout.search.progress import Progress

LIVE_NAMESPACE = "live"
_LIVE = 100
_STARTS_WITHIN_S = 120
_SAMPLED_EVERY_S = 5.0
_CURVE_DATA = ("toollens", "toolbench")


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """What to measure over the catalogue in `store`: `rate` requests of a dataset and `writes` changes a second.

    `curve`: more rates, each for `step_s` seconds, for each of two datasets. `storm`: one rate far beyond them.
    """

    store: Path
    retriever: str = "hybrid"
    data: str = "toollens"
    rate: float = 80.0
    seconds: float = 600.0
    writes: float = 10.0
    curve: tuple[float, ...] = ()
    step_s: float = 15.0
    storm: float = 0.0

    def command(self) -> str:
        """The command that measures this again."""
        words = ["toolscout", "--store", self.store.name, "bench", "serve", "--rate", f"{self.rate:g}"]
        words += ["--seconds", f"{self.seconds:g}", "--writes", f"{self.writes:g}", "--data", self.data]
        words += ["--curve", ",".join(f"{rate:g}" for rate in self.curve)] if self.curve else []
        return shlex.join(words + (["--storm", f"{self.storm:g}"] if self.storm else []))


@dataclass(slots=True)
class ChangingTools:
    """Tools that come and go while requests are answered, and what was wrong with the answers."""

    copied: list[Tool]
    there: deque[str] = field(default_factory=deque)
    gone: dict[str, float] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    added: int = 0
    removed: int = 0
    missing: int = 0
    stale: int = 0

    def check(self, ids: list[str], asked_at: float) -> None:
        """An answer must not hold a tool whose removal was acknowledged before it was asked for."""
        self.stale += sum(self.gone.get(tool_id, asked_at) < asked_at for tool_id in ids)


def measure(plan: ServingPlan, progress: Progress | None = None) -> Iterator[RowDict]:
    """Start a server, load it, and yield a row for each measurement."""
    about, sent = provenance(plan.command()), Counter[str]()
    for _, data, *_ in _steps(plan):  # before a server is started for nothing
        _dataset(data)
    token = new_secret()
    with _server(plan, token) as port:
        for kind, data, rate, seconds, writes in _steps(plan):
            if progress:
                progress(f"{kind} {data} {rate:g}/s", 0, 0)
            with asyncio.Runner(loop_factory=_quick_loop()) as loop:
                values = loop.run(_loaded(Client("127.0.0.1", port, token), data, sent[data], rate, seconds, writes))
            sent[data] += int(rate * seconds)
            tools = int(values.pop("tools"))
            values = {"rate": rate, "seconds": seconds, "writes": writes, **values}
            rounded = {key: float(f"{value:.5g}") for key, value in values.items()}
            how = {"bench": kind, "tools": tools, "catalogue": plan.store.stem, "requests": data}
            yield {**how, "retriever": plan.retriever, "values": rounded, "repeats": 1, "how": "over HTTP", **about}


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
    """A server of its own process, which this token lets us change; its port. It must end when it is told to."""
    command = [sys.executable, "-m", "toolscout", "--store", str(plan.store), "serve", "--port", "0", "--rate", "0"]
    process = subprocess.Popen(
        [*command, "--retriever", plan.retriever],
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


def _quick_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop that the server has too, where it is installed: the load must not take the cores that it measures."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return made


@lru_cache(2)
def _dataset(name: str) -> Dataset:
    return Dataset.load(find_dataset(name))


def _distinct(requests: Sequence[str], number: int) -> str:
    """The request of this number, never one that was asked before: what is known of a request is kept for a while."""
    again, place = divmod(number, len(requests))
    return f"{requests[place]} {again + 1}" if again else requests[place]


async def _loaded(
    client: Client, data: str, before: int, rate: float, seconds: float, writes: float
) -> dict[str, float]:
    """Load a server that was asked so many requests of this dataset before."""
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
            status, body = await client.ask("POST", "/search", {"request": _distinct(requests, before + number)})
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

    cpu = (await _gauges(client))["process_cpu_seconds"]
    watching = asyncio.ensure_future(_watch(client, memory, over))
    changing = asyncio.ensure_future(paced(writes, seconds, _Changer(client, live), over)) if writes else None
    await paced(rate, seconds, ask)
    over.set()
    await watching
    if changing is not None:
        await changing
    gauges = await _gauges(client)
    if live.there:  # leave the catalogue as it was
        await client.ask("POST", "/tools", {"remove": list(live.there)})
    client.close()
    return _values(tally, live, memory, gauges, (gauges["process_cpu_seconds"] - cpu) / seconds)


class _Changer:
    """Adds a tool and, where enough are there, removes the oldest; and looks whether it is so."""

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
        oldest = live.there.popleft() if len(live.there) >= _LIVE else None
        body |= {"remove": [oldest]} if oldest else {}
        try:
            status, answer = await self._client.ask("POST", "/tools", body)
            if status != 200:
                live.tally.errors.append(f"{status} {answer[:200]!r}")
                live.there.extendleft([oldest] if oldest else [])  # it is still there, to be cleared at the end
                return
            live.tally.seconds.append(time.perf_counter() - due)
            live.added, live.removed = live.added + 1, live.removed + bool(oldest)
            tool_id = Tool(LIVE_NAMESPACE, name).id
            live.there.append(tool_id)
            if oldest:
                live.gone[oldest] = time.perf_counter()
            status, answer = await self._client.ask("POST", "/search", {"request": name, "k": 1})
            found = [hit["tool_id"] for hit in json.loads(answer)["considered"]] if status == 200 else [tool_id]
            live.missing += tool_id not in found
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            live.tally.errors.append(repr(error))


async def _gauges(client: Client) -> dict[str, float]:
    status, body = await client.ask("GET", "/metrics")
    if status == HTTPStatus.UNAUTHORIZED:
        raise ToolscoutError("this catalogue has keys and the load has none; load a copy of it without keys")
    return {name: float(value) for name, value in re.findall(r"^(\w+) ([\d.e+-]+)$", body.decode(), re.MULTILINE)}


async def _watch(client: Client, memory: list[float], over: asyncio.Event) -> None:
    while not over.is_set():
        memory.append((await _gauges(client))["process_resident_memory_bytes"] / 1e6)
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
    settled = memory[len(memory) // 4 :]  # what opens with the first requests is no leak
    values |= {"memory_mb": max(memory), "memory_grown_mb": settled[-1] - settled[0], "cores": cores}
    return {**values, "tools": gauges["toolscout_tools"] - len(live.there)}
