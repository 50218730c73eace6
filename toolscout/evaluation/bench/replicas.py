"""Load test of several servers over one store: requests go to all, changes to one, and all others must find them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from toolscout.core.permissions import new_secret
from toolscout.core.tool import Tool
from toolscout.errors import ToolscoutError
from toolscout.evaluation.bench import serving_load
from toolscout.evaluation.bench.http_client import Client, Tally, run_at_rate
from toolscout.evaluation.row import RowDict, provenance
from toolscout.search.progress import Progress

_PAUSE_S = 0.02  # between two looks for a change
_GIVEN_UP_S = 10.0
_OWN_WITHIN_S = 600.0


@dataclass(slots=True)
class Freshness:
    """How long after its acknowledgement a change was found on each other server. `late`: never within ten seconds."""

    seconds: list[float] = field(default_factory=list)
    late: int = 0
    errors: list[str] = field(default_factory=list)


def measure(plan: serving_load.ServingPlan, replicas: int, progress: Progress | None = None) -> Iterator[RowDict]:
    """Start servers over the store of the plan, spread its requests, and yield one row.

    A change is a tool with a new name; how long until it is found counts from the answer to whoever added it, and is
    looked at every 20 ms. Raises ToolscoutError where a server does not start.
    """
    command = plan.command() + f" --replicas {replicas}"
    about, token = provenance(command), new_secret()
    with ExitStack() as started:
        ports = [started.enter_context(serving_load.server(plan, token)) for _ in range(replicas)]
        if progress:
            progress(f"replicas {plan.data} {plan.rate:g}/s", 0, 0)
        with asyncio.Runner() as loop:
            values = loop.run(_measure([Client("127.0.0.1", port, token) for port in ports], plan))
    tools = int(values.pop("tools"))
    values = {"replicas": replicas, "rate": plan.rate, "seconds": plan.seconds, "writes": plan.writes, **values}
    rounded = {key: float(f"{value:.5g}") for key, value in values.items()}
    how = {"bench": "replicas", "tools": tools, "catalogue": plan.catalogue(), "requests": plan.data}
    used = {"retriever": plan.retriever, "encoder": plan.encoder}
    yield {**how, **used, "values": rounded, "repeats": 1, "how": "over HTTP", **about}


async def _measure(clients: Sequence[Client], plan: serving_load.ServingPlan) -> dict[str, float]:
    requests, copied = serving_load.requests_and_tools(plan.data)
    tally, fresh, added = Tally(), Freshness(), list[str]()
    run = f"{time.time_ns():x}"[-8:]
    for client in clients:
        await _own_index(client)

    async def ask(number: int, due: float) -> None:
        text = f"{requests[number % len(requests)]} {number // len(requests) or ''}".strip()
        try:
            status, body = await clients[number % len(clients)].ask("POST", "/search", {"request": text})
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            tally.errors.append(repr(error))
            return
        if status == 200:
            tally.seconds.append(time.perf_counter() - due)
        elif status in (429, 503):
            tally.refused.append(time.perf_counter() - due)
        else:
            tally.errors.append(f"{status} {body[:200]!r}")

    async def change(number: int, due: float) -> None:
        tool = copied[number % len(copied)]
        name = f"{tool.name}_{run}_{number}"
        record = {**tool.to_record(), "namespace": serving_load.LIVE_NAMESPACE, "name": name}
        for key in ("aliases", "origin"):
            record.pop(key, None)
        status, body = await clients[0].ask("POST", "/tools", {"tools": [record], "source": "bench serve"})
        if status != 200:
            fresh.errors.append(f"{status} {body[:200]!r}")
            return
        acknowledged, tool_id = time.perf_counter(), Tool(serving_load.LIVE_NAMESPACE, name).id
        added.append(tool_id)
        await asyncio.gather(*(_found(client, name, tool_id, acknowledged, fresh) for client in clients[1:]))

    over = asyncio.Event()
    changing = asyncio.ensure_future(run_at_rate(plan.writes, plan.seconds, change, over))
    await run_at_rate(plan.rate, plan.seconds, ask)
    over.set()
    await changing
    _, body = await clients[0].ask("GET", "/tools?limit=1")
    tools = json.loads(body)["total"] - len(added)
    for start in range(0, len(added), 100):  # leave the catalogue as it was
        await clients[0].ask("POST", "/tools", {"remove": added[start : start + 100]})
    for client in clients:
        client.close()
    found = sorted(fresh.seconds)
    quantiles = {f"found_p{share}_ms": 1000 * _quantile(found, share / 100) for share in (50, 95, 99)}
    errors = {"changes": len(added), "late": fresh.late, "errors": len(tally.errors) + len(fresh.errors)}
    most = {"found_max_ms": 1000 * (found[-1] if found else 0.0)}
    return {**tally.quantiles(), **quantiles, **most, **errors, "tools": tools}


async def _own_index(client: Client) -> None:
    """Wait until the server answers from its own index."""
    end = time.perf_counter() + _OWN_WITHIN_S
    while time.perf_counter() < end:
        status, body = await client.ask("GET", "/ready")
        if status == 200 and json.loads(body)["index"] == "own":
            return
        await asyncio.sleep(0.2)
    raise ToolscoutError(f"the index of a server did not stand within {_OWN_WITHIN_S:.0f} s")


async def _found(client: Client, name: str, tool_id: str, since: float, fresh: Freshness) -> None:
    """Search for a tool by its name until a server finds it; note when that search began.

    A search that began earlier and did not find it is the lower bound; the figure is the upper one.
    """
    while (began := time.perf_counter()) - since < _GIVEN_UP_S:
        try:
            status, body = await client.ask("POST", "/search", {"request": name, "k": 1})
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            fresh.errors.append(repr(error))
            return
        if status == 200 and tool_id in [hit["tool_id"] for hit in json.loads(body)["considered"]]:
            fresh.seconds.append(began - since)
            return
        await asyncio.sleep(_PAUSE_S)
    fresh.late += 1


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
