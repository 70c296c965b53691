"""Drawing of rows, one task per part: resampled prototypes are swept until the counts match the part's targets.

The target counts T of the whole table are split into parts that are whole numbers and add up: part p of P gets
⌊T (p+1)/P + u⌋ − ⌊T p/P + u⌋ with one u per cell, so a cell with one row in five parts is in one of them and not in all
or none. Tasks do not communicate: each part follows from the learnt model, the release's name and its own number.

*Initial rows* are rows of the spanning tree of the strongest measured pairs. Single-site sampling changes one value of
a row at a time. If one value nearly determines another (equal columns, questions that are skipped together), it cannot
move from one mode to the next, and the share of a mode is fixed once the links are strong. The first rows therefore
come from the tree that maximises Σ I(i, j) over its edges (Chow and Liu, 1968), with I the mutual information of the
released pair:

    P(x) = Π_i p_i(x_i) · Π_(i,j) p_ij(x_i, x_j) / (p_i(x_i) p_j(x_j))

These rows have the released 1-way marginals and the pairs of the tree, so every mode has its share. θ_ij = log p_ij /
(p_i p_j) on the edges makes P the stationary distribution of the sampler, which then learns the other pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import AttributeSet, Floats, Integers, Integers32
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.pairwise import (
    LEAST_WEIGHT,
    LOG_UNIT,
    STEP,
    CellDistribution,
    PairTargets,
    PairwiseModel,
    Sweeper,
    independent_rows,
)
from dpscale.synthesis.cells import refine_to_cells
from dpscale.synthesis.one_way_rounding import ROUNDS, apportion, balance_rows, match_one_ways, rake, with_sum
from dpscale.synthesis.set_targets import Polisher, SetTargets

BETAS = (8.0, 64.0)  # strength β of the feedback in each sweep; with a third one errors were within 0.3 %
LEAST_ROWS = 50_000  # fewest rows that are drawn together, unless the table has fewer
Edge = tuple[int, int]
INFORMATION_UNIT = 2.0**20  # libraries differ in the last bits of a logarithm


@dataclass(frozen=True)
class RowPart:
    """Files from `number` up to but excluding `number + files`, of `parts` files of a table of `rows` rows."""

    rows: int
    parts: int
    number: int
    files: int = 1

    @property
    def count(self) -> int:
        """Number of rows of this part; the parts add up to the table."""
        end = self.number + self.files
        return self.rows * end // self.parts - self.first

    @property
    def first(self) -> int:
        """Number of the first row of this part in the table."""
        return self.rows * self.number // self.parts

    @property
    def key(self) -> tuple[int, int, int]:
        """Key of the part's random stream; the whole table has one key, in any number of files."""
        return (self.rows, 1, 0) if self.parts == self.files else (self.rows, self.parts, self.number)

    @property
    def each(self) -> list[RowPart]:
        """The files of this part, one by one."""
        return [RowPart(self.rows, self.parts, self.number + file) for file in range(self.files)]

    def share(self, counts: Floats, stream: PublicStream) -> Floats:
        """Return the part's share of target counts of the whole; `stream` is the same for every part."""
        if self.parts == self.files:
            return counts
        dither, ends = stream.uniforms(len(counts)), (self.number, self.number + self.files)
        before, after = (np.floor(counts * (end / self.parts) + dither) for end in ends)
        return np.asarray(after - before)


