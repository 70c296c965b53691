"""Parser of the tables [attributes.NAME] of a domain file: attributes and the parents defined by their values.

Several attributes may share a table (`also`). An attribute may be derived from another column (`from`), by grouping its
values (`map`), by bins of its logarithm (`log`) or by rounding to multiples (`round`). All of this is public and
depends on one value of one row.

The cells of some attributes are searched (`dpscale.domain.search`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, pairwise
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex, TypeGuard

from dpscale.base.display import display_path, nearest, quantity, safe_repr
from dpscale.base.errors import DomainError
from dpscale.domain.attribute import (
    EXACT,
    LARGEST,
    NULL_LABEL,
    OUTSIDE_LABEL,
    PERIODS,
    WORDS,
    Attribute,
    check_labelled,
    read_period,
    read_words,
)
from dpscale.domain.schema_values import (
    EXPECTED,
    WITHOUT_DAY,
    check_keys,
    check_values,
    date_pattern,
    has_day,
    read_exact,
    read_policy,
    read_source,
)
from dpscale.domain.search import (
    LONGEST,
    PRIVATE,
    EdgeSearch,
    NodeSearch,
    ValueSearch,
    assumed_values,
    read_assumed,
    read_count,
)
from dpscale.domain.tree import MORE_TREE_KEYS, TREE_KEYS, TreeLevel, read_hierarchy
from dpscale.storage.files import is_local, place

BIN_KEYS = {"low", "high", "step", "assumed", "bins"}  # of bins with private edges
DISCOVER_KEYS = {"max_length", "values", "other", "assumed", "count", "file", "leaf", "levels", "sha256"}
COUNTS = ("rows", "units")  # of the values that are searched
SUFFIXES = (".csv", ".parquet")

EXAMPLE = 'kind = "coded" and size = 4'
ALSO = "also"
KINDS = {
    "integer": {"low", "high"},
    "categories": {"values"},
    "bins": {"edges"},
    "coded": {"size"},
    "boolean": set(),
    "date": {"by", "low", "high"},
    "text-prefix": {"length", "values"},
    "discover": set(),
    "hierarchy": TREE_KEYS,
}
MORE = {
    "integer": {"round"},
    "categories": {"map"},
    "bins": {"log", *BIN_KEYS},
    "date": {"zone", "format"},
    "text-prefix": {"map"},
    "discover": DISCOVER_KEYS,
    "hierarchy": MORE_TREE_KEYS,
}
POLICIES = {
    "outside": ("reject", "clip", "category", "drop"),
    "nulls": ("reject", "category", "drop"),
    "unparsable": ("reject", "category", "drop"),
}
HIERARCHY_POLICIES = {name: ("reject", "category", "drop") for name in ("outside", "nulls")}


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
    if misplaced := sorted({"leaf", "levels", "sha256"} & set(table)):
        raise DomainError(f"{field}.{misplaced[0]}", "given without file", "the file of a tree of codes", "add file")

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
    if misplaced := sorted({"max_length", "values", "other", "count"} & set(table)):
        raise DomainError(
            f"{field}.{misplaced[0]}", "given with the file of a tree", "a tree alone, or values", "remove it"
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


def coded(name: str, size: SupportsIndex) -> Attribute:
    """Return an attribute whose values are already 0 … size − 1."""
    if not isinstance(size, bool):
        with suppress(TypeError):
            size = index(size)  # accept NumPy integers
    return Attribute(name, "coded", **_read_coded(name, {"size": size}))


def from_tables(tables: Mapping[str, Any], folder: Path | None = None) -> list[Attribute]:
    """Return the attributes of a domain file in order, each followed by its parents.

    Parameters
    ----------
    tables : mapping
    folder : Path, optional
        Folder from which relative paths of public trees start; default: the current one.
    """
    attributes = [
        attribute for name, table in _single_tables(tables).items() for attribute in _family(name, table, folder)
    ]
    names = [attribute.name for attribute in attributes]
    for attribute in attributes:
        if attribute.level is not None and not attribute.level.is_leaf and names.count(attribute.name) > 1:
            leaf = next(
                sibling.name
                for sibling in attributes
                if sibling.level is not None and sibling.level.tree is attribute.level.tree
            )
            raise DomainError(f"attributes.{leaf}.levels", f"{attribute.name!r}, the name of another attribute",
                              "distinct names", "rename the attribute, or the column of the file")  # fmt: skip
    return attributes


def _single_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table for each attribute: those that a table lists in `also` follow it and have its other keys.

    ALSO is the key of further attributes. Title and description (the first two of WORDS) belong to the first one alone.
    """
    tables_of: dict[str, Any] = {}
    for name, table in tables.items():
        alike = table.get(ALSO, []) if isinstance(table, Mapping) else []
        field = f"attributes.{name}.{ALSO}"
        if not isinstance(alike, list | tuple) or not all(isinstance(other, str) and other for other in alike):
            raise DomainError(field, safe_repr(alike), "a list of columns with the same values", "fix it")
        if alike and ({"from", "parent"} & set(table) or table.get("kind") == "hierarchy"):
            raise DomainError(field, "given with from, with a parent or for a hierarchy", "a plain attribute",
                              "write a table for each attribute")  # fmt: skip
        if twice := [other for other in alike if other in tables_of or other in tables or alike.count(other) > 1]:
            raise DomainError(field, f"{twice[0]!r}, which has a table already", "each attribute once", "remove it")

        # the first attribute has its table without `also`
        table_of_first = {key: value for key, value in table.items() if key != ALSO} if alike else table
        others = {key: value for key, value in table_of_first.items() if key not in WORDS[:2]} if alike else {}
        tables_of |= {name: table_of_first, **dict.fromkeys(alike, others)}

    return tables_of


