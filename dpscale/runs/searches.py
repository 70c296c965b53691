"""Searches for the cells of attributes on an engine, one for each kind of `dpscale.domain.search`.

A kind has three functions: `plan(attribute, terms)` returns a plan with its exact `cost` and the `record` that
determines its draws; `search(plan, reader)` reads the rows, draws the noise, and returns the attribute with its cells
and the other released values; `summarize(attribute, released)` returns these for readers. The noise follows from the
secret, the record and the data, so a repeated search returns the same result.

*Values of a column.*
Their hashes are counted, exchanged and thresholded by ranges.

*Edges of bins.*
The levels of the tree are counted several at a time.

*Ends of a number's range, and nodes of a tree of codes.*
The bins and the codes are counted in one pass over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dpscale.base.arrow import pa
from dpscale.base.errors import JobError
from dpscale.base.numerics import Integers, Words
from dpscale.contributions.unit_shards import cut_ranges, hash_passes
from dpscale.discovery.dyadic_tree import EdgePlan, TreeMeasurement, dyadic_bins, found_edges, measure_tree
from dpscale.discovery.ends import EndPlan, found_ends, measure_ends, plan_ends
from dpscale.discovery.nodes import (
    LeafCounts,
    LeafRequest,
    NodePlan,
    count_leaves,
    find_nodes,
    found_nodes,
    plan_nodes,
    read_tree,
)
from dpscale.discovery.reading import BinRequest, NodeRequest, SearchRows, count_steps
from dpscale.discovery.value_counts import (
    ENTRY_BYTES,
    LEAST_MERGED,
    MOST_MERGED,
    PAIR_BYTES,
    SHARDS,
    Passing,
    ValuePlan,
    ValueRequest,
    VoteRequest,
    count_values,
    count_votes,
    find_texts,
    found_values,
    measure_shard,
    plan_values,
    search_draw,
    take_pairs,
    take_shard,
    unit_values,
)
from dpscale.domain import Domain, Number
from dpscale.domain.attribute import Attribute
from dpscale.privacy.accounting import Cost
from dpscale.privacy.secret import SecretFile
from dpscale.records.table import Partition

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

CELLS_BITS = 18  # counters of a pass, as a power of 2
LEVELS = 16  # levels that a pass counts below many nodes, at most


@dataclass(frozen=True)
class SearchTerms:
    """Terms of one search.

    Attributes
    ----------
    share : Fraction
        Squared mu.
    delta : Fraction
        Largest additive delta.
    rows_per_unit : int
        Contribution bound.
    public_rows : int, optional
        Number of rows, if it is public.
    groups : int
        Largest number of groups by which the attribute is summed, if it is a number.
    remaining : Fraction
        Squared mu of the release after the searches.
    """

    share: Fraction
    delta: Fraction
    rows_per_unit: int
    public_rows: int | None
    groups: int
    remaining: Fraction


class SearchPlan(Protocol):
    """Plan of a search."""

    @property
    def cost(self) -> Cost:
        """Exact cost to one privacy unit."""

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""


Found = tuple[Attribute, dict[str, Any]]


@dataclass(frozen=True)
class SearchSummary:
    """Released values of a search, for readers.

    Attributes
    ----------
    title : str
        The cells that were searched, as the end of a sentence.
    facts : tuple of str
        Sentences.
    cells : tuple of (str, float, float)
        Label, estimated number of records and standard error of each found cell.
    """

    title: str
    facts: tuple[str, ...]
    cells: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class SearchReader:
    """Access of a search to the rows and the noise key.

    Attributes
    ----------
    engine : Engine
    rows : SearchRows
    groups : sequence of tuple of Partition
        Partitions of each worker.
    dropped : mapping
        Rows of a partition that exceed the contribution bound, or handles of them.
    types : mapping of str to str
        "text" or "integer" for columns whose values are searched.
    secret : SecretFile
    head : mapping
        Release and snapshot, which begin every noise record.
    memory : int
        Memory setting, in bytes.
    unit : str, optional
        Column of the privacy unit.
    through : sequence
        Parts of the map from the values of this column to units, or handles of them.
    """

    engine: Engine
    rows: SearchRows
    groups: Sequence[tuple[Partition, ...]]
    dropped: Mapping[Partition, Any]
    types: Mapping[str, str]
    secret: SecretFile
    head: Mapping[str, Any]
    memory: int
    unit: str | None = None
    through: Sequence[Any] = ()

    def items(self, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the arguments of a task for each group: the given ones, its partitions and their dropped rows."""
        from dpscale.engine.counting import dropped_rows

        return [(*arguments, group, *dropped_rows(group, self.dropped)) for group in self.groups]

    def total(self, function: Callable[..., Any], request: Any, label: str) -> Integers:
        """Return the sum, over all rows, of the array that a function of the request and partitions returns."""
        handles = self.engine.reduce(function, self.items(request), 1, label)  # one array, so one handle
        [total] = self.engine.map(ExactCounts, [(handle,) for handle in handles], label)
        return np.asarray(total.values)


