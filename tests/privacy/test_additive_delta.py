"""Costs with an additive delta and a period against explicit mechanisms that fail open with a known probability.

The oracle is exact: distributions over a few outcomes in fractions or with many digits, their products for composition
and chains of neighbours for groups. A fail-open event shows the data: its outcome has probability 0 for a neighbour.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpscale.base.errors import BudgetError, JobError
from dpscale.privacy.accounting import GDP, PURE, Cost, Spending, delta_left, float_above, root_above
from dpscale.privacy.conversion import delta_of_mu, epsilon_of_mu, gaussian_power, pure_power
from tests.messages import refused

Number = Fraction | mpmath.mpf
Law = dict[object, Number]  # probability of each outcome
EPSILONS = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 60.0]
TIGHT = 1e-6  # relative: how far above the truth a tight conversion may be


def hockey_stick(one: Law, other: Law, ratio: Number) -> Number:
    """Return the exact delta at epsilon = log(ratio)."""
    return sum((max(p - ratio * other.get(at, 0), 0) for at, p in one.items()), 0 * ratio)


def worst(laws: tuple[Law, Law], epsilon: float) -> mpmath.mpf:
    """Return the exact delta of two neighbours in either order."""
    ratio = mpmath.exp(mpmath.mpf(epsilon))
    pair = [{at: as_mpf(p) for at, p in law.items()} for law in laws]
    return max(hockey_stick(pair[0], pair[1], ratio), hockey_stick(pair[1], pair[0], ratio))


def as_mpf(value: Number) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def product(laws: Sequence[Law]) -> Law:
    """Return the joint law of independent outcomes."""
    return {at: math.prod((law[one] for law, one in zip(laws, at, strict=True)), start=Fraction(1))
            for at in itertools.product(*laws)}  # fmt: skip


def fails_open(laws: Sequence[Law], chance: Number) -> list[Law]:
    """Return the same laws with an outcome of probability `chance` that shows the input."""
    return [
        {at: p * (1 - chance) for at, p in law.items()} | {("shown", number): chance} for number, law in enumerate(laws)
    ]


def response(odds: Fraction, chance: Fraction) -> tuple[list[Law], Cost]:
    """Return randomised response of epsilon = log(odds) with a fail-open event, and its cost."""
    laws = [{0: odds / (1 + odds), 1: 1 / (1 + odds)}, {0: 1 / (1 + odds), 1: odds / (1 + odds)}]
    return fails_open(laws, chance), Cost(pure=log_above(odds), delta=chance)


def log_above(odds: Fraction) -> float:
    return math.nextafter(math.log(odds), math.inf)


def rounded_gaussian(mu: Fraction, chance: Fraction, shifts: Sequence[int] = (0, 1)) -> tuple[list[Law], Cost]:
    """Return N(shift, 1/mu²) rounded to integers within ±5 deviations, with a fail-open event, and its cost."""
    reach = math.ceil(5 / mu)
    edges = [mpmath.mpf(at) + mpmath.mpf("0.5") for at in range(-reach, reach)]

    def law(shift: int) -> Law:
        below = [0, *(mpmath.ncdf(as_mpf(mu) * (edge - shift)) for edge in edges), 1]
        return {at: mpmath.mpf(below[at + 1]) - below[at] for at in range(len(below) - 1)}

    return fails_open([law(shift) for shift in shifts], as_mpf(chance)), Cost(gaussian=mu**2, delta=chance)


MECHANISMS: list[Callable[[], tuple[list[Law], Cost]]] = [
    lambda: response(Fraction(3), Fraction(1, 50)),
    lambda: response(Fraction(11, 10), Fraction(1, 10**6)),
    lambda: rounded_gaussian(Fraction(1), Fraction(1, 100)),
    lambda: rounded_gaussian(Fraction(1, 2), Fraction(1, 10**7)),
    lambda: rounded_gaussian(Fraction(2), Fraction(0)),
]


def check_conversions(laws: tuple[Law, Law], cost: Cost) -> None:
    """Assert that neither conversion understates the exact delta of two neighbours."""
    for epsilon in EPSILONS:
        assert worst(laws, epsilon) <= cost.delta_at(epsilon)
    for share in (1.5, 10.0, 1000.0):
        delta = min(float(cost.delta) * share or 1e-6, 0.5)
        if delta > cost.delta and math.isfinite(epsilon := cost.epsilon(delta)):
            assert worst(laws, epsilon) <= delta


@pytest.mark.parametrize("number", range(len(MECHANISMS)))
def test_conversions_cover_a_failing_mechanism(number: int) -> None:
    laws, cost = MECHANISMS[number]()
    check_conversions((laws[0], laws[1]), cost)


@pytest.mark.parametrize("numbers", [(0, 0), (0, 1), (0, 2), (2, 3), (1, 1, 0), (0, 2, 1), (2, 4)])
def test_conversions_cover_a_composition(numbers: tuple[int, ...]) -> None:
    parts = [MECHANISMS[number]() for number in numbers]
    laws = product([part[0][0] for part in parts]), product([part[0][1] for part in parts])
    whole = Cost.total([part[1] for part in parts])
    check_conversions(laws, whole)
    assert whole.delta == sum(part[1].delta for part in parts)
    deltas = sorted(part[1].delta for part in parts)
    if deltas[-2]:
        with pytest.raises(AssertionError):  # planted: the sum has the largest of the deltas
            check_conversions(laws, replace(whole, delta=deltas[-1]))


@pytest.mark.parametrize(("numbers", "delta"), [((0, 0), 0.2), ((2, 2), 0.1), ((0, 2), 0.1)])
def test_spending_equals_the_composition(numbers: tuple[int, ...], delta: float) -> None:
    spending, whole = Spending(), Cost()
    for number in numbers:
        cost = MECHANISMS[number]()[1]
        spending, whole = spending.plus(cost), whole + cost
    assert spending.delta == whole.delta > 0
    assert spending.epsilon(GDP, delta) >= whole.epsilon(delta)
    below = math.nextafter(float(whole.delta), 0)
    assert spending.epsilon(GDP, below) == spending.epsilon(GDP, 0.0) == math.inf


def test_pure_cost_composes_exactly() -> None:
    """In the pure currency n responses with fail-open events are (sum of epsilon, sum of delta)-DP."""
    laws, cost = response(Fraction(3, 2), Fraction(1, 1000))
    for number in (1, 2, 3):
        whole, spending = Cost.total([cost] * number), Spending()
        for _ in range(number):
            spending = spending.plus(cost)
        exact = hockey_stick(product([laws[0]] * number), product([laws[1]] * number), Fraction(3, 2) ** number)
        assert exact <= Fraction(number, 1000) == whole.delta
        assert spending.epsilon(PURE, number / 1000) in (float_above(whole.pure), math.inf)
        assert spending.epsilon(PURE, number / 1000 * (1 + 1e-12)) == float_above(whole.pure)
        assert spending.epsilon(PURE, number / 1001) == math.inf
        assert whole.epsilon(0.5) <= float_above(whole.pure)


# Groups


def leaking_chain(size: int, delta: mpmath.mpf, grown: Callable[[mpmath.mpf], mpmath.mpf]) -> list[Law]:
    """Return laws of two outcomes, each as far from the one before as its power and delta allow."""
    chances = [mpmath.mpf(0)]
    for _ in range(size):
        chances.append(min(delta + grown(chances[-1]), mpmath.mpf(1)))
    return [{"shown": one, "hidden": 1 - one} for one in chances]


def test_group_of_pure_mechanisms_attains_its_delta() -> None:
    odds, delta = Fraction(5, 2), Fraction(1, 10**4)
    cost = Cost(pure=log_above(odds), delta=delta)
    chances = [Fraction(0)]
    for size in range(1, 7):
        chances.append(delta + odds * chances[-1])  # each step has ratio odds and delta, in both orders
        laws = {"shown": chances[-1], "hidden": 1 - chances[-1]}, {"shown": Fraction(0), "hidden": Fraction(1)}
        assert hockey_stick(*laws, odds**size) == chances[-1] == sum(odds**i * delta for i in range(size))
        group = cost.for_group(size)
        assert chances[-1] <= group.delta <= chances[-1] * (1 + Fraction(TIGHT))
        assert group.pure == size * cost.pure
        if size > 1:  # planted: a delta that does not grow, or grows like a repetition
            assert hockey_stick(*laws, odds**size) > size * delta > cost.delta


@pytest.mark.parametrize(("mu", "delta"), [(0.5, 1e-3), (1.0, 1e-6), (3.0, 1e-9), (0.01, 0.2), (2.0, 1e-200)])
def test_group_of_gaussian_mechanisms_attains_its_delta(mu: float, delta: float) -> None:
    with mpmath.workdps(60):
        chain = leaking_chain(5, mpmath.mpf(delta), lambda level: shifted(level, mu))
        for size in range(1, 6):
            group = Cost(gaussian=Fraction(mu) ** 2, delta=delta).for_group(size)
            exact = chain[size]["shown"]
            assert exact <= as_mpf(group.delta) <= exact * (1 + TIGHT) or group.delta == 1
            assert group.gaussian == (size * Fraction(mu)) ** 2
            assert size == 1 or exact > size * mpmath.mpf(delta) or exact == 1  # planted: a repetition
            terms = sum(shifted(mpmath.mpf(delta), step * mu) for step in range(size))
            assert exact <= terms * (1 + TIGHT)  # the sum of the powers at delta is a weaker bound


def shifted(level: mpmath.mpf, mu: float) -> mpmath.mpf:
    """Return Phi(Phi^-1(level) + mu) with many digits."""
    if not 0 < level < 1:
        return level
    quantile = mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x) / level), mpmath.mpf(start(float(level))))
    return mpmath.ncdf(quantile + mpmath.mpf(mu))


def start(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(level))


@pytest.mark.parametrize(("mu", "chance"), [(Fraction(1, 2), Fraction(1, 100)), (Fraction(1), Fraction(1, 10**5))])
def test_group_covers_a_chain_of_failing_gaussians(mu: Fraction, chance: Fraction) -> None:
    laws, cost = rounded_gaussian(mu, chance, shifts=(0, 1, 2, 3))
    for size in (1, 2, 3):
        check_conversions((laws[0], laws[size]), cost.for_group(size))
    assert worst((laws[0], laws[3]), 1.0) > cost.delta_at(1.0)  # planted: the cost of one unit for a group of three


@settings(max_examples=40, deadline=None)
@given(
    mus=st.lists(st.fractions(Fraction(1, 10), 2), min_size=1, max_size=3),
    deltas=st.lists(st.fractions(Fraction(1, 10**9), Fraction(1, 20)), min_size=3, max_size=3),
    size=st.integers(2, 4),
)
def test_group_of_a_sum_and_sum_of_groups_have_the_same_mu(
    mus: list[Fraction], deltas: list[Fraction], size: int
) -> None:
    """Both are valid. The sum is the one that a ledger of separate releases has."""
    parts = [Cost(gaussian=mu**2, delta=delta) for mu, delta in zip(mus, deltas, strict=False)]
    alone = Cost.total([part.for_group(size) for part in parts])
    whole = Cost.total(parts).for_group(size)
    assert whole.gaussian == alone.gaussian
    assert whole.delta >= sum(part.delta for part in parts)
    if len(parts) == 1:
        assert whole == alone


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"])
def test_invalid_group_is_refused(size: object) -> None:
    with refused(BudgetError):
        Cost(gaussian=1).for_group(size)  # type: ignore[arg-type]


def test_many_small_pure_parts_grow_by_their_mu() -> None:
    """A hundred responses of epsilon 0.1: e^10 is far above the growth of their mu; one response grows by e^epsilon."""
    many = Cost.total([Cost(pure=Fraction(1, 10), delta=Fraction(1, 10**11))] * 100)
    assert many.for_group(2).delta < many.delta * (1 + math.exp(10)) / 10
    one = Cost(pure=1, delta=Fraction(1, 10**9))
    assert one.for_group(2).delta == pytest.approx(1e-9 * (1 + math.e), rel=1e-9)
    assert one.for_group(2).delta < Cost(gaussian=one.squared_mu, delta=one.delta).for_group(2).delta


# Rounding and the two powers


@settings(max_examples=150, deadline=None)
@given(level=st.floats(-289, -1e-3).map(lambda x: 10**x), mu=st.floats(1e-6, 40))
def test_gaussian_power_is_rounded_up(level: float, mu: float) -> None:
    with mpmath.workdps(60):
        exact = shifted(mpmath.mpf(level), mu)
        assert exact <= gaussian_power(level, mu) <= exact * (1 + TIGHT)


def test_powers_at_the_ends() -> None:
    assert gaussian_power(0.0, 1.0) == pure_power(0.0, 0.0) == 0.0
    assert gaussian_power(1.0, 1.0) == pure_power(1.0, 1.0) == gaussian_power(0.5, math.inf) == 1.0
    assert 0 < gaussian_power(1e-310, 1e-3) <= 1e-289
    assert pure_power(0.9, 800.0) == 1.0
    for level, epsilon in itertools.product([0.1, 0.5, 0.9], [0.01, 1.0, 3.0]):
        exact = min(math.exp(epsilon) * level, 1 - math.exp(-epsilon) * (1 - level))
        assert exact * (1 - 1e-15) <= pure_power(level, epsilon) <= exact * (1 + 1e-9)
        assert gaussian_power(level, epsilon) >= exact - 1  # both are probabilities


@given(delta=st.floats(1e-12, 0.9), additive=st.fractions(0, Fraction(9, 10)))
def test_remaining_delta_is_rounded_down(delta: float, additive: Fraction) -> None:
    left = delta_left(delta, additive)
    assert Fraction(left) <= Fraction(delta) - additive <= Fraction(math.nextafter(left, 1))
    assert delta_left(delta, Fraction(0)) == delta


@given(delta=st.fractions(0, 1, max_denominator=10**30), bits=st.integers(5, 130))
def test_coarsened_delta_is_rounded_up(delta: Fraction, bits: int) -> None:
    cost = Cost(gaussian="1/3", delta=delta, period="2026-02").coarsened(bits)
    assert delta <= cost.delta <= min(delta * (1 + Fraction(8, 2**bits)), 1)
    assert cost.period == "2026-02"


def test_additive_delta_is_added_to_the_curve_and_subtracted_before_it() -> None:
    cost = Cost(gaussian="1/4", delta="1/1000000")
    assert cost.delta_at(1.0) == pytest.approx(delta_of_mu(0.5, 1.0) + 1e-6, rel=1e-12)
    assert cost.epsilon(3e-6) == pytest.approx(epsilon_of_mu(0.5, 2e-6), rel=1e-9)
    assert Cost(gaussian="1/4", delta="9/10").delta_at(0.0) == 1.0
    assert Cost(pure=1, delta="1/10").delta_at(1.0) == float_above(Fraction(1, 10))
    assert Cost(gaussian=10**400, delta="1/10").delta_at(1.0) == 1.0
    with refused(JobError):
        cost.delta_at(-1.0)


@pytest.mark.parametrize(("cost", "delta"), [
    (Cost(gaussian=1, delta="1/1000"), 1e-3 / 2), (Cost(gaussian=1, delta="1/1024"), 1 / 1024),
    (Cost(pure=1, delta="1/1000"), 1e-4), (Cost(gaussian=1, delta=1), 0.999), (Cost(delta="1/2"), 0.25),
])  # fmt: skip
def test_delta_below_the_additive_one_is_refused(cost: Cost, delta: float) -> None:
    with refused(BudgetError):
        cost.epsilon(delta)
    assert cost.epsilon_or_inf(delta) == math.inf


def test_equal_delta_is_enough_for_a_pure_cost() -> None:
    assert Cost(pure=1, delta="1/1024").epsilon(1 / 1024) == 1.0
    assert Cost(delta="1/2").epsilon(0.5) == 0.0
    assert Cost(gaussian=1).epsilon(0.0) == math.inf  # as before there was an additive delta


def test_scaled_noise_keeps_the_additive_delta() -> None:
    cost = Cost(gaussian=1, delta="1/100", period="2026")
    assert cost.scaled(3) == Cost(gaussian=9, delta="1/100", period="2026") != cost.for_group(3)
    assert cost.for_group(3).period == "2026"


# Fields


def test_unset_fields_are_not_written() -> None:
    assert set(Cost(gaussian=1).to_dict()) == {"gaussian", "zcdp", "pure", "pure_squares"}
    cost = Cost(gaussian=1, delta="1/3", period="2026-02")
    assert {name: cost.to_dict()[name] for name in ("delta", "period")} == {"delta": "1/3", "period": "2026-02"}
    assert Cost.from_dict(cost.to_dict()) == cost
    assert Cost.from_dict({"gaussian": "1"}) == Cost(gaussian=1)


def test_period_of_a_sum_is_that_of_all_its_parts() -> None:
    one, same, other = (Cost(gaussian=1, period=period) for period in ("2026-01", "2026-01", "2026-02"))
    assert (one + same).period == Cost.total([one, same]).period == "2026-01"
    assert (one + other).period == (one + Cost(gaussian=1)).period == (one + other + one).period == ""
    assert (one + Cost(period="2026-02")).period == "2026-01"  # a cost of zero is for no data
    assert (one + other).gaussian == 2  # periods are not assumed to be disjoint
    assert not Cost(period="2026-01")
    assert Cost(delta="1/10")


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.fractions(0, 1), st.fractions(0, 1)), max_size=4))
def test_sums_do_not_depend_on_the_order(rows: list[tuple[str, Fraction, Fraction]]) -> None:
    many = [Cost(gaussian=mu, delta=delta, period=period) for period, mu, delta in rows]
    total = Cost.total(many)
    assert total.delta == min(sum(cost.delta for cost in many), 1)
    if total:
        assert Cost.total(many[::-1]) == total
        periods = {cost.period for cost in many if cost}
        assert total.period == (periods.pop() if len(periods) == 1 else "")


@pytest.mark.parametrize(
    "parts", [{"delta": "11/10"}, {"delta": -1}, {"delta": "nan"}, {"gaussian": "1", "delta": None}]
)
def test_invalid_additive_delta_is_refused(parts: dict[str, str]) -> None:
    with refused(BudgetError):
        Cost.from_dict(parts)


@pytest.mark.parametrize("period", [" 2026", "2026\n", "a" * 65, 2026, None])
def test_invalid_period_is_refused(period: object) -> None:
    with refused(BudgetError):
        Cost(gaussian=1, period=period)  # type: ignore[arg-type]


def test_pure_dp_grows_no_faster_than_its_gaussian_equivalent() -> None:
    for epsilon in (0.01, 0.5, 3.0):
        mu = root_above(Cost(pure=Fraction(epsilon)).squared_mu)
        levels = np.geomspace(1e-12, 1 - 1e-9, 200)
        assert all(pure_power(level, epsilon) <= gaussian_power(level, mu) * (1 + 1e-9) for level in levels)
