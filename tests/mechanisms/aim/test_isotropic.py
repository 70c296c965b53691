"""Option `allocation = "iid"` of the published mechanism: residuals of a marginal with equal noise in every cell."""

import json
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest

from dpscale import Domain, JobError, PlanError, Workload
from dpscale.base.settings import checked
from dpscale.measurement.adaptive import run
from dpscale.mechanisms import aim_grem
from dpscale.mechanisms.aim.decision import residual_requests
from dpscale.mechanisms.aim.estimators import GremEstimator
from dpscale.mechanisms.aim.setting import PublishedSchedule
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret
from dpscale.workload.residual import Residuals, every_cell
from tests.measurement.small import SIZES, make_counter, make_records, make_setting, measure_request, run_loop
from tests.messages import refused

SHAPE = {"x": 3, "y": 4, "z": 2}
NAMES = tuple(SHAPE)
COUNTS = make_counter(make_records())


def make_requests(beta=Fraction(1, 30), rows=1, isotropic=True):
    groups = [every_cell(size) for size in SHAPE.values()]
    return residual_requests(NAMES, groups, {("x",): 5.0}, beta, rows, (3, 1), isotropic)


def marginal_covariance(requests):
    """Return the covariance of Σ_τ Recon(z_τ) from explicit matrices: centring on τ, averaging on the other axes."""
    total = np.zeros((24, 24))
    for order in requests:
        factors = [np.eye(size) - 1 / size if name in order.names else np.full((size, size), 1 / size**2)
                   for name, size in SHAPE.items()]  # fmt: skip
        total += order.variance * reduce(np.kron, factors)
    return total


@pytest.mark.parametrize("rows", [1, 3])
def test_covariance_of_marginal_is_that_of_equal_noise_in_every_cell(rows):
    beta = Fraction(1, 30)
    np.testing.assert_allclose(marginal_covariance(make_requests(beta, rows)), 30 * rows**2 * np.eye(24), atol=1e-3)
    conditional = marginal_covariance(make_requests(beta, rows, isotropic=False))
    assert np.abs(conditional / (30 * rows**2) - np.eye(24)).max() > 0.05  # the check detects another allocation


@pytest.mark.parametrize("rows", [1, 2])
def test_cost_of_all_residuals_equals_explicit_cost_of_every_record(rows):
    """Brute force: squared effect over variance of one unit with all records in one cell, summed over the draws."""
    for beta in (Fraction(1, 7), Fraction(1, 10**8)):
        requests, paid = make_requests(beta, rows), np.zeros(24, dtype=object)
        for order in requests:
            factors = [np.eye(size, dtype=int) * size - 1 if name in order.names else np.ones((1, size), dtype=int)
                       for name, size in SHAPE.items()]  # fmt: skip
            matrix = reduce(np.kron, factors).astype(object) * order.draw.multiplier * rows
            paid = paid + (matrix**2).sum(axis=0) * Fraction(1, order.draw.variance - 8)
        assert set(paid.tolist()) == {sum(order.draw.cost for order in requests)}
        assert beta * (1 - Fraction(1, 10**5)) < paid[0] <= beta


def test_drawn_noise_has_equal_variance_in_every_cell():
    requests, rng = make_requests(Fraction(1, 2)), np.random.default_rng(0)
    counts = rng.poisson(20, size=tuple(SHAPE.values()))

    def counts_of(names):
        return counts.sum(axis=tuple(NAMES.index(name) for name in NAMES if name not in names))

    def measure_once(seed):
        values = [(order.names, measure_request(order, counts_of, seeded_secret(seed), order.label), 1.0)
                  for order in requests]  # fmt: skip
        return (Residuals(SHAPE).updated(values).marginal(NAMES) - counts).reshape(-1)

    found = np.cov(np.array([measure_once(seed) for seed in range(1500)]).T) / 2
    assert np.trace(found) == pytest.approx(24, rel=0.03)
    assert np.abs(found - np.eye(24)).max() < 0.2


