"""Exact links: read by tasks, stored by the driver as pairs of rows of the two tables, and summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import DataError, RefusedValue
from dpscale.base.numerics import Integers, Integers32, Words
from dpscale.contributions.links import (
    KeyedRows,
    at_most,
    coded_rows,
    key_families,
    link_ends,
    one_a_key,
    row_words,
)
from dpscale.contributions.unit_ids import one_family
from dpscale.contributions.unit_shards import UnitMap, places
from dpscale.domain import Domain
from dpscale.engine import Engine
from dpscale.engine.contribution_bounds import collect_refusals
from dpscale.job.neighbours import NeighbourRelation
from dpscale.job.tables import CompositeJob, LinkSection
from dpscale.records.table import Partition
from dpscale.relational.assignment import PairTables, sibling_sums
from dpscale.relational.degrees import bucket, buckets
from dpscale.relational.features import Features, Side
from dpscale.relational.rounding import Cross
from dpscale.runs.composite import NO_DOMAIN, Files, open_table

Columns = tuple[str, ...]
NO_KEYS = np.empty((0, 2), np.uint64)


@dataclass(frozen=True, eq=False)
class ExactLinks:
    """Links as pairs of rows, (m, 2), with the codes and, if known, keys of all rows of both tables; never shown.

    `unbounded` has the number of links of every parent before the bound.
    """

    rows: Integers = field(repr=False)
    parents: NDArray[np.int32] = field(repr=False)
    children: NDArray[np.int32] = field(repr=False)
    words: tuple[Words, Words] = field(default=(NO_KEYS, NO_KEYS), repr=False)
    unbounded: Integers = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    def by_degree(self, side: int, thresholds: Integers) -> Integers:
        """Return the number of rows of one side with at most so many links, for each threshold."""
        table = (self.parents, self.children)[side]
        degrees = np.sort(np.bincount(self.rows[:, side], minlength=len(table)))
        return np.searchsorted(degrees, thresholds, side="right").astype(np.int64)

    def siblings(self, tables: PairTables) -> Integers:
        """Return the sums over pairs of siblings, in steps."""
        return sibling_sums(self.children[self.rows[:, 1]], self.rows[:, 0], tables)

    def sums(self, u: Features, v: Features) -> tuple[Integers, Integers, Integers]:
        """Return Σ φ, Σ ψ, Σ φψᵀ over all links in steps, computed by pairs of profiles."""
        from scipy.sparse import coo_array

        (one, of), (two, to) = (
            np.unique(table, axis=0, return_inverse=True) for table in (self.parents, self.children)
        )
        phi, psi = u.whole(one), v.whole(two)
        ends = of.reshape(-1)[self.rows[:, 0]], to.reshape(-1)[self.rows[:, 1]]
        counts = coo_array((np.ones(len(self.rows), np.int64), ends), shape=(len(phi), len(psi))).tocsr()
        both = phi.T @ (counts @ psi) if counts.nnz else np.zeros((phi.shape[1], psi.shape[1]), np.int64)
        return phi.T @ counts.sum(axis=1), psi.T @ counts.sum(axis=0), both

    def entries(self, sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[Cross, Integers]:
        """Return all cross marginals and their entries; `sizes` are those of the attributes of both tables."""
        u, v = (Side.made(table, own) for table, own in zip((self.parents, self.children), sizes, strict=True))
        cross, width = Cross.of(u, v), len(v.counts)
        cells, counts = np.unique(u.of[self.rows[:, 0]] * width + v.of[self.rows[:, 1]], return_counts=True)
        found = np.zeros(cross.size, np.int64)
        for k in range(len(cross.columns)):
            np.add.at(found, cross.first[cells // width, k] + cross.second[cells % width, k], counts)
        return cross, found


@dataclass(frozen=True, eq=False)
class _Children:
    """Rows with foreign keys: parents' keys, words that distinguish rows, codes, a mask of counted rows, own keys."""

    parents: Words = field(repr=False)
    words: Words = field(repr=False)
    codes: NDArray[np.int32] = field(repr=False)
    stays: NDArray[np.bool_] = field(repr=False)
    keys: Words = field(repr=False)


def read_links(engine: Engine, job: CompositeJob, link: LinkSection, neighbours: NeighbourRelation) -> ExactLinks:
    """Return all links that count.

    Raises DataError for refused keys, and for rows with more links than the job allows.
    """
    parents = keyed(engine, job, link.parent)
    _check_families(engine, job, link)
    if link.via is None:
        found = _children(engine, job, link, neighbours)
        keys, other, child, stays, own = found.parents, found.words, found.codes, found.stays, found.keys
        at = np.stack([parents.find(keys), np.arange(len(keys))], axis=1)
    else:
        children = keyed(engine, job, link.child)
        keys, other = _pairs(engine, link, job.ends(link))
        child, own, at = children.codes, children.words, np.stack([parents.find(keys), children.find(other)], axis=1)
        stays = np.ones(len(keys), np.bool_)
    there = _found(at, link) & stays
    if link.loops is False:
        there &= (keys != (own if link.via is None else other)).any(axis=1)
    if link.via is not None:
        there[there] = _once(at[there])
    if link.parent in neighbours.above:
        parents = _rows_with_unit(parents, _bounded_parents(engine, job, link.parent, neighbours))
        at[:, 0] = parents.find(keys)
        there &= at[:, 0] >= 0
    at, keys, other = at[there], keys[there], other[there]
    unbounded = np.bincount(at[:, 0], minlength=len(parents.codes))
    if link.parent in neighbours.rows or neighbours.replaces:  # else a child has one parent, which is unbounded
        at = at[_bounded(at, keys, other, link, neighbours)]
    return ExactLinks(at, parents.codes, child, (parents.words, own), unbounded)


