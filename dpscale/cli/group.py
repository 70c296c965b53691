"""Root command: exit codes, one sentence on stderr, shared options, and progress.

Exit codes: 0 done; 2 the job, domain or data is wrong; 3 the budget refuses; 70 a fault of dpscale; 75 try
again. With --json a command prints one JSON object on stdout and nothing else there. Progress is printed on stderr:
bars on a terminal, otherwise one line every ten seconds (DPSCALE_PROGRESS sets another interval). It shows the number
of finished tasks and never a count, a value or a query.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import click

from dpscale.base import compilation
from dpscale.base.error_redaction import no_memory
from dpscale.base.errors import DEBUG_WARNING, DpscaleError, TransientError, debugging
from dpscale.base.progress import ProgressLines, in_words

STOPPED = "dpscale: stopped; the same command (without --fresh) resumes, and spends nothing twice"


class _Group(click.Group):
    """Command group that turns dpscale's errors into one sentence on stderr and their exit code."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command; print an error as one sentence with its remedy, and exit with the code of its kind."""
        _write_utf8()
        if debugging():
            click.echo(f"dpscale: {DEBUG_WARNING}", err=True)
        try:
            with _quiet_threads(), _quiet_loggers(), _plain_warnings():
                return super().invoke(context)
        except DpscaleError as error:
            show_cause(error)
            click.echo(f"dpscale: {error}{more_about(error, context.invoked_subcommand)}", err=True)
            for note in getattr(error, "__notes__", ()):
                if note != DEBUG_WARNING and not note.startswith("more: "):
                    click.echo(note, err=True)
            context.exit(error.exit_code)
        except MemoryError as error:  # its text may reveal the number of records
            show_cause(error)
            click.echo(f"dpscale: {no_memory()}{more_about(no_memory())}", err=True)
            context.exit(TransientError.exit_code)
        except KeyboardInterrupt:
            click.echo(STOPPED, err=True)
            context.exit(TransientError.exit_code)


def _write_utf8() -> None:
    """Write UTF-8 into files and pipes, for which Windows has other encodings."""
    for stream in (sys.stdout, sys.stderr) if sys.platform == "win32" else ():
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")


def more_about(error: DpscaleError, command: str | None = None) -> str:
    """Return where more is written about an error, unless its text names a page."""
    if re.search(r"see (docs|cluster)/", str(error)):
        return ""
    return f"; more: dpscale {command} --help" if error.field.startswith("-") else f"; more: {error.more}"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings as one sentence on stderr."""
    with warnings.catch_warnings():
        printed = set[str]()

        def show(message: Warning | str, *_: object) -> None:
            if str(message) not in printed:
                click.echo(f"dpscale: warning: {message}", err=True)
            printed.add(str(message))

        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def _quiet_threads() -> Iterator[None]:
    """Print only the type of errors in threads and destructors, which reach no caller."""
    before = threading.excepthook, sys.unraisablehook
    threading.excepthook = sys.unraisablehook = _kind_alone
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Print no message of a library's logger unless in debugging: a sentence of dpscale states its errors."""
    before = logging.root.manager.disable
    if not debugging():
        logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def show_cause(error: BaseException | None) -> None:
    """Print the traceback of an error with its causes, if DPSCALE_DEBUG requests it."""
    if error is not None and debugging():
        click.echo("".join(traceback.format_exception(error)), err=True)


def _kind_alone(failure: Any) -> None:
    """Print of a failure in a thread or destructor its kind alone: its text may reveal records."""
    try:
        show_cause(failure.exc_value)
        if failure.exc_type is not SystemExit:
            click.echo(f"dpscale: a thread or a destructor failed with {failure.exc_type.__name__}", err=True)
    except Exception:  # out of memory
        pass


scheduler_option = click.option("--scheduler", metavar="SPEC", help="threads, processes, synchronous, tcp://…, tls://…")
empty_option = click.option("--empty", is_flag=True, help="Release data without a counted row.")
fresh_option = click.option("--fresh", is_flag=True, help="Make a new release in a new directory.")
quiet_option = click.option("--quiet", is_flag=True, help="Print no progress on stderr.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


@click.group(cls=_Group)
@click.version_option(package_name="dpscale")
def main() -> None:
    """Differentially private answers to very large workloads, on Dask."""


class Bars:
    """Progress function and context manager; shows nothing if quiet."""

    def __init__(self, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Choose bars on a terminal, lines on another stderr, or nothing if quiet.

        It also sets `compilation.announced`, by which compilation of loops is announced unless quiet.
        """
        self._shown = not quiet and sys.stderr.isatty()
        self._lines = None if quiet or self._shown else ProgressLines(clock)
        compilation.announced = not quiet
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Bars:
        """Start the bars, if there are any; rich is imported only then."""
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description:>26}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bars = Progress(*columns, console=Console(stderr=True))
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bars."""
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, label: str, done: int, total: int) -> None:
        """Show the progress of the tasks of a label; each label has one bar."""
        if self._lines is not None:
            self._lines(label, done, total)
        if self._bars is None:
            return
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(in_words(label), total=total)
        self._bars.update(self._tasks[label], completed=done, total=total)
