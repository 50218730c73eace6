"""The Agent. It works on a batch of requests in lockstep: think, pick a tool, write its arguments, call it, observe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from toolscout.agent.episode import Episode, Finished, Step
from toolscout.agent.llm_batch import Reply, ask, json_object
from toolscout.agent.pickers import Picker, Unpicked
from toolscout.calling.dispatch import Arguments, ToolCaller
from toolscout.core.argument_checks import problems, repaired
from toolscout.core.json_schema import object_schema
from toolscout.core.tool import Tool, clean_text
from toolscout.data.conversations import FINISH, FINISH_SCHEMA, GIVE_UP, ConversationBuilder, Turn, documentation
from toolscout.errors import BadRequest, UnknownTool
from toolscout.llm.base import LanguageModel

Lookup = Callable[[Sequence[str]], list[Tool]]
"""Takes tool ids; returns the tools with these ids, in order."""
Approve = Callable[[Tool, Arguments], str]
"""Takes a tool and its arguments; returns why the call may not be made, or "" where it may."""
Watch = Callable[[int, Step], None]
"""Called after each step with the position of its request in the batch and the step."""

_ANSWER_SCHEMA = {**FINISH_SCHEMA, "required": ["return_type", "final_answer"], "additionalProperties": False}
_REPEATED = "it was made before with the same input, and its result stands above; use another tool, or finish"
USED_UP = "the steps were used up"
_THOUGHT_TOKENS, _OBSERVATION_CHARS = 96, 1_000  # the most of a thought, and of what a tool gave back
_AGAIN = "The input was refused: {}. Give it again as JSON."


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Limits of an agent and how it writes.

    `steps`: the largest number of tool calls for one request. A call that repeats an earlier one is not made and does
    not count; repeats included, the agent picks a tool at most 2 * `steps` times. `thoughts`: whether the model writes
    a thought before each pick. `constrain`: arguments are generated under the tool's JSON Schema, so that they always
    fit; without it they are generated freely, and arguments that do not fit are repaired or refused.
    """

    steps: int = 6
    thoughts: bool = True
    constrain: bool = True
    argument_tokens: int = 256
    answer_tokens: int = 256

    def __post_init__(self) -> None:
        """Raise BadRequest where `steps` is below 1."""
        if self.steps < 1:
            raise BadRequest(f"an agent needs at least one step, got {self.steps}")


@dataclass(slots=True)
class _RunningEpisode:
    """The state of one request while the agent works on it. `spent`: ids of tools that may not be picked again."""

    number: int
    request: str
    script: ConversationBuilder
    steps: list[Step] = field(default_factory=list)
    spent: set[str] = field(default_factory=set)
    thought: str = ""
    tool: Tool | None = None
    finish: Finished | None = None
    answer: str = ""
    reason: str = ""

    @property
    def counted(self) -> int:
        """The number of steps taken, without repeated calls."""
        return sum(not step.repeated for step in self.steps)

    def end(self, finish: Finished, reason: str = "") -> None:
        self.finish, self.reason = finish, reason

    def episode(self) -> Episode:
        return Episode(self.request, tuple(self.steps), self.finish or "step_limit", self.answer, self.reason)


