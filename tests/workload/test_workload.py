import numpy as np
import pytest

from dpscale import Domain, JobError, PlanError, Workload
from dpscale.workload import decompose
from dpscale.workload.residual import piece, subsets
from tests.messages import refused
from tests.oracles import explicit_workload

DOMAIN = Domain({"a": 4, "b": 3, "c": 2})


def make_mixed_workload() -> Workload:
    rng = np.random.default_rng(0)
    workload = Workload(DOMAIN).add("marginal", degree=2).add("prefix", attributes=[("a",), ("c", "a")], weight=2.0)
    workload.add("range", degree=3, weight=0.5)
    return workload.add_queries(("c", "b"), rng.normal(size=(5, 2, 3)), weights=[1, 2, 0, 1, 3])


def test_query_counts_equal_values_by_hand():
    assert Workload(Domain({f"x{i}": 40 for i in range(40)})).add("range", degree=2).query_count == 780 * 820**2
    assert make_mixed_workload().query_count == (12 + 8 + 6) + (4 + 8) + 10 * 6 * 3 + 5
    assert Workload(DOMAIN).add("marginal", degree=0).query_count == 1


def test_duplicate_sets_count_as_queries():
    workload = Workload(DOMAIN).add("marginal", attributes=[("a",), ("a",)]).add("marginal", degree=1)
    assert workload.query_count == 4 + 4 + 9
    assert workload.sets == (("a",), ("b",), ("c",))


def test_decomposition_equals_brute_force():
    """The Gram matrix of every subworkload equals that of the explicit queries projected on its space."""
    workload = make_mixed_workload()
    queries, weights = explicit_workload(workload)
    cube = queries.reshape(-1, *DOMAIN.shape(DOMAIN.names))
    found = {sub.attributes: sub for sub in decompose(workload)}
    for subset in subsets(DOMAIN.names):
        axes = [DOMAIN.names.index(name) for name in subset]
        pieces = piece(cube, axes, lead=1).reshape(len(cube), -1)
        expected = (pieces * weights[:, None]).T @ pieces
        np.testing.assert_allclose(found[subset].gram(), expected, atol=1e-9)


def test_family_over_many_sets_is_one_term():
    for sub in decompose(Workload(DOMAIN).add("prefix", degree=1).add("prefix", degree=3, weight=7.0)):
        assert len(sub.terms) == 1


def test_signature_ignores_scale_and_names_only():
    workload = Workload(Domain({"a": 5, "b": 5, "c": 6})).add("prefix", attributes=[("a",)])
    workload.add("prefix", attributes=[("b",)], weight=3.0).add("prefix", attributes=[("c",)])
    a, b, c = (sub.signature() for sub in decompose(workload) if sub.attributes)
    assert a == b != c


def test_zero_weight_gives_no_subworkload():
    assert list(decompose(Workload(DOMAIN).add("marginal", degree=2, weight=0.0))) == []


@pytest.mark.parametrize(
    ("call", "field", "remedy"),
    [
        (lambda w: w.add("prefx", degree=1), "workload.family", "prefix"),
        (lambda w: w.add("prefix", degree=4), "workload.degree", "lower"),
        (lambda w: w.add("prefix", degree=-1), "workload.degree", "lower"),
        (lambda w: w.add("prefix", degree=1, weight=-1.0), "workload.weight", "fix"),
        (lambda w: w.add("prefix", degree=1, weight=float("nan")), "workload.weight", "fix"),
        (lambda w: w.add("prefix"), "workload", "keep one"),
        (lambda w: w.add("prefix", degree=1, attributes=[("a",)]), "workload", "keep one"),
        (lambda w: w.add("prefix", attributes=["a"]), "workload.attributes", "[['a']]"),
        (lambda w: w.add("prefix", attributes=[("a", "a")]), "attributes", "drop"),
        (lambda w: w.add("prefix", attributes=[("aa",)]), "attributes", "'a'"),
        (lambda w: w.add_queries(("a",), np.zeros((2, 5))), "workload.queries", "axis"),
        (lambda w: w.add_queries(("a",), np.full((2, 4), np.inf)), "workload.queries", "axis"),
        (lambda w: w.add_queries(("a",), np.zeros((2, 4)), weights=[1]), "workload.weights", "one weight"),
    ],
)
def test_invalid_workload_is_refused_in_one_sentence(call, field, remedy):
    from dpscale import DpscaleError

    with pytest.raises(DpscaleError) as caught:
        call(Workload(DOMAIN))
    assert caught.value.field == field
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_arrays_of_equal_numbers_and_other_shape_differ():
    """Regression test: the pieces of 5 queries of 6 cells on (a, b) and on (c, d) were confused."""
    domain = Domain({"a": 2, "b": 3, "c": 3, "d": 2})
    queries = np.random.default_rng(0).normal(size=(5, 2, 3))
    arrays = {("a", "b"): queries, ("c", "d"): queries.reshape(5, 3, 2)}
    workload = Workload(domain)
    for names, array in arrays.items():
        workload.add_queries(names, array)
    found = {sub.attributes: sub.gram() for sub in decompose(workload) if sub.attributes}
    for names, array in arrays.items():
        for axes in ((0,), (1,), (0, 1)):
            pieces = piece(array, axes, lead=1).reshape(5, -1)
            np.testing.assert_allclose(found[tuple(names[axis] for axis in axes)], pieces.T @ pieces, atol=1e-12)


def test_too_large_array_is_refused():
    big = Domain({"a": 100, "b": 101})
    workload = Workload(big).add_queries(("a", "b"), np.zeros((1, 100, 101)))
    with pytest.raises(PlanError):
        decompose(workload)


def test_unknown_family_is_refused():
    with pytest.raises(JobError):
        Workload(DOMAIN).add("nothing", degree=1)


@pytest.mark.parametrize("family", ["prefix", "hybrid", "affine", "random"])
def test_query_weights_equal_brute_force_gram(family):

    settings = {"numeric": ["a"]} if family == "hybrid" else {}
    domain = Domain({"a": 3, "b": 4})
    each = np.random.default_rng(0).integers(0, 5, Workload(domain).add(family, degree=2, **settings).query_count)
    weighted = Workload(domain).add(family, degree=2, weight=[each], **settings)
    queries = Workload(domain).add(family, degree=2, **settings).parts[0]
    cells = np.eye(12).reshape(12, 3, 4)
    rows = np.stack([queries.answers(("a", "b"), cell).reshape(-1) for cell in cells], axis=1)
    centred = np.kron(np.eye(3) - 1 / 3, np.eye(4) - 1 / 4)
    expected = centred @ (rows.T * each) @ rows @ centred
    found = next(sub for sub in decompose(weighted) if sub.attributes == ("a", "b")).gram()
    np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())
    assert weighted.parts[0].name == family


def test_set_weights_and_query_weights_are_separate_parts():
    domain = Domain({"a": 3, "b": 4, "c": 2})
    workload = Workload(domain).add("prefix", degree=1, weight=[2.0, [1, 0, 0, 3], 1.0])
    assert [part.sets for part in workload.parts] == [(("a",), ("c",)), (("b",),)]
    assert workload.query_count == 9


@pytest.mark.parametrize("weight", [[[1, 2], 1.0, 1.0], [[1, "x", 1], 1.0, 1.0], [[1, -1, 1], 1.0, 1.0]])
def test_invalid_query_weights_are_refused(weight):
    with refused(JobError):
        Workload(Domain({"a": 3, "b": 4, "c": 2})).add("prefix", degree=1, weight=weight)
