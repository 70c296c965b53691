"""Plans over hierarchies against dense least squares: variances, estimates, cost, balance and distance to the bound."""

from __future__ import annotations

import numpy as np
import pytest

from dpscale.base.errors import JobError, PlanError
from dpscale.domain import Domain
from dpscale.mechanisms import plan
from dpscale.plans.plan import read_plan, write_plan
from dpscale.reconstruction.tree_estimates import TreeEstimates
from dpscale.workload import Workload
from tests.hierarchies.small import dense, domain_of, lift, ordered, planned
from tests.messages import refused

ONE = {"place": (3, 7, 20)}
TWO = {"place": (2, 5, 9), "code": (2, 4, 7)}
JOBS = {
    "every level": (ONE, {}, [["country"], ["region"], ["place"], []]),
    "mixed degrees": (ONE, {"age": 4, "sex": 2}, [["country", "age", "sex"], ["region", "age"], ["place"], ["age"]]),
    "implied level": (ONE, {"sex": 2}, [["country", "place", "sex"], ["region"]]),
    "two trees": (TWO, {}, [[a, b] for a in ("country", "region", "place") for b in ("chapter", "group", "code")]),
    "crossed at the top": (TWO, {"sex": 2}, [["place", "sex"], ["code"], ["country", "chapter"], ["region"]]),
}


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("job", JOBS)
def test_variances_and_estimates_equal_dense_least_squares(job, noise):
    sizes, others, sets = JOBS[job]
    domain = domain_of(sizes, **others)
    made = planned(domain, sets, noise=noise)
    rows, precisions, cost = dense(made)
    covariance = np.linalg.pinv((rows.T * precisions) @ rows, rcond=1e-12)
    if noise == "gaussian":
        assert cost.max() <= 1
    rng, values, at = np.random.default_rng(0), [], 0
    measured = rng.normal(size=len(rows)) * 5
    for block in made.blocks:
        shape = [
            dict(zip(block.attributes, block.rows, strict=True))[name] for name in ordered(domain, block.attributes)
        ]
        own = measured[at : at + int(np.prod(shape))].reshape(shape)
        axes = [ordered(domain, block.attributes).index(name) for name in block.attributes]
        values.append(own.transpose(axes))
        at += own.size
    best = covariance @ (rows.T @ (precisions * measured))
    estimates = TreeEstimates(made, [block.unit_variance for block in made.blocks], values.__getitem__)
    for names in made.workload.sets:
        reduced = tuple(n for n in names if n != "country" or "place" not in names)
        queries = lift(domain, reduced)
        back = [ordered(domain, reduced).index(name) for name in reduced]
        shape = domain.shape(ordered(domain, reduced))
        variances = np.einsum("ij,jk,ik->i", queries, covariance, queries).reshape(shape).transpose(back)
        answers = (queries @ best).reshape(shape).transpose(back)
        part = made.workload.parts[0]
        own = made.accuracy.part_variances(part, names)
        assert made.accuracy.part_error(part, names) == pytest.approx(variances.sum())
        if reduced == names:
            np.testing.assert_allclose(own, variances, rtol=1e-7)
            np.testing.assert_allclose(estimates.marginal(names), answers, atol=1e-8)
            query = rng.normal(size=own.shape)
            found, error = estimates.answer(names, query)
            assert found == pytest.approx((query * answers).sum())
            line = query.transpose([names.index(n) for n in ordered(domain, names)]).reshape(-1) @ queries
            assert error**2 == pytest.approx(line @ covariance @ line)
        else:
            assert own.sum() == pytest.approx(variances.sum())
            assert (own > 0).sum() == variances.size
            assert estimates.marginal(names).sum() == pytest.approx(answers.sum())


