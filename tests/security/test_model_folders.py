"""A model folder from a stranger: it gets neither a key nor a request, and writes nothing outside of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.made_up import dataset
from tests.llm.fake_endpoint import KEY, FakeEndpoint, asked, chat, echo, in_turn
from toolscout.core.tool import Tool
from toolscout.errors import BadModel, BadRequest, EndpointError
from toolscout.evaluation.evaluate import evaluate
from toolscout.llm.endpoint import Endpoint
from toolscout.llm.hosts import HOSTS_VARIABLE, host_of, is_loopback, is_named
from toolscout.llm.options import EndpointOptions, checked_url
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.bm25 import Bm25
from toolscout.retrievers.hybrid.retriever import Hybrid
from toolscout.retrievers.provenance import TrainingSet
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.rerank.retriever import Rerank, RerankOptions
from toolscout.retrievers.rewrite.retriever import Rewrite, RewriteOptions
from toolscout.scout import Scout
from toolscout.search import index_snapshot
from toolscout.stores.sqlite.store import SqliteStore

TOOLS = [Tool("weather", "forecast", "Weather forecast of a city"), Tool("mail", "send", "Sends an email")]
REQUEST = "shall I take an umbrella to Rome"
QUICK = EndpointOptions(retries=0, timeout=5.0)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv(HOSTS_VARIABLE, raising=False)


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    with FakeEndpoint(in_turn(chat("weather forecast of a city"))) as fake:
        yield fake


def rewrite(url: str, **options: Any) -> Rewrite:
    return Rewrite(RewriteOptions(llm=url, model="m", examples=0, **options), [Bm25()])


def saved(retriever: Retriever, folder: Path) -> Path:
    retriever.save(folder)
    return folder


def edited(folder: Path, **options: Any) -> Path:
    """The folder of a stranger, who writes its model.json by hand."""
    record = json.loads((folder / "model.json").read_text())
    record["options"] |= options
    (folder / "model.json").write_text(json.dumps(record))
    return folder


WAYS: dict[str, Any] = {
    "alone": lambda inner: inner,
    "part of a hybrid": lambda inner: Hybrid(parts=[Bm25(), inner]),
    "part of a rewrite": lambda inner: Rewrite(RewriteOptions(llm="rules"), [inner]),
}


# Where requests and keys go


@pytest.mark.parametrize("way", WAYS)
def test_a_host_that_only_a_folder_names_gets_neither_requests_nor_the_key(
    way: str, tmp_path: Path, server: FakeEndpoint
) -> None:
    folder = saved(WAYS[way](rewrite(server.url)), tmp_path / "m")
    with Scout.open(tmp_path / "s.db", folder) as scout:
        scout.store.add(TOOLS, "tests")
        answer = scout.search("Weather forecast of Rome")
    assert server.requests == []
    assert answer.considered[0].tool_id == "weather/forecast"
    (note,) = [one for one in answer.notes if "searched" in one]
    host = server.url.split("/")[2]
    assert f"has requests sent to {host}, which nobody here allowed" in note
    assert f"put {host} into {HOSTS_VARIABLE}" in note
    assert str(tmp_path) not in note  # it reaches whoever searches


@pytest.mark.parametrize("way", WAYS)
def test_a_host_that_the_user_names_is_asked_with_the_key(
    way: str, tmp_path: Path, server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(WAYS[way](rewrite(server.url)), tmp_path / "m")
    monkeypatch.setenv(HOSTS_VARIABLE, f"api.example, {server.url.split('/')[2]}")
    retriever = load_model(folder)
    retriever.add(TOOLS)
    assert retriever.search([REQUEST], 1)[0][0].tool_id == "weather/forecast"
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}


def test_an_index_beside_a_store_is_a_folder_too(tmp_path: Path, server: FakeEndpoint) -> None:
    path = tmp_path / "s.db"
    with SqliteStore(path) as store:
        store.add(TOOLS, "tests")
        state = index_snapshot.SnapshotState(store.identity(), store.version(), 0)
    planted = rewrite(server.url)
    planted.add(TOOLS)
    index_snapshot.write(index_snapshot.folder(path.with_name(f"{path.name}.index"), "bm25"), planted, state)
    with Scout.open(path, "bm25") as scout:
        assert isinstance(scout.retriever, Rewrite)
        assert scout.search("Weather forecast of Rome").considered
    assert server.requests == []


def test_an_evaluation_does_not_ask_it_either(tmp_path: Path, server: FakeEndpoint) -> None:
    data = dataset(requests=2)
    row = evaluate(data, "test", load_model(saved(rewrite(server.url), tmp_path / "m"))).row
    assert server.requests == []
    assert row.timing["rewritten"] == 0
    assert HOSTS_VARIABLE in str(row.timing["llm_problem"])


def test_what_the_user_gives_in_this_process_needs_no_other_word(server: FakeEndpoint) -> None:
    retriever = rewrite(server.url)
    retriever.add(TOOLS)
    assert retriever.search([REQUEST], 1)[0][0].tool_id == "weather/forecast"
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_a_training_says_what_has_to_be_allowed(tmp_path: Path, server: FakeEndpoint) -> None:
    report = rewrite(server.url, epochs=0).fit([TrainingSet(dataset(requests=2), dev="")], tmp_path / "m")
    assert f"{HOSTS_VARIABLE}={server.url.split('/')[2]}" in report.notes[0]


def test_a_folder_names_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FakeEndpoint) -> None:
    monkeypatch.setenv(HOSTS_VARIABLE, server.url.split("/")[2])
    folder = edited(saved(rewrite(server.url), tmp_path / "m"), key_variable="AWS_SECRET_ACCESS_KEY")
    with pytest.raises(BadModel, match="key_variable"):
        load_model(folder)


@pytest.mark.parametrize(
    ("url", "host", "entries"),
    [
        ("https://api.example/v1", "api.example", "API.example"),
        ("https://api.example/v1", "api.example", "x.example,https://api.example/v1"),
        ("https://api.example:443/v1", "api.example", "x.example api.example:443"),
        ("https://api.example:8443/v1", "api.example:8443", "api.example:8443"),
        ("http://api.example/v1", "api.example:80", "api.example:80"),
        ("http://[::1]:11434/v1", "[::1]:11434", "[::1]:11434"),
    ],
)
def test_a_host_is_named_with_its_port(url: str, host: str, entries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_of(checked_url(url)) == host
    assert not is_named(url)
    monkeypatch.setenv(HOSTS_VARIABLE, entries)
    assert is_named(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/v1",
        "https://api.example.evil.example/v1",
        "https://xapi.example/v1",
        "https://api.example:8443/v1",
        "http://api.example/v1",
        "https://localhost/v1",
        "http://127.0.0.1:11434/v1",
    ],
)
def test_another_host_or_port_is_not_the_one_that_was_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS_VARIABLE, "api.example,localhost:11434,[:99999,*,x:y,,")
    assert not is_named(checked_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1]evil.example/v1",
        "http://[::1]evil.example:80/v1",
        "http://localhost%2eevil.example/v1",
        "https://api.example%2fevil.example/v1",
        "https://api.example\\evil.example/v1",
        "https://api.example,evil.example/v1",
        "https://:8443/v1",
    ],
)
def test_a_host_that_two_readers_take_for_two_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="an endpoint is a base URL"):
        checked_url(url)
    with pytest.raises(BadRequest, match="no user"):
        checked_url(url.replace("://", "://x@", 1).replace(url.split("/")[2], "api.example"))


# Rerankers


def rerank(name: str) -> Rerank:
    return Rerank(RerankOptions(reranker=name), [Bm25()])


RERANKERS = {"endpoint": "{}?model=m", "chat": "chat:{}?model=m"}


@pytest.mark.parametrize("kind", RERANKERS)
def test_a_reranker_that_only_a_folder_names_is_not_asked(
    kind: str, tmp_path: Path, server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_RERANK_KEY", KEY)
    folder = saved(rerank(RERANKERS[kind].format(server.url)), tmp_path / "m")
    with Scout.open(tmp_path / "s.db", folder) as scout:
        scout.store.add(TOOLS, "tests")
        answer = scout.search("shall I see the Weather forecast of Rome")
    assert server.requests == []
    assert answer.considered[0].tool_id == "weather/forecast"
    (note,) = answer.notes
    host = server.url.split("/")[2]
    assert note.startswith(f"the tools were not reranked: the model folder has requests sent to {host}")
    assert str(tmp_path) not in note
    monkeypatch.setenv(HOSTS_VARIABLE, host)
    retriever = load_model(folder)
    retriever.add(TOOLS)
    retriever.search([REQUEST + " with a forecast"], 1)
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}


@pytest.mark.parametrize("kind", RERANKERS)
def test_a_folder_names_no_key_of_a_reranker(
    kind: str, tmp_path: Path, server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOSTS_VARIABLE, server.url.split("/")[2])
    name = RERANKERS[kind].format(server.url) + "&key_variable=AWS_SECRET_ACCESS_KEY"
    with pytest.raises(BadModel, match="which key is sent"):
        load_model(edited(saved(rerank(""), tmp_path / "m"), reranker=name))


# Over which connections


@pytest.mark.parametrize("host", ["api.example", "192.0.2.1", "127.evil.example", "localhost.evil.example", "[::2]"])
def test_a_key_is_not_sent_over_plain_http(host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"OPENAI_API_KEY is not sent over plain http.*https://") as caught:
        Endpoint(f"http://{host}/v1", "m", QUICK)
    assert KEY not in str(caught.value)
    with pytest.raises(BadRequest):
        rewrite(f"http://{host}/v1")
    Endpoint(f"https://{host}/v1", "m", QUICK)
    monkeypatch.delenv("OPENAI_API_KEY")
    folder = saved(rewrite(f"http://{host}/v1"), tmp_path / "m")
    opened = Endpoint(f"http://{host}/v1", "m", QUICK)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)  # afterwards
    monkeypatch.setattr("toolscout.llm.client.post", lambda *_: pytest.fail("it was sent"))
    with pytest.raises(EndpointError, match="not sent over plain http"):
        opened.complete(asked("x"))
    monkeypatch.setenv(HOSTS_VARIABLE, f"{host}:80")
    with pytest.raises(BadModel, match="not sent over plain http"):
        load_model(folder)


def test_this_machine_is_asked_over_plain_http() -> None:
    for url in ("http://localhost:1/v1", "http://127.0.0.1:1/v1", "http://127.8.9.1:1/v1", "http://[::1]:1/v1"):
        assert is_loopback(url)
        Endpoint(url, "m", QUICK)
    assert not is_loopback("http://0.0.0.0/v1")


def test_no_proxy_is_handed_a_key_that_is_for_this_machine(
    server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with FakeEndpoint(echo) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        Endpoint(server.url, "m", QUICK).complete(asked("x"))
        assert (len(proxy.requests), len(server.requests)) == (0, 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_carries_nothing(status: int, server: FakeEndpoint) -> None:
    answer = (status, {"Location": f"{server.url}/chat/completions"}, b"")
    with FakeEndpoint(in_turn(answer)) as first, pytest.raises(EndpointError, match="sends on to"):
        Endpoint(first.url, "m", QUICK).complete(asked("x"))
    assert server.requests == []


# What a folder may write


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "cache", ["{outside}", "../outside.db", "a/../../outside.db", "link.db", "linked/c.db", ".", "\0"]
)
def test_a_cache_outside_of_its_folder_is_refused(
    cache: str, named: bool, tmp_path: Path, server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = saved(rewrite(server.url), tmp_path / "m")
    (folder / "link.db").symlink_to(tmp_path / "outside.db")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    edited(folder, cache=cache.format(outside=tmp_path / "outside.db"))
    if named:
        monkeypatch.setenv(HOSTS_VARIABLE, server.url.split("/")[2])
    with pytest.raises(BadModel, match="outside of its folder as cache"):
        load_model(folder)
    assert not (tmp_path / "outside.db").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_cache_in_the_folder_serves(tmp_path: Path, server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = edited(saved(rewrite(server.url), tmp_path / "m"), cache="kept/answers.db")
    monkeypatch.chdir(tmp_path)
    load_model(folder)
    assert not (folder / "kept").exists()  # who is not asked keeps nothing
    monkeypatch.setenv(HOSTS_VARIABLE, server.url.split("/")[2])
    for _ in range(2):
        retriever = load_model(Path("m"))
        retriever.add(TOOLS)
        retriever.search([REQUEST], 1)
    assert len(server.requests) == 1
    assert (folder / "kept" / "answers.db").is_file()
    retriever.save(tmp_path / "copy")
    assert load_model(tmp_path / "copy").options == retriever.options
    assert (tmp_path / "copy" / "kept" / "answers.db").is_file()


def test_a_cache_of_the_users_may_lie_anywhere_and_is_not_saved(tmp_path: Path, server: FakeEndpoint) -> None:
    own = rewrite(server.url, cache=str(tmp_path / "mine.db"))
    assert (tmp_path / "mine.db").is_file()
    opened = load_model(saved(own, tmp_path / "m"))
    assert opened.options == replace(own.options, cache="")
    assert str(tmp_path) not in (tmp_path / "m" / "model.json").read_text()
    own = rewrite(server.url, cache=str(tmp_path / "n" / "answers.db"))
    assert load_model(saved(own, tmp_path / "n")).options == replace(own.options, cache="answers.db")
