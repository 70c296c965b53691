"""Exact links in parts, for links that do not fit the memory: read, selected and summed by tasks.

A part has all links of the parents whose keys have one hash, so that bounds and sums over siblings are those of a part
alone, and all statistics are sums over the parts. Rows of a public parent are not divided: the children are divided by
their units, and a part has all parents. Rows at the far end of a table of pairs are not divided either. Parts are
encrypted temporary files on the disks of the workers; their number depends only on the number of rows in the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpscale.base.errors import RefusedValue
from dpscale.base.numerics import Integers
from dpscale.contributions.links import (
    CHILDREN,
    PAIRS,
    PARENTS,
    DividedMap,
    KeyDealing,
    KeyedPart,
    KeyedRows,
    KeyShard,
    deal_keys,
    one_a_key,
    row_words,
)
from dpscale.contributions.unit_shards import UnitMap
from dpscale.engine.contribution_bounds import KEYS_SENT, collect_refusals, worker_folder
from dpscale.job import Job
from dpscale.job.neighbours import NeighbourRelation
from dpscale.job.sections import LinkSection
from dpscale.records.table import Partition, Table
from dpscale.relational.assignment import PairTables
from dpscale.relational.features import Features
from dpscale.relational.rounding import ORDER
from dpscale.runs.linked_tables import NO_DOMAIN, open_table
from dpscale.runs.links.link_data import (
    ChildPolicy,
    ExactLinks,
    bounded_parents,
    check_families,
    count_to,
    keyed,
    listed_names,
    select_links,
    unit_roots,
)
from dpscale.storage.scratch import Sealed, Use

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

PART_ROWS, MOST_PARTS = 1 << 19, 1 << 9  # rows of a part, from which the number of parts follows; most parts
SHARD_PARTITIONS = 8  # most partitions of a file of rows by part
Sizes = tuple[tuple[int, ...], tuple[int, ...]]


def number_of_parts(job: Job, link: LinkSection, neighbours: NeighbourRelation) -> int:
    """Return the number of parts of a link, from the footers of the files; 1 for links that are not divided.

    Not divided are links that protect both sides, within one table, that count links of their rows or whose links are
    counted, and histories.
    """
    counting = any(link.called in (other.counts or ()) for other in job.link)
    if neighbours.replaces or link.parent == link.child or link.counts or counting or link.order:
        return 1
    child = link.via or job.tables[link.child]
    tables = [open_table(child, NO_DOMAIN if link.via else job.domains[link.child]),
              open_table(job.tables[link.parent], job.domains[link.parent])]  # fmt: skip
    return min(max(-(-max(map(_most_rows, tables)) // PART_ROWS), 1), MOST_PARTS)


def _most_rows(table: Table) -> int:
    """Return the largest number of rows of a table, from one partition of each file."""
    return sum(partition.row_bound() for partition in {part.path: part for part in table.partitions}.values())


@dataclass(frozen=True)
class PartPlan:
    """What a task needs to select the links of a part.

    Attributes
    ----------
    link : LinkSection
    neighbours : NeighbourRelation
    policy : ChildPolicy or None
        Of the child's rows; None for a table of pairs.
    duplicates : str
        Policy for parents with one key.
    use : Use
        Of the temporary files.
    """

    link: LinkSection
    neighbours: NeighbourRelation
    policy: ChildPolicy | None
    duplicates: str
    use: Use


@dataclass(frozen=True, eq=False, repr=False)
class StoredPart:
    """Links of a part in an encrypted file; rows of a table that is not divided are not in it.

    Attributes
    ----------
    file : Sealed
    arrays : tuple
        Place, shape and type of the links and of the codes of both tables, None for a table that is not divided.
    histogram : ndarray
        Parents by degree before the bound.
    content : str
        Digest of the links and rows.
    """

    file: Sealed
    arrays: tuple[tuple[int, tuple[int, int], str] | None, ...]
    histogram: Integers
    content: str

    @classmethod
    def written(cls, links: ExactLinks, divided: tuple[bool, bool], use: Use) -> StoredPart:
        """Write the links of a part into an encrypted file, and return where its arrays are.

        `divided` says of the parents and the children whether their rows are divided into parts: those are stored with
        the links, whole tables are not.
        """
        file = Sealed.new(use, worker_folder())
        written: list[NDArray[Any]] = [links.rows]
        stored: list[tuple[int, tuple[int, int], str] | None] = [_append(file, links.rows)]
        for codes, is_divided in zip((links.parents, links.children), divided, strict=True):
            if is_divided:
                stored.append(_append(file, codes))
                written.append(codes)
            else:
                stored.append(None)
        content = hashlib.sha256(b"".join(hashlib.sha256(array.tobytes()).digest() for array in written)).hexdigest()
        return cls(file, tuple(stored), links.degree_histogram(), content)

    def links(self, parents: NDArray[np.int32] | None, children: NDArray[np.int32] | None) -> ExactLinks:
        """Return the links of the part, with the cells of both tables.

        `parents` and `children` are the cells of tables that are not divided into parts; those of the others are read.
        """
        rows, part_parents, part_children = (None if place is None else self._read(*place) for place in self.arrays)
        assert rows is not None
        if part_parents is not None:
            parents = part_parents.astype(np.int32)
        if part_children is not None:
            children = part_children.astype(np.int32)
        return ExactLinks(rows.astype(np.int64), parents, children)  # type: ignore[arg-type]

    def _read(self, place: int, shape: tuple[int, int], kind: str) -> NDArray[Any]:
        return self.file.read(place, 0, shape[0] * shape[1], np.dtype(kind)).reshape(shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of links, and of the rows of both tables in the part."""
        return tuple(0 if array is None else array[1][0] for array in self.arrays)

    def __repr__(self) -> str:
        return "StoredPart(hidden)"


