"""Hypothesis strategies of the test suite: domains, attribute sets, columns of every type, tables and partitionings."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dpscale.domain import Attribute, Domain
from dpscale.workload import Workload

TEXTS = ["", "F", "M", "01", "1", "1.0", " x", "NA", "null", "true", "Köln", "東京", "a,b", 'say "hi"', "(outside)"]
INTEGER_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


def policies(kind: str) -> st.SearchStrategy[dict[str, str]]:
    outside = ["reject", "category", "drop"] if kind == "categories" else ["reject", "clip", "category", "drop"]
    foreign = {} if kind == "categories" else {"unparsable": st.sampled_from(["reject", "category", "drop"])}
    return st.fixed_dictionaries(
        {"outside": st.sampled_from(outside), "nulls": st.sampled_from(["reject", "category", "drop"])},
        optional=foreign,
    )


@st.composite
def attribute_tables(draw: st.DrawFn) -> dict[str, Any]:
    """Draw one attribute table of a domain file."""
    kind = draw(st.sampled_from(["integer", "categories", "bins", "coded"]))
    rest = draw(policies(kind))
    if kind == "integer":
        low = draw(st.integers(-300, 300))
        own: dict[str, Any] = {"low": low, "high": low + draw(st.integers(1, 300))}
    elif kind == "coded":
        own = {"size": draw(st.integers(2, 300))}
    elif kind == "bins":
        edges = draw(st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 2)), min_size=3, max_size=8, unique=True))
        own = {"edges": sorted({edge + 0.0 for edge in edges})}
    else:
        listed = [text for text in TEXTS if text != "(outside)"]
        numbers = st.one_of(st.integers(-50, 50), st.floats(-50, 50).map(lambda x: round(x, 1)))
        kinds = [st.sampled_from(listed), numbers]
        own = {"values": draw(st.lists(draw(st.sampled_from(kinds)), min_size=2, max_size=8, unique=True))}
    return {"kind": kind, **own, **rest}


@st.composite
def domains(draw: st.DrawFn, most: int = 4) -> Domain:
    """Draw domains with up to `most` attributes of all kinds."""
    tables = draw(st.lists(attribute_tables(), min_size=1, max_size=most))
    return Domain.from_dict({"attributes": {f"a{i}": table for i, table in enumerate(tables)}})


@st.composite
def coded_domains(draw: st.DrawFn, most: int = 5, largest: int = 12) -> Domain:
    """Draw domains of coded attributes, given by their sizes."""
    sizes = draw(st.lists(st.integers(2, largest), min_size=1, max_size=most))
    return Domain({f"a{i}": size for i, size in enumerate(sizes)})


def attribute_sets(domain: Domain, most: int = 6) -> st.SearchStrategy[list[tuple[str, ...]]]:
    """Return lists of attribute sets of any degree, including 0, with names in any order."""
    one = st.lists(st.sampled_from(domain.names), unique=True, max_size=4).map(tuple)
    return st.lists(one, min_size=1, max_size=most)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw up to four parts of product and joint families with weights, over a few attributes."""
    workload = Workload(draw(coded_domains(most=5, largest=5)))
    for _ in range(draw(st.integers(1, 4))):
        sets = draw(attribute_sets(workload.domain))
        family = draw(st.sampled_from(["marginal", "prefix", "range", "hybrid", "affine", "random"]))
        sets = [names for names in sets if len(names) == 2] if family == "affine" else sets
        weights = draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.7]), min_size=len(sets), max_size=len(sets)))
        numeric = {"numeric": workload.domain.names[::2]} if family == "hybrid" else {}
        if sets:
            workload.add(family, attributes=sets, weight=weights, **numeric)
    return workload


def inside_values(attribute: Attribute) -> st.SearchStrategy[Any]:
    """Return values that the attribute lists."""
    if attribute.kind == "categories":
        return st.sampled_from(attribute.values)
    if attribute.kind == "bins":
        return st.floats(attribute.edges[0], attribute.edges[-1]) | st.sampled_from(attribute.edges)
    return st.integers(attribute.low, attribute.high)


