"""Which addresses are connected to. Refusals are tested on the address: nothing here connects but to loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from toolscout import catalogue
from toolscout.calling import http_request
from toolscout.catalogue import ReadOptions
from toolscout.core.addresses import Addresses, PrivateAddress, is_public
from toolscout.errors import BadRequest, BadSource

pytestmark = pytest.mark.slow

PRIVATE = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.1.2.3", "240.0.0.1", "255.255.255.255", "168.63.129.16", "192.88.99.1",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::a00:1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2002:808:808::1",
    "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1",
    "fd00:ec2::254", "ff02::1", "ff0e::1", "100::1", "4000::1", "not an address", "", "1.2.3", "127.1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "100.63.0.1"]
DOCUMENT = {"openapi": "3.0.0", "info": {"title": "T"}, "paths": {"/a": {"get": {"operationId": "a"}}}}


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(PrivateAddress, match=r"^shop\.example is not at a public address"):
        Addresses.of(["other.example"]).check("shop.example", 443, address)
    Addresses.of(["shop.example"]).check("shop.example", 443, address)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)
    Addresses().check("shop.example", 443, address)


def test_a_refusal_does_not_tell_the_address() -> None:
    with pytest.raises(PrivateAddress) as caught:
        Addresses().check("intranet.example", 80, "10.1.2.3")
    assert "10.1.2.3" not in str(caught.value)


@pytest.mark.parametrize(
    ("named", "host", "port", "found"),
    [
        ("localhost", "localhost", 8000, True),
        ("LOCALHOST.", "localhost", 80, True),
        ("localhost", "LocalHost.", 80, True),
        ("localhost:8000", "localhost", 8000, True),
        ("localhost:8000", "localhost", 8001, False),
        ("localhost", "localhost.evil.example", 80, False),
        ("example", "sub.example", 80, False),
        ("::1", "0:0:0:0:0:0:0:1", 80, True),
        ("[::1]:8000", "::1", 8000, True),
        ("[::1]:8000", "::1", 80, False),
        ("fe80::1", "fe80::1%eth0", 80, True),
        ("10.0.0.5", "10.0.0.5", 80, True),
        ("127.0.0.1", "127.1", 80, False),
        ("bücher.example", "xn--bcher-kva.example", 80, True),
        ("xn--bcher-kva.example", "BÜCHER.example", 80, True),
        ("localhost", "localhost%2e", 80, False),
        (" localhost ", "localhost", 80, True),
    ],
)
def test_how_hosts_are_named(named: str, host: str, port: int, found: bool) -> None:
    assert Addresses.of([named]).names(host, port) is found


@pytest.mark.parametrize(
    "text",
    ["", " ", "*", "http://localhost", "a b", "localhost/x", "10.0.0.0/8", "me@host", "host:port", "[::1", "a%b"],
)
def test_what_names_no_host(text: str) -> None:
    with pytest.raises(BadRequest, match="names no host; give host or host:port"):
        Addresses.of([text])


def test_the_host_of_a_url() -> None:
    plain = Addresses.of_url("http://me:pw@Intranet.example/x?y")
    assert plain.names("intranet.example", 80)
    assert plain.names("intranet.example", 443)  # a site may send on to its own TLS
    assert not plain.names("intranet.example", 8080)
    assert Addresses.of_url("https://[::1]:9/") == Addresses.of(["[::1]:9"])
    assert Addresses.of_url("https://a.example/") == Addresses.of(["a.example:443"])
    for wrong in ("http://", "http://[::1", "http://a:b/", "ftp://localhost/", "localhost"):
        assert Addresses.of_url(wrong) == Addresses()


class Network:
    """Answers for the resolver, and notes each address that something tried to connect to. Nothing is connected."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        self.tried: list[Any] = []
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)
        monkeypatch.setattr(socket.socket, "connect", lambda _, place: self._try(place))
        monkeypatch.setattr(socket.socket, "connect_ex", lambda _, place: self._try(place))

    def _look_up(self, host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else str(host)
        self.asked.append(name)
        answers = self.answers[name]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (one, port, 0, 0)) if ":" in one
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in found
        ]  # fmt: skip

    def _try(self, place: Any) -> Any:
        self.tried.append(place[:2])
        raise ConnectionRefusedError("nothing is connected here")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return Network(monkeypatch)


KINDS = ["http://shop.example/openapi.json", "https://shop.example/openapi.json", "http://shop.example/mcp",
         "https://shop.example/mcp"]  # fmt: skip


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1"])
@pytest.mark.parametrize("url", KINDS)
def test_nothing_is_connected_for_a_private_address(network: Network, url: str, address: str) -> None:
    network.answers["shop.example"] = [[address]]
    with pytest.raises(BadSource, match=r"shop\.example is not at a public address"):
        list(catalogue.read(url, ReadOptions(timeout=10, addresses=Addresses())))
    assert network.tried == []


