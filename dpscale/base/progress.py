"""Progress of tasks in words, as lines on stderr: at most one in ten seconds (DPSCALE_PROGRESS sets another interval).

A line states the number of finished tasks and never a count, a value or a query.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from dpscale.base import compilation
from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError

Progress = Callable[[str, int, int], None]
EVERY_SECONDS = "10"
VARIABLE = "DPSCALE_PROGRESS"
WORDS = {
    "bound": "bounding rows of units",
    "check": "checking workers and files",
    "combine-periods": "combining periods",
    "connect": "connecting to the scheduler",
    "count": "counting records",
    "count-bins": "searching ends of numbers",
    "count-codes": "searching codes of a tree",
    "count-nodes": "searching edges",
    "count-units": "counting units",
    "count-values": "searching values",
    "count-votes": "searching values",
    "find-values": "searching values",
    "hash": "hashing files",
    "learn-pairs": "learning pairs of attributes",
    "measure-marginals": "measuring marginals",
    "model": "fitting the model",
    "read-units": "reading units",
    "reconstruct-set": "computing answers",
    "rows": "drawing synthetic rows",
    "sample-triples": "sampling sets of three",
    "score-candidates": "scoring candidates",
    "self-test": "testing this installation",
    "snapshot": "reading files",
    "solve-attribute": "planning attributes",
    "solve-restart": "planning attributes",
    "solve-subworkload": "planning marginals",
    "sweep-pairs": "fitting pairs of attributes",
    "units": "reading units",
}


def silent(label: str, done: int, total: int) -> None:
    """Progress function that shows nothing."""


def in_words(label: str) -> str:
    """Return what tasks with a label do, in words; a remark after a comma stays."""
    name, comma, remark = label.partition(",")
    return WORDS.get(name, name.replace("-", " ")) + comma + remark


class ProgressLines:
    """Progress function that prints at most one line per interval: finished tasks and the estimated remaining time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._label, self._first = clock, "", (0.0, 0)
        self._printed, self._every = clock(), _seconds(os.environ.get(VARIABLE, EVERY_SECONDS))

    def __call__(self, label: str, done: int, total: int) -> None:
        """Print a line unless one was printed less than `_every` seconds ago.

        A new label starts the measurement of the time per task, from which the remaining time is estimated.
        """
        now = self._clock()
        if label != self._label:
            self._label, self._first = label, (now, done)
        if now - self._printed < self._every:
            return
        self._printed = now
        print(f"dpscale: {in_words(label)}: {done:,} of {total:,} tasks{self._left(now, done, total)}",
              file=sys.stderr, flush=True)  # fmt: skip

    def _left(self, now: float, done: int, total: int) -> str:
        """Return the estimated remaining time as text; empty if no task has finished since the first report."""
        began, before = self._first
        if done <= before or done >= total:
            return ""
        return f", about {(total - done) * (now - began) / (done - before):.0f} s left"


def lines(label: str, done: int, total: int) -> None:
    """Stand for `ProgressLines`, which a function with this default makes for each call (`shown`)."""


def shown(progress: Progress | bool | None) -> Progress:
    """Return the progress function of a call.

    True stands for lines, the default. None and False stand for nothing, and hide compilations too.

    Raises
    ------
    JobError
        If `progress` cannot be called.
    """
    if progress is True or progress is lines:
        compilation.announced = True
        return ProgressLines()
    if progress is None or progress is False:
        compilation.announced = False
        return silent
    if not callable(progress):
        raise JobError("progress", safe_repr(progress), "a function of a label and two numbers, True or False",
                       "leave it out for lines on stderr")  # fmt: skip
    return progress


def _seconds(text: str) -> float:
    """Return the interval, or the default if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return float(EVERY_SECONDS)
