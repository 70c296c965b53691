"""What files of one schema have in common: of attributes that are read of them, where columns stand, and rules.

It is found once for many files, since thousands of small ones would spend most of their time on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Integers
from dpscale.domain import Domain
from dpscale.records.encode import null_cell
from dpscale.records.numbers import is_text

if TYPE_CHECKING:
    import pyarrow as pa

MOST_CELLS = 1 << 30  # of an attribute, so that a cell fits 32 bits


@dataclass(frozen=True, eq=False)
class Columns:
    """Attributes that may be decoded from pages: their names, types of values and places among a file's columns.

    `numbers`: of each (bytes of a value in a dictionary, whether it is unsigned, least and largest value), where
    `whole` says that cells are whole numbers less the least.
    """

    names: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]
    places: Integers
    nullable: NDArray[np.bool_]
    sizes: Integers
    nulls: Integers
    whole: NDArray[np.bool_]
    numbers: Integers


class _Asked:
    """Some names of a domain in files of a schema, which may be looked up. It holds the domain, so its id stays its."""

    def __init__(self, schema: pa.Schema, names: Sequence[str], domain: Domain) -> None:
        self.schema, self.names, self.domain = schema, tuple(names), domain

    def __hash__(self) -> int:
        return hash((self.names, id(self.domain)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.domain is other.domain and self.names == other.names and bool(
            self.schema.equals(other.schema)
        )  # fmt: skip


def columns_of(schema: pa.Schema, names: Sequence[str], domain: Domain) -> Columns:
    """Those of some columns that are attributes which may be decoded."""
    return _columns_of(_Asked(schema, names, domain))


@lru_cache(maxsize=64)
def _columns_of(asked: _Asked) -> Columns:
    import pyarrow.types as types

    schema, domain = asked.schema, asked.domain
    places = {name: place for place, name in enumerate(schema.names)}
    known = [name for name in asked.names if name in domain.alone and domain[name].size <= MOST_CELLS]
    names = tuple(name for name in known if plain_type(schema.field(places[name]).type) is not None)
    fields, attributes = [schema.field(places[name]) for name in names], [domain[name] for name in names]
    kinds = tuple(plain_type(field.type) for field in fields)
    whole = [one.is_whole and types.is_integer(kind) for one, kind in zip(attributes, kinds, strict=True)]
    numbers = [
        (width_of(kind), fine and types.is_unsigned_integer(kind), one.low if fine else 0, one.high if fine else 0)
        for one, kind, fine in zip(attributes, kinds, whole, strict=True)
    ]
    return Columns(
        names,
        kinds,
        np.array([places[name] for name in names], np.int64),
        np.array([field.nullable for field in fields], bool),
        np.array([one.size for one in attributes], np.int64),
        np.array([null_cell(one) for one in attributes], np.int64),
        np.array(whole, bool),
        np.array(numbers, np.int64).reshape(-1, 4),
    )


@cache
def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of values, however they are kept in memory; None for those whose bytes alone do not tell them."""
    import pyarrow.types as types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    told = is_text(kind) or types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    return kind if told else None


@cache
def width_of(kind: pa.DataType) -> int:
    """Bytes of a number as it lies in a file; 0 for texts."""
    how = stored(kind)
    return 0 if how is None else how.itemsize


@cache
def stored(kind: pa.DataType) -> np.dtype[Any] | None:
    """How a number lies in a file; None for texts."""
    import pyarrow.types as types

    if is_text(kind):
        return None
    letter = "f" if types.is_floating(kind) else "u" if types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"<{letter}{max(kind.bit_width // 8, 4)}")