def _append(file: Sealed, array: NDArray[Any]) -> tuple[int, tuple[int, int], str]:
    """Store an array in the narrowest type, and return its place, shape and type."""
    narrow = array.astype(np.min_scalar_type(int(array.max(initial=0))))
    return file.append(narrow), (narrow.shape[0], narrow.shape[1]), narrow.dtype.str


@dataclass(frozen=True, eq=False, repr=False)
class PartedLinks:
    """Links in parts on the workers, with the statistics of `ExactLinks` as sums over the parts.

    Attributes
    ----------
    engine : Engine
    parts : sequence
        Handles of the parts.
    sent : tuple
        Handles of the codes of both tables, None for a divided one.
    whole : tuple
        These codes.
    sources : sequence
        Handles from which a lost part is made again.
    facts : sequence of (tuple of int, ndarray, str)
        Sizes, histogram and digest of every part.
    ending : ExitStack
        Removes the temporary files.
    """

    engine: Engine
    parts: Sequence[Any]
    sent: tuple[Any, Any]
    whole: tuple[NDArray[np.int32] | None, NDArray[np.int32] | None]
    sources: Sequence[Any]
    facts: Sequence[tuple[tuple[int, ...], Integers, str]]
    ending: ExitStack

    @property
    def count(self) -> int:
        """Number of links."""
        return sum(sizes[0] for sizes, _, _ in self.facts)

    def by_degree(self, side: int, thresholds: Integers) -> Integers:
        """Return the number of rows of one side with at most so many links, for each threshold."""
        if self.whole[side] is None:
            return self._sum("by_degree", side, thresholds)[0]
        return count_to(self._sum("degrees", side)[0], thresholds)

    def siblings(self, tables: PairTables) -> Integers:
        """Return the sums over pairs of siblings, in steps. Raises ValueError for parents that are not divided."""
        self._check_divided()
        return self._sum("siblings", tables)[0]

    def sums(self, u: Features, v: Features) -> tuple[Integers, Integers, Integers]:
        """Return Σ φ, Σ ψ, Σ φψᵀ over all links in steps."""
        one, two, both = self._sum("sums", u, v, arrays=3)
        return one, two, both

    def entry_sums(self, sizes: Sizes, order: int = ORDER) -> Integers:
        """Return the entries of all cross marginals."""
        return self._sum("entry_sums", sizes, order)[0]

    def table_rows(self, side: int) -> int:
        """Return the number of rows of one side."""
        whole = self.whole[side]
        return len(whole) if whole is not None else sum(sizes[1 + side] for sizes, _, _ in self.facts)

    def table_sums(self, side: int, features: Features) -> Integers:
        """Return Σ φ over all rows of one side (0: parents, 1: children), with the features φ of a row in steps.

        `whole[side]` has the cells of a table that is not divided into parts, or None.
        """
        whole = self.whole[side]
        if whole is not None:  # the table is not divided into parts
            return ExactLinks(np.empty((0, 2), np.int64), whole, whole).table_sums(side, features)
        return self._sum("table_sums", side, features)[0]

    def degree_histogram(self) -> Integers:
        """Return the number of parents by degree before the bound. Raises ValueError as `siblings`."""
        self._check_divided()
        return np.asarray(np.sum([histogram for _, histogram, _ in self.facts], axis=0))

    def digest(self) -> str:
        """Return a digest of the links and of the rows of both tables."""
        whole = [hashlib.sha256(codes.tobytes()).hexdigest() for codes in self.whole if codes is not None]
        return hashlib.sha256(" ".join([*whole, *(content for _, _, content in self.facts)]).encode()).hexdigest()

    def close(self) -> None:
        """Remove the parts."""
        self.ending.close()

    def _check_divided(self) -> None:
        if self.whole[0] is not None:
            raise ValueError("the children of a parent are in several parts, so that sums over a parent do not add")

    def _sum(self, statistic: str, *arguments: Any, arrays: int = 1) -> list[Integers]:
        """Return the sum over the parts of a statistic of `ExactLinks`, given its name; it is `arrays` arrays.

        Each part is summed in a task, with the codes of tables that are not divided (`sent`).
        """
        sums = self.engine.reduce(
            partial(_part_statistic, statistic, arguments), [(part, *self.sent) for part in self.parts], arrays, "links"
        )
        return self.engine.map(_same, [(handle,) for handle in sums], "links")  # the values of handles on workers

    def __repr__(self) -> str:
        return "PartedLinks(hidden)"


