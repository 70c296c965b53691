"""The cap of a period against adversaries who choose releases, and the months they read, after earlier outcomes.

The oracle is exact. A release answers by randomised response, of a whole number of sixteenths of epsilon, whether the
number of rows in its months is odd. All outcomes of an interaction are enumerated, each with its probability for a
table and for the table with one more row in one month. The logarithm of their ratio is the privacy loss of that row.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from dpscale.base.errors import BudgetError
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost
from tests.ledger.test_book import DIGEST
from tests.ledger.test_period_caps import first_month_only, releases_without_periods_read_nothing, total_cap_only

MONTHS = ("2026-01", "2026-02", "2026-03", "2027-01")
CAPS = {"month": Fraction(1), "year": Fraction(3, 2)}
TURNS = 4
Outcomes = tuple[int, ...]
Step = tuple[tuple[str, ...], Fraction]  # months that a release reads, none for all of them, and its epsilon


def choose(seed: int, outcomes: Outcomes) -> Step:
    """Return the release that the adversary asks for after these outcomes."""
    generator = random.Random(f"{seed} {outcomes}")
    months = generator.sample(MONTHS, generator.choice([0, 1, 1, 2, 3]))
    labels = [generator.choice([month, f"{month}-15", month]) for month in months]
    if generator.random() < 0.2:
        labels = ["2026-W05"]  # the last days of January and the first one of February
    return tuple(sorted(labels)), Fraction(generator.choice([6, 9, 12, 15]), 16)


def read_months(labels: tuple[str, ...]) -> tuple[str, ...]:
    if "2026-W05" in labels:
        return MONTHS[:2]
    return tuple(month for month in MONTHS if not labels or any(label.startswith(month) for label in labels))


def probability(step: Step, outcome: int, rows: dict[str, int]) -> float:
    """Return the probability of an outcome of randomised response."""
    labels, epsilon = step
    parity = sum(rows[month] for month in read_months(labels)) % 2
    return 1 / (1 + math.exp(-epsilon if outcome == parity else epsilon))


def interactions(folder: Path, seed: int) -> Iterator[list[tuple[Step, int]]]:
    """Yield every course of the interaction with a ledger: the admitted releases with their outcomes."""
    pending: list[tuple[list[tuple[Step, int]], Outcomes]] = [([], ())]
    while pending:
        course, outcomes = pending.pop()
        if len(outcomes) == TURNS:
            yield course
            continue
        step = choose(seed, outcomes)
        with Ledger.open(folder / f"{seed}-{len(outcomes)}-{''.join(map(str, outcomes))}.sqlite") as ledger:
            for period, epsilon in CAPS.items():
                ledger.set_cap("shop", float(epsilon), 0, period=period)
            for number, (earlier, _) in enumerate(course):
                ledger.charge("shop", f"r{number}", Cost(pure=earlier[1]), DIGEST, periods=earlier[0])
            try:
                ledger.charge("shop", "next", Cost(pure=step[1]), DIGEST, periods=step[0])
            except BudgetError:
                pending.append((course, (*outcomes, 2)))  # refused, which both tables show
                continue
        pending += [([*course, (step, outcome)], (*outcomes, outcome)) for outcome in (0, 1)]


def largest_losses(folder: Path, seed: int) -> dict[str, float]:
    """Return the largest privacy loss of one more row in each month."""
    courses = list(interactions(folder, seed))
    found = dict.fromkeys(MONTHS, 0.0)
    for month in MONTHS:
        tables = [dict.fromkeys(MONTHS, 0), dict.fromkeys(MONTHS, 0) | {month: 1}]
        chances = [[math.prod(probability(step, outcome, rows) for step, outcome in course) for course in courses]
                   for rows in tables]  # fmt: skip
        assert [sum(one) for one in chances] == pytest.approx([1, 1]), "all courses are enumerated"
        found[month] = max(abs(math.log(one / other)) for one, other in zip(*chances, strict=True))
    return found


def above_cap(losses: dict[str, float]) -> bool:
    return any(loss > CAPS["month"] + 1e-9 for loss in losses.values())


@pytest.mark.parametrize("seed", range(8))
def test_loss_of_a_row_stays_within_the_cap_of_its_month(tmp_path: Path, seed: int) -> None:
    losses = largest_losses(tmp_path, seed)
    assert not above_cap(losses)
    assert max(losses.values()) > 0.3, "the adversary learns something"


@pytest.mark.parametrize("fault", [first_month_only, releases_without_periods_read_nothing, total_cap_only])
def test_enumeration_detects_planted_faults(tmp_path: Path, fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        assert any(above_cap(largest_losses(tmp_path, seed)) for seed in range(8))
