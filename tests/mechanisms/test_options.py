"""Options of mechanisms: tolerance and time limit of the search, objective, and errors for unknown options."""

import math

import numpy as np
import pytest

from dpscale import Domain, JobError, Workload, plan


def make_prefixes(size: int = 60) -> Workload:
    return Workload(Domain({"a": size, "b": size})).add("prefix", degree=1).add("abs", degree=2)


def test_gap_and_seconds_end_the_search(monkeypatch):
    monkeypatch.setenv("DPSCALE_STORE", "off")
    fine, coarse = (plan(make_prefixes(24), "query-smasher", gap=gap) for gap in (1e-9, 1e-2))
    assert fine.error <= coarse.error <= fine.error * 1.02
    assert not fine.notes
    late = plan(make_prefixes(24), "query-smasher", seconds=1e-9)
    assert "ended by time" in late.notes[0]
    assert late.error > fine.error
    assert late.bound < fine.bound  # an early end is visible in the bound


@pytest.mark.parametrize(
    ("mechanism", "options", "field"),
    [
        ("query-smasher", {"gap": 0}, "mechanism.gap"),
        ("query-smasher", {"gaps": 1e-3}, "mechanism.gaps"),
        ("query-smasher", {"seconds": "ten"}, "mechanism.seconds"),
        ("residual-planner", {"objective": "least"}, "mechanism.objective"),
        ("identity", {"gap": 1e-3}, "mechanism.gap"),
        ("auto", {"gap": 1e-3}, "mechanism.gap"),
    ],
)
def test_invalid_option_is_named(mechanism, options, field):
    with pytest.raises(JobError) as caught:
        plan(make_prefixes(3), mechanism, **options)
    assert caught.value.field == field


def make_marginals() -> Workload:
    domain = Domain({"a": 2, "b": 5, "c": 9, "d": 3})
    return Workload(domain).add("marginal", degree=2, weight=[1, 2, 1, 1, 3, 1]).add("marginal", degree=1)


def test_max_objective_minimises_largest_cell_variance():
    workload = make_marginals()
    least, usual = (plan(workload, "residual-planner", objective=which) for which in ("max", "sum"))

    def largest_variance(built):
        cells = {
            (names, weight): built.variance(names, np.eye(1, math.prod(workload.domain.shape(names))).reshape(
                workload.domain.shape(names)))
            for part in workload.parts for names, weight in zip(part.sets, part.weights, strict=True)
        }  # fmt: skip
        return max(weight * value for (_, weight), value in cells.items())

    assert f"{math.sqrt(largest_variance(least)):.6g}" in least.notes[0]
    assert largest_variance(least) < largest_variance(usual)
    assert usual.error < least.error


def test_max_objective_of_many_marginals_has_small_gap():
    workload = Workload(Domain({f"x{i}": 2 + i for i in range(20)})).add("marginal", degree=3)
    built = plan(workload, "residual-planner", objective="max")
    assert float(built.notes[0].split("gap ")[1][:-1]) < 1e-4
