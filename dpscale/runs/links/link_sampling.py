"""Sampling of links between synthetic or public rows: post-processing, free and repeatable.

A profile is a distinct row of a table. A side of a link (u: the parents, v: the children) has its `profiles` with the
numbers of their rows in `counts`, and in `of` the profile of each row. A *known* link has exactly one parent for each
child.

*Blocks of many links.*
They are drawn as tasks: the parents of consecutive children, from a part of the parents each. The distribution of links
over pairs of profiles is fitted once. A block has a random part of the parents and as many of the children, in the
order of their table, so all children of a parent are in one block: bounds and degrees are those of a block alone.
Parents without a bound are in all blocks. The number of blocks depends only on the number of children, and each has a
random stream of its own, so the links are the same on any number of workers.

*Profiles of rows.*
They are counted and stored part by part, for links in blocks. Rows of a part are drawn again identically to the table's
files. Each is stored as one number, the position of its cells in row-major order, in the narrowest type. The files
follow from released values; they are kept until the tables are written, because each draw costs as much as the writing
of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np

from dpscale.base.numerics import Floats, Integers, Integers32, NDArray, ParallelMap
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.relational.assignment import (
    MOST,
    MOST_WORDS,
    ChildModel,
    Groups,
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
from dpscale.runs.estimates import model_folder, open_sampler, read_sampler
from dpscale.runs.linked_tables import LinkedTables, public_tables
from dpscale.runs.links.measuring import SIDES, MeasuredLinks, piece_of
from dpscale.runs.stages.row_numbers import read_array, write_array
from dpscale.runs.stages.synthesize import drawn_rows
from dpscale.runs.table import TablePart
from dpscale.storage.files import is_local, listed, present, read_text, remove
from dpscale.synthesis.draw import RowPart, split_rows

DRAWN = "drawn.npy"  # file of sampled links as synthetic rows, with the measurements of the link

FOLDER = "profiles"  # of a run, while tables are linked
Counted = tuple[Integers, Integers]  # distinct numbers of the rows of a part, ascending, and how often each occurs

BLOCK_ROWS = 1 << 20  # children of a block


def synthetic_codes(run: TablePart) -> NDArray[np.int32]:
    """Return the synthetic rows of a table as cells, (rows, attributes), sampled again identically to its files."""
    index = json.loads(read_text(run.path / "synthetic" / "_rows.json"))
    sampler = read_sampler(model_folder(run), index["method"])
    rows = np.concatenate([drawn_rows(run, sampler, part) for part in split_rows(index["rows"], index["parts"])])
    return rows[:, [sampler.names.index(name) for name in run.domain.names]]


def sample_links(run: LinkedTables, link: LinkSection, sides: tuple[Side, Side], measured: MeasuredLinks) -> Integers:
    """Return sampled links as rows of the parent and of the child, shape (links, 2).

    `having` are the children that have a link, and `measured.chances[i, j]` is the probability of a link between
    profiles i and j.
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
        """Whether the number of links of each child is known: one, unless the link is many-to-many."""
        return self.link.kind != "many-to-many"

    @property
    def links(self) -> float:
        """Number of links, at most the number that the degree bounds of both tables permit."""
        room = [side.rows * bound for side, bound in zip(self.sides, self.bounds, strict=True) if bound is not None]
        return float(round(min([self.measured.links, *room])))

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """Largest number of links of a row on either side; None without a bound.

        A child of a known link has one. Other children are bounded only if neighbours replace rows.
        """
        if self.known:
            is_bounded = self.link.kind == "one-to-one" or piece_of(self.run, self.link).bounded
            return self.link.bound if is_bounded else None, 1
        return self.link.bound, self.link.bound if self.run.neighbours.replaces else None

    def rows(self) -> Integers:
        """Return sampled links: rows of the parent and of the child, shape (links, 2).

        Numbers of links by pairs of profiles (distinct rows) are drawn first, or by groups of profiles if there are
        many; then the degree of each row, and then which rows are linked.
        """
        (u, v), stream = self.sides, PublicStream(self.run.manifest["release"], f"links {self.link.called}")
        if not (u.rows and v.rows):
            return np.empty((0, 2), np.int64)
        # a published loop has fitted the probability of each link
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

        `expected` are the expected numbers of links by pairs of profiles; None if they are known by groups only.
        """
        if self.measured.history is not None and len(links):
            # the associations between both sides are kept if their tables fit the memory
            associate = cross_words(*self.sides) <= MOST_WORDS
            return order_children(links, self.sides, self.measured.history, stream, associate)
        return with_siblings(links, self.sides, expected, sibling_target(self.measured), stream)

    def _by_groups(self, sums: Sums, stream: PublicStream) -> Integers:
        """Return sampled links, shape (links, 2), whose numbers are drawn by pairs of groups of profiles.

        Here u and v are groups of similar profiles of parents and children. Expected numbers of links are rounded at
        random within the bounds and the numbers of pairs of rows (`caps`), then assigned to rows.
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

        They respect the bounds of both sides; a link by a table of pairs links two rows at most once.
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
        a bound and noisy numbers of rows by degree, degrees follow the distribution of these (`law`); otherwise see
        `_ends`.
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


