"""Answers of many sets at once are those of one set after the other."""

from itertools import combinations

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.reconstruction import estimates as module
from dpscale.reconstruction.estimates import LeastSquaresEstimates

DOMAIN = Domain({"a": 3, "b": 9, "c": 3, "d": 2, "e": 9})


def estimates(workload, seed=0, mechanism="residual-planner"):
    made, rng = plan(workload, mechanism=mechanism), np.random.default_rng(seed)
    values = [rng.normal(scale=1e3, size=block.rows).round() for block in made.blocks]
    return LeastSquaresEstimates(made, rng.uniform(1, 9, len(values)).tolist(), values.__getitem__)


def check(found, part, sets):
    pairs = list(found.iter_part_answers(part, sets))
    assert len(pairs) == len(sets)
    for names, (answers, errors) in zip(sets, pairs, strict=True):
        alone = found.part_answers(part, names)
        np.testing.assert_allclose(answers, alone[0], rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(errors, alone[1], rtol=1e-12)


@pytest.mark.parametrize("cells", [1, 60, 1 << 16])
@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "circular"])
def test_sets_of_every_shape_in_batches_of_any_size(monkeypatch, family, cells):
    monkeypatch.setattr(module, "MOST_CELLS", cells)
    workload = Workload(DOMAIN).add(family, degree=3).add("marginal", degree=2)
    found = estimates(workload)
    assert found._batched is not None
    check(found, workload.parts[0], workload.parts[0].sets)
    check(found, workload.parts[1], workload.parts[1].sets[::-1])


def test_hybrid_sets_have_families_of_their_own():
    workload = Workload(DOMAIN).add("hybrid", degree=2, numeric=["a", "e"])
    found = estimates(workload)
    check(found, workload.parts[0], workload.parts[0].sets)


def test_what_was_not_measured_is_answered_as_ever():
    """A set that lies in no measured one, among others: the fast way has no number for it, and takes none."""
    found = estimates(Workload(DOMAIN).add("marginal", attributes=[("a", "b"), ("c", "d")]))
    other = Workload(DOMAIN).add("marginal", degree=2).parts[0]
    check(found, other, list(combinations("abcd", 2)))


@pytest.mark.parametrize("mechanism", ["query-smasher", "weighted-residuals", "residual-planner-plus"])
def test_other_strategies_and_weights_of_the_axes(mechanism):
    workload = Workload(DOMAIN).add("range", degree=2).add("prefix", degree=1)
    if mechanism == "query-smasher":
        workload.add("affine", attributes=[("b", "e")])
    found = estimates(workload, mechanism=mechanism)
    assert found._batched is not None
    assert bool(found.accuracy.weights) == (mechanism == "weighted-residuals")
    for part in workload.parts:
        check(found, part, part.sets)
    measured = list(found._batched.answers(workload.parts[0], workload.parts[0].sets))
    assert sum(one is None for one in measured) == (mechanism == "query-smasher"), "that of the joint strategy alone"


@pytest.mark.parametrize(("mechanism", "family"), [("identity", "range"), ("hdmm", "prefix")])
def test_plans_of_whole_tables_take_their_own_way(mechanism, family):
    workload = Workload(DOMAIN).add(family, degree=2)
    found = estimates(workload, mechanism=mechanism)
    assert found._batched is None
    check(found, workload.parts[0], workload.parts[0].sets)
