"""Relational synthesis as published (Alim et al.): rounds of selecting cross marginals, adding noise, and fitting.

In every round the exponential mechanism selects some of the remaining cross marginals by their distance from the
current estimate. They are measured with noise, and links are fitted to all measured ones, or to those that are farthest
from the estimate: least squares by projected gradient over {0 ≤ b ≤ 1, Σ b = m}, with b the probability of every pair
of rows, or with every child on its own simplex. b is constant on a block of profiles because gradient and projection
are. Counts are measured instead of shares because the number of links is private.

A slice is a random choice of rows of either side. Its links are fitted again from random ones, to the measured shares.
Of a block with c pairs of rows, s of them in the slice, b then has the mean b + (s / c) (b' − b), with b' fitted in the
slice: all rows of a profile are alike.

Where a job states no number T of rounds, it minimises an expected error that follows from public quantities alone. Each
of K T marginals has noise of standard deviation σ √(K T) an entry, with σ that of a single one: of c cells and m links
its total variation is ν = 0.4 c σ √(K T) / m. A fit leaves a part of it, 0.4 ν / (1 + ν), since no b is negative. A
marginal of k attributes covers p of the P pairs with an attribute of each side. Random links have the departure D, of
which a factor 1 − 1.5 p / P remains after each marginal:

    E²(T) = (D (1 − 1.5 p / P)^(K T))² + (0.4 ν / (1 + ν))²

The curve is a U. Its left part ends where all pairs are covered; the right part grows as √T. Where one marginal has
more noise than random links depart, the curve rises from T = 1 on. Both constants are those of a public table, the
extract of MovieLens 1M, at ε = 2 and 8 (`benchmarks/relational.py --rounds`).

A neighbour changes `moved` links. If they are replaced, each leaves one entry and enters another: 2 · moved in L1 and
2 · moved² in squared L2; if they are added or removed, half of that. Nothing is spent after all marginals are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dpscale.base.numerics import Floats, Integers
from dpscale.privacy.protection import REPLACE
from dpscale.privacy.streams import PublicStream
from dpscale.relational.features import Side
from dpscale.relational.rounding import Cross, marginal_cells, sample_entries

STEPS, POWER, NEWTON = 100, 20, 100  # steps of projected gradient and of the power method; most of a projection
SLICE = 1000  # rows of a slice on either side
NOISE, FITTED, COVERED = 0.4, 0.4, 1.5  # factors of σ, of ν/(1 + ν) and of p/P in the formulas above
Choose = Callable[[int, Floats, Sequence[int], int], Sequence[int]]
Measure = Callable[[int, Sequence[int]], Floats]


@dataclass(frozen=True)
class Rounds:
    """Options of the loop.

    Attributes
    ----------
    rounds : int
        T.
    each : int
        Number K of marginals that a round selects.
    alpha : float
        Budget share of the selection.
    order : int
        Number k of attributes of a marginal, of both sides together.
    optimised : int or None
        Number of measured marginals, those farthest from the estimate, to which links are fitted; None: all.
    slices : int
        Number of slices of a round; 0: all rows at once.
    """

    rounds: int = 15
    each: int = 3
    alpha: float = 0.2
    order: int = 3
    optimised: int | None = None
    slices: int = 0

    def costs(self, amount: Fraction) -> tuple[Fraction, Fraction]:
        """Return the squared μ of one selection and of one marginal's noise."""
        each_cost = amount / (self.rounds * self.each)
        return each_cost * Fraction(self.alpha), each_cost * (1 - Fraction(self.alpha))


def moved_entries(relation: str) -> int:
    """Return the number of entries that one link changes by 1: the L1 and the squared L2 sensitivity of a marginal."""
    return 2 if relation == REPLACE else 1


@dataclass(frozen=True, eq=False)
class Fit:
    """Domain of the fit: both sides, the number of `links`, and whether every row of v has exactly one (`known`)."""

    u: Side
    v: Side
    links: float
    known: bool

    @property
    def cap(self) -> Floats:
        return np.multiply.outer(self.u.counts, self.v.counts)

    def begin(self) -> Floats:
        """Return b of random links."""
        return np.full(self.cap.shape, self.links / self.cap.sum())

    def project(self, b: Floats) -> Floats:
        if self.known:
            return project_columns(b, self.u.counts, self.links / self.v.rows)
        return project(b, self.cap, self.links)


@dataclass(frozen=True)
class LoopSize:
    """Public quantities that determine the number of rounds.

    Attributes
    ----------
    sizes : tuple of sequences of int
        Number of cells of every attribute, of both sides.
    links : float
        Number of links, public or noisy.
    sigma : float
        Standard deviation of an entry of a marginal that has the noise budget of all rounds.
    departure : float
        Expected total variation D of random links.
    """

    sizes: tuple[Sequence[int], Sequence[int]]
    links: float
    sigma: float
    departure: float


