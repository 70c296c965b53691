"""Redaction of errors from tasks and other code that handles records or exact counts.

The text of an error is an output: it appears on the terminal, in a worker's log and on Dask's dashboard. The texts of
dpscale's own errors contain no data. Others do: NumPy states for how many rows memory was missing, Arrow names the
value that it could not convert. Therefore only their type and their place in the code are passed on. Running out of
memory is reported in the same words everywhere, because its place depends on the data.

Refused data are not a failure of the task but its result. The refusal is returned as a value (`ReturnedError`), passes
through the sums and is raised on the driver, so that no worker logs which task, and thus whose files, contained the
refused data.

With DPSCALE_DEBUG=1 an unexpected error is attached as the cause, with its text and traceback; see `errors`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any, TypeVar

from dpscale.base.errors import (
    DEBUG,
    DEBUG_WARNING,
    DataError,
    DpscaleError,
    InternalError,
    TransientError,
    Unreadable,
    debugging,
)

Result = TypeVar("Result")
FIELD = "engine"
FAULTS = (IndexError, KeyError, TypeError, AttributeError, NameError, AssertionError)
OUTSIDE = {"dask", "distributed", "tornado", "asyncio", "fsspec", "s3fs", "gcsfs", "adlfs", "aiohttp", "psycopg",
           "polars"}  # fmt: skip
HOUSE = Path(__file__).parents[1]  # folder of dpscale's code
AGAIN = "run it again to resume"
NO_ROOM = ("can't start new thread", "Failed to launch worker thread", "Cannot allocate memory")  # of Python and Arrow


class ReturnedError:
    """Data error of a task, returned in place of its result. Its repr shows nothing."""

    def __init__(self, error: DataError) -> None:
        self.error = error

    def __repr__(self) -> str:
        return "result"


def accepted(results: Iterable[Any]) -> None:
    """Raise the error that tasks returned; of several, the first by text, regardless of the tasks."""
    found = [result for result in results if isinstance(result, ReturnedError)]
    if found:
        raise _first(found).error


def _first(found: list[ReturnedError]) -> ReturnedError:
    return min(found, key=lambda refused: str(refused.error))


class RedactedCall:
    """Wrapper of a task's function that redacts its errors; picklable if the function is.

    If an argument is `ReturnedError`, it is returned as the result.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *arguments: object) -> Any:
        """Call the function and redact its errors.

        A fault of the data is returned as a `ReturnedError`, not raised. An `Unreadable` and other errors of dpscale
        are raised without their cause; errors of other code are replaced by a redacted error.
        """
        found = [argument for argument in arguments if isinstance(argument, ReturnedError)]
        if found:
            return _first(found)

        try:
            return self.function(*arguments)
        except DpscaleError as error:
            without_cause(error)
            if isinstance(error, DataError) and not isinstance(error, Unreadable):
                return ReturnedError(error.with_traceback(None))
            raise
        except Exception as error:
            redacted = _redacted(error, f"task {self.__name__}").with_traceback(error.__traceback__)
            redacted = with_cause(redacted, error)

        raise redacted

    def __repr__(self) -> str:
        return self.__name__


def discreetly(what: str, function: Callable[..., Result], *arguments: object) -> Result:
    """Call function(*arguments) on the driver and redact its errors; the first argument names the action.

    This is not a context manager, because an exception raised in one references the original exception.
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
    """Return dpscale's error for another error, which becomes its cause only in debug mode."""
    if debugging():
        made.__cause__ = error
        made.add_note(DEBUG_WARNING)
    else:
        error.__traceback__ = None  # its frames reference arrays
    return made


def without_cause(error: DpscaleError) -> None:
    """Detach dpscale's error from its cause, a library's exception with a text and arrays."""
    if not debugging():
        error.__cause__ = error.__context__ = None


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out; libraries use various types for it."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return any(words in str(error) for words in NO_ROOM)


def no_memory() -> TransientError:
    """Return the error for memory that ran out."""
    return TransientError(f"{FIELD}.memory", "out of memory", "", f"reduce it, or use fewer workers, and {AGAIN}")


def _redacted(error: Exception, what: str) -> DpscaleError:
    """Return the error of this package for any other one, without its text, which may reveal records."""
    if out_of_memory(error):
        return no_memory()
    if isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        more = "" if error.errno else hint()
        return TransientError(FIELD, f"{what} failed: {reason}", "", f"fix it and run again to resume{more}")
    return unexpected(error, what)


def unexpected(error: BaseException, what: str, but: str = "") -> DpscaleError:
    """Return the error for an unforeseen exception, with its type and place.

    Exceptions of FAULTS in dpscale's code are faults of dpscale, which a repetition does not remove. `but` is prepended
    to the remedy and states which conclusion would be wrong.
    """
    got = f"{what} failed with {kind_and_place(error)}"
    if is_fault(error):
        return InternalError(FIELD, f"{got}, which is a fault of dpscale", "", f"{but}its text may describe records and"
                             f" is omitted; report this with the sentence and your versions{hint()}")  # fmt: skip
    return TransientError(FIELD, got, "", f"{but}its text may describe records and is omitted; {AGAIN}{hint()}")


def is_fault(error: BaseException) -> bool:
    """Return whether an exception is a fault of dpscale, not one of a cluster, a store or a server."""
    frames = [Path(frame.filename) for frame in extract_tb(error.__traceback__)]
    ours = [place for place, path in enumerate(frames) if path.is_relative_to(HOUSE) and str(path) != __file__]
    below = frames[ours[-1] + 1 :] if ours else []
    return isinstance(error, FAULTS) and bool(ours) and not any(OUTSIDE.intersection(one.parts) for one in below)


def hint() -> str:
    """Return how to see the cause of an error; empty if it is shown already."""
    return "" if debugging() else f"; set {DEBUG}=1 to see the cause (its output is private)"


def kind_and_place(error: BaseException) -> str:
    """Return the type of an error and its place in dpscale's code, without its text."""
    frame = own_frame(error)
    place = f" at {Path(frame.filename).relative_to(HOUSE.parent)}:{frame.lineno}" if frame else ""
    return type(error).__name__ + place


def own_frame(error: BaseException) -> FrameSummary | None:
    """Return the innermost frame of dpscale's code in the error's traceback."""
    ours = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(HOUSE)]
    return next((frame for frame in reversed(ours) if frame.filename != __file__), None)
