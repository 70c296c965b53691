"""Exact links: read by tasks, stored by the driver as pairs of rows of the two tables, and summed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import DataError, RefusedValue
from dpscale.base.numerics import Integers, Integers32, Words
from dpscale.contributions.links import (
    KeyedRows,
    at_most,
    check_order,
    coded_rows,
    key_families,
    link_ends,
    one_a_key,
    ranks,
    row_words,
)
from dpscale.contributions.unit_ids import ODD, one_family_of_keys
from dpscale.contributions.unit_shards import UnitMap, places
from dpscale.domain import Domain
from dpscale.engine.contribution_bounds import collect_refusals
from dpscale.job import Job
from dpscale.job.neighbours import NeighbourRelation
from dpscale.job.sections import LinkSection
from dpscale.records.table import Partition
from dpscale.relational.assignment import PairTables, sibling_sums
from dpscale.relational.degrees import bucket, buckets, degree_histogram
from dpscale.relational.features import FEW_CELLS, Features, Side, distinct
from dpscale.relational.rounding import ORDER, Cross
from dpscale.runs.linked_tables import NO_DOMAIN, Files, open_table
from dpscale.runs.links.child_rows import NO_KEYS, ChildPolicy, ChildRows

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

Columns = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ExactLinks:
    """Links as pairs of rows, (m, 2), with the codes and, if known, keys of all rows of both tables; never shown.

    `unbounded` has the number of links of every parent before the bound, and `ranks` the position of every row of the
    child in the order of its rows, if the link has one.
    """

    rows: Integers = field(repr=False)
    parents: NDArray[np.int32] = field(repr=False)
    children: NDArray[np.int32] = field(repr=False)
    words: tuple[Words, Words] = field(default=(NO_KEYS, NO_KEYS), repr=False)
    unbounded: Integers = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    ranks: Integers = field(default_factory=lambda: np.empty(0, np.int64), repr=False)

    def history(self) -> tuple[Integers, Integers]:
        """Return the cells of the children, (m, d), and their parents, (m,), grouped by parent and in order."""
        order = np.lexsort((self.ranks[self.rows[:, 1]], self.rows[:, 0]))
        return self.children[self.rows[order, 1]].astype(np.int64), self.rows[order, 0]

    def by_degree(self, side: int, thresholds: Integers) -> Integers:
        """Return the number of rows of one side with at most so many links, for each threshold."""
        return count_to(self.degrees(side), thresholds)

    def degrees(self, side: int) -> Integers:
        """Return the number of links of every row of one side."""
        return np.bincount(self.rows[:, side], minlength=len((self.parents, self.children)[side]))

    def siblings(self, tables: PairTables) -> Integers:
        """Return the sums over pairs of siblings, in steps."""
        return sibling_sums(self.children[self.rows[:, 1]], self.rows[:, 0], tables)

    def sums(self, u: Features, v: Features) -> tuple[Integers, Integers, Integers]:
        """Return Σ φ, Σ ψ, Σ φψᵀ over all links in steps, computed by pairs of profiles."""
        one, two = distinct(self.parents, u.sizes), distinct(self.children, v.sizes)
        phi, psi = u.whole(one[0]), v.whole(two[0])
        counts = _count_pairs(one[1][self.rows[:, 0]], two[1][self.rows[:, 1]], (len(phi), len(psi)))
        both = phi.T @ (counts @ psi) if len(self.rows) else np.zeros((phi.shape[1], psi.shape[1]), np.int64)
        return phi.T @ counts.sum(axis=1), psi.T @ counts.sum(axis=0), both

    def entries(self, sizes: tuple[tuple[int, ...], tuple[int, ...]], order: int = ORDER) -> tuple[Cross, Integers]:
        """Return all cross marginals and their entries; `sizes` are those of the attributes of both tables."""
        u, v = (Side.made(table, own) for table, own in zip((self.parents, self.children), sizes, strict=True))
        cross, width = Cross.of(u, v, order), len(v.counts)
        cells, counts = np.unique(u.of[self.rows[:, 0]] * width + v.of[self.rows[:, 1]], return_counts=True)
        found = np.zeros(cross.size, np.int64)
        for k in range(len(cross.columns)):
            np.add.at(found, cross.first[cells // width, k] + cross.second[cells % width, k], counts)
        return cross, found

    def entry_sums(self, sizes: tuple[tuple[int, ...], tuple[int, ...]], order: int = ORDER) -> Integers:
        """Return the entries of all cross marginals."""
        return self.entries(sizes, order)[1]

    @property
    def count(self) -> int:
        """Number of links."""
        return len(self.rows)

    def table_rows(self, side: int) -> int:
        """Return the number of rows of one side."""
        return len((self.parents, self.children)[side])

    def table_sums(self, side: int, features: Features) -> Integers:
        """Return Σ φ over all rows of one side, in steps."""
        profiles, of = distinct((self.parents, self.children)[side], features.sizes)
        return features.whole(profiles).T @ np.bincount(of, minlength=len(profiles))

    def degree_histogram(self) -> Integers:
        """Return the number of parents in every bucket of degrees before the bound."""
        return degree_histogram(self.unbounded)

    def digest(self) -> str:
        """Return a digest of the links and of the rows of both tables."""
        parts = (self.rows, self.parents, self.children)
        return hashlib.sha256(b"".join(hashlib.sha256(one.tobytes()).digest() for one in parts)).hexdigest()

    def close(self) -> None:
        """Do nothing: the links are in memory."""


def count_to(degrees: Integers, thresholds: Integers) -> Integers:
    """Return the number of rows with at most so many links, for each threshold."""
    return np.searchsorted(np.sort(degrees), thresholds, side="right").astype(np.int64)


def read_links(engine: Engine, job: Job, link: LinkSection, neighbours: NeighbourRelation) -> ExactLinks:
    """Return all links that count.

    Raises DataError for refused keys, and for rows with more links than the job allows.
    """
    parents = keyed(engine, job, link.parent)
    check_families(engine, job, link)
    children = _children(engine, job, link, neighbours) if link.via is None else keyed(engine, job, link.child)
    pairs = [] if link.via is None else _pairs(engine, link, job.ends(link))
    below = link.parent in neighbours.above
    bounded = bounded_parents(engine, job, link.parent, neighbours) if below else None
    return select_links(link, neighbours, parents, children, pairs, bounded)


def select_links(link: LinkSection, neighbours: NeighbourRelation, parents: KeyedRows, children: ChildRows | KeyedRows,
                 pairs: Sequence[Words] = (), bounded: UnitMap | None = None) -> ExactLinks:  # fmt: skip
    """Return the links that count, of all or of some parents.

    Parameters
    ----------
    link : LinkSection
    neighbours : NeighbourRelation
    parents : KeyedRows
    children : ChildRows or KeyedRows
        Rows with the parents' keys; of a table of pairs the rows at its second end.
    pairs : sequence of ndarray
        The keys at both ends, of a table of pairs.
    bounded : UnitMap, optional
        Keys of the parents within the bound of each row of the root.
    """
    if isinstance(children, ChildRows):
        keys, other, own, stays = children.parents, children.words, children.keys, children.stays
        ends, order = np.arange(len(keys)), children.ranks
    else:
        (keys, other), own = pairs, children.words
        ends, stays, order = children.find(other), np.ones(len(keys), np.bool_), np.empty(0, np.int64)
    at = np.stack([parents.find(keys), ends], axis=1)
    there = _found(at, link) & stays
    if link.loops is False:
        there &= (keys != (own if link.via is None else other)).any(axis=1)
    if link.via is not None:
        there[there] = _once(at[there])
    if bounded is not None:
        parents = _rows_with_unit(parents, bounded)
        at[:, 0] = parents.find(keys)
        there &= at[:, 0] >= 0
    at, keys, other = at[there], keys[there], other[there]
    unbounded = np.bincount(at[:, 0], minlength=len(parents.codes))
    if link.parent in neighbours.rows or neighbours.replaces:  # else a child has one parent, which is unbounded
        at = at[_bounded(at, keys, other, link, neighbours, unbounded)]
    return ExactLinks(at, parents.codes, children.codes, (parents.words, own), unbounded, order)


def _count_pairs(first: Integers, second: Integers, shape: tuple[int, int]) -> Any:
    """Return the number of links of each pair of profiles: an array, or a sparse one if most pairs have none."""
    from scipy.sparse import coo_array

    if math.prod(shape) <= max(len(first), FEW_CELLS):
        return np.bincount(first * shape[1] + second, minlength=math.prod(shape)).reshape(shape)
    return coo_array((np.ones(len(first), np.int64), (first, second)), shape=shape).tocsr()


def keyed(engine: Engine, job: Job, name: str) -> KeyedRows:
    """Return the rows of a table by their keys, one row per key."""
    [words], codes = _coded(engine, job, name, [(job.key(name), job.tables[name].nulls)])
    first = one_a_key(words, row_words(codes), job.duplicates(name))
    return KeyedRows(words[first], codes[first])


def _children(engine: Engine, job: Job, link: LinkSection, neighbours: NeighbourRelation) -> ChildRows:
    """Return the rows of a child table with their parents' keys and a mask of those that count for this link."""
    policy = ChildPolicy.of(job, link, neighbours)
    if link.order:
        return _in_order(engine, job, link, policy)
    words, codes = _coded(engine, job, link.child, policy.keys)
    return policy.select(words, codes, unit_roots(engine, job, link, neighbours, policy))


