"""Credentials for the servers behind the gateway: the caller's own, or those that are got or kept for a caller.

```json
{"auth": {"kind": "pass-through"}}
{"auth": {"kind": "pass-through", "list": "public"}}
{"auth": {"kind": "exchange", "tokenUrl": "https://…", "audience": "…", "clientId": "…", "clientSecret": "${VAR}"}}
{"auth": {"kind": "client-credentials", "tokenUrl": "https://…", "clientId": "…", "clientSecret": "${VAR}"}}
{"auth": {"kind": "key-per-principal", "header": "X-Api-Key", "from": "env:SHOP_KEY_"}}
```
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from toolscout.catalogue.base import ReadOptions
from toolscout.catalogue.mcp.config import expand_variables
from toolscout.core.addresses import Addresses
from toolscout.core.http_json import FetchFailed, fetch_json, is_secure
from toolscout.errors import BadSource, ToolscoutError
from toolscout.serving.access import Caller

_KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # by kind: keys that must be there, keys that may
    "pass-through": ((), ("list",)),
    "exchange": (("tokenUrl",), ("audience", "resource", "scope", "clientId", "clientSecret", "list")),
    "client-credentials": (("tokenUrl", "clientId", "clientSecret"), ("audience", "resource", "scope")),
    "key-per-principal": (("from",), ("header", "list")),
}
_SECRET = re.compile(r"[\x21-\x7e]{1,16384}")  # what can stand in a header
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_EARLY_S = 30.0  # before it expires, a token is replaced
_USUAL_S = 300.0  # how long a token holds whose service does not say
_MAX_TOKENS = 1_024
_MAX_FILE = 1 << 20
_PUBLIC = "public"
_GRANT, _TOKEN_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange", "urn:ietf:params:oauth:token-type:access_token"
_log = logging.getLogger("toolscout.gateway")


@dataclass(frozen=True, slots=True)
class UpstreamAuth:
    """How a server is told who calls: one `kind` of the four above, with the settings that it takes."""

    kind: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def per_caller(self) -> bool:
        """Whether each caller has credentials of its own."""
        return self.kind != "client-credentials"

    @property
    def lists_publicly(self) -> bool:
        """Whether an MCP server lists its tools to everybody alike, without credentials of a caller."""
        return self.settings.get("list") == _PUBLIC


class NoCredentials(ToolscoutError):
    """A server that cannot be used for this caller now. Callers see the message unchanged; it holds no secret."""

    def __init__(self, message: str) -> None:
        """Say what is missing."""
        super().__init__(message, public=message)


def parse_upstream_auth(entry: Mapping[str, Any], options: ReadOptions, place: Path | None) -> UpstreamAuth | None:
    """Return the `auth` of a server or source in the configuration; BadSource says what is wrong with it."""
    found = entry.get("auth")
    if found is None:
        return None
    kind = found.get("kind") if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or not isinstance(kind, str) or kind not in _KEYS:
        raise BadSource(f"'auth' must be an object whose 'kind' is one of: {', '.join(_KEYS)}")
    needed, possible = _KEYS[kind]
    for key, value in found.items():
        if key not in ("kind", *needed, *possible):
            raise BadSource(
                f"'auth' of kind {kind} has {key!r:.80}; it takes {', '.join((*needed, *possible)) or 'nothing'}"
            )
        if not isinstance(value, str) or not value:
            raise BadSource(f"{key!r:.80} of 'auth' must be a text")
    settings = {key: expand_variables(value, options) for key, value in found.items() if key != "kind"}
    if missing := [key for key in needed if not settings.get(key)]:
        raise BadSource(f"'auth' of kind {kind} needs {missing[0]!r}")
    if "tokenUrl" in settings and not is_secure(settings["tokenUrl"]):
        raise BadSource("'tokenUrl' must be an https address, or http on this machine")
    if settings.get("list", _PUBLIC) != _PUBLIC:
        raise BadSource(f"'list' must be {_PUBLIC!r}, where the server lists its tools without a sign-in, or left out")
    if ("clientId" in settings) != ("clientSecret" in settings):
        raise BadSource("'clientId' and 'clientSecret' go together")
    if not _HEADER.fullmatch(settings.get("header", "Authorization")):
        raise BadSource("'header' must be the name of a header")
    if kind == "key-per-principal" and not settings["from"].startswith("env:"):
        settings["from"] = str((place.parent if place else Path()) / settings["from"])
    return UpstreamAuth(kind, settings)


class Credentials:
    """Makes the headers that tell one server who calls. Safe to use from many threads.

    Tokens are kept in memory until shortly before they expire, each for the very caller and token it was got with.
    """

    def __init__(self, name: str, auth: UpstreamAuth, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the server's name and how it is told who calls."""
        self.name, self.auth = name, auth
        self._clock = clock
        self._tokens: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
        self._lock = threading.Lock()

    def headers(self, caller: Caller | None, token: str | None) -> dict[str, str]:
        """Return the headers for a call; a token service may be asked, which takes time.

        `token`: what the caller sent to be known. Raises NoCredentials where the server cannot be used for it.
        """
        settings = self.auth.settings
        if self.auth.kind == "key-per-principal":
            key = self._key(caller.name if caller else "")
            return {settings["header"]: key} if "header" in settings else {"Authorization": f"Bearer {key}"}
        if self.auth.kind == "client-credentials":
            form = {"grant_type": "client_credentials"}
            return {"Authorization": f"Bearer {self._token(('', ''), form)}"}
        # A key of toolscout is for toolscout alone: only somebody who signed in has anything to pass on.
        if caller is None or caller.user is None or not token:
            raise NoCredentials(f"{self.name} is used in your own name: sign in with your account, not with a key")
        if self.auth.kind == "pass-through":
            return {"Authorization": f"Bearer {token}"}
        form = {"grant_type": _GRANT, "subject_token": token, "subject_token_type": _TOKEN_TYPE}
        digest = hashlib.sha256(token.encode()).hexdigest()
        got = self._token((caller.identity, digest), form | {"requested_token_type": _TOKEN_TYPE})
        return {"Authorization": f"Bearer {got}"}

    def secrets(self) -> list[str]:
        """Return the secret of this gateway itself and the tokens that it got, which a server may quote."""
        with self._lock:
            tokens = [token for _, token in self._tokens.values()] if not self.auth.per_caller else []
        return [*tokens, *filter(None, [self.auth.settings.get("clientSecret")])]

    def forget(self) -> None:
        """Forget all tokens, as the server refused one before its time."""
        with self._lock:
            self._tokens.clear()

    def _token(self, owner: tuple[str, str], form: dict[str, str]) -> str:
        with self._lock:
            until, token = self._tokens.get(owner, (-math.inf, ""))
            if self._clock() < until:
                self._tokens.move_to_end(owner)
                return token
        began = self._clock()
        token, seconds = self._fetch(form)
        with self._lock:
            self._tokens[owner] = (began + seconds - min(_EARLY_S, seconds / 2), token)
            self._tokens.move_to_end(owner)
            while len(self._tokens) > _MAX_TOKENS:
                self._tokens.popitem(last=False)
        return token

    def _fetch(self, form: dict[str, str]) -> tuple[str, float]:
        """Return a token of the token service, and for how many seconds it holds."""
        settings, headers = self.auth.settings, {}
        form |= {key: settings[key] for key in ("audience", "resource", "scope") if key in settings}
        if "clientId" in settings:
            pair = f"{quote_plus(settings['clientId'])}:{quote_plus(settings['clientSecret'])}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        url = settings["tokenUrl"]
        try:
            answer = fetch_json(url, Addresses.of_url(url), form=form, headers=headers)
        except FetchFailed as error:
            _log.warning("%s: no token: %s", self.name, error)
            refused = 400 <= error.status < 500
            why = "gives none for you" if refused else "does not answer now; try again in a moment"
            raise NoCredentials(f"{self.name} needs a token, and its token service {why}") from None
        token, kind, seconds = answer.get("access_token"), answer.get("token_type"), answer.get("expires_in", _USUAL_S)
        usable = isinstance(token, str) and _SECRET.fullmatch(token) and str(kind).lower() in ("bearer", "n_a")
        if not isinstance(token, str) or not usable:
            _log.warning("%s: its token service answered without a bearer token", self.name)
            raise NoCredentials(f"{self.name} needs a token, and its token service gives none that can be used")
        known = isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0
        return token, min(float(seconds), 86_400.0) if known else 0.0

    def _key(self, principal: str) -> str:
        """Return the key that is kept for a principal, named exactly as it is, so that no two share one by mistake."""
        place = self.auth.settings["from"]
        if place.startswith("env:"):
            found: Any = os.environ.get(place.removeprefix("env:") + principal) if principal else None
        else:
            try:
                with open(place, "rb") as file:
                    keys = json.loads(file.read(_MAX_FILE))
                found = keys.get(principal) if isinstance(keys, dict) else None
            except (OSError, ValueError, RecursionError) as error:
                _log.error("%s: the file of its keys cannot be read: %s", self.name, type(error).__name__)
                found = None
        if not isinstance(found, str) or not _SECRET.fullmatch(found):
            raise NoCredentials(f"{self.name} has no key for you; ask whoever runs this server")
        return found
