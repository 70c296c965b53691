"""Rows at both ends of the links of a run, and the links that are sampled between them.

Tables with few rows are in memory. Links of a child with many rows are drawn in blocks, from the profiles of the rows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dpscale.base.numerics import Integers, Integers32, ParallelMap
from dpscale.job.sections import LinkSection
from dpscale.relational.features import Side
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.link_blocks import BLOCK_ROWS, ParentFiles, sample_blocks
from dpscale.runs.links.link_data import sizes, with_drawn
from dpscale.runs.links.link_sampling import DRAWN, sample_links, synthetic_codes
from dpscale.runs.links.measuring import MeasuredLinks, piece_of
from dpscale.runs.links.public_tables import public_tables
from dpscale.runs.links.rules import RuledRows
from dpscale.runs.links.table_profiles import TableProfiles, count_profiles
from dpscale.storage.files import present, read_text, reading, writing

MOST_CELLS = 1 << 62  # of a table whose rows are numbered by their cells
Drawn = Integers | ParentFiles


@dataclass(eq=False)
class LinkSides:
    """Rows and degree features of every table, the inputs of link sampling.

    Attributes
    ----------
    run : LinkedTables
    drawn : dict of str to ndarray
        Links whose numbers or parents are attributes in a later link.
    """

    run: LinkedTables
    drawn: dict[str, Integers] = field(default_factory=dict)
    codes: dict[str, Integers32] = field(default_factory=dict, repr=False)
    profiles: dict[str, TableProfiles] = field(default_factory=dict, repr=False)

    def of(self, link: LinkSection, each: ParallelMap) -> tuple[Side, Side]:
        """Return both sides of a link. Those of a link in blocks have one row for each profile."""
        if self.in_blocks(link):
            parents, children = self._profiles(link, each)
            return parents.side, children.side
        return self._side(link, link.parent), self._side(link, link.child)

    def in_blocks(self, link: LinkSection) -> bool:
        """Return whether the links are drawn in blocks of children.

        They are for many children of few possible kinds, unless a draw depends on other links or on an order.

        `ruled` links have rules across tables, and a context is a link whose parents are attributes of another link.
        Rows are numbered by their cells.
        """
        ruled = link.called in self.run.closed_job.linked_rules
        independent = not (link.counts or link.order or ruled or self._is_context(link)) and link.parent != link.child
        if link.via is not None or not independent:
            return False
        if link.mechanism == "published" or link.child not in self.run.tables:
            return False

        domains = [self.run.closed_job.domains[name] for name in (link.parent, link.child)]
        cells = [math.prod(int(domain[name].size) for name in domain.names) for domain in domains]
        return _rows(self.run, link.child) > BLOCK_ROWS and max(cells) < MOST_CELLS

    def _profiles(self, link: LinkSection, each: ParallelMap) -> tuple[TableProfiles, TableProfiles]:
        """Return the distinct synthetic rows (profiles) of both tables and their numbers; counted once for a table.

        `profiles` stores the result of a table, which several links may have in common.
        """
        for name in (link.parent, link.child):
            if name not in self.profiles:
                self.profiles[name] = count_profiles(self.run, name, each)
        return self.profiles[link.parent], self.profiles[link.child]

    def _side(self, link: LinkSection, table: str) -> Side:
        """Return one side of a link: the cells of a table's rows.

        Its attributes are those of the table, of a child's parents in other links, and its degrees in earlier links.
        """
        job, domain = self.run.job, self.run.closed_job.domains[table]
        sizes_of_axes, codes = [domain[name].size for name in domain.names], self._codes(table)
        for other in job.other_parents(link) if table == link.child else ():
            parents = self.run.closed_job.domains[other.parent]
            sizes_of_axes += [parents[name].size for name in parents.names]
            codes = np.column_stack([codes, self._codes(other.parent)[self._parents(other)]])
        return Side.made(with_drawn(job, link, table, codes, self.drawn), sizes_of_axes + sizes(job, link, table))

    def _parents(self, link: LinkSection) -> Integers:
        """Return the parent of every child in a drawn link of every child."""
        pairs = self.drawn[link.called]
        return pairs[np.argsort(pairs[:, 1]), 0]

    @cached_property
    def ruled(self) -> RuledRows:
        """Rows whose cells change where rules across tables require it."""
        return RuledRows(self.run.closed_job, self._codes)

    def _codes(self, table: str) -> Integers32:
        """Return the cells of a table's rows, (rows, attributes): synthetic ones unless the table is public."""
        if table not in self.codes:
            private = self.run.tables.get(table)
            self.codes[table] = public_tables(self.run)[table][0] if private is None else synthetic_codes(private)
        return self.codes[table]

    def known(self, link: LinkSection, found: MeasuredLinks, each: ParallelMap, wanted: bool = False) -> Drawn:
        """Return the links of `link` as rows, (links, 2); empty unless they are wanted or the context of a later link.

        Links of a context are drawn only once and stored, because the measurement of the later link depends on them.
        Links in blocks are in files.
        """
        is_context = self._is_context(link)
        if not (is_context or wanted):
            return np.empty((0, 2), np.int64)
        if wanted:  # changes by rules have one order: links that are stored come first
            for other in self.run.job.link:
                if self._is_context(other) and other.called not in self.drawn:
                    self._rule(other, self._stored_links(other))
        if link.called in self.drawn:
            return self.drawn[link.called]
        if self.in_blocks(link):
            return sample_blocks(self.run, link, self._profiles(link, each), found, each)

        pairs = self._stored_links(link) if is_context else None
        if pairs is None:
            pairs = sample_links(self.run, link, self.of(link, each), found)
        if is_context:
            self._store_links(link, pairs)
        return self._rule(link, pairs)

    def _is_context(self, link: LinkSection) -> bool:
        """Return whether a later link has the numbers or the parents of these links as attributes."""
        return any(link.called in (*(one.counts or ()), *(one.parents or ())) for one in self.run.job.link)

    def _rule(self, link: LinkSection, pairs: Integers | None) -> Integers:
        """Return links that satisfy the rules across tables; those of a context are remembered.

        `bounded` states whether a parent has at most link.bound links. A context is a link that a later one reads.
        """
        if pairs is None:
            return np.empty((0, 2), np.int64)
        bounded = link.kind == "one-to-one" or piece_of(self.run, link).bounded
        found = self.ruled.apply(link, pairs, link.bound if bounded else None, self.run.manifest["release"])
        if self._is_context(link):
            self.drawn[link.called] = found
        return found

    def _stored_links(self, link: LinkSection) -> Integers | None:
        """Return the links that an earlier draw stored, shape (links, 2); None if there are none."""
        path = self.run.path / "links" / link.called / DRAWN
        if not present(path):
            return None
        with reading(path) as file:
            return np.asarray(np.load(file, allow_pickle=False))

    def _store_links(self, link: LinkSection, pairs: Integers) -> None:
        """Store drawn links, unless links are stored, so that every later draw sees the same ones."""
        path = self.run.path / "links" / link.called / DRAWN
        if not present(path):
            with writing(path) as file:
                np.save(file, pairs, allow_pickle=False)


def _rows(run: LinkedTables, table: str) -> int:
    """Return the number of synthetic rows of a table."""
    return int(json.loads(read_text(run.tables[table].path / "synthetic" / "_rows.json"))["rows"])