def _in_order(engine: Engine, job: Job, link: LinkSection, policy: ChildPolicy) -> ChildRows:
    """Return the children of a private parent with their order and the attributes of their other parents."""
    check_orders(engine, job)
    others, keys = job.other_parents(link), policy.keys
    wanted = [*keys, *((job.ends(one)[0], one.nulls) for one in others)]
    found, codes = _coded(engine, job, link.child, wanted, job.order_columns(link))
    for one, own in zip(others, found[len(keys) :], strict=False):
        parents = keyed(engine, job, one.parent)
        at = parents.find(own)
        _found(at[:, None], one)
        codes = np.column_stack([codes, parents.codes[at]]).astype(np.int32)
    (words, *named), values = found[: len(keys)], found[-1]
    bits = [np.stack([one, one * ODD], axis=1) for one in np.ascontiguousarray(values.T).view(np.uint64)]
    made = ChildRows.all(words, codes, [*named, *bits], named[0] if named else NO_KEYS)
    cells = codes[:, listed_names(job.domains[link.child]).index(link.order[0])]
    return replace(made, ranks=ranks(cells, values, made.words))


def unit_roots(engine: Engine, job: Job, link: LinkSection, neighbours: NeighbourRelation,
               policy: ChildPolicy) -> UnitMap | None:  # fmt: skip
    """Return the map from keys to those of the root that a policy needs."""
    if policy.unit != "root":
        return None
    return _roots(engine, job, neighbours.above[link.child].parent, neighbours)


