"""OpenAPI 3.0, 3.1 and Swagger 2; files, URLs, references, and documents that are only half right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.catalogue.importer_samples import PETSTORE
from toolscout import catalogue
from toolscout.catalogue import ReadOptions
from toolscout.core.tool import Tool
from toolscout.errors import BadSource


def spec(paths: Any, **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "T"}, "paths": paths, **more}


def swagger(paths: Any, **more: Any) -> dict[str, Any]:
    return {"swagger": "2.0", "info": {"title": "T"}, "paths": paths, **more}


def only(document: Any, **options: Any) -> Tool:
    (tool,) = catalogue.read(document, ReadOptions(**options))
    Draft202012Validator.check_schema(dict(tool.input_schema))
    return tool


def body(schema: Any, kind: str = "application/json", required: bool = True, **more: Any) -> Tool:
    request = {"required": required, "content": {kind: {"schema": schema}}}
    return only(spec({"/a/{id}": {"post": {"requestBody": request}}}, **more))


def details(tool: Tool) -> dict[str, Any]:
    assert tool.origin is not None
    return dict(tool.origin.details)


def test_the_petstore() -> None:
    listed, created, deleted = catalogue.read(PETSTORE)
    assert [tool.id for tool in (listed, created, deleted)] == [
        "pet-store/listPets",
        "pet-store/post_pets",
        "pet-store/deletePet",
    ]
    assert (listed.title, listed.description, listed.tags) == ("List pets", "List pets", ("pets",))
    assert listed.service == "Pet Store. Sells pets."
    assert listed.input_schema == {
        "type": "object",
        "properties": {
            "limit": {"type": "integer", "minimum": 1},
            "X-Trace": {"type": ["string", "null"]},
        },
    }
    assert listed.annotations == {"readOnlyHint": True}
    assert listed.origin is not None
    assert listed.origin.target == "https://eu.pets.example/v1"
    assert details(listed) == {"method": "GET", "path": "/pets", "in": {"limit": "query", "X-Trace": "header"}}
    properties = created.input_schema["properties"]
    assert list(properties) == ["name", "parent", "tags"]  # the server sets the id
    assert created.input_schema["required"] == ["name"]
    assert details(created)["content_type"] == "application/json"
    assert properties["parent"] == {"$ref": "#/$defs/Pet"}
    validator = Draft202012Validator(dict(created.input_schema))
    assert validator.is_valid({"name": "a", "parent": {"name": "b", "parent": {"name": "c", "parent": {"name": "d"}}}})
    assert not validator.is_valid(
        {"name": "a", "parent": {"name": "b", "parent": {"name": "c", "parent": {"name": 5}}}}
    )
    assert deleted.annotations == {"destructiveHint": True, "deprecated": True}
    assert deleted.description == "DELETE /pets/{id}"
    assert deleted.input_schema["required"] == ["id"]


def test_parameters_of_the_operation_win_over_those_of_the_path() -> None:
    item = {
        "parameters": [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}, "description": "old"},
            {"name": "page", "in": "query", "schema": {"type": "integer"}},
        ],
        "get": {"parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}]},
    }
    tool = only(spec({"/a/{id}/{forgotten}": item}))
    assert tool.input_schema["properties"] == {
        "id": {"type": "integer"},
        "page": {"type": "integer"},
        "forgotten": {"type": "string"},
    }
    assert tool.input_schema["required"] == ["id", "forgotten"]
    assert details(tool)["in"] == {"id": "path", "page": "query", "forgotten": "path"}


def test_names_that_collide_get_their_place_as_suffix() -> None:
    parameters = [{"name": "id", "in": place, "schema": {}} for place in ("cookie", "query", "path")]
    request = {"required": True, "content": {"application/json": {"schema": {"properties": {"id": {"type": "null"}}}}}}
    tool = only(spec({"/a/{id}": {"put": {"parameters": parameters, "requestBody": request}}}))
    assert details(tool)["in"] == {"id": "path", "id_query": "query", "id_cookie": "cookie", "id_body": "body"}
    assert details(tool)["renamed"] == {"id_query": "id", "id_cookie": "id", "id_body": "id"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"type": "string", "format": "binary"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]},
    ],
)
def test_a_body_that_is_no_plain_object_is_one_property(schema: Any) -> None:
    tool = body(schema)
    assert tool.input_schema["properties"]["body"] == schema
    assert tool.input_schema["required"] == ["id", "body"]
    assert details(tool)["whole_body"] == "body"
    assert details(tool)["in"] == {"id": "path", "body": "body"}


def test_a_body_made_of_parts_is_merged() -> None:
    base = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    schema = {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"b": {"minLength": 1}, "c": {}}}]}
    tool = body(schema, components={"schemas": {"Base": base}})
    assert tool.input_schema["properties"] == {
        "id": {"type": "string"},
        "a": {"type": "string"},
        "b": {"allOf": [{"type": "string"}, {"minLength": 1}]},
        "c": {},
    }
    assert tool.input_schema["required"] == ["id", "a"]
    assert body(schema, required=False, components={"schemas": {"Base": base}}).input_schema["required"] == ["id"]


def test_the_content_type_that_is_chosen() -> None:
    kinds = ["text/xml", "multipart/form-data", "application/x-www-form-urlencoded", "application/hal+json"]
    kinds.append("application/json; charset=utf-8")
    for number, best in enumerate(kinds, 1):
        content = {kind: {"schema": {}} for kind in kinds[:number]}
        tool = only(spec({"/a": {"post": {"requestBody": {"content": content}}}}))
        assert details(tool)["content_type"] == best


def test_keywords_of_30_become_those_of_json_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "nullable": True, "enum": ["x"]},
            "b": {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False},
            "c": {"allOf": [{"type": "string"}], "nullable": True},
            "d": {"type": "string", "example": "like this", "xml": {}, "x-internal": 1, "discriminator": {}},
            "e": {"type": "array", "items": [{"type": "string"}]},
            "f": {"type": "string", "pattern": r"^\p{L}+$"},
            "g": {"type": "strin", "required": True, "minLength": -1, "multipleOf": 0, "enum": [], "description": 5},
            "h": False,
            "i": 5,
        },
    }
    assert body(schema).input_schema["properties"] == {
        "id": {"type": "string"},
        "a": {"type": ["string", "null"], "enum": ["x", None]},
        "b": {"type": "integer", "maximum": 5, "exclusiveMinimum": 1},
        "c": {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]},
        "d": {"type": "string", "examples": ["like this"]},
        "e": {"type": "array", "prefixItems": [{"type": "string"}]},
        "f": {"type": "string"},
        "g": {},
        "h": {"not": {}},
        "i": {},
    }


CYCLES: dict[str, dict[str, Any]] = {
    "list": {"A": {"properties": {"next": {"$ref": "#/components/schemas/A"}, "v": {"type": "integer"}}}},
    "pair": {
        "A": {"properties": {"b": {"$ref": "#/components/schemas/B"}}},
        "B": {"properties": {"a": {"type": "array", "items": {"$ref": "#/components/schemas/A"}}}},
    },
    "itself": {"A": {"$ref": "#/components/schemas/A"}},
    "all of itself": {"A": {"allOf": [{"$ref": "#/components/schemas/A"}, {"properties": {"v": {}}}]}},
    "union": {"A": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/components/schemas/A"}}]}},
    "circle": {
        "A": {"allOf": [{"$ref": "#/components/schemas/B"}]},
        "B": {"anyOf": [{"$ref": "#/components/schemas/A"}, {"properties": {"x": {"$ref": "#/components/schemas/B"}}}]},
    },
}


ANYTHING: Any = [{"next": {"next": {"v": 1}}, "b": {"a": [{"b": {}}]}, "v": 1, "x": {"x": {}}}, "text", [["text"]], 5]
# What a schema means that says no more than "as I am": anything goes.
ENDLESS = {"itself", "all of itself", "circle"}


@pytest.mark.parametrize("name", CYCLES)
def test_cycles_end_in_a_schema_that_takes_the_same_values(name: str) -> None:
    parameter = {"name": "p", "in": "query", "schema": {"$ref": "#/components/schemas/A"}}
    request = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
    operation = {"parameters": [parameter], "requestBody": request}
    tool = only(spec({"/a": {"post": operation}}, components={"schemas": CYCLES[name]}))
    ours = Draft202012Validator(dict(tool.input_schema))
    ours.check_schema(ours.schema)
    theirs = Draft202012Validator({"$ref": "#/components/schemas/A", "components": {"schemas": CYCLES[name]}})
    for value in ANYTHING:
        assert ours.is_valid({"p": value}) is (name in ENDLESS or theirs.is_valid(value))


def test_what_stands_inside_a_cycle_is_checked_at_every_depth() -> None:
    operation = {"parameters": [{"name": "p", "in": "query", "schema": {"$ref": "#/components/schemas/A"}}]}
    tool = only(spec({"/a": {"get": operation}}, components={"schemas": CYCLES["list"]}))
    validator = Draft202012Validator(dict(tool.input_schema))
    for depth in range(5):
        value: dict[str, Any] = {"v": 1}
        wrong: dict[str, Any] = {"v": "one"}
        for _ in range(depth):
            value, wrong = {"next": value}, {"next": wrong}
        assert (validator.is_valid({"p": value}), validator.is_valid({"p": wrong})) == (True, False)


def test_large_schemas_are_shared_and_finite() -> None:
    """A web of 400 schemas, each referring to five others, would be astronomically large if written out."""
    schemas = {
        f"S{n}": {"properties": {f"p{k}": {"$ref": f"#/components/schemas/S{(n * 7 + k) % 400}"} for k in range(5)}}
        for n in range(400)
    }
    tool = body({"$ref": "#/components/schemas/S1"}, components={"schemas": schemas})
    assert 50 < len(tool.input_schema["$defs"]) <= 400
    assert len(json.dumps(tool.to_record())) < 500_000
    Draft202012Validator(dict(tool.input_schema)).validate({"id": "x", "p0": {"p1": {"p2": {}}}})


def test_a_long_chain_of_references() -> None:
    schemas: dict[str, Any] = {
        f"S{n}": {"properties": {"p": {"$ref": f"#/components/schemas/S{n + 1}"}}} for n in range(900)
    }
    schemas["S900"] = {"type": "string"}
    assert body({"$ref": "#/components/schemas/S0"}, components={"schemas": schemas})


def test_references_into_files_beside_the_document(tmp_path: Path) -> None:
    folder = tmp_path / "spec"
    (folder / "parts").mkdir(parents=True)
    operation = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "parts/pet.yaml#/Pet"}}}}}
    (folder / "api.json").write_text(json.dumps(spec({"/a": {"$ref": "parts/path%20a.json"}})), encoding="utf-8")
    (folder / "parts" / "path a.json").write_text(
        json.dumps({"post": operation}).replace("parts/", ""), encoding="utf-8"
    )
    pet = {"Pet": {"properties": {"name": {"$ref": "#/Name"}, "home": {"$ref": "../api.json#/info/x-home"}}}}
    (folder / "parts" / "pet.yaml").write_text(yaml.safe_dump({**pet, "Name": {"type": "string"}}), encoding="utf-8")
    (tmp_path / "secret.json").write_text("{}", encoding="utf-8")
    root = json.loads((folder / "api.json").read_text(encoding="utf-8"))
    root["info"]["x-home"] = {"type": "integer"}
    (folder / "api.json").write_text(json.dumps(root), encoding="utf-8")
    assert only(folder / "api.json").input_schema["properties"] == {
        "name": {"type": "string"},
        "home": {"type": "integer"},
    }
    for reference, said in {
        "../secret.json": "leaves the folder",
        "missing.json": "there is no such file",
        "https://x/y.json": "names another document",
        "parts/pet.yaml#/Nobody": "points nowhere",
        "parts#/x": "there is no such file",
    }.items():
        parameter = {"name": "p", "in": "query", "schema": {"$ref": reference}}
        (folder / "bad.json").write_text(
            json.dumps(spec({"/a": {"get": {"parameters": [parameter]}}})), encoding="utf-8"
        )
        with pytest.raises(BadSource, match=f"GET /a: \\$ref '{re.escape(reference)}' .*{said}"):
            only(folder / "bad.json")


def test_swagger_two() -> None:
    document = swagger(
        {
            "/a/{id}": {
                "parameters": [{"$ref": "#/parameters/Id"}],
                "post": {
                    "operationId": "make",
                    "parameters": [
                        {"name": "b", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Thing"}},
                        {
                            "name": "many",
                            "in": "query",
                            "type": "array",
                            "items": {"type": "string", "enum": ["x"]},
                            "collectionFormat": "multi",
                            "description": "Some",
                        },
                    ],
                },
                "put": {
                    "operationId": "upload",
                    "consumes": ["multipart/form-data"],
                    "parameters": [
                        {"name": "file", "in": "formData", "type": "file", "required": True},
                        {"name": "note", "in": "formData", "type": "string", "default": "none"},
                    ],
                },
                "patch": {"operationId": "form", "parameters": [{"name": "x", "in": "formData", "type": "number"}]},
            }
        },
        host="api.example.com",
        basePath="/v2/",
        schemes=["http", "https"],
        parameters={"Id": {"name": "id", "in": "path", "required": True, "type": "integer", "format": "int64"}},
        definitions={"Thing": {"type": "object", "required": ["n"], "properties": {"n": {"type": "number"}}}},
    )
    upload, make, form = catalogue.read(document)
    assert make.input_schema["properties"] == {
        "id": {"type": "integer", "format": "int64"},
        "many": {"type": "array", "items": {"type": "string", "enum": ["x"]}, "description": "Some"},
        "n": {"type": "number"},
    }
    assert make.input_schema["required"] == ["id", "n"]
    assert make.origin is not None
    assert make.origin.target == "https://api.example.com/v2"
    assert details(make)["style"] == {"many": {"collectionFormat": "multi"}}
    assert details(make)["content_type"] == "application/json"
    assert upload.input_schema["properties"]["file"] == {"type": "string", "format": "binary"}
    assert upload.input_schema["required"] == ["id", "file"]
    assert details(upload)["in"] == {"id": "path", "file": "body", "note": "body"}
    assert details(upload)["content_type"] == "multipart/form-data"
    assert details(form)["content_type"] == "application/x-www-form-urlencoded"


def test_security_headers_are_no_parameters() -> None:
    names = [("header", "Authorization"), ("header", "X-API-Key"), ("query", "token"), ("header", "Accept")]
    parameters = [{"name": name, "in": place, "schema": {}} for place, name in [*names, ("header", "X-Other")]]
    schemes = {
        "a": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        "b": {"type": "apiKey", "in": "query", "name": "token"},
        "c": "broken",
    }
    document = spec({"/a": {"get": {"parameters": parameters}}}, components={"securitySchemes": schemes})
    assert list(only(document).input_schema["properties"]) == ["X-Other"]


def test_names_are_tidy_and_unique() -> None:
    paths = {
        "/a/{x}": {"get": {"operationId": "same"}, "post": {"operationId": "same"}},
        "/a-{x}/": {"post": {}},
        "/": {"get": {"operationId": "  "}},
    }
    assert [tool.name for tool in catalogue.read(spec(paths))] == ["same", "post_a_x", "post_a_x_2", "get"]


def test_where_it_is_served() -> None:
    def target(**more: Any) -> str:
        tool = only(spec({"/a": {"get": more.pop("operation", {})}}, **more))
        assert tool.origin is not None
        return tool.origin.target

    assert target() == ""
    assert target(servers=[{"url": "https://me:pw@x.example/a/?key=1"}]) == "https://x.example/a"
    assert target(servers=[{"url": "/v1"}]) == "/v1"
    assert target(servers=[{"url": "https://a"}], operation={"servers": [{"url": "https://b"}]}) == "https://b"
    assert target(servers=[5]) == target(servers="x") == target(servers=[{"url": "http://[::1"}]) == ""


def test_the_real_specifications(shared_data: Path) -> None:
    folder = shared_data / "openapi_ops"
    rows = re.findall(r"\| specs/(\S+) \| \S+ \| (\d+) \|", (folder / "README.md").read_text(encoding="utf-8"))
    assert len(rows) == 6
    for name, count in rows:
        tools = list(catalogue.read(folder / "specs" / name))
        assert len({tool.id for tool in tools}) == int(count)
        for tool in tools:
            Draft202012Validator.check_schema(dict(tool.input_schema))
            assert "$ref" not in json.dumps(tool.input_schema) or "$defs" in tool.input_schema
            assert details(tool)["in"].keys() == tool.input_schema["properties"].keys()
