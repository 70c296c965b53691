"""Progress on stderr: bars on a terminal, otherwise one line every ten seconds.

The environment variable DPSCALE_PROGRESS sets another interval in seconds. Progress shows the number of finished
tasks and never a count, a value or a query.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

EVERY_SECONDS = "10"
VARIABLE = "DPSCALE_PROGRESS"


class Bars:
    """Progress function and context manager; shows nothing if quiet."""

    def __init__(self, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown = not quiet and sys.stderr.isatty()
        self._lines = None if quiet or self._shown else Lines(clock)
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Bars:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bars = Progress(*columns, console=Console(stderr=True))
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, label: str, done: int, total: int) -> None:
        if self._lines is not None:
            self._lines(label, done, total)
        if self._bars is None:
            return
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total)
        self._bars.update(self._tasks[label], completed=done, total=total)


class Lines:
    """Progress function that prints at most one line per interval: finished tasks and the estimated remaining time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._label, self._first = clock, "", (0.0, 0)
        self._printed, self._every = clock(), _seconds(os.environ.get(VARIABLE, EVERY_SECONDS))

    def __call__(self, label: str, done: int, total: int) -> None:
        now = self._clock()
        if label != self._label:
            self._label, self._first = label, (now, done)
        if now - self._printed < self._every:
            return
        self._printed = now
        print(
            f"dpscale: {label}: {done:,} of {total:,} tasks{self._left(now, done, total)}", file=sys.stderr, flush=True
        )

    def _left(self, now: float, done: int, total: int) -> str:
        began, before = self._first
        if done <= before or done >= total:
            return ""
        return f", about {(total - done) * (now - began) / (done - before):.0f} s left"


def _seconds(text: str) -> float:
    """Return the interval, or the default if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return float(EVERY_SECONDS)