def keyed(engine: Engine, job: CompositeJob, name: str) -> KeyedRows:
    """Return the rows of a table by their keys, one row per key."""
    [words], codes = _coded(engine, job, name, [(job.key(name), job.tables[name].nulls)])
    first = one_a_key(words, row_words(codes), job.duplicates(name))
    return KeyedRows(words[first], codes[first])


def _children(engine: Engine, job: CompositeJob, link: LinkSection, neighbours: NeighbourRelation) -> _Children:
    """Return the rows of a child table with their parents' keys and a mask of those that count for this link.

    Own keys are read if an earlier link of the rows is counted; they then distinguish rows that are otherwise equal.
    """
    section, (first, own), name = job.tables[link.child], job.ends(link), link.child
    wanted, counts = [(first, link.read_nulls)], bool(job.counted(link, link.child))
    if own and name in (neighbours.root, *neighbours.sides):  # of rows with equal keys, which are one unit, one counts
        [words, keys], codes = _coded(engine, job, name, [*wanted, (own, section.nulls)])
        chosen = one_a_key(keys, row_words(codes, words), job.duplicates(name))
        return replace(
            _group_children(words[chosen], codes[chosen], [keys[chosen]] if counts else []), keys=keys[chosen]
        )
    named = [(own, section.nulls)] if counts else []
    if name in neighbours.above and link.parent not in neighbours.rows:
        above = neighbours.above[name]  # a public parent: rows are bounded per row of the root
        [words, parents, *keyed_], codes = _coded(engine, job, name, [*wanted, (job.ends(above)[0], "drop"), *named])
        units, missing = _roots(engine, job, above.parent, neighbours)(parents)
        stays = ~missing
        stays[stays] = at_most(units[stays], row_words(codes, words, *keyed_)[stays], neighbours.rows[name])
        return replace(_group_children(words, codes, keyed_), stays=stays)
    [words, *keyed_], codes = _coded(engine, job, name, [*wanted, *named])
    return _group_children(words, codes, keyed_)


def _group_children(parents: Words, codes: NDArray[np.int32], keys: Sequence[Words]) -> _Children:
    own = keys[0] if keys else NO_KEYS
    return _Children(parents, row_words(codes, *keys), codes, np.ones(len(codes), np.bool_), own)


def _roots(engine: Engine, job: CompositeJob, name: str, neighbours: NeighbourRelation) -> UnitMap:
    """Return a map from the keys of a table's rows to the keys of the root rows to which they belong."""
    if name == neighbours.root:
        words = keyed(engine, job, name).words
        return UnitMap(words, words)
    [keys, parents], _ = _coded(
        engine, job, name, [(job.key(name), "drop"), (job.ends(neighbours.above[name])[0], "drop")]
    )
    return UnitMap.made(keys, parents).then(_roots(engine, job, neighbours.above[name].parent, neighbours))


def _rows_with_unit(rows: KeyedRows, some: UnitMap) -> KeyedRows:
    """Return the rows whose keys are in a map."""
    stays = ~some(rows.words)[1]
    return KeyedRows(rows.words[stays], rows.codes[stays])


def _bounded_parents(engine: Engine, job: CompositeJob, name: str, neighbours: NeighbourRelation) -> UnitMap:
    """Return the keys of a table's rows within the contribution bound of each row of the root."""
    roots = _roots(engine, job, name, neighbours)
    first = at_most(roots.units, roots.words, neighbours.rows[name])
    return UnitMap(roots.words[first], roots.units[first])


def _coded(
    engine: Engine, job: CompositeJob, name: str, keys: Sequence[tuple[Columns, str]]
) -> tuple[list[Words], NDArray[np.int32]]:
    section, domain = job.tables[name], job.domains[name]
    parts = _parts(section, domain)
    names = tuple(one for one in domain.names if domain[one].search is None)
    try:
        found = engine.map(coded_rows, [(domain, part, names, keys) for part in parts], "keys")
    except RefusedValue as met:
        raise collect_refusals(engine, open_table(section, domain), names, met) from None
    words = [np.concatenate(own) for own in zip(*(words for words, _ in found), strict=True)]
    return words, np.concatenate([codes for _, codes in found])


