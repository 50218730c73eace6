"""LlamaIndex: an object retriever over an agent's own tools, or over the catalogue's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from toolscout.calling.dispatch import ToolCaller
from toolscout.core.answer import Allowed
from toolscout.integrations.toolbox import Choice, Offer, Offered, Toolbox, library
from toolscout.scout import Scout

if TYPE_CHECKING:
    from llama_index.core.objects import ObjectRetriever
    from llama_index.core.tools import FunctionTool


def object_retriever(scout: Scout, tools: Iterable[Any], choice: Choice | None = None) -> ObjectRetriever[Any]:
    """Finds an agent's own tools: `FunctionAgent(tool_retriever=…)` takes it. None are found where none fits.

    Their names must differ. The pinned ones come first, whatever is asked.
    """
    box = Toolbox(scout, choice, _read, _name)
    named = {_name(tool): tool for tool in tools}
    pinned = [named[name] for name in box.choice.pinned if name in named]

    def find(query: str) -> dict[str, Any]:
        found = box.found(query, named.values()) if query.strip() else []
        return {_name(tool): tool for tool in [*pinned, *found]}

    return _retriever(scout, find, named.get)


def catalogue_retriever(
    scout: Scout, k: int = 5, allowed: Allowed | str | None = None, caller: ToolCaller | None = None
) -> ObjectRetriever[Any]:
    """Finds tools of the catalogue, which run where they come from."""
    offered = Offered(scout, _tool, k, allowed, caller)
    return _retriever(scout, offered.fetched, offered.named)


def tools(scout: Scout, ids: Iterable[str], caller: ToolCaller | None = None) -> list[FunctionTool]:
    """These tools of the catalogue as LlamaIndex's."""
    return list(Offered(scout, _tool, caller=caller).of(scout.tools(ids)).values())


def _retriever(
    scout: Scout, find: Callable[[str], dict[str, Any]], named: Callable[[str], Any]
) -> ObjectRetriever[Any]:
    with library("llamaindex"):
        from llama_index.core.base.base_retriever import BaseRetriever
        from llama_index.core.objects import ObjectRetriever
        from llama_index.core.objects.base_node_mapping import BaseObjectNodeMapping
        from llama_index.core.schema import NodeWithScore, TextNode

    class Names(BaseObjectNodeMapping[Any]):
        """A node's id is the name of its tool."""

        @classmethod
        def from_objects(cls, objs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError("make it with toolscout.integrations.llamaindex")

        @property
        def obj_node_mapping(self) -> dict[Any, Any]:
            raise NotImplementedError("the tools lie in a Scout")

        def _add_object(self, obj: Any) -> None:
            raise NotImplementedError("add tools to the Scout")

        def persist(self, *args: Any, **kwargs: Any) -> None:
            raise NotImplementedError("the tools lie in a Scout, which keeps them")

        def to_node(self, obj: Any) -> TextNode:
            return TextNode(id_=_name(obj), text=obj.metadata.description)

        def _from_node(self, node: Any) -> Any:
            return named(node.node_id)

    class ScoutRetriever(BaseRetriever):
        """Tools as nodes, the best first."""

        def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
            found = find(query_bundle.query_str).values()
            # Scores of two searches do not compare; the place does.
            return [NodeWithScore(node=names.to_node(tool), score=1 / (1 + i)) for i, tool in enumerate(found)]

        async def _aretrieve(self, query_bundle: Any) -> list[NodeWithScore]:
            return await scout.arun(self._retrieve, query_bundle)

    names = Names()
    made: ObjectRetriever[Any] = ObjectRetriever(ScoutRetriever(), names)
    return made


def _name(tool: Any) -> str:
    return str(tool.metadata.get_name())


def _read(tool: Any) -> tuple[str | None, Any]:
    return tool.metadata.description, tool.metadata.get_parameters_dict()


def _tool(offer: Offer) -> FunctionTool:
    with library("llamaindex"):
        from llama_index.core.tools import FunctionTool, ToolMetadata

    class Described(ToolMetadata):
        """With the tool's own JSON schema in place of one made from a Python class."""

        def get_parameters_dict(self) -> dict[str, Any]:
            return offer.schema

    def call(**arguments: Any) -> str:
        result = offer.call(arguments)
        if not result.ok:
            raise ValueError(result.observation)
        return result.content

    made: FunctionTool = FunctionTool(fn=call, metadata=Described(offer.description, offer.name, fn_schema=None))
    return made
