"""Masks the secrets that were sent to a server in what it sends back: it may quote them, in errors above all."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, quote_plus

HIDDEN = "***"
SHORTEST_SECRET = 6
"""Characters of a secret; a shorter text is masked nowhere, as it stands in too many others."""
_PLAIN_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_SECRET_NAME = re.compile(r"(?i)key|token|secret|pass|pwd|credential|auth|(?:^|_)pat(?:_|$)|cookie|private")


class Secrets:
    """Texts that must not be shown."""

    def __init__(self, texts: Iterable[str] = (), headers: Mapping[str, str] | None = None) -> None:
        """Take secrets, and headers that hold some: of "Bearer KEY" a server may quote the key alone."""
        values = set(texts)
        for name, value in (headers or {}).items():
            if name.lower() not in _PLAIN_HEADERS:
                values |= _credentials(value)
        values = {value for value in values if len(value) >= SHORTEST_SECRET}
        forms = {form for value in values for form in _forms(value)}
        # Longest first: of two secrets one may hold the other.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))

    def joined(self, other: Secrets) -> Secrets:
        """Return these secrets and those of another."""
        made = Secrets()
        made._forms = sorted({*self._forms, *other._forms}, key=lambda form: (-len(form), form))
        return made

    def mask(self, text: str) -> str:
        """Return the text with *** for each secret, also as JSON, an address or base64 writes it."""
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text

    def mask_json(self, value: Any) -> Any:
        """Return a JSON value with all its texts masked, names of members included."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {self.mask(str(key)): self.mask_json(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask_json(one) for one in value]
        return value

    def occur_in(self, text: str) -> bool:
        """Return whether a text holds any of them."""
        return any(form in text for form in self._forms)


def secret_variables(env: Mapping[str, str]) -> list[str]:
    """Return the values of environment variables that by their names are secrets; a folder or a level is none."""
    return [value for name, value in env.items() if _SECRET_NAME.search(name)]


def _credentials(header: str) -> set[str]:
    """Return a header, what it has behind its scheme, and of Basic the password."""
    scheme, _, rest = header.strip().partition(" ")
    found = {header, rest} if " " not in rest else {header}
    if scheme.lower() == "basic":
        with suppress(binascii.Error, UnicodeDecodeError):
            found.add(base64.b64decode(rest, validate=True).decode().partition(":")[2])
    return found


def _forms(value: str) -> set[str]:
    """Return a secret as it is, and as JSON, an address and base64 write it."""
    encoded = base64.b64encode(value.encode("utf-8", "surrogatepass")).decode().rstrip("=")
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return {value, *escaped, quote(value, safe=""), quote_plus(value), encoded}
