"""toolscout inside agent frameworks: one file for each, which imports its library only when it is used."""

from toolscout.integrations.toolbox import Choice

__all__ = ["Choice"]
