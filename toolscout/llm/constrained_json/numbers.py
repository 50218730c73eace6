"""Decides, digit by digit, which numbers within the bounds of a schema can still be written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DIGITS = 15  # before the point, unless the bounds need more
MAX_DECIMALS = 6  # likewise after it


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that a schema allows; bounds and step are integers, in units of 10 ** -decimals."""

    decimals: int
    digits: int
    least: int | None
    most: int | None
    step: int | None

    @classmethod
    def of(cls, schema: Mapping[str, Any], *, whole: bool) -> Numbers:
        """The numbers that fit a schema, integers only where `whole`."""
        names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
        given = {name: Decimal(str(schema[name])) for name in names if name in schema}
        places = [-int(number.as_tuple().exponent) for number in given.values()]
        decimals = 0 if whole else max(MAX_DECIMALS, *places, 0) if places else MAX_DECIMALS
        unit = 10 ** min(decimals, 2 * MAX_DIGITS)
        scaled = {name: Fraction(number) * unit for name, number in given.items()}
        low = [math.ceil(scaled[name]) for name in ("minimum",) if name in scaled]
        low += [math.floor(scaled[name]) + 1 for name in ("exclusiveMinimum",) if name in scaled]
        high = [math.floor(scaled[name]) for name in ("maximum",) if name in scaled]
        high += [math.ceil(scaled[name]) - 1 for name in ("exclusiveMaximum",) if name in scaled]
        step = scaled.get("multipleOf")
        nearest = max([0, *low, *(-bound for bound in high)])  # the smallest size that a number must have
        return cls(
            min(decimals, 2 * MAX_DIGITS),
            max(MAX_DIGITS, len(str(nearest // unit)) + 1),
            max(low, default=None),
            min(high, default=None),
            int(step) if step is not None and step.denominator == 1 else None,
        )

    def may_begin(self, text: str) -> bool:
        """Whether some allowed number begins with this text."""
        digits, point, decimals = text.removeprefix("-").partition(".")
        if len(digits) > self.digits or (len(digits) > 1 and digits[0] == "0"):
            return False
        if point and (not digits or not self.decimals or len(decimals) > self.decimals):
            return False
        return any(
            self._holds(-high, -low) if text.startswith("-") else self._holds(low, high)
            for low, high in self._sizes(digits, point, decimals)
        )

    def may_end(self, text: str) -> bool:
        """Whether this text is an allowed number as it stands."""
        if not text or not text[-1].isdigit():
            return False
        size = Fraction(text) * 10**self.decimals
        return size.denominator == 1 and self._holds(int(size), int(size))

    def _sizes(self, digits: str, point: str, decimals: str) -> Iterator[tuple[int, int]]:
        """The ranges of numbers that start with these digits, without the sign."""
        unit = 10**self.decimals
        if point:
            unit //= 10 ** len(decimals)
            first = int(digits + decimals) * unit
            yield first, first + unit - 1
        elif not digits:
            yield 0, 10**self.digits * unit - 1
        else:
            for more in range(1 if digits == "0" else self.digits - len(digits) + 1):
                first = int(digits) * 10**more * unit
                yield first, first + 10**more * unit - 1

    def _holds(self, low: int, high: int) -> bool:
        low = low if self.least is None else max(low, self.least)
        high = high if self.most is None else min(high, self.most)
        return low <= high and (self.step is None or high // self.step * self.step >= low)
