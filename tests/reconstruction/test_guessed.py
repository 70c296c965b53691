"""Values of a guessed table: answers of every plan are those of the table itself."""

import numpy as np
import pytest

import dpscale as dp
from dpscale.base.errors import DpscaleError
from dpscale.mechanisms import plan
from dpscale.reconstruction.base import PlanEvidence
from dpscale.reconstruction.guessed import GuessedValues
from dpscale.workload import Workload
from tests.hierarchies.small import domain_of
from tests.messages import refused

ROWS = 5_000.0
FLAT = dp.Domain(age=6, sex=2, code=4)
TREES = domain_of({"place": (3, 7, 20)}, sex=2)
WIDE = dp.Domain(code=70_000, sex=["F", "M"])
SHARES = {"age": [1, 2, 3, 1, 1, 2], "sex": [0.3, 0.7]}


def estimates(workload, mechanism="weighted-residuals", shares=None):
    made = plan(workload, mechanism)
    guessed = GuessedValues(workload.domain, made.blocks, ROWS, shares or {})
    return PlanEvidence(made, made.blocks.unit_variances.tolist(), guessed.__getitem__).least_squares()


@pytest.mark.parametrize("mechanism", ["weighted-residuals", "query-smasher", "hdmm", "identity", "eigen-design"])
def test_marginals_are_products_of_the_shares(mechanism):
    workload = Workload(FLAT).add("prefix", attributes=[("age", "sex"), ("code",)])
    found = estimates(workload, mechanism, SHARES).marginal(("age", "sex"))
    expected = ROWS * np.multiply.outer(np.array(SHARES["age"]) / 10, SHARES["sex"])
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("mechanism", ["weighted-residuals", "query-smasher", "hdmm", "identity", "eigen-design"])
def test_joint_shares_are_those_of_a_dependent_table(mechanism):
    """A guess of code and age together, in an order other than that of the domain, beside an independent one of sex."""
    joint = np.random.default_rng(0).integers(1, 9, (4, 6))
    workload = Workload(FLAT).add("prefix", attributes=[("age", "sex", "code")])
    table = ROWS * np.einsum("ca,s->asc", joint / joint.sum(), [0.3, 0.7])
    made = estimates(workload, mechanism, {("code", "age"): joint, "sex": [0.3, 0.7]})
    np.testing.assert_allclose(made.marginal(("age", "sex", "code")), table, atol=1e-6)
    assert np.abs(table.sum(1) - np.multiply.outer(table.sum((1, 2)), table.sum((0, 1))) / ROWS).max() > 10  # planted


def test_levels_of_a_tree_have_the_shares_of_their_leaves():
    workload = Workload(TREES).add("marginal", attributes=[("country", "sex"), ("region",), ("place",)])
    tree = TREES.hierarchies[0]
    made = estimates(workload)
    for names in (("country", "sex"), ("region",), ("place",)):
        leaves = np.bincount(tree.ancestors(names[0])) / tree.sizes[-1] if names[0] != "place" else np.full(20, 1 / 20)
        expected = ROWS * (np.multiply.outer(leaves, [0.5, 0.5]) if len(names) > 1 else leaves)
        np.testing.assert_allclose(made.marginal(names), expected, atol=1e-6)


def test_merged_cells_have_the_sum_of_their_shares():
    text = "SELECT sex, COUNT(*) FROM t WHERE code >= 100 AND code < 30000 GROUP BY sex"
    workload = dp.Workload(WIDE).add_sql(text)
    made = estimates(workload)
    assert made.plan.blocks.merged is not None
    (part,) = workload.parts
    np.testing.assert_allclose(made.part_answers(part, part.sets[0])[0].reshape(-1), ROWS * 29_900 / 140_000, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "shares"),
    [(0, {}), (10, {"sex": [1, 2, 3]}), (10, {"sex": [-1, 2]}),
     (10, {"height": [1]}), (10, {("sex", "code"): [1] * 8}),
     (10, {("sex", "age"): np.ones((2, 6)), "age": [1] * 6}),
     (10, {("sex", "sex"): np.eye(2)}),
     (10, {"sex": ["F", "M"]}), (10, {("sex", "age"): "all"})],
)  # fmt: skip
def test_wrong_guesses_are_refused(rows, shares):
    with refused(DpscaleError):
        GuessedValues(FLAT, (), rows, shares)


def test_joint_guesses_of_levels_are_refused():
    with refused(DpscaleError):
        GuessedValues(TREES, (), 10, {("place", "sex"): np.ones((20, 2))})


def test_wide_attributes_are_merged_before_their_product():
    """The joint cells of both attributes would take 39 GB."""
    wide = dp.Domain(code=70_000, place=70_000, sex=["F", "M"])
    text = "SELECT COUNT(*) FROM t WHERE code < 30000 AND place >= 100 GROUP BY sex"
    workload = dp.Workload(wide).add_sql(text.replace("COUNT(*)", "sex, COUNT(*)"))
    made = estimates(workload)
    (part,) = workload.parts
    answers = made.part_answers(part, part.sets[0])[0].reshape(-1)
    np.testing.assert_allclose(answers, ROWS / 2 * (3 / 7) * (69_900 / 70_000), atol=1e-6)