@pytest.mark.parametrize("url", KINDS)
def test_one_private_address_among_public_ones_is_enough(network: Network, url: str) -> None:
    network.answers["shop.example"] = [["8.8.8.8", "10.0.0.1"]]
    with pytest.raises(BadSource, match=r"shop\.example is not at a public address"):
        list(catalogue.read(url, ReadOptions(timeout=10, addresses=Addresses())))
    assert network.tried == []


@pytest.mark.parametrize("url", KINDS)
def test_the_address_that_was_checked_is_the_one_that_is_connected_to(network: Network, url: str) -> None:
    """A name whose second answer is another (DNS rebinding): there is no second question."""
    network.answers["shop.example"] = [["8.8.8.8"], ["127.0.0.1"]]
    with contextlib.suppress(BadSource):
        list(catalogue.read(url, ReadOptions(timeout=10, addresses=Addresses())))
    assert network.tried[0] == ("8.8.8.8", 443 if url.startswith("https") else 80)
    assert {place[0] for place in network.tried} == {"8.8.8.8"}
    assert network.asked.count("shop.example") == 1 or url.endswith(
        "/mcp"
    )  # an MCP client may try again, checked again


@pytest.mark.parametrize("url", KINDS)
def test_a_host_that_was_named_may_be_anywhere(network: Network, url: str) -> None:
    network.answers["shop.example"] = [["10.0.0.1"]]
    network.answers["10.0.0.1"] = [["10.0.0.1"]]
    for addresses in (None, Addresses.of(["SHOP.example."])):
        network.tried.clear()
        with pytest.raises(BadSource) as caught:
            list(catalogue.read(url, ReadOptions(timeout=10, addresses=addresses)))
        assert "public" not in str(caught.value)
        assert network.tried[0][0] == "10.0.0.1"


@pytest.mark.parametrize("host", ["127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1", "[::ffff:7f00:1]", "127%2e0.0.1"])
def test_other_spellings_of_an_address(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, place: tried.append(place))
    with pytest.raises(BadSource, match="is not at a public address"):
        list(catalogue.read(f"http://{host}/a.json", ReadOptions(timeout=5, addresses=Addresses.of(["127.0.0.2"]))))
    assert not tried


def test_calls_are_checked_too(network: Network) -> None:
    network.answers["shop.example"] = [["10.0.0.1"]]
    made = http_request.HttpRequest("GET", "http://shop.example/orders")
    with pytest.raises(BadRequest, match=r"cannot be reached: shop\.example is not at a public address"):
        http_request.send(made, 5, Addresses.of(["other.example"]))
    assert network.tried == []
    with pytest.raises(BadRequest, match="nothing is connected here"):
        http_request.send(made, 5)
    assert network.tried == [("10.0.0.1", 80)]


