"""What servers offer besides tools: resources, templates of resources, and prompts, and how clients name them.

A prompt is called `server__prompt`, as a tool is. A resource keeps its URI where no other server that the client sees
has the same; `toolscout://server/URI` names it in any case.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from toolscout.core.tool import tool_id
from toolscout.core.vendor_formats import WireNames
from toolscout.errors import BadRequest, MissingExtra, UnknownTool
from toolscout.serving.gateway.client_calls import SERVER

try:
    import mcp_types as types
    from mcp import Client, MCPError
    from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
except ImportError:
    raise MissingExtra("serving", "serve") from None

MAX_OFFERS = 5_000
"""Resources of one server, and templates, and prompts; and so many of a server's pages are read."""
MAX_OFFER_CHARS = 64_000
"""Characters of one of them as JSON; a longer one is left out."""
_MAX_PAGES = 100
_SCHEME = "toolscout://"
_Offer = TypeVar("_Offer", types.Resource, types.ResourceTemplate, types.Prompt)


@dataclass(frozen=True, slots=True)
class Offers:
    """What one server offers. `readable`: it has resources, listed or not; `completes`: it completes arguments."""

    resources: tuple[types.Resource, ...] = ()
    templates: tuple[types.ResourceTemplate, ...] = ()
    prompts: tuple[types.Prompt, ...] = ()
    readable: bool = False
    completes: bool = False
    problems: tuple[str, ...] = ()


class Found(NamedTuple):
    """A server, and its own name for a prompt or URI for a resource."""

    server: str
    name: str


async def list_offers(client: Client) -> Offers:
    """List what a connected server offers besides tools. What is too long or too much is left out, as problems say."""
    has, problems = client.server_capabilities, list[str]()
    resources = templates = prompts = ()
    if has.resources is not None:
        resources = await _listed(lambda at: client.list_resources(cursor=at), "resources", problems)
        templates = await _listed(lambda at: client.list_resource_templates(cursor=at), "resource_templates", problems)
    if has.prompts is not None:
        prompts = await _listed(lambda at: client.list_prompts(cursor=at), "prompts", problems)
    return Offers(resources, templates, prompts, has.resources is not None, has.completions is not None, (*problems,))


async def _listed(page: Callable[[str | None], Awaitable[Any]], what: str, problems: list[str]) -> tuple[Any, ...]:
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        try:
            result = await page(cursor)
        except MCPError as error:
            if error.code == types.METHOD_NOT_FOUND and not found:
                return ()
            raise
        for one in getattr(result, what):
            if len(json.dumps(one.model_dump(mode="json", exclude_none=True))) <= MAX_OFFER_CHARS:
                found.append(one)
            else:
                problems.append(f"one of its {what.replace('_', ' ')} is left out, as it is too long")
        cursor = result.next_cursor
        if not cursor:
            return tuple(found)
        if len(found) > MAX_OFFERS:
            break
    problems.append(
        f"it has more than {MAX_OFFERS:,} {what.replace('_', ' ')}, or never ends its list; some are left out"
    )
    return tuple(found[:MAX_OFFERS])


def named_prompts(offers: Mapping[str, Offers]) -> dict[str, tuple[Found, types.Prompt]]:
    """Return the prompts of servers by the names that clients call them by."""
    found = {
        tool_id(server, one.name): (Found(server, one.name), one)
        for server, known in offers.items()
        for one in known.prompts
    }
    names = WireNames(found)
    return {
        names.name(prompt_id): (where, _marked(prompt, where.server, name=names.name(prompt_id)))
        for prompt_id, (where, prompt) in found.items()
    }


def named_resources(offers: Mapping[str, Offers]) -> list[types.Resource]:
    """Return the resources of servers under the URIs that clients read them by."""
    counts = Counter(uri for known in offers.values() for uri in {one.uri for one in known.resources})
    return [
        _marked(one, server, uri=one.uri if counts[one.uri] == 1 else own_uri(server, one.uri))
        for server, known in offers.items()
        for one in known.resources
    ]


def named_templates(offers: Mapping[str, Offers]) -> list[types.ResourceTemplate]:
    """Return the templates of servers, named as resources are."""
    counts = Counter(uri for known in offers.values() for uri in {one.uri_template for one in known.templates})
    return [
        _marked(
            one,
            server,
            uri_template=one.uri_template if counts[one.uri_template] == 1 else own_uri(server, one.uri_template),
        )
        for server, known in offers.items()
        for one in known.templates
    ]


def own_uri(server: str, uri: str) -> str:
    """Return the URI that names a server's resource whatever other servers have."""
    return f"{_SCHEME}{quote(server, safe='')}/{uri}"


def find_resource(offers: Mapping[str, Offers], uri: str) -> Found:
    """Return which server has a resource: who lists it, or else a template of it, its place, or its scheme.

    Raises UnknownTool where none of these servers has it, BadRequest where several have.
    """
    if uri.startswith(_SCHEME):
        server, slash, rest = uri.removeprefix(_SCHEME).partition("/")
        if slash and rest and offers.get(unquote(server), Offers()).readable:
            return Found(unquote(server), rest)
        raise UnknownTool(f"there is no resource {uri[:200]!r}")
    readable = {server: known for server, known in offers.items() if known.readable}
    tests: Sequence[Callable[[Offers], bool]] = (
        lambda known: any(one.uri == uri for one in known.resources),
        lambda known: any(_matches(one.uri_template, uri) for one in known.templates),
        lambda known: _place(uri) in {_place(one) for one in _uris(known)},
        lambda known: _scheme(uri) in {_scheme(one) for one in _uris(known)},
        lambda known: True,
    )
    for test in tests:
        having = [server for server, known in readable.items() if test(known)]
        if len(having) == 1:
            return Found(having[0], uri)
        if having:
            names = ", ".join(own_uri(server, uri) for server in having[:5])
            raise BadRequest(f"several servers may have {uri[:200]!r}; read one of: {names[:2000]}")
    raise UnknownTool(f"there is no resource {uri[:200]!r}")


def find_template(offers: Mapping[str, Offers], template: str) -> Found:
    """Return which server has a template, or a resource of this URI. Raises as find_resource does."""
    if not template.startswith(_SCHEME):
        having = [
            server for server, known in offers.items() if any(one.uri_template == template for one in known.templates)
        ]
        if len(having) == 1:
            return Found(having[0], template)
    return find_resource(offers, template)


def _uris(known: Offers) -> Iterable[str]:
    yield from (one.uri for one in known.resources)
    yield from (one.uri_template for one in known.templates)


def _scheme(uri: str) -> str:
    return uri.partition(":")[0]


def _place(uri: str) -> tuple[str, ...]:
    """Return the scheme and the host of a URI."""
    return tuple(uri.split("/", 3)[:3])


def _matches(template: str, uri: str) -> bool:
    parsed = _parsed(template)
    return parsed is not None and parsed.match(uri) is not None


@lru_cache(maxsize=MAX_OFFERS)
def _parsed(template: str) -> UriTemplate | None:
    try:
        return UriTemplate.parse(template)
    except InvalidUriTemplate:
        return None


def _marked(offer: _Offer, server: str, **changes: str) -> _Offer:
    """Return an offer under another name, with the name of its server in its `_meta`."""
    return offer.model_copy(update={**changes, "meta": {**(offer.meta or {}), SERVER: server}})
