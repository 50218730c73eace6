"""The record of what an agent did with one request: its thoughts, tool calls, repairs, refusals and observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Finished = Literal["answered", "gave_up", "nothing_picked", "step_limit", "model_failed"]


@dataclass(frozen=True, slots=True)
class Step:
    """One tool that the agent picked, its arguments, and the result of the call.

    `valid`: whether the arguments fitted the tool's schema as the model first wrote them; False where they were
    repaired or asked for a second time. `repairs`: what was changed in them. `refusals`: why the arguments or the call
    were refused. `called`: whether the call was made; `ok`: whether it succeeded. `exact` is False where the
    observation is the recording of a call with other arguments. `repeated`: the call was not made, because the same
    call had been made before. `invented`: there is no such tool; `tool_id` is what the model wrote.
    """

    tool_id: str
    thought: str = ""
    arguments: Mapping[str, Any] | None = None
    valid: bool = False
    repairs: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    called: bool = False
    ok: bool = False
    exact: bool = True
    observation: str = ""
    repeated: bool = False
    invented: bool = False


@dataclass(frozen=True, slots=True)
class Episode:
    """All steps that an agent took for one request, how it finished, and its answer; `reason` explains the finish."""

    request: str
    steps: tuple[Step, ...]
    finish: Finished
    answer: str = ""
    reason: str = ""

    @property
    def called(self) -> tuple[str, ...]:
        """The ids of the tools that were called, in order; a tool called twice is listed twice."""
        return tuple(step.tool_id for step in self.steps if step.called)

    def to_dict(self) -> dict[str, Any]:
        """Return the episode as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Episode:
        """Read what to_dict returned."""
        steps = [
            Step(**{**step, "repairs": tuple(step["repairs"]), "refusals": tuple(step["refusals"])})
            for step in record["steps"]
        ]
        return cls(**{**record, "steps": tuple(steps)})