def _family(name: str, table: Any, folder: Path | None) -> list[Attribute]:
    """Return the attributes that one table of the domain file declares: of a hierarchy, or one and its parents.

    `parent` maps the name of a parent to groups of the attribute's values. `folder` is that of the domain file.
    """
    kind = table.get("kind") if isinstance(table, Mapping) else None
    if isinstance(kind, str) and kind == "hierarchy":
        return _levels(name, table, folder)

    parents = table.get("parent", {}) if isinstance(table, Mapping) else {}
    attribute = from_table(name, {key: value for key, value in table.items() if key != "parent"} if parents else table)
    if not isinstance(parents, Mapping):
        raise DomainError(f"attributes.{name}.parent", safe_repr(parents), "tables of groups by the parent's name",
                          f'write [attributes.{name}.parent.region] and north = ["a", "b"] below it')  # fmt: skip
    return [attribute, *(_parent(attribute, parent, groups) for parent, groups in parents.items())]


def _levels(name: str, table: Mapping[str, Any], folder: Path | None) -> list[Attribute]:
    """Return the attribute of the leaves of a public tree, followed by those of its other levels, the top first.

    HIERARCHY_POLICIES are the keys for values outside the tree and nulls. Levels above the leaf are derived from its
    column.
    """
    field = f"attributes.{name}"
    _kind(name, table)
    policies: dict[str, Any] = {
        key: read_policy(field, key, table[key], HIERARCHY_POLICIES[key]) for key in HIERARCHY_POLICIES if key in table
    }
    source, tree = read_source(field, name, table), read_hierarchy(name, table, folder)

    def made(level_name: str, level: int, column: str) -> Attribute:
        return Attribute(
            level_name, "hierarchy", values=tree.labels(level), level=TreeLevel(tree, level), source=column, **policies
        )

    above = [made(level_name, level, source or name) for level, level_name in enumerate(tree.columns[:-1])]
    return [_with_words(made(name, tree.leaf_level, source), table), *above]


