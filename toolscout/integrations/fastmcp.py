"""FastMCP: a search transform. Clients of a server see search_tools and call_tool in place of all its tools."""

# Annotations are evaluated here, as FastMCP reads those of a function whose types only its maker has imported.
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from toolscout.integrations.toolbox import NOTHING_FITS, Choice, Toolbox, library
from toolscout.scout import Scout

if TYPE_CHECKING:
    from fastmcp.server.transforms.search.base import BaseSearchTransform


def search_transform(scout: Scout, choice: Choice | None = None, **options: Any) -> "BaseSearchTransform":
    """For `FastMCP.add_transform`. Only the tools that a client may see are searched; pinned ones stay listed.

    `options`: what FastMCP's own search transforms take besides, such as call_tool_name or search_result_serializer.
    """
    with library("fastmcp"):
        from fastmcp.server.context import Context
        from fastmcp.server.transforms.search.base import BaseSearchTransform
        from fastmcp.tools.base import Tool

    box = Toolbox(scout, choice, _read)
    options = {"max_results": box.choice.k, "always_visible": list(box.choice.pinned), **options}

    class ScoutSearchTransform(BaseSearchTransform):
        """Searches with a Scout."""

        def _make_search_tool(self) -> Tool:
            async def search_tools(
                query: Annotated[str, "What should be done, in plain words"], ctx: Context = None
            ) -> str | list[dict[str, Any]]:
                """Find the tools for a request, the best first, in the format of list_tools; says so when none fits."""
                found = await self._search(await self._get_visible_tools(ctx), query)
                rendered: str | list[dict[str, Any]] = await self._render_results(found) if found else NOTHING_FITS
                return rendered

            return Tool.from_function(fn=search_tools, name=self._search_tool_name)

        async def _search(self, tools: Sequence[Any], query: str) -> list[Any]:
            return await scout.arun(box.found, query, tools)

    return ScoutSearchTransform(**options)


def _read(tool: Any) -> tuple[str | None, Any]:
    return tool.description, tool.parameters
