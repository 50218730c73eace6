"""The options of writing synthetic requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolscout.errors import BadRequest
from toolscout.synth.styles import STYLES

TASK = "synth"
"""The "task" in generator.json of a model that writes requests."""
KINDS = ("namespace", "chain", "shared", "meaning")
"""Why tools go together: same namespace; one's output is the other's input; same inputs; similar documents."""


@dataclass(frozen=True, slots=True)
class SynthOptions:
    """How many requests are written for each tool, what they are like, and which are kept.

    per_tool: requests for each tool.
    combinations: the share of requests that need other tools too; None is as in the known requests, else half.
    sizes, kinds, styles: the shares of the numbers of tools, of why they go together, and of styles; empty ones follow
        the known requests.
    examples: how many known requests a prompt shows.
    tries: the most attempts to write a request that passes the filters.
    filtered: False keeps all requests that are not empty.
    round_trip: the tool that a request is written for must be among this many first results of a retriever, times the
        number of tools that the request needs; 0 uses no retriever.
    """

    per_tool: int = 3
    combinations: float | None = None
    sizes: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, float] = field(default_factory=dict)
    styles: dict[str, float] = field(default_factory=dict)
    examples: int = 0
    tries: int = 2
    temperature: float = 0.8
    max_tokens: int = 96
    filtered: bool = True
    round_trip: int = 20
    dev: float = 0.1
    chunk: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise BadRequest for values out of range."""
        if min(self.per_tool, self.tries, self.max_tokens) < 1:
            raise BadRequest("per_tool, tries and max_tokens have to be 1 or more")
        if min(self.examples, self.round_trip, self.chunk) < 0 or not 0 <= self.dev < 1:
            raise BadRequest("examples, round_trip and chunk have to be 0 or more, dev from 0 to below 1")
        if not 0 <= self.temperature <= 100:
            raise BadRequest(f"the temperature is from 0 (the likeliest words) to 100, got {self.temperature:g}")
        if self.combinations is not None and not 0 <= self.combinations <= 1:
            raise BadRequest(f"combinations is a share from 0 to 1, got {self.combinations:g}")
        for what, shares, known in (
            ("size", self.sizes, ("1", "2", "3")),
            ("kind of combination", self.kinds, KINDS),
            ("style", self.styles, tuple(STYLES)),
        ):
            unknown = [name for name in shares if name not in known]
            if unknown:
                raise BadRequest(f"there is no {what} {unknown[0]!r}; choose from: {'; '.join(known)}")
            if shares and (min(shares.values()) < 0 or not sum(shares.values()) > 0):
                raise BadRequest(f"the shares of each {what} have to be 0 or more, and one of them above 0")