@dataclass(frozen=True, eq=False)
class TableProfiles:
    """Rows of a table by profile.

    Attributes
    ----------
    sizes : tuple of int
        Number of values of every attribute.
    kinds : ndarray, shape (k,)
        Numbers of the distinct rows, ascending.
    counts : ndarray, shape (k,)
        Number of rows of each.
    files : tuple of Path
    ends : tuple of int
        Row after the last of every file.
    """

    sizes: tuple[int, ...]
    kinds: Integers
    counts: Integers
    files: tuple[Path, ...]
    ends: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    @cached_property
    def side(self) -> Side:
        """The table as an end of links, with one row for each profile in `of`."""
        profiles = np.stack(np.unravel_index(self.kinds, self.sizes), axis=1).astype(np.int64)
        return Side(
            sizes=self.sizes, profiles=profiles, counts=self.counts.astype(float), of=np.arange(len(self.kinds))
        )

    def of(self, first: int, last: int) -> Integers32:
        """Return the profile of each row from `first` up to but excluding `last`.

        The files have the number of each row's profile; `kinds` is sorted, so that its place is found by bisection.
        """
        found = np.empty(last - first, np.int32)
        for file, begun, end in zip(self.files, (0, *self.ends), self.ends, strict=False):  # a file has rows from begun
            if begun < last and first < end:
                numbers = read_array(file)[max(first - begun, 0) : last - begun]
                start = max(begun - first, 0)
                found[start : start + len(numbers)] = np.searchsorted(self.kinds, numbers)
        return found


def count_profiles(run: LinkedTables, name: str, each: ParallelMap) -> TableProfiles:
    """Return the profiles (distinct rows) of a table with their numbers of rows.

    The rows of each part of a synthetic table are drawn in a task, which writes their profiles into a file; its name
    has a tag of everything on which the rows depend. The number of a profile is the position of its cells in row-major
    order.
    """
    domain = run.closed_job.domains[name]
    sizes = tuple(int(domain[attribute].size) for attribute in domain.names)
    counted: list[tuple[Path, int, Counted]]  # of each part its file, number of rows, and its profiles and their counts
    if name in run.tables:
        table = run.tables[name]
        index = json.loads(read_text(table.path / "synthetic" / "_rows.json"))
        # the parts of the synthetic rows, as they are drawn again
        parts = split_rows(index["rows"], index["parts"])
        text = json.dumps([run.manifest["release"], name, index["rows"], index["parts"], index["method"]])
        tag = hashlib.sha256(text.encode()).hexdigest()[:16]
        items = [(str(table.path), str(model_folder(table)), index["method"], sizes, part,
                  run.path / FOLDER / f"{name}-{tag}-{part.number}.npy") for part in parts]  # fmt: skip
        counted = list(each(_draw_part, items))
    else:
        file = run.path / FOLDER / f"{name}.npy"
        # a public table has its rows in memory
        numbers = np.ravel_multi_index(tuple(public_tables(run)[name][0].T), sizes).astype(np.int64)
        counted = [(file, len(numbers), _stored(file, numbers, sizes))]

    profiles = np.unique(np.concatenate([in_part for _, _, (in_part, _) in counted]))
    counts = np.zeros(len(profiles), np.int64)
    for _, _, (in_part, numbers_of_rows) in counted:
        # each part's counts, at the places of its profiles among all
        counts[np.searchsorted(profiles, in_part)] += numbers_of_rows
    ends = tuple(int(end) for end in np.cumsum([rows for _, rows, _ in counted]))
    return TableProfiles(
        sizes=sizes, kinds=profiles, counts=counts, files=tuple(file for file, _, _ in counted), ends=ends
    )


