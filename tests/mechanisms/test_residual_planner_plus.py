"""ResidualPlanner+ with given bases, against QuerySmasher and the paper's table; errors for invalid bases."""

import numpy as np
import pytest

from dpscale import Domain, DomainError, JobError, Workload, plan
from tests.messages import refused

NAME = "residual-planner-plus"


def make_prefixes() -> Workload:
    return Workload(Domain({"a": 7, "b": 8})).add("prefix", degree=2).add("marginal", degree=1)


@pytest.mark.parametrize("base", ["identity", "prefix", "wavelet", "hierarchical", "hb", "matrix"])
def test_given_basis_is_centred_and_used(base):
    matrix = np.random.default_rng(0).normal(size=(9, 7))
    built = plan(make_prefixes(), NAME, bases={"a": matrix if base == "matrix" else base})
    strategy = built.strategy(("a",))
    shares = {block.attributes: block for block in built.blocks}
    assert shares["a",].factors[0].shape == (7,)
    np.testing.assert_allclose(strategy.sum(axis=1), 0, atol=1e-9)
    if base == "matrix":
        centred = matrix - matrix.mean(axis=1, keepdims=True)
        expected = centred.T @ centred
        np.testing.assert_allclose(strategy.T @ strategy, expected / np.diag(expected).max(), atol=1e-5)


def test_best_basis_is_the_default():
    best = plan(make_prefixes(), NAME).error
    assert best <= min(
        plan(make_prefixes(), NAME, bases={n: base for n in "ab"}).error for base in ("identity", "prefix", "wavelet")
    )
    assert plan(make_prefixes()).error <= best


def test_identity_bases_equal_residual_planner():
    bases = {"a": "identity", "b": np.eye(8)}
    assert plan(make_prefixes(), NAME, bases=bases).error == pytest.approx(
        plan(make_prefixes(), "residual-planner").error, rel=1e-12
    )


def test_marginals_reach_optimum_of_table_4():
    """At n = 10. The other rows of the column use bases that the paper does not give."""
    workload = Workload(Domain({f"x{i}": 10 for i in range(40)})).add("marginal", degree=1).add("marginal", degree=2)
    assert plan(workload, NAME).rmse() == pytest.approx(23.48, abs=0.005)


@pytest.mark.parametrize(
    "bases",
    [
        {"a": "haar"},
        {"a": np.eye(6)},
        {"a": np.ones((9, 7))},
        {"a": [["x"] * 7]},
        "hb",
    ],
)
def test_invalid_basis_is_named(bases):
    with refused(JobError):
        plan(make_prefixes(), NAME, bases=bases)


def test_basis_of_unknown_attribute_is_refused():
    with refused(DomainError):
        plan(make_prefixes(), NAME, bases={"c": "hb"})
