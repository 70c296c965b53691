"""Answers of many sets at once, against answers of one set after the other."""

from itertools import combinations

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.reconstruction import estimates as module
from dpscale.reconstruction.estimates import LeastSquaresEstimates

DOMAIN = Domain({"a": 3, "b": 9, "c": 3, "d": 2, "e": 9})


def make_estimates(workload, seed=0, mechanism="residual-planner"):
    planned, rng = plan(workload, mechanism=mechanism), np.random.default_rng(seed)
    values = [rng.normal(scale=1e3, size=block.rows).round() for block in planned.blocks]
    return LeastSquaresEstimates(planned, rng.uniform(1, 9, len(values)).tolist(), values.__getitem__)


def check_batched(found, part, sets):
    pairs = list(found.iter_part_answers(part, sets))
    assert len(pairs) == len(sets)
    for names, (answers, errors) in zip(sets, pairs, strict=True):
        alone = found.part_answers(part, names)
        np.testing.assert_allclose(answers, alone[0], rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(errors, alone[1], rtol=1e-12)


@pytest.mark.parametrize("cells", [1, 60, 1 << 16])
@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "circular"])
def test_batches_of_any_size_equal_single_answers(monkeypatch, family, cells):
    monkeypatch.setattr(module, "MOST_CELLS", cells)
    workload = Workload(DOMAIN).add(family, degree=3).add("marginal", degree=2)
    found = make_estimates(workload)
    assert found._batched is not None
    check_batched(found, workload.parts[0], workload.parts[0].sets)
    check_batched(found, workload.parts[1], workload.parts[1].sets[::-1])


def test_hybrid_sets_equal_single_answers():
    workload = Workload(DOMAIN).add("hybrid", degree=2, numeric=["a", "e"])
    found = make_estimates(workload)
    check_batched(found, workload.parts[0], workload.parts[0].sets)


def test_unmeasured_sets_use_single_path():
    """Among the sets is one outside all measured sets, for which the batched path has no value."""
    found = make_estimates(Workload(DOMAIN).add("marginal", attributes=[("a", "b"), ("c", "d")]))
    other = Workload(DOMAIN).add("marginal", degree=2).parts[0]
    check_batched(found, other, list(combinations("abcd", 2)))


@pytest.mark.parametrize("mechanism", ["query-smasher", "weighted-residuals", "residual-planner-plus"])
def test_other_strategies_and_axis_weights_equal_single_answers(mechanism):
    workload = Workload(DOMAIN).add("range", degree=2).add("prefix", degree=1)
    if mechanism == "query-smasher":
        workload.add("affine", attributes=[("b", "e")])
    found = make_estimates(workload, mechanism=mechanism)
    assert found._batched is not None
    assert bool(found.accuracy.weights) == (mechanism == "weighted-residuals")
    for part in workload.parts:
        check_batched(found, part, part.sets)
    measured = list(found._batched.answers(workload.parts[0], workload.parts[0].sets))
    assert sum(one is None for one in measured) == (mechanism == "query-smasher"), "that of the joint strategy alone"


@pytest.mark.parametrize(("mechanism", "family"), [("identity", "range"), ("hdmm", "prefix")])
def test_plans_of_whole_tables_have_no_batched_path(mechanism, family):
    workload = Workload(DOMAIN).add(family, degree=2)
    found = make_estimates(workload, mechanism=mechanism)
    assert found._batched is None
    check_batched(found, workload.parts[0], workload.parts[0].sets)
