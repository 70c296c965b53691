"""Votes of privacy units for the values of a column.

A unit with r distinct values in its rows, at most k, votes for each of them with weight 1/√r, in whole steps of 1/VOTE
rounded down (`dpscale.discovery.threshold`). The votes of a unit have a squared norm of at most 1, so their noise does
not grow with k, while counts of its rows have the norm k. A value that many units have a few times each is found more
easily, and one that few units repeat often less easily.

A task leaves the distinct pairs of unit and value of its partitions. They are exchanged between workers by ranges of
the unit's hash, where each range becomes votes by value. These are exchanged, measured and thresholded like counts of
rows (`dpscale.discovery.value_counts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.arrow import buffers_of
from dpscale.base.numerics import Integers, Words
from dpscale.contributions.unit_ranges import (
    RANGES,
    SHOWN_BYTES,
    first_rows,
    masks_and_lookup,
    place_of_ranges,
    read_units,
    within_ranges,
)
from dpscale.contributions.unit_shards import UnitMap
from dpscale.discovery.threshold import VOTE
from dpscale.discovery.value_counts import ValueCounts, ValueRequest, chosen_shards, merge
from dpscale.records.searched import VALUE, text_entries
from dpscale.records.table import Partition
from dpscale.records.where import RowMask

PAIR_BYTES = 96  # of a pair while it is sorted


@dataclass(frozen=True)
class VoteRequest:
    """Column whose values units vote for.

    Attributes
    ----------
    values : ValueRequest
    unit : str
        Column of the unit's id.
    ranges : range
        Ranges of hashes of units that vote in this pass.
    """

    values: ValueRequest
    unit: str
    ranges: range = range(RANGES)


@dataclass(frozen=True, eq=False)
class UnitValues:
    """Distinct pairs of unit and value, sorted by the hash of the unit. Private, so its repr shows nothing."""

    units: Words = field(repr=False)
    words: Words = field(repr=False)

    def __sizeof__(self) -> int:
        return SHOWN_BYTES


def distinct_pairs(parts: Sequence[UnitValues]) -> UnitValues:
    """Return the distinct pairs of several parts."""
    units, words = (
        np.concatenate([np.empty((0, 2), np.uint64), *own])
        for own in ([part.units for part in parts], [part.words for part in parts])
    )
    order = np.lexsort((words[:, 1], words[:, 0], units[:, 1], units[:, 0]))
    units, words = units[order], words[order]
    new = first_rows(units)
    new[1:] |= (words[1:] != words[:-1]).any(axis=1)
    return UnitValues(units[new], words[new])


def unit_values(
    request: VoteRequest, partitions: Sequence[Partition], bounded: Sequence[Partition], *handed: RowMask | UnitMap
) -> UnitValues:
    """Return the distinct pairs of some partitions; the other arguments are those of `masks_and_lookup`."""
    masks, lookup = masks_and_lookup(bounded, handed)
    values, waiting, many = request.values, list[UnitValues](), 0
    for column, ids, kept in values.rows.columns(values.attribute, partitions, masks, request.unit):
        waiting.append(_pairs(request, column, ids, kept, lookup))
        many += len(waiting[-1].units)
        if many > values.merged:
            waiting, many = [distinct_pairs(waiting)], 0
    return distinct_pairs(waiting)


def _pairs(request: VoteRequest, column: Any, ids: Any, kept: Any, lookup: UnitMap | None) -> UnitValues:
    """Return the pairs of the rows of a batch that have a value, in the ranges of the pass."""
    from dpscale.contributions.unit_hashes import text_words

    found = text_entries(request.values.attribute, column)
    units, missing = read_units(ids, request.unit, lookup)
    has_value = (found.states == VALUE) & (found.rows >= 0)
    rows = np.flatnonzero(kept & ~missing & has_value & within_ranges(units, request.ranges))
    if not len(rows):
        return UnitValues(np.empty((0, 2), np.uint64), np.empty((0, 2), np.uint64))
    words = text_words(*buffers_of(found.texts), request.values.keys)
    return distinct_pairs([UnitValues(units[rows], words[found.rows[rows]])])


def take_pairs(pairs: UnitValues, number: int, ranges: Sequence[range]) -> UnitValues:
    """Return the pairs of the ranges of units with a number."""
    place = place_of_ranges(pairs.units, ranges[number])
    return UnitValues(pairs.units[place], pairs.words[place])


def count_votes(parts: Sequence[UnitValues], shards: range) -> ValueCounts:
    """Return the votes of the units of some ranges, in steps, for values in some shards."""
    pairs = distinct_pairs(parts)
    unit = np.cumsum(first_rows(pairs.units)) - 1
    values = np.bincount(unit)[unit] if len(unit) else unit
    chosen = chosen_shards(pairs.words, shards)
    return merge([ValueCounts(pairs.words[chosen], vote_weights(values)[chosen])])


def vote_weights(values: Integers) -> Integers:
    """Return the steps that units with some numbers of values add to each of them: floor(VOTE/√r), exactly."""
    weights = np.sqrt(VOTE**2 / np.maximum(values, 1)).astype(np.int64)
    weights -= weights**2 * values > VOTE**2
    return weights + ((weights + 1) ** 2 * values <= VOTE**2)
