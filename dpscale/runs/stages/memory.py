"""How many bytes a run's largest task holds: what every worker of a cluster must have before anything is spent.

Counting is planned by the byte. What measuring and answering take was measured, as the peak of a process beside what it
had before, over one set of two million cells and of a million queries; the largest of all families is here.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpscale.base.errors import JobError, PlanError
from dpscale.base.names import sized
from dpscale.engine import Engine
from dpscale.engine.counting import FACTOR, largest_task
from dpscale.job import Job
from dpscale.job.sections import SynthesizeTable
from dpscale.plans.planned import Planned
from dpscale.workload import Part, counts_of

ESTIMATED, ANSWERED = 40, 216  # bytes a cell of an estimate, and a query with what names it, its error and interval
VALUE = 16  # bytes of a value of a synthetic row: as a cell and decoded
Need = tuple[int, str]


def check_room(planned: Planned, job: Job, engine: Engine) -> None:
    """PlanError when the largest attribute set fits neither the memory setting nor the smallest worker."""
    memory = counting_memory(planned, job)
    if job.synthesize is not None:
        check_rows(job.synthesize, job.synthesize.rows, len(planned.domain), job.engine.bytes)
    _check_memory(planned, memory, engine.workers)
    needed, what = max(_needs(planned, job, memory, engine.workers))
    engine.check_room(needed, what)


def check_rows(asked: SynthesizeTable, rows: int | None, columns: int, memory: int) -> None:
    """JobError where a file of rows does not fit the memory setting. `rows`: how many; None, not known yet, for any."""
    from dpscale.synthesis.draw import LEAST_ROWS  # and the compiled loops, which a plan has no use for

    files, count = asked.parts_of(rows or 1), rows or 1
    needed = min(count, max(-(-count // files), 2 * LEAST_ROWS)) * columns * VALUE
    if needed > memory:
        got = f"{rows} in {files} files: drawing one needs {sized(needed)}"
        raise JobError("synthesize.rows", got, f"what fits the {sized(memory)} of engine.memory",
                       f"ask for fewer rows, set more synthesize.parts (of {2 * LEAST_ROWS:,} rows or more), or raise "
                       "engine.memory")  # fmt: skip


def counting_memory(planned: Planned, job: Job) -> int:
    """What counting may hold: a run that selects holds exact counts of candidates in the other half."""
    return job.engine.bytes // 2 if planned.candidates else job.engine.bytes


def _needs(planned: Planned, job: Job, memory: int, workers: int) -> Iterator[Need]:
    counting, what = largest_task(planned.domain, planned.counted, memory, workers)
    yield counting, f"{what} (counting)"
    yield from planned.needs
    for part in planned.workload.parts:
        yield from _answering(part, job.output.max_rows)


def _answering(part: Part, most: int) -> Iterator[Need]:
    """Bytes of the task that answers a set of a part, one of each size."""
    sizes = zip(part.domain.cells_each(part.sets), counts_of(part), strict=True)
    for (cells, count), names in dict(zip(sizes, part.sets, strict=True)).items():
        if count <= most:
            needed = ANSWERED * count + ESTIMATED * cells
            yield needed, f"{', '.join(names) or 'the total'} (answers)"


def _check_memory(planned: Planned, memory: int, workers: int) -> None:
    """PlanError when the largest attribute set does not fit the memory that counting has."""
    needed = 8 * (workers + FACTOR) * planned.domain.cells(planned.largest)
    if needed > memory:
        set_needs = f"{', '.join(planned.largest)} needs {sized(needed)} with {workers} workers"
        raise PlanError("engine.memory", set_needs, f"more than the {sized(memory)} set",
                        "raise it, use fewer workers, or leave the set out")  # fmt: skip
