"""Search for the values of a column that occur often: noisy counts of keyed hashes, above a threshold.

Each task leaves sorted 128-bit hashes and counts; they are exchanged between workers by SHARDS ranges of the first
word, and each range is summed, measured and thresholded in one task. The noise of a range is one keyed stream in the
order of the hashes. Hashes and noise depend on the secret of the release and on the values alone, so partitions,
schedulers and retries change nothing. Only hashes that pass leave the workers. The texts of these are read in a second
pass; nothing below the threshold is ever in a result, and the number of values is never reported.

The count of every value is measured with Gaussian noise, and the values above the threshold are cells (`Threshold`).
One row changes one count by one, so a unit of k rows costs k² times the squared mu of one row. The cells that it finds
are measured again with the rest of the budget, so their answers need no correction for the selection. With `count =
"units"` the votes of units are measured instead, whose sensitivity does not grow with k.

*Votes of privacy units for values.*
A unit with r distinct values in its rows, at most k, votes for each of them with weight 1/√r, in whole steps of 1/VOTE
rounded down (`Threshold`). The votes of a unit have a squared norm of at most 1, so their noise does
not grow with k, while counts of its rows have the norm k. A value that many units have a few times each is found more
easily, and one that few units repeat often less easily.

A task leaves the distinct pairs of unit and value of its partitions. They are exchanged between workers by ranges of
the unit's hash, where each range becomes votes by value. These are exchanged, measured and thresholded like counts of
rows.

*Threshold.* The values of an open column are not public: a value that only one unit has must not appear. With integer
noise z of variance v, the count n of a value is released as y = m n + z, and only where y >= t. Let a unit have r_1 + …
+ r_j <= k rows with values of no other unit. The probability that one of them appears is
    1 - Π_j (1 - P(z >= t - m r_j)) =: δ_T,
and on the complement of this event the release has the law of a Gaussian mechanism on the values that the other units
have. Hence δ(ε) <= δ_μ(ε) + δ_T for every ε. Over columns and releases the δ_T add (docs/privacy.md).

With votes a unit of r values adds w_r = floor(W/√r) to each of them, at most k. If all of them are values of no other
unit, one appears with probability 1 - (1 - P(z >= t - m w_r))^r; if fewer are, with less. So δ_T is the largest of
these for r = 1 … k, and the squared L2 sensitivity is r w_r² <= W², whatever k is.

The tail of the discrete Gaussian is bounded by that of a continuous one,
    P(z >= x) <= Q((x - 1/2)/sqrt(v)),   x - 1/2 >= sqrt(v),
since exp(-t²/2v) is convex there, so each term is at most the integral over the unit interval around it, and
Σ_j exp(-j²/2v) >= sqrt(2πv) by Poisson summation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpscale.base.arrow import buffers_of, pa
from dpscale.base.errors import JobError
from dpscale.base.numerics import Integers, NDArray, Words
from dpscale.contributions.unit_shards import (
    RANGES,
    SHOWN_BYTES,
    UnitMap,
    distinct_rows,
    first_rows,
    masks_and_lookup,
    place_of_ranges,
    places,
    read_units,
    within_ranges,
)
from dpscale.discovery.reading import SearchRows
from dpscale.domain.attribute import Attribute
from dpscale.domain.search import ValueSearch
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.privacy.secret import SecretFile
from dpscale.privacy.streams import open_stream
from dpscale.records.searched import VALUE, text_entries
from dpscale.records.table import Partition
from dpscale.records.where import RowMask

ROUNDING = 1e-9  # relative error that covers the rounding of every float here
MOST_MULTIPLIER = 1 << 28  # counts below 2^34 times it fit in 62 bits
LEAST = 1e-300  # of a bound: smaller ones would be rounded to 0
MOST_SPLIT = 2000  # rows of a unit of which all splits are compared
GRID = 1.02  # ratio of the numbers of rows between which the loss is bounded, for more rows
VOTE = 256  # steps of the vote of a unit with one value


def vote_weight(values: int) -> int:
    """Return the steps that a unit of some values adds to each of them."""
    return math.isqrt(VOTE**2 // values)


def search_draw(share: Fraction, rows_per_unit: int, what: str, squared_l2: int = 1) -> GaussianDraw:
    """Return the noise of a histogram whose measurement costs `share` of squared mu, or slightly less.

    Parameters
    ----------
    share : Fraction
    rows_per_unit : int
        Contribution bound.
    what : str
        Name of the measurement in an error.
    squared_l2 : int
        Squared change of the histogram by one row.

    Raises
    ------
    PlanError, JobError
        If the budget is too small, or so large that counts times the multiplier could exceed 64 bits.

    Guarantee
    ---------
    Protected: a noisy histogram of an attribute whose cells are not public.
    Cost: μ² of Gaussian DP of at most `share`.
    Neighbours: added or removed rows: at most rows_per_unit of one unit.
    Proof: docs/privacy.md, Cells that are not public; tests/discovery/test_threshold.py.
    """
    draw = gaussian_draw(squared_l2, share, rows_per_unit, what)
    if not draw.fits_words or draw.multiplier > MOST_MULTIPLIER:
        raise JobError("privacy", f"a budget with which {what} cannot be measured on integers of 64 bits",
                       "a budget between 1e-20 and 1e9 of squared mu", "change it, or budget.discover")  # fmt: skip
    return draw


def tail_bound(distance: int, variance: int) -> float:
    """Return an upper bound of P(z >= distance) for the discrete Gaussian of a variance.

    Parameters
    ----------
    distance : int
        The bound is 1 below a standard deviation.
    variance : int

    Returns
    -------
    float

    References
    ----------
    Canonne, Kamath, Steinke (2020), The Discrete Gaussian for Differential Privacy.
    """
    if distance < 1 or (2 * distance - 1) ** 2 < 4 * variance:
        return 1.0
    bound = math.erfc(math.sqrt(Fraction((2 * distance - 1) ** 2, 8 * variance))) / 2
    return min(max(bound * (1 + ROUNDING), LEAST), 1.0)


def delta_of(threshold: int, draw: GaussianDraw, rows_per_unit: int) -> float:
    """Return the largest probability that a value of one unit alone passes a threshold.

    The noise of values is independent, so the probability that none of a split passes is a product, and its −log the
    sum of the losses −log(1 − p) of its values. δ is 1 − exp(−largest sum over all splits).

    Parameters
    ----------
    threshold : int
        Least released value of `multiplier` · count + noise.
    draw : GaussianDraw
    rows_per_unit : int
        Contribution bound k: the rows of the unit may be split over several values in any way.
    """
    many = rows_per_unit > MOST_SPLIT
    numbers = _grid(rows_per_unit) if many else list(range(1, rows_per_unit + 1))
    # probability that a value of so many rows passes
    passing = [tail_bound(threshold - draw.multiplier * rows, draw.variance) for rows in numbers]
    if max(passing) >= 1:
        return 1.0

    losses = -np.log1p(-np.array(passing))
    if many:  # of r rows between two numbers of the grid, the loss is at most that of the larger one
        # so a row adds at most the largest loss of a number over the least rows that have it
        least = np.array([1, *(number + 1 for number in numbers[:-1])])
        return min(-math.expm1(-float((losses / least).max()) * rows_per_unit) * (1 + ROUNDING), 1.0)
    return min(-math.expm1(-_largest_sum(losses)) * (1 + ROUNDING), 1.0)


def delta_of_votes(threshold: int, draw: GaussianDraw, values: int) -> float:
    """Return the largest probability that a value of one unit alone passes a threshold of votes (see the module).

    Parameters
    ----------
    threshold : int
        Least released value of `multiplier` · votes + noise.
    draw : GaussianDraw
    values : int
        Largest number of values of a unit.
    """
    numbers = _grid(values) if values > MOST_SPLIT else list(range(1, values + 1))
    # fewest values up to each number, which have the largest weight
    least = [1, *(number + 1 for number in numbers[:-1])]
    passing = [tail_bound(threshold - draw.multiplier * vote_weight(number), draw.variance) for number in least]
    if max(passing) >= 1:
        return 1.0
    losses = [most * -math.log1p(-probability) for most, probability in zip(numbers, passing, strict=True)]
    return min(-math.expm1(-max(losses)) * (1 + ROUNDING), 1.0)


def _grid(rows: int) -> list[int]:
    """Return ascending numbers of rows up to `rows`, about in a constant ratio.

    The ratio is GRID; small numbers grow by 1.
    """
    numbers = [1]
    while numbers[-1] < rows:
        numbers.append(min(max(numbers[-1] + 1, int(numbers[-1] * GRID)), rows))
    return numbers


def _largest_sum(losses: np.ndarray) -> float:
    """Return the largest sum of losses[r_1 - 1] + losses[r_2 - 1] + … over all splits of len(losses) rows.

    best[t] = max over r = 1 … t of losses[r - 1] + best[t - r], best[0] = 0.
    """
    rows = len(losses)
    best = np.zeros(rows + 1)
    for total in range(1, rows + 1):
        others = best[total - 1 :: -1]  # best of total - 1, total - 2, …, 0 rows
        best[total] = (losses[:total] + others).max()
    return float(best[rows])


@dataclass(frozen=True)
class Threshold:
    """Threshold of the noisy counts of one column.

    Attributes
    ----------
    draw : GaussianDraw
        Noise; a count n is measured as `draw.multiplier` · n + z.
    value : int
        Least released measurement.
    delta : Fraction
        Upper bound of the probability that a value of one unit alone is released.
    steps : int
        Steps of a row, or of the vote of a unit.
    """

    draw: GaussianDraw
    value: int
    delta: Fraction
    steps: int = 1

    @property
    def records(self) -> float:
        """Threshold in records, or in votes."""
        return self.value / (self.draw.multiplier * self.steps)


def threshold_for(draw: GaussianDraw, delta: Fraction, rows_per_unit: int, votes: bool = False) -> Threshold:
    """Return the lowest threshold whose additive delta is at most `delta`.

    Parameters
    ----------
    draw : GaussianDraw
    delta : Fraction
    rows_per_unit : int
    votes : bool
        Whether units vote for their values.

    Returns
    -------
    Threshold

    Guarantee
    ---------
    Protected: the cells whose noisy count exceeds the threshold; cells without records are never shown.
    Cost: the cost of `draw`, and an additive delta of at most `delta` for cells of one unit alone.
    Neighbours: added or removed rows: at most rows_per_unit of one unit, or one vote of a unit for each value.
    Proof: docs/privacy.md, Cells that are not public; tests/discovery/test_threshold.py.
    """
    delta_at, steps = (delta_of_votes, VOTE) if votes else (delta_of, 1)
    most, low = float(delta), 0
    # larger steps until the threshold is high enough, then bisection
    step = math.isqrt(draw.variance) + draw.multiplier * (VOTE if votes else rows_per_unit)
    while delta_at(low + step, draw, rows_per_unit) > most:
        low, step = low + step, 2 * step
    high = low + step

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if delta_at(middle, draw, rows_per_unit) <= most else (middle, high)

    return Threshold(draw=draw, value=high, delta=Fraction(delta_at(high, draw, rows_per_unit)), steps=steps)


SHARD_BITS = 8  # highest bits of the first word of a hash, which are the number of its range
SHARDS = 1 << SHARD_BITS  # ranges of hashes, each measured in one task
LEAST_MERGED, MOST_MERGED = 1 << 16, 1 << 21  # entries that wait before they are merged

ENTRY_BYTES = 72  # of a distinct value while it is merged
Record = Mapping[str, Any]
NONE_FOUND = "(no value found)"


@dataclass(frozen=True, eq=False)
class ValueCounts:
    """Distinct hashes, sorted, and their counts. Private, so its repr shows nothing."""

    words: Words = field(repr=False)
    counts: Integers = field(repr=False)

    def __sizeof__(self) -> int:
        return SHOWN_BYTES

    def part(self, number: int) -> ValueCounts:
        """Return the range of hashes with a number."""
        ends = np.searchsorted(_shards(self.words), [number, number + 1])
        return ValueCounts(self.words[slice(*ends)], self.counts[slice(*ends)])


def _shards(words: Words) -> NDArray[np.int64]:
    return (words[:, 0] >> np.uint64(64 - SHARD_BITS)).astype(np.int64)


def merge(parts: Sequence[ValueCounts]) -> ValueCounts:
    """Return the sums of counts of equal hashes, sorted by hash.

    `words` has the two words of each hash.
    """
    words = np.concatenate([np.empty((0, 2), np.uint64), *(part.words for part in parts)])
    counts = np.concatenate([np.empty(0, np.int64), *(part.counts for part in parts)])
    order = np.lexsort((words[:, 1], words[:, 0]))
    words, counts = words[order], counts[order]
    new = np.ones(len(words), dtype=bool)
    new[1:] = (words[1:] != words[:-1]).any(axis=1)
    starts = np.flatnonzero(new)

    return ValueCounts(words[starts], np.add.reduceat(counts, starts) if len(starts) else counts)


@dataclass(frozen=True, eq=False)
class ValueRequest:
    """Column whose values are counted.

    Attributes
    ----------
    rows : SearchRows
    attribute : Attribute
    secret : SecretFile
    record : mapping
        Record of the search, which identifies keys and noise.
    shards : range
        Numbers of the ranges of hashes that are counted in this pass.
    merged : int
        Number of entries that wait in a task before they are merged.
    """

    rows: SearchRows
    attribute: Attribute
    secret: SecretFile
    record: Record = field(repr=False)
    shards: range = range(SHARDS)
    merged: int = MOST_MERGED

    @property
    def keys(self) -> Words:
        """Keys of the hashes, shape (2, 2)."""
        stream = open_stream(self.secret.read(), "selection", {**self.record, "use": "hash"})
        return stream.words(4).reshape(2, 2)


def count_values(
    request: ValueRequest, partitions: Sequence[Partition], bounded: Sequence[Partition] = (), *dropped: RowMask
) -> ValueCounts:
    """Return the counts of the distinct values in some partitions.

    `bounded` are the partitions with rows beyond a unit's bound, and `dropped` the masks of these rows. Batches are
    merged when more than request.merged counts wait, which limits the memory.
    """
    keys, waiting, many = request.keys, list[ValueCounts](), 0
    for texts, counts in _batches(request, partitions, dict(zip(bounded, dropped, strict=True))):
        waiting.append(_hashed(texts, counts, keys, request.shards))
        many += len(waiting[-1].counts)
        if many > request.merged:
            waiting, many = [merge(waiting)], 0
    return merge(waiting)


def _batches(request: ValueRequest, partitions: Sequence[Partition], dropped: Mapping[Partition, RowMask]) -> Any:
    """Yield the texts of a batch that occur, and their counts.

    `dropped` has the masks of rows that do not count. Rows of another state than VALUE do not count either. `rows` are
    the positions of the others' values in the texts of the batch.
    """
    for column, _, kept in request.rows.columns(request.attribute, partitions, dropped):
        found = text_entries(request.attribute, column)
        rows = found.rows[kept & (found.states == VALUE) & (found.rows >= 0)]
        counts = np.bincount(rows, minlength=len(found.texts))
        used = np.flatnonzero(counts)
        yield found.texts.take(pa.array(used)), counts[used]


def _hashed(texts: Any, counts: Integers, keys: Words, shards: range) -> ValueCounts:
    """Return the keyed hashes of the texts, two words each, and their counts, of the given shards only."""
    from dpscale.contributions.unit_hashes import text_words

    words = text_words(*buffers_of(texts), keys) if len(texts) else np.empty((0, 2), np.uint64)
    chosen = chosen_shards(words, shards)
    return ValueCounts(words[chosen], counts[chosen])


def chosen_shards(words: Words, shards: range) -> Any:
    """Return the places of the hashes in some shards.

    A shard is a range of hashes. All shards together are a slice, without a copy.
    """
    if len(shards) == SHARDS:
        return slice(None)
    numbers = _shards(words)
    return (numbers >= shards.start) & (numbers < shards.stop)


def take_shard(counts: ValueCounts, number: int, first: int = 0) -> ValueCounts:
    """Return the range of hashes number `first + number`."""
    return counts.part(first + number)


@dataclass(frozen=True, eq=False)
class Passing:
    """Hashes whose measurement passes the threshold, and the measurements."""

    words: Words = field(repr=False)
    values: Integers = field(repr=False)


def measure_shard(
    parts: Sequence[ValueCounts], secret: SecretFile, record: Record, draw: GaussianDraw, threshold: int
) -> Passing:
    """Return the hashes of one range whose measurement `multiplier` · count + noise is at least the threshold.

    `parts` are counts of the same range from several partitions. The number of the shard is part of the draw's label,
    so that noise differs between the ranges.
    """
    whole = merge(parts)
    if not len(whole.counts):
        return Passing(whole.words, whole.counts)

    label = {**record, **draw.noise_spec, "multiplier": str(draw.multiplier), "shard": int(_shards(whole.words[:1])[0])}
    noise = draw.words(open_stream(secret.read(), "noise", label), len(whole.counts))
    values = draw.multiplier * whole.counts + noise
    chosen = values >= threshold

    return Passing(whole.words[chosen], values[chosen])


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts of passing hashes by their position."""

    found: dict[int, str] = field(repr=False)


