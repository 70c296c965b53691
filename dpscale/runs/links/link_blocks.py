"""Drawing of many links in blocks, as tasks: the parents of consecutive children, from a part of the parents each.

The distribution of links over pairs of profiles is fitted once. A block has a random part of the parents and as many of
the children, in the order of their table, so all children of a parent are in one block: bounds and degrees are those of
a block alone. Parents without a bound are in all blocks. The number of blocks depends only on the number of children,
and each has a random stream of its own, so the links are the same on any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from dpscale.base.numerics import Floats, Integers, ParallelMap
from dpscale.job.tables import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.relational.assignment import MOST, assign_links
from dpscale.relational.degrees import children, degrees, distribution, poisson_degrees, sample_uniform_degrees
from dpscale.relational.features import Side
from dpscale.relational.link_estimation import Sums, are_many, expected_links, grouped_links, row_degrees
from dpscale.relational.rounding import round_children, round_columns
from dpscale.runs.composite import CompositeRun
from dpscale.runs.links.link_sampling import Drawing, with_siblings
from dpscale.runs.links.measuring import SIDES, MeasuredLinks
from dpscale.runs.links.table_profiles import FOLDER, TableProfiles
from dpscale.runs.row_numbers import read_array, write_array

BLOCK_ROWS = 1 << 20  # children of a block


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of the profiles of both sides, if there are too many pairs of profiles.

    Attributes
    ----------
    u, v : ndarray
        Group of every profile.
    ends : ndarray
        Expected links of a row of each profile of u.
    """

    u: Integers
    v: Integers
    ends: Floats


@dataclass(frozen=True, eq=False)
class BlockModel:
    """What every block of a link needs.

    Attributes
    ----------
    release : str
    link : LinkSection
    folder : Path
        Of the files with the parents and the links of every block.
    profiles : tuple of TableProfiles
    expected : ndarray
        Expected links by profiles, or by groups.
    groups : Groups or None
    bound : int or None
    law : ndarray or None
        Share of parents of every degree; None without a bound.
    measured : MeasuredLinks
    ends : tuple of int
        Start of the children of each block, and the end of the last.
    numbers : tuple of int
        Number of the links of each block.
    """

    release: str
    link: LinkSection
    folder: Path
    profiles: tuple[TableProfiles, TableProfiles]
    expected: Floats
    groups: Groups | None
    bound: int | None
    law: Floats | None
    measured: MeasuredLinks
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
        """Return the row of the parent of each child from `first` up to but excluding `last`; −1 for none."""
        found = [np.empty(0, np.int64)]
        for file, begun, end in zip(self.files, (0, *self.ends), self.ends, strict=False):
            if begun < last and first < end:
                found.append(read_array(file)[max(first - begun, 0) : last - begun])
        return np.concatenate(found)


def sample_blocks(run: CompositeRun, link: LinkSection, profiles: tuple[TableProfiles, TableProfiles],
                  measured: MeasuredLinks, each: ParallelMap) -> ParentFiles:  # fmt: skip
    """Draw the links of all blocks and return their files."""
    model = _model(run, link, profiles, measured)
    blocks = len(model.numbers)
    _divide_parents(model, profiles[0].rows)
    list(each(partial(draw_block, model), range(blocks)))
    return ParentFiles(tuple(model.links_file(block) for block in range(blocks)), model.ends[1:])


