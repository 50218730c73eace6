"""The tree of tool codes, for retrievers that give tools codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolscout.models.tool_ids.quantizer import Code

NEAR = 3


class CodeTree:
    """A prefix tree of the codes of some tools."""

    def __init__(self, codes: Mapping[str, Code]) -> None:
        """File each tool under every prefix of its code."""
        self._codes = codes
        self._under: dict[Code, list[str]] = {}
        for tool_id in sorted(codes):
            for length in range(1, len(codes[tool_id]) + 1):
                self._under.setdefault(codes[tool_id][:length], []).append(tool_id)

    def path(self, tool_id: str) -> dict[str, Any] | None:
        """Return the steps down to a tool with the number of tools under each, and its neighbours; None if unknown."""
        code = self._codes.get(tool_id)
        if code is None:
            return None
        beginnings = [code[:length] for length in range(1, len(code) + 1)]
        steps = [{"code": list(one), "tools": len(self._under[one])} for one in beginnings]
        shared = next((one for one in reversed(beginnings) if len(self._under[one]) > 1), None)
        near = [other for other in self._under[shared] if other != tool_id] if shared else []
        return {"steps": steps, "near": near[:NEAR]}