def _roots(engine: Engine, job: Job, name: str, neighbours: NeighbourRelation) -> UnitMap:
    """Return a map from the keys of a table's rows to the keys of the root rows to which they belong.

    The table's column of parent keys maps its keys to those of the table above, whose map to the root is composed with
    it. Rows without a key or without a parent key are dropped.
    """
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


def bounded_parents(engine: Engine, job: Job, name: str, neighbours: NeighbourRelation) -> UnitMap:
    """Return the keys of a table's rows within the contribution bound of each row of the root."""
    roots = _roots(engine, job, name, neighbours)
    first = at_most(roots.units, roots.words, neighbours.rows[name])
    return UnitMap(roots.words[first], roots.units[first])


def _coded(
    engine: Engine, job: Job, name: str, keys: Sequence[tuple[Columns, str]], order: Columns = ()
) -> tuple[list[NDArray[Any]], NDArray[np.int32]]:
    section, domain = job.tables[name], job.domains[name]
    parts, names = _parts(section, domain), listed_names(domain)
    try:
        found = engine.map(coded_rows, [(domain, part, names, keys, order) for part in parts], "keys")
    except RefusedValue as met:
        raise collect_refusals(engine, open_table(section, domain), names, met) from None
    words = [np.concatenate(own) for own in zip(*(words for words, _ in found), strict=True)]
    return words, np.concatenate([codes for _, codes in found])


