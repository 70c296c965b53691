"""Budgets in Rényi differential privacy, against numerical divergences of the noise that a run draws."""

import math

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import integrate, stats

import dpscale as dp
from dpscale.job.sections import Privacy

RENYI = {"order": 8, "epsilon": 0.5}


def divergence(order, mu):
    """Return the Rényi divergence of N(mu, 1) from N(0, 1), by numerical integration."""

    def density(x):
        return math.exp(order * stats.norm.logpdf(x, mu) + (1 - order) * stats.norm.logpdf(x))

    middle = order * mu
    total, _ = integrate.quad(density, middle - 40, middle + 40, points=[middle])
    return math.log(total) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 2, 8, 32])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_budget_has_the_stated_divergence(order, epsilon):
    budget = Privacy(renyi={"order": order, "epsilon": epsilon}).budget
    assert budget.noise == "gaussian"
    assert divergence(order, math.sqrt(budget.amount)) == pytest.approx(epsilon, rel=1e-6)
    assert divergence(order, math.sqrt(1.1 * budget.amount)) > epsilon * 1.05, "planted: a larger budget is seen"


def test_budget_equals_that_of_rho():
    assert Privacy(renyi=RENYI).budget == Privacy(rho=0.5 / 8).budget


@pytest.mark.parametrize("wrong", [{"renyi": {"order": 1, "epsilon": 1}}, {"renyi": {"order": 8}}, {"renyi": 8},
                                   {"renyi": RENYI, "rho": 1}, {"renyi": RENYI, "delta": 1e-6},
                                   {"renyi": {"order": 2, "epsilon": 1000}}])  # fmt: skip
def test_wrong_budgets_are_refused(wrong):
    with pytest.raises(ValidationError):
        Privacy(**wrong)


def test_run_charges_the_stated_budget(tmp_path):
    """The exact cost of the noise that was drawn is at most the divergence, and nearly all of it."""
    (tmp_path / "domain.toml").write_text('[attributes.a]\nkind = "coded"\nsize = 4\n')
    import pandas as pd

    pd.DataFrame({"a": np.arange(400) % 4}).to_parquet(tmp_path / "data.parquet")
    (tmp_path / "job.toml").write_text(
        '[data]\npath = "data.parquet"\ndomain = "domain.toml"\n[privacy]\ndataset = "renyi"\n'
        'renyi = {order = 8, epsilon = 0.5}\n[[workload]]\nfamily = "prefix"\ndegree = 1\n'
        '[engine]\nscheduler = "synchronous"\n'
    )
    dp.run(str(tmp_path / "job.toml"), run_dir=tmp_path / "run")
    with dp.Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        spent = ledger.summary("renyi")["datasets"]["renyi"]["spent"]["squared_mu"]
    assert 0.4999 < 8 * spent / 2 <= 0.5