class Agent:
    """Solves requests with a language model that writes, a picker that chooses tools, and a caller that runs them."""

    def __init__(
        self,
        llm: LanguageModel,
        picker: Picker,
        caller: ToolCaller,
        lookup: Lookup,
        options: AgentOptions | None = None,
        *,
        approve: Approve | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`lookup` returns tools by id. `approve` may refuse a call; `watch` is called after each step."""
        self._llm, self._picker, self._caller, self._lookup = llm, picker, caller, lookup
        self.options = options or AgentOptions()
        self._approve, self._watch = approve, watch

    def run(self, requests: Sequence[str]) -> list[Episode]:
        """Work on all requests at once and return the episode of each, in order."""
        introduced = self._picker.introduce(requests)
        episodes = [
            _RunningEpisode(number, request, ConversationBuilder(request, rules))
            for number, (request, rules) in enumerate(zip(requests, introduced, strict=True))
        ]
        for _ in range(2 * self.options.steps):
            going = [one for one in episodes if one.finish is None and one.counted < self.options.steps]
            if not going:
                break
            self._think(going)
            self._pick(going)
            going = [one for one in going if one.finish is None]
            self._answer([one for one in going if one.tool is None], "answered")
            self._act([one for one in going if one.tool is not None])
        self._answer([one for one in episodes if one.finish is None], "step_limit")
        return [one.episode() for one in episodes]

    def _think(self, going: Sequence[_RunningEpisode]) -> None:
        for one in going:
            one.thought = ""
        if not self.options.thoughts:
            return
        prompts = [one.script.before_thought() for one in going]
        replies = ask(self._llm, prompts, max_tokens=_THOUGHT_TOKENS, stop=("\n\n",))
        for one, reply in zip(going, replies, strict=True):
            if reply.failed:
                one.end("model_failed", reply.failed)
            elif reply.text:
                one.thought = reply.text
                one.script.think(reply.text)

    def _pick(self, going: Sequence[_RunningEpisode]) -> None:
        going = [one for one in going if one.finish is None]
        prompts, spent = [one.script.before_action() for one in going], [one.spent for one in going]
        picked = self._picker.pick(prompts, without=spent) if going else []
        wanted = [action for action in dict.fromkeys(picked) if isinstance(action, str) and action != FINISH]
        tools = self._found(wanted)
        for one, action in zip(going, picked, strict=True):
            if isinstance(action, str) and action != FINISH and action not in tools:
                one.end("model_failed", f"the catalogue has no tool {action} any more")
            elif isinstance(action, str):
                one.tool = tools.get(action)
                one.script.act(action)
            elif isinstance(action, Unpicked):
                one.end("model_failed", action.reason)
            else:
                one.end("nothing_picked", "no tool was picked")

    def _found(self, wanted: Sequence[str]) -> dict[str, Tool]:
        """Return the tools by id. Ids that the catalogue no longer has are left out: it may change during a run."""
        try:
            return dict(zip(wanted, self._lookup(wanted), strict=True))
        except UnknownTool:
            alone = [self._found([tool_id]) for tool_id in wanted] if len(wanted) > 1 else []
            return {tool_id: tool for one in alone for tool_id, tool in one.items()}

    def _answer(self, ending: Sequence[_RunningEpisode], finish: Finished) -> None:
        """Have the model write the final answer, because it chose to finish or ("step_limit") has no steps left."""
        if finish == "step_limit":
            for one in ending:
                one.script.act(FINISH)
        shown, constrain = documentation(None), self.options.constrain
        prompts = [one.script.before_input(shown) for one in ending]
        schemas = [_ANSWER_SCHEMA] * len(prompts) if constrain else None
        replies = ask(self._llm, prompts, max_tokens=self.options.answer_tokens, schemas=schemas)
        for one, reply in zip(ending, replies, strict=True):
            if reply.failed:
                one.end("model_failed", reply.failed)
                continue
            given = json_object(reply.text) or {"final_answer": reply.text}
            one.answer = str(given.get("final_answer", ""))
            one.script.give(shown, given)
            if given.get("return_type") == GIVE_UP:
                one.end("gave_up", USED_UP if finish == "step_limit" else "")
            else:
                one.end(finish)

    def _act(self, going: Sequence[_RunningEpisode]) -> None:
        """Have the model write arguments, once more where they were refused, and make the calls that are approved."""
        steps = self._filled(going, [Step(one.tool.id, one.thought) for one in going if one.tool], retry=False)
        again = [at for at, step in enumerate(steps) if step.arguments is None]
        for at, step in zip(
            again, self._filled([going[at] for at in again], [steps[at] for at in again], retry=True), strict=True
        ):
            steps[at] = step
        steps = [self._approved(one, one.tool, step) for one, step in zip(going, steps, strict=True) if one.tool]
        ready = [at for at, step in enumerate(steps) if step.called]
        calls = [(tool, steps[at].arguments or {}) for at in ready if (tool := going[at].tool)]
        for at, result in zip(ready, self._caller.call(calls), strict=True):
            observation = result.shortened(_OBSERVATION_CHARS)
            steps[at] = replace(steps[at], ok=result.ok, exact=result.exact, observation=observation)
        for one, step in zip(going, steps, strict=True):
            self._observe(one, step)

    def _filled(self, going: Sequence[_RunningEpisode], steps: Sequence[Step], retry: bool) -> list[Step]:
        tools = [one.tool for one in going if one.tool is not None]
        prompts = [one.script.before_input(documentation(tool)) for one, tool in zip(going, tools, strict=True)]
        if retry:  # the prompt does not repeat the first attempt: it says why it was refused
            prompts = [
                [*turns[:-1], Turn("user", f"{turns[-1].content}\n{_AGAIN.format(step.refusals[-1])}")]
                for turns, step in zip(prompts, steps, strict=True)
            ]
        schemas = [object_schema(tool.input_schema) for tool in tools] if self.options.constrain else None
        replies = ask(self._llm, prompts, max_tokens=self.options.argument_tokens, schemas=schemas)
        return [
            _with_arguments(step, tool, reply, first=not retry)
            for tool, step, reply in zip(tools, steps, replies, strict=True)
        ]

    def _approved(self, one: _RunningEpisode, tool: Tool, step: Step) -> Step:
        """Return the step with `called` set or a refusal. After a repeated call its tool is not picked again."""
        if step.arguments is None:
            return step
        if any(past.called and (past.tool_id, past.arguments) == (tool.id, step.arguments) for past in one.steps):
            one.spent.add(tool.id)
            return replace(step, refusals=(*step.refusals, _REPEATED), repeated=True)
        refused = self._approve(tool, step.arguments) if self._approve else ""
        return replace(step, refusals=(*step.refusals, refused)) if refused else replace(step, called=True)

    def _observe(self, one: _RunningEpisode, step: Step) -> None:
        if not step.called:
            step = replace(step, observation=f"error: the call was not made: {step.refusals[-1]}")
        one.script.give(documentation(one.tool), step.arguments or {})
        one.script.observe(step.observation)
        one.steps.append(step)
        one.tool = None
        if self._watch:
            self._watch(one.number, step)


def _with_arguments(step: Step, tool: Tool, reply: Reply, first: bool) -> Step:
    """Return the step with the arguments that the model wrote: unchanged, repaired, or refused. `first`: first try."""
    found = None if reply.failed else json_object(reply.text)
    if found is None:
        shown = clean_text(reply.text)[:120]
        reason = reply.failed or f"a JSON object is needed, got {shown or 'nothing'}"
        return replace(step, refusals=(*step.refusals, reason))
    step = replace(step, refusals=(*step.refusals, *filter(None, [reply.refused])))
    repairs = list(reply.repairs)
    if problems(found, tool.input_schema):
        found, more = repaired(found, tool.input_schema)
        repairs += more
    wrong = problems(found, tool.input_schema)
    if wrong:
        return replace(step, refusals=(*step.refusals, "; ".join(wrong[:5])))
    valid = first and not repairs and not reply.refused
    return replace(step, arguments=found, valid=valid, repairs=tuple(repairs))
