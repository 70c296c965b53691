"""Refined runs of every kind of domain and query: searches, numbers, public totals, hierarchies, bounded totals."""

import numpy as np
import pytest

import dpscale as dp
from dpscale.mechanisms import mechanism_names
from tests.audit.small import write
from tests.discovery import small as searches
from tests.hierarchies import test_totals_in_runs as totals
from tests.messages import refused
from tests.numbers import small as numbers
from tests.selection import mostly_slow


def refined(job, place, epsilon, **given):
    first = dp.run(job, place / "run")
    return first, dp.refine(first, epsilon, **given)


def test_cells_that_were_found_are_not_searched_again(tmp_path):
    first, second = refined(searches.write_job(tmp_path), tmp_path, 4.0)
    assert second.domain.digest == first.domain.digest
    assert not second._run.table.discovery
    before, after = (release.table(["city", "sex"]).std_error for release in (first, second))
    np.testing.assert_allclose(1 / after**2 - 1 / before**2, (1 / after**2 - 1 / before**2)[0], rtol=1e-6)
    assert (after < 0.8 * before).all()
    whole = second._run.table.measurement_plan.earlier.instalments
    assert whole.costs[0].delta > 0  # that of the search
    assert whole.costs[0].gaussian > whole.measured[0].gaussian


def test_sums_and_means_are_pooled(tmp_path):
    workload = [{"family": "marginal", "degree": 1}, {"family": "mean", "of": "pay", "attributes": [["a"]]}]
    names = [one.name for one in numbers.make_domain().numbers]
    workload[1]["of"], workload[1]["attributes"] = names[0], [[numbers.make_domain().names[0]]]
    first, second = refined(numbers.write_job(tmp_path, workload), tmp_path, 2.0, delta=1e-9)
    before, after = (one.sum(names[0], by=workload[1]["attributes"][0]) for one in (first, second))
    assert (after.high - after.low < before.high - before.low).all()
    table = second._run.table
    forecast = table.measurement_plan.forecast(table.planning_problem.budget)
    assert forecast.ratio_to_one_release == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("sections", [{}, {"reconstruct": {"method": "maxent"}}, {"mechanism": {"name": "aim-grem"}}],
                         ids=["least squares", "maxent", "aim-grem"])  # fmt: skip
def test_public_totals_hold_in_hierarchies(tmp_path, sections):
    job, domain, frame = totals.write_job(tmp_path, [("region",), ("age",)], **sections)
    _, second = refined(job, tmp_path, 1.0)
    found = second.marginal(("age",))
    np.testing.assert_allclose(found, totals.exact_table(domain, frame, ("age",)), atol=1e-6)


def test_trees_of_a_hierarchy_are_pooled(tmp_path):
    job, _, _ = totals.write_job(tmp_path, [])
    job.pop("totals")
    first, second = refined(job, tmp_path, 1.0)
    assert second._run.table.measurement_plan.plan.blocks.has_trees
    before, after = (one.table(["place"]).std_error for one in (first, second))
    np.testing.assert_allclose(before / after, 2**0.5, rtol=1e-3)
    other = {**job, "workload": [{"family": "marginal", "attributes": [["place", "age"]]}]}
    with refused(dp.PlanError):
        dp.refine(first, 1.0, job=other, run_dir=tmp_path / "other")


@pytest.mark.parametrize("name", mostly_slow(mechanism_names(), {"aim-grem", "aim-pgm", "mst", "hdmm", "identity"}))
def test_every_mechanism_is_pooled_or_refused(tmp_path, name):
    privacy = {"epsilon": 4.0, "delta": 1e-6, "dataset": "small"}
    first = dp.run(write(tmp_path, privacy=privacy, mechanism={"name": name}), tmp_path / "run")
    if name in ("aim-pgm", "mst"):
        with pytest.raises(dp.JobError):
            dp.refine(first, 4.0)
    else:
        assert np.isfinite(dp.refine(first, 4.0).marginal(["a", "b"])).all()
