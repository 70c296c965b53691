"""Pure epsilon: root mean square error at epsilon 1 of the default mechanism beside `hdmm`, `auto` and `identity`.

The first workloads are named; the others are drawn: two to six attributes of 2 to 20 cells, of which a third have two,
with one or two families of marginals, prefix or range queries of degree 1 to 3. `auto` is the least error of all
mechanisms that it compares, `ratio` the error of the default over the least of the other mechanisms.

The last table is of one wide attribute: the default beside the best hierarchy with equal weights (HB), and OPT0 where
HDMM's Table 4 prints it.

    python benchmarks/pure_budgets.py [--workloads 40] [--seed 0] [--save]
"""

from __future__ import annotations

import argparse
import time

import base
import numpy as np
from printed import HDMM_1D_LAPLACE, HDMM_4, HDMM_SIZES

import dpscale as dp
from dpscale.mechanisms import auto
from dpscale.optimize.baselines import layered_tree
from dpscale.workload import Family, one_way_family

NAMED: dict[str, tuple[tuple[int, ...], tuple[tuple[str, int], ...]]] = {
    "[2,3,5,16,40,8], marginals 1 to 3": ((2, 3, 5, 16, 40, 8), (("marginal", 1), ("marginal", 2), ("marginal", 3))),
    "[10]^5, marginals 1 and 2": ((10,) * 5, (("marginal", 1), ("marginal", 2))),
    "[8]^6, 3-way marginals": ((8,) * 6, (("marginal", 3),)),
    "[20]^4, 2-way prefix": ((20,) * 4, (("prefix", 2),)),
    "[2]^10, 2-way marginals": ((2,) * 10, (("marginal", 2),)),
}
FAMILIES, SIZES = ("marginal", "marginal", "prefix", "range"), (2, 3, 4, 5, 8, 12, 20)
WIDE_SIZES = (4096, 8192, 100_000, 1_000_000)
OTHERS = tuple(tried.NAME for tried in auto.TRIED if tried.NAME != "weighted-residuals")


def drawn_workload(generator: np.random.Generator) -> tuple[str, dp.Workload]:
    """Return a random workload with a description."""
    number = int(generator.integers(2, 7))
    sizes = [2 if generator.random() < 1 / 3 else int(generator.choice(SIZES)) for _ in range(number)]
    workload, parts = dp.Workload(dp.Domain({f"a{i}": size for i, size in enumerate(sizes)})), dict[str, None]()
    for _ in range(int(generator.integers(1, 3))):
        family, degree = str(generator.choice(FAMILIES)), int(generator.integers(1, min(number, 3) + 1))
        if f"{degree}-way {family}" not in parts:
            parts[f"{degree}-way {family}"] = None
            workload.add(family, degree=degree)
    return f"{sizes}, {' + '.join(parts)}".replace(" ", "", number - 1), workload


def named_workload(sizes: tuple[int, ...], parts: tuple[tuple[str, int], ...]) -> dp.Workload:
    """Return a workload of families by degree."""
    workload = dp.Workload(dp.Domain({f"a{i}": size for i, size in enumerate(sizes)}))
    for family, degree in parts:
        workload.add(family, degree=degree)
    return workload


def run_plan(workload: dp.Workload, mechanism: str) -> tuple[float, float]:
    """Return the error of a plan, infinite if the mechanism does not take the workload, and the CPU seconds."""
    start = time.process_time()
    try:
        error = dp.plan(workload, mechanism, noise="laplace").rmse()
    except dp.PlanError:
        error = np.inf
    return error, time.process_time() - start


def compare(label: str, workload: dp.Workload) -> dict[str, float]:
    """Print and return the figures of one workload; `auto` is the least error of all mechanisms that it compares."""
    found = {name: run_plan(workload, name) for name in ("weighted-residuals", *OTHERS)}
    default, seconds = found["weighted-residuals"]
    best = min(found[name][0] for name in OTHERS)
    print(f"{label:58}{default:9.3f}{found['hdmm'][0]:9.3f}{min(default, best):9.3f}{found['identity'][0]:10.3f}"
          f"{default / best:9.5f}{seconds:7.1f}{found['hdmm'][1]:7.1f}", flush=True)  # fmt: skip
    return {"default": default, "hdmm": found["hdmm"][0], "auto": min(default, best),
            "identity": found["identity"][0], "ratio": default / best, "seconds": seconds}  # fmt: skip


def least_hierarchy(family: Family, size: int) -> float:
    """Return the RMSE of the hierarchy with the best branching factor up to 32."""
    trees = [layered_tree(size, branching, root=False) for branching in range(2, 33)]
    return min(rmse(family, size, tree.trace(family) * tree.l1_sensitivity**2) for tree in trees)


def rmse(family: Family, size: int, error: float) -> float:
    return float(np.sqrt(2 * error / family.count(size)))


def compare_wide(name: str, size: int) -> dict[str, float]:
    """Print and return the figures of one family on one wide attribute."""
    family, label = one_way_family(name), f"wide, {name} on {size:,} cells"
    default, seconds = run_plan(dp.Workload(dp.Domain({"a": size})).add(name, degree=1), "weighted-residuals")
    found = {"default": default, "hierarchy": least_hierarchy(family, size), "seconds": seconds}
    if size in HDMM_SIZES:
        found["OPT0"] = HDMM_4[name][HDMM_SIZES.index(size)][HDMM_1D_LAPLACE.index("OPT0")]
    print(
        f"{label:58}{default:9.3f}{found['hierarchy']:9.3f}{found.get('OPT0', np.nan):9.3f}{seconds:7.1f}", flush=True
    )
    return {f"{label}, {key}": value for key, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    dp.plan(named_workload((3, 3), (("prefix", 1),)), noise="laplace")  # loops are compiled before the clock starts
    print(f"{'workload':58}{'default':>9}{'hdmm':>9}{'auto':>9}{'identity':>10}{'ratio':>9}"
          f"{'s':>7}{'hdmm s':>7}")  # fmt: skip
    figures: dict[str, float] = {}
    for label, (sizes, parts) in NAMED.items():
        found = compare(label, named_workload(sizes, parts))
        figures |= {f"{label}, {name}": value for name, value in found.items()}
    generator = np.random.default_rng(given.seed)
    drawn = [compare(*drawn_workload(generator)) for _ in range(given.workloads)]
    if drawn:
        ratios = np.array([one["ratio"] for one in drawn])
        figures |= {"drawn, workloads": len(drawn), "drawn, largest ratio": float(ratios.max()),
                    "drawn, least ratio": float(ratios.min()),
                    "drawn, mean ratio": float(np.exp(np.log(ratios).mean())),
                    "drawn, at least 3 % below": int((ratios <= 0.97).sum()),
                    "drawn, seconds": float(np.mean([one["seconds"] for one in drawn]))}  # fmt: skip
        below = figures["drawn, at least 3 % below"]
        print(f"drawn: default over the best of all others {ratios.min():.5f} to {ratios.max():.7f}, geometric mean "
              f"{figures['drawn, mean ratio']:.4f}, at least 3 % below in {below}")  # fmt: skip
    print(f"{'one wide attribute':58}{'default':>9}{'HB':>9}{'OPT0':>9}{'s':>7}")
    for size in WIDE_SIZES:
        for name in ("range", "prefix"):
            figures |= compare_wide(name, size)
    if given.save:
        base.save("pure_budgets", figures)


if __name__ == "__main__":
    main()
