"""The fit against cvxpy, and over blocks against over pairs of rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

from dpscale.relational.features import STEP, Features, Side
from dpscale.relational.fit import Constraint, Links, many_to_many, one_to_many

U_SIZES, V_SIZES = (2, 3), (4, 2)


def side(rows: int, sizes: tuple[int, ...], seed: int) -> Side:
    rng = np.random.default_rng(seed)
    return Side.made(np.stack([rng.integers(0, size, rows) for size in sizes], axis=1), sizes)


def problem(seed: int, links: float, clip: float | None = None, ridge: float = 2.0):
    """Two sides, and targets that random links would not meet."""
    rng = np.random.default_rng(seed)
    u, v = side(30, U_SIZES, seed), side(25, V_SIZES, seed + 1)
    one, two = (Features.of_side(own, clip).whole(own.profiles) * STEP for own in (u, v))
    wanted = rng.gamma(0.5, size=(len(one), len(two))) * np.multiply.outer(u.counts, v.counts)
    wanted *= links / wanted.sum()
    sums = one.T @ wanted.sum(axis=1), two.T @ wanted.sum(axis=0), one.T @ wanted @ two
    held = [
        Constraint(
            own + rng.normal(0, 1, own.shape), ridge * rng.uniform(0.5, 2, own.shape), np.full(own.shape, links / 4)
        )
        for own in sums
    ]
    return Links(one, two, u.counts, v.counts, links), held, (u, v)


def parts(links: Links, held: list[Constraint | None]):
    """For cvxpy: the variables and the energy of every pair of profiles."""
    found = [None if one is None else cp.Variable(one.target.shape) for one in held]
    energy, (p, q) = 0, (len(links.u), len(links.v))
    if found[0] is not None:
        energy += cp.reshape(links.u @ found[0], (p, 1), order="C") @ np.ones((1, q))
    if found[1] is not None:
        energy += np.ones((p, 1)) @ cp.reshape(links.v @ found[1], (1, q), order="C")
    if found[2] is not None:
        energy += links.u @ found[2] @ links.v.T
    inner = sum(cp.sum(cp.multiply(x, one.target)) for x, one in zip(found, held, strict=True) if one is not None)
    ridge = sum(cp.sum(cp.multiply(one.ridge / 2, cp.square(x)))
                for x, one in zip(found, held, strict=True) if one is not None)  # fmt: skip
    return energy, inner - ridge


def solved(loss) -> None:
    """As near as it comes; it warns where that is less near than asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cp.Problem(cp.Minimize(loss)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)


def by_cvxpy_many(links: Links, held: list[Constraint | None]) -> np.ndarray:
    energy, gain = parts(links, held)
    base, alpha = np.log(links.links / (links.cap.sum() - links.links)), cp.Variable()
    logits = energy + alpha + base
    solved(cp.sum(cp.multiply(links.cap, cp.logistic(logits))) - gain - alpha * links.links)
    weights = links.cap / (1 + np.exp(-logits.value))
    return weights * links.links / weights.sum()


def by_cvxpy_one(links: Links, held: list[Constraint | None]) -> np.ndarray:
    energy, gain = parts(links, held)
    children = links.v_rows * links.links / links.v_rows.sum()
    logits = energy + np.log(links.u_rows / links.u_rows.sum())[:, None]
    solved(sum(children[j] * cp.log_sum_exp(logits[:, j]) for j in range(len(children))) - gain)
    weights = np.exp(logits.value - logits.value.max(axis=0))
    return weights / weights.sum(axis=0) * children


CASES = [("all", (0, 1, 2)), ("the parents' alone", (0,)), ("both, no pairs", (0, 1)), ("pairs alone", (2,))]


@pytest.mark.parametrize("links", [20.0, 300.0, 650.0])
@pytest.mark.parametrize(("name", "kept"), CASES)
@pytest.mark.parametrize("ridge", [0.05, 2.0, 200.0])
def test_many_to_many_is_the_solution_of_its_convex_problem(name: str, kept, links: float, ridge: float) -> None:
    model, held, _ = problem(3, links, ridge=ridge)
    held = [one if i in kept else None for i, one in enumerate(held)]
    found = many_to_many(model, *held).weights
    assert found == pytest.approx(by_cvxpy_many(model, held), abs=1e-6 * links)
    assert found.sum() == pytest.approx(links)
    assert (found <= model.cap * (1 + 1e-6)).all()


@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("kept", [(0, 2), (0,), (2,)])
@pytest.mark.parametrize("ridge", [0.05, 2.0, 200.0])
def test_one_to_many_is_the_solution_of_its_convex_problem(clip, kept, ridge: float) -> None:
    model, held, _ = problem(4, 25.0, clip, ridge)
    held = [one if i in kept else None for i, one in enumerate(held)]
    found = one_to_many(model, held[0], held[2]).weights
    assert found == pytest.approx(by_cvxpy_one(model, [held[0], None, held[2]]), abs=1e-6 * model.links)
    assert found.sum(axis=0) == pytest.approx(model.v_rows)


@pytest.mark.parametrize("known", [False, True])
def test_blocks_give_what_pairs_of_rows_give(known: bool) -> None:
    """Every row a profile of its own: the links of a pair of rows are those of its block by how many pairs it has."""
    model, held, (u, v) = problem(5, 25.0)
    rows = replace(model, u=model.u[u.of], v=model.v[v.of], u_rows=np.ones(u.rows), v_rows=np.ones(v.rows))
    if known:
        blocks, pairs = one_to_many(model, held[0], held[2]).weights, one_to_many(rows, held[0], held[2]).weights
    else:
        blocks, pairs = many_to_many(model, *held).weights, many_to_many(rows, *held).weights
    assert pairs == pytest.approx((blocks / model.cap)[np.ix_(u.of, v.of)], abs=1e-6)


def test_without_sums_links_are_random() -> None:
    model, _, _ = problem(6, 40.0)
    assert many_to_many(model, None, None, None).weights == pytest.approx(model.cap * 40 / model.cap.sum())
    assert one_to_many(model, None, None).weights == pytest.approx(model.cap * 40 / model.cap.sum())
