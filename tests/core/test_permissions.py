"""Patterns say what they seem to say: compared with a naive reading of each of them, one id at a time."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolscout.core.answer import Allowed
from toolscout.core.permissions import KEY_PREFIX, Principal, Rules, key_digest, new_key
from toolscout.errors import BadRequest

SPACES = ["mail", "mail/old", "email", "code"]
NAMES = ["read", "read_all", "send", "delete", "delete_all"]
IDS = [f"{space}/{name}" for space in SPACES for name in NAMES]
PATTERNS = [
    "*",
    "*/*",
    "mail/*",
    "mail*/*",
    "*/delete*",
    "mail/read",
    "mail/read*",
    "?mail/*",
    "mail/old/s*",
    "code/[dr]*",
]

some = st.lists(st.sampled_from(PATTERNS), max_size=3, unique=True)
catalogues = st.sets(st.sampled_from(IDS))


def naive(pattern: str, tool_id: str) -> bool:
    space, _, name = ("*/*" if pattern == "*" else pattern).rpartition("/")
    own_space, _, own_name = tool_id.rpartition("/")
    return fnmatchcase(own_space, space) and fnmatchcase(own_name, name)


def compiled(rules: Rules, ids: set[str]) -> Allowed:
    return rules.compiled({i.rpartition("/")[0] for i in ids}, lambda n: {i for i in ids if i.rpartition("/")[0] == n})


@settings(max_examples=150, deadline=None)
@given(some, some, st.sets(st.sampled_from(SPACES)), st.sets(st.sampled_from(IDS)), catalogues, catalogues)
def test_they_let_through_what_they_say(
    allow: list[str], deny: list[str], spaces: set[str], ids: set[str], there: set[str], later: set[str]
) -> None:
    rules = Rules(Allowed.of(spaces, ids), allow, deny)

    def wanted(tool_id: str) -> bool:
        granted = tool_id.rpartition("/")[0] in spaces or tool_id in ids
        allowed = granted or any(naive(pattern, tool_id) for pattern in allow)
        return allowed and not any(naive(pattern, tool_id) for pattern in deny)

    allowed = compiled(rules, there)
    assert {i for i in IDS if rules.permits(i)} == {i for i in IDS if wanted(i)}
    assert {i for i in there if allowed.permits(i)} == {i for i in there if wanted(i)}
    # What was compiled before a tool came never lets through one that is denied.
    assert all(wanted(i) for i in later if allowed.permits(i))
    assert not rules.everything or all(map(wanted, IDS))


def test_a_namespace_stays_whole_where_nothing_of_it_can_be_denied() -> None:
    ids = set(IDS)
    assert compiled(Rules(Allowed(), ["mail/*", "code/*"], ["code/delete*"]), ids) == Allowed.of(
        ["mail"], ["code/read", "code/read_all", "code/send"]
    )
    assert compiled(Rules(Allowed(), ["*"], ["code/*"]), ids).namespaces == {"mail", "mail/old", "email"}
    assert compiled(Rules(Allowed.of(["mail"]), [], ["mail/x*"]), ids - {"mail/read"}).namespaces == set()


@pytest.mark.parametrize("pattern", ["mail", "", "/", "mail/", "/send", "**"])
def test_what_is_no_pattern(pattern: str) -> None:
    for patterns in ({"allow": (pattern,)}, {"deny": (pattern,)}):
        with pytest.raises(BadRequest, match=r"NAMESPACE/\*"):
            Principal("ann", **patterns)


def test_a_principal_needs_a_name() -> None:
    with pytest.raises(BadRequest, match="name"):
        Principal("  ")


def test_keys() -> None:
    key, resting = new_key("ann")
    other, _ = new_key("ann")
    assert key != other
    assert key.startswith(KEY_PREFIX)
    assert len(key) > 40
    assert resting.digest == key_digest(key)
    assert key not in repr(resting)
    assert resting.digest.startswith(resting.id)