def round_errors(size: LoopSize, rounds: Rounds, most: int) -> list[float]:
    """Return the expected E of 1, 2 … rounds, until all marginals are measured or `most`.

    It consists of operations that every machine rounds equally.

    `factor` is the factor 1 − 1.5 p/P that a marginal leaves of the departure, `remaining` the product of these, and
    `within` the noise ν of the module.
    """
    u, v = map(len, size.sizes)
    cells = marginal_cells(*size.sizes, rounds.order)
    order = min(rounds.order, u + v)
    pairs = sum(i * (order - i) * math.comb(u, i) * math.comb(v, order - i) for i in range(1, order)) / len(cells)
    factor = max(1 - COVERED * pairs / (u * v), 0.0)
    noise = NOISE * (sum(cells) / len(cells)) * size.sigma / size.links

    squares, remaining = list[float](), size.departure
    for number in range(1, min(-(-len(cells) // rounds.each), most) + 1):
        for _ in range(rounds.each):
            remaining *= factor
        within = noise * math.sqrt(number * rounds.each)
        fitted = FITTED * within / (1 + within)
        squares.append(remaining * remaining + fitted * fitted)
    return [math.sqrt(squared) for squared in squares]


def chosen_rounds(size: LoopSize, rounds: Rounds, most: int) -> int:
    """Return the number of rounds with the smallest expected error."""
    errors = round_errors(size, rounds, most)
    return errors.index(min(errors)) + 1


def run_rounds(
    fit: Fit, rounds: Rounds, cross: Cross, choose: Choose, measure: Measure, stream: PublicStream | None = None
) -> Floats:
    """Run the rounds and return b, shape (p, q).

    Parameters
    ----------
    fit : Fit
    rounds : Rounds
    cross : Cross
    choose : callable
        choose(round, estimates of all entries, remaining marginals, number) returns the selected marginals.
    measure : callable
        measure(round, selected) returns the noisy entries of the selected marginals, 0 elsewhere.
    stream : PublicStream, optional
        Chooses the rows of slices.
    """
    b, taken, noisy = fit.begin(), list[int](), np.zeros(cross.size)
    for number in range(rounds.rounds):
        unmeasured = [k for k in range(len(cross.columns)) if k not in taken]
        if not unmeasured:
            break
        chosen = choose(number, cross.marginals(b * fit.cap), unmeasured, min(rounds.each, len(unmeasured)))
        noisy = noisy + measure(number, chosen)
        taken += chosen
        for _ in range(max(rounds.slices, 1)):
            part = cross.some(farthest(cross, noisy, cross.marginals(b * fit.cap), taken, rounds.optimised))
            if stream is None or not rounds.slices:
                b = descend(fit, part, noisy, b)
            else:
                b = descend_slice(fit, part, noisy, b, stream)

    return b


def farthest(cross: Cross, noisy: Floats, estimates: Floats, taken: Sequence[int], number: int | None) -> Sequence[int]:
    """Return the measured marginals farthest from the estimates in L1, at most `number` of them.

    `taken` are the numbers of the marginals, and `cross.entries` the entries of one. All are returned if `number` is
    None.
    """
    if number is None or len(taken) <= number:
        return taken
    distances = {k: np.abs((noisy - estimates)[cross.entries(k)]).sum() for k in taken}
    return sorted(taken, key=lambda k: -distances[k])[:number]


def descend_slice(fit: Fit, cross: Cross, noisy: Floats, b: Floats, stream: PublicStream) -> Floats:
    """Fit the links between random rows of both sides again, from random links, and return the mean b of each block.

    `inside` are the pairs of rows in the slice; b moves by their share of a block's pairs. `cap` is the number of pairs
    of rows of a block; links are scaled to the slice. With less than one link in it, b stays as it is.
    """
    u, v = (_sliced(side, stream) for side in (fit.u, fit.v))
    inside = np.multiply.outer(u.counts, v.counts)
    links = float((inside * b).sum())
    if links < 1:
        return b

    sliced = Fit(u=u, v=v, links=links, known=False)
    fitted = descend(sliced, cross, noisy * (links / fit.links), sliced.begin())
    return np.asarray(b + inside / fit.cap * (fitted - b))


def _sliced(side: Side, stream: PublicStream) -> Side:
    """Return a random choice of rows of a side, with the same profiles."""
    if side.rows <= SLICE:
        return side
    chosen = np.repeat(np.arange(len(side.counts)), side.counts.astype(np.int64))[stream.permutation(side.rows)[:SLICE]]
    return replace(side, counts=np.bincount(chosen, minlength=len(side.counts)).astype(float))


def descend(fit: Fit, cross: Cross, noisy: Floats, b: Floats, steps: int = STEPS) -> Floats:
    """Minimise ½ |Q b − noisy|² by projected gradient over pairs of rows; steps 1/σ², σ the largest singular value.

    The result is the same as for shares, where both sides are divided by m.
    """
    cap, step = fit.cap, 1 / _largest(cross, fit.cap)
    for _ in range(steps):
        b = fit.project(b - step * cross.back(cross.marginals(b * cap) - noisy))
    return b


def _largest(cross: Cross, cap: Floats) -> float:
    """Return σ² of Q by the power method from the uniform vector; all entries are ≥ 0, so it is near the first one."""
    vector, largest = np.full(cap.shape, 1 / np.sqrt(cap.sum())), 1.0
    for _ in range(POWER):
        vector = cross.back(cross.marginals(vector * cap))
        largest = float(np.sqrt((cap * vector**2).sum()))
        vector /= largest
    return largest


def project(b: Floats, cap: Floats, links: float) -> Floats:
    """Return the projection on {0 ≤ b ≤ 1, Σ cap b = links} in the metric of pairs of rows: b + y, clipped to [0, 1].

    y is found by bracketed Newton steps: Σ cap · clip(b + y) is piecewise linear, so the last step is exact.

    `b` has the probability of each block of pairs of rows, and `cap` the number of its pairs.
    """
    low, high, y = -b.max(), 1 - b.min(), 0.0
    for _ in range(NEWTON):
        clipped = np.clip(b + y, 0, 1)
        # the missing sum, and by how much it changes with y: the pairs that are not clipped
        missing, slope = links - (cap * clipped).sum(), cap[(b + y > 0) & (b + y < 1)].sum()
        # the solution stays between `low` and `high`; a step outside is replaced by bisection
        low, high = (y, high) if missing > 0 else (low, y)
        step = y + missing / slope if slope > 0 else (low + high) / 2
        step = step if low < step < high else (low + high) / 2
        if step == y or abs(missing) <= 1e-14 * links:
            break
        y = step

    return np.clip(b + y, 0, 1)


def project_columns(b: Floats, rows: Floats, total: float = 1.0) -> Floats:
    """Return the projection of each column on {0 ≤ b, Σ rows b = total}: negative cells are removed in turn.

    y with Σ rows (b + y) = total is added to the cells that are not removed; cells that become negative are removed.
    """
    active = np.ones(b.shape, np.bool_)
    while True:
        free = np.where(active, rows[:, None], 0.0)
        y = (total - (free * b).sum(axis=0)) / free.sum(axis=0)
        stays = active & (b + y > 0)
        if (stays == active).all():
            return np.where(active, b + y, 0.0)
        active = stays


def sample_pairs(b: Floats, u: Side, v: Side, links: int, stream: PublicStream) -> Integers:
    """Return pairs of rows, (links, 2), each with probability b; block after block, so equal pairs form one run.

    An entry of a block is a pair of its rows: its number divided by the rows of v gives the row of u, the rest that of
    v.
    """
    cap = np.multiply.outer(u.counts, v.counts).astype(np.int64).ravel()
    entries, ends = sample_entries([(np.ascontiguousarray(b).ravel(), cap)], links, stream), np.cumsum(cap)
    block = np.searchsorted(ends, entries, side="right")
    within, u_block, v_block = entries - (ends - cap)[block], block // b.shape[1], block % b.shape[1]
    width = v.counts.astype(np.int64)[v_block]
    return np.stack([_rows(u, u_block, within // width), _rows(v, v_block, within % width)], axis=1)


def _rows(side: Side, profiles: Integers, numbers: Integers) -> Integers:
    """Return the rows with those numbers among their profiles' rows."""
    order, starts = np.argsort(side.of, kind="stable"), np.cumsum(side.counts).astype(np.int64)
    return np.asarray(order[(starts - side.counts.astype(np.int64))[profiles] + numbers])


def sample_children(b: Floats, u: Side, v: Side, stream: PublicStream) -> Floats:
    """Return integer numbers of children, shape (p, q): an independent profile of u for every row of v."""
    numbers = np.zeros(b.shape)
    for j, count in enumerate(v.counts.astype(int)):
        ends = np.cumsum(b[:, j] * u.counts)
        profiles = np.searchsorted(ends, stream.uniforms(count) * ends[-1], side="right")
        numbers[:, j] = np.bincount(np.minimum(profiles, len(ends) - 1), minlength=len(ends))
    return numbers
