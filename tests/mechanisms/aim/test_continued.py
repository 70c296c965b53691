"""Adaptive releases that continue earlier ones: lifted residuals, averages and groups against explicit computations."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpscale.mechanisms.aim.continued import common_refinement, lift_residual
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.refine import plan_refinement, start_refinement
from dpscale.workload.residual import Groups, center, coarsened, every_cell
from tests.audit.small import SIZES, write
from tests.running import run_stages

OLD = [Groups(6, (0, 3)), Groups(5, (0, 1, 4))]
NEW = [Groups(6, (0, 2, 3, 5)), Groups(5, (0, 1, 3, 4))]


def residual(table, groups):
    return center(coarsened(table, list(groups)), range(table.ndim))


def test_a_lifted_residual_of_the_model_itself_is_exact():
    table = np.random.default_rng(0).poisson(20, (6, 5)).astype(float)
    lifted, share = lift_residual(residual(table, OLD), table, OLD, NEW)
    np.testing.assert_allclose(lifted, residual(table, NEW), atol=1e-9)
    assert 0 < share < 10


def test_a_lifted_residual_has_the_measured_sums_and_is_nearest_to_the_model():
    """The oracle is the least change of the fine residual under which the coarse residual is the measured one."""
    rng = np.random.default_rng(1)
    table, model = rng.poisson(20, (6, 5)).astype(float), rng.poisson(20, (6, 5)).astype(float)
    lifted, _ = lift_residual(residual(table, OLD), model, OLD, NEW)
    fine = coarsened(model, NEW)
    lower, shape = fine - residual(model, NEW), fine.shape
    units = np.eye(fine.size).reshape(-1, *shape)
    centred = np.stack([center(one, (0, 1)).reshape(-1) for one in units], axis=1)
    coarse = np.stack([_coarse_residual(center(one, (0, 1))) for one in units], axis=1)
    measured = residual(table, OLD).reshape(-1) - _coarse_residual(lower)
    step = np.linalg.lstsq(coarse, measured - _coarse_residual(residual(model, NEW)), rcond=None)[0]
    np.testing.assert_allclose(lifted.reshape(-1), residual(model, NEW).reshape(-1) + centred @ step, atol=1e-8)
    np.testing.assert_allclose(_coarse_residual(lifted + lower), residual(table, OLD).reshape(-1), atol=1e-8)


def _coarse_residual(values):
    """Return the residual over the old groups of a table over the new ones."""
    cells = np.zeros((6, 5))
    cells[np.ix_(NEW[0].starts, NEW[1].starts)] = values
    return residual(cells, OLD).reshape(-1)


def test_the_precision_of_a_lifted_residual_is_a_mean_over_its_dimensions():
    """tr(HᵀH) per dimension, with the explicit matrix H."""
    table = np.ones((6, 5))
    _, share = lift_residual(residual(table, OLD), table, OLD, NEW)
    units = np.eye(16).reshape(-1, 4, 4)
    rows = np.stack([_coarse_residual(center(one, (0, 1))) for one in units], axis=1)
    assert share == pytest.approx(float((rows**2).sum()) / 9)


def test_common_refinements():
    assert common_refinement(Groups(6, (0, 3)), Groups(6, (0, 2))) == Groups(6, (0, 2, 3))
    assert common_refinement(every_cell(4), Groups(4, (0,))) == every_cell(4)


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Tables of two measured adaptive runs, of which the second one refines the first."""
    place = tmp_path_factory.mktemp("continued")
    privacy = {"epsilon": 3.0, "delta": 1e-9, "dataset": "small"}
    run = begin_run(read_job(write(place, privacy=privacy, mechanism={"name": "aim-grem"})), place / "run")
    for stage in ("plan", "measure"):
        run_stages(run, only=stage)
    second = start_refinement(plan_refinement(run.path, 20.0))
    for stage in ("plan", "measure"):
        run_stages(second, only=stage)
    return run.table, second.table


def requests_of(run, by_cell):
    store = run.measurements
    return [(request, value) for decision in store.decisions()
            for request, value in zip(decision.requests, store.values(decision), strict=True)
            if request.by_cell == by_cell]  # fmt: skip


def test_one_ways_of_all_releases_are_averaged(releases):
    state = releases[1].measurements.evidence().state()
    for name in SIZES:
        found = [(value, 1 / request.variance) for run in releases for request, value in requests_of(run, True)
                 if request.names == (name,)]  # fmt: skip
        assert len(found) >= 2
        average = sum(value * weight for value, weight in found) / sum(weight for _, weight in found)
        np.testing.assert_allclose(state.counts[name].values, average)
        assert state.counts[name].variance == pytest.approx(1 / sum(weight for _, weight in found))


def test_residuals_over_equal_groups_are_averaged_and_others_are_refined(releases):
    before, after = (run.measurements.evidence().state() for run in releases)
    for name in SIZES:
        assert set(before.groups[name].starts) <= set(after.groups[name].starts)
    kept = [names for names in after.residuals.values if names in before.residuals.values
            and all(before.groups[name] == after.groups[name] for name in names)]  # fmt: skip
    assert kept
    for names in kept:
        found = [(value, 1 / request.variance) for run in releases for request, value in requests_of(run, False)
                 if request.names == names]  # fmt: skip
        average = sum(value * weight for value, weight in found) / sum(weight for _, weight in found)
        np.testing.assert_allclose(after.residuals.values[names], average, atol=1e-9)


def test_a_continued_state_repeats_1_ways_once_and_offers_no_empty_set(releases):
    decisions = list(releases[1].measurements.decisions())
    assert [one.is_one_way for one in decisions] == [True] + [False] * (len(decisions) - 1)
    assert all(() not in one.chosen for one in decisions)
    spent = sum((one.spent for one in decisions), Fraction(0))
    assert spent == releases[1].measurement_plan.setting.beta


def test_the_penalty_of_a_first_release_is_that_of_its_schedule(releases):
    state = releases[0].measurements.replay()[0]
    open_state = replace(state, left=state.setting.beta)
    assert open_state.selection.penalty == state.setting.schedule.penalty
    again = replace(open_state, earlier=3 * state.setting.beta)
    assert again.selection.penalty == pytest.approx(state.setting.schedule.penalty / 2)