def accepted_values(attribute: Attribute) -> st.SearchStrategy[Any]:
    """Return values that the attribute accepts under its policies and that fit into a column of one Arrow type."""
    values = inside_values(attribute)
    if attribute.nulls != "reject":
        values |= st.none()
    if attribute.outside != "reject" and attribute.kind in ("integer", "coded"):
        values |= st.integers(-(10**6), 10**6)
    if attribute.outside != "reject" and attribute.kind == "categories" and isinstance(attribute.values[0], str):
        values |= st.sampled_from(TEXTS)
    return values


def _numbers(kind: pa.DataType, near: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        fitting = near.filter(lambda x: float(x).is_integer() and low <= x <= high).map(int)
        return fitting | st.integers(low, high) | st.sampled_from([low, high])
    if pa.types.is_floating(kind):
        width = {16: 16, 32: 32, 64: 64}[kind.bit_width]
        return near.map(float) | st.floats(width=width) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])
    return st.decimals(-9999, 9999, places=2)


def column_types(attribute: Attribute) -> list[pa.DataType]:
    """Return the Arrow types from which the attribute can be read, except dictionaries."""
    if attribute.kind == "categories" and isinstance(attribute.values[0], str):
        return [pa.string(), pa.large_string(), pa.null()]
    return [*INTEGER_TYPES, pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.string(),
            pa.large_string(), pa.null()]  # fmt: skip


@st.composite
def columns(draw: st.DrawFn, attribute: Attribute) -> pa.Array:
    """Draw columns with inside, outside and null values, plain or dictionary-encoded."""
    kind = draw(st.sampled_from(column_types(attribute)))
    near = inside_values(attribute)
    if pa.types.is_null(kind):
        return pa.nulls(draw(st.integers(0, 3)))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values = near.map(str) | st.sampled_from([*TEXTS, " 7 ", "+3", "1e999", "-inf", "1_0", "0x1", "NaN", "TRUE"])
    else:
        values = _numbers(kind, near)
    few = st.lists(values if draw(st.booleans()) else values | st.none(), max_size=6)
    plain = pa.array(draw(few), kind) if not pa.types.is_floating(kind) else _floats(draw(few), kind)
    return draw(dictionaries(plain)) if draw(st.booleans()) else plain


def _floats(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.float64()).cast(kind, safe=False)


@st.composite
def dictionaries(draw: st.DrawFn, entries: pa.Array) -> pa.DictionaryArray:
    """Draw dictionary columns over these entries, which may have nulls and unused entries."""
    indices = st.integers(0, len(entries) - 1) | st.none() if len(entries) else st.none()
    width = draw(st.sampled_from([pa.int8(), pa.int32(), pa.uint16(), pa.int64()]))
    return pa.DictionaryArray.from_arrays(pa.array(draw(st.lists(indices, max_size=8)), width), entries)


@st.composite
def coded_rows(draw: st.DrawFn, domain: Domain, most: int = 40) -> list[tuple[int, ...]]:
    """Draw rows of codes of a coded domain."""
    one = st.tuples(*(st.integers(0, size - 1) for size in domain.shape(domain.names)))
    return draw(st.lists(one, min_size=1, max_size=most))


@st.composite
def cuts(draw: st.DrawFn, rows: int, most: int = 4) -> list[tuple[int, int]]:
    """Draw intervals that split 0 … rows into pieces, some of them empty."""
    inner = sorted(draw(st.lists(st.integers(0, rows), max_size=most)))
    return list(zip([0, *inner], [*inner, rows], strict=True))


def as_table(domain: Domain, rows: list[tuple[Any, ...]]) -> pa.Table:
    """Return rows of codes as an Arrow table."""
    return pa.table({name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate(domain.names)})
