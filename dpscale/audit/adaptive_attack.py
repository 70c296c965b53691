"""Attack on the adaptive mechanism with many runs on two neighbouring tables: `dpscale selftest --full`.

Every run of `aim-grem` on a tiny table gives a transcript: the selected sets and the measured values of all rounds. Its
log likelihood ratio between the two tables is exact, because the observer knows both tables and all public parameters:
    values      Σ over measurements of ((y − x)² − (y − x')²) / (2 σ²),   for y = x + discrete Gaussian noise,
    selections  Σ over draws of log P'(choice) − log P(choice),           P ∝ exp(scale · score) among those left.
Conditional on the released past both are known functions, so the ratio of the whole transcript is their sum. The lower
bound of μ of a statistic is that of `selftest.attack`: a threshold chosen on one part of the runs and bounded on the
others by Clopper & Pearson.

The neighbour has one more record. Adding it moves a cell of every set, and the residual measurements of a set move by
their whole sensitivity for any record. A selection spends its whole cost only if one score rises and all others
fall by the sensitivity: so two sets are candidates, of which one estimate is far below and the other far above the
count of the record's cell. The selection that is tested is the first, because a composition of selections is a little
more private than the Gaussian mechanism that is charged for it.

Rows are a function of the estimates. Their statistic is linear in the counts of all cells, with the direction that
separates the two tables best on the part of the runs where thresholds are chosen. Rows of a table with one attribute of
two values have its noisy counts and no shrinkage, so that this statistic loses nothing.

The checks of `dpscale selftest --full` attack the mechanism and synthetic rows in this way, and audit one run.

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
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, partial, reduce
from multiprocessing import get_context
from typing import cast

import numpy as np

from dpscale.audit.selftest import CHOSEN_ON, DELTA, Check, bound_of
from dpscale.base.numerics import AttributeSet, Floats, Integers, special, stats
from dpscale.counting import ExactMarginal
from dpscale.domain import Domain
from dpscale.engine.schedulers import processors
from dpscale.measurement import measure_block
from dpscale.measurement.adaptive import Scores, build_shard, run, select_candidates, sensitivity
from dpscale.mechanisms.aim.adaptive_plan import AdaptivePlan
from dpscale.mechanisms.aim.decision import AimDecision, AimSelection, ResidualRequest
from dpscale.mechanisms.aim.estimators import EntropyEstimates
from dpscale.mechanisms.aim.state import AimState
from dpscale.mechanisms.aim_grem import Options, plan
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy import epsilon_of_mu
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.selection import scale_for
from dpscale.privacy.streams import PublicStream, open_stream, seeded_secret
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.maxent import LEARNING_BYTES
from dpscale.reconstruction.pairwise import PairwiseModel, learn, pair_targets
from dpscale.synthesis.draw import RowPart, draw
from dpscale.workload import MARGINAL, Workload

SIZES = {"a": 2, "b": 2, "c": 2}
TARGETS: tuple[AttributeSet, ...] = (("a", "b"), ("a", "c"))
RECORDS, UNIT_ROWS, MU = 10_000, 100, 3.0  # rows of a unit: so many that rows add little to the noise
PROTOTYPES = 4000  # of a model of rows: few, so that learning is fast enough to be repeated
LINKED = 0.8  # share of records with a = b, and of those with a ≠ c


@dataclass(frozen=True)
class Pair:
    """Two neighbouring tables over the whole domain, and the plan of the mechanism."""

    plan: AdaptivePlan
    tables: tuple[Integers, Integers]

    def counts(self, which: int, names: AttributeSet) -> Integers:
        """Return the exact counts of a set in one of the tables."""
        outside = tuple(axis for axis, name in enumerate(SIZES) if name not in names)
        return np.asarray(self.tables[which].sum(axis=outside))

    @cached_property
    def claimed(self) -> float:
        """μ of the whole run."""
        return math.sqrt(self.plan.cost.gaussian)


def worst_pair(mu: float = MU) -> Pair:
    """Return a table in which mostly a = b and a ≠ c, and the table with one more unit, all at (0, 0, 0).

    The unit moves the scores of the two candidate pairs in opposite directions. A few records are moved in the first
    table, so that its scores differ by as much as those of the second, in the other direction. `mu` is the μ of the
    Gaussian DP that the plan of the mechanism spends.
    """
    equal = np.array([[LINKED, 1 - LINKED], [1 - LINKED, LINKED]])  # probability of b (or of 1 − c) given a
    first = np.rint(RECORDS / 2 * equal[:, :, None] * equal[:, None, ::-1]).astype(np.int64)
    first += np.array([[[0, -25], [0, 25]], [[25, 0], [-25, 0]]])
    second = first.copy()
    second[0, 0, 0] += UNIT_ROWS
    workload = Workload(Domain(SIZES)).add(MARGINAL.name, attributes=TARGETS)
    problem = PlanningProblem(workload, Budget(GAUSSIAN, mu**2), UNIT_ROWS)
    return Pair(plan(problem, Options()), (first, second))


@dataclass(frozen=True)
class Transcript:
    """Log likelihood ratios of one run, and its last state."""

    values: float
    selections: float
    measured_cost: Fraction
    state: AimState

    @property
    def whole(self) -> float:
        return self.values + self.selections


def first_selection(pair: Pair, which: int, seed: int, factor: int = 1) -> tuple[float, Fraction]:
    """Return the sign (1 or −1) of the log likelihood ratio of a run's first selection, and the cost of the selection.

    `which` is 0 or 1, the table of the pair that is measured. `factor` multiplies the scores that are drawn from (a
    planted fault), but not those of the ratio.
    """
    secret, plan_of_pair = seeded_secret(seed), pair.plan
    decision = plan_of_pair.first_decision()
    state = plan_of_pair.rounds.start(_measure(pair, which, decision, secret, 1.0)[0])
    selection = state.selection
    assert selection is not None
    scores = [_scores(pair, table, state, selection) for table in (0, 1)]
    drawn = [factor * score for score in scores[which]]
    chosen = select_candidates(selection, drawn, UNIT_ROWS, lambda label: open_stream(secret, "selection", label))
    return math.copysign(1.0, _selection_ratio(selection, scores, chosen)), selection.beta


def transcript(pair: Pair, which: int, seed: int, scale: float = 1.0) -> Transcript:
    """Run the mechanism on table `which` (0 or 1) of the pair and return its log likelihood ratios and its cost.

    Selections and measurements alternate until the mechanism selects nothing more. The observer knows the exact scores
    and values of both tables. `scale` multiplies the noise (a planted fault).
    """
    secret, plan_of_pair = seeded_secret(seed), pair.plan
    decision = plan_of_pair.first_decision()
    drawn, values = _measure(pair, which, decision, secret, scale)  # released values, and their log likelihood ratio
    cost = sum((request.draw.cost for request in decision.requests), Fraction(0))
    state = plan_of_pair.rounds.start(drawn)
    selections: list[float] = []
    while (selection := state.selection) is not None:
        scores = [_scores(pair, table, state, selection) for table in (0, 1)]
        chosen = select_candidates(
            selection, scores[which], UNIT_ROWS, lambda label: open_stream(secret, "selection", label)
        )
        selections.append(_selection_ratio(selection, scores, chosen))
        decision = state.decide(selection, chosen)
        drawn, more = _measure(pair, which, decision, secret, scale)
        values, cost = values + more, cost + sum((request.draw.cost for request in decision.requests), Fraction(0))
        state = state.after(decision, drawn)
    return Transcript(values=values, selections=math.fsum(selections), measured_cost=cost, state=state)


def _measure(pair: Pair, which: int, decision: AimDecision, secret: bytes, scale: float) -> tuple[list[Floats], float]:
    """Return the released values of a decision on table `which` (0 or 1), and their log likelihood ratio.

    For Gaussian noise of variance v the ratio of table 1 to table 0 is Σ ((y − x_0)² − (y − x_1)²) / 2v, with released
    values y and exact values x. `scale` multiplies the noise that is drawn, not the one in the ratio.
    """
    drawn, ratio = [], 0.0
    for request in decision.requests:
        exact = [_exact(pair, table, request) for table in (0, 1)]
        draw = replace(request.draw, variance=max(1, int(request.draw.variance * scale**2)))
        counts = request.coarsened(pair.counts(which, request.names))
        values = measure_block(request.block, draw, ExactMarginal(request.names, counts), secret, request.label)
        flat, variance = values.reshape(-1), float(request.draw.variance)
        ratio += float(((flat - exact[0]) ** 2 - (flat - exact[1]) ** 2).sum()) / (2 * variance)
        drawn.append(request.estimate(values))
    return drawn, ratio


def _exact(pair: Pair, which: int, request: ResidualRequest) -> Floats:
    """Return the values of a request without noise."""
    matrix = reduce(np.kron, [factor.explicit() for factor in request.block.factors], np.ones((1, 1), np.int64))
    counts = request.coarsened(pair.counts(which, request.names)).reshape(-1)
    return np.asarray(request.draw.multiplier * (matrix @ counts), np.float64)


def _scores(pair: Pair, which: int, state: AimState, selection: AimSelection) -> list[int]:
    """Return the scores of all candidates on table `which` (0 or 1).

    A score compares the exact counts of a candidate with the current estimates of `state`.
    """
    known, sets = Scores(), [names for names in dict.fromkeys(selection.candidates) if names]
    marginals = [ExactMarginal(names, pair.counts(which, names)) for names in sets]
    shard = build_shard(marginals, sets, state.groups, RECORDS)
    known.learn(shard.distances(state.estimates(sets), sets, selection.classes))
    return known.of(selection)


def _selection_ratio(selection: AimSelection, scores: Sequence[Sequence[int]], chosen: Sequence[AttributeSet]) -> float:
    """Return log P'(chosen) − log P(chosen) of draws without replacement, P for table 0 and P' for table 1.

    `scores` has the integer scores of all candidates for each table. The exponential mechanism draws in proportion to
    exp(scale × score). A set that occurs several times among the candidates is one event; the empty set ("nothing")
    remains for the next draw.
    """
    if not chosen:
        return 0.0
    scale = float(scale_for(selection.beta, sensitivity(selection, UNIT_ROWS)))
    left, ratio = list(range(len(selection.candidates))), 0.0  # places of the candidates that remain
    for names in chosen:
        same = [place for place in left if selection.candidates[place] == names]
        for sign, table_scores in zip((-1.0, 1.0), scores, strict=True):
            logits = scale * np.array(table_scores, dtype=np.float64)
            ratio += sign * (special.logsumexp(logits[same]) - special.logsumexp(logits[left]))
        left = left if not names else [place for place in left if place not in same]
    return ratio


def rows_counts(state: AimState, release: str) -> Floats:
    """Return the counts of the synthetic rows of a run over all cells, learnt from few prototypes.

    The model has the one- and two-way tables of the state, and few prototypes make learning fast enough for an attack
    that repeats it. All rows are drawn as one file, the only one of one part.
    """
    model: LowOrder = cast(EntropyEstimates, state.fit).model
    learnt = learn(pair_targets(model, LEARNING_BYTES), release, PROTOTYPES)
    rows = draw(learnt, RowPart(round(model.total), 1, 0), release)
    cells = np.ravel_multi_index(tuple(rows.T), tuple(SIZES.values()))
    return np.bincount(cells, minlength=math.prod(SIZES.values())).astype(np.float64)


@cache
def _single_plan() -> AdaptivePlan:
    workload = Workload(Domain({"a": 2})).add(MARGINAL.name, degree=1)
    return plan(PlanningProblem(workload, Budget(GAUSSIAN, MU**2), UNIT_ROWS), Options())


def single_attribute_counts(which: int, seed: int, added: int = UNIT_ROWS) -> Floats:
    """Return the counts of synthetic rows of a table with one attribute.

    Parameters
    ----------
    which : int
        1: the table with one more unit.
    seed : int
    added : int
        Rows of this unit; more than UNIT_ROWS is a planted fault.

    Returns
    -------
    ndarray, shape (2,)
    """
    counts = np.array([RECORDS // 2 + added * which, RECORDS // 2])
    state = cast(AimState, run(_single_plan(), lambda names: counts if names else counts.sum(), seeded_secret(seed)))
    model: LowOrder = cast(EntropyEstimates, state.fit).model
    targets = pair_targets(model, LEARNING_BYTES)
    without_pairs = PairwiseModel(targets, np.zeros(0), np.zeros((0, 1), np.int32))
    rows = draw(without_pairs, RowPart(round(model.total), 1, 0), str(seed))
    return np.bincount(rows[:, 0], minlength=2).astype(np.float64)


def direction(null: Floats, moved: Floats) -> Floats:
    """Return Fisher's direction S⁻¹ (m' − m) between two samples of counts, (runs, cells).

    S is the sum of their covariances, and m and m' are their means.
    """
    inside = np.cov(null, rowvar=False) + np.cov(moved, rowvar=False)
    return np.asarray(np.linalg.pinv(inside, rcond=1e-8) @ (moved.mean(axis=0) - null.mean(axis=0)))


# ---- checks of the self-test -----------------------------------------------------------------------------------------

# runs on each table: of the mechanism, of its first selection, of rows of a single attribute, and with a planted
# violation; μ of the runs of the first selection
RUNS, SELECTIONS, ROWS_RUNS, PLANTED_RUNS, SELECTION_MU = 4000, 5000, 20_000, 1000, 9.0
# share of the claim that the bound attains; for rows of several attributes; level of that bound; level at which a
# claim is refuted
ATTAINED, ROWS_ATTAINED, CONFIDENCE, REFUTED = 0.9, 0.8, 0.05, 1e-3
LARGER = UNIT_ROWS * 10 // 7  # rows of a unit that is too large: as noise x 0.7 for a unit of UNIT_ROWS
# cells with a canary, present with probability 1/2; guesses about them; μ and δ of the audited run
CANARIES, GUESSED, CANARY_MU, CANARY_DELTA = 2000, 1000, 3.0, 1e-5


def full_selftest(runs: float = 1.0) -> list[Check]:
    """Return (name, passed, detail) of each check; takes about twenty minutes on two cores.

    Outcomes of runs are an array for each table, with a row for each run. Those of whole runs have the ratio of the
    transcript, that of its values, the cost of the values, and the counts of synthetic rows by cell; those of first
    selections the sign of the ratio and the cost.

    Parameters
    ----------
    runs : float
        Multiple of the numbers of runs; with fewer runs a bound may be below ATTAINED of the claim.

    Returns
    -------
    list of tuple of (str, bool, str)
    """
    with ProcessPoolExecutor(processors("processes"), get_context("spawn")) as pool:
        taken = _on_both(pool, _outcome, math.ceil(RUNS * runs))
        chosen = _on_both(pool, _sign, math.ceil(SELECTIONS * runs))
        noisy = _on_both(pool, partial(_outcome, scale=0.7), math.ceil(PLANTED_RUNS * runs))
        single = _on_both(pool, _single, math.ceil(ROWS_RUNS * runs))
        larger = _on_both(pool, partial(_single, added=LARGER), math.ceil(PLANTED_RUNS * runs))
        sharp = _on_both(pool, partial(_sign, factor=4), math.ceil(PLANTED_RUNS * runs))
    measured = math.sqrt(max(float(outcomes[:, 2].max()) for outcomes in taken))
    selected = math.sqrt(max(float(outcomes[:, 1].max()) for outcomes in chosen))
    return [
        attained("released output of aim-grem", [outcomes[:, 0] for outcomes in taken], MU),
        attained("measured values of aim-grem", [outcomes[:, 1] for outcomes in taken], measured),
        attained("first selected set of aim-grem", [outcomes[:, 0] for outcomes in chosen], selected),
        attained("synthetic rows of aim-grem", _projected([outcomes[:, 3:] for outcomes in taken]), MU, ROWS_ATTAINED),
        attained("synthetic rows of one attribute", _projected(single), MU),
        _detected("planted: noise x 0.7 in aim-grem", [outcomes[:, 0] for outcomes in noisy], MU),
        _detected("planted: rows with noise x 0.7", _projected([outcomes[:, 3:] for outcomes in noisy]), MU),
        _detected("planted: rows of a larger unit", _projected(larger), MU),
        _detected("planted: scores x 4 in aim-grem", [outcomes[:, 0] for outcomes in sharp], selected),
        one_run(),
    ]


def _on_both(pool: Executor, of: Callable[[tuple[int, int]], list[float]], count: int) -> list[Floats]:
    """Return the outcomes of runs on either table, shape (count, outcomes) each."""
    outcomes = []
    for which in (0, 1):
        cases = [(which, 2 * number + which) for number in range(count)]  # a table and a seed
        outcomes.append(np.array(list(pool.map(of, cases, chunksize=50))))
    return outcomes


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
    """Return the check of one statistic on runs of both tables; `share` of the claim must be attained.

    `samples` are the values of the statistic on runs of both tables, and `claim` is μ. The lower bound at 95 % must
    reach `share` of the claim, so the attack is strong enough; that at 99.9 % must not exceed it, so the claim is not
    refuted.
    """
    null, moved = samples
    low, sure = (bound_of(name, null, moved, DELTA, level / 2, ("mu",)).mu for level in (CONFIDENCE, REFUTED))
    detail = f"mu is at least {low:.3f} (95 %) and {sure:.3f} (99.9 %), claimed {claim:.3f}, {len(null)} runs of each"
    return f"attack on the {name}", share * claim <= low and sure <= claim, detail


def _projected(counts: Sequence[Floats]) -> list[Floats]:
    """Return the counts of runs on both tables along the direction that is best on the first part of the runs."""
    along = direction(*(of_table[: len(of_table) // CHOSEN_ON] for of_table in counts))
    return [of_table @ along for of_table in counts]


def _detected(name: str, samples: Sequence[Floats], claim: float) -> Check:
    """Return the check that runs with a planted violation refute the claim."""
    null, moved = samples
    sure = bound_of(name, null, moved, DELTA, REFUTED / 2, ("mu",)).mu
    return name, sure > claim, f"mu is at least {sure:.3f}, claimed {claim:.3f}"


def one_run(canaries: int = CANARIES, guessed: int = GUESSED, mu: float = CANARY_MU, seed: int = 0) -> Check:
    """Return the one-run audit of the mechanism on one attribute with a cell for each canary.

    A fair coin decides for each canary whether its cell has one more record, beside 5 others. The auditor guesses the
    coins of `guessed` cells, "no" for those with the least noisy counts and "yes" for those with the greatest; the
    number of right guesses bounds ε from below.
    """
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
    """Return the largest ε that the number of right guesses refutes at a confidence of 95 %; 0 if none.

    `right` of the `guesses` on the membership of `canaries` are correct. `_tail` bounds the probability of at least so
    many under ε, and grows with ε. The ε at which it is CONFIDENCE is found by bisection between 0 and 20.
    """
    low, high = 0.0, 20.0
    if _tail(canaries, guesses, right, low, delta) > CONFIDENCE:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(canaries, guesses, right, middle, delta) <= CONFIDENCE else (low, middle)
    return low


def _tail(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the bound of the probability of at least `right` correct guesses under (ε, δ).

    Under ε alone a guess is right with at most the probability 1/(1 + e^−ε), so the number of right guesses is at most
    binomial. δ adds at most 2 · canaries · δ times the largest mean probability of the j values below `right`.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    # probabilities of the next 1, 2, … values below `right` together
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    steepest = float((below / np.arange(1, right + 1)).max()) if right else 0.0
    return float(min(1.0, stats.binom.sf(right - 1, guesses, chance) + 2 * canaries * delta * steepest))
