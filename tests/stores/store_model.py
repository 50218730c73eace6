"""A store against a plain dict: whatever is done to it, the catalogue and its replay from any version are the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.stores.store_helpers import follow
from toolscout.core.tool import Tool
from toolscout.errors import DuplicateTool, UnknownTool
from toolscout.stores import Store

NAMES = st.sampled_from(["a", "b", "c/d", "e%2Ff", "g h", "é"])
TOOLS = st.builds(
    Tool,
    namespace=st.sampled_from(["mail", "mail/box"]),
    name=NAMES,
    description=st.sampled_from(["", "one", "two"]),
    tags=st.sampled_from([(), ("t",)]),
)
SOURCES = st.sampled_from(["", "s", "t"])


class Model(RuleBasedStateMachine):
    def __init__(self, make: Callable[[Path], Store]) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.make = make
        self.store = make(Path(self.folder.name))
        self.tools: dict[str, tuple[Tool, str]] = {}
        self.aliases: dict[str, set[str]] = {}
        self.states: list[dict[str, str]] = [{}]  # of each version: id -> digest
        self.changed_at: dict[str, int] = {}

    def committed(self, before: dict[str, tuple[Tool, str]], touched: set[str] = frozenset()) -> None:
        """Note a new version, if there was any change."""
        changed = {key for key in before | self.tools if before.get(key, ("",))[0] != self.tools.get(key, ("",))[0]}
        if changed | touched:
            self.states.append({key: tool.digest() for key, (tool, _) in self.tools.items()})
            self.changed_at |= dict.fromkeys(changed | touched, len(self.states) - 1)

    @rule(
        tools=st.lists(TOOLS, max_size=8),
        source=SOURCES,
        replace=st.booleans(),
        sync=st.booleans(),
        remove=st.lists(TOOLS, max_size=2),
    )
    def add(self, tools: list[Tool], source: str, replace: bool, sync: bool, remove: list[Tool]) -> None:
        more = [tool.id for tool in remove]
        if not self.tools.keys() >= {*more}:
            with pytest.raises((UnknownTool, DuplicateTool)):
                self.store.add(tools, source, replace=replace, sync=sync, remove=more)
            return
        given: dict[str, Tool] = {}
        twice = any(given.setdefault(tool.id, tool) != tool for tool in tools)
        there = {key: self.tools[key] for key in given if key in self.tools}
        stolen = any(tool != given[key] and owner != source for key, (tool, owner) in there.items())
        if twice or (stolen and not replace):
            with pytest.raises(DuplicateTool):
                self.store.add(tools, source, replace=replace, sync=sync, remove=more)
            return
        before = dict(self.tools)
        for key, tool in given.items():
            owner = before[key][1] if key in before and before[key][0] == tool and not replace else source
            self.tools[key] = (tool, owner)
        gone = {key for key, (_, owner) in before.items() if owner == source and key not in given} if sync else set()
        added = len(self.tools.keys() - before.keys())
        gone |= {*more}
        for key in gone:
            del self.tools[key]
        report = self.store.add(tools, source, replace=replace, sync=sync, remove=more)
        self.committed(before)
        assert report.added == added
        assert report.changed == sum(before[key][0] != given[key] for key in there)
        assert report.unchanged == len(given) - report.added - report.changed
        assert report.removed == len(gone)
        assert report.version == len(self.states) - 1

    @precondition(lambda self: self.tools)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.tools)), min_size=1, max_size=4))
        before = dict(self.tools)
        for key in set(ids):
            del self.tools[key]
        assert self.store.remove(ids) == len(set(ids))
        self.committed(before)
        with pytest.raises(UnknownTool):
            self.store.remove(ids)

    @precondition(lambda self: self.tools)
    @rule(data=st.data(), alias=st.sampled_from(["x", "y"]), give=st.booleans())
    def alias(self, data: st.DataObject, alias: str, give: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.tools)))
        had = self.aliases.setdefault(key, set())
        done = (alias in had) != give
        (had.add if give else had.discard)(alias)
        assert (self.store.set_alias if give else self.store.remove_alias)(key, alias) == done
        self.committed(self.tools, {key} if done else set())

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.make(Path(self.folder.name))

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        since = data.draw(st.integers(0, len(self.states)))
        changes = list(self.store.changes(since))
        assert changes == [change for change, _ in self.store.documents(since)]
        assert [(change.version, change.tool_id) for change in changes] == sorted(
            (version, key) for key, version in self.changed_at.items() if version > since
        )
        assert follow(self.states[min(since, len(self.states) - 1)], changes) == self.states[-1]

    @invariant()
    def same(self) -> None:
        assert self.store.version() == len(self.states) - 1
        found = {tool.id: tool for tool in self.store.tools()}
        assert list(found) == self.store.ids() == sorted(self.tools)
        for key, (tool, _) in self.tools.items():
            assert found[key].aliases == tuple(sorted(self.aliases.get(key, ())))
            assert found[key].to_record() | {"aliases": 0} == tool.to_record() | {"aliases": 0}

    def teardown(self) -> None:
        self.store.check()
        self.store.close()
        self.folder.cleanup()
