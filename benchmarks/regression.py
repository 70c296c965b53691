"""Coverage and width of the 95 % intervals of regressions from one release that asks only the regression.

    python benchmarks/regression.py [CASE …] [--epsilons 0.1 1 10] [--releases 100] [--opendp] [--save]

Tables are Adult, telco, acs23 and salary (../shared/data, not part of dpscale; absent ones are skipped), with their
codes in at most eight groups, and generated ones whose outcome follows the model. A workload has the sets that the
regression needs: pairs of attributes for a linear one, the joint table for the others. Its plan is that of the default
mechanism, and the noise is the exact noise of a release at epsilon and delta 1e-9. The estimand is the regression on
the whole table.

    told      share of intervals that are finite
    coverage  share of the finite intervals that contain the coefficient of the whole table
    width     their median width over the delta-method width with the true moments, the median over the coefficients
    due       coefficients whose planned interval (delta method, true moments) is narrower than half its public range,
              -r … r with r the range of the outcome (log odds and log means: of shares from 1 to 99 %) over that of the
              column; and the share of these that is told
    peer      median over the coefficients of the delta-method width of the release over that of noisy sufficient
              statistics: XᵀX, Xᵀy in columns of size 1 with Gaussian noise of their exact sensitivity (linear only)

With --opendp (opendp >= 0.16 on the path) the slopes of lines with one covariate are compared with OpenDP's private
Theil-Sen regression at the same cost: the robust standard deviation of its slopes, and the root mean square of their
distance from the least-squares slope of the whole table, over the standard deviation of the slope of a release. Its
estimand is a median, so the first is its noise alone. It has one pairing of the records and CANDIDATES candidates.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import base
import numpy as np

import dpscale as dp
from dpscale.answers.regression.design import Design, read_design
from dpscale.answers.regression.fit import RegressionFit, RegressionResult, fit_regression
from dpscale.answers.regression.scores import LinearScore
from dpscale.counting.count import ExactMarginal
from dpscale.domain import Domain
from dpscale.measurement.measurement import measure_block
from dpscale.plans.measurement_plan import plan_draws
from dpscale.reconstruction.estimates import LeastSquaresEstimates

DELTA, LEVEL, GROUPS = 1e-9, 0.95, 8
EFFECT = 2 * np.log(99)  # range of the logarithm of odds of 1 to 99 %
EPSILONS = ("0.1", "1", "10")
FIGURES = ("told", "coverage", "width", "due", "due told", "peer")


@dataclass(frozen=True)
class Case:
    """A regression of a table; `sizes` limits the groups of an attribute, of which the last has all larger codes."""

    table: str
    family: str
    formula: str
    sizes: dict[str, int]
    clipped: bool = False


CASES = (
    Case("adult", "linear", "hours ~ age + C(sex) + education", {"age": 8, "hours": 8, "education": 8}),
    Case("adult", "logistic", "income ~ age + C(sex) + education", {"age": 8, "education": 8}),
    Case("telco", "linear", "Charges ~ C(InternetService) + Partner + tenure", {"Charges": 7, "tenure": 5}),
    Case("telco", "logistic", "Churn ~ tenure + C(Contract) + SeniorCitizen", {"tenure": 5}),
    Case("acs23", "linear", "a00 ~ a01 + a02 + a03 + a04", {}),
    Case("acs23", "logistic", "a05 ~ a06 + a07 + a08", {}),
    Case("salary", "linear", "gross ~ regular + C(system)", {}, clipped=True),
    Case("salary", "logistic", "gross > 3 ~ other + C(system)", {"other": 6}, clipped=True),
    Case("salary", "poisson", "other ~ C(system) + regular", {"regular": 6}, clipped=True),
    Case("generated", "linear", "y ~ x + C(g)", {}),
    Case("generated", "logistic", "f ~ x + C(g)", {}),
    Case("generated", "poisson", "c ~ x + C(g)", {}),
)
LINES = (  # with one covariate
    Case("adult", "linear", "hours ~ age", {"age": 8, "hours": 8}),
    Case("telco", "linear", "Charges ~ tenure", {"Charges": 7, "tenure": 5}),
    Case("acs23", "linear", "a00 ~ a01", {}),
    Case("salary", "linear", "gross ~ regular", {}, clipped=True),
    Case("generated", "linear", "y ~ x", {}),
)
CANDIDATES = 400
RENAMED = {"hours-per-week": "hours", "education-num": "education", "income>50K": "income", "ytd-gross": "gross",
           "regular-earnings": "regular", "other-earnings": "other",
           "MonthlyCharges": "Charges"}  # fmt: skip


def generate(rows: int = 5000) -> dict[str, np.ndarray]:
    """Return a table whose outcomes follow a line, a logistic and a Poisson model."""
    rng = np.random.default_rng(7)
    x, g = rng.integers(0, 5, rows), rng.choice(4, rows, p=[0.5, 0.3, 0.15, 0.05])
    effect = np.array([0.0, 0.5, -0.5, 1.0])[g]
    y = np.clip(np.rint(2 + 0.4 * x + effect + rng.normal(0, 1, rows)), 0, 7)
    f = rng.random(rows) < 1 / (1 + np.exp(1 - 0.3 * x - effect))
    return {"x": x, "g": g, "y": y, "f": f, "c": np.minimum(rng.poisson(np.exp(-0.5 + 0.2 * x + effect / 2)), 9)}


def load(case: Case) -> tuple[Domain, dict[str, np.ndarray]] | None:
    """Return the domain and the codes of the attributes of a case; None if the table is absent."""
    if case.table == "generated":
        columns = generate()
        sizes = {name: int(own.max()) + 1 for name, own in columns.items()}
    elif (table := base.load_table(case.table)) is not None:
        columns = {RENAMED.get(name, name): own for name, own in table.columns.items()}
        sizes = {RENAMED.get(name, name): size for name, size in table.sizes.items()}
    else:
        return None
    used = [name for name in sizes if name in base_names(case.formula)]
    groups = {name: min(case.sizes.get(name, GROUPS), sizes[name]) for name in used}
    codes = {name: np.minimum(columns[name].astype(np.int64), groups[name] - 1) if case.clipped
             else columns[name].astype(np.int64) * groups[name] // sizes[name] for name in used}  # fmt: skip
    return Domain(groups), codes


def base_names(formula: str) -> set[str]:
    """Return the words of a formula."""
    return set("".join(letter if letter.isalnum() else " " for letter in formula).split())


class Releases:
    """Releases of a plan over a table in memory, with the exact noise of the product."""

    def __init__(self, domain: Domain, codes: dict[str, np.ndarray], sets: list[tuple[str, ...]], cost: float) -> None:
        self.plan = dp.plan(dp.Workload(domain).add("marginal", attributes=sets))
        self.draws = plan_draws(self.plan, cost)
        self.variances = [float(draw.variance) / draw.multiplier**2 for draw in map(self.draws.__getitem__, self._all)]
        self.exact = {names: self._counted(domain, codes, names) for names in self.plan.counted_sets}

    @property
    def _all(self) -> range:
        return range(len(self.plan.blocks))

    @staticmethod
    def _counted(domain: Domain, codes: dict[str, np.ndarray], names: tuple[str, ...]) -> ExactMarginal:
        counts = np.zeros(domain.shape(names), np.int64)
        np.add.at(counts, tuple(codes[name] for name in names), 1)
        return ExactMarginal(names, counts, (1,) * len(names))

    def true(self) -> LeastSquaresEstimates:
        """Return the estimates without noise, with the variances of a release."""
        values = [self._values(index, None) for index in self._all]
        return LeastSquaresEstimates(self.plan, self.variances, values.__getitem__)

    def draw(self, number: int) -> LeastSquaresEstimates:
        values = [self._values(index, number) for index in self._all]
        return LeastSquaresEstimates(self.plan, self.variances, values.__getitem__)

    def _values(self, index: int, number: int | None) -> np.ndarray:
        block, draw = self.plan.blocks[index], self.draws[index]
        marginal = self.exact[self.plan.counted_sets[int(self.plan.sources.source[index])]]
        if number is not None:
            key = number.to_bytes(32, "big")
            return measure_block(block, draw, marginal, key, {"block": index}) / draw.multiplier
        others = tuple(axis for axis, name in enumerate(marginal.attributes) if name not in block.attributes)
        values = marginal.counts.sum(axis=others).astype(float)
        if block.joint:
            return np.asarray(block.factors[0].explicit() @ values.reshape(-1)).reshape(block.rows)
        for axis, factor in enumerate(block.factors):
            values = np.moveaxis(np.tensordot(factor.explicit(), values, axes=(1, axis)), 0, axis)
        return values


def sets_of(design: Design, family: str) -> list[tuple[str, ...]]:
    """Return the sets that a regression needs."""
    if family != "linear":
        return [design.names]
    columns = (*design.columns, design.outcome)
    pairs = {design.product(one, other)[0] for one in columns for other in columns}
    pairs -= {()}
    return sorted(names for names in pairs if not any(set(names) < set(other) for other in pairs))


def peer_covariance(design: Design, fit: RegressionFit, cost: float) -> np.ndarray:
    """Return the delta-method covariance of noisy sufficient statistics at the same budget, in scaled columns."""
    assert isinstance(fit.score, LinearScore)
    sizes = [float(np.abs(one.values).max()) or 1.0 for one in (*design.columns, design.outcome)]
    flat = np.stack([design.table(one).reshape(-1) / size
                     for one, size in zip((*design.columns, design.outcome), sizes, strict=True)])  # fmt: skip
    count = len(design.columns)
    pairs = [(i, j) for i in range(count) for j in range(i, count)] + [(i, count) for i in range(count)]
    moments = np.stack([flat[i] * flat[j] for i, j in pairs])
    distinct = np.unique(np.round(moments, 12), axis=0)  # equal statistics are measured once
    sensitivity = float(np.square(distinct).sum(axis=0).max())
    same = (np.abs(moments[:, None] - moments[None]) < 1e-9).all(axis=2)
    noisy = LinearScore(fit.score.moments, same * sensitivity / cost, np.zeros((count, count)), fit.score.places)
    return noisy.delta_covariance(fit.best.beta)


def public_ranges(design: Design, family: str) -> np.ndarray:
    """Return the width of the public range of each coefficient."""
    reach = float(np.ptp(design.outcome.values)) if family == "linear" else EFFECT
    return np.array([2 * reach / (float(np.ptp(one.values)) or 1.0) for one in design.columns])


def measure(case: Case, epsilon: float, releases: int) -> dict[str, float] | None:
    """Return the figures of a case at a budget."""
    if (loaded := load(case)) is None:
        return None
    domain, codes = loaded
    design, cost = read_design(domain, case.formula), dp.privacy.gdp_mu(epsilon, DELTA) ** 2
    drawn = Releases(domain, codes, sets_of(design, case.family), cost)

    exact = fit_regression(drawn.true(), design, case.family, False)
    true = RegressionResult(design, case.family, exact, "gaussian")
    params = true.params.to_numpy()
    planned = 2 * 1.959964 * np.sqrt(np.diag(true.cov_params()))
    told, inside, widths = (np.zeros((releases, len(params))) for _ in range(3))
    for number in range(releases):
        fit = fit_regression(drawn.draw(number), design, case.family, False)
        ends = RegressionResult(design, case.family, fit, "gaussian").conf_int(LEVEL).to_numpy()
        told[number] = np.isfinite(ends).all(axis=1)
        inside[number] = (ends[:, 0] <= params) & (params <= ends[:, 1])
        widths[number] = np.where(told[number] > 0, ends[:, 1] - ends[:, 0], np.nan)

    seen, due = told.any(axis=0), planned < public_ranges(design, case.family) / 2
    found = {"told": told.mean(), "due": float(due.sum()), "coefficients": float(len(due))}
    if seen.any():
        found["coverage"] = inside[told > 0].mean()
        found["width"] = float(np.median(np.nanmedian(widths[:, seen], axis=0) / planned[seen]))
    if due.any():
        found["due told"] = told[:, due].mean()
    if case.family == "linear":
        peer = np.sqrt(np.diag(peer_covariance(design, exact, cost))) * exact.scale
        found["peer"] = float(np.median(planned / (2 * 1.959964 * peer)))
    return {name: float(value) for name, value in found.items()}


def against_opendp(case: Case, epsilon: float, releases: int) -> tuple[float, float] | None:
    """Return spread and error of OpenDP's slope over the spread of that of a release; None without the table."""
    if (loaded := load(case)) is None:
        return None
    domain, codes = loaded
    design, cost = read_design(domain, case.formula), dp.privacy.gdp_mu(epsilon, DELTA) ** 2
    drawn = Releases(domain, codes, sets_of(design, case.family), cost)
    exact = RegressionResult(design, case.family, fit_regression(drawn.true(), design, case.family, False), "gaussian")
    deviation = float(np.sqrt(exact.cov_params().iloc[1, 1]))
    slopes = opendp_slopes(case.formula, domain, codes, cost / 2, releases)
    low, high = np.quantile(slopes, [0.25, 0.75])
    error = float(np.sqrt(np.square(slopes - float(exact.params.iloc[1])).mean()))
    return float(high - low) / NORMAL_QUARTILES / deviation, error / deviation