def listed_names(domain: Domain) -> tuple[str, ...]:
    """Return the attributes whose cells are known."""
    return tuple(one for one in domain.names if domain[one].search is None)


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


def _bounded(at: Integers, keys: Words, other: Words, link: LinkSection, neighbours: NeighbourRelation,
             degrees: Integers) -> NDArray[np.bool_]:  # fmt: skip
    """Return a mask of links within the bound; `degrees` are those of the parents.

    Excess links are cut by each parent's own links, or refused if both sides are protected.
    """
    if not neighbours.replaces:
        stays = np.ones(len(at), np.bool_)
        many = degrees[at[:, 0]] > link.bound  # others stay whole, so they need no order
        stays[many] = at_most(keys[many], other[many], link.bound)
        return stays
    most = max(int(np.bincount(at[:, side]).max(initial=0)) for side in (0, 1)) if len(at) else 0
    if most > link.bound:
        raise DataError(
            f"link {link.called}",
            "a row with more links than max_degree",
            f"at most {link.bound} links per row of both tables",
            "raise max_degree, or protect only the parent, whose excess links are then dropped",
        )
    return np.ones(len(at), np.bool_)


def check_families(engine: Engine, job: Job, link: LinkSection) -> None:
    """Raise DataError if the keys of the two ends cannot be compared, such as numbers and times."""
    first, second = job.ends(link)
    pairs: list[tuple[Files, Columns]] = [(job.tables[link.parent], job.key(link.parent))]
    if link.via is None:
        pairs.append((job.tables[link.child], first))
    else:
        pairs.append((link.via, first))
    for columns in zip(*(_families(engine, *one) for one in pairs), strict=True):
        one_family_of_keys({name for own in columns for name in own}, ", ".join(first))
    if link.via is not None:
        ends: list[tuple[Files, Columns]] = [(job.tables[link.child], job.key(link.child)), (link.via, second)]
        for columns in zip(*(_families(engine, *one) for one in ends), strict=True):
            one_family_of_keys({name for own in columns for name in own}, ", ".join(second))


def check_orders(engine: Engine, job: Job) -> None:
    """Raise DataError for a column of an order that is missing or has none; reads headers only."""
    for link in (one for one in job.link if one.order):
        columns, domain = job.order_columns(link), job.domains[link.child]
        engine.map(check_order, [(part, columns) for part in _parts(job.tables[link.child], domain)], "keys")


def _families(engine: Engine, files: Files, columns: Columns) -> list[set[str]]:
    """Return the type families of every key column over the files."""
    found = engine.map(key_families, [(part, columns) for part in _parts(files)], "keys")
    return [set(own) for own in zip(*found, strict=True)]


def sizes(job: Job, link: LinkSection, table: str) -> list[int]:
    """Return the number of values of every counted link of a table's rows."""
    return [len(buckets(one.bound)) for one in job.counted(link, table)]


def with_counts(job: Job, link: LinkSection, exact: ExactLinks, before: Mapping[str, ExactLinks]) -> ExactLinks:
    """Return the links with the degrees in the links `before` as additional attributes of their rows."""
    parents, children = (
        _extended(codes, [_of_rows(words, before[one.called], one.bound) for one in job.counted(link, table)])
        for table, codes, words in zip((link.parent, link.child), (exact.parents, exact.children), exact.words,
                                       strict=True)
    )  # fmt: skip
    return replace(exact, parents=parents, children=children)


def with_drawn(job: Job, link: LinkSection, table: str, codes: Integers32, drawn: Mapping[str, Integers]) -> Integers32:
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
