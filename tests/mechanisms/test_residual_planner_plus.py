"""ResidualPlanner+: given bases, against QuerySmasher and the paper's column; what a wrong base is told."""

import numpy as np
import pytest

from dpscale import Domain, DomainError, JobError, Workload, plan

NAME = "residual-planner-plus"


def prefixes() -> Workload:
    return Workload(Domain({"a": 7, "b": 8})).add("prefix", degree=2).add("marginal", degree=1)


@pytest.mark.parametrize("base", ["identity", "prefix", "wavelet", "hierarchical", "hb", "matrix"])
def test_a_given_base_is_centred_and_used(base):
    matrix = np.random.default_rng(0).normal(size=(9, 7))
    made = plan(prefixes(), NAME, bases={"a": matrix if base == "matrix" else base})
    strategy = made.strategy(("a",))
    shares = {block.attributes: block for block in made.blocks}
    assert shares["a",].factors[0].shape == (7,)
    np.testing.assert_allclose(strategy.sum(axis=1), 0, atol=1e-9)
    if base == "matrix":
        centred = matrix - matrix.mean(axis=1, keepdims=True)
        expected = centred.T @ centred
        np.testing.assert_allclose(strategy.T @ strategy, expected / np.diag(expected).max(), atol=1e-5)


def test_the_best_base_is_taken_where_none_is_given():
    best = plan(prefixes(), NAME).error
    assert best <= min(
        plan(prefixes(), NAME, bases={n: base for n in "ab"}).error for base in ("identity", "prefix", "wavelet")
    )
    assert plan(prefixes()).error <= best


def test_identity_bases_are_residual_planner():
    bases = {"a": "identity", "b": np.eye(8)}
    assert plan(prefixes(), NAME, bases=bases).error == pytest.approx(
        plan(prefixes(), "residual-planner").error, rel=1e-12
    )


def test_marginals_are_at_the_optimum():
    """Table 4 at n = 10. Its other rows of this column are of bases that the paper does not give."""
    workload = Workload(Domain({f"x{i}": 10 for i in range(40)})).add("marginal", degree=1).add("marginal", degree=2)
    assert plan(workload, NAME).rmse() == pytest.approx(23.48, abs=0.005)


@pytest.mark.parametrize(
    ("bases", "field"),
    [
        ({"a": "haar"}, "mechanism.bases.a"),
        ({"a": np.eye(6)}, "mechanism.bases.a"),
        ({"a": np.ones((9, 7))}, "mechanism.bases.a"),
        ({"a": [["x"] * 7]}, "mechanism.bases.a"),
        ("hb", "mechanism.bases"),
    ],
)
def test_a_wrong_base_is_named(bases, field):
    with pytest.raises(JobError, match=field.replace(".", r"\.")):
        plan(prefixes(), NAME, bases=bases)


def test_a_base_of_an_unknown_attribute_is_refused():
    with pytest.raises(DomainError, match="no attribute 'c'"):
        plan(prefixes(), NAME, bases={"c": "hb"})
