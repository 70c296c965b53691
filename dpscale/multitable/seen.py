"""The tables as links see them: rows that are public or synthesised, with what the links drawn before say of each."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dpscale.base.arrays import Integers
from dpscale.multitable.counted import sizes, with_drawn
from dpscale.multitable.drawing import drawn_links, synthetic_codes
from dpscale.multitable.job import LinkSection
from dpscale.multitable.measuring import MeasuredLinks
from dpscale.multitable.run import DatabaseRun
from dpscale.multitable.writing import public_table
from dpscale.relational.sides import Side
from dpscale.storage.files import present, reading, writing

DRAWN = "drawn.npy"  # beside what was measured: synthetic rows, as the released files have them


@dataclass(eq=False)
class Sides:
    """`drawn`: the rows of links that later links count."""

    run: DatabaseRun
    drawn: dict[str, Integers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tables, job = self.run.tables, self.run.job
        self.public = {
            name: public_table(job.tables[name], one) for name, one in job.domains.items() if name not in tables
        }
        self.codes = {name: codes for name, (codes, _) in self.public.items()}
        self.codes |= {name: synthetic_codes(table) for name, table in tables.items()}

    def of(self, link: LinkSection) -> tuple[Side, Side]:
        return self._side(link, link.parent), self._side(link, link.child)

    def _side(self, link: LinkSection, table: str) -> Side:
        job, domain = self.run.job, self.run.job.domains[table]
        own = [domain[one].size for one in domain.names] + sizes(job, link, table)
        return Side.made(with_drawn(job, link, table, self.codes[table], self.drawn), own)

    def known(self, link: LinkSection, found: MeasuredLinks, wanted: bool = False) -> Integers:
        """Draw the links where they are wanted, or a later link counts them: those once, since what is measured of the
        later link follows from them. (links, 2) rows; none where nobody asks."""
        counts = any(link.called in (one.counts or ()) for one in self.run.job.link)
        if not (counts or wanted):
            return np.empty((0, 2), np.int64)
        pairs = self._kept(link) if counts else None
        if pairs is None:
            pairs = drawn_links(self.run, link, self.of(link), found)
        if counts:
            self._keep(link, pairs)
        return pairs

    def _kept(self, link: LinkSection) -> Integers | None:
        path = self.run.path / "links" / link.called / DRAWN
        if not present(path):
            return None
        with reading(path) as file:
            return np.asarray(np.load(file, allow_pickle=False))

    def _keep(self, link: LinkSection, pairs: Integers) -> None:
        path = self.run.path / "links" / link.called / DRAWN
        self.drawn[link.called] = pairs
        if not present(path):
            with writing(path) as file:
                np.save(file, pairs, allow_pickle=False)
