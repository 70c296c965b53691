"""Option `published` of `aim-pgm`: AIM's schedule, equal noise in every cell, one set per round, size of the model."""

import math
import sys
from dataclasses import replace
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

import dpscale as dp
from dpscale.base.errors import BudgetError
from dpscale.base.settings import checked
from dpscale.measurement.adaptive import run
from dpscale.measurement.measurement import check_affordable, decision_parts
from dpscale.mechanisms import MECHANISMS, aim_grem, aim_pgm
from dpscale.mechanisms.aim.decision import residual_requests
from dpscale.mechanisms.contract import Mechanism, NoOptions, PlanningProblem
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.draws import gaussian_draw
from dpscale.privacy.streams import seeded_secret
from dpscale.reconstruction.junction_tree import model_cells
from dpscale.workload.residual import every_cell, residual_of
from tests.audit.composition import audit_run
from tests.audit.small import write
from tests.measurement.small import NAMES, SIZES, TRIPLES, make_counter, make_records, mean_error, with_states
from tests.messages import refused

COUNTS = make_counter(make_records())
RHO = {"rho": 0.5, "dataset": "small"}


def make_problem(beta=1.0, rows_per_unit=1, degree=3):
    workload = dp.Workload(dp.Domain(SIZES)).add("marginal", degree=degree)
    return PlanningProblem(workload, Budget(GAUSSIAN, beta), rows_per_unit)


def make_plan(beta=1.0, rows_per_unit=1, **options):
    return aim_pgm.plan(make_problem(beta, rows_per_unit), aim_pgm.Options(published=True, **options))


def run_decisions(plan, seed=0, rows_per_unit=1):
    """Run a plan and return its decisions in order and the last state."""
    taken = [plan.first_decision()]

    recording = with_states(plan, lambda decision: taken.append(decision) or decision)
    return taken, run(recording, COUNTS, seeded_secret(seed), rows_per_unit=rows_per_unit)


def test_budget_is_divided_as_in_the_paper():
    """σ0² = 8 d/(0.9 ρ), and ε²/8 = ρ/10 of the T = 16 d rounds for a selection; ρ = β/2."""
    plan, rho, attributes = make_plan(beta=1.0), 0.5, len(SIZES)
    first = plan.first_decision()
    for order in first.requests:
        assert order.variance == pytest.approx(8 * attributes / (0.9 * rho), rel=1e-4)
    state = plan.rounds.start([np.full(order.block.rows, 500.0) for order in first.requests])
    selection = state.selection
    assert selection.count == 1
    assert selection.beta / 2 == Fraction(1, 2) / 10 / (16 * attributes)
    assert selection.step == plan.setting.one_way_cost
    assert set(selection.weights) == set(plan.candidates) == {*((name,) for name in NAMES), *TRIPLES, *_pairs()}


