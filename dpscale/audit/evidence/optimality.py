"""Optimality of the strategies of a bundle, for auditors: the convex programs of its small residual spaces.

`optimality.json` has the rows F of the Gram matrix FᵀF of each program and the names of its factors in strategies.json.
A check computes the squared error of the strategy, tr(G (KᵀK)⁺) · max |K eᵢ|², and the least one, by cvxpy with
Clarabel (`dpscale.optimize.certificate`). It is no part of the privacy claim, and nothing else in a bundle depends on
it.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import Integers
from dpscale.optimize.certificate import (
    MOST_DIMENSIONS,
    SpaceProgram,
    is_certifiable,
    solver,
    spaces_of,
)
from dpscale.plans.factor import Factor
from dpscale.plans.plan import Plan

FILE = "optimality.json"
MOST_WORK = 8 * MOST_DIMENSIONS**4  # sum of d⁴ over programs of d dimensions: about half a minute
Fields = dict[str, Any]


def stated_programs(plans: Mapping[str, Plan], names: Mapping[str, str]) -> Fields:
    """Return the content of optimality.json: the smallest programs of some plans.

    A program is the convex problem whose optimum is the least noise of one residual space; solving it again costs
    about the fourth power of its rows, and together the stated ones cost at most MOST_WORK.

    Parameters
    ----------
    plans : mapping of str to Plan
        Plan of each part; those without a convex program, or with draws of earlier releases, are left out.
    names : mapping of str to str
        Name of each strategy by its digest.

    Returns
    -------
    dict
        `programs`, and how many are `left_out` for their work or `too_large` for a program.
    """
    programs, large = dict[tuple[str, ...], tuple[str, SpaceProgram]](), 0  # parts and programs; spaces without one
    for part, plan in plans.items():
        digests = {factor.digest for factors in plan.blocks.strategies for factor in factors}
        if not is_certifiable(plan) or not digests <= set(names):
            continue
        # (set, number of residual spaces, trace, programs), without programs if one would be too large
        for _, spaces, _, found in spaces_of(plan):
            large += spaces * (found is None)
            for program in found or ():
                # equal residual matrices with equal factors are one program, in whichever part they occur
                programs.setdefault((program.key, *(factor.digest for factor in program.factors)), (part, program))

    work, stated = 0, []
    for part, program in sorted(programs.values(), key=lambda of_part: len(of_part[1].rows)):
        if (work := work + len(program.rows) ** 4) <= MOST_WORK:
            stated.append({"part": part, "rows": program.rows.tolist(),
                           "factors": [names[factor.digest] for factor in program.factors]})  # fmt: skip
    return {"programs": stated, "left_out": len(programs) - len(stated), "too_large": large}


def check_optimality(folder: Path) -> Fields:
    """Solve the programs of a bundle that was checked.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    dict
        `solved`, `left_out` and `too_large` count programs and spaces, `ratio` is the largest planned squared error
        over the least one, and `why` states why none was solved.

    Raises
    ------
    JobError
        If optimality.json is malformed or has larger programs than a writer states.
    """
    try:
        return _solved(folder)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, np.linalg.LinAlgError, zlib.error) as error:
        raise JobError("evidence", f"{FILE} in {folder} is malformed ({type(error).__name__})", "an unmodified bundle",
                       "ask the curator for the original") from None  # fmt: skip


def _solved(folder: Path) -> Fields:
    """Solve the programs of a bundle and return their number and the largest ratio of planned to optimal variance.

    Without any, the fields are 0 programs and `why`. More work than a writer states is refused, because anyone can
    write a bundle.
    """
    if not (folder / FILE).exists():
        return {"solved": 0, "why": f"the bundle has no {FILE}"}
    content = json.loads((folder / FILE).read_text("utf-8"))
    counts = {name: content[name] for name in ("left_out", "too_large")}
    if not content["programs"]:
        return {"solved": 0, "why": "no small residual space under Gaussian noise", **counts}
    try:
        solve = solver()
    except PlanError as error:
        return {"solved": 0, "why": str(error).splitlines()[0], **counts}

    if sum(len(stated["rows"]) ** 4 for stated in content["programs"]) > MOST_WORK:
        raise ValueError("more work than a writer states")
    strategies = json.loads((folder / "strategies.json").read_text("utf-8"))["factors"]
    ratios = []
    for stated in content["programs"]:
        factors = tuple(_factor(strategies[name]) for name in stated["factors"])
        program = SpaceProgram("", np.array(stated["rows"], np.float64), factors)
        if not program.fits:
            raise ValueError("a larger program than a writer states")
        ratios.append(program.planned / solve(program.rows))
    return {"solved": len(ratios), "ratio": max(ratios), **counts}


def _factor(fields: Fields) -> Factor:
    """Return the factor of its fields in strategies.json."""
    shape = tuple(fields["shape"])
    return Factor(fields["kind"], shape, _matrix(fields, math.prod(shape)))


def _matrix(fields: Fields, cells: int) -> Integers | None:
    """Return the rows of a strategy in a bundle (shape rows × cells), packed or listed; None if its kind says them."""
    if "packed" in fields:
        values = np.frombuffer(zlib.decompress(base64.b64decode(fields["packed"])), "<i8")
        return values.reshape(-1, cells).astype(np.int64)
    return np.array(fields["matrix"], np.int64).reshape(-1, cells) if "matrix" in fields else None
