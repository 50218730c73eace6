"""LangChain: tools as documents, agent middleware that sends a model the right tools only, tools of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from toolscout.calling.dispatch import ToolCaller
from toolscout.core.answer import Allowed
from toolscout.integrations.toolbox import Choice, Offer, Offered, Toolbox, chosen_names, library
from toolscout.scout import Scout

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.tools import BaseTool


def retriever(scout: Scout, k: int = 5, allowed: Allowed | str | None = None) -> BaseRetriever:
    """Finds tools of the catalogue as Documents: the description as text, the rest as metadata; none if none fits."""
    with library("langchain"):
        from langchain_core.documents import Document
        from langchain_core.retrievers import BaseRetriever

    class ScoutRetriever(BaseRetriever):
        """Tools as Documents."""

        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            answer = scout.search(query, k, allowed)
            found = []
            for hit, tool in zip(answer.hits, scout.tools(answer), strict=True):
                about = {"tool_id": tool.id, "name": tool.name, "namespace": tool.namespace, "score": hit.score}
                about |= {"inputSchema": dict(tool.input_schema), "why": [str(reason) for reason in hit.reasons]}
                found.append(Document(f"{tool.name}: {tool.description}", id=tool.id, metadata=about))
            return found

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return await scout.arun(self._get_relevant_documents, query, run_manager=run_manager)

    return ScoutRetriever()


def middleware(scout: Scout, choice: Choice | None = None) -> AgentMiddleware:
    """Cuts the agent's own tools down to the right ones before each call of the model."""
    with library("langchain"):
        from langchain.agents.middleware import AgentMiddleware
        from langchain_core.utils.function_calling import convert_to_openai_tool

    def read(tool: Any) -> tuple[str, Any]:
        return tool.description, convert_to_openai_tool(tool)["function"].get("parameters")

    box = Toolbox(scout, choice, read)

    def narrowed(request: Any) -> Any:
        own = [tool for tool in request.tools if not isinstance(tool, dict)]
        hosted = [tool for tool in request.tools if isinstance(tool, dict)]  # the vendor's own, run by its server
        used = chosen_names(request.tool_choice) | set(_called(request.messages))
        return request.override(tools=[*box.narrowed(_last_request(request.messages), own, used), *hosted])

    class ScoutMiddleware(AgentMiddleware):
        """Sends the right tools only."""

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(narrowed(request))

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(await scout.arun(narrowed, request))

    return ScoutMiddleware()


def catalogue_middleware(
    scout: Scout, k: int = 5, allowed: Allowed | str | None = None, caller: ToolCaller | None = None
) -> AgentMiddleware:
    """Adds the tools of the catalogue that a request needs to the agent's own, and runs them.

    Tools that were called before stay, so that a conversation goes on with them.
    """
    with library("langchain"):
        from langchain.agents.middleware import AgentMiddleware

    offered = Offered(scout, _tool, k, allowed, caller)

    def widened(request: Any) -> Any:
        own = {getattr(tool, "name", None) for tool in request.tools}
        called = {name: offered.named(name) for name in _called(request.messages)}
        found = called | offered.fetched(_last_request(request.messages))
        # In one order while a request is worked on, so that the model's prompt cache survives.
        joined = [tool for name, tool in sorted(found.items()) if tool and name not in own]
        return request.override(tools=[*request.tools, *joined])

    def known(request: Any) -> Any:
        tool = offered.named(request.tool_call["name"]) if request.tool is None else None
        return request.override(tool=tool) if tool else request

    class ScoutCatalogue(AgentMiddleware):
        """Brings tools of the catalogue."""

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(widened(request))

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(await scout.arun(widened, request))

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(known(request))

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(known(request))

    return ScoutCatalogue()


def tools(scout: Scout, ids: Iterable[str], caller: ToolCaller | None = None) -> list[BaseTool]:
    """These tools of the catalogue as LangChain's, which run where they come from."""
    return list(Offered(scout, _tool, caller=caller).of(scout.tools(ids)).values())


def _tool(offer: Offer) -> BaseTool:
    with library("langchain"):
        from langchain_core.tools import StructuredTool, ToolException

    def call(**arguments: Any) -> str:
        result = offer.call(arguments)
        if not result.ok:
            raise ToolException(result.observation)
        return result.content

    made: BaseTool = StructuredTool(
        name=offer.name,
        description=offer.description or offer.name,
        args_schema=offer.schema,
        func=call,
        handle_tool_error=True,  # the model is told, and may put it right
    )
    return made


def _last_request(messages: Iterable[Any]) -> str:
    """Return the text of the user's last message."""
    said = [message for message in messages if message.type == "human"]
    return str(said[-1].text) if said else ""


def _called(messages: Iterable[Any]) -> list[str]:
    return [call["name"] for message in messages for call in getattr(message, "tool_calls", None) or ()]
