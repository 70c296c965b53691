"""Checks of `dpscale selftest --full`: attacks on the adaptive mechanism and on synthetic rows, and a one-run audit.

A check passes if the lower bound of μ is at least ATTAINED of the claim at a confidence of 95 %, so that the attack is
not blind, and does not exceed it at level REFUTED. Rows of several attributes need only ROWS_ATTAINED: the statistic is
linear, and shrinkage loses a part. Rows of one attribute need ATTAINED. A planted violation must exceed the claim.

The one-run audit (Steinke, Nasr & Jagielski 2023) includes each of m canaries by a fair coin, each in a cell of its
own, and guesses the coins of those with the most extreme released values. Under (ε, δ) the number v of correct guesses
of r is at most binomial with e^ε/(1 + e^ε), up to δ:
    P(V ≥ v) ≤ β(v) + 2 m δ max_i Σ_{j≤i} P(B = v − j)/i.
Its bound is stated without a target.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np

from dpscale.audit.adaptive_attack import (
    MU,
    UNIT_ROWS,
    direction,
    first_selection,
    rows_counts,
    single_attribute_counts,
    transcript,
    worst_pair,
)
from dpscale.audit.selftest import CHOSEN_ON, DELTA, Check, bound_of
from dpscale.base.numerics import Floats, stats
from dpscale.domain import Domain
from dpscale.measurement.adaptive import run
from dpscale.mechanisms.aim_grem import Options, plan
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy import epsilon_of_mu
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import PublicStream, seeded_secret
from dpscale.workload import MARGINAL, Workload

RUNS, SELECTIONS, ROWS_RUNS, PLANTED_RUNS, SELECTION_MU = 4000, 5000, 20_000, 1000, 9.0
ATTAINED, ROWS_ATTAINED, CONFIDENCE, REFUTED = 0.9, 0.8, 0.05, 1e-3
LARGER = UNIT_ROWS * 10 // 7
CANARIES, GUESSED, CANARY_MU, CANARY_DELTA = 2000, 1000, 3.0, 1e-5


def full_selftest(runs: float = 1.0) -> list[Check]:
    """Return (name, passed, detail) of each check; takes about twenty minutes on two cores.

    Parameters
    ----------
    runs : float
        Multiple of the numbers of runs; with fewer runs a bound may be below ATTAINED of the claim.

    Returns
    -------
    list of tuple of (str, bool, str)
    """
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        taken = _on_both(pool, _outcome, math.ceil(RUNS * runs))
        chosen = _on_both(pool, _sign, math.ceil(SELECTIONS * runs))
        noisy = _on_both(pool, partial(_outcome, scale=0.7), math.ceil(PLANTED_RUNS * runs))
        single = _on_both(pool, _single, math.ceil(ROWS_RUNS * runs))
        larger = _on_both(pool, partial(_single, added=LARGER), math.ceil(PLANTED_RUNS * runs))
        sharp = _on_both(pool, partial(_sign, factor=4), math.ceil(PLANTED_RUNS * runs))
    measured = math.sqrt(max(float(one[:, 2].max()) for one in taken))
    selected = math.sqrt(max(float(one[:, 1].max()) for one in chosen))
    return [
        attained("released output of aim-grem", [one[:, 0] for one in taken], MU),
        attained("measured values of aim-grem", [one[:, 1] for one in taken], measured),
        attained("first selected set of aim-grem", [one[:, 0] for one in chosen], selected),
        attained("synthetic rows of aim-grem", _projected([one[:, 3:] for one in taken]), MU, ROWS_ATTAINED),
        attained("synthetic rows of one attribute", _projected(single), MU),
        _detected("planted: noise x 0.7 in aim-grem", [one[:, 0] for one in noisy], MU),
        _detected("planted: rows with noise x 0.7", _projected([one[:, 3:] for one in noisy]), MU),
        _detected("planted: rows of a larger unit", _projected(larger), MU),
        _detected("planted: scores x 4 in aim-grem", [one[:, 0] for one in sharp], selected),
        one_run(),
    ]


def _on_both(pool: Executor, of: Callable[[tuple[int, int]], list[float]], count: int) -> list[Floats]:
    """Return the outcomes of runs on either table, shape (count, outcomes) each."""
    return [np.array(list(pool.map(of, [(which, 2 * i + which) for i in range(count)], chunksize=50)))
            for which in (0, 1)]  # fmt: skip


def _outcome(case: tuple[int, int], scale: float = 1.0) -> list[float]:
    """Return both ratios of a run, the cost of its measurements, and the counts of its rows."""
    found = transcript(worst_pair(), *case, scale)
    return [found.whole, found.values, float(found.measured_cost), *rows_counts(found.state, str(case[1]))]


def _single(case: tuple[int, int], added: int = UNIT_ROWS) -> list[float]:
    return single_attribute_counts(*case, added).tolist()


def _sign(case: tuple[int, int], factor: int = 1) -> list[float]:
    sign, cost = first_selection(worst_pair(SELECTION_MU), *case, factor)
    return [sign, float(cost)]


def attained(name: str, samples: Sequence[Floats], claim: float, share: float = ATTAINED) -> Check:
    """Return the check of one statistic on runs of both tables; `share` of the claim must be attained."""
    null, moved = samples
    low, sure = (bound_of(name, null, moved, DELTA, level / 2, ("mu",)).mu for level in (CONFIDENCE, REFUTED))
    detail = f"mu is at least {low:.3f} (95 %) and {sure:.3f} (99.9 %), claimed {claim:.3f}, {len(null)} runs of each"
    return f"attack on the {name}", share * claim <= low and sure <= claim, detail


def _projected(counts: Sequence[Floats]) -> list[Floats]:
    """Return the counts along the best direction of the first part of the runs."""
    along = direction(*(one[: len(one) // CHOSEN_ON] for one in counts))
    return [one @ along for one in counts]


def _detected(name: str, samples: Sequence[Floats], claim: float) -> Check:
    null, moved = samples
    sure = bound_of(name, null, moved, DELTA, REFUTED / 2, ("mu",)).mu
    return name, sure > claim, f"mu is at least {sure:.3f}, claimed {claim:.3f}"


def one_run(canaries: int = CANARIES, guessed: int = GUESSED, mu: float = CANARY_MU, seed: int = 0) -> Check:
    """Return the one-run audit of the mechanism on one attribute with a cell for each canary."""
    coins = PublicStream("one-run audit", str(seed)).uniforms(canaries) < 0.5
    problem = PlanningProblem(
        Workload(Domain({"cell": canaries})).add(MARGINAL.name, degree=1), Budget(GAUSSIAN, mu**2)
    )
    counts = 5 + coins.astype(np.int64)
    state = run(plan(problem, Options()), lambda names: counts if names else counts.sum(), seeded_secret(seed))
    noisy = state.counts["cell"].values
    order = np.argsort(noisy)
    least, most = order[: guessed // 2], order[-(guessed // 2) :]
    right, guesses = int((~coins[least]).sum() + coins[most].sum()), len(least) + len(most)
    bound, claim = one_run_epsilon(canaries, guesses, right), epsilon_of_mu(mu, CANARY_DELTA)
    detail = f"epsilon is at least {bound:.3f} at delta = {CANARY_DELTA:g}, {right} of {guesses} guesses right"
    return "one-run audit of aim-grem", bound <= claim, f"{detail}, claimed {claim:.3f}"


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float = CANARY_DELTA) -> float:
    """Return the largest ε that the number of right guesses refutes at a confidence of 95 %; 0 if none."""
    low, high = 0.0, 20.0
    if _tail(canaries, guesses, right, low, delta) > CONFIDENCE:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(canaries, guesses, right, middle, delta) <= CONFIDENCE else (low, middle)
    return low


def _tail(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the bound of the probability of at least `right` correct guesses under (ε, δ)."""
    chance = 1 / (1 + math.exp(-epsilon))
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    steepest = float((below / np.arange(1, right + 1)).max()) if right else 0.0
    return float(min(1.0, stats.binom.sf(right - 1, guesses, chance) + 2 * canaries * delta * steepest))