def _draw_part(item: tuple[str, str, str, tuple[int, ...], RowPart, Path]) -> tuple[Path, int, Counted]:
    """Draw the rows of a part, unless they are stored, and return their file, their number and their profiles.

    An item is (run directory, folder of the model, method of sampling, sizes of the attributes, part, file). A row is
    stored as the number of its cell in row-major order.
    """
    path, folder, method, sizes, part, file = item
    if present(file):
        return file, part.count, _counted(read_array(file))
    run, sampler = open_sampler(path, folder, method)
    rows = drawn_rows(cast(TablePart, run), sampler, part)
    columns = tuple(rows[:, sampler.names.index(name)] for name in run.domain.names)
    return file, part.count, _stored(file, np.ravel_multi_index(columns, sizes).astype(np.int64), sizes)


def _stored(file: Path, numbers: Integers, sizes: Sequence[int]) -> Counted:
    """Store the numbers of rows and count them."""
    write_array(file, numbers.astype(np.min_scalar_type(int(np.prod(sizes, dtype=object)) - 1)))
    return _counted(numbers)


def _counted(numbers: NDArray[np.integer]) -> Counted:
    kinds, counts = np.unique(numbers, return_counts=True)
    return kinds.astype(np.int64), counts.astype(np.int64)


def remove_profiles(run: LinkedTables) -> None:
    """Remove the files, once the tables are written."""
    folder = run.path / FOLDER
    for name in listed(folder) if present(folder) else []:
        remove(folder / name)
    if is_local(folder) and present(folder):
        folder.rmdir()


@dataclass(frozen=True, eq=False)
class LinkBlocks:
    """Blocks of a link: their distribution, rows and files.

    Attributes
    ----------
    release : str
    link : LinkSection
    folder : Path
        Of the files with the parents and the links of every block.
    profiles : tuple of TableProfiles
    model : ChildModel
    ends : tuple of int
        Start of the children of each block, and the end of the last.
    numbers : tuple of int
        Number of the links of each block.
    """

    release: str
    link: LinkSection
    folder: Path
    profiles: tuple[TableProfiles, TableProfiles]
    model: ChildModel
    ends: tuple[int, ...]
    numbers: tuple[int, ...]

    def stream(self, block: int) -> PublicStream:
        return PublicStream(self.release, f"block of links {self.link.called}", len(self.numbers), block)

    def parents_file(self, block: int) -> Path:
        """Return the file with the rows of the parents of a block and their profiles, shape (2, parents)."""
        return self.folder / f"{self.link.called}-parents-{block}.npy"

    def links_file(self, block: int) -> Path:
        """Return the file with the parent of every child of a block; −1 for none."""
        return self.folder / f"{self.link.called}-links-{block}.npy"


@dataclass(frozen=True, eq=False)
class ParentFiles:
    """Parents of all children of a link, in files.

    Attributes
    ----------
    files : tuple of Path
    ends : tuple of int
        Child after the last of every file.
    """

    files: tuple[Path, ...]
    ends: tuple[int, ...]

    def of(self, first: int, last: int) -> Integers:
        """Return the row of the parent of each child from `first` up to but excluding `last`; −1 for none.

        A file has the children from the end of the previous one.
        """
        found = [np.empty(0, np.int64)]
        for file, begun, end in zip(self.files, (0, *self.ends), self.ends, strict=False):
            if begun < last and first < end:
                found.append(read_array(file)[max(first - begun, 0) : last - begun])
        return np.concatenate(found)


def sample_blocks(run: LinkedTables, link: LinkSection, profiles: tuple[TableProfiles, TableProfiles],
                  measured: MeasuredLinks, each: ParallelMap) -> ParentFiles:  # fmt: skip
    """Draw the links of all blocks and return their files.

    The parents are divided among the blocks first. Then each block is a task that writes its links to a file of its own
    and returns nothing.
    """
    blocks = _blocks(run, link, profiles, measured)
    _divide_parents(blocks, profiles[0].rows)
    numbers = range(len(blocks.numbers))
    list(each(partial(draw_block, blocks), numbers))
    return ParentFiles(tuple(blocks.links_file(number) for number in numbers), blocks.ends[1:])


