"""The command `agent`: let a language model solve a request with tools of the catalogue."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolscout.cli import output
from toolscout.cli.common import (
    NONE,
    AllowTargetOption,
    EncoderOption,
    LevelOption,
    RequestArgument,
    RerankByDefaultOption,
    RetrieverOption,
    StoreOption,
    check_model,
    open_scout,
    request_text,
    reranker_or_default,
)
from toolscout.cli.search import CLOSEST
from toolscout.core.tool import clean_text

if TYPE_CHECKING:
    from toolscout.agent.episode import Episode, Step
    from toolscout.agent.pickers import Picker
    from toolscout.core.answer import Answer
    from toolscout.core.tool import Tool
    from toolscout.llm.base import LanguageModel
    from toolscout.scout import Scout

_SHOWN = 5
_DRY = "dry run: this is what would be called; it was not"


def agent(
    ctx: typer.Context,
    request: RequestArgument,
    store: StoreOption = None,
    retriever: RetrieverOption = None,
    encoder: EncoderOption = None,
    rerank: RerankByDefaultOption = None,
    llm: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="The language model: smollm2, a folder, a trained toolgen or toolweaver, or the URL of an endpoint.",
        ),
    ] = "smollm2",
    model: Annotated[str, typer.Option(metavar="NAME", help="The model to ask an endpoint for.")] = "",
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            metavar="N",
            min=1,
            help="Show it so many tools; not for a model that picks them itself.",
            show_default=str(_SHOWN),
        ),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many calls.")] = 6,
    level: LevelOption = None,
    thoughts: Annotated[bool, typer.Option("--thoughts/--no-thoughts", help="Let it think before it picks.")] = True,
    principal: Annotated[
        str | None, typer.Option("--as", metavar="PRINCIPAL", help="Use only what was granted to this principal.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Call tools that change things without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the first call instead of making it.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How long a call may take.")] = 30.0,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NS:NAME=VALUE", help="Send a header to the tools of a namespace; may be repeated."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NS:NAME[=VALUE]",
            help="Set a variable for a namespace's MCP server, without VALUE as it is here; may be repeated.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="NS=ADDRESS", help="Another base URL or MCP server for a namespace; may be repeated."),
    ] = None,
    allow_target: AllowTargetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the whole trace as JSON.")] = False,
) -> None:
    """Let a language model solve a request with the tools that are found for it.

    It asks before it calls a tool that is not marked as read-only, unless --yes is given; where nobody can be asked the
    call is refused. Exit code 0: it answered; 1: it did not, or nothing in the catalogue fits.
    """
    from toolscout.agent.loop import Agent, AgentOptions
    from toolscout.agent.model_loading import Models
    from toolscout.calling.dispatch import CallOptions, OriginCaller

    check_model(llm, model)
    text = request_text(request)
    calling = CallOptions(
        timeout=timeout,
        allow=tuple(allow_target or ()),
        headers=_by_namespace(header, "--header"),
        env=_by_namespace(env, "--env"),
        targets=_pairs(target, "--target"),
    )
    options = AgentOptions(steps=1 if dry_run else steps, thoughts=thoughts)
    second = reranker_or_default(retriever, rerank)
    with open_scout(ctx, store, retriever, encoder=encoder, rerank=second, level=level) as scout:
        _check(scout, k, {"--header": calling.headers, "--env": calling.env, "--target": calling.targets})
        models = Models()
        models.keep(retriever or "", scout.retriever)
        opened = models.language_model(llm, model)
        answer = scout.search(text, k or _SHOWN, principal)
        if answer.verdict != "use":
            _without_tools(answer, opened, json)
            return
        approve = _dry if dry_run else None if yes else _ask
        watch = None if json else _show
        picker = _picker(scout, answer, opened, k or _SHOWN, principal)
        made = Agent(opened, picker, OriginCaller(calling), scout.tools, options, approve=approve, watch=watch)
        # What a tool prints is no part of the answer.
        with redirect_stdout(sys.stderr), output.logged(logging.WARNING, "toolscout.calling.dispatch"):
            episode = made.run([answer.request])[0]
    _print(episode, answer, json, dry_run)
    if not (_ready(episode) if dry_run else episode.finish in ("answered", "step_limit")):
        raise typer.Exit(NONE)


def _check(scout: Scout, k: int | None, by_namespace: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise typer.BadParameter for options without effect: -k for a model that picks itself, unknown namespaces."""
    from toolscout.agent.pickers import picks_itself

    if k is not None and picks_itself(scout.retriever):
        raise typer.BadParameter(
            "this retriever was trained to pick tools itself and is shown none; leave it out", param_hint="-k"
        )
    known = scout.store.namespaces()
    for option, given in by_namespace.items():
        for namespace in given:
            if namespace not in known:
                raise typer.BadParameter(
                    f"there is no namespace {namespace!r:.80}; run: toolscout list", param_hint=option
                )


