"""Quick part of the audit for the local installation: `dpscale selftest`.

Every check runs twice: on the unmodified code, which must pass, and with a planted violation, which must be detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from dpscale.audit.attacks import DELTA, Bound, attack
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
from dpscale.base.numerics import Floats, Integers
from dpscale.counting import ExactMarginal
from dpscale.measurement import measure_block
from dpscale.plans.blocks import Block
from dpscale.plans.requests import Draws
from dpscale.privacy.draws import GAUSSIAN, LAPLACE, Draw, LaplaceDraw


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
    """Plant a violation: the sensitivity of the schedule is too small by sqrt 2, so there is too little noise."""
    draws = case.schedule.draws
    scaled = Draws(tuple(_scaled(draw, 0.5**0.5) for draw in draws.kinds), draws.which)
    return replace(case, schedule=replace(case.schedule, draws=scaled))


def key_reused(case: Case) -> Case:
    """Plant a violation: all blocks have one stream, so their noise cancels in a difference."""

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        return measure_block(block, draw, marginal, secret, {})

    return replace(case, measure=measure)


def noise_on_floats(case: Case) -> Case:
    """Plant a violation: integer noise is added to real numbers, so the fractional parts are exact."""

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        values = measure_block(block, draw, marginal, secret, record)
        return values + 0.1 * (marginal.counts.sum() % 7 + 1)

    return replace(case, measure=measure)


def domain_of_the_data(case: Case) -> Case:
    """Plant a violation: empty cells are omitted from the release."""

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
HONEST = 1000
PURE = 10_000  # releases of one number
WEAKER = ("scale x 0.7", "sensitivity off by sqrt 2")
NEEDED = {name: 3000 if name in WEAKER else 500 for name in PLANTED}


def selftest() -> list[Check]:
    """Return (name, passed, detail) of each check; takes less than 30 seconds."""
    checks: list[Check] = []
    for mechanism, noise in product(MECHANISMS, (GAUSSIAN, LAPLACE)):
        checks += [_law(mechanism, noise), _stability(mechanism, noise), _attack(mechanism, noise)]
    checks += [_planted(name, case_of(MECHANISMS[-1])) for name in PLANTED]
    return checks + [_planted(name, case_of(MECHANISMS[-1], (2,), noise=LAPLACE)) for name in WEAKER]


def noise_of(case: Case) -> tuple[list[np.ndarray], list[float]]:
    """Return the noise that one release adds, by block, and the standard deviations that were charged."""
    counts = small_table(case.plan.domain)
    noise = case.release(counts, seed=5) - case.exact(counts)
    ends = np.cumsum([int(np.prod(block.rows, dtype=int)) for block in case.plan.blocks])
    return np.split(noise, ends[:-1]), [draw.variance**0.5 for draw in case.schedule.draws]


def _law(mechanism: str, noise: str) -> Check:
    case = case_of(mechanism, sizes=(30, 40), noise=noise)
    right, wrong = (faults(*noise_of(one), case.pure) for one in (case, noise_scaled(case, 0.7)))
    detail = f"of {sum(map(len, noise_of(case)[0]))} draws: {', '.join(right) or 'no fault'}"
    return f"{noise} noise of {mechanism}", not right and "scale" in wrong, detail


def _stability(mechanism: str, noise: str) -> Check:
    case = case_of(mechanism, noise=noise)
    worst = worst_record(case, small_table(case.plan.domain))
    planted = worst_record(sensitivity_off(case), small_table(case.plan.domain))
    detail = f"one record moves {float(worst):.6f} of {case.claimed:.6f} claimed"
    return f"stability of {mechanism}, {noise}", worst <= case.schedule.cost < planted, detail


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
    case = case_of(mechanism, noise=noise)
    bound, claim, detail = format_case(
        case, attack(case, *worst_pair(case), releases=HONEST, delta=0.0 if case.pure else DELTA)
    )
    return f"attack on {mechanism}, {noise}", bound <= claim, detail


def _planted(name: str, case: Case) -> Check:
    one, other = worst_pair(case)
    if name == "a data-dependent domain":
        one, other = one * 0, one * 0
        other[0, 0] = 1
    delta = 0.0 if case.pure else DELTA
    bound, claim, detail = format_case(
        case, attack(PLANTED[name](case), one, other, releases=PURE if case.pure else NEEDED[name], delta=delta)
    )
    return f"planted: {name}, {case.plan.noise}", bound > claim, detail
