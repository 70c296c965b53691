"""The oracle of the reconstruction tests: the whole joint distribution of a small domain, cell by cell."""

from itertools import product

import cvxpy as cp
import numpy as np

from dpscale.reconstruction.graphical_fit import Observed
from dpscale.workload.residual import every_cell

SIZES = {"a": 3, "b": 2, "c": 4, "d": 2, "e": 3}
NAMES, SHAPE = tuple(SIZES), tuple(SIZES.values())
SHAPES = {
    "a chain": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")],
    "a star": [("a", "b"), ("a", "c"), ("a", "d"), ("a", "e")],
    "a triangle": [("a", "b"), ("b", "c"), ("a", "c")],
    "a square": [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")],
    "a circle of five": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("a", "e")],
    "two circles": [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("d", "e"), ("c", "e")],
    "apart": [("a", "b"), ("c", "d")],
    "nested": [("a", "b", "c"), ("a", "b"), ("c", "d")],
    "repeated": [("a", "b"), ("a", "b"), ("b", "c")],
    "one shared": [("a", "b", "c"), ("c", "d", "e")],
    "two shared": [("a", "b", "c"), ("b", "c", "d"), ("d", "e")],
    "alone": [("a",), ("c",)],
    "all": [("a", "b", "c", "d", "e")],
}


def axes_outside(names):
    return tuple(axis for axis, name in enumerate(NAMES) if name not in names)


def observe_sets(sets, joint, noise, rng, spread=True):
    """Return noisy counts of every set and every single attribute, with different variances."""
    found = []
    for names in [*sets, *((name,) for name in NAMES)]:
        counts = joint.sum(axis=axes_outside(names))
        variance = max(noise, 1.0) ** 2 * (rng.uniform(0.5, 2) if spread else 1.0)
        values = counts + noise * rng.standard_normal(counts.shape)
        groups = tuple(every_cell(SIZES[name]) for name in names)
        found.append(Observed(names, groups, (None,) * len(names), values, variance))
    return found


def explicit_strategy(one):
    """Return the matrix of a measurement over the joint distribution, from cells, products or joint operators."""
    rows = []
    position = [NAMES.index(name) for name in one.attributes]
    for cell in product(*map(range, SHAPE)):
        inside = [grouping.labels[cell[at]] for at, grouping in zip(position, one.groups, strict=True)]
        table = np.zeros([grouping.count for grouping in one.groups])
        table[tuple(inside)] = 1
        if one.joint:
            table = one.operators[0] @ table.reshape(-1)
        else:
            for axis, operator in enumerate(one.operators):
                if operator is not None:
                    table = np.moveaxis(np.tensordot(operator, table, axes=(1, axis)), 0, axis)
        rows.append(table.reshape(-1))
    return np.array(rows).T


def scaled_system(measured):
    """Return the matrix and the values of all measurements, in standard deviations of the noise."""
    deviations = [np.sqrt(one.variance) for one in measured]
    matrix = np.concatenate([explicit_strategy(one) / d for one, d in zip(measured, deviations, strict=True)])
    return matrix, np.concatenate([one.values.reshape(-1) / d for one, d in zip(measured, deviations, strict=True)])


def solve_least_squares(measured, total):
    """Return the smallest least-squares loss of a table of `total` records, and its measured values."""
    matrix, numbers = scaled_system(measured)
    counts = cp.Variable(matrix.shape[1], nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(matrix @ counts - numbers) / 2), [cp.sum(counts) == total])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
    return problem.value, matrix @ counts.value


def maximise_entropy(measured, numbers, total):
    """Return the table of largest entropy with given measured values (in standard deviations), by Newton on the dual.

    The table must have no empty cell.
    """
    matrix, _ = scaled_system(measured)
    basis = np.linalg.svd(matrix, full_matrices=False)
    rank = int((basis[1] > 1e-9 * basis[1][0]).sum())
    reduced = basis[2][:rank]
    wanted = reduced @ np.linalg.lstsq(matrix, numbers, rcond=None)[0] / total
    dual = np.zeros(rank)

    def distribution(at):
        logs = reduced.T @ at
        logs = logs - logs.max()
        return np.exp(logs) / np.exp(logs).sum()

    def potential(at):
        logs = reduced.T @ at
        return np.log(np.exp(logs - logs.max()).sum()) + logs.max() - at @ wanted

    for _ in range(200):
        p = distribution(dual)
        slope = reduced @ p - wanted
        if np.abs(slope).max() < 1e-13:
            break
        curved = (reduced * p) @ reduced.T - np.outer(reduced @ p, reduced @ p) + 1e-14 * np.eye(rank)
        step, length = np.linalg.lstsq(curved, -slope, rcond=None)[0], 1.0
        while potential(dual + length * step) > potential(dual) + 1e-4 * length * slope @ step and length > 1e-8:
            length /= 2
        dual = dual + length * step
    return total * distribution(dual).reshape(SHAPE)