@dataclass(frozen=True, eq=False)
class ExactCounts:
    """Exact counts on their way to the driver. Private, so its repr shows nothing."""

    values: Integers = field(repr=False)


def plan_value_search(attribute: Attribute, terms: SearchTerms) -> ValuePlan:
    """Return the measurement of the counts of the values."""
    return plan_values(attribute, terms.share, terms.delta, terms.rows_per_unit, terms.public_rows)


def search_values(plan: ValuePlan, reader: SearchReader) -> Found:
    """Return the attribute with the values that occur often: those whose noisy count passes a threshold.

    Values are counted by their 128-bit hashes, two words each. Only hashes that pass are looked up in the rows again
    for their texts.
    """
    record = {**reader.head, **plan.record}
    request = ValueRequest(rows=reader.rows, attribute=plan.attribute, secret=reader.secret, record=record)
    passing = _passing(plan, request, reader)
    hashes = np.concatenate([np.empty((0, 2), np.uint64), *(part.words for part in passing)])
    noisy = np.concatenate([np.empty(0, np.int64), *(part.values for part in passing)]).tolist()  # count of each hash
    counts = {}
    if noisy:
        counts = {text: noisy[number] for number, text in _texts(request, hashes, reader).items()}
    return found_values(plan, counts, reader.types.get(plan.attribute.name, "text"))


def _passing(plan: ValuePlan, request: ValueRequest, reader: SearchReader) -> list[Passing]:
    """Return the passing hashes in order, in as many passes over the rows as the memory setting requires.

    A pass counts the hashes of some shards, which are ranges of hashes. `merged` is the number of entries (a value and
    its count) that wait in a task before they are merged.
    """
    passing, draw = list[Passing](), plan.threshold.draw
    entries = reader.memory // (8 * reader.engine.workers * ENTRY_BYTES)
    merged = min(max(entries, LEAST_MERGED), MOST_MERGED)
    join = partial(measure_shard, secret=reader.secret, record=request.record, draw=draw,
                   threshold=plan.threshold.value)  # fmt: skip
    rows = _row_bound(reader)
    for shards in shard_ranges(rows, reader.memory):
        part = replace(request, shards=shards, merged=merged)
        handles = _votes(part, reader, rows) if plan.votes else _counts(part, reader)
        take = partial(take_shard, first=shards.start)
        passing += reader.engine.exchange(take, handles, join, len(shards), "measure-values")
    return passing


def _counts(request: ValueRequest, reader: SearchReader) -> list[Any]:
    """Return handles of the numbers of rows of the values in the shards of a request."""
    return reader.engine.persist(count_values, reader.items(request), "count-values")


