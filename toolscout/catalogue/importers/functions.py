"""Imports Python functions: signature, type hints and docstring become a tool."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from toolscout.catalogue.base import (
    Importer,
    ReadOptions,
    as_path,
    existing,
    existing_file,
    first_paragraph,
    not_a,
    unique,
)
from toolscout.catalogue.docstrings import parse_docstring
from toolscout.catalogue.type_hints import Hints, hints_of, object_schema, with_default
from toolscout.core.tool import Origin, Tool, clean_text
from toolscout.errors import BadSource, BadTool

_WANTED = "a Python function, a list of them, a module, or the name of one (package.module:function, file.py)"
_MODULE = re.compile(r"^[^\W\d]\w*(?:\.[^\W\d]\w*)*$")
_ATTRIBUTE = re.compile(r"^(?:[^\W\d]\w*(?:\.[^\W\d]\w*)*)?$")
# Endings of file names: tools.json could also be the name of a module.
_FILE_ENDINGS = (".json", ".jsonl", ".ndjson", ".yaml", ".yml", ".gz", ".txt", ".md", ".db", ".py")
_OTHER_PREFIXES = ("mcp", "stdio", "http", "https", "file")


class _LocatedFunction(NamedTuple):
    """A function, the default namespace of its tool, and the origin's target, by which `find` returns it again."""

    function: Callable[..., Any]
    namespace: str
    target: str


class FunctionsImporter(Importer):
    """Reads Python functions, given as objects or by name."""

    def accepts(self, source: object) -> bool:
        """Return whether this is a function, a list of functions, a module, or the name of one."""
        if isinstance(source, list | tuple):
            return bool(source) and all(callable(item) for item in source)
        if not isinstance(source, str | Path):
            return callable(source) or isinstance(source, ModuleType)
        place, attribute = _split(str(source))
        if existing(source) is not None or place.endswith(".py"):
            return place.endswith(".py") and existing_file(place) is not None
        if not _MODULE.match(place) or place in _OTHER_PREFIXES or isinstance(source, Path):
            return False
        return attribute is not None or (not place.endswith(_FILE_ENDINGS) and _can_be_imported(place))

    def read(self, source: object, options: ReadOptions) -> Iterator[Tool]:
        """Return a tool for each function; for a module, of each public function defined in it or named in __all__.

        Raises BadSource for any other source, or where a module cannot be imported or a function cannot be read.
        """
        return unique(_tools(source, options), options)

    def label(self, source: object) -> str:
        """Return the file, or module:name of each function."""
        if isinstance(source, ModuleType):
            return f"{source.__name__}:"
        if isinstance(source, list | tuple):
            return ", ".join(map(_target, source))
        path = as_path(source)
        if path is None:
            return _target(source)
        place, _, name = str(path).rpartition(":")
        if existing(source) is not None:
            return os.path.abspath(path)
        return f"{os.path.abspath(place)}:{name}" if place.endswith(".py") else str(source)


def find(target: str, own: bool = False) -> Callable[..., Any]:
    """Return the function of an origin's target, "module:qualified.name" or "file.py:name".

    `own`: only a function that `read` lists for the module; not one that the module imports from elsewhere. Raises
    BadSource where there is no such function.
    """
    if not own:
        return next(_functions_named(target, ReadOptions())).function
    for located in _functions_named(_split(target)[0], ReadOptions(keep_going=True)):
        if located.target == target:
            return located.function
    raise BadSource(f"{target} is not a public function of its module; name one that is defined there")


def _target(function: object) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or 'builtins'}:{name}"


def _tools(source: object, options: ReadOptions) -> Iterator[tuple[str, Tool]]:
    for number, located in enumerate(_functions(source, options), 1):
        try:
            yield f"function {number}, {located.target}", _tool(located, options)
        except (BadSource, BadTool) as error:
            options.problem(BadSource(str(error)))


def _functions(source: object, options: ReadOptions) -> Iterator[_LocatedFunction]:
    if isinstance(source, list | tuple):
        for item in source:
            yield from _functions(item, options)
    elif isinstance(source, ModuleType):
        yield from _module_functions(source, source.__name__, source.__name__.rpartition(".")[2], options)
    elif isinstance(source, str | Path):
        yield from _functions_named(source, options)
    elif callable(source) and not isinstance(source, type):
        module = str(getattr(source, "__module__", None) or "builtins")
        qualified = getattr(source, "__qualname__", None) or getattr(source, "__name__", "")
        yield _LocatedFunction(source, module.rpartition(".")[2].strip("_") or module, f"{module}:{qualified}")
    else:
        raise not_a(source, _WANTED)


