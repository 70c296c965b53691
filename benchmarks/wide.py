"""Wide attributes: planning of one 1-way family on 512 to 10⁶ cells, each in its own process.

`gap`: the certificate of the plan, against all strategies of its kind; `least`: its RMSE over a lower bound for all
matrix mechanisms; `s`: CPU seconds; `dense`: the memory in GiB of a strategy on all cells, which no plan needs. `hdmm`
plans prefix queries here. The last rows have pairs with an attribute of eight cells, which are asked too.

    python benchmarks/wide.py [--cells 512 1024 2048 10000 100000 1000000] [--save]
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import time

import base

FAMILIES = ("marginal", "prefix", "range", "circular")
CELLS = (512, 1024, 2048, 10_000, 100_000, 1_000_000)
MECHANISMS = ("query-smasher", "hdmm", "weighted-residuals")
PAIRED, MOST_PAIRED = ("prefix", "range", "circular"), 100_000


def run_plan(cells: int, family: str, mechanism: str, paired: bool) -> dict[str, float]:
    """Return the figures of one plan in this process."""
    import dpscale as dp
    from dpscale import mechanisms

    workload, plan = dp.Workload(dp.Domain({"a": cells, "b": 8})).add(family, attributes=[("a",)]), dp.plan
    workload = workload.add(family, attributes=[("a", "b")]) if paired else workload
    mechanisms.mechanism(mechanism)  # imported before the clock starts
    start = time.process_time()
    made = plan(workload, mechanism)
    seconds, least = time.process_time() - start, made.bound_all
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    ratio = made.rmse() / least if least else float("nan")
    return {"seconds": seconds, "rmse": made.rmse(), "gap": made.optimality_gap, "least": ratio, "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="*", default=CELLS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(run_plan(*json.loads(given.one))))
        return
    figures: dict[str, float] = {}
    print(f"{'family':9}{'cells':>9}  {'mechanism':20}{'s':>7}{'RMSE':>9}{'gap':>9}{'least':>8}{'GiB':>7}{'dense':>9}")
    for family in FAMILIES:
        for cells in given.cells:
            for mechanism in (one for one in MECHANISMS if one != "hdmm" or family == "prefix"):
                found = base.run_separately(__file__, [cells, family, mechanism, False])
                text = f"{found['gap']:9.1e}{found['least']:8.4f}{found['peak']:7.2f}{cells**2 / 2**27:9,.2f}"
                print(f"{family:9}{cells:9,}  {mechanism:20}{found['seconds']:7.2f}{found['rmse']:9.4f}{text}")
                if mechanism == MECHANISMS[-1]:
                    figures |= {f"{family} {cells}, {name}": found[name] for name in ("seconds", "gap")}
                    if family == "prefix":
                        figures |= {f"prefix {cells}, rmse": found["rmse"],
                                    f"prefix {cells}, over all": found["least"] ** 2 - 1}  # fmt: skip
                elif mechanism == "hdmm":
                    figures |= {f"hdmm {family} {cells}, {name}": found[name] for name in ("seconds", "gap")}
    print("pairs with an attribute of eight cells: gap of the squared error among plans of residual spaces")
    for family, cells in itertools.product(PAIRED, (one for one in given.cells if one <= MOST_PAIRED)):
        found = base.run_separately(__file__, [cells, family, MECHANISMS[-1], True])
        print(f"{family:9}{cells:9,}  {found['seconds']:7.2f}{found['gap']:9.1e}", flush=True)
        figures |= {f"{family} pairs {cells}, {name}": found[name] for name in ("seconds", "gap")}
    if given.save:
        base.save("wide", figures)


if __name__ == "__main__":
    main()
