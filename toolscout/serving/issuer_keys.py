"""The public keys of a sign-in service (an OpenID Connect issuer or OAuth authorization server)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from toolscout.core.addresses import Addresses
from toolscout.core.http_json import FetchFailed, fetch_json, is_secure
from toolscout.core.tool import clean_text
from toolscout.errors import BadRequest, SignInUnavailable

# Signatures that are accepted, each with the type and the curve of its keys. None is symmetric: with one of these a
# public key could be taken for a shared secret.
ALGORITHMS: Mapping[str, tuple[str, str | None]] = {
    "RS256": ("RSA", None),
    "PS256": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "EdDSA": ("OKP", "Ed25519"),
}
FRESH_S = 3_600.0
"""How old keys may be before they are read again."""
PAUSE_S = 10.0
"""The least time between two requests to an issuer, however many tokens name keys that nobody knows."""
_MAX_KEYS = 100
_log = logging.getLogger("toolscout.serving")


class _Key(NamedTuple):
    kid: str | None
    algorithm: str
    key: Any  # jwt.PyJWK


class IssuerKeys:
    """The keys of one issuer, found through its metadata. Safe to use from many threads.

    `wants` and `find` only look at what is known; `fetch` asks the issuer.
    """

    def __init__(self, issuer: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the issuer's URL, as its tokens name it. Raises BadRequest where it is neither https nor on loopback."""
        if not is_secure(issuer) or urlsplit(issuer).query:
            raise BadRequest(
                f"{issuer!r:.200} cannot be an issuer; give its https address (http only on this machine), as its "
                "tokens name it under 'iss'"
            )
        self.issuer = issuer
        self._addresses = Addresses.of_url(issuer)
        self._clock = clock
        self._keys: tuple[_Key, ...] | None = None
        self._fetched = self._attempted = -math.inf
        self._failed = False
        self._lock = threading.Lock()  # held while the issuer is asked

    def wants(self, kid: str | None) -> bool:
        """Return whether the issuer should be asked now: for a key that is not known, or as the keys are old."""
        now = self._clock()
        if now - self._attempted < PAUSE_S:
            return False
        return now - self._fetched > FRESH_S or not self._knows(kid)

    def fetch(self, kid: str | None = None) -> None:
        """Read the keys, where `wants(kid)` still says so; a failure is logged and the known keys stay."""
        with self._lock:
            if not self.wants(kid):  # another thread has just read them
                return
            self._attempted = self._clock()
            try:
                keys = self._read()
            except FetchFailed as error:
                self._failed = True
                _log.warning("the keys of %s cannot be read: %s", self.issuer, clean_text(str(error)))
                return
            self._keys, self._failed, self._fetched = keys, False, self._clock()

    def find(self, kid: str | None, algorithm: str, age: float) -> list[Any]:
        """Return the keys that may have signed a token; [] where there is surely none.

        `age`: seconds since the token was issued. Raises SignInUnavailable where the key may exist and is not known:
        the issuer did not answer, or the token is newer than what is known and it is too early to ask again.
        """
        found = [one.key for one in self._keys or () if one.algorithm == algorithm and kid in (None, one.kid)]
        now = self._clock()
        if not found and not self._knows(kid) and (self._keys is None or self._failed or age < now - self._fetched):
            left = max(1, math.ceil(self._attempted + PAUSE_S - now)) if self._attempted > -math.inf else 1
            raise SignInUnavailable(f"a token of {self.issuer} cannot be checked: its key is not known", left)
        return found

    def _knows(self, kid: str | None) -> bool:
        return any(kid in (None, one.kid) for one in self._keys or ())

    def _read(self) -> tuple[_Key, ...]:
        address = self._metadata().get("jwks_uri")
        if not isinstance(address, str):
            raise FetchFailed("its metadata names no jwks_uri")
        listed = fetch_json(address, self._addresses).get("keys")
        keys = [key for one in (listed if isinstance(listed, list) else [])[:_MAX_KEYS] for key in _usable(one)]
        if not keys:
            raise FetchFailed(f"{address} holds no key for {', '.join(ALGORITHMS)}")
        return tuple(keys)

    def _metadata(self) -> Mapping[str, Any]:
        """Return the issuer's metadata, where OpenID Connect has it or else where RFC 8414 does."""
        parts = urlsplit(self.issuer)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        try:
            found = fetch_json(f"{origin}{path}/.well-known/openid-configuration", self._addresses)
        except FetchFailed as error:
            if not 400 <= error.status < 500:
                raise
            found = fetch_json(f"{origin}/.well-known/oauth-authorization-server{path}", self._addresses)
        if found.get("issuer") != self.issuer:
            raise FetchFailed(f"it calls itself {str(found.get('issuer'))[:200]!r}; give the issuer just so")
        return found


def _usable(jwk: Any) -> list[_Key]:
    """Return a public key of a JWKS once for each algorithm that it may be used with; [] for any other key."""
    import jwt

    if not isinstance(jwk, dict) or "d" in jwk or jwk.get("use", "sig") != "sig":
        return []
    operations, kid = jwk.get("key_ops", ["verify"]), jwk.get("kid")
    if not isinstance(operations, list) or "verify" not in operations or not isinstance(kid, str | None):
        return []
    found = []
    for algorithm, (kind, curve) in ALGORITHMS.items():
        if jwk.get("kty") == kind and jwk.get("alg", algorithm) == algorithm and curve in (None, jwk.get("crv")):
            try:
                found.append(_Key(kid, algorithm, jwt.PyJWK(jwk, algorithm)))
            except (jwt.PyJWTError, ValueError, TypeError):  # a malformed key; the others are used
                continue
    return found
