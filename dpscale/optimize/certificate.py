"""Certificate of a plan by a convex program that shares no code with the planner: cvxpy with Clarabel.

A residual space with Gram matrix G = FᵀF has the least squared error at the whole privacy budget

    L = min tr(G X⁺)  over X ⪰ 0, diag(X) ≤ 1, range(X) ⊇ range(G)            (QuerySmasher, section 6).

With an orthonormal basis V of range(G) this is min tr(F V Y⁻¹ Vᵀ Fᵀ) over Y ⪰ 0 with Vᵢ Y Vᵢᵀ ≤ 1 for every cell i,
which Clarabel solves by an interior-point method. The value of the plan is tr(G (KᵀK)⁺) · max |K eᵢ|² of its integer
strategy K, from explicit matrices. If G is one Kronecker product, both values are products over its axes. With the
best shares, the error of the plan is (Σ √value)² over all spaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.optimize.fourier import MOST_ENTRIES
from dpscale.optimize.residual_problems import joint_spaces
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import LAPLACE
from dpscale.workload import Subworkload, Workload, decompose
from dpscale.workload.residual import Weights, kron, subsets
from dpscale.workload.wide import WideGram

MOST_DIMENSIONS, MOST_CELLS = 32, 1024  # of one program: about 4 s on one core; of the cells that bound it
SMALL = 1e-9  # singular values of F, relative to the largest, that count as zero
LIMIT = f"at most {MOST_DIMENSIONS} dimensions and {MOST_CELLS:,} cells in one program"


@dataclass(frozen=True, eq=False)
class SpaceProgram:
    """Rows F of a Gram matrix FᵀF of trace 1, its key, and the factors of the plan's strategy K on the same cells."""

    key: str
    rows: Floats
    factors: tuple[Factor, ...]

    @property
    def planned(self) -> float:
        """Squared error of the strategy at the whole privacy budget."""
        return strategy_error(self.rows, kron([factor.explicit().astype(np.float64) for factor in self.factors]))

    @property
    def fits(self) -> bool:
        return self.rows.shape[1] <= MOST_CELLS and int(np.linalg.matrix_rank(self.rows, rtol=SMALL)) <= MOST_DIMENSIONS


@dataclass(frozen=True)
class CertifiedSpace:
    """Residual space whose strategy is compared with the convex program, or that is too large for it.

    Attributes
    ----------
    attributes : AttributeSet
        Set of the space, or of several spaces that one strategy measures, which count as one.
    spaces : int
        Number of spaces with the same Gram matrix and strategy.
    planned : float or None
        Squared error of the plan on one space, summed over its queries, at the whole privacy budget.
    optimum : float or None
        Value of the convex program; None if the space is too large.
    """

    attributes: AttributeSet
    spaces: int
    planned: float | None = None
    optimum: float | None = None

    @property
    def ratio(self) -> float | None:
        """Planned value over that of the program."""
        return None if self.planned is None or self.optimum is None else self.planned / self.optimum

    def to_dict(self) -> dict[str, Any]:
        return {"attributes": list(self.attributes), "spaces": self.spaces, "planned": self.planned,
                "optimum": self.optimum, "ratio": self.ratio}  # fmt: skip


def summarize(certified: Sequence[CertifiedSpace]) -> dict[str, Any]:
    """Return the certificate of a plan, ready for JSON.

    Parameters
    ----------
    certified : sequence of CertifiedSpace

    Returns
    -------
    dict
        `ratio` is the squared error over that of the programs, of the spaces that were solved; `too_large` counts the
        other spaces.
    """
    solved = [(space.spaces, space.planned, space.optimum) for space in certified if space.planned and space.optimum]
    # the variances of the spaces add at the best division of the budget as the square of the sum of their roots
    planned = math.fsum(count * math.sqrt(error) for count, error, _ in solved)
    optimum = math.fsum(count * math.sqrt(error) for count, _, error in solved)
    return {
        "ratio": (planned / optimum) ** 2 if solved else None,
        "solved": sum(spaces for spaces, _, _ in solved),
        "too_large": sum(space.spaces for space in certified if space.optimum is None),
        "limit": LIMIT,
        "spaces": [space.to_dict() for space in certified],
    }