LinkStatistics: TypeAlias = ExactLinks | PartedLinks
LinksByName = Mapping[str, LinkStatistics]


def _part_statistic(statistic: str, arguments: tuple[Any, ...], part: StoredPart, parents: Any, children: Any
                    ) -> list[Integers]:  # fmt: skip
    found = getattr(part.links(parents, children), statistic)(*arguments)
    return list(found) if isinstance(found, tuple) else [found]


def _same(value: Integers) -> Integers:
    return value


def read_parts(engine: Engine, job: Job, link: LinkSection, neighbours: NeighbourRelation, parts: int
               ) -> PartedLinks:  # fmt: skip
    """Return all links that count, in parts. Raises DataError for refused keys.

    Each source deals its rows to parts; the pieces of all sources for one part are exchanged to a task.
    """
    check_families(engine, job, link)
    policy = ChildPolicy.of(job, link, neighbours) if link.via is None else None
    with ExitStack() as ending:
        plan = PartPlan(
            link=link,
            neighbours=neighbours,
            policy=policy,
            duplicates=job.duplicates(link.parent),
            use=ending.enter_context(engine.scratch()),
        )
        reader = _Reader(engine, job, plan, parts)
        sources = reader.sources()
        handles = engine.exchange(_piece, sources, partial(_build_part, plan), parts, "links", keep=True)
        facts = engine.map(_facts, [(handle,) for handle in handles], "links")
        whole = reader.whole
        sent = [None if codes is None else engine.broadcast(codes, "links") for codes in whole]
        return PartedLinks(
            engine=engine,
            parts=handles,
            sent=(sent[0], sent[1]),
            whole=whole,
            sources=sources,
            facts=facts,
            ending=ending.pop_all(),
        )


def _facts(part: StoredPart) -> tuple[tuple[int, ...], Integers, str]:
    return part.sizes, part.histogram, part.content


