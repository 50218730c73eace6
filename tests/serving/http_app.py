"""A server over a small catalogue with three kinds of callers, and a client that speaks JSON to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.toys import HashedWords
from toolscout import Scout, Tool
from toolscout.core.permissions import Principal, new_key
from toolscout.serving.access import Access
from toolscout.serving.app import make_app
from toolscout.serving.limits import ServeOptions

TOOLS = [
    Tool("mail", "send_email", "Sends an email to somebody.", input_schema={
        "type": "object", "required": ["to"], "properties": {"to": {"type": "string", "description": "Who gets it"}},
    }),
    Tool("mail", "search_email", "Finds email by words, sender and date."),
    Tool("weather", "get_forecast", "Tells how warm and how wet the coming days will be."),
    Tool("zoo", "feed_lion", "Gives the lion its dinner."),
    Tool("vault", "open_vault", "Opens the vault of the lion."),
]  # fmt: skip


@dataclass
class Served:
    """A running server."""

    scout: Scout
    client: TestClient
    keys: dict[str, str]

    def post(self, path: str, body: Any, key: str = "admin", **headers: str) -> Any:
        return self.client.post(path, json=body, headers=self.headers(key) | headers)

    def get(self, path: str, key: str = "admin", **headers: str) -> Any:
        return self.client.get(path, headers=self.headers(key) | headers)

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[key]}"} if key in self.keys else {}


@contextmanager
def served(folder: Path, options: ServeOptions | None = None, *, keyed: bool = True) -> Iterator[Served]:
    """A server over words and hashed words; `keyed` makes an admin, a restricted caller and one who may see all."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("toolscout.models.encoders.onnx_encoder.Encoder", HashedWords)
        with Scout.open(folder / "tools.db") as scout:
            scout.add(TOOLS)
            keys = {}
            if keyed:
                for name, allow, admin in (("admin", "*", True), ("user", "*", False), ("guest", "mail/*", False)):
                    scout.store.put_principal(Principal(name, allow=(allow,), admin=admin))
                    keys[name], resting = new_key(name)
                    scout.store.add_key(resting)
            app = make_app(scout, Access(scout), options or ServeOptions(rate=0))
            with TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
                yield Served(scout, client, keys)
