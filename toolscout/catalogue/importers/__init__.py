"""One module is one importer, and its name is the importer's name."""

import importlib
import pkgutil
from typing import cast

from toolscout.catalogue.base import Importer


def importers() -> dict[str, Importer]:
    """Every importer by its name, which is its module's."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = [name for name in names if name != "base" and not name.startswith("_")]
    return {name: cast(Importer, importlib.import_module(f"{__name__}.{name}")) for name in modules}
