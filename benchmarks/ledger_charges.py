"""Processor time of one charge, which verifies the whole ledger first, by the number of releases on it.

Each line has the median of some charges: with verification, as a share of the limit of 0.2 s at 1,000 releases; without
it, on the same ledger in the same run; their ratio; and the seconds of verification for each 1,000 releases, which do
not grow if the cost is linear.

    python benchmarks/ledger_charges.py [--releases 100 500 1000] [--charges 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from unittest import mock

from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost

LIMIT = 0.2  # CPU seconds at 1,000 releases
COST = Cost(gaussian=Fraction(1, 10**6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--charges", type=int, default=5)
    given = parser.parse_args()
    print("releases  charge s  of limit  without s  ratio  verification s per 1,000")
    for releases in sorted(given.releases):
        with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder) / "ledger.sqlite") as ledger:
            ledger.set_cap("data", 10.0, 1e-9)
            with mock.patch.object(Ledger, "_check_sound"):
                for number in range(releases):
                    charge(ledger, f"release {number}")
                without = median(given.charges, lambda number, ledger=ledger: charge(ledger, f"without {number}"))
            whole = median(given.charges, lambda number, ledger=ledger: charge(ledger, f"whole {number}"))
        own = (whole - without) * 1000 / releases
        share = whole * 1000 / releases / LIMIT
        print(f"{releases:8,}  {whole:8.3f}  {share:8.2f}  {without:9.3f}  {whole / without:5.2f}  {own:24.3f}")


def charge(ledger: Ledger, release: str) -> None:
    ledger.charge("data", release, COST, "0" * 64, 1.0, 1e-9)


def median(times: int, act: Callable[[int], None]) -> float:
    """Return the median processor time of some calls in seconds."""
    found = []
    for number in range(times):
        begin = time.process_time()
        act(number)
        found.append(time.process_time() - begin)
    return statistics.median(found)


if __name__ == "__main__":
    main()
