"""Sampling of links between synthetic or public rows: post-processing, free and repeatable."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import Floats, Integers
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.relational.assignment import (
    MOST_WORDS,
    SiblingSums,
    assign_links,
    remove_loops,
    with_siblings,
)
from dpscale.relational.degrees import (
    children,
    degrees,
    distribution,
    limit_degrees,
    limit_links,
    poisson_degrees,
    sample_degrees,
    sample_uniform_degrees,
)
from dpscale.relational.features import Side
from dpscale.relational.history import order_children
from dpscale.relational.link_estimation import Sums, are_many, expected_links, grouped_links, row_degrees
from dpscale.relational.published import sample_children, sample_pairs
from dpscale.relational.rounding import (
    cross_words,
    move_excess,
    round_cells,
    round_children,
    round_columns,
    round_totals,
)
from dpscale.runs.estimates import model_folder, read_sampler
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.measuring import SIDES, MeasuredLinks, piece_of
from dpscale.runs.stages.synthesize import drawn_rows
from dpscale.runs.table import TablePart
from dpscale.storage.files import read_text
from dpscale.synthesis.draw import split_rows

DRAWN = "drawn.npy"  # file of sampled links as synthetic rows, with the measurements of the link


def synthetic_codes(run: TablePart) -> NDArray[np.int32]:
    """Return the synthetic rows of a table as cells, (rows, attributes), sampled again identically to its files."""
    index = json.loads(read_text(run.path / "synthetic" / "_rows.json"))
    way = read_sampler(model_folder(run), index["method"])
    rows = np.concatenate([drawn_rows(run, way, part) for part in split_rows(index["rows"], index["parts"])])
    return rows[:, [way.names.index(name) for name in run.domain.names]]


def sample_links(run: LinkedTables, link: LinkSection, sides: tuple[Side, Side], measured: MeasuredLinks) -> Integers:
    """Return sampled links as rows of the parent and of the child, shape (links, 2).

    A side has its distinct `profiles` and, in `of`, the profile of each row; u is the parent and v the child. `having`
    are the children that have a link, and `chances[i, j]` is the probability of a link between profiles i and j.
    """
    (u, v), stream = sides, PublicStream(run.manifest["release"], f"who has links {link.called}")
    having = np.arange(v.rows)
    if link.nulls == "keep":  # a random subset of children, one per link
        having = np.sort(stream.permutation(v.rows)[: int(min(round(measured.links), v.rows))])
        if measured.chances is not None:  # of the profiles that remain, in their order
            measured = replace(measured, chances=measured.chances[:, np.unique(v.of[having])])
        # a child side of the chosen rows only, whose row numbers are mapped back below
        v = Side.made(v.profiles[v.of[having]], v.sizes)
    pairs = Drawing(run=run, link=link, sides=(u, v), measured=measured).rows()
    pairs[:, 1] = having[pairs[:, 1]]
    # a foreign key (no table `via`) has one parent for each child, which the exchange must keep
    return remove_loops(pairs, sides[1].of, stream, link.via is None) if link.loops is False else pairs


@dataclass(frozen=True, eq=False)
class Drawing:
    """Drawing of links between rows that are in memory.

    Attributes
    ----------
    run : LinkedTables
    link : LinkSection
    sides : tuple of Side
    measured : MeasuredLinks
    """

    run: LinkedTables
    link: LinkSection
    sides: tuple[Side, Side]
    measured: MeasuredLinks

    @property
    def known(self) -> bool:
        return self.link.kind != "many-to-many"

    @property
    def links(self) -> float:
        """Number of links, at most the number that the degree bounds of both tables permit."""
        room = [side.rows * bound for side, bound in zip(self.sides, self.bounds, strict=True) if bound is not None]
        return float(round(min([self.measured.links, *room])))

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """Largest number of links of a row on either side; None without a bound.

        `known` states that each child has a parent, so the bound of a child is 1. Otherwise children are bounded only
        if neighbours replace rows.
        """
        if self.known:
            return (
                self.link.bound if self.link.kind == "one-to-one" or piece_of(self.run, self.link).bounded else None
            ), 1
        return self.link.bound, self.link.bound if self.run.neighbours.replaces else None

    def rows(self) -> Integers:
        """Return sampled links: rows of the parent and of the child, shape (links, 2).

        Numbers of links by pairs of profiles (distinct rows) are drawn first, or by groups of profiles if there are
        many; then the degree of each row, and then which rows are linked.
        """
        (u, v), stream = self.sides, PublicStream(self.run.manifest["release"], f"links {self.link.called}")
        if not (u.rows and v.rows):
            return np.empty((0, 2), np.int64)
        if self.measured.chances is not None and not self.known:
            pairs = sample_pairs(self.measured.chances, u, v, int(self.measured.links), stream)
            return limit_degrees(pairs, self.bounds, stream)
        if self.measured.chances is None and are_many(u, v):
            return self._exchanged(self._by_groups(Sums(*self.measured.sums), stream), None, stream)

        whole, expected = self._whole(stream)
        of_parents = self._degrees(0, whole.sum(axis=1), stream)
        of_children = self._degrees(1, whole.sum(axis=0), stream)
        return self._exchanged(assign_links(whole, u, v, of_parents, of_children, stream), expected, stream)

    def _exchanged(self, links: Integers, expected: Floats | None, stream: PublicStream) -> Integers:
        """Return the links with children exchanged until sibling sums, or tables of histories, are near the targets.

        MOST_WORDS limits the memory of associations between both sides. `expected` are expected sums of siblings,
        children of the same parent.
        """
        if self.measured.history is not None and len(links):
            associate = cross_words(*self.sides) <= MOST_WORDS
            return order_children(links, self.sides, self.measured.history, stream, associate)
        return with_siblings(links, self.sides, expected, sibling_target(self.measured), stream)

    def _by_groups(self, sums: Sums, stream: PublicStream) -> Integers:
        """Return sampled links, shape (links, 2), whose numbers are drawn by pairs of groups of profiles.

        u and v are groups of similar profiles of parents and children, and `caps` the numbers of their pairs. Expected
        links are rounded at random within the bounds, then assigned to rows.
        """
        assert self.measured.shares is not None
        grouped = grouped_links(*self.sides, self.measured.shares, sums, self.links, self.known, stream)
        u, v = grouped.u, grouped.v
        if self.known:
            counts = round_columns(grouped.links, v.counts, self.bounds[0], u.counts, stream)
        else:
            caps = np.multiply.outer(u.counts, v.counts)
            counts = limit_links(round_cells(np.minimum(grouped.links, caps), caps, stream), u, v, *self.bounds, stream)
        ends = [
            self._ends(place, side, expected_degrees, counts.sum(axis=1 - place), stream)
            for place, (side, expected_degrees) in enumerate(((u, grouped.u_ends), (v, grouped.v_ends)))
        ]
        return assign_links(counts, u, v, ends[0], ends[1], stream)

    def _whole(self, stream: PublicStream) -> tuple[Floats, Floats]:
        """Return integer numbers of links by profiles, shape (profiles of parents, of children), and expected ones.

        A profile is a distinct row of a table. A known link has exactly one parent for each child.

        `bounds` are the largest degrees of parents and children. A link by table of pairs has at most one pair for each
        two rows.
        """
        u, v = self.sides
        if self.measured.chances is not None:
            whole = sample_children(self.measured.chances, u, v, stream)
            if self.bounds[0] is not None:
                move_excess(whole, self.bounds[0] * u.counts, self.measured.chances, stream)
            return whole, whole
        assert self.measured.shares is not None
        expected = expected_links(u, v, self.measured.shares, Sums(*self.measured.sums), self.links, self.known)
        if self.known:
            return round_children(expected, u, v, self.bounds[0], stream), expected
        whole = round_totals(expected, u, v, np.multiply.outer(u.counts, v.counts), stream)
        return limit_links(whole, u, v, *self.bounds, stream), expected

    def _degrees(self, place: int, totals: Floats, stream: PublicStream) -> list[Integers]:
        """Return the degrees (numbers of links) of a side's rows by profile.

        `place` is 0 for parents and 1 for children, and `totals` are the numbers of links of the side's profiles. With
        a bound and noisy numbers of rows by degree, degrees follow the distribution of these.
        """
        side = self.sides[place]
        noisy = self.measured.by_degree.get(SIDES[place])
        if self.bounds[place] is not None and noisy is not None:
            law = distribution(noisy, side.rows, self.measured.sigma, float(totals.sum()))
            return degrees(totals, side, law, stream)
        return self._ends(place, side, (totals / side.counts)[side.of], totals, stream)

    def _ends(self, place: int, side: Side, each: Floats, totals: Floats, stream: PublicStream) -> list[Integers]:
        """Return the degrees (numbers of links) of a side's rows by group; those of a group sum to its total.

        `place` is 0 for parents and 1 for children, `each` is the expected degree of every row, and `totals` are the
        numbers of links of the side's groups. Degrees come from one of three rules: each child of a known link has one
        parent, without a bound rows get links in proportion to `each` (`_unbounded`), and with a bound their degrees
        have the distribution `law`, tilted to `each` (`row_degrees`).
        """
        noisy, bound = self.measured.by_degree.get(SIDES[place]), self.bounds[place]
        if self.known and place == 1:  # each child has at most one link: 1 if there are as many links as rows
            return children(totals, side, stream)
        if bound is None:
            return self._unbounded(noisy, side, each, totals, stream)
        rows, total = side.rows, float(totals.sum())
        # the share of rows by degree 0 … bound: from the noisy histogram, or of random links if none was measured
        law = (poisson_degrees(total, rows, bound) if noisy is None
               else distribution(noisy, rows, self.measured.sigma, total))  # fmt: skip
        return row_degrees(each, law, side, totals, stream)

    def _unbounded(
        self, noisy: Floats | None, side: Side, each: Floats, totals: Floats, stream: PublicStream
    ) -> list[Integers]:
        """Return the degrees of a side's rows by group, without an upper bound; see `_ends`.

        `noisy` is the released histogram of degrees, with the standard deviation `sigma`, or None without one. `each`
        and `totals` are the expected degrees and the links of each group.
        """
        if noisy is None:
            return sample_uniform_degrees(each, side, totals, stream)
        return sample_degrees(noisy, self.measured.sigma, each, side, totals, stream)


def sibling_target(measured: MeasuredLinks) -> SiblingSums | None:
    """Return the noisy sums over siblings; None if they are not measured."""
    return None if measured.siblings is None else SiblingSums(measured.siblings, measured.sibling_sigma)
