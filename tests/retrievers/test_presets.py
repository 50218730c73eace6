"""preset=published: the settings of a paper, which settings beside it change, and which are saved as they are."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import pytest

from toolscout.core.option_values import Presets
from toolscout.errors import BadModel
from toolscout.retrievers.opening import made, variant_of
from toolscout.retrievers.registry import BUILT_IN, method
from toolscout.retrievers.toolgen import ToolgenOptions

PAPERS: dict[str, dict[str, Any]] = {
    "dense": {"loss": "mnrl", "scale": 20.0, "epochs": 5, "rate": 2e-5, "batch": 16, "average": 1.0},
    "masstool": {"epochs": 200, "rate": 1e-3, "batch": 2048, "layers": 1, "neighbours": 10, "epsilon": 0.82},
    "colt": {"epochs": 200, "rate": 1e-3, "batch": 2048, "layers": 1, "edge_dropout": 0.2, "beta": 0.04},
    "toolgen": {"rank": 0, "rate": 4e-5, "decay": "cosine", "memorise": 8, "epochs": 1, "similarity": 0.0}
    | {"trajectory_tokens": 6144},
    "toolweaver": {"rank": 0, "rate": 4e-5, "memorise": 0, "epochs": 5, "levels": 2, "codes": 1024, "beta": 0.25},
}


@pytest.mark.parametrize("name", PAPERS)
def test_it_has_the_settings_of_the_paper(name: str) -> None:
    found = asdict(made(name, settings=["preset=published"]).options)
    assert {key: found[key] for key in PAPERS[name]} == PAPERS[name]
    assert "preset" not in found


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("order", [1, -1])
def test_settings_beside_it_are_stronger_in_any_order(name: str, order: int) -> None:
    found = made(name, settings=["preset=published", "epochs=3"][::order]).options
    published = made(name, settings=["preset=published"]).options
    assert asdict(found) == asdict(published) | {"epochs": 3}


def test_a_setting_that_equals_the_default_is_stronger_too() -> None:
    assert ToolgenOptions().rate == 1e-3
    assert made("toolgen", settings=["preset=published", "rate=0.001"]).options == ToolgenOptions.preset(
        "published", rate=1e-3
    )


def test_colt_opens_the_published_network_without_what_masstool_adds() -> None:
    found = made("colt", settings=["seed=2", "preset=published", "epochs=3"])
    assert found.name == "masstool_published"
    options = asdict(found.options)
    assert (options["neighbours"], options["transfer"], options["weight_detection"]) == (0, "none", 0.0)
    assert options["no_tool"] == ""
    assert (options["seed"], options["epochs"]) == (2, 3)


def test_masstool_opens_the_published_network() -> None:
    found = made("masstool", settings=["preset=published", "epsilon=0.5"])
    assert found.name == "masstool_published"
    assert variant_of(found.options) == "epsilon-0.5"
    part = made("hybrid", ["bm25", "masstool"], ["masstool.preset=published"]).parts[1]
    assert part.name == "masstool_published"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toolgen", "there is no preset 'nonsense'; the presets are: published"),
        ("masstool", "'preset=nonsense' is no option of masstool"),
        ("bm25", "'preset=nonsense' is no option of bm25"),
    ],
)
def test_a_preset_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        made(name, settings=["preset=nonsense"])


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_presets_name_options_that_there_are(name: str) -> None:
    options = type(method(name)().options)
    for values in options.presets.values() if issubclass(options, Presets) else ():
        assert values.keys() <= {field.name for field in fields(options)}
