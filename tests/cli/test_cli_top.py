"""top: what is read from metrics, and one frame of real servers."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from typer.testing import CliRunner

from tests.serving.gateways import called, command, gateway, serving
from toolscout import Scout, Tool
from toolscout.cli.main import app
from toolscout.core.permissions import Principal, new_key
from toolscout.serving.access import Access
from toolscout.serving.app import make_app
from toolscout.serving.gateway.transports import make_app as make_gateway_app
from toolscout.serving.limits import ServeOptions
from toolscout.serving.live_metrics import Rates, read_metrics
from toolscout.serving.page.files import CONTENT_SECURITY_POLICY, GATEWAY_FILES
from toolscout.serving.prometheus import Metrics


def shown(*args: str) -> str:
    done = CliRunner().invoke(app, ["top", *args, "--once"])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_quantiles_and_rates_are_of_the_time_between_two_looks() -> None:
    metrics = Metrics()
    for _ in range(90):
        metrics.observe("POST /search", 200, 0.004)
    before = read_metrics(metrics.text({}), 10.0)
    for seconds in [0.015] * 95 + [0.9] * 5:
        metrics.observe("POST /search", 200, seconds)
    metrics.observe_call('mail/"odd\\name', False, 2.0)
    rates = Rates(read_metrics(metrics.text({}), 12.0), before)
    assert sum(rates.added("toolscout_requests_total").values()) == 100
    assert rates.seconds == 2.0
    assert 0.01 < (rates.quantile("POST /search", 0.5) or 0) <= 0.02
    assert 0.01 < (rates.quantile("POST /search", 0.95) or 0) <= 0.02
    assert 0.5 < (rates.quantile("POST /search", 0.99) or 0) <= 1.0
    assert rates.quantile("GET /tools", 0.5) is None
    assert rates.added("toolscout_call_seconds_count", "tool") == {('mail/"odd\\name',): 1.0}
    restarted = Rates(before, rates.now)
    assert sum(restarted.added("toolscout_requests_total").values()) == 90


def test_what_is_no_server_is_said() -> None:
    for url, problem in (("ftp://x", "is no address of a server"), ("http://127.0.0.1:9", "no server answers at")):
        done = CliRunner().invoke(app, ["top", url, "--once"])
        assert done.exit_code == 2
        assert problem in " ".join(done.output.split())


@pytest.mark.slow
def test_a_frame_of_the_http_server(tmp_path: Path) -> None:
    with Scout.open(tmp_path / "t.db", "bm25") as scout:
        scout.add([Tool("mail", "send", "Sends a letter")])
        scout.store.put_principal(Principal("ann", allow=("*",), admin=True))
        key, resting = new_key("ann")
        scout.store.add_key(resting)

        async def main() -> None:
            async with serving(make_app(scout, Access(scout), ServeOptions(rate=0, hosts=("*",))), "") as url:
                await anyio.to_thread.run_sync(scout.search, "send a letter")
                refused = await anyio.to_thread.run_sync(CliRunner().invoke, app, ["top", url, "--once"])
                assert "metrics are for admins" in " ".join(refused.output.split())
                await anyio.to_thread.run_sync(shown, url, "--key", key)
                frame = await anyio.to_thread.run_sync(shown, url, "--key", key)
                assert "1 tools" in frame
                assert "GET /metrics" in frame
                assert " MB" in frame

        anyio.run(main)


@pytest.mark.slow
def test_a_frame_of_the_gateway_names_slow_tools_and_failing_servers(tmp_path: Path) -> None:
    from mcp import Client

    servers = {"weather": command("weather"), "gone": {"command": sys.executable, "args": ["-c", "1"], "env": {}}}

    async def main() -> None:
        async with gateway(tmp_path / "t.db", {"mcpServers": servers}) as made:
            async with Client(made.server) as client:
                await called(client, "weather/get_weather", {"city": "Bern"})
                await called(client, "weather/delete_weather", {"number": 5})
            async with serving(make_gateway_app(made, ServeOptions(rate=0, hosts=("*",)))) as url:
                frame = await anyio.to_thread.run_sync(shown, url)
                page = httpx2.AsyncClient(base_url=url.removesuffix("/mcp"))
                figures = (await page.get("/page/live")).json()
                for path in ("/", *(f"/page/{name}" for name in GATEWAY_FILES)):
                    assert (await page.get(path)).headers["content-security-policy"] == CONTENT_SECURITY_POLICY
                made.access.scout.store.put_principal(Principal("ann", allow=("weather/*",)))
                key, resting = new_key("ann")
                made.access.scout.store.add_key(resting)
                for headers, status in (({}, 401), ({"Authorization": f"Bearer {key}"}, 403)):
                    assert (await page.get("/page/live", headers=headers)).status_code == status
                assert (await page.get("/")).status_code == 200
                await page.aclose()
        assert (figures["servers"], figures["down"]) == (2, ["gone"])
        calls = {one["tool"]: (one["calls"], one["failed"]) for one in figures["slowest"]}
        assert calls["weather/get_weather"] == (1, 0)
        assert "slowest tools" in frame
        assert "weather/get_weather" in frame
        assert "servers: 1 of 2 answer" in frame
        assert "gone does not answer" in frame
        assert "mcp call" in frame

    anyio.run(main)
