"""Parses options given as "key=value" into a dataclass of options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from toolscout.errors import BadModel

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OptionsT = TypeVar("OptionsT", bound="DataclassInstance")
_NONE_RENAMED: Mapping[str, str] = MappingProxyType({})
PRESET = "preset"


class Presets:
    """Options that have named sets of values, such as those of the paper ("published").

    `presets`: by name, the values that differ from the defaults. A preset is not an option itself: options keep the
    values that it stands for.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Return the options of a preset; `changes` are values that differ from it. Raises BadModel."""
        if name not in cls.presets:
            known = ", ".join(cls.presets) or "none"
            raise BadModel(f"there is no preset {name!r:.80}; the presets are: {known}")
        return cls(**{**cls.presets[name], **changes})


def with_settings(
    default: OptionsT, name: str, settings: Sequence[str], renamed: Mapping[str, str] = _NONE_RENAMED
) -> OptionsT:
    """A copy of `default` with these settings. Raises BadModel, naming the method `name`, for a bad one.

    `renamed`: former names of options, with those that they have now. preset=NAME sets the values of a preset, where
    the options have presets; the other settings are stronger, whatever their order.
    """
    types: Mapping[str, Any] = get_type_hints(type(default))
    known = {field.name: types[field.name] for field in fields(default)}
    values: dict[str, Any] = {}
    kind: type[Any] = type(default)
    base: Any = default
    for setting in settings:
        key, equals, text = setting.partition("=")
        if key == PRESET and equals and issubclass(kind, Presets) and kind.presets:
            base = kind.preset(text)
            continue
        if equals and key not in known and renamed.get(key) in known:
            raise BadModel(f"the option {key} of {name} is now called {renamed[key]}; write that instead")
        if not equals or key not in known:
            shown = ", ".join(f"{field}={getattr(default, field)}" for field in known) or "none"
            raise BadModel(f"{setting!r:.80} is no option of {name}; give key=value with one of: {shown}")
        values[key] = _parsed(text, _without_none(known[key]), setting)
    return type(default)(**{**asdict(base), **values})


def _without_none(kind: Any) -> Any:
    """The type itself of an option that may be None, which is what it is unless it is set."""
    if get_origin(kind) in (UnionType, Union):  # a Literal or None is a Union
        return next(one for one in get_args(kind) if one is not NoneType)
    return kind


def _parsed(text: str, kind: Any, setting: str) -> Any:
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() in words:
            return words[text.lower()]
    elif get_origin(kind) is Literal:
        if text in get_args(kind):
            return text
        raise BadModel(f"{setting!r:.80}: the value must be one of {', '.join(map(str, get_args(kind)))}")
    elif get_origin(kind) is tuple:
        with suppress(ValueError):
            numbers = tuple(get_args(kind)[0](one) for one in text.split(",") if one.strip())
            if all(map(math.isfinite, numbers)):
                return numbers
        raise BadModel(f"{setting!r:.80}: the value must be numbers with commas between them, all of them finite")
    elif kind in (int, float, str):
        value = None
        with suppress(ValueError):
            value = kind(text)
        if kind is float and value is not None and not math.isfinite(value):
            raise BadModel(f"{setting!r:.80}: the value must be a finite number")
        if value is not None:
            return value
    raise BadModel(f"{setting!r:.80}: the value must be of type {getattr(kind, '__name__', kind)}")
