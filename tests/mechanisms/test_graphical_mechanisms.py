"""The mechanisms `mst` and `aim-pgm`: selections, exact costs, and planted errors of their accounting, which are
detected.
"""

import json
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from types import ModuleType

import networkx as nx
import numpy as np
import pytest

import dpscale as dp
from dpscale.base.errors import BudgetError
from dpscale.measurement.adaptive import run, sensitivity
from dpscale.measurement.measurement import check_affordable, decision_parts
from dpscale.mechanisms import MECHANISMS, aim_pgm, mst
from dpscale.mechanisms.contract import Mechanism, NoOptions, PlanningProblem
from dpscale.plans.measurement_plan import SCALE
from dpscale.privacy.accounting import GAUSSIAN, LAPLACE, Budget
from dpscale.privacy.selection import scale_for
from dpscale.privacy.streams import seeded_secret
from dpscale.reconstruction.junction_tree import model_cells
from tests.audit.composition import audit_run
from tests.audit.small import write
from tests.measurement.small import with_states
from tests.messages import refused

SIZES = {"a": 3, "b": 4, "c": 2, "d": 5, "e": 3}
MODULES = {"mst": mst, "aim-pgm": aim_pgm}
RHO = {"rho": 0.5, "dataset": "small"}


def make_records(rows=3000, seed=0):
    """Draw records in which b depends on a, d on b and e on c, with no other dependence."""
    rng = np.random.default_rng(seed)
    a, c = rng.integers(0, 3, rows), rng.integers(0, 2, rows)
    b = np.where(rng.random(rows) < 0.8, a, rng.integers(0, 4, rows))
    d = np.where(rng.random(rows) < 0.8, b, rng.integers(0, 5, rows))
    e = np.where(rng.random(rows) < 0.8, c, rng.integers(0, 3, rows))
    return {"a": a, "b": b, "c": c, "d": d, "e": e}


def make_counter(columns):
    def count_cells(names):
        shape = [SIZES[name] for name in names]
        cells = np.ravel_multi_index([columns[name] for name in names], shape)
        return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)

    return count_cells


def make_plan(name, beta=1.0, rows_per_unit=1, degree=2, **options):
    workload = dp.Workload(dp.Domain(SIZES)).add("marginal", degree=degree)
    module = MODULES[name]
    return module.plan(PlanningProblem(workload, Budget(GAUSSIAN, beta), rows_per_unit), module.Options(**options))


def run_decisions(plan, seed=0, rows_per_unit=1):
    """Run a plan and return its decisions in order and the last state."""
    taken = [plan.first_decision()]

    recording = with_states(plan, lambda decision: taken.append(decision) or decision)
    state = run(recording, make_counter(make_records()), seeded_secret(seed), rows_per_unit=rows_per_unit)
    return taken, state


@pytest.mark.parametrize("seed", range(4))
def test_mst_measures_spanning_tree_of_dependent_pairs(seed):
    taken, state = run_decisions(make_plan("mst", beta=4.0), seed)
    assert nx.is_tree(nx.Graph(taken[1].chosen))
    assert len(taken) == 2
    assert set(taken[1].chosen) >= {("a", "b"), ("b", "d"), ("c", "e")}
    assert len(state.fit.model.tree.cliques) == 4


def test_mst_tree_is_maximum_spanning_tree_at_large_budget():
    """The oracle is Kruskal's algorithm on exact scores, the limit of the exponential mechanism without noise."""
    taken, _ = run_decisions(make_plan("mst", beta=1e6))
    counted, graph = make_counter(make_records()), nx.Graph()
    for one, other in combinations(SIZES, 2):
        pair = counted((one, other))
        alone = np.outer(pair.sum(axis=1), pair.sum(axis=0)) / pair.sum()
        graph.add_edge(one, other, weight=np.abs(pair - alone).sum())
    best = nx.maximum_spanning_tree(graph)
    assert {frozenset(edge) for edge in best.edges} == {frozenset(pair) for pair in taken[1].chosen}


def test_mst_selects_pairs_of_workload_only():
    workload = dp.Workload(dp.Domain(SIZES)).add("marginal", attributes=[("a", "b"), ("c", "d", "e")])
    plan = mst.plan(PlanningProblem(workload, Budget(GAUSSIAN, 1.0)), mst.Options())
    taken, _ = run_decisions(plan)
    assert len(taken[1].chosen) == 3
    assert ("a", "b") in taken[1].chosen
    alone = dp.Workload(dp.Domain(SIZES)).add("marginal", degree=1)
    assert len(run_decisions(mst.plan(PlanningProblem(alone, Budget(GAUSSIAN, 1.0)), mst.Options()))[0]) == 1


@pytest.mark.parametrize("rows_per_unit", [1, 4])
@pytest.mark.parametrize("name", MODULES)
def test_total_cost_equals_budget(name, rows_per_unit):
    """Recomputed independently: m² Δ² k² / (v − 8) for a draw, and β for a selection."""
    plan = make_plan(name, rows_per_unit=rows_per_unit)
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


@pytest.mark.parametrize("name", MODULES)
def test_selection_scale_follows_sensitivity(name):
    """The sensitivity is the largest weight times the records of a unit."""
    plan = make_plan(name, rows_per_unit=4)
    state = plan.rounds.start([np.full(order.block.rows, 500.0) for order in plan.first_decision().requests])
    selection = state.selection
    weights = {1} if name == "mst" else {4, 8}
    assert {selection.weights[names] for names in selection.candidates} == weights
    assert sensitivity(selection, 4) == selection.sensitivity == SCALE * 4 * max(weights)
    assert (
        scale_for(selection.beta, selection.sensitivity) * 2 * selection.sensitivity < 2 * float(selection.beta) ** 0.5
    )


