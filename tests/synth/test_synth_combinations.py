"""Which tools go together, and how often."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.synth.shop import IDS, TOOLS
from tests.toys import HashedWords, catalogue
from toolscout.core.tool import Tool
from toolscout.synth.combinations import Partners, combined, kind_shares
from toolscout.synth.hash_draw import chance, drawn, favoured
from toolscout.synth.inputs import size_shares
from toolscout.synth.options import KINDS
from toolscout.synth.styles import STYLES, style_of, style_shares


def test_partners_of_each_kind() -> None:
    partners = Partners(TOOLS, HashedWords().encode([one.document() for one in TOOLS]))
    city, rooms = IDS["locate_city"], IDS["find_rooms"]
    assert partners.of(city, "namespace") == [IDS["list_regions"]]
    assert partners.of(city, "chain") == [IDS["get_forecast"]]
    assert partners.of(IDS["get_forecast"], "chain") == [city]
    assert partners.of(city, "shared") == [rooms]
    assert set(partners.of(city, "meaning")) == {
        IDS[n] for n in ("get_forecast", "find_rooms", "cancel_stay", "headlines")
    }
    assert partners.of(IDS["headlines"], "shared") == partners.of(IDS["headlines"], "chain") == []
    assert Partners(TOOLS).of(city, "meaning") == []


def test_nearest_in_meaning_come_first_as_a_plain_loop_finds_them() -> None:
    tools = catalogue(60)
    vectors = HashedWords().encode([one.document() for one in tools])
    partners = Partners(tools, vectors)
    for row in (0, 17, 59):
        others = [place for place in range(60) if tools[place].namespace != tools[row].namespace]
        best = sorted(others, key=lambda place: -float(vectors[row] @ vectors[place]))[:12]
        assert partners.of(tools[row].id, "meaning") == [tools[place].id for place in best]


def test_answers_of_published_apis_chain_too_and_flags_do_not() -> None:
    returned = {"ok": "bool", "results": {"iata_code": "str"}, "rows": [{"gate": "str"}]}
    airport = Tool("air", "airports", "airports", meta={"return_schema": returned})
    flight = Tool("sky", "flights", "flights", input_schema={"properties": {"iataCode": {"type": "string"}}})
    gate = Tool("sky", "gates", "gates", input_schema={"properties": {"gate": {}, "ok": {"type": "boolean"}}})
    flags = Tool("sky", "flags", "flags", input_schema={"properties": {"ok": {"type": "boolean"}}})
    found = Partners([airport, flight, gate, flags]).of(airport.id, "chain")
    assert set(found) == {flight.id, gate.id}


def test_twins_and_entangled_schemas_do_no_harm() -> None:
    deep: dict[str, object] = {"type": "object", "properties": {}}
    for _ in range(20):  # each level holds the one below it twice: a million leaves
        deep = {"type": "object", "properties": {"again": deep, "odd": 3, "list": {"type": "array", "items": deep}}}
    twins = [Tool("a b", "c", "same", input_schema=deep), Tool("a", "b c", "same", input_schema=deep)]
    partners = Partners(twins, HashedWords().encode(["x", "x"]))
    assert [partners.of(twins[0].id, kind) for kind in KINDS] == [[], [], [], []]
    assert combined(partners, twins[0].id, {"3": 1.0}, dict.fromkeys(KINDS, 1.0)).tools == (twins[0].id,)


def test_shares_follow_what_was_asked() -> None:
    golds = [(IDS["locate_city"], IDS["get_forecast"]), (IDS["locate_city"], IDS["find_rooms"]), (IDS["headlines"],)]
    assert kind_shares(Partners(TOOLS), golds) == {"chain": 0.5, "shared": 0.5}
    assert kind_shares(Partners(TOOLS), golds[2:]) == {}
    assert size_shares([*golds, tuple(IDS.values())]) == {"1": 0.25, "2": 0.5, "3": 0.25}


def test_combinations_have_the_sizes_and_kinds_wanted() -> None:
    partners = Partners(TOOLS)
    sizes, kinds = {"1": 0.5, "2": 0.5}, {"chain": 0.25, "shared": 0.75}
    made = [combined(partners, IDS["locate_city"], sizes, kinds, number) for number in range(400)]
    assert made == [combined(partners, IDS["locate_city"], sizes, kinds, number) for number in range(400)]
    counts = Counter(one.kind for one in made)
    assert counts[""] / 400 == pytest.approx(0.5, abs=0.08)
    assert counts["shared"] / (counts["shared"] + counts["chain"]) == pytest.approx(0.75, abs=0.1)
    assert {one.tools for one in made if one.kind == "chain"} == {(IDS["locate_city"], IDS["get_forecast"])}
    # Where the kind that was drawn has no partner, another kind serves.
    assert combined(partners, IDS["list_regions"], {"2": 1.0}, {"chain": 1.0, "namespace": 0.1}).kind == "namespace"


def test_draws_are_even_and_keep_to_their_shares() -> None:
    values = [chance("a", number) for number in range(1000)]
    assert 0 <= min(values) < max(values) < 1
    assert sum(values) / 1000 == pytest.approx(0.5, abs=0.05)
    assert {drawn({"never": 0.0, "always": 1.0}, number) for number in range(50)} == {"always"}
    firsts = Counter(favoured(["best", "next"], number) for number in range(600))
    assert firsts["best"] / firsts["next"] == pytest.approx(2, abs=0.6)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("weather tomorrow", "terse, no values"),
        ("weather in Lisbon", "terse, with values"),
        ("I would like to know whether I'm going to need an umbrella", "goal, no values"),
        ("I would like to know whether I need an umbrella on page 1", "goal, with values"),
        ("so " * 30, "wordy, no values"),
    ],
)
def test_styles(text: str, name: str) -> None:
    assert style_of(text).name == name
    assert name in STYLES
    assert style_shares([text]) == {name: 1.0}
