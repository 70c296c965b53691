"""Error of a refused charge: the request, the cap that refuses it, its promise, and the most that would fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from dpscale.base.errors import BudgetError
from dpscale.ledger.account import Account
from dpscale.ledger.cap import Cap, Limit, largest_epsilon, remaining_epsilon
from dpscale.privacy.accounting import PURE, Cost, Spending, delta_left, float_above

SENSIBLE = 1e-3  # smallest useful share of the requested epsilon or of the cap
USED_UP = "too little is left: raise the cap or take another dataset"


def refusal(
    account: Account,
    limits: Sequence[Limit],
    cost: Cost,
    epsilon: float | None,
    delta: float | None,
    public: bool = False,
) -> BudgetError:
    """Return the error that states the requested, the remaining and the largest admissible epsilon.

    Parameters
    ----------
    account : Account
        Account of the dataset, or of the period whose cap refuses the request.
    limits : sequence of Limit
        Limit of that account, then those of all other filters that the request has to pass.
    cost : Cost
        Cost of the request.
    epsilon, delta : float, optional
        Figures of the job.
    public : bool
        Whether anyone can compute the noise.
    """
    cap, history, steps = limits[0].cap, limits[0].history, limits[0].steps
    where = f"dataset {account.name!r}"
    if public:
        return BudgetError("engine.seed", f"noise that anyone can compute, on {where}, which has a cap",
                           "noise with a secret key", "remove the seed, or use data without a cap")  # fmt: skip
    where += f" in {account.period}" if account.period else ""
    limit = f"its cap of {cap}{_promise(account)}"
    if (more := cost.for_group(steps).delta) and history.delta + more > cap.additive:
        return _refused_delta(where, limit, cap, history, more)
    at = cap.delta if delta is None or math.isinf(cost.epsilon_or_inf(delta)) else delta
    asked = cost.epsilon_or_inf(at) if epsilon is None else epsilon
    largest = largest_epsilon(limits, cost, at)
    worth = largest and largest >= SENSIBLE * max(asked, cap.epsilon)
    fits = f"at most epsilon {largest:.6g} at delta {at:.6g}, the largest that would fit" if worth else "nothing more"
    spent = f"spent epsilon {cap.spent_epsilon(history):.6g} and " if account.period else ""
    left = f"{spent}remaining epsilon {remaining_epsilon(cap, history):.6g} at delta {cap.delta:.6g}"
    added = f" with additive delta {float_above(more):.6g}" if more else ""
    left += f" with additive delta {float_above(history.delta):.6g} spent" if history.delta else ""
    return BudgetError(
        "privacy.epsilon",
        f"requested epsilon {asked:.6g} at delta {at:.6g}{added} of {where}, {left} of {limit}",
        fits,
        _remedy(account, cap, cost, largest, asked),
    )


def _promise(account: Account) -> str:
    """Return the period by which a cap renews and the promise of the cap, for a dataset with such caps."""
    if account.renewal:
        return f" for each {account.renewal}, which protects {account.protects}"
    return f", which protects {account.protects}" if account.renewing and account.protects else ""


def _refused_delta(where: str, limit: str, cap: Cap, history: Spending, more: Fraction) -> BudgetError:
    """Return the error for an additive delta that is larger than the remaining part of the cap's delta for it."""
    left = max(0.0, delta_left(cap.additive, history.delta))
    got = (f"requested additive delta {float_above(more):.6g} of {where}, remaining additive delta"
           f" {left:.6g} of {limit}")  # fmt: skip
    return BudgetError("privacy.delta", got, f"at most {left:.6g}" if left else "none",
                       "lower it, set another cap before the release, or take another dataset")  # fmt: skip


def _remedy(account: Account, cap: Cap, cost: Cost, largest: float, requested: float) -> str:
    if account.spent.public:
        return "take another dataset: a release with a seed showed this one's exact counts"
    if cap.currency == PURE and not cost.is_pure:
        return "give epsilon alone, for Laplace noise: a pure cap admits nothing else"
    worth = largest and largest >= SENSIBLE * max(requested, cap.epsilon)
    remedy = f"ask for epsilon = {largest:.6g} or raise the cap" if worth else USED_UP
    if account.renewal and not worth:
        remedy = f"release other {account.renewal}s, which have caps of their own, or raise the cap"
    if cost.is_pure and cap.currency != PURE:
        remedy += ", or give delta too: under a cap in gdp Gaussian noise costs less"
    return remedy
