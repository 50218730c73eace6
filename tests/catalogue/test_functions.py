"""Python functions: signatures, hints, docstrings, and where they may be found."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import json
import math
import pathlib
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, TypeVar, Union

import pydantic
import pytest
from jsonschema import Draft202012Validator

from tests.catalogue.importer_samples import FUNCTIONS
from toolscout import catalogue
from toolscout.catalogue import ReadOptions
from toolscout.core.tool import Origin, Tool
from toolscout.errors import BadSource, DuplicateTool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    THING = object()


@dataclasses.dataclass
class Address:
    street: str
    number: int = dataclasses.field(default=1, metadata={"description": "House number"})
    notes: list[str] = dataclasses.field(default_factory=list)
    derived: str = dataclasses.field(init=False, default="")


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)


class Options(TypedDict):
    strict: bool
    limit: NotRequired[int]


class Point(NamedTuple):
    x: float
    y: float


class Inner(pydantic.BaseModel):
    depth: int = pydantic.Field(description="How deep")


class Model(pydantic.BaseModel):
    inner: Inner
    again: Optional[Model] = None  # noqa: UP045 - both spellings are read


UserId = NewType("UserId", int)
Number = TypeVar("Number", int, float)
Bound = TypeVar("Bound", bound=str)
Free = TypeVar("Free")

HINTS: list[tuple[Any, dict[str, Any]]] = [
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (bool, {"type": "boolean"}),
    (float, {"type": "number"}),
    (None, {"type": "null"}),
    (Any, {}),
    (object, {}),
    (bytes, {"type": "string", "contentEncoding": "base64"}),
    (decimal.Decimal, {"type": "number"}),
    (datetime.datetime, {"type": "string", "format": "date-time"}),
    (datetime.date, {"type": "string", "format": "date"}),
    (datetime.time, {"type": "string", "format": "time"}),
    (datetime.timedelta, {"type": "string", "format": "duration"}),
    (uuid.UUID, {"type": "string", "format": "uuid"}),
    (pathlib.Path, {"type": "string", "format": "path"}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (Union[int, str, int], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Literal["a", 1, None], {"enum": ["a", 1, None]}),
    (Colour, {"type": "string", "enum": ["red", "blue"]}),
    (Level, {"type": "integer", "enum": [1, 2]}),
    (Odd, {"type": "string", "enum": ["THING"]}),
    (list, {"type": "array"}),
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (Sequence[str], {"type": "array", "items": {"type": "string"}}),
    (Iterable[list[str]], {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}),
    (set[int], {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
    (
        tuple[int, str],
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
    ),
    (Point, {"type": "array", "prefixItems": [{"type": "number"}] * 2, "minItems": 2, "maxItems": 2}),
    (dict, {"type": "object"}),
    (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (Annotated[int, "How many"], {"type": "integer", "description": "How many"}),
    (Annotated[int, pydantic.Field(description="Deep")], {"type": "integer", "description": "Deep"}),
    (Annotated[int, object()], {"type": "integer"}),
    (UserId, {"type": "integer"}),
    (Number, {"anyOf": [{"type": "integer"}, {"type": "number"}]}),
    (Bound, {"type": "string"}),
    (Free, {}),
    (Callable[[int], str], {}),
    (type[int], {}),
    ("NotDefinedAnywhere", {}),
    (
        Address,
        {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "number": {"type": "integer", "default": 1, "description": "House number"},
                "notes": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["street"],
        },
    ),
    (
        Options,
        {
            "type": "object",
            "properties": {"strict": {"type": "boolean"}, "limit": {"type": "integer"}},
            "required": ["strict"],
        },
    ),
]


def of(function: Any, **options: Any) -> Tool:
    (tool,) = catalogue.read(function, ReadOptions(**options))
    Draft202012Validator.check_schema(dict(tool.input_schema))
    return tool


@pytest.mark.parametrize(("hint", "schema"), HINTS)
def test_hints(hint: Any, schema: dict[str, Any]) -> None:
    def function(x: Any) -> None: ...

    function.__annotations__ = {"x": hint}
    assert of(function).input_schema == {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "additionalProperties": False,
    }


def test_hints_that_contain_themselves() -> None:
    def function(tree: Node, model: Model, other: list[Model]) -> None: ...

    schema = dict(of(function).input_schema)
    validator = Draft202012Validator(schema)
    model = {"inner": {"depth": 1}, "again": {"inner": {"depth": 2}}}
    tree: dict[str, Any] = {"value": 1, "children": [{"value": 2, "children": []}]}
    assert validator.is_valid({"tree": tree, "model": model, "other": [model]})
    tree["children"][0]["children"] = [{"value": "three"}]
    assert not validator.is_valid({"tree": tree, "model": model, "other": []})
    model["again"]["again"] = {"inner": {"depth": "deep"}}  # type: ignore[index]
    assert not validator.is_valid({"tree": {"value": 1}, "model": model, "other": []})


def test_two_models_of_one_name_do_not_mix() -> None:
    def models(field: str) -> Any:
        inner = pydantic.create_model("Inner", **{field: (int, ...)})
        return pydantic.create_model("Outer", inner=(inner, ...))

    def function(a: Any, b: Any) -> None: ...

    function.__annotations__ = {"a": models("x"), "b": models("y")}
    validator = Draft202012Validator(dict(of(function).input_schema))
    assert validator.is_valid({"a": {"inner": {"x": 1}}, "b": {"inner": {"y": 1}}})
    assert not validator.is_valid({"a": {"inner": {"y": 1}}, "b": {"inner": {"y": 1}}})


def test_defaults_that_json_can_say() -> None:
    def function(
        a: int = 1,
        b: Colour = Colour.RED,
        c: datetime.date = datetime.date(2020, 1, 2),
        d: tuple[int, ...] = (1, 2),
        e: float = math.inf,
        f: Any = object(),  # noqa: B008
        g: str | None = None,
    ) -> None: ...

    properties = of(function).input_schema["properties"]
    defaults = {name: schema.get("default", "left out") for name, schema in properties.items()}
    expected = {"a": 1, "b": "red", "c": "2020-01-02", "d": [1, 2], "e": "left out", "f": "left out", "g": None}
    assert defaults == expected
    assert "required" not in of(function).input_schema


def test_arguments_without_names() -> None:
    def function(a: int, /, *rest: int, b: int, **more: int) -> None: ...

    schema = of(function).input_schema
    assert list(schema["properties"]) == schema["required"] == ["a", "b"]
    assert schema["additionalProperties"] == {"type": "integer"}

    def open_ended(**more) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN003

    assert of(open_ended).input_schema["additionalProperties"] is True


def test_descriptions_come_from_hints_before_docstrings() -> None:
    def function(query: Annotated[str, "From the hint"], limit: int) -> None:
        """Find things.

        Args:
            query: From the docstring.
            limit: How many: at most.
        """

    tool = of(function)
    assert tool.description == "Find things."
    texts = {name: schema["description"] for name, schema in tool.input_schema["properties"].items()}
    assert texts == {"query": "From the hint", "limit": "How many: at most."}


class Thing:
    def method(self, a: int) -> None:
        """Do it."""

    @staticmethod
    def static(b: int) -> None: ...

    def __call__(self) -> None: ...


def test_methods_wrappers_and_coroutines() -> None:
    tool = of(Thing().method)
    assert (tool.id, tool.description) == ("test_functions/method", "Do it.")
    assert list(tool.input_schema["properties"]) == ["a"]
    assert tool.origin == Origin("function", f"{__name__}:Thing.method")

    @functools.wraps(Thing.static)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    assert list(of(wrapped).input_schema["properties"]) == ["b"]

    async def later(c: int) -> None: ...

    assert of(later).name == "later"
    assert of(json.dumps, namespace="n").id == "n/dumps"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (lambda x: x, "has no name; wrap it into a function with def"),
        (functools.partial(print), "has no name; wrap it"),
        (Thing(), "has no name; wrap it"),
        (getattr, "has no signature that can be read; wrap it"),
        (Thing, "is not a Python function"),
    ],
)
def test_what_cannot_be_a_tool(source: Any, said: str) -> None:
    with pytest.raises(BadSource, match=said):
        list(catalogue.read(source))


def test_lists_of_functions() -> None:
    tools = list(catalogue.read([json.dumps, json.loads, json.dumps]))
    assert [tool.id for tool in tools] == ["json/dumps", "json/loads"]
    options = ReadOptions(keep_going=True)
    assert len(list(catalogue.read([json.dumps, getattr, lambda: 0], options))) == 1
    assert len(options.problems) == 2

    def make(default: int) -> Any:
        def same(a: int = default) -> None: ...

        return same

    with pytest.raises(DuplicateTool, match=r"function 2, .* differs from the one of the same id in function 1"):
        list(catalogue.read([make(1), make(2)]))


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package beside which Python was started, as `toolscout add` would be."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "made_here"
    package.mkdir()
    (package / "__init__.py").write_text("raise_later = 1", encoding="utf-8")
    (package / "tools.py").write_text(FUNCTIONS + "from json import dumps\nclass Group:\n    run = staticmethod(add)\n")
    (package / "listed.py").write_text("from json import dumps, loads\n__all__ = ['dumps', 'gone']\ndef own(): ...\n")
    (package / "broken.py").write_text("1 / 0", encoding="utf-8")
    (package / "leaving.py").write_text("raise SystemExit(3)", encoding="utf-8")
    (package / "empty.py").write_text("import json", encoding="utf-8")
    yield package  # type: ignore[misc]
    for name in [name for name in sys.modules if name.startswith("made_here")]:
        del sys.modules[name]


def test_modules_and_names_of_modules(helpers: Path) -> None:
    (tool,) = catalogue.read("made_here.tools")
    assert (tool.id, tool.origin) == ("tools/add", Origin("function", "made_here.tools:add"))
    assert tool.service == "Little helpers."
    assert list(catalogue.read("made_here.tools:")) == list(catalogue.read("made_here.tools:add")) == [tool]
    assert list(catalogue.read(sys.modules["made_here.tools"])) == [tool]
    (inner,) = catalogue.read("made_here.tools:Group.run")
    assert inner.origin == Origin("function", "made_here.tools:Group.run")
    assert str(helpers.parent) not in sys.path


def test_files(helpers: Path) -> None:
    path = helpers / "tools.py"
    (tool,) = catalogue.read(path)
    assert (tool.id, tool.origin) == ("tools/add", Origin("function", f"{path}:add"))
    assert list(catalogue.read(f"{path}:add")) == list(catalogue.read("made_here/tools.py")) == [tool]
    (helpers / "user.py").write_text("import sibling\ndef go(a: sibling.T): ...", encoding="utf-8")
    (helpers / "sibling.py").write_text("T = int", encoding="utf-8")
    assert of(helpers / "user.py").input_schema["properties"] == {"a": {"type": "integer"}}
    del sys.modules["sibling"]


def test_all_is_respected(helpers: Path) -> None:
    with pytest.raises(BadSource, match=r"__all__ names gone, but made_here\.listed has no gone"):
        list(catalogue.read("made_here.listed"))
    options = ReadOptions(keep_going=True)
    assert [tool.id for tool in catalogue.read("made_here.listed", options)] == ["listed/dumps"]
    assert len(options.problems) == 1
    (helpers / "nothing.py").write_text("__all__ = []\ndef own(): ...", encoding="utf-8")
    with pytest.raises(BadSource, match="has no public functions"):
        list(catalogue.read(helpers / "nothing.py"))


def test_a_hint_that_answers_with_an_error() -> None:
    class Meta(type):
        @property
        def model_json_schema(cls) -> Any:
            raise RuntimeError("no questions")

    class Rude(metaclass=Meta): ...

    def function(a: Any) -> None: ...

    function.__annotations__ = {"a": Rude}
    with pytest.raises(BadSource, match="has a type hint that cannot be read: no questions"):
        list(catalogue.read(function))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("made_here.broken:x", "module made_here.broken cannot be imported: ZeroDivisionError: division by zero"),
        ("made_here.leaving:", "module made_here.leaving cannot be imported: SystemExit: 3"),
        ("made_here.missing:x", "cannot be imported: ModuleNotFoundError"),
        ("made_here.tools:nothing", "made_here.tools has no nothing: .*; check its spelling"),
        ("made_here.tools:Group", "made_here.tools:Group is not a function but type"),
        ("made_here.empty", "made_here.empty has no public functions"),
        ("made_here/broken.py", r"broken\.py cannot be imported: ZeroDivisionError"),
        ("made_here/nothing.py", r"'made_here/nothing\.py' does not exist"),
    ],
)
@pytest.mark.usefixtures("helpers")
def test_modules_that_fail(source: str, said: str) -> None:
    with pytest.raises(BadSource, match=said):
        list(catalogue.read(source))
