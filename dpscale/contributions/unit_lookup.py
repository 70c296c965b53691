"""Resolution of the privacy unit of a row through a chain of foreign keys (order → account → person).

A hop maps the keys of a table to the units that own them. A key must belong to one unit: if rows of two units had the
same key, removing one unit would change the owner of the other's rows, so this is refused. A key that no row has
belongs to no unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Integers, Words
from dpscale.base.errors import DataError


@dataclass(frozen=True, eq=False)
class Through:
    """Map from keys to units; the repr shows neither array.

    Attributes
    ----------
    words : ndarray of uint64, shape (n, 2)
        Hashes of the keys, sorted and unique.
    units : ndarray of uint64, shape (n, 2)
        Hashes of the units that own them.
    """

    words: Words = field(repr=False)
    units: Words = field(repr=False)

    @classmethod
    def made(cls, words: Words, units: Words) -> Through:
        """Build the map from rows in any order. Raises DataError for a key of two units."""
        order = np.lexsort((units[:, 1], units[:, 0], words[:, 1], words[:, 0]))
        ranked = words[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
        owned = units[order]
        if (~first[1:] & (owned[1:] != owned[:-1]).any(axis=1)).any():
            raise DataError(
                "data.path",
                "a key whose rows belong to two units",
                "one unit per key",
                "use separate keys: the rows of a unit must not depend on another unit",
            )
        return cls(ranked[first], owned[first])

    def __call__(self, words: Words) -> tuple[Words, NDArray[np.bool_]]:
        """Return the unit of each key, and which keys have none."""
        at = places(self.words, words)
        found = self.units[np.maximum(at, 0)] if len(self.units) else np.zeros_like(words)
        return found, at < 0

    def cut(self, keys: int) -> list[Through]:
        """Split the map into parts of `keys` keys, for messages; `joined` concatenates them."""
        starts = range(0, max(len(self.words), 1), keys)
        return [Through(self.words[at : at + keys], self.units[at : at + keys]) for at in starts]

    @classmethod
    def joined(cls, pieces: Sequence[Through]) -> Through:
        return cls(*(np.concatenate(own) for own in ([one.words for one in pieces], [one.units for one in pieces])))

    def __sizeof__(self) -> int:
        return self.words.nbytes + self.units.nbytes

    def then(self, following: Through) -> Through:
        """Compose with the next hop; keys whose unit it does not know are removed."""
        units, missing = following(self.units)
        return Through(self.words[~missing], units[~missing])


def composed(hops: Sequence[Through]) -> Through:
    """Return the composition of all hops."""
    whole = hops[-1]
    for hop in reversed(hops[:-1]):
        whole = hop.then(whole)
    return whole


def places(known: Words, words: Words) -> Integers:
    """Return the position of each word pair among sorted ones; −1 if absent."""
    if not len(known):
        return np.full(len(words), -1)
    first = known[:, 0]
    if (first[1:] != first[:-1]).all():
        at = np.searchsorted(first, words[:, 0])
    else:
        at = np.searchsorted(_pairs(known), _pairs(words))
    at = np.minimum(at, len(known) - 1)
    return np.where((known[at] == words).all(axis=1), at, -1)


def _pairs(words: Words) -> NDArray[np.void]:
    """Return a structured view that compares by the first word, then the second."""
    return np.ascontiguousarray(words).view([("first", np.uint64), ("second", np.uint64)]).reshape(-1)