def find_texts(
    request: ValueRequest, partitions: Sequence[Partition], passing: Words, bounded: Sequence[Partition] = (),
    *dropped: RowMask,
) -> Texts:  # fmt: skip
    """Return the texts of the passing hashes that occur in some partitions; `passing` is sorted.

    `places` is the position of each hash in `passing`, negative if it is not there. `bounded` are the partitions with
    rows beyond a unit's bound, and `dropped` their masks.
    """
    keys, found = request.keys, dict[int, str]()
    for texts, counts in _batches(request, partitions, dict(zip(bounded, dropped, strict=True))):
        at = places(passing, _hashed(texts, counts, keys, range(SHARDS)).words)
        new = np.flatnonzero(at >= 0)
        found |= dict(zip(at[new].tolist(), texts.take(pa.array(new)).to_pylist(), strict=True))
    return Texts(found)


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
    """Return the distinct pairs of several parts.

    A pair is (hash of a unit, hash of a value), of two words each. Pairs are sorted by unit and then by value.
    """
    none = np.empty((0, 2), np.uint64)
    units = np.concatenate([none, *(part.units for part in parts)])
    words = np.concatenate([none, *(part.words for part in parts)])
    return UnitValues(*distinct_rows(units, words))


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
    """Return the pairs of the rows of a batch that have a value, in the ranges of the pass.

    `ids` is the column of the units, `kept` marks the rows that count, and `lookup` maps ids to units.
    """
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
    """Return the pairs of the units in the ranges of hashes that are at place `number` of `ranges`."""
    place = place_of_ranges(pairs.units, ranges[number])
    return UnitValues(pairs.units[place], pairs.words[place])


