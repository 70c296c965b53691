"""Limit of the time of planning: loops of solvers check it, and tasks in other threads or processes carry it along.

A plan does not depend on the limit: planning ends with the plan, or with an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dpscale.base.errors import PlanningTimeError
from dpscale.base.numerics import ParallelMap

_end: ContextVar[tuple[float, float] | None] = ContextVar("_end", default=None)  # moment, and seconds of the setting


@contextmanager
def planning_within(seconds: float, end: float | None = None) -> Iterator[None]:
    """Limit the time of planning inside the context.

    Parameters
    ----------
    seconds : float
        Setting `engine.planning_seconds`.
    end : float, optional
        Moment at which it is over, in seconds since 1970, which all processes share. Default: after `seconds`.
    """
    token = _end.set((time.time() + seconds if end is None else end, seconds))
    try:
        yield
    finally:
        _end.reset(token)


def check_planning_time() -> None:
    """Raise PlanningTimeError if the time of planning is over; without a limit do nothing."""
    if (end := _end.get()) is not None and time.time() > end[0]:
        raise too_long(end[1], "planning is not over")


def too_long(seconds: float, why: str) -> PlanningTimeError:
    """Return the error for planning that takes longer than the setting."""
    remedy = "raise it, ask for fewer or smaller sets, or set mechanism weighted-residuals"
    return PlanningTimeError(
        "engine.planning_seconds", f"{seconds:g}, and {why}", "a workload that is planned in time", remedy
    )


@dataclass(frozen=True)
class LimitedTask:
    """Function of a task with the moment at which planning is over."""

    function: Callable[..., Any]
    seconds: float
    end: float

    def __call__(self, *arguments: Any) -> Any:
        with planning_within(self.seconds, self.end):
            check_planning_time()
            return self.function(*arguments)


def limited(each: ParallelMap) -> ParallelMap:
    """Return a map whose tasks end when the time of planning is over."""

    def limited_map(function: Callable[..., Any], items: Iterable[Any]) -> Iterable[Any]:
        """Map a function over items, with the limit of the time of planning if there is one.

        The limit is read at the call of the map, since tasks may run in threads and processes without the context
        variable.
        """
        if (end := _end.get()) is None:
            return each(function, items)
        check_planning_time()
        return each(LimitedTask(function, end[1], end[0]), items)

    return limited_map