def _pairs(engine: Engine, link: LinkSection, ends: tuple[Columns, Columns]) -> list[Words]:
    found = engine.map(link_ends, [(part, ends, link.nulls) for part in _parts(link.via or "")], "links")
    return [np.concatenate(one) for one in zip(*found, strict=True)]


def _parts(files: Files, domain: Domain = NO_DOMAIN) -> tuple[Partition, ...]:
    return open_table(files, domain).partitions


def _once(at: Integers) -> NDArray[np.bool_]:
    """Return a mask of the first occurrence of each pair: duplicate pairs are one link."""
    first = np.zeros(len(at), np.bool_)
    first[np.unique(at[:, 0] * (at[:, 1].max(initial=0) + 1) + at[:, 1], return_index=True)[1]] = True
    return first


def _found(at: Integers, link: LinkSection) -> NDArray[np.bool_]:
    """Return a mask of links whose two rows exist."""
    there = (at >= 0).all(axis=1)
    if not there.all() and link.dangling != "drop":
        raise DataError(f"link {link.called}", "a key without a row", "the key of a row at both ends",
                        'fix the data, or set dangling = "drop"')  # fmt: skip
    return np.asarray(there)


def _bounded(at: Integers, keys: Words, other: Words, link: LinkSection,
             neighbours: NeighbourRelation) -> NDArray[np.bool_]:  # fmt: skip
    """Return a mask of links within the bound.

    Excess links are cut by each parent's own links, or refused if both sides are protected.
    """
    if not neighbours.replaces:
        return at_most(keys, other, link.bound)
    most = max(int(np.bincount(at[:, side]).max(initial=0)) for side in (0, 1)) if len(at) else 0
    if most > link.bound:
        raise DataError(
            f"link {link.called}",
            "a row with more links than max_degree",
            f"at most {link.bound} links per row of both tables",
            "raise max_degree, or protect only the parent, whose excess links are then dropped",
        )
    return np.ones(len(at), np.bool_)


def _check_families(engine: Engine, job: CompositeJob, link: LinkSection) -> None:
    """Raise DataError if the keys of the two ends cannot be compared, such as numbers and times."""
    first, second = job.ends(link)
    pairs: list[tuple[Files, Columns]] = [(job.tables[link.parent], job.key(link.parent))]
    if link.via is None:
        pairs.append((job.tables[link.child], first))
    else:
        pairs.append((link.via, first))
    for columns in zip(*(_families(engine, *one) for one in pairs), strict=True):
        one_family({name for own in columns for name in own}, ", ".join(first))
    if link.via is not None:
        ends: list[tuple[Files, Columns]] = [(job.tables[link.child], job.key(link.child)), (link.via, second)]
        for columns in zip(*(_families(engine, *one) for one in ends), strict=True):
            one_family({name for own in columns for name in own}, ", ".join(second))


def _families(engine: Engine, files: Files, columns: Columns) -> list[set[str]]:
    """Return the type families of every key column over the files."""
    found = engine.map(key_families, [(part, columns) for part in _parts(files)], "keys")
    return [set(own) for own in zip(*found, strict=True)]


def sizes(job: CompositeJob, link: LinkSection, table: str) -> list[int]:
    """Return the number of values of every counted link of a table's rows."""
    return [len(buckets(one.bound)) for one in job.counted(link, table)]


def with_counts(
    job: CompositeJob, link: LinkSection, exact: ExactLinks, before: Mapping[str, ExactLinks]
) -> ExactLinks:
    """Return the links with the degrees in the links `before` as additional attributes of their rows."""
    parents, children = (
        _extended(codes, [_of_rows(words, before[one.called], one.bound) for one in job.counted(link, table)])
        for table, codes, words in zip((link.parent, link.child), (exact.parents, exact.children), exact.words,
                                       strict=True)
    )  # fmt: skip
    return replace(exact, parents=parents, children=children)


def with_drawn(
    job: CompositeJob, link: LinkSection, table: str, codes: Integers32, drawn: Mapping[str, Integers]
) -> Integers32:
    """Return a table's synthetic rows with the degrees in `drawn`, (links, 2) rows by link, as attributes."""
    earlier = job.counted(link, table)
    each = [np.bincount(drawn[one.called][:, 0], minlength=len(codes)) for one in earlier]
    return _extended(codes, [bucket(own, one.bound) for own, one in zip(each, earlier, strict=True)])


def _of_rows(words: Words, earlier: ExactLinks, bound: int) -> Integers:
    """Return the degree bucket of rows by their keys; rows that are not counted in the earlier link have degree 0."""
    keys = earlier.words[0]
    degrees = np.append(
        np.bincount(earlier.rows[:, 0], minlength=len(keys)), 0
    )  # index -1: rows that are not in the earlier link
    return bucket(degrees[places(keys, words)], bound)


def _extended(codes: Integers32, columns: list[Integers]) -> Integers32:
    return np.column_stack([codes, *columns]).astype(np.int32) if columns else codes
