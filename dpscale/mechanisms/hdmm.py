"""HDMM (McKenna, Miklau, Hay, Machanavajjhala, 2018 and 2023): several ways to choose a strategy, and the best kept.

`explicit` is OPT0 on all cells of the attributes asked, where they are few; `product` is OPT⊗; `union` is OPT+;
`marginals` is OPT_M, cell by cell, and with one strategy an attribute. Which marginals are counted is told by the plan
before any data is read; a way that would need more cells than may be held is passed over. Least squares is a product's
or an explicit strategy's own; estimates from several blocks are averaged residual by residual (`coupled`), which makes
them consistent, and the plan's error is that of these estimates.
Options: `way` (one of the four), `seed` for the restarts of the searches that are not convex.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from dpscale.errors import JobError, PlanError
from dpscale.mechanisms.setting import Setting
from dpscale.mechanisms.whole import check_cells, joint_block, product_block, whole_plan
from dpscale.plans.allocation import LAPLACE
from dpscale.plans.block import Block
from dpscale.plans.plan import Plan
from dpscale.solve.baselines import identity
from dpscale.solve.implicit import Implicit, explicit_gram, implicit
from dpscale.solve.opt_explicit import Noise, optimise_explicit
from dpscale.solve.opt_marginals import MarginalStrategy, attribute_strategies, optimise_marginals
from dpscale.solve.opt_product import optimise_product
from dpscale.solve.opt_union import optimise_union
from dpscale.solve.svd_bound import svd_bound, svd_of_gram
from dpscale.workload import Workload

NAME = "hdmm"
WAYS = ("explicit", "product", "union", "marginals")
EXPLICIT_CELLS, MOST_EXPLICIT = 1024, 8192  # of several attributes: what is tried unasked, and what can be asked
MOST_PRODUCTS = 400
Tried = Iterator[tuple[str, list[Block], float]]


def plan_hdmm(workload: Workload, setting: Setting) -> Plan:
    """The plan of least error of all ways that take the workload."""
    given = setting.taking(NAME, "way", "seed")
    way, seed = given.get("way"), given.get("seed", 0)
    if way is not None and way not in WAYS:
        raise JobError("mechanism.way", f"{way!r}", ", ".join(WAYS), "mend it, or leave it out")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise JobError("mechanism.seed", f"{seed!r}", "a whole number", "mend it, or leave it out")
    plans: dict[str, Plan] = {}
    refused: list[PlanError] = []
    for name in [way] if way else WAYS:
        try:
            for label, blocks, bound in _TRIES[name](workload, setting, seed):
                check_cells(blocks, setting, label)
                plans[label] = whole_plan(workload, NAME, blocks, bound)
        except PlanError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    return _best(workload, plans)


def _best(workload: Workload, plans: dict[str, Plan]) -> Plan:
    chosen = min(plans, key=lambda label: plans[label].error)
    plan, bound = plans[chosen], max(made.bound for made in plans.values())
    tried = "; ".join(f"{label} {made.rmse():.6g}" for label, made in plans.items())
    notes: tuple[str, ...] = (f"{chosen} is the best of (root mean square error at privacy cost 1): {tried}",)
    if bound > 0:
        notes += (
            f"root mean square error over the least that any strategy can have: {(plan.error / bound) ** 0.5:.6g}",
        )
    return Plan(workload, NAME, plan.blocks, plan.error, min(bound, plan.error), notes)


def _noise(setting: Setting) -> Noise:
    return "laplace" if setting.noise == LAPLACE else "gaussian"


def _explicit(workload: Workload, setting: Setting, seed: int) -> Tried:
    names, gram = explicit_gram(workload, MOST_EXPLICIT if setting.options.get("way") == "explicit" else EXPLICIT_CELLS)
    found = next(iter(setting.each(partial(optimise_explicit, noise=_noise(setting), seed=seed), [gram])))
    if len(names) > 1:
        block = joint_block(names, workload.domain.shape(names), found.matrix, setting.noise)
    else:
        block = product_block(names, [found.matrix] * len(names), 1.0, setting.noise)
    yield "explicit", [block], max(found.bound, svd_of_gram(gram))


def _product(workload: Workload, setting: Setting, seed: int) -> Tried:
    union = implicit(workload)
    if union.cells > setting.most_cells:
        raise PlanError("engine.memory", f"{union.cells} cells for a product over all attributes asked",
                        f"at most {setting.most_cells}", "ask fewer attributes, or take query-smasher")  # fmt: skip
    found = optimise_product(union, _noise(setting), setting.each, seed=seed)
    yield "product", [product_block(found.names, found.factors, 1.0, setting.noise)], found.bound


def _unions(workload: Workload, setting: Setting, seed: int) -> Tried:
    union = implicit(workload)
    if len(union.products) > MOST_PRODUCTS:
        raise PlanError("workload", f"{len(union.products)} products", f"at most {MOST_PRODUCTS} for a union of them",
                        "ask fewer sets, or take query-smasher")  # fmt: skip
    found = optimise_union(union, _noise(setting), setting.each, seed=seed)
    parts = zip(found.groups, found.shares, strict=True)
    yield "union", [product_block(one.names, one.factors, share, setting.noise) for one, share in parts], found.bound


def _marginals(workload: Workload, setting: Setting, seed: int) -> Tried:
    union, noise = implicit(workload), _noise(setting)
    yield "marginals", _blocks(union, optimise_marginals(union, noise, seed), setting), svd_bound(union).value
    if any(axis.key.split("/")[0] not in ("marginal", "total") for one in union.products for axis in one.axes):
        factors = attribute_strategies(union, noise, each=setting.each)
        found = optimise_marginals(union, noise, seed, factors)
        yield "marginals of attribute strategies", _blocks(union, found, setting), svd_bound(union).value


def _blocks(union: Implicit, found: MarginalStrategy, setting: Setting) -> list[Block]:
    blocks, sizes = [], dict(zip(union.names, union.sizes, strict=True))
    for names, weight in found.weights.items():
        matrices = [found.factors[name] if found.factors else identity(sizes[name]) for name in names]
        share = weight if setting.noise == LAPLACE else weight**2
        blocks.append(product_block(names, matrices, share, setting.noise))
    return blocks


_TRIES: dict[str, Callable[[Workload, Setting, int], Tried]] = {
    "explicit": _explicit,
    "product": _product,
    "union": _unions,
    "marginals": _marginals,
}
