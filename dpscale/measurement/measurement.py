"""Measurement of blocks and of links from exact counts, and the check that decisions cost no more than was charged.

Measurements of links are integer sums with keyed discrete noise, each in its own file: the number of links, the rows by
degree of the requested sides, and the three sums of features (`dpscale.relational`). The first two are one draw each;
the three feature sums share one cost. `relational.budget_shares` gives the effect of a unit on them. The `cost` of a
draw with a squared sensitivity of 1 is its precision.

A block has an integer strategy K, a product of factors: one for each attribute, or a single one for all cells if the
block is joint. Its values are multiplier · K · counts + noise, with the integer multiplier of its draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.errors import BudgetError, JobError
from dpscale.base.numerics import AttributeSet, Integers, NDArray, one_thread
from dpscale.counting.count import ExactMarginal, Layout
from dpscale.measurement.value_files import Labelled, Span, file_name, runs, write_values
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.plans.measurement_plan import Decision, MeasurementRequests, Selection, as_requests
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import Draw, GaussianDraw, LaplaceDraw, gaussian_draw, recounted, total_below
from dpscale.privacy.secret import SecretFile
from dpscale.privacy.streams import KeyedStream, open_stream
from dpscale.storage.files import present

SAFE = 1 << 61  # integers below it, plus their noise, fit in 64 bits
MOST_COUNTS = 1 << 62  # multiplied counts below it are int64, from which limbs are cut
MOST_WIDE = 1 << 126  # integers below it, plus their noise, fit in 128 bits
LARGE = 1 << 17  # multiplications above which limbs are faster, measured on one core


def measure_block(
    block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Return the noisy values of a block, shape `block.rows`, in units of multiplier · K · marginal.

    Parameters
    ----------
    block : Block
    draw : Draw
    marginal : ExactMarginal
        Marginal on at least the attributes of the block.
    secret : bytes
        Noise key of the release.
    record : mapping
        Canonical record of the measurement; with the secret it determines the noise.

    Guarantee
    ---------
    Protected: the noisy values: exact integers plus exact integer noise; floating point begins after the sum.
    Cost: that of `draw` for the sensitivity of K; the counts themselves stay in memory.
    Neighbours: those of the counts, whose rows are bounded before.
    Proof: docs/privacy.md, The charge of discrete noise; tests/measurement/test_block.py.
    """
    exact, stream = project(marginal, block), open_stream(secret, "noise", record)
    counts = block.coarsened(exact.counts)
    multiplier, remainder = divmod(draw.multiplier, exact.denominator)
    if remainder:  # the counts would be rounded
        raise JobError("run directory", f"noise of {', '.join(block.attributes)} that is not for its numbers",
                       "the original plan", "start a new run")  # fmt: skip

    # the narrowest arithmetic that holds every intermediate sum
    total = multiplier * (absolute_sum(counts) + 1)
    largest = math.prod(factor.largest for factor in block.factors) * total
    if largest < SAFE and draw.fits_words and _multiplications(block) < LARGE:
        return _in_words(block, draw, counts, multiplier, stream)
    if largest < MOST_WIDE and total < MOST_COUNTS and _has_limbs(block):
        return _in_limbs(block, draw, counts, multiplier, stream)
    return _unbounded(block, draw, counts, multiplier, stream)


def _has_limbs(block: Block) -> bool:
    """Return whether the product of a block's factors can be computed in limbs (`measurement.wide`).

    Factors of the four kinds below need a width of limbs at which no intermediate sum overflows; a centred tree of
    many leaves has none. All other factors are split into digits, so every width is possible.
    """
    if not any(factor.kind in ("tree", "layered", "spectral", "circulant") for factor in block.factors):
        return True
    from dpscale.measurement import wide  # imports numba

    return wide.has_width(block.factors)


def absolute_sum(counts: Integers) -> int:
    """Return Σ|count|; counts of numbers with bounded totals may be negative (`dpscale.domain.number`)."""
    return int((np.abs(counts) if counts.min(initial=0) < 0 else counts).sum())


def _in_words(block: Block, draw: Draw, counts: Integers, multiplier: int, stream: KeyedStream) -> NDArray[np.float64]:
    """Return multiplier · K · counts + noise as floats, computed with integers of 64 bits."""
    noise, values = draw.words(stream, math.prod(block.rows)).reshape(block.rows), block_product(block, counts)
    values *= multiplier
    values += noise
    floats = noise.view(np.float64)  # reuse the memory: new pages of a large array cost more than writing to them
    floats[...] = values
    return floats


def _in_limbs(block: Block, draw: Draw, counts: Integers, multiplier: int, stream: KeyedStream) -> NDArray[np.float64]:
    """Return multiplier · K · counts + noise as floats, rounded once.

    The product is in little-endian limbs of `bits` bits, and the noise in two words, high · 2^64 + low.
    """
    from dpscale.measurement import wide  # imports numba

    limbs, bits = wide.limb_product(block.factors, counts * multiplier, multiplier * absolute_sum(counts))
    high, low = draw.halves(stream, math.prod(block.rows))
    out = np.empty(block.rows)
    wide.noisy_floats(limbs, np.uint64(bits), high, low, out.reshape(-1))
    return out


