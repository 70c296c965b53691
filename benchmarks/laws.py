"""Laws of k attributes in estimates, rows, and a forest that learns from the rows.

A law is a dependence of k attributes that no smaller set shows, such as a parity. Its strength in a table is the slope
of the table's residual over these attributes on that of the records: 1 if it is kept, 0 if it is lost.

    python benchmarks/laws.py [--seeds N] [--epsilons E ...] [--cases NAME ...] [--save]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
from base import save
from sklearn.ensemble import RandomForestClassifier

import dpscale as dp
from dpscale.runs.runner import run_stages
from dpscale.runs.stages.synthesize import request_rows
from dpscale.workload.residual import center

ROWS, FLIPS, TREES, KEPT = 20_000, 0.05, 100, 0.5
Law = tuple[str, ...]


def parity(degree: int, attributes: int = 11) -> Callable[[int], tuple[pd.DataFrame, list[Law]]]:
    """Return a maker of fair bits, the last of which is the parity of the first `degree` − 1, with errors."""

    def make(seed: int) -> tuple[pd.DataFrame, list[Law]]:
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 2, (ROWS, attributes - 1))
        y = (bits[:, : degree - 1].sum(axis=1) % 2) ^ (rng.random(ROWS) < FLIPS)
        frame = named(bits).assign(y=y)
        return frame, [(*frame.columns[: degree - 1], "y")]

    return make


def named(columns: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(columns, columns=[f"x{i}" for i in range(columns.shape[1])])


def sums_modulo_four(seed: int) -> tuple[pd.DataFrame, list[Law]]:
    """Four-level attributes; the last is the sum of two others modulo 4, with errors."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 4, (ROWS, 7))
    errors = np.where(rng.random(ROWS) < FLIPS, rng.integers(0, 4, ROWS), 0)
    return named(levels).assign(y=(levels[:, 0] + levels[:, 1] + errors) % 4), [("x0", "x1", "y")]


def shared_attributes(seed: int) -> tuple[pd.DataFrame, list[Law]]:
    """Two parities, of three and of four attributes, that share an attribute."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (ROWS, 9))
    y = bits[:, 0] ^ bits[:, 1] ^ (rng.random(ROWS) < FLIPS)
    z = bits[:, 1] ^ bits[:, 2] ^ bits[:, 3] ^ (rng.random(ROWS) < FLIPS)
    return named(bits).assign(y=y, z=z), [("x0", "x1", "y"), ("x1", "x2", "x3", "z")]


def beside_pairs_and_triples(seed: int) -> tuple[pd.DataFrame, list[Law]]:
    """A parity of four attributes among attributes that are dependent by pairs and by three."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (ROWS, 9))
    for column in (4, 5):
        bits[:, column] = np.where(rng.random(ROWS) < 0.7, bits[:, column - 4], bits[:, column])
    bits[:, 6] = (bits[:, 4] & bits[:, 5]) ^ (rng.random(ROWS) < 0.2)
    y = bits[:, 0] ^ bits[:, 1] ^ bits[:, 2] ^ (rng.random(ROWS) < FLIPS)
    return named(bits).assign(y=y), [("x0", "x1", "x2", "y")]


CASES: dict[str, tuple[int, Callable[[int], tuple[pd.DataFrame, list[Law]]]]] = {
    **{f"parity of {degree}": (degree, parity(degree)) for degree in (3, 4, 5)},
    "sums modulo 4": (3, sums_modulo_four),
    "two laws": (4, shared_attributes),
    "beside pairs and triples": (4, beside_pairs_and_triples),
}
UNASKED = "parity of 4"
MECHANISMS = ("weighted-residuals", "aim-grem", "aim-pgm")


def table(frame: pd.DataFrame, law: Law, sizes: dict[str, int]) -> np.ndarray:
    counts = np.zeros([sizes[name] for name in law])
    np.add.at(counts, tuple(frame[name].to_numpy().astype(int) for name in law), 1)
    return counts


