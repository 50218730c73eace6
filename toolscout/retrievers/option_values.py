"""Parses options of a method given as "key=value"."""

from __future__ import annotations

from collections.abc import Sequence

from toolscout.core import option_values
from toolscout.retrievers.model_folder import RENAMED_OPTIONS, OptionsT


def with_settings(default: OptionsT, name: str, settings: Sequence[str]) -> OptionsT:
    """A copy of `default` with these settings. Raises BadModel, naming the method `name`, for a bad one."""
    return option_values.with_settings(default, name, settings, RENAMED_OPTIONS)
