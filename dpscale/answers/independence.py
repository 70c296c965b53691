"""Test of the independence of two attributes, from the released table of both with its noise.

Let N be the estimated table, p and q its margins, and r = N − (rows · columns)/total. In orthonormal contrasts of both
axes r has (J − 1)(K − 1) coordinates z. Under independence n records have the covariance Σ = n (diag p − ppᵀ) ⊗
(diag q − qqᵀ), and the noise has the covariance V of the plan. The statistic is zᵀ (Σ + V)⁺ z, summed over strata
(Kifer and Rogers 2017; without noise it is Pearson's). Its p-value is that of a parametric bootstrap: tables of n
independent records with the margins p and q, plus the redrawn noise of the whole plan. The random streams follow from
the public name of the release, so a repeated call gives the same p-value. The test is about the population that the
records are drawn from.

References
----------
Kifer, Rogers: A new class of private chi-square hypothesis tests. AISTATS 2017. Gaboardi, Lim, Rogers, Vadhan:
Differentially private chi-squared hypothesis testing. ICML 2016.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpscale.answers.statistics import TooFewRecords, cells_of
from dpscale.answers.tables import Answered
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import Floats
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import DRAWS, answer_errors, half_width, public_generator
from dpscale.workload import MARGINAL, part_of

# cells of both attributes and those of `where`; contrasts, whose covariance is a dense matrix; simulated tables
MOST_CELLS, MOST_CONTRASTS, MOST_DRAWS = 10_000, 1_500, 100_000
WEIGHING = 1000  # further draws, for the weights alone: those of the test would make its tables look too regular


class IndependenceTest(NamedTuple):
    """Result of a test of independence.

    Parameters
    ----------
    statistic : float
    p_value : float
        Share of simulated tables with at least this statistic, with the released one counted: at least 1/(draws + 1).
    degrees_of_freedom : int
        Number of contrasts, (J − 1)(K − 1) for each stratum.
    noise_share : float
        Share of the variance of the contrasts that is noise; the rest is the sampling of records.
    population : bool
        True: the hypothesis is about the population that records are drawn from.
    """

    statistic: float
    p_value: float
    degrees_of_freedom: int
    noise_share: float
    population: bool = True


def independence_test(
    answered: Answered, names: tuple[str, str], by: Sequence[str], where: Mapping[str, Any], draws: int = DRAWS
) -> IndependenceTest:
    """Return the test of the independence of two attributes, in each stratum.

    Parameters
    ----------
    answered : Answered
    names : tuple of str
    by : sequence of str
        Attributes of strata.
    where : mapping of str to object or list of objects
        Labels of the records that count, by attribute.
    draws : int
        Number of simulated tables.

    Raises
    ------
    PlanError
        For estimates of a model, or a table that is too large.
    TooFewRecords
        If no stratum is distinguished from an empty one.
    """
    estimates = answered.estimates
    if not isinstance(estimates, LeastSquaresEstimates):
        raise PlanError("test", "estimates of a model, whose errors have no known covariance",
                        "estimates of least squares", "use a mechanism without rounds")  # fmt: skip
    if type(draws) is not int or not 100 <= draws <= MOST_DRAWS:
        raise JobError("draws", safe_repr(draws), f"a whole number from 100 to {MOST_DRAWS:,}", "leave it out")

    domain, axes = estimates.workload.domain, [*by, *names]
    others = [name for name in where if name not in axes]
    ordered = domain.ordered([*others, *axes])
    if (cells := domain.cells(ordered)) > MOST_CELLS:
        raise PlanError("test", f"{cells:,} cells of {', '.join(ordered)}", f"at most {MOST_CELLS:,}",
                        "test attributes with fewer cells")  # fmt: skip

    def chosen(tables: Floats) -> Floats:
        """Return tables with one axis for each attribute as (…, strata, J, K)."""
        for axis, name in enumerate(ordered):
            if name in where:
                tables = tables.take(cells_of(domain[name], where[name]), axis - len(ordered))
        lead = tables.ndim - len(ordered)
        tables = tables.transpose([*range(lead), *(lead + ordered.index(name) for name in (*others, *axes))])
        tables = tables.sum(axis=tuple(range(lead, lead + len(others))))
        return tables.reshape(*tables.shape[:lead], -1, *tables.shape[-2:])

    # the estimated tables of all strata, shape (strata, J, K)
    observed = chosen(estimates.marginal(ordered))
    if min(observed.shape[-2:]) < 2:
        raise JobError("where", f"one value of {names[observed.shape[-2] > 1]}", "two values or more",
                       "name another one")  # fmt: skip
    if (observed.shape[-2] - 1) * (observed.shape[-1] - 1) > MOST_CONTRASTS:
        raise PlanError("test", f"a table of {' × '.join(map(str, observed.shape[-2:]))} values",
                        f"at most {MOST_CONTRASTS:,} contrasts", "choose values by where")  # fmt: skip
    # redrawn errors of the same tables: the first WEIGHING give the weights, the others the simulated tables
    part, seed = part_of(MARGINAL, domain, (ordered,), (1.0,)), f"{answered.release} test"
    errors = np.concatenate(list(answer_errors(estimates, part, ordered, seed, WEIGHING + draws)))
    noise = chosen(errors.reshape(-1, *domain.shape(ordered)))
    random = public_generator(f"{seed} {axes} {sorted(where)}")

    width, strata = half_width(0.95, estimates.noise), list[_Stratum]()
    for number, table in enumerate(observed):
        # a stratum whose records are not distinguished from none is left out
        if table.sum() > max(width * noise[:, number].sum(axis=(1, 2)).std(), 1.0):
            strata.append(_Stratum.of(table, noise[:, number], random))
    if not strata:
        raise TooFewRecords("test", " and ".join(names), "a table with more records than noise",
                            "use a larger group")  # fmt: skip

    # the p-value counts the observed table as one of the simulated ones, so it is never 0
    statistic, freedom = sum(stratum.statistic for stratum in strata), sum(stratum.freedom for stratum in strata)
    above = int((np.sum([stratum.simulated for stratum in strata], axis=0) >= statistic).sum())
    share = sum(stratum.noise for stratum in strata) / freedom
    return IndependenceTest(
        statistic=float(statistic),
        p_value=(1 + above) / (draws + 1),
        degrees_of_freedom=freedom,
        noise_share=float(share),
    )


class _Stratum(NamedTuple):
    """Statistic of a stratum, those of its simulated tables, degrees of freedom, and how many of them are noise."""

    statistic: float
    simulated: Floats
    freedom: int
    noise: float

    @classmethod
    def of(cls, table: Floats, noise: Floats, random: np.random.Generator) -> _Stratum:
        """Return the statistic of a table under draws of its noise, shape (WEIGHING + draws, J, K).

        The first WEIGHING draws estimate the covariance of the noise, so that the others, which simulate tables, are
        independent of the weights.
        """
        weighing, noise = noise[:WEIGHING], noise[WEIGHING:]
        rows, columns = (_shares(table.sum(axis=axis)) for axis in (1, 0))
        total = max(float(table.sum()), 1.0)
        records = random.multinomial(round(total), np.outer(rows, columns).reshape(-1), len(noise))
        simulated = _contrasts(records.reshape(noise.shape) + noise)

        # n (diag p − ppᵀ) ⊗ (diag q − qqᵀ) in the contrasts of both axes
        multinomial = []
        for shares in (rows, columns):
            basis = _basis(len(shares))
            multinomial.append(basis @ (np.diag(shares) - np.outer(shares, shares)) @ basis.T)
        sampling = total * np.kron(*multinomial)
        spread = _noise_covariance(weighing, rows, columns)
        weights = np.linalg.pinv(sampling + spread, rcond=1e-10, hermitian=True)

        (observed,) = _contrasts(table[None])
        statistics = np.einsum("bi,ij,bj->b", simulated, weights, simulated, optimize=True)
        return cls(float(observed @ weights @ observed), statistics, len(observed), float((weights * spread).sum()))


def _shares(sums: Floats) -> Floats:
    """Return the shares of estimated sums; estimates below 0 count as none."""
    positive = np.maximum(sums, 0.0)
    return np.asarray(positive / positive.sum())


def _basis(size: int) -> Floats:
    """Return orthonormal contrasts of the cells of an axis, shape (size − 1, size)."""
    contrasts = np.tril(np.ones((size - 1, size)))
    contrasts[np.arange(size - 1), np.arange(1, size)] = -np.arange(1, size)
    return np.asarray(contrasts / np.linalg.norm(contrasts, axis=1, keepdims=True))


def _contrasts(tables: Floats) -> Floats:
    """Return the contrasts of the departures of tables from independence, shape (tables, contrasts)."""
    rows, columns = tables.sum(axis=2), tables.sum(axis=1)
    total = np.maximum(rows.sum(axis=1), 1.0)[:, None, None]
    return _projected(tables - rows[:, :, None] * columns[:, None, :] / total)


def _projected(tables: Floats) -> Floats:
    """Return tables in orthonormal contrasts of both axes, shape (tables, contrasts)."""
    of_rows, of_columns = (_basis(size) for size in tables.shape[1:])
    return np.einsum("ij,bjk,lk->bil", of_rows, tables, of_columns, optimize=True).reshape(len(tables), -1)


def _noise_covariance(noise: Floats, rows: Floats, columns: Floats) -> Floats:
    """Return the covariance of the contrasts of departures due to noise.

    Departures are linear in the noise to first order. With few draws the covariance is mixed with a multiple of the
    identity of the same trace.

    `noise` has shape (draws, J, K). `rows` and `columns` are the shares p and q of the margins; the departure of noise
    e in a cell is to first order e − q (sum of its row) − p (sum of its column) + p q (sum of e).
    """
    down, across, total = noise.sum(axis=2), noise.sum(axis=1), noise.sum(axis=(1, 2))
    departures = (noise - down[:, :, None] * columns - rows[:, None] * across[:, None, :]
                  + np.outer(rows, columns) * total[:, None, None])  # fmt: skip
    drawn = _projected(departures)
    covariance = drawn.T @ drawn / len(drawn)
    size = len(covariance)
    # the fewer draws per contrast, the larger the share of the identity
    share = size / (size + len(drawn))
    return np.asarray((1 - share) * covariance + share * np.trace(covariance) / size * np.eye(size))
