"""Fitted links against cvxpy, and fits over profiles against fits over pairs of rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

from dpscale.relational.features import STEP, Features, Side
from dpscale.relational.link_estimation import Constraint, Links, many_to_many, one_to_many

U_SIZES, V_SIZES = (2, 3), (4, 2)


def make_side(rows: int, sizes: tuple[int, ...], seed: int) -> Side:
    rng = np.random.default_rng(seed)
    return Side.made(np.stack([rng.integers(0, size, rows) for size in sizes], axis=1), sizes)


def make_problem(seed: int, links: float, clip: float | None = None, ridge: float = 2.0):
    """Return links, constraints and sides, with targets that random links do not meet."""
    rng = np.random.default_rng(seed)
    u, v = make_side(30, U_SIZES, seed), make_side(25, V_SIZES, seed + 1)
    one, two = (Features.of_side(own, clip).whole(own.profiles) * STEP for own in (u, v))
    wanted = rng.gamma(0.5, size=(len(one), len(two))) * np.multiply.outer(u.counts, v.counts)
    wanted *= links / wanted.sum()
    sums = one.T @ wanted.sum(axis=1), two.T @ wanted.sum(axis=0), one.T @ wanted @ two
    constraints = [
        Constraint(
            own + rng.normal(0, 1, own.shape), ridge * rng.uniform(0.5, 2, own.shape), np.full(own.shape, links / 4)
        )
        for own in sums
    ]
    return Links(one, two, u.counts, v.counts, links), constraints, (u, v)


def cvxpy_parts(links: Links, constraints: list[Constraint | None]):
    """Return, for cvxpy, the energy of every pair of profiles and the linear gain."""
    found = [None if one is None else cp.Variable(one.target.shape) for one in constraints]
    energy, (p, q) = 0, (len(links.u), len(links.v))
    if found[0] is not None:
        energy += cp.reshape(links.u @ found[0], (p, 1), order="C") @ np.ones((1, q))
    if found[1] is not None:
        energy += np.ones((p, 1)) @ cp.reshape(links.v @ found[1], (1, q), order="C")
    if found[2] is not None:
        energy += links.u @ found[2] @ links.v.T
    inner = sum(
        cp.sum(cp.multiply(x, one.target)) for x, one in zip(found, constraints, strict=True) if one is not None
    )
    ridge = sum(cp.sum(cp.multiply(one.ridge / 2, cp.square(x)))
                for x, one in zip(found, constraints, strict=True) if one is not None)  # fmt: skip
    return energy, inner - ridge


def solve(loss) -> None:
    """Solve to the smallest tolerance, without the warning of a missed tolerance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cp.Problem(cp.Minimize(loss)).solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)


def solve_many_to_many(links: Links, constraints: list[Constraint | None]) -> np.ndarray:
    energy, gain = cvxpy_parts(links, constraints)
    base, alpha = np.log(links.links / (links.cap.sum() - links.links)), cp.Variable()
    logits = energy + alpha + base
    solve(cp.sum(cp.multiply(links.cap, cp.logistic(logits))) - gain - alpha * links.links)
    weights = links.cap / (1 + np.exp(-logits.value))
    return weights * links.links / weights.sum()


def solve_one_to_many(links: Links, constraints: list[Constraint | None]) -> np.ndarray:
    energy, gain = cvxpy_parts(links, constraints)
    children = links.v_rows * links.links / links.v_rows.sum()
    logits = energy + np.log(links.u_rows / links.u_rows.sum())[:, None]
    solve(sum(children[j] * cp.log_sum_exp(logits[:, j]) for j in range(len(children))) - gain)
    weights = np.exp(logits.value - logits.value.max(axis=0))
    return weights / weights.sum(axis=0) * children


CASES = [("all", (0, 1, 2)), ("the parents' alone", (0,)), ("both, no pairs", (0, 1)), ("pairs alone", (2,))]


@pytest.mark.parametrize("links", [20.0, 300.0, 650.0])
@pytest.mark.parametrize(("name", "used"), CASES)
@pytest.mark.parametrize("ridge", [0.05, 2.0, 200.0])
def test_many_to_many_equals_convex_solution(name: str, used, links: float, ridge: float) -> None:
    model, constraints, _ = make_problem(3, links, ridge=ridge)
    constraints = [one if i in used else None for i, one in enumerate(constraints)]
    found = many_to_many(model, *constraints).weights
    assert found == pytest.approx(solve_many_to_many(model, constraints), abs=1e-6 * links)
    assert found.sum() == pytest.approx(links)
    assert (found <= model.cap * (1 + 1e-6)).all()


@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("used", [(0, 2), (0,), (2,)])
@pytest.mark.parametrize("ridge", [0.05, 2.0, 200.0])
def test_one_to_many_equals_convex_solution(clip, used, ridge: float) -> None:
    model, constraints, _ = make_problem(4, 25.0, clip, ridge)
    constraints = [one if i in used else None for i, one in enumerate(constraints)]
    found = one_to_many(model, constraints[0], constraints[2]).weights
    assert found == pytest.approx(
        solve_one_to_many(model, [constraints[0], None, constraints[2]]), abs=1e-6 * model.links
    )
    assert found.sum(axis=0) == pytest.approx(model.v_rows)


@pytest.mark.parametrize("known", [False, True])
def test_fit_over_profiles_equals_fit_over_rows(known: bool) -> None:
    """Every row is its own profile: the links of a pair of rows are those of its block over the number of pairs."""
    model, constraints, (u, v) = make_problem(5, 25.0)
    rows = replace(model, u=model.u[u.of], v=model.v[v.of], u_rows=np.ones(u.rows), v_rows=np.ones(v.rows))
    if known:
        blocks, pairs = (
            one_to_many(model, constraints[0], constraints[2]).weights,
            one_to_many(rows, constraints[0], constraints[2]).weights,
        )
    else:
        blocks, pairs = many_to_many(model, *constraints).weights, many_to_many(rows, *constraints).weights
    assert pairs == pytest.approx((blocks / model.cap)[np.ix_(u.of, v.of)], abs=1e-6)


def test_links_without_constraints_are_uniform() -> None:
    model, _, _ = make_problem(6, 40.0)
    assert many_to_many(model, None, None, None).weights == pytest.approx(model.cap * 40 / model.cap.sum())
    assert one_to_many(model, None, None).weights == pytest.approx(model.cap * 40 / model.cap.sum())