def _parent(child: Attribute, name: str, groups: object) -> Attribute:
    """Return the attribute whose values are groups of a child's values; each child value is in exactly one group.

    The parent has the policies of the child for outside values and nulls.
    """
    field = f"attributes.{child.name}.parent.{name}"
    if child.search is not None or child.groups or child.kind not in ("categories", "text-prefix", "integer", "coded"):
        kind = "a map" if child.groups else f"kind {child.kind if child.search is None else 'discover'}"
        raise DomainError(
            field, f"given for {kind}", "kinds that list values", "group the values of the column with map"
        )
    if child.outside == "clip":
        raise DomainError(
            field, 'given with outside = "clip"', "reject, category or drop", "a clipped value has no parent"
        )

    read = _read_map(field, groups, child.length)
    # the values of the child, which the groups must contain exactly
    values = child.values or tuple(range(child.low, child.high + 1, child.step))
    grouped = list(chain(*read["groups"]))
    known, listed = set(grouped), set(values)
    if missing := [value for value in values if value not in known]:
        raise DomainError(
            field, f"no group has {safe_repr(missing[0])}", "every value in exactly one group", "add it to one"
        )
    if unknown := [value for value in grouped if value not in listed]:
        raise DomainError(
            field, safe_repr(unknown[0]), f"values of {child.name}", nearest(str(unknown[0]), map(str, values))
        )

    kind = "text-prefix" if child.length else "categories"
    return Attribute(name, kind, **read, outside=child.outside, nulls=child.nulls, unparsable=child.unparsable,
                     length=child.length, source=child.column)  # fmt: skip


def from_table(name: str, table: object) -> Attribute:
    """Return the attribute of a table of the domain file. Raises DomainError that names the invalid field.

    POLICIES are the keys for values outside the domain, nulls and values that cannot be read. _READ maps a kind to the
    function that reads its settings. Listed values cannot be clipped, and kind `discover` becomes categories.
    """
    if not isinstance(table, Mapping):
        raise DomainError(f"attributes.{name}", "not a table", "a table with a kind", f"such as {EXAMPLE}")

    kind = _kind(name, table)
    field = f"attributes.{name}"
    policies: dict[str, Any] = {
        key: read_policy(field, key, table[key], POLICIES[key]) for key in POLICIES if key in table
    }
    if kind == "discover" and "outside" in table:
        raise DomainError(
            f"{field}.outside", safe_repr(table["outside"]), "other = true or false, for kind discover", "leave it out"
        )

    read = _READ[kind](name, table)
    if read.get("values") and policies.get("outside") == "clip":
        raise DomainError(f"attributes.{name}.outside", "'clip'", f"reject, category or drop, for {kind}",
                          "listed values have no nearest value")  # fmt: skip

    own_kind = "categories" if kind == "discover" else kind
    attribute = replace(Attribute(name, own_kind, **read, **policies), source=read_source(field, name, table))
    if attribute.unparsable and attribute.of_texts:
        raise DomainError(f"attributes.{name}.unparsable", "given for texts", "kinds of numbers", "use outside instead")
    return _with_words(attribute, table)


def _with_words(attribute: Attribute, table: Mapping[str, Any]) -> Attribute:
    """Return an attribute with the words of its table; labels of values that a search finds are not checked."""
    where = f"attributes.{attribute.name}"
    words = read_words(where, table)
    if words.labels and attribute.search is None:
        check_labelled(where, words.labels, attribute.labels)
    return replace(attribute, words=words)


def _kind(name: str, table: Mapping[str, Any]) -> str:
    """Return the table's kind. Raises DomainError if it is invalid, or if a key is missing or unknown.

    KINDS has the required keys of each kind, MORE its optional ones.
    """
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        text = kind if isinstance(kind, str) else ""
        got = "missing" if "kind" not in table else safe_repr(kind)
        raise DomainError(f"attributes.{name}.kind", got, ", ".join(KINDS), nearest(text, KINDS))

    more = MORE.get(kind, set())
    policies = HIERARCHY_POLICIES if kind == "hierarchy" else POLICIES
    check_keys(table, {"kind", "from", ALSO, *policies, *WORDS} | KINDS[kind] | more, f"attributes.{name}")
    needs = KINDS[kind] - ({"values"} if "map" in table else set())
    for key in sorted(needs - set(table)):
        raise DomainError(f"attributes.{name}.{key}", "missing", f"a value, for kind {kind}", "add it")
    if "map" in table and "values" in table:
        raise DomainError(
            f"attributes.{name}.map", "given with values", "map or values", "remove values: map lists them"
        )
    return kind


