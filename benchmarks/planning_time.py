"""Predicted and measured time of planning.

The seconds that mechanisms predict (`Mechanism.seconds`) beside the CPU seconds of planning in the same process, with
no stored solutions: ranges on one and two attributes, and marginals and prefixes of several.

    python benchmarks/planning_time.py
"""

from __future__ import annotations

import os
import time

os.environ["DPSCALE_STORE"] = "off"

from dpscale.domain import Domain
from dpscale.mechanisms import mechanism, plan
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.workload import Workload

CASES = [  # mechanism, attributes, degree, cells of each, family
    ("eigen-design", 1, 1, 512, "range"),
    ("eigen-design", 1, 1, 1024, "range"),
    ("eigen-design", 2, 2, 32, "range"),
    ("eigen-design", 10, 3, 4, "marginal"),
    ("eigen-design", 12, 3, 4, "marginal"),
    ("hdmm", 2, 2, 32, "range"),
    ("hdmm", 3, 2, 1024, "range"),
    ("hdmm", 6, 2, 256, "range"),
    ("hdmm", 14, 3, 4, "marginal"),
    ("hdmm", 8, 4, 8, "prefix"),
    ("weighted-residuals", 60, 3, 6, "marginal"),
]


def main() -> None:
    plan(Workload(Domain({"a": 8})).add("range", degree=1), "hdmm")  # imports and compiled loops
    print("mechanism           attributes degree cells family     measured  predicted  ratio")
    for name, attributes, degree, cells, family in CASES:
        workload = Workload(Domain({f"a{place}": cells for place in range(attributes)})).add(family, degree=degree)
        named, began = mechanism(name), time.process_time()
        predicted = named.seconds(PlanningProblem(workload), named.Options())
        plan(workload, name)
        measured = time.process_time() - began
        print(f"{name:<19} {attributes:>10} {degree:>6} {cells:>5} {family:<9} {measured:>9.2f} {predicted:>10.2f}"
              f" {predicted / measured:>6.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
