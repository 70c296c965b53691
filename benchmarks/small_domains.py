"""Small domains: RMSE of weighted-residuals and query-smasher over the optimum of all matrix mechanisms, and over hdmm.

Also the designs of eigen-design for one attribute.

The optimum is solved explicitly; hdmm is compared under both kinds of noise. docs/mechanisms.md quotes the output.

    python benchmarks/small_domains.py
"""

import os

import dpscale as dp
from dpscale.optimize.eigen_design import choose_design
from dpscale.optimize.lower_bounds import exact_floor
from dpscale.workload import PREFIX, RANGE


def make_workload(sizes: tuple[int, ...], *parts: tuple[str, int]) -> dp.Workload:
    made = dp.Workload(dp.Domain({f"x{i}": size for i, size in enumerate(sizes)}))
    for family, degree in parts:
        made.add(family, degree=degree)
    return made


ROWS = {
    "[4]^3 2-way prefix": make_workload((4,) * 3, ("prefix", 2)),
    "[4]^4 3-way prefix": make_workload((4,) * 4, ("prefix", 3)),
    "[3]^5 3-way prefix": make_workload((3,) * 5, ("prefix", 3)),
    "[6]^3 2-way prefix": make_workload((6,) * 3, ("prefix", 2)),
    "[6]^3 3-way prefix": make_workload((6,) * 3, ("prefix", 3)),
    "[4]^4 2-way range": make_workload((4,) * 4, ("range", 2)),
    "[5]^3 1-way prefix": make_workload((5,) * 3, ("prefix", 1)),
    "affine 4 x 4": make_workload((4, 4), ("affine", 2)),
    "abs 4 x 4": make_workload((4, 4), ("abs", 2)),
    "random 4 x 4": make_workload((4, 4), ("random", 2)),
    "marginal of 20": make_workload((20,), ("marginal", 1)),
    "all cells of [4]^3": make_workload((4,) * 3, ("marginal", 3)),
    "range of 64": make_workload((64,), ("range", 1)),
}


def main() -> None:
    os.environ["DPSCALE_STORE"] = "off"
    heads = ("weighted/optimum", "smasher/optimum", "weighted/hdmm", "smasher/hdmm", "Laplace: w/hdmm", "s/hdmm")
    print(f"{'RMSE':<20} " + " ".join(f"{head:>16}" for head in heads))
    for name, workload in ROWS.items():
        least = (exact_floor(workload) / workload.query_count) ** 0.5
        found = [errors(workload, noise) for noise in ("gaussian", "laplace")]
        cells = [found[0][0] / least, found[0][1] / least, *(own / hdmm for *both, hdmm in found for own in both)]
        print(f"{name:<20} " + " ".join(f"{cell:16.5f}" for cell in cells), flush=True)
    print("\nsquared error of the designs of eigen-design over that of the full one")
    for family, size in ((PREFIX, 24), (PREFIX, 512), (RANGE, 24), (RANGE, 100)):
        choice = choose_design(family.gram(size))
        listed = "; ".join(f"{name} {ratio:.3f}" for name, ratio in choice.errors.items())
        print(f"{family.name} of {size}: {choice.name} is chosen: {listed}")


def errors(workload: dp.Workload, noise: str) -> list[float]:
    """Return the RMSE of weighted-residuals, query-smasher and hdmm."""
    mechanisms = ("weighted-residuals", "query-smasher", "hdmm")
    return [dp.plan(workload, mechanism, noise=noise).rmse() for mechanism in mechanisms]


if __name__ == "__main__":
    main()