def _pairs():
    return [(one, other) for index, one in enumerate(NAMES) for other in NAMES[index + 1 :]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows_per_unit", [1, 4])
def test_total_cost_equals_budget_and_noise_is_equal_in_every_cell(rows_per_unit):
    """Recomputed independently: m² Δ² k² / (v − 8) for a draw, and β for a selection."""
    plan = make_plan(rows_per_unit=rows_per_unit)
    taken, state = run_decisions(plan, rows_per_unit=rows_per_unit)
    spent = Fraction(0)
    for decision in taken:
        spent += len(decision.chosen) * decision.beta
        for order in decision.requests:
            moved = (order.draw.multiplier * rows_per_unit) ** 2 * order.block.squared_l2_sensitivity
            spent += Fraction(moved, order.draw.variance - 8)
    assert state.left == 0
    assert 0.999 < spent / plan.cost.gaussian <= 1
    check_affordable(taken, plan.cost, lambda one: decision_parts(one, rows_per_unit))
    for decision in taken[1:]:
        [names] = decision.chosen
        assert all(grouping == every_cell(SIZES[name]) for name, grouping in decision.groups.items())
        assert len(decision.requests) == 2 ** len(names)
        for order in decision.requests:
            others = math.prod(SIZES[name] for name in names if name not in order.names)
            assert order.variance == pytest.approx(rows_per_unit**2 * others / float(decision.step), rel=1e-4)


def test_residuals_have_same_likelihood_as_cells():
    """Σ_τ ‖z_τ(μ) − z_τ(y)‖²/σ_τ² over the residuals is ‖μ − y‖²/σ² over the cells, for any table μ."""
    names, beta = ("a", "b", "e"), Fraction(1, 50)
    requests = residual_requests(names, [every_cell(SIZES[name]) for name in names], {}, beta, 1, (1, 0), True)
    rng = np.random.default_rng(0)
    for _ in range(3):
        table, noisy = rng.normal(size=(2, 4, 3, 5))
        by_residual = sum(
            (residual_of(table - noisy, [names.index(name) for name in order.names]) ** 2).sum() / order.variance
            for order in requests
        )
        assert by_residual == pytest.approx(float(((table - noisy) ** 2).sum() * beta), rel=1e-4)


def test_model_stays_within_growing_limit():
    for most in (60, 400):
        plan = make_plan(beta=50.0, most_cells=most)
        taken, state = run_decisions(plan)
        assert state.left == 0
        spent, sets = len(SIZES) * plan.setting.one_way_cost, []
        for decision in taken[1:]:
            spent += decision.spent
            sets += decision.chosen
            assert model_cells(SIZES, sets) <= max(most * spent / plan.setting.beta, sum(SIZES.values()))
        assert state.fit.model.tree.cells <= max(most, sum(SIZES.values()))


@pytest.mark.slow
def test_error_decreases_with_budget():
    errors = [mean_error(run_decisions(make_plan(beta=beta))[1], COUNTS) for beta in (0.01, 1.0, 100.0)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05


@pytest.mark.slow
def test_same_secret_gives_same_decisions():
    one, other = (run_decisions(make_plan())[0] for _ in range(2))
    assert [decision.to_dict() for decision in one] == [decision.to_dict() for decision in other]
    assert [decision.to_dict() for decision in run_decisions(make_plan(), seed=1)[0]] != [
        decision.to_dict() for decision in one
    ]


def test_job_passes_audit_and_is_equal_on_threads(tmp_path):
    job = {"mechanism": {"name": "aim-pgm", "published": True, "most_cells": 5000}, "privacy": RHO}
    path = write(tmp_path / "one", **job)
    first, again = dp.run(path, tmp_path / "one/run"), dp.run(path, tmp_path / "two", scheduler="threads")
    assert audit_run(first.path, tmp_path / "one/ledger.sqlite").sound
    assert first.marginal(("a", "b")).tolist() == again.marginal(("a", "b")).tolist()


def test_plan_file_states_option_only_if_it_is_not_the_default(tmp_path):
    problem = make_problem()
    default = aim_pgm.plan(problem, aim_pgm.Options())
    assert set(default.to_dict()["options"]) == {"degree", "most_cells"}
    assert default.to_dict()["options"]["most_cells"] == "65536"
    made = make_plan(beta=1.0)
    assert made.setting.state.keywords["most_cells"] == aim_pgm.PUBLISHED_CELLS
    assert made.to_dict()["options"]["published"] == "True"
    for options in (aim_pgm.Options(published=True), aim_pgm.Options(published=True, most_cells=1000)):
        aim_pgm.plan(problem, options).write(tmp_path)
        read = aim_pgm.MECHANISM.read(tmp_path, problem, aim_pgm.Options())
        assert read.setting.state.keywords["most_cells"] == options.most_cells
        assert read.setting.schedule == options.schedule()
        assert aim_pgm.MECHANISM.follows(read, problem, options)
        assert not aim_pgm.MECHANISM.follows(read, problem, aim_pgm.Options())


def test_other_option_together_with_published_is_refused():
    with refused(dp.JobError):
        checked(aim_pgm.Options, {"published": True, "degree": 2}, "mechanism", "aim-pgm")
    with refused(dp.JobError):
        checked(aim_pgm.Options, {"published": "yes"}, "mechanism", "aim-pgm")


def charged_once(decision):
    """Planted error: every residual of a marginal is drawn with the noise of the whole budget of the round."""
    requests = tuple(
        replace(one, draw=gaussian_draw(one.block.squared_l2_sensitivity, decision.step, 1, "")) for one in
        decision.requests
    )  # fmt: skip
    return replace(decision, requests=requests)


@pytest.fixture
def planted(monkeypatch):
    def plan(problem, options, tools=None):
        return with_states(aim_pgm.plan(problem, aim_pgm.Options(published=True)), charged_once)

    made = ModuleType("tests.mechanisms.planted_cells")
    made.MECHANISM = Mechanism("planted-cells", NoOptions, plan, lambda _, problem, options: plan(problem, options),
                               lambda options: ("measurements",), data_independent=False)  # fmt: skip
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setitem(MECHANISMS, "planted-cells", made.__name__)


@pytest.mark.usefixtures("planted")
def test_planted_noise_of_residuals_is_detected(tmp_path):
    with refused(BudgetError):
        dp.run(write(tmp_path, mechanism={"name": "planted-cells"}, privacy=RHO), tmp_path / "run")
    audit = audit_run(tmp_path / "run", tmp_path / "ledger.sqlite")  # earlier rounds are within the charge
    assert audit.drawn <= audit.paid


def test_published_mechanisms_share_schedule():
    """AIM+GReM has T = 2 |W↓|: the same formulas with another number of rounds."""
    problem = make_problem()
    grem = aim_grem.plan(problem, aim_grem.Options(published=True)).setting
    pgm = make_plan().setting
    assert type(grem.schedule) is type(pgm.schedule)
    assert grem.candidates == pgm.candidates
    assert grem.one_way_cost == Fraction(9, 20) / (len(grem.candidates) + 1)
    assert pgm.one_way_cost == Fraction(9, 20) / (8 * len(SIZES))
