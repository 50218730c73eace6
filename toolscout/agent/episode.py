"""What an agent did with a request: every thought, pick, argument, repair, refusal and observation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Finished = Literal["answered", "gave_up", "nothing_picked", "step_limit", "model_failed"]


@dataclass(frozen=True, slots=True)
class Step:
    """One tool picked, and what came of it.

    `valid`: whether the arguments fitted the schema as the model first wrote them: what was repaired, or only fitted
    when it was asked for once more, is not, whoever noticed. `repairs`: what was put right. `refusals`: why arguments
    or the call were refused; the call was made where `called`. `exact` is False where the observation is a recording of
    another call. `repeated`: it was refused because it had been made before.
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


@dataclass(frozen=True, slots=True)
class Episode:
    """A request from its first thought to its end. `reason` says more about the end where there is more to say."""

    request: str
    steps: tuple[Step, ...]
    finish: Finished
    answer: str = ""
    reason: str = ""

    @property
    def called(self) -> tuple[str, ...]:
        """The tools that were called, in order; each as often as it was."""
        return tuple(step.tool_id for step in self.steps if step.called)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Episode:
        """Out of its JSON form."""
        steps = [
            Step(**{**step, "repairs": tuple(step["repairs"]), "refusals": tuple(step["refusals"])})
            for step in record["steps"]
        ]
        return cls(**{**record, "steps": tuple(steps)})
