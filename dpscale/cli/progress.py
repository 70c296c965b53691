"""Progress bars on stderr. They show how many tasks are done: never a count, a value or a query."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class Bars:
    """A context manager whose value is a progress function; nothing is shown when quiet or not on a terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty()
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
        if self._bars is None:
            return
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total)
        self._bars.update(self._tasks[label], completed=done, total=total)
