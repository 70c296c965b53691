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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dpscale.audit.noise_and_stability import (
    MECHANISMS,
    Case,
    case_of,
    distance,
    faults,
    one_more,
    small_table,
    worst_record,
)
from dpscale.base.numerics import Floats, Integers, stats
from dpscale.counting import ExactMarginal
from dpscale.engine.base import Progress, silent
from dpscale.measurement import measure_block
from dpscale.plans.blocks import Block
from dpscale.plans.measurement_plan import Draws
from dpscale.privacy.draws import GAUSSIAN, LAPLACE, Draw, LaplaceDraw

ERROR = 1e-4  # probability of a wrong bound of an attack
DELTA = 1e-3  # δ at which ε is bounded if the noise is not pure
CHOSEN_ON = 5  # one part in so many
GOALS = ("mu", "epsilon")
QUANTILES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)  # of a statistic: the thresholds of the events that are tried


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
    samples = [
        [case.release(table, 2 * i + which) for i in range(releases)] for which, table in enumerate((one, other))
    ]
    shapes = [np.array([len(values) for values in sample], dtype=float) for sample in samples]
    if len(set(np.concatenate(shapes))) > 1:
        return best_event({"the number of values": (shapes[0], shapes[1])}, delta)
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

    `null` and `moved` have a row for each release. Pairs and fractions are chosen on the first 1 / CHOSEN_ON of
    `null`.

    A fraction is the part of a number behind the decimal point; it is tested for numbers that are not integers.
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
    varying = scaled.std(axis=0) > 0
    correlated = np.abs(np.atleast_2d(np.corrcoef(scaled[:, varying], rowvar=False))) > 0.5
    names = np.flatnonzero(varying)
    return [(int(names[i]), int(names[j])) for i, j in zip(*np.nonzero(np.triu(correlated, 1)), strict=True)]


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
        p0, p1 = clopper_pearson(hits[0], trials, error)[1], clopper_pearson(hits[1], trials, error)[0]
        mu = max(bound.mu, _mu(p0, p1))
        bound = Bound(mu, max(bound.epsilon, _epsilon(p0, p1, delta)), name)
    return bound


def _choose(null: Floats, moved: Floats, delta: float, goal: str, error: float) -> tuple[float, float]:
    """Return the side (1: above, −1: below) and the threshold of the event with the best bound on these releases.

    Its frequencies are taken to be those of the remaining releases as well, which are `rest` times as many. Rare
    events differ by chance and have loose bounds, so the bound is the criterion.
    """
    tried, rest = [], CHOSEN_ON - 1
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
    """Plant a violation: noise is drawn at `factor` times the scale that was charged.

    A case is a mechanism on a small table with its plan and claim. Only the function that measures a block is replaced.
    """

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
    """Plant a violation: all blocks have one stream, so their noise cancels in a difference.

    An empty record {} as the label of every draw yields the same stream for all blocks.
    """

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

    Faults are planted into the last of the mechanisms; WEAKER lists those that Laplace noise must reveal too.
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
    """Return the noise that one release adds, by block, and the standard deviations that were charged.

    `case.exact` are the values before noise, so the difference is the noise. `ends` are the ends of the blocks in the
    release.
    """
    counts = small_table(case.plan.domain)
    noise = case.release(counts, seed=5) - case.exact(counts)
    ends = np.cumsum([int(np.prod(block.rows, dtype=int)) for block in case.plan.blocks])
    return np.split(noise, ends[:-1]), [draw.variance**0.5 for draw in case.draws]


def _law(mechanism: str, noise: str) -> Check:
    """Return the check that noise passes the tests of its distribution, and that noise × 0.7 does not.

    `faults` lists the tests that noise fails. Noise × 0.7 must fail the test of the scale; otherwise the tests would be
    too weak.
    """
    case = case_of(mechanism, sizes=(30, 40), noise=noise)
    right, wrong = (faults(*noise_of(tested), case.pure) for tested in (case, noise_scaled(case, 0.7)))
    detail = f"of {sum(map(len, noise_of(case)[0]))} draws: {', '.join(right) or 'no fault'}"
    return f"{noise} noise of {mechanism}", not right and "scale" in wrong, detail


def _stability(mechanism: str, noise: str) -> Check:
    """Return the check that no record moves a release by more than claimed, and a planted wrong sensitivity does.

    `worst_record` is the largest distance between releases that one added record causes. It must not exceed the amount
    of the draws; that of the planted case must.
    """
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

    `first` and `second` are the neighbouring tables that the mechanism distinguishes best. A data-dependent domain
    shows itself by a record in an empty table.
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
