"""Coverage of simulated errors of an adaptive run, as `adaptive.py --errors` prints it."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np
from marginal_tables import Table

from dpscale import Domain, Workload
from dpscale.mechanisms.aim.state import AimState
from dpscale.reconstruction.joint_intervals import bonferroni
from dpscale.reconstruction.simulated_errors import SimulatedErrors, simulate_errors


def draw_prefix(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return one query: a range from the first cell on along every axis."""
    query = np.ones(())
    for size in shape:
        query = np.multiply.outer(query, (np.arange(size) <= random.integers(0, max(size - 1, 1))).astype(float))
    return query


def print_errors(table: Table, state: AimState, seed: int, sets: int = 40, queries: int = 8) -> None:
    """Print the coverage of 95 % intervals and the ratio of standard error to root mean square error, by degree, and
    the coverage of simultaneous intervals.
    """
    setting, random = state.setting, np.random.default_rng(seed)
    simulated = simulate_errors(
        state.fit.model, state.counts, state.residuals, setting.candidates, setting.estimator.chains
    )
    print(f"  widening {simulated.widening:.2f}, dispersion {simulated.dispersion:.2f}")
    for degree in (1, 2, 3):
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        together = list[tuple[bool, bool, float]]()
        every = list(combinations(table.names, degree))
        for names in (every[i] for i in random.permutation(len(every))[:sets]):
            true, off = table.counts(names), state.marginal(names) - table.counts(names)
            own, full = simulated.cell_errors(names), table.counts(names) >= 10
            found["cells"].append(_coverage(off, own))
            together.append(_simultaneous_coverage(simulated, names, off, own))
            if full.any():
                found["cells of 10 and more"].append(_coverage(off[full], own[full]))
            prefixes = [draw_prefix(true.shape, random) for _ in range(queries)]
            own = np.array([simulated.query_error(names, query) for query in prefixes])
            found["prefixes"].append(_coverage(np.array([(query * off).sum() for query in prefixes]), own))
        for kind, coverages in found.items():
            rate, ratio = np.mean(coverages, axis=0)
            print(f"  {degree}-way {kind:22} {100 * rate:5.1f} % within 1.96 s.e.; s.e. / r.m.s. error {ratio:.2f}")
        inside, plainly, wide = np.mean(together, axis=0)
        normal = f"{100 * plainly:.1f} % by the normal law"
        print(
            f"  {degree}-way {'all cells at once':22} {100 * inside:5.1f} % ({normal}); half width / r.m.s. {wide:.1f}"
        )


def _simultaneous_coverage(
    simulated: SimulatedErrors, names: tuple[str, ...], off: np.ndarray, own: np.ndarray
) -> tuple[bool, bool, float]:
    """Return whether all cells are inside, whether they are by Bonferroni's quantile, and the relative width."""
    workload = Workload(Domain(dict(zip(names, off.shape, strict=True)))).add("marginal", attributes=[names])
    half = simulated.simultaneous_widths(workload.parts[0], names, own, 0.95)
    plainly = np.abs(off) <= bonferroni(0.95, off.size) * own + 1e-9
    return bool((np.abs(off) <= half + 1e-9).all()), bool(plainly.all()), float(half.mean() / np.sqrt((off**2).mean()))


def _coverage(off: np.ndarray, own: np.ndarray) -> tuple[float, float]:
    return float((np.abs(off) <= 1.96 * own + 1e-9).mean()), float(np.sqrt((own**2).mean() / (off**2).mean()))
