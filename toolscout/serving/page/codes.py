"""The tree of tool codes, for retrievers that assign codes to tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolscout.models.tool_ids.quantizer import Code

NEAR = 3  # neighbours shown of a tool


class CodeTree:
    """A prefix tree of the codes of some tools."""

    def __init__(self, codes: Mapping[str, Code]) -> None:
        """Build the tree: each prefix of a code, with the tools whose codes begin with it."""
        self._codes = codes
        self._by_prefix: dict[Code, list[str]] = {}
        for tool_id in sorted(codes):
            for length in range(1, len(codes[tool_id]) + 1):
                self._by_prefix.setdefault(codes[tool_id][:length], []).append(tool_id)

    def path(self, tool_id: str) -> dict[str, Any] | None:
        """Return the steps down to a tool with the number of tools under each, and its neighbours; None if unknown."""
        code = self._codes.get(tool_id)
        if code is None:
            return None
        prefixes = [code[:length] for length in range(1, len(code) + 1)]
        steps = [{"code": list(prefix), "tools": len(self._by_prefix[prefix])} for prefix in prefixes]
        shared = next((prefix for prefix in reversed(prefixes) if len(self._by_prefix[prefix]) > 1), None)
        near = [other for other in self._by_prefix[shared] if other != tool_id] if shared else []
        return {"steps": steps, "near": near[:NEAR]}
