"""Lower bounds of μ from attacks on `aim-grem` and its synthetic rows: the full self-test with its figures saved.

The attacks and the planted violations are those of `dpscale selftest --full`; takes about twenty minutes on two cores.

    python benchmarks/audits.py [--runs 1.0] [--save]
"""

from __future__ import annotations

import argparse
import re

import base

from dpscale.audit.adaptive_attack import full_selftest

BOUND = re.compile(r"is at least ([0-9.]+).*claimed ([0-9.]+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=float, default=1.0, help="multiple of the numbers of runs")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    figures: dict[str, float | str] = {}
    for name, passed, detail in full_selftest(arguments.runs):
        print(f"{'ok' if passed else 'FAILED':<6} {name}: {detail}", flush=True)
        found = BOUND.search(detail)
        if found is None:
            raise SystemExit(f"no bound in the detail of {name!r}")
        figures |= {f"{name}, bound": float(found[1]), f"{name}, claim": float(found[2])}
        figures[f"{name}, result"] = "passed" if passed else "failed"
    if arguments.save:
        base.save("audits", figures)


if __name__ == "__main__":
    main()
