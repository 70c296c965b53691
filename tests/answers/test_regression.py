"""Regressions: exact without noise against statsmodels, intervals with the nominal coverage, and refusals."""

import sys
from functools import lru_cache, reduce
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from dpscale.answers.regression import fit
from dpscale.answers.regression.design import formula_names, read_design
from dpscale.answers.regression.fit import expected_widths, regression
from dpscale.answers.tables import Answered
from dpscale.base.errors import DpscaleError
from dpscale.domain import Domain
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.guessed import GuessedValues
from tests.answers.exact import estimates, measurement_plan
from tests.messages import refused
from tests.selection import mostly_slow

DOMAIN = Domain.from_dict({"attributes": {
    "x": {"kind": "integer", "low": 0, "high": 4},
    "age": {"kind": "bins", "edges": [0, 10, 30, 80]},
    "g": {"kind": "categories", "values": ["a", "b", "c"]},
    "y": {"kind": "coded", "size": 4},
    "f": {"kind": "categories", "values": ["no", "yes"]},
}})  # fmt: skip
MIDDLES = np.array([5.0, 20.0, 55.0])


def make_frame(rows=8000):
    rng = np.random.default_rng(0)
    x, age, g = rng.integers(0, 5, rows), rng.choice(3, rows, p=[0.5, 0.3, 0.2]), rng.choice(3, rows, p=[0.6, 0.3, 0.1])
    chance = 1 / (1 + np.exp(1 - 0.3 * x - 0.5 * (g == 1) + 0.01 * MIDDLES[age]))
    f, y = (rng.random(rows) < chance).astype(int), np.minimum(rng.poisson(np.exp(-1 + 0.2 * x + 0.3 * (g == 2))), 3)
    return pd.DataFrame({"x": x, "age": age, "g": g, "y": y, "f": f})


FRAME = make_frame()
COUNTS = np.zeros(DOMAIN.shape(DOMAIN.names))
np.add.at(COUNTS, tuple(FRAME[name] for name in DOMAIN.names), 1.0)
LABELLED = FRAME.assign(age=MIDDLES[FRAME["age"]], g=pd.Categorical.from_codes(FRAME["g"], ["a", "b", "c"]))
JOINT = [("marginal", ("x", "age", "g", "y")), ("marginal", ("x", "age", "g", "f"))]
PAIRS = [("marginal", names) for names in combinations(("x", "age", "g", "y"), 2)]
PLANS = {"joint": measurement_plan(DOMAIN, JOINT), "pairs": measurement_plan(DOMAIN, PAIRS),
         "mixed": measurement_plan(DOMAIN, PAIRS, "identity")}  # fmt: skip
CASES = [
    ("y ~ x + age + C(g)", "linear", "joint", smf.ols),
    ("y ~ x + age + C(g)", "linear", "pairs", smf.ols),
    ("y ~ x + age + C(g)", "linear", "mixed", smf.ols),
    ("y ~ x*g + I(age**2)", "linear", "joint", smf.ols),
    ("f ~ x + age + C(g)", "logistic", "joint", smf.logit),
    ("y ~ x + C(g)", "poisson", "joint", smf.poisson),
]


def answered(plan="joint", noise=None, scale=1.0):
    """Return answers of a plan with noise of `scale` times the planned deviation."""
    found = estimates(PLANS[plan], COUNTS, None)
    if noise is None:
        return Answered(found, "release")
    variances = np.asarray(found.variances) * scale**2
    values = [found._read(index) + noise.normal(0, np.sqrt(own), PLANS[plan].blocks[index].rows)
              for index, own in enumerate(variances)]  # fmt: skip
    return Answered(LeastSquaresEstimates(PLANS[plan], variances, values.__getitem__), "release")


def fitted(formula, family, plan="joint", noise=None, scale=1.0, population=False):
    asked = formula.replace("f ~", 'f == "yes" ~') if family == "logistic" else formula
    return regression(answered(plan, noise, scale), asked, family, population)


@pytest.mark.parametrize(("formula", "family", "plan", "model"), CASES)
def test_noiseless_regression_equals_statsmodels(formula, family, plan, model):
    """Coefficients and R², and with population=True robust errors, those of equal variance if only pairs are known."""
    options = {} if model is smf.ols else {"disp": 0}
    frame = LABELLED if family == "linear" else LABELLED.assign(f=LABELLED["f"].astype(float))
    kind = "nonrobust" if plan != "joint" else "HC0"
    wanted = model(formula, frame).fit(cov_type=kind, **options)
    found = fitted(formula, family, plan, population=True)
    order = list(found.params.index)
    np.testing.assert_allclose(found.params, wanted.params[order], rtol=1e-6, atol=1e-8)
    assert found.nobs == pytest.approx(len(FRAME))
    noise = np.diag(fitted(formula, family, plan).cov_params())
    np.testing.assert_allclose(np.diag(found.cov_params()) - noise, wanted.bse[order] ** 2, rtol=5e-3)
    if family == "linear":
        assert found.rsquared == pytest.approx(wanted.rsquared)


