"""A file imports from its own floor or a lower one, never from a higher one; imports hidden in functions included."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import toolscout
from toolscout.retrievers.registry import BUILT_IN

PACKAGE = Path(toolscout.__file__).parent
FLOORS: dict[str, int] = {
    **dict.fromkeys(("core", "data", "errors"), 0),
    **dict.fromkeys(("catalogue", "stores"), 1),
    **dict.fromkeys(("models", "training", "llm", "index"), 2),
    "retrievers": 3,
    **dict.fromkeys(("scout", "search", "calling", "agent", "synth", "evaluation", "papers", "distributed"), 4),
    **dict.fromkeys(("serving", "integrations", "cli", "__init__", "__main__"), 5),
}
FILES = sorted(PACKAGE.rglob("*.py"))
# What belongs to the extra "train": such files may import torch.
LEARNING = {
    *(f"toolscout.training.{name}" for name in ("loop", "losses", "batches", "bi_encoder", "checkpoint", "need_head")),
    *(f"toolscout.training.{name}" for name in ("tower", "tower_task", "code_learning", "id_generation", "sequences")),
    *(f"toolscout.training.{name}" for name in ("data_parallel", "preference_pairs", "text_generation")),
    *(f"toolscout.models.language.{name}" for name in ("torch_network", "torch_engine", "sampling")),
    "toolscout.models.encoders.trainable",
    "toolscout.models.light_gcn",
    "toolscout.papers.language_measures",
    "toolscout.papers.masstool.published_training",
}
HEAVY = {"torch", "transformers", "sentence_transformers"}


def floor(module: str) -> int:
    part = module.split(".")[1] if "." in module else "__init__"
    assert part in FLOORS, f"{module} stands on no floor; give it one here and in ARCHITECTURE.md"
    return FLOORS[part]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


MODULES = {module_name(path).removesuffix(".__init__"): path for path in FILES}


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


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a file names in imports, those for type checkers included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys()
            if names - MODULES.keys():
                found.add(node.module or "")
    return found & MODULES.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_imports_from_a_higher_floor(path: Path) -> None:
    own = floor(module_name(path))
    for name in imports(path):
        if name.startswith("toolscout.") and name.split(".")[1] in FLOORS:
            assert floor(name) <= own, f"{path.relative_to(PACKAGE)} (floor {own}) imports {name} (floor {floor(name)})"


def test_there_are_no_import_cycles() -> None:
    """Imports in functions and for type checkers count: files that need each other are one file, or cut wrongly."""
    graph = {name: imported_modules(path) for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_files_are_imported_in_their_own_folder_alone(path: Path) -> None:
    for name in imported_modules(path):
        *folder, last = name.split(".")
        if last.startswith("_") and not last.startswith("__"):
            assert module_name(path).split(".")[: len(folder)] == folder, f"{path.relative_to(PACKAGE)} imports {name}"


def test_the_package_imports_neither_studies_nor_recipes() -> None:
    for path in FILES:
        assert not {name.split(".")[0] for name in imports(path)} & {"studies", "recipes", "peers", "tests"}, path


def home(module: str) -> str:
    """The file or folder that holds a method: toolscout.retrievers.hybrid for a file in that folder."""
    return ".".join(module.split(".")[:3])


METHODS = {home(place.partition(":")[0]) for place in BUILT_IN.values()}


@pytest.mark.parametrize("path", sorted((PACKAGE / "retrievers").rglob("*.py")), ids=lambda path: path.stem)
def test_no_retriever_imports_another(path: Path) -> None:
    own = home(module_name(path))
    assert not {name for name in imported_modules(path) if home(name) in METHODS - {own}}


def test_a_search_imports_nothing_of_the_evaluation() -> None:
    code = (
        "import sys; from toolscout.retrievers.opening import open_retriever; open_retriever('bm25', ['fuzzy=false']); "
        "import toolscout.scout, toolscout.cli.main; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not [name for name in loaded if name.startswith("toolscout.evaluation.")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_base_install_has_no_torch(path: Path) -> None:
    assert MODULES.keys() >= LEARNING, sorted(LEARNING - MODULES.keys())
    if module_name(path) not in LEARNING:
        assert not {name.split(".")[0] for name in imports(path)} & HEAVY
        for node in ast.parse(path.read_text()).body:  # what learns is reached inside functions alone
            if isinstance(node, ast.ImportFrom):
                names = {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
                assert not names & LEARNING


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_stay_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.body[0].lineno < 60, f"{node.name} is too long"


def test_importing_the_package_loads_neither_engine_nor_torch() -> None:
    code = "import sys, toolscout, toolscout.cli.main; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "onnxruntime", "tantivy", "usearch", "mcp"} & set(loaded)
