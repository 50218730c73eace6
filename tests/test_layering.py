"""A file imports from its own floor or a lower one, never from a higher one; imports hidden in functions included."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import toolscout

PACKAGE = Path(toolscout.__file__).parent
FLOORS: dict[str, int] = {
    **dict.fromkeys(("tool", "schemas", "wire", "answer", "dataset", "metrics", "errors"), 0),
    **dict.fromkeys(
        ("_beir_files", "_deadline", "prompts", "splits", "log", "arguments", "conversations", "trajectories"), 0
    ),
    **dict.fromkeys(("addresses", "permissions", "targets", "tenants"), 0),
    **dict.fromkeys(("catalogue", "stores"), 1),
    **dict.fromkeys(("nn", "training", "llm"), 2),
    "retrievers": 3,
    **dict.fromkeys(("scout", "_progress", "snapshot", "feedback", "background", "fit", "need", "evaluation"), 4),
    **dict.fromkeys(("calling", "_http_calls", "agent", "synth"), 4),
    **dict.fromkeys(("cli", "cli_evaluate", "_cli", "serving", "integrations", "__init__", "__main__"), 5),
}
FILES = sorted(PACKAGE.rglob("*.py"))
LEARNING = {
    "loop",
    "losses",
    "batches",
    "bi_encoder",
    "checkpoint",
    "published",
    "detection",
    "tower",
    "tower_task",
    "quantizing",
    "generative",
    "branches",
    "generating",
    "sequences",
}
HEAVY = {"torch", "transformers", "sentence_transformers"}


def floor(module: str) -> int:
    part = module.split(".")[1] if "." in module else "__init__"
    assert part in FLOORS, f"{module} stands on no floor; give it one here and in ARCHITECTURE.md"
    return FLOORS[part]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "toolscout"}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_imports_from_a_higher_floor(path: Path) -> None:
    own = floor(module_name(path))
    for name in imports(path):
        if name.startswith("toolscout.") and name.split(".")[1] in FLOORS:
            assert floor(name) <= own, f"{path.relative_to(PACKAGE)} (floor {own}) imports {name} (floor {floor(name)})"


@pytest.mark.parametrize("path", sorted((PACKAGE / "retrievers").glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_no_retriever_imports_another(path: Path) -> None:
    methods = {p.stem for p in (PACKAGE / "retrievers").glob("[a-z]*.py")} - {"base", path.stem}
    assert not {name for name in imports(path) if name.rpartition(".")[2] in methods and ".retrievers." in name}


def learns(path: Path) -> bool:
    """Whether a file belongs to the extra "train": such files may import torch."""
    if path.parent.name == "training":
        return path.stem in LEARNING
    return path.parent.name == "nn" and path.stem in {"trainable", "graph", "causal", "causal_engine", "causal_choice"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_base_install_has_no_torch(path: Path) -> None:
    if not learns(path):
        assert not {name.split(".")[0] for name in imports(path)} & HEAVY
        for node in ast.parse(path.read_text()).body:  # what learns is reached inside functions alone
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert not names & {module_name(file) for file in FILES if learns(file)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_stay_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.body[0].lineno < 60, f"{node.name} is too long"


def test_importing_the_package_loads_neither_engine_nor_torch() -> None:
    code = "import sys, toolscout, toolscout.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "onnxruntime", "tantivy", "usearch", "mcp"} & set(loaded)
