"""What endpoints answer, read with care: some send pages, half a reply, calls of tools that nobody asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from toolscout.errors import BadCompletion
from toolscout.llm.base import spoken

_SHOWN = 200
_READ = 20_000  # characters of a page
_MOST_TOKENS = 1_000_000_000  # of one reply: who counts more does not count


class CompletionChoice(NamedTuple):
    """An answer, whether it was cut off, and how many characters were written: thoughts count too."""

    text: str
    cut_off: bool
    length: int


def parsed(body: bytes, field: str) -> dict[str, Any] | None:
    """A reply that has a list with something in it under this name; None where it is anything else.

    A server may answer with the bare list.
    """
    found = _json(body)
    found = {field: found} if isinstance(found, list) else found
    if not isinstance(found, dict) or not isinstance(found.get(field), list) or not found[field]:
        return None
    return found


def choices(reply: Mapping[str, Any], scrub: Callable[[str], str] = str) -> list[CompletionChoice]:
    """Each choice of a reply; `scrub` takes out of what is told why there is none what nobody may read."""
    found = []
    for choice in reply["choices"]:
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if not isinstance(message, Mapping):
            raise BadCompletion("the endpoint answered with a choice that has no message; is it a chat model?")
        written, cut_off = _text(message, choice, scrub), choice.get("finish_reason") == "length"
        found.append(CompletionChoice(spoken(written), cut_off, len(written)))
    return found


def tokens(reply: Mapping[str, Any], read: Sequence[str], written: Sequence[CompletionChoice]) -> tuple[int, list[int]]:
    """Tokens read, and written by each choice. Servers count all choices together: the sum is dealt out by length.

    What is not counted, or to no sense, is estimated at four characters a token.
    """
    usage = reply.get("usage")
    counted = usage if isinstance(usage, Mapping) else {}
    prompt, total = _count(counted.get("prompt_tokens")), _count(counted.get("completion_tokens"))
    lengths = [choice.length for choice in written]
    if prompt is None:
        prompt = sum(len(text) // 4 + 4 for text in read)
    if total is None:
        return prompt, [length // 4 + 1 for length in lengths]
    share = [total * length // max(1, sum(lengths)) for length in lengths]
    share[0] += total - sum(share)
    return prompt, share


def message(body: bytes, scrub: Callable[[str], str] = str) -> str:
    """What a reply says went wrong, on one short line; pages lose their markup.

    `scrub` takes out what nobody may read. It sees whole texts: half a key, cut off, would no longer be known as one.
    """
    if body.startswith(b"\x1f\x8b"):
        return "it sent gzip, which it was not asked for"
    found = _json(body)
    if isinstance(found, Mapping):
        error = found.get("error", found.get("detail", found.get("message", found)))
        if isinstance(error, Mapping) and isinstance(error.get("message"), str):
            code = error.get("code")
            error = f"{code}: {error['message']}" if isinstance(code, str) else error["message"]
        text = error if isinstance(error, str) else json.dumps(error)
    else:
        page = scrub(body.decode(errors="replace"))[:_READ]
        text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page, flags=re.S)
    return shortened(text, scrub) or "nothing more"


def shortened(text: str, scrub: Callable[[str], str] = str) -> str:
    """A text on one short line, without what nobody may read."""
    line = " ".join(scrub(text).split())
    return line[:_SHOWN] + "…" if len(line) > _SHOWN else line


def parameter(body: bytes) -> str:
    """The parameter that a refusal is about, where it names one."""
    found = _json(body)
    error = found.get("error") if isinstance(found, Mapping) else None
    return str(error.get("param") or "") if isinstance(error, Mapping) else ""


def _text(message: Mapping[str, Any], choice: Mapping[str, Any], scrub: Callable[[str], str]) -> str:
    content = message.get("content")
    if isinstance(content, list):  # parts
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "".join(part for part in parts if isinstance(part, str))
    if isinstance(content, str) and content:
        return content
    if message.get("tool_calls") or message.get("function_call"):
        raise BadCompletion("the model called a tool instead of answering, and none was offered; ask it again")
    if message.get("refusal") or choice.get("finish_reason") == "content_filter":
        said = shortened(str(message.get("refusal") or "content filter"), scrub)
        raise BadCompletion(f"the model refuses to answer ({said}); word the request differently")
    if choice.get("finish_reason") == "length":
        raise BadCompletion("the model used up max_tokens before it wrote a word of its answer; raise max_tokens")
    if isinstance(content, str):
        return content
    raise BadCompletion("the endpoint answered with a message that has no text; is it a chat model?")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= _MOST_TOKENS else None
