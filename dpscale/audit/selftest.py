"""Quick part of the audit for the local installation: `dpscale selftest`.

Every check runs twice: on the unmodified code, which must pass, and with a planted violation, which must be detected.

`attack` computes empirical lower bounds of epsilon and mu from many releases of two neighbouring tables. A statistic of
a release is thresholded. The probability of the event under either table is bounded by Clopper & Pearson at a
confidence of 1 − 2e-4, Bonferroni over the events. The event is chosen on one fifth of the releases and evaluated on
the others. With p1 a lower and p0 an upper bound,
    epsilon >= log((p1 − delta) / p0)    and    mu >= Phi⁻¹(p1) − Phi⁻¹(p0),
and a bound above the claim refutes the claim (Jagielski, Ullman & Oprea 2020; Nasr et al. 2023 for mu).

Statistics: the likelihood ratio of the mechanism, which is optimal for noise of the wrong scale; all pairwise
differences of numbers, in which a reused key cancels; fractional parts, which reveal noise added to floats; and the
number of values.
Power: with 3,000 releases of either table (2,400 evaluated) and mu = 1 claimed, a bound is 0.2 ± 0.04 below the true
mu. A scale of 0.7 (mu = 1.43) and a sensitivity wrong by sqrt 2 (mu = 1.41) are detected with a margin of five standard
errors.

*Tests of the added noise (scale, shape, lattice, low bits, independence), and of how far a record moves measurements.*
The tests use releases of a small table by the measuring code under audit. A release is the array of all numbers of one
plan, block after block, as `measure_block` returns them. The claim under test is that of the draws: its cost is the
squared Gaussian-DP mu of all draws, or their pure epsilon.

Input is integer noise as floats (value − exact) with its nominal variance. With at least 1,000 draws a scale of 0.7 or
1.3 has p < 1e-9, whereas the correct one fails for 1 of 1,000 seeds: the chi-square statistic of n draws is off by
0.51 n or 0.69 n, with a standard deviation of sqrt(2 n).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.numerics import Floats, Integers, stats
from dpscale.counting import ExactMarginal
from dpscale.domain import Domain
from dpscale.engine.base import Progress, silent
from dpscale.measurement import measure_block
from dpscale.mechanisms import AUDITED, plan
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.plans.measurement_plan import Draws, plan_draws
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import GAUSSIAN, LAPLACE, SMOOTHING, Draw, LaplaceDraw
from dpscale.privacy.streams import seeded_secret
from dpscale.workload import MARGINAL, PREFIX, Workload

MECHANISMS = AUDITED
Measure = Callable[[Block, Draw, ExactMarginal, bytes, dict[str, Any]], Floats]

ERROR = 1e-4  # probability of a wrong bound of an attack
DELTA = 1e-3  # δ at which ε is bounded if the noise is not pure
CHOSEN_ON = 5  # one part in so many
GOALS = ("mu", "epsilon")
QUANTILES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)  # of a statistic: the thresholds of the events that are tried


@dataclass(frozen=True)
class Case:
    """A plan with its noise and its claimed cost; correct unless a test plants a violation."""

    plan: Plan
    draws: Draws
    claimed: float
    measure: Measure = measure_block

    def release(self, counts: Integers, seed: int) -> Floats:
        """Return all numbers of one release of a table, given as counts over the whole domain."""
        marginal, secret = ExactMarginal(self.plan.domain.names, counts), seeded_secret(seed)
        return np.concatenate([values.reshape(-1) for values in self._blocks(marginal, secret)])

    def _blocks(self, marginal: ExactMarginal, secret: bytes) -> Iterator[Floats]:
        for index, (block, draw) in enumerate(zip(self.plan.blocks, self.draws, strict=True)):
            yield self.measure(block, draw, marginal, secret, record_of(index, block, draw))

    @property
    def pure(self) -> bool:
        """Whether the claim is a pure epsilon."""
        return self.plan.noise == LAPLACE

    def exact(self, counts: Integers) -> Floats:
        """Return the numbers before noise from explicit matrices: slow, and independent of the measuring code.

        They are multiplied by the `multiplier` of the draw, as in a release.
        """
        parts = []
        for block, draw in zip(self.plan.blocks, self.draws, strict=True):
            # axes of the table that the block sums out
            outside = tuple(axis for axis, name in enumerate(self.plan.domain.names) if name not in block.attributes)
            parts.append(applied(block.factors, counts.sum(axis=outside)) * draw.multiplier)
        return np.concatenate(parts)

    @property
    def deviations(self) -> Floats:
        """Standard deviation of each number according to the draws."""
        parts = []
        for block, draw in zip(self.plan.blocks, self.draws, strict=True):
            parts.append(np.full(int(np.prod(block.rows, dtype=int)), draw.variance**0.5))
        return np.concatenate(parts)


def record_of(index: int, block: Block, draw: Draw) -> dict[str, Any]:
    """Return a record that is unique to a measurement of a case."""
    return {"index": index, "attributes": list(block.attributes), **draw.noise_spec}


def applied(factors: tuple[Factor, ...], counts: Integers) -> Floats:
    """Return a strategy as one explicit integer matrix, times the counts of its attributes.

    The matrix is the Kronecker product of the explicit factors. Objects of Python avoid an overflow of the integers.
    """
    matrix = np.ones((1, 1), dtype=np.int64)
    for factor in factors:
        matrix = np.kron(matrix, factor.explicit())
    return np.asarray(matrix.astype(object) @ counts.reshape(-1), dtype=np.float64)


@cache
def case_of(
    mechanism: str,
    sizes: tuple[int, ...] = (2, 3),
    cost: float = 1.0,
    rows_per_unit: int = 1,
    noise: str = GAUSSIAN,
) -> Case:
    """Return a correct case: prefixes and marginals of a small domain; for a single attribute only the total.

    For one number with Laplace noise an event of probability ½ attains the claim, so attacks have power.
    """
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    workload = Workload(domain)
    if len(sizes) > 1:
        workload = workload.add(PREFIX.name, degree=2).add(MARGINAL.name, degree=1)
    else:
        workload = workload.add(MARGINAL.name, degree=0)
    measurement_plan = plan(workload, mechanism, noise=noise)
    draws = plan_draws(measurement_plan, cost, rows_per_unit)
    return Case(measurement_plan, draws, float(draws.amount))


def small_table(domain: Domain) -> Integers:
    """Return a fixed table with a few rows in every cell."""
    shape = domain.shape(domain.names)
    return np.arange(3, 3 + int(np.prod(shape)), dtype=np.int64).reshape(shape)


def one_more(counts: Integers) -> Iterator[tuple[tuple[int, ...], Integers]]:
    """Yield every table with one additional record, and the cell of that record."""
    for cell in product(*map(range, counts.shape)):
        more = counts.copy()
        more[cell] += 1
        yield cell, more


LEVEL = 1e-3  # false-positive rate of one test
LOW_BITS = 4  # last bits of an integer whose frequencies are compared
EXACT_BELOW = 2.0**40  # above this deviation the last bits of a measurement's float may be lost


def scale_p(noise: Floats, deviations: Floats, pure: bool = False) -> float:
    """Return the two-sided p-value of a statistic that has a chi-square distribution at these standard deviations.

    n squared normals have n degrees of freedom; twice n absolute values, in units of Laplace's scale, have 2n.
    """
    absolute = np.abs(noise / deviations)
    statistic, n = (2 * math.sqrt(2) * absolute.sum(), 2 * len(noise)) if pure else ((absolute**2).sum(), len(noise))
    return float(2 * min(stats.chi2.sf(statistic, n), stats.chi2.cdf(statistic, n)))


def shape_p(noise: Floats, deviations: Floats, pure: bool = False) -> float:
    """Return the Kolmogorov-Smirnov p-value against the continuous law, valid for noise of thousands of steps."""
    scaled = noise / deviations
    return float((stats.kstest(scaled * math.sqrt(2), "laplace") if pure else stats.kstest(scaled, "norm")).pvalue)


def low_bits_p(noise: Floats) -> float:
    """Return the p-value that the last bits of the integers are uniform; 0 if a value is not an integer.

    The LOW_BITS last bits of each integer are compared with equal frequencies by a χ² test. Without values the p-value
    is 1.
    """
    if not len(noise):
        return 1.0
    if not (noise == np.rint(noise)).all():
        return 0.0
    last = noise.astype(np.int64) & ((1 << LOW_BITS) - 1)
    return float(stats.chisquare(np.bincount(last, minlength=1 << LOW_BITS)).pvalue)


def shared(parts: Sequence[Floats]) -> bool:
    """Return whether two measurements have the same stream: equal leading noise up to their scales."""
    heads = [part[:2] / np.abs(part[:2]).max() for part in parts if len(part) > 1]
    pairs = [(head, earlier) for number, head in enumerate(heads) for earlier in heads[:number]]
    return any(np.allclose(head, earlier, rtol=0, atol=1e-3) for head, earlier in pairs)


def faults(parts: Sequence[Floats], deviations: Sequence[float], pure: bool = False) -> list[str]:
    """Return the failed tests for the noise of several measurements, each with its standard deviation.

    `parts` has the noise of each measurement. Only noise below EXACT_BELOW is an exact integer as a float.
    """
    noise = np.concatenate(parts)
    scales = np.concatenate([np.full(len(part), deviation) for part, deviation in zip(parts, deviations, strict=True)])
    tests = {
        "scale": scale_p(noise, scales, pure),
        "shape": shape_p(noise, scales, pure),
        "not on the integer lattice": low_bits_p(noise[scales < EXACT_BELOW]),
    }
    failed = [name for name, p in tests.items() if p < LEVEL]
    return failed + (["shared by two measurements"] if shared(parts) else [])


Tables = Iterable[Integers]


def distance(case: Case, first: Integers, second: Integers) -> Fraction:
    """Return Σ over blocks of |K x − K x'|² m² / (v − 8), or of |K x − K x'|₁ m / s, exactly.

    x and x' are the counts of the two tables, K the strategy of a block, m its multiplier, v or s its noise's variance
    or scale; 8 of the variance is for smoothing. Under one seed the noise of two releases cancels, so their difference
    is m (K x − K x').
    """
    moved = case.release(first, seed=0) - case.release(second, seed=0)
    total, start = Fraction(0), 0
    for block, draw in zip(case.plan.blocks, case.draws, strict=True):
        part = moved[start : start + math.prod(block.rows)]
        start += len(part)
        if not (part == np.rint(part)).all():
            raise ValueError("the measured difference is not an integer")
        total += _moved([int(value) for value in part], draw)
    return total


def _moved(part: list[int], draw: Draw) -> Fraction:
    if isinstance(draw, LaplaceDraw):
        return Fraction(sum(map(abs, part)), draw.scale)
    return Fraction(sum(value**2 for value in part), draw.variance - SMOOTHING)


def worst_record(case: Case, counts: Integers) -> Fraction:
    """Return the largest distance over every record added to a table; removal of a record is symmetric."""
    return max(distance(case, counts, more) for _, more in one_more(counts))


@dataclass(frozen=True)
class Bound:
    """Lower bound of the privacy parameters, and the event that attains it."""

    mu: float
    epsilon: float
    event: str


def attack(case: Case, one: Integers, other: Integers, releases: int = 3000, delta: float = DELTA) -> Bound:
    """Return the best lower bound over all statistics.

    Parameters
    ----------
    case : Case
    one, other : ndarray of int
        Counts of two neighbouring tables over the whole domain.
    releases : int
        Number of releases of each table, each under a different key.
    delta : float
        δ of the bound of epsilon.
    """
    samples = []  # releases of each table
    for which, table in enumerate((one, other)):
        samples.append([case.release(table, 2 * number + which) for number in range(releases)])
    lengths = [np.array([len(values) for values in sample], dtype=float) for sample in samples]
    if len(set(np.concatenate(lengths))) > 1:
        return best_event({"the number of values": (lengths[0], lengths[1])}, delta)
    null, moved = (np.array(sample) for sample in samples)
    return best_event(dict(_statistics(case, null, moved, one, other)), delta)


def _likelihood_ratio(case: Case, values: Floats, one: Integers, other: Integers) -> Floats:
    """Return the log likelihood ratio of the charged mechanism; the observer knows both tables and the strategies.

    For Gaussian noise the ratio is linear in the values up to a constant. For Laplace noise of scale b = deviation/√2
    it is Σ (|v − c| − |v − c − shift|)/b with the exact values c of the one table.
    """
    shift = case.release(other, seed=0) - case.release(one, seed=0)  # under one key: the noise cancels
    if not case.pure:
        return np.asarray(values @ (shift / case.deviations**2))
    scales, centre = case.deviations / math.sqrt(2), case.exact(one)
    return np.asarray(((np.abs(values - centre) - np.abs(values - centre - shift)) / scales).sum(axis=1))


def _statistics(
    case: Case, null: Floats, moved: Floats, one: Integers, other: Integers
) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """Yield statistics by name, each with its values on the releases of the one and of the other table.

    `null` and `moved` have a row for each release. Pairs of correlated numbers, and numbers that are not integers, are
    chosen on the first 1 / CHOSEN_ON of `null`. A fraction is the part of a number behind the decimal point.
    """
    chosen_on = null[: len(null) // CHOSEN_ON]
    yield "likelihood ratio", (_likelihood_ratio(case, null, one, other), _likelihood_ratio(case, moved, one, other))
    for i, j in _pairs(chosen_on / case.deviations):
        weights = np.zeros(null.shape[1])
        weights[i], weights[j] = 1 / case.deviations[i], -1 / case.deviations[j]
        yield f"difference of numbers {i} and {j}", (null @ weights, moved @ weights)
    for k in np.flatnonzero((chosen_on != np.rint(chosen_on)).any(axis=0)):
        yield f"fraction of number {k}", (np.mod(null[:, k], 1.0), np.mod(moved[:, k], 1.0))


def _pairs(scaled: Floats) -> list[tuple[int, int]]:
    """Return the pairs of numbers with correlated noise; independent draws have none.

    `scaled` has a row for each release and a column for each number. Constant columns have no correlation; a pair is
    correlated above 0.5.
    """
    varying = np.flatnonzero(scaled.std(axis=0) > 0)
    correlated = np.abs(np.atleast_2d(np.corrcoef(scaled[:, varying], rowvar=False))) > 0.5
    pairs = zip(*np.nonzero(np.triu(correlated, 1)), strict=True)
    return [(int(varying[first]), int(varying[second])) for first, second in pairs]


def best_event(statistics: dict[str, tuple[Floats, Floats]], delta: float) -> Bound:
    """Choose an event of each statistic on the first part, bound it on the rest, and return the largest bounds.

    `statistics` has for each name the values on both neighbouring tables (null and moved). ERROR, the probability of a
    wrong bound, is divided among the statistics and the two probabilities of each event.
    """
    error = ERROR / (2 * len(statistics))
    bounds = [bound_of(name, null, moved, delta, error) for name, (null, moved) in statistics.items()]
    strongest = max(bounds, key=lambda bound: bound.mu)
    return Bound(strongest.mu, max(bound.epsilon for bound in bounds), strongest.event)


def bound_of(name: str, null: Floats, moved: Floats, delta: float, error: float, goals: Sequence[str] = GOALS) -> Bound:
    """Return the bounds of μ and ε by one statistic, from an event "beyond a threshold" for each goal.

    The threshold is chosen on a first part of the releases, and the bound follows from the other ones. Each of the two
    probabilities of an event is wrong with probability at most `error`.

    Parameters
    ----------
    name : str
    null, moved : ndarray
        Values of the statistic on releases of the one and of the other table.
    delta : float
        δ of the bound of ε.
    error : float
    goals : sequence of str
        "mu" or "epsilon": the bound that the event makes as large as possible.
    """
    first = len(null) // CHOSEN_ON
    bound = Bound(0.0, 0.0, name)
    for goal in goals:
        sign, threshold = _choose(null[:first], moved[:first], delta, goal, error)
        hits = [int((sign * sample[first:] > threshold).sum()) for sample in (null, moved)]
        trials = len(null) - first
        # upper and lower bound of the probability of the event under either table
        p0, p1 = clopper_pearson(hits[0], trials, error)[1], clopper_pearson(hits[1], trials, error)[0]
        mu = max(bound.mu, _mu(p0, p1))
        bound = Bound(mu, max(bound.epsilon, _epsilon(p0, p1, delta)), name)
    return bound


def _choose(null: Floats, moved: Floats, delta: float, goal: str, error: float) -> tuple[float, float]:
    """Return the side (1: above, −1: below) and the threshold of the event with the best bound on these releases.

    Events are tried at quantiles of both samples. Rare events differ by chance and have loose bounds, so the criterion
    is the bound that the remaining releases would give at the same frequencies.
    """
    tried, rest = [], CHOSEN_ON - 1  # there are `rest` times as many remaining releases
    for sign in (1.0, -1.0):
        for threshold in np.quantile(sign * np.concatenate([null, moved]), QUANTILES):
            hits = [rest * int((sign * sample > threshold).sum()) for sample in (null, moved)]
            p0 = clopper_pearson(hits[0], rest * len(null), error)[1]
            p1 = clopper_pearson(hits[1], rest * len(moved), error)[0]
            tried.append((_mu(p0, p1) if goal == "mu" else _epsilon(p0, p1, delta), sign, float(threshold)))
    return max(tried)[1:]


def clopper_pearson(hits: int, trials: int, error: float) -> tuple[float, float]:
    """Return exact lower and upper bounds of a probability; each is wrong with probability at most `error`."""
    low = stats.beta.ppf(error, hits, trials - hits + 1) if hits else 0.0
    high = stats.beta.isf(error, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)


def _mu(p0: float, p1: float) -> float:
    return float(stats.norm.ppf(p1) - stats.norm.ppf(p0)) if 0 < p0 < 1 and 0 < p1 < 1 else 0.0


def _epsilon(p0: float, p1: float, delta: float) -> float:
    return math.log((p1 - delta) / p0) if p1 - delta > p0 > 0 else 0.0


def noise_scaled(case: Case, factor: float) -> Case:
    """Plant a violation: noise is drawn at `factor` times the scale that was charged."""

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        return measure_block(block, _scaled(draw, factor), marginal, secret, record)

    return replace(case, measure=measure)


def _scaled(draw: Draw, factor: float) -> Draw:
    """Return the draw with only its noise scaled."""
    if isinstance(draw, LaplaceDraw):
        return replace(draw, scale=int(draw.scale * factor))
    return replace(draw, variance=int(draw.variance * factor**2))


def sensitivity_off(case: Case) -> Case:
    """Plant a violation: the sensitivity of the draws is too small by sqrt 2, so there is too little noise."""
    draws = case.draws
    scaled = Draws(tuple(_scaled(draw, 0.5**0.5) for draw in draws.kinds), draws.which)
    return replace(case, draws=scaled)


def key_reused(case: Case) -> Case:
    """Plant a violation: all blocks have one stream (that of an empty label), so noise cancels in a difference."""

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        return measure_block(block, draw, marginal, secret, {})

    return replace(case, measure=measure)


def noise_on_floats(case: Case) -> Case:
    """Plant a violation: integer noise is added to real numbers, so the fractional parts are exact.

    The real part that is added depends on the data: 0.1 times 1 to 7, from the sum of the counts.
    """

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        values = measure_block(block, draw, marginal, secret, record)
        return values + 0.1 * (marginal.counts.sum() % 7 + 1)

    return replace(case, measure=measure)


def domain_of_the_data(case: Case) -> Case:
    """Plant a violation: empty cells are omitted from the release.

    The number of released values is then the number of cells with records, which the data determine.
    """

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        values = measure_block(block, draw, marginal, secret, record).reshape(-1)
        return values[: int((marginal.counts > 0).sum())]

    return replace(case, measure=measure)


PLANTED: dict[str, Callable[[Case], Case]] = {
    "scale x 0.7": lambda case: noise_scaled(case, 0.7),
    "sensitivity off by sqrt 2": sensitivity_off,
    "a reused key": key_reused,
    "noise on floats": noise_on_floats,
    "a data-dependent domain": domain_of_the_data,
}


Check = tuple[str, bool, str]
HONEST = 1000  # releases of each table in the attack on unmodified code
PURE = 10_000  # releases of one number
WEAKER = ("scale x 0.7", "sensitivity off by sqrt 2")
# releases of each table that reveal a planted violation
NEEDED = {name: 3000 if name in WEAKER else 500 for name in PLANTED}


def selftest(progress: Progress = silent) -> list[Check]:
    """Return (name, passed, detail) of each check; takes about 30 seconds of one core.

    Faults are planted into the last of the mechanisms. Those in WEAKER are planted with Laplace noise too.
    """
    pending: list[Callable[[], Check]] = []
    for mechanism, noise in product(MECHANISMS, (GAUSSIAN, LAPLACE)):
        pending += [partial(check, mechanism, noise) for check in (_law, _stability, _attack)]
    pending += [partial(_planted, name, case_of(MECHANISMS[-1])) for name in PLANTED]
    pending += [partial(_planted, name, case_of(MECHANISMS[-1], (2,), noise=LAPLACE)) for name in WEAKER]

    checks = list[Check]()
    for done, check in enumerate(pending):
        progress("self-test", done, len(pending))
        checks.append(check())
    progress("self-test", len(pending), len(pending))
    return checks


def noise_of(case: Case) -> tuple[list[np.ndarray], list[float]]:
    """Return the noise that one release adds, by block, and the standard deviations that were charged."""
    counts = small_table(case.plan.domain)
    noise = case.release(counts, seed=5) - case.exact(counts)
    ends = np.cumsum([int(np.prod(block.rows, dtype=int)) for block in case.plan.blocks])
    return np.split(noise, ends[:-1]), [draw.variance**0.5 for draw in case.draws]


def _law(mechanism: str, noise: str) -> Check:
    """Return the check that noise fails no test of its distribution, and that noise × 0.7 fails that of the scale."""
    case = case_of(mechanism, sizes=(30, 40), noise=noise)
    right, wrong = (faults(*noise_of(tested), case.pure) for tested in (case, noise_scaled(case, 0.7)))
    detail = f"of {sum(map(len, noise_of(case)[0]))} draws: {', '.join(right) or 'no fault'}"
    return f"{noise} noise of {mechanism}", not right and "scale" in wrong, detail


def _stability(mechanism: str, noise: str) -> Check:
    """Return the check that no added record moves a release by more than claimed, and with planted noise one does."""
    case = case_of(mechanism, noise=noise)
    worst = worst_record(case, small_table(case.plan.domain))
    planted = worst_record(sensitivity_off(case), small_table(case.plan.domain))
    detail = f"one record moves {float(worst):.6f} of {case.claimed:.6f} claimed"
    return f"stability of {mechanism}, {noise}", worst <= case.draws.amount < planted, detail


def worst_pair(case: Case) -> tuple[Integers, Integers]:
    """Return a table and the neighbour that the measurements distinguish best."""
    counts = small_table(case.plan.domain)
    return counts, max((more for _, more in one_more(counts)), key=lambda more: distance(case, counts, more))


def format_case(case: Case, bound: Bound) -> tuple[float, float, str]:
    """Return the bound found, the claim, and a text with both."""
    if case.pure:
        return bound.epsilon, case.claimed, f"epsilon is at least {bound.epsilon:.3f}, claimed {case.claimed:.3f}"
    mu = case.claimed**0.5
    return bound.mu, mu, f"mu is at least {bound.mu:.3f} by the {bound.event}, claimed {mu:.3f}"


def _attack(mechanism: str, noise: str) -> Check:
    """Return the check that the best attack on a correct mechanism stays below the claimed ε or μ.

    The two tables of `worst_pair` differ by the record with the largest effect. Pure noise is bounded in ε with δ = 0,
    other noise in μ.
    """
    case = case_of(mechanism, noise=noise)
    bound, claim, detail = format_case(
        case, attack(case, *worst_pair(case), releases=HONEST, delta=0.0 if case.pure else DELTA)
    )
    return f"attack on {mechanism}, {noise}", bound <= claim, detail


def _planted(name: str, case: Case) -> Check:
    """Return the check that the attack finds a planted fault: its lower bound exceeds the claim.

    The attacked tables are the neighbours that the mechanism distinguishes best. A data-dependent domain shows itself
    by a record in an empty table.
    """
    first, second = worst_pair(case)
    if name == "a data-dependent domain":
        first, second = first * 0, first * 0
        second[0, 0] = 1
    delta = 0.0 if case.pure else DELTA
    bound, claim, detail = format_case(
        case, attack(PLANTED[name](case), first, second, releases=PURE if case.pure else NEEDED[name], delta=delta)
    )
    return f"planted: {name}, {case.plan.noise}", bound > claim, detail
