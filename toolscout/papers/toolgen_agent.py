"""ToolGen's agent as published: thought, action, arguments, observation; it retries where it would give up.

Each step is three turns of the model: a thought; the id of one tool; and, shown the tool's documentation only then, its
arguments. Arguments are taken as they are written: nothing is repaired or asked for again, and a call may be repeated.
Where a picker generates freely, it may name a tool that there is not: no arguments are asked for, and the observation
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from toolscout.agent.episode import Episode, Finished, Step
from toolscout.agent.llm_batch import Reply, ask, json_object
from toolscout.agent.pickers import InventedTool, Picker, Unpicked
from toolscout.calling.dispatch import ToolCaller
from toolscout.core.argument_checks import problems
from toolscout.core.tool import Tool
from toolscout.data.conversations import FINISH, GIVE_ANSWER, GIVE_UP, ConversationBuilder, Turn, documentation
from toolscout.llm.base import LanguageModel

_RETRY_TEMPERATURES = (0.6, 1.0, 1.0, 1.0)
_GIVES_UP = (GIVE_UP, "I'm sorry", "apologize")
_REPLY_TOKENS, _OBSERVATION_CHARS = 512, 1_024
_NO_JSON = "the input is no JSON object"
_NO_TOOL = "there is no tool {!r:.200}"


@dataclass(frozen=True, slots=True)
class PublishedAgentOptions:
    """Limits of the published agent.

    thoughts: whether the model writes a thought before each action.
    retry: whether a last step that gives up or apologises is written again, at most four times, at temperatures of 0.6
        and then 1.0.
    turns: no step begins once the model has written so many turns: thoughts, actions and arguments.
    tokens: the most tokens of a trajectory.
    """

    thoughts: bool = True
    retry: bool = True
    turns: int = 16
    tokens: int = 6_144


@dataclass(slots=True)
class _Attempt:
    """A step as the model wrote it; no call is made yet. `failed`: how the episode ends where it could not be written.

    `tool` is None for Finish. `written`: the arguments, as text. `invented`: there is no tool of the name `action`.
    """

    script: ConversationBuilder
    thought: str = ""
    action: str = ""
    tool: Tool | None = None
    written: str = ""
    invented: bool = False
    failed: tuple[Finished, str] | None = None

    @property
    def gives_up(self) -> bool:
        finishes = self.failed is None and self.tool is None and not self.invented
        return finishes and any(words in self.written for words in _GIVES_UP)


@dataclass(slots=True)
class _Trajectory:
    """The state of one request while the agent works on it."""

    request: str
    script: ConversationBuilder
    steps: list[Step] = field(default_factory=list)
    turns: int = 0
    retries: int = 0
    finish: Finished | None = None
    answer: str = ""
    reason: str = ""

    def end(self, finish: Finished, reason: str = "") -> None:
        retried = f"steps were written again {self.retries} times" if self.retries else ""
        self.finish, self.reason = finish, "; ".join(filter(None, [reason, retried]))

    def episode(self) -> Episode:
        return Episode(self.request, tuple(self.steps), self.finish or "step_limit", self.answer, self.reason)


class PublishedAgent:
    """Works on a batch of requests in lockstep: a language model writes, a picker names tools, a caller runs them."""

    def __init__(
        self,
        llm: LanguageModel,
        picker: Picker,
        caller: ToolCaller,
        lookup: Callable[[Sequence[str]], list[Tool]],
        options: PublishedAgentOptions | None = None,
    ) -> None:
        """`lookup` returns tools by id."""
        self._llm, self._picker, self._caller, self._lookup = llm, picker, caller, lookup
        self.options = options or PublishedAgentOptions()

    def run(self, requests: Sequence[str]) -> list[Episode]:
        """Work on all requests at once and return the episode of each, in order."""
        introduced = self._picker.introduce(requests)
        every = [
            _Trajectory(request, ConversationBuilder(request, rules))
            for request, rules in zip(requests, introduced, strict=True)
        ]
        while going := [one for one in every if one.finish is None]:
            self._step(going)
        return [one.episode() for one in every]

    def _step(self, going: Sequence[_Trajectory]) -> None:
        """Write a step of each trajectory, again where it gives up, and make its call."""
        attempts = self._attempts(going, 0.0)
        for temperature in _RETRY_TEMPERATURES if self.options.retry else ():
            again = [at for at, attempt in enumerate(attempts) if attempt.gives_up]
            if not again:
                break
            retried = self._attempts([going[at] for at in again], temperature)
            for at, attempt in zip(again, retried, strict=True):
                going[at].retries += 1
                attempts[at] = attempts[at] if attempt.failed else attempt
        calls = []
        for one, attempt in zip(going, attempts, strict=True):
            if attempt.failed:
                one.end(*attempt.failed)
                continue
            one.script = attempt.script
            one.turns += int(self.options.thoughts) + (1 if attempt.invented else 2)
            if attempt.tool is not None:
                calls.append((one, attempt, attempt.tool))
            elif attempt.invented:
                why = _NO_TOOL.format(attempt.action)
                observation = f"error: {why}"
                self._add(
                    one, Step(attempt.action, attempt.thought, refusals=(why,), observation=observation, invented=True)
                )
            else:
                one.answer, gave_up = _final_answer(attempt.written)
                one.end("gave_up" if gave_up else "answered")
        self._call(calls)

    def _attempts(self, going: Sequence[_Trajectory], temperature: float) -> list[_Attempt]:
        """Write a thought, an action and its arguments for each trajectory, which stays as it is."""
        attempts = [_Attempt(copy(one.script)) for one in going]
        if self.options.thoughts:
            prompts = [one.script.before_thought() for one in attempts]
            for one, reply in self._replies(attempts, prompts, temperature):
                one.thought = reply.text
                if reply.text:
                    one.script.think(reply.text)
        self._pick([one for one in attempts if not one.failed])
        left = [one for one in attempts if not one.failed and not one.invented]
        prompts = [one.script.before_input(documentation(one.tool)) for one in left]
        for one, reply in self._replies(left, prompts, temperature):
            one.written = reply.text
            one.script.give(documentation(one.tool), json_object(reply.text) or {})
        return attempts

    def _replies(
        self, attempts: Sequence[_Attempt], prompts: Sequence[Sequence[Turn]], temperature: float
    ) -> list[tuple[_Attempt, Reply]]:
        """Return the usable replies; an attempt whose model failed, or that is too long, is marked as failed."""
        found = []
        replies = ask(self._llm, prompts, max_tokens=_REPLY_TOKENS, temperature=temperature)
        for one, reply in zip(attempts, replies, strict=True):
            if reply.failed:
                one.failed = ("model_failed", reply.failed)
            elif reply.tokens > self.options.tokens:
                one.failed = ("step_limit", f"the trajectory is longer than {self.options.tokens:,} tokens")
            else:
                found.append((one, reply))
        return found

    def _pick(self, attempts: Sequence[_Attempt]) -> None:
        picked = self._picker.pick([one.script.before_action() for one in attempts]) if attempts else []
        wanted = [action for action in dict.fromkeys(picked) if isinstance(action, str) and action != FINISH]
        tools = dict(zip(wanted, self._lookup(wanted), strict=True))
        for one, action in zip(attempts, picked, strict=True):
            if isinstance(action, str):
                one.action, one.tool = action, tools.get(action)
                one.script.act(action)
            elif isinstance(action, InventedTool):
                one.action, one.invented = action.name, True
                one.script.act(action.name)
            elif isinstance(action, Unpicked):
                one.failed = ("model_failed", action.reason)
            else:
                one.failed = ("nothing_picked", "no tool was picked")

    def _call(self, calls: Sequence[tuple[_Trajectory, _Attempt, Tool]]) -> None:
        """Make the calls whose arguments are JSON, and add a step with the observation to each trajectory."""
        arguments = [json_object(attempt.written) for _, attempt, _ in calls]
        made = [(tool, given) for (_, _, tool), given in zip(calls, arguments, strict=True) if given is not None]
        results = iter(self._caller.call(made))
        for (one, attempt, tool), given in zip(calls, arguments, strict=True):
            step = Step(tool.id, attempt.thought, given)
            if given is None:
                step = replace(step, refusals=(_NO_JSON,), observation=f"error: {_NO_JSON}")
            else:
                result = next(results)
                seen = result.shortened(_OBSERVATION_CHARS)
                valid = not problems(given, tool.input_schema)
                step = replace(step, valid=valid, called=True, ok=result.ok, exact=result.exact, observation=seen)
            self._add(one, step)

    def _add(self, one: _Trajectory, step: Step) -> None:
        """Add a step to a trajectory, which ends where the model has written enough turns."""
        one.script.observe(step.observation)
        one.steps.append(step)
        if one.turns >= self.options.turns:
            one.end("step_limit", f"the model has written {one.turns} turns")


def _final_answer(written: str) -> tuple[str, bool]:
    """Return the answer in the arguments of Finish, and whether they give up. Text that is no JSON is the answer."""
    given = json_object(written)
    if given is None:
        return written, GIVE_UP in written
    answer = given.get("final_answer", given.get(GIVE_ANSWER, ""))
    return str(answer), GIVE_UP in given or given.get("return_type") == GIVE_UP
