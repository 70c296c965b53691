import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale import Domain, PlanError, Workload
from dpscale.optimize import integer_strategies
from dpscale.optimize.convex import optimise
from dpscale.optimize.integer_strategies import bits_for, error_coefficient, round_strategy
from dpscale.plans.factor import Factor, center_factor
from dpscale.plans.measurement_plan import plan_draws
from dpscale.workload import FAMILIES, axis_of, root_of
from dpscale.workload.residual import kron
from tests.messages import refused


@pytest.mark.parametrize("family", ["prefix", "range"])
@pytest.mark.parametrize("size", [3, 10, 50])
@pytest.mark.parametrize("matrices", [1, 2, 3])
def test_rounding_loses_less_than_one_thousandth(family, size, matrices):
    gram = axis_of(FAMILIES[family], size).factor.gram
    optimum = optimise(root_of(gram))
    factor = round_strategy(root_of(gram), optimum.root, (size,), bits_for(matrices))
    assert error_coefficient(factor, root_of(gram)) >= optimum.dual
    assert error_coefficient(factor, root_of(gram)) / optimum.dual - 1 < 2e-3 / matrices  # a thousandth of the RMSE


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
def test_rounded_rows_are_centred_on_every_axis(shape):
    rng = np.random.default_rng(0)
    cells = int(np.prod(shape))
    rank = math.prod(n - 1 for n in shape)
    root = rng.normal(size=(rank, cells))
    factor = round_strategy(kron([np.eye(n) - 1 / n for n in shape]), root, shape, 20)
    cube = factor.explicit().reshape(rank, *shape)
    for axis in range(1, cube.ndim):
        assert not cube.sum(axis=axis).any()


@pytest.mark.parametrize("factor", [center_factor(6), Factor("identity", (6,))])
def test_implicit_factors_equal_their_matrices(factor):
    matrix = factor.explicit().astype(float)
    assert factor.squared_l2_sensitivity == (matrix**2).sum(axis=0).max()
    assert factor.largest == np.abs(matrix).max()
    centring = np.eye(6) - 1 / 6
    if factor.kind == "center":
        np.testing.assert_allclose(factor.covariance, np.linalg.pinv(matrix.T @ matrix), atol=1e-12)
        np.testing.assert_allclose(factor.inverse @ matrix, centring, atol=1e-12)
    else:
        np.testing.assert_allclose(factor.covariance, centring)


def test_sensitivity_is_exact_in_integers():
    """The norms of the two columns are equal as floats and differ as integers."""
    big = 2**40
    matrix = np.array([[big, big], [1, 0], [-big - 1, -big]]).astype(np.int64)
    factor = Factor("matrix", (2,), matrix)
    assert factor.squared_l2_sensitivity == max(big**2 + 1 + (big + 1) ** 2, 2 * big**2)


def test_inverse_undoes_rounded_strategy():
    gram = axis_of(FAMILIES["prefix"], 12).factor.gram
    factor = round_strategy(root_of(gram), optimise(root_of(gram)).root, (12,), 20)
    identity = factor.inverse @ factor.explicit().astype(float)
    np.testing.assert_allclose(identity, np.eye(12) - 1 / 12, atol=1e-9)


def test_column_norms_do_not_overflow():
    matrix = np.full((16, 2), 2**59, dtype=np.int64)
    factor = Factor("full", (2,), matrix)
    assert factor.l1_sensitivity == 2**63
    assert factor.squared_l2_sensitivity == 2**122


@pytest.mark.parametrize(
    ("kind", "matrix"),
    [
        ("center", np.eye(2, dtype=np.int64)),
        ("full", None),
        ("other", None),
        ("full", np.eye(2, dtype=np.uint32)),
        ("full", np.eye(3, dtype=np.int64)),
        ("full", np.full((1, 2), -(2**63), dtype=np.int64)),
    ],
)
def test_inconsistent_factor_is_refused(kind, matrix):
    with refused(ValueError):
        Factor(kind, (2,), matrix)


