"""Mechanisms with a wrong cost are stopped before a draw."""

import sys
from contextlib import suppress
from dataclasses import fields, replace
from types import ModuleType

import pytest

import dpscale as dp
from dpscale.mechanisms import MECHANISMS, aim_grem
from dpscale.mechanisms.aim.adaptive_plan import AdaptivePlan
from dpscale.mechanisms.contract import Mechanism, NoOptions
from dpscale.mechanisms.matrix_mechanism import FixedPlan
from tests.audit.composition import audit_run
from tests.audit.small import write
from tests.measurement.small import with_states
from tests.messages import refused

RHO = {"rho": 0.5, "dataset": "small"}


class UnderchargedPlan(AdaptivePlan):
    """Planted error: the charge is a hundredth of the cost of the first decision."""

    @property
    def cost(self):
        return dp.privacy.Cost(gaussian=self.setting.beta / 100)


def undercharged(plan):
    return UnderchargedPlan(**{field.name: getattr(plan, field.name) for field in fields(AdaptivePlan)})


def overspending(plan):
    """Planted error: rounds measure at fifty times their budget, and decisions state this cost."""
    return with_states(plan, select=lambda selection: replace(selection, step=selection.step * 50))


def with_hidden_selection_cost(plan):
    """Planted error: selections are made at fifty times the cost in their decisions."""
    return with_states(
        plan,
        lambda decision: replace(decision, beta=decision.beta / 50),
        lambda selection: replace(selection, beta=selection.beta * 50),
    )


@pytest.fixture
def registered(request, monkeypatch):
    def plan(problem, options, tools=None):
        return request.param(aim_grem.plan(problem, aim_grem.Options()))

    module = ModuleType("tests.toys.overspending")
    module.MECHANISM = Mechanism("over", NoOptions, plan, lambda folder, problem, options: plan(problem, options),
                                 lambda options: ("low_order",), data_independent=False)  # fmt: skip
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(MECHANISMS, "over", module.__name__)


@pytest.mark.parametrize("registered", [undercharged, overspending], indirect=True)
def test_planted_overspending_is_stopped_before_draw(tmp_path, registered):
    with suppress(Exception):
        dp.run(write(tmp_path, mechanism={"name": "over"}, privacy=RHO), tmp_path / "run")
    assert not list((tmp_path / "run" / "measurements").glob("round-*.json"))  # nor is a choice written
    if list((tmp_path / "run" / "measurements").glob("*.parquet")):
        audit = audit_run(tmp_path / "run", tmp_path / "ledger.sqlite")
        assert audit.drawn <= audit.paid


@pytest.mark.parametrize("registered", [with_hidden_selection_cost], indirect=True)
def test_planted_selection_cost_is_refused(tmp_path, registered):
    with pytest.raises((dp.DpscaleError, ValueError)):
        dp.run(write(tmp_path, mechanism={"name": "over"}, privacy=RHO), tmp_path / "run")


def test_planted_pure_squares_are_refused(tmp_path, monkeypatch):
    """Under a cap in gdp a release of many small epsilons costs less; their squares are recomputed."""
    honest = FixedPlan.cost.fget

    def understated_cost(self):
        return dp.privacy.Cost(pure=honest(self).pure, pure_squares="1/1000000")

    monkeypatch.setattr(FixedPlan, "cost", property(understated_cost))
    job = write(tmp_path, privacy={"epsilon": 10.0, "dataset": "small"}, engine={"scheduler": "synchronous"})
    with refused(dp.BudgetError):
        dp.run(job, tmp_path / "run")
    assert not list((tmp_path / "run" / "measurements").glob("*.parquet"))
