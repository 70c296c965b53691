"""How many bytes a run's largest task holds: what every worker of a cluster must have before anything is spent.

Counting is planned by the byte. What measuring and answering take was measured, as the peak of a process beside what it
had before, over one set of two million cells and of a million queries; the largest of all families is here.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpscale.engine import Engine
from dpscale.engine.counting import FACTOR, largest_task
from dpscale.errors import PlanError
from dpscale.job import Job
from dpscale.plans.plan import Plan
from dpscale.plans.planfile import AnyPlan

MEASURED = 64  # bytes a cell, or a row of the strategy: counts, their product, noise in words, floats
ESTIMATED, ANSWERED = 40, 216  # bytes a cell of an estimate, and a query with what names it, its error and interval
Need = tuple[int, str]


def check_room(made: AnyPlan, job: Job, engine: Engine) -> None:
    """PlanError when the largest attribute set fits neither the memory setting nor the smallest worker.

    An adaptive run holds exact counts in half of the setting, and counts in the other.
    """
    memory = job.engine.bytes if isinstance(made, Plan) else job.engine.bytes // 2
    _check_memory(made, memory, engine.workers)
    needed, what = max(_needs(made, job, memory, engine.workers))
    engine.check_room(needed, what)


def _needs(made: AnyPlan, job: Job, memory: int, workers: int) -> Iterator[Need]:
    counting, what = largest_task(made.domain, made.counted, memory, workers)
    yield counting, f"{what} (counting)"
    if isinstance(made, Plan):
        yield from (_measuring(made, index) for index in range(len(made.blocks)))
    for part in made.workload.parts:
        for attributes in part.sets:
            if (queries := part.count(attributes)) <= job.output.max_rows:
                needed = ANSWERED * queries + ESTIMATED * made.domain.cells(attributes)
                yield needed, f"{_named(attributes)} (answers)"


def _measuring(made: Plan, index: int) -> Need:
    block, rows = made.blocks[index], 1
    for one in block.rows:
        rows *= one
    return MEASURED * max(rows, made.domain.cells(block.attributes)), f"{_named(block.attributes)} (measuring)"


def _named(attributes: tuple[str, ...]) -> str:
    return ", ".join(attributes) or "the total"


def _check_memory(made: AnyPlan, memory: int, workers: int) -> None:
    """PlanError when the largest attribute set does not fit the memory that counting has."""
    needed = 8 * (workers + FACTOR) * made.domain.cells(made.largest)
    if needed > memory:
        raise PlanError(
            "engine.memory",
            f"{', '.join(made.largest)} needs {needed / 2**30:.2f} GiB with {workers} workers",
            f"more than the {memory / 2**30:.2f} GiB set",
            "raise it, use fewer workers, or leave the set out",
        )
