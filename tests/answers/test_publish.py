"""Published tables have nonnegative integer counts and consistent margins; a table that cannot be consistent is left
out.
"""

from itertools import combinations

import numpy as np
from hypothesis import given, settings, strategies as st

from dpscale.answers import whole_tables
from dpscale.answers.publish import chosen, publish
from dpscale.answers.tables import Answered
from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.domain.hierarchy import margin_cells
from dpscale.domain.rules import possible
from dpscale.workload.residual import kron
from tests.answers.exact import estimates, measurement_plan
from tests.messages import refused

RULES = ["not (a = 0 and b in (1, 2))"]
SIZES = {"a": 3, "b": 4, "c": 2, "d": 3}
PAIRS = list(combinations(SIZES, 2))


def make_answers(counts, sets, seed=None, rules=None):
    domain = Domain(SIZES) if rules is None else Domain(Domain(SIZES).attributes, rules)
    plan = measurement_plan(domain, [("marginal", names) for names in sets], "residual-planner")
    return Answered(estimates(plan, counts, None if seed is None else np.random.default_rng(seed)), "release")


def marginalize(table, names, own):
    return table.sum(axis=tuple(axis for axis, name in enumerate(names) if name not in own))


def list_faults(published):
    """Return the faults of published tables as a list of sentences."""
    tables, found = published.tables, []
    for names, table in tables.items():
        if table.dtype != np.int64 or table.min() < 0:
            found.append(f"{names} is not of whole numbers from 0 on")
        if table.sum() != published.total:
            found.append(f"{names} has another total")
    for one, other in combinations(tables, 2):
        shared = [name for name in one if name in other]
        if not np.array_equal(marginalize(tables[one], one, shared), marginalize(tables[other], other, shared)):
            found.append(f"{one} and {other} differ on {shared}")
    return found


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.floats(0, 30), st.booleans())
def test_published_pairs_are_consistent(seed, mean, rules):
    counts = np.random.default_rng(seed).poisson(mean, tuple(SIZES.values())).astype(float)
    published = publish(make_answers(counts, PAIRS, seed, RULES if rules else ()), PAIRS)
    assert list_faults(published) == []
    if not rules:
        assert published.left_out == {}
    elif ("a", "b") in published.tables:
        assert published.tables["a", "b"][0, 1:3].tolist() == [0, 0]


@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_published_triples_are_consistent(seed):
    counts = np.random.default_rng(seed).poisson(20, tuple(SIZES.values())).astype(float)
    threes = list(combinations(SIZES, 3))
    published = publish(make_answers(counts, threes, seed), [*threes, *PAIRS])
    assert list_faults(published) == []
    assert set(PAIRS) <= set(published.tables)
    assert len(published.tables) + len(published.left_out) == len(threes) + len(PAIRS)


def test_publication_without_noise_equals_true_tables():
    counts = np.random.default_rng(1).poisson(4, tuple(SIZES.values())).astype(float)
    sets = [("a", "b", "c"), ("b", "d")]
    published = publish(make_answers(counts, sets), sets)
    for names in sets:
        np.testing.assert_array_equal(published.tables[names], marginalize(counts, tuple(SIZES), names))


def test_rare_values_of_large_tables_keep_their_counts():
    counts = np.zeros(tuple(SIZES.values()))
    counts[0], counts[1], counts[2, 3] = 250_000, 40, 3
    sets = [("a", "b"), ("a", "d"), ("c",)]
    published = publish(make_answers(counts, sets), sets)
    for names in sets:
        np.testing.assert_array_equal(published.tables[names], marginalize(counts, tuple(SIZES), names))


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 200))
def test_published_cells_are_fitted_values_rounded_down_or_up(seed, total):
    rng = np.random.default_rng(seed)
    names, estimate, allowed = ("a", "b"), rng.normal(3, 4, (3, 4)), np.ones((3, 4), bool)
    rows = rng.multinomial(total, np.full(3, 1 / 3))
    columns = rng.multinomial(total, np.full(4, 1 / 4))
    found = whole_tables.adjust_to_constraints(estimate, names, {("a",): rows, ("b",): columns}, allowed)
    margins = [(np.repeat(np.arange(3), 4), rows), (np.tile(np.arange(4), 3), columns)]
    fitted = whole_tables.proportional(estimate, margins, allowed)
    there = max(np.abs(fitted.sum(axis=1) - rows).max(), np.abs(fitted.sum(axis=0) - columns).max()) < 1e-6
    assert np.abs(found - fitted).max() < (1 if there else 2)
    assert found.sum(axis=1).tolist() == rows.tolist()
    assert found.sum(axis=0).tolist() == columns.tolist()


def test_tables_rounded_separately_are_detected():
    counts = np.random.default_rng(1).poisson(9, tuple(SIZES.values())).astype(float)
    source = make_answers(counts, PAIRS, 2)
    published = publish(source, PAIRS)
    for names in PAIRS:
        published.tables[names][...] = np.rint(source.estimates.marginal(names)).astype(int)
    assert len(list_faults(published)) > 3


def test_infeasible_margins_leave_table_out():
    allowed = np.array([[True, False], [True, True]])
    rows, columns = np.array([5, 0]), np.array([0, 5])  # all records would have to be in an impossible cell
    assert (
        whole_tables.adjust_to_constraints(np.ones((2, 2)), ("a", "b"), {("a",): rows, ("b",): columns}, allowed)
        is None
    )


def test_structural_zeros_of_other_attributes_have_no_effect():
    domain = Domain(Domain(SIZES).attributes, RULES)
    assert possible(domain.rules, ("a", "c"), domain.shape(("a", "c"))).all()
    allowed = possible(domain.rules, ("a", "b", "d"), domain.shape(("a", "b", "d")))
    assert allowed.sum() == 3 * 4 * 3 - 2 * 3
    assert not allowed[0, 1:3].any()


def test_margin_groups_equal_summing_matrices():
    """The oracle is the Kronecker product of explicit summing matrices."""
    table = np.random.default_rng(0).random((3, 4, 2))
    for own in (("a",), ("b", "c"), ("a", "c"), ()):
        sums = [np.eye(n) if name in own else np.ones((1, n)) for name, n in zip("abc", table.shape, strict=True)]
        group = margin_cells(table.shape, ["abc".index(name) for name in own])
        np.testing.assert_allclose(np.bincount(group, table.reshape(-1)), kron(sums) @ table.reshape(-1))


def test_published_sets_default_to_workload_or_selection():
    source = make_answers(np.ones(tuple(SIZES.values())), PAIRS)
    assert chosen(source, [], None) == PAIRS
    assert chosen(source, [["b", "a"]], None) == [("a", "b")]
    with refused(JobError):
        chosen(source, [], 3)


def test_set_of_too_many_cells_is_listed_as_left_out(monkeypatch):
    monkeypatch.setattr("dpscale.answers.publish.MOST_CELLS", 6)
    source = make_answers(np.ones(tuple(SIZES.values())), PAIRS)
    published = publish(source, chosen(source, [], None))
    assert set(published.tables) == {("a", "c"), ("c", "d")}
    assert set(published.left_out) == set(PAIRS) - set(published.tables)
    assert "more than 6 cells" in published.left_out["a", "b"]
    monkeypatch.setattr("dpscale.answers.publish.MOST_CELLS", 1)
    with refused(JobError):
        chosen(source, [], None)