def count_votes(parts: Sequence[UnitValues], shards: range) -> ValueCounts:
    """Return the votes of the units of some ranges, in steps, for values in some shards."""
    pairs = distinct_pairs(parts)
    unit = np.cumsum(first_rows(pairs.units)) - 1
    # number of values of each pair's unit
    values = np.bincount(unit)[unit] if len(unit) else unit
    chosen = chosen_shards(pairs.words, shards)
    return merge([ValueCounts(pairs.words[chosen], vote_weights(values)[chosen])])


def vote_weights(values: Integers) -> Integers:
    """Return the steps that units with some numbers of values add to each of them: floor(VOTE/√r), exactly."""
    weights = np.sqrt(VOTE**2 / np.maximum(values, 1)).astype(np.int64)
    # the rounding of the root may be wrong by one step
    weights -= weights**2 * values > VOTE**2
    return weights + ((weights + 1) ** 2 * values <= VOTE**2)


@dataclass(frozen=True)
class ValuePlan:
    """Measurement of the counts of a column's values.

    Attributes
    ----------
    attribute : Attribute
    threshold : Threshold
    """

    attribute: Attribute
    threshold: Threshold

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=self.threshold.draw.cost, delta=self.threshold.delta)

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""
        draw = self.threshold.draw
        votes = {"vote": str(self.threshold.steps)} if self.votes else {}
        return {"search": "values", "version": 2, "attribute": self.attribute.name, "column": self.attribute.column,
                "multiplier": str(draw.multiplier), **draw.noise_spec, **votes,
                "threshold": str(self.threshold.value)}  # fmt: skip

    @property
    def votes(self) -> bool:
        """Whether units vote for their values."""
        return self.attribute.search is not None and self.attribute.search.has_votes