def test_aim_pgm_model_stays_within_cell_limit(monkeypatch):
    monkeypatch.setattr(aim_pgm, "GRAIN", 0.0)  # every cell is a group
    for most in (40, 60, 200):
        taken, state = run_decisions(make_plan("aim-pgm", beta=50.0, degree=3, most_cells=most))
        sets = [names for decision in taken[1:] for names in decision.chosen]
        assert state.left == 0
        assert model_cells(SIZES, sets) <= max(most, sum(SIZES.values()))
        assert state.fit.model.tree.cells <= max(most, sum(SIZES.values()))


@pytest.mark.parametrize("name", MODULES)
def test_error_decreases_with_budget(name):
    counted = make_counter(make_records())
    found = []
    for beta in (0.01, 1.0, 100.0):
        _, state = run_decisions(make_plan(name, beta=beta))
        pairs = [("a", "b"), ("b", "d"), ("c", "e")]
        found.append(np.mean([np.abs(state.marginal(pair) - counted(pair)).sum() / 3000 for pair in pairs]))
    assert found[0] > found[1] > found[2]
    assert found[2] < 0.01


@pytest.mark.parametrize("name", MODULES)
def test_pure_privacy_is_refused(name):
    workload = dp.Workload(dp.Domain(SIZES)).add("marginal", degree=2)
    with refused(dp.JobError):
        MODULES[name].plan(PlanningProblem(workload, Budget(LAPLACE, 1.0)), MODULES[name].Options())


@pytest.mark.parametrize("name", MODULES)
def test_run_passes_audit_and_is_equal_on_threads(tmp_path, name):
    job = {"mechanism": {"name": name}, "privacy": RHO, "workload": [{"family": "marginal", "degree": 2}]}
    path = write(tmp_path / "one", **job)
    first, again = dp.run(path, tmp_path / "one/run"), dp.run(path, tmp_path / "two", scheduler="threads")
    assert audit_run(first.path, tmp_path / "one/ledger.sqlite").sound
    assert first.marginal(("a", "b")).tolist() == again.marginal(("a", "b")).tolist()
    local = dp.run(write(tmp_path / "three", **job, reconstruct={"method": "maxent"}), tmp_path / "three/run")
    assert np.abs(local.marginal(("a", "b")) - first.marginal(("a", "b"))).sum() < 200
    assert json.loads((first.path / "measurements/round-001.json").read_text())["chosen"]


# --- planted errors ---


def with_monotonic_error(plan):
    """Planted error of public AIM: selections at twice the ε, about four times the cost, with the old cost in the
    decision.
    """
    return with_states(
        plan,
        lambda decision: replace(decision, beta=decision.beta / 4),
        lambda selection: replace(selection, beta=4 * selection.beta),
    )


def with_unpaid_selection(plan):
    """The same planted error with the new cost in the decision, which was not charged."""
    return with_states(plan, select=lambda selection: replace(selection, beta=4 * selection.beta))


def with_ignored_contribution_bound(plan):
    """Planted error: noise and sensitivity are those of one record per unit."""
    return plan


@pytest.fixture
def planted(request, monkeypatch):
    name, mistake = request.param
    module = MODULES[name]

    def plan(problem, options, tools=None):
        planned = replace(problem, rows_per_unit=1) if mistake is with_ignored_contribution_bound else problem
        return mistake(module.plan(planned, module.Options()))

    made = ModuleType("tests.mechanisms.planted")
    made.MECHANISM = Mechanism("planted", NoOptions, plan, lambda folder, problem, options: plan(problem, options),
                               lambda options: ("measurements",), data_independent=False)  # fmt: skip
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setitem(MECHANISMS, "planted", made.__name__)


@pytest.mark.parametrize(
    "planted",
    [(name, mistake) for name in MODULES for mistake in (with_monotonic_error, with_unpaid_selection)],
    indirect=True,
)
def test_planted_selection_cost_is_detected(tmp_path, planted):
    with refused(BudgetError):
        dp.run(write(tmp_path, mechanism={"name": "planted"}, privacy=RHO), tmp_path / "run")
    if list((tmp_path / "run" / "measurements").glob("round-*.json")):  # rounds that were paid for were made
        audit = audit_run(tmp_path / "run", tmp_path / "ledger.sqlite")
        assert audit.drawn <= audit.paid


@pytest.mark.parametrize("planted", [(name, with_ignored_contribution_bound) for name in MODULES], indirect=True)
def test_planted_contribution_bound_is_detected(tmp_path, planted):
    data = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 4}
    with refused(BudgetError):
        dp.run(write(tmp_path, mechanism={"name": "planted"}, privacy=RHO, data=data), tmp_path / "run")
    assert not list((tmp_path / "run" / "measurements").glob("*.parquet"))


def test_graphical_mechanisms_support_maxent_simulated_errors_and_rows(tmp_path):
    """What other reconstructions and rows need of an adaptive mechanism, these have."""
    for name in MODULES:
        job = {"mechanism": {"name": name}, "privacy": RHO, "synthesize": {"rows": 50}}
        path = write(tmp_path / name, **job, reconstruct={"method": "maxent", "errors": "simulated"})
        release = dp.run(path, tmp_path / name / "run")
        assert release.answer(("a",), query=np.array([1, 0, 0, 0]))[1] > 0
        assert len(release.synthetic()) == 50
