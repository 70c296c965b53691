"""Labels: what a reader calls the cells of an attribute, and the columns of a table that name its queries.

Whole numbers stay numbers where all cells are such; else labels are texts, of which the last two may be those of values
outside the domain and of missing ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpscale.base.arrays import Integers
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.workload import Family, Part, ProductPart

MISSING = "(missing)"
FIGURES = ("estimate", "std_error", "low", "high")
ENDS = {"prefix": ("at_most",), "range": ("from", "to"), "circular": ("start", "end")}


def are_numbers(attribute: Attribute) -> bool:
    """Whether every cell is named by a whole number."""
    return all(type(label) is int for label in attribute.labels)


def texts(attribute: Attribute) -> list[str]:
    """A text for every cell, no two alike."""
    found = [MISSING if label is None else str(label) for label in attribute.labels]
    return [f"{text} (cell {cell})" if found.index(text) < cell else text for cell, text in enumerate(found)]


def column(attribute: Attribute, cells: Integers) -> Any:
    """The labels of some cells, an Arrow array: whole numbers, or texts in the order of the domain."""
    import pyarrow as pa

    if are_numbers(attribute):
        return pa.array(np.array(attribute.labels, np.int64)[cells])
    labels = pa.array(texts(attribute), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(cells, pa.int32()), labels, ordered=attribute.kind != "categories")


def named(domain: Domain, part: Part, attributes: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Names and contents of the columns that tell the queries of a part over one set apart, row-major in that order.

    `age` where a query asks for a value; `age_at_most`, `age_from` and `age_to`, `age_start` and `age_end` where it
    asks for several; `query`, a number, where queries are no products.
    """
    if not isinstance(part, ProductPart):
        yield "query", _arrow(np.arange(part.count(part.domain.ordered(attributes))))
        return
    families = [part.families((name,))[0] for name in attributes]
    counts = [family.count(domain[name].size) for family, name in zip(families, attributes, strict=True)]
    for axis, (name, family) in enumerate(zip(attributes, families, strict=True)):
        before, after = int(np.prod(counts[:axis], dtype=int)), int(np.prod(counts[axis + 1 :], dtype=int))
        for end, cells in zip(_ends(name, family), family.bounds(domain[name].size).values(), strict=True):
            yield end, column(domain[name], np.tile(np.repeat(cells, after), before))


def _ends(name: str, family: Family) -> list[str]:
    """One column's name, or two; none of them that of a figure."""
    own = [f"{name}_{end}" for end in ENDS.get(family.name, ())] or [name]
    return [f"{one}_" if one in FIGURES else one for one in own]


def _arrow(values: Any) -> Any:
    import pyarrow as pa

    return pa.array(values)
