"""What users name is found in `toolscout` itself, and costs next to nothing to import."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import toolscout
from toolscout.core import answer

NAMED = "Scout Tool Answer Hit Allowed Example Dataset FitOptions NeedOptions errors".split()
REASONS = [kind.__name__ for kind in get_args(answer.Reason)]
HEAVY = {
    "asyncio",
    "numpy",
    "onnxruntime",
    "tokenizers",
    "tantivy",
    "usearch",
    "typer",
    "rich",
    "torch",
    "yaml",
    "sqlite3",
}


def test_what_users_name_is_exported() -> None:
    assert len(REASONS) == 6
    assert {*NAMED, *REASONS, "Reason"} <= set(toolscout.__all__)
    for name in toolscout.__all__:
        assert getattr(toolscout, name) is not None


def test_each_name_is_the_class_where_it_is_written() -> None:
    from toolscout.data.dataset import Dataset
    from toolscout.scout import Scout
    from toolscout.search.catalogue_fit import FitOptions
    from toolscout.search.tool_need import NeedOptions

    found = (toolscout.Dataset, toolscout.Scout, toolscout.FitOptions, toolscout.NeedOptions)
    assert found == (Dataset, Scout, FitOptions, NeedOptions)
    assert all(getattr(toolscout, name) is getattr(answer, name) for name in REASONS)


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, toolscout; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(done.stdout.split())


def test_a_scout_is_imported_without_what_only_some_use() -> None:
    code = "import sys; from toolscout import Scout; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"asyncio", "onnxruntime", "torch", "typer", "matplotlib", "starlette", "mcp"}.isdisjoint(
        done.stdout.split()
    )
