"""Who asks: what one caller may be given, what it may see, and whose feedback it hears."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from toolscout.core.answer import Allowed

Endpoints = Literal["skip", "ask", "wait"]
"""What becomes of language models behind a URL: skipped, asked within the time that they have, or waited for."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Who asks. It is made once per request at the door and handed down; nothing stores it.

    `allowed`: the tools that may be ranked; None: all of them. `visible`: the tools whose names and words may be read
    into a request, and that a language model may be shown, whatever is ranked; None: those in `allowed`. Whoever fuses
    rankings asks for those of the whole catalogue, so the two differ there. `tenant`: whose feedback is heard besides
    everybody's. `endpoints`: whether language models behind a URL are skipped, asked within the time that they have, or
    waited for.
    """

    allowed: Allowed | None = None
    visible: Allowed | None = None
    tenant: str = ""
    endpoints: Endpoints = "ask"

    @property
    def sees(self) -> Allowed | None:
        """The tools that the caller may see; None: all of them."""
        return self.allowed if self.visible is None else self.visible

    def permits(self, tool_id: str) -> bool:
        """Whether a tool may be ranked."""
        return self.allowed is None or self.allowed.permits(tool_id)

    def same_caller(self, other: Scope) -> bool:
        """Whether both see the same tools and hear the same feedback, whatever is ranked for them."""
        return (self.sees, self.tenant) == (other.sees, other.tenant)

    def of_all(self) -> Scope:
        """The same caller, for a ranking of the whole catalogue: it still sees only its own tools."""
        return self if self.allowed is None else replace(self, allowed=None, visible=self.sees)


EVERYTHING = Scope()
"""A caller without limits."""
