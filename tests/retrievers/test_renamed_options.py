"""Options that had another name: model folders of then open, rows of then compare, and old settings are explained."""

import json
from pathlib import Path

import pytest

from toolscout.errors import BadModel
from toolscout.evaluation.report.rows import _options
from toolscout.retrievers.dense import DenseOptions
from toolscout.retrievers.model_folder import RENAMED_OPTIONS, read_model, read_options
from toolscout.retrievers.option_values import with_settings
from toolscout.retrievers.rewrite.rewriter import RewriteOptions
from toolscout.retrievers.toolgen import ToolgenOptions
from toolscout.retrievers.tower.options import MasstoolOptions

MODELS = Path(__file__).parents[1] / "regression" / "models"
KINDS = {
    "masstool": MasstoolOptions,
    "rewrite": RewriteOptions,
    "toolgen": ToolgenOptions,
    "hybrid/1-dense": DenseOptions,
}


@pytest.mark.parametrize("name", KINDS)
def test_folders_with_old_names_open(name: str) -> None:
    record = read_model(MODELS / name)
    old = RENAMED_OPTIONS.keys() & record["options"].keys()
    assert old
    options = read_options(KINDS[name], record)
    for one in old:
        assert getattr(options, RENAMED_OPTIONS[one]) == record["options"][one]
    again = {RENAMED_OPTIONS.get(key, key): value for key, value in record["options"].items()}
    assert read_options(KINDS[name], {"options": json.loads(json.dumps(again))}) == options


def test_an_old_setting_names_the_new_one() -> None:
    with pytest.raises(BadModel, match="the option own of dense is now called self_queries"):
        with_settings(DenseOptions(), "dense", ["own=0.5"])
    with pytest.raises(BadModel, match="'kin=1' is no option of dense"):
        with_settings(DenseOptions(), "dense", ["kin=1"])


def test_rows_with_old_and_new_names_are_of_one_method() -> None:
    old = {"variant": "v", "seed": 1, "options": {"kin": 1.0, "seed": 1}}
    new = {"variant": "v", "seed": 2, "options": {"neighbour_weight": 1.0, "seed": 2}}
    assert _options(old) == _options(new)
