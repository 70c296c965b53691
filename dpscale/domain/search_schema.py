"""Parser of the attributes of a domain file whose cells are searched (`dpscale.domain.search`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpscale.base.display import display_path, safe_repr
from dpscale.base.errors import DomainError
from dpscale.domain.attribute import EXACT, NULL_LABEL, OUTSIDE_LABEL, Attribute
from dpscale.domain.schema_values import check_values, read_exact
from dpscale.domain.search import (
    LONGEST,
    EdgeSearch,
    NodeSearch,
    ValueSearch,
    assumed_values,
    read_assumed,
    read_count,
)
from dpscale.storage.files import is_local, place

BIN_KEYS = {"low", "high", "step", "assumed", "bins"}  # of bins with private edges
DISCOVER_KEYS = {"max_length", "values", "other", "assumed", "count", "file", "leaf", "levels", "sha256"}
COUNTS = ("rows", "units")  # of the values that are searched
SUFFIXES = (".csv", ".parquet")


def read_private_edges(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return bins whose edges are searched on a public axis: low … high, or all integers of 64 bits.

    `step` is the unit of the values, `bins` the number of bins and `assumed` that which plans assume. low and high must
    be multiples of the step, at least two steps apart, and less than EXACT steps from 0.
    """
    field = f"attributes.{name}"
    if "log" in table:
        raise DomainError(f"{field}.log", "given with private edges", "edges that are found on the values", "remove it")

    step = read_exact(f"{field}.step", table.get("step", 1))
    if step <= 0:
        raise DomainError(f"{field}.step", safe_repr(table["step"]), "a number above 0", "fix it")

    assumed = read_assumed(field, table, EdgeSearch.assumed)
    bins = read_count(f"{field}.bins", table["bins"], 2, 1 << 16) if "bins" in table else None
    # without ends the axis has all integers of 64 bits
    if ("low" in table) != ("high" in table):
        raise DomainError(f"{field}.{'high' if 'low' in table else 'low'}", "missing", "both ends or none", "add it")
    if "low" not in table:
        search = EdgeSearch(unit=step, assumed=assumed, bins=bins)
        return {"edges": search.assumed_edges, "search": search}

    # exact fractions, in steps
    low, high = (read_exact(f"{field}.{key}", table[key]) / step for key in ("low", "high"))
    if low.denominator != 1 or high.denominator != 1:
        raise DomainError(f"{field}.step", safe_repr(table.get("step", 1)), "a number of which low and high are"
                          " multiples", "change low, high or step")  # fmt: skip
    if high - low < 2 or max(abs(low), abs(high)) >= EXACT:
        raise DomainError(f"{field}.high", safe_repr(table["high"]), "two steps or more above low, and less than 2^53"
                          " steps", "change low, high or step")  # fmt: skip

    search = EdgeSearch(low=int(low), high=int(high), unit=step, assumed=assumed, bins=bins)
    return {"edges": search.assumed_edges, "search": search}


def read_discover(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return categories whose values are searched: texts or integers, or the nodes of a tree of codes.

    `max_length` bounds the letters of texts. `values` are public values, `other` adds a cell for values that are not
    found, and `count` states whether rows or units are counted.
    """
    field = f"attributes.{name}"
    assumed = read_assumed(field, table)
    # the values are nodes of a public tree of codes
    if "file" in table:
        return _read_tree(field, name, table, assumed)
    if given := sorted({"leaf", "levels", "sha256"} & set(table)):
        raise DomainError(f"{field}.{given[0]}", "given without file", "the file of a tree of codes", "add file")

    longest = read_count(f"{field}.max_length", table.get("max_length", ValueSearch.max_length), 1, LONGEST)
    values = table.get("values", [])
    if values:
        check_values(f"{field}.values", values)
        if not isinstance(values[0], str | int) or isinstance(values[0], bool):
            raise DomainError(f"{field}.values", safe_repr(values[0]), "texts or integers", "fix it")
    elif not isinstance(values, list | tuple):
        raise DomainError(f"{field}.values", "not a list of texts or numbers", "a list of public values", "fix it")

    # labels of the cells of outside values and nulls
    if taken := {OUTSIDE_LABEL, NULL_LABEL}.intersection(map(str, values)):
        raise DomainError(f"{field}.values", f"the value {min(taken)}", "a name that is not a value", "remove it")

    other = table.get("other", True)
    if not isinstance(other, bool):
        raise DomainError(f"{field}.other", safe_repr(other), "true or false", "fix it")

    count = table.get("count", ValueSearch.count)
    if count not in COUNTS:
        raise DomainError(f"{field}.count", safe_repr(count), " or ".join(COUNTS), "fix it")

    search = ValueSearch(max_length=longest, values=tuple(values), other=other, assumed=assumed, count=count)
    return {"values": assumed_values(assumed, search.values), "outside": "category" if other else "drop",
            "search": search}  # fmt: skip


def _read_tree(field: str, name: str, table: Mapping[str, Any], assumed: int) -> dict[str, Any]:
    """Return categories that are nodes of a public tree of codes.

    `leaf` is the column of the codes and `levels` are those of their ancestors. `assumed` is the number of values that
    plans assume.
    """
    # settings of a search for values do not apply to the nodes of a tree
    if given := sorted({"max_length", "values", "other", "count"} & set(table)):
        raise DomainError(
            f"{field}.{given[0]}", "given with the file of a tree", "a tree alone, or values", "remove it"
        )

    file, leaf, levels = table["file"], table.get("leaf", name), table.get("levels")
    if not isinstance(file, str) or not file:
        raise DomainError(f"{field}.file", safe_repr(file), "the path of a CSV or Parquet file", "fix it")
    if not isinstance(leaf, str) or not leaf:
        raise DomainError(f"{field}.leaf", safe_repr(leaf), "the column of the codes", "fix it")
    if (
        not isinstance(levels, list | tuple)
        or not levels
        or not all(isinstance(level, str) and level for level in levels)
    ):
        raise DomainError(
            f"{field}.levels", safe_repr(levels), "a list of the columns of ancestors, the top first", "add it"
        )

    search = NodeSearch(
        file=file, leaf=leaf, levels=tuple(levels), digest=str(table.get("sha256", "")), assumed=assumed
    )
    return {"values": assumed_values(assumed), "outside": "category", "search": search}


def located_tree(attribute: Attribute, folder: Path) -> NodeSearch:
    """Return the search with the absolute path and the hash of its file; relative paths start at `folder`.

    Raises DomainError if the file cannot be read, or is not the one whose hash is given.
    """
    search, field = attribute.search, f"attributes.{attribute.name}.file"
    assert isinstance(search, NodeSearch)
    if not search.file.endswith(SUFFIXES):
        raise DomainError(field, safe_repr(search.file), "a CSV or Parquet file", "convert it")

    path = place(search.file, "file") if "://" in search.file else place(folder / search.file, "file")
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise DomainError(
            field, f"cannot read {display_path(path)} ({reason})", "the file of a tree of codes", "check the path"
        ) from None

    if search.digest not in ("", digest):
        raise DomainError(field, f"{display_path(path)}, which was changed", "the file as the domain was written with",
                          "restore it, or remove sha256")  # fmt: skip
    return replace(search, file=str(path.resolve() if is_local(path) else path), digest=digest)
