"""Exact statistics of keys and links: PRIVATE, for writing a job, not for publication.

Only the key columns are read; nothing is spent or written. Keys are compared by value, as in a run. A link counts once:
a repeated pair, or a row of the root that occurs twice with one parent, is one link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpscale.base.numerics import NDArray, Words
from dpscale.contributions.links import key_rows
from dpscale.contributions.unit_shards import places
from dpscale.engine import Engine
from dpscale.job.job import CompositeJob, LinkSection
from dpscale.job.neighbours import NeighbourRelation, neighbour_relation
from dpscale.runs.linked_tables import Files, open_table

WARNING = (
    "PRIVATE, do not publish: these statistics are computed from the records. "
    "A bound that is chosen from them reveals information about the records."
)
QUANTILES = (50, 90, 99)
Columns = tuple[str, ...]
Keys = list[tuple[Words, NDArray[np.bool_]]]


def check_keys(job: CompositeJob, engine: Engine) -> dict[str, Any]:
    """Return rows, null and duplicate keys of every table, and dangling ends, degrees and bound of every link."""
    protects, known = neighbour_relation(job), {}
    tables = []
    for name in job.tables:
        statistics, known[name] = _table_statistics(job, name, engine)
        tables.append(statistics)

    return {
        "private": True,
        "tables": tables,
        "links": [_link_statistics(job, link, known, protects, engine) for link in job.foreign_keys],
    }


def _read_keys(engine: Engine, files: Files, keys: Sequence[Columns]) -> tuple[int, Keys]:
    parts = open_table(files).partitions
    found = engine.map(key_rows, [(part, keys) for part in parts], "keys")
    rows, each = zip(*found, strict=True)
    whole = [tuple(np.concatenate(one) for one in zip(*own, strict=True)) for own in zip(*each, strict=True)]
    return sum(rows), whole  # type: ignore[return-value]


def _table_statistics(job: CompositeJob, name: str, engine: Engine) -> tuple[dict[str, Any], Words]:
    """Return the statistics of a table, and its distinct keys."""
    one, key = job.tables[name], job.key(name)
    rows, keys = _read_keys(engine, one, [key] if key else [])
    statistics = {"name": name, "public": one.public, "rows": rows, "null_keys": None, "duplicate_keys": None}
    if not key:
        return statistics, np.empty((0, 2), np.uint64)

    [(words, has)] = keys
    distinct = np.unique(words[has], axis=0)
    return {**statistics, "null_keys": int((~has).sum()), "duplicate_keys": int(has.sum()) - len(distinct)}, distinct


def _link_statistics(
    job: CompositeJob, link: LinkSection, known: dict[str, Words], protects: NeighbourRelation, engine: Engine
) -> dict[str, Any]:
    """Return the statistics of the rows that contain a link's ends: a table of pairs, or the child's table."""
    first, second = job.ends(link)
    own = second if link.via or link.loops is False or link.child in (protects.root, *protects.sides) else ()
    files: Files = link.via or job.tables[link.child]
    rows, keys = _read_keys(engine, files, [first, own] if own else [first])
    has = np.logical_and.reduce([has for _, has in keys]) if link.via else keys[0][1]
    words = [one[has] for one, _ in keys]
    names = (link.parent, link.child) if link.via else (link.parent,)
    ends = np.stack([places(known[name], word) for name, word in zip(names, words, strict=False)], axis=1)
    there = (ends >= 0).all(axis=1)
    loops = there & (words[0] == words[-1]).all(axis=1) if link.loops is False else np.zeros(len(ends), np.bool_)
    counted = there & ~loops & keys[-1][1][has]  # a row of the root without a key is dropped or refused
    before = int(counted.sum())
    if own:
        counted[counted] = _first_of_each(np.column_stack([word[counted] for word in words]))
    degrees_of = [
        np.bincount(end, minlength=len(known[name])) for end, name in zip(ends[counted].T, names, strict=True)
    ]
    links, faults = int(counted.sum()), {"null_ends": ~has, "dangling": ~there, "loops": loops}
    statistics = {"name": link.called, "rows": rows, **{name: int(mask.sum()) for name, mask in faults.items()},
                  "repeated": before - links, "links": links}  # fmt: skip
    sides = {side: _degrees(one) for side, one in zip(("parent", "child"), degrees_of, strict=False)}

    return {**statistics, "degrees": sides, "max_degree": link.bound, **_beyond(link, degrees_of, protects)}


def _first_of_each(rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of the first of equal rows."""
    first = np.zeros(len(rows), np.bool_)
    first[np.unique(rows, axis=0, return_index=True)[1]] = True
    return first


def _degrees(degrees_of: NDArray[np.int64]) -> dict[str, float]:
    """Return statistics of the links per row of one side, including rows without links."""
    values = degrees_of if len(degrees_of) else np.zeros(1)
    each = {f"{q}%": float(np.quantile(values, q / 100, method="higher")) for q in QUANTILES}
    return {"rows": len(degrees_of), "none": int((degrees_of == 0).sum()), "mean": float(values.mean()), **each,
            "max": float(values.max())}  # fmt: skip


def _beyond(link: LinkSection, degrees_of: Sequence[NDArray[np.int64]], protects: NeighbourRelation) -> dict[str, Any]:
    """Return the rows above the bound, their excess links, and the treatment of these."""
    bounded = list(degrees_of) if protects.replaces else list(degrees_of[:1]) if link.parent in protects.rows else []
    over = [np.maximum(one - link.bound, 0) for one in bounded]
    beyond = {
        "rows_beyond": sum(int((one > 0).sum()) for one in over),
        "links_beyond": sum(int(one.sum()) for one in over),
    }
    treatment = "refused" if protects.replaces else "cut" if bounded else "any number"

    return {**beyond, "beyond_is": treatment}