def _picker(scout: Scout, answer: Answer, llm: LanguageModel, k: int, principal: str | None) -> Picker:
    """Return what picks tools: the retriever where it was trained to, else the language model among the tools found."""
    from toolscout.agent.pickers import IdPicker, ShortlistPicker, picks_itself

    if picks_itself(scout.retriever):
        allowed = None if principal is None else scout.store.permissions(principal)
        return IdPicker(scout.retriever, allowed)
    shortlist = scout.tools(answer)
    return ShortlistPicker(lambda requests, most: [shortlist[:most] for _ in requests], llm, k)


def _without_tools(answer: Answer, llm: LanguageModel, as_json: bool) -> None:
    """Answer without tools: with the model's own reply where no tool is needed, else by saying that nothing fits.

    Raises typer.Exit where there is no reply.
    """
    from toolscout.llm.base import Message

    reply = ""
    if answer.verdict == "no_tool_needed":
        reply = llm.complete([[Message("user", answer.request)]], max_tokens=512)[0][0].text.strip()
    if as_json:
        record = {"verdict": answer.verdict, "request": answer.request, "steps": [], "answer": reply}
        output.print_json(record | {"notes": list(answer.notes)})
    elif answer.verdict == "no_tool_needed":
        output.note("no tool is needed" + ("" if reply else ", but the model answered nothing"), label="verdict")
        if reply:
            output.write(_printable(reply))
    else:
        if answer.searched:  # the notes say it where the catalogue is empty
            closest = ", ".join(hit.tool_id for hit in answer.considered[:CLOSEST])
            output.note(f"nothing in the catalogue fits; closest: {closest or 'none'}", label="verdict")
        for line in answer.notes:
            output.note(line)
    if not reply:
        raise typer.Exit(NONE)


def is_read_only(tool: Tool) -> bool:
    """Return whether a tool is marked as read-only and is not called with an HTTP method that changes things."""
    origin = tool.origin
    if origin is not None and origin.kind == "http" and origin.details.get("method") not in ("GET", "HEAD"):
        return False
    return tool.annotations.get("readOnlyHint") is True and tool.annotations.get("destructiveHint") is not True


def _ask(tool: Tool, arguments: Mapping[str, Any]) -> str:
    if is_read_only(tool):
        return ""
    kind = "destroys things" if tool.annotations.get("destructiveHint") is True else "is not marked as read-only"
    if not sys.stdin.isatty():
        return f"{tool.id} {kind} and nobody can be asked; run it with --yes"
    output.note(f"{tool.id} {kind}: {_compact(arguments)}", label="call")
    return "" if typer.confirm("Make this call?", err=True) else "the user did not allow it"


def _dry(tool: Tool, arguments: Mapping[str, Any]) -> str:
    return _DRY


def _show(number: int, step: Step) -> None:
    if step.thought:
        output.note(step.thought, label="thought")
    output.note(f"{step.tool_id} {_compact(step.arguments)}", label="call")
    for line in (*step.repairs, *step.refusals):
        output.note(line, label="repaired" if line in step.repairs else "refused")
    output.note(step.observation, label="observation")


def _print(episode: Episode, answer: Answer, as_json: bool, dry_run: bool) -> None:
    if as_json:
        output.print_json({"verdict": answer.verdict, **episode.to_dict()})
        return
    if dry_run:
        for step in _ready(episode):
            output.write(_printable(f"{step.tool_id} {_compact(step.arguments)}"))
        if not _ready(episode):
            output.note(_no_call(episode), label="ended")
        return
    if episode.finish != "answered":
        output.note(_end(episode), label="ended")
    output.write(_printable(episode.answer))


def _ready(episode: Episode) -> list[Step]:
    """Return the steps whose arguments are known, so that their calls can be shown."""
    return [step for step in episode.steps if step.arguments is not None]


def _no_call(episode: Episode) -> str:
    """Return why a dry run has no call to show."""
    if episode.steps:
        step = episode.steps[-1]
        return f"no usable arguments for {step.tool_id}: {step.refusals[-1]}"
    return f"it picked no tool; its answer: {episode.answer}" if episode.finish == "answered" else _end(episode)


def _end(episode: Episode) -> str:
    return episode.finish.replace("_", " ") + (f": {episode.reason}" if episode.reason else "")


def _printable(text: str) -> str:
    return "\n".join(map(clean_text, text.splitlines()))


def _pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter("it needs a name, =, and a value", param_hint=option)
        found[name] = value
    return found


def _by_namespace(given: Sequence[str] | None, option: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for text in given or ():
        place, equals, value = text.partition("=")
        namespace, colon, name = place.rpartition(":")
        value = value if equals else os.environ.get(name, "")
        if not colon or not namespace or not name or not value:
            raise typer.BadParameter("it needs NAMESPACE:NAME=VALUE", param_hint=option)
        found.setdefault(namespace, {})[name] = value
    return found


def _compact(arguments: Mapping[str, Any] | None) -> str:
    from toolscout.data.conversations import compact

    return compact(arguments)