@pytest.mark.parametrize("job", ["every level", "mixed degrees"])
def test_levels_are_balanced_and_within_the_bound(job):
    sizes, others, sets = JOBS[job]
    made = planned(domain_of(sizes, **others), sets)
    assert made.floor <= made.bound <= made.error <= made.bound * 1.03
    part, errors = made.workload.parts[0], {}
    for names in made.workload.sets:
        level = next((name for name in names if name in ("country", "region", "place")), "")
        errors.setdefault(level, []).append(made.accuracy.part_variances(part, names).reshape(-1))
    means = [np.concatenate(own).mean() for own in errors.values()]
    assert max(means) <= min(means) * 1.05


def test_errors_of_two_trees_are_within_a_tenth_of_the_bound():
    made = planned(domain_of(TWO), JOBS["two trees"][2])
    assert made.error <= made.bound * 1.1


def test_sums_of_sets_and_squares_of_others_are_within_the_bound():
    """The residual of the number has a product strategy, which is solved without a bound."""
    domain = domain_of({"place": (2, 4, 6)}, sex=2, age=10)
    numbers = {"pay": {"low": 0, "high": 300}}
    workload = Workload(Domain.from_dict(domain.to_dict() | {"numbers": numbers}).with_squares(["pay"]))
    workload.add("marginal", attributes=[["sex", "place", "age"], ["sex", "country", "age"]])
    workload.add("variance", of="pay", attributes=[["age"]])
    workload.add("sum", of="pay", attributes=[["sex", "age"]])
    made = plan(workload)
    assert 0 < made.floor <= made.bound <= made.error <= made.bound * 1.5


def test_weights_of_queries_are_those_of_the_job_without_balance():
    domain = domain_of(ONE)
    sets = [["country"], ["place"]]
    made = planned(domain, sets, balance="queries")
    assert made.error == pytest.approx(made.accuracy.total_error(made.workload), rel=1e-9)
    balanced = planned(domain, sets)
    assert made.error < balanced.accuracy.total_error(balanced.workload)


def test_sets_of_weight_0_are_not_planned():
    workload = Workload(domain_of(ONE, sex=2)).add("marginal", attributes=[["country"], ["region"], ["place", "sex"]],
                                                   weight=[1.0, 1.0, 0.0])  # fmt: skip
    made = plan(workload)
    assert {name for names in made.blocks.sets for name in names} <= {"country", "region"}


def test_plan_file_is_read_back(tmp_path):
    made = planned(domain_of(TWO), JOBS["two trees"][2])
    write_plan(tmp_path, made)
    again = read_plan(tmp_path, made.workload)
    assert [one.digest for one in again.blocks] == [one.digest for one in made.blocks]
    assert again.accuracy.total_error(made.workload) == made.accuracy.total_error(made.workload)


def test_changed_multipliers_are_refused(tmp_path):
    """A smaller multiplier in the file would state a smaller sensitivity than the noise was made for."""
    made = planned(domain_of(ONE), JOBS["every level"][2])
    write_plan(tmp_path, made)
    with np.load(tmp_path / "factors.npz") as file:
        arrays = dict(file)
    arrays["f0.3"] = arrays["f0.3"] // 2
    np.savez(tmp_path / "factors.npz", **arrays)
    with refused(JobError):
        read_plan(tmp_path, made.workload)


def test_ranges_over_leaves_are_refused():
    workload = Workload(domain_of(ONE)).add("marginal", attributes=[["country"]]).add("range", attributes=[["place"]])
    with refused(PlanError):
        plan(workload)


def test_one_level_alone_is_planned_as_before():
    made = planned(domain_of(ONE, sex=2), [["region", "sex"]])
    assert not made.blocks.has_trees


def test_query_that_was_not_measured_is_refused():
    made = planned(domain_of(ONE, sex=2), [["country", "sex"], ["place"]])
    with refused(PlanError):
        made.variance(("place", "sex"), np.random.default_rng(0).normal(size=(20, 2)))
    assert made.variance(("place", "sex"), np.ones((20, 2))) > 0
