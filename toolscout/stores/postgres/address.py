"""The URL of a PostgreSQL store: which part of it is ours, which libpq's, and how it is shown without its password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from toolscout.errors import StoreError

SCHEMA = "toolscout"
_URL = re.compile(r"postgres(?:ql)?://[^?#]*(?:\?[^#]*)?")
_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
_EXAMPLE = "such as postgresql://user@host/database?schema=toolscout"
# Parameters of the URL that are ours, with the value that each has where the URL does not say.
_OWN = {"schema": SCHEMA, "pool_size": "10", "statement_timeout": "60", "lock_timeout": "30"}
# libpq's own, where the URL does not say. A server that vanished is noticed after about ten seconds.
_LIBPQ = {
    "connect_timeout": "5",
    "application_name": "toolscout",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "client_encoding": "utf8",
}


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """Where a store is. Its text and its repr show host, database and schema alone."""

    place: str
    schema: str
    pool_size: int
    statement_timeout: float
    lock_timeout: float
    parameters: Mapping[str, str]  # libpq's, which may hold the password

    def __str__(self) -> str:
        """Return host, database and schema."""
        return self.place

    __repr__ = __str__


def is_postgres(place: object) -> bool:
    """Return whether a store is named by the URL of a PostgreSQL database."""
    return isinstance(place, str) and _URL.match(place) is not None


def read_address(url: str) -> Address:
    """Read a URL. Raises StoreError, which never quotes the URL, where a part of it is malformed."""
    if _URL.fullmatch(url) is None:
        raise StoreError(f"the URL of the store cannot be read; give one {_EXAMPLE}")
    base, _, query = url.partition("?")
    if base.count("@") > 1:
        raise StoreError("the URL of the store has more than one @; in a user name or password write @ as %40")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    own = _OWN | {key: unquote(value) for key, _, value in pairs if key in _OWN}
    rest = "&".join(key + equals + value for key, equals, value in pairs if key not in _OWN)
    try:
        given = conninfo_to_dict(f"{base}?{rest}" if rest else base)
    except psycopg.Error:
        # libpq's own message may quote a piece of the password.
        raise StoreError(
            f"the URL of the store cannot be read: a parameter is unknown, or a % or / in it is not escaped; "
            f"give one {_EXAMPLE}"
        ) from None
    if _NAME.fullmatch(own["schema"]) is None:
        raise StoreError(
            f"schema={own['schema']!r:.80} is no name of a schema here; use small letters, digits and _, beginning "
            "with a letter, 63 at most, and not pg_"
        )
    if not re.fullmatch(r"[\d,]*", str(given.get("port", ""))):
        raise StoreError(f"the URL of the store has a port that is no number; give one {_EXAMPLE}")
    parameters = _LIBPQ | {key: str(value) for key, value in given.items()}
    return Address(
        _shown(parameters, own["schema"]),
        own["schema"],
        _whole(own["pool_size"]),
        _seconds("statement_timeout", own["statement_timeout"]),
        _seconds("lock_timeout", own["lock_timeout"]),
        parameters,
    )


def conninfo(address: Address) -> str:
    """Return what libpq connects with. It may hold the password: it is never shown."""
    return make_conninfo("", **address.parameters)


def _shown(parameters: Mapping[str, str], schema: str) -> str:
    service = parameters.get("service")
    host, port = parameters.get("host", ""), parameters.get("port")
    place = f"{host}{f':{port}' if port else ''}/{parameters.get('dbname', '')}"
    shown = f"postgresql://{quote(place, safe='/:,.[]%')}"
    return f"{shown}?{f'service={quote(service)}&' if service else ''}schema={schema}"


def _whole(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 2 <= int(value) <= 1000:
        raise StoreError(f"pool_size is a number of connections from 2 to 1000, got {value!r:.40}")
    return int(value)


def _seconds(name: str, value: str) -> float:
    if re.fullmatch(r"\d{1,6}(\.\d{1,3})?", value) is None or float(value) <= 0:
        raise StoreError(f"{name} is a number of seconds above 0, got {value!r:.40}")
    return float(value)
