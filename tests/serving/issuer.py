"""A sign-in service for tests: it serves its metadata and keys on loopback, and signs what a test likes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE = "toolscout-test"


def new_key(algorithm: str = "RS256") -> Any:
    """A private key for an algorithm."""
    if algorithm == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk_of(key: Any, algorithm: str, kid: str | None, **more: Any) -> dict[str, Any]:
    """The public half of a key as a JWKS has it."""
    kinds = {"ES256": jwt.algorithms.ECAlgorithm, "EdDSA": jwt.algorithms.OKPAlgorithm}
    found: dict[str, Any] = kinds.get(algorithm, jwt.algorithms.RSAAlgorithm).to_jwk(key.public_key(), as_dict=True)
    found.pop("key_ops", None)
    return found | {"alg": algorithm, "use": "sig"} | ({"kid": kid} if kid else {}) | more


class Issuer:
    """A running service. `asked`: the paths that were asked; `down`: it answers 503 to all."""

    def __init__(self, path: str = "") -> None:
        self.path = path.rstrip("/")
        self.keys: dict[str, tuple[Any, str]] = {"k1": (new_key(), "RS256")}
        self.jwks: list[dict[str, Any]] | None = None  # in place of those of `keys`
        self.metadata: dict[str, Any] = {}
        self.well_known = f"{self.path}/.well-known/openid-configuration"
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []
        self.down = False
        self.url = ""

    def token(self, kid: str = "k1", *, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token that is valid for five minutes; a claim that is None is left out."""
        now = int(time.time())
        body = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now, "nbf": now, "exp": now + 300} | claims
        key, algorithm = self.keys[kid]
        headers = {"kid": kid, "typ": "at+jwt"} | (header or {})
        return jwt.encode(
            {name: value for name, value in body.items() if value is not None},
            key,
            algorithm,
            headers={name: value for name, value in headers.items() if value is not None},
        )

    def answer(self, path: str) -> tuple[int, Any]:
        """What a path answers."""
        self.asked.append(path)
        if self.down:
            return 503, {}
        if path in self.answers:
            return self.answers[path]
        if path == self.well_known:
            return 200, {"issuer": self.url, "jwks_uri": f"{self.url.rstrip('/')}/jwks"} | self.metadata
        if path == f"{self.path}/jwks":
            listed = [jwk_of(key, algorithm, kid) for kid, (key, algorithm) in self.keys.items()]
            return 200, {"keys": listed if self.jwks is None else self.jwks}
        return 404, {}


@contextmanager
def issuing(path: str = "") -> Iterator[Issuer]:
    """A service that runs inside the block."""
    issuer = Issuer(path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = issuer.answer(self.path)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", str(body))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}{path}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