@dataclass(eq=False)
class _Reader:
    """Reader of the rows of both tables of a link, divided or as a whole."""

    engine: Engine
    job: Job
    plan: PartPlan
    parts: int
    whole: tuple[NDArray[np.int32] | None, NDArray[np.int32] | None] = field(default=(None, None))

    def sources(self) -> list[Any]:
        """Return handles of rows by part, of whole tables, and of keys of units.

        The tables of `_table` and `_deal` are divided by a key: parents by theirs, children by that of their parent, or
        of their unit under a public parent. Those of `_whole` are sent whole, and `_map` sends a map of keys to units.
        """
        link, job, neighbours, policy = self.plan.link, self.job, self.plan.neighbours, self.plan.policy
        public = policy is not None and link.parent not in neighbours.rows  # the parents, which then are not divided
        if public:
            found = self._whole(link.parent, 0)
        else:
            section = job.tables[link.parent]
            found = self._table(link.parent, PARENTS, ((job.key(link.parent), section.nulls),), 0)
        if policy is None:
            first, second = job.ends(link)  # columns of the table of pairs
            keys = (first, link.nulls), (second, link.nulls)
            pairs = KeyDealing(role=PAIRS, domain=NO_DOMAIN, names=(), keys=keys, by=0, parts=self.parts)
            found += [*self._deal(pairs, open_table(link.via or "")), *self._whole(link.child, 1)]
        else:
            roots = unit_roots(self.engine, job, link, neighbours, policy)
            found += self._table(link.child, CHILDREN, policy.keys, int(public and bool(policy.unit)), roots)
            found += [] if roots is None else self._map(roots, by_unit=True)
        if link.parent in neighbours.above:
            found += self._map(bounded_parents(self.engine, job, link.parent, neighbours), by_unit=False)
        return found

    def _table(self, name: str, role: str, keys: Sequence[Any], by: int, through: UnitMap | None = None) -> list[Any]:
        """Return handles of a table's rows, divided by one of their keys.

        `role` names the table's place in the link, `by` is the position of the key that divides the rows, and `through`
        maps keys to those of the units. After a refused value all partitions are searched for a complete error.
        """
        domain, section = self.job.domains[name], self.job.tables[name]
        dealing = KeyDealing(
            role=role, domain=domain, names=listed_names(domain), keys=tuple(keys), by=by, parts=self.parts
        )
        table = open_table(section, domain)
        try:
            return self._deal(dealing, table, through)
        except RefusedValue as met:
            raise collect_refusals(self.engine, table, dealing.names, met) from None

    def _deal(self, dealing: KeyDealing, table: Table, through: UnitMap | None = None) -> list[Any]:
        """Return handles of the rows of a table, dealt by the hash of a key, or of the unit that `through` maps it to.

        Each task reads some partitions and keeps their rows on its worker. Refused values are raised here.
        """
        if through is None:
            maps = []
        else:
            maps = self.engine.scatter([through] if self.engine.shares_memory else through.cut(KEYS_SENT), "units")
        groups = [table.partitions[at : at + SHARD_PARTITIONS]
                  for at in range(0, len(table.partitions), SHARD_PARTITIONS)]  # fmt: skip
        items = [(dealing, group, self.plan.use, *maps) for group in groups]
        handles = self.engine.persist(_deal, items, "keys")
        self.engine.map(_checked, [(handle,) for handle in handles], "keys")
        return handles

    def _whole(self, name: str, side: int) -> list[Any]:
        """Return a handle of the rows of a table that is not divided, and keep their codes in `whole`."""
        rows = keyed(self.engine, self.job, name)
        self.whole = (rows.codes, self.whole[1]) if side == 0 else (self.whole[0], rows.codes)
        return [self.engine.broadcast(rows, "keys")]

    def _map(self, whole: UnitMap, by_unit: bool) -> list[Any]:
        return [self.engine.broadcast(DividedMap.made(whole, self.parts, by_unit), "units")]


def _deal(dealing: KeyDealing, partitions: Sequence[Partition], use: Use, *through: UnitMap) -> KeyShard:
    units = through[0] if len(through) == 1 else UnitMap.joined(through) if through else None
    return deal_keys(dealing, partitions, Sealed.new(use, worker_folder()), units)


def _checked(shard: object) -> None:
    """Return None, so that an error of the task is raised."""


def _piece(source: KeyShard | DividedMap | KeyedRows, part: int) -> KeyedPart | UnitMap | KeyedRows:
    """Return what a part needs of a source."""
    return source if isinstance(source, KeyedRows) else source.piece(part)


def _build_part(plan: PartPlan, pieces: Sequence[KeyedPart | KeyedRows | UnitMap]) -> StoredPart:
    """Select the links of a part and store them.

    `pieces` are what all sources dealt to the part: rows of divided tables by their role, at most one table that is not
    divided (`whole`), and at most one map of keys to units.
    """
    dealt: dict[str, list[KeyedPart]] = {PARENTS: [], CHILDREN: [], PAIRS: []}
    for piece in pieces:
        if isinstance(piece, KeyedPart):
            dealt[piece.role].append(piece)
    whole = next((piece for piece in pieces if isinstance(piece, KeyedRows)), None)
    units = next((piece for piece in pieces if isinstance(piece, UnitMap)), None)

    if dealt[PARENTS]:
        rows = KeyedPart.joined(dealt[PARENTS])
        codes = rows.codes.astype(np.int32)
        first = one_a_key(rows.words[0], row_words(codes), plan.duplicates)
        parents = KeyedRows(rows.words[0][first], codes[first])
    else:
        assert whole is not None
        parents = whole
    if plan.policy is None:
        assert whole is not None
        pairs = KeyedPart.joined(dealt[PAIRS])
        links = select_links(plan.link, plan.neighbours, parents, whole, pairs.words, units)
        return StoredPart.written(links, (True, False), plan.use)  # the parents are divided, the children are not

    rows = KeyedPart.joined(dealt[CHILDREN])
    # the map is of the parents if they belong to units of a table above, otherwise of the children
    is_below = plan.link.parent in plan.neighbours.above
    children = plan.policy.select(rows.words, rows.codes.astype(np.int32), None if is_below else units)
    links = select_links(plan.link, plan.neighbours, parents, children, (), units if is_below else None)
    return StoredPart.written(links, (bool(dealt[PARENTS]), True), plan.use)