def _model(run: CompositeRun, link: LinkSection, profiles: tuple[TableProfiles, TableProfiles],
           measured: MeasuredLinks) -> BlockModel:  # fmt: skip
    u, v = profiles[0].side, profiles[1].side
    drawing = Drawing(run, link, (u, v), measured)
    assert measured.shares is not None
    sums, links, bound, groups = Sums(*measured.sums), drawing.links, drawing.bounds[0], None
    if link.nulls != "keep":
        links = min(float(v.rows), links) if bound is not None else float(v.rows)
    if are_many(u, v):
        stream = PublicStream(run.manifest["release"], f"links {link.called}")
        found = grouped_links(u, v, measured.shares, sums, links, True, stream)
        expected, groups = found.links, Groups(found.u.of, found.v.of, found.u_ends)
    else:
        expected = expected_links(u, v, measured.shares, sums, links, True)
    noisy, law = measured.by_degree.get(SIDES[0]), None
    if bound is not None:
        law = (poisson_degrees(links, u.rows, bound) if noisy is None
               else distribution(noisy, u.rows, measured.sigma, links))  # fmt: skip
    blocks = -(-v.rows // BLOCK_ROWS)
    ends = [block * u.rows // blocks for block in range(blocks + 1)]
    cuts, numbers = ([int(whole * end // u.rows) for end in ends] for whole in (v.rows, int(links)))
    each = tuple(min(last - first, end - begun) for (first, last), (begun, end) in
                 zip(pairwise(numbers), pairwise(cuts), strict=True))  # fmt: skip
    few = replace(measured, by_degree={})
    return BlockModel(run.manifest["release"], link, run.path / FOLDER, profiles, expected, groups, bound, law, few,
                      tuple(cuts), each)  # fmt: skip


def _divide_parents(model: BlockModel, rows: int) -> None:
    """Store a random part of the parents for every block; all parents are in each block if they have no bound."""
    if model.bound is None:
        return
    order = PublicStream(model.release, f"parents of blocks of links {model.link.called}").permutation(rows)
    kinds, blocks = model.profiles[0].of(0, rows).astype(np.int32), len(model.numbers)
    for block in range(blocks):
        own = np.sort(order[block * rows // blocks : (block + 1) * rows // blocks])
        write_array(model.parents_file(block), np.stack([own, kinds[own]]))


def draw_block(model: BlockModel, block: int) -> None:
    """Draw the links of a block and store the parent of each child."""
    first, last = model.ends[block : block + 2]
    kinds = model.profiles[1].of(first, last)
    if model.bound is None:
        above = model.profiles[0].of(0, model.profiles[0].rows)
        rows = np.arange(len(above))
    else:
        rows, above = read_array(model.parents_file(block))
    stream, number = model.stream(block), model.numbers[block]
    having = np.arange(len(kinds))
    if number < len(kinds):
        having = np.sort(stream.permutation(len(kinds))[:number])
    parents = np.full(len(kinds), -1, np.int64)
    if len(having) and len(rows):
        pairs = _linked(model, above, kinds[having], stream)
        parents[having[pairs[:, 1]]] = rows[pairs[:, 0]]
    small = model.profiles[0].rows < 1 << 31
    write_array(model.links_file(block), parents.astype(np.int32) if small else parents)


def _linked(model: BlockModel, above: Integers, below: Integers, stream: PublicStream) -> Integers:
    """Return the links between parents and children of the given profiles, as positions, shape (links, 2)."""
    (one, _), (two, _) = (_some(whole.side, of) for whole, of in zip(model.profiles, (above, below), strict=True))
    groups = model.groups
    if groups is None:
        u, v, expected = one, two, _expected(model, above, below)
        whole = round_children(expected, u, v, model.bound, stream)
        each = (whole.sum(axis=1) / u.counts)[u.of]
    else:
        above_groups, below_groups = groups.u[above], groups.v[below]
        u, v = (replace(_some(side, of)[0], profiles=side.profiles[:0]) for side, of in
                ((_grouped(model, 0), above_groups), (_grouped(model, 1), below_groups)))  # fmt: skip
        expected = _expected(model, above_groups, below_groups)
        whole = round_columns(expected, v.counts, model.bound, u.counts, stream)
        each = groups.ends[above]
    totals = whole.sum(axis=1)
    if model.law is None:
        first = sample_uniform_degrees(each, u, totals, stream)
    elif groups is None:
        first = degrees(totals, u, model.law, stream)
    else:
        first = row_degrees(each, model.law, u, totals, stream)
    links = assign_links(whole, u, v, first, children(whole.sum(axis=0), v, stream), stream)
    known = expected if groups is None else None
    return with_siblings(links, (one, two), known, model.measured, stream, MOST // len(model.numbers))


def _some(side: Side, of: Integers) -> tuple[Side, Integers]:
    """Return the side of rows of the given profiles, and these profiles."""
    kinds, own = np.unique(of, return_inverse=True)
    counts = np.bincount(own, minlength=len(kinds)).astype(float)
    return Side(side.sizes, side.profiles[kinds], counts, own.reshape(-1)), kinds


def _grouped(model: BlockModel, place: int) -> Side:
    """Return a side with groups instead of profiles."""
    assert model.groups is not None
    of, side = (model.groups.u, model.groups.v)[place], model.profiles[place].side
    number = int(of.max(initial=0)) + 1
    counts = np.asarray(np.bincount(of, side.counts, number), dtype=np.float64)
    return Side(side.sizes, np.zeros((number, len(side.sizes)), np.int64), counts, np.arange(number))


def _expected(model: BlockModel, above: Integers, below: Integers) -> Floats:
    """Return the expected links of a block: the share of its parents and children in those of the whole link."""
    sides = [one.side if model.groups is None else _grouped(model, place)
             for place, one in enumerate(model.profiles)]  # fmt: skip
    (one, first), (two, second) = (_some(side, of) for side, of in zip(sides, (above, below), strict=True))
    found = model.expected[np.ix_(first, second)] * np.outer(
        one.counts / sides[0].counts[first], two.counts / sides[1].counts[second]
    )
    return np.asarray(found * (two.counts / np.maximum(found.sum(axis=0), 1e-300)))


def stored_parents(folder: Path, called: str, pairs: Integers, rows: int) -> ParentFiles:
    """Store the parents of links that are in memory, pairs of shape (links, 2), as one file."""
    parents = np.full(rows, -1, np.int64)
    parents[pairs[:, 1]] = pairs[:, 0]
    file = folder / f"{called}-links.npy"
    write_array(file, parents)
    return ParentFiles((file,), (rows,))