@contextlib.contextmanager
def site(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """A server on loopback, and what it was asked: paths and headers."""
    asked: list[tuple[str, dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            with contextlib.suppress(OSError):
                answer(self)

        do_CONNECT = do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def document(handler: BaseHTTPRequestHandler) -> None:
    data = json.dumps(DOCUMENT).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def redirect(to: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/there":
            document(handler)
        else:
            handler.send_response(302)
            handler.send_header("Location", to)
            handler.end_headers()

    return answer


@pytest.mark.parametrize(
    "to",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "http://[::1]:{port}/",
        "http://localhost:{port}/",
        "http://127.0.0.1:{port}/",
        "//127.0.0.1:{port}/",
        "http://127.1:{port}/",
        "https://127.0.0.1:{port}/",
        "ftp://127.0.0.1:{port}/x",
        "file:///etc/passwd",
        "data:application/json,{{}}",
    ],
)
def test_redirects_are_checked(monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    tried: list[Any] = []
    real = socket.socket.connect

    def connect(self: socket.socket, place: Any) -> None:
        tried.append(place[:2])
        assert place[0] == "127.0.0.1"
        real(self, place)

    with site(document) as (other, seen), site(redirect(to.format(port=other.rpartition(":")[2]))) as (url, asked):
        monkeypatch.setattr(socket.socket, "connect", connect)
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        with pytest.raises(BadSource):
            list(catalogue.read(f"{url}/a.json", ReadOptions(timeout=10, headers={"X-Secret": "s"})))
        with contextlib.suppress(BadRequest):  # a scheme that is not followed is an answer
            answer = http_request.send(http_request.HttpRequest("GET", f"{url}/a", {"X-Secret": "s"}), 10)
            assert answer.status == 302
    assert [headers.get("x-secret") for _, headers in asked] == ["s", "s"]
    assert set(tried) == {place}
    assert not seen


def test_redirects_to_named_hosts_are_followed_without_headers() -> None:
    with site(document) as (other, seen), site(redirect(f"{other}/x")) as (url, _):
        hosts = [address.removeprefix("http://") for address in (url, other)]
        options = ReadOptions(timeout=10, headers={"X-Secret": "s"}, addresses=Addresses.of(hosts))
        assert [tool.name for tool in catalogue.read(f"{url}/a.json", options)] == ["a"]
        assert "x-secret" not in seen[0][1]
    with site(redirect("/there")) as (url, asked):
        assert len(list(catalogue.read(f"{url}/a.json"))) == 1
        assert [path for path, _ in asked] == ["/a.json", "/there"]


def test_the_body_of_a_redirect_is_not_read() -> None:
    stopped = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        redirect("/there")(handler)
        if handler.path != "/there":
            for _ in range(2_000):  # 2 GB
                handler.wfile.write(bytes(1 << 20))
            stopped.set()

    with site(answer) as (url, _):
        assert len(list(catalogue.read(f"{url}/a.json", ReadOptions(timeout=10)))) == 1
    assert not stopped.is_set()


@pytest.mark.timing
@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 200 OK\r\nX-A: ", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_server_that_drips_is_left_in_time(part: bytes) -> None:
    """One byte now and then keeps a socket's own time-out from ever passing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def drip() -> None:
            with contextlib.suppress(OSError):
                connected, _ = server.accept()
                with connected:
                    connected.recv(10_000)
                    for _ in range(100):
                        connected.sendall(part)
                        time.sleep(0.1)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url, began = f"http://127.0.0.1:{server.getsockname()[1]}/a.json", time.monotonic()
        with pytest.raises(BadSource, match=r"did not answer within 0\.5 s|cannot be fetched"):
            list(catalogue.read(url, ReadOptions(timeout=0.5)))
        assert time.monotonic() - began < 5
        thread.join(10)


def test_names_stay_with_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to an address, and TLS still asks for the name (so its certificate must be for the name)."""
    hello: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def listen() -> None:
            with contextlib.suppress(OSError):
                for _ in range(2):
                    connected, _place = server.accept()
                    with connected:
                        hello.append(connected.recv(10_000))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
        monkeypatch.setattr("toolscout.core.addresses.is_public", lambda _: True)
        for path in ("openapi.json", "mcp"):
            url = f"https://shop.example:{port}/{path}"
            with pytest.raises(BadSource):
                list(catalogue.read(url, ReadOptions(timeout=5, addresses=Addresses())))
        thread.join(10)
    assert len(hello) == 2
    assert all(b"shop.example" in found for found in hello)


def test_proxies_are_for_named_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy looks names up itself, so what nobody named is not sent to it; the proxy may be anywhere."""
    with site(document) as (proxy, asked):
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy.replace("://", "://user:proxy-secret@"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert len(list(catalogue.read("http://shop.example/a.json", ReadOptions(timeout=10)))) == 1
        assert asked[0][0] == "http://shop.example/a.json"
        assert asked[0][1]["proxy-authorization"]
        assert http_request.send(http_request.HttpRequest("GET", "http://shop.example/b"), 10).status == 200
        with pytest.raises(BadSource):  # it is no MCP server
            list(catalogue.read("http://shop.example/mcp", ReadOptions(timeout=10)))
        assert asked[-1][0] == "http://shop.example/mcp"
        asked.clear()
        network = Network(monkeypatch)
        network.answers["shop.example"] = [["10.0.0.1"]]
        for url in KINDS:
            with pytest.raises(BadSource, match="is not at a public address"):
                list(catalogue.read(url, ReadOptions(timeout=10, addresses=Addresses())))
    assert not asked
    assert network.tried == []


def test_a_proxy_s_password_does_not_follow_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    with site(document) as (other, seen), site(redirect(f"{other}/x")) as (proxy, asked):
        monkeypatch.setenv("http_proxy", proxy.replace("://", "://user:proxy-secret@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        addresses = Addresses.of(["shop.example", other.removeprefix("http://")])
        assert len(list(catalogue.read("http://shop.example/a.json", ReadOptions(addresses=addresses)))) == 1
    assert asked[0][1]["proxy-authorization"]
    assert "proxy-authorization" not in seen[0][1]
