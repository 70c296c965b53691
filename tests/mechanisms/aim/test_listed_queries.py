"""Adaptive mechanisms on listed queries: candidates are scored on classes of cells; older plans on single cells."""

import json
from itertools import product

import numpy as np
import pytest

from dpscale import Domain, Workload
from dpscale.counting import ExactMarginal
from dpscale.measurement.adaptive import build_shard, run, to_lattice
from dpscale.mechanisms import aim_grem, aim_pgm, mst
from dpscale.mechanisms.aim.decision import BY_QUERIES, VERSION
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.plans.measurement_plan import SCALE
from dpscale.plans.plan import read_content
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret
from dpscale.workload.residual import coarsened

DOMAIN = Domain({"a": 6, "b": 4, "c": 5})
AB = ("a", "b")
MECHANISMS = pytest.mark.parametrize("module", [aim_grem, aim_pgm, mst])
PRODUCT = {"a": ["a in 0..2", "a in 1..3"], "b": ["b in [0, 2]"], "c": "identity"}


def make_problem(workload=None, rows=1):
    workload = workload or Workload(DOMAIN).add_product(PRODUCT)
    return PlanningProblem(workload, Budget(GAUSSIAN, 4.0), rows_per_unit=rows)


def make_counts(records=4000):
    rng = np.random.default_rng(2)
    codes = rng.integers(0, (6, 4, 5), (records, 3))
    codes[:, 1] = np.where(rng.random(records) < 0.7, codes[:, 0] % 4, codes[:, 1])
    table = np.zeros((6, 4, 5), dtype=np.int64)
    np.add.at(table, tuple(codes.T), 1)
    return lambda names: table.sum(axis=tuple(i for i, name in enumerate("abc") if name not in names))


@MECHANISMS
def test_plan_file_names_listed_queries(module, tmp_path):
    """A plan with listed queries has its own version; the plan of an earlier version is scored on single cells."""
    problem = make_problem()
    plan = module.plan(problem, module.Options())
    assert plan.to_dict()["version"] == BY_QUERIES
    plan.write(tmp_path)
    stored = module.MECHANISM.read(tmp_path, problem, module.Options())
    assert stored.setting.queries is not None
    assert stored.digest == plan.digest
    assert module.MECHANISM.follows(stored, problem, module.Options())
    content = read_content(tmp_path) | {"version": VERSION}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    older = module.MECHANISM.read(tmp_path, problem, module.Options())
    assert older.setting.queries is None
    assert not module.MECHANISM.follows(older, problem, module.Options())
    marginals = module.plan(make_problem(Workload(DOMAIN).add("marginal", degree=2)), module.Options())
    assert marginals.setting.queries is None
    assert marginals.to_dict()["version"] == VERSION


@pytest.mark.parametrize("module", [aim_grem, aim_pgm])
def test_selection_is_scored_on_classes(module):
    """The distance of each candidate equals the sums over the cells that its queries do not distinguish."""
    counts_of = make_counts()
    plan = module.plan(make_problem(), module.Options())
    first = plan.first_decision()
    rng = np.random.default_rng(0)
    values = [counts_of(request.names) + rng.normal(0, 1, counts_of(request.names).shape) for request in first.requests]
    state = plan.rounds.start(values)
    assert set(state.groups["a"].starts) <= {0, 1, 3, 4}  # no group ends between cells that no query distinguishes
    selection = state.selection
    assert AB in selection.classes
    sets = [names for names in dict.fromkeys(selection.candidates) if names]
    shard = build_shard([ExactMarginal(names, counts_of(names)) for names in sets], sets, state.groups, state.rows)
    estimates = state.estimates(sets)
    found = shard.distances(estimates, sets, selection.classes).found
    for names in sets:
        exact = coarsened(counts_of(names), [state.groups[name] for name in names])
        assert found[names] == brute_distance(
            names, exact * SCALE - to_lattice(estimates.marginal(names)), state.groups
        )


def brute_distance(names, differences, groups):
    """Return the L1 norm of the sums over groups with equal answers to every predicate of PRODUCT."""
    inside = {"a": [{0, 1, 2}, {1, 2, 3}], "b": [{0, 2}], "c": [{cell} for cell in range(5)]}
    sums = {}
    for place in product(*(range(groups[name].count) for name in names)):
        key = []
        for name, group in zip(names, place, strict=True):
            starts = (*groups[name].starts, groups[name].size)
            cells = set(range(starts[group], starts[group + 1]))
            key += [len(cells & one) / len(cells) for one in inside[name]]
        sums[tuple(key)] = sums.get(tuple(key), 0) + int(differences[place])
    return sum(map(abs, sums.values()))


@MECHANISMS
def test_run_spends_the_budget_and_answers_the_queries(module):
    counts_of = make_counts()
    plan = module.plan(make_problem(rows=2), module.Options())
    state = run(plan, counts_of, seeded_secret(1), rows_per_unit=2)
    assert state.left == 0
    exact, found = (np.tensordot(np.tri(2, 6, 2), one, axes=(1, 0)) for one in (counts_of(AB), state.marginal(AB)))
    assert np.abs(exact - found).mean() < 0.05 * 4000
