"""Advice on the more accurate mechanism by number of records; the mean share of a query is checked by brute force."""

import numpy as np
import pytest
import tomli_w

from dpscale import Domain, Workload
from dpscale.api.planning import ReleasePlan
from dpscale.runs.stages.preview import (
    LESS_ACCURATE,
    LESS_ACCURATE_SUMS,
    MORE_ACCURATE,
    MORE_ACCURATE_SUMS,
    accuracy_thresholds,
    compare_with_adaptive,
    expected_errors,
    list_advice,
    mean_share,
)

SIZES = {"a": 4, "b": 3, "c": 2}


def make_mixed_workload():
    workload = Workload(Domain(SIZES)).add("prefix", degree=2).add("marginal", degree=3).add("range", degree=1)
    workload.add("affine", degree=2)
    return workload.add_queries(["a", "c"], np.arange(24.0).reshape(3, 4, 2) / 24)


def test_mean_share_equals_brute_force_on_uniform_table():
    """The mean share is the mean answer of all queries on a table with equal cells of total 1."""
    workload, answers = make_mixed_workload(), []
    for part in workload.parts:
        for names in part.sets:
            shape = part.domain.shape(names)
            answers.append(np.abs(part.answers(names, np.full(shape, 1 / np.prod(shape)))).reshape(-1))
    assert mean_share(workload) == pytest.approx(np.concatenate(answers).mean())


def test_mean_share_samples_large_workloads():
    workload = Workload(Domain({f"x{i}": 2 + i % 3 for i in range(60)})).add("prefix", degree=2)
    part = workload.parts[0]
    every = [np.prod([(size + 1) / (2 * size) for size in part.domain.shape(names)]) for names in part.sets]
    assert mean_share(workload) == pytest.approx(np.mean(every), rel=0.1)


@pytest.mark.parametrize("family", ["marginal", "prefix"])
def test_advice_depends_on_record_count(family):
    workload = Workload(Domain(SIZES)).add(family, degree=2)
    even, (behind, ahead) = mean_share(workload), accuracy_thresholds(workload)
    error = 900 * behind * even
    assert compare_with_adaptive(workload, error, None)[0].startswith(
        "With fewer than about 900 records, `aim-grem` is usually"
    )
    assert f"{900 * behind / ahead:,.0f}" in compare_with_adaptive(workload, error, None)[0]
    assert "is usually more accurate" in compare_with_adaptive(workload, error, 890)[0]
    assert "may be more accurate" in compare_with_adaptive(workload, error, 910)[0]
    assert compare_with_adaptive(workload, error, round(900 * behind / ahead) + 10) == []


def test_thresholds_depend_on_families_and_sizes():
    """Thresholds for sums apply only if the workload has no other family and sizes are small."""
    prefixes = Workload(Domain(SIZES)).add("prefix", degree=2).add("range", degree=1)
    assert accuracy_thresholds(prefixes) == (LESS_ACCURATE_SUMS, MORE_ACCURATE_SUMS)
    assert (
        accuracy_thresholds(prefixes.add("marginal", degree=1))
        == accuracy_thresholds(make_mixed_workload())
        == (LESS_ACCURATE, MORE_ACCURATE)
    )
    assert accuracy_thresholds(Workload(Domain({"a": 4, "b": 600})).add("prefix", degree=2)) == (
        LESS_ACCURATE,
        MORE_ACCURATE,
    )


def test_no_advice_for_single_attributes():
    assert compare_with_adaptive(Workload(Domain(SIZES)).add("marginal", degree=1), 5.0, None) == []


@pytest.mark.parametrize(
    ("changes", "proposed"),
    [
        ({}, True),
        ({"privacy": {"epsilon": 10.0, "delta": 1e-9, "dataset": "d"}}, False),
        ({"workload": [{"family": "marginal", "degree": 1}]}, False),
        ({"synthesize": {"target": "x0"}}, False),
        ({"synthesize": None}, False),
    ],
)
def test_target_is_proposed_for_many_sets_at_a_small_budget(tmp_path, changes, proposed):
    (tmp_path / "d.toml").write_text(tomli_w.dumps({"attributes": {f"x{i}": {"kind": "coded", "size": 2}
                                                                   for i in range(9)}}))  # fmt: skip
    content = {"data": {"path": "d.parquet", "domain": "d.toml"},
               "privacy": {"epsilon": 0.1, "delta": 1e-9, "dataset": "d"},
               "workload": [{"family": "marginal", "degree": 3}], "synthesize": {"rows": 10}} | changes  # fmt: skip
    made = ReleasePlan({name: value for name, value in content.items() if value is not None}, tmp_path)
    families = expected_errors(made.measurements, made.job.privacy.budget)["families"]
    said = list_advice(made.job, made.measurements, families)
    assert any('`target = "NAME"`' in sentence for sentence in said) == proposed
