"""The scope of a search: which tools a caller may get and see, and whose feedback counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from toolscout.core.answer import Allowed

Endpoints = Literal["skip", "ask", "wait"]
"""Use of language models behind a URL: not at all, within their time limit, or without one."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The caller of a search. It is made once for each request and passed down; nothing stores it.

    `allowed`: the tools that may be ranked; None: all. `visible`: the tools that the caller may see, which may be used
    to read its request and shown to a language model; None: those in `allowed`. The two differ where rankings of the
    whole catalogue are fused. `tenant`: the tenant whose feedback counts besides the shared one. `endpoints`: whether
    language models behind a URL are skipped ("skip"), used within their time limit ("ask") or waited for ("wait").
    """

    allowed: Allowed | None = None
    visible: Allowed | None = None
    tenant: str = ""
    endpoints: Endpoints = "ask"

    @property
    def sees(self) -> Allowed | None:
        """The tools that the caller may see; None: all."""
        return self.allowed if self.visible is None else self.visible

    def permits(self, tool_id: str) -> bool:
        """Return whether a tool may be ranked."""
        return self.allowed is None or self.allowed.permits(tool_id)

    def same_caller(self, other: Scope) -> bool:
        """Return whether both callers see the same tools and have the same tenant."""
        return (self.sees, self.tenant) == (other.sees, other.tenant)

    def of_all(self) -> Scope:
        """Return a scope that ranks the whole catalogue for the same caller, who still sees only its own tools."""
        return self if self.allowed is None else replace(self, allowed=None, visible=self.sees)


EVERYTHING = Scope()
"""A caller without limits."""
