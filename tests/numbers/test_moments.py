"""Second moments of numbers: exact values, exact sensitivity by brute force, regressions of numbers."""

from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

import dpscale as dp
from dpscale.base.errors import JobError, PlanError
from dpscale.domain import Domain
from dpscale.plans.measurement_plan import plan_draws
from dpscale.workload import Workload
from tests.messages import refused
from tests.numbers.test_sensitivity import record_marginals, spent

SPEC = {"attributes": {"g": {"kind": "categories", "values": ["a", "b"]}},
        "numbers": {"pay": {"low": -20, "high": 80, "step": 2}, "age": {"low": 0, "high": 40},
                    "wait": {"low": 0, "high": 3, "step": 0.25}}}  # fmt: skip


def make_frame(rows=4000):
    rng = np.random.default_rng(0)
    g, age = rng.choice(["a", "b"], rows), rng.integers(0, 41, rows)
    wait = rng.integers(0, 13, rows) / 4
    pay = 2 * np.rint((10 + 0.6 * age + 4 * wait + 5 * (g == "b") + rng.normal(0, 6, rows)) / 2)
    return pd.DataFrame({"g": g, "pay": np.clip(pay, -20, 80), "age": age, "wait": wait})


def test_members_are_variances_and_products_of_pairs():
    workload = Workload(Domain.from_dict(SPEC)).add("moments", attributes=[["g"], []], of=("pay", "age", "wait"))
    assert [part.name for part in workload.parts] == [
        "variance-pay",
        "variance-age",
        "variance-wait",
        "moments-pay-age",
        "moments-pay-wait",
        "moments-age-wait",
    ]
    assert workload.parts[3].sets == (("g", "pay", "age"), ("pay", "age"))


@pytest.mark.parametrize("of", [("pay",), ("pay", "pay"),
                                          ("pay", "g")])  # fmt: skip
def test_wrong_numbers_are_refused(of):
    with refused(JobError):
        Workload(Domain.from_dict(SPEC)).add("moments", degree=0, of=of)


@pytest.mark.parametrize("squares", [False, True])
def test_unknown_queries_on_attributes_are_refused(squares):
    with refused(JobError):
        Workload(Domain.from_dict(SPEC)).add("moments", degree=1, of=("pay", "age"), queries="bogus", squares=squares)


def small_plan(noise="gaussian", mechanism="weighted-residuals"):
    spec = {"attributes": {"g": {"kind": "coded", "size": 2}},
            "numbers": {"v": {"low": -3, "high": 5}, "w": {"low": 0, "high": 6, "nulls": "skip"}}}  # fmt: skip
    workload = Workload(Domain.from_dict(spec)).add("moments", attributes=[["g"], []], of=("v", "w"))
    return dp.plan(workload, mechanism, noise=noise)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("mechanism", ["weighted-residuals", "query-smasher"])
def test_cost_bounds_every_record(mechanism, noise):
    """All records of the domain, with values at the ends, between them and missing."""
    plan = small_plan(noise, mechanism)
    draws, domain = plan_draws(plan, 0.7), plan.domain
    effects = [spent(plan, draws, record_marginals(domain, dict(zip(("g", "v", "w"), cells, strict=True)),
                                                   plan.counted_sets))
               for cells in product(range(2), range(9), range(8))]  # fmt: skip
    assert max(effects) <= draws.amount
    assert mechanism == "query-smasher" or max(effects) > Fraction(9, 10) * draws.amount


def test_value_beyond_the_range_exceeds_the_cost():
    """Planted violation: records whose steps are not clipped."""
    plan = small_plan()
    draws = plan_draws(plan, 0.7)
    for cells in ({"g": 0, "v": 12, "w": 6}, {"g": 1, "v": 8, "w": 200}):
        codes = cells | {"w": min(cells["w"], 6)}
        marginals = record_marginals(plan.domain, codes, plan.counted_sets)
        if cells["w"] > 6:  # a product that is counted twice
            marginals = {names: type(one)(one.attributes, 2 * one.counts, one.denominators)
                         for names, one in marginals.items()}  # fmt: skip
        assert spent(plan, draws, marginals) > draws.amount


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moments")
    for name, packed in Domain.from_dict(SPEC).to_files("domain.toml").items():
        (folder / name).write_bytes(packed)
    job = {"data": {"domain": str(folder / "domain.toml")},
           "privacy": {"epsilon": 8.0, "delta": 1e-9, "dataset": "moments", "ledger": str(folder / "l.sqlite")},
           "workload": [{"family": "moments", "of": ["pay", "age", "wait"], "attributes": [["g"]]}],
           "engine": {"seed": 5, "scheduler": "synchronous"}, "synthesize": {"rows": 200}}  # fmt: skip
    return dp.run(job, run_dir=folder / "run", data=make_frame())


def test_products_by_group_are_those_of_the_records(release):
    frame = make_frame()
    table = release.table("g", family="moments-pay-age")
    exact = ((frame["pay"] - 30) * (frame["age"] - 20)).groupby(frame["g"]).sum()
    assert (np.abs(table["estimate"] - exact.to_numpy()) < 6 * table["std_error"]).all()
    assert (table["std_error"] > 0).all()
    assert release.table("g", family="variance-pay").shape[0] == 2


@pytest.mark.parametrize("formula", ["pay ~ age + wait + C(g)", "pay ~ age*g", "pay ~ wait + age:wait"])
def test_regression_of_numbers_covers_the_coefficients_of_the_records(release, formula):
    if formula.endswith("age:wait"):
        with refused(PlanError):
            release.regression(formula)
        return
    wanted, found = smf.ols(formula, make_frame()).fit(), release.regression(formula)
    order = list(found.params.index)
    assert (np.abs(found.params - wanted.params[order]) < 6 * found.bse).all()
    assert found.rsquared == pytest.approx(wanted.rsquared, abs=0.1)  # its standard deviation is 0.015
    assert found.nobs == pytest.approx(4000, abs=50)


def test_numbers_have_no_logistic_regression(release):
    with refused(JobError):
        release.regression("g == 'a' ~ age", family="logistic")
