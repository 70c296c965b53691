"""Oracle of encoding and counting: one value at a time, in plain Python."""

from __future__ import annotations

import math
import re
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from dpscale.domain import Attribute, Domain

REFUSED, DROPPED = "refused", "dropped"
NULL_WORDS = {"", "na", "n/a", "nan", "null", "none"}


def cell(attribute: Attribute, value: Any) -> int | str:
    """Return the cell of a value, or REFUSED or DROPPED."""
    if attribute.kind == "categories" and isinstance(attribute.values[0], str):
        if value is None:
            return null_cell(attribute)
        return attribute.values.index(value) if value in attribute.values else outside_cell(attribute)
    number = read_number(value)
    if number is None:
        return null_cell(attribute)
    if number is REFUSED:
        return unparsable_cell(attribute)
    return number_cell(attribute, number)


def values_of(column: Any) -> list[Any]:
    """Return the values of an Arrow column; a float of fewer than 64 bits is its shortest decimal."""
    of_values = str(column.type.value_type if pa.types.is_dictionary(column.type) else column.type)
    if of_values not in ("halffloat", "float"):
        return list(column.to_pylist())
    kind = np.float16 if of_values == "halffloat" else np.float32
    return [None if value is None else float(str(kind(value))) for value in column.to_pylist()]


def read_number(value: Any) -> Any:
    """Return a float, int or Fraction, None for nulls, and REFUSED for other texts."""
    if isinstance(value, str):
        word = value.strip().lower()
        if word in NULL_WORDS:
            return None
        if word in ("true", "false"):
            return int(word == "true")
        return float(word) if re.fullmatch(r"[+-]?(\d+\.?\d*(e-?\d+)?|\.\d+|inf)", word) else REFUSED
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(value) if isinstance(value, Decimal) else value


def number_cell(attribute: Attribute, number: Any) -> int | str:
    if attribute.kind == "categories":
        return attribute.values.index(number) if number in attribute.values else outside_cell(attribute)
    bins = attribute.kind == "bins"
    low, high = (attribute.edges[0], attribute.edges[-1]) if bins else (attribute.low, attribute.high)
    whole = bins or (not math.isinf(number) and Fraction(number).denominator == 1)
    if not (low <= number <= high and whole) and attribute.outside != "clip":
        return outside_cell(attribute)
    number = min(max(number, low), high)
    if bins:
        return max(i for i in range(attribute.listed) if attribute.edges[i] <= number)
    return math.floor(Fraction(number)) - low


def outside_cell(attribute: Attribute) -> int | str:
    return {"category": attribute.listed, "drop": DROPPED}.get(attribute.outside, REFUSED)


def unparsable_cell(attribute: Attribute) -> int | str:
    """Return the cell of a text that is not a number; the default policy is that of outside values."""
    policy = attribute.unparsable or attribute.outside
    return {"category": attribute.listed, "drop": DROPPED}.get(policy, REFUSED)


def null_cell(attribute: Attribute) -> int | str:
    outside = "category" in (attribute.outside, attribute.unparsable)
    return {"category": attribute.listed + outside, "drop": DROPPED}.get(attribute.nulls, REFUSED)


def marginal(domain: Domain, rows: list[tuple[int, ...]], names: tuple[str, ...]) -> np.ndarray:
    """Return the counts of rows of codes (all attributes of the domain) over some of the attributes."""
    places = [domain.names.index(name) for name in names]
    seen = Counter(tuple(row[place] for place in places) for row in rows)
    shape = domain.shape(names)
    return np.array([seen[key] for key in product(*map(range, shape))], dtype=np.int64).reshape(shape)