def _split(name: str) -> tuple[str, str | None]:
    """Split "place:attribute" at its last colon; the attribute is None where there is none."""
    place, colon, attribute = name.rpartition(":")
    return (place, attribute) if colon and _ATTRIBUTE.match(attribute) else (name, None)


def _functions_named(source: str | Path, options: ReadOptions) -> Iterator[_LocatedFunction]:
    """Yield the functions of a module or file that is given by name, or the one function after the colon."""
    place, attribute = _split(str(source))
    if place.endswith(".py"):
        path = existing_file(place)
        if path is None:
            raise not_a(place, "a Python file")
        module, address, namespace = _load_file(path), str(path.resolve()), path.stem
    elif _MODULE.match(place) and not isinstance(source, Path):
        module, address, namespace = _load_module(place), place, place.rpartition(".")[2]
    else:
        raise not_a(source, _WANTED)
    if not attribute:
        yield from _module_functions(module, address, namespace, options)
        return
    function: Any = module
    for part in attribute.split("."):
        function = _attribute(function, part)
    if not callable(function) or isinstance(function, type):
        raise BadSource(f"{place}:{attribute} is not a function but {type(function).__name__}; name a function")
    yield _LocatedFunction(function, namespace, f"{address}:{attribute}")


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except Exception as error:  # a module or class may define __getattr__, which may raise anything
        raise BadSource(f"{owner.__name__} has no {name}: {error}; check its spelling") from error


def _module_functions(
    module: ModuleType, address: str, namespace: str, options: ReadOptions
) -> Iterator[_LocatedFunction]:
    """Yield the functions in __all__, else those without an underscore that are defined in the module."""
    listed = getattr(module, "__all__", None)
    count = 0
    for name in map(str, listed if isinstance(listed, list | tuple) else list(vars(module))):
        try:
            member = _attribute(module, name)
        except BadSource as error:
            options.problem(BadSource(f"{address}: __all__ names {name}, but {error}"))
            continue
        public = not name.startswith("_") and getattr(member, "__module__", None) == module.__name__
        if inspect.isroutine(member) and (public or isinstance(listed, list | tuple)):
            count += 1
            yield _LocatedFunction(member, namespace.strip("_") or namespace, f"{address}:{name}")
    if not count:
        raise BadSource(f"{address} has no public functions; name a function in it as {address}:name")


def _tool(located: _LocatedFunction, options: ReadOptions) -> Tool:
    function, target = located.function, located.target
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise BadSource(f"{target} has no name; wrap it into a function with def")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        raise BadSource(f"{target} has no signature that can be read; wrap it into a function with def") from None
    description, texts = parse_docstring(inspect.getdoc(function))
    try:
        schema = _input_schema(function, signature, texts)
    except Exception as error:  # a class may define methods that raise anything when it is inspected
        raise BadSource(f"{target} has a type hint that cannot be read: {error}; correct or remove it") from error
    return Tool(
        namespace=clean_text(options.namespace or located.namespace),
        name=name,
        description=description,
        service=first_paragraph(getattr(inspect.getmodule(function), "__doc__", None) or ""),
        input_schema=schema,
        origin=Origin("function", target),
    )


def _input_schema(function: Callable[..., Any], signature: inspect.Signature, texts: dict[str, str]) -> dict[str, Any]:
    hints, converter = hints_of(function), Hints()
    properties: dict[str, Any] = {}
    required: list[str] = []
    extra: bool | dict[str, Any] = False
    for name, parameter in signature.parameters.items():
        hint = hints.get(name, Any if isinstance(parameter.annotation, str) else parameter.annotation)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue  # the arguments of a tool call are a JSON object: every one has a name
        schema = converter.schema(hint)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = schema or True
            continue
        if name in texts and "description" not in schema:
            schema = {**schema, "description": texts[name]}
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        else:
            schema = with_default(schema, parameter.default)
        properties[name] = schema
    schema = object_schema(properties, required) | {"additionalProperties": extra}
    return schema | {"$defs": converter.defs} if converter.defs else schema


def _can_be_imported(name: str) -> bool:
    with _import_path(os.getcwd()):
        try:
            return importlib.util.find_spec(name) is not None
        except (Exception, SystemExit):  # to find a submodule, Python imports its package, which may raise anything
            return False


def _load_module(name: str) -> ModuleType:
    with _import_path(os.getcwd()):
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit) as error:  # the module's own code may raise anything
            raise BadSource(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    name = f"{path.stem}_{hashlib.blake2b(str(path).encode(errors='replace'), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadSource(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up
    with _import_path(str(path.parent)):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise BadSource(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


@contextmanager
def _import_path(folder: str) -> Iterator[None]:
    """Put a folder first on sys.path inside the block, as if Python had been started there."""
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)
