"""What every importer keeps. A test class inherits `ImporterContract` and gives it fixtures `name` and `source`.

    class TestMine(ImporterContract):
        @pytest.fixture
        def name(self) -> str:
            return "mine"

        @pytest.fixture
        def source(self, tmp_path: Path) -> Path:
            return written(tmp_path / "sample.mine")

The name must be found by catalogue/registry.py; the source is a small one that this importer alone accepts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from tests.catalogue.importer_samples import json_values
from toolscout import catalogue
from toolscout.catalogue import Importer, ReadOptions, registry
from toolscout.core.tool import Tool
from toolscout.errors import BadSource, ToolscoutError

FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


def check_tools(tools: list[Tool]) -> None:
    """Whatever came in, what comes out is sound."""
    assert len({tool.id for tool in tools}) == len(tools)
    for tool in tools:
        assert tool.document().isprintable() or "\n" in tool.document()
        assert len(tool.content_digest()) == 32
        record = json.loads(json.dumps(tool.to_record()))
        assert Tool.from_record(record) == tool


class ImporterContract:
    """Tests of one importer."""

    @pytest.fixture
    def name(self) -> str:
        raise NotImplementedError("say the importer's name: a fixture `name`")

    @pytest.fixture
    def source(self) -> Any:
        raise NotImplementedError("give a small sample: a fixture `source`")

    def runs(self, name: str) -> bool:
        """Whether reading a source runs it, instead of reading a file."""
        return False

    def starts(self, name: str) -> bool:
        """Whether any text could be a command line, which must not be tried at random."""
        return False

    def test_inherits_the_contract(self, name: str) -> None:
        assert isinstance(registry.importer(name), Importer)

    def test_reading_twice_gives_the_same_sound_tools(self, name: str, source: Any) -> None:
        assert [other for other in registry.available() if registry.importer(other).accepts(source)] == [name]
        tools = list(catalogue.read(source))
        assert tools
        assert list(catalogue.read(source)) == tools
        check_tools(tools)
        for tool in tools:
            Draft202012Validator.check_schema(dict(tool.input_schema))

    def test_forced_by_name(self, name: str, source: Any) -> None:
        assert list(catalogue.read(source, ReadOptions(kind=name))) == list(catalogue.read(source))

    def test_the_label_is_stable_text(self, name: str, source: Any) -> None:
        label = registry.importer(name).label(source)
        assert label
        assert label == registry.importer(name).label(source) == catalogue.describe(source)

    @pytest.mark.parametrize("missing", ["no/such/thing", "no.such.module:thing", "nothing.json", "", "http://[::1/x"])
    def test_what_is_not_there_is_a_bad_source(self, name: str, missing: str) -> None:
        with pytest.raises(BadSource):
            list(catalogue.read(missing, ReadOptions(kind=name, timeout=2)))

    def test_a_file_that_cannot_be_read(self, name: str, tmp_path: Path) -> None:
        if self.runs(name):
            pytest.skip("this one runs its source instead of reading it")
        path = tmp_path / "corpus.jsonl"
        path.write_bytes(b"\x1f\x8b\x08 this is no gzip")
        with pytest.raises(BadSource, match=str(path)):
            list(catalogue.read(path, ReadOptions(kind=name)))

    @FUZZ
    @given(value=json_values)
    def test_any_value_gives_tools_or_a_toolscout_error(self, name: str, value: Any) -> None:
        importer = registry.importer(name)
        importer.accepts(value)
        catalogue.describe(value)
        for keep_going in (False, True):
            if self.starts(name):
                continue
            try:
                tools = list(importer.read(value, ReadOptions(keep_going=keep_going)))
            except ToolscoutError:
                continue
            check_tools(tools)