def certify(plan: Plan) -> list[CertifiedSpace]:
    """Solve the residual spaces of a plan again by cvxpy with Clarabel.

    `known` keeps the optimum of each distinct program by its key.

    Parameters
    ----------
    plan : Plan
        Plan of residual spaces for Gaussian noise.

    Returns
    -------
    list of CertifiedSpace
        One for each distinct Gram matrix and strategy; those beyond MOST_DIMENSIONS or MOST_CELLS have no values.

    Raises
    ------
    PlanError
        If cvxpy is missing, the noise is Laplace, or the plan does not measure residual spaces.
    """
    check_certifiable(plan)
    solve, known, certified = solver(), dict[str, float](), list[CertifiedSpace]()
    for attributes, spaces, trace, programs in spaces_of(plan):
        if programs is None:
            certified.append(CertifiedSpace(attributes, spaces))
            continue

        for program in programs:
            if program.key not in known:
                known[program.key] = solve(program.rows)
        # A space with Gram matrix G has the programs of G / tr(G), one for each axis or one in all; optima of products
        # multiply, and the trace of G (`trace`) scales them back.
        planned = trace * math.prod(program.planned for program in programs)
        optimum = trace * math.prod(known[program.key] for program in programs)
        certified.append(CertifiedSpace(attributes=attributes, spaces=spaces, planned=planned, optimum=optimum))

    return certified


def solver() -> Callable[[Floats], float]:
    """Return the function that solves the convex program of some rows F, shape (r, cells); PlanError without cvxpy."""
    try:
        import cvxpy
    except ImportError:
        raise PlanError("certify", "cvxpy is not installed", "cvxpy 1.5 or later",
                        "pip install 'dpscale[certify]'") from None  # fmt: skip

    def solve(rows: Floats) -> float:
        """Return min tr(F Y⁻¹ Fᵀ) over Y ⪰ 0 with diagonal entries of at most 1, on the span of the rows F.

        With F = U S Vᵀ, tr(F V Y⁻¹ Vᵀ Fᵀ) is tr(S Y⁻¹ S); S is scaled to trace 1 of S², and the result scaled back. U S
        Vᵀ is the singular value decomposition of F without directions below SMALL times the largest singular value.
        """
        _, singular, directions = np.linalg.svd(rows, full_matrices=False)
        kept = singular > SMALL * singular[0]
        # V, and the trace of S² by which the program is scaled
        basis, scale = directions[kept], float((singular**2).sum())
        y = cvxpy.Variable((len(basis), len(basis)), PSD=True)
        error = cvxpy.matrix_frac(np.diag(singular[kept] / math.sqrt(scale)), y)
        # Vᵢ Y Vᵢᵀ ≤ 1 for every cell i
        limits = [cvxpy.sum(cvxpy.multiply(basis, y @ basis), axis=0) <= 1]
        problem = cvxpy.Problem(cvxpy.Minimize(error), limits)
        problem.solve(solver=cvxpy.CLARABEL)
        if problem.status not in (cvxpy.OPTIMAL, cvxpy.OPTIMAL_INACCURATE):
            raise PlanError("certify", f"a program that Clarabel ended as {problem.status}", "an optimum",
                            "report the workload")  # fmt: skip
        return float(np.sum(problem.value)) * scale

    return solve


def strategy_error(rows: Floats, strategy: Floats) -> float:
    """Return tr(G (KᵀK)⁺) · max |K eᵢ|² of rows F with FᵀF = G and a strategy K that spans them."""
    return float((np.linalg.lstsq(strategy.T, rows.T, rcond=None)[0] ** 2).sum() * (strategy**2).sum(axis=0).max())


def is_certifiable(plan: Plan) -> bool:
    """Return whether a plan measures residual spaces under Gaussian noise."""
    return plan.noise != LAPLACE and not plan.blocks.whole.any() and not plan.blocks.has_trees