def strength(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the slope of a table's residual on the exact one."""
    residual = center(exact, range(exact.ndim))
    return float((center(np.asarray(found, float), range(exact.ndim)) * residual).sum() / (residual**2).sum())


def forest_score(frame: pd.DataFrame, fresh: pd.DataFrame) -> float:
    """Return the accuracy on fresh records of a forest that predicts the last attribute."""
    target = frame.columns[-1]
    forest = RandomForestClassifier(TREES, random_state=0, n_jobs=1)
    forest.fit(frame.drop(columns=target).to_numpy(), frame[target].to_numpy().astype(int))
    return float(forest.score(fresh.drop(columns=target).to_numpy(), fresh[target].to_numpy().astype(int)))


def release(
    frame: pd.DataFrame, mechanism: str, degree: int, epsilon: float, targets: int, sizes: dict[str, int] | None = None
) -> tuple[dp.Release, pd.DataFrame]:
    """Release the marginals of `targets` attributes, and as many rows as records."""
    domain = dp.Domain(sizes or {name: int(frame[name].max()) + 1 for name in frame})
    sets = [list(names) for names in combinations(frame.columns, targets)]
    options = {} if mechanism == "weighted-residuals" else {"degree": degree}
    plan = dp.plan(sets, domain, mechanism, epsilon=epsilon, delta=1e-9, dataset=f"laws-{time.time_ns()}", **options)
    made = dp.run(plan, data=frame, fresh=True)
    request_rows(made._run.table, len(frame))
    run_stages(made._run, only="synthesize")
    return made, dp.Release.open(made.path).synthetic().compute(scheduler="threads")[list(frame.columns)]


def compare(case: str, mechanism: str, epsilon: float, seeds: Sequence[int], targets: int = 0) -> dict[str, float]:
    """Return the least strength over seeds and laws in estimates and rows, and the mean scores of forests."""
    degree, make = CASES[case]
    estimates, rows, forests, exact = [], [], [], []
    for seed in seeds:
        frame, laws = make(seed)
        fresh, _ = make(seed + 1000)
        sizes = {name: int(frame[name].max()) + 1 for name in frame}
        made, drawn = release(frame, mechanism, degree, epsilon, targets or degree)
        for law in laws:
            counts = table(frame, law, sizes)
            rows.append(strength(table(drawn, law, sizes), counts))
            if len(law) <= (targets or degree):
                estimates.append(strength(made.marginal(law), counts))
        forests.append(forest_score(drawn, fresh))
        exact.append(forest_score(frame, fresh))

    found = {"rows": min(rows), "kept": float(np.mean(np.array(rows) > KEPT))}
    found |= {"forest on rows": float(np.mean(forests)), "forest on records": float(np.mean(exact))}
    found |= {"estimates": min(estimates)} if estimates else {}
    print(f"{case}, {mechanism}, {targets or degree}-way targets, epsilon {epsilon:g}, {len(seeds)} seeds: "
          + ", ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--unasked", type=int, default=10, help="seeds of laws outside the targets; 0: none")
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args()
    os.environ["DPSCALE_DATA"] = tempfile.mkdtemp()
    warnings.simplefilter("ignore")

    figures: dict[str, float] = {}
    for case, mechanism, epsilon in product(chosen.cases, MECHANISMS, chosen.epsilons):
        found = compare(case, mechanism, epsilon, range(chosen.seeds))
        left = {"kept"} if mechanism == MECHANISMS[0] else {"kept", "forest on records"}
        figures |= {
            f"{case}, {mechanism}, epsilon {epsilon:g}: {name}": found[name] for name in found if name not in left
        }
    if chosen.unasked:
        found = compare(UNASKED, "aim-grem", 4.0, range(chosen.unasked), targets=3)
        figures |= {f"{UNASKED}, outside the targets: {name}": found[name] for name in ("rows", "kept")}
    if chosen.save:
        save(Path(__file__).stem, figures)


if __name__ == "__main__":
    main()