def split_rows(rows: int, files: int) -> list[RowPart]:
    """Return the parts that are drawn together: one file or several small files, for more accurate counts."""
    parts = min(files, max(1, rows // LEAST_ROWS))
    firsts = [-(-number * files // parts) for number in range(parts + 1)]
    return [RowPart(rows=rows, parts=files, number=first, files=after - first) for first, after in pairwise(firsts)]


def draw(model: PairwiseModel, part: RowPart, release: str, larger: SetTargets | None = None) -> NDArray[np.int32]:
    """Return the part's rows over groups, shape (count, d); `larger` are targets over larger sets than pairs."""
    targets, stream = model.targets, PublicStream(release, "draw", *part.key)
    if not part.count:
        return np.empty((0, len(targets.layout.sizes)), np.int32)
    if not targets.layout.pairs:
        return independent_rows(targets.layout, targets.ones, part.count, stream)

    target_counts = part.share(targets.shares * part.rows, PublicStream(release, "dither", part.rows, part.parts))
    rows = balance_rows(targets, model.rows, _resample(len(model.rows), part.count, stream), stream)
    arguments = targets.layout, targets.ones, rows, target_counts, model.theta, targets.layout.used, stream
    if larger is not None:
        aims = part.share(larger.shares * part.rows, PublicStream(release, "dither threes", part.rows, part.parts))
        wide = part.share(larger.wide_shares * part.rows, PublicStream(release, "dither laws", part.rows, part.parts))
        polisher = Polisher(larger, aims, wide, *arguments)
        for betas in larger.betas:
            polisher.polish(*betas)
        return rows

    sweeper = Sweeper(*arguments)
    for beta in BETAS:
        sweeper.sweep(beta)
    return rows


def one_way_counts(names: AttributeSet, cells: CellDistribution, part: RowPart, release: str) -> list[Integers]:
    """Return the number of the part's rows in each cell of every named attribute.

    The counts of the whole table are divided like those of pairs, so that cells with few rows are in some parts. The
    sums of the shares differ from the part's number of rows by less than the number of cells.
    """
    dither = PublicStream(release, "dither ones", part.rows, part.parts)
    shares = [part.share(apportion(cells.ones[name], part.rows).astype(np.float64), dither) for name in names]
    return [with_sum(share.astype(np.int64), part.count) for share in shares]


def _resample(prototypes: int, count: int, stream: PublicStream) -> NDArray[np.int64]:
    """Return how often each prototype is taken, equally often up to one; the sum is `count`."""
    times, extra = divmod(count, prototypes)
    taken = np.full(prototypes, times)
    taken[stream.permutation(prototypes)[:extra]] += 1
    return taken


def rake_weights(
    targets: PairTargets, rows: NDArray[np.int32], part: RowPart, total: float, larger: SetTargets | None = None
) -> Floats:
    """Return the number of records that each row over groups represents, shape (n,).

    The sum is the part's share of `total`. Pairs and the larger sets have their released counts, as far as the rows of
    a cell can have them.

    Raking multiplies the weights of the rows in each cell of a set so that their sum is the target, set after set, for
    ROUNDS rounds.

    `records` is the part's number of records, and `at` the cell of each row in a pair.
    """
    layout = targets.layout
    if not len(rows):
        return np.empty(0)

    records = total * len(rows) / part.rows
    weights = np.full(len(rows), records / len(rows))
    for _ in range(ROUNDS):
        for i, j in layout.pairs:
            at = rows[:, i].astype(np.int64) * layout.sizes[j] + rows[:, j]
            rake(weights, at, layout.of(targets.shares, i, j).ravel() * records)
        for columns, table in () if larger is None else larger.tables:
            rake(weights, np.ravel_multi_index(tuple(rows[:, columns].T), table.shape), table.ravel() * records)
        # cells without rows lose their records, so the sum is restored
        weights *= records / weights.sum()

    return weights


class RowSampler(Protocol):
    """Interface of row samplers.

    `total` is the approximate number of records, `ones` every attribute's 1-way marginal.
    """

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def ones(self) -> dict[str, Floats]: ...
    @property
    def total(self) -> float: ...
    @property
    def matched_pairs(self) -> int:
        """Number of pairs of attributes that rows match."""

    @property
    def targeted(self) -> tuple[tuple[int, ...], ...]:
        """Columns of every law that rows have as a target, beside the sets of a model."""

    def rows(self, part: RowPart, release: str) -> Integers32:
        """Return the part's rows over cells, shape (count, d)."""


def attribute_sizes(way: RowSampler) -> list[int]:
    """Return the number of cells of every attribute."""
    return [len(way.ones[name]) for name in way.names]


@dataclass(frozen=True, eq=False)
class PairwiseSampler:
    """Sampler of rows from a pairwise model.

    Attributes
    ----------
    model : PairwiseModel
        All pairs over groups.
    cells : CellDistribution
        Distribution of groups over cells.
    total : float
    larger : SetTargets, optional
        Targets over larger sets than pairs.
    """

    model: PairwiseModel
    cells: CellDistribution
    total: float
    larger: SetTargets | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.model.targets.layout.names

    @property
    def ones(self) -> dict[str, Floats]:
        return dict(self.cells.ones)

    @property
    def matched_pairs(self) -> int:
        return len(self.model.targets.layout.pairs)

    @property
    def targeted(self) -> tuple[tuple[int, ...], ...]:
        return () if self.larger is None else self.larger.laws

    def rows(self, part: RowPart, release: str) -> Integers32:
        """Return rows of cells for a part: groups are drawn, then refined to cells that match the 1-way marginals.

        The rows are in random order. Copies of a prototype are neighbours until then, and the sweeps visit the rows in
        order, so the first rows of a part would not be a sample of it.
        """
        groups = draw(self.model, part, release, self.larger)
        stream = PublicStream(release, "cells", *part.key)
        cells = refine_to_cells(self.model.targets, self.cells, groups, stream)
        counts = one_way_counts(self.names, self.cells, part, release)
        cells = match_one_ways(self.model.targets, self.cells, cells, counts)
        return cells[PublicStream(release, "order", *part.key).permutation(len(cells))]

    def weights(self, rows: Integers32, part: RowPart) -> Floats:
        """Return the number of records that each of the part's rows represents, shape (count,)."""
        labels = [self.cells.groups[name].labels for name in self.names]
        groups = np.stack([label[rows[:, i]] for i, label in enumerate(labels)], axis=1).astype(np.int32)
        return rake_weights(self.model.targets, groups, part, self.total, self.larger)


def tree_start(targets: PairTargets, count: int, stream: PublicStream) -> tuple[Integers32, Floats]:
    """Return rows of the tree and the θ under which they are stationary.

    Parameters
    ----------
    targets : PairTargets
        Released 1-way marginals and pairs, as shares of all rows.
    count : int
        Number of rows.
    stream : PublicStream
        A public random stream.

    Returns
    -------
    rows : ndarray of int32, shape (count, d)
        Groups.
    theta : ndarray
        Logits of every pair's cells, 0 off the tree.
    """
    edges = spanning_tree(targets)
    theta = np.zeros(targets.layout.cells)
    for i, j in edges:
        targets.layout.of(theta, i, j)[:] = _logits(targets, i, j)
    return _tree_rows(targets, edges, count, stream), theta


def spanning_tree(targets: PairTargets) -> list[Edge]:
    """Return the spanning forest of largest mutual information (Kruskal), strongest edge first.

    Pairs join in the order of mutual information unless both attributes are already connected (`component`).
    """
    pairs = [(i, j) for i, j in targets.layout.pairs if targets.known[i, j]]
    strongest = sorted((-_information(targets, i, j), i, j) for i, j in pairs)
    component, edges = list(range(len(targets.layout.sizes))), list[Edge]()

    for negative, i, j in strongest:
        # a pair without information joins nothing
        if negative < 0 and component[i] != component[j]:
            edges.append((i, j))
            component = [component[i] if label == component[j] else label for label in component]
    return edges


def _information(targets: PairTargets, i: int, j: int) -> float:
    """Return the mutual information of a pair in nats, rounded so that the order is machine-independent."""
    value = float((targets.layout.of(targets.shares, i, j) * _logits(targets, i, j)).sum())
    return round(value * INFORMATION_UNIT) / INFORMATION_UNIT


def _logits(targets: PairTargets, i: int, j: int) -> Floats:
    """Return log p_ij / (p_i p_j), with shares of at least LEAST_WEIGHT.

    p_ij is the share of a cell of a pair, p_i that of a value (`alone` is the product of two); logits are rounded to
    steps of 1/LOG_UNIT.
    """
    layout = targets.layout
    alone = np.multiply.outer(layout.one(targets.ones, i), layout.one(targets.ones, j))
    ratio = np.maximum(layout.of(targets.shares, i, j), LEAST_WEIGHT) / np.maximum(alone, LEAST_WEIGHT)
    return np.asarray(np.rint(np.log(ratio) * LOG_UNIT) / LOG_UNIT)


def _tree_rows(targets: PairTargets, edges: list[Edge], count: int, stream: PublicStream) -> Integers32:
    """Draw every attribute after its parent, by systematic rounding of its conditional shares.

    Shares are raised by a small multiple of the 1-way marginal, so that a value without released pairs can be drawn.
    `edges` are the pairs of a forest of attributes; rows are grouped by the value of the parent (`places`).
    """
    layout = targets.layout
    rows = np.zeros((count, len(layout.sizes)), np.int32)
    for child, parent in _in_order(edges, len(layout.sizes)):
        if parent is None:
            rows[:, child] = stream.systematic(layout.one(targets.ones, child), count)
            continue

        pair = layout.of(targets.shares, *sorted((parent, child)))
        conditional = pair if parent < child else pair.T
        order = np.argsort(rows[:, parent], kind="stable")
        ends = np.cumsum(np.bincount(rows[:, parent], minlength=len(conditional)))

        for value, places in enumerate(np.split(order, ends[:-1])):
            if len(places):
                shares = np.maximum(conditional[value], 0) + STEP * layout.one(targets.ones, child)
                rows[places, child] = stream.systematic(shares, len(places))

    return rows


def _in_order(edges: list[Edge], attributes: int) -> Iterator[tuple[int, int | None]]:
    """Yield every attribute with its parent, parents first; a root of the forest has none.

    `edges` are pairs of attribute numbers; the forest is visited from each root.
    """
    neighbours: dict[int, list[int]] = {name: [] for name in range(attributes)}
    for i, j in edges:
        neighbours[i].append(j)
        neighbours[j].append(i)

    seen = set[int]()
    for root in range(attributes):
        # attributes to visit, each with its parent
        waiting: list[tuple[int, int | None]] = [] if root in seen else [(root, None)]
        while waiting:
            name, parent = waiting.pop()
            seen.add(name)
            yield name, parent
            waiting += [(other, name) for other in neighbours[name] if other not in seen]
