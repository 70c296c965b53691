"""Errors that tell nothing of the data, of tasks and of whatever else works on records or exact counts.

An error text is an output: it stands on the terminal, in a worker's log and on Dask's dashboard. Our own errors are
written for that. Others' are not: NumPy says how many rows it found no memory for, Arrow names the value that it could
not convert. So of those only the kind is passed on, and the place in the code. Want of memory is told in the same words
wherever it is met, because where depends on the data.

A refusal of data is no failure of a task: it is what the task found. It leaves as a value (`Refused`), goes through the
sums and is raised on the driver, so that no worker logs which task, and with it whose files, held what was refused.

With DPSCALE_DEBUG=1 an unexpected error is the cause of ours, with its text and traceback: see `errors`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any

from dpscale.base.errors import DEBUG, DEBUG_WARNING, DataError, DpscaleError, TransientError, Unreadable, debugging

FIELD = "engine"
HOUSE = Path(__file__).parents[1]
AGAIN = "run again: it goes on where it stopped"
NO_ROOM = ("can't start new thread", "Failed to launch worker thread", "Cannot allocate memory")  # Python's and Arrow's


class Refused:
    """Data that a task refused, in the place of its result. Shows nothing."""

    def __init__(self, error: DataError) -> None:
        self.error = error

    def __repr__(self) -> str:
        return "result"


def accepted(results: Iterable[Any]) -> None:
    """Raise what tasks refused: of several refusals the first by its words, whichever tasks they are of."""
    found = [result for result in results if isinstance(result, Refused)]
    if found:
        raise _first(found).error


def _first(found: list[Refused]) -> Refused:
    return min(found, key=lambda refused: str(refused.error))


class Discreet:
    """A task's function; picklable where the function is. A refused argument is its result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *arguments: Any) -> Any:
        found = [argument for argument in arguments if isinstance(argument, Refused)]
        if found:
            return _first(found)
        try:
            return self.function(*arguments)
        except DpscaleError as error:
            without_cause(error)
            if isinstance(error, DataError) and not isinstance(error, Unreadable):
                return Refused(error.with_traceback(None))
            raise
        except Exception as error:
            redacted = _redacted(error, f"task {self.__name__}").with_traceback(error.__traceback__)
            redacted = with_cause(redacted, error)
        raise redacted

    def __repr__(self) -> str:
        return self.__name__


def discreetly(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments), here on the driver, with the same care. `what` names it.

    No context manager: what is raised in one drags the error that it met along.
    """
    try:
        return function(*arguments)
    except DpscaleError as error:
        without_cause(error)
        raise
    except Exception as error:
        redacted = with_cause(_redacted(error, what), error)
    raise redacted


def with_cause(made: DpscaleError, error: BaseException) -> DpscaleError:
    """An error of ours that stands for another one, which is its cause only where the user asks for it."""
    if debugging():
        made.__cause__ = error
        made.add_note(DEBUG_WARNING)
    else:
        error.__traceback__ = None  # its frames hold arrays
    return made


def without_cause(error: DpscaleError) -> None:
    """Part an error of ours from what it stands for, which is a library's, with a text and arrays."""
    if not debugging():
        error.__cause__ = error.__context__ = None


def out_of_memory(error: BaseException) -> bool:
    """Whether what is missing is memory, which libraries call by many names."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return any(words in str(error) for words in NO_ROOM)


def no_memory() -> TransientError:
    """What is said wherever memory ran out."""
    return TransientError(f"{FIELD}.memory", "out of memory", "", f"set less, or use fewer workers, and {AGAIN}")


def _redacted(error: Exception, what: str) -> DpscaleError:
    if out_of_memory(error):
        return no_memory()
    if isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        more = "" if error.errno else hint()
        return TransientError(FIELD, f"{what} failed: {reason}", "", f"mend it and run again: it goes on there{more}")
    return unexpected(error, what)


def unexpected(error: BaseException, what: str, but: str = "") -> TransientError:
    """What is said of an error that nobody foresaw: its kind and place. `but`: what it does not mean."""
    got = f"{what} failed with {kind_and_place(error)}"
    return TransientError(FIELD, got, "", f"{but}its text may tell of records and is left out; {AGAIN}{hint()}")


def hint() -> str:
    """How to see the cause of an error, for the end of its sentence; empty where it is shown."""
    return "" if debugging() else f"; set {DEBUG}=1 to see the cause (its output is private)"


def kind_and_place(error: BaseException) -> str:
    """The kind of an error and where in our code it was, without its text."""
    frame = own_frame(error)
    place = f" at {Path(frame.filename).relative_to(HOUSE.parent)}:{frame.lineno}" if frame else ""
    return type(error).__name__ + place


def own_frame(error: BaseException) -> FrameSummary | None:
    """The innermost frame of our code that an error went through."""
    ours = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(HOUSE)]
    return next((frame for frame in reversed(ours) if frame.filename != __file__), None)
