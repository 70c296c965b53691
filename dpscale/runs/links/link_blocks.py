"""Drawing of many links in blocks, as tasks: the parents of consecutive children, from a part of the parents each.

The distribution of links over pairs of profiles is fitted once. A block has a random part of the parents and as many of
the children, in the order of their table, so all children of a parent are in one block: bounds and degrees are those of
a block alone. Parents without a bound are in all blocks. The number of blocks depends only on the number of children,
and each has a random stream of its own, so the links are the same on any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from dpscale.base.numerics import Integers, ParallelMap
from dpscale.job.sections import LinkSection
from dpscale.privacy.streams import PublicStream
from dpscale.relational.assignment import MOST, ChildModel, Groups
from dpscale.relational.degrees import distribution, poisson_degrees
from dpscale.relational.link_estimation import Sums, are_many, expected_links, grouped_links
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.link_sampling import Drawing, sibling_target
from dpscale.runs.links.measuring import SIDES, MeasuredLinks
from dpscale.runs.links.table_profiles import FOLDER, TableProfiles
from dpscale.runs.stages.row_numbers import read_array, write_array

BLOCK_ROWS = 1 << 20  # children of a block


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

        `ends` are the numbers of rows up to the end of each file, so a file has the rows from the previous end.
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
    part of all parents, so that blocks can be drawn independently within the parents' bound.

    `u` and `v` are the parents and the children by profile. `expected` has the number of links of each pair of
    profiles, or of groups of profiles if there are many; `law` is the distribution of the degrees of parents with a
    bound.
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

    # rounded up
    blocks = -(-v.rows // BLOCK_ROWS)
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
    """Store a random part of the parents for every block; all parents are in each block if they have no bound.

    `kinds` has the profile of each row. A file has the rows of the block's parents and their profiles.
    """
    if blocks.model.bound is None:
        return
    order = PublicStream(blocks.release, f"parents of blocks of links {blocks.link.called}").permutation(rows)
    kinds, count = blocks.profiles[0].of(0, rows), len(blocks.numbers)
    for block in range(count):
        members = np.sort(order[block * rows // count : (block + 1) * rows // count])
        write_array(blocks.parents_file(block), np.stack([members, kinds[members]]))


def draw_block(blocks: LinkBlocks, block: int) -> None:
    """Draw the links of a block and store the parent of each child.

    A child without a link has the parent -1. The row numbers in `pairs` are those inside the block.

    `first` and `last` are the ends of the block's children. With a bound a block has its own parents, stored before;
    without one, all parents.
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