SIZES = {"a": 12, "b": 11, "c": 6, "d": 5, "e": 4, "f": 9}
PRODUCTS = {
    "one of 3": {"a": ["a = 1"], "b": ["b = 1"], "c": ["c = 1"]},
    "several of 3": {"a": ["a < 3", "a < 5"], "b": ["b in (1, 4)", "b < 4", "b = 2"], "c": ["c < 2", "c = 1"]},
    "several of 4": {"b": ["b < 4", "b = 2"], "c": ["c < 2"], "d": ["d < 3", "d < 2"], "e": ["e = 1"]},
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_narrow_spans_are_measured_with_little_budget(name, monkeypatch):
    """Factors have few bits together, and lose nothing against all bits of each, whose noise could not be drawn."""
    workload = Workload(Domain(SIZES)).add_product(PRODUCTS[name])
    planned = dp.plan(workload, "query-smasher")
    assert plan_draws(planned, 1e-6).amount <= Fraction(1e-6)
    monkeypatch.setattr(integer_strategies, "MOST_TOGETHER", math.inf)
    finer = dp.plan(workload, "query-smasher")
    with refused(PlanError):
        plan_draws(finer, 1e-6)
    assert planned.error == pytest.approx(finer.error, rel=1e-6)


def count_rows(folder, rows, sizes, conditions):
    """Return the release of counts under conditions on coded columns."""
    rows.to_parquet(folder / "rows.parquet")
    domain = {"attributes": {name: {"kind": "coded", "size": size} for name, size in sizes.items()}}
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    return dp.run({
        "data": {"path": str(folder / "rows.parquet"), "domain": str(folder / "domain.toml")},
        "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "rows", "ledger": str(folder / "ledger.sqlite")},
        "workload": [{"family": "predicates", "conditions": conditions}],
    }, folder / "run", progress=None)  # fmt: skip


def test_count_of_three_conditions_is_that_of_the_rows(tmp_path):
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({name: rng.integers(0, size, 4000) for name, size in SIZES.items()})
    conditions = ["a < 6 and b < 6 and c < 3", "a < 6 and b < 6 and c < 3 and d < 3 and f != 2"]
    release = count_rows(tmp_path, rows, SIZES, conditions)
    chosen = (rows.a < 6) & (rows.b < 6) & (rows.c < 3)
    exact = [chosen.sum(), (chosen & (rows.d < 3) & (rows.f != 2)).sum()]
    for names, count in zip([("a", "b", "c"), ("a", "b", "c", "d", "f")], exact, strict=True):
        [answer] = release.table(names, family="conditions").to_dict("records")
        assert answer["estimate"] == pytest.approx(count, abs=7 * answer["std_error"])
        assert answer["std_error"] < count / 5


def test_many_conditions_on_a_large_set_are_one_strategy_at_its_optimum(tmp_path):
    """Products on more than 2,048 cells, whose cells the conditions tell apart, are read as arrays."""
    rng = np.random.default_rng(5)
    sizes = {"a": 14, "b": 13, "c": 13, "d": 7}
    conditions = []
    for _ in range(30):
        cuts = {name: int(rng.integers(1, size)) for name, size in sizes.items()}
        conditions.append(" and ".join(f"{name} {rng.choice(['<', '>='])} {cut}" for name, cut in cuts.items()))
    workload = Workload(Domain(sizes)).add_conditions(conditions)
    planned = dp.plan(workload)
    assert len(planned.blocks) == 1
    assert planned.error == pytest.approx(planned.floor, rel=1e-5)
    assert planned.accuracy.total_error(workload) == pytest.approx(planned.error, rel=1e-9)

    rows = pd.DataFrame({name: rng.integers(0, size, 4000) for name, size in sizes.items()})
    table = count_rows(tmp_path, rows, sizes, conditions).table(tuple(sizes), family="conditions")
    exact = [len(rows.query(" and ".join(map(str, row)))) for row in table[list(sizes)].to_numpy()]
    errors = (table["estimate"] - exact) / table["std_error"]
    assert len(errors) == 30
    assert errors.abs().max() < 7
    assert (table["std_error"] < 0.5 * table["estimate"].abs().max()).all()