def _unbounded(block: Block, draw: Draw, counts: Integers, multiplier: int, stream: KeyedStream) -> NDArray[np.float64]:
    """Return multiplier · K · counts + noise as floats, computed with Python integers, which have no limit."""
    high, low = draw.halves(stream, math.prod(block.rows))
    noise = (high.astype(object) * 2**64 + low.astype(object)).reshape(block.rows)
    return np.asarray(block_product(block, counts.astype(object)) * multiplier + noise, dtype=np.float64)


def _multiplications(block: Block) -> int:
    """Return the number of 64-bit integer multiplications by matrices in `block_product`, which numpy performs slowly.

    A factor is applied to an array of the rows of the factors before and the cells of the others.
    """
    rows_before, cells_left, number = 1, math.prod(factor.cells for factor in block.factors), 0
    for factor in block.factors:
        number += rows_before * cells_left * factor.rows * factor.is_product
        rows_before, cells_left = rows_before * factor.rows, cells_left // factor.cells
    return number


def project(marginal: ExactMarginal, block: Block) -> ExactMarginal:
    """Return the exact marginal on the attributes of a block, with a new array.

    A record counts once for each of the parts into which a number divides it (`denominators`, by axis), so a sum over
    such an axis is divided by their number.
    """
    others = tuple(axis for axis, name in enumerate(marginal.attributes) if name not in block.attributes)
    if len(marginal.attributes) - len(others) != len(block.attributes):
        got = f"{', '.join(block.attributes)} cannot be measured from {', '.join(marginal.attributes)}"
        raise JobError("run directory", got, "the original plan", "start a new run")
    if not others:
        return ExactMarginal(block.attributes, np.array(marginal.counts, dtype=np.int64), marginal.denominators)
    counts = np.asarray(marginal.counts.sum(axis=others, dtype=np.int64))
    if not marginal.denominators:
        return ExactMarginal(block.attributes, counts)
    summed = math.prod(marginal.denominators[axis] for axis in others)  # all parts of a record: divides exactly
    remaining = tuple(parts for axis, parts in enumerate(marginal.denominators) if axis not in others)
    return ExactMarginal(block.attributes, counts // summed, remaining)


def block_product(block: Block, counts: Integers) -> Integers:
    """Return K · counts; `counts` is overwritten."""
    for axis, factor in _axes(block):
        counts = _apply(factor, counts, axis)
    return counts.reshape(block.rows)


def _axes(block: Block) -> list[tuple[int | None, Factor]]:
    """Return the factors with the axes to which they are applied; None stands for all cells."""
    return [(None if block.joint else axis, factor) for axis, factor in enumerate(block.factors)]


def _apply(factor: Factor, values: Integers, axis: int | None) -> Integers:
    """Apply the factor along one axis, or to all cells if `axis` is None; in place if the shape does not change."""
    if axis is None:
        return np.asarray(factor.apply(values.reshape(-1)))
    if factor.kind == "identity":
        return values
    if factor.kind == "center":  # n x − Σ x for n cells, an integer multiple of x less its mean
        total = values.sum(axis=axis, keepdims=True)
        values *= factor.cells
        values -= total
        return values
    return np.moveaxis(factor.apply(np.moveaxis(values, axis, 0)), 0, axis)


Marginals = Callable[[AttributeSet], ExactMarginal]


@dataclass(frozen=True)
class Measurements:
    """Measurement requests of one value file.

    Attributes
    ----------
    folder : Path
    round : int
    span : tuple of int
        First position and end of the requests in the round.
    head : mapping
        Fields that all noise records begin with.
    requests : MeasurementRequests
    """

    folder: Path
    round: int
    span: Span
    head: Mapping[str, Any]
    requests: MeasurementRequests

    @property
    def path(self) -> Path:
        return self.folder / file_name(self.round, self.span)

    @property
    def sources(self) -> tuple[AttributeSet, ...]:
        """Counted sets that the requests are measured from, in order."""
        return self.requests.sources

    def within(self, sets: frozenset[AttributeSet]) -> Iterator[Measurements]:
        """Yield the requests that are measured from `sets`: all of them, or contiguous pieces with their spans.

        `requests.source` has the place of each request's set in `sources`.
        """
        known = [names in sets for names in self.sources]
        if all(known):
            yield self
            return
        for first, end in runs(np.array(known, np.bool_)[self.requests.source]):
            span = self.span[0] + first, self.span[0] + end
            yield Measurements(
                folder=self.folder,
                round=self.round,
                span=span,
                head=self.head,
                requests=self.requests.take(np.arange(first, end)),
            )


def measure_layouts(layouts: Sequence[Layout], wanted: Measurements, place: SecretFile, *flats: Integers) -> int:
    """Measure requests from the exact counts of some shards and write their file; return the number of requests.

    A layout says where the counts of each set are in the flat array of its shard, one of `flats`. `place` is the file
    of the secret.
    """
    counted_in = dict[AttributeSet, tuple[Layout, Integers]]()  # layout and counts of the shard that has a set
    for layout, flat in zip(layouts, flats, strict=True):
        counted_in |= dict.fromkeys(layout.sets, (layout, flat))

    def marginal_of(names: AttributeSet) -> ExactMarginal:
        layout, flat = counted_in[names]
        return layout.marginal(flat, names)

    return measure_all(marginal_of, [wanted], place)


def measure_all(marginal_of: Marginals, wanted: Sequence[Measurements], place: SecretFile) -> int:
    """Measure requests and write their files; existing files are not replaced. Return the number of requests.

    Parameters
    ----------
    marginal_of : callable
        Exact marginal of a counted set.
    wanted : sequence of Measurements
    place : SecretFile
        Location of the noise key.
    """
    secret = place.read()
    with one_thread():  # Dask's worker threads use all cores; BLAS threads would compete with them
        for measurements in wanted:
            if not present(measurements.path):
                write_values(measurements.path, measurements.head, _measured(marginal_of, measurements, secret))
    return sum(len(measurements.requests) for measurements in wanted)


def _measured(marginal_of: Marginals, wanted: Measurements, secret: bytes) -> Iterator[Labelled]:
    """Yield label and values of each request in order.

    `head` and the label of a request together key its noise.
    """
    for index, request in enumerate(wanted.requests):
        record = {**wanted.head, **request.label}
        values = measure_block(request.block, request.draw, marginal_of(request.source), secret, record)
        yield wanted.requests.text(index), values


Part = tuple[bool, Fraction, int]  # whether it is pure, its cost (squared μ or ε), and the number of such draws


def check_affordable(
    decisions: Sequence[Decision], charged: Cost, parts_of: Callable[[Decision], Iterable[Part]]
) -> None:
    """Raise BudgetError if the decisions cost more than was charged for all of them.

    `parts_of` returns the draws of a decision, equal ones as one `Part`. Sums of what is spent are rounded down and
    compared with the exact charge; the squares of ε are charged too, because a composition may use them.
    """
    parts = [part for decision in decisions for part in parts_of(decision)]
    of_gaussian = [(cost, number) for is_pure, cost, number in parts if not is_pure]
    of_pure = [(cost, number) for is_pure, cost, number in parts if is_pure]
    deltas = [getattr(decision, "additive_delta", Fraction(0)) for decision in decisions]

    spent_and_charged = (
        (total_below(of_gaussian), charged.gaussian),
        (total_below(of_pure), charged.pure),
        (total_below((cost**2, number) for cost, number in of_pure), charged.pure_squares),  # for their composition
        (sum(deltas, Fraction(0)), charged.delta),
    )
    if any(spent > limit for spent, limit in spent_and_charged):
        raise BudgetError("mechanism", f"round {decisions[-1].round} would measure more than was charged",
                          "the cost stated by the plan", "report this error of the mechanism")  # fmt: skip


def check_selection_cost(decision: Decision, selection: Selection) -> None:
    """Raise BudgetError if a decision states a lower cost than that of its selections."""
    if decision.selection_cost < selection.count * selection.beta:
        raise BudgetError("mechanism", f"round {decision.round} states a lower cost than its selections have",
                          "the exact cost", "report this error of the mechanism")  # fmt: skip


def decision_parts(decision: Decision, rows_per_unit: int) -> list[Part]:
    """Return the parts of the cost of a decision, computed from its strategies and noise."""
    parts = [(False, decision.selection_cost, 1)]
    for request, number in as_requests(decision.requests).distinct():
        block = request.block
        cost = recounted(request.draw, block.squared_l2_sensitivity, block.l1_sensitivity, rows_per_unit)
        parts.append((isinstance(request.draw, LaplaceDraw), cost, number))
    return parts


def add_noise(exact: Integers, draw: Draw, secret: bytes, record: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return multiplier · exact + noise, rounded once to float64.

    `record` keys the stream of the noise. 64-bit integers are used only if neither the product nor the sum can
    overflow; otherwise Python integers, with noise in two words, high · 2^64 + low.
    """
    stream = open_stream(secret, "noise", record)
    if draw.multiplier * int(np.abs(exact).max(initial=0) + 1) < SAFE and draw.fits_words:
        noise = draw.words(stream, exact.size).reshape(exact.shape)
        return np.asarray(exact * draw.multiplier + noise, dtype=np.float64)
    high, low = draw.halves(stream, exact.size)
    wide = (high.astype(object) * 2**64 + low.astype(object)).reshape(exact.shape)
    return np.asarray(exact.astype(object) * draw.multiplier + wide, dtype=np.float64)


def draw_of_precision(precision: Fraction, what: str) -> GaussianDraw:
    """Return integer noise of at most the given precision 1/σ²; its `cost` is the exact precision."""
    return gaussian_draw(1, precision, 1, what)
