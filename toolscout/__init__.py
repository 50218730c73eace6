"""toolscout finds an agent the few tools it needs among ten thousand, and says so honestly when none fits."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toolscout import errors
from toolscout.core.answer import (
    Allowed,
    Answer,
    ExactName,
    Example,
    Hit,
    MatchedWords,
    PastRequest,
    Reason,
    Reranked,
    RewrittenQuery,
    Similarity,
)
from toolscout.core.expansion import Expansion
from toolscout.core.tool import Origin, Tool

if TYPE_CHECKING:
    from toolscout.data.dataset import Dataset
    from toolscout.scout import Scout, Search
    from toolscout.search.catalogue_fit import FitOptions
    from toolscout.search.tool_need import NeedOptions

__version__ = "0.1.0"
__all__ = [
    "Allowed",
    "Answer",
    "Dataset",
    "ExactName",
    "Example",
    "Expansion",
    "FitOptions",
    "Hit",
    "MatchedWords",
    "NeedOptions",
    "Origin",
    "PastRequest",
    "Reason",
    "Reranked",
    "RewrittenQuery",
    "Scout",
    "Search",
    "Similarity",
    "Tool",
    "__version__",
    "errors",
]
# These bring stores, importers and numpy along; the command line starts quicker without them.
_ON_FIRST_USE = {
    "Dataset": "toolscout.data.dataset",
    "FitOptions": "toolscout.search.catalogue_fit",
    "NeedOptions": "toolscout.search.tool_need",
    "Scout": "toolscout.scout",
    "Search": "toolscout.scout",
}

if not TYPE_CHECKING:  # hidden from type checkers, which would else take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Import what is named here when it is first asked for."""
        if name in _ON_FIRST_USE:
            return getattr(import_module(_ON_FIRST_USE[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