def _votes(request: ValueRequest, reader: SearchReader, rows: int) -> list[Any]:
    """Return handles of the votes for the values in the shards of a request; `rows` is the number of all rows.

    A unit with r distinct values votes for each with weight 1/√r. Rows are exchanged so that all rows of a unit are in
    one task. Each pass has the units whose hashes are in its ranges, so that their pairs (unit, value) fit into memory.
    """
    votes, engine = list[Any](), reader.engine
    for ranges in hash_passes(rows * PAIR_BYTES, reader.memory):
        of_pass = VoteRequest(request, str(reader.unit), ranges)
        cuts = cut_ranges(ranges, 2 * engine.workers)  # the units of each task
        items = [(*item, *reader.through) for item in reader.items(of_pass)]
        handles = engine.persist(unit_values, items, "read-units")
        take, join = partial(take_pairs, ranges=cuts), partial(count_votes, shards=request.shards)
        votes += engine.exchange(take, handles, join, len(cuts), "count-votes", keep=True)
    return votes


def shard_ranges(rows: int, memory: int) -> list[range]:
    """Return the ranges of shards that a pass counts, so that the entries fit half of the memory.

    `rows` is the number of rows, which may all have different values; `memory` is in bytes.
    """
    passes = min(max(-(-2 * rows * ENTRY_BYTES // memory), 1), SHARDS)
    cuts = [SHARDS * number // passes for number in range(passes + 1)]
    return [range(first, end) for first, end in pairwise(cuts)]


def _row_bound(reader: SearchReader) -> int:
    files = {part.path: part for group in reader.groups for part in group}
    return sum(reader.engine.map(_rows, [(part,) for part in files.values()], "rows"))


def _rows(partition: Partition) -> int:
    return partition.row_bound()


def _texts(request: ValueRequest, words: np.ndarray, reader: SearchReader) -> dict[int, str]:
    """Return the texts of the passing hashes `words` by their position."""
    shared = reader.engine.broadcast(words, "values")
    texts: dict[int, str] = {}
    items = [(item_request, group, shared, *rest) for item_request, group, *rest in reader.items(request)]
    for part in reader.engine.map(find_texts, items, "find-values"):
        texts |= part.found
    return texts


def summarize_values(attribute: Attribute, released: Mapping[str, Any]) -> SearchSummary:
    """Return the values that a search found, with their noisy counts or votes.

    A released search by votes has `vote` in its measurement; `error` is the standard error of each count.
    """
    facts: tuple[str, ...] = (
        f"A value was found if its noisy count was at least {released['threshold']:,.0f} records.",
    )
    if "vote" in released["measurement"]:
        facts = (f"A value was found if it had at least {released['threshold']:,.0f} votes, with noise.",
                 "A unit with r values votes for each with weight 1/√r; numbers are votes, not records.")  # fmt: skip
    public = (f"{len(released['public'])} more values are public.",) if released["public"] else ()
    other = {"category": "All other values are in one cell.", "drop": "Rows with other values are not counted."}
    cells = tuple((str(value["value"]), value["count"], released["error"]) for value in released["found"])
    return SearchSummary("values that occur often", (*facts, *public, other[attribute.outside]), cells)


def plan_edge_search(attribute: Attribute, terms: SearchTerms) -> EdgePlan:
    """Return the measurement of a dyadic tree."""
    search_draw(terms.share, terms.rows_per_unit, f"the bins of {attribute.name}")  # raises the errors of later rounds
    search_draw(terms.share / 10**6, terms.rows_per_unit, f"the bins of {attribute.name}")
    return EdgePlan(attribute, terms.share, terms.rows_per_unit)


def search_edges(plan: EdgePlan, reader: SearchReader) -> Found:
    """Return the attribute with the bins that were found."""
    counts = NodeCounts(plan, reader)
    measurement = TreeMeasurement(plan=plan, secret=reader.secret.read(), head=reader.head, count=counts.of)
    attribute, released = found_edges(plan, measure_tree(measurement))
    return attribute, released | {"nodes": measurement.nodes}


@dataclass
class NodeCounts:
    """Exact counts of nodes of a dyadic tree, from passes that each count several levels below some nodes. Private.

    Attributes
    ----------
    plan : EdgePlan
    reader : SearchReader
    level : int
        Level of the nodes below which the last pass counted.
    nodes : ndarray
        Numbers of these nodes in their level.
    sums : list of ndarray
        Counts of the last pass by depth below `level`, shape (nodes, 2^depth).
    known : dict
        For each level that was asked, its nodes and their counts.
    """

    plan: EdgePlan
    reader: SearchReader
    level: int = 0
    nodes: Words = field(default_factory=lambda: np.zeros(1, np.uint64), repr=False)
    sums: list[Integers] = field(default_factory=list, repr=False)
    known: dict[int, tuple[Words, Integers]] = field(default_factory=dict, repr=False)

    def of(self, level: int, index: Words) -> Integers:
        """Return the counts of nodes of a level; later calls may repeat some of the nodes of the first one."""
        if level not in self.known:
            self.known[level] = index, self._first_counts(level, index)
        nodes, counts = self.known[level]
        return counts[np.searchsorted(nodes, index)]

    def _first_counts(self, level: int, index: Words) -> Integers:
        """Return the exact counts of some nodes of a level, given their numbers in it.

        The last pass counted the levels from `self.level` on; the rows are read again for a deeper one. The ancestor of
        a node `depth` levels above has the first bits of its number, and the last `depth` bits are its number below.
        """
        if level >= self.level + len(self.sums):
            self._count(level, index)
        depth = level - self.level
        ancestor = np.searchsorted(self.nodes, index >> np.uint64(depth))
        descendant = (index & np.uint64((1 << depth) - 1)).astype(np.int64)
        return np.asarray(self.sums[depth][ancestor, descendant])

    def _count(self, level: int, index: Words) -> None:
        """Count the nodes of a level and their descendants."""
        self.level, self.nodes = level, index
        depth = self._depth()
        low, bits = self.plan.search.axis
        request = NodeRequest(
            rows=self.reader.rows,
            attribute=self.plan.attribute,
            low=low,
            bits=bits,
            level=level,
            nodes=index,
            depth=depth,
        )
        leaves = self.reader.total(count_steps, request, "count-nodes").reshape(len(index), 1 << depth)
        self.sums = [leaves.reshape(len(index), 1 << below, -1).sum(2) for below in range(depth + 1)]

    def _depth(self) -> int:
        """Return how many levels a pass counts below `nodes`, within CELLS_BITS counters and the depth of the tree."""
        room = CELLS_BITS - (len(self.nodes) - 1).bit_length()
        return min(max(room, 1), LEVELS, self.plan.search.axis[1] - self.level)


def summarize_edges(attribute: Attribute, released: Mapping[str, Any]) -> SearchSummary:
    """Return the bins that were found."""
    cells = tuple(zip(attribute.labels, released["counts"], released["errors"], strict=False))
    facts = ("The bins are leaves of a dyadic tree whose counts were measured from the root down.",)
    return SearchSummary("edges of bins", facts, cells)


def plan_end_search(number: Number, terms: SearchTerms) -> EndPlan:
    """Return the measurement of a histogram."""
    return plan_ends(number, terms.share, terms.remaining, terms.groups, terms.rows_per_unit)


def search_ends(plan: EndPlan, reader: SearchReader) -> Found:
    """Return the number with the range that was found."""
    counts = reader.total(count_steps, BinRequest(reader.rows, plan.number, dyadic_bins().first), "count-bins")
    return found_ends(plan, measure_ends(plan, counts, reader.secret, reader.head))


def summarize_ends(number: Number, released: Mapping[str, Any]) -> SearchSummary:
    """Return what a search for the ends of a number's range found, in sentences.

    `released` has the noisy results: `ends`, the number of `records`, the share of records beyond the ends (`clipped`),
    and how far clipping moves the mean at either end (`above` and `below`). Keys with `_limit` are upper limits of
    these, which runs of earlier versions lack.
    """
    low, high = released["ends"]
    if released.get("fallback"):
        facts: tuple[str, ...] = (
            "The search saw no values beside 0.",
            f"Values are clipped to the fallback of the domain, {low:g} to {high:g}.",
            "Nothing is known about the share beyond, and intervals do not include it.",
        )
        return SearchSummary("ends of the range", facts)
    if not released["records"]:  # of runs before version 2 of the search
        return SearchSummary("ends of the range", (f"No values were found; the range is {low:g} to {high:g}.",))
    share, moved = 100 * released["clipped"], released["above"] - released["below"]
    facts = (f"Values are clipped to {low:g} … {high:g}; about {share:.2g} % of the records lie beyond.",
             f"Clipping lowers the mean by about {moved:.3g}.")  # fmt: skip
    if "clipped_limit" in released:
        least, most = -released["below_limit"], released["above_limit"]
        facts = (
            f"Values are clipped to {low:g} … {high:g}; at most {100 * released['clipped_limit']:.2g} % of the records"
            f" lie beyond (upper limit of 95 %; about {share:.2g} % are estimated).",
            f"Clipping lowers the mean of all records by about {moved:.3g}, between {least:.3g} and {most:.3g}.",
            "Intervals of means include the clipped part, up to twice that of all records; those of sums do not.",
        )
    return SearchSummary("ends of the range", facts)


def plan_node_search(attribute: Attribute, terms: SearchTerms) -> NodePlan:
    """Return the measurement of a tree of codes."""
    return plan_nodes(attribute, read_tree(attribute), terms.share, terms.rows_per_unit)


def search_nodes(plan: NodePlan, reader: SearchReader) -> Found:
    """Return the attribute with the nodes that were found."""
    codes = pa.array(plan.tree.codes, pa.large_string())
    request = LeafRequest(reader.rows, plan.attribute, codes)
    counts = reader.total(count_leaves, reader.engine.broadcast(request, "codes"), "count-codes")
    leaves = LeafCounts(np.append(0, np.cumsum(counts)))
    return found_nodes(plan, find_nodes(plan, leaves.of, reader.secret, reader.head))


def summarize_nodes(attribute: Attribute, released: Mapping[str, Any]) -> SearchSummary:
    """Return the nodes of a tree of codes that a search found, with their noisy counts."""
    cells = tuple(
        (f"{node['code']} (level {node['depth']})", node["count"], released["error"]) for node in released["found"]
    )
    facts = ("A cell has the codes below a node that are not below another found node.",)
    return SearchSummary("nodes of the tree of codes", facts, cells)


class SearchKind(NamedTuple):
    """Functions of the searches of one kind."""

    plan: Callable[[Any, SearchTerms], SearchPlan]
    search: Callable[[Any, SearchReader], Found]
    summarize: Callable[[Any, Mapping[str, Any]], SearchSummary]


SEARCHES = {
    "values": SearchKind(plan_value_search, search_values, summarize_values),
    "edges": SearchKind(plan_edge_search, search_edges, summarize_edges),
    "ends": SearchKind(plan_end_search, search_ends, summarize_ends),
    "nodes": SearchKind(plan_node_search, search_nodes, summarize_nodes),
}


def plan_search(attribute: Attribute, terms: SearchTerms) -> SearchPlan:
    """Return the plan of an attribute's search."""
    return _kind_of(attribute).plan(attribute, terms)


def perform_search(attribute: Attribute, plan: SearchPlan, reader: SearchReader) -> Found:
    """Read the rows, draw the noise and return the attribute with its cells."""
    return _kind_of(attribute).search(plan, reader)


def summarize_searches(declared: Domain, found: Domain, released: Mapping[str, Any]) -> dict[str, SearchSummary]:
    """Return the summary of every search by attribute; `released` is the content of the record of a run."""
    return {searched.name: _kind_of(searched).summarize(found[searched.name], released[searched.name])
            for searched in declared.searches}  # fmt: skip


def _kind_of(attribute: Attribute) -> SearchKind:
    """Return the functions of the search of an attribute. Raises JobError for an unknown kind."""
    kind = attribute.search.kind if attribute.search is not None else ""
    if kind not in SEARCHES:
        raise JobError("domain", f"a search of kind {kind!r} for {attribute.name}", ", ".join(SEARCHES), "fix it")
    return SEARCHES[kind]
