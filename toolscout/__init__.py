"""toolscout finds an agent the few tools it needs among ten thousand, and says so honestly when none fits."""

from typing import TYPE_CHECKING, Any

from toolscout.core.answer import Allowed, Answer, Example, Hit
from toolscout.core.tool import Origin, Tool

if TYPE_CHECKING:
    from toolscout.scout import Scout

__version__ = "0.1.0"
__all__ = ["Allowed", "Answer", "Example", "Hit", "Origin", "Scout", "Tool", "__version__"]

if not TYPE_CHECKING:  # hidden from type checkers, which would else take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Scout brings stores and importers along; the command line starts quicker without them."""
        if name == "Scout":
            from toolscout.scout import Scout

            return Scout
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