NORMAL_QUARTILES = 1.349  # distance of the quartiles of a standard normal variable


def opendp_slopes(formula: str, domain: Domain, codes: dict[str, np.ndarray], rho: float, count: int) -> np.ndarray:
    """Return the slopes of `count` releases by OpenDP at a cost of ρ zCDP each."""
    import opendp.prelude as odp

    odp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
    outcome, covariate = (domain[name.strip()] for name in formula.split("~"))
    x, y = (np.asarray(codes[attribute.name], float) for attribute in (covariate, outcome))
    ends = (0.0, float(outcome.size - 1))

    def fitter(scale: float) -> odp.sklearn.linear_model.LinearRegression:
        return odp.sklearn.linear_model.LinearRegression(
            odp.zero_concentrated_divergence(), [(0.0, float(covariate.size - 1))], ends, scale,
            candidates_count=CANDIDATES,
        )  # fmt: skip

    scale = odp.binary_search(lambda scale: fitter(scale).measurement.map(1) <= rho, bounds=(1e-6, 1e6))
    rng, slopes = np.random.default_rng(0), []
    for _ in range(count):
        order = rng.permutation(len(x))
        with np.errstate(divide="ignore", invalid="ignore"):  # pairs of equal covariates
            slopes.append(float(fitter(scale).fit(x[order, None], y[order]).coef_[0]))
    return np.array(slopes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="tables or families; default: all")
    parser.add_argument("--epsilons", nargs="*", default=list(EPSILONS))
    parser.add_argument("--releases", type=int, default=100)
    parser.add_argument("--opendp", action="store_true")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    figures: dict[str, Any] = {"releases": given.releases}
    print(f"{'case':<20} {'epsilon':>7}" + "".join(f"{name:>10}" for name in FIGURES))
    for case in CASES:
        if given.cases and not {case.table, case.family} & set(given.cases):
            continue
        for epsilon in given.epsilons:
            if (found := measure(case, float(epsilon), given.releases)) is None:
                print(f"{case.table}: no ../shared/data")
                break
            name = f"{case.table} {case.family}"
            shown = "".join(f"{found[one]:>10.3f}" if one in found else " " * 10 for one in FIGURES)
            print(f"{name:<20} {epsilon:>7}{shown}", flush=True)
            figures |= {f"{name}, {epsilon}, {one}": value for one, value in found.items()}
    for case in LINES if given.opendp else ():
        for epsilon in given.epsilons:
            if (ratios := against_opendp(case, float(epsilon), given.releases)) is not None:
                print(f"OpenDP, {case.formula} of {case.table}, epsilon {epsilon}: spread {ratios[0]:.1f} times, "
                      f"error {ratios[1]:.1f} times", flush=True)  # fmt: skip
                for kind, value in zip(("spread", "error"), ratios, strict=True):
                    figures[f"opendp {case.table}: {case.formula}, {kind}, {epsilon}"] = value
    if given.save:
        base.save("regression", figures)


if __name__ == "__main__":
    main()
