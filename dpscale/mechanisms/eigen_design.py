"""The mechanism `eigen-design` (Li and Miklau, 2012): `eigen_design` on all cells asked, or attribute by attribute.

Where the attributes asked have few cells together, any family is one Gram and one strategy. Where they have more, a set
of products is measured by one design an attribute (the eigenvectors of a Kronecker product are products), for the sum
of what is asked of that attribute, and the marginals that `OPT_M` would weigh.
Options: `design` (eigen, wavelet, fourier, hierarchical, identity), `separate` (eigenvectors in a group, section 4.2),
`principal` (how many eigenvectors have a weight of their own), `relative` (queries scaled to length 1, section 3.4).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import JobError, PlanError
from dpscale.mechanisms.setting import Setting
from dpscale.mechanisms.whole import check_cells, joint_block, product_block, whole_plan
from dpscale.plans.allocation import GAUSSIAN
from dpscale.plans.plan import Plan
from dpscale.solve import baselines
from dpscale.solve.design_weights import eigen_design, principal_design, separated_design
from dpscale.solve.implicit import explicit_gram, implicit
from dpscale.solve.opt_explicit import Strategy
from dpscale.solve.opt_marginals import optimise_marginals
from dpscale.solve.svd_bound import svd_bound, svd_of_gram
from dpscale.workload import Workload

Array = NDArray[np.float64]
NAME = "eigen-design"
EXPLICIT_CELLS = 2048
OF_TOTAL = 1e-3
DESIGNS = {
    "eigen": None,
    "wavelet": baselines.wavelet,
    "fourier": baselines.fourier,
    "hierarchical": baselines.hierarchical,
    "identity": baselines.identity,
}


def plan_eigen_design(workload: Workload, setting: Setting) -> Plan:
    """Weighted design queries with completed columns."""
    if setting.noise != GAUSSIAN:
        raise PlanError("mechanism.name", f"{NAME} under Laplace noise", "Gaussian noise", "give delta, or take hdmm")
    given = dict(setting.taking(NAME, "design", "separate", "principal", "relative"))
    relative = _checked(given)
    solve = partial(_solve, given)
    names = {name for part in workload.parts for names in part.sets for name in names}
    if workload.domain.cells(workload.domain.ordered(names)) <= EXPLICIT_CELLS:
        return _explicit(workload, setting, solve, relative)
    return _by_attribute(workload, setting, solve, relative)


def _checked(given: dict[str, Any]) -> bool:
    """Whether errors are relative; JobError for options that cannot be."""
    if given.get("design", "eigen") not in DESIGNS:
        raise JobError("mechanism.design", f"{given['design']!r}", ", ".join(DESIGNS), "mend it, or leave it out")
    for name in ("separate", "principal"):
        value = given.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise JobError(f"mechanism.{name}", f"{value!r}", "a whole number above 0", "mend it, or leave it out")
    if len(given.keys() & {"design", "separate", "principal"}) > 1 and given.get("design", "eigen") != "eigen":
        raise JobError("mechanism.design", "given together with separate or principal", "one of them", "keep one")
    relative = given.get("relative", False)
    if not isinstance(relative, bool):
        raise JobError("mechanism.relative", f"{relative!r}", "true or false", "mend it, or leave it out")
    return relative


def _solve(given: dict[str, Any], gram: Array) -> Strategy:
    make = DESIGNS[given.get("design", "eigen")]
    if make is not None:
        return eigen_design(gram, make(len(gram)))
    if "separate" in given:
        return separated_design(gram, given["separate"])
    return principal_design(gram, given["principal"]) if "principal" in given else eigen_design(gram)


def _explicit(workload: Workload, setting: Setting, solve: partial[Strategy], relative: bool) -> Plan:
    names, gram = explicit_gram(workload, EXPLICIT_CELLS, relative)
    (found,) = setting.each(solve, [gram])
    if len(names) > 1:
        block = joint_block(names, workload.domain.shape(names), found.matrix, setting.noise)
    else:
        block = product_block(names, [found.matrix] * len(names), 1.0, setting.noise)
    return _told(workload, [block], 0.0 if relative else svd_of_gram(gram))


def _by_attribute(workload: Workload, setting: Setting, solve: partial[Strategy], relative: bool) -> Plan:
    union = implicit(workload, relative)
    axes = [union.distinct(i) for i in range(len(union.sizes))]
    factors = [found.matrix for found in setting.each(solve, [_mixed(grams) for grams in axes])]
    own = dict(zip(union.names, factors, strict=True))
    weights = optimise_marginals(union, "gaussian", factors=factors).weights
    blocks = [product_block(names, [own[name] for name in names], w**2, setting.noise) for names, w in weights.items()]
    check_cells(blocks, setting, NAME)
    return _told(workload, blocks, 0.0 if relative else svd_bound(union).value)


def _mixed(grams: dict[str, Array]) -> Array:
    """What is asked of one attribute, each Gram at trace 1, and a little of Total, so that all of it is told."""
    size = len(next(iter(grams.values())))
    own = [gram / np.trace(gram) for gram in grams.values() if np.ptp(gram) > 0]
    return np.asarray(np.sum(own, axis=0) + OF_TOTAL * (np.full((size, size), 1 / size) + np.eye(size) / size))


def _told(workload: Workload, blocks: list[Any], bound: float) -> Plan:
    made = whole_plan(workload, NAME, blocks, bound)
    if made.bound == 0:
        return made
    ratio = (made.error / made.bound) ** 0.5
    note = f"root mean square error over the least that any strategy can have: {ratio:.6g}"
    return Plan(workload, NAME, made.blocks, made.error, made.bound, (note,))