def count_cover(case, scale, runs, seed, shrink=1.0):
    """Return the shares of intervals that are finite and, of these, that cover the noiseless coefficients."""
    formula, family, plan, _ = case
    truth, rng, told, inside = fitted(formula, family, plan).params.to_numpy(), np.random.default_rng(seed), 0, 0
    for _ in range(runs):
        drawn = answered(plan, rng, scale)
        drawn.estimates.variances = np.asarray(drawn.estimates.variances) * shrink**2
        asked = formula.replace("f ~", 'f == "yes" ~') if family == "logistic" else formula
        ends = regression(drawn, asked, family, False).conf_int().to_numpy()
        finite = np.isfinite(ends).all(axis=1)
        told += finite.sum()
        inside += ((ends[:, 0] <= truth) & (truth <= ends[:, 1]))[finite].sum()
    return told / runs / len(truth), inside / told


@pytest.mark.parametrize("draws", mostly_slow([(3.0, 60), (25.0, 60), (25.0, 20)], {(25.0, 20)}))
@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[5]], ids=["linear", "logistic", "poisson"])
def test_intervals_cover_and_those_of_halved_errors_do_not(monkeypatch, case, draws):
    """The planted fault halves the standard errors of the release."""
    scale, runs = draws
    monkeypatch.setattr(fit, "read_design", lru_cache(fit.read_design))  # the same in all runs
    told, covered = count_cover(case, scale, runs, 1)
    assert told > 0.4
    assert 0.88 <= covered <= 0.995
    assert count_cover(case, scale, 2 * runs // 5, 2, shrink=0.5)[1] < 0.85


def test_coefficient_without_signal_is_not_known():
    found = fitted("y ~ x + age + C(g)", "linear", noise=np.random.default_rng(3), scale=3000.0)
    ends = found.conf_int().to_numpy()
    assert np.isinf(ends[1:]).any()
    assert np.isinf(found.bse[np.isinf(ends).any(axis=1)]).all()
    assert "Not known at this budget:" in found.summary()


def test_many_rows_of_the_design_are_linearised(monkeypatch):
    """The working response gives the errors of the exact score, to first order."""
    exact = fitted(CASES[4][0], "logistic", noise=np.random.default_rng(4))
    monkeypatch.setattr(fit, "MOST_MOMENTS", 10)
    found = fitted(CASES[4][0], "logistic", noise=np.random.default_rng(4))
    np.testing.assert_allclose(found.params, exact.params, rtol=1e-5)
    np.testing.assert_allclose(found.bse, exact.bse, rtol=1e-4)
    np.testing.assert_allclose(found.conf_int(), exact.conf_int(), rtol=0.03)


def test_p_value_and_interval_agree_and_summary_has_the_usual_rows():
    found = fitted("y ~ x + age + C(g)", "linear", noise=np.random.default_rng(5), scale=20.0)
    for name, chance in found.pvalues.items():
        low, high = found.conf_int(1 - chance if 1e-6 < chance < 1 - 1e-6 else 0.95).loc[name]
        if 1e-6 < chance < 1 - 1e-6:
            assert min(abs(low), abs(high)) < 0.02 * found.bse[name]
    text = found.summary()
    for part in (
        "Dep. Variable:",
        "No. Observations:",
        "R-squared:",
        "P>|z|",
        "[0.025",
        "C(g)[T.c]",
        "Covariance Type:",
    ):
        assert part in text


def test_records_without_a_value_are_left_out():
    domain = Domain.from_dict(
        {
            "attributes": {
                "x": {"kind": "integer", "low": 1, "high": 3, "nulls": "category"},
                "y": {"kind": "coded", "size": 3},
            }
        }
    )
    counts = np.array([[9.0, 2, 1], [4, 5, 3], [1, 3, 8], [50, 0, 0]])
    plan = measurement_plan(domain, [("marginal", ("x", "y"))])
    found, robust = (
        regression(Answered(estimates(plan, counts), "r"), "y ~ x", "linear", one) for one in (False, True)
    )
    rows = [(x + 1, y) for x in range(3) for y in range(3) for _ in range(int(counts[x, y]))]
    wanted = smf.ols("y ~ x", pd.DataFrame(rows, columns=["x", "y"])).fit(cov_type="HC0")
    np.testing.assert_allclose(found.params, wanted.params)
    np.testing.assert_allclose(np.diag(robust.cov_params()) - np.diag(found.cov_params()), wanted.bse**2, rtol=5e-3)
    assert found.nobs == pytest.approx(36)


@pytest.mark.parametrize(
    ("formula", "family", "plan", "says"),
    [
        ("y ~ agee", "linear", "joint", "did you mean 'age'"),
        ("y ~ x + I(2*x)", "linear", "joint", "the column I(2 * x), which follows from the others"),
        ("y ~ poly(x, 2)", "linear", "joint", "which is not supported"),
        ("y ~ x + (1|g)", "linear", "joint", "Operator `|` is incorrectly used"),
        ("y ~ log(x)", "linear", "joint", "not finite"),
        ("y", "linear", "joint", "OUTCOME ~ TERMS"),
        ("g ~ x", "linear", "joint", "write it as g == 'a'"),
        ("g == 'z' ~ x", "linear", "joint", "the same for all cells"),
        ("y ~ x", "logistic", "joint", "an outcome that is 0 or 1"),
        ("y ~ x", "probit", "joint", "linear, logistic, poisson"),
        ("f == 'yes' ~ x", "linear", "pairs", "x and f together, not measured"),
        ("f == 'yes' ~ x", "logistic", "pairs", "was not measured"),
        ("y ~ x*g", "linear", "pairs", "x and g and y together, not measured"),
    ],
)  # fmt: skip
def test_wrong_regressions_are_refused_in_a_sentence(formula, family, plan, says):
    with pytest.raises(DpscaleError) as caught:
        regression(answered(plan), formula, family, False)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_a_formula_are_read_without_a_domain():
    assert formula_names("`p.y` == 'yes' ~ C(`p.g`):age + I(x**2)") == ["p.y", "p.g", "age", "x"]


def test_interactions_have_the_coding_of_formulaic():
    names = [column.name for column in read_design(DOMAIN, "y ~ x*g").columns]
    assert names == ["Intercept", "x", "g[T.b]", "g[T.c]", "x:g[T.b]", "x:g[T.c]"]


@pytest.mark.parametrize(("formula", "family"), [("y ~ x + C(g)", "linear"), ("f == 'yes' ~ x + C(g)", "logistic")])
def test_expected_widths_are_those_of_the_guessed_table(formula, family):
    shares = {"g": [0.6, 0.3, 0.1], "x": [1, 2, 3, 2, 2]}
    vectors = [np.array(shares.get(name, np.ones(DOMAIN[name].size)), float) for name in DOMAIN.names]
    counts = 5000 * reduce(np.multiply.outer, [one / one.sum() for one in vectors])
    for plan in PLANS.values() if family == "linear" else [PLANS["joint"]]:
        exact = estimates(plan, counts)
        wanted = regression(Answered(exact, "r"), formula, family, False)
        guessed = GuessedValues(DOMAIN, plan.blocks, 5000, shares)
        found = expected_widths(
            LeastSquaresEstimates(plan, exact.variances, guessed.__getitem__), formula, family, 0.95
        )
        assert list(found) == list(wanted.params.index)
        np.testing.assert_allclose(list(found.values()), 3.919928 * np.sqrt(np.diag(wanted.cov_params())), rtol=1e-6)


def test_expected_widths_of_a_dependent_design_are_those_of_its_table():
    """Joint shares of outcome and covariates: the widths are those of a release of the table itself."""
    table = np.random.default_rng(1).integers(1, 40, DOMAIN.shape(("x", "g", "f")))
    shares = {("x", "g", "f"): table}
    rest = [name for name in DOMAIN.names if name not in ("x", "g", "f")]
    even = [np.full(DOMAIN[name].size, 1 / DOMAIN[name].size) for name in rest]
    counts = 5000 * reduce(np.multiply.outer, even, table / table.sum())
    counts = np.transpose(counts, [("x", "g", "f", *rest).index(name) for name in DOMAIN.names])
    exact = estimates(PLANS["joint"], counts)
    wanted = regression(Answered(exact, "r"), "f == 'yes' ~ x + C(g)", "logistic", False)
    guessed = GuessedValues(DOMAIN, PLANS["joint"].blocks, 5000, shares)
    of_guess = LeastSquaresEstimates(PLANS["joint"], exact.variances, guessed.__getitem__)
    found = expected_widths(of_guess, "f == 'yes' ~ x + C(g)", "logistic", 0.95)
    np.testing.assert_allclose(list(found.values()), 3.919928 * np.sqrt(np.diag(wanted.cov_params())), rtol=1e-6)


def test_wrong_guesses_are_refused():
    for given in ({"g": [1, 2]}, {"h": [1]}):
        with refused(DpscaleError):
            GuessedValues(DOMAIN, PLANS["joint"].blocks, 100, given)


def test_estimates_of_a_model_have_coefficients_without_errors():
    """A model completes what was not measured, so the noise does not determine its errors."""
    exact = answered().estimates
    model = SimpleNamespace(workload=exact.workload, noise=exact.noise, marginal=lambda names: exact.marginal(names))
    for formula, family in (("y ~ x + C(g)", "linear"), ("f == 'yes' ~ x + age", "logistic")):
        found = regression(Answered(model, "r"), formula, family, False)
        np.testing.assert_allclose(found.params, regression(answered(), formula, family, False).params, rtol=1e-6)
        assert np.isnan([*found.bse, *found.pvalues, *found.conf_int().to_numpy().ravel()]).all()
        assert "those of a model" in found.summary()


def test_regression_without_formulaic_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "formulaic.errors", None)
    with refused(DpscaleError):
        fitted("y ~ x + age + C(g)", "linear")