def check_certifiable(plan: Plan) -> None:
    """Raise PlanError for a plan without Gaussian residual spaces."""
    if plan.noise == LAPLACE:
        raise PlanError("certify", "pure epsilon, whose least error is no convex program",
                        "epsilon with delta, rho, renyi or privacy_cost", "add delta, or leave it out")  # fmt: skip
    if not is_certifiable(plan):
        got = "levels of a hierarchy together" if plan.blocks.has_trees else "whole marginals, whose error is "
        got += "" if plan.blocks.has_trees else "no sum over residual spaces"
        raise PlanError("certify", f"a plan by {plan.mechanism}, which measures {got}",
                        "a plan of residual spaces", "use weighted-residuals or query-smasher")  # fmt: skip


def spaces_of(plan: Plan) -> Iterator[tuple[AttributeSet, int, float, list[SpaceProgram] | None]]:
    """Yield a set, its number of spaces, the trace of G, and the programs of its factors; None if one is too large.

    Blocks that measure several spaces together are one program each, and their spaces (`together`) are not listed
    again. The other spaces are grouped in classes of equal Gram matrices, `which` has the class of each space, and the
    first space of a class (`firsts`) represents it.
    """
    merged, weights = plan.blocks.merged, dict(plan.blocks.weights())
    workload = plan.workload if merged is None else merged.workload(plan.workload)
    together = set[AttributeSet]()
    for block in [] if plan.blocks.measures_one_residual else plan.blocks:
        if len(block.residual_sets) > 1:
            together.update(block.residual_sets)
            yield block.attributes, 1, *_together(workload, block, weights)

    subs = decompose(workload, weights, MOST_ENTRIES)
    counts = np.bincount(subs.which, minlength=len(subs.classes)).tolist()
    for first in subs.firsts:
        sub = subs[first]
        if sub.attributes not in together:
            (place,) = plan.blocks.sets.find(sub.attributes)
            yield sub.attributes, counts[subs.which[first]], sub.scale, _programs(sub, plan.blocks[place].factors)


def _together(
    workload: Workload, block: Block, weights: Mapping[str, Weights]
) -> tuple[float, list[SpaceProgram] | None]:
    """Return the trace and the program of several spaces that one strategy measures.

    The program has rows of squared norm 1 in sum, hence the division by √trace; `others` are the residuals that the
    strategy does not measure. Of more than MOST_CELLS cells there is none.
    """
    if workload.domain.cells(block.attributes) > MOST_CELLS:
        return 0.0, None
    others = set(subsets(block.attributes)).difference(block.residual_sets)
    spaces = joint_spaces(workload, block.attributes, others, weights)
    trace = float((spaces.rows**2).sum())
    return trace, _fitting([SpaceProgram(spaces.key, spaces.rows / math.sqrt(trace), block.factors)])


def _programs(sub: Subworkload, factors: Sequence[Factor]) -> list[SpaceProgram] | None:
    """Return a program for each axis if the Gram matrix is one product, or one on all cells; None if too large.

    The order: axes cut into blocks have no explicit Gram matrix; a product has a program for each axis, because optima
    of products multiply; any other sum has one on all cells.
    """
    factor_keys = next(iter(sub.terms)) if len(sub.terms) == 1 else ()  # of the only term; of a sum no product
    axes = [sub.factors[key] for key in factor_keys]
    if any(isinstance(factor, WideGram) for factor in sub.factors.values()):
        return None
    if len(axes) == len(factors) == len(sub.sizes):  # Gram matrix and strategy both have a factor for each axis
        if max(sub.sizes, default=1) > MOST_CELLS:
            return None
        pairs = zip(axes, factors, strict=True)
        return _fitting([SpaceProgram(axis.key, axis.rows, (factor,)) for axis, factor in pairs])
    if sub.cells > MOST_CELLS:
        return None
    return _fitting([SpaceProgram(sub.signature(), sub.rows() / math.sqrt(sub.scale), tuple(factors))])


def _fitting(programs: list[SpaceProgram]) -> list[SpaceProgram] | None:
    return programs if all(program.fits for program in programs) else None
