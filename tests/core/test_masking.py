"""Secrets are found in the forms in which servers quote them, and nothing else is touched."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest

from toolscout.core.masking import Secrets, secret_variables

KEY = 'k"e\\y/ö+1 2'


@pytest.mark.parametrize(
    "quoted",
    [
        KEY,
        json.dumps(KEY),
        json.dumps({"a": [KEY]}, ensure_ascii=False),
        f"https://x.example/?key={quote(KEY, safe='')}",
        base64.b64encode(KEY.encode()).decode(),
    ],
)
def test_every_form_is_masked(quoted: str) -> None:
    masked = Secrets([KEY]).mask(f"you sent {quoted}, which is wrong")
    assert masked.startswith("you sent ")
    assert masked.endswith(", which is wrong")
    assert "***" in masked
    assert not {KEY, "e\\\\y", quote(KEY, safe="")} & {part for part in (masked,) if part}
    assert Secrets([KEY]).occur_in(quoted)
    assert not Secrets([KEY]).occur_in(masked)


def test_of_a_header_what_stands_behind_its_scheme_is_masked() -> None:
    basic = base64.b64encode(b"ann:open-sesame").decode()
    headers = {"Authorization": f"Basic {basic}", "X-Key": "Key abc-def", "X-Team": "one two 3", "Accept": "text/html"}
    secrets = Secrets(headers=headers)
    assert secrets.mask(f"Basic {basic}, open-sesame, ann") == "***, ***, ann"
    assert secrets.mask("abc-def, one two 3, two 3, text/html") == "***, ***, two 3, text/html"
    assert Secrets(headers={"authorization": "Bearer abc-def"}).mask("bearer abc-def") == "bearer ***"
    assert Secrets(headers={"authorization": "abc-def"}).mask("sent abc-def") == "sent ***"


def test_short_texts_are_left_alone_and_the_longest_goes_first() -> None:
    assert Secrets(["1", "", "abc"]).mask("1 abc") == "1 abc"
    assert Secrets(["secret", "secret-of-all"]).mask("secret-of-all, secret") == "***, ***"


def test_json_is_masked_all_through() -> None:
    secrets = Secrets(["hunter22"])
    value = {"hunter22": [{"a": "is hunter22"}, 1, None, True], "b": ("hunter22",)}
    assert secrets.mask_json(value) == {"***": [{"a": "is ***"}, 1, None, True], "b": ["***"]}


def test_variables_are_secret_by_their_names() -> None:
    env = {
        "API_KEY": "a",
        "GITHUB_TOKEN": "b",
        "DB_PASSWORD": "c",
        "GH_PAT": "d",
        "HOME": "e",
        "LOG_LEVEL": "f",
        "PATH": "g",
    }
    assert secret_variables(env) == ["a", "b", "c", "d"]