def plan_values(
    attribute: Attribute, share: Fraction, delta: Fraction, rows_per_unit: int, public_rows: int | None = None
) -> ValuePlan:
    """Return the measurement of a search for values.

    Parameters
    ----------
    attribute : Attribute
        With a ValueSearch.
    share : Fraction
        Squared mu.
    delta : Fraction
        Largest additive delta.
    rows_per_unit : int
    public_rows : int, optional
        Number of rows, if it is public.

    Raises
    ------
    JobError
        If no value can have as many rows as the threshold requires.
    """
    what = f"the values of {attribute.name}"
    votes = attribute.search is not None and attribute.search.has_votes
    draw = search_draw(share, 1, what, VOTE**2) if votes else search_draw(share, rows_per_unit, what)
    threshold = threshold_for(draw, delta, rows_per_unit, votes)
    if public_rows is not None and threshold.records > public_rows:
        raise JobError("privacy", f"a budget with which only values of {threshold.records:,.0f} rows are found in"
                       f" {attribute.name}", "a threshold below the number of rows",
                       "increase the budget or budget.discover")  # fmt: skip
    return ValuePlan(attribute, threshold)


def found_values(plan: ValuePlan, counts: Mapping[str, int], kind: str) -> tuple[Attribute, dict[str, Any]]:
    """Return the attribute with the values that were found, and the released record.

    Public values are cells whether or not they are frequent, so they are not listed among those that were found.

    Parameters
    ----------
    plan : ValuePlan
    counts : mapping of str to int
        Released measurement of each value above the threshold, in steps.
    kind : {"text", "integer"}
        Type of the column.
    """
    search = plan.attribute.search
    assert isinstance(search, ValueSearch)
    public = [str(value) for value in search.values]
    found = sorted(set(counts) - set(public), key=(lambda text: (int(text), text)) if kind == "integer" else None)
    # an attribute needs a value, even if none was found
    listed = [*public, *found] or ([NONE_FOUND] if kind == "text" else ["0"])
    values = tuple(map(int, listed)) if kind == "integer" else tuple(listed)
    threshold = plan.threshold
    steps = threshold.draw.multiplier * threshold.steps
    measured = [{"value": value, "count": counts[value] / steps} for value in found]
    closed = replace(plan.attribute, values=_padded(plan.attribute, values), search=None)
    error = threshold.draw.lattice_variance**0.5 / threshold.steps

    return closed, {"found": measured, "public": public, "error": error, "threshold": threshold.records}


def _padded(attribute: Attribute, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values, with another one if the attribute would have a single cell."""
    categories = (attribute.outside == "category") + (attribute.nulls == "category")
    if len(values) + categories >= 2:
        return values
    if isinstance(values[0], str):
        return (*values, f"(other than {values[0]})")
    return (*values, -1 if values[0] >= 0 else 0)
