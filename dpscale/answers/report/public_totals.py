"""Public totals in the report: their origin, and whether the measurements contradict them.

The measurements below known nodes of a hierarchy estimate these nodes as well. The squared differences from the totals,
each divided by its variance, add up to a chi-square variable if the totals are right.
"""

from __future__ import annotations

from typing import Any

from dpscale.base.numerics import stats
from dpscale.domain.public_totals import SAME, PublicTotal
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.tree_estimates import TreeEstimates

SURPRISING = 1e-3  # probability below which a misfit is reported


def total_results(estimates: Estimates) -> list[dict[str, Any]]:
    """Return the public totals of a release.

    A total changes if filters, contribution bounds or clipping change the records that are counted, or if it is from
    another time or source.

    Parameters
    ----------
    estimates : Estimates

    Returns
    -------
    list of dict
        names: attributes as text; origin; same: whether the total is from the same records; misfit: statistic, degrees
        and p of a chi-square test of measurements below known nodes of a hierarchy, or None if they fit or have no
        information on the total.
    """
    return [
        {"names": " x ".join(one.names) or "all records", "origin": one.origin, "same": one.origin == SAME,
         "misfit": misfit_of(estimates, one)}
        for one in estimates.workload.domain.public_totals
    ]  # fmt: skip


def misfit_of(estimates: Estimates, total: PublicTotal) -> dict[str, float] | None:
    """Return the chi-square test of a total if the measurements contradict it, else None.

    Parameters
    ----------
    estimates : Estimates
    total : PublicTotal

    Returns
    -------
    dict or None
        statistic, degrees of freedom, and p: the probability of a larger statistic for a total that is right. None also
        if the measurements have no information on the total.
    """
    tested = estimates.misfit(total.names) if isinstance(estimates, TreeEstimates) else None
    if tested is None:
        return None
    statistic, degrees = tested
    p = float(stats.chi2.sf(statistic, degrees))
    return {"statistic": statistic, "degrees": degrees, "p": p} if p < SURPRISING else None
