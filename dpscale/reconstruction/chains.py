"""Pairs implied by two others that meet in a third attribute: p(a, c) p(c, b) / p(c)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers
from dpscale.base.names import AttributeSet
from dpscale.reconstruction.paired import Paired


@dataclass(frozen=True, eq=False)
class Links:
    """Known pairs both ways round: `turned`, that of attributes i and j from place[i, j] on; the same over the 1-way of
    the second, `shares`; and how far each is from independence in L1, `strength`, -1 where there is no such pair.

    Of all chains that imply a pair those few are looked at whose weaker link is strongest. Not by BLAS, whose last bits
    depend on its threads.
    """

    place: Integers
    strength: Floats
    turned: Floats
    shares: Floats

    @classmethod
    def of(cls, paired: Paired, tables: Floats) -> Links:
        """Of flat tables that have the 1-ways as margins."""
        from dpscale.reconstruction import pair_loops

        count = len(paired.ones.at) - 1
        place, strength = np.zeros((count, count), np.int64), np.full((count, count), -1.0)
        links = cls(place, strength, np.empty(2 * len(tables)), np.empty(2 * len(tables)))
        pair_loops.link(tables, *paired.placed, place, strength, links.turned, links.shares)
        return links

    def nearest(self, paired: Paired, noisy: Floats) -> Floats:
        """Of the product and all chains, the one nearest to each noisy table in L2."""
        return self._followed(paired, noisy, True)[0]

    def strongest(self, paired: Paired) -> dict[AttributeSet, Floats]:
        """Of every pair the chain farthest from independence in L1; of those that have one."""
        tables, found = self._followed(paired, paired.independent(), False)
        each = paired.apart(tables).items()
        return {names: table for (names, table), one in zip(each, found.tolist(), strict=True) if one}

    def _followed(self, paired: Paired, others: Floats, nearest: bool) -> tuple[Floats, NDArray[np.bool_]]:
        from dpscale.reconstruction import pair_loops

        out, found = paired.independent(), np.zeros(len(paired.pairs), np.bool_)
        pair_loops.follow(*paired.placed, self.place, self.strength, self.turned, self.shares, others, nearest, out,
                          found)  # fmt: skip
        return out, found
