"""`aim-grem` and its rows beside a mixture of products by `mbi`: 66 generated attributes, ε = 1, δ = 1e-9.

Limits, environments and errors are those of rivals.py. Counting all 45,760 marginals takes minutes and is excluded.

    python benchmarks/wide_rivals.py mbi=PYTHON [--seconds 1200] [--gib 4] [--records FILE] [--save]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import rivals
from base import DATA

TABLE, EPSILON, SEED = "census", 1.0, 100
MECHANISMS = (("dpscale", "aim-grem"), ("dpscale", "aim-grem, rows"), ("mbi", "mixture"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="?", metavar="mbi=PYTHON")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    rivals.MECHANISMS = MECHANISMS
    rivals.run([given.python] if given.python else [], [TABLE], [EPSILON], range(SEED, SEED + 1), DATA,
               rivals.Limits(given.seconds, given.gib, float("inf")), given.records,
               "wide_rivals" if given.save else "")  # fmt: skip


if __name__ == "__main__":
    main()
