"""What every kind of store keeps to about people: patterns, keys, and a number that moves with them."""

from __future__ import annotations

import pytest

from tests.stores.store_helpers import tool, tools
from toolscout.core.answer import Allowed
from toolscout.core.permissions import Key, Principal, new_key
from toolscout.errors import UnknownPrincipal
from toolscout.stores import Store


def test_patterns_are_compiled_for_the_catalogue_as_it_is(store: Store) -> None:
    store.add([tool("read"), tool("delete"), tool("run", namespace="code"), tool("x", namespace="hr")])
    store.put_principal(Principal("ann", ("mail/*", "code/r*"), ("*/delete*",)))
    assert store.permissions("ann") == Allowed.of([], ["mail/read", "code/run"])
    store.grant("ann", Allowed.of(["hr"], ["mail/delete", "not/yet"]))
    assert store.permissions("ann") == Allowed.of([], ["mail/read", "code/run", "hr/x", "not/yet"])
    store.put_principal(Principal("ann", ("mail/*",), ("code/*",)))
    assert store.permissions("ann") == Allowed.of(["mail", "hr"], ["mail/delete", "not/yet"])
    store.add([tool("reply", namespace="hr")])
    assert store.permissions("ann").permits("hr/reply")
    assert store.rules("ann").permits("mail/anything")
    assert not store.rules("nobody").permits("mail/read")
    store.put_principal(Principal("root", ("*",), admin=True))
    assert store.permissions("root").namespaces == {"mail", "code", "hr"}
    assert store.rules("root").everything


def test_principals(store: Store) -> None:
    ann = Principal("ann", ("a/*", "b/c"), ("a/x*",), admin=True, tenant="acme \U0001f600")
    assert store.principal("ann") is None
    store.put_principal(ann)
    store.grant("bob", Allowed.of(["mail"]))
    assert store.principal("ann") == ann
    assert store.principal("bob") is None
    assert store.principals() == ["ann", "bob"]
    store.put_principal(Principal("ann"))
    assert store.principal("ann") == Principal("ann")
    assert store.remove_principal("ann")
    assert not store.remove_principal("ann")
    assert store.principals() == ["bob"]
    assert store.version() == 0


def test_keys(store: Store) -> None:
    first, second, other = (new_key(name)[1] for name in ("ann", "ann", "bob"))
    with pytest.raises(UnknownPrincipal, match="keys add"):
        store.add_key(first)
    store.put_principal(Principal("ann"))
    store.put_principal(Principal("bob"))
    for key in (other, first, second):
        store.add_key(key)
    assert [key.principal for key in store.api_keys()] == ["ann", "ann", "bob"]
    assert set(store.api_keys()) == {first, second, other}
    assert store.remove_key(first.digest)
    assert not store.remove_key(first.digest)
    store.put_principal(Principal("ann", ("*",)))  # keys stay valid
    assert store.api_keys() == [second, other]
    assert store.remove_principal("ann")
    assert store.api_keys() == [other]


def test_access_moves_with_people_and_with_nothing_else(store: Store) -> None:
    key: Key = new_key("ann")[1]
    seen = [store.access()]
    for change in (
        lambda: store.grant("ann", Allowed.of(["mail"])),
        lambda: store.revoke("ann", Allowed.of(["mail"])),
        lambda: store.put_principal(Principal("ann")),
        lambda: store.add_key(key),
        lambda: store.remove_key(key.digest),
        lambda: store.remove_principal("ann"),
    ):
        change()
        seen.append(store.access())
    assert len(set(seen)) == len(seen)
    store.add(tools(2))
    assert store.access() == seen[-1]