def _blocks(run: LinkedTables, link: LinkSection, profiles: tuple[TableProfiles, TableProfiles],
            measured: MeasuredLinks) -> LinkBlocks:  # fmt: skip
    """Return the model and the division of a link whose links are drawn in blocks of children.

    A block has a range of children, and of the links the same fraction as of the children. Its parents are a random
    part of all parents, so that blocks can be drawn independently within the parents' bound. The model has the expected
    number of links of each pair of profiles, or of groups of profiles if there are many.
    """
    u, v = profiles[0].side, profiles[1].side
    drawing = Drawing(run=run, link=link, sides=(u, v), measured=measured)
    assert measured.shares is not None
    sums, links, bound, groups = Sums(*measured.sums), drawing.links, drawing.bounds[0], None  # bound of parents

    # every child has a parent; with a bound there may be fewer links than children
    if link.nulls != "keep":
        links = min(float(v.rows), links) if bound is not None else float(v.rows)
    # too many pairs of profiles: links are estimated by groups of profiles
    if are_many(u, v):
        stream = PublicStream(run.manifest["release"], f"links {link.called}")
        found = grouped_links(u, v, measured.shares, sums, links, True, stream)
        expected, groups = found.links, Groups(found.u.of, found.v.of, found.u_ends)
    else:
        expected = expected_links(u, v, measured.shares, sums, links, True)

    noisy, law = measured.by_degree.get(SIDES[0]), None  # noisy degrees of parents, and their distribution
    if bound is not None:
        law = (poisson_degrees(links, u.rows, bound) if noisy is None
               else distribution(noisy, u.rows, measured.sigma, links))  # fmt: skip

    blocks = -(-v.rows // BLOCK_ROWS)  # rounded up
    model = ChildModel(
        sides=(u, v),
        expected=expected,
        groups=groups,
        bound=bound,
        law=law,
        by_profile=noisy is not None,
        siblings=sibling_target(measured),
        most=MOST // blocks,
    )

    # parents in equal parts; children and links in the same fractions
    parent_ends = [block * u.rows // blocks for block in range(blocks + 1)]
    child_ends, link_ends = ([int(total * end // u.rows) for end in parent_ends] for total in (v.rows, int(links)))
    links_of_blocks = []
    for (first, last), (begin, end) in zip(pairwise(link_ends), pairwise(child_ends), strict=True):
        links_of_blocks.append(min(last - first, end - begin))  # a child has at most one link
    return LinkBlocks(
        release=run.manifest["release"],
        link=link,
        folder=run.path / FOLDER,
        profiles=profiles,
        model=model,
        ends=tuple(child_ends),
        numbers=tuple(links_of_blocks),
    )


def _divide_parents(blocks: LinkBlocks, rows: int) -> None:
    """Store a random part of the parents for every block, unless they have no bound: all are in each block then.

    A file has the rows of the block's parents and their profiles; `rows` is the number of all parents.
    """
    if blocks.model.bound is None:
        return
    order = PublicStream(blocks.release, f"parents of blocks of links {blocks.link.called}").permutation(rows)
    profile_of, count = blocks.profiles[0].of(0, rows), len(blocks.numbers)
    for block in range(count):
        members = np.sort(order[block * rows // count : (block + 1) * rows // count])
        write_array(blocks.parents_file(block), np.stack([members, profile_of[members]]))


def draw_block(blocks: LinkBlocks, block: int) -> None:
    """Draw the links of a block and store the parent of each child.

    A child without a link has the parent -1. With a bound a block has its own parents, stored before; without one, all
    parents. The row numbers in `pairs` are those inside the block.
    """
    first, last = blocks.ends[block : block + 2]
    child_profiles = blocks.profiles[1].of(first, last)
    if blocks.model.bound is None:
        parent_profiles = blocks.profiles[0].of(0, blocks.profiles[0].rows)
        rows = np.arange(len(parent_profiles))
    else:
        rows, parent_profiles = read_array(blocks.parents_file(block))

    stream, number = blocks.stream(block), blocks.numbers[block]
    linked = np.arange(len(child_profiles))
    # children without a parent are a random choice
    if number < len(child_profiles):
        linked = np.sort(stream.permutation(len(child_profiles))[:number])
    parents = np.full(len(child_profiles), -1, np.int64)
    if len(linked) and len(rows):
        pairs = blocks.model.draw(parent_profiles, child_profiles[linked], stream)
        parents[linked[pairs[:, 1]]] = rows[pairs[:, 0]]

    fits_int32 = blocks.profiles[0].rows < 1 << 31
    write_array(blocks.links_file(block), parents.astype(np.int32) if fits_int32 else parents)


def stored_parents(folder: Path, called: str, pairs: Integers, rows: int) -> ParentFiles:
    """Store the parents of links that are in memory, pairs of shape (links, 2), as one file.

    A pair is (row of the parent, row of the child), and `rows` is the number of children. −1 marks children without a
    link.
    """
    parents = np.full(rows, -1, np.int64)
    parents[pairs[:, 1]] = pairs[:, 0]
    file = folder / f"{called}-links.npy"
    write_array(file, parents)
    return ParentFiles((file,), (rows,))
