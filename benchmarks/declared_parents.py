"""The gain of a declared hierarchy for `aim-grem`, on generated data.

Towns are in one region each, and five attributes of people depend on the region or the town. The same table and seeds
are released with a domain that declares the regions of towns, and with one that does not. Prints the mean L1 error / N
over all 3-way marginals, and the share of records estimated in a wrong region; δ = 1e-9.

    python benchmarks/declared_parents.py [--seeds 5] [--rows 50000] [--save]
"""

from __future__ import annotations

import argparse

import base
import numpy as np
from adaptive import cost_of
from base import Table

from dpscale import Domain, Workload
from dpscale.measurement.adaptive import run
from dpscale.mechanisms.aim_grem import Options, plan as plan_adaptively
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.maxent import LEARNING_BYTES
from dpscale.reconstruction.pairwise.learn import complete_pairs, learn
from dpscale.reconstruction.pairwise.pairs import pair_targets
from dpscale.reconstruction.pairwise.triples import add_triples, missing_triples

TOWNS, REGIONS, CELLS, OWN = 60, 8, (5, 8, 4, 6, 10), 0.4
NAMES = ("town", "region", *(f"x{i}" for i in range(len(CELLS))))


def draw_people(rows: int, seed: int, in_order: bool) -> tuple[Table, list[int]]:
    """Return a table and the region of every town; with `in_order`, towns are listed region by region."""
    rng = np.random.default_rng(seed)
    of = np.sort(np.append(np.arange(REGIONS), rng.integers(0, REGIONS, TOWNS - REGIONS)))
    of = of if in_order else rng.permutation(of)
    town = rng.choice(TOWNS, rows, p=rng.dirichlet(np.full(TOWNS, 0.7)))
    columns = [town, of[town]]
    for number, cells in enumerate(CELLS):
        law, own = rng.dirichlet(np.full(cells, 0.6), REGIONS)[of], rng.dirichlet(np.full(cells, 0.6), TOWNS)
        reach = np.cumsum(law if number % 2 else (1 - OWN) * law + OWN * own, axis=1)
        columns.append((rng.random((rows, 1)) > reach[town]).sum(axis=1).clip(0, cells - 1))
    sizes = dict(zip(NAMES, (TOWNS, REGIONS, *CELLS), strict=True))
    return Table("people", sizes, np.stack(columns, axis=1)), of.tolist()


def release_model(table: Table, epsilon: float, seed: int, of: list[int] | None) -> LowOrder:
    """Return the default `maxent` model of a job; `of` is the declared region of every town."""
    determined = [{"attribute": "region", "by": "town", "map": {str(i): r for i, r in enumerate(of)}}] if of else []
    domain = Domain(Domain(dict(table.sizes)).attributes, {"determined": determined})
    workload = Workload(domain).add("marginal", attributes=table.targets)
    problem = PlanningProblem(workload, Budget(GAUSSIAN, cost_of(epsilon)))
    model = run(plan_adaptively(problem, Options()), table.counts, seeded_secret(seed)).fit.model
    learnt = learn(pair_targets(model, LEARNING_BYTES), str(seed))
    return add_triples(complete_pairs(model, learnt), learnt, missing_triples(model, table.targets), str(seed))


def measure_outcome(table: Table, model: LowOrder, of: list[int]) -> tuple[float, float]:
    """Return the error, and the share of records that the estimates have in a wrong region."""
    pair = model.marginal(("town", "region"))
    return table.error(model.marginal), 1 - float(pair[np.arange(TOWNS), of].sum() / pair.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    figures: dict[str, float] = {}
    for order in ("in order", "in any order"):
        for epsilon in (0.1, 1.0, 10.0):
            found = []
            for seed in range(given.seeds):
                table, of = draw_people(given.rows, seed, order == "in order")
                found.append([x for declared in (of, None)
                              for x in measure_outcome(table, release_model(table, epsilon, seed, declared),
                                                       of)])  # fmt: skip
            known, never, without, off = np.mean(found, axis=0)
            assert never < 1e-9
            print(f"{order:13} epsilon {epsilon:4g}: declared {known:.4f}, not {without:.4f}, ratio "
                  f"{known / without:.3f}; in a wrong region {100 * off:.2f} %", flush=True)  # fmt: skip
            name = f"{order}, {epsilon:g}"
            figures |= {f"{name}, declared": known, f"{name}, not": without, f"{name}, wrong": off}
    if given.save:
        base.save("declared_parents", figures)


if __name__ == "__main__":
    main()
