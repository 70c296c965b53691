"""How often simulated errors of an adaptive run hold the truth: what `adaptive.py --errors` prints of each run."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np
from marginal_tables import Table

from dpscale import Domain, Workload
from dpscale.mechanisms.aim.state import AimState
from dpscale.reconstruction.joint_intervals import bonferroni
from dpscale.reconstruction.simulated_errors import SimulatedErrors, simulate_errors


def prefixes(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """One query: a range from the first cell on along every axis."""
    query = np.ones(())
    for size in shape:
        query = np.multiply.outer(query, (np.arange(size) <= random.integers(0, max(size - 1, 1))).astype(float))
    return query


def errors(table: Table, state: AimState, seed: int, sets: int = 40, queries: int = 8) -> None:
    """Coverage of 95 % intervals, and the ratio of mean square standard error to mean square error, by degree; and how
    often all cells of a set are inside those that are to hold at once."""
    setting, random = state.setting, np.random.default_rng(seed)
    told = simulate_errors(state.fit.model, state.counts, state.residuals, setting.candidates, setting.estimator.chains)
    print(f"  widening {told.widening:.2f}, dispersion {told.dispersion:.2f}")
    for degree in (1, 2, 3):
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        together = list[tuple[bool, bool, float]]()
        every = list(combinations(table.names, degree))
        for names in (every[i] for i in random.permutation(len(every))[:sets]):
            true, off = table.counts(names), state.marginal(names) - table.counts(names)
            own, full = told.cell_errors(names), table.counts(names) >= 10
            found["cells"].append(_held(off, own))
            together.append(_at_once(told, names, off, own))
            if full.any():
                found["cells of 10 and more"].append(_held(off[full], own[full]))
            asked = [prefixes(true.shape, random) for _ in range(queries)]
            own = np.array([told.query_error(names, query) for query in asked])
            found["prefixes"].append(_held(np.array([(query * off).sum() for query in asked]), own))
        for kind, held in found.items():
            rate, ratio = np.mean(held, axis=0)
            print(f"  {degree}-way {kind:22} {100 * rate:5.1f} % within 1.96 s.e.; s.e. / r.m.s. error {ratio:.2f}")
        held, plainly, wide = np.mean(together, axis=0)
        normal = f"{100 * plainly:.1f} % by the normal law"
        print(f"  {degree}-way {'all cells at once':22} {100 * held:5.1f} % ({normal}); half width / r.m.s. {wide:.1f}")


def _at_once(
    told: SimulatedErrors, names: tuple[str, ...], off: np.ndarray, own: np.ndarray
) -> tuple[bool, bool, float]:
    """Whether all cells are inside, whether they would be by Bonferroni's normal quantile, and how wide that is."""
    workload = Workload(Domain(dict(zip(names, off.shape, strict=True)))).add("marginal", attributes=[names])
    half = told.simultaneous_widths(workload.parts[0], names, own, 0.95)
    plainly = np.abs(off) <= bonferroni(0.95, off.size) * own + 1e-9
    return bool((np.abs(off) <= half + 1e-9).all()), bool(plainly.all()), float(half.mean() / np.sqrt((off**2).mean()))


def _held(off: np.ndarray, own: np.ndarray) -> tuple[float, float]:
    return float((np.abs(off) <= 1.96 * own + 1e-9).mean()), float(np.sqrt((own**2).mean() / (off**2).mean()))
