"""Links between rows as they are synthesised or public: post-processing, free and repeatable."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.database.job import LinkSection
from dpscale.database.measuring import MeasuredLinks, bounded
from dpscale.database.run import DatabaseRun
from dpscale.reconstruct.pairwise.chance import Chance
from dpscale.relational.assign import assigned
from dpscale.relational.believed import Sums, expected_links
from dpscale.relational.degrees import by_chance, children, cut, degrees, distribution, within_bounds
from dpscale.relational.published import drawn_children, drawn_pairs
from dpscale.relational.rounding import moved_over, settled, settled_children
from dpscale.relational.sides import Side
from dpscale.runs.estimates import model_folder
from dpscale.runs.run import Run
from dpscale.runs.ways import read_way
from dpscale.storage.files import read_text
from dpscale.synthesize.draw import parts_of

Integers = NDArray[np.int64]
Array = NDArray[np.float64]
FAR = 50


def synthetic_codes(run: Run) -> NDArray[np.int32]:
    """(rows, attributes): the synthetic rows of a table as cells, drawn again: the same that its files hold."""
    told = json.loads(read_text(run.path / "synthetic" / "_rows.json"))
    way = read_way(model_folder(run), told["method"])
    release = run.manifest["release"]
    rows = np.concatenate([way.rows(part, release) for part in parts_of(told["rows"], told["parts"])])
    return rows[:, [way.names.index(name) for name in run.domain.names]]


def drawn_links(run: DatabaseRun, link: LinkSection, sides: tuple[Side, Side], measured: MeasuredLinks) -> Integers:
    """(links, 2): rows of the parent and of the child."""
    return _Drawing(run, link, sides, measured).rows()


@dataclass(frozen=True, eq=False)
class _Drawing:
    run: DatabaseRun
    link: LinkSection
    sides: tuple[Side, Side]
    measured: MeasuredLinks

    @property
    def known(self) -> bool:
        return self.link.kind != "many-to-many"

    @property
    def links(self) -> float:
        """No more than rows of both sides have room for."""
        room = [side.rows * bound for side, bound in zip(self.sides, self.bounds, strict=True) if bound is not None]
        return float(round(min([self.measured.links, *room])))

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The most links of a row on either side; None: any number."""
        if self.known:
            return (self.link.bound if self.link.kind == "one-to-one" or bounded(self.run, self.link) else None), 1
        return self.link.bound, self.link.bound if self.run.whom.replaces else None

    def rows(self) -> Integers:
        (u, v), chance = self.sides, Chance(self.run.manifest["release"], f"links {self.link.called}")
        if not (u.rows and v.rows):
            return np.empty((0, 2), np.int64)
        if self.measured.chances is not None and not self.known:
            pairs = drawn_pairs(self.measured.chances, u, v, int(self.measured.links), chance)
            return cut(pairs, self.bounds, chance)
        whole = self._whole(chance)
        one, two = (self._degrees(place, whole.sum(axis=1 - place), chance) for place in (0, 1))
        return assigned(whole, u, v, one, two, chance)

    def _whole(self, chance: Chance) -> Array:
        """Numbers of links by profiles."""
        u, v = self.sides
        if self.measured.chances is not None:
            whole = drawn_children(self.measured.chances, u, v, chance)
            if self.bounds[0] is not None:
                moved_over(whole, self.bounds[0] * u.counts, self.measured.chances, chance)
            return whole
        assert self.measured.shares is not None
        expected = expected_links(u, v, self.measured.shares, Sums(*self.measured.sums), self.links, self.known)
        if self.known:
            return settled_children(expected, u, v, self.bounds[0], chance)
        whole = settled(expected, u, v, np.multiply.outer(u.counts, v.counts), chance)
        return within_bounds(whole, u, v, *self.bounds, chance)

    def _degrees(self, place: int, totals: Array, chance: Chance) -> list[Integers]:
        side, name, bound = self.sides[place], ("parent", "child")[place], self.bounds[place]
        if self.known and place == 1:
            return children(totals, side, chance)
        most = bound or int(max((totals / side.counts).max() * 4 + FAR, 1))
        noisy = self.measured.by_degree.get(name)
        if noisy is None:
            return degrees(totals, side, by_chance(float(totals.sum()), side.rows, most), chance)
        shares = distribution(noisy, side.rows)
        return degrees(totals, side, np.concatenate([shares, np.zeros(max(most - len(shares) + 1, 0))]), chance)
