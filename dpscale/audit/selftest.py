"""The quick part of the audit, for the machine it runs on: `dpscale selftest`.

Every check is made twice: on the code as it is, which must pass, and with a violation planted, which must be found.
"""

from __future__ import annotations

import numpy as np

from dpscale.audit.attacks import attack
from dpscale.audit.laws import faults
from dpscale.audit.planted import PLANTED, noise_scaled, sensitivity_off
from dpscale.audit.releases import MECHANISMS, Case, Counts, case_of, one_more, small_table
from dpscale.audit.stability import squared_distance, worst_record

Check = tuple[str, bool, str]
HONEST = 1000
NEEDED = {name: 3000 if name in ("scale x 0.7", "sensitivity off by sqrt 2") else 500 for name in PLANTED}


def selftest() -> list[Check]:
    """(name, passed, detail) of each check; under 30 seconds."""
    checks: list[Check] = []
    for mechanism in MECHANISMS:
        checks += [_law(mechanism), _stability(mechanism), _attack(mechanism)]
    return checks + [_planted(name) for name in PLANTED]


def noise_of(case: Case) -> tuple[list[np.ndarray], list[float]]:
    """The noise that one release really adds, by block, and the standard deviations that were charged."""
    counts, parts, start = small_table(case.plan.domain), [], 0
    values = case.release(counts, seed=5)
    for block, draw in zip(case.plan.blocks, case.schedule.draws, strict=True):
        own = counts.sum(axis=tuple(i for i, n in enumerate(case.plan.domain.names) if n not in block.attributes))
        exact = applied(block.factors, own) * draw.multiplier
        parts.append(values[start : start + exact.size] - exact.reshape(-1))
        start += exact.size
    return parts, [draw.variance**0.5 for draw in case.schedule.draws]


def applied(factors: tuple, counts: Counts) -> np.ndarray:
    """The strategy as one explicit integer matrix, times the counts: slow, and independent of the measuring code."""
    matrix = np.ones((1, 1), dtype=np.int64)
    for factor in factors:
        matrix = np.kron(matrix, factor.explicit())
    return matrix @ counts.reshape(-1)


def _law(mechanism: str) -> Check:
    case = case_of(mechanism, sizes=(30, 40))
    right, wrong = (faults(*noise_of(one)) for one in (case, noise_scaled(case, 0.7)))
    detail = f"of {sum(map(len, noise_of(case)[0]))} draws: {', '.join(right) or 'no fault'}"
    return f"noise of {mechanism}", not right and "scale" in wrong, detail


def _stability(mechanism: str) -> Check:
    case = case_of(mechanism)
    worst = worst_record(case, small_table(case.plan.domain))
    planted = worst_record(sensitivity_off(case), small_table(case.plan.domain))
    detail = f"one record moves {float(worst):.6f} of {case.claimed:.6f} claimed"
    return f"stability of {mechanism}", worst <= case.schedule.cost < planted, detail


def worst_pair(case: Case) -> tuple[Counts, Counts]:
    """A table and the neighbour that the measurements tell apart best."""
    counts = small_table(case.plan.domain)
    return counts, max((more for _, more in one_more(counts)), key=lambda more: squared_distance(case, counts, more))


def _attack(mechanism: str) -> Check:
    case = case_of(mechanism)
    found = attack(case, *worst_pair(case), releases=HONEST)
    detail = f"mu is at least {found.mu:.3f} by the {found.event}, claimed {case.claimed**0.5:.3f}"
    return f"attack on {mechanism}", found.mu <= case.claimed**0.5, detail


def _planted(name: str) -> Check:
    case = case_of("identity")
    one, other = worst_pair(case)
    if name == "a data-dependent domain":
        one, other = one * 0, one * 0
        other[0, 0] = 1
    found = attack(PLANTED[name](case), one, other, releases=NEEDED[name])
    detail = f"mu is at least {found.mu:.3f} by the {found.event}, claimed {case.claimed**0.5:.3f}"
    return f"planted: {name}", found.mu > case.claimed**0.5, detail