def _checked_integer(name: str, key: str, value: object) -> int:
    """Return a value if it is an integer that floats represent exactly; raise DomainError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DomainError(
            f"attributes.{name}.{key}", safe_repr(value), "an integer", "write it without a decimal point"
        )
    if abs(value) >= EXACT:
        raise DomainError(f"attributes.{name}.{key}", f"{value}", "a number between -2^53 and 2^53", "use kind bins")
    return value


def _read_integer(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the range of an integer attribute. Raises DomainError unless `round` divides high − low."""
    low, high, step = (_checked_integer(name, key, table.get(key, 1)) for key in ("low", "high", "round"))
    if high < low:
        raise DomainError(f"attributes.{name}.high", f"{high}", f"at least low = {low}", "swap them")
    if step < 1 or (high - low) % step:
        raise DomainError(f"attributes.{name}.round", f"{step}", f"an integer that divides {high - low}, the distance"
                          " from low to high", "change high or round")  # fmt: skip
    return {"low": low, "high": high, "step": step}


def _read_coded(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ends of the codes 0 … size − 1. Raises DomainError if `size` is no positive integer."""
    size = _checked_integer(name, "size", table["size"])
    if size < 1:
        raise DomainError(f"attributes.{name}.size", f"{size}", "a positive number", "fix it")
    return {"low": 0, "high": size - 1}


def _read_boolean(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    return {"values": (False, True)}


def _read_categories(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an attribute of kind category: its values, listed or in a map from value to category.

    OUTSIDE_LABEL and NULL_LABEL are labels of additional cells, so they are refused as values if their policy adds such
    a cell.
    """
    if "map" in table:
        return _read_map(f"attributes.{name}.map", table["map"], 0)

    values, field = table["values"], f"attributes.{name}.values"
    check_values(field, values)
    for label, policy in ((OUTSIDE_LABEL, "outside"), (NULL_LABEL, "nulls")):
        if label in values and table.get(policy) == "category":
            cause = "values outside the domain" if policy == "outside" else "nulls"
            raise DomainError(field, f"the value {label}, which is the label of {cause} here",
                              "values with other names",
                              f"represent it by another name in a map, or change {policy}")  # fmt: skip

    return {"values": tuple(values)}


def _read_map(field: str, table: object, length: int) -> dict[str, Any]:
    """Return the values of a map and the column values that each represents.

    With a `length` above 0, the column values are beginnings of this length. OUTSIDE_LABEL and NULL_LABEL are labels of
    additional cells.
    """
    if (
        not isinstance(table, Mapping)
        or not table
        or not all(isinstance(values_of_entry, list | tuple) for values_of_entry in table.values())
    ):
        raise DomainError(
            field,
            "not a table of lists",
            'for each value a list of original values, for example north = ["a", "b"]',
            "fix it",
        )
    if empty := [name for name, values in table.items() if not values]:
        raise DomainError(f"{field}.{empty[0]}", "an empty list", "original values", "fill it, or remove it")

    check_values(field, [value for values in table.values() for value in values])
    if taken := {OUTSIDE_LABEL, NULL_LABEL} & set(table):
        raise DomainError(field, f"the value {min(taken)}", "a name that is not a value", "rename it")

    groups = tuple(map(tuple, table.values()))
    if length:
        _check_prefixes(field, [value for group in groups for value in group], length)
    return {"values": tuple(table), "groups": groups}


def _read_prefix(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an attribute of kind prefix: the beginnings of given length that are its values.

    A map gives several beginnings a common value; otherwise each listed value is a beginning.
    """
    length = _checked_integer(name, "length", table["length"])
    if length < 1:
        raise DomainError(f"attributes.{name}.length", f"{length}", "a positive number of letters", "fix it")
    if "map" in table:
        return {**_read_map(f"attributes.{name}.map", table["map"], length), "length": length}
    _check_prefixes(f"attributes.{name}.values", table["values"], length)
    return {**_read_categories(name, table), "length": length}


def _check_prefixes(field: str, values: object, length: int) -> None:
    """Raise DomainError unless `values` is a list of texts, not empty, of at most `length` letters each."""
    if not isinstance(values, list) or not values or not all(isinstance(v, str) and len(v) <= length for v in values):
        raise DomainError(
            field,
            "not a list of prefixes",
            f"texts of at most {quantity(length, 'letter')}",
            "fix it, or change length",
        )


def _read_bins(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an attribute of kind bins: its increasing edges, or how they are found with privacy.

    BIN_KEYS are the keys of a private search. With `log` the edges are logarithms to this base.
    """
    edges, field = table["edges"], f"attributes.{name}.edges"
    if edges == PRIVATE:
        return read_private_edges(name, table)
    # settings of a search have no meaning for public edges
    if misplaced := sorted(BIN_KEYS & set(table)):
        raise DomainError(
            f"attributes.{name}.{misplaced[0]}", "given with public edges", f'edges = "{PRIVATE}" only', "remove it"
        )
    if not isinstance(edges, list) or not all(_is_finite(edge) for edge in edges):
        raise DomainError(field, "not a list of numbers", f'finite numbers, or "{PRIVATE}"', "fix it")

    edges = [_raised(name, table["log"], edge) if "log" in table else float(edge) for edge in edges]
    if any(b <= a for a, b in pairwise(edges)) or len(edges) < 2:
        raise DomainError(field, "not increasing", "two or more increasing numbers", "sort them and remove repeats")
    return {"edges": tuple(edges)}


def _raised(name: str, base: object, edge: float) -> float:
    """Return the number whose logarithm is `edge`: bins of logarithms are bins of numbers."""
    if not _is_finite(base) or base <= 1:
        raise DomainError(f"attributes.{name}.log", safe_repr(base), "a base above 1, such as 10", "fix it")

    with suppress(OverflowError):
        power = float(base) ** edge
        if 0 < power < math.inf:
            return power

    raise DomainError(
        f"attributes.{name}.edges",
        f"{edge:g}, a logarithm to base {base:g}",
        "logarithms of finite numbers",
        "write the edges as logarithms, or leave log out",
    )


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _read_date(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an attribute of kind date: period, first and last period, time zone and format."""
    by = table["by"]
    if not isinstance(by, str) or by not in PERIODS:
        text = by if isinstance(by, str) else ""
        raise DomainError(f"attributes.{name}.by", safe_repr(by), ", ".join(PERIODS), nearest(text, PERIODS))

    low, high = (_period(name, by, key, table[key]) for key in ("low", "high"))
    if high < low:
        raise DomainError(f"attributes.{name}.high", "before low", "a period at or after low", "swap them")

    zone, form = _zone(name, table.get("zone", "")), _date_format(name, by, table.get("format", ""))
    return {"by": by, "low": low, "high": high, "zone": zone, "format": form}


def _date_format(name: str, by: str, form: Any) -> str:
    """Return the format of dates in texts. Raises DomainError if it is none, or names no day although `by` needs it.

    WITHOUT_DAY are the periods that a date without a day determines. An empty format means ISO dates.
    """
    field = f"attributes.{name}.format"
    with suppress(ValueError, TypeError):
        if not form or date_pattern(form):
            if not has_day(form) and by not in WITHOUT_DAY:
                raise DomainError(
                    field, safe_repr(form), f"a format with %d, for dates by {by}", 'add %d, or set by = "month"'
                )
            return form or ""

    raise DomainError(field, safe_repr(form), EXPECTED, "fix it, or leave it out for dates such as 2025-01-31")


def _period(name: str, by: str, key: str, value: object) -> int:
    """Return the number of the period that a key states.

    Raises DomainError if it names none.
    """
    try:
        return read_period(by, value)
    except ValueError as error:
        takes = str(error) if str(error).startswith("a ") else "a date of the calendar"
        raise DomainError(f"attributes.{name}.{key}", safe_repr(value), takes, "fix it") from None


def _zone(name: str, zone: Any) -> str:
    """Return the name of a time zone if Python knows it; raise DomainError otherwise."""
    from zoneinfo import ZoneInfo

    try:
        return zone and str(ZoneInfo(zone))
    except (KeyError, ValueError, TypeError, OSError):
        raise DomainError(f"attributes.{name}.zone", safe_repr(zone), 'a time zone such as "Europe/Berlin" or "UTC"',
                          "fix it, or leave it out") from None  # fmt: skip


_READ = {"integer": _read_integer, "coded": _read_coded, "categories": _read_categories, "bins": _read_bins,
         "boolean": _read_boolean, "date": _read_date, "text-prefix": _read_prefix,
         "discover": read_discover}  # fmt: skip