def test_run_spends_exact_budget_and_measures_every_residual():
    setting = make_setting((PublishedSchedule(isotropic=True), GremEstimator()))
    conditional = make_setting((PublishedSchedule(), GremEstimator()))
    state, again, other = (run_loop(one, COUNTS, seeded_secret(3)) for one in (setting, setting, conditional))
    assert state.left == 0
    assert state.rounds == again.rounds != other.rounds
    assert {names for note in state.rounds for names in note.chosen} <= set(state.residuals.values)


def make_plan(**options):
    problem = PlanningProblem(Workload(Domain(SIZES)).add("marginal", degree=3), Budget(GAUSSIAN, 0.1))
    return problem, aim_grem.plan(problem, aim_grem.Options(**options))


def test_plan_file_states_allocation_only_if_it_is_not_the_default(tmp_path):
    plain = make_plan(published=True)[1].to_dict()
    assert "allocation" not in plain["options"]
    assert make_plan(published=True, allocation="conditional")[1].to_dict() == plain
    assert "allocation" not in make_plan()[1].to_dict()["options"]
    problem, made = make_plan(published=True, allocation="iid")
    assert made.to_dict()["options"] == plain["options"] | {"allocation": "iid"}
    made.write(tmp_path)
    read = aim_grem.MECHANISM.read(tmp_path, problem, aim_grem.Options(published=True))
    assert read.setting.schedule.isotropic
    assert read.digest == made.digest != make_plan(published=True)[1].digest
    assert aim_grem.MECHANISM.follows(read, problem, aim_grem.Options(published=True, allocation="iid"))
    assert not aim_grem.MECHANISM.follows(read, problem, aim_grem.Options(published=True))


@pytest.mark.parametrize("changed", [{"allocation": "iid"}, {"updates": "touched"}], ids=str)
def test_read_plan_repeats_its_run(tmp_path, changed):
    problem, made = make_plan(published=True, **changed)
    assert made.to_dict()["options"].items() >= changed.items()
    made.write(tmp_path)
    read = aim_grem.MECHANISM.read(tmp_path, problem, aim_grem.Options())
    one, other = (run(each, COUNTS, seeded_secret(1)) for each in (made, read))
    assert json.dumps([note.moved for note in one.rounds]) == json.dumps([note.moved for note in other.rounds])


def test_allocation_of_default_mechanism_is_refused():
    with refused(JobError):
        checked(aim_grem.Options, {"allocation": "iid"}, "mechanism", "aim-grem")
    with refused(JobError):
        checked(aim_grem.Options, {"published": True, "allocation": "even"}, "mechanism", "aim-grem")


def test_lazy_updates_are_the_default_and_plans_that_name_them_are_followed(tmp_path):
    """Plans named lazy updates before they were the default; their files do not depend on the kind of update."""
    problem, made = make_plan(published=True)
    assert made.setting.estimator.lazy
    assert not make_plan(published=True, updates="touched")[1].setting.estimator.lazy
    content = made.to_dict()
    assert "updates" not in content["options"]
    (tmp_path / "plan.json").write_text(json.dumps(content | {"options": content["options"] | {"updates": "lazy"}}))
    read = aim_grem.MECHANISM.read(tmp_path, problem, aim_grem.Options(published=True))
    assert read.setting.estimator.lazy
    assert aim_grem.MECHANISM.follows(read, problem, aim_grem.Options(published=True))
    assert not aim_grem.MECHANISM.follows(read, problem, aim_grem.Options(published=True, updates="touched"))


def test_lazy_updates_of_large_candidates_are_refused():
    """The driver would retain 5 GiB of marginals; the sums of residuals are planned."""
    wide = Workload(Domain({name: 200 for name in "abcdefghi"})).add("marginal", degree=3)
    problem = PlanningProblem(wide, Budget(GAUSSIAN, 0.1))
    with refused(PlanError):
        aim_grem.plan(problem, aim_grem.Options(published=True, updates="lazy"))
    assert not aim_grem.plan(problem, aim_grem.Options(published=True)).setting.estimator.lazy
    with refused(JobError):
        checked(aim_grem.Options, {"updates": "lazy"}, "mechanism", "aim-grem")
